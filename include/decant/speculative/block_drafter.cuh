// decant: what SpecBlock's rank head is given, on the device, to the bits of block_drafter.hpp: from what top_logits()
// found of the slots (top_logits.cuh), a thread per slot. Small: 84 bytes in and 60 out of each.
#ifndef DECANT_SPECULATIVE_BLOCK_DRAFTER_CUH
#define DECANT_SPECULATIVE_BLOCK_DRAFTER_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "../core/cuda.cuh"
#include "block_drafter.hpp"
#include "top_logits.cuh"

namespace decant::speculative {

namespace detail {

inline constexpr int rank_threads = 64;

template <int Threads>
__global__ void __launch_bounds__(Threads) rank_features_kernel(const TopLogits rows, const View<float, 2> out) {
  const index_t r = index_t{blockIdx.x} * Threads + threadIdx.x;
  if (r < out.extent(0)) rank_features_row(rows, r, out[r]);
}

}  // namespace detail

/// All views on the device.
inline void rank_head_features(Cuda& cuda, const TopLogits& rows, View<float, 2> out) {
  constexpr const char* where = "speculative::rank_head_features";
  detail::require_rank_features(rows, out, where);
  require(out.extent(0) <= 0x7fffffff, where, "out", "fewer than 2^31 rows", out.extent(0));
  launch(cuda, where, detail::rank_features_kernel<detail::rank_threads>,
         CudaGrid{dim3(cuda_blocks(out.extent(0), detail::rank_threads)), dim3(detail::rank_threads)}, rows, out);
}

}  // namespace decant::speculative

#endif
