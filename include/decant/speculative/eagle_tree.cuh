// decant: EagleTree's growth on the device, the same trees and scores as eagle_tree.hpp, bit for bit, for a batch. The
// engine forwards the beam of each request between the calls: eagle_level() after each forward pass, eagle_trees() at
// the end. No count comes back to the host, so that a whole draft can be captured in a graph: places where a request
// has no node are padding. Besides reading the logits (a few passes, most from L2), all is latency.
#ifndef DECANT_SPECULATIVE_EAGLE_TREE_CUH
#define DECANT_SPECULATIVE_EAGLE_TREE_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include <algorithm>
#include <string>

#include "../core/topk.cuh"
#include "../sampling/process.cuh"
#include "detail/eagle_kernels.cuh"
#include "eagle_tree.hpp"

namespace decant::speculative {

namespace detail {

inline void require_growth(const EagleOptions& o, const EagleGrowth& g, const char* where) {
  const index_t requests = g.root.extent(0);
  require(o.total_tokens >= 1 && o.total_tokens <= max_tree_nodes, where, "options.total_tokens", "1 to 1024",
          o.total_tokens);
  require(o.top_k >= 1 && o.top_k <= 32, where, "options.top_k", "1 to 32 on a device", o.top_k);
  require(o.depth >= 0 && 1 + o.depth * o.top_k <= max_tree_nodes && o.depth < max_tree_nodes, where, "options.depth",
          "at least 0, with a beam of at most 1024 nodes", o.depth);
  require(requests <= 65535, where, "growth.root", "at most 65535 requests", requests);
  const auto shaped = [&](const auto& view, index_t columns, const char* argument) {
    require_equal(view.extent(0), requests, where, argument);
    require_equal(view.extent(1), columns, where, argument);
  };
  const index_t candidates = eagle_candidates(o, o.depth + 1);
  const index_t beam = eagle_beam(o);
  shaped(g.token, candidates, "growth.token");
  shaped(g.parent, candidates, "growth.parent");
  shaped(g.score, candidates, "growth.score");
  shaped(g.beam_token, beam, "growth.beam_token");
  shaped(g.beam_parent, beam, "growth.beam_parent");
  shaped(g.beam_candidate, beam, "growth.beam_candidate");
  shaped(g.count, o.depth + 1, "growth.count");
  if (g.beam_mask.data() == nullptr) return;
  shaped(g.beam_mask, beam, "growth.beam_mask");
  require_equal(g.beam_mask.extent(2), (beam + 63) / 64, where, "growth.beam_mask");
}

}  // namespace detail

/// Level 0: begins anew from growth.root; logits [B, vocab] are what follows the roots. Level l, 1 ... depth: logits
/// [B * top_k, vocab], row b * top_k + i of node 1 + (l - 1) top_k + i of request b's beam. Adds the candidates of the
/// level, and below level `depth` its best ones to the beam. Rows with a NaN, or without mass, give none.
/// Scratch: 24 + 4 top_k bytes per row, 4 top_k^2 of shared memory.
inline void eagle_level(Cuda& cuda, const EagleOptions& options, std::int32_t level, View<const float, 2> logits,
                        const EagleGrowth& growth) {
  constexpr const char* where = "speculative::eagle_level";
  detail::require_growth(options, growth, where);
  require(level >= 0 && level <= options.depth, where, "level",
          [&] { return "0 to " + std::to_string(options.depth); }, level);
  const index_t requests = growth.root.extent(0);
  const index_t rows = requests * (level == 0 ? 1 : options.top_k);
  require_equal(logits.extent(0), rows, where, "logits");
  require(logits.extent(1) >= 1, where, "logits", "at least one token", logits.extent(1));
  if (requests == 0) return;
  Workspace::Scope scope(cuda.workspace());
  const index_t most = options.top_k < logits.extent(1) ? options.top_k : logits.extent(1);
  const View<sampling::LogitRow, 1> filtered(cuda.workspace().take<sampling::LogitRow>(rows), rows);
  const View<sampling::RowStatus, 1> status(cuda.workspace().take<sampling::RowStatus>(rows), rows);
  const View<std::int32_t, 2> top(cuda.workspace().take<std::int32_t>(rows * most), rows, most);
  sampling::filter(cuda, {}, logits, filtered, status);
  ::decant::detail::TopKWanted wanted;
  wanted.value = most;
  const auto plan = ::decant::detail::plan_rows(cuda, ::decant::detail::topk_matrix(logits, {}, {}), rows, wanted, {},
                                                top_k_tuning(cuda.device().compute_capability), where);
  ::decant::detail::emit_rows(cuda, plan, ::decant::detail::EmitIndices{top.data(), most}, where);
  const std::size_t shared = sizeof(std::uint32_t) * static_cast<std::size_t>(options.top_k) *
                             static_cast<std::size_t>(level == 0 ? 1 : options.top_k);
  launch(cuda, where, detail::eagle_level_kernel<detail::eagle_threads>,
         CudaGrid{dim3(static_cast<unsigned>(requests)), dim3(detail::eagle_threads), shared}, options, level, logits,
         View<const sampling::LogitRow, 1>(filtered), View<const sampling::RowStatus, 1>(status),
         View<const std::int32_t, 2>(top), growth);
}

/// The best min(budget.nodes, total_tokens - 1) candidates of the first min(budget.depth, depth + 1) levels, which must
/// all have been drafted, become the trees. Equal scores: the earlier candidate, so that no ancestor is missing.
inline void eagle_trees(Cuda& cuda, const EagleOptions& options, const DraftBudget& budget, const EagleGrowth& growth,
                        const DeviceForest& out) {
  constexpr const char* where = "speculative::eagle_trees";
  detail::require_growth(options, growth, where);
  require(budget.depth >= 0 && budget.nodes >= 0, where, "budget", "at least 0",
          (std::min)(budget.depth, budget.nodes));
  const index_t requests = growth.root.extent(0);
  require_equal(out.offsets.extent(0), requests + 1, where, "out.offsets");
  const std::int32_t levels = (std::min)(budget.depth, options.depth + 1);
  const std::int32_t candidates = eagle_candidates(options, levels);
  const std::int32_t most = (std::min)({budget.nodes, options.total_tokens - 1, candidates});
  const auto room = [&](const auto& view, const char* argument) {
    require(view.extent(0) >= requests * (most + 1), where, argument,
            [&] { return "room for " + std::to_string(requests * (most + 1)) + " nodes"; }, view.extent(0));
    require(view.stride(0) == 1 || view.extent(0) <= 1, where, argument, "stride 1", view.stride(0));
  };
  room(out.token, "out.token");
  room(out.parent, "out.parent");
  room(out.first_child, "out.first_child");
  room(out.children, "out.children");
  room(out.depth, "out.depth");
  room(out.law, "out.law");
  room(out.q_row, "out.q_row");
  room(out.rest, "out.rest");
  if (out.score.data() != nullptr) room(out.score, "out.score");
  const std::size_t shared = sizeof(std::int32_t) * (2 * static_cast<std::size_t>(candidates) +
                                                     3 * static_cast<std::size_t>(most + 1));
  require(shared <= static_cast<std::size_t>(cuda.device().shared_bytes), where, "options",
          "candidates that fit into shared memory, 8 bytes each", candidates);
  const unsigned blocks = requests == 0 ? 1u : static_cast<unsigned>(requests);
  launch(cuda, where, detail::eagle_trees_kernel<detail::eagle_threads>,
         CudaGrid{dim3(blocks), dim3(detail::eagle_threads), shared}, options, levels, most, growth, out);
}

}  // namespace decant::speculative

#endif
