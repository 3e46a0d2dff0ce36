// decant: the sum of listed value rows on Cuda, for up to 8 query heads that share a KV head: what every method that
// reads some rows only does with them. A thread has 16 bytes of every few rows, several of them in flight, and what
// threads have summed apart is joined in one order. Each row is read once: value_dim * sizeof(T) bytes and
// 2 * value_dim FLOPs for every query head.
#ifndef DECANT_ATTENTION_DETAIL_SPARSE_GATHER_ROWS_CUH
#define DECANT_ATTENTION_DETAIL_SPARSE_GATHER_ROWS_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "dense_copy.cuh"
#include "dense_work.cuh"

namespace decant::attention::detail {

inline constexpr int gather_threads = 128;
/// Rows that are widened at once where a cache's rows are no plain arrays.
inline constexpr int gather_wide = 16;

/// Elements of a row that a thread has: 16 bytes, but no more than 8.
template <class T>
inline constexpr int gather_width = per_access<T> < 8 ? per_access<T> : 8;

/// Where things lie in shared memory, in bytes from the sum's own beginning.
struct GatherLayout {
  int pointers;  // of the listed rows
  int wide;      // [gather_wide][vectors * width], rows that are no plain arrays
  int sums;
  int bytes;
};

template <class C>
GatherLayout gather_layout(index_t value_dim, int rows, int most_listed) {
  using T = shared_row_t<C>;
  constexpr int width = gather_width<T>;
  GatherLayout w{};
  int used = 0;
  const auto take = [&](index_t bytes) {
    const int at = used;
    used += static_cast<int>((bytes + 31) / 32 * 32);
    return at;
  };
  w.pointers = take(kv::PlainCacheView<C> ? most_listed * 8 : 0);
  w.wide = take(kv::PlainCacheView<C> ? 0 : gather_wide * ceil_div(value_dim, width) * width * 4);
  w.sums = take(gather_threads * width * rows * 4);
  w.bytes = used;
  return w;
}

/// A block's sum over a list of rows of one sequence and KV head.
template <int Rows, class C>
class GatherRows {
 public:
  using T = shared_row_t<C>;
  static constexpr int width = gather_width<T>;

  __device__ GatherRows(const C& cache, const GatherLayout& layout, unsigned char* shared, bool aligned,
                        FaultWord* fault)
      : cache_(cache), w_(layout), shared_(shared), aligned_(aligned), fault_(fault) {}

  /// Says that row j of the list is this token's. A barrier must follow.
  __device__ void name(int j, index_t sequence, index_t head, index_t token) const {
    if constexpr (kv::PlainCacheView<C>)
      reinterpret_cast<const T**>(shared_ + w_.pointers)[j] =
          rows_of_token(cache_, sequence, head, token, fault_).value;
  }

  /// write(r, d, sum of weight(j)[r] * row j over j < count) for r < Rows and d < value_dim, rounded up to 4. token(j):
  /// as it was named. KeepZeros: a weight of 0 still multiplies its row. Begins with no barrier and ends with one.
  template <bool KeepZeros, class Token, class Weight, class Write>
  __device__ void sum(int count, index_t sequence, index_t head, Token token, Weight weight, Write write) const {
    const int dim = static_cast<int>(cache_.value_dim());
    const int vectors = (dim + width - 1) / width;
    for (int strip = 0; strip < vectors; strip += gather_threads) {
      const int here = vectors - strip < gather_threads ? vectors - strip : gather_threads;
      const int groups = gather_threads / here;
      const int group = static_cast<int>(threadIdx.x) / here;
      const int vector = strip + static_cast<int>(threadIdx.x) % here;
      float sums[Rows][width];
#pragma unroll
      for (int r = 0; r < Rows; ++r)
#pragma unroll
        for (int e = 0; e < width; ++e) sums[r][e] = -0.0f;  // -0 + x has the bits of x, 0 + x not always
      if constexpr (kv::PlainCacheView<C>) {
        const T* const* const rows = reinterpret_cast<const T* const*>(shared_ + w_.pointers);
        if (group < groups) {
#pragma unroll 4
          for (int j = group; j < count; j += groups)
            add<KeepZeros>(load(rows[j] + vector * width, dim - vector * width), weight(j), sums);
        }
      } else {
        float* const wide = reinterpret_cast<float*>(shared_ + w_.wide);
        for (int first = 0; first < count; first += gather_wide) {
          const int some = count - first < gather_wide ? count - first : gather_wide;
          __syncthreads();
          if (static_cast<int>(threadIdx.x) < some) {
            float* const to = wide + static_cast<int>(threadIdx.x) * vectors * width;
            load_row(cache_.value(sequence, head, token(first + static_cast<int>(threadIdx.x))), dim, to);
            for (int d = dim; d < vectors * width; ++d) to[d] = 0;
          }
          __syncthreads();
          if (group >= groups) continue;
          for (int j = group; j < some; j += groups) {
            const float* const from = wide + (j * vectors + vector) * width;
            Pack<float, width> x;
#pragma unroll
            for (int e = 0; e < width; ++e) x.at[e] = from[e];
            add<KeepZeros>(x, weight(first + j), sums);
          }
        }
      }
      join(strip * width, here, groups, group, sums, write);
    }
  }

 private:
  /// A vector, of which `left` elements and more lie in the row.
  __device__ Pack<float, width> load(const T* from, int left) const {
    Pack<T, width> raw;
    if (aligned_) {
      raw = *reinterpret_cast<const Pack<T, width>*>(from);
    } else {
#pragma unroll
      for (int e = 0; e < width; ++e) raw.at[e] = e < left ? from[e] : T(0.0f);
    }
    Pack<float, width> x;
#pragma unroll
    for (int e = 0; e < width; ++e) x.at[e] = widen(raw.at[e]);
    return x;
  }

  template <bool KeepZeros>
  __device__ static void add(const Pack<float, width>& x, const Pack<float, Rows>& weights,
                             float (&sums)[Rows][width]) {
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
      if (!KeepZeros && weights.at[r] == 0) continue;
#pragma unroll
      for (int e = 0; e < width; ++e) sums[r][e] += weights.at[r] * x.at[e];
    }
  }

  template <class Write>
  __device__ void join(int first, int vectors, int groups, int group, const float (&sums)[Rows][width],
                       Write write) const {
    float* const all = reinterpret_cast<float*>(shared_ + w_.sums);
    const int stride = vectors * width;
    const int own = static_cast<int>(threadIdx.x) % vectors * width;
    if (group < groups) {
#pragma unroll
      for (int r = 0; r < Rows; ++r)
#pragma unroll
        for (int e = 0; e < width; ++e) all[(group * Rows + r) * stride + own + e] = sums[r][e];
    }
    __syncthreads();
    const int left = (static_cast<int>(cache_.value_dim()) + 3) / 4 * 4 - first;
    const int dim = left < stride ? left : stride;
    for (int i = static_cast<int>(threadIdx.x); i < Rows * dim; i += gather_threads) {
      const int r = i / dim;
      const int d = i % dim;
      float total = -0.0f;
      for (int g = 0; g < groups; ++g) total += all[(g * Rows + r) * stride + d];
      write(r, first + d, total);
    }
    __syncthreads();
  }

  const C& cache_;
  const GatherLayout& w_;
  unsigned char* shared_;
  bool aligned_;
  FaultWord* fault_;
};

}  // namespace decant::attention::detail

#endif
