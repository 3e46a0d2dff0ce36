// decant: CapKV on Cuda: mean queries, cosines, weighted Gram matrices, Cholesky factors and their inverses, forms (see
// detail/gram.cuh for bytes and FLOPs; the keys are read once). Against the f64 definition within 5e-5 of a head's
// largest score, as on the CPU. Scratch: 4 bytes per token and query head; 8 value_dim^2 bytes per query head and
// span (2048 tokens, at most 16 spans).
#ifndef DECANT_KV_CAPKV_CUH
#define DECANT_KV_CAPKV_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "capkv.hpp"
#include "detail/future_query.cuh"
#include "detail/gram.cuh"
#include "eviction.cuh"

namespace decant::kv {

namespace detail {

/// directions [query_heads][stride]: the mean queries as they are, or turned by the coming rotation and of length 1.
template <class X>
__global__ __launch_bounds__(128, 1) void directions_kernel(const X x, CapKV p, const MeanRotation* rotations,
                                                            View<double, 2> means, View<float, 2> directions,
                                                            const FaultWord* fault) {
  __shared__ double sums[32];
  if (faulted(fault)) return;
  const index_t dim = means.extent(1);
  double* const mean = &means(blockIdx.x, index_t{0});
  double factor = 1;
  if (p.mode == CapKV::Mode::code) {
    for (index_t f = threadIdx.x; f < x.rope.rotary_dim(dim) / 2; f += 128) {
      turn(rotations[f], mean[x.rope.first(f)], mean[x.rope.second(f, dim)]);
    }
    __syncthreads();
    double square = 0;
    for (index_t d = threadIdx.x; d < dim; d += 128) square += mean[d] * mean[d];
    square = ::decant::detail::block_reduce(square, Plus{}, 0.0, sums);
    factor = square == 0 ? 0.0 : 1.0 / sqrt(square);
  }
  for (index_t d = threadIdx.x; d < directions.extent(1); d += 128) {
    directions(blockIdx.x, d) = d < dim ? static_cast<float>(mean[d] * factor) : 0.0f;
  }
}

/// logs(m, t) = tau k_t . direction m, of cosines in Mode::code; tops(m, tile): their maximum over one tile.
template <int Rows, class T, class X>
__global__ __launch_bounds__(row_threads, 2) void matches_kernel(const X x, CapKV p, View<const float, 2> directions,
                                                                 View<float, 2> logs, View<float, 2> tops,
                                                                 const FaultWord* fault) {
  extern __shared__ float4 shared_rows[];
  __shared__ float squares[64];
  __shared__ float highest[8][16];
  if (faulted(fault)) return;
  const index_t h = blockIdx.y;
  const index_t n = x.length(h);
  const index_t first = p.protected_sinks() + blockIdx.x * index_t{16 * Rows};
  if (first >= n) return;
  const bool code = p.mode == CapKV::Mode::code;
  const int dim = static_cast<int>(x.cache.key_dim());
  const int stride = row_stride(dim);
  const RowBuffers<T, float> shared(&shared_rows[0].x, stride, 16 * Rows, 16);
  load_tile<T>(shared.rows, 16 * Rows, dim, shared.tile,
               [&](int i) { return first + i < n ? x.cache.key(x.sequence, h, first + i) : nullptr; });
  tile_squares(shared.tile, stride, 16 * Rows, dim, squares);
  const index_t group = directions.extent(0) / x.kv_heads();
  const int row = static_cast<int>(threadIdx.x) / 16;
  const int column = static_cast<int>(threadIdx.x) % 16;
  for (index_t begin = 0; begin < group; begin += 16) {
    if (threadIdx.x < 16) {
      shared.others[threadIdx.x] =
          begin + threadIdx.x < group ? &directions(h * group + begin + threadIdx.x, index_t{0}) : nullptr;
    }
    __syncthreads();
    float r[Rows][1];
    tile_product<Rows, 1>(shared.tile, stride, shared.others, dim, shared.chunk, r);
    const index_t m = h * group + begin + column;
    float top = -__builtin_huge_valf();
#pragma unroll
    for (int i = 0; i < Rows; ++i) {
      const index_t t = first + row + 16 * i;
      if (begin + column >= group || t >= n) continue;
      const float square = code ? squares[row + 16 * i] : 1.0f;
      float c = r[i][0] * (square == 0 ? 0.0f : 1.0f / sqrtf(square));
      if (code) c = c > 1.0f ? 1.0f : c < -1.0f ? -1.0f : c;
      c *= p.tau;
      logs(m, t) = c;
      top = c > top ? c : top;
    }
    const float other = __shfl_xor_sync(whole_warp, top, 16);
    top = other > top ? other : top;
    if (threadIdx.x % 32 < 16) highest[threadIdx.x / 32][column] = top;
    __syncthreads();
    if (threadIdx.x < 16 && begin + threadIdx.x < group) {
      for (int w = 1; w < 8; ++w) top = highest[w][threadIdx.x] > top ? highest[w][threadIdx.x] : top;
      tops(m, blockIdx.x) = top;
    }
  }
}

/// shifts[m]: the largest of a query head's logs. A warp each.
template <class X>
__global__ __launch_bounds__(32) void shifts_kernel(const X x, index_t sinks, int tile, View<const float, 2> tops,
                                                    float* shifts, const FaultWord* fault) {
  if (faulted(fault)) return;
  const index_t m = blockIdx.x;
  const index_t n = x.length(m / (tops.extent(0) / x.kv_heads())) - sinks;
  float top = -__builtin_huge_valf();
  for (index_t i = threadIdx.x; i < (n + tile - 1) / tile; i += 32) top = tops(m, i) > top ? tops(m, i) : top;
  top = ::decant::detail::warp_reduce(top, Larger{});
  if (threadIdx.x == 0) shifts[m] = top;
}

/// The values of all tokens but the sinks, with CapKV's weights: a source of detail/gram.cuh.
template <class T, class X>
struct CapRows {
  using element = T;
  X x;
  CapKV p;
  index_t group;
  View<float, 2> logs;
  const float* shifts;

