// decant: kernels that copy kept rows of a cache to another place, and what they check first.
#ifndef DECANT_KV_DETAIL_GATHER_KERNELS_CUH
#define DECANT_KV_DETAIL_GATHER_KERNELS_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "check_kept.cuh"
#include "head_rows.cuh"
#include "row_copy.cuh"

namespace decant::kv::detail {

/// Where rows go: a sequence of a cache, or plain views of it [kv_heads, capacity, dim].
template <class D>
struct CacheRows {
  D cache;
  index_t sequence;

  __device__ auto rows(index_t h, bool of_keys) const { return head_rows(cache, sequence, h, of_keys); }
};
template <class T>
struct ViewRows {
  View<T, 3> keys;
  View<T, 3> values;

  __device__ StridedRows<T> rows(index_t h, bool of_keys) const {
    return {data_of(keys, values, of_keys) + h * stride_of(keys, values, of_keys, 0),
            stride_of(keys, values, of_keys, 1)};
  }
};

/// How many rows of a head there is room for; exactly: no fewer either.
template <class T>
__device__ index_t room_of(const CacheRows<DenseKV<T>>& out, index_t) {
  return out.cache.capacity();
}
template <class T>
__device__ index_t room_of(const CacheRows<RaggedKV<T>>& out, index_t h) {
  return out.cache.capacity(out.sequence, h);
}
template <class T>
__device__ index_t room_of(const CacheRows<PagedKV<T>>& out, index_t h) {
  return out.cache.length(out.sequence, h);
}

/// Checks the target's tables and its room. One block. exact: the room must be just the count (paged targets).
template <class D>
__global__ void __launch_bounds__(stage_threads)
    check_target(const CacheRows<D> out, const KeptHead* heads, bool exact, FaultWord* fault) {
  if (__syncthreads_or(!check_cache(out.cache, fault)) != 0) return;
  for (index_t h = threadIdx.x; h < out.cache.kv_heads(); h += blockDim.x) {
    const index_t room = room_of(out, h);
    if (exact ? heads[h].count != room : heads[h].count > room) report(fault, Fault::room, 0, h, heads[h].count);
  }
}

/// The same for plain views with room for `room` rows.
template <int Threads>
__global__ void __launch_bounds__(Threads)
    check_room(index_t kv_heads, const KeptHead* heads, index_t room, FaultWord* fault) {
  const index_t h = grid_token();
  if (h < kv_heads && heads[h].count > room) report(fault, Fault::room, 0, h, heads[h].count);
}

/// Block (rows, 2 * head + (0: keys, 1: values)).
template <int Unit, class C, class Out>
__global__ void __launch_bounds__(copy_threads)
    gather_kernel(const C cache, index_t sequence, KeptView kept, const KeptHead* heads, const Out out, index_t rows,
                  const FaultWord* fault) {
  if (faulted(fault)) return;
  const index_t h = blockIdx.y / 2;
  const bool keys = blockIdx.y % 2 == 0;
  const index_t first = blockIdx.x * rows;
  const index_t left = heads[h].count - first;
  const int units = static_cast<int>((keys ? cache.key_dim() : cache.value_dim()) / Unit);
  const auto from = head_rows(cache, sequence, h, keys);
  const auto to = out.rows(h, keys);
  using To = std::remove_pointer_t<decltype(to(0))>;
  copy_block<Unit>(left < rows ? left : rows, units, [&](int r) {
    return RowPair<element_of<C>, To>{from(kept.token(h, first + r)), to(first + r)};
  });
}

/// For rows that only load_row reads: a thread widens a row into shared memory, then its warp rounds it to the target's
/// type. Block: one warp and one row of keys or values.
template <class C, class Out>
__global__ void __launch_bounds__(32)
    gather_handles(const C cache, index_t sequence, KeptView kept, const KeptHead* heads, const Out out,
                   const FaultWord* fault) {
  extern __shared__ float widened[];
  if (faulted(fault)) return;
  const index_t h = blockIdx.y / 2;
  const bool keys = blockIdx.y % 2 == 0;
  const index_t i = blockIdx.x;
  if (i >= heads[h].count) return;
  const index_t t = kept.token(h, i);
  const index_t dim = keys ? cache.key_dim() : cache.value_dim();
  if (threadIdx.x == 0) {
    if (keys) load_row(cache.key(sequence, h, t), dim, widened);
    if (!keys) load_row(cache.value(sequence, h, t), dim, widened);
  }
  __syncwarp();
  auto* const to = out.rows(h, keys)(i);
  using To = std::remove_pointer_t<decltype(to)>;
  for (index_t c = threadIdx.x; c < dim; c += 32) to[c] = To(widened[c]);
}

template <int Unit, class C, class Out>
void launch_gather_units(Cuda& cuda, const C& cache, index_t sequence, const KeptView& kept, const KeptHead* heads,
                         const Out& out, const char* where) {
  const index_t dim = cache.key_dim() > cache.value_dim() ? cache.key_dim() : cache.value_dim();
  const index_t rows = copy_rows_per_block(dim / Unit);
  const CudaGrid grid{dim3(cuda_blocks(kept.indices.extent(1), rows), static_cast<unsigned>(2 * cache.kv_heads())),
                      dim3(copy_threads)};
  launch(cuda, where, gather_kernel<Unit, C, Out>, grid, cache, sequence, kept, heads, out, rows, cuda.fault());
}

/// Copies the kept rows; aligned(elements): whether the target's rows are.
template <class To, class C, class Out, class Aligned>
void launch_gather(Cuda& cuda, const C& cache, index_t sequence, const KeptView& kept, const KeptHead* heads,
                   const Out& out, const Aligned& aligned, const char* where) {
  require(cache.kv_heads() <= 32767, where, "cache", "at most 32767 heads", cache.kv_heads());
  if constexpr (PlainCacheView<C>) {
    constexpr int unit = row_unit<element_of<C>, To>;
    if (cache_aligned(cache, unit) && aligned(unit)) {
      launch_gather_units<unit>(cuda, cache, sequence, kept, heads, out, where);
    } else {
      launch_gather_units<1>(cuda, cache, sequence, kept, heads, out, where);
    }
  } else {
    const index_t dim = cache.key_dim() > cache.value_dim() ? cache.key_dim() : cache.value_dim();
    const CudaGrid grid{dim3(static_cast<unsigned>(kept.indices.extent(1)),
                             static_cast<unsigned>(2 * cache.kv_heads())),
                        dim3(32), static_cast<std::size_t>(dim) * sizeof(float)};
    launch(cuda, where, gather_handles<C, Out>, grid, cache, sequence, kept, heads, out, cuda.fault());
  }
}

}  // namespace decant::kv::detail

#endif
