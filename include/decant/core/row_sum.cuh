// decant: row_sum.hpp on the device, to the same bits: a warp sums up a tile, two lanes of 64 in each thread.
#ifndef DECANT_CORE_ROW_SUM_CUH
#define DECANT_CORE_ROW_SUM_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "detail/device.cuh"
#include "row_sum.hpp"

namespace decant {

/// The total of elements [first, last), at most a tile, in all threads of the full warp.
template <class Term>
__device__ float warp_tile_total(const Term& term, index_t first, index_t last) {
  const index_t lane = threadIdx.x % 32;
  float low = 0;
  float high = 0;
#pragma unroll 4
  for (index_t i = first + lane; i < last; i += row_lanes) {
    low += term(i);
    if (i + 32 < last) high += term(i + 32);
  }
  return detail::warp_reduce(low + high, detail::Plus{});
}

/// The totals of a row's tiles, to totals[row_tiles(n)] in memory that the block shares; returns their sum in all
/// threads. The block: one-dimensional, a multiple of 32 threads.
template <class Term>
__device__ double block_tile_totals(const Term& term, index_t n, float* totals) {
  const index_t tiles = row_tiles(n);
  __syncthreads();
  for (index_t t = threadIdx.x / 32; t < tiles; t += blockDim.x / 32) {
    const float total = warp_tile_total(term, t * row_tile, (t + 1) * row_tile < n ? (t + 1) * row_tile : n);
    if (threadIdx.x % 32 == 0) totals[t] = total;
  }
  __syncthreads();
  double sum = 0;
  for (index_t t = 0; t < tiles; ++t) sum += static_cast<double>(totals[t]);
  return sum;
}

/// find_in_tile by a full warp; the result in all its threads.
template <class Term>
__device__ index_t warp_find_in_tile(const Term& term, index_t first, index_t last, double wanted) {
  const index_t begin = first + static_cast<index_t>(threadIdx.x % 32) * 32;
  double chunk = 0;
  index_t positive = -1;
  for (index_t i = begin; i < begin + 32 && i < last; ++i) {
    const float w = term(i);
    chunk += static_cast<double>(w);
    if (w > 0) positive = i;
  }
  double before = 0;
  index_t found = -1;
  for (int c = 0; c < 32; ++c) {
    const double own = __shfl_sync(detail::whole_warp, chunk, c);
    const index_t last_positive = __shfl_sync(detail::whole_warp, positive, c);
    if (last_positive >= 0) found = last_positive;
    if (before + own > wanted) {
      const index_t from = first + c * 32;
      for (index_t i = from; i < from + 32 && i < last; ++i) {
        const float w = term(i);
        if (w > 0) found = i;
        before += static_cast<double>(w);
        if (before > wanted) break;
      }
      return found;
    }
    before += own;
  }
  return found;
}

/// draw_index by a full warp, totals in memory that it can read.
template <class Term>
__device__ index_t warp_draw_index(const Term& term, index_t n, const float* totals, double sum, double u) {
  const RowPlace place = find_tile(totals, row_tiles(n), u * sum);
  const index_t first = place.tile * row_tile;
  return warp_find_in_tile(term, first, first + row_tile < n ? first + row_tile : n, place.rest);
}

}  // namespace decant

#endif
