// decant: rows of K and V on their way to shared memory: asynchronous 16-byte copies where rows are aligned for them,
// element by element where not, and load_row for caches whose rows are not plain arrays.
#ifndef DECANT_ATTENTION_DETAIL_DENSE_COPY_CUH
#define DECANT_ATTENTION_DETAIL_DENSE_COPY_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include <cstdint>
#include <type_traits>

#include "../../core/detail/device.cuh"
#include "../../kv/cache_view.hpp"
#include "dense_plan.cuh"
#include "../../core/detail/mma.cuh"

namespace decant::attention::detail {

using ::decant::detail::Pack;
using ::decant::detail::per_access;

/// What stands in shared memory: the cache's own elements where its rows are plain, else floats.
template <class C>
struct SharedRow {
  using type = float;
};
template <kv::PlainCacheView C>
struct SharedRow<C> {
  using type = std::remove_cv_t<std::remove_pointer_t<kv::row_t<C>>>;
};
template <class C>
using shared_row_t = typename SharedRow<C>::type;

__device__ inline std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

__device__ inline void copy_16_async(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared)), "l"(global) : "memory");
}
__device__ inline void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Until at most Newer of the committed groups are under way.
template <int Newer>
__device__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Newer) : "memory");
}

/// Copies `count` rows of `dim` elements to rows of `vectors` 16-byte vectors at `stride` elements, and zeros behind
/// the end of a row. rows: pointers in shared memory. aligned: whether every row is for 16-byte accesses, ends
/// included. All Threads of the block take part; nothing is waited for.
template <int Threads, class T>
__device__ void copy_rows(const T* const* rows, int count, int dim, T* to, int stride, int vectors, bool aligned) {
  constexpr int width = per_access<T>;
  const int lanes = vectors > 16 ? 32 : vectors > 8 ? 16 : vectors > 4 ? 8 : vectors > 2 ? 4 : vectors;  // per row
  const int step = Threads / lanes;
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const int first = static_cast<int>(threadIdx.x) / lanes;
  const int whole = aligned ? dim / width : 0;  // vectors that are copied as such
  for (int v = lane; v < whole; v += lanes) {
    T* at = to + first * stride + v * width;
#pragma unroll 4
    for (int row = first; row < count; row += step, at += step * stride) copy_16_async(at, rows[row] + v * width);
  }
  for (int v = whole + lane; v < vectors; v += lanes) {
    for (int row = first; row < count; row += step) {
      const T* const from = rows[row] + v * width;
      Pack<T, width> pack;
#pragma unroll
      for (int e = 0; e < width; ++e) pack.at[e] = v * width + e < dim ? from[e] : T(0.0f);
      *reinterpret_cast<Pack<T, width>*>(to + row * stride + v * width) = pack;
    }
  }
}

/// Where a token's rows lie.
template <class T>
struct TokenRows {
  const T* key;
  const T* value;
};

template <kv::PlainCacheView C>
__device__ auto rows_of_token(const C& c, index_t s, index_t h, index_t t, FaultWord*) {
  return TokenRows<shared_row_t<C>>{c.key(s, h, t), c.value(s, h, t)};
}
/// A page that does not exist is reported, and another read for it.
template <class T>
__device__ auto rows_of_token(const kv::PagedKV<T>& c, index_t s, index_t h, index_t t, FaultWord* fault) {
  const unsigned token = static_cast<unsigned>(t);  // lengths are below 2^31
  const unsigned page = token / static_cast<unsigned>(c.page_size());
  const index_t slot = token - page * static_cast<unsigned>(c.page_size());
  index_t id = c.indices[c.indptr[s] + index_t{page}];
  if (id < 0 || id >= c.pages()) {
    report(fault, Fault::page_table, 0, h, t);
    id = 0;
  }
  return TokenRows<std::remove_const_t<T>>{&c.keys(id, h, slot, index_t{0}), &c.values(id, h, slot, index_t{0})};
}

/// What tensor cores take for a cache's element: 8-bit floats become fp16, which holds them all.
template <class T>
struct MmaElement {
  using type = T;
};
template <>
struct MmaElement<fp8_e4m3> {
  using type = fp16;
};
template <>
struct MmaElement<fp8_e5m2> {
  using type = fp16;
};
template <class T>
using mma_element_t = typename MmaElement<T>::type;
template <class T>
inline constexpr bool has_mma = sizeof(T) <= 2;

/// Two 8-bit floats as two fp16, in the same order.
__device__ inline std::uint32_t halves_of(fp8_e4m3, std::uint32_t pair) {
#if __CUDA_ARCH__ >= 890
  std::uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<std::uint16_t>(pair)));
  return halves;
#else
  return ::decant::detail::narrow_pair(fp16{}, ::decant::detail::widen(fp8_e4m3::from_bits(static_cast<std::uint8_t>(pair))),
                     ::decant::detail::widen(fp8_e4m3::from_bits(static_cast<std::uint8_t>(pair >> 8))));
#endif
}
__device__ inline std::uint32_t halves_of(fp8_e5m2, std::uint32_t pair) {
  return (pair & 0xffu) << 8 | (pair & 0xff00u) << 16;
}

