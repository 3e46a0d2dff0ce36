// decant: prefix sums on the device; scan.hpp's functions, but for the sum of all, which the host does not get: an
// output one longer than the input holds it. Two passes over tiles of 2048: 2 sizeof(T) + 8 bytes per element.
#ifndef DECANT_CORE_SCAN_CUH
#define DECANT_CORE_SCAN_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "cuda.cuh"
#include "detail/device.cuh"
#include "scan.hpp"

namespace decant {

namespace detail {

inline constexpr int scan_threads = 256;
inline constexpr index_t scan_items = 8;
inline constexpr index_t scan_tile = scan_threads * scan_items;

/// The sum of each tile.
template <class T>
__global__ void __launch_bounds__(scan_threads) scan_sums(View<T, 1> values, index_t* sums) {
  __shared__ index_t shared[32];
  index_t sum = 0;
#pragma unroll
  for (index_t j = 0; j < scan_items; ++j) {
    const index_t i = blockIdx.x * scan_tile + j * scan_threads + threadIdx.x;
    if (i < values.extent(0)) sum += static_cast<index_t>(values[i]);
  }
  sum = block_reduce(sum, Plus{}, index_t{0}, shared);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

/// Sums become what lies before them; the sum of all goes to *total unless that is null. One block.
template <int Threads>
__global__ void __launch_bounds__(Threads) scan_offsets(index_t* sums, index_t n, index_t* total) {
  __shared__ index_t shared[32];
  index_t before = 0;
  for (index_t tile = 0; tile < n; tile += Threads) {
    const index_t i = tile + threadIdx.x;
    index_t all = 0;
    const index_t own = before + block_scan_before(i < n ? sums[i] : index_t{0}, all, shared);
    if (i < n) sums[i] = own;
    before += all;
  }
  if (total && threadIdx.x == 0) *total = before;
}

/// Writes a tile, row by row of the block's threads. In place: a row is read before it is written.
template <class T>
__global__ void __launch_bounds__(scan_threads)
    scan_tiles(View<T, 1> values, const index_t* sums, View<index_t, 1> out, bool inclusive) {
  __shared__ index_t shared[32];
  index_t before = sums[blockIdx.x];
  for (index_t j = 0; j < scan_items; ++j) {
    const index_t i = blockIdx.x * scan_tile + j * scan_threads + threadIdx.x;
    const index_t value = i < values.extent(0) ? static_cast<index_t>(values[i]) : 0;
    index_t all = 0;
    const index_t own = before + block_scan_before(value, all, shared);
    if (i < values.extent(0)) out[i] = inclusive ? own + value : own;
    before += all;
  }
}

template <class T>
void scan(Cuda& cuda, const View<T, 1>& values, const View<index_t, 1>& out, index_t* total, bool inclusive,
          const char* where) {
  const index_t n = values.extent(0);
  Workspace::Scope scope(cuda.workspace());
  const index_t tiles = (n + scan_tile - 1) / scan_tile;
  index_t* const sums = cuda.workspace().take<index_t>(tiles);
  const CudaGrid grid{dim3(cuda_blocks(n, scan_tile)), dim3(scan_threads)};
  launch(cuda, where, scan_sums<T>, grid, values, sums);
  launch(cuda, where, scan_offsets<scan_threads>, CudaGrid{dim3(1), dim3(scan_threads)}, sums, tiles, total);
  launch(cuda, where, scan_tiles<T>, grid, values, sums, out, inclusive);
}

}  // namespace detail

/// out[i] = values[0] + ... + values[i - 1]. out has as many elements as values, or one more, which then is the sum of
/// all. May be in place when T is index_t. O(n).
template <class T>
  requires std::integral<std::remove_cv_t<T>>
void exclusive_scan(Cuda& cuda, View<T, 1> values, View<index_t, 1> out) {
  const index_t n = values.extent(0);
  require(out.extent(0) == n || out.extent(0) == n + 1, "exclusive_scan", "out",
          [&] { return std::to_string(n) + " or one more element"; }, out.extent(0));
  index_t* const total = out.extent(0) == n + 1 ? &out[n] : nullptr;
  detail::scan(cuda, values, out, total, false, "exclusive_scan");
}

/// out[i] = values[0] + ... + values[i]. May be in place when T is index_t. O(n).
template <class T>
  requires std::integral<std::remove_cv_t<T>>
void inclusive_scan(Cuda& cuda, View<T, 1> values, View<index_t, 1> out) {
  require_equal(out.extent(0), values.extent(0), "inclusive_scan", "out");
  detail::scan(cuda, values, out, nullptr, true, "inclusive_scan");
}

}  // namespace decant

#endif
