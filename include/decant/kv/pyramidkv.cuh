// decant: PyramidKV's budgets on Cuda: one block per layer, by the arithmetic of pyramidkv.hpp, so the CPU's counts.
#ifndef DECANT_KV_PYRAMIDKV_CUH
#define DECANT_KV_PYRAMIDKV_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "eviction.cuh"
#include "pyramidkv.hpp"
#include "window_attention.cuh"

namespace decant::kv {

namespace detail {

/// shares, all: room for a number per layer.
template <class Counts>
__global__ void pyramid_kernel(ScoredLayer layer, PyramidAllocation a, Budget budget, const std::int32_t* kept,
                               double* shares, std::int32_t* all, Counts counts, const FaultWord* fault) {
  if (faulted(fault)) return;
  index_t n = 0;
  index_t least = 0;
  for (index_t h = 0; h < layer.kv_heads(); ++h) {
    n = layer.length(h) > n ? layer.length(h) : n;
    least = kept[h] > least ? kept[h] : least;
  }
  const index_t own = pyramid_budget(a, budget, n, least, layer.layer, layer.layers, shares, all);
  for (index_t h = 0; h < layer.kv_heads(); ++h) counts[h] = pyramid_count(own, layer.length(h), kept[h]);
}

}  // namespace detail

/// `layers` is an array on the host, of views of device memory. O(tokens of a layer + layers^2).
inline void allocate(Cuda& cuda, const PyramidAllocation& a, View<const ScoredLayer, 1> layers, const Budget& budget,
                     View<std::int32_t, 2> counts) {
  constexpr const char* where = "kv::PyramidAllocation";
  validate(a);
  detail::require_counts(layers, counts, where);
  for (index_t l = 0; l < layers.extent(0); ++l) {
    Workspace::Scope scope(cuda.workspace());
    double* const shares = cuda.workspace().take<double>(layers[l].layers);
    std::int32_t* const all = cuda.workspace().take<std::int32_t>(layers[l].layers);
    const std::int32_t* const kept = detail::protected_counts(cuda, layers[l], where);
    launch(cuda, where, detail::pyramid_kernel<View<std::int32_t, 1>>, CudaGrid{dim3(1), dim3(1)}, layers[l], a, budget,
           kept, shares, all, counts[l], cuda.fault());
  }
}

static_assert(Allocator<PyramidAllocation, Cuda> && KVEvictionPolicy<PyramidKV, Cuda>);

}  // namespace decant::kv

#endif