  __device__ index_t sinks() const { return p.protected_sinks(); }
  __device__ index_t rows(index_t m) const {
    const index_t n = x.length(m / group) - sinks();
    return n > 0 ? n : 0;
  }
  __device__ const T* row(index_t m, index_t i) const { return x.cache.value(x.sequence, m / group, sinks() + i); }
  __device__ float log_weight(index_t m, index_t i) const { return logs(m, sinks() + i) - shifts[m]; }
  __device__ float weight(index_t m, index_t i) const {
    return fast_exp(log_weight(m, i)) + (p.mode == CapKV::Mode::code ? 1e-6f : 0.0f);
  }
  __device__ SameValue change(index_t) const { return {}; }
};

/// The group's mean of the scores, in logarithms for Mode::paper.
template <class T, class X>
struct CapFold {
  CapRows<T, X> rows;
  View<float, 2> scores;

  __device__ bool code() const { return rows.p.mode == CapKV::Mode::code; }
  __device__ float start() const { return code() ? 0.0f : -__builtin_huge_valf(); }
  __device__ float add(float state, index_t m, index_t i, float form) const {
    const float inverse_group = 1.0f / static_cast<float>(rows.group);
    if (code()) {
      const float eps = rows.p.compat_eps ? 1e-6f : 0.0f;
      return state + (rows.weight(m, i) - eps) * form * inverse_group;
    }
    return CapHead<X>::log_sum(state, rows.shifts[m] + rows.log_weight(m, i) + std::log(form * inverse_group));
  }
  __device__ void write(index_t h, index_t i, float state) const { scores(h, rows.sinks() + i) = state; }
};

/// The weights' logarithms and shifts, in the caller's scope. x: a plain layer whose check has been enqueued.
template <class X>
CapRows<key_of<X>, X> cap_rows(Cuda& cuda, const char* where, const CapKV& p, const X& x, index_t longest) {
  using T = key_of<X>;
  Workspace& w = cuda.workspace();
  const bool code = p.mode == CapKV::Mode::code;
  const auto& queries = code ? x.queries_pre_rope : x.queries;
  const index_t matrices = queries.extent(0);
  const index_t dim = x.cache.key_dim();
  const index_t sinks = p.protected_sinks();
  const index_t left = longest > sinks ? longest - sinks : 0;
  const auto means = mean_queries<X, query_of<X>>(cuda, where, x, queries, code ? sinks : -1).means;
  const auto directions = w.template take_view<float>(matrices, row_stride(dim));
  const MeanRotation* const rotations = code ? mean_rotations(cuda, where, x, p.future) : nullptr;
  launch(cuda, where, directions_kernel<X>, CudaGrid{dim3(static_cast<unsigned>(matrices)), dim3(128)}, x, p, rotations,
         means, directions, cuda.fault());
  const RowTiling tiling = row_tiling(cuda, where, dim, 16);
  const unsigned tiles = cuda_blocks(left, tiling.rows);
  const auto logs = w.template take_view<float>(matrices, longest);
  const auto tops = w.template take_view<float>(matrices, tiles);
  float* const shifts = w.template take<float>(matrices);
  const CudaGrid grid{dim3(tiles, static_cast<unsigned>(x.kv_heads())), dim3(row_threads), tiling.shared};
  const auto run = [&](auto* kernel) { launch(cuda, where, kernel, grid, x, p, directions, logs, tops, cuda.fault()); };
  if (tiling.rows == 64) run(matches_kernel<4, T, X>);
  if (tiling.rows == 16) run(matches_kernel<1, T, X>);
  launch(cuda, where, shifts_kernel<X>, CudaGrid{dim3(static_cast<unsigned>(matrices)), dim3(32)}, x, sinks,
         tiling.rows, tops, shifts, cuda.fault());
  return {x, p, matrices / x.kv_heads(), logs, shifts};
}

/// Checks what CapKV reads, on the host and on the device. Returns the bound of the lengths.
template <class X>
index_t begin_cap(Cuda& cuda, const char* where, const CapKV& p, const X& x, View<float, 2> scores) {
  validate(p);
  require_rope(x);
  const bool code = p.mode == CapKV::Mode::code;
  const auto& queries = code ? x.queries_pre_rope : x.queries;
  require(!queries.empty(), where, code ? "x.queries_pre_rope" : "x.queries", "queries of the prompt, or their mean",
          "none");
  return begin_scores(cuda, where, x, scores, LayerNeeds{0, -1, queries.extent(1), code ? p.sinks : -1});
}

}  // namespace detail

/// O(query_heads * n * value_dim^2). NaN for a head whose matrix is not positive definite.
template <class X>
void score(Cuda& cuda, const CapKV& p, const X& x, View<float, 2> scores) {
  constexpr const char* where = "kv::CapKV";
  const index_t longest = detail::begin_cap(cuda, where, p, x, scores);
  Workspace::Scope scope(cuda.workspace());
  const index_t sinks = p.protected_sinks();
  detail::sink_scores(cuda, where, x, longest, sinks, 0.0f, scores);
  detail::with_plain_rows(cuda, x, longest, true, true, [&](const auto& plain) {
    using P = std::remove_cvref_t<decltype(plain)>;
    const auto rows = detail::cap_rows(cuda, where, p, plain, longest);
    const index_t left = longest > sinks ? longest - sinks : 0;
    const auto g = detail::take_gram_matrices(cuda, rows.logs.extent(0), x.cache.value_dim(), left, true);
    detail::grams(cuda, where, rows, g, left);
    detail::factorise(cuda, where, rows, g, static_cast<double>(p.ridge));
    detail::forms(cuda, where, rows, detail::CapFold<detail::key_of<P>, P>{rows, scores}, g, rows.group, left);
  });
}

static_assert(KVEvictionPolicy<CapKV, Cuda>);

}  // namespace decant::kv

#endif
