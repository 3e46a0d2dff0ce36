// decant: attention::BernoulliQuery on Cuda: the same features and factors as on the CPU, to the bit; scores within
// rounding. Three launches: checks, the features of each group, and the scores. They must read each key feature that is
// used once for every 4 query heads (page_size * sizeof(T) bytes of a page) and write 4 bytes per token and query head,
// with 2 FLOPs for those and each feature.
#ifndef DECANT_ATTENTION_SANTA_SCORES_CUH
#define DECANT_ATTENTION_SANTA_SCORES_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "../core/cuda.cuh"
#include "../core/detail/device.cuh"
#include "detail/santa_plan.cuh"
#include "santa_scores.hpp"

namespace decant::attention {

namespace detail {

inline constexpr int bernoulli_threads = 128;
inline constexpr int bernoulli_rows = 4;

struct BernoulliShape {
  BernoulliQuery a;
  index_t group;
  index_t room;  // tokens of a row of out
  float scale;
  bool aligned;
};

/// The features of each sequence and KV head that are read. Scratch.
struct BernoulliFeatures {
  std::int32_t* count;  // [sequences * heads]; -1: a query is not finite
  std::int32_t* used;   // [sequences * heads][dim], ascending
  float* factors;       // [sequences * heads][dim][group], of those that are used
};

/// A block per sequence.
template <class T>
__global__ void __launch_bounds__(bernoulli_threads)
    bernoulli_check_kernel(const FeatureMajorKeys<T> keys, index_t room, FaultWord* fault) {
  const index_t s = blockIdx.x;
  const index_t begin = keys.indptr[s];
  const index_t end = keys.indptr[s + 1];
  const bool good = begin >= 0 && end >= begin && end <= keys.indices.extent(0) && (s > 0 || begin == 0) &&
                    (end == begin || (keys.last_page_len[s] >= 1 && keys.last_page_len[s] <= keys.page_size()));
  if (threadIdx.x == 0) {
    if (!good)
      report(fault, Fault::feature_pages, 0, 0, s);
    else if (keys.length(s) > room)
      report(fault, Fault::score_room, 0, 0, keys.length(s));
  }
  if (!good) return;
  for (index_t i = begin + threadIdx.x; i < end; i += bernoulli_threads)
    if (keys.indices[i] < 0 || keys.indices[i] >= keys.keys.extent(0))
      report(fault, Fault::feature_pages, 0, 0, i - begin);
}

/// A block per sequence and KV head: bernoulli_factors in parallel, and the list of what is not 0 for all heads.
template <class Q, class T>
__global__ void __launch_bounds__(bernoulli_threads, 4)
    bernoulli_features_kernel(const BernoulliShape x, const View<const Q, 3> q, const FeatureMajorKeys<T> keys,
                              const View<const std::uint32_t, 1> requests, const BernoulliFeatures to,
                              const View<std::int32_t, 2> features, const FaultWord* fault) {
  using ::decant::detail::block_reduce;
  using ::decant::detail::block_scan_before;
  using ::decant::detail::Larger;
  __shared__ double largest[32];
  __shared__ int counts[32];
  if (faulted(fault)) return;
  const index_t heads = keys.kv_heads();
  const index_t dim = keys.key_dim();
  const index_t s = blockIdx.x / heads;
  const index_t h = blockIdx.x % heads;
  const index_t first_head = h * x.group;
  const auto at = [&](index_t g, index_t d) {
    return static_cast<double>(::decant::detail::widen(q(s, first_head + g, d)));
  };
  const bool mean = x.a.group == GroupDraws::mean_group;
  const auto size = [&](index_t g, index_t d) {
    double sum = fabs(at(g, d));
    for (index_t i = 1; mean && i < x.group; ++i) sum += fabs(at(i, d));
    return mean ? sum / static_cast<double>(x.group) : sum;
  };
  bool finite = true;
  for (index_t i = threadIdx.x; i < x.group * dim; i += bernoulli_threads) {
    const double own = at(i / dim, i % dim);
    finite = finite && own - own == 0;
  }
  if (!__syncthreads_and(finite)) {
    if (threadIdx.x == 0) {
      to.count[blockIdx.x] = -1;
      if (features.data() != nullptr) features(s, h) = 0;
    }
    return;
  }
  float* const factors = to.factors + blockIdx.x * dim * x.group;
  std::int32_t* const used = to.used + blockIdx.x * dim;
  const Philox random = bernoulli_random(x.a);
  const std::uint32_t request = requests.data() == nullptr ? 0 : requests[s];
  const auto step = static_cast<std::uint32_t>(keys.length(s)) + x.a.step;
  for (index_t g = 0; g < (mean ? 1 : x.group); ++g) {
    double norm = 0;
    for (index_t d = threadIdx.x; d < dim; d += bernoulli_threads) norm = size(g, d) > norm ? size(g, d) : norm;
    norm = block_reduce(norm, Larger{}, 0.0, largest);
    const index_t leader = first_head + (x.a.group == GroupDraws::independent ? g : 0);
    const auto stream = x.a.layer << 16 | static_cast<std::uint32_t>(leader);
    for (index_t d = threadIdx.x; d < dim; d += bernoulli_threads) {
      const double own = size(g, d);
      const int count = norm == 0 ? 0
                                  : bernoulli_count(x.a.draws, x.a.strata, own / norm, random,
                                                    static_cast<std::uint32_t>(d), step, request, stream);
      const double rounded = norm * count / x.a.draws;  // what |q| becomes
      const auto scale = static_cast<double>(x.scale);
      if (!mean) {
        factors[d * x.group + g] = static_cast<float>(scale * copysign(rounded, at(g, d)));
        continue;
      }
      for (index_t i = 0; i < x.group; ++i)
        factors[d * x.group + i] = count == 0 ? 0.0f : static_cast<float>(scale * at(i, d) * (rounded / own));
    }
  }
  __syncthreads();
  // Strip by strip to the front, which is never behind the strip.
  int before = 0;
  for (index_t strip = 0; strip < dim; strip += bernoulli_threads) {
    const index_t d = strip + threadIdx.x;
    bool any = false;
    for (index_t g = 0; d < dim && g < x.group; ++g) any = any || factors[d * x.group + g] != 0;
    int all = 0;
    const int place = before + block_scan_before(any ? 1 : 0, all, counts);
    for (index_t g = 0; g < x.group; ++g) {
      const float own = any ? factors[d * x.group + g] : 0.0f;
      __syncthreads();
      if (any) factors[place * x.group + g] = own;
      __syncthreads();
    }
    if (any) used[place] = static_cast<std::int32_t>(d);
    before += all;
  }
  if (threadIdx.x == 0) {
    to.count[blockIdx.x] = before;
    if (features.data() != nullptr) features(s, h) = before;
  }
}

/// A block per page of the table and KV head. A thread has 16 bytes of every few features; what threads have summed
/// apart is joined in one order.
template <class T>
__global__ void __launch_bounds__(bernoulli_threads)
    bernoulli_scores_kernel(const BernoulliShape x, const FeatureMajorKeys<T> keys, const BernoulliFeatures from,
                            const View<float, 3> out, const FaultWord* fault) {
  using ::decant::detail::Pack;
  constexpr int width = ::decant::detail::per_access<T> < 8 ? ::decant::detail::per_access<T> : 8;
  __shared__ float sums[bernoulli_threads * bernoulli_rows * width];
  __shared__ std::int32_t features[bernoulli_threads];
  __shared__ Pack<float, bernoulli_rows> weights[bernoulli_threads];
  if (faulted(fault)) return;
  const index_t heads = keys.kv_heads();
  const index_t slot = blockIdx.x / heads;
  const index_t h = blockIdx.x % heads;
  if (slot >= keys.indptr[keys.sequences()]) return;
  const index_t s = sequence_of(keys.indptr, keys.sequences(), slot);
  const index_t page = slot - keys.indptr[s];
  const index_t id = keys.indices[slot];
  const index_t length = keys.length(s);
  const index_t left = length - page * keys.page_size();
  const int tokens = static_cast<int>(left < keys.page_size() ? left : keys.page_size());
  const index_t list = s * heads + h;
  const index_t dim = keys.key_dim();
  const int count = from.count[list];
  const float* const factors = from.factors + list * dim * x.group;
  const std::int32_t* const used = from.used + list * dim;
  const int vectors = (tokens + width - 1) / width;
  for (int strip = 0; strip < vectors; strip += bernoulli_threads) {
    const int here = vectors - strip < bernoulli_threads ? vectors - strip : bernoulli_threads;
    const int groups = bernoulli_threads / here;
    const int group = static_cast<int>(threadIdx.x) / here;
    const int first = (strip + static_cast<int>(threadIdx.x) % here) * width;  // token
    for (index_t row = 0; row < x.group; row += bernoulli_rows) {
      const int rows = static_cast<int>(x.group - row < bernoulli_rows ? x.group - row : bernoulli_rows);
      float sum[bernoulli_rows][width] = {};
      for (int batch = 0; batch < count; batch += bernoulli_threads) {
        const int some = count - batch < bernoulli_threads ? count - batch : bernoulli_threads;
        __syncthreads();
        if (static_cast<int>(threadIdx.x) < some) features[threadIdx.x] = used[batch + static_cast<int>(threadIdx.x)];
        for (int i = static_cast<int>(threadIdx.x); i < some * bernoulli_rows; i += bernoulli_threads) {
          const int r = i % bernoulli_rows;
          weights[i / bernoulli_rows].at[r] =
              r < rows ? factors[(batch + i / bernoulli_rows) * x.group + row + r] : 0.0f;
        }
        __syncthreads();
        if (group >= groups) continue;
#pragma unroll 4
        for (int j = group; j < some; j += groups) {
          const T* const at = &keys.keys(id, h, index_t{features[j]}, index_t{first});
          Pack<T, width> k;
          if (x.aligned) {
            k = *reinterpret_cast<const Pack<T, width>*>(at);
          } else {
#pragma unroll
            for (int e = 0; e < width; ++e) k.at[e] = first + e < tokens ? at[e] : T(0.0f);
          }
#pragma unroll
          for (int r = 0; r < bernoulli_rows; ++r)
#pragma unroll
            for (int e = 0; e < width; ++e) sum[r][e] += weights[j].at[r] * ::decant::detail::widen(k.at[e]);
        }
      }
      if (group < groups) {
#pragma unroll
        for (int r = 0; r < bernoulli_rows; ++r)
#pragma unroll
          for (int e = 0; e < width; ++e)
            sums[(group * bernoulli_rows + r) * here * width + first - strip * width + e] = sum[r][e];
      }
      __syncthreads();
      for (int i = static_cast<int>(threadIdx.x); i < rows * here * width; i += bernoulli_threads) {
        const int r = i / (here * width);
        const int t = i % (here * width);
        float total = 0;
        for (int g = 0; g < groups; ++g) total += sums[(g * bernoulli_rows + r) * here * width + t];
        if (count < 0) total = __int_as_float(0x7fc00000);
        if (strip * width + t < tokens)
          out(s, h * x.group + row + r, page * keys.page_size() + strip * width + t) = total;
      }
      __syncthreads();
    }
  }
}

}  // namespace detail

/// The same as bernoulli_scores(Cpu&, ...), with everything in device memory: the same features and factors, scores
/// within 1e-6 of the CPU's relative to the sum of |factor * k|. Shapes raise ArgumentError at once; tables and lengths
/// are checked by the kernels, which then write nothing, and cuda.check() raises the error. The same bytes in any
/// batch. Scratch: 4 * (group + 1) bytes per feature of a sequence and KV head.
template <class Q, Storage T>
requires Storage<Q>
void bernoulli_scores(Cuda& cuda, const BernoulliQuery& a, View<Q, 3> q, const FeatureMajorKeys<T>& keys,
                      View<float, 3> out, View<const std::uint32_t, 1> requests = {},
                      View<std::int32_t, 2> features = {}) {
  using namespace detail;
  constexpr const char* where = "attention::bernoulli_scores";
  validate(a);
  validate_shapes(keys);
  validate_bernoulli_shapes(q, keys, out, requests, features);
  const index_t lists = keys.sequences() * keys.kv_heads();
  if (lists == 0) return;
  const index_t dim = keys.key_dim();
  BernoulliShape x{a, q.extent(1) / keys.kv_heads(), out.extent(2),
                   a.scale > 0 ? a.scale : 1.0f / std::sqrt(static_cast<float>(dim)), false};
  x.aligned = ::decant::detail::aligned_rows(keys.keys.data(), keys.keys.stride(2), keys.page_size());
  for (int r = 0; r < 2; ++r) x.aligned = x.aligned && keys.keys.stride(r) % ::decant::detail::per_access<T> == 0;
  const index_t blocks = keys.indices.extent(0) * keys.kv_heads();
  require(blocks < index_t{1} << 31 && lists < index_t{1} << 31, where, "keys", "fewer pages", blocks);
  Workspace::Scope scope(cuda.workspace());
  BernoulliFeatures w;
  w.count = cuda.workspace().take<std::int32_t>(lists);
  w.used = cuda.workspace().take<std::int32_t>(lists * dim);
  w.factors = cuda.workspace().take<float>(lists * dim * x.group);
  const auto grid = [](index_t n) { return CudaGrid{dim3(static_cast<unsigned>(n)), dim3(bernoulli_threads)}; };
  launch(cuda, where, bernoulli_check_kernel<T>, grid(keys.sequences()), keys, x.room, cuda.fault());
  launch(cuda, where, bernoulli_features_kernel<std::remove_const_t<Q>, T>, grid(lists), x, View<const Q, 3>(q), keys,
         requests, w, features, cuda.fault());
  launch(cuda, where, bernoulli_scores_kernel<T>, grid(blocks), x, keys, w, out, cuda.fault());
}

}  // namespace decant::attention

#endif
