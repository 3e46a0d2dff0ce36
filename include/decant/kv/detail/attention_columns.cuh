// decant: column sums of attention on Cuda: for each key of a head the sum, over the last queries of the group, of a
// function of the causal softmax weight. A block holds 64 keys and walks over the queries, so that a column has one
// owner and one order. Without log-sum-exps a first pass gives each query a maximum and a sum per 64 keys, which a
// small kernel joins in double. Moves per pass and up to 2048 queries of a head: the keys once (with log-sum-exps: one
// pass for all queries), plus the queries once per 64 keys, from L2, with 8 bytes per query and warp; without log-sum-exps also 16 bytes per query and
// 64 keys. 2 key_dim FLOPs per query, key and pass: bound by arithmetic where the group's window has more than some ten
// queries.
#ifndef DECANT_KV_DETAIL_ATTENTION_COLUMNS_CUH
#define DECANT_KV_DETAIL_ATTENTION_COLUMNS_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "attention_columns.hpp"
#include "device_layer.cuh"
#include "key_rows.cuh"

namespace decant::kv::detail {

/// Queries of one launch: bounds the scratch for maxima and sums.
inline constexpr index_t column_batch = 2048;

/// A part of every head's list of queries (ColumnQueries; ordered by time, as ColumnBlock's).
struct ColumnBatch {
  ColumnQueries queries;
  index_t first;
  index_t count;
};

/// What becomes of a sum when it is complete.
struct ColumnFinish {
  float factor = 1;       // times this,
  index_t mean_over = 0;  // divided by min(this, length) if positive,
  bool by_age = false;    // divided by the number of queries that could see the key: length - t,
  index_t hidden = 0;     // and 0 for the last min(this, length) tokens

  __device__ float operator()(float sum, index_t t, index_t n) const {
    const index_t window = hidden < n ? hidden : n;
    if (t >= n - window) return 0.0f;
    sum *= factor;
    if (mean_over > 0) sum *= 1.0f / static_cast<float>(mean_over < n ? mean_over : n);
    return by_age ? sum / static_cast<float>(n - t) : sum;
  }
};

/// One head's share of a batch.
template <class X>
struct ColumnHead {
  const X& x;
  const ColumnBatch& b;
  index_t head;
  index_t n;
  index_t window;
  index_t count;  // queries of this head in the batch; 0: none

  __device__ ColumnHead(const X& layer, const ColumnBatch& batch, index_t h)
      : x(layer), b(batch), head(h), n(layer.length(h)) {
    window = b.queries.window < n ? b.queries.window : n;
    const index_t left = window * b.queries.heads - b.first;
    count = left < 0 ? 0 : left < b.count ? left : b.count;
  }
  __device__ index_t query_head(index_t r) const {
    return head * (x.queries.extent(0) / x.kv_heads()) + b.queries.first + (b.first + r) % b.queries.heads;
  }
  __device__ index_t column(index_t r) const { return x.queries.extent(1) - window + (b.first + r) / b.queries.heads; }
  /// How many keys the batch's query r sees.
  __device__ index_t visible(index_t r) const { return n - window + (b.first + r) / b.queries.heads + 1; }
  __device__ const query_of<X>* query(index_t r) const {
    return r < count ? &x.queries(query_head(r), column(r), index_t{0}) : nullptr;
  }
};

/// The maximum of some scores, and the sum of their exponentials against it (against 0 if there is nothing but -inf).
/// NaN goes to the sum.
struct ExpSum {
  float top;
  float sum;

