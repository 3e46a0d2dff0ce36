// decant: Full, the policy that evicts nothing: the ceiling of every comparison.
#ifndef DECANT_KV_FULL_HPP
#define DECANT_KV_FULL_HPP

#include "eviction.hpp"

namespace decant::kv {

/// Keeps every token, whatever the budget.
struct Full {
  bool operator==(const Full&) const = default;
};

inline void validate(const Full&) {}

/// 0 for every token.
template <class X>
void score(Cpu&, const Full&, const X& x, View<float, 2> scores) {
  for (index_t h = 0; h < x.kv_heads(); ++h) {
    for (index_t t = 0; t < x.length(h); ++t) scores(h, t) = 0.0f;
  }
}

constexpr auto stages(const Full& p) {
  return Eviction{p, NoSmoothing{}, NoProtection{}, NoNormalisation{}, KeepAll{}};
}

static_assert(KVEvictionPolicy<Full, Cpu>);

}  // namespace decant::kv

#endif
