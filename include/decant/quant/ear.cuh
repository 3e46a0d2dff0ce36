// decant: EAR on CUDA, within the bounds of ear.hpp: one block per position, both rows in one pass with running maxima,
// then once more, from the second-level cache, for the distance. Sums in double, in a fixed order. Moves 4 * positions
// * vocab logits (half of them from that cache). The supports of top_k tokens read p's row twice and q's once, and a
// thread's share of p for each of the k. Nuclei (top_p below 1) are the CPU's alone.
#ifndef DECANT_QUANT_EAR_CUH
#define DECANT_QUANT_EAR_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include <type_traits>

#include "../core/cuda.cuh"
#include "../core/detail/device.cuh"
#include "../core/dtype.hpp"
#include "../core/topk.hpp"
#include "ear_types.hpp"

namespace decant::quant {

namespace detail {

inline constexpr int ear_threads = 512;

using ::decant::detail::block_reduce;
using ::decant::detail::Larger;
using ::decant::detail::Plus;
using ::decant::detail::Smaller;

struct EarShared {
  float floats[32];
  double doubles[32];
  std::int32_t tokens[32];
  unsigned long long keys[32];
};

/// Wide logits as floats.
template <int Wide, class T>
__device__ void ear_load(const T* from, float (&x)[Wide]) {
  const auto pack = *reinterpret_cast<const ::decant::detail::Pack<T, Wide>*>(from);
#pragma unroll
  for (int j = 0; j < Wide; ++j) x[j] = ::decant::detail::widen(pack.at[j]);
}

/// A row so far: its largest logit and where that first is, the next largest, and the sum of 2^((x - top) scale).
struct EarTrack {
  float top = -__builtin_huge_valf();
  float second = -__builtin_huge_valf();
  std::int32_t token = 0x7fffffff;
  double sum = 0;

  template <int Wide>
  __device__ void add(const float (&x)[Wide], index_t first, float scale) {
    const float before = top;
#pragma unroll
    for (int j = 0; j < Wide; ++j) {
      const bool above = x[j] > top;
      second = above ? top : x[j] > second ? x[j] : second;
      token = above ? static_cast<std::int32_t>(first + j) : token;
      top = above ? x[j] : top;
    }
    const float base = ear_base(top);
    if (top != before) sum *= static_cast<double>(exp2f((before - base) * scale));
    float part = 0;
#pragma unroll
    for (int j = 0; j < Wide; ++j) part += exp2f((x[j] - base) * scale);
    sum += static_cast<double>(part);
  }

  /// All threads' rows as one, in all threads.
  __device__ void merge(float scale, EarShared& shared) {
    constexpr float lowest = -__builtin_huge_valf();
    const float most = block_reduce(top, Larger{}, lowest, shared.floats);
    const float factor = exp2f((top - ear_base(most)) * scale);
    sum = block_reduce(sum * static_cast<double>(factor), Plus{}, 0.0, shared.doubles);
    const std::int32_t first =
        block_reduce(top == most ? token : 0x7fffffff, Smaller{}, std::int32_t{0x7fffffff}, shared.tokens);
    second = block_reduce(top == most && token == first ? second : top, Larger{}, lowest, shared.floats);
    top = most;
    token = first;
  }

  /// No NaN, no +inf, something above -inf.
  __device__ bool usable() const { return sum > 0 && sum < __builtin_huge_val(); }
};

/// KL and distance of one thread's share.
struct EarShare {
  double distance = 0;
  double cross = 0;  // of 2^(d_p scale) (d_p - d_q)

