// decant: Ada-KV's budgets on Cuda: the flat ranking by the device's radix select, the shares by the arithmetic of
// adakv.hpp, so the CPU's counts. Reads a layer's scores and mask five times, from L2 after the first.
#ifndef DECANT_KV_ADAKV_CUH
#define DECANT_KV_ADAKV_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "adakv.hpp"
#include "detail/layer_totals.cuh"
#include "eviction.cuh"
#include "window_attention.cuh"

namespace decant::kv {

namespace detail {

template <class Counts>
__global__ void ada_shares_kernel(ScoredLayer layer, double alpha, const index_t* total, const std::int32_t* kept,
                                  AdaHeads at, Counts counts, const FaultWord* fault) {
  if (faulted(fault)) return;
  for (index_t h = 0; h < layer.kv_heads(); ++h) {
    at.kept[h] = kept[h];
    at.free[h] = layer.length(h) - kept[h];
  }
  ada_shares(alpha, layer.kv_heads(), *total, at);
  for (index_t h = 0; h < layer.kv_heads(); ++h) counts[h] = at.counts[h];
}

template <int Threads>
__global__ void __launch_bounds__(Threads)
    ada_safe_counts(ScoredLayer layer, AdaAllocation a, Budget budget, const std::int32_t* kept, std::int32_t* counts) {
  const index_t h = grid_token();
  if (h < layer.kv_heads()) {
    counts[h] = static_cast<std::int32_t>(ada_safe(a, budget, bounded_length(layer, h), kept[h]));
  }
}

/// How many tokens of each head are among the layer's `total` best, those that `keep` marks first.
inline void rank_flat(Cuda& cuda, const ScoredLayer& layer, const View<const std::uint8_t, 2>& keep,
                      const index_t* total, View<std::int32_t, 2> counts, const char* where) {
  ::decant::detail::TopKWanted wanted;
  wanted.total = total;
  ::decant::detail::TopKChecks checks;
  checks.kind = Fault::budget;
  checks.layer = layer.layer;
  const auto matrix = [&](index_t) { return ::decant::detail::topk_matrix(layer.scores, keep, layer.lengths); };
  ::decant::detail::share_rows(cuda, 1, layer.kv_heads(), matrix, wanted, checks, counts,
                               top_k_tuning(cuda.device().compute_capability), where);
}

inline void ada_official(Cuda& cuda, const AdaAllocation& a, const ScoredLayer& layer, const index_t* total,
                         View<std::int32_t, 2> counts, const char* where) {
  const index_t heads = layer.kv_heads();
  auto& workspace = cuda.workspace();
  const AdaHeads at{workspace.take<std::int32_t>(heads), workspace.take<std::int32_t>(heads),
                    workspace.take<index_t>(heads),      workspace.take<index_t>(heads),
                    workspace.take<index_t>(heads),      workspace.take<double>(heads)};
  const std::int32_t* const kept = protected_counts(cuda, layer, where);
  rank_flat(cuda, layer, layer.keep, total, View<std::int32_t, 2>(at.counts, 1, heads), where);
  launch(cuda, where, ada_shares_kernel<View<std::int32_t, 1>>, CudaGrid{dim3(1), dim3(1)}, layer,
         static_cast<double>(a.alpha), total, kept, at, counts[0], cuda.fault());
}

inline void ada_kvpress(Cuda& cuda, const AdaAllocation& a, const ScoredLayer& layer, const Budget& budget,
                        const index_t* total, View<std::int32_t, 2> counts, const char* where) {
  const index_t heads = layer.kv_heads();
  const std::int32_t* const kept = protected_counts(cuda, layer, where);
  std::int32_t* const safe = cuda.workspace().take<std::int32_t>(heads);
  const auto keep = cuda.workspace().take_view<std::uint8_t>(heads, layer.keep.extent(1));
  launch(cuda, where, ada_safe_counts<stage_threads>,
         CudaGrid{dim3(cuda_blocks(heads, stage_threads)), dim3(stage_threads)}, layer, a, budget, kept, safe);
  // Those that come first; zero elsewhere, also after a fault.
  if (!keep.empty()) {
    ::decant::detail::require_cuda(
        cudaMemsetAsync(keep.data(), 0, static_cast<std::size_t>(keep.size()), cuda.stream()), where,
        "cudaMemsetAsync");
  }
  ::decant::detail::top_k_mask(cuda, layer.scores, layer.lengths, layer.keep, View<const std::int32_t, 1>(safe, heads),
                               keep, where);
  rank_flat(cuda, layer, keep, total, counts, where);
}

}  // namespace detail

/// `layers` is an array on the host, of views of device memory. O(tokens of the layer).
inline void allocate(Cuda& cuda, const AdaAllocation& a, View<const ScoredLayer, 1> layers, const Budget& budget,
                     View<std::int32_t, 2> counts) {
  constexpr const char* where = "kv::AdaAllocation";
  validate(a);
  detail::require_counts(layers, counts, where);
  for (index_t l = 0; l < layers.extent(0); ++l) {
    Workspace::Scope scope(cuda.workspace());
    const ScoredLayer& layer = layers[l];
    const index_t* const total = detail::total_budget(cuda, View<const ScoredLayer, 1>(&layer, 1), budget, where);
    const View<std::int32_t, 2> own = counts.slice(0, l, 1);
    if (a.rule == AdaAllocation::Rule::official) {
      detail::ada_official(cuda, a, layer, total, own, where);
    } else {
      detail::ada_kvpress(cuda, a, layer, budget, total, own, where);
    }
  }
}

static_assert(Allocator<AdaAllocation, Cuda> && KVEvictionPolicy<AdaKV, Cuda>);

}  // namespace decant::kv

#endif
