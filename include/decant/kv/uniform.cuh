// decant: Uniform and KeepAll on Cuda: a layer's counts come from one thread, by the arithmetic of uniform.hpp.
#ifndef DECANT_KV_UNIFORM_CUH
#define DECANT_KV_UNIFORM_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "detail/scored_layer.cuh"
#include "uniform.hpp"

namespace decant::kv {

namespace detail {

/// scratch: room for 3 numbers per head.
template <class Counts>
__global__ void uniform_kernel(ScoredLayer layer, Budget budget, index_t* scratch, Counts counts,
                               const FaultWord* fault) {
  if (faulted(fault)) return;
  const index_t heads = layer.kv_heads();
  index_t* const split = scratch + heads;
  uniform_counts(budget, layer, scratch, split, scratch + 2 * heads);
  for (index_t h = 0; h < heads; ++h) counts[h] = static_cast<std::int32_t>(split[h]);
}

template <class Counts>
__global__ void keep_all_kernel(ScoredLayer layer, Counts counts, const FaultWord* fault) {
  if (faulted(fault)) return;
  const index_t h = grid_token();
  if (h < layer.kv_heads()) counts[h] = static_cast<std::int32_t>(bounded_length(layer, h));
}

inline void require_counts(const View<const ScoredLayer, 1>& layers, const View<std::int32_t, 2>& counts,
                           const char* where) {
  require_equal(counts.extent(0), layers.extent(0), where, "counts");
  for (index_t l = 0; l < layers.extent(0); ++l) {
    require_scored(layers[l], where);
    require_equal(counts.extent(1), layers[l].kv_heads(), where, "counts");
  }
}

}  // namespace detail

/// `layers` is an array on the host, of views of device memory. O(kv_heads^2) per layer.
inline void allocate(Cuda& cuda, const Uniform&, View<const ScoredLayer, 1> layers, const Budget& budget,
                     View<std::int32_t, 2> counts) {
  constexpr const char* where = "kv::Uniform";
  detail::require_counts(layers, counts, where);
  for (index_t l = 0; l < layers.extent(0); ++l) {
    Workspace::Scope scope(cuda.workspace());
    index_t* const scratch = cuda.workspace().take<index_t>(3 * layers[l].kv_heads());
    launch(cuda, where, detail::uniform_kernel<View<std::int32_t, 1>>, CudaGrid{dim3(1), dim3(1)}, layers[l], budget,
           scratch, counts[l], cuda.fault());
  }
}

inline void allocate(Cuda& cuda, const KeepAll&, View<const ScoredLayer, 1> layers, const Budget&,
                     View<std::int32_t, 2> counts) {
  constexpr const char* where = "kv::KeepAll";
  detail::require_counts(layers, counts, where);
  for (index_t l = 0; l < layers.extent(0); ++l) {
    launch(cuda, where, detail::keep_all_kernel<View<std::int32_t, 1>>,
           CudaGrid{dim3(cuda_blocks(layers[l].kv_heads(), detail::stage_threads)), dim3(detail::stage_threads)},
           layers[l], counts[l], cuda.fault());
  }
}

static_assert(Allocator<Uniform, Cuda> && Allocator<KeepAll, Cuda>);

}  // namespace decant::kv

#endif
