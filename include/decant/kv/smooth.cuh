// decant: the smoothers on Cuda, bit for bit as on the CPU: the same taps in the same order. Two passes, out and back,
// as blocks read what their neighbours would overwrite: 16 bytes per token and head.
#ifndef DECANT_KV_SMOOTH_CUH
#define DECANT_KV_SMOOTH_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "detail/scored_layer.cuh"
#include "smooth.hpp"

namespace decant::kv {

namespace detail {

/// Pooled scores to out [kv_heads, n]; Max: maximum, else sum * inverse.
template <bool Max>
__global__ void __launch_bounds__(stage_threads)
    pool_kernel(ScoredLayer layer, index_t size, Padding padding, float inverse, View<float, 2> out,
                const FaultWord* fault) {
  if (faulted(fault)) return;
  constexpr float nothing = Max ? -__builtin_huge_valf() : 0.0f;
  const index_t h = blockIdx.y;
  const index_t n = bounded_length(layer, h);
  const index_t t = grid_token();
  if (t >= n) return;
  float v = 0;
  for (index_t k = 0; k < size; ++k) {
    const index_t from = padded_index(t + k - size / 2, n, padding);
    const float x = from < 0 ? nothing : layer.scores(h, from);
    v = k == 0 ? x : Max ? (x > v ? x : v) : v + x;
  }
  out(h, t) = Max ? v : v * inverse;
}

template <int Threads>
__global__ void __launch_bounds__(Threads)
    copy_scores(View<const float, 2> from, ScoredLayer layer, const FaultWord* fault) {
  if (faulted(fault)) return;
  const index_t h = blockIdx.y;
  const index_t t = grid_token();
  if (t < bounded_length(layer, h)) layer.scores(h, t) = from(h, t);
}

template <bool Max>
void pool(Cuda& cuda, index_t size, Padding padding, const ScoredLayer& layer, const char* where) {
  require_scored(layer, where);
  if (size == 1) return;
  Workspace::Scope scope(cuda.workspace());
  const auto out = cuda.workspace().take_view<float>(layer.kv_heads(), layer.scores.extent(1));
  launch(cuda, where, pool_kernel<Max>, token_grid(layer), layer, size, padding, 1.0f / static_cast<float>(size), out,
         cuda.fault());
  launch(cuda, where, copy_scores<stage_threads>, token_grid(layer), out, layer, cuda.fault());
}

}  // namespace detail

inline void smooth(Cuda&, const NoSmoothing&, const ScoredLayer&) {}

/// O(kv_heads * n * size). scratch: 4 bytes per token and head.
inline void smooth(Cuda& cuda, const AvgPool& s, const ScoredLayer& layer) {
  validate(s);
  detail::pool<false>(cuda, s.size, s.padding, layer, "kv::AvgPool");
}
inline void smooth(Cuda& cuda, const MaxPool& s, const ScoredLayer& layer) {
  validate(s);
  detail::pool<true>(cuda, s.size, s.padding, layer, "kv::MaxPool");
}

static_assert(Smoother<NoSmoothing, Cuda> && Smoother<AvgPool, Cuda> && Smoother<MaxPool, Cuda>);

}  // namespace decant::kv

#endif
