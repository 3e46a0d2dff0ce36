// decant: TopTokens on Cuda: the CPU's tokens, from the device's radix select (core/topk.cuh).
#ifndef DECANT_KV_TOP_TOKENS_CUH
#define DECANT_KV_TOP_TOKENS_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "../core/topk.cuh"
#include "detail/scored_layer.cuh"
#include "top_tokens.hpp"

namespace decant::kv {

namespace detail {

template <int Threads>
__global__ void __launch_bounds__(Threads)
    copy_counts(View<const std::int32_t, 1> from, View<std::int32_t, 1> to, const FaultWord* fault) {
  if (faulted(fault)) return;
  const index_t h = grid_token();
  if (h < to.extent(0)) to[h] = from[h];
}

/// The highest scores of each head, those that `keep` marks first; then the counts.
inline void choose_top(Cuda& cuda, const ScoredLayer& layer, View<const std::uint8_t, 2> keep,
                       View<const std::int32_t, 1> counts, const KeptView& kept, const char* where) {
  top_k_each_row(cuda, layer.scores, layer.lengths, keep, counts, kept.indices);
  launch(cuda, where, copy_counts<stage_threads>,
         CudaGrid{dim3(cuda_blocks(counts.extent(0), stage_threads)), dim3(stage_threads)}, counts, kept.counts,
         cuda.fault());
}

}  // namespace detail

/// O(tokens of the layer).
template <class X>
void choose(Cuda& cuda, const TopTokens&, const X&, const ScoredLayer& layer, View<const std::int32_t, 1> counts,
            KeptView kept) {
  constexpr const char* where = "kv::TopTokens";
  detail::require_scored(layer, where);
  require_equal(kept.counts.extent(0), counts.extent(0), where, "kept.counts");
  detail::choose_top(cuda, layer, layer.keep, counts, kept, where);
}

static_assert(Selector<TopTokens, Cuda, LayerView<DenseKV<float>>>);

}  // namespace decant::kv

#endif
