// decant: TOVA on Cuda: the last query's column sums (detail/attention_columns.cuh), then their sum over KV heads.
// Against the f64 definition within 2e-6 of the largest score, as on the CPU.
#ifndef DECANT_KV_TOVA_CUH
#define DECANT_KV_TOVA_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "detail/attention_columns.cuh"
#include "eviction.cuh"
#include "tova.hpp"

namespace decant::kv {

namespace detail {

/// scores(h, t) = factor * sum over all heads of scores(., t).
template <class X>
__global__ void share_scores_kernel(const X x, float factor, View<float, 2> scores, const FaultWord* fault) {
  if (faulted(fault)) return;
  const index_t t = blockIdx.x * index_t{blockDim.x} + threadIdx.x;
  if (t >= x.length(0)) return;
  float sum = 0;
  for (index_t h = 0; h < x.kv_heads(); ++h) sum += scores(h, t);
  for (index_t h = 0; h < x.kv_heads(); ++h) scores(h, t) = sum * factor;
}

}  // namespace detail

/// O(query_heads * n * key_dim).
template <class X>
void score(Cuda& cuda, const TOVA&, const X& x, View<float, 2> scores) {
  constexpr const char* where = "kv::TOVA";
  detail::LayerNeeds needs = detail::need_queries(x, 1, where);
  needs.equal_heads = true;
  const index_t longest = detail::begin_scores(cuda, where, x, scores, needs);
  Workspace::Scope scope(cuda.workspace());
  detail::with_plain_rows(cuda, x, longest, true, false, [&](const auto& plain) {
    const index_t group = x.queries.extent(0) / x.kv_heads();
    detail::attention_columns<detail::Weight>(cuda, where, plain, longest, detail::ColumnQueries{1, 0, group},
                                              detail::ColumnFinish{}, scores);
  });
  launch(cuda, where, detail::share_scores_kernel<X>, CudaGrid{dim3(cuda_blocks(longest, 256)), dim3(256)}, x,
         1.0f / static_cast<float>(x.queries.extent(0)), scores, cuda.fault());
}

static_assert(KVEvictionPolicy<TOVA, Cuda>);

}  // namespace decant::kv

#endif
