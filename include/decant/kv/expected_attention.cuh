// decant: ExpectedAttention on Cuda: moments of the queries (detail/future_query.cuh, detail/gram.cuh), the exponents
// of all keys as one product with the covariance, and a softmax whose maxima and sums are joined in double. Moves the
// keys and values once, 12 bytes per token and query head, and 2 key_dim^2 FLOPs per token and query head. Against the
// f64 definition within 2e-5 of a head's largest score, as on the CPU.
#ifndef DECANT_KV_EXPECTED_ATTENTION_CUH
#define DECANT_KV_EXPECTED_ATTENTION_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "detail/future_query.cuh"
#include "detail/gram.cuh"
#include "eviction.cuh"
#include "expected_attention.hpp"

namespace decant::kv {

namespace detail {

/// The queries that count, centred: a source of detail/gram.cuh.
template <class Q>
struct CentredQueries {
  using element = Q;
  View<const Q, 3> queries;
  MeanQueries mean;

  __device__ index_t rows(index_t) const { return queries.extent(1) - *mean.first; }
  __device__ const Q* row(index_t m, index_t i) const { return &queries(m, *mean.first + i, index_t{0}); }
  __device__ float weight(index_t, index_t) const { return 1.0f; }
  __device__ Centred change(index_t m) const { return {&mean.means(m, index_t{0})}; }
};

/// What keys are multiplied by: mu' / sqrt d [query_heads][stride] and Sigma' / (2 d) [query_heads][dim][stride].
struct ExpectedMoments {
  View<float, 2> mean;
  View<float, 3> covariance;  // empty: the mean alone
};

/// Rbar and the scale, for one query head per block. sigma [query_heads][dim][dim]: scratch.
template <class X>
__global__ __launch_bounds__(row_threads, 2) void expected_moments_kernel(const X x, const MeanRotation* rotations,
                                                                          CentredQueries<query_of<X>> queries,
                                                                          GramMatrices g, View<double, 3> sigma,
                                                                          ExpectedMoments out, const FaultWord* fault) {
  if (faulted(fault)) return;
  const index_t m = blockIdx.x;
  const View<double, 2> means = queries.mean.means;
  const index_t dim = x.cache.key_dim();
  const index_t pairs = x.rope.rotary_dim(dim) / 2;
  const double d = static_cast<double>(dim);
  for (index_t f = threadIdx.x; f < pairs; f += row_threads) {
    turn(rotations[f], means(m, x.rope.first(f)), means(m, x.rope.second(f, dim)));
  }
  __syncthreads();
  for (index_t i = threadIdx.x; i < out.mean.extent(1); i += row_threads) {
    out.mean(m, i) = i < dim ? static_cast<float>(means(m, i) / sqrt(d)) : 0.0f;
  }
  if (out.covariance.empty()) return;
  const double inverse = 1.0 / static_cast<double>(queries.rows(m));
  const index_t spans = g.spans(queries.rows(m));
  for (index_t at = threadIdx.x; at < dim * dim; at += row_threads) {
    const index_t a = at / dim;
    const index_t b = at % dim;
    sigma(m, a, b) = gram_element(g, m, spans, a > b ? a : b, a > b ? b : a) * inverse;
  }
  __syncthreads();
  for (index_t at = threadIdx.x; at < pairs * dim; at += row_threads) {  // Rbar Sigma
    const index_t f = at / dim;
    const index_t i = at % dim;
    turn(rotations[f], sigma(m, x.rope.first(f), i), sigma(m, x.rope.second(f, dim), i));
  }
  __syncthreads();
  for (index_t at = threadIdx.x; at < pairs * dim; at += row_threads) {  // ... Rbar^T
    const index_t f = at % pairs;
    const index_t i = at / pairs;
    turn(rotations[f], sigma(m, i, x.rope.first(f)), sigma(m, i, x.rope.second(f, dim)));
  }
  __syncthreads();
  const index_t stride = out.covariance.extent(2);
  for (index_t at = threadIdx.x; at < dim * stride; at += row_threads) {
    const index_t b = at % stride;
    out.covariance(m, at / stride, b) = b < dim ? static_cast<float>(sigma(m, at / stride, b) / (2 * d)) : 0.0f;
  }
}

/// e^(z - top), where +inf among the z means that those share the weight equally, as softmax() has it.
__device__ inline float softmax_term(float z, float top) {
  if (top - top == 0) return fast_exp(z - top);
  return z != z ? z : z == top && top > 0 ? 1.0f : 0.0f;
}

/// The maximum of some z, and the sum of their terms.
struct SoftmaxPart {
  float top;
  float sum;
};

/// z(m, t) = mu'.k_t / sqrt d + k_t^T Sigma' k_t / (2 d); parts(m, tile): their maximum and sum over one tile.
template <int Rows, class T, class X>
__global__ __launch_bounds__(row_threads, 2) void exponents_kernel(const X x, index_t sinks, ExpectedMoments moments,
                                                                   View<float, 2> z, View<SoftmaxPart, 2> parts,
                                                                   const FaultWord* fault) {
  extern __shared__ float4 shared_rows[];
  __shared__ float exponents[64];
  if (faulted(fault)) return;
  const index_t h = blockIdx.y;
  const index_t n = x.length(h);
  const index_t first = sinks + blockIdx.x * index_t{16 * Rows};
  if (first >= n) return;
  const int count = n - first < 16 * Rows ? static_cast<int>(n - first) : 16 * Rows;
  const int dim = static_cast<int>(x.cache.key_dim());
  const int stride = row_stride(dim);
  const RowBuffers<T, float> shared(&shared_rows[0].x, stride, 16 * Rows, 64);
  load_tile<T>(shared.rows, 16 * Rows, dim, shared.tile,
               [&](int i) { return i < count ? x.cache.key(x.sequence, h, first + i) : nullptr; });
  const index_t group = moments.mean.extent(0) / x.kv_heads();
  const int row = static_cast<int>(threadIdx.x) / 16;
  const int column = static_cast<int>(threadIdx.x) % 16;
  for (index_t m = h * group; m < (h + 1) * group; ++m) {
    tile_dots(shared.tile, stride, &moments.mean(m, index_t{0}), 16 * Rows, dim, exponents);
    __syncthreads();
    float form[Rows] = {};
    for (int begin = 0; begin < dim && !moments.covariance.empty(); begin += 64) {
      if (threadIdx.x < 64) {
        const index_t r = begin + static_cast<int>(threadIdx.x);
        shared.others[threadIdx.x] = r < dim ? &moments.covariance(m, r, index_t{0}) : nullptr;
      }
      __syncthreads();
      float y[Rows][4];
      tile_product<Rows, 4>(shared.tile, stride, shared.others, dim, shared.chunk, y);
#pragma unroll
      for (int i = 0; i < Rows; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int d = begin + column + 16 * j;
          if (d < dim) form[i] = fmaf(y[i][j], shared.tile[(row + 16 * i) * stride + d], form[i]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < Rows; ++i) {
      form[i] = ::decant::detail::warp_reduce<16>(form[i], Plus{});
      if (column == 0) exponents[row + 16 * i] += form[i];
    }
    __syncthreads();
    if (threadIdx.x < 32) {
      float top = -__builtin_huge_valf();
      for (int i = static_cast<int>(threadIdx.x); i < count; i += 32) {
        z(m, first + i) = exponents[i];
        top = exponents[i] > top ? exponents[i] : top;
      }
      top = ::decant::detail::warp_reduce(top, Larger{});
      float sum = 0;
      for (int i = static_cast<int>(threadIdx.x); i < count; i += 32) sum += softmax_term(exponents[i], top);
      sum = ::decant::detail::warp_reduce(sum, Plus{});
      if (threadIdx.x == 0) parts(m, blockIdx.x) = {top, sum};
    }
    __syncthreads();
  }
}

/// norms[m] = (maximum, 1 / sum) over all tiles. A warp each.
template <class X>
__global__ __launch_bounds__(32) void softmax_norms_kernel(const X x, index_t sinks, int tile,
                                                           View<const SoftmaxPart, 2> parts, SoftmaxPart* norms,
                                                           const FaultWord* fault) {
  if (faulted(fault)) return;
  const index_t m = blockIdx.x;
  const index_t n = x.length(m / (parts.extent(0) / x.kv_heads())) - sinks;
  const index_t tiles = (n + tile - 1) / tile;
  float top = -__builtin_huge_valf();
  for (index_t i = threadIdx.x; i < tiles; i += 32) top = parts(m, i).top > top ? parts(m, i).top : top;
  top = ::decant::detail::warp_reduce(top, Larger{});
  double sum = 0;
  for (index_t i = threadIdx.x; i < tiles; i += 32) {
    sum += static_cast<double>(parts(m, i).sum) * static_cast<double>(softmax_term(parts(m, i).top, top));
  }
  sum = ::decant::detail::warp_reduce(sum, Plus{});
  if (threadIdx.x == 0) norms[m] = {top, sum == 0 ? 0.0f : static_cast<float>(1.0 / sum)};
}

/// (mean of the weights over the group + eps) |v_t|
template <class T, class X>
__global__ __launch_bounds__(row_threads,
                             2) void expected_scores_kernel(const X x, ExpectedAttention p, RowTiling tiling,
                                                            View<const float, 2> z, const SoftmaxPart* norms,
                                                            View<float, 2> scores, const FaultWord* fault) {
  extern __shared__ float4 shared_rows[];
  __shared__ float squares[64];
  if (faulted(fault)) return;
  const index_t h = blockIdx.y;
  const index_t n = x.length(h);
  const index_t first = p.sinks + blockIdx.x * index_t{tiling.rows};
  if (first >= n) return;
  if (p.value_norm) {
    const int dim = static_cast<int>(x.cache.value_dim());
    const int stride = row_stride(dim);
    const RowBuffers<T, T> shared(&shared_rows[0].x, stride, tiling.rows, 0);
    load_tile<T>(shared.rows, tiling.rows, dim, shared.tile,
                 [&](int i) { return first + i < n ? x.cache.value(x.sequence, h, first + i) : nullptr; });
    tile_squares(shared.tile, stride, tiling.rows, dim, squares);
    __syncthreads();
  }
  const index_t t = first + threadIdx.x;
  if (static_cast<int>(threadIdx.x) >= tiling.rows || t >= n) return;
  const index_t group = z.extent(0) / x.kv_heads();
  float sum = 0;
  for (index_t m = h * group; m < (h + 1) * group; ++m) sum += softmax_term(z(m, t), norms[m].top) * norms[m].sum;
  const float norm = p.value_norm ? sqrtf(squares[threadIdx.x]) : 1.0f;
  scores(h, t) = (sum / static_cast<float>(group) + p.eps) * norm;
}

/// Moments of the queries, in the caller's scope.
template <class X>
ExpectedMoments expected_moments(Cuda& cuda, const char* where, const ExpectedAttention& p, const X& x) {
  using Q = query_of<X>;
  Workspace& w = cuda.workspace();
  const auto& queries = x.queries_pre_rope;
  const index_t heads = queries.extent(0);
  const index_t dim = queries.extent(2);
  const int stride = row_stride(dim);
  const CentredQueries<Q> centred{queries, mean_queries<X, Q>(cuda, where, x, queries, p.sinks)};
  ExpectedMoments moments{w.template take_view<float>(heads, stride), {}};
  View<double, 3> sigma;
  GramMatrices g{};
  if (p.covariance) {
    moments.covariance = w.template take_view<float>(heads, dim, stride);
    sigma = w.template take_view<double>(heads, dim, dim);
    g = take_gram_matrices(cuda, heads, dim, queries.extent(1), false);
    grams(cuda, where, centred, g, queries.extent(1));
  }
  launch(cuda, where, expected_moments_kernel<X>, CudaGrid{dim3(static_cast<unsigned>(heads)), dim3(row_threads)}, x,
         mean_rotations(cuda, where, x, p.future), centred, g, sigma, moments, cuda.fault());
  return moments;
}

}  // namespace detail

/// O(query_heads * n * key_dim^2), O(query_heads * n * key_dim) without the covariance. Scratch: 4 bytes per token and
/// query head; 8 key_dim^2 bytes per query head and span of 2048 queries (at most 16 spans).
template <class X>
void score(Cuda& cuda, const ExpectedAttention& p, const X& x, View<float, 2> scores) {
  constexpr const char* where = "kv::ExpectedAttention";
  validate(p);
  detail::require_rope(x);
  const auto& queries = x.queries_pre_rope;
  require(!queries.empty(), where, "x.queries_pre_rope", "queries of the prompt", "none");
  const index_t longest =
      detail::begin_scores(cuda, where, x, scores, detail::LayerNeeds{0, -1, queries.extent(1), p.sinks});
  Workspace::Scope scope(cuda.workspace());
  detail::sink_scores(cuda, where, x, longest, p.sinks, 0.0f, scores);
  detail::with_plain_rows(cuda, x, longest, true, p.value_norm, [&](const auto& plain) {
    using P = std::remove_cvref_t<decltype(plain)>;
    using T = detail::key_of<P>;
    Workspace& w = cuda.workspace();
    const index_t heads = queries.extent(0);
    const index_t left = longest > p.sinks ? longest - p.sinks : 0;
    const auto moments = detail::expected_moments(cuda, where, p, plain);
    const auto tiling = detail::row_tiling(cuda, where, x.cache.key_dim(), 64);
    const unsigned tiles = cuda_blocks(left, tiling.rows);
    const auto z = w.template take_view<float>(heads, longest);
    const auto parts = w.template take_view<detail::SoftmaxPart>(heads, tiles);
    auto* const norms = w.template take<detail::SoftmaxPart>(heads);
    const auto kv_heads = static_cast<unsigned>(x.kv_heads());
    const CudaGrid grid{dim3(tiles, kv_heads), dim3(detail::row_threads), tiling.shared};
    const auto run = [&](auto* kernel) {
      launch(cuda, where, kernel, grid, plain, p.sinks, moments, z, parts, cuda.fault());
    };
    if (tiling.rows == 64) run(detail::exponents_kernel<4, T, P>);
    if (tiling.rows == 16) run(detail::exponents_kernel<1, T, P>);
    launch(cuda, where, detail::softmax_norms_kernel<P>, CudaGrid{dim3(static_cast<unsigned>(heads)), dim3(32)}, plain,
           p.sinks, tiling.rows, parts, norms, cuda.fault());
    const auto values = detail::row_tiling(cuda, where, x.cache.value_dim(), 0);
    launch(cuda, where, detail::expected_scores_kernel<T, P>,
           CudaGrid{dim3(cuda_blocks(left, values.rows), kv_heads), dim3(detail::row_threads), values.shared}, plain, p,
           values, z, norms, scores, cuda.fault());
  });
}

static_assert(KVEvictionPolicy<ExpectedAttention, Cuda>);

}  // namespace decant::kv

#endif
