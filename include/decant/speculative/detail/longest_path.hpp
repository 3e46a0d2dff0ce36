// decant: the walk of lossy verifiers: every node is judged by its parent's row alone, and the longest path of accepted
// nodes wins, of equal ones the first. Rows, besides what walk.hpp asks: entropy(node) in nats, rank(node, token, ties),
// how many tokens are likelier, with `ties` also those as likely that come before.
#ifndef DECANT_SPECULATIVE_DETAIL_LONGEST_PATH_HPP
#define DECANT_SPECULATIVE_DETAIL_LONGEST_PATH_HPP

#include <cstdint>

#include "../../sampling/detail/rounded_math.hpp"
#include "../tree.hpp"
#include "../verifiers.hpp"
#include "residual.hpp"
#include "walk.hpp"

namespace decant::speculative::detail {

/// A token's share of the entropy, the same bits on every context.
DECANT_HD inline float entropy_term(float p) {
  if (!(p > 0)) return p == p ? 0.0f : p;
  return static_cast<float>(
      -::decant::detail::rounded_product(static_cast<double>(p), sampling::detail::rounded_log(static_cast<double>(p))));
}

/// Added up over a row: how many tokens are likelier than one of probability `own`, and with `ties` as likely and before
/// it; NaN where p is no probability.
DECANT_HD inline float rank_term(float p, float own, bool before) {
  if (!(p >= 0 && p < __builtin_huge_valf())) return __builtin_nanf("");
  return p > own || (before && p == own) ? 1.0f : 0.0f;
}

/// What a node's children must exceed; its likeliest token stands at the first level whatever this says.
DECANT_HD_AS_ARGUMENTS
template <class Rows>
DECANT_HD double threshold(const TypicalAcceptance& v, Rows& rows, std::int32_t node) {
  const double by_entropy =
      static_cast<double>(v.delta) *
      static_cast<double>(sampling::detail::rounded_exp(static_cast<float>(-rows.entropy(node))));
  const auto epsilon = static_cast<double>(v.epsilon);
  return epsilon < by_entropy ? epsilon : by_entropy;
}
DECANT_HD_AS_ARGUMENTS
template <class Rows>
DECANT_HD bool accepted(const TypicalAcceptance&, Rows& rows, std::int32_t node, std::int32_t token, double threshold) {
  return rows.target(node, token) > threshold || (node == 0 && rows.rank(node, token, true) == 0);
}

DECANT_HD_AS_ARGUMENTS
template <class Rows>
DECANT_HD double threshold(const TopKAcceptance&, Rows&, std::int32_t) {
  return 0;
}
DECANT_HD_AS_ARGUMENTS
template <class Rows>
DECANT_HD bool accepted(const TopKAcceptance& v, Rows& rows, std::int32_t node, std::int32_t token, double) {
  return rows.target(node, token) > 0 && rows.rank(node, token, false) < v.k;
}

/// stands [nodes]: scratch, 1 where the path to a node is accepted.
DECANT_HD_AS_ARGUMENTS
template <class V, class Rows, class Choices>
DECANT_HD WalkEnd longest_path(const V& v, const TreeView& t, Rows& rows, Choices& choices, double* stands) {
  std::int32_t best = 0;
  if (writes_scratch()) stands[0] = 1;
  scratch_barrier();
  for (std::int32_t node = 0; node < t.nodes; ++node) {
    if (t.children[node] == 0) continue;
    const bool reached = stands[node] == 1;
    const double least = reached ? threshold(v, rows, node) : 0;
    for (std::int32_t child = t.first_child[node]; child < t.first_child[node] + t.children[node]; ++child) {
      const bool stand = reached && accepted(v, rows, node, t.token[child], least);
      if (rows.bad()) return {Status::bad_row, 0, -1};
      if (writes_scratch()) stands[child] = stand ? 1 : 0;
      if (stand && t.depth[child] > t.depth[best]) best = child;
    }
    scratch_barrier();
  }
  return emit_at(rows, choices, Residual<double>{best, -1, 1.0, 0.0, 0.0, nullptr, 0});
}

}  // namespace decant::speculative::detail

#endif
