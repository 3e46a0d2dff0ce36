// decant: the eviction pipeline, Score -> Smooth -> Protect -> Normalise -> Allocate -> Choose, as one aggregate of
// stage values, and `select`, which runs it and says which tokens stay. A paper is a small struct of the paper's own
// parameters and a function `stages(paper)` that says which Eviction it is; a bare scorer is a pipeline of its own.
// kvpress's presses compose the same papers; the stages, exact totals and the protection mask are ours. compact()
// (compact.hpp) then moves.
//
// One rule for budgets: what is kept sums to exactly the budget (kv_heads times a token budget, or the sum of the
// heads' shares; never more than there is). A budget that reaches what is there keeps everything and scores nothing. A
// budget below what a head protects is an ArgumentError, for token counts and shares alike; a policy whose paper rules
// that case (StreamingLLM) protects nothing and ranks instead. A NaN score is an ArgumentError here, and counts as -inf
// in a stage.
#ifndef DECANT_KV_EVICTION_HPP
#define DECANT_KV_EVICTION_HPP

#include <cmath>
#include <string>
#include <vector>

#include "../core/cpu.hpp"
#include "detail/apportion.hpp"
#include "normalise.hpp"
#include "protect.hpp"
#include "smooth.hpp"
#include "stages.hpp"
#include "top_tokens.hpp"
#include "uniform.hpp"

namespace decant::kv {

/// The stages of one policy: Eviction{WindowAttention{}, MaxPool{7}, SinkRecent{0, 32}, NoNormalisation{},
/// AdaAllocation{}}.
template <class Score, class Smooth = NoSmoothing, class Protect = NoProtection, class Normalise = NoNormalisation,
          class Allocate = Uniform, class Choose = TopTokens>
struct Eviction {
  Score score{};
  Smooth smooth{};
  Protect protect{};
  Normalise normalise{};
  Allocate allocate{};
  Choose choose{};

