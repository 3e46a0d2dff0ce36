// decant: StreamingLLM (Xiao, Tian, Chen, Han, Lewis, arXiv 2309.17453): the first tokens, on which attention rests,
// and the most recent ones. Keys keep their original RoPE phase, as in kvpress; the paper re-assigns positions inside
// the cache, which rerotate() (rerotate.hpp) does.
#ifndef DECANT_KV_STREAMING_LLM_HPP
#define DECANT_KV_STREAMING_LLM_HPP

#include "eviction.hpp"

namespace decant::kv {

/// The first `sinks` tokens and the last budget - sinks; of a budget below `sinks`, the first tokens.
struct StreamingLLM {
  index_t sinks = 4;
  bool operator==(const StreamingLLM&) const = default;
};

inline void validate(const StreamingLLM& p) {
  require(p.sinks >= 0, "kv::StreamingLLM", "sinks", "at least 0", p.sinks);
}

/// A rank: sinks first, from the first on, then the latest first. Exact up to 2^24 tokens.
template <class X>
void score(Cpu&, const StreamingLLM& p, const X& x, View<float, 2> scores) {
  validate(p);
  for (index_t h = 0; h < x.kv_heads(); ++h) {
    const index_t n = x.length(h);
    for (index_t t = 0; t < n; ++t) scores(h, t) = static_cast<float>(t < p.sinks ? p.sinks - t : t - n);
  }
}

constexpr auto stages(const StreamingLLM& p) { return Eviction{p}; }

static_assert(KVEvictionPolicy<StreamingLLM, Cpu>);

}  // namespace decant::kv

#endif
