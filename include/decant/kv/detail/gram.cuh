// decant: weighted Gram matrices and ridge leverage on Cuda, for many matrices at once. Rows, weights and results come
// from a small value, a source:
//   element                 the rows' type
//   rows(m), row(m, i)      how many rows matrix m has, and where they are
//   weight(m, i)            their weights
//   change(m)               what becomes of an element: SameValue or Centred
// Sums are of one order: tiles of 256 rows in float, tiles in double, spans of tiles one after another. FLOPs: n dim^2
// for the Gram matrix (lower triangle), 2 dim^3 / 3 in double for factor and inverse, n dim^2 for the forms. Bytes,
// from L2 for the most part: rows of 64 columns 2 ceil(dim / 64) times per matrix for the Gram matrix, once for the
// forms of all matrices of a head. All three are bound by arithmetic.
#ifndef DECANT_KV_DETAIL_GRAM_CUH
#define DECANT_KV_DETAIL_GRAM_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "../ridge_leverage.hpp"
#include "device_layer.cuh"
#include "key_rows.cuh"

namespace decant::kv::detail {

inline constexpr int gram_columns = 64;  // a block forms 64 x 64 elements
inline constexpr int gram_rows = 32;     // of so many rows at a time
inline constexpr int gram_stride = gram_columns + 4;
inline constexpr int factor_threads = 512;

/// Rows of one block: 2048, more if there would be more than 16 spans. A multiple of gram_tile.
inline index_t device_gram_span(index_t longest) {
  const index_t span = ((longest + 15) / 16 + gram_tile - 1) / gram_tile * gram_tile;
  return span > 2048 ? span : 2048;
}

/// Where the matrices of a call are.
struct GramMatrices {
  index_t count;  // matrices
  index_t dim;
  index_t span;    // rows of one partial sum
  double* sums;    // [spans][count][dim][dim], lower triangles
  double* packed;  // [count][dim (dim + 1) / 2] where that does not fit into shared memory, else null
  float* inverse;  // [count][dim][stride]: L^-1, zero above the diagonal
  int* positive;   // [count], 0: not positive definite
  std::size_t shared;

