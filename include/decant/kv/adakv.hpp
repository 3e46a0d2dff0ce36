// decant: Ada-KV (Feng, Lv, Cao, Xie, Zhou, arXiv 2407.11550): a layer's budget goes to the heads that have the highest
// scores among all of the layer's, with a floor. AdaAllocation::Rule::official is the authors': alpha of the uniform
// share plus 1 - alpha of the flat ranking's (Algorithm 2 prints the two swapped; text and code agree with this),
// rounded to the exact total [ours: the code drifts]. Rule::kvpress forces each head's top floor(alpha b), then takes
// the best. The result is ragged: gather into a RaggedKV.
#ifndef DECANT_KV_ADAKV_HPP
#define DECANT_KV_ADAKV_HPP

#include "eviction.hpp"
#include "window_attention.hpp"

namespace decant::kv {

/// alpha: the share that is split evenly; 1: uniform, 0: the flat ranking, which keeps the most mass.
struct AdaAllocation {
  enum class Rule : std::uint8_t { official, kvpress };

  static constexpr Scope scope = Scope::layer;
  float alpha = 0.2f;
  Rule rule = Rule::official;
  bool operator==(const AdaAllocation&) const = default;
};

/// SnapKV's scores (max-pooled over 7 and window 32, as the authors' code), Ada-KV's budgets.
struct AdaKV {
  index_t window = 32;
  index_t pool = 7;
  float alpha = 0.2f;
  bool operator==(const AdaKV&) const = default;
};

inline void validate(const AdaAllocation& a) {
  require(a.alpha >= 0 && a.alpha <= 1, "kv::AdaAllocation", "alpha", "a share between 0 and 1", a.alpha);
}

namespace detail {

/// The flat ranking: how many of each head are among the layer's best, protected tokens first.
inline void ada_official(Cpu& cpu, const AdaAllocation& a, const ScoredLayer& layer, index_t total,
                         View<std::int32_t, 1> counts) {
  const index_t heads = layer.kv_heads();
  Workspace::Scope scope(cpu.workspace());
  index_t* const kept = cpu.workspace().take<index_t>(heads);
  index_t* const free = cpu.workspace().take<index_t>(heads);
  index_t* const even = cpu.workspace().take<index_t>(heads);
  double* const shares = cpu.workspace().take<double>(heads);
  top_k_rows(cpu, layer.scores, layer.lengths, layer.keep, total, counts);
  index_t open = total;
  for (index_t h = 0; h < heads; ++h) {
    kept[h] = protected_count(layer, h);
    free[h] = layer.length(h) - kept[h];
    open -= kept[h];
  }
  even_split(free, heads, open, even);
  const auto alpha = static_cast<double>(a.alpha);
  for (index_t h = 0; h < heads; ++h) {
    shares[h] = (1 - alpha) * static_cast<double>(counts[h] - kept[h]) + alpha * static_cast<double>(even[h]);
  }
  std::int32_t* const rounded = cpu.workspace().take<std::int32_t>(heads);
  largest_remainder(shares, heads, open, rounded);
  for (index_t h = 0; h < heads; ++h) counts[h] = static_cast<std::int32_t>(kept[h] + rounded[h]);
}

inline void ada_kvpress(Cpu& cpu, const AdaAllocation& a, const ScoredLayer& layer, const Budget& budget, index_t total,
                        View<std::int32_t, 1> counts) {
  const index_t heads = layer.kv_heads();
  Workspace::Scope scope(cpu.workspace());
  const auto keep = cpu.workspace().template take_view<std::uint8_t>(heads, layer.keep.extent(1));
  for (index_t h = 0; h < heads; ++h) {
    const index_t n = layer.length(h);
    const index_t kept = protected_count(layer, h);
    const auto floor_share =
        static_cast<index_t>(static_cast<double>(a.alpha) * static_cast<double>(budget.resolve(n)));
    const index_t safe = floor_share > kept ? floor_share : kept;
    std::int32_t* const top = cpu.workspace().take<std::int32_t>(safe);
    top_k(cpu, View<const float, 1>(&layer.scores(h, 0), n), View<const std::uint8_t, 1>(&layer.keep(h, 0), n), safe,
          top);
    for (index_t t = 0; t < n; ++t) keep(h, t) = 0;
    for (index_t i = 0; i < safe; ++i) keep(h, top[i]) = 1;
  }
  top_k_rows(cpu, layer.scores, layer.lengths, keep, total, counts);
}

}  // namespace detail

/// O(tokens of the layer).
inline void allocate(Cpu& cpu, const AdaAllocation& a, View<const ScoredLayer, 1> layers, const Budget& budget,
                     View<std::int32_t, 2> counts) {
  validate(a);
  for (index_t l = 0; l < layers.extent(0); ++l) {
    const index_t total = detail::layer_budget(budget, layers[l]);
    if (a.rule == AdaAllocation::Rule::official) {
      detail::ada_official(cpu, a, layers[l], total, counts[l]);
    } else {
      detail::ada_kvpress(cpu, a, layers[l], budget, total, counts[l]);
    }
  }
}

constexpr auto stages(const AdaKV& p) {
  return Eviction{WindowAttention{.window = p.window}, MaxPool{.size = p.pool},
                  SinkRecent{.sinks = 0, .recent = p.window}, NoNormalisation{}, AdaAllocation{.alpha = p.alpha}};
}

inline void validate(const AdaKV& p) { validate(stages(p)); }

static_assert(Allocator<AdaAllocation, Cpu> && KVEvictionPolicy<AdaKV, Cpu>);

}  // namespace decant::kv

#endif
