#pragma once
// What every kv::CacheView must do, and what write, append, gather and compact must do on the caches that have them.
// A fixture builds a cache whose head h of sequence s holds lengths[s][h] tokens with the contents of row_value():
//
//   Fixture(const Lengths&, index_t key_dim, index_t value_dim, int variant);   variant in [0, Fixture::variants)
//   Fixture::ragged            heads of one sequence may differ in length
//   auto cache();              the view
//   auto memory();             of plain caches: the two pools, whole, as (pointer, elements) pairs
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "catch_compat.hpp"
#include "decant/core/random.hpp"
#include "decant/kv/compact.hpp"
#include "decant/kv/write.hpp"

namespace conformance {

using decant::Cpu;
using decant::index_t;
using decant::View;

/// Tokens of each head of each sequence.
using Lengths = std::vector<std::vector<index_t>>;

/// Component c of a key (kind 0) or value (kind 1) row; a small multiple of 1/8, so that every storage type holds it.
inline float row_value(int kind, index_t s, index_t h, index_t t, index_t c) {
  const auto u = [](index_t i) { return static_cast<std::uint32_t>(i); };
  const std::uint32_t word = decant::Philox{static_cast<std::uint64_t>(kind)}(u(s), u(h), u(t), u(c)).word[0];
  return static_cast<float>(static_cast<int>(word % 15) - 7) / 8.0f;
}

/// Rows as plain floats: model[s][h][t] is one row.
using Row = std::vector<float>;
using Model = std::vector<std::vector<std::vector<Row>>>;

inline Model model_of(const Lengths& lengths, int kind, index_t dim) {
  Model m;
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    m.emplace_back();
    for (std::size_t h = 0; h < lengths[s].size(); ++h) {
      m[s].emplace_back();
      for (index_t t = 0; t < lengths[s][h]; ++t) {
        Row row;
        for (index_t c = 0; c < dim; ++c) {
          row.push_back(row_value(kind, static_cast<index_t>(s), static_cast<index_t>(h), t, c));
        }
        m[s][h].push_back(row);
      }
    }
  }
  return m;
}

template <class Handle>
Row read(Handle handle, index_t dim) {
  Row row(static_cast<std::size_t>(dim));
  using decant::kv::load_row;
  load_row(handle, dim, row.data());
  return row;
}

/// The cache as a model: lengths and rows by key()/value()/load_row.
template <class C>
Model model_of(const C& cache, int kind) {
  Model m;
  for (index_t s = 0; s < cache.sequences(); ++s) {
    m.emplace_back();
    for (index_t h = 0; h < cache.kv_heads(); ++h) {
      m.back().emplace_back();
      for (index_t t = 0; t < cache.length(s, h); ++t) {
        m.back().back().push_back(kind == 0 ? read(cache.key(s, h, t), cache.key_dim())
                                            : read(cache.value(s, h, t), cache.value_dim()));
      }
    }
  }
  return m;
}

template <class C>
void require_models(const C& cache, const Model& keys, const Model& values) {
  REQUIRE(model_of(cache, 0) == keys);
  REQUIRE(model_of(cache, 1) == values);
}

template <class Fixture>
std::vector<Lengths> shapes() {
  std::vector<Lengths> all{{{5, 5}}, {{1}}, {{0, 0}, {33, 33}, {0, 0}, {7, 7}, {64, 64}, {0, 0}}};
  if (Fixture::ragged) all.push_back({{3, 0, 17}, {0, 0, 1}, {40, 2, 9}});
  return all;
}

