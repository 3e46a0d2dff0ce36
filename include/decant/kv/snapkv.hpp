// decant: SnapKV (Li, Huang, Yang, et al., arXiv 2404.14469): tokens that the last `window` queries of the prompt
// attend to, pooled so that neighbours stay together; the window itself stays. Defaults are kvpress's (window 64,
// average over 5); the authors' code uses window 32.
#ifndef DECANT_KV_SNAPKV_HPP
#define DECANT_KV_SNAPKV_HPP

#include "eviction.hpp"
#include "window_attention.hpp"

namespace decant::kv {

/// window: queries that look, and tokens that are protected. pool: neighbours averaged, odd.
struct SnapKV {
  index_t window = 64;
  index_t pool = 5;
  bool operator==(const SnapKV&) const = default;
};

constexpr auto stages(const SnapKV& p) {
  return Eviction{WindowAttention{.window = p.window}, AvgPool{.size = p.pool},
                  SinkRecent{.sinks = 0, .recent = p.window}};
}

inline void validate(const SnapKV& p) { validate(stages(p)); }

static_assert(KVEvictionPolicy<SnapKV, Cpu>);

}  // namespace decant::kv

#endif
