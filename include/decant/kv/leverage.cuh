// decant: Leverage on Cuda: RoPE off and column sums, centring and the sketch as one product, then ridge leverage
// (detail/gram.cuh) and z-scores. Moves the keys once, and 8 bytes per token, head and key dim or sketch column.
// Unscored forms are within 5e-5 of a head's largest of the f64 definition, as on the CPU.
#ifndef DECANT_KV_LEVERAGE_CUH
#define DECANT_KV_LEVERAGE_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "detail/device_layer.cuh"
#include "detail/future_query.cuh"
#include "detail/gram.cuh"
#include "eviction.cuh"
#include "leverage.hpp"

namespace decant::kv {

namespace detail {

/// frequencies[f] of every pair.
template <class X>
__global__ void frequencies_kernel(const X x, double* frequencies) {
  const index_t f = blockIdx.x * index_t{blockDim.x} + threadIdx.x;
  if (f < x.rope.rotary_dim(x.cache.key_dim()) / 2) frequencies[f] = x.rope.frequency(f, x.cache.key_dim());
}

/// rows [kv_heads][n][dim]: keys without RoPE, in floats; sums [kv_heads][tiles][dim]: their column sums.
template <class T, class X>
__global__ __launch_bounds__(row_threads, 2) void unrotate_kernel(const X x, const double* frequencies,
                                                                  RowTiling tiling, View<float, 3> rows,
                                                                  View<double, 3> sums, const FaultWord* fault) {
  extern __shared__ float4 shared_rows[];
  if (faulted(fault)) return;
  const index_t h = blockIdx.y;
  const index_t n = x.length(h);
  const index_t first = blockIdx.x * index_t{tiling.rows};
  if (first >= n) return;
  const int count = n - first < tiling.rows ? static_cast<int>(n - first) : tiling.rows;
  const int dim = static_cast<int>(x.cache.key_dim());
  const int stride = row_stride(dim);
  const RowBuffers<T, T> shared(&shared_rows[0].x, stride, tiling.rows, 0);
  load_tile<T>(shared.rows, tiling.rows, dim, shared.tile,
               [&](int i) { return i < count ? x.cache.key(x.sequence, h, first + i) : nullptr; });
  const int pairs = static_cast<int>(x.rope.rotary_dim(dim) / 2);
  for (int at = static_cast<int>(threadIdx.x); at < count * pairs; at += row_threads) {
    const int i = at / pairs;
    const index_t f = at % pairs;
    const double angle = -frequencies[f] * static_cast<double>(x.position(h, first + i));
    float& a = shared.tile[i * stride + x.rope.first(f)];
    float& b = shared.tile[i * stride + x.rope.second(f, dim)];
    double p = static_cast<double>(a);
    double q = static_cast<double>(b);
    turn(MeanRotation{cos(angle), sin(angle)}, p, q);
    a = static_cast<float>(p);
    b = static_cast<float>(q);
  }
  __syncthreads();
  for (int at = static_cast<int>(threadIdx.x); at < count * dim; at += row_threads) {
    rows(h, first + at / dim, at % dim) = shared.tile[at / dim * stride + at % dim];
  }
  for (int d = static_cast<int>(threadIdx.x); d < dim; d += row_threads) {
    double sum = 0;
    for (int i = 0; i < count; ++i) sum += static_cast<double>(shared.tile[i * stride + d]);
    sums(h, blockIdx.x, d) = sum;
  }
}

/// means [kv_heads][dim]
template <class X>
__global__ void column_means_kernel(const X x, int tile, View<const double, 3> sums, View<double, 2> means,
                                    const FaultWord* fault) {
  if (faulted(fault)) return;
  const index_t h = blockIdx.y;
  const index_t n = x.length(h);
  const index_t d = blockIdx.x * index_t{blockDim.x} + threadIdx.x;
  if (d >= means.extent(1) || n == 0) return;
  double sum = 0;
  for (index_t i = 0; i < (n + tile - 1) / tile; ++i) sum += sums(h, i, d);
  means(h, d) = sum / static_cast<double>(n);
}

/// The rows of all heads: a source of detail/gram.cuh, and what becomes of its forms.
template <class X>
struct LeverageRows {
  using element = float;
  X x;
  View<const float, 3> matrix;  // [kv_heads][n][width]
  const double* means;          // [kv_heads][width], or null: centred already
  View<float, 2> scores;

