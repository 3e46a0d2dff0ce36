// decant: a stretch of cached rows as contiguous floats, from any cache view: what the scoring kernels read.
#ifndef DECANT_KV_DETAIL_ROWS_HPP
#define DECANT_KV_DETAIL_ROWS_HPP

#include "../../core/convert.hpp"
#include "../../core/simd.hpp"
#include "../cache_view.hpp"

namespace decant::kv::detail {

/// `count` rows of `dim` elements, `stride` apart, to rows out_stride apart.
template <Storage T>
void widen_rows(Isa isa, const T* rows, index_t stride, index_t count, index_t dim, float* out, index_t out_stride) {
  if (stride == dim && out_stride == dim) {
    convert(isa, rows, count * dim, out);
    return;
  }
  for (index_t i = 0; i < count; ++i) convert(isa, rows + i * stride, dim, out + i * out_stride);
}

/// The keys of tokens [first, first + count) as floats, rows out_stride apart.
template <CacheView C>
void load_keys(Isa isa, const C& cache, index_t s, index_t h, index_t first, index_t count, float* out,
               index_t out_stride) {
  const index_t dim = cache.key_dim();
  for (index_t t = first; t < first + count;) {
    if constexpr (PlainCacheView<C>) {
      const index_t run = cache.run(s, h, t);
      const index_t take = run < first + count - t ? run : first + count - t;
      widen_rows(isa, cache.key(s, h, t), cache.key_stride(), take, dim, out + (t - first) * out_stride, out_stride);
      t += take;
    } else {
      load_row(cache.key(s, h, t), dim, out + (t - first) * out_stride);
      ++t;
    }
  }
}

/// The values likewise.
template <CacheView C>
void load_values(Isa isa, const C& cache, index_t s, index_t h, index_t first, index_t count, float* out,
                 index_t out_stride) {
  const index_t dim = cache.value_dim();
  for (index_t t = first; t < first + count;) {
    if constexpr (PlainCacheView<C>) {
      const index_t run = cache.run(s, h, t);
      const index_t take = run < first + count - t ? run : first + count - t;
      widen_rows(isa, cache.value(s, h, t), cache.value_stride(), take, dim, out + (t - first) * out_stride,
                 out_stride);
      t += take;
    } else {
      load_row(cache.value(s, h, t), dim, out + (t - first) * out_stride);
      ++t;
    }
  }
}

}  // namespace decant::kv::detail

#endif
