// decant: what the Cuda scorers do with rows: a tile of up to 64 rows of keys, values or queries comes into shared
// memory as floats, once, by accesses of 16 bytes where alignment allows; then dots of rows with themselves, with one
// vector, or with many rows (a product that 256 threads form in registers). All sums have one order.
#ifndef DECANT_KV_DETAIL_KEY_ROWS_CUH
#define DECANT_KV_DETAIL_KEY_ROWS_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include <cstring>

#include "../../core/cuda.cuh"
#include "../../core/detail/device.cuh"

namespace decant::kv::detail {

using ::decant::detail::Larger;
using ::decant::detail::Plus;
using ::decant::detail::whole_warp;
using ::decant::detail::widen;

inline constexpr int row_threads = 256;  // of every kernel that works on tiles: 16 x 16
inline constexpr int other_chunk = 32;   // columns of the other rows at a time
inline constexpr int other_stride = other_chunk + 4;

/// Floats from row to row in shared memory: an odd number of 16-byte words, so that rows fall into different banks.
DECANT_HD constexpr int row_stride(index_t dim) {
  const int words = static_cast<int>((dim + 3) / 4);
  return 4 * (words % 2 == 1 ? words : words + 1);
}

/// The tile's rows and how they are spread: thread (y, x) of 16 x 16 works on rows y + 16 i.
struct RowTiling {
  int rows;            // 64, or 16 where 64 rows do not fit
  std::size_t shared;  // bytes for the tile and `other` more rows of a chunk
};

template <class T>
constexpr std::size_t row_pointer_bytes(int rows) {
  return static_cast<std::size_t>(rows) * sizeof(const T*);
}

inline std::size_t row_tile_bytes(index_t dim, int rows, int others) {
  return static_cast<std::size_t>(rows) * static_cast<std::size_t>(row_stride(dim)) * sizeof(float) +
         static_cast<std::size_t>(rows + others) * sizeof(void*) +
         static_cast<std::size_t>(others) * other_stride * sizeof(float);
}

inline RowTiling row_tiling(const Cuda& cuda, const char* where, index_t dim, int others) {
  const auto room = static_cast<std::size_t>(cuda.device().shared_bytes - 8192);  // the rest: static arrays
  for (const int rows : {64, 16}) {
    const std::size_t bytes = row_tile_bytes(dim, rows, others);
    if (bytes <= room) return {rows, bytes};
  }
  ::decant::detail::fail_argument(where, "x.cache", "a head dim of which 16 rows fit into shared memory", dim);
}

/// Shared memory of one block, cut up as row_tile_bytes counts it.
template <class T, class U>
struct RowBuffers {
  float* tile;       // [rows][row_stride(dim)]
  float* chunk;      // [others][other_stride]
  const T** rows;    // [rows]; null: no such row
  const U** others;  // [others]

  __device__ RowBuffers(float* shared, int stride, int row_count, int other_count)
      : tile(shared),
        chunk(tile + row_count * stride),
        rows(reinterpret_cast<const T**>(chunk + other_count * other_stride)),
        others(reinterpret_cast<const U**>(rows + row_count)) {}
};

/// As they are.
struct SameValue {
  __device__ float operator()(float value, int) const { return value; }
};
/// Less a mean per column.
struct Centred {
  const double* mean;
  __device__ float operator()(float value, int column) const {
    return static_cast<float>(static_cast<double>(value) - mean[column]);
  }
};

/// One access of a row: up to 16 bytes from `column` on; zeros behind `dim`. Whole: it lies within the row, aligned.
template <bool Whole, class T>
__device__ uint4 load_words(const T* row, int column, int dim) {
  constexpr int most = ::decant::detail::per_access<T>;
  if (Whole || (column + most <= dim && reinterpret_cast<std::uintptr_t>(row + column) % 16 == 0)) {
    return __ldg(reinterpret_cast<const uint4*>(row + column));
  }
  T some[most] = {};
#pragma unroll
  for (int e = 0; e < most; ++e) {
    if (column + e < dim) some[e] = row[column + e];
  }
  uint4 words;
  std::memcpy(&words, some, 16);
  return words;
}

/// One store of 16 bytes: left to itself, the compiler makes four of it here and there.
__device__ inline void store_shared(float* to, const float4& four) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(to))),
               "f"(four.x), "f"(four.y), "f"(four.z), "f"(four.w)
               : "memory");
}

