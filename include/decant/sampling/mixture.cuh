// decant: group() of mixture.hpp on the device: one block, a stable placement by prefix sums, model after model.
#ifndef DECANT_SAMPLING_MIXTURE_CUH
#define DECANT_SAMPLING_MIXTURE_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "../core/cuda.cuh"
#include "../core/detail/device.cuh"
#include "mixture.hpp"

namespace decant::sampling {

namespace detail {

inline constexpr int group_threads = 512;

template <class T>
__global__ void __launch_bounds__(group_threads)
    group_requests(View<const T, 1> chosen, View<T, 1> order, View<T, 1> offsets, FaultWord* fault) {
  __shared__ T shared[32];
  const index_t n = chosen.extent(0);
  const index_t models = offsets.extent(0) - 1;
  T bad = 0;
  for (index_t i = threadIdx.x; i < n; i += group_threads) {
    if (chosen[i] >= 0 && chosen[i] < models) continue;
    bad = 1;
    ::decant::detail::report(fault, ::decant::detail::Fault::model, 0, 0, i);
  }
  bad = ::decant::detail::block_reduce(bad, ::decant::detail::Larger{}, T{0}, shared);
  if (bad != 0 || ::decant::detail::faulted(fault)) return;
  T placed = 0;
  for (index_t model = 0; model < models; ++model) {
    if (threadIdx.x == 0) offsets[model] = placed;
    for (index_t first = 0; first < n; first += group_threads) {
      const index_t i = first + threadIdx.x;
      const bool own = i < n && chosen[i] == model;
      T total;
      const T before = ::decant::detail::block_scan_before(own ? T{1} : T{0}, total, shared);
      if (own) order[placed + before] = static_cast<T>(i);
      placed += total;
    }
  }
  if (threadIdx.x == 0) offsets[models] = placed;
}

}  // namespace detail

/// group() of mixture.hpp; a choice that is no model is told by Cuda::check(), and nothing is written then.
/// O(models * requests / 512).
inline void group(Cuda& cuda, View<const std::int32_t, 1> chosen, View<std::int32_t, 1> order,
                  View<std::int32_t, 1> offsets) {
  constexpr const char* where = "sampling::group";
  require(offsets.extent(0) >= 2, where, "offsets", "at least 2 elements", offsets.extent(0));
  require_equal(order.extent(0), chosen.extent(0), where, "order");
  launch(cuda, where, detail::group_requests<std::int32_t>, CudaGrid{dim3(1), dim3(detail::group_threads)}, chosen,
         order, offsets, cuda.fault());
}

}  // namespace decant::sampling

#endif
