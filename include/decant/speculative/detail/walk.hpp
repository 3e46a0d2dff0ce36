// decant: the two ways through a draft tree. Top down: a child that is accepted, with the chance that its parent's plan
// offers, is accepted for good, and starts anew at scale 1. Bottom up: a child is handed its scale, the subtree answers
// pass or fail with one coin per node, and only where all children of a node failed the node itself is asked: block,
// traversal and UniVer verification. `Choices` draws: with Philox in production, every outcome in turn in the tests.
// Rows: target(node, token), draft(q_row, token), pass(residual, step, skip) -> PassSums, overlap(node, q_row, rho),
// bad() (something that was read is no probability). Choices: accept(chance, node), emit(rows, residual, node), a
// token, or -1 where nothing has mass. On a device all threads of a block take the same walk together.
#ifndef DECANT_SPECULATIVE_DETAIL_WALK_HPP
#define DECANT_SPECULATIVE_DETAIL_WALK_HPP

#include <cstdint>

#include "../law.hpp"
#include "../tree.hpp"
#include "plan.hpp"
#include "residual.hpp"

namespace decant::speculative::detail {

/// How a walk ends.
struct WalkEnd {
  Status status = Status::ok;
  std::int32_t node = 0;    ///< the last accepted one; the path to it is its ancestors
  std::int32_t token = -1;  ///< what was emitted there
};

/// Emits at the end of a walk; from p itself where rounding has left nothing.
DECANT_HD_AS_ARGUMENTS
template <class Rows, class Choices, class Real>
DECANT_HD WalkEnd emit_at(Rows& rows, Choices& choices, const Residual<Real>& residual) {
  const std::int32_t node = residual.node;
  std::int32_t token = choices.emit(rows, residual, node);
  if (token < 0 && !rows.bad()) {
    token = choices.emit(rows, Residual<Real>{node, -1, Real(1), Real{}, Real{}, nullptr, 0}, node);
  }
  return {rows.bad() ? Status::bad_row : token < 0 ? Status::empty_support : Status::ok, node, token};
}

/// make(node, scale): the plan of a node.
DECANT_HD_AS_ARGUMENTS
template <class Real, class Make, class Rows, class Choices>
DECANT_HD WalkEnd top_down(const TreeView& t, const Make& make, Rows& rows, Choices& choices,
                           const PlanScratch<Real>& scratch) {
  auto plan = make(std::int32_t{0}, Real(1));
  for (std::int32_t child = plan.next(t); child >= 0; child = plan.next(t)) {
    const Real chance = plan.offer(t, rows, scratch);
    if (rows.bad()) return {Status::bad_row, 0, -1};
    if (Real{} < chance && choices.accept(chance, child)) {
      plan = make(child, Real(1));
    } else {
      plan.reject(t, rows, scratch);
    }
  }
  return emit_at(rows, choices, plan.residual(t, scratch));
}

/// The target's own token at every node, for as long as a child carries it. Choices: emit_next(rows, residual, depth).
DECANT_HD_AS_ARGUMENTS
template <class Real, class Rows, class Choices>
DECANT_HD WalkEnd follow_target(const TreeView& t, Rows& rows, Choices& choices) {
  WalkEnd end;
  while (true) {
    const Residual<Real> target{end.node, -1, Real(1), Real{}, Real{}, nullptr, 0};
    end.token = choices.emit_next(rows, target, t.depth[end.node]);
    if (rows.bad()) return {Status::bad_row, 0, -1};
    if (end.token < 0) return {Status::empty_support, 0, -1};
    std::int32_t child = t.first_child[end.node];
    const std::int32_t last = child + t.children[end.node];
    while (child < last && t.token[child] != end.token) ++child;
    if (t.children[end.node] == 0 || child == last) return end;
    end.node = child;
  }
}

/// stack: one plan per level of the tree. From `root` at scale `m`: its status is ok and its token -1 when it fails,
/// which at scale 1 it does not.
DECANT_HD_AS_ARGUMENTS
template <class Real, class Plan, class Rows, class Choices>
DECANT_HD WalkEnd bottom_up(const TreeView& t, std::int32_t root, const Real& m, Plan* stack, Rows& rows,
                            Choices& choices, const PlanScratch<Real>& scratch) {
  std::int32_t above = 0;  // plans on the stack
  Plan plan(t, root, m);
  while (true) {
    const std::int32_t child = plan.next(t);
    if (child >= 0) {
      const Real scale = plan.offer(t, rows, scratch);
      if (rows.bad()) break;
      if (Real{} < scale) {
        if (writes_scratch()) stack[above] = plan;
        ++above;
        plan = Plan(t, child, scale);
      } else {
        plan.reject(t, rows, scratch);
      }
      continue;
    }
    if (rows.bad()) break;
    if (choices.accept(plan.own(), plan.node())) return emit_at(rows, choices, plan.residual(t, scratch));
    if (above == 0) return {};
    --above;
    scratch_barrier();
    plan = stack[above];
    scratch_barrier();
    plan.reject(t, rows, scratch);
  }
  return {Status::bad_row, 0, -1};
}

/// The same decision in two parts, the first of which may run for all nodes of a level at once. Shares a node's scale
/// among its children: scales [nodes], the root's set before. Afterwards the plan has seen all its children fail.
DECANT_HD_AS_ARGUMENTS
template <class Real, class Plan, class Rows>
DECANT_HD void allocate(const TreeView& t, std::int32_t node, Real* scales, Plan* plans, Rows& rows,
                        const PlanScratch<Real>& scratch) {
  Plan plan(t, node, scales[node]);
  const bool reachable = Real{} < scales[node];
  for (std::int32_t i = 0; i < t.children[node]; ++i) {
    const std::int32_t child = Plan::visited(t, node, i);
    const bool offered = reachable && plan.next(t) >= 0;
    const Real scale = offered ? plan.offer(t, rows, scratch) : Real{};
    if (writes_scratch()) scales[child] = scale;
    if (offered) plan.reject(t, rows, scratch);
  }
  if (writes_scratch()) plans[node] = plan;
}

/// The second part: the first node in post-order whose coin falls is the end.
DECANT_HD_AS_ARGUMENTS
template <class Real, class Plan, class Rows, class Choices>
DECANT_HD WalkEnd decide(const TreeView& t, const Plan* plans, Rows& rows, Choices& choices,
                         const PlanScratch<Real>& scratch) {
  std::int32_t node = 0;
  while (t.children[node] > 0) node = Plan::visited(t, node, 0);
  while (node != 0 && !choices.accept(plans[node].own(), node)) {
    const std::int32_t parent = t.parent[node];
    const std::int32_t i = Plan::turn(t, node) + 1;
    if (i == t.children[parent]) {
      node = parent;
    } else {
      node = Plan::visited(t, parent, i);
      while (t.children[node] > 0) node = Plan::visited(t, node, 0);
    }
  }
  return emit_at(rows, choices, plans[node].residual(t, scratch));
}

}  // namespace decant::speculative::detail

#endif
