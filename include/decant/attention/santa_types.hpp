// decant: the parameters of attention::Santa, without an implementation. See santa.hpp.
#ifndef DECANT_ATTENTION_SANTA_TYPES_HPP
#define DECANT_ATTENTION_SANTA_TYPES_HPP

#include <cmath>
#include <cstdint>

#include "../core/error.hpp"
#include "../core/view.hpp"
#include "detail/santa_draws.hpp"

namespace decant::attention {

/// How rows are drawn. S samples, n keys of probability p_i, T tiles (those whose keys have any weight) of mass P_t;
/// all but Prop give an estimate whose expectation is exact attention.
enum class SantaScheme : unsigned char {
  plain,                           // [paper] S independent draws with replacement: c_i / S
  stratified,                      // [paper] one draw in each of S equal strata of the cumulative distribution: c_i / S
  systematic,                      // [paper] strata that share one offset: c_i is S p_i rounded up or down
  global_systematic = systematic,  // [ours] the same counts, found tile by tile: no tile is ever left out
  /// [code] S2ANTA-Flash: each tile gets max(1, S div T) samples, whatever its mass: P_t c_i / S_t. Needs no reduction
  /// over tiles before it samples; wasteful when few tiles hold the mass.
  flash,
  /// [paper, code] S2ANTA-Prop: tiles get S P_t samples, rounded by largest remainders: c_i / S. Biased: the
  /// expectation weighs tiles by their rounded shares, and tiles whose share is rounded to 0 never contribute. [ours]
  /// equal remainders go to the first tiles, where the code adds a jitter of 1e-7.
  prop,
  /// [ours] One sample for each tile and the rest in proportion, each tile weighed with its mass: P_t c_i / S_t. With
  /// S = T it is Flash; worth it from S = 4 T on. With S < T: systematic.
  prop_exact,
  /// [ours] Exactly S different rows (all, if there are fewer): keys of p_i >= 1 / c are taken with their exact weight,
  /// of the others systematic sampling takes a key with probability c p_i and gives it the weight 1 / c.
  threshold_systematic,
};

/// "plain", "stratified", "systematic", "flash", "prop", "prop_exact", "threshold_systematic".
constexpr const char* name(SantaScheme scheme) {
  constexpr const char* names[] = {"plain", "stratified", "systematic",          "flash",
                                   "prop",  "prop_exact", "threshold_systematic"};
  return names[static_cast<int>(scheme)];
}

/// The parameters of attention by sampled values.
struct Santa {
  /// Value rows drawn for each query head, repeats counted (threshold_systematic: different ones). 0 gives o = 0; more
  /// than there are keys is fine. At most 2^20.
  index_t samples = 128;
  SantaScheme scheme = SantaScheme::global_systematic;
  /// Keys per tile, a multiple of 16; 0: 32 for up to 1536 keys, 64 for up to 3072, else 256 [code]. Matters to flash,
  /// prop and prop_exact alone.
  index_t tile = 0;
  /// One offset for all query heads of a group, so that they draw the same rows more often [ours]. Each head's estimate
  /// is as good as before.
  bool couple_group = false;
  /// What q.k is multiplied with; 0: 1 / sqrt(key_dim).
  float scale = 0;
  /// logit = soft_cap * tanh(scale * q.k / soft_cap), before the mask; 0: none.
  float soft_cap = 0;
  /// Random numbers are a function of seed, request, layer, query head, and the number of keys up to the query plus
  /// step: they change with every token as it is, and step is for caches that do not grow. At most 65535 layers.
  std::uint64_t seed = 0;
  std::uint32_t step = 0;
  std::uint32_t layer = 0;

  /// Relative L2 distance to double precision when there are at least 16 samples for each key, plain excepted: what
  /// rounding counts may do to values that are not much larger than their sum. With fewer samples the distance is
  /// random: its square is on average (sum of p |v|^2 / |o|^2 - 1) / samples for plain and not above that for
  /// stratified.
  static constexpr double error_bound = 2e-2;

  bool operator==(const Santa&) const = default;
};

inline void validate(const Santa& a) {
  constexpr const char* where = "attention::Santa";
  require(a.samples >= 0 && a.samples <= detail::santa_most_samples, where, "samples", "0 to 2^20", a.samples);
  require(a.scheme <= SantaScheme::threshold_systematic, where, "scheme", "one of SantaScheme",
          static_cast<int>(a.scheme));
  require(a.tile >= 0 && a.tile % 16 == 0 && a.tile <= detail::santa_most_keys, where, "tile",
          "a multiple of 16 keys, or 0", a.tile);
  require(a.scale >= 0 && std::isfinite(a.scale), where, "scale", "a finite number of at least 0", a.scale);
  require(a.soft_cap >= 0 && std::isfinite(a.soft_cap), where, "soft_cap", "a finite number of at least 0", a.soft_cap);
  require(a.layer < 65536, where, "layer", "at most 65535", a.layer);
}

}  // namespace decant::attention

#endif
