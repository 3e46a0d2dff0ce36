// decant: the allocators that look at no score. Uniform: every head keeps equally many; heads shorter than that, in a
// ragged cache, leave their part to the others, so that the layer's total is exact. KeepAll: everything.
#ifndef DECANT_KV_UNIFORM_HPP
#define DECANT_KV_UNIFORM_HPP

#include "../core/cpu.hpp"
#include "detail/apportion.hpp"

namespace decant::kv {

struct Uniform {
  static constexpr Scope scope = Scope::layer;
  bool operator==(const Uniform&) const = default;
};

/// Every token stays, whatever the budget.
struct KeepAll {
  static constexpr Scope scope = Scope::layer;
  bool operator==(const KeepAll&) const = default;
};

namespace detail {

/// Uniform's counts of one layer; bounds, split, extra: room for its heads. A share of each head is that head's own; a
/// token budget is the same for all, where they have that many.
DECANT_HD inline void uniform_counts(const Budget& budget, const ScoredLayer& layer, index_t* bounds, index_t* split,
                                     index_t* extra) {
  const index_t heads = layer.kv_heads();
  index_t open = layer_budget(budget, layer);
  for (index_t h = 0; h < heads; ++h) {
    split[h] = budget.resolve(layer.length(h));
    bounds[h] = layer.length(h) - split[h];
    open -= split[h];
  }
  if (open <= 0) return;
  even_split(bounds, heads, open, extra);
  for (index_t h = 0; h < heads; ++h) split[h] += extra[h];
}

}  // namespace detail

inline void validate(const Uniform&) {}
inline void validate(const KeepAll&) {}

/// O(kv_heads^2) per layer.
inline void allocate(Cpu& cpu, const Uniform&, View<const ScoredLayer, 1> layers, const Budget& budget,
                     View<std::int32_t, 2> counts) {
  for (index_t l = 0; l < layers.extent(0); ++l) {
    const ScoredLayer& layer = layers[l];
    const index_t heads = layer.kv_heads();
    Workspace::Scope scope(cpu.workspace());
    index_t* const bounds = cpu.workspace().take<index_t>(heads);
    index_t* const split = cpu.workspace().take<index_t>(heads);
    index_t* const extra = cpu.workspace().take<index_t>(heads);
    detail::uniform_counts(budget, layer, bounds, split, extra);
    for (index_t h = 0; h < heads; ++h) counts(l, h) = static_cast<std::int32_t>(split[h]);
  }
}

inline void allocate(Cpu&, const KeepAll&, View<const ScoredLayer, 1> layers, const Budget&,
                     View<std::int32_t, 2> counts) {
  for (index_t l = 0; l < layers.extent(0); ++l) {
    for (index_t h = 0; h < layers[l].kv_heads(); ++h) counts(l, h) = static_cast<std::int32_t>(layers[l].length(h));
  }
}

static_assert(Allocator<Uniform, Cpu> && Allocator<KeepAll, Cpu>);

}  // namespace decant::kv

#endif
