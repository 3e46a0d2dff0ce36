// decant: StreamingLLM on Cuda: the ranks of the CPU, bit for bit.
#ifndef DECANT_KV_STREAMING_LLM_CUH
#define DECANT_KV_STREAMING_LLM_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "detail/token_scores.cuh"
#include "eviction.cuh"
#include "streaming_llm.hpp"

namespace decant::kv {

namespace detail {

struct StreamingRank {
  index_t sinks;
  __device__ float operator()(index_t, index_t t, index_t n) const {
    return static_cast<float>(t < sinks ? sinks - t : t - n);
  }
};

}  // namespace detail

template <class X>
void score(Cuda& cuda, const StreamingLLM& p, const X& x, View<float, 2> scores) {
  validate(p);
  detail::token_scores(cuda, "kv::StreamingLLM", x, detail::StreamingRank{p.sinks}, scores);
}

static_assert(KVEvictionPolicy<StreamingLLM, Cuda>);

}  // namespace decant::kv

#endif
