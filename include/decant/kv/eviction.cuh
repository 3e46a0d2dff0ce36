// decant: the eviction pipeline on Cuda: select() of eviction.hpp over caches, queries and KeptViews in device memory.
// Given the same scores it keeps the same tokens as on the CPU. The host never waits: what the CPU raises for lengths,
// NaN scores and budgets below protection, Cuda::check() raises here, and nothing is written from then on.
// Arrays of LayerView and KeptView are on the host; what they view is on the device. Scratch, and the grids, are sized
// by what the cache can hold: LayerView::longest narrows that.
// A budget that reaches what is there keeps everything, whatever the scores; only when the host can tell (a share of 1,
// a token budget of at least `longest`) are no scores asked for, and queries not needed.
#ifndef DECANT_KV_EVICTION_CUH
#define DECANT_KV_EVICTION_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "detail/device_layer.cuh"
#include "detail/eviction_kernels.cuh"
#include "eviction.hpp"
#include "normalise.cuh"
#include "protect.cuh"
#include "smooth.cuh"
#include "top_tokens.cuh"
#include "uniform.cuh"

namespace decant::kv {

namespace detail {

/// A stage's parameters, by validate(cuda, stage) where it has one (its views are the device's), else validate(stage).
template <class Stage>
void validate_stage(Cuda& cuda, const Stage& stage) {
  if constexpr (requires { validate(cuda, stage); }) {
    validate(cuda, stage);
  } else if constexpr (requires { validate(stage); }) {
    validate(stage);
  }
}

template <class E>
void validate_stages(Cuda& cuda, const E& e) {
  validate_stage(cuda, e.score);
  validate_stage(cuda, e.smooth);
  validate_stage(cuda, e.protect);
  validate_stage(cuda, e.normalise);
  validate_stage(cuda, e.allocate);
  validate_stage(cuda, e.choose);
}

/// Whether the host can tell that the budget keeps everything.
inline bool surely_whole(const Budget& budget, index_t longest) {
  if (longest == 0) return true;
  return budget.kind() == Budget::Kind::fraction ? budget.value() >= 1
                                                 : budget.value() >= static_cast<double>(longest);
}

/// A layer on its way through the stages. `whole`: 1 when the budget keeps everything.
struct DeviceLayer {
  ScoredLayer layer;
  std::int32_t* whole;
};

/// Scratch for one layer: lengths (0 where they are wrong, which is reported), protection cleared, and whether the
/// budget keeps everything.
template <class X>
DeviceLayer begin_layer(Cuda& cuda, const X& x, const Budget& budget) {
  const index_t heads = x.kv_heads();
  const index_t n = longest_head(x);
  require(n < unknown_capacity, select_name, "x.longest", "a bound of the lengths of a cache that does not tell one",
          x.longest);
  DeviceLayer d;
  d.layer.scores = cuda.workspace().take_view<float>(heads, n);
  d.layer.keep = cuda.workspace().take_view<std::uint8_t>(heads, n);
  d.layer.lengths = cuda.workspace().take_view<std::int32_t>(heads);
  d.layer.layer = x.layer;
  d.layer.layers = x.layers;
  d.whole = cuda.workspace().take<std::int32_t>(1);
  if (heads * n > 0) {
    ::decant::detail::require_cuda(
        cudaMemsetAsync(d.layer.keep.data(), 0, static_cast<std::size_t>(heads * n), cuda.stream()), select_name,
        "cudaMemsetAsync");
  }
  launch(cuda, select_name, begin_layer_kernel<X>, CudaGrid{dim3(1), dim3(stage_threads)}, x, n, budget, d.layer,
         d.whole, cuda.fault());
  return d;
}

/// Everything up to Allocate.
template <class E, class X>
void score_layer(Cuda& cuda, const E& e, const X& x, const Budget& budget, const DeviceLayer& d) {
  const ScoredLayer& layer = d.layer;
  Workspace::Scope scope(cuda.workspace());
  const CudaGrid heads{dim3(cuda_blocks(layer.kv_heads(), stage_threads)), dim3(stage_threads)};
  protect(cuda, e.protect, layer);
  const std::int32_t* const kept = protected_counts(cuda, layer, select_name);
  launch(cuda, select_name, check_budget<stage_threads>, heads, layer, budget, kept, d.whole, cuda.fault());
  score(cuda, e.score, x, layer.scores);
  // Which token is to blame for NaN scores: the first whose key or value is NaN, else the first with such a score.
  std::int32_t* const first_nan = cuda.workspace().template take<std::int32_t>(2 * layer.kv_heads());
  ::decant::detail::require_cuda(
      cudaMemsetAsync(first_nan, 0x7f, static_cast<std::size_t>(2 * layer.kv_heads()) * 4, cuda.stream()), select_name,
      "cudaMemsetAsync");
  launch(cuda, select_name, find_nan_scores<stage_threads>, token_grid(layer), layer, d.whole, first_nan, cuda.fault());
  launch(cuda, select_name, find_nan_rows<X>, token_grid(layer), x, layer, first_nan, cuda.fault());
  launch(cuda, select_name, report_nan<stage_threads>, heads, layer, first_nan, cuda.fault());
  smooth(cuda, e.smooth, layer);
  normalise(cuda, e.normalise, layer);
}

/// Room for the counts of `layers` layers; zero, so that they are something after a fault too.
inline View<std::int32_t, 2> take_counts(Cuda& cuda, index_t layers, index_t heads) {
  const auto counts = cuda.workspace().take_view<std::int32_t>(layers, heads);
  if (!counts.empty()) {
    ::decant::detail::require_cuda(
        cudaMemsetAsync(counts.data(), 0, static_cast<std::size_t>(counts.size()) * 4, cuda.stream()), select_name,
        "cudaMemsetAsync");
  }
  return counts;
}

/// After Allocate: a whole layer's counts are its lengths; then there must be room for them.
inline void finish_counts(Cuda& cuda, const DeviceLayer& d, const std::int32_t* whole, View<std::int32_t, 1> counts,
                          const KeptView& kept) {
  launch(cuda, select_name, finish_counts_kernel<stage_threads>,
         CudaGrid{dim3(cuda_blocks(d.layer.kv_heads(), stage_threads)), dim3(stage_threads)}, d.layer, whole, counts,
         kept.indices.extent(1), cuda.fault());
}

/// Every token of a layer.
template <class X>
void keep_all(Cuda& cuda, const X& x, const Budget& budget, const KeptView& kept) {
  Workspace::Scope scope(cuda.workspace());
  const DeviceLayer d = begin_layer(cuda, x, budget);
  const auto counts = take_counts(cuda, 1, x.kv_heads());
  finish_counts(cuda, d, d.whole, counts[0], kept);
  const index_t n = d.layer.scores.extent(1);
  launch(cuda, select_name, keep_all_tokens<stage_threads>, token_grid(n > 0 ? n : 1, x.kv_heads()), d.layer, kept,
         cuda.fault());
}

template <class E, class X>
void select_layer(Cuda& cuda, const E& e, const X& x, const Budget& budget, const KeptView& kept) {
  if (surely_whole(budget, longest_head(x))) return keep_all(cuda, x, budget, kept);
  Workspace::Scope scope(cuda.workspace());
  const DeviceLayer d = begin_layer(cuda, x, budget);
  score_layer(cuda, e, x, budget, d);
  const auto counts = take_counts(cuda, 1, x.kv_heads());
  allocate(cuda, e.allocate, View<const ScoredLayer, 1>(&d.layer, 1), budget, counts);
  finish_counts(cuda, d, d.whole, counts[0], kept);
  choose(cuda, e.choose, x, d.layer, counts[0], kept);
}

/// All layers scored, then one allocation, then all chosen.
template <class E, class X>
void select_model(Cuda& cuda, const E& e, View<const X, 1> xs, const Budget& budget, View<KeptView, 1> outs) {
  const index_t count = xs.extent(0);
  bool everything = true;
  for (index_t l = 0; l < count; ++l) everything = everything && surely_whole(budget, longest_head(xs[l]));
  if (everything) {
    for (index_t l = 0; l < count; ++l) keep_all(cuda, xs[l], budget, outs[l]);
    return;
  }
  Workspace::Scope scope(cuda.workspace());
  Workspace::Scope host_scope(cuda.host_workspace());
  const auto scored = cuda.host_workspace().template take_view<ScoredLayer>(count);
  std::int32_t* const whole = cuda.workspace().template take<std::int32_t>(1);
  for (index_t l = 0; l < count; ++l) {
    const DeviceLayer d = begin_layer(cuda, xs[l], budget);
    scored[l] = d.layer;
    launch(cuda, select_name, and_whole<1>, CudaGrid{dim3(1), dim3(1)}, d.whole, l == 0, whole);
  }
  // A layer by itself is whole only if all are.
  for (index_t l = 0; l < count; ++l) score_layer(cuda, e, xs[l], budget, {scored[l], whole});
  const auto counts = take_counts(cuda, count, xs[0].kv_heads());
  allocate(cuda, e.allocate, View<const ScoredLayer, 1>(scored), budget, counts);
  for (index_t l = 0; l < count; ++l) finish_counts(cuda, {scored[l], whole}, whole, counts[l], outs[l]);
  for (index_t l = 0; l < count; ++l) choose(cuda, e.choose, xs[l], scored[l], counts[l], outs[l]);
}

template <class E, class X>
void select_layers(Cuda& cuda, const E& e, View<const X, 1> xs, const Budget& budget, View<KeptView, 1> outs) {
  require_equal(outs.extent(0), xs.extent(0), select_name, "kept");
  validate_stages(cuda, e);
  validate(budget);
  for (index_t l = 0; l < xs.extent(0); ++l) {
    require_layer(xs[l]);
    require_equal(xs[l].kv_heads(), xs[0].kv_heads(), select_name, "layers");
    require_capacity(outs[l], xs[l].kv_heads());
  }
  if (xs.extent(0) == 0) return;
  if constexpr (E::scope == Scope::model) {
    select_model(cuda, e, xs, budget, outs);
  } else {
    for (index_t l = 0; l < xs.extent(0); ++l) select_layer(cuda, e, xs[l], budget, outs[l]);
  }
}

}  // namespace detail

/// Chooses which tokens of every layer stay; see eviction.hpp. layers and kept: arrays on the host, of views of device
/// memory. Room for a head's count in kept.indices is checked on the device. Nothing is written after a fault; layers
/// that were selected before it stay selected.
template <class P, class C, class Q>
requires KVEvictionPolicy<P, Cuda, LayerView<C, Q>>
void select(Cuda& cuda, const P& policy, View<const LayerView<C, Q>, 1> layers, const Budget& budget,
            View<KeptView, 1> kept) {
  detail::select_layers(cuda, complete(policy), layers, budget, kept);
}

/// The same for one layer; for a policy of model scope, that layer is the model.
template <class P, class C, class Q>
requires KVEvictionPolicy<P, Cuda, LayerView<C, Q>>
void select(Cuda& cuda, const P& policy, const LayerView<C, Q>& layer, const Budget& budget, KeptView kept) {
  detail::select_layers(cuda, complete(policy), View<const LayerView<C, Q>, 1>(&layer, 1), budget,
                        View<KeptView, 1>(&kept, 1));
}

}  // namespace decant::kv

#endif
