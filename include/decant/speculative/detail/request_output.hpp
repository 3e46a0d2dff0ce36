// decant: what is written of one verified request, on every context.
#ifndef DECANT_SPECULATIVE_DETAIL_REQUEST_OUTPUT_HPP
#define DECANT_SPECULATIVE_DETAIL_REQUEST_OUTPUT_HPP

#include <math.h>

#include <cstdint>

#include "../accepted.hpp"
#include "../tree.hpp"
#include "plan.hpp"
#include "verifier_walks.hpp"
#include "walk.hpp"

namespace decant::speculative::detail {

DECANT_HD inline bool is_chain(const TreeView& t) {
  for (std::int32_t i = 0; i + 1 < t.nodes; ++i) {
    if (t.children[i] != 1) return false;
  }
  return true;
}

/// How many nodes of a chain would pass each by itself, with the coins of rejection.
DECANT_HD_AS_ARGUMENTS
template <class Rows, class Choices>
DECANT_HD std::int32_t accepted_by_chance(const TreeView& t, Rows& rows, const Choices& choices) {
  std::int32_t count = 0;
  for (std::int32_t i = 0; i + 1 < t.nodes; ++i) {
    const std::int32_t token = t.token[i + 1];
    const double q = sampled_child(t.law[i], 0) ? rows.draft(t.q_row[i], token) : 1.0;
    const double chance = 0 < q ? share_of(rows.target(i, token), q) : 0.0;
    count += chance > 0 && choices.accept(chance, i + 1) ? 1 : 0;
  }
  return count;
}

/// How many nodes of a chain the target would draw at their parents, where follow_target() has ended at `node`. Reads
/// the rows behind; on a device by the whole block.
DECANT_HD_AS_ARGUMENTS
template <class Rows, class Choices>
DECANT_HD std::int32_t accepted_by_draw(const TreeView& t, std::int32_t node, Rows& rows, const Choices& choices) {
  std::int32_t count = node;  // in a chain its depth
  for (std::int32_t i = node + 1; i + 1 < t.nodes; ++i) {
    const Residual<double> target{i, -1, 1.0, 0.0, 0.0, nullptr, 0};
    count += choices.emit_next(rows, target, t.depth[i]) == t.token[i + 1] ? 1 : 0;
  }
  return count;
}

/// The i-th emitted token, drawn at `node`; -1, -1: none.
DECANT_HD_AS_ARGUMENTS
template <class Rows>
DECANT_HD void write_token(const Accepted& out, index_t b, std::int32_t i, std::int32_t token, std::int32_t node,
                           Rows& rows) {
  out.tokens(b, i) = token;
  if (out.log_probability.empty()) return;
  out.log_probability(b, i) = node < 0 ? __builtin_nanf("") : static_cast<float>(::log(rows.target(node, token)));
}

/// What one request emitted; each of the outputs may be empty but the first four.
DECANT_HD_AS_ARGUMENTS
template <class Rows>
DECANT_HD void write_accepted(const Accepted& out, index_t b, const TreeView& t, const WalkEnd& end, Rows& rows) {
  const bool ok = end.status == Status::ok;
  const auto room = static_cast<std::int32_t>(out.tokens.extent(1));
  const std::int32_t tau = ok ? t.depth[end.node] : -1;
  out.length[b] = tau;
  out.status[b] = end.status;
  for (std::int32_t i = tau + 1; i < room; ++i) write_token(out, b, i, -1, -1, rows);
  for (std::int32_t i = ok ? tau : 0; i + 1 < room; ++i) out.nodes(b, i) = -1;
  if (!ok) return;
  write_token(out, b, tau, end.token, end.node, rows);
  for (std::int32_t node = end.node, i = tau - 1; i >= 0; --i, node = t.parent[node]) {
    out.nodes(b, i) = node;
    write_token(out, b, i, t.token[node], t.parent[node], rows);
  }
}

/// The whole of it, on a device by the whole block.
DECANT_HD_AS_ARGUMENTS
template <ByItself Count, class Rows, class Choices>
DECANT_HD void finish_request(const Accepted& out, index_t b, const TreeView& t, const WalkEnd& end, Rows& rows,
                              const Choices& choices) {
  std::int32_t independent = -1;
  if constexpr (Count != ByItself::none) {
    if (!out.independent.empty() && end.status == Status::ok && is_chain(t)) {
      if constexpr (Count == ByItself::by_draw) {
        independent = accepted_by_draw(t, end.node, rows, choices);
      } else {
        independent = accepted_by_chance(t, rows, choices);
      }
    }
  }
  if (!writes_scratch()) return;
  write_accepted(out, b, t, end, rows);
  if (!out.independent.empty()) out.independent[b] = independent;
}

}  // namespace decant::speculative::detail

#endif