  template <int Wide>
  __device__ void add(const float (&x)[Wide], const float (&y)[Wide], float top_p, float top_q, float scale,
                      float part_p, float part_q) {
    float apart = 0;
    float crossed = 0;
#pragma unroll
    for (int j = 0; j < Wide; ++j) {
      const float dp = x[j] - top_p;
      const float dq = y[j] - top_q;
      const float ep = exp2f(dp * scale);
      // Rounded one by one: equal rows are at distance 0.
      const float p = __fmul_rn(ep, part_p);
      const float q = __fmul_rn(exp2f(dq * scale), part_q);
      apart += fabsf(__fsub_rn(p, q));
      crossed += ep > 0 ? ep * (dp - dq) : 0.0f;  // both may be -inf
    }
    distance += static_cast<double>(apart);
    cross += static_cast<double>(crossed);
  }
};

/// Logits in the order in which tokens are likely, and of equal ones the lower first, as integers.
__device__ inline unsigned long long ear_key(float logit, index_t token) {
  return static_cast<unsigned long long>(score_key(logit)) << 32 |
         (0xffffffffu - static_cast<std::uint32_t>(token));
}

/// The largest key of a thread's tokens that is below `limit`; 0: none.
template <int Wide, class T>
__device__ unsigned long long ear_next_key(const T* row, index_t vocab, unsigned long long limit) {
  unsigned long long best = 0;
  for (index_t i = index_t{threadIdx.x} * Wide; i < vocab; i += index_t{ear_threads} * Wide) {
    float x[Wide];
    ear_load(row + i, x);
#pragma unroll
    for (int j = 0; j < Wide; ++j) {
      const unsigned long long key = ear_key(x[j], i + j);
      best = key < limit && key > best ? key : best;
    }
  }
  return best;
}

/// tokens [top_k]: room in shared memory.
template <int Wide, class P, class Q>
__device__ void ear_listed(const P* row_p, const Q* row_q, index_t vocab, const EarOptions& options,
                           EarTrack& track_p, EarTrack& track_q, EarShared& shared, std::int32_t* tokens,
                           EarPosition& result) {
  constexpr float lowest = -__builtin_huge_valf();
  const index_t count = options.top_k < vocab ? options.top_k : vocab;
  const float inverse = 1 / options.temperature;
  unsigned long long own = ear_next_key<Wide>(row_p, vocab, ~0ull);
  for (index_t k = 0; k < count; ++k) {
    const unsigned long long best = block_reduce(own, Larger{}, 0ull, shared.keys);
    if (threadIdx.x == 0) tokens[k] = static_cast<std::int32_t>(0xffffffffu - static_cast<std::uint32_t>(best));
    if (own == best) own = ear_next_key<Wide>(row_p, vocab, best);
  }
  __syncthreads();
  const auto p = [&](index_t i) { return ::decant::detail::widen(row_p[tokens[i]]); };
  const auto q = [&](index_t i) { return ::decant::detail::widen(row_q[tokens[i]]); };
  if (options.support == EarSupport::topk_conditioned) {
    float top = lowest;
    for (index_t i = threadIdx.x; i < count; i += ear_threads) top = q(i) > top ? q(i) : top;
    track_q.top = block_reduce(top, Larger{}, lowest, shared.floats);
    double sum_p = 0;
    double sum_q = 0;
    for (index_t i = threadIdx.x; i < count; i += ear_threads) {
      sum_p += exp(ear_exponent(p(i), track_p.top, inverse));
      if (q(i) > lowest) sum_q += exp(ear_exponent(q(i), track_q.top, inverse));
    }
    track_p.sum = block_reduce(sum_p, Plus{}, 0.0, shared.doubles);
    track_q.sum = block_reduce(sum_q, Plus{}, 0.0, shared.doubles);
  }
  const double logs = log(track_q.sum) - log(track_p.sum);
  double both = 0;
  double kl = 0;
  for (index_t i = threadIdx.x; i < count; i += ear_threads) {
    const double d_p = ear_exponent(p(i), track_p.top, inverse);
    const double in_p = exp(d_p) / track_p.sum;
    if (!(in_p > 0)) continue;
    if (!(q(i) > lowest)) {
      kl = __builtin_huge_val();
      continue;
    }
    const double d_q = ear_exponent(q(i), track_q.top, inverse);
    const double in_q = exp(d_q) / track_q.sum;
    both += in_p < in_q ? in_p : in_q;
    kl += in_p * (d_p - d_q + logs);
  }
  both = block_reduce(both, Plus{}, 0.0, shared.doubles);
  result.kl = block_reduce(kl, Plus{}, 0.0, shared.doubles);
  result.ear = both < 1 ? both : 1;
}

/// One block: one position.
template <bool Full, int Wide, class P, class Q>
__global__ void __launch_bounds__(ear_threads)
    ear_rows(View<const P, 2> logits_p, View<const Q, 2> logits_q, EarOptions options,
             View<const std::uint8_t, 1> keep, View<EarPosition, 1> each) {
  __shared__ EarShared shared;
  extern __shared__ std::int32_t tokens[];
  const index_t position = blockIdx.x;
  EarPosition result;
  if (keep.data() && keep[position] == 0) {
    if (threadIdx.x == 0) each[position] = result;
    return;
  }
  const P* const row_p = logits_p.data() + position * logits_p.stride(0);
  const Q* const row_q = logits_q.data() + position * logits_q.stride(0);
  const index_t vocab = logits_p.extent(1);
  const float inverse = 1 / options.temperature;
  const float scale = inverse * ear_log2_e;
  EarTrack track_p;
  EarTrack track_q;
  for (index_t i = index_t{threadIdx.x} * Wide; i < vocab; i += index_t{ear_threads} * Wide) {
    float x[Wide];
    float y[Wide];
    ear_load(row_p + i, x);
    ear_load(row_q + i, y);
    track_p.add(x, i, scale);
    track_q.add(y, i, scale);
  }
  track_p.merge(scale, shared);
  track_q.merge(scale, shared);
  if (!track_p.usable() || !track_q.usable()) {
    result.state = EarState::excluded;
    if (threadIdx.x == 0) each[position] = result;
    return;
  }
  result.state = EarState::counted;
  result.agrees = track_p.token == track_q.token;
  if (!result.agrees) {
    const double second = exp(ear_exponent(track_p.second, track_p.top, inverse));
    result.margin = static_cast<float>((1 - second) / track_p.sum);
  }
  if constexpr (Full) {
    const auto part_p = static_cast<float>(1 / track_p.sum);
    const auto part_q = static_cast<float>(1 / track_q.sum);
    EarShare share;
    for (index_t i = index_t{threadIdx.x} * Wide; i < vocab; i += index_t{ear_threads} * Wide) {
      float x[Wide];
      float y[Wide];
      ear_load(row_p + i, x);
      ear_load(row_q + i, y);
      share.add(x, y, track_p.top, track_q.top, scale, part_p, part_q);
    }
    const double distance = block_reduce(share.distance, Plus{}, 0.0, shared.doubles);
    const double cross = block_reduce(share.cross, Plus{}, 0.0, shared.doubles);
    result.ear = distance < 2 ? 1 - distance / 2 : 0;
    result.kl = cross * static_cast<double>(inverse) / track_p.sum - log(track_p.sum) + log(track_q.sum);
  } else {
    ear_listed<Wide>(row_p, row_q, vocab, options, track_p, track_q, shared, tokens, result);
  }
  if (threadIdx.x == 0) each[position] = result;
}

/// Over the threads' positions.
template <class Value>
__device__ double ear_sum(const View<const EarPosition, 1>& each, EarShared& shared, const Value& value) {
  double sum = 0;
  for (index_t i = threadIdx.x; i < each.extent(0); i += ear_threads) sum += value(each[i]);
  return block_reduce(sum, Plus{}, 0.0, shared.doubles);
}

/// One block. Position: EarPosition.
template <class Position>
__global__ void __launch_bounds__(ear_threads) ear_summarize(View<const Position, 1> each, EarResult* result) {
  __shared__ EarShared shared;
  const auto counted = [](const EarPosition& at) { return at.state == EarState::counted; };
  // Figures go out as they are known: none has to wait in a register.
  const bool writes = threadIdx.x == 0;
  const double n = ear_sum(each, shared, [&](const EarPosition& at) { return counted(at) ? 1.0 : 0.0; });
  const double excluded =
      ear_sum(each, shared, [](const EarPosition& at) { return at.state == EarState::excluded ? 1.0 : 0.0; });
  if (writes) *result = {};
  if (writes) result->positions = static_cast<index_t>(n);
  if (writes) result->excluded = static_cast<index_t>(excluded);
  if (n == 0) {
    if (writes) result->ear = result->kl = result->top1_agreement = result->percentile_1 = __builtin_nan("");
    return;
  }
  const double mean = ear_sum(each, shared, [&](const EarPosition& at) { return counted(at) ? at.ear : 0; }) / n;
  if (writes) result->ear = mean;
  const double kl = ear_sum(each, shared, [&](const EarPosition& at) { return counted(at) ? at.kl : 0; });
  if (writes) result->kl = kl / n;
  const double agreeing =
      ear_sum(each, shared, [&](const EarPosition& at) { return counted(at) && at.agrees ? 1.0 : 0.0; });
  if (writes) result->top1_agreement = agreeing / n;
  const double margin = ear_sum(
      each, shared, [&](const EarPosition& at) { return counted(at) ? static_cast<double>(at.margin) : 0; });
  if (writes) result->margin = agreeing < n ? margin / (n - agreeing) : 0;
  const double squares = ear_sum(
      each, shared, [&](const EarPosition& at) { return counted(at) ? (at.ear - mean) * (at.ear - mean) : 0; });
  if (writes) result->standard_error = n > 1 ? sqrt(squares / (n - 1) / n) : 0;
  // EAR is not negative, so its bits order as it does: the largest word that at most `rank` are below.
  const auto rank = static_cast<double>((static_cast<index_t>(n) + 99) / 100 - 1);
  unsigned long long bits = 0;
#pragma unroll 1
  for (int b = 62; b >= 0; --b) {
    const unsigned long long trial = bits | 1ull << b;
    const double below = ear_sum(each, shared, [&](const EarPosition& at) {
      return counted(at) && static_cast<unsigned long long>(__double_as_longlong(at.ear)) < trial ? 1.0 : 0.0;
    });
    if (below <= rank) bits = trial;
  }
  if (writes) result->percentile_1 = __longlong_as_double(static_cast<long long>(bits));
}

}  // namespace detail

/// The mean and the spread of positions, to *result on the device. O(positions), one block.
inline void ear_summary(Cuda& cuda, View<const EarPosition, 1> each, EarResult* result) {
  launch(cuda, "quant::ear_summary", detail::ear_summarize<EarPosition>, CudaGrid{dim3(1), dim3(detail::ear_threads)},
         each, result);
}

/// As on the CPU, all on the device; the result to *result, unless that is null. ArgumentError for top_p below 1.
template <Storage P, Storage Q>
void ear(Cuda& cuda, View<P, 2> p, View<Q, 2> q, EarResult* result, const EarOptions& options = {},
         View<const std::uint8_t, 1> keep = {}, View<EarPosition, 1> each = {}) {
  constexpr const char* where = "quant::ear";
  using CleanP = std::remove_const_t<P>;
  using CleanQ = std::remove_const_t<Q>;
  detail::require_ear(p, q, options, keep, each, where);
  require(options.top_p == 1, where, "options.top_p", "1 (on CUDA)", options.top_p);
  Workspace::Scope scope(cuda.workspace());
  const index_t positions = p.extent(0);
  const index_t vocab = p.extent(1);
  if (each.empty()) each = cuda.workspace().template take_view<EarPosition>(positions);
  constexpr int most_p = ::decant::detail::per_access<CleanP>;
  constexpr int most_q = ::decant::detail::per_access<CleanQ>;
  constexpr int wide = most_p < most_q ? most_p : most_q;
  const bool full = options.support == EarSupport::full;
  const bool aligned = ::decant::detail::aligned_rows(p.data(), p.stride(0), vocab) &&
                       ::decant::detail::aligned_rows(q.data(), q.stride(0), vocab);
  const index_t listed = full ? 0 : options.top_k < vocab ? options.top_k : vocab;
  const CudaGrid grid{dim3(static_cast<unsigned>(positions)), dim3(detail::ear_threads),
                      static_cast<std::size_t>(listed) * sizeof(std::int32_t)};
  const auto kernel = full      ? aligned ? detail::ear_rows<true, wide, CleanP, CleanQ>
                                          : detail::ear_rows<true, 1, CleanP, CleanQ>
                      : aligned ? detail::ear_rows<false, wide, CleanP, CleanQ>
                                : detail::ear_rows<false, 1, CleanP, CleanQ>;
  launch(cuda, where, kernel, grid, p, q, options, keep, each);
  if (result) ear_summary(cuda, View<const EarPosition, 1>(each), result);
}

}  // namespace decant::quant

#endif
