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

/// Sums are formed in one order everywhere, so that contexts agree to the bit: in stretches of 1024 tokens, each as 32
/// sums of every 32nd token that are folded as a tree; then stretch after stretch.
inline constexpr index_t sum_stretch = 1024;
inline constexpr int sum_ways = 32;

/// The sum of value(t) for t in [0, n).
template <class Value>
double ordered_sum(index_t n, const Value& value) {
  double sum = 0;
  for (index_t first = 0; first < n; first += sum_stretch) {
    const index_t end = first + sum_stretch < n ? first + sum_stretch : n;
    double lane[sum_ways] = {};
    for (index_t t = first; t < end; ++t) lane[(t - first) % sum_ways] += value(t);
    for (int width = sum_ways / 2; width > 0; width /= 2) {
      for (int l = 0; l < width; ++l) lane[l] += lane[l + width];
    }
    sum += lane[0];
  }
  return sum;
}

/// Sum of a head's scores that are not protected.
inline double free_sum(const ScoredLayer& layer, index_t h) {
  return ordered_sum(layer.length(h), [&](index_t t) {
    return layer.keep(h, t) ? 0.0 : static_cast<double>(layer.scores(h, t));
  });
}

DECANT_HD inline bool usable_sum(double sum) { return sum > 0 && sum < __builtin_huge_val(); }

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
    std::int32_t* const token = cpu.workspace().take<std::int32_t>(n);
    std::uint8_t* const is_top = cpu.workspace().take<std::uint8_t>(n);
    index_t count = 0;
    for (index_t t = 0; t < n; ++t) {
      is_top[t] = 0;
      if (layer.keep(h, t)) continue;
      token[count] = static_cast<std::int32_t>(t);
      free[count++] = layer.scores(h, t);
    }
    const double sum = detail::free_sum(layer, h);
    if (!detail::usable_sum(sum)) continue;
    const index_t k = s.tokens < count ? s.tokens : count;
    std::int32_t* const top = cpu.workspace().take<std::int32_t>(k);
    top_k(cpu, View<const float, 1>(free, count), k, top);
    for (index_t i = 0; i < k; ++i) is_top[token[top[i]]] = 1;
    const double mass = detail::ordered_sum(
        n, [&](index_t t) { return is_top[t] != 0 ? static_cast<double>(layer.scores(h, t)) : 0.0; });
    detail::scale_head(layer, h, mass / sum);
  }
}

static_assert(Normaliser<NoNormalisation, Cpu> && Normaliser<LayerSum, Cpu> && Normaliser<HeadConcentration, Cpu>);

}  // namespace decant::kv

#endif
