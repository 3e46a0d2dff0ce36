// decant: verification on the CPU: which drafted tokens stand and which token follows them, for a batch of draft trees,
// by any verifier of verifiers.hpp. Scalars are doubles, rows fp32; random numbers are keyed by request, step and node,
// and sums have one order, so that every instruction set, thread count and batch gives the same tokens, and CUDA too
// (verify.cuh).
#ifndef DECANT_SPECULATIVE_VERIFY_HPP
#define DECANT_SPECULATIVE_VERIFY_HPP

#include <cstdint>

#include "../core/cpu.hpp"
#include "accepted.hpp"
#include "detail/float_rows.hpp"
#include "detail/verifier_walks.hpp"
#include "detail/verify_request.hpp"
#include "keys.hpp"
#include "tree.hpp"
#include "verifiers.hpp"

namespace decant::speculative {

namespace detail {

/// source_of(first row, part) -> the target rows of a tree, with scratch of that part.
template <class Plan, class V, class SourceOf>
void verify_batch(Cpu& cpu, const V& policy, const ForestView& trees, index_t tokens, const SourceOf& source_of,
                  const ProbabilityRows& q, const DrawKeys& keys, const Accepted& out) {
  const auto vocab = static_cast<std::int32_t>(tokens);
  const auto levels = static_cast<std::int32_t>(out.tokens.extent(1)) - 1;
  const index_t most = trees.all.nodes < max_tree_nodes ? trees.all.nodes : max_tree_nodes;
  const index_t parts = cpu.parts(trees.trees(), 1);
  Workspace::Scope scope(cpu.workspace());
  Workspace& workspace = cpu.workspace();
  const index_t plans = most > levels ? most : levels + 1;
  const RequestScratch<Plan> all{workspace.take<Plan>(parts * plans), workspace.take<double>(parts * most),
                                 workspace.take<double>(parts * most),
                                 workspace.take<Exception<double>>(parts * most)};
  const index_t tiles = row_tiles(vocab);
  float* const totals = workspace.take<float>(parts * tiles);
  const Isa isa = cpu.isa();
  cpu.parallel_ranges(trees.trees(), 1, [&](index_t begin, index_t end, index_t part) {
    const RequestScratch<Plan> own{all.plans + part * plans, all.scales + part * most, all.cuts + part * most,
                                   all.exceptions + part * most};
    for (index_t b = begin; b < end; ++b) {
      WalkEnd result;
      const TreeView t = checked_tree(trees, b, vocab, draft_rows<V>(q), levels, accepted_laws<V>, result.status);
      FloatRows rows(isa, source_of(t.nodes > 0 ? trees.offsets[b] : 0, part), q, vocab, totals + part * tiles);
      PhiloxChoices choices{keys.at(b)};
      if constexpr (direction_of<V> == Direction::bottom_up) rows.touch(t);
      if (result.status == Status::ok) result = walk(policy, t, rows, choices, own);
      finish_request<by_itself<V>>(out, b, t, result, rows, choices);
    }
  });
}

template <class V, class SourceOf>
void verify_on_cpu(Cpu& cpu, const V& policy, const ForestView& trees, index_t rows, index_t vocab,
                   const SourceOf& source_of, const ProbabilityRows& q, const DrawKeys& keys, const Accepted& out) {
  validate(policy);
  require_verify(trees, rows, vocab, q, keys, out, "speculative::verify");
  if constexpr (std::same_as<V, UniVer>) {
    if (policy.order == UniVer::Order::paper) {
      verify_batch<JointPlan<double>>(cpu, policy, trees, vocab, source_of, q, keys, out);
      return;
    }
  }
  verify_batch<typename PlanOf<V, double>::type>(cpu, policy, trees, vocab, source_of, q, keys, out);
}

}  // namespace detail

/// p [nodes of all trees, vocab]: the processed target at each node; q [draft rows, vocab]: the processed draft
/// distributions, as the trees' q_row names them. A request reads what its decision needs: scalars of the nodes it
/// visits, one pass of 8 vocab bytes for every sampled child that is rejected, and 4 vocab bytes where it emits without
/// one; UniVer with Order::paper or Eval::level_parallel a pass for every node it comes to, or for all. What it reads is
/// checked: NaN, infinity, no mass, or a tree or law that does not suit are the request's status (sums take a negative
/// number for 0).
/// ArgumentError, before anything is written, for shapes. Requests run in parallel. Scratch per thread: 4 bytes per 1024
/// tokens and 150 per node.
template <class V>
  requires detail::walks<V>
void verify(Cpu& cpu, const V& policy, const ForestView& trees, const ProbabilityRows& p, const ProbabilityRows& q,
            const DrawKeys& keys, const Accepted& out) {
  detail::require_target(p, "speculative::verify");
  const auto source_of = [&](index_t first, index_t) {
    return detail::ProbabilitySource{p.data() + first * p.stride(0), p.stride(0)};
  };
  detail::verify_on_cpu(cpu, policy, trees, p.extent(0), p.extent(1), source_of, q, keys, out);
}

/// The same from the target's logits and what sampling::filter() made of them: no probabilities in memory, the same
/// tokens as from sampling::materialise()'s. 4 KiB more of scratch per thread.
template <class V>
  requires detail::walks<V>
void verify(Cpu& cpu, const V& policy, const ForestView& trees, const LogitRows& p, const ProbabilityRows& q,
            const DrawKeys& keys, const Accepted& out) {
  detail::require_target(p, "speculative::verify");
  const View<const float, 2>& logits = p.logits;
  Workspace::Scope scope(cpu.workspace());
  float* const buffers = cpu.workspace().take<float>(cpu.parts(trees.trees(), 1) * row_tile);
  const auto source_of = [&](index_t first, index_t part) {
    return detail::LogitSource{cpu.isa(), logits.data() + first * logits.stride(0), logits.stride(0),
                               p.rows.data() + first, buffers + part * row_tile};
  };
  detail::verify_on_cpu(cpu, policy, trees, logits.extent(0), logits.extent(1), source_of, q, keys, out);
}

/// What plain decoding draws from one target row [vocab] at key.step: with Membership the same tokens come out whatever
/// is drafted. -1: the row has no mass, or something in it that is no probability.
inline std::int32_t draw_next(Cpu& cpu, View<const float, 1> p, const DrawKey& key) {
  constexpr const char* where = "speculative::draw_next";
  require(p.extent(0) >= 1 && p.extent(0) <= (1 << 22), where, "p", "1 to 2^22 tokens", p.extent(0));
  require_contiguous(p, where, "p");
  Workspace::Scope scope(cpu.workspace());
  detail::FloatRows rows(cpu.isa(), detail::ProbabilitySource{p.data(), p.extent(0)}, View<const float, 2>(),
                         static_cast<std::int32_t>(p.extent(0)),
                         cpu.workspace().take<float>(row_tiles(p.extent(0))));
  return detail::PhiloxChoices{key}.emit_next(rows, {0, -1, 1.0, 0.0, 0.0, nullptr, 0}, 0);
}

}  // namespace decant::speculative

#endif
