// decant: keep_path() on the device, the CPU's bytes: paths, offsets, lengths and page tables are read there, as
// verify() on the device left them, so that a captured step needs no word from the host. Moves 2 * moved rows *
// (key_dim + value_dim) * sizeof(T) bytes per head. What does not fit is told by Cuda::check(); nothing has moved then.
#ifndef DECANT_SPECULATIVE_KEEP_PATH_CUH
#define DECANT_SPECULATIVE_KEEP_PATH_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "../kv/detail/check_kept.cuh"
#include "../kv/detail/head_rows.cuh"
#include "../kv/detail/row_copy.cuh"
#include "../kv/detail/shared_pages.cuh"
#include "../kv/detail/values_within_keys.hpp"
#include "keep_path.hpp"

namespace decant::speculative {

namespace detail {

inline constexpr int path_threads = 128;

/// How often each page of the cache stands in its table; null: it has none.
template <class C>
const std::int32_t* table_counts(Cuda&, const C&, const char*) {
  return nullptr;
}
template <class T>
const std::int32_t* table_counts(Cuda& cuda, const kv::PagedKV<T>& cache, const char* where) {
  return kv::detail::counted_pages(cuda, cache, where);
}

template <class C>
__device__ void check_moved_pages(const C&, const AcceptedPaths&, index_t, const std::int32_t*, FaultWord*) {}
template <class T>
__device__ void check_moved_pages(const kv::PagedKV<T>& cache, const AcceptedPaths& paths, index_t b,
                                  const std::int32_t* seen, FaultWord* fault) {
  const MovedPages moved = MovedPages::of(cache, paths, b);
  for (index_t i = moved.first; i < moved.last; ++i) {
    const index_t page = cache.indices[cache.indptr[b] + i];
    if (seen[page] > 1) ::decant::detail::report(fault, ::decant::detail::Fault::path_page, 0, 0, page);
  }
}

/// One block. seen: of table_counts().
template <class C>
__global__ void __launch_bounds__(path_threads)
    check_paths(const C cache, AcceptedPaths paths, const std::int32_t* seen, FaultWord* fault) {
  if (__syncthreads_or(!kv::detail::check_cache(cache, fault)) != 0) return;
  const index_t heads = cache.kv_heads();
  for (index_t i = threadIdx.x; i < cache.sequences() * heads; i += path_threads) {
    const index_t b = i / heads;
    if (!path_fits(paths, b, cache.length(b, i % heads))) {
      ::decant::detail::report(fault, ::decant::detail::Fault::path, 0, i % heads, b);
    } else if (i % heads == 0) {
      check_moved_pages(cache, paths, b, seen, fault);
    }
  }
}

/// Block (request, head, 0: keys or 1: values). A thread owns channels, of which no row is overwritten before it is
/// read: rows move down in order, and a few are read before the first of them is written.
template <int Unit, class C>
__global__ void __launch_bounds__(path_threads, 1)
    move_path_kernel(const C cache, AcceptedPaths paths, const FaultWord* fault) {
  if (::decant::detail::faulted(fault)) return;
  using T = kv::detail::element_of<C>;
  using Access = kv::detail::word_of<T, Unit>;
  constexpr int in_flight = 4;
  const index_t b = blockIdx.x;
  const index_t h = blockIdx.y;
  const bool keys = blockIdx.z == 0;
  const index_t base = cache.length(b, h) - paths.rows(b);
  const index_t kept = paths.kept(b);
  const auto row = kv::detail::head_rows(cache, b, h, keys);
  const index_t dim = keys ? cache.key_dim() : cache.value_dim();
  for (index_t d = static_cast<index_t>(threadIdx.x) * Unit; d < dim; d += path_threads * Unit) {
    for (index_t first = 1; first < kept; first += in_flight) {  // the root stays where it is
      Access held[in_flight];
#pragma unroll
      for (int j = 0; j < in_flight; ++j) {
        const index_t i = first + j;
        if (i < kept) held[j] = *reinterpret_cast<const Access*>(row(base + paths.source(b, i)) + d);
      }
#pragma unroll
      for (int j = 0; j < in_flight; ++j) {
        const index_t i = first + j;
        if (i < kept && paths.source(b, i) != i) *reinterpret_cast<Access*>(row(base + i) + d) = held[j];
      }
    }
  }
}

template <class T>
__global__ void __launch_bounds__(path_threads)
    cut_lengths(View<T, 1> lengths, index_t heads, AcceptedPaths paths, const FaultWord* fault) {
  if (::decant::detail::faulted(fault)) return;
  const index_t i = static_cast<index_t>(blockIdx.x) * path_threads + threadIdx.x;
  if (i >= lengths.extent(0)) return;
  lengths[i] += static_cast<std::int32_t>(paths.kept(i / heads) - paths.rows(i / heads));
}

template <class C>
void keep_rows(Cuda& cuda, const C& cache, const AcceptedPaths& paths) {
  constexpr const char* where = "speculative::keep_path";
  kv::detail::require_cache(cache);
  require_paths(cache, paths, where);
  require(cache.kv_heads() <= 65535, where, "cache", "at most 65535 heads", cache.kv_heads());
  Workspace::Scope scope(cuda.workspace());
  const std::int32_t* const seen = table_counts(cuda, cache, where);
  launch(cuda, where, check_paths<C>, CudaGrid{dim3(1), dim3(path_threads)}, cache, paths, seen, cuda.fault());
  using T = kv::detail::element_of<C>;
  constexpr int unit = kv::detail::row_unit<T, T>;
  const CudaGrid grid{dim3(static_cast<unsigned>(cache.sequences()), static_cast<unsigned>(cache.kv_heads()),
                           kv::detail::values_within_keys(cache) < 0 ? 2u : 1u),
                      dim3(path_threads)};
  launch(cuda, where, kv::detail::cache_aligned(cache, unit) ? move_path_kernel<unit, C> : move_path_kernel<1, C>, grid,
         cache, paths, cuda.fault());
}

}  // namespace detail

/// keep_path() and keep_path_rows() of keep_path.hpp. A page table is the host's to cut: after check(). Scratch: with a
/// page table 4 bytes per page.
template <class T>
  requires(!std::is_const_v<T>)
void keep_path(Cuda& cuda, const kv::DenseKV<T>& cache, const AcceptedPaths& paths) {
  detail::keep_rows(cuda, cache, paths);
  launch(cuda, "speculative::keep_path", detail::cut_lengths<std::int32_t>,
         CudaGrid{dim3(cuda_blocks(cache.lengths.extent(0), detail::path_threads)), dim3(detail::path_threads)},
         cache.lengths, index_t{1}, paths, cuda.fault());
}
template <class T>
  requires(!std::is_const_v<T>)
void keep_path(Cuda& cuda, const kv::RaggedKV<T>& cache, const AcceptedPaths& paths) {
  detail::keep_rows(cuda, cache, paths);
  launch(cuda, "speculative::keep_path", detail::cut_lengths<std::int32_t>,
         CudaGrid{dim3(cuda_blocks(cache.lengths.extent(0), detail::path_threads)), dim3(detail::path_threads)},
         cache.lengths, cache.kv_heads(), paths, cuda.fault());
}
template <class T>
  requires(!std::is_const_v<T>)
void keep_path_rows(Cuda& cuda, const kv::PagedKV<T>& cache, const AcceptedPaths& paths) {
  detail::keep_rows(cuda, cache, paths);
}

}  // namespace decant::speculative

#endif
