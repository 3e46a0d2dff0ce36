// decant: the two projections of absorbed MLA on Cuda. A block brings its piece of one head's weights to shared memory
// once and passes over all queries with it. Absorbing moves nope_dim * latent_dim weights and 4 * (nope_dim +
// latent_dim) bytes per query and head, projecting up likewise with v_head_dim; each does two FLOPs per weight and
// query. Queries' own numbers are read once per piece. Sums have one order, so that a query depends on no other.
#ifndef DECANT_ATTENTION_DETAIL_MLA_PROJECT_CUH
#define DECANT_ATTENTION_DETAIL_MLA_PROJECT_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "../../core/cuda.cuh"
#include "../../core/detail/device.cuh"
#include "dense_copy.cuh"

namespace decant::attention::detail {

using ::decant::detail::faulted;
using ::decant::detail::Plus;
using ::decant::detail::warp_reduce;
using ::decant::detail::widen;

inline constexpr int mla_threads = 256;
inline constexpr int mla_warps = mla_threads / 32;
inline constexpr int mla_columns = 128;  // of the latent, per block that absorbs: four per lane
inline constexpr int mla_rows = 32;      // of the result, per block that projects up: four per warp
inline constexpr int mla_together = 4;   // queries that share a weight in registers

/// Rows in shared memory: where they begin, and what follows them, in bytes.
struct MlaLayout {
  int vectors;  // 16-byte vectors of a row
  int pointers, x, part;
  int bytes;
};

/// `rows` rows of `dim` weights; x_dim numbers of each query; `part` floats.
template <class W>
MlaLayout mla_layout(index_t rows, index_t dim, index_t x_dim, index_t part) {
  MlaLayout w;
  w.vectors = static_cast<int>((dim + per_access<W> - 1) / per_access<W>);
  index_t used = 0;
  const auto take = [&](index_t bytes) {
    const index_t at = used;
    used += (bytes + 15) / 16 * 16;
    return static_cast<int>(at);
  };
  take(rows * w.vectors * 16);
  w.pointers = take(rows * 8);
  w.x = take(mla_together * x_dim * 4);
  w.part = take(part * 4);
  w.bytes = static_cast<int>(used < 0x7fffffff ? used : 0x7fffffff);
  return w;
}

/// Rows [first, first + count) of a head's weights, from column `column` on, `dim` columns of them. Waits.
template <class W>
__device__ void load_weights(const View<const W, 3>& w, index_t head, index_t first, int count, index_t column, int dim,
                             const MlaLayout& layout, bool aligned, unsigned char* shared) {
  const W** const rows = reinterpret_cast<const W**>(shared + layout.pointers);
  for (int i = static_cast<int>(threadIdx.x); i < count; i += mla_threads)
    rows[i] = w.data() + head * w.stride(0) + (first + i) * w.stride(1) + column;
  __syncthreads();
  copy_rows<mla_threads>(rows, count, dim, reinterpret_cast<W*>(shared), layout.vectors * per_access<W>, layout.vectors,
                         aligned);
  commit_copies();
  wait_copies<0>();
}

/// x[t][d] of `tokens` queries and one head as floats in shared memory, zeros behind `dim` and behind the last query.
template <class Q>
__device__ void load_mla_queries(const View<const Q, 3>& x, index_t first, index_t head, index_t dim, int padded,
                                 float* to) {
  for (int i = static_cast<int>(threadIdx.x); i < mla_together * padded; i += mla_threads) {
    const index_t t = first + i / padded;
    const int d = i % padded;
    to[i] = t < x.extent(0) && d < dim ? widen(x.data()[t * x.stride(0) + head * x.stride(1) + d * x.stride(2)]) : 0.0f;
  }
}

/// q_latent[t, h, l] = sum over d of w_uk[h, d, l] q_nope[t, h, d]. blockIdx.x: 128 columns l; y: the head. Warp w adds
/// up d = w, w + 8, ...; then warps are added in order. Where q_pe is given, its numbers go behind the latent ones.
template <class W, class Q>
__global__ void __launch_bounds__(mla_threads)
    mla_absorb_kernel(const View<const W, 3> w_uk, const View<const Q, 3> q_nope, const View<const Q, 3> q_pe,
                      const View<float, 3> q_latent, const MlaLayout layout, const bool aligned,
                      const FaultWord* fault) {
  if (faulted(fault)) return;
  extern __shared__ __align__(128) unsigned char mla_shared[];
  const W* const weights = reinterpret_cast<const W*>(mla_shared);
  float* const x = reinterpret_cast<float*>(mla_shared + layout.x);
  float* const part = reinterpret_cast<float*>(mla_shared + layout.part);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const index_t head = blockIdx.y;
  const index_t column = index_t{blockIdx.x} * mla_columns;
  const int nope = static_cast<int>(w_uk.extent(1));
  const index_t latent = w_uk.extent(2);
  const index_t total = q_nope.extent(0);
  const int columns = static_cast<int>(latent - column < mla_columns ? latent - column : mla_columns);
  const int stride = layout.vectors * per_access<W>;
  load_weights(w_uk, head, 0, nope, column, columns, layout, aligned, mla_shared);

  for (index_t first = 0; first < total; first += mla_together) {
    __syncthreads();
    load_mla_queries(q_nope, first, head, nope, nope, x);
    __syncthreads();
    float sum[mla_together][4] = {};
    for (int d = warp; d < nope && lane * 4 < stride; d += mla_warps) {
      const auto w = *reinterpret_cast<const Pack<W, 4>*>(weights + d * stride + lane * 4);
#pragma unroll
      for (int t = 0; t < mla_together; ++t) {
        const float q = x[t * nope + d];
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[t][e] += widen(w.at[e]) * q;
      }
    }
#pragma unroll
    for (int t = 0; t < mla_together; ++t)
      *reinterpret_cast<float4*>(part + (warp * mla_together + t) * mla_columns + lane * 4) = {sum[t][0], sum[t][1],
                                                                                              sum[t][2], sum[t][3]};
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < mla_together * mla_columns; i += mla_threads) {
      const int t = i / mla_columns;
      const int l = i % mla_columns;
      if (first + t >= total || l >= columns) continue;
      float whole = part[t * mla_columns + l];
      for (int w = 1; w < mla_warps; ++w) whole += part[(w * mla_together + t) * mla_columns + l];
      q_latent(first + t, head, column + l) = whole;
    }
  }
  if (q_pe.data() == nullptr || blockIdx.x > 0) return;
  const index_t rope = q_pe.extent(2);
  for (index_t i = threadIdx.x; i < total * rope; i += mla_threads)
    q_latent.data()[i / rope * q_latent.stride(0) + head * q_latent.stride(1) + latent + i % rope] =
        widen(q_pe(i / rope, head, i % rope));
}