  DECANT_HD index_t stride() const { return (dim + 3) / 4 * 4; }
  DECANT_HD index_t spans(index_t rows) const { return (rows + span - 1) / span; }
};

/// Scratch in the caller's scope. factor: whether they will be factorised.
inline GramMatrices take_gram_matrices(Cuda& cuda, index_t count, index_t dim, index_t longest, bool factor) {
  Workspace& w = cuda.workspace();
  GramMatrices g{count, dim, device_gram_span(longest), nullptr, nullptr, nullptr, nullptr, 0};
  g.sums = w.take<double>(g.spans(longest) * count * dim * dim);
  if (!factor) return g;
  const index_t packed = dim * (dim + 1) / 2;
  const index_t parts = dim < factor_threads ? factor_threads / dim : 1;
  g.shared = static_cast<std::size_t>(parts * dim) * sizeof(double);
  if (static_cast<index_t>(g.shared) + packed * 8 <= cuda.device().shared_bytes - 1024) {
    g.shared += static_cast<std::size_t>(packed) * sizeof(double);
  } else {
    g.packed = w.take<double>(count * packed);
  }
  g.inverse = w.take<float>(count * dim * g.stride());
  g.positive = w.take<int>(count);
  return g;
}

/// One 64 x 64 piece of one span of one matrix. grid (pieces of the lower triangle, spans, matrices)
template <class Source>
__global__ __launch_bounds__(row_threads, 2) void gram_kernel(const Source source, GramMatrices g,
                                                              const FaultWord* fault) {
  using T = typename Source::element;
  __shared__ alignas(16) float left[gram_rows * gram_stride];
  __shared__ alignas(16) float right[gram_rows * gram_stride];
  __shared__ float weights[gram_rows];
  __shared__ const T* rows[gram_rows];
  if (faulted(fault)) return;
  const index_t m = blockIdx.z;
  const index_t n = source.rows(m);
  const index_t begin = blockIdx.y * g.span;
  if (begin >= n) return;
  const index_t end = begin + g.span < n ? begin + g.span : n;
  int row_block = 0;
  while ((row_block + 1) * (row_block + 2) / 2 <= static_cast<int>(blockIdx.x)) ++row_block;
  const int column_block = static_cast<int>(blockIdx.x) - row_block * (row_block + 1) / 2;
  const int y = 4 * (static_cast<int>(threadIdx.x) / 16);
  const int x = 4 * (static_cast<int>(threadIdx.x) % 16);
  const int dim = static_cast<int>(g.dim);
  double total[4][4] = {};
  for (index_t tile = begin; tile < end; tile += gram_tile) {
    const index_t tile_end = tile + gram_tile < end ? tile + gram_tile : end;
    float sum[4][4];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
#pragma unroll
      for (int c = 0; c < 4; ++c) sum[r][c] = 0;
    }
    for (index_t first = tile; first < tile_end; first += gram_rows) {
      if (threadIdx.x < gram_rows) {
        const index_t i = first + threadIdx.x;
        rows[threadIdx.x] = i < tile_end ? source.row(m, i) : nullptr;
        weights[threadIdx.x] = i < tile_end ? source.weight(m, i) : 0.0f;
      }
      __syncthreads();
      load_rows<T>(rows, gram_rows, gram_columns * row_block, gram_columns, dim, left, gram_stride, source.change(m));
      if (row_block != column_block) {
        load_rows<T>(rows, gram_rows, gram_columns * column_block, gram_columns, dim, right, gram_stride,
                     source.change(m));
      }
      __syncthreads();
      for (int at = static_cast<int>(threadIdx.x); at < gram_rows * gram_columns; at += row_threads) {
        const int i = at / gram_columns;
        float& value = left[i * gram_stride + at % gram_columns];
        if (row_block == column_block) right[i * gram_stride + at % gram_columns] = value;
        value *= weights[i];
      }
      __syncthreads();
#pragma unroll 4
      for (int i = 0; i < gram_rows; ++i) {
        const float4 a = *reinterpret_cast<const float4*>(left + i * gram_stride + y);
        const float4 b = *reinterpret_cast<const float4*>(right + i * gram_stride + x);
        const float as[4] = {a.x, a.y, a.z, a.w};
        const float bs[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
        for (int r = 0; r < 4; ++r) {
#pragma unroll
          for (int c = 0; c < 4; ++c) sum[r][c] = fmaf(as[r], bs[c], sum[r][c]);
        }
      }
      __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < 4; ++r) {
#pragma unroll
      for (int c = 0; c < 4; ++c) total[r][c] += static_cast<double>(sum[r][c]);
    }
  }
  double* const out = g.sums + (blockIdx.y * g.count + m) * g.dim * g.dim;
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const index_t a = gram_columns * row_block + y + r;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const index_t b = gram_columns * column_block + x + c;
      if (a < g.dim && b <= a) out[a * g.dim + b] = total[r][c];
    }
  }
}

/// The sum over all spans of element (a, b), b <= a.
__device__ inline double gram_element(const GramMatrices& g, index_t m, index_t spans, index_t a, index_t b) {
  double sum = 0;
  for (index_t s = 0; s < spans; ++s) sum += g.sums[((s * g.count + m) * g.dim + a) * g.dim + b];
  return sum;
}

template <class Source>
void grams(Cuda& cuda, const char* where, const Source& source, const GramMatrices& g, index_t longest) {
  const unsigned blocks = cuda_blocks(g.dim, gram_columns);
  launch(
      cuda, where, gram_kernel<Source>,
      CudaGrid{dim3(blocks * (blocks + 1) / 2, static_cast<unsigned>(g.spans(longest)), static_cast<unsigned>(g.count)),
               dim3(row_threads)},
      source, g, cuda.fault());
}

