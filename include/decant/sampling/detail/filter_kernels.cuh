// decant: the kernels of process.cuh: a block per row. Top-k starts from the k-th largest of the threads' own maxima;
// thresholds are narrowed by histograms of 256 equal parts of a range of keys, in integers, so that neither the order
// of threads nor that of additions shows. A filter reads 4 bytes per token a few times, most of them from the
// second-level cache.
#ifndef DECANT_SAMPLING_DETAIL_FILTER_KERNELS_CUH
#define DECANT_SAMPLING_DETAIL_FILTER_KERNELS_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "../../core/cuda.cuh"
#include "../../core/detail/device.cuh"
#include "../process.hpp"

namespace decant::sampling::detail {

inline constexpr int filter_threads = 512;
using Word = unsigned long long;

using ::decant::detail::block_reduce;
using ::decant::detail::block_scan_before;
using ::decant::detail::Larger;
using ::decant::detail::Plus;
using ::decant::detail::Smaller;

struct FilterShared {
  float maxima[filter_threads];
  Word sums[256];
  Word words[32];
  float floats[32];
  std::int32_t ints[32];
  int part;
  Word passed;
};

/// The largest key in [low, high] whose own and larger keys together have `target`, by mass or by count; 0: they have
/// less. Elements outside are not looked at.
template <bool Mass>
__device__ __forceinline__ std::uint32_t block_select(const float* x, index_t n, const RowScale& row,
                                                      KeyBracket bracket, Word target, FilterShared& shared) {
  const unsigned tid = threadIdx.x;
  for (;;) {
    const int shift = bracket.shift();
    if (tid < 256) shared.sums[tid] = 0;
    if (tid == 0) shared.part = -1;
    __syncthreads();
    for (index_t i = tid; i < n; i += filter_threads) {
      const float logit = x[i];
      const std::uint32_t key = score_key(logit);
      if (key < bracket.low || key > bracket.high) continue;
      Word amount = 1;
      if constexpr (Mass) amount = mass_of(row.weight(logit));
      if (amount != 0) atomicAdd(&shared.sums[(key - bracket.low) >> shift], amount);
    }
    __syncthreads();
    const Word own = tid < 256 ? shared.sums[255 - tid] : 0;
    Word total;
    const Word before = block_scan_before(own, total, shared.words);
    if (before < target && before + own >= target) {
      shared.part = 255 - static_cast<int>(tid);
      shared.passed = before;
    }
    __syncthreads();
    const int part = shared.part;
    const Word passed = shared.passed;
    __syncthreads();
    if (part < 0) return 0;
    target -= passed;
    bracket.narrow(static_cast<std::uint32_t>(part), shift);
    if (shift == 0) return bracket.low;
  }
}

__device__ __forceinline__ float block_top_k(const float* x, index_t n, index_t k, float largest,
                                             FilterShared& shared) {
  std::uint32_t low = score_key(lowest_logit);
  const std::uint32_t high = score_key(largest);
  const RowScale none{};
  if (k <= filter_threads) {
    float most = lowest_logit;
    for (index_t i = threadIdx.x; i < n; i += filter_threads) most = x[i] > most ? x[i] : most;
    shared.maxima[threadIdx.x] = most;
    __syncthreads();
    low = block_select<false>(shared.maxima, filter_threads, none, {low, high}, static_cast<Word>(k), shared);
  }
  return logit_of_key(block_select<false>(x, n, none, {low, high}, static_cast<Word>(k), shared));
}

__device__ __forceinline__ Word block_mass(const float* x, index_t n, const RowScale& row, float cutoff,
                                           FilterShared& shared) {
  Word sum = 0;
  for (index_t i = threadIdx.x; i < n; i += filter_threads) {
    if (x[i] >= cutoff) sum += mass_of(row.weight(x[i]));
  }
  return block_reduce(sum, Plus{}, Word{0}, shared.words);
}

__device__ __forceinline__ float block_top_p(const float* x, index_t n, const Processing& p, const RowScale& row,
                                             float largest, float floor, FilterShared& shared) {
  const Word target = mass_target(p.top_p, block_mass(x, n, row, floor, shared));
  const float least = logit_at_depth(p, largest, 29);  // weights below have no mass
  const KeyBracket bracket{score_key(least > floor ? least : floor), score_key(largest)};
  return logit_of_key(block_select<true>(x, n, row, bracket, target, shared));
}

/// filter() of one row for each block. `chained`: rows whose status is not ok are left alone.
template <class T>
__global__ void __launch_bounds__(filter_threads, 1)
    filter_rows(Processing p, FilterNumbers numbers, View<const T, 2> logits, View<LogitRow, 1> out,
                View<RowStatus, 1> status, bool chained) {
  __shared__ FilterShared shared;
  const index_t r = blockIdx.x;
  if (chained && status[r] != RowStatus::ok) return;
  const float* const x = logits.data() + r * logits.stride(0);
  const index_t n = logits.extent(1);
  float largest = lowest_logit;
  std::int32_t bad = 0;
#pragma unroll 4
  for (index_t i = threadIdx.x; i < n; i += filter_threads) {
    const float logit = x[i];
    bad |= logit <= 3.40282347e38f ? 0 : 1;
    largest = logit > largest ? logit : largest;
  }
  bad = block_reduce(bad, Larger{}, std::int32_t{0}, shared.ints);
  largest = block_reduce(largest, Larger{}, lowest_logit, shared.floats);
  if (bad != 0 || !(largest > lowest_logit)) {
    if (threadIdx.x == 0) status[r] = bad != 0 ? RowStatus::bad_row : RowStatus::empty_support;
    return;
  }
  if (p.temperature == 0) {
    constexpr std::int32_t none = 0x7fffffff;
    std::int32_t top = none;
    for (index_t i = threadIdx.x; i < n && top == none; i += filter_threads) {
      if (x[i] == largest) top = static_cast<std::int32_t>(i);
    }
    top = block_reduce(top, Smaller{}, none, shared.ints);
    if (threadIdx.x == 0) {
      out[r] = one_hot(largest, top);
      status[r] = RowStatus::ok;
    }
    return;
  }
  const RowScale row = RowScale::of(numbers, largest);
  float cutoff = lowest_logit;
  if (p.top_k > 0 && p.top_k < n) cutoff = block_top_k(x, n, p.top_k, largest, shared);
  if (p.top_p < 1) {
    const float floor = p.order == Order::k_then_p ? cutoff : lowest_logit;
    const float nucleus = block_top_p(x, n, p, row, largest, floor, shared);
    cutoff = nucleus > cutoff ? nucleus : cutoff;
  }
  if (p.min_p > 0) {
    const float least = min_p_cutoff(p, row, largest, numbers.log_min_p);
    cutoff = least > cutoff ? least : cutoff;
  }
  const Word kept = block_mass(x, n, row, cutoff, shared);
  if (threadIdx.x != 0) return;
  out[r] = finish_row(numbers, row, cutoff, kept);
  status[r] = RowStatus::ok;
}

/// penalise() of one row for each block.
template <class T>
__global__ void __launch_bounds__(filter_threads)
    penalise_rows(Processing p, View<T, 2> logits, TokenCounts seen, View<RowStatus, 1> status) {
  __shared__ std::int32_t ints[32];
  const index_t r = blockIdx.x;
  const SeenRange range = seen_range(seen, r);
  std::int32_t bad = range.valid ? 0 : 1;
  for (std::int32_t i = range.first + static_cast<std::int32_t>(threadIdx.x); i < range.last; i += filter_threads) {
    bad |= seen.tokens[i] >= 0 && seen.tokens[i] < logits.extent(1) ? 0 : 1;
  }
  bad = block_reduce(bad, Larger{}, std::int32_t{0}, ints);
  if (threadIdx.x == 0) status[r] = bad != 0 ? RowStatus::bad_row : RowStatus::ok;
  if (bad != 0) return;
  for (std::int32_t i = range.first + static_cast<std::int32_t>(threadIdx.x); i < range.last; i += filter_threads) {
    T& logit = logits(r, seen.tokens[i]);
    logit = penalised(p, logit, seen.counts[i]);
  }
}

template <class T>
__global__ void __launch_bounds__(256) copy_rows(View<const T, 2> from, View<T, 2> to) {
  const index_t i = index_t{blockIdx.x} * 256 + threadIdx.x;
  if (i < from.extent(1)) to(blockIdx.y, i) = from(blockIdx.y, i);
}

template <class T>
__global__ void __launch_bounds__(256)
    materialise_rows(View<const T, 2> logits, View<const LogitRow, 1> rows, View<const RowStatus, 1> status,
                     View<T, 2> probabilities) {
  const index_t r = blockIdx.y;
  if (status[r] != RowStatus::ok) return;
  const LogitRow row = rows[r];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const index_t i = index_t{blockIdx.x} * 1024 + j * 256 + threadIdx.x;
    if (i < logits.extent(1)) {
      probabilities(r, i) = probability(row, static_cast<std::int32_t>(i), logits(r, i));
    }
  }
}

}  // namespace decant::sampling::detail

#endif
