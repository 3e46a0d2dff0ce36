// decant: kv::DenseKV, a cache in one strided block: every head of a sequence holds the same number of tokens.
#ifndef DECANT_KV_DENSE_KV_HPP
#define DECANT_KV_DENSE_KV_HPP

#include <cstdint>

#include "cache_view.hpp"

namespace decant::kv {

/// keys [sequences, kv_heads, capacity, key_dim], values [sequences, kv_heads, capacity, value_dim], in any strides
/// with contiguous rows: HND is row-major, NHD ([sequence, token, head, dim]) is a permutation of strides.
/// lengths [sequences]: tokens in use.
template <class T>
struct DenseKV {
  using value_type = std::remove_const_t<T>;

  View<T, 4> keys;
  View<T, 4> values;
  View<detail::length_of<T>, 1> lengths;

  DECANT_HD index_t sequences() const { return keys.extent(0); }
  DECANT_HD index_t kv_heads() const { return keys.extent(1); }
  DECANT_HD index_t capacity() const { return keys.extent(2); }
  DECANT_HD index_t key_dim() const { return keys.extent(3); }
  DECANT_HD index_t value_dim() const { return values.extent(3); }
  DECANT_HD index_t length(index_t s, index_t) const { return lengths[s]; }
  DECANT_HD T* key(index_t s, index_t h, index_t t) const { return &keys(s, h, t, index_t{0}); }
  DECANT_HD T* value(index_t s, index_t h, index_t t) const { return &values(s, h, t, index_t{0}); }
  DECANT_HD index_t run(index_t s, index_t, index_t t) const { return lengths[s] - t; }
  DECANT_HD index_t key_stride() const { return keys.stride(2); }
  DECANT_HD index_t value_stride() const { return values.stride(2); }
};

template <class T>
void validate(const DenseKV<T>& c) {
  constexpr const char* where = "kv::DenseKV";
  detail::validate_storage(c.keys, c.values, where);
  require_equal(c.lengths.extent(0), c.sequences(), where, "lengths");
  for (index_t s = 0; s < c.sequences(); ++s) {
    require(c.lengths[s] >= 0 && c.lengths[s] <= c.capacity(), where, "lengths",
            [&] { return "at most the capacity of " + std::to_string(c.capacity()) + " tokens"; }, c.lengths[s]);
  }
}

static_assert(CacheView<DenseKV<float>> && CacheView<DenseKV<const bf16>>);

}  // namespace decant::kv

#endif