  struct Change {
    const double* mean;
    __device__ float operator()(float value, int column) const { return mean ? Centred{mean}(value, column) : value; }
  };

  __device__ index_t rows(index_t h) const { return x.length(h); }
  __device__ const float* row(index_t h, index_t i) const { return &matrix(h, i, index_t{0}); }
  __device__ float weight(index_t, index_t) const { return 1.0f; }
  __device__ Change change(index_t h) const { return {means ? means + h * matrix.extent(2) : nullptr}; }

  __device__ float start() const { return 0; }
  __device__ float add(float, index_t, index_t, float form) const { return form; }
  __device__ void write(index_t h, index_t i, float state) const { scores(h, i) = state; }
};

/// phi(c, d), a normal number of variance 1 / width: the same as the CPU's but for the last bit of log and cos. A
/// template, so that the header may be included everywhere.
template <class Out>
__global__ void sketch_matrix_kernel(std::uint64_t seed, Out phi, const FaultWord* fault) {
  if (faulted(fault)) return;
  const index_t at = blockIdx.x * index_t{blockDim.x} + threadIdx.x;
  if (at >= phi.size()) return;
  const index_t c = at / phi.extent(1);
  const index_t d = at % phi.extent(1);
  phi(c, d) = static_cast<float>(philox_normal(Philox{seed}, d, c) / sqrt(static_cast<double>(phi.extent(0))));
}

/// sketched(h, t, c) = (row t - mean) . phi(c)
template <int Rows, class Source>
__global__ __launch_bounds__(row_threads, 2) void sketch_rows_kernel(const Source source, View<const float, 2> phi,
                                                                     View<float, 3> sketched, const FaultWord* fault) {
  extern __shared__ float4 shared_rows[];
  if (faulted(fault)) return;
  const index_t h = blockIdx.y;
  const index_t n = source.rows(h);
  const index_t first = blockIdx.x * index_t{16 * Rows};
  if (first >= n) return;
  const int dim = static_cast<int>(phi.extent(1));
  const int stride = row_stride(dim);
  const RowBuffers<float, float> shared(&shared_rows[0].x, stride, 16 * Rows, 64);
  load_tile<float>(
      shared.rows, 16 * Rows, dim, shared.tile,
      [&](int i) { return first + i < n ? source.row(h, first + i) : nullptr; }, source.change(h));
  for (index_t begin = 0; begin < phi.extent(0); begin += 64) {
    if (threadIdx.x < 64) {
      const index_t c = begin + threadIdx.x;
      shared.others[threadIdx.x] = c < phi.extent(0) ? &phi(c, index_t{0}) : nullptr;
    }
    __syncthreads();
    float y[Rows][4];
    tile_product<Rows, 4>(shared.tile, stride, shared.others, dim, shared.chunk, y);
#pragma unroll
    for (int i = 0; i < Rows; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const index_t t = first + threadIdx.x / 16 + 16 * i;
        const index_t c = begin + threadIdx.x % 16 + 16 * j;
        if (t < n && c < phi.extent(0)) sketched(h, t, c) = y[i][j];
      }
    }
  }
}

/// (score - mean) / deviation, in place; 0 where all scores are equal. A block per head.
template <class X>
__global__ __launch_bounds__(1024, 1) void z_scores_kernel(const X x, View<float, 2> scores, const FaultWord* fault) {
  __shared__ double sums[32];
  if (faulted(fault)) return;
  const index_t h = blockIdx.x;
  const index_t n = x.length(h);
  if (n == 0) return;
  double mean = 0;
  for (index_t t = threadIdx.x; t < n; t += 1024) mean += static_cast<double>(scores(h, t));
  mean = ::decant::detail::block_reduce(mean, Plus{}, 0.0, sums) / static_cast<double>(n);
  double square = 0;
  for (index_t t = threadIdx.x; t < n; t += 1024) {
    const double centred = static_cast<double>(scores(h, t)) - mean;
    square += centred * centred;
  }
  square = ::decant::detail::block_reduce(square, Plus{}, 0.0, sums) / static_cast<double>(n);
  const double inverse = square > 0 ? 1 / sqrt(square) : 0.0;
  for (index_t t = threadIdx.x; t < n; t += 1024) {
    scores(h, t) = static_cast<float>((static_cast<double>(scores(h, t)) - mean) * inverse);
  }
}

}  // namespace detail

