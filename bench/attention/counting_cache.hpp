// A cache of one sequence that counts which value rows are asked for, and how often.
#pragma once

#include <cstddef>
#include <vector>

#include "decant/kv/dense_kv.hpp"

namespace bench {

struct CountingCache {
  using index_t = decant::index_t;
  using bf16 = decant::bf16;

  decant::kv::DenseKV<const bf16> inner;
  std::vector<char>* seen;  // [heads * n]
  index_t* asked;

  index_t sequences() const { return inner.sequences(); }
  DECANT_HD index_t kv_heads() const { return inner.kv_heads(); }
  index_t key_dim() const { return inner.key_dim(); }
  index_t value_dim() const { return inner.value_dim(); }
  DECANT_HD index_t length(index_t s, index_t h) const { return inner.length(s, h); }
  const bf16* key(index_t s, index_t h, index_t t) const { return inner.key(s, h, t); }
  const bf16* value(index_t s, index_t h, index_t t) const {
    (*seen)[static_cast<std::size_t>(h * inner.length(s, h) + t)] = 1;
    ++*asked;
    return inner.value(s, h, t);
  }
  index_t run(index_t, index_t, index_t) const { return 1; }  // so that each row is asked for by itself
  index_t key_stride() const { return inner.key_stride(); }
  index_t value_stride() const { return inner.value_stride(); }
};
inline void validate(const CountingCache& cache) {
  validate(cache.inner);
}

}  // namespace bench