/// Reading: contents, runs, strides, empty sequences, validate.
template <class Fixture>
void check_reading() {
  for (int variant = 0; variant < Fixture::variants; ++variant) {
    for (const Lengths& lengths : shapes<Fixture>()) {
      const index_t key_dim = 6, value_dim = 3;
      Fixture fixture(lengths, key_dim, value_dim, variant);
      const auto cache = fixture.cache();
      static_assert(decant::kv::CacheView<std::remove_const_t<decltype(cache)>>);
      INFO("variant " << variant);
      REQUIRE_NOTHROW(validate(cache));
      REQUIRE(cache.sequences() == static_cast<index_t>(lengths.size()));
      REQUIRE(cache.kv_heads() == static_cast<index_t>(lengths[0].size()));
      REQUIRE(cache.key_dim() == key_dim);
      REQUIRE(cache.value_dim() == value_dim);
      require_models(cache, model_of(lengths, 0, key_dim), model_of(lengths, 1, value_dim));
      for (index_t s = 0; s < cache.sequences(); ++s) {
        const auto& of_sequence = lengths[static_cast<std::size_t>(s)];
        REQUIRE(decant::kv::max_length(cache, s) == *std::max_element(of_sequence.begin(), of_sequence.end()));
        for (index_t h = 0; h < cache.kv_heads(); ++h) {
          index_t t = 0;
          while (t < cache.length(s, h)) {
            const index_t run = cache.run(s, h, t);
            REQUIRE((run >= 1 && t + run <= cache.length(s, h)));
            for (index_t i = 0; i < run; ++i) {
              if constexpr (decant::kv::PlainCacheView<std::remove_const_t<decltype(cache)>>) {
                REQUIRE(cache.key(s, h, t) + i * cache.key_stride() == cache.key(s, h, t + i));
                REQUIRE(cache.value(s, h, t) + i * cache.value_stride() == cache.value(s, h, t + i));
              }
              REQUIRE(cache.run(s, h, t + i) == run - i);
            }
            t += run;
          }
        }
      }
    }
  }
}

/// What a plain fixture's memory holds, and 1 for each byte of it where a row of the cache, as it is now, lies.
struct Snapshot {
  std::vector<unsigned char> bytes, live;
  bool operator==(const Snapshot&) const = default;
};
template <class Fixture>
Snapshot snapshot(Fixture& fixture) {
  const auto cache = fixture.cache();
  const auto [keys, values] = fixture.memory();
  constexpr std::size_t size = sizeof *keys.first;
  const auto bytes_of = [](index_t elements) { return static_cast<std::size_t>(elements) * size; };
  const std::size_t split = bytes_of(keys.second);
  Snapshot all;
  all.bytes.resize(split + bytes_of(values.second));
  all.live.resize(all.bytes.size());
  std::memcpy(all.bytes.data(), keys.first, split);
  std::memcpy(all.bytes.data() + split, values.first, bytes_of(values.second));
  for (index_t s = 0; s < cache.sequences(); ++s) {
    for (index_t h = 0; h < cache.kv_heads(); ++h) {
      for (index_t t = 0; t < cache.length(s, h); ++t) {
        std::memset(all.live.data() + bytes_of(cache.key(s, h, t) - keys.first), 1, bytes_of(cache.key_dim()));
        std::memset(all.live.data() + split + bytes_of(cache.value(s, h, t) - values.first), 1,
                    bytes_of(cache.value_dim()));
      }
    }
  }
  return all;
}

/// Runs `change` and checks that no byte outside the rows that are live before or after it has changed.
template <class Fixture, class Change>
void untouched_elsewhere(Fixture& fixture, Change change) {
  const Snapshot before = snapshot(fixture);
  change();
  const Snapshot after = snapshot(fixture);
  const unsigned char *old_bytes = before.bytes.data(), *new_bytes = after.bytes.data();
  const unsigned char *old_live = before.live.data(), *new_live = after.live.data();
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < before.bytes.size(); ++i)
    wrong += (old_live[i] | new_live[i]) == 0 && old_bytes[i] != new_bytes[i];
  REQUIRE(wrong == 0);
}

/// Random strictly ascending lists; kind 0: nothing, 1: everything, 2: a prefix, 3: a suffix, else random.
inline decant::kv::Kept random_kept(const std::vector<index_t>& lengths, std::uint32_t seed, int kind, bool equal) {
  const auto heads = static_cast<index_t>(lengths.size());
  const index_t longest = *std::max_element(lengths.begin(), lengths.end());
  decant::kv::Kept kept(heads, longest);
  const auto view = kept.view();
  const decant::Philox rng{seed};
  for (index_t h = 0; h < heads; ++h) {
    const index_t n = lengths[static_cast<std::size_t>(h)];
    const index_t some = static_cast<index_t>(rng(equal ? 0 : static_cast<std::uint32_t>(h)).word[0]) % (n + 1);
    const index_t count = kind == 0 ? 0 : kind == 1 ? n : some;
    index_t taken = 0;
    for (index_t t = 0; t < n; ++t) {
      const index_t left = n - t;
      const index_t wanted = count - taken;
      const float u = rng.uniform(static_cast<std::uint32_t>(t), static_cast<std::uint32_t>(h) + 1);
      const bool take = kind == 2   ? t < count
                        : kind == 3 ? t >= n - count
                                    : u * static_cast<float>(left) < static_cast<float>(wanted);
      if (take && taken < count) view.indices(h, taken++) = static_cast<std::int32_t>(t);
    }
    view.counts[h] = static_cast<std::int32_t>(taken);
  }
  return kept;
}

