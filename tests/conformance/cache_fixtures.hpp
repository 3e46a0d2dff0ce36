#pragma once
// Fixtures for cache_view.hpp: decant's caches in their layouts, the least that the concept allows, and a user's own
// quantised cache. Every slot that no live row uses is poisoned with NaN.
#include <cstring>
#include <vector>

#include "conformance/cache_view.hpp"

namespace conformance {

template <class T>
std::vector<T> poisoned(index_t elements) {
  std::vector<T> v(static_cast<std::size_t>(elements));
  std::memset(static_cast<void*>(v.data()), 0xff, v.size() * sizeof(T));  // all ones is a NaN in every type
  return v;
}

/// Fills the live rows of a plain cache.
template <class C>
void fill_rows(const C& cache) {
  using T = std::remove_pointer_t<decltype(cache.key(0, 0, 0))>;
  for (index_t s = 0; s < cache.sequences(); ++s) {
    for (index_t h = 0; h < cache.kv_heads(); ++h) {
      for (index_t t = 0; t < cache.length(s, h); ++t) {
        for (index_t c = 0; c < cache.key_dim(); ++c) cache.key(s, h, t)[c] = T(row_value(0, s, h, t, c));
        for (index_t c = 0; c < cache.value_dim(); ++c) cache.value(s, h, t)[c] = T(row_value(1, s, h, t, c));
      }
    }
  }
}

/// [s, h, n, d] or [s, n, h, d]; the third variant pads rows.
template <class T>
View<T, 4> layout(T* data, index_t s, index_t h, index_t n, index_t d, int variant) {
  if (variant == 0) return View<T, 4>(data, s, h, n, d);
  const index_t row = variant == 2 ? d + 2 : d;
  return View<T, 4>(data, {s, h, n, d}, {n * h * row, row, h * row, 1});
}

template <class T>
struct Dense {
  static constexpr bool ragged = false;
  static constexpr int variants = 3;
  index_t sequences, heads, capacity = 80, key_dim, value_dim;
  int variant;
  std::vector<T> keys, values;
  std::vector<std::int32_t> lengths;

  Dense(const Lengths& l, index_t kd, index_t vd, int which)
      : sequences(static_cast<index_t>(l.size())),
        heads(static_cast<index_t>(l[0].size())),
        key_dim(kd),
        value_dim(vd),
        variant(which),
        keys(poisoned<T>(sequences * heads * capacity * (kd + 2))),
        values(poisoned<T>(sequences * heads * capacity * (vd + 2))) {
    for (const auto& of_sequence : l) lengths.push_back(static_cast<std::int32_t>(of_sequence[0]));
    fill_rows(cache());
  }
  decant::kv::DenseKV<T> cache() {
    return {layout(keys.data(), sequences, heads, capacity, key_dim, variant),
            layout(values.data(), sequences, heads, capacity, value_dim, variant), lengths};
  }
  auto memory() {
    return std::pair(std::pair(keys.data(), static_cast<index_t>(keys.size())),
                     std::pair(values.data(), static_cast<index_t>(values.size())));
  }
};

/// Pages of 1, 7, 16 and 64 tokens with shuffled ids; HND, NHD, and slices of one pool [pages, 2, ...].
template <class T>
struct Paged {
  static constexpr bool ragged = false;
  static constexpr int variants = 12;
  index_t page_size, pages, heads, key_dim, value_dim;
  int arrangement;
  std::vector<T> keys, values;
  decant::kv::PageTable table;