/// As copy_rows, from rows of 8-bit floats to rows of fp16, two vectors for 16 elements; `vectors` is even. The copies
/// are not asynchronous, but several loads are under way at once.
template <int Threads, class T>
__device__ void copy_rows_as_halves(const T* const* rows, int count, int dim, fp16* to, int stride, int vectors,
                                    bool aligned) {
  const int steps = vectors / 2;  // of 16 elements
  const int lanes = steps > 16 ? 32 : steps > 8 ? 16 : steps > 4 ? 8 : steps > 2 ? 4 : steps;
  const int step = Threads / lanes;
  const int whole = aligned ? dim / 16 : 0;
  const auto store = [&](int row, int v, const Pack<std::uint32_t, 4>& bytes) {
    Pack<std::uint32_t, 4> halves[2];
#pragma unroll
    for (int i = 0; i < 8; ++i) halves[i / 4].at[i % 4] = halves_of(T{}, bytes.at[i / 2] >> 16 * (i % 2));
    auto* const at = reinterpret_cast<Pack<std::uint32_t, 4>*>(to + row * stride + v * 16);
    at[0] = halves[0];
    at[1] = halves[1];
  };
  for (int v = static_cast<int>(threadIdx.x) % lanes; v < steps; v += lanes) {
    const int first = static_cast<int>(threadIdx.x) / lanes;
    if (v < whole) {
#pragma unroll(Threads > 128 ? 2 : 4)
      for (int row = first; row < count; row += step)
        store(row, v, *reinterpret_cast<const Pack<std::uint32_t, 4>*>(rows[row] + v * 16));
    } else {
#pragma unroll 1
      for (int row = first; row < count; row += step) {
#pragma unroll 1
        for (int d = v * 16; d < v * 16 + 16; ++d) {
          const std::uint32_t bits = d < dim ? rows[row][d].bits : 0u;
          to[row * stride + d] = fp16::from_bits(static_cast<std::uint16_t>(halves_of(T{}, bits)));
        }
      }
    }
  }
}

/// copy_rows to rows of the same elements, or copy_rows_as_halves.
template <int Threads, class T, class To>
__device__ void copy_rows_as(const T* const* rows, int count, int dim, To* to, int stride, int vectors, bool aligned) {
  if constexpr (std::is_same_v<To, T>)
    copy_rows<Threads>(rows, count, dim, to, stride, vectors, aligned);
  else
    copy_rows_as_halves<Threads>(rows, count, dim, to, stride, vectors, aligned);
}

/// Brings tokens of one sequence and head to shared memory. `locate` finds out where rows lie, one token per thread,
/// so that a page table is asked once per token; `copy_keys` and `copy_values`, after a barrier, start the copies.
template <class C, int Threads>
class RowLoader {
 public:
  using T = shared_row_t<C>;

  /// `pointers`: room for 2 * block pointers in shared memory.
  __device__ RowLoader(const C& cache, index_t sequence, index_t head, const T** pointers, int block, bool aligned,
                       FaultWord* fault)
      : cache_(cache),
        sequence_(sequence),
        head_(head),
        pointers_(pointers),
        block_(block),
        aligned_(aligned),
        fault_(fault) {}

  __device__ void locate(index_t first, int count) {
    first_ = first;
    if constexpr (kv::PlainCacheView<C>) {
      for (int i = static_cast<int>(threadIdx.x); i < count; i += Threads) {
        const TokenRows<T> rows = rows_of_token(cache_, sequence_, head_, first + i, fault_);
        pointers_[i] = rows.key;
        pointers_[block_ + i] = rows.value;
      }
    }
  }

  /// To: the rows' own elements, or fp16 for 8-bit ones.
  template <class To>
  __device__ void copy_keys(int count, To* to, int stride, int vectors) const {
    if constexpr (kv::PlainCacheView<C>) {
      copy_rows_as<Threads>(pointers_, count, static_cast<int>(cache_.key_dim()), to, stride, vectors, aligned_);
    } else {
      widen_rows(count, cache_.key_dim(), to, stride, vectors,
                 [&](index_t t) { return cache_.key(sequence_, head_, t); });
    }
  }

  template <class To>
  __device__ void copy_values(int count, To* to, int stride, int vectors) const {
    if constexpr (kv::PlainCacheView<C>) {
      copy_rows_as<Threads>(pointers_ + block_, count, static_cast<int>(cache_.value_dim()), to, stride, vectors,
                            aligned_);
    } else {
      widen_rows(count, cache_.value_dim(), to, stride, vectors,
                 [&](index_t t) { return cache_.value(sequence_, head_, t); });
    }
  }

 private:
  /// One row per thread.
  template <class Row>
  __device__ void widen_rows(int count, index_t dim, float* to, int stride, int vectors, Row row) const {
    for (int j = static_cast<int>(threadIdx.x); j < count; j += Threads) {
      load_row(row(first_ + j), dim, to + j * stride);
      for (index_t d = dim; d < vectors * per_access<float>; ++d) to[j * stride + d] = 0;
    }
  }

  const C& cache_;
  index_t sequence_;
  index_t head_;
  index_t first_ = 0;
  const T** pointers_;
  int block_;
  bool aligned_;
  FaultWord* fault_;
};

}  // namespace decant::attention::detail

#endif