inline void keep_only(Model& model, std::size_t s, const decant::kv::Kept& kept) {
  for (std::size_t h = 0; h < model[s].size(); ++h) {
    std::vector<Row> rows;
    for (index_t i = 0; i < kept.count(static_cast<index_t>(h)); ++i) {
      rows.push_back(model[s][h][static_cast<std::size_t>(kept.token(static_cast<index_t>(h), i))]);
    }
    model[s][h] = rows;
  }
}

inline bool equal_counts(const decant::kv::Kept& kept) {
  for (index_t h = 1; h < kept.kv_heads(); ++h) {
    if (kept.count(h) != kept.count(0)) return false;
  }
  return true;
}

/// compact() in every variant, against keep_only. `compact_fixture(cpu, fixture, kept, s)` calls it.
template <class Fixture, class Compact>
void check_compaction(Compact compact_fixture) {
  for (const Lengths& lengths : shapes<Fixture>()) {
    const Model all_keys = model_of(lengths, 0, 6), all_values = model_of(lengths, 1, 3);
    for (int variant = 0; variant < Fixture::variants; ++variant) {
      for (std::size_t s = 0; s < lengths.size(); ++s) {
        for (int kind = 0; kind < 7; ++kind) {
          Fixture fixture(lengths, 6, 3, variant);
          Cpu cpu;
          Model keys = all_keys, values = all_values;
          auto kept = random_kept(lengths[s], static_cast<std::uint32_t>(kind), kind, !Fixture::ragged);
          INFO("variant " << variant << ", sequence " << s << ", kind " << kind);
          untouched_elsewhere(fixture, [&] { compact_fixture(cpu, fixture, kept, static_cast<index_t>(s)); });
          keep_only(keys, s, kept);
          keep_only(values, s, kept);
          REQUIRE_NOTHROW(validate(fixture.cache()));
          require_models(fixture.cache(), keys, values);
        }
      }
    }
  }
}

/// gather() from any cache into dense, ragged and plain memory.
template <class Fixture>
void check_gather() {
  for (int variant = 0; variant < Fixture::variants; ++variant) {
    for (const Lengths& lengths : shapes<Fixture>()) {
      for (std::size_t s = 0; s < lengths.size(); ++s) {
        Fixture fixture(lengths, 6, 3, variant);
        const auto cache = fixture.cache();
        Cpu cpu;
        auto kept = random_kept(lengths[s], 77, 4, !Fixture::ragged);
        Model keys = model_of(lengths, 0, 6), values = model_of(lengths, 1, 3);
        keep_only(keys, s, kept);
        keep_only(values, s, kept);

        const index_t heads = cache.kv_heads(), room = 70;
        std::vector<float> k(static_cast<std::size_t>(heads * room * 6), -99.0f);
        std::vector<float> v(static_cast<std::size_t>(heads * room * 3), -99.0f);
        std::vector<std::int32_t> ends(static_cast<std::size_t>(heads), 0);
        std::vector<index_t> offsets{0};
        for (index_t h = 0; h < heads; ++h) offsets.push_back((h + 1) * room);
        const decant::kv::RaggedKV<float> out{View<float, 2>(k.data(), heads * room, 6),
                                              View<float, 2>(v.data(), heads * room, 3), offsets, ends, heads};
        gather(cpu, cache, static_cast<index_t>(s), kept, out);
        REQUIRE(model_of(out, 0)[0] == keys[s]);
        REQUIRE(model_of(out, 1)[0] == values[s]);
        for (index_t h = 0; h < heads; ++h) {
          for (index_t i = kept.count(h) * 6; i < room * 6; ++i) {
            if (k[static_cast<std::size_t>(h * room * 6 + i)] != -99.0f) FAIL("wrote behind the kept rows");
          }
        }

        std::vector<float> k2(k.size(), -99.0f), v2(v.size(), -99.0f);
        gather(cpu, cache, static_cast<index_t>(s), kept, View<float, 3>(k2.data(), heads, room, 6),
               View<float, 3>(v2.data(), heads, room, 3));
        REQUIRE(k2 == k);
        REQUIRE(v2 == v);

        if (equal_counts(kept)) {  // a dense NHD cache of two sequences, into the second
          std::vector<float> k3(k.size() * 2, -99.0f), v3(v.size() * 2, -99.0f);
          std::vector<std::int32_t> two{1, 2};
          const decant::kv::DenseKV<float> dense{
              View<float, 4>(k3.data(), {2, heads, room, 6}, {heads * room * 6, 6, heads * 6, 1}),
              View<float, 4>(v3.data(), {2, heads, room, 3}, {heads * room * 3, 3, heads * 3, 1}), two};
          gather(cpu, cache, static_cast<index_t>(s), kept, dense, 1);
          REQUIRE(two[0] == 1);
          REQUIRE(model_of(dense, 0)[1] == keys[s]);
          REQUIRE(model_of(dense, 1)[1] == values[s]);
        }
      }
    }
  }
}