  Paged(const Lengths& l, index_t kd, index_t vd, int variant)
      : page_size(std::vector<index_t>{1, 7, 16, 64}[static_cast<std::size_t>(variant % 4)]),
        pages(6 + 400 / page_size),
        heads(static_cast<index_t>(l[0].size())),
        key_dim(kd),
        value_dim(vd),
        arrangement(variant / 4),
        keys(poisoned<T>(pages * heads * page_size * 2 * kd)),
        values(poisoned<T>(pages * heads * page_size * 2 * vd)),
        table(pages, page_size, static_cast<index_t>(l.size())) {
    // Lengths grow in turns, and a first round is given back, so that page ids are mixed.
    for (const index_t share : {2, 1}) {
      for (index_t s = static_cast<index_t>(l.size()) - 1; s >= 0; --s) {
        const index_t wanted = l[static_cast<std::size_t>(s)][0] / share;
        if (wanted > table.length(s)) table.extend(s, wanted - table.length(s));
      }
    }
    const auto ids = table.indices();
    for (index_t i = ids.extent(0) - 1; i > 0; --i) {  // a shuffle of our own: any id may stand anywhere
      const index_t j = (i * 7919) % (i + 1);
      std::swap(ids[i], ids[j]);
    }
    fill_rows(cache());
  }
  View<T, 4> pool(std::vector<T>& memory, index_t dim) {
    if (arrangement == 0) return View<T, 4>(memory.data(), pages, heads, page_size, dim);
    if (arrangement == 1) {
      return View<T, 4>(memory.data(), {pages, heads, page_size, dim}, {heads * page_size * dim, dim, heads * dim, 1});
    }
    return View<T, 4>(memory.data() + heads * page_size * dim, {pages, heads, page_size, dim},
                      {2 * heads * page_size * dim, page_size * dim, dim, 1});  // the second slice of [pages, 2, ...]
  }
  decant::kv::PagedKV<T> cache() { return table.attach(pool(keys, key_dim), pool(values, value_dim)); }
  auto memory() {
    return std::pair(std::pair(keys.data(), static_cast<index_t>(keys.size())),
                     std::pair(values.data(), static_cast<index_t>(values.size())));
  }
};

template <class T>
struct Ragged {
  static constexpr bool ragged = true;
  static constexpr int variants = 2;
  index_t heads, key_dim, value_dim;
  int variant;
  std::vector<index_t> offsets;
  std::vector<std::int32_t> lengths;
  std::vector<T> keys, values;

  Ragged(const Lengths& l, index_t kd, index_t vd, int which)
      : heads(static_cast<index_t>(l[0].size())), key_dim(kd), value_dim(vd), variant(which) {
    offsets.push_back(which == 0 ? 0 : 3);
    for (const auto& of_sequence : l) {
      for (const index_t n : of_sequence) {
        lengths.push_back(static_cast<std::int32_t>(n));
        offsets.push_back(offsets.back() + n + 10);
      }
    }
    keys = poisoned<T>((offsets.back() + 2) * (kd + which));
    values = poisoned<T>((offsets.back() + 2) * (vd + which));
    fill_rows(cache());
  }
  decant::kv::RaggedKV<T> cache() {
    const index_t rows = offsets.back() + 2;
    return {View<T, 2>(keys.data(), {rows, key_dim}, {key_dim + variant, 1}),
            View<T, 2>(values.data(), {rows, value_dim}, {value_dim + variant, 1}), offsets, lengths, heads};
  }
  auto memory() {
    return std::pair(std::pair(keys.data(), static_cast<index_t>(keys.size())),
                     std::pair(values.data(), static_cast<index_t>(values.size())));
  }
};

}  // namespace conformance

namespace users_engine {

/// The least that CacheView asks for: one sequence, rows of floats.
struct Minimal {
  const std::vector<std::vector<float>>* keys;  // [heads][n * key_dim]
  const std::vector<std::vector<float>>* values;
  std::int64_t dims[2];
  std::int64_t sequences() const { return 1; }
  std::int64_t kv_heads() const { return static_cast<std::int64_t>(keys->size()); }
  std::int64_t key_dim() const { return dims[0]; }
  std::int64_t value_dim() const { return dims[1]; }
  std::int64_t length(std::int64_t, std::int64_t h) const {
    return static_cast<std::int64_t>((*keys)[static_cast<std::size_t>(h)].size()) / dims[0];
  }
  const float* key(std::int64_t, std::int64_t h, std::int64_t t) const {
    return (*keys)[static_cast<std::size_t>(h)].data() + t * dims[0];
  }
  const float* value(std::int64_t, std::int64_t h, std::int64_t t) const {
    return (*values)[static_cast<std::size_t>(h)].data() + t * dims[1];
  }
  std::int64_t run(std::int64_t s, std::int64_t h, std::int64_t t) const { return length(s, h) - t; }
  std::int64_t key_stride() const { return dims[0]; }
  std::int64_t value_stride() const { return dims[1]; }
};
inline void validate(const Minimal&) {}

/// A row of int8 with a scale: a handle of the engine's own type.
struct QuantisedRow {
  const signed char* codes;
  float scale;
};
inline void load_row(QuantisedRow row, std::int64_t count, float* out) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = row.scale * static_cast<float>(row.codes[i]);
}

