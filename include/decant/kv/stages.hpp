// decant: the stages of the eviction pipeline and what each must be able to do.
//
//   Score -> Smooth -> Protect -> Normalise -> Allocate -> Choose -> (compact)
//
// A stage is a plain value. Its work is a free function whose first argument is the context, found by argument-dependent
// lookup: a scorer of the user's own, in the user's own namespace, joins by overloading `score`.
// Rules for all (tested once, for all): scores are fp32 and larger means keep; NaN counts as -inf; ties go to the lower
// token; protection is a mask, never a score; kept tokens are ascending.
#ifndef DECANT_KV_STAGES_HPP
#define DECANT_KV_STAGES_HPP

#include <cstdint>

#include "layer.hpp"

namespace decant::kv {

/// One layer's scores on their way through the stages. Entries of row h at and after lengths[h] have no meaning.
struct ScoredLayer {
  View<float, 2> scores;           // [kv_heads, n], n = the longest head
  View<std::uint8_t, 2> keep;      // [kv_heads, n], 1: protected, kept whatever its score
  View<std::int32_t, 1> lengths;   // [kv_heads]
  index_t layer = 0;
  index_t layers = 1;

  DECANT_HD index_t kv_heads() const { return lengths.extent(0); }
  DECANT_HD index_t length(index_t head) const { return lengths[head]; }
};

/// How much an allocator must have seen before it can answer: one layer (the pipeline streams, layer by layer) or the
/// whole model (two phases: score all layers, then allocate, then choose).
enum class Scope : std::uint8_t { layer, model };

/// Writes a score for every token of every head: score(ctx, s, x, scores). scores [kv_heads, n].
template <class S, class Ctx, class X>
concept Scorer = requires(Ctx& ctx, const S& s, const X& x, View<float, 2> scores) { score(ctx, s, x, scores); };

/// Rewrites scores in place, along tokens: smooth(ctx, s, layer).
template <class S, class Ctx>
concept Smoother = requires(Ctx& ctx, const S& s, const ScoredLayer& layer) { smooth(ctx, s, layer); };

/// Sets layer.keep to 1 where a token must stay; it comes in zeroed: protect(ctx, p, layer).
template <class P, class Ctx>
concept Protector = requires(Ctx& ctx, const P& p, const ScoredLayer& layer) { protect(ctx, p, layer); };

/// Makes scores comparable across heads and layers, in place; protected tokens take no part: normalise(ctx, n, layer).
template <class N, class Ctx>
concept Normaliser = requires(Ctx& ctx, const N& n, const ScoredLayer& layer) { normalise(ctx, n, layer); };

/// Turns the budget into a count for each head of each given layer: allocate(ctx, a, layers, budget, counts), counts
/// [layers given, kv_heads]. protected <= count <= length, and the sum over what it has seen is exactly the budget's.
/// A::scope says how much it must see at once.
template <class A, class Ctx>
concept Allocator = requires(Ctx& ctx, const A& a, View<const ScoredLayer, 1> layers, const Budget& budget,
                             View<std::int32_t, 2> counts) {
  allocate(ctx, a, layers, budget, counts);
  { A::scope } -> std::convertible_to<Scope>;
};

/// Picks counts[h] tokens of each head: choose(ctx, c, x, layer, counts, kept). Protected tokens are among them.
template <class S, class Ctx, class X>
concept Selector = requires(Ctx& ctx, const S& s, const X& x, const ScoredLayer& layer,
                            View<const std::int32_t, 1> counts, KeptView kept) {
  choose(ctx, s, x, layer, counts, kept);
};

}  // namespace decant::kv

#endif
