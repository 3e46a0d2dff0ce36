// decant: walks over all keys or values of a layer in tiles of contiguous floats, tiles in parallel.
#ifndef DECANT_KV_DETAIL_KEY_TILES_HPP
#define DECANT_KV_DETAIL_KEY_TILES_HPP

#include "../../core/cpu.hpp"
#include "../layer.hpp"
#include "rows.hpp"

namespace decant::kv::detail {

inline constexpr index_t tile_tokens = 256;

/// body(head, first, count, rows) for every tile of every head, in any order; rows [count][key_dim] floats. Tiles begin
/// at multiples of 256 tokens, so what a body computes per tile does not depend on threads. Takes scratch from the
/// workspace of an open scope.
template <class X, class Body>
void for_each_key_tile(Cpu& cpu, const X& x, Body&& body) {
  const index_t per_head = (x.max_length() + tile_tokens - 1) / tile_tokens;
  const index_t tasks = x.kv_heads() * per_head;
  const index_t dim = x.cache.key_dim();
  float* const scratch = cpu.workspace().template take<float>(cpu.parts(tasks, 1) * tile_tokens * dim);
  const Isa isa = cpu.isa();
  cpu.parallel_ranges(tasks, 1, [&](index_t begin, index_t end, index_t part) {
    float* const rows = scratch + part * tile_tokens * dim;
    for (index_t task = begin; task < end; ++task) {
      const index_t head = task / per_head;
      const index_t first = task % per_head * tile_tokens;
      const index_t left = x.length(head) - first;
      if (left <= 0) continue;
      const index_t count = left < tile_tokens ? left : tile_tokens;
      load_keys(isa, x.cache, x.sequence, head, first, count, rows, dim);
      body(head, first, count, static_cast<const float*>(rows));
    }
  });
}

}  // namespace decant::kv::detail

#endif
