// decant: top_logits.hpp on the device, to the same bits: a block per row, one launch for all leaves and slots. A warp
// holds a tile of 1024 logits in registers for its maximum, its sum and what enters the warp's list; then the lists are
// merged by counting. Each logit is read once (2 or 4 bytes), 8 k + 12 bytes per row are written; about 20 operations
// per logit.
#ifndef DECANT_SPECULATIVE_TOP_LOGITS_CUH
#define DECANT_SPECULATIVE_TOP_LOGITS_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include <cstdint>
#include <type_traits>

#include "../core/cuda.cuh"
#include "../core/detail/device.cuh"
#include "top_logits.hpp"

namespace decant::speculative {

namespace detail {

inline constexpr int top_logits_threads = 512;

/// A list of the largest logits in a warp's lanes, the j-th in lane j.
struct WarpTop {
  float value = -__builtin_huge_valf();
  std::int32_t token = -1;
  std::int32_t count = 0;                   // the same in all lanes, as what follows
  float least = -__builtin_huge_valf();     // what enters is larger

  /// x must exceed `least`; tokens come in rising order. For the whole warp.
  __device__ void enter(float x, std::int32_t y, std::int32_t k) {
    using ::decant::detail::whole_warp;
    const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
    const std::int32_t place = __popc(__ballot_sync(whole_warp, lane < count && value >= x));
    const float above_value = __shfl_up_sync(whole_warp, value, 1);
    const std::int32_t above_token = __shfl_up_sync(whole_warp, token, 1);
    value = lane == place ? x : lane > place ? above_value : value;
    token = lane == place ? y : lane > place ? above_token : token;
    count = count < k ? count + 1 : k;
    const float last = __shfl_sync(whole_warp, value, k - 1);
    if (count == k) least = last;
  }
};

/// Dynamic shared memory: 16 bytes for each tile of a row. paired: rows lie so that two logits are one access.
template <class T, int Threads>
__global__ void __launch_bounds__(Threads)
    top_logits_kernel(const View<const T, 2> logits, const bool paired, const TopLogits out) {
  using ::decant::detail::whole_warp;
  using ::decant::detail::widen;
  using Pack = ::decant::detail::Pack<T, 2>;
  constexpr int warps = Threads / 32;
  constexpr int pairs = static_cast<int>(row_tile / 64);
  constexpr float lowest = -__builtin_huge_valf();
  extern __shared__ double top_logits_tiles[];
  __shared__ RowTop lists[warps][32];
  __shared__ std::int32_t counts[warps];
  const index_t r = blockIdx.x;
  const T* const row = logits.data() + r * logits.stride(0);
  const index_t n = logits.extent(1);
  const index_t tiles = row_tiles(n);
  float* const most_of = reinterpret_cast<float*>(top_logits_tiles + tiles);
  float* const sum_of = most_of + tiles;
  const auto k = static_cast<std::int32_t>(out.value.extent(1));
  const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
  const auto warp = static_cast<std::int32_t>(threadIdx.x / 32);
  WarpTop top;
  for (index_t tile = warp; tile < tiles; tile += warps) {
    const index_t first = tile * row_tile + 2 * lane;
    float x[pairs][2];  // a thread's are lanes 2 l and 2 l + 1 of the 64 that row_sum.hpp sums in
    if (paired && (tile + 1) * row_tile <= n) {
#pragma unroll
      for (int j = 0; j < pairs; ++j) {
        const Pack pack = *reinterpret_cast<const Pack*>(row + first + 64 * j);
        x[j][0] = widen(pack.at[0]);
        x[j][1] = widen(pack.at[1]);
      }
    } else {
#pragma unroll
      for (int j = 0; j < pairs; ++j) {
        const index_t i = first + 64 * j;
        x[j][0] = i < n ? widen(row[i]) : lowest;
        x[j][1] = i + 1 < n ? widen(row[i + 1]) : lowest;
      }
    }
    float most = lowest;
#pragma unroll
    for (int j = 0; j < pairs; ++j) {
      most = x[j][0] > most ? x[j][0] : most;
      most = x[j][1] > most ? x[j][1] : most;
    }
    most = ::decant::detail::warp_reduce(most, ::decant::detail::Larger{});
    float low = 0;
    float high = 0;
#pragma unroll
    for (int j = 0; j < pairs; ++j) {
      low += top_logits_term(x[j][0], most);
      high += top_logits_term(x[j][1], most);
    }
    low = ::decant::detail::warp_reduce(low, ::decant::detail::Plus{});
    high = ::decant::detail::warp_reduce(high, ::decant::detail::Plus{});
    if (lane == 0) {
      most_of[tile] = most;
      sum_of[tile] = low + high;
    }
    if (!(most > top.least)) continue;
#pragma unroll
    for (int j = 0; j < pairs; ++j) {
      unsigned entering = __ballot_sync(whole_warp, x[j][0] > top.least || x[j][1] > top.least);
      while (entering != 0) {
        const int from = __ffs(static_cast<int>(entering)) - 1;
        entering &= entering - 1;
        const auto y = static_cast<std::int32_t>(tile * row_tile + 64 * j + 2 * from);
        const float even = __shfl_sync(whole_warp, x[j][0], from);
        if (even > top.least) top.enter(even, y, k);
        const float odd = __shfl_sync(whole_warp, x[j][1], from);
        if (odd > top.least) top.enter(odd, y + 1, k);
      }
    }
  }
  lists[warp][lane] = {top.value, top.token};
  if (lane == 0) counts[warp] = top.count;
  __syncthreads();
  std::int32_t all = 0;
  std::int32_t rank = 0;
  for (int w = 0; w < warps; ++w) {
    all += counts[w];
    for (std::int32_t j = 0; j < counts[w]; ++j) {
      const RowTop rival = lists[w][j];
      if (rival.value < top.value) break;
      rank += rival.value > top.value || rival.token < top.token ? 1 : 0;
    }
  }
  if (lane < top.count && rank < k) {
    out.value(r, rank) = top.value;
    out.token(r, rank) = top.token;
  }
  const std::int32_t found = all < k ? all : k;
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  if (thread >= found && thread < k) {
    out.value(r, thread) = lowest;
    out.token(r, thread) = -1;
  }
  float largest = lowest;
  for (index_t tile = lane; tile < tiles; tile += 32) largest = most_of[tile] > largest ? most_of[tile] : largest;
  largest = ::decant::detail::warp_reduce(largest, ::decant::detail::Larger{});
  for (index_t tile = thread; tile < tiles; tile += Threads) {
    top_logits_tiles[tile] = top_logits_share(most_of[tile], sum_of[tile], largest);
  }
  __syncthreads();
  if (thread != 0) return;
  double sum = 0;
  for (index_t tile = 0; tile < tiles; ++tile) sum += top_logits_tiles[tile];
  out.count[r] = found;
  out.log_sum_exp[r] = top_logits_log(largest, sum);
}

}  // namespace detail

/// All views on the device.
template <class T>
void top_logits(Cuda& cuda, View<T, 2> logits, const TopLogits& out) {
  constexpr const char* where = "speculative::top_logits";
  constexpr int threads = detail::top_logits_threads;
  detail::require_top_logits(logits, out, where);
  require(logits.extent(0) <= 0x7fffffff, where, "logits", "fewer than 2^31 rows", logits.extent(0));
  const bool paired =
      reinterpret_cast<std::uintptr_t>(logits.data()) % (2 * sizeof(T)) == 0 && logits.stride(0) % 2 == 0;
  const CudaGrid grid{dim3(static_cast<unsigned>(logits.extent(0))), dim3(threads),
                      16 * static_cast<std::size_t>(row_tiles(logits.extent(1)))};
  launch(cuda, where, detail::top_logits_kernel<std::remove_const_t<T>, threads>, grid, logits, paired, out);
}

}  // namespace decant::speculative

#endif
