// decant: storing new rows in a KV cache: write() over tokens that the cache already counts, append() behind them.
// One spelling for dense, paged and ragged caches; keys come as the projection leaves them, [tokens, kv_heads, dim].
#ifndef DECANT_KV_WRITE_HPP
#define DECANT_KV_WRITE_HPP

#include <type_traits>

#include "../core/convert.hpp"
#include "../core/cpu.hpp"
#include "dense_kv.hpp"
#include "page_table.hpp"
#include "paged_kv.hpp"
#include "ragged_kv.hpp"

namespace decant::kv {

namespace detail {

/// What new rows for a cache of T may be: T itself, or float, which is rounded to T.
template <class S, class T>
concept RowsFor = std::is_same_v<std::remove_const_t<S>, T> || std::is_same_v<std::remove_const_t<S>, float>;

template <class C>
inline void require_sequence(const C& cache, index_t sequence, const char* where) {
  require(sequence >= 0 && sequence < cache.sequences(), where, "sequence",
          [&] { return "an index below " + std::to_string(cache.sequences()); }, sequence);
}

template <class C, class S>
void validate_new_rows(const C& cache, index_t sequence, const View<S, 3>& keys, const View<S, 3>& values,
                       const char* where) {
  validate(cache);
  require_sequence(cache, sequence, where);
  require_equal(keys.extent(1), cache.kv_heads(), where, "keys");
  require_equal(keys.extent(2), cache.key_dim(), where, "keys");
  require_equal(values.extent(0), keys.extent(0), where, "values");
  require_equal(values.extent(1), cache.kv_heads(), where, "values");
  require_equal(values.extent(2), cache.value_dim(), where, "values");
  require(keys.stride(2) == 1, where, "keys", "stride 1 along the head dim", keys.stride(2));
  require(values.stride(2) == 1, where, "values", "stride 1 along the head dim", values.stride(2));
}

/// Stores rows at [first, first + tokens), checked before.
template <class C, class S>
void store_rows(Cpu& cpu, const C& cache, index_t sequence, index_t first, const View<S, 3>& keys,
                const View<S, 3>& values) {
  const index_t tokens = keys.extent(0);
  const index_t row_bytes = (cache.key_dim() + cache.value_dim()) * static_cast<index_t>(sizeof(S));
  const index_t grain = 1 + 131072 / row_bytes;  // a part worth a thread moves 128 KiB
  cpu.parallel_ranges(tokens * cache.kv_heads(), grain, [&](index_t begin, index_t end, index_t) {
    for (index_t i = begin; i < end; ++i) {
      const index_t h = i / tokens;
      const index_t t = i % tokens;
      convert(cpu.isa(), &keys(t, h, 0), cache.key_dim(), cache.key(sequence, h, first + t));
      convert(cpu.isa(), &values(t, h, 0), cache.value_dim(), cache.value(sequence, h, first + t));
    }
  });
}

}  // namespace detail

/// Stores keys [tokens, kv_heads, key_dim] and values [tokens, kv_heads, value_dim] at the token positions
/// first ... first + tokens - 1, which must be below every head's length. Rows are of the cache's type, or floats,
/// which are rounded to it; they must not overlap the cache. Works for any cache of plain, writable rows.
template <PlainCacheView C, class S>
  requires(!std::is_const_v<std::remove_pointer_t<row_t<C>>> && detail::RowsFor<S, std::remove_pointer_t<row_t<C>>>)
void write(Cpu& cpu, const C& cache, index_t sequence, index_t first, View<S, 3> keys,
           View<std::type_identity_t<S>, 3> values) {
  constexpr const char* where = "kv::write";
  detail::validate_new_rows(cache, sequence, keys, values, where);
  const index_t tokens = keys.extent(0);
  for (index_t h = 0; h < cache.kv_heads(); ++h) {
    const index_t length = cache.length(sequence, h);
    require(first >= 0 && first <= length - tokens, where, "first",
            [&] {
              return "a position with " + std::to_string(tokens) + " tokens from it on below the length of " +
                     std::to_string(length);
            },
            first);
  }
  detail::store_rows(cpu, cache, sequence, first, keys, values);
}

/// Adds tokens at the end of a sequence: raises its length, then writes. ArgumentError when the capacity lacks.
template <class T, class S>
  requires(!std::is_const_v<T> && detail::RowsFor<S, T>)
void append(Cpu& cpu, const DenseKV<T>& cache, index_t sequence, View<S, 3> keys,
            View<std::type_identity_t<S>, 3> values) {
  constexpr const char* where = "kv::append";
  detail::validate_new_rows(cache, sequence, keys, values, where);
  const index_t first = cache.length(sequence, 0);
  require(keys.extent(0) <= cache.capacity() - first, where, "keys",
          [&] { return "at most the " + std::to_string(cache.capacity() - first) + " tokens that are free"; },
          keys.extent(0));
  cache.lengths[sequence] += static_cast<std::int32_t>(keys.extent(0));
  detail::store_rows(cpu, cache, sequence, first, keys, values);
}

/// The same for a ragged cache: every head grows by the same tokens, each behind its own end.
template <class T, class S>
  requires(!std::is_const_v<T> && detail::RowsFor<S, T>)
void append(Cpu& cpu, const RaggedKV<T>& cache, index_t sequence, View<S, 3> keys,
            View<std::type_identity_t<S>, 3> values) {
  constexpr const char* where = "kv::append";
  detail::validate_new_rows(cache, sequence, keys, values, where);
  const index_t tokens = keys.extent(0);
  for (index_t h = 0; h < cache.kv_heads(); ++h) {
    const index_t room = cache.capacity(sequence, h) - cache.length(sequence, h);
    require(tokens <= room, where, "keys",
            [&] {
              return "at most the " + std::to_string(room) + " tokens that head " + std::to_string(h) + " has room for";
            },
            tokens);
  }
  const index_t row_bytes = (cache.key_dim() + cache.value_dim()) * static_cast<index_t>(sizeof(S));
  const index_t grain = 1 + 131072 / (row_bytes * (tokens + 1));
  cpu.parallel_ranges(cache.kv_heads(), grain, [&](index_t begin, index_t end, index_t) {
    for (index_t h = begin; h < end; ++h) {
      const index_t first = cache.length(sequence, h);
      for (index_t t = 0; t < tokens; ++t) {
        convert(cpu.isa(), &keys(t, h, 0), cache.key_dim(), cache.key(sequence, h, first + t));
        convert(cpu.isa(), &values(t, h, 0), cache.value_dim(), cache.value(sequence, h, first + t));
      }
      cache.lengths[sequence * cache.heads + h] += static_cast<std::int32_t>(tokens);
    }
  });
}

/// The same for a paged cache over a PageTable: extends the sequence, taking free pages as needed, then writes. When
/// several layers share the table, extend it once and write() each layer.
template <class T, class S>
  requires(!std::is_const_v<T> && detail::RowsFor<S, T>)
void append(Cpu& cpu, PageTable& table, View<T, 4> key_pool, View<T, 4> value_pool, index_t sequence, View<S, 3> keys,
            View<std::type_identity_t<S>, 3> values) {
  detail::validate_new_rows(table.attach(key_pool, value_pool), sequence, keys, values, "kv::append");
  const index_t first = table.length(sequence);
  table.extend(sequence, keys.extent(0));
  detail::store_rows(cpu, table.attach(key_pool, value_pool), sequence, first, keys, values);
}

}  // namespace decant::kv

#endif
