// decant: normalisers, the stage that makes scores comparable across heads and layers before a budget is split among
// them. Protected tokens take no part in the statistics. Sums are formed in double.
#ifndef DECANT_KV_NORMALISE_HPP
#define DECANT_KV_NORMALISE_HPP

#include "../core/cpu.hpp"
#include "../core/topk.hpp"
#include "stages.hpp"

namespace decant::kv {

/// Scores as they are.
struct NoNormalisation {
  bool operator==(const NoNormalisation&) const = default;
};

/// Divides by the layer's sum, so that every layer's scores sum to 1 (LaProx, arXiv 2605.07234). A layer whose sum is
/// not positive and finite stays as it is.
struct LayerSum {
  bool operator==(const LayerSum&) const = default;
};

/// Multiplies each head's scores by the share of its mass that its largest `tokens` scores hold, as the code of Ada-KV
/// (Feng et al., arXiv 2407.11550) does with `tokens` = the budget: heads that concentrate gain. Meant for scores of at
/// least 0; a head whose sum is not positive and finite stays as it is.
struct HeadConcentration {
  index_t tokens = 0;
  bool operator==(const HeadConcentration&) const = default;
};

namespace detail {

/// Sum of a head's scores that are not protected.
inline double free_sum(const ScoredLayer& layer, index_t h) {
  double sum = 0;
  for (index_t t = 0; t < layer.length(h); ++t) {
    if (!layer.keep(h, t)) sum += static_cast<double>(layer.scores(h, t));
  }
  return sum;
}

inline bool usable_sum(double sum) { return sum > 0 && sum < __builtin_huge_val(); }

inline void scale_head(const ScoredLayer& layer, index_t h, double factor) {
  for (index_t t = 0; t < layer.length(h); ++t) {
    layer.scores(h, t) = static_cast<float>(static_cast<double>(layer.scores(h, t)) * factor);
  }
}

}  // namespace detail

inline void validate(const NoNormalisation&) {}
inline void validate(const LayerSum&) {}
inline void validate(const HeadConcentration& s) {
  require(s.tokens >= 0, "kv::HeadConcentration", "tokens", "at least 0", s.tokens);
}

inline void normalise(Cpu&, const NoNormalisation&, const ScoredLayer&) {}

inline void normalise(Cpu&, const LayerSum&, const ScoredLayer& layer) {
  double sum = 0;
  for (index_t h = 0; h < layer.kv_heads(); ++h) sum += detail::free_sum(layer, h);
  if (!detail::usable_sum(sum)) return;
  for (index_t h = 0; h < layer.kv_heads(); ++h) detail::scale_head(layer, h, 1.0 / sum);
}

inline void normalise(Cpu& cpu, const HeadConcentration& s, const ScoredLayer& layer) {
  validate(s);
  for (index_t h = 0; h < layer.kv_heads(); ++h) {
    const index_t n = layer.length(h);
    Workspace::Scope scope(cpu.workspace());
    float* const free = cpu.workspace().take<float>(n);
    index_t count = 0;
    for (index_t t = 0; t < n; ++t) {
      if (!layer.keep(h, t)) free[count++] = layer.scores(h, t);
    }
    const double sum = detail::free_sum(layer, h);
    if (!detail::usable_sum(sum)) continue;
    const index_t k = s.tokens < count ? s.tokens : count;
    std::int32_t* const top = cpu.workspace().take<std::int32_t>(k);
    top_k(cpu, View<const float, 1>(free, count), k, top);
    double mass = 0;
    for (index_t i = 0; i < k; ++i) mass += static_cast<double>(free[top[i]]);
    detail::scale_head(layer, h, mass / sum);
  }
}

static_assert(Normaliser<NoNormalisation, Cpu> && Normaliser<LayerSum, Cpu> && Normaliser<HeadConcentration, Cpu>);

}  // namespace decant::kv

#endif
