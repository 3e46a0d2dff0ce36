// decant: the protectors on Cuda. Anchors::tokens points to device memory here; Cuda::check() tells negative ones.
#ifndef DECANT_KV_PROTECT_CUH
#define DECANT_KV_PROTECT_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "detail/scored_layer.cuh"
#include "protect.hpp"

namespace decant::kv {

namespace detail {

/// Thread i takes the i-th of the sinks and then of the recent tokens.
template <int Threads>
__global__ void __launch_bounds__(Threads)
    mark_ends(ScoredLayer layer, index_t sinks, index_t recent, const FaultWord* fault) {
  if (faulted(fault)) return;
  const index_t h = blockIdx.y;
  const index_t n = bounded_length(layer, h);
  const index_t i = grid_token();
  const index_t start = n - recent < sinks ? sinks : n - recent;
  const index_t t = i < sinks ? i : start + (i - sinks);
  if (t < n) layer.keep(h, t) = 1;
}

template <int Threads>
__global__ void __launch_bounds__(Threads)
    check_anchors(View<const std::int32_t, 1> tokens, index_t layer, FaultWord* fault) {
  for (index_t i = threadIdx.x; i < tokens.extent(0); i += Threads) {
    if (tokens[i] < 0) report(fault, Fault::anchors, layer, 0, i);
  }
}

/// One thread per head: a list may name a token twice.
template <int Threads>
__global__ void __launch_bounds__(Threads)
    mark_anchors(ScoredLayer layer, View<const std::int32_t, 1> tokens, const FaultWord* fault) {
  if (faulted(fault)) return;
  const index_t h = grid_token();
  if (h >= layer.kv_heads()) return;
  const index_t n = bounded_length(layer, h);
  for (index_t i = 0; i < tokens.extent(0); ++i) {
    if (tokens[i] >= 0 && tokens[i] < n) layer.keep(h, tokens[i]) = 1;
  }
}

}  // namespace detail

/// The list is the device's: checked there.
inline void validate(Cuda&, const Anchors&) {}

inline void protect(Cuda&, const NoProtection&, const ScoredLayer&) {}

inline void protect(Cuda& cuda, const SinkRecent& p, const ScoredLayer& layer) {
  constexpr const char* where = "kv::SinkRecent";
  validate(p);
  detail::require_scored(layer, where);
  const index_t n = layer.scores.extent(1);
  const index_t sinks = p.sinks < n ? p.sinks : n;
  const index_t recent = p.recent < n ? p.recent : n;
  launch(cuda, where, detail::mark_ends<detail::stage_threads>, detail::token_grid(sinks + recent, layer.kv_heads()),
         layer, sinks, recent, cuda.fault());
}

inline void protect(Cuda& cuda, const Anchors& p, const ScoredLayer& layer) {
  constexpr const char* where = "kv::Anchors";
  constexpr int threads = 32;
  detail::require_scored(layer, where);
  launch(cuda, where, detail::check_anchors<detail::stage_threads>, CudaGrid{dim3(1), dim3(detail::stage_threads)},
         p.tokens, layer.layer, cuda.fault());
  launch(cuda, where, detail::mark_anchors<threads>,
         CudaGrid{dim3(cuda_blocks(layer.kv_heads(), threads)), dim3(threads)}, layer, p.tokens, cuda.fault());
}

static_assert(Protector<NoProtection, Cuda> && Protector<SinkRecent, Cuda> && Protector<Anchors, Cuda>);

}  // namespace decant::kv

#endif
