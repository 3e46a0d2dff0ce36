// decant: where the rows of one head's keys or values lie, worked out once per thread: kernels that move rows need the
// address of each, and the caches' own accessors divide 64-bit numbers for every one.
#ifndef DECANT_KV_DETAIL_HEAD_ROWS_CUH
#define DECANT_KV_DETAIL_HEAD_ROWS_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "../dense_kv.hpp"
#include "../paged_kv.hpp"
#include "../ragged_kv.hpp"

namespace decant::kv::detail {

/// Row t at base + t * stride.
template <class T>
struct StridedRows {
  T* base;
  index_t stride;

  __device__ T* operator()(index_t t) const { return base + t * stride; }
};

/// Row t in page table[t / page_size].
template <class T, class Page>
struct PagedRows {
  T* base;
  index_t stride;
  index_t page_stride;
  Page* table;
  index_t table_stride;
  std::uint32_t page_size;

  __device__ T* operator()(index_t t) const {
    const std::uint32_t page = static_cast<std::uint32_t>(t) / page_size;
    const std::uint32_t slot = static_cast<std::uint32_t>(t) - page * page_size;
    return base + table[page * table_stride] * page_stride + slot * stride;
  }
};

/// Any other plain cache.
template <class C>
struct CacheHeadRows {
  const C& cache;
  index_t sequence, head;
  bool keys;

  __device__ auto* operator()(index_t t) const {
    return keys ? cache.key(sequence, head, t) : cache.value(sequence, head, t);
  }
};

/// Of two views that kernels hold as parameters, field by field: a reference to either would copy both to the stack.
template <class T, int Rank>
__device__ T* data_of(const View<T, Rank>& keys, const View<T, Rank>& values, bool is_key) {
  return is_key ? keys.data() : values.data();
}
template <class T, int Rank>
__device__ index_t stride_of(const View<T, Rank>& keys, const View<T, Rank>& values, bool is_key, int r) {
  return is_key ? keys.stride(r) : values.stride(r);
}

template <class C>
__device__ CacheHeadRows<C> head_rows(const C& cache, index_t s, index_t h, bool keys) {
  return {cache, s, h, keys};
}
template <class T>
__device__ StridedRows<T> head_rows(const DenseKV<T>& c, index_t s, index_t h, bool keys) {
  const auto stride = [&](int r) { return stride_of(c.keys, c.values, keys, r); };
  return {data_of(c.keys, c.values, keys) + s * stride(0) + h * stride(1), stride(2)};
}
template <class T>
__device__ StridedRows<T> head_rows(const RaggedKV<T>& c, index_t s, index_t h, bool keys) {
  const index_t stride = stride_of(c.keys, c.values, keys, 0);
  return {data_of(c.keys, c.values, keys) + c.offsets[s * c.heads + h] * stride, stride};
}
template <class T>
__device__ auto head_rows(const PagedKV<T>& c, index_t s, index_t h, bool keys) {
  using Page = typename PagedKV<T>::table_type;
  const auto stride = [&](int r) { return stride_of(c.keys, c.values, keys, r); };
  return PagedRows<T, Page>{data_of(c.keys, c.values, keys) + h * stride(1),
                            stride(2),
                            stride(0),
                            c.indices.data() + c.indptr[s] * c.indices.stride(0),
                            c.indices.stride(0),
                            static_cast<std::uint32_t>(c.page_size())};
}

}  // namespace decant::kv::detail

#endif