  __device__ float shift() const { return top == -__builtin_huge_valf() ? 0.0f : top; }
  __device__ void join(const ExpSum& other) {
    ExpSum all{other.top > top ? other.top : top, 0};
    all.sum = sum * fast_exp(top - all.shift()) + other.sum * fast_exp(other.top - all.shift());
    *this = all;
  }
};

/// A query's weights are e^(score - top) * inverse.
struct ColumnNorm {
  float top;
  float inverse;
};

/// parts [kv_heads][tiles][batch]: for every query the maximum and the sum over one tile of keys.
template <int Rows, int Others, class T, class X>
__global__ __launch_bounds__(row_threads, 2) void column_parts_kernel(const X x, const ColumnBatch batch,
                                                                      View<ExpSum, 3> parts, const FaultWord* fault) {
  extern __shared__ float4 shared_rows[];
  __shared__ float tops[8][16 * Others];
  __shared__ float sums[8][16 * Others];
  if (faulted(fault)) return;
  const ColumnHead<X> c(x, batch, blockIdx.y);
  const index_t first = blockIdx.x * index_t{16 * Rows};
  if (c.count == 0 || first >= c.visible(c.count - 1)) return;
  const int dim = static_cast<int>(x.cache.key_dim());
  const int stride = row_stride(dim);
  const float scale = static_cast<float>(1.0 / sqrt(static_cast<double>(dim)));
  const RowBuffers<T, query_of<X>> shared(&shared_rows[0].x, stride, 16 * Rows, 16 * Others);
  load_tile<T>(shared.rows, 16 * Rows, dim, shared.tile,
               [&](int i) { return first + i < c.n ? x.cache.key(x.sequence, c.head, first + i) : nullptr; });
  const int column = static_cast<int>(threadIdx.x) % 16;
  for (index_t begin = 0; begin < c.count; begin += 16 * Others) {
    const index_t end = begin + 16 * Others < c.count ? begin + 16 * Others : c.count;
    if (first >= c.visible(end - 1)) continue;
    if (threadIdx.x < 16 * Others) shared.others[threadIdx.x] = c.query(begin + threadIdx.x);
    __syncthreads();
    float s[Rows][Others];
    tile_product<Rows, Others>(shared.tile, stride, shared.others, dim, shared.chunk, s);
#pragma unroll
    for (int j = 0; j < Others; ++j) {
      const index_t sees = c.visible(begin + column + 16 * j) - first;
      ExpSum part{-__builtin_huge_valf(), 0};
#pragma unroll
      for (int i = 0; i < Rows; ++i) {
        s[i][j] = static_cast<int>(threadIdx.x) / 16 + 16 * i < sees ? s[i][j] * scale : -__builtin_huge_valf();
        part.top = s[i][j] > part.top ? s[i][j] : part.top;
      }
#pragma unroll
      for (int i = 0; i < Rows; ++i) part.sum += fast_exp(s[i][j] - part.shift());
      part.join({__shfl_xor_sync(whole_warp, part.top, 16), __shfl_xor_sync(whole_warp, part.sum, 16)});
      if (threadIdx.x % 32 < 16) {
        tops[threadIdx.x / 32][column + 16 * j] = part.top;
        sums[threadIdx.x / 32][column + 16 * j] = part.sum;
      }
    }
    __syncthreads();
    if (begin + threadIdx.x < end) {
      ExpSum part{tops[0][threadIdx.x], sums[0][threadIdx.x]};
      for (int w = 1; w < 8; ++w) part.join({tops[w][threadIdx.x], sums[w][threadIdx.x]});
      parts(c.head, blockIdx.x, begin + threadIdx.x) = part;
    }
  }
}

/// norms [kv_heads][batch]: from the parts of all tiles, or from the log-sum-exps that came.
template <class X>
__global__ void column_norms_kernel(const X x, const ColumnBatch batch, int tile, View<const ExpSum, 3> parts,
                                    View<ColumnNorm, 2> norms, const FaultWord* fault) {
  if (faulted(fault)) return;
  const ColumnHead<X> c(x, batch, blockIdx.y);
  const index_t r = blockIdx.x * index_t{blockDim.x} + threadIdx.x;
  if (r >= c.count) return;
  if (x.lse.data() != nullptr) {
    norms(c.head, r) = {x.lse(c.query_head(r), c.column(r)), 1.0f};
    return;
  }
  const index_t tiles = (c.visible(r) + tile - 1) / tile;
  ExpSum all{-__builtin_huge_valf(), 0};
  for (index_t i = 0; i < tiles; ++i) {
    const float top = parts(c.head, i, r).top;
    all.top = top > all.top ? top : all.top;
  }
  double sum = 0;
  for (index_t i = 0; i < tiles; ++i) {
    const ExpSum part = parts(c.head, i, r);
    sum += static_cast<double>(part.sum) * static_cast<double>(fast_exp(part.top - all.shift()));
  }
  norms(c.head, r) = {all.shift(), static_cast<float>(1.0 / sum)};
}

/// out(h, t) (+)= sum over the batch of F(weight of key t).
template <class F, int Rows, int Others, class T, class X>
__global__ __launch_bounds__(row_threads, 2) void column_sums_kernel(const X x, const ColumnBatch batch,
                                                                     View<const ColumnNorm, 2> norms,
                                                                     ColumnFinish finish, bool last, View<float, 2> out,
                                                                     const FaultWord* fault) {
  extern __shared__ float4 shared_rows[];
  if (faulted(fault)) return;
  const ColumnHead<X> c(x, batch, blockIdx.y);
  const index_t first = blockIdx.x * index_t{16 * Rows};
  if (first >= c.n) return;
  const int dim = static_cast<int>(x.cache.key_dim());
  const int stride = row_stride(dim);
  const float scale = static_cast<float>(1.0 / sqrt(static_cast<double>(dim)));
  const RowBuffers<T, query_of<X>> shared(&shared_rows[0].x, stride, 16 * Rows, 16 * Others);
  const int row = static_cast<int>(threadIdx.x) / 16;
  const int column = static_cast<int>(threadIdx.x) % 16;
  double sums[Rows] = {};
  if (c.count > 0 && first < c.visible(c.count - 1)) {
    load_tile<T>(shared.rows, 16 * Rows, dim, shared.tile,
                 [&](int i) { return first + i < c.n ? x.cache.key(x.sequence, c.head, first + i) : nullptr; });
  }
  for (index_t begin = 0; begin < c.count; begin += 16 * Others) {
    const index_t end = begin + 16 * Others < c.count ? begin + 16 * Others : c.count;
    if (first >= c.visible(end - 1)) continue;
    if (threadIdx.x < 16 * Others) shared.others[threadIdx.x] = c.query(begin + threadIdx.x);
    __syncthreads();
    float s[Rows][Others];
    tile_product<Rows, Others>(shared.tile, stride, shared.others, dim, shared.chunk, s);
    float some[Rows] = {};
#pragma unroll
    for (int j = 0; j < Others; ++j) {
      const index_t r = begin + column + 16 * j;
      if (r >= end) continue;
      const index_t sees = c.visible(r) - first;
      const ColumnNorm norm = norms(c.head, r);
#pragma unroll
      for (int i = 0; i < Rows; ++i) {
        if (row + 16 * i < sees) some[i] += F::of(fast_exp(s[i][j] * scale - norm.top) * norm.inverse);
      }
    }
#pragma unroll
    for (int i = 0; i < Rows; ++i) sums[i] += static_cast<double>(some[i]);
  }
#pragma unroll
  for (int i = 0; i < Rows; ++i) {
    float sum = static_cast<float>(::decant::detail::warp_reduce<16>(sums[i], Plus{}));
    const index_t t = first + row + 16 * i;
    if (column != 0 || t >= c.n) continue;
    if (batch.first > 0) sum += out(c.head, t);
    out(c.head, t) = last ? finish(sum, t, c.n) : sum;
  }
}

/// scores = max(scores, other), then finish.
template <class X>
__global__ void larger_columns_kernel(const X x, View<const float, 2> other, ColumnFinish finish, bool last,
                                      View<float, 2> scores, const FaultWord* fault) {
  if (faulted(fault)) return;
  const index_t h = blockIdx.y;
  const index_t n = x.length(h);
  const index_t t = blockIdx.x * index_t{blockDim.x} + threadIdx.x;
  if (t >= n) return;
  const float larger = other(h, t) > scores(h, t) ? other(h, t) : scores(h, t);
  scores(h, t) = last ? finish(larger, t, n) : larger;
}

template <class F, int Rows, int Others, class X>
void attention_columns(Cuda& cuda, const char* where, const X& x, index_t longest, const ColumnQueries& q,
                       const ColumnFinish& finish, View<float, 2> out) {
  using T = key_of<X>;
  Workspace::Scope scope(cuda.workspace());
  const auto heads = static_cast<unsigned>(x.kv_heads());
  const index_t total = (q.window < longest ? q.window : longest) * q.heads;
  const bool fused = x.lse.data() != nullptr;
  const index_t most = fused || total < column_batch ? total : column_batch;
  const unsigned tiles = cuda_blocks(longest, 16 * Rows);
  View<ExpSum, 3> parts;
  if (!fused) parts = cuda.workspace().template take_view<ExpSum>(heads, tiles, most);
  const auto norms = cuda.workspace().template take_view<ColumnNorm>(heads, most);
  const CudaGrid grid{dim3(tiles, heads), dim3(row_threads), row_tile_bytes(x.cache.key_dim(), 16 * Rows, 16 * Others)};
  for (index_t first = 0; first < total; first += most) {
    const ColumnBatch batch{q, first, first + most < total ? most : total - first};
    if (!fused) {
      launch(cuda, where, column_parts_kernel<Rows, Others, T, X>, grid, x, batch, parts, cuda.fault());
    }
    launch(cuda, where, column_norms_kernel<X>, CudaGrid{dim3(cuda_blocks(batch.count, 128), heads), dim3(128)}, x,
           batch, 16 * Rows, parts, norms, cuda.fault());
    launch(cuda, where, column_sums_kernel<F, Rows, Others, T, X>, grid, x, batch, norms, finish,
           first + batch.count == total, out, cuda.fault());
  }
}

/// out(h, t) = finish(sum over the queries of F(weight of key t)), for every token of every head. x: a plain layer
/// whose check has been enqueued. Scratch without log-sum-exps: 8 bytes per 64 tokens, KV head and query of a batch.
template <class F, class X>
void attention_columns(Cuda& cuda, const char* where, const X& x, index_t longest, const ColumnQueries& q,
                       const ColumnFinish& finish, View<float, 2> out) {
  const index_t total = (q.window < longest ? q.window : longest) * q.heads;
  const RowTiling tiling = row_tiling(cuda, where, x.cache.key_dim(), 64);
  if (tiling.rows == 16) return attention_columns<F, 1, 4>(cuda, where, x, longest, q, finish, out);
  if (total <= 16) return attention_columns<F, 4, 1>(cuda, where, x, longest, q, finish, out);
  return attention_columns<F, 4, 4>(cuda, where, x, longest, q, finish, out);
}

}  // namespace decant::kv::detail

#endif
