// decant: GlobalTopK on Cuda: one radix select over all layers, heads and tokens (core/topk.cuh), the CPU's counts.
#ifndef DECANT_KV_GLOBAL_TOP_K_CUH
#define DECANT_KV_GLOBAL_TOP_K_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "detail/layer_totals.cuh"
#include "global_top_k.hpp"
#include "uniform.cuh"

namespace decant::kv {

/// `layers` is an array on the host, of views of device memory. O(tokens of the model).
inline void allocate(Cuda& cuda, const GlobalTopK&, View<const ScoredLayer, 1> layers, const Budget& budget,
                     View<std::int32_t, 2> counts) {
  constexpr const char* where = "kv::GlobalTopK";
  detail::require_counts(layers, counts, where);
  Workspace::Scope scope(cuda.workspace());
  ::decant::detail::TopKWanted wanted;
  wanted.total = detail::total_budget(cuda, layers, budget, where);
  const auto matrix = [&](index_t l) {
    return ::decant::detail::topk_matrix(layers[l].scores, layers[l].keep, layers[l].lengths);
  };
  ::decant::detail::TopKChecks checks;
  checks.kind = detail::Fault::budget;
  ::decant::detail::share_rows(cuda, layers.extent(0), counts.extent(1), matrix, wanted, checks, counts,
                               top_k_tuning(cuda.device().compute_capability), where);
}

static_assert(Allocator<GlobalTopK, Cuda>);

}  // namespace decant::kv

#endif
