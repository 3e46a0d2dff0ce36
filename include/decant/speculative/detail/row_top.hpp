// decant: the k largest elements of a row for small k, in order: one pass, and an insertion for each element that enters;
// and the log-probability of one.
#ifndef DECANT_SPECULATIVE_DETAIL_ROW_TOP_HPP
#define DECANT_SPECULATIVE_DETAIL_ROW_TOP_HPP

#include <cstdint>

#include "../../core/view.hpp"

namespace decant::speculative::detail {

struct RowTop {
  float value;
  std::int32_t token;
};

/// Whether one of N elements exceeds `least`. Reads all N: a loop without a way out is a vector loop.
template <index_t N>
bool any_above(const float* x, float least) {
  std::int32_t found = 0;
  for (index_t i = 0; i < N; ++i) found |= x[i] > least ? 1 : 0;
  return found != 0;
}

/// Goes on with a row of which tokens below `first` were seen, `count` of them being in top: row [n] is what follows.
inline std::int32_t row_top_more(View<const float, 1> row, index_t first, float floor, View<RowTop, 1> top,
                                 std::int32_t count) {
  const auto k = static_cast<std::int32_t>(top.extent(0));
  if (k == 0) return 0;
  float least = count == k ? top[k - 1].value : floor;
  constexpr index_t block = 64;
  const index_t whole = row.contiguous() ? row.extent(0) / block * block : 0;
  index_t look = 0;  // whole blocks below the least of the top are passed over
  for (index_t y = 0; y < row.extent(0); ++y) {
    if (y == look && y < whole) {
      while (y < whole && !any_above<block>(row.data() + y, least)) y += block;
      if (y == row.extent(0)) break;
      look = y + block;
    }
    const float x = row[y];
    if (!(x > least)) continue;
    std::int32_t at = count < k ? count++ : k - 1;
    for (; at > 0 && top[at - 1].value < x; --at) top[at] = top[at - 1];
    top[at] = {x, static_cast<std::int32_t>(first + y)};
    if (count == k) least = top[k - 1].value;
  }
  return count;
}

/// top [k], largest first, of equal ones the lower token; returns how many there are: k, or fewer where fewer elements
/// exceed `floor`. NaN is never among them. O(n + entered * k); elements are compared 64 at a time.
inline std::int32_t row_top(View<const float, 1> row, float floor, View<RowTop, 1> top) {
  return row_top_more(row, 0, floor, top, 0);
}

/// log softmax of one logit, the same bits everywhere. At most 0, whatever the rounding: scores never rise downwards.
DECANT_HD inline float log_softmax(float logit, double log_sum_exp) {
  const auto x = static_cast<float>(static_cast<double>(logit) - log_sum_exp);
  return x < 0 ? x : 0.0f;
}

}  // namespace decant::speculative::detail

#endif
