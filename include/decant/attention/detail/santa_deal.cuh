// decant: from exponentials to thresholds, for SANTA on Cuda: the integer weights' sums, and what each query head draws
// where. All of it is integer arithmetic (santa_draws.hpp), so neither the order of sums nor the number of threads
// matters, and the draws are those of the CPU given the same exponentials.
#ifndef DECANT_ATTENTION_DETAIL_SANTA_DEAL_CUH
#define DECANT_ATTENTION_DETAIL_SANTA_DEAL_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "dense_work.cuh"
#include "santa_plan.cuh"

namespace decant::attention::detail {

using ::decant::detail::block_reduce;
using ::decant::detail::block_scan_before;

/// The largest logit of a row and whether there is a NaN, known to all threads of the block. shared: 32 floats.
struct SantaReference {
  float top;
  bool nan;
};
__device__ inline SantaReference reference_of(const SantaCall& c, index_t row, const SantaSeen& seen, float* shared) {
  float top = empty_lse;
  bool nan = false;
  for (index_t p = seen.first_piece + threadIdx.x; p < seen.last_piece; p += blockDim.x) {
    const float x = c.w.piece_tops[row * c.pieces + p];
    nan = nan || x != x;
    top = merge_reference(top, x);
  }
  top = block_reduce(top, Larger{}, empty_lse, shared);
  return {top, __syncthreads_or(nan) != 0};
}

/// What exponentials of the key's block are multiplied with.
__device__ inline float factor_of(const SantaCall& c, index_t row, index_t key, float reference) {
  return santa_factor(c.w.tops[row * (c.room / santa_block) + key / santa_block], reference);
}

/// Weights of 4 keys that stand next to each other: 0 unless they are inside of a piece that is seen.
struct SantaWeights {
  float w[4];

  __device__ SantaWeights(const SantaCall& c, index_t row, index_t key, bool inside, float factor) {
    float4 e = {0, 0, 0, 0};
    if (inside) e = *reinterpret_cast<const float4*>(c.w.exponentials + row * c.room + key);
    w[0] = santa_product(e.x, factor), w[1] = santa_product(e.y, factor);
    w[2] = santa_product(e.z, factor), w[3] = santa_product(e.w, factor);
  }
  /// Of those below the limit.
  __device__ std::int64_t sum(float limit) const {
    std::int64_t all = 0;
#pragma unroll
    for (const float x : w) all += x >= limit ? 0 : static_cast<std::int64_t>(x);
    return all;
  }
};

/// The sum over the 4 lanes that hold 16 keys.
__device__ inline std::int64_t sum_of_4(std::int64_t x) {
  x += __shfl_xor_sync(::decant::detail::whole_warp, x, 1);
  return x + __shfl_xor_sync(::decant::detail::whole_warp, x, 2);
}

/// Sums of the weights of every 16 keys and of a chunk. A block per chunk and row. It must read 4 bytes per token and
/// query head and write half a byte; 2 FLOPs and a conversion for those.
template <int Threads>
__global__ void __launch_bounds__(Threads) santa_weigh_kernel(const SantaCall c) {
  static_assert(santa_chunk_keys % (4 * Threads) == 0);
  __shared__ float tops[32];
  __shared__ std::int64_t totals[32];
  if (faulted(c.fault)) return;
  const index_t chunk = blockIdx.x % c.chunks;
  const index_t row = blockIdx.x / c.chunks;
  const SantaSeen seen = c.seen(row);
  const SantaChunks chunks = chunks_of(seen);
  if (chunk < chunks.first || chunk >= chunks.last) return;
  const SantaReference reference = reference_of(c, row, seen, tops);
  if (reference.nan) return;
  std::int64_t total = 0;
#pragma unroll
  for (int step = 0; step < santa_chunk_keys / (4 * Threads); ++step) {
    const index_t key = chunk * santa_chunk_keys + (step * Threads + static_cast<int>(threadIdx.x)) * 4;
    const bool inside = key >= index_t{seen.first_piece} * santa_piece && key < index_t{seen.last_piece} * santa_piece;
    const float factor = inside ? factor_of(c, row, key, reference.top) : 0.0f;
    const std::int64_t own = SantaWeights(c, row, key, inside, factor).sum(-empty_lse);
    total += own;
    const std::int64_t sum = sum_of_4(own);
    if (threadIdx.x % 4 == 0) c.w.sums[(row * c.room + key) / santa_sum_keys] = sum;
  }
  total = block_reduce(total, Plus{}, std::int64_t{0}, totals);
  if (threadIdx.x == 0) c.w.chunk_sums[row * c.chunks + chunk] = total;
}

/// Memory that the block of santa_deal_kernel shares.
struct SantaDealShared {
  float tops[32];
  std::int64_t sums[32];
  index_t counts[32];
  unsigned digits[256];
  std::uint64_t prefix;
  index_t above;
};

/// One row's dealing, by a whole block.
class SantaDealer {
 public:
  __device__ SantaDealer(const SantaCall& c, SantaDealShared& shared, index_t row)
      : c_(c), m_(shared), row_(row), seen_(c.seen(row)), chunks_(chunks_of(seen_)) {}

