// decant: whole-number budgets that sum to exactly what was asked for: largest-remainder rounding, the even split under
// upper bounds, and the budget of one layer in tokens.
#ifndef DECANT_KV_DETAIL_APPORTION_HPP
#define DECANT_KV_DETAIL_APPORTION_HPP

#include <cmath>

#include "../../core/workspace.hpp"
#include "../stages.hpp"

namespace decant::kv::detail {

/// Rounds shares[0 ... n), which sum to `total`, to whole counts with just that sum: the largest fractions go up, ties
/// to the lower index. No count leaves [floor(share), ceil(share)]. O(n log n) is not worth it here: O(n * up).
DECANT_HD inline void largest_remainder(double* shares, index_t n, index_t total, std::int32_t* counts) {
  index_t sum = 0;
  for (index_t i = 0; i < n; ++i) {
    const double whole = std::floor(shares[i] + 1e-9);  // 2.9999999999 is 3
    counts[i] = static_cast<std::int32_t>(whole);
    shares[i] -= whole;
    sum += counts[i];
  }
  for (; sum < total; ++sum) {
    index_t best = 0;
    for (index_t i = 1; i < n; ++i) best = shares[i] > shares[best] + 1e-9 ? i : best;
    ++counts[best];
    shares[best] -= 1;
  }
}

/// Splits `total` evenly over n parts of which part i takes at most bounds[i]; what a full part cannot take goes to the
/// others, remainders to the lower index. Needs 0 <= total <= sum of bounds. O(n^2).
DECANT_HD inline void even_split(const index_t* bounds, index_t n, index_t total, index_t* counts) {
  for (index_t i = 0; i < n; ++i) counts[i] = 0;
  index_t left = total;
  while (left > 0) {
    index_t open = 0;
    for (index_t i = 0; i < n; ++i) open += counts[i] < bounds[i];
    if (open == 0) return;  // only when the bounds do not hold the total
    const index_t each = left / open > 0 ? left / open : 1;
    for (index_t i = 0; i < n && left > 0; ++i) {
      const index_t room = bounds[i] - counts[i];
      index_t add = room < each ? room : each;
      add = add < left ? add : left;
      counts[i] += add;
      left -= add;
    }
  }
}

/// Tokens that a layer (a LayerView or a ScoredLayer) holds in all its heads.
template <class Layer>
DECANT_HD index_t layer_tokens(const Layer& layer) {
  index_t have = 0;
  for (index_t h = 0; h < layer.kv_heads(); ++h) have += layer.length(h);
  return have;
}

/// Tokens that it may keep: a token budget times the heads, or every head's share; never more than there are. Sum over
/// heads, so that heads may lend each other.
template <class Layer>
DECANT_HD index_t layer_budget(const Budget& budget, const Layer& layer) {
  const index_t have = layer_tokens(layer);
  index_t shares = 0;
  for (index_t h = 0; h < layer.kv_heads(); ++h) shares += budget.resolve(layer.length(h));
  if (budget.kind() == Budget::Kind::fraction) return shares;
  const double wanted = budget.value() * static_cast<double>(layer.kv_heads());
  return wanted >= static_cast<double>(have) ? have : static_cast<index_t>(budget.value()) * layer.kv_heads();
}

inline index_t protected_count(const ScoredLayer& layer, index_t head) {
  index_t count = 0;
  for (index_t t = 0; t < layer.length(head); ++t) count += layer.keep(head, t) != 0;
  return count;
}

}  // namespace decant::kv::detail

#endif
