// decant: whether a cache's rows serve as keys and as values, as in MLA, so that they are read, and moved, once.
#ifndef DECANT_KV_DETAIL_VALUES_WITHIN_KEYS_HPP
#define DECANT_KV_DETAIL_VALUES_WITHIN_KEYS_HPP

#include "../cache_view.hpp"

namespace decant::kv::detail {

/// Where each value row begins within its key row; -1: values are rows of their own, as far as the host sees.
template <class C>
index_t values_within_keys(const C&) {
  return -1;
}
template <PlainCacheView C>
  requires requires(const C& c) { c.keys.data() - c.values.data(); }
index_t values_within_keys(const C& c) {
  for (int r = 0; r + 1 < decltype(c.keys)::rank; ++r)
    if (c.keys.stride(r) != c.values.stride(r)) return -1;
  const index_t offset = c.values.data() - c.keys.data();
  return offset >= 0 && offset + c.value_dim() <= c.key_dim() ? offset : -1;
}

}  // namespace decant::kv::detail

#endif
