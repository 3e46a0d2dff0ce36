// decant: visibility, which tokens exist in which layer at all. Unlike eviction it acts during the forward pass: a token
// that a layer does not materialise is neither computed nor cached there. Composes with any eviction.
//
// Speed: "SPEED: phase-asymmetric KV visibility", arXiv 2605.06105. Prompt tokens run, and are cached, only in the first
// K of L layers; anchors and decoded tokens run at full depth. The sets, positions and memory formula are the paper's;
// how the first logits arise (`pivot`) is our reading, as the paper does not say. A model must be tuned for it.
#ifndef DECANT_KV_VISIBILITY_HPP
#define DECANT_KV_VISIBILITY_HPP

#include <cmath>
#include <concepts>

#include "../core/error.hpp"

namespace decant::kv {

/// Every token in every layer.
struct FullVisibility {
  bool operator==(const FullVisibility&) const = default;
};

/// What becomes of the last prompt token above the lower layers, where it is needed for the first logits.
enum class Pivot : unsigned char {
  transient,  // it runs them seeing the anchors and itself, and its rows there are discarded
  keep        // its rows stay, as if it had been decoded
};

constexpr const char* name(Pivot p) { return p == Pivot::transient ? "transient" : "keep"; }

/// depth: the share K / L of layers that prompt tokens run. anchors: how many leading tokens run at full depth (the
/// paper: 1, the BoS). The checkpoint's tuning decides all three.
struct Speed {
  float depth = 0.75f;
  index_t anchors = 1;
  Pivot pivot = Pivot::transient;

  /// K: the number of lower layers.
  DECANT_HD index_t lower_layers(index_t layers) const {
    return static_cast<index_t>(std::lround(static_cast<double>(depth) * static_cast<double>(layers)));
  }
  bool operator==(const Speed&) const = default;
};

inline void validate(const FullVisibility&) {}
inline void validate(const Speed& s) {
  require(s.depth >= 0 && s.depth <= 1, "kv::Speed", "depth", "a share of layers between 0 and 1", s.depth);
  require(s.anchors >= 0, "kv::Speed", "anchors", "at least 0", s.anchors);
}

/// True when `layer` of `layers` holds the KV rows of `token`, of a sequence whose first `prompt` tokens are its prompt.
/// A decode token sees exactly the earlier tokens for which this is true, and itself.
DECANT_HD constexpr bool visible(const FullVisibility&, index_t, index_t, index_t, index_t) { return true; }
DECANT_HD inline bool visible(const Speed& s, index_t layer, index_t layers, index_t token, index_t prompt) {
  return layer < s.lower_layers(layers) || token < s.anchors || token >= prompt ||
         (s.pivot == Pivot::keep && token == prompt - 1);
}

/// True when `layer` must compute `token`: what is visible, and the last prompt token, from which the first logits come.
DECANT_HD constexpr bool computed(const FullVisibility&, index_t, index_t, index_t, index_t) { return true; }
DECANT_HD inline bool computed(const Speed& s, index_t layer, index_t layers, index_t token, index_t prompt) {
  return token == prompt - 1 || visible(s, layer, layers, token, prompt);
}

/// The KV rows per head that `layer` holds after `decoded` tokens behind a prompt of `prompt` tokens.
constexpr index_t kv_length(const FullVisibility&, index_t, index_t, index_t prompt, index_t decoded) {
  return prompt + decoded;
}
inline index_t kv_length(const Speed& s, index_t layer, index_t layers, index_t prompt, index_t decoded) {
  if (layer < s.lower_layers(layers)) return prompt + decoded;
  const index_t anchors = s.anchors < prompt ? s.anchors : prompt;
  const bool pivot_row = s.pivot == Pivot::keep && prompt > anchors;
  return anchors + (pivot_row ? 1 : 0) + decoded;
}

/// A policy for which the functions above are defined.
template <class V>
concept VisibilityPolicy = std::equality_comparable<V> && requires(const V& v, index_t i) {
  validate(v);
  { visible(v, i, i, i, i) } -> std::same_as<bool>;       // (layer, layers, token, prompt)
  { computed(v, i, i, i, i) } -> std::same_as<bool>;      // (layer, layers, token, prompt)
  { kv_length(v, i, i, i, i) } -> std::same_as<index_t>;  // (layer, layers, prompt, decoded)
};

static_assert(VisibilityPolicy<FullVisibility> && VisibilityPolicy<Speed>);

/// KV bytes of a sequence over all layers. row_bytes: one token of one layer, kv_heads * (key_dim + value_dim) *
/// element size. Speed: row_bytes * (K * prompt + (L - K) * anchors + L * decoded), plus L - K rows with Pivot::keep
/// unless the last prompt token is an anchor.
template <VisibilityPolicy V>
index_t kv_bytes(const V& v, index_t layers, index_t prompt, index_t decoded, index_t row_bytes) {
  index_t rows = 0;
  for (index_t l = 0; l < layers; ++l) rows += kv_length(v, l, layers, prompt, decoded);
  return rows * row_bytes;
}

/// Rows that a prefill of `prompt` tokens computes, summed over layers: its cost in layer-tokens.
template <VisibilityPolicy V>
index_t prefill_layer_tokens(const V& v, index_t layers, index_t prompt) {
  index_t rows = 0;
  for (index_t l = 0; l < layers; ++l) {
    rows += kv_length(v, l, layers, prompt, 0);
    if (prompt > 0 && computed(v, l, layers, prompt - 1, prompt) && !visible(v, l, layers, prompt - 1, prompt)) ++rows;
  }
  return rows;
}

}  // namespace decant::kv

#endif
