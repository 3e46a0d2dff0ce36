// decant: Full on Cuda: the scores of the policy that evicts nothing.
#ifndef DECANT_KV_FULL_CUH
#define DECANT_KV_FULL_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "detail/token_scores.cuh"
#include "eviction.cuh"
#include "full.hpp"

namespace decant::kv {

namespace detail {

struct ZeroScore {
  __device__ float operator()(index_t, index_t, index_t) const { return 0.0f; }
};

}  // namespace detail

/// 0 for every token.
template <class X>
void score(Cuda& cuda, const Full&, const X& x, View<float, 2> scores) {
  detail::token_scores(cuda, "kv::Full", x, detail::ZeroScore{}, scores);
}

static_assert(KVEvictionPolicy<Full, Cuda>);

}  // namespace decant::kv

#endif