/// out[t, h, v] = sum over l of w_uv[h, v, l] o_latent[t, h, l]. blockIdx.x: 32 rows v; y: the head. Four rows per
/// warp; each lane adds up its vectors of l, then lanes are added as a tree.
template <class W, class O>
__global__ void __launch_bounds__(mla_threads)
    mla_up_kernel(const View<const W, 3> w_uv, const View<const float, 3> o_latent, const View<O, 3> out,
                  const MlaLayout layout, const bool aligned, const FaultWord* fault) {
  if (faulted(fault)) return;
  extern __shared__ __align__(128) unsigned char mla_shared[];
  constexpr int width = per_access<W>;
  constexpr int each = mla_rows / mla_warps;
  const float* const x = reinterpret_cast<const float*>(mla_shared + layout.x);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const index_t head = blockIdx.y;
  const index_t row = index_t{blockIdx.x} * mla_rows;
  const index_t latent = w_uv.extent(2);
  const index_t total = o_latent.extent(0);
  const int rows = static_cast<int>(w_uv.extent(1) - row < mla_rows ? w_uv.extent(1) - row : mla_rows);
  const int stride = layout.vectors * width;
  load_weights(w_uv, head, row, rows, 0, static_cast<int>(latent), layout, aligned, mla_shared);
  const W* const weights = reinterpret_cast<const W*>(mla_shared) + warp * each * stride;

  for (index_t first = 0; first < total; first += mla_together) {
    __syncthreads();
    load_mla_queries(o_latent, first, head, latent, stride, const_cast<float*>(x));
    __syncthreads();
    if (warp * each >= rows) continue;
    float sum[each][mla_together] = {};
    for (int v = lane; v < layout.vectors; v += 32) {
      Pack<W, width> w[each];
#pragma unroll
      for (int r = 0; r < each; ++r)
        if (warp * each + r < rows) w[r] = *reinterpret_cast<const Pack<W, width>*>(weights + r * stride + v * width);
#pragma unroll
      for (int t = 0; t < mla_together; ++t) {
#pragma unroll
        for (int e = 0; e < width; e += 4) {
          const float4 y = *reinterpret_cast<const float4*>(x + t * stride + v * width + e);
#pragma unroll
          for (int r = 0; r < each; ++r) {
            if (warp * each + r >= rows) continue;
            sum[r][t] += widen(w[r].at[e]) * y.x;
            sum[r][t] += widen(w[r].at[e + 1]) * y.y;
            sum[r][t] += widen(w[r].at[e + 2]) * y.z;
            sum[r][t] += widen(w[r].at[e + 3]) * y.w;
          }
        }
      }
    }
#pragma unroll
    for (int r = 0; r < each; ++r) {
      if (warp * each + r >= rows) continue;
#pragma unroll
      for (int t = 0; t < mla_together; ++t) {
        const float whole = warp_reduce(sum[r][t], Plus{});
        if (lane == 0 && first + t < total) out(first + t, head, row + warp * each + r) = static_cast<O>(whole);
      }
    }
  }
}

