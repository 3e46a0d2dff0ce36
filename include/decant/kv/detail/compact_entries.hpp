// decant: moving what goes along with the tokens (positions, gathered attention) as compact() moves rows.
#ifndef DECANT_KV_DETAIL_COMPACT_ENTRIES_HPP
#define DECANT_KV_DETAIL_COMPACT_ENTRIES_HPP

#include <string>

#include "../../core/cpu.hpp"
#include "../layer.hpp"

namespace decant::kv::detail {

/// Row h of `entries` [kv_heads, n] keeps its entries kept(h, i), at i. The lists are checked first.
template <class T>
void compact_entries(Cpu& cpu, View<T, 2> entries, const KeptView& kept, const char* where) {
  require_equal(kept.kv_heads(), entries.extent(0), where, "kept");
  require(entries.extent(0) <= 1 || entries.stride(0) != 0, where, "entries", "a row of its own for each head",
          "stride 0");
  for (index_t h = 0; h < kept.kv_heads(); ++h) {
    require(kept.count(h) >= 0 && kept.count(h) <= kept.indices.extent(1), where, "kept",
            "counts with room for them in indices", kept.count(h));
    index_t previous = -1;
    for (index_t i = 0; i < kept.count(h); ++i) {
      require(kept.token(h, i) > previous && kept.token(h, i) < entries.extent(1), where, "kept",
              [&] { return "strictly ascending tokens below " + std::to_string(entries.extent(1)); }, kept.token(h, i));
      previous = kept.token(h, i);
    }
  }
  cpu.parallel_for(kept.kv_heads(), [&](index_t h) {
    for (index_t i = 0; i < kept.count(h); ++i) entries(h, i) = entries(h, kept.token(h, i));
  });
}

}  // namespace decant::kv::detail

#endif
