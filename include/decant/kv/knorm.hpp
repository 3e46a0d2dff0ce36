// decant: KNorm (Devoto, Zhao, Scardapane, Minervini, arXiv 2406.11430): tokens with small key norms draw attention, so
// the score is -||k||. Position-free and free of queries.
#ifndef DECANT_KV_KNORM_HPP
#define DECANT_KV_KNORM_HPP

#include <cmath>

#include "detail/key_tiles.hpp"
#include "detail/row_dots.hpp"
#include "eviction.hpp"

namespace decant::kv {

struct KNorm {
  bool operator==(const KNorm&) const = default;
};

inline void validate(const KNorm&) {}

/// -||k_j||. O(kv_heads * n * key_dim), one read of the keys.
template <class X>
void score(Cpu& cpu, const KNorm&, const X& x, View<float, 2> scores) {
  Workspace::Scope scope(cpu.workspace());
  const index_t dim = x.cache.key_dim();
  const Isa isa = cpu.isa();
  detail::for_each_key_tile(cpu, x, [&](index_t h, index_t first, index_t count, const float* rows) {
    float* const out = &scores(h, first);
    detail::row_dots(isa, detail::RowDots{rows, dim, rows, dim, count, dim, out});
    for (index_t i = 0; i < count; ++i) out[i] = -std::sqrt(out[i]);
  });
}

constexpr auto stages(const KNorm& p) { return Eviction{p}; }

static_assert(KVEvictionPolicy<KNorm, Cpu>);

}  // namespace decant::kv

#endif
