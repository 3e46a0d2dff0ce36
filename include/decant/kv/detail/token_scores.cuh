// decant: scores that are a function of the token alone, one thread each.
#ifndef DECANT_KV_DETAIL_TOKEN_SCORES_CUH
#define DECANT_KV_DETAIL_TOKEN_SCORES_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "device_layer.cuh"

namespace decant::kv::detail {

/// scores(h, t) = f(h, t, length of h). Writes 4 bytes per token.
template <class X, class F>
__global__ void token_scores_kernel(const X x, const F f, View<float, 2> scores, const FaultWord* fault) {
  if (faulted(fault)) return;
  const index_t h = blockIdx.y;
  const index_t t = blockIdx.x * index_t{blockDim.x} + threadIdx.x;
  const index_t n = x.length(h);
  if (t < n) scores(h, t) = f(h, t, n);
}

template <class X, class F>
void token_scores(Cuda& cuda, const char* where, const X& x, const F& f, View<float, 2> scores, LayerNeeds needs = {}) {
  const index_t longest = begin_scores(cuda, where, x, scores, needs);
  launch(cuda, where, token_scores_kernel<X, F>,
         CudaGrid{dim3(cuda_blocks(longest, 256), static_cast<unsigned>(x.kv_heads())), dim3(256)}, x, f, scores,
         cuda.fault());
}

}  // namespace decant::kv::detail

#endif
