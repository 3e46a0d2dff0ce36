// decant: write() and append() on Cuda: the CPU's bytes. Lengths are read, checked and raised on the device, so a
// captured call goes on at the sequence's end. A paged cache's table is the host's to extend: extend PageTable, upload
// its arrays, then write_last(), which stores rows as the last tokens that the table counts, or write().
// Moves each new row once: (key_dim + value_dim) * (sizeof(S) + sizeof(T)) bytes per token and head.
#ifndef DECANT_KV_WRITE_CUH
#define DECANT_KV_WRITE_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "detail/check_kept.cuh"
#include "detail/head_rows.cuh"
#include "detail/row_copy.cuh"
#include "write.hpp"

namespace decant::kv {

namespace detail {

/// Where new rows of a head begin: at `first`, or, for first = -1, so that they are its last.
struct NewRows {
  index_t sequence;
  index_t tokens;
  index_t first;

  template <class C>
  __device__ index_t begin(const C& cache, index_t h) const {
    return first >= 0 ? first : cache.length(sequence, h) - tokens;
  }
};

template <class T>
__device__ index_t capacity_of(const DenseKV<T>& cache, index_t, index_t) {
  return cache.capacity();
}
template <class T>
__device__ index_t capacity_of(const RaggedKV<T>& cache, index_t s, index_t h) {
  return cache.capacity(s, h);
}

/// Checks the cache and that all heads hold the rows' place. One block.
template <class C>
__global__ void __launch_bounds__(stage_threads) check_place(const C cache, NewRows rows, FaultWord* fault) {
  if (__syncthreads_or(!check_cache(cache, fault)) != 0) return;
  for (index_t h = threadIdx.x; h < cache.kv_heads(); h += blockDim.x) {
    const index_t begin = rows.begin(cache, h);
    const index_t length = cache.length(rows.sequence, h);
    if (begin < 0 || begin > length - rows.tokens) report(fault, Fault::place, 0, h, length);
  }
}

/// Checks the cache and its room, and then raises the lengths. One block, so that what it reports is known to it when
/// it goes on; what earlier calls reported, one thread reads before.
template <class C>
__global__ void __launch_bounds__(stage_threads) raise_lengths(const C cache, NewRows rows, FaultWord* fault) {
  __shared__ int before;
  if (threadIdx.x == 0) before = faulted(fault) ? 1 : 0;
  __syncthreads();
  if (before != 0) return;
  if (__syncthreads_or(!check_cache(cache, fault)) != 0) return;
  bool good = true;
  for (index_t h = threadIdx.x; h < cache.kv_heads(); h += blockDim.x) {
    const index_t room = capacity_of(cache, rows.sequence, h) - cache.length(rows.sequence, h);
    if (rows.tokens <= room) continue;
    report(fault, Fault::room, 0, h, room);
    good = false;
  }
  if (__syncthreads_or(!good) != 0) return;
  const bool one_for_all = requires { cache.capacity(); };
  for (index_t h = threadIdx.x; h < cache.kv_heads(); h += blockDim.x) {
    if (one_for_all && h > 0) break;
    cache.lengths[one_for_all ? rows.sequence : rows.sequence * cache.kv_heads() + h] +=
        static_cast<std::int32_t>(rows.tokens);
  }
}

/// Block (tokens, 2 * head + (0: keys, 1: values)).
template <int Unit, class C, class S>
__global__ void __launch_bounds__(copy_threads)
    store_kernel(const C cache, NewRows rows, View<S, 3> keys, View<S, 3> values, index_t per_block,
                 const FaultWord* fault) {
  if (faulted(fault)) return;
  const index_t h = blockIdx.y / 2;
  const bool is_key = blockIdx.y % 2 == 0;
  const index_t first = blockIdx.x * per_block;
  const index_t left = rows.tokens - first;
  const index_t begin = rows.begin(cache, h);
  const int units = static_cast<int>((is_key ? cache.key_dim() : cache.value_dim()) / Unit);
  const StridedRows<S> from{data_of(keys, values, is_key) + h * stride_of(keys, values, is_key, 1),
                            stride_of(keys, values, is_key, 0)};
  const auto to = head_rows(cache, rows.sequence, h, is_key);
  copy_block<Unit>(left < per_block ? left : per_block, units, [&](int r) {
    return RowPair<std::remove_const_t<S>, element_of<C>>{from(first + r), to(begin + first + r)};
  });
}

template <int Unit, class C, class S>
void launch_store(Cuda& cuda, const C& cache, const NewRows& rows, const View<S, 3>& keys, const View<S, 3>& values,
                  const char* where) {
  const index_t dim = cache.key_dim() > cache.value_dim() ? cache.key_dim() : cache.value_dim();
  const index_t per_block = copy_rows_per_block(dim / Unit);
  const CudaGrid grid{dim3(cuda_blocks(rows.tokens, per_block), static_cast<unsigned>(2 * cache.kv_heads())),
                      dim3(copy_threads)};
  launch(cuda, where, store_kernel<Unit, C, S>, grid, cache, rows, keys, values, per_block, cuda.fault());
}

/// Stores rows whose place was checked before.
template <class C, class S>
void store_rows(Cuda& cuda, const C& cache, const NewRows& rows, const View<S, 3>& keys, const View<S, 3>& values,
                const char* where) {
  constexpr int unit = row_unit<std::remove_const_t<S>, element_of<C>>;
  if (cache_aligned(cache, unit) && rows_aligned(keys, unit) && rows_aligned(values, unit)) {
    launch_store<unit>(cuda, cache, rows, keys, values, where);
  } else {
    launch_store<1>(cuda, cache, rows, keys, values, where);
  }
}

/// What the host can check of new rows.
template <class C, class S>
void require_new_rows(const C& cache, index_t sequence, const View<S, 3>& keys, const View<S, 3>& values,
                      const char* where) {
  require_cache(cache);
  require_sequence(cache, sequence, where);
  require(cache.kv_heads() <= 32767, where, "cache", "at most 32767 heads", cache.kv_heads());
  require_equal(keys.extent(1), cache.kv_heads(), where, "keys");
  require_equal(keys.extent(2), cache.key_dim(), where, "keys");
  require_equal(values.extent(0), keys.extent(0), where, "values");
  require_equal(values.extent(1), cache.kv_heads(), where, "values");
  require_equal(values.extent(2), cache.value_dim(), where, "values");
  require(keys.stride(2) == 1, where, "keys", "stride 1 along the head dim", keys.stride(2));
  require(values.stride(2) == 1, where, "values", "stride 1 along the head dim", values.stride(2));
}

template <class C, class S>
void write_rows(Cuda& cuda, const C& cache, const NewRows& rows, const View<S, 3>& keys, const View<S, 3>& values,
                const char* where) {
  require_new_rows(cache, rows.sequence, keys, values, where);
  launch(cuda, where, check_place<C>, CudaGrid{dim3(1), dim3(stage_threads)}, cache, rows, cuda.fault());
  store_rows(cuda, cache, rows, keys, values, where);
}

template <class C, class S>
void append_rows(Cuda& cuda, const C& cache, index_t sequence, const View<S, 3>& keys, const View<S, 3>& values) {
  constexpr const char* where = "kv::append";
  require_new_rows(cache, sequence, keys, values, where);
  const NewRows rows{sequence, keys.extent(0), -1};
  launch(cuda, where, raise_lengths<C>, CudaGrid{dim3(1), dim3(stage_threads)}, cache, rows, cuda.fault());
  store_rows(cuda, cache, rows, keys, values, where);
}

}  // namespace detail

/// Stores keys [tokens, kv_heads, key_dim] and values [tokens, kv_heads, value_dim] at the token positions
/// first ... first + tokens - 1, which must be below every head's length; see write.hpp. Everything but `first` is on
/// the device.
template <PlainCacheView C, class S>
  requires(!std::is_const_v<std::remove_pointer_t<row_t<C>>> && detail::RowsFor<S, std::remove_pointer_t<row_t<C>>>)
void write(Cuda& cuda, const C& cache, index_t sequence, index_t first, View<S, 3> keys,
           View<std::type_identity_t<S>, 3> values) {
  constexpr const char* where = "kv::write";
  require(first >= 0, where, "first", "a position of at least 0", first);
  detail::write_rows(cuda, cache, {sequence, keys.extent(0), first}, keys, values, where);
}

/// The same as the last tokens of every head, which the cache counts already: behind a table that was extended.
template <PlainCacheView C, class S>
  requires(!std::is_const_v<std::remove_pointer_t<row_t<C>>> && detail::RowsFor<S, std::remove_pointer_t<row_t<C>>>)
void write_last(Cuda& cuda, const C& cache, index_t sequence, View<S, 3> keys,
                View<std::type_identity_t<S>, 3> values) {
  detail::write_rows(cuda, cache, {sequence, keys.extent(0), -1}, keys, values, "kv::write_last");
}

/// Adds tokens at the end of a sequence: raises its length on the device, then writes.
template <class T, class S>
  requires(!std::is_const_v<T> && detail::RowsFor<S, T>)
void append(Cuda& cuda, const DenseKV<T>& cache, index_t sequence, View<S, 3> keys,
            View<std::type_identity_t<S>, 3> values) {
  detail::append_rows(cuda, cache, sequence, keys, values);
}

/// The same for a ragged cache: every head grows by the same tokens, each behind its own end.
template <class T, class S>
  requires(!std::is_const_v<T> && detail::RowsFor<S, T>)
void append(Cuda& cuda, const RaggedKV<T>& cache, index_t sequence, View<S, 3> keys,
            View<std::type_identity_t<S>, 3> values) {
  detail::append_rows(cuda, cache, sequence, keys, values);
}

}  // namespace decant::kv

#endif
