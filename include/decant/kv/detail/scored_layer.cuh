// decant: what the Cuda stages share: grids over a scored layer, protected tokens counted, and checks of its shape.
#ifndef DECANT_KV_DETAIL_SCORED_LAYER_CUH
#define DECANT_KV_DETAIL_SCORED_LAYER_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "../../core/cuda.cuh"
#include "../../core/detail/device.cuh"
#include "../stages.hpp"

namespace decant::kv::detail {

using ::decant::detail::Fault;
using ::decant::detail::faulted;
using ::decant::detail::report;

inline constexpr int stage_threads = 256;

/// One thread per token and head.
inline CudaGrid token_grid(index_t tokens, index_t heads) {
  return {dim3(cuda_blocks(tokens, stage_threads), static_cast<unsigned>(heads)), dim3(stage_threads)};
}
inline CudaGrid token_grid(const ScoredLayer& layer) { return token_grid(layer.scores.extent(1), layer.kv_heads()); }

/// The token of this thread in a token_grid.
__device__ inline index_t grid_token() { return blockIdx.x * index_t{blockDim.x} + threadIdx.x; }

/// A head's length, within what its row has room for.
__device__ inline index_t bounded_length(const ScoredLayer& layer, index_t head) {
  const index_t n = layer.length(head);
  return n < 0 ? 0 : n < layer.scores.extent(1) ? n : layer.scores.extent(1);
}

inline void require_scored(const ScoredLayer& layer, const char* where) {
  require_equal(layer.scores.extent(0), layer.kv_heads(), where, "layer.scores");
  require_equal(layer.keep.extent(0), layer.kv_heads(), where, "layer.keep");
  require_equal(layer.keep.extent(1), layer.scores.extent(1), where, "layer.keep");
  require(layer.kv_heads() <= 65535, where, "layer", "at most 65535 heads", layer.kv_heads());
}

inline constexpr index_t count_items = 16;

template <int Threads>
__global__ void __launch_bounds__(Threads) count_protected(ScoredLayer layer, std::int32_t* kept) {
  __shared__ int sums[32];
  const index_t h = blockIdx.y;
  const index_t n = bounded_length(layer, h);
  const index_t first = blockIdx.x * index_t{Threads} * count_items + threadIdx.x;
  int count = 0;
#pragma unroll
  for (index_t i = 0; i < count_items; ++i) {
    const index_t t = first + i * Threads;
    count += t < n && layer.keep(h, t) != 0 ? 1 : 0;
  }
  count = ::decant::detail::block_reduce(count, ::decant::detail::Plus{}, 0, sums);
  if (threadIdx.x == 0 && count > 0) atomicAdd(&kept[h], count);
}

/// How many tokens of each head are protected, in the workspace of an open scope. Reads a byte per token.
inline std::int32_t* protected_counts(Cuda& cuda, const ScoredLayer& layer, const char* where) {
  const index_t heads = layer.kv_heads();
  std::int32_t* const kept = cuda.workspace().take<std::int32_t>(heads);
  ::decant::detail::require_cuda(
      cudaMemsetAsync(kept, 0, static_cast<std::size_t>(heads) * sizeof *kept, cuda.stream()), where,
      "cudaMemsetAsync");
  const CudaGrid grid{
      dim3(cuda_blocks(layer.scores.extent(1), stage_threads * count_items), static_cast<unsigned>(heads)),
      dim3(stage_threads)};
  launch(cuda, where, count_protected<stage_threads>, grid, layer, kept);
  return kept;
}

}  // namespace decant::kv::detail

#endif
