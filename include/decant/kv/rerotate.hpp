// decant: rerotate, the transform that gives kept keys new RoPE phases: the key of rank i that was cached at position p
// turns by (i - p) theta_f, as if the kept tokens stood next to each other (StreamingLLM, arXiv 2309.17453, and
// kvpress's KeyRerotationPress). Angles are formed in double. Without it keys keep their phases, and new tokens their
// positions.
#ifndef DECANT_KV_REROTATE_HPP
#define DECANT_KV_REROTATE_HPP

#include <cmath>

#include "../core/cpu.hpp"
#include "../core/detail/rounded.hpp"
#include "cache_view.hpp"
#include "rope.hpp"

namespace decant::kv {

namespace detail {

/// The pair (x, y) turned by an angle with this cosine and sine; rounds to T once.
template <Storage T>
DECANT_HD void rotate_pair(T& first, T& second, double c, double s) {
  const auto x = static_cast<double>(static_cast<float>(first));
  const auto y = static_cast<double>(static_cast<float>(second));
  using ::decant::detail::rounded_product;
  first = T(static_cast<float>(rounded_product(x, c) - rounded_product(y, s)));
  second = T(static_cast<float>(rounded_product(x, s) + rounded_product(y, c)));
}

}  // namespace detail

/// Turns the pairs of one key of `dim` elements by `steps` positions; rounds to the key's type once.
template <Storage T>
requires(!std::is_const_v<T>) void rotate_key(T* key, index_t dim, const Rope& rope, index_t steps) {
  if (steps == 0) return;
  for (index_t f = 0; f < rope.rotary_dim(dim) / 2; ++f) {
    const double angle = static_cast<double>(steps) * rope.frequency(f, dim);
    detail::rotate_pair(key[rope.first(f)], key[rope.second(f, dim)], std::cos(angle), std::sin(angle));
  }
}

/// For a compacted sequence: token i of head h, which stood at old_positions(h, i), moves to position i. old_positions
/// [kv_heads, at least n]. Pages that sequences share are changed for all of them. O(kv_heads * n * key_dim).
template <PlainCacheView C>
requires(!std::is_const_v<std::remove_pointer_t<row_t<C>>>) void rerotate(Cpu& cpu, const C& cache, index_t sequence,
                                                                          View<const std::int32_t, 2> old_positions,
                                                                          const Rope& rope) {
  constexpr const char* where = "kv::rerotate";
  validate(cache);
  validate(rope, cache.key_dim());
  require(
      sequence >= 0 && sequence < cache.sequences(), where, "sequence",
      [&] { return "an index below " + std::to_string(cache.sequences()); }, sequence);
  require_equal(old_positions.extent(0), cache.kv_heads(), where, "old_positions");
  const index_t longest = max_length(cache, sequence);
  require(
      old_positions.extent(1) >= longest, where, "old_positions",
      [&] { return "one per cached token, " + std::to_string(longest); }, old_positions.extent(1));
  cpu.parallel_for(cache.kv_heads(), [&](index_t h) {
    for (index_t i = 0; i < cache.length(sequence, h); ++i) {
      rotate_key(cache.key(sequence, h, i), cache.key_dim(), rope, i - old_positions(h, i));
    }
  });
}

}  // namespace decant::kv

#endif
