// decant: the blocks of BlockwiseKeyDiff on Cuda: a block of threads per head walks over the sequence, since every
// choice rests on the one before. Reads the directions of (count + block) tokens twice per block of tokens, from L2.
#ifndef DECANT_KV_DETAIL_KEYDIFF_BLOCKS_CUH
#define DECANT_KV_DETAIL_KEYDIFF_BLOCKS_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "../../core/topk.hpp"
#include "../keydiff.hpp"
#include "key_rows.cuh"
#include "scored_layer.cuh"

namespace decant::kv::detail {

inline constexpr int keydiff_threads = 512;
inline constexpr int keydiff_warps = keydiff_threads / 32;

/// Scratch of all heads.
struct KeyDiffScratch {
  View<const float, 3> directions;  // [kv_heads][n][dim]: keys of length 1, or 0
  View<float, 2> anchors;           // [kv_heads][dim]
  View<std::int32_t, 2> lists;      // [kv_heads][n]: the tokens that are still there, ascending
  View<std::uint32_t, 2> keys;      // [kv_heads][n]: of their scores
  View<index_t, 1> sizes;           // [kv_heads]: of the lists
};

/// The threshold of the k-th largest of n keys, four digits of eight bits. In all threads; k >= 1.
__device__ inline Threshold block_threshold(const std::uint32_t* keys, index_t n, index_t k) {
  __shared__ int histogram[256];
  __shared__ std::uint32_t digit;
  __shared__ index_t rank;
  std::uint32_t prefix = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    if (threadIdx.x < 256) histogram[threadIdx.x] = 0;
    __syncthreads();
    for (index_t i = threadIdx.x; i < n; i += keydiff_threads) {
      const bool candidate = shift == 24 || keys[i] >> (shift + 8) == prefix;
      if (candidate) atomicAdd(&histogram[keys[i] >> shift & 255], 1);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      std::uint32_t d = 255;
      while (k > histogram[d] && d > 0) k -= histogram[d--];
      digit = d;
      rank = k;
    }
    __syncthreads();
    prefix = prefix << 8 | digit;
    k = rank;
  }
  return {prefix, k};
}

/// Keeps what the threshold takes of list [size], in order.
__device__ inline void keep_taken(const std::uint32_t* keys, index_t size, const Threshold& t, std::int32_t* list) {
  __shared__ int sums[32];
  index_t ties = 0;
  index_t kept = 0;
  for (index_t first = 0; first < size; first += keydiff_threads) {
    const index_t i = first + threadIdx.x;
    const bool tie = i < size && keys[i] == t.key;
    const std::int32_t token = i < size ? list[i] : 0;
    int total = 0;
    const int before = ::decant::detail::block_scan_before(tie ? 1 : 0, total, sums);
    const bool taken = i < size && (keys[i] > t.key || (tie && ties + before < t.ties));
    ties += total;
    const int place = ::decant::detail::block_scan_before(taken ? 1 : 0, total, sums);
    if (taken) list[kept + place] = token;
    kept += total;
  }
  __syncthreads();
}

/// A head's anchor: the sum of the listed directions, and 1 / its length, in all threads.
__device__ inline float sum_directions(const KeyDiffScratch& s, index_t h, index_t size) {
  __shared__ float parts[keydiff_warps][32];
  __shared__ float sums[32];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const index_t dim = s.anchors.extent(1);
  float square = 0;
  for (index_t d0 = 0; d0 < dim; d0 += 32) {
    float sum = 0;
    if (d0 + lane < dim) {
#pragma unroll 4
      for (index_t i = warp; i < size; i += keydiff_warps) sum += s.directions(h, s.lists(h, i), d0 + lane);
    }
    parts[warp][lane] = sum;
    __syncthreads();
    if (warp == 0 && d0 + lane < dim) {
      for (int w = 1; w < keydiff_warps; ++w) sum += parts[w][lane];
      s.anchors(h, d0 + lane) = sum;
      square += sum * sum;
    }
    __syncthreads();
  }
  square = ::decant::detail::block_reduce(square, Plus{}, 0.0f, sums);
  return square == 0 ? 0.0f : 1.0f / sqrtf(square);
}

/// One head per block: its list and size.
template <class Scratch>
__global__ __launch_bounds__(keydiff_threads, 1) void keydiff_blocks_kernel(Scratch s, index_t block, ScoredLayer layer,
                                                                            View<const std::int32_t, 1> counts,
                                                                            const FaultWord* fault) {
  __shared__ int sums[32];
  if (faulted(fault)) return;
  const index_t h = blockIdx.x;
  const index_t n = bounded_length(layer, h);
  const index_t budget = counts[h] > 0 ? counts[h] : 0;
  std::int32_t* const list = &s.lists(h, index_t{0});
  std::uint32_t* const keys = &s.keys(h, index_t{0});
  const int lane = static_cast<int>(threadIdx.x) % 32;
  index_t size = 0;
  for (index_t t = 0; t < n;) {
    // The first block fills the budget up; later ones hold `block` tokens.
    const index_t wanted = size == 0 ? budget + block : block;
    const index_t take = wanted < n - t ? wanted : n - t;
    for (index_t i = threadIdx.x; i < take; i += keydiff_threads) list[size + i] = static_cast<std::int32_t>(t + i);
    size += take;
    t += take;
    __syncthreads();
    const float inverse = sum_directions(s, h, size);
    int protect = 0;
    for (index_t i = threadIdx.x / 32; i < size; i += keydiff_warps) {
      float product = 0;
      for (index_t d = lane; d < s.anchors.extent(1); d += 32) {
        product = fmaf(s.directions(h, list[i], d), s.anchors(h, d), product);
      }
      product = ::decant::detail::warp_reduce(product, Plus{});
      if (lane != 0) continue;
      const bool is_kept = layer.keep(h, list[i]) != 0;
      keys[i] = is_kept ? protected_key : score_key(key_difference(product, 1.0f, inverse));
      protect += is_kept ? 1 : 0;
    }
    protect = ::decant::detail::block_reduce(protect, Plus{}, 0, sums);
    const index_t k = budget > protect ? budget : protect;
    if (k >= size) continue;
    if (k > 0) keep_taken(keys, size, block_threshold(keys, size, k), list);
    size = k;
  }
  if (threadIdx.x == 0) s.sizes[h] = size;
}

/// One block, so that no thread asks for faults after another has told one.
template <class Scratch>
__global__ void check_room_kernel(Scratch s, index_t layer, index_t room, FaultWord* fault) {
  if (__syncthreads_or(faulted(fault))) return;
  for (index_t h = threadIdx.x; h < s.sizes.extent(0); h += blockDim.x) {
    if (s.sizes[h] > room) report(fault, Fault::capacity, layer, h, s.sizes[h]);
  }
}

template <class Scratch>
__global__ void keep_lists_kernel(Scratch s, KeptView kept, const FaultWord* fault) {
  if (faulted(fault)) return;
  const index_t h = blockIdx.y;
  const index_t i = grid_token();
  if (i < s.sizes[h]) kept.indices(h, i) = s.lists(h, i);
  if (i == 0) kept.counts[h] = static_cast<std::int32_t>(s.sizes[h]);
}

}  // namespace decant::kv::detail

#endif