/// O(kv_heads * n * key_dim * sketch); scratch 4 bytes per token, head and (key dim + sketch). Keys that give no
/// positive definite matrix are told at check(), and nothing is written.
template <class X>
void score(Cuda& cuda, const Leverage& p, const X& x, View<float, 2> scores) {
  constexpr const char* where = "kv::Leverage";
  validate(p);
  detail::require_rope(x);
  const index_t longest = detail::begin_scores(cuda, where, x, scores);
  Workspace::Scope scope(cuda.workspace());
  Workspace& w = cuda.workspace();
  const index_t heads = x.kv_heads();
  const index_t dim = x.cache.key_dim();
  const auto rows = w.template take_view<float>(heads, longest, dim);
  const auto means = w.template take_view<double>(heads, dim);
  const index_t pairs = x.rope.rotary_dim(dim) / 2;
  double* const frequencies = w.template take<double>(pairs);
  launch(cuda, where, detail::frequencies_kernel<X>, CudaGrid{dim3(cuda_blocks(pairs, 64)), dim3(64)}, x, frequencies);
  const auto tiling = detail::row_tiling(cuda, where, dim, 64);
  const CudaGrid grid{dim3(cuda_blocks(longest, tiling.rows), static_cast<unsigned>(heads)), dim3(detail::row_threads),
                      tiling.shared};
  const auto sums = w.template take_view<double>(heads, grid.blocks.x, dim);
  detail::with_plain_rows(cuda, x, longest, true, false, [&](const auto& plain) {
    using P = std::remove_cvref_t<decltype(plain)>;
    launch(cuda, where, detail::unrotate_kernel<detail::key_of<P>, P>, grid, plain, frequencies, tiling, rows, sums,
           cuda.fault());
  });
  launch(cuda, where, detail::column_means_kernel<X>,
         CudaGrid{dim3(longest > 0 ? cuda_blocks(dim, 128) : 0, static_cast<unsigned>(heads)), dim3(128)}, x,
         tiling.rows, sums, means, cuda.fault());
  detail::LeverageRows<X> source{x, rows, means.data(), scores};
  if (p.sketch > 0) {
    const auto phi = w.template take_view<float>(p.sketch, dim);
    const auto sketched = w.template take_view<float>(heads, longest, p.sketch);
    launch(cuda, where, detail::sketch_matrix_kernel<View<float, 2>>,
           CudaGrid{dim3(cuda_blocks(phi.size(), 128)), dim3(128)}, p.seed, phi, cuda.fault());
    const auto run = [&](auto* kernel) { launch(cuda, where, kernel, grid, source, phi, sketched, cuda.fault()); };
    if (tiling.rows == 64) run(detail::sketch_rows_kernel<4, detail::LeverageRows<X>>);
    if (tiling.rows == 16) run(detail::sketch_rows_kernel<1, detail::LeverageRows<X>>);
    source = {x, sketched, nullptr, scores};
  }
  const auto g = detail::take_gram_matrices(cuda, heads, source.matrix.extent(2), longest, true);
  detail::grams(cuda, where, source, g, longest);
  detail::factorise(cuda, where, source, g, static_cast<double>(p.ridge));
  detail::require_positive(cuda, where, g, x.layer);
  detail::forms(cuda, where, source, source, g, 1, longest);
  if (!p.z_score) return;
  launch(cuda, where, detail::z_scores_kernel<X>, CudaGrid{dim3(static_cast<unsigned>(heads)), dim3(1024)}, x, scores,
         cuda.fault());
}

static_assert(KVEvictionPolicy<Leverage, Cuda>);

}  // namespace decant::kv

#endif