  __device__ void run() {
    const SantaReference reference = reference_of(c_, row_, seen_, m_.tops);
    h_ = {reference.top, -empty_lse, 0, 0, 0, c_.a.samples, 0, 0, reference.nan};
    if (h_.nan == 0) {
      h_.mass = h_.light = scan_chunks();
      h_.unit = c_.a.samples > 0 ? 1.0 / static_cast<double>(c_.a.samples) : 0.0;
      if (c_.a.samples > 0 && h_.mass > 0) deal();
    }
    if (threadIdx.x == 0) c_.w.rows[row_] = h_;
  }

 private:
  __device__ void deal() {
    const SantaScheme scheme = c_.a.scheme;
    if (scheme == SantaScheme::flash || scheme == SantaScheme::prop || scheme == SantaScheme::prop_exact)
      deal_tiles();
    else if (scheme == SantaScheme::threshold_systematic)
      deal_light();
    if (h_.tiled == 0) h_.offset = c_.word(row_, seen_, 0);
  }

  /// chunk_before from chunk_sums; returns the sum of all.
  __device__ std::int64_t scan_chunks() {
    std::int64_t before = 0;
    for (index_t strip = chunks_.first; strip < chunks_.last; strip += blockDim.x) {
      const index_t i = strip + threadIdx.x;
      std::int64_t all = 0;
      const std::int64_t own = i < chunks_.last ? c_.w.chunk_sums[row_ * c_.chunks + i] : 0;
      const std::int64_t place = before + block_scan_before(own, all, m_.sums);
      if (i < chunks_.last) c_.w.chunk_before[row_ * (c_.chunks + 1) + i] = place;
      before += all;
    }
    if (threadIdx.x == 0) c_.w.chunk_before[row_ * (c_.chunks + 1) + chunks_.last] = before;
    return before;
  }

  template <class T>
  __device__ T total(T x, T* shared) const {
    return block_reduce(x, Plus{}, T{0}, shared);
  }

  /// Every tile's mass and what lies before it, then its samples.
  __device__ void deal_tiles() {
    constexpr int warps = santa_deal_threads / 32;
    const index_t first_key = chunks_.first * santa_chunk_keys;
    const index_t last_key = chunks_.last * santa_chunk_keys;
    const index_t first = first_key / seen_.tile;
    const index_t last = (last_key + seen_.tile - 1) / seen_.tile;
    SantaTile* const tiles = c_.w.tiles + row_ * c_.tiles;
    for (index_t t = first + threadIdx.x / 32; t < last; t += warps) {
      const index_t begin = t * seen_.tile < first_key ? first_key : t * seen_.tile;
      const index_t end = (t + 1) * seen_.tile > last_key ? last_key : (t + 1) * seen_.tile;
      std::int64_t sum = 0;
      for (index_t i = begin / santa_sum_keys + threadIdx.x % 32; i < end / santa_sum_keys; i += 32)
        sum += c_.w.sums[row_ * (c_.room / santa_sum_keys) + i];
      sum = warp_reduce(sum, Plus{});
      if (threadIdx.x % 32 == 0) tiles[t].mass = sum;
    }
    __syncthreads();
    std::int64_t before = 0;
    index_t weighty = 0;
    for (index_t strip = first; strip < last; strip += blockDim.x) {
      const index_t t = strip + threadIdx.x;
      std::int64_t all = 0;
      const std::int64_t own = t < last ? tiles[t].mass : 0;
      const std::int64_t place = before + block_scan_before(own, all, m_.sums);
      if (t < last) tiles[t].before = place;
      before += all;
      weighty += own > 0;
    }
    weighty = total(weighty, m_.counts);
    if (c_.a.scheme == SantaScheme::prop_exact && c_.a.samples < weighty) return;
    h_.tiled = 1;
    const bool exact = c_.a.scheme == SantaScheme::prop_exact;
    const index_t each = c_.a.samples > weighty ? c_.a.samples / weighty : 1;
    const index_t shared = exact ? c_.a.samples - weighty : c_.a.samples;
    index_t left = 0;
    for (index_t t = first + threadIdx.x; t < last; t += blockDim.x) {
      const std::int64_t mass = tiles[t].mass;
      if (c_.a.scheme == SantaScheme::flash) {
        tiles[t].budget = static_cast<std::int32_t>(mass > 0 ? each : 0);
        continue;
      }
      const SantaShare share = SantaShare::of(shared, mass, h_.mass);
      tiles[t].budget = static_cast<std::int32_t>(share.whole + (exact && mass > 0 ? 1 : 0));
      tiles[t].rest = share.rest;
      left -= share.whole;
    }
    if (c_.a.scheme == SantaScheme::flash) return;
    left = shared + total(left, m_.counts);
    if (left > 0) give_rests(tiles, first, last, left);
  }

