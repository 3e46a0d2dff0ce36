// decant: GlobalTopK, the allocator that ranks the tokens of all layers and heads in one list, as LaProx does (arXiv
// 2605.07234): it must see the whole model, so select() runs in two phases. Scores must be comparable across layers:
// normalise them. Ties go to the lower layer, head, token.
#ifndef DECANT_KV_GLOBAL_TOP_K_HPP
#define DECANT_KV_GLOBAL_TOP_K_HPP

#include "../core/topk.hpp"
#include "detail/apportion.hpp"

namespace decant::kv {

struct GlobalTopK {
  static constexpr Scope scope = Scope::model;
  bool operator==(const GlobalTopK&) const = default;
};

inline void validate(const GlobalTopK&) {}

/// O(tokens of the model); scratch: 8 bytes for each token and head.
inline void allocate(Cpu& cpu, const GlobalTopK&, View<const ScoredLayer, 1> layers, const Budget& budget,
                     View<std::int32_t, 2> counts) {
  Workspace::Scope scope(cpu.workspace());
  index_t elements = 0;
  index_t total = 0;
  for (index_t l = 0; l < layers.extent(0); ++l) {
    total += detail::layer_budget(budget, layers[l]);
    for (index_t h = 0; h < layers[l].kv_heads(); ++h) elements += layers[l].length(h);
  }
  std::uint32_t* const keys = cpu.workspace().take<std::uint32_t>(elements);
  index_t at = 0;
  index_t kept = 0;
  for (index_t l = 0; l < layers.extent(0); ++l) {
    const ScoredLayer& layer = layers[l];
    for (index_t h = 0; h < layer.kv_heads(); ++h) {
      kept += ::decant::detail::make_row_keys(cpu.isa(), layer.scores, layer.keep, h, layer.length(h), keys + at);
      at += layer.length(h);
    }
  }
  ::decant::detail::require_count(total, kept, elements, "kv::GlobalTopK", "budget");
  const Threshold t = ::decant::detail::threshold_of_keys(cpu, keys, elements, total);
  index_t ties = t.ties;
  at = 0;
  for (index_t l = 0; l < layers.extent(0); ++l) {
    for (index_t h = 0; h < layers[l].kv_heads(); ++h) {
      index_t count = 0;
      for (index_t i = 0; i < layers[l].length(h); ++i, ++at) {
        const bool tie = keys[at] == t.key && ties > 0;
        count += keys[at] > t.key || tie;
        ties -= tie;
      }
      counts(l, h) = static_cast<std::int32_t>(count);
    }
  }
}

static_assert(Allocator<GlobalTopK, Cpu>);

}  // namespace decant::kv

#endif
