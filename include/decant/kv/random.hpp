// decant: Random eviction, the floor of every comparison: each token's score is uniform on (0, 1), a pure function of
// (seed, layer, head, token), so the same on every backend and in any order.
#ifndef DECANT_KV_RANDOM_HPP
#define DECANT_KV_RANDOM_HPP

#include "../core/random.hpp"
#include "eviction.hpp"

namespace decant::kv {

struct Random {
  std::uint64_t seed = 0;
  bool operator==(const Random&) const = default;
};

inline void validate(const Random&) {}

template <class X>
void score(Cpu&, const Random& p, const X& x, View<float, 2> scores) {
  const Philox philox{p.seed};
  for (index_t h = 0; h < x.kv_heads(); ++h) {
    for (index_t t = 0; t < x.length(h); ++t) {
      scores(h, t) = philox.uniform(static_cast<std::uint32_t>(t), static_cast<std::uint32_t>(h),
                                    static_cast<std::uint32_t>(x.layer));
    }
  }
}

constexpr auto stages(const Random& p) { return Eviction{p}; }

static_assert(KVEvictionPolicy<Random, Cpu>);

}  // namespace decant::kv

#endif