  /// One sample more for the `left` largest remainders, of equal ones those that come first: santa_allot in parallel,
  /// by a radix select over 8 digits.
  __device__ void give_rests(SantaTile* tiles, index_t first, index_t last, index_t left) {
    std::uint64_t least = 0;  // the left-th largest, digit by digit
    index_t wanted = left;    // among those that agree with the digits so far
    for (int shift = 56; shift >= 0; shift -= 8) {
      for (int i = static_cast<int>(threadIdx.x); i < 256; i += santa_deal_threads) m_.digits[i] = 0;
      __syncthreads();
      for (index_t t = first + threadIdx.x; t < last; t += blockDim.x) {
        const std::uint64_t rest = tiles[t].rest;
        if (shift == 56 || rest >> (shift + 8) == least >> (shift + 8)) atomicAdd(&m_.digits[rest >> shift & 255], 1u);
      }
      __syncthreads();
      if (threadIdx.x == 0) {
        int digit = 255;
        for (; digit > 0 && index_t{m_.digits[digit]} < wanted; --digit) wanted -= m_.digits[digit];
        m_.prefix = least | static_cast<std::uint64_t>(digit) << shift;
        m_.above = wanted;
      }
      __syncthreads();
      least = m_.prefix;
      wanted = m_.above;
      __syncthreads();
    }
    index_t equal = 0;  // before the strip
    for (index_t strip = first; strip < last; strip += blockDim.x) {
      const index_t t = strip + threadIdx.x;
      const std::uint64_t rest = t < last ? tiles[t].rest : 0;
      const bool ties = t < last && rest == least;
      index_t all = 0;
      const index_t place = equal + block_scan_before(index_t{ties}, all, m_.counts);
      if (t < last && (rest > least || (ties && place < wanted))) ++tiles[t].budget;
      equal += all;
    }
  }

  /// As SantaSampler::deal_light: takes heavy keys out as long as there are any. Then the sums are of the light ones.
  __device__ void deal_light() {
    index_t heavy = 0;
    h_.light = h_.mass;
    const index_t first = index_t{seen_.first_piece} * santa_piece;
    const index_t last = index_t{seen_.last_piece} * santa_piece;
    while (h_.light > 0) {
      h_.limit = float_from((h_.light - 1) / (c_.a.samples - heavy) + 1);
      std::int64_t rest = 0;
      index_t found = 0;
      for (index_t key = first + 4 * static_cast<index_t>(threadIdx.x); key < last; key += 4 * index_t{blockDim.x}) {
        const SantaWeights w(c_, row_, key, true, factor_of(c_, row_, key, h_.reference));
        rest += w.sum(h_.limit);
        for (const float x : w.w) found += x >= h_.limit;
      }
      rest = total(rest, m_.sums);
      found = total(found, m_.counts);
      if (found == heavy) break;
      heavy = found;
      h_.light = rest;
    }
    if (h_.light == 0) h_.samples = 0;
    h_.samples -= h_.samples == 0 ? 0 : heavy;
    if (h_.samples > 0)
      h_.unit = static_cast<double>(h_.light) / (static_cast<double>(h_.mass) * static_cast<double>(h_.samples));
    // A warp sums 128 keys at a time, in 8 steps a chunk.
    constexpr int warps = santa_deal_threads / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    for (index_t chunk = chunks_.first + threadIdx.x / 32; chunk < chunks_.last; chunk += warps) {
      std::int64_t all = 0;
      for (int step = 0; step < santa_chunk_keys / 128; ++step) {
        const index_t key = chunk * santa_chunk_keys + step * 128 + lane * 4;
        const bool inside = key >= first && key < last;
        const float factor = inside ? factor_of(c_, row_, key, h_.reference) : 0.0f;
        const std::int64_t own = SantaWeights(c_, row_, key, inside, factor).sum(h_.limit);
        all += own;
        const std::int64_t sum = sum_of_4(own);
        if (lane % 4 == 0) c_.w.sums[(row_ * c_.room + key) / santa_sum_keys] = sum;
      }
      all = warp_reduce(all, Plus{});
      if (lane == 0) c_.w.chunk_sums[row_ * c_.chunks + chunk] = all;
    }
    __syncthreads();
    scan_chunks();
  }

  const SantaCall& c_;
  SantaDealShared& m_;
  index_t row_;
  SantaSeen seen_;
  SantaChunks chunks_;
  SantaRow h_;
};

/// A block per row. It must read 12 bytes per chunk of 1024 tokens and query head, of tiled schemes half a byte per
/// token and 32 bytes per tile more, and of threshold_systematic 4 bytes per token a few times.
template <int Threads>
__global__ void __launch_bounds__(Threads, 2) santa_deal_kernel(const SantaCall c) {
  static_assert(Threads == santa_deal_threads);
  __shared__ SantaDealShared shared;
  if (faulted(c.fault)) return;
  SantaDealer(c, shared, blockIdx.x).run();
}

}  // namespace decant::attention::detail

#endif