struct Int8Cache {
  const std::vector<std::int64_t>* lengths;  // [sequences * heads]
  const signed char* codes;                  // [sequences * heads][capacity][key_dim + value_dim]
  std::int64_t heads, capacity, dims[2];
  std::int64_t sequences() const { return static_cast<std::int64_t>(lengths->size()) / heads; }
  std::int64_t kv_heads() const { return heads; }
  std::int64_t key_dim() const { return dims[0]; }
  std::int64_t value_dim() const { return dims[1]; }
  std::int64_t length(std::int64_t s, std::int64_t h) const {
    return (*lengths)[static_cast<std::size_t>(s * heads + h)];
  }
  QuantisedRow key(std::int64_t s, std::int64_t h, std::int64_t t) const {
    return {codes + ((s * heads + h) * capacity + t) * (dims[0] + dims[1]), 0.125f};
  }
  QuantisedRow value(std::int64_t s, std::int64_t h, std::int64_t t) const {
    return {key(s, h, t).codes + dims[0], 0.0625f};
  }
  std::int64_t run(std::int64_t, std::int64_t, std::int64_t) const { return 1; }
  std::int64_t key_stride() const { return dims[0] + dims[1]; }
  std::int64_t value_stride() const { return dims[0] + dims[1]; }
};
inline void validate(const Int8Cache&) {}

}  // namespace users_engine

namespace conformance {

struct MinimalFixture {
  static constexpr bool ragged = true;
  static constexpr int variants = 1;
  std::vector<std::vector<float>> keys, values;
  index_t key_dim, value_dim;
  MinimalFixture(const std::vector<index_t>& lengths, index_t kd, index_t vd) : key_dim(kd), value_dim(vd) {
    for (std::size_t h = 0; h < lengths.size(); ++h) {
      keys.emplace_back();
      values.emplace_back();
      for (index_t t = 0; t < lengths[h]; ++t) {
        for (index_t c = 0; c < kd; ++c) keys[h].push_back(row_value(0, 0, static_cast<index_t>(h), t, c));
        for (index_t c = 0; c < vd; ++c) values[h].push_back(row_value(1, 0, static_cast<index_t>(h), t, c));
      }
    }
  }
  users_engine::Minimal cache() { return {&keys, &values, {key_dim, value_dim}}; }
};

struct Int8Fixture {
  static constexpr bool ragged = true;
  static constexpr int variants = 1;
  std::vector<std::int64_t> lengths;
  std::vector<signed char> codes;
  index_t heads, capacity = 70, key_dim, value_dim;
  Int8Fixture(const Lengths& l, index_t kd, index_t vd, int)
      : heads(static_cast<index_t>(l[0].size())), key_dim(kd), value_dim(vd) {
    codes.assign(l.size() * l[0].size() * 70 * static_cast<std::size_t>(kd + vd), 127);
    for (std::size_t s = 0; s < l.size(); ++s) {
      for (std::size_t h = 0; h < l[s].size(); ++h) {
        lengths.push_back(l[s][h]);
        for (index_t t = 0; t < l[s][h]; ++t) {
          const auto segment = static_cast<index_t>(s) * heads + static_cast<index_t>(h);
          signed char* row = codes.data() + (segment * capacity + t) * (kd + vd);
          for (index_t c = 0; c < kd + vd; ++c) {
            const int kind = c < kd ? 0 : 1;
            const float x =
                row_value(kind, static_cast<index_t>(s), static_cast<index_t>(h), t, kind == 0 ? c : c - kd);
            row[c] = static_cast<signed char>(x * (kind == 0 ? 8.0f : 16.0f));
          }
        }
      }
    }
  }
  users_engine::Int8Cache cache() { return {&lengths, codes.data(), heads, capacity, {key_dim, value_dim}}; }
};

}  // namespace conformance
