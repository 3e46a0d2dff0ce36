// decant: a drafter that reads the target's KV cache (KVShot, arXiv 2604.26412): attention over two segments, the
// target's rows of verified tokens and the drafter's own rows behind them, merged by their log-sum-exps; the gated
// difference by which KV reuse joins an EAGLE layer; what rotation the reused keys carry. The projections' products are
// the engine's. `unrotate` is ours: it keeps relative positions exact where projected keys would carry two rotations.
#ifndef DECANT_SPECULATIVE_TARGET_KV_HPP
#define DECANT_SPECULATIVE_TARGET_KV_HPP

#include <cmath>
#include <cstdint>

#include "../attention/state.hpp"
#include "../core/error.hpp"
#include "../core/view.hpp"
#include "../kv/rerotate.hpp"
#include "../kv/rope.hpp"

namespace decant::speculative {

/// What the drafter is conditioned on.
enum class Reuse : std::uint8_t {
  hidden_only,  ///< EAGLE-3's hidden states
  kv_only,      ///< the target's KV rows
  hybrid,       ///< both: GatedDelta
};

/// What a projection of reused keys does about the rotation that they carry. A drafter must be run as it was trained.
enum class KeyRotation : std::uint8_t {
  none,          ///< they keep the target's
  rope_after,    ///< and are rotated once more
  unrotate,      ///< [ours] rotated back, projected, rotated anew
};

/// Where rows stand: the target holds rows of all committed tokens but the last; the drafter holds the last committed
/// token's and those it drafts.
struct KvSegments {
  index_t target = 0;  ///< rows of the first segment
  index_t own = 0;     ///< rows of the second

  /// A step verified: tau accepted tokens and one more. The old last token and the accepted ones have target rows now;
  /// only the new last token's row is the drafter's.
  constexpr KvSegments after(index_t tau) const { return {target + tau + 1, 1}; }
  bool operator==(const KvSegments&) const = default;
};

/// One head's output over both segments from those over each: o [dim], lse. Either may be empty (lse -inf).
inline float merge_segments(View<const float, 1> target, float target_lse, View<const float, 1> own, float own_lse,
                            View<float, 1> out) {
  constexpr const char* where = "speculative::merge_segments";
  require_equal(own.extent(0), target.extent(0), where, "own");
  require_equal(out.extent(0), target.extent(0), where, "out");
  const float reference = attention::merge_reference(attention::merge_reference(attention::empty_lse, target_lse), own_lse);
  const double a = attention::merge_weight(target_lse, reference);
  const double b = attention::merge_weight(own_lse, reference);
  for (index_t d = 0; d < out.extent(0); ++d) {
    double sum = 0;  // an empty segment's rows are not read
    if (a != 0) sum += a * static_cast<double>(target[d]);
    if (b != 0) sum += b * static_cast<double>(own[d]);
    out[d] = a + b == 0 ? 0.0f : static_cast<float>(sum / (a + b));
  }
  return attention::merge_lse(a + b, reference);
}

/// One token's keys of the reused layers, projected to the drafter's: out = W [keys of layer 1; layer 2; ...].
/// keys [layers, d], d whole heads of head_dim, rotated to `position` as the target caches them; w [d, layers * d];
/// scratch [layers * d]. (`head_concat` of the paper is the keys themselves, one head for every layer and head.)
inline void inject_key(KeyRotation rotation, const kv::Rope& rope, index_t head_dim, index_t position,
                       View<const float, 2> w, View<const float, 2> keys, View<float, 1> scratch, View<float, 1> out) {
  constexpr const char* where = "speculative::inject_key";
  const index_t d = keys.extent(1);
  const index_t all = keys.extent(0) * d;
  validate(rope, head_dim);
  require(head_dim >= 1 && d % head_dim == 0, where, "head_dim", "a divisor of a key's elements", head_dim);
  require(position >= 0, where, "position", "at least 0", position);
  require_equal(w.extent(0), d, where, "w");
  require_equal(w.extent(1), all, where, "w");
  require_equal(scratch.extent(0), all, where, "scratch");
  require_equal(out.extent(0), d, where, "out");
  require(scratch.contiguous() && out.contiguous(), where, "scratch and out", "contiguous elements", "strides");
  const auto turn = [&](View<float, 1> row, index_t steps) {
    for (index_t h = 0; h < row.extent(0); h += head_dim) kv::rotate_key(row.data() + h, head_dim, rope, steps);
  };
  for (index_t l = 0; l < keys.extent(0); ++l) {
    for (index_t i = 0; i < d; ++i) scratch[l * d + i] = keys(l, i);
  }
  if (rotation == KeyRotation::unrotate) turn(scratch, -position);
  for (index_t i = 0; i < d; ++i) {
    float sum = 0;
    for (index_t j = 0; j < all; ++j) sum += w(i, j) * scratch[j];
    out[i] = sum;
  }
  if (rotation != KeyRotation::none) turn(out, position);
}

/// The gate of the hybrid: h = n + sigmoid(W_g [n; o; o - n] + b_g) (.) (W_d (o - n)), n the layer's self-attention
/// output and o its cross-attention output over the reused rows. W_g [d, 3 d], b_g [d], W_d [d, d].
struct GatedDelta {
  View<const float, 2> gate{};
  View<const float, 1> bias{};
  View<const float, 2> delta{};
};

/// h [d]; d^2 multiply-adds four times over. n, o and h may not overlap.
inline void gated_delta(const GatedDelta& g, View<const float, 1> n, View<const float, 1> o, View<float, 1> h) {
  constexpr const char* where = "speculative::gated_delta";
  const index_t d = n.extent(0);
  require_equal(o.extent(0), d, where, "o");
  require_equal(h.extent(0), d, where, "h");
  require_equal(g.gate.extent(0), d, where, "gate");
  require_equal(g.gate.extent(1), 3 * d, where, "gate");
  require_equal(g.bias.extent(0), d, where, "bias");
  require_equal(g.delta.extent(0), d, where, "delta");
  require_equal(g.delta.extent(1), d, where, "delta");
  for (index_t i = 0; i < d; ++i) {
    float gate = g.bias[i];
    float delta = 0;
    for (index_t j = 0; j < d; ++j) {
      const float difference = o[j] - n[j];
      gate += g.gate(i, j) * n[j] + g.gate(i, d + j) * o[j] + g.gate(i, 2 * d + j) * difference;
      delta += g.delta(i, j) * difference;
    }
    h[i] = n[i] + delta / (1 + std::exp(-gate));
  }
}

/// The mean accepted tokens of a chain, the bonus included: 1 + sum over k of a_1 ... a_k.
inline double mean_accepted_tokens(View<const double, 1> acceptance) {
  double sum = 1;
  double product = 1;
  for (index_t i = 0; i < acceptance.extent(0); ++i) {
    product *= acceptance[i];
    sum += product;
  }
  return sum;
}

}  // namespace decant::speculative

#endif
