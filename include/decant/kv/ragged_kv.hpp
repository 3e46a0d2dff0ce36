// decant: kv::RaggedKV, a cache whose heads hold different numbers of tokens: what per-head eviction (Ada-KV) leaves.
#ifndef DECANT_KV_RAGGED_KV_HPP
#define DECANT_KV_RAGGED_KV_HPP

#include <cstdint>

#include "cache_view.hpp"

namespace decant::kv {

/// keys [rows, key_dim], values [rows, value_dim]. Head h of sequence s is segment i = s * kv_heads + h: it owns the
/// rows offsets[i] ... offsets[i + 1] - 1, of which the first lengths[i] are in use.
template <class T>
struct RaggedKV {
  using value_type = std::remove_const_t<T>;

  View<T, 2> keys;
  View<T, 2> values;
  View<const index_t, 1> offsets;          // [sequences * kv_heads + 1]
  View<detail::length_of<T>, 1> lengths;   // [sequences * kv_heads]
  index_t heads = 1;                       // KV heads per sequence

  DECANT_HD index_t sequences() const { return lengths.extent(0) / heads; }
  DECANT_HD index_t kv_heads() const { return heads; }
  DECANT_HD index_t key_dim() const { return keys.extent(1); }
  DECANT_HD index_t value_dim() const { return values.extent(1); }
  DECANT_HD index_t capacity(index_t s, index_t h) const {
    return offsets[s * heads + h + 1] - offsets[s * heads + h];
  }
  DECANT_HD index_t length(index_t s, index_t h) const { return lengths[s * heads + h]; }
  DECANT_HD T* key(index_t s, index_t h, index_t t) const { return &keys(offsets[s * heads + h] + t, index_t{0}); }
  DECANT_HD T* value(index_t s, index_t h, index_t t) const {
    return &values(offsets[s * heads + h] + t, index_t{0});
  }
  DECANT_HD index_t run(index_t s, index_t h, index_t t) const { return length(s, h) - t; }
  DECANT_HD index_t key_stride() const { return keys.stride(0); }
  DECANT_HD index_t value_stride() const { return values.stride(0); }
};

template <class T>
void validate(const RaggedKV<T>& c) {
  constexpr const char* where = "kv::RaggedKV";
  detail::validate_storage(c.keys, c.values, where);
  require(c.heads >= 1, where, "heads", "at least 1", c.heads);
  require(c.lengths.extent(0) % c.heads == 0, where, "lengths",
          [&] { return "a multiple of " + std::to_string(c.heads) + " heads"; }, c.lengths.extent(0));
  require_equal(c.offsets.extent(0), c.lengths.extent(0) + 1, where, "offsets");
  require(c.offsets[0] >= 0, where, "offsets", "values of at least 0", c.offsets[0]);
  for (index_t i = 0; i < c.lengths.extent(0); ++i) {
    require(c.offsets[i + 1] >= c.offsets[i], where, "offsets", "values that never decrease", c.offsets[i + 1]);
    require(c.lengths[i] >= 0 && c.lengths[i] <= c.offsets[i + 1] - c.offsets[i], where, "lengths",
            [&] { return "at most the segment's " + std::to_string(c.offsets[i + 1] - c.offsets[i]) + " rows"; },
            c.lengths[i]);
  }
  const index_t rows = c.offsets[c.lengths.extent(0)];
  require(rows <= c.keys.extent(0), where, "offsets",
          [&] { return "rows below " + std::to_string(c.keys.extent(0)); }, rows);
}

static_assert(CacheView<RaggedKV<float>> && CacheView<RaggedKV<const bf16>>);

}  // namespace decant::kv

#endif
