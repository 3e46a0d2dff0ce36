// decant: one request of a batch on the CPU: its checks, its walk, and what is written of it. Nothing here throws.
#ifndef DECANT_SPECULATIVE_DETAIL_VERIFY_REQUEST_HPP
#define DECANT_SPECULATIVE_DETAIL_VERIFY_REQUEST_HPP

#include <cstdint>

#include "../accepted.hpp"
#include "../keys.hpp"
#include "../tree.hpp"
#include "longest_path.hpp"
#include "philox_choices.hpp"
#include "plan.hpp"
#include "request_output.hpp"
#include "verifier_walks.hpp"
#include "walk.hpp"

namespace decant::speculative::detail {

/// The tree of request b, or none and why: its offsets, its arrays, more than `levels` levels, a law not among `laws`.
inline TreeView checked_tree(const ForestView& trees, index_t b, std::int32_t vocab, index_t q_rows,
                             std::int32_t levels, unsigned accepted, Status& status) {
  status = Status::bad_tree;
  const index_t first = trees.offsets[b];
  const index_t last = trees.offsets[b + 1];
  if (first < 0 || last <= first || last > trees.all.nodes || last - first > max_tree_nodes) return {};
  const TreeView t = trees.tree(b);
  if (!well_formed(t, vocab, q_rows) || t.depth[t.nodes - 1] > levels) return {};
  status = Status::wrong_law;
  for (std::int32_t i = 0; i < t.nodes; ++i) {
    if (t.children[i] > 0 && ((accepted >> static_cast<int>(t.law[i])) & 1) == 0) return {};
  }
  status = Status::ok;
  return t;
}

/// Scratch of one request: plans for every level, or with level-parallel evaluation for every node.
template <class Plan>
struct RequestScratch {
  Plan* plans;
  double* scales;
  double* cuts;
  Exception<double>* exceptions;
};

template <class Plan, class V, class Rows>
WalkEnd walk(const V& policy, const TreeView& t, Rows& rows, PhiloxChoices& choices,
             const RequestScratch<Plan>& own) {
  const PlanScratch<double> scratch{own.cuts, own.exceptions};
  if constexpr (direction_of<V> == Direction::follow_target) {
    if constexpr (std::same_as<V, GumbelCoupled>) {
      RaceChoices race{choices};
      return follow_target<double>(t, rows, race);
    } else {
      return follow_target<double>(t, rows, choices);
    }
  } else if constexpr (direction_of<V> == Direction::longest_path) {
    return longest_path(policy, t, rows, choices, own.scales);
  } else if constexpr (direction_of<V> == Direction::top_down) {
    const auto make = [&](std::int32_t node, double m) {
      if constexpr (requires { Plan(t, node, m, m); }) {
        return Plan(t, node, m, plan_parameter(policy));
      } else {
        return Plan(t, node, m);
      }
    };
    return top_down<double>(t, make, rows, choices, scratch);
  } else {
    if constexpr (std::same_as<V, UniVer>) {
      if (policy.eval == UniVer::Eval::level_parallel) {
        own.scales[0] = 1;
        for (std::int32_t i = 0; i < t.nodes; ++i) allocate(t, i, own.scales, own.plans, rows, scratch);
        if (rows.bad()) return {Status::bad_row, 0, -1};
        return decide(t, own.plans, rows, choices, scratch);
      }
    }
    return bottom_up<double>(t, 0, 1.0, own.plans, rows, choices, scratch);
  }
}

}  // namespace decant::speculative::detail

#endif