/// New rows, [tokens, heads, dim], of either kind; row_value of token 1000 + t.
inline std::vector<float> new_rows(int kind, index_t tokens, index_t heads, index_t dim) {
  std::vector<float> rows;
  for (index_t t = 0; t < tokens; ++t) {
    for (index_t h = 0; h < heads; ++h) {
      for (index_t c = 0; c < dim; ++c) rows.push_back(row_value(kind, 0, h, 1000 + t, c));
    }
  }
  return rows;
}

inline void put(Model& model, std::size_t s, index_t first, index_t tokens, int kind, index_t dim) {
  for (std::size_t h = 0; h < model[s].size(); ++h) {
    for (index_t t = 0; t < tokens; ++t) {
      Row row;
      for (index_t c = 0; c < dim; ++c) row.push_back(row_value(kind, 0, static_cast<index_t>(h), 1000 + t, c));
      const auto at = static_cast<std::size_t>(first < 0 ? static_cast<index_t>(model[s][h].size()) : first + t);
      if (at == model[s][h].size()) model[s][h].push_back(row);
      else model[s][h][at] = row;
    }
  }
}

/// write() over existing tokens and append() behind them, from floats and from rows of the cache's own type.
template <class Fixture, class Append>
void check_writing(Append append_fixture) {
  for (int variant = 0; variant < Fixture::variants; ++variant) {
    for (const Lengths& lengths : shapes<Fixture>()) {
      for (std::size_t s = 0; s < lengths.size(); ++s) {
        Fixture fixture(lengths, 6, 3, variant);
        Cpu cpu;
        const auto heads = static_cast<index_t>(lengths[s].size());
        const index_t shortest = *std::min_element(lengths[s].begin(), lengths[s].end());
        Model keys = model_of(lengths, 0, 6), values = model_of(lengths, 1, 3);
        const index_t first = shortest / 3, tokens = shortest - shortest / 2;
        const std::vector<float> k = new_rows(0, tokens, heads, 6), v = new_rows(1, tokens, heads, 3);
        const View<const float, 3> k_rows(k.data(), tokens, heads, 6), v_rows(v.data(), tokens, heads, 3);
        INFO("variant " << variant << ", sequence " << s);
        untouched_elsewhere(fixture,
                            [&] { write(cpu, fixture.cache(), static_cast<index_t>(s), first, k_rows, v_rows); });
        put(keys, s, first, tokens, 0, 6);
        put(values, s, first, tokens, 1, 3);
        require_models(fixture.cache(), keys, values);

        using T = std::remove_pointer_t<decltype(fixture.cache().key(0, 0, 0))>;
        for (const index_t more : {0, 1, 6}) {
          const std::vector<float> k_more = new_rows(0, more, heads, 6), v_more = new_rows(1, more, heads, 3);
          std::vector<T> k_own, v_own;
          for (const float x : k_more) k_own.push_back(T(x));
          for (const float x : v_more) v_own.push_back(T(x));
          untouched_elsewhere(fixture, [&] {
            append_fixture(cpu, fixture, static_cast<index_t>(s), View<T, 3>(k_own.data(), more, heads, 6),
                           View<T, 3>(v_own.data(), more, heads, 3));
          });
          put(keys, s, -1, more, 0, 6);
          put(values, s, -1, more, 1, 3);
          REQUIRE_NOTHROW(validate(fixture.cache()));
          require_models(fixture.cache(), keys, values);
        }
      }
    }
  }
}

}  // namespace conformance
