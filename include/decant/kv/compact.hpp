// decant: moving the kept rows of a KV cache together: compact() in place, gather() into another cache or plain views.
// Kept tokens are ascending, so every row moves to where it stood or further down: in place, in order, without scratch,
// bit for bit. Lists and shapes are checked whole before the first byte moves.
#ifndef DECANT_KV_COMPACT_HPP
#define DECANT_KV_COMPACT_HPP

#include <cstring>
#include <type_traits>

#include "../core/convert.hpp"
#include "../core/cpu.hpp"
#include "dense_kv.hpp"
#include "detail/compact_entries.hpp"
#include "detail/shared_pages.hpp"
#include "detail/values_within_keys.hpp"
#include "layer.hpp"
#include "page_table.hpp"
#include "paged_kv.hpp"
#include "ragged_kv.hpp"

namespace decant::kv {

/// Raises ArgumentError unless `kept` names, for every head, strictly ascending tokens of that head. O(kept tokens).
template <CacheView C>
void validate(const KeptView& kept, const C& cache, index_t sequence) {
  constexpr const char* where = "kv::KeptView";
  require(sequence >= 0 && sequence < cache.sequences(), where, "sequence",
          [&] { return "an index below " + std::to_string(cache.sequences()); }, sequence);
  require_equal(kept.kv_heads(), cache.kv_heads(), where, "counts");
  require_equal(kept.indices.extent(0), cache.kv_heads(), where, "indices");
  for (index_t h = 0; h < kept.kv_heads(); ++h) {
    const index_t length = cache.length(sequence, h);
    require(kept.count(h) >= 0 && kept.count(h) <= length && kept.count(h) <= kept.indices.extent(1), where, "counts",
            [&] {
              return "0 to the " + std::to_string(length) + " tokens of head " + std::to_string(h) +
                     ", with room for them in indices";
            },
            kept.count(h));
    index_t previous = -1;
    for (index_t i = 0; i < kept.count(h); ++i) {
      const index_t token = kept.token(h, i);
      require(token > previous && token < length, where, "indices",
              [&] { return "strictly ascending tokens below " + std::to_string(length); }, token);
      previous = token;
    }
  }
}

namespace detail {

/// The number that all heads keep; ArgumentError when they differ.
inline index_t equal_count(const KeptView& kept, const char* where) {
  const index_t count = kept.kv_heads() == 0 ? 0 : kept.count(0);
  for (index_t h = 1; h < kept.kv_heads(); ++h) {
    require(kept.count(h) == count, where, "kept",
            "equally many tokens in every head (kv::RaggedKV holds different numbers)",
            [&] {
              return std::to_string(count) + " in head 0 and " + std::to_string(kept.count(h)) + " in head " +
                     std::to_string(h);
            });
  }
  return count;
}

/// Moves rows kept(h, i) of one head's keys (or values) to i; `row(t)` is where token t lies. The rows ahead are
/// fetched early: their distances are irregular, which the processor does not foresee.
template <class Row>
void move_rows(const KeptView& kept, index_t head, index_t dim, Row row) {
  using T = std::remove_pointer_t<decltype(row(index_t{0}))>;
  const index_t count = kept.count(head);
  const std::size_t bytes = static_cast<std::size_t>(dim) * sizeof(T);
  const index_t ahead = 1 + 8192 / static_cast<index_t>(bytes);
  index_t i = 0;
  while (i < count && kept.token(head, i) == i) ++i;  // these stay
  for (; i < count; ++i) {
    if (i + ahead < count) {
      const char* next = reinterpret_cast<const char*>(row(kept.token(head, i + ahead)));
      for (std::size_t b = 0; b < bytes; b += 64) __builtin_prefetch(next + b);
    }
    std::memmove(row(i), row(kept.token(head, i)), bytes);
  }
}

/// Compacts all rows of a sequence, values within keys with these; lengths and tables stay as they are.
template <class C>
void move_all_rows(Cpu& cpu, const C& cache, const KeptView& kept, index_t sequence) {
  const index_t kinds = values_within_keys(cache) < 0 ? 2 : 1;
  cpu.parallel_for(kinds * cache.kv_heads(), [&](index_t task) {
    const index_t h = task / kinds;
    if (task % kinds == 0) {
      move_rows(kept, h, cache.key_dim(), [&](index_t t) { return cache.key(sequence, h, t); });
    } else {
      move_rows(kept, h, cache.value_dim(), [&](index_t t) { return cache.value(sequence, h, t); });
    }
  });
}

/// What must hold of `out` before rows can be gathered into it.
template <class T>
void require_room(const DenseKV<T>& out, index_t, const KeptView& kept, const char* where) {
  const index_t count = equal_count(kept, where);
  require(count <= out.capacity(), where, "out", [&] { return "room for " + std::to_string(count) + " tokens"; },
          out.capacity());
}
template <class T>
void require_room(const RaggedKV<T>& out, index_t sequence, const KeptView& kept, const char* where) {
  for (index_t h = 0; h < kept.kv_heads(); ++h) {
    require(kept.count(h) <= out.capacity(sequence, h), where, "out",
            [&] { return "room for " + std::to_string(kept.count(h)) + " tokens in head " + std::to_string(h); },
            out.capacity(sequence, h));
  }
}
template <class T>
void require_room(const PagedKV<T>& out, index_t sequence, const KeptView& kept, const char* where) {
  const index_t count = equal_count(kept, where);
  require(count == out.length(sequence, 0), where, "out",
          [&] { return "pages for just " + std::to_string(count) + " tokens"; }, out.length(sequence, 0));
}

template <class T>
void set_length(const DenseKV<T>& cache, index_t sequence, const KeptView& kept) {
  if (kept.kv_heads() > 0) cache.lengths[sequence] = static_cast<std::int32_t>(kept.count(0));
}
template <class T>
void set_length(const RaggedKV<T>& cache, index_t sequence, const KeptView& kept) {
  for (index_t h = 0; h < cache.kv_heads(); ++h) {
    cache.lengths[sequence * cache.heads + h] = static_cast<std::int32_t>(kept.count(h));
  }
}
template <class T>
void set_length(const PagedKV<T>&, index_t, const KeptView&) {}  // its table says it already

/// One row to `to`: bits when the types agree, else through floats in `scratch`.
template <class Handle, class T>
void copy_row(Isa isa, Handle from, index_t dim, T* to, float* scratch) {
  if constexpr (std::is_pointer_v<Handle> && std::is_same_v<std::remove_const_t<std::remove_pointer_t<Handle>>, T>) {
    std::memcpy(to, from, static_cast<std::size_t>(dim) * sizeof(T));
  } else {
    load_row(from, dim, scratch);
    convert(isa, scratch, dim, to);
  }
}

/// Room for one row of floats per part of gather_rows.
template <class C>
float* take_row_scratch(Cpu& cpu, const C& cache) {
  const index_t dim = cache.key_dim() > cache.value_dim() ? cache.key_dim() : cache.value_dim();
  return cpu.workspace().take<float>(cpu.parts(cache.kv_heads(), 1) * dim);
}

/// Copies the kept rows to key_at(h, i) and value_at(h, i). Arguments are checked before.
template <class C, class KeyAt, class ValueAt>
void gather_rows(Cpu& cpu, const C& cache, index_t sequence, const KeptView& kept, float* scratch, KeyAt key_at,
                 ValueAt value_at) {
  const index_t dim = cache.key_dim() > cache.value_dim() ? cache.key_dim() : cache.value_dim();
  cpu.parallel_ranges(cache.kv_heads(), 1, [&](index_t first, index_t last, index_t part) {
    float* const row = scratch + part * dim;
    for (index_t h = first; h < last; ++h) {
      for (index_t i = 0; i < kept.count(h); ++i) {
        const index_t t = kept.token(h, i);
        copy_row(cpu.isa(), cache.key(sequence, h, t), cache.key_dim(), key_at(h, i), row);
        copy_row(cpu.isa(), cache.value(sequence, h, t), cache.value_dim(), value_at(h, i), row);
      }
    }
  });
}

}  // namespace detail

/// Keeps rows kept(h, i) of a sequence, at i, and sets its length to their number, which must be the same for every
/// head. In place. O(kept rows).
template <class T>
  requires(!std::is_const_v<T>)
void compact(Cpu& cpu, const DenseKV<T>& cache, KeptView kept, index_t sequence = 0) {
  validate(cache);
  validate(kept, cache, sequence);
  detail::equal_count(kept, "kv::compact");
  detail::move_all_rows(cpu, cache, kept, sequence);
  detail::set_length(cache, sequence, kept);
}

/// The same for a ragged cache, in which heads may keep different numbers. Offsets stay: what is freed is capacity.
template <class T>
  requires(!std::is_const_v<T>)
void compact(Cpu& cpu, const RaggedKV<T>& cache, KeptView kept, index_t sequence = 0) {
  validate(cache);
  validate(kept, cache, sequence);
  detail::move_all_rows(cpu, cache, kept, sequence);
  detail::set_length(cache, sequence, kept);
}

/// The moves alone, with the page table untouched: for layers that share a table, each of which keeps equally many
/// tokens. After the last layer, cut the table once. Pages that the table names more than once are refused.
template <class T>
  requires(!std::is_const_v<T>)
void compact_rows(Cpu& cpu, const PagedKV<T>& cache, KeptView kept, index_t sequence = 0) {
  validate(cache);
  validate(kept, cache, sequence);
  detail::equal_count(kept, "kv::compact");
  detail::require_unshared(cpu, cache, sequence, "kv::compact");
  detail::move_all_rows(cpu, cache, kept, sequence);
}

/// The same as for a dense cache, over a table of this cache's own: the pages that become empty leave the table and
/// are written to `freed`, and their number is returned. ArgumentError when `freed` has no room for them.
template <class T>
  requires(!std::is_const_v<T>)
index_t compact(Cpu& cpu, const PagedKV<T>& cache, KeptView kept, index_t sequence, View<std::int32_t, 1> freed) {
  constexpr const char* where = "kv::compact";
  validate(cache);
  validate(kept, cache, sequence);
  const index_t count = detail::equal_count(kept, where);
  const index_t used = cache.indptr[sequence + 1] - cache.indptr[sequence];
  const index_t wanted = (count + cache.page_size() - 1) / cache.page_size();
  require(freed.extent(0) >= used - wanted, where, "freed",
          [&] { return "room for " + std::to_string(used - wanted) + " pages"; }, freed.extent(0));
  detail::require_unshared(cpu, cache, sequence, where);
  detail::move_all_rows(cpu, cache, kept, sequence);

  const index_t cut = cache.indptr[sequence] + wanted;
  for (index_t i = 0; i < used - wanted; ++i) freed[i] = cache.indices[cut + i];
  for (index_t i = cache.indptr[sequence + 1]; i < cache.indptr[cache.sequences()]; ++i) {
    cache.indices[i - (used - wanted)] = cache.indices[i];
  }
  for (index_t s = sequence + 1; s <= cache.sequences(); ++s) {
    cache.indptr[s] -= static_cast<std::int32_t>(used - wanted);
  }
  cache.last_page_len[sequence] =
      static_cast<std::int32_t>(wanted == 0 ? 0 : count - (wanted - 1) * cache.page_size());
  return used - wanted;
}

/// The same over a PageTable, which takes the freed pages back.
template <class T>
void compact(Cpu& cpu, PageTable& table, View<T, 4> keys, View<T, 4> values, KeptView kept, index_t sequence = 0) {
  compact_rows(cpu, table.attach(keys, values), kept, sequence);
  table.truncate(sequence, kept.kv_heads() == 0 ? 0 : kept.count(0));
}

/// Compacts what goes along with the tokens, such as LayerView::positions: row h of `entries` [kv_heads, n] keeps its
/// entries kept(h, i), at i.
inline void compact(Cpu& cpu, View<std::int32_t, 2> entries, KeptView kept) {
  detail::compact_entries(cpu, entries, kept, "kv::compact");
}

/// Copies rows kept(h, i) of a sequence to position i of sequence `out_sequence` of `out`, a cache of the same shape
/// (dense, paged or ragged) elsewhere in memory, and sets its lengths; a paged one must already have pages for just as
/// many tokens. `cache` may be any CacheView: rows of other types go through floats. O(kept rows).
template <CacheView C, PlainCacheView D>
  requires(!std::is_const_v<std::remove_pointer_t<row_t<D>>>)
void gather(Cpu& cpu, const C& cache, index_t sequence, KeptView kept, const D& out, index_t out_sequence = 0) {
  constexpr const char* where = "kv::gather";
  validate(cache);
  validate(out);
  validate(kept, cache, sequence);
  require(out_sequence >= 0 && out_sequence < out.sequences(), where, "out_sequence",
          [&] { return "an index below " + std::to_string(out.sequences()); }, out_sequence);
  require_equal(out.kv_heads(), cache.kv_heads(), where, "out");
  require_equal(out.key_dim(), cache.key_dim(), where, "out");
  require_equal(out.value_dim(), cache.value_dim(), where, "out");
  detail::require_room(out, out_sequence, kept, where);
  Workspace::Scope scope(cpu.workspace());
  float* const scratch = detail::take_row_scratch(cpu, cache);
  detail::set_length(out, out_sequence, kept);
  detail::gather_rows(
      cpu, cache, sequence, kept, scratch, [&](index_t h, index_t i) { return out.key(out_sequence, h, i); },
      [&](index_t h, index_t i) { return out.value(out_sequence, h, i); });
}

/// The same into plain views: keys [kv_heads, capacity, key_dim] and values [kv_heads, capacity, value_dim]. Heads may
/// keep different numbers of tokens; what lies behind them is not touched.
template <CacheView C, Storage T>
  requires(!std::is_const_v<T>)
void gather(Cpu& cpu, const C& cache, index_t sequence, KeptView kept, View<T, 3> keys,
            View<std::type_identity_t<T>, 3> values) {
  constexpr const char* where = "kv::gather";
  validate(cache);
  validate(kept, cache, sequence);
  require_equal(keys.extent(0), cache.kv_heads(), where, "keys");
  require_equal(keys.extent(2), cache.key_dim(), where, "keys");
  require_equal(values.extent(0), cache.kv_heads(), where, "values");
  require_equal(values.extent(2), cache.value_dim(), where, "values");
  require(keys.stride(2) == 1, where, "keys", "stride 1 along the head dim", keys.stride(2));
  require(values.stride(2) == 1, where, "values", "stride 1 along the head dim", values.stride(2));
  for (index_t h = 0; h < kept.kv_heads(); ++h) {
    const auto room = [&] { return "room for " + std::to_string(kept.count(h)) + " tokens"; };
    require(kept.count(h) <= keys.extent(1), where, "keys", room, keys.extent(1));
    require(kept.count(h) <= values.extent(1), where, "values", room, values.extent(1));
  }
  Workspace::Scope scope(cpu.workspace());
  detail::gather_rows(
      cpu, cache, sequence, kept, detail::take_row_scratch(cpu, cache),
      [&](index_t h, index_t i) { return &keys(h, i, 0); }, [&](index_t h, index_t i) { return &values(h, i, 0); });
}

}  // namespace decant::kv

#endif
