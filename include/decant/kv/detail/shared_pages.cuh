// decant: shared_pages.hpp on the device.
#ifndef DECANT_KV_DETAIL_SHARED_PAGES_CUH
#define DECANT_KV_DETAIL_SHARED_PAGES_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include <cstdint>

#include "../../core/cuda.cuh"
#include "../../core/detail/fault.cuh"
#include "../paged_kv.hpp"
#include "scored_layer.cuh"

namespace decant::kv::detail {

/// How often each page stands in the table.
template <class Page>
__global__ void __launch_bounds__(stage_threads)
    count_pages(View<Page, 1> indptr, View<Page, 1> indices, index_t pages, std::int32_t* seen,
                const FaultWord* fault) {
  if (faulted(fault)) return;
  const index_t i = grid_token();
  if (i < indptr[indptr.extent(0) - 1] && i < indices.extent(0) && indices[i] >= 0 && indices[i] < pages) {
    atomicAdd(&seen[indices[i]], 1);
  }
}

/// The counts, in the workspace's open scope; 0 after a fault.
template <class T>
const std::int32_t* counted_pages(Cuda& cuda, const PagedKV<T>& cache, const char* where) {
  using Page = typename PagedKV<T>::table_type;
  std::int32_t* const seen = cuda.workspace().template take<std::int32_t>(cache.pages());
  if (cache.pages() == 0) return seen;
  ::decant::detail::require_cuda(
      cudaMemsetAsync(seen, 0, static_cast<std::size_t>(cache.pages()) * sizeof *seen, cuda.stream()), where,
      "cudaMemsetAsync");
  launch(cuda, where, count_pages<Page>, token_grid(cache.indices.extent(0), 1), cache.indptr, cache.indices,
         cache.pages(), seen, cuda.fault());
  return seen;
}

}  // namespace decant::kv::detail

#endif
