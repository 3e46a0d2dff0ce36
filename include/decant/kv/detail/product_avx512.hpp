// decant: the scorers' small dense product with AVX-512: blocks of 8 rows and 32 columns.
#ifndef DECANT_KV_DETAIL_PRODUCT_AVX512_HPP
#define DECANT_KV_DETAIL_PRODUCT_AVX512_HPP

#include "product_portable.hpp"

#if DECANT_X86
#include "../../core/detail/intrinsics.hpp"

namespace decant::kv::detail {

/// Rows x 16 Vectors of C. The row offsets are formed outside the loop, so that it only loads and multiplies.
template <int Rows, int Vectors>
DECANT_TARGET_AVX512 DECANT_INLINE void product_block_avx512(const Product<float>& p, index_t i, index_t j) {
  __m512 sum[Rows][Vectors];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; ++v) sum[r][v] = _mm512_setzero_ps();
  }
  const float* a = p.a + i * p.a_row;
  const float* b = p.b + j;
  for (index_t k = 0; k < p.k; ++k, a += p.a_column, b += p.ldb) {
    __m512 y[Vectors];
    for (int v = 0; v < Vectors; ++v) y[v] = _mm512_loadu_ps(b + 16 * v);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const __m512 x = _mm512_set1_ps(a[r * p.a_row]);
#pragma GCC unroll 2
      for (int v = 0; v < Vectors; ++v) sum[r][v] = _mm512_fmadd_ps(x, y[v], sum[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
    float* const c = p.c + (i + r) * p.ldc + j;
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; ++v) {
      if (p.add) sum[r][v] = _mm512_add_ps(sum[r][v], _mm512_loadu_ps(c + 16 * v));
      _mm512_storeu_ps(c + 16 * v, sum[r][v]);
    }
  }
}

template <int Vectors>
DECANT_TARGET_AVX512 DECANT_INLINE void product_columns_avx512(const Product<float>& p, index_t j) {
  index_t i = 0;
  for (; i + 8 <= p.m; i += 8) product_block_avx512<8, Vectors>(p, i, j);
  for (; i + 2 <= p.m; i += 2) product_block_avx512<2, Vectors>(p, i, j);
  for (; i < p.m; ++i) product_block_avx512<1, Vectors>(p, i, j);
}

DECANT_TARGET_AVX512 inline void product_avx512(const Product<float>& p) {
  index_t j = 0;
  for (; j + 32 <= p.n; j += 32) product_columns_avx512<2>(p, j);
  if (j < p.n) product_columns_avx512<1>(p, j);
}

}  // namespace decant::kv::detail

#endif
#endif