/// Stores them as floats: columns [column, end) of the row, zero where the row is not there or a column is not below
/// dim.
template <class T, class Change>
__device__ void store_words(const uint4& words, bool there, int column, int end, int dim, const Change& change,
                            float* out) {
  constexpr int most = ::decant::detail::per_access<T>;
  T some[most];
  std::memcpy(some, &words, 16);
  float values[most];
  if (there && column + most <= dim) {
#pragma unroll
    for (int e = 0; e < most; ++e) values[e] = change(widen(some[e]), column + e);
  } else {
#pragma unroll
    for (int e = 0; e < most; ++e) values[e] = there && column + e < dim ? change(widen(some[e]), column + e) : 0.0f;
  }
  // Of eight floats per lane, every other four lanes store the second half first, so that eight lanes fill all banks.
  const int turn = most == 8 && threadIdx.x % 8 >= 4 ? 4 : 0;
#pragma unroll
  for (int e = 0; e < most; e += 4) {
    const float4 four = turn == 0 ? make_float4(values[e], values[e + 1], values[e + 2], values[e + 3])
                                  : make_float4(values[(e + 4) % most], values[(e + 5) % most], values[(e + 6) % most],
                                                values[(e + 7) % most]);
    if (column + (e ^ turn) < end) store_shared(out + (e ^ turn), four);
  }
}

/// out[i * stride + c] = change(rows[i][first + c], first + c) for i < count and c < width; zero where the row is null
/// or first + c >= dim. rows: pointers in shared memory. first: a multiple of 16, width and stride: of 4. A row is read
/// by a power of two of neighbouring lanes; four accesses of 16 bytes are in flight per thread. Does not wait for the
/// block. Whole: all rows are aligned to 16 bytes, and first + width is within them.
template <class T, bool Whole = false, class Change = SameValue>
__device__ void load_rows(const T* const* rows, int count, int first, int width, int dim, float* out, int stride,
                          Change change = {}) {
  constexpr int most = ::decant::detail::per_access<T>;
  constexpr int in_flight = 4;
  const int per_row = (width + most - 1) / most;
  const int log = per_row > row_threads / 2 ? 8 : 32 - __clz(per_row - 1);
  const int step = row_threads >> log;
  for (int at = static_cast<int>(threadIdx.x) & ((1 << log) - 1); at < per_row; at += 1 << log) {
    const int column = first + at * most;
    for (int begin = static_cast<int>(threadIdx.x) >> log; begin < count; begin += in_flight * step) {
      const T* row[in_flight];
      uint4 words[in_flight];
#pragma unroll
      for (int u = 0; u < in_flight; ++u) {
        const int i = begin + u * step;
        row[u] = i < count ? rows[i] : nullptr;
        words[u] = row[u] ? load_words<Whole>(row[u], column, dim) : make_uint4(0, 0, 0, 0);
      }
#pragma unroll
      for (int u = 0; u < in_flight; ++u) {
        const int i = begin + u * step;
        if (i >= count) continue;
        store_words<T>(words[u], row[u] != nullptr, column, first + width, dim, change, out + i * stride + at * most);
      }
    }
  }
}

/// The whole tile: rows(i) gives the pointer of row i, null from the last on. Waits for the block.
template <class T, class Rows, class Change = SameValue>
__device__ void load_tile(const T** pointers, int count, int dim, float* tile, Rows rows, Change change = {}) {
  bool aligned = dim % ::decant::detail::per_access<T> == 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += row_threads) {
    const T* const row = rows(i);
    aligned = aligned && reinterpret_cast<std::uintptr_t>(row) % 16 == 0;
    pointers[i] = row;
  }
  const int stride = row_stride(dim);
  if (__syncthreads_and(aligned)) {
    load_rows<T, true>(pointers, count, 0, dim, dim, tile, stride, change);
  } else {
    load_rows<T>(pointers, count, 0, (dim + 3) / 4 * 4, dim, tile, stride, change);
  }
  __syncthreads();
}

/// A tile of one head's keys in shared memory.
struct KeyTile {
  index_t head;
  index_t first;  // token of row 0
  int count;      // keys that are there; the rows behind them are zero
  int rows;
  int dim;
  int stride;   // of the rows
  float* keys;  // [rows][stride]
};