inline CudaGrid mla_grid(const Cuda& cuda, const char* where, const char* argument, index_t pieces, index_t heads,
                         const MlaLayout& layout) {
  require(layout.bytes <= cuda.device().shared_bytes, where, argument, "dims that fit in shared memory", layout.bytes);
  require(pieces < index_t{1} << 31 && heads <= 65535, where, argument, "fewer heads and columns", heads);
  return {dim3(static_cast<unsigned>(pieces), static_cast<unsigned>(heads)), dim3(mla_threads),
          static_cast<std::size_t>(layout.bytes)};
}

/// Whether rows of every head can be read by 16-byte accesses.
template <class W>
bool aligned_weights(const View<const W, 3>& w) {
  return ::decant::detail::aligned_rows(w.data(), w.stride(0), w.extent(2)) &&
         ::decant::detail::aligned_rows(w.data(), w.stride(1), w.extent(2));
}

/// Enqueues an absorption; q_pe may be empty.
template <class W, class Q>
void enqueue_absorb(Cuda& cuda, const char* where, const View<const W, 3>& w_uk, const View<const Q, 3>& q_nope,
                    const View<const Q, 3>& q_pe, const View<float, 3>& q_latent) {
  if (q_nope.extent(0) == 0) return;
  const index_t nope = w_uk.extent(1);
  const index_t latent = w_uk.extent(2);
  const index_t columns = latent < mla_columns ? latent : mla_columns;
  const MlaLayout layout = mla_layout<W>(nope, columns, nope, mla_warps * mla_together * mla_columns);
  const CudaGrid grid =
      mla_grid(cuda, where, "w_uk", (latent + mla_columns - 1) / mla_columns, w_uk.extent(0), layout);
  launch(cuda, where, mla_absorb_kernel<W, Q>, grid, w_uk, q_nope, q_pe, q_latent, layout, aligned_weights(w_uk),
         cuda.fault());
}

}  // namespace decant::attention::detail

#endif
