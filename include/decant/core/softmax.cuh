// decant: softmax and log-sum-exp on the device, total as softmax.hpp's are, within the same bounds; the log-sum-exp
// goes to device memory. Tiles of 4096: one pass for the maximum, one for the sum, and one for the weights (4 bytes read
// in each, 4 written). Terms are summed per thread in float, then in double in a fixed order.
#ifndef DECANT_CORE_SOFTMAX_CUH
#define DECANT_CORE_SOFTMAX_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "cuda.cuh"
#include "detail/device.cuh"
#include "softmax.hpp"

namespace decant {

namespace detail {

inline constexpr int softmax_threads = 256;
inline constexpr index_t softmax_items = 16;
inline constexpr index_t softmax_tile = softmax_threads * softmax_items;

/// The largest of a tile, NaN ignored.
template <class Real>
__global__ void __launch_bounds__(softmax_threads) softmax_maxima(View<const Real, 1> x, Real* maxima) {
  __shared__ Real shared[32];
  constexpr Real lowest = -__builtin_huge_valf();
  Real max = lowest;
#pragma unroll
  for (index_t j = 0; j < softmax_items; ++j) {
    const index_t i = blockIdx.x * softmax_tile + j * softmax_threads + threadIdx.x;
    if (i < x.extent(0)) max = x[i] > max ? x[i] : max;
  }
  max = block_reduce(max, Larger{}, lowest, shared);
  if (threadIdx.x == 0) maxima[blockIdx.x] = max;
}

/// e^(x - max); for an infinite max, what the limit gives: 1 for +inf, 0 else. NaN stays.
__device__ inline float softmax_term(float x, float max) {
  if (max - max != 0) return x != x ? x : x == max && max > 0 ? 1.0f : 0.0f;
  return fast_exp(x - max);
}

/// The maximum over all tiles and the sum over the terms of this one.
template <class Real>
__global__ void __launch_bounds__(softmax_threads)
    softmax_sums(View<const Real, 1> x, const Real* maxima, index_t tiles, double* sums) {
  __shared__ Real shared[32];
  __shared__ double shared_sums[32];
  constexpr Real lowest = -__builtin_huge_valf();
  Real max = lowest;
  for (index_t b = threadIdx.x; b < tiles; b += softmax_threads) max = maxima[b] > max ? maxima[b] : max;
  max = block_reduce(max, Larger{}, lowest, shared);
  Real sum = 0;
#pragma unroll
  for (index_t j = 0; j < softmax_items; ++j) {
    const index_t i = blockIdx.x * softmax_tile + j * softmax_threads + threadIdx.x;
    if (i < x.extent(0)) sum += softmax_term(x[i], max);
  }
  const double total = block_reduce(static_cast<double>(sum), Plus{}, 0.0, shared_sums);
  if (threadIdx.x == 0) sums[blockIdx.x] = total;
}

/// {max, sum} of the row.
struct SoftmaxRow {
  float max;
  float sum;
};

/// lse: null if not wanted. One block.
template <class Real>
__global__ void __launch_bounds__(softmax_threads)
    softmax_finish(const Real* maxima, const double* sums, index_t tiles, SoftmaxRow* row, Real* lse) {
  __shared__ Real shared[32];
  __shared__ double shared_sums[32];
  constexpr Real lowest = -__builtin_huge_valf();
  Real max = lowest;
  double total = 0;
  for (index_t b = threadIdx.x; b < tiles; b += softmax_threads) {
    max = maxima[b] > max ? maxima[b] : max;
    total += sums[b];
  }
  max = block_reduce(max, Larger{}, lowest, shared);
  const auto sum = static_cast<Real>(block_reduce(total, Plus{}, 0.0, shared_sums));
  if (threadIdx.x > 0) return;
  *row = {max, sum};
  const bool infinite = max - max != 0;
  if (lse) *lse = sum != sum ? sum : infinite ? max : max + static_cast<Real>(log(static_cast<double>(sum)));
}

template <class Real>
__global__ void __launch_bounds__(softmax_threads)
    softmax_weights(View<const Real, 1> x, const SoftmaxRow* row, View<Real, 1> out) {
  const Real scale = row->sum == 0 ? Real{0} : Real{1} / row->sum;
#pragma unroll
  for (index_t j = 0; j < softmax_items; ++j) {
    const index_t i = blockIdx.x * softmax_tile + j * softmax_threads + threadIdx.x;
    if (i < x.extent(0)) out[i] = softmax_term(x[i], row->max) * scale;
  }
}

inline const SoftmaxRow* softmax_row(Cuda& cuda, const View<const float, 1>& x, float* lse, const char* where) {
  const index_t tiles = (x.extent(0) + softmax_tile - 1) / softmax_tile;
  float* const maxima = cuda.workspace().take<float>(tiles);
  double* const sums = cuda.workspace().take<double>(tiles);
  SoftmaxRow* const row = cuda.workspace().take<SoftmaxRow>(1);
  const CudaGrid grid{dim3(cuda_blocks(x.extent(0), softmax_tile)), dim3(softmax_threads)};
  launch(cuda, where, softmax_maxima<float>, grid, x, maxima);
  launch(cuda, where, softmax_sums<float>, grid, x, maxima, tiles, sums);
  launch(cuda, where, softmax_finish<float>, CudaGrid{dim3(1), dim3(softmax_threads)}, maxima, sums, tiles, row, lse);
  return row;
}

}  // namespace detail

/// out[i] = e^x[i] / sum of e^x[j]; the natural log-sum-exp to *lse on the device, unless that is null. In place when
/// out is x. O(n).
inline void softmax(Cuda& cuda, View<const float, 1> x, View<float, 1> out, float* lse = nullptr) {
  require_equal(out.extent(0), x.extent(0), "softmax", "out");
  Workspace::Scope scope(cuda.workspace());
  const detail::SoftmaxRow* const row = detail::softmax_row(cuda, x, lse, "softmax");
  const CudaGrid grid{dim3(cuda_blocks(x.extent(0), detail::softmax_tile)), dim3(detail::softmax_threads)};
  launch(cuda, "softmax", detail::softmax_weights<float>, grid, x, row, out);
}

/// log(sum of e^x[i]) to *lse on the device; -inf for no elements. O(n).
inline void log_sum_exp(Cuda& cuda, View<const float, 1> x, float* lse) {
  Workspace::Scope scope(cuda.workspace());
  detail::softmax_row(cuda, x, lse, "log_sum_exp");
}

}  // namespace decant

#endif
