// decant: protectors, the stage that marks tokens which no score may evict: attention sinks (Xiao et al., arXiv
// 2309.17453), the most recent tokens, and anchors that the caller names. Protection is a mask beside the scores; it
// takes no part in normalisation or allocation statistics.
#ifndef DECANT_KV_PROTECT_HPP
#define DECANT_KV_PROTECT_HPP

#include "../core/cpu.hpp"
#include "stages.hpp"

namespace decant::kv {

/// Nothing is protected.
struct NoProtection {
  bool operator==(const NoProtection&) const = default;
};

/// The first `sinks` and the last `recent` tokens of every head.
struct SinkRecent {
  index_t sinks = 4;
  index_t recent = 0;
  bool operator==(const SinkRecent&) const = default;
};

/// These tokens of every head, the caller's list in any order; tokens at or past a head's length are ignored, so that
/// one list serves sequences of any length.
struct Anchors {
  View<const std::int32_t, 1> tokens;
};

inline void validate(const NoProtection&) {}
inline void validate(const SinkRecent& p) {
  require(p.sinks >= 0, "kv::SinkRecent", "sinks", "at least 0", p.sinks);
  require(p.recent >= 0, "kv::SinkRecent", "recent", "at least 0", p.recent);
}
inline void validate(const Anchors& p) {
  for (index_t i = 0; i < p.tokens.extent(0); ++i) {
    require(p.tokens[i] >= 0, "kv::Anchors", "tokens", "token indices of at least 0", p.tokens[i]);
  }
}

inline void protect(Cpu&, const NoProtection&, const ScoredLayer&) {}

inline void protect(Cpu&, const SinkRecent& p, const ScoredLayer& layer) {
  validate(p);
  for (index_t h = 0; h < layer.kv_heads(); ++h) {
    const index_t n = layer.length(h);
    const index_t sinks = p.sinks < n ? p.sinks : n;
    const index_t recent = p.recent < n ? n - p.recent : 0;
    for (index_t t = 0; t < sinks; ++t) layer.keep(h, t) = 1;
    for (index_t t = recent; t < n && p.recent > 0; ++t) layer.keep(h, t) = 1;
  }
}

inline void protect(Cpu&, const Anchors& p, const ScoredLayer& layer) {
  validate(p);
  for (index_t h = 0; h < layer.kv_heads(); ++h) {
    for (index_t i = 0; i < p.tokens.extent(0); ++i) {
      if (p.tokens[i] < layer.length(h)) layer.keep(h, p.tokens[i]) = 1;
    }
  }
}

static_assert(Protector<NoProtection, Cpu> && Protector<SinkRecent, Cpu> && Protector<Anchors, Cpu>);

}  // namespace decant::kv

#endif
