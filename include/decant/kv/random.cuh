// decant: Random eviction on Cuda: the same numbers as on the CPU, bit for bit.
#ifndef DECANT_KV_RANDOM_CUH
#define DECANT_KV_RANDOM_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "detail/token_scores.cuh"
#include "eviction.cuh"
#include "random.hpp"

namespace decant::kv {

namespace detail {

struct RandomScore {
  Philox philox;
  std::uint32_t layer;
  __device__ float operator()(index_t h, index_t t, index_t) const {
    return philox.uniform(static_cast<std::uint32_t>(t), static_cast<std::uint32_t>(h), layer);
  }
};

}  // namespace detail

template <class X>
void score(Cuda& cuda, const Random& p, const X& x, View<float, 2> scores) {
  const detail::RandomScore f{Philox{p.seed}, static_cast<std::uint32_t>(x.layer)};
  detail::token_scores(cuda, "kv::Random", x, f, scores);
}

static_assert(KVEvictionPolicy<Random, Cuda>);

}  // namespace decant::kv

#endif