/// Where the tile of block (tile, head) lies, before it is loaded; `most` bounds the head's length. For kernels that
/// return at once when its count is 0: with that in load_key_tile, nvcc 13 spends 40 more registers.
template <class X>
__device__ KeyTile key_tile(const X& x, const RowTiling& tiling, index_t most, float4* shared) {
  const index_t h = blockIdx.y;
  const index_t first = blockIdx.x * index_t{tiling.rows};
  const index_t length = x.length(h);
  const index_t left = (length < most ? length : most) - first;
  const int count = left <= 0 ? 0 : left < tiling.rows ? static_cast<int>(left) : tiling.rows;
  const int dim = static_cast<int>(x.cache.key_dim());
  return {h, first, count, tiling.rows, dim, row_stride(dim), &shared->x};
}

/// Waits for the block.
template <class T, class X>
__device__ void load_key_tile(const X& x, const KeyTile& tile) {
  const RowBuffers<T, T> buffers(tile.keys, tile.stride, tile.rows, 0);
  load_tile<T>(buffers.rows, tile.rows, tile.dim, tile.keys,
               [&](int i) { return i < tile.count ? x.cache.key(x.sequence, tile.head, tile.first + i) : nullptr; });
}

/// out[i] = tile row i . (its own row, or one vector for all; zero from dim to a multiple of 4) for i < count, a
/// multiple of 4; 8 lanes per row. All threads call it, whole warps at least.
template <bool Squares>
__device__ void row_dots(const float* tile, int stride, const float* vector, int count, int dim, float* out) {
  const int part = static_cast<int>(threadIdx.x) % 8;
  for (int i = static_cast<int>(threadIdx.x) / 8; i < count; i += row_threads / 8) {
    float sum = 0;
    for (int d = 4 * part; d < dim; d += 32) {
      const float4 x = *reinterpret_cast<const float4*>(tile + i * stride + d);
      const float4 y = Squares ? x : *reinterpret_cast<const float4*>(vector + d);
      sum = fmaf(x.x, y.x, fmaf(x.y, y.y, fmaf(x.z, y.z, fmaf(x.w, y.w, sum))));
    }
    sum = ::decant::detail::warp_reduce<8>(sum, Plus{});
    if (part == 0) out[i] = sum;
  }
}

/// Squared lengths of the tile's rows.
__device__ inline void tile_squares(const float* tile, int stride, int count, int dim, float* out) {
  row_dots<true>(tile, stride, nullptr, count, dim, out);
}

/// The tile's rows times one vector.
__device__ inline void tile_dots(const float* tile, int stride, const float* vector, int count, int dim, float* out) {
  row_dots<false>(tile, stride, vector, count, dim, out);
}

/// sum[i][j] = tile row (y + 16 i) . other row (x + 16 j) over columns [0, dim); dim: up to where the other rows are
/// not zero. others: pointers in shared memory, 16 * Others of them, set and waited for. Ends with a wait, so that the
/// pointers and the chunk are free again.
template <int Rows, int Others, class U>
__device__ void tile_product(const float* tile, int stride, const U* const* others, int dim, float* chunk,
                             float (&sum)[Rows][Others]) {
  const int y = threadIdx.x / 16;
  const int x = threadIdx.x % 16;
#pragma unroll
  for (int i = 0; i < Rows; ++i) {
#pragma unroll
    for (int j = 0; j < Others; ++j) sum[i][j] = 0;
  }
  const int reach = (dim + 3) / 4 * 4;
  for (int first = 0; first < reach; first += other_chunk) {
    const int width = first + other_chunk < reach ? other_chunk : reach - first;
    load_rows<U>(others, 16 * Others, first, width, dim, chunk, other_stride);
    __syncthreads();
    for (int d = 0; d < width; d += 4) {
      float4 b[Others];
#pragma unroll
      for (int j = 0; j < Others; ++j) {
        b[j] = *reinterpret_cast<const float4*>(chunk + (x + 16 * j) * other_stride + d);
      }
#pragma unroll
      for (int i = 0; i < Rows; ++i) {
        const float4 a = *reinterpret_cast<const float4*>(tile + (y + 16 * i) * stride + first + d);
#pragma unroll
        for (int j = 0; j < Others; ++j) {
          sum[i][j] = fmaf(a.x, b[j].x, sum[i][j]);
          sum[i][j] = fmaf(a.y, b[j].y, sum[i][j]);
          sum[i][j] = fmaf(a.z, b[j].z, sum[i][j]);
          sum[i][j] = fmaf(a.w, b[j].w, sum[i][j]);
        }
      }
    }
    __syncthreads();
  }
}

}  // namespace decant::kv::detail

#endif
