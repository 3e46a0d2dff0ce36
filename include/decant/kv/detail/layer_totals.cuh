// decant: budgets in tokens on the device, where the lengths are.
#ifndef DECANT_KV_DETAIL_LAYER_TOTALS_CUH
#define DECANT_KV_DETAIL_LAYER_TOTALS_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "../../core/topk.cuh"
#include "apportion.hpp"
#include "scored_layer.cuh"

namespace decant::kv::detail {

/// Adds a layer's budget to *total; the first layer begins.
template <class Total>
__global__ void add_layer_budget(ScoredLayer layer, Budget budget, bool begin, Total* total) {
  *total = (begin ? Total{0} : *total) + layer_budget(budget, layer);
}

/// The tokens that these layers may keep together, in the workspace of an open scope.
inline const index_t* total_budget(Cuda& cuda, const View<const ScoredLayer, 1>& layers, const Budget& budget,
                                   const char* where) {
  index_t* const total = cuda.workspace().take<index_t>(1);
  for (index_t l = 0; l < layers.extent(0); ++l) {
    launch(cuda, where, add_layer_budget<index_t>, CudaGrid{dim3(1), dim3(1)}, layers[l], budget, l == 0, total);
  }
  return total;
}

}  // namespace decant::kv::detail

#endif
