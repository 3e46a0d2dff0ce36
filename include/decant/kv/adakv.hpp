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

/// Where the shares of the heads of one layer are worked out: room for `heads` each. counts: the flat ranking's counts
/// when it comes, the allocation when it goes.
struct AdaHeads {
  std::int32_t* counts;
  std::int32_t* rounded;
  index_t* kept;  // protected tokens
  index_t* free;
  index_t* even;
  double* shares;
};

/// alpha of the even split of what is not protected, and 1 - alpha of the flat ranking. Needs counts, kept and free.
DECANT_HD inline void ada_shares(double alpha, index_t heads, index_t total, const AdaHeads& at) {
  index_t open = total;
  for (index_t h = 0; h < heads; ++h) open -= at.kept[h];
  even_split(at.free, heads, open, at.even);
  for (index_t h = 0; h < heads; ++h) {
    at.shares[h] =
        ::decant::detail::rounded_product(1 - alpha, static_cast<double>(at.counts[h] - at.kept[h])) +
        ::decant::detail::rounded_product(alpha, static_cast<double>(at.even[h]));
  }
  largest_remainder(at.shares, heads, open, at.rounded);
  for (index_t h = 0; h < heads; ++h) at.counts[h] = static_cast<std::int32_t>(at.kept[h] + at.rounded[h]);
}

/// How many tokens of a head of n, `kept` of them protected, Rule::kvpress takes before the others.
DECANT_HD inline index_t ada_safe(const AdaAllocation& a, const Budget& budget, index_t n, index_t kept) {
  const auto floor_share =
      static_cast<index_t>(static_cast<double>(a.alpha) * static_cast<double>(budget.resolve(n)));
  return floor_share > kept ? floor_share : kept;
}

/// The flat ranking: how many of each head are among the layer's best, protected tokens first.
inline void ada_official(Cpu& cpu, const AdaAllocation& a, const ScoredLayer& layer, index_t total,
                         View<std::int32_t, 1> counts) {
  const index_t heads = layer.kv_heads();
  Workspace::Scope scope(cpu.workspace());
  const AdaHeads at{cpu.workspace().take<std::int32_t>(heads), cpu.workspace().take<std::int32_t>(heads),
                    cpu.workspace().take<index_t>(heads),      cpu.workspace().take<index_t>(heads),
                    cpu.workspace().take<index_t>(heads),      cpu.workspace().take<double>(heads)};
  top_k_rows(cpu, layer.scores, layer.lengths, layer.keep, total, View<std::int32_t, 1>(at.counts, heads));
  for (index_t h = 0; h < heads; ++h) {
    at.kept[h] = protected_count(layer, h);
    at.free[h] = layer.length(h) - at.kept[h];
  }
  ada_shares(static_cast<double>(a.alpha), heads, total, at);
  for (index_t h = 0; h < heads; ++h) counts[h] = at.counts[h];
}

inline void ada_kvpress(Cpu& cpu, const AdaAllocation& a, const ScoredLayer& layer, const Budget& budget, index_t total,
                        View<std::int32_t, 1> counts) {
  const index_t heads = layer.kv_heads();
  Workspace::Scope scope(cpu.workspace());
  const auto keep = cpu.workspace().template take_view<std::uint8_t>(heads, layer.keep.extent(1));
  for (index_t h = 0; h < heads; ++h) {
    const index_t n = layer.length(h);
    const index_t kept = protected_count(layer, h);
    const index_t safe = ada_safe(a, budget, n, kept);
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
