// decant: the normalisers on Cuda, bit for bit as on the CPU: double sums in the order of normalise.hpp, a warp for
// each stretch of 1024 tokens. LayerSum moves 13 bytes per token and head, HeadConcentration about 40.
#ifndef DECANT_KV_NORMALISE_CUH
#define DECANT_KV_NORMALISE_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "../core/topk.cuh"
#include "detail/scored_layer.cuh"
#include "normalise.hpp"

namespace decant::kv {

namespace detail {

/// sums(h, stretch): of the scores that are not protected, and of those also in `taken` where there is one. One warp
/// per stretch.
template <int Threads>
__global__ void __launch_bounds__(Threads)
    sum_stretches(ScoredLayer layer, View<const std::uint8_t, 2> taken, View<double, 2> sums, const FaultWord* fault) {
  if (faulted(fault)) return;
  const index_t h = blockIdx.y;
  const index_t n = bounded_length(layer, h);
  const index_t stretch = grid_token() / 32;
  const index_t first = stretch * sum_stretch;
  if (stretch >= sums.extent(1)) return;
  double lane = 0;
  for (index_t t = first + threadIdx.x % 32; t < n && t < first + sum_stretch; t += sum_ways) {
    const bool counts = !layer.keep(h, t) && (taken.data() == nullptr || taken(h, t) != 0);
    lane += counts ? static_cast<double>(layer.scores(h, t)) : 0.0;
  }
  lane = ::decant::detail::warp_reduce(lane, ::decant::detail::Plus{});
  if (threadIdx.x % 32 == 0) sums(h, stretch) = lane;
}

/// A head's sum from its stretches.
__device__ inline double head_sum(const ScoredLayer& layer, const View<double, 2>& sums, index_t h) {
  const index_t n = bounded_length(layer, h);
  double sum = 0;
  for (index_t i = 0; i * sum_stretch < n; ++i) sum += sums(h, i);
  return sum;
}

/// factors[h]: what head h's scores are multiplied by; 0: nothing. heads: room for one number each. One block.
template <int Threads>
__global__ void __launch_bounds__(Threads)
    layer_sum_factors(ScoredLayer layer, View<double, 2> sums, double* heads, double* factors,
                      const FaultWord* fault) {
  if (faulted(fault)) return;
  for (index_t h = threadIdx.x; h < layer.kv_heads(); h += Threads) heads[h] = head_sum(layer, sums, h);
  __syncthreads();
  if (threadIdx.x != 0) return;
  double sum = 0;
  for (index_t h = 0; h < layer.kv_heads(); ++h) sum += heads[h];
  for (index_t h = 0; h < layer.kv_heads(); ++h) factors[h] = usable_sum(sum) ? 1.0 / sum : 0.0;
}

/// all: the stretches of every free score; top: of the largest. usable[h]: whether to scale at all, as the factor may
/// be anything.
template <int Threads>
__global__ void __launch_bounds__(Threads)
    concentration_factors(ScoredLayer layer, View<double, 2> all, View<double, 2> top, double* factors,
                          std::int32_t* usable, const FaultWord* fault) {
  if (faulted(fault)) return;
  const index_t h = grid_token();
  if (h >= layer.kv_heads()) return;
  const double sum = head_sum(layer, all, h);
  usable[h] = usable_sum(sum) ? 1 : 0;
  factors[h] = usable_sum(sum) ? head_sum(layer, top, h) / sum : 1.0;
}

/// How many tokens of each head a selection takes: the protected, and `tokens` others if there are.
template <int Threads>
__global__ void __launch_bounds__(Threads)
    concentration_counts(ScoredLayer layer, index_t tokens, const std::int32_t* kept, std::int32_t* counts) {
  const index_t h = grid_token();
  if (h >= layer.kv_heads()) return;
  const index_t free = bounded_length(layer, h) - kept[h];
  counts[h] = static_cast<std::int32_t>(kept[h] + (tokens < free ? tokens : free));
}

/// usable: null where the factor 0 says that a head stays as it is.
template <int Threads>
__global__ void __launch_bounds__(Threads)
    scale_scores(ScoredLayer layer, const double* factors, const std::int32_t* usable, const FaultWord* fault) {
  if (faulted(fault)) return;
  const index_t h = blockIdx.y;
  const index_t t = grid_token();
  if (t >= bounded_length(layer, h) || (usable ? usable[h] == 0 : factors[h] == 0)) return;
  layer.scores(h, t) = static_cast<float>(static_cast<double>(layer.scores(h, t)) * factors[h]);
}

inline View<double, 2> stretch_sums(Cuda& cuda, const ScoredLayer& layer, const View<const std::uint8_t, 2>& taken,
                                    const char* where) {
  const index_t stretches = (layer.scores.extent(1) + sum_stretch - 1) / sum_stretch;
  const auto sums = cuda.workspace().take_view<double>(layer.kv_heads(), stretches);
  launch(cuda, where, sum_stretches<stage_threads>, token_grid(32 * stretches, layer.kv_heads()), layer, taken, sums,
         cuda.fault());
  return sums;
}

}  // namespace detail

inline void normalise(Cuda&, const NoNormalisation&, const ScoredLayer&) {}

inline void normalise(Cuda& cuda, const LayerSum&, const ScoredLayer& layer) {
  constexpr const char* where = "kv::LayerSum";
  constexpr int threads = detail::stage_threads;
  detail::require_scored(layer, where);
  Workspace::Scope scope(cuda.workspace());
  double* const heads = cuda.workspace().take<double>(2 * layer.kv_heads());
  double* const factors = heads + layer.kv_heads();
  const auto sums = detail::stretch_sums(cuda, layer, {}, where);
  launch(cuda, where, detail::layer_sum_factors<threads>, CudaGrid{dim3(1), dim3(threads)}, layer, sums, heads,
         factors, cuda.fault());
  launch(cuda, where, detail::scale_scores<threads>, detail::token_grid(layer), layer, factors, nullptr, cuda.fault());
}

inline void normalise(Cuda& cuda, const HeadConcentration& s, const ScoredLayer& layer) {
  constexpr const char* where = "kv::HeadConcentration";
  constexpr int threads = detail::stage_threads;
  validate(s);
  detail::require_scored(layer, where);
  const index_t heads = layer.kv_heads();
  if (heads == 0) return;
  Workspace::Scope scope(cuda.workspace());
  const CudaGrid each{dim3(cuda_blocks(heads, threads)), dim3(threads)};
  const std::int32_t* const kept = detail::protected_counts(cuda, layer, where);
  std::int32_t* const counts = cuda.workspace().take<std::int32_t>(heads);
  launch(cuda, where, detail::concentration_counts<threads>, each, layer, s.tokens, kept, counts);
  const auto taken = cuda.workspace().take_view<std::uint8_t>(heads, layer.scores.extent(1));
  ::decant::detail::top_k_mask(cuda, layer.scores, layer.lengths, layer.keep,
                               View<const std::int32_t, 1>(counts, heads), taken, where);
  const auto all = detail::stretch_sums(cuda, layer, {}, where);
  const auto top = detail::stretch_sums(cuda, layer, taken, where);
  double* const factors = cuda.workspace().take<double>(heads);
  std::int32_t* const usable = cuda.workspace().take<std::int32_t>(heads);
  launch(cuda, where, detail::concentration_factors<threads>, each, layer, all, top, factors, usable,
         cuda.fault());
  launch(cuda, where, detail::scale_scores<threads>, detail::token_grid(layer), layer, factors, usable, cuda.fault());
}

static_assert(Normaliser<NoNormalisation, Cuda> && Normaliser<LayerSum, Cuda> && Normaliser<HeadConcentration, Cuda>);

}  // namespace decant::kv

#endif