  /// Scope::model: select needs every layer at once.
  static constexpr Scope scope = Allocate::scope;
};

template <class S>
Eviction(S) -> Eviction<S>;
template <class S, class M>
Eviction(S, M) -> Eviction<S, M>;
template <class S, class M, class P>
Eviction(S, M, P) -> Eviction<S, M, P>;
template <class S, class M, class P, class N>
Eviction(S, M, P, N) -> Eviction<S, M, P, N>;
template <class S, class M, class P, class N, class A>
Eviction(S, M, P, N, A) -> Eviction<S, M, P, N, A>;
template <class S, class M, class P, class N, class A, class C>
Eviction(S, M, P, N, A, C) -> Eviction<S, M, P, N, A, C>;

/// An Eviction is its own description.
template <class S, class M, class P, class N, class A, class C>
constexpr Eviction<S, M, P, N, A, C> stages(const Eviction<S, M, P, N, A, C>& e) {
  return e;
}

template <class S, class M, class P, class N, class A, class C>
void validate(const Eviction<S, M, P, N, A, C>& e) {
  // A user's stage need not check its parameters.
  if constexpr (requires { validate(e.score); }) validate(e.score);
  if constexpr (requires { validate(e.smooth); }) validate(e.smooth);
  if constexpr (requires { validate(e.protect); }) validate(e.protect);
  if constexpr (requires { validate(e.normalise); }) validate(e.normalise);
  if constexpr (requires { validate(e.allocate); }) validate(e.allocate);
  if constexpr (requires { validate(e.choose); }) validate(e.choose);
}

/// The Eviction that a policy means: its stages(policy), found by argument-dependent lookup, or, for a bare scorer, the
/// pipeline that protects nothing and keeps every head's highest scores.
template <class P>
constexpr auto complete(const P& policy) {
  if constexpr (requires { stages(policy); }) {
    return stages(policy);
  } else {
    return Eviction<P>{policy};
  }
}

/// Whether the policy must see all layers before it can choose in any.
template <class P>
inline constexpr Scope scope_of = decltype(complete(std::declval<const P&>()))::scope;

namespace detail {

template <class E, class Ctx, class X>
concept Pipeline = Scorer<decltype(E::score), Ctx, X> && Smoother<decltype(E::smooth), Ctx> &&
    Protector<decltype(E::protect), Ctx> && Normaliser<decltype(E::normalise), Ctx> &&
    Allocator<decltype(E::allocate), Ctx> && Selector<decltype(E::choose), Ctx, X>;

inline constexpr const char* select_name = "kv::select";

template <class X>
bool whole(const X& x, const Budget& budget) {
  return layer_budget(budget, x) == layer_tokens(x);
}

inline void require_capacity(const KeptView& kept, index_t kv_heads) {
  require_equal(kept.counts.extent(0), kv_heads, select_name, "kept.counts");
  require_equal(kept.indices.extent(0), kv_heads, select_name, "kept.indices");
  require(kept.indices.stride(1) == 1 || kept.indices.extent(1) <= 1, select_name, "kept.indices",
          "stride 1 along indices", kept.indices.stride(1));
}

inline void require_capacity(const KeptView& kept, index_t head, index_t count) {
  require(
      count <= kept.indices.extent(1), select_name, "kept.indices",
      [&] { return "room for " + std::to_string(count) + " tokens of head " + std::to_string(head); },
      kept.indices.extent(1));
}

/// Where a selection goes: a view as it is, a Kept after it has made room.
template <class X>
KeptView prepare(const KeptView& kept, const X&) {
  return kept;
}
template <class X>
KeptView prepare(Kept& kept, const X& x) {
  kept.resize(x.kv_heads(), x.max_length());
  return kept.view();
}

template <class X>
void keep_all(const X& x, const KeptView& kept) {
  for (index_t h = 0; h < x.kv_heads(); ++h) require_capacity(kept, h, x.length(h));
  for (index_t h = 0; h < x.kv_heads(); ++h) {
    const index_t n = x.length(h);
    for (index_t t = 0; t < n; ++t) kept.indices(h, t) = static_cast<std::int32_t>(t);
    kept.counts[h] = static_cast<std::int32_t>(n);
  }
}

/// Scratch for one layer's scores, protection cleared.
template <class X>
ScoredLayer take_layer(Cpu& cpu, const X& x) {
  ScoredLayer layer;
  const index_t heads = x.kv_heads();
  const index_t n = x.max_length();
  require(n <= 0x7fffffff, select_name, "x", "at most 2^31 - 1 tokens", n);
  layer.scores = cpu.workspace().take_view<float>(heads, n);
  layer.keep = cpu.workspace().take_view<std::uint8_t>(heads, n);
  layer.lengths = cpu.workspace().take_view<std::int32_t>(heads);
  layer.layer = x.layer;
  layer.layers = x.layers;
  for (index_t h = 0; h < heads; ++h) layer.lengths[h] = static_cast<std::int32_t>(x.length(h));
  for (index_t i = 0; i < heads * n; ++i) layer.keep.data()[i] = 0;
  return layer;
}

inline std::string place(const ScoredLayer& layer, index_t head) {
  return "layer " + std::to_string(layer.layer) + ", head " + std::to_string(head);
}

/// The token to blame for a head's NaN scores: the first whose key or value is NaN, else the first with such a score.
template <class X>
index_t find_nan(const X& x, const ScoredLayer& layer, index_t h) {
  std::vector<float> row(static_cast<std::size_t>(x.cache.key_dim() + x.cache.value_dim()));
  for (index_t t = 0; t < layer.length(h); ++t) {
    load_row(x.cache.key(x.sequence, h, t), x.cache.key_dim(), row.data());
    load_row(x.cache.value(x.sequence, h, t), x.cache.value_dim(), row.data() + x.cache.key_dim());
    for (const float v : row) {
      if (v != v) return t;
    }
  }
  index_t t = 0;
  while (layer.scores(h, t) == layer.scores(h, t)) ++t;
  return t;
}

template <class X>
void require_no_nan(const X& x, const ScoredLayer& layer) {
  for (index_t h = 0; h < layer.kv_heads(); ++h) {
    const float* const row = layer.scores.data() + h * layer.scores.stride(0);
    int nan = 0;
    for (index_t t = 0; t < layer.length(h); ++t) nan |= row[t] != row[t] ? 1 : 0;
    if (nan == 0) continue;
    ::decant::detail::fail_argument(select_name, "x", "keys, values and queries that give every token a score",
                                    "NaN at " + place(layer, h) + ", token " + std::to_string(find_nan(x, layer, h)));
  }
}

inline void require_protected(const ScoredLayer& layer, const Budget& budget) {
  for (index_t h = 0; h < layer.kv_heads(); ++h) {
    const index_t kept = protected_count(layer, h);
    const index_t own = budget.resolve(layer.length(h));
    require(
        own >= kept, select_name, "budget",
        [&] { return "at least the " + std::to_string(kept) + " protected tokens of " + place(layer, h); }, own);
  }
}

/// Everything up to Allocate. The result lives in the workspace.
template <class E, class X>
ScoredLayer score_layer(Cpu& cpu, const E& e, const X& x, const Budget& budget) {
  const ScoredLayer layer = take_layer(cpu, x);
  protect(cpu, e.protect, layer);
  require_protected(layer, budget);  // before the work
  score(cpu, e.score, x, layer.scores);
  require_no_nan(x, layer);
  smooth(cpu, e.smooth, layer);
  normalise(cpu, e.normalise, layer);
  return layer;
}

template <class E, class X>
void choose_layer(Cpu& cpu, const E& e, const X& x, const ScoredLayer& layer, View<const std::int32_t, 1> counts,
                  const KeptView& kept) {
  for (index_t h = 0; h < layer.kv_heads(); ++h) require_capacity(kept, h, counts[h]);
  choose(cpu, e.choose, x, layer, counts, kept);
}

/// One layer by itself.
template <class E, class X, class Out>
void select_layer(Cpu& cpu, const E& e, const X& x, const Budget& budget, Out& out) {
  if (whole(x, budget)) return keep_all(x, prepare(out, x));
  Workspace::Scope scope(cpu.workspace());
  ScoredLayer layer = score_layer(cpu, e, x, budget);
  const auto counts = cpu.workspace().template take_view<std::int32_t>(1, x.kv_heads());
  allocate(cpu, e.allocate, View<const ScoredLayer, 1>(&layer, 1), budget, counts);
  choose_layer(cpu, e, x, layer, counts[0], prepare(out, x));
}

/// All layers scored, then one allocation, then all chosen.
template <class E, class X, class Out>
void select_model(Cpu& cpu, const E& e, View<const X, 1> xs, const Budget& budget, View<Out, 1> outs) {
  bool everything = true;
  for (index_t l = 0; l < xs.extent(0); ++l) everything = everything && whole(xs[l], budget);
  if (everything) {
    for (index_t l = 0; l < xs.extent(0); ++l) keep_all(xs[l], prepare(outs[l], xs[l]));
    return;
  }
  Workspace::Scope scope(cpu.workspace());
  const index_t count = xs.extent(0);
  const index_t heads = xs[0].kv_heads();
  const auto layers = cpu.workspace().template take_view<ScoredLayer>(count);
  for (index_t l = 0; l < count; ++l) layers[l] = score_layer(cpu, e, xs[l], budget);
  const auto counts = cpu.workspace().template take_view<std::int32_t>(count, heads);
  allocate(cpu, e.allocate, View<const ScoredLayer, 1>(layers), budget, counts);
  for (index_t l = 0; l < count; ++l) choose_layer(cpu, e, xs[l], layers[l], counts[l], prepare(outs[l], xs[l]));
}

template <class E, class X, class Out>
void select_layers(Cpu& cpu, const E& e, View<const X, 1> xs, const Budget& budget, View<Out, 1> outs) {
  require_equal(outs.extent(0), xs.extent(0), select_name, "kept");
  validate(e);
  validate(budget);
  for (index_t l = 0; l < xs.extent(0); ++l) {
    validate(xs[l]);
    require_equal(xs[l].kv_heads(), xs[0].kv_heads(), select_name, "layers");
    if constexpr (std::same_as<Out, KeptView>) require_capacity(outs[l], xs[l].kv_heads());
  }
  if constexpr (E::scope == Scope::model) {
    select_model(cpu, e, xs, budget, outs);
  } else {
    for (index_t l = 0; l < xs.extent(0); ++l) select_layer(cpu, e, xs[l], budget, outs[l]);
  }
}

}  // namespace detail

/// A policy that selects from layers of type X: a paper, an Eviction or a bare scorer.
template <class P, class Ctx, class X = LayerView<DenseKV<float>>>
concept KVEvictionPolicy = std::copyable<P> && requires(const P& p) {
  // What its stages are, and that each does its part.
  requires detail::Pipeline<decltype(complete(p)), Ctx, X>;
};

/// Chooses which tokens of every layer stay: one phase per layer where the allocator needs one layer, else score all,
/// allocate once, choose all (scratch: 5 bytes per layer, head and token, instead of those of one layer).
/// kept: one KeptView (the caller's memory, room for every count) or Kept (makes its own room) per layer. All layers
/// must have equally many KV heads. Throws ArgumentError for shapes, missing inputs, NaN scores and budgets below
/// protection; streaming, the layers before the offending one have then been selected, and nothing else is written.
template <class P, class C, class Q, class Out>
requires KVEvictionPolicy<P, Cpu, LayerView<C, Q>> &&
    (std::same_as<Out, Kept> || std::same_as<Out, KeptView>)void select(Cpu& cpu, const P& policy,
                                                                        View<const LayerView<C, Q>, 1> layers,
                                                                        const Budget& budget, View<Out, 1> kept) {
  detail::select_layers(cpu, complete(policy), layers, budget, kept);
}

/// The same for one layer; for a policy of model scope, that layer is the model.
template <class P, class C, class Q>
requires KVEvictionPolicy<P, Cpu, LayerView<C, Q>>
void select(Cpu& cpu, const P& policy, const LayerView<C, Q>& layer, const Budget& budget, KeptView kept) {
  detail::select_layers(cpu, complete(policy), View<const LayerView<C, Q>, 1>(&layer, 1), budget,
                        View<KeptView, 1>(&kept, 1));
}

template <class P, class C, class Q>
requires KVEvictionPolicy<P, Cpu, LayerView<C, Q>> Kept select(Cpu& cpu, const P& policy, const LayerView<C, Q>& layer,
                                                               const Budget& budget) {
  Kept kept;
  detail::select_layers(cpu, complete(policy), View<const LayerView<C, Q>, 1>(&layer, 1), budget,
                        View<Kept, 1>(&kept, 1));
  return kept;
}

}  // namespace decant::kv

#endif