/// Gram matrix + ridge I = L L^T, then L^-1, in double; a block per matrix. The lower triangle lies row after row, and
/// L^-1 takes the place of L, row by row.
template <class Source>
__global__ __launch_bounds__(factor_threads, 1) void factor_kernel(const Source source, GramMatrices g, double ridge,
                                                                   const FaultWord* fault) {
  extern __shared__ double shared_doubles[];
  if (faulted(fault)) return;
  const index_t m = blockIdx.x;
  const int dim = static_cast<int>(g.dim);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  constexpr int warps = factor_threads / 32;
  const int parts = dim < factor_threads ? factor_threads / dim : 1;
  double* const column = shared_doubles;  // [parts][dim]
  double* const l = g.packed ? g.packed + m * (g.dim * (g.dim + 1) / 2) : shared_doubles + parts * dim;
  const auto row = [&](int r) { return l + static_cast<index_t>(r) * (r + 1) / 2; };
  const index_t spans = g.spans(source.rows(m));
  for (int r = warp; r < dim; r += warps) {
    for (int c = lane; c <= r; c += 32) row(r)[c] = gram_element(g, m, spans, r, c) + (r == c ? ridge : 0.0);
  }
  __syncthreads();
  for (int k = 0; k < dim; ++k) {
    const double pivot = row(k)[k];
    if (!(pivot > 0)) {  // NaN too; all threads see the same
      if (thread == 0) g.positive[m] = 0;
      return;
    }
    const double root = sqrt(pivot);
    __syncthreads();
    for (int r = k + thread; r < dim; r += factor_threads) {
      const double value = r == k ? root : row(r)[k] / root;
      row(r)[k] = value;
      column[r] = value;
    }
    __syncthreads();
    for (int r = k + 1 + warp; r < dim; r += warps) {
      for (int c = k + 1 + lane; c <= r; c += 32) row(r)[c] -= column[r] * column[c];
    }
    __syncthreads();
  }
  for (int r = 0; r < dim; ++r) {
    const double pivot = row(r)[r];
    for (int at = thread; at < parts * dim; at += factor_threads) {
      const int k = at % dim;
      double sum = 0;
      for (int j = k + at / dim; j < r; j += parts) sum += row(r)[j] * row(j)[k];
      column[at] = sum;
    }
    __syncthreads();
    for (int k = thread; k <= r; k += factor_threads) {
      double sum = k == r ? 1.0 : 0.0;
      for (int p = 0; p < parts; ++p) sum -= column[p * dim + k];
      row(r)[k] = sum / pivot;
    }
    __syncthreads();
  }
  float* const out = g.inverse + m * g.dim * g.stride();
  const int stride = static_cast<int>(g.stride());
  for (int r = warp; r < dim; r += warps) {
    for (int c = lane; c < stride; c += 32) out[r * g.stride() + c] = c <= r ? static_cast<float>(row(r)[c]) : 0.0f;
  }
  if (thread == 0) g.positive[m] = 1;
}

template <class Source>
void factorise(Cuda& cuda, const char* where, const Source& source, const GramMatrices& g, double ridge) {
  launch(cuda, where, factor_kernel<Source>,
         CudaGrid{dim3(static_cast<unsigned>(g.count)), dim3(factor_threads), g.shared}, source, g, ridge,
         cuda.fault());
}

/// One block, so that no thread asks for faults after another has told one.
template <int Threads>
__global__ void __launch_bounds__(Threads) require_positive_kernel(GramMatrices g, index_t layer, FaultWord* fault) {
  if (__syncthreads_or(faulted(fault))) return;
  for (index_t m = threadIdx.x; m < g.count; m += Threads) {
    if (g.positive[m] == 0) report(fault, Fault::not_positive, layer, m, 0);
  }
}

/// Reports matrices that are not positive definite, where that is more than a matter of NaN scores.
inline void require_positive(Cuda& cuda, const char* where, const GramMatrices& g, index_t layer) {
  constexpr int threads = 128;
  launch(cuda, where, require_positive_kernel<threads>, CudaGrid{dim3(1), dim3(threads)}, g, layer, cuda.fault());
}

/// u^T A^-1 u = |L^-1 u|^2 for every row u of every head and each of its `group` matrices, in turn folded into one
/// number per row: state = fold.add(state, m, i, form), from fold.start(), to fold.write(head, i, state). Forms of a
/// matrix that is not positive definite are NaN. Matrices [head * group, ...).
template <int Rows, class Source, class Fold>
__global__ __launch_bounds__(row_threads, 2) void forms_kernel(const Source source, const Fold fold, GramMatrices g,
                                                               index_t group, const FaultWord* fault) {
  using T = typename Source::element;
  extern __shared__ float4 shared_rows[];
  if (faulted(fault)) return;
  const index_t head = blockIdx.y;
  const index_t n = source.rows(head * group);
  const index_t first = blockIdx.x * index_t{16 * Rows};
  if (first >= n) return;
  const int dim = static_cast<int>(g.dim);
  const int stride = row_stride(dim);
  const RowBuffers<T, float> shared(&shared_rows[0].x, stride, 16 * Rows, 64);
  load_tile<T>(
      shared.rows, 16 * Rows, dim, shared.tile,
      [&](int i) { return first + i < n ? source.row(head * group, first + i) : nullptr; },
      source.change(head * group));
  const index_t i0 = first + threadIdx.x / 16;
  float state[Rows];
#pragma unroll
  for (int i = 0; i < Rows; ++i) state[i] = fold.start();
  for (index_t m = head * group; m < (head + 1) * group; ++m) {
    float form[Rows] = {};
    const bool positive = g.positive[m] != 0;
    if (positive) {
      for (int begin = 0; begin < dim; begin += 64) {  // these rows of L^-1 reach up to column begin + 63
        if (threadIdx.x < 64) {
          const index_t r = begin + static_cast<int>(threadIdx.x);
          shared.others[threadIdx.x] = r < dim ? g.inverse + (m * g.dim + r) * g.stride() : nullptr;
        }
        __syncthreads();
        float y[Rows][4];
        tile_product<Rows, 4>(shared.tile, stride, shared.others, begin + 64 < dim ? begin + 64 : dim, shared.chunk, y);
#pragma unroll
        for (int i = 0; i < Rows; ++i) {
#pragma unroll
          for (int j = 0; j < 4; ++j) form[i] = fmaf(y[i][j], y[i][j], form[i]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < Rows; ++i) {
      form[i] = ::decant::detail::warp_reduce<16>(form[i], Plus{});
      if (threadIdx.x % 16 != 0 || i0 + 16 * i >= n) continue;
      state[i] = fold.add(state[i], m, i0 + 16 * i, positive ? form[i] : __builtin_nanf(""));
    }
  }
  if (threadIdx.x % 16 != 0) return;
#pragma unroll
  for (int i = 0; i < Rows; ++i) {
    if (i0 + 16 * i < n) fold.write(head, i0 + 16 * i, state[i]);
  }
}

template <class Source, class Fold>
void forms(Cuda& cuda, const char* where, const Source& source, const Fold& fold, const GramMatrices& g, index_t group,
           index_t longest) {
  const RowTiling tiling = row_tiling(cuda, where, g.dim, 64);
  const CudaGrid grid{dim3(cuda_blocks(longest, tiling.rows), static_cast<unsigned>(g.count / group)),
                      dim3(row_threads), tiling.shared};
  const auto run = [&](auto* kernel) { launch(cuda, where, kernel, grid, source, fold, g, group, cuda.fault()); };
  if (tiling.rows == 64) run(forms_kernel<4, Source, Fold>);
  if (tiling.rows == 16) run(forms_kernel<1, Source, Fold>);
}

}  // namespace decant::kv::detail

#endif
