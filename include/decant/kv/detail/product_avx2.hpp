// decant: the scorers' small dense product with AVX2 and FMA: blocks of 6 rows and 16 columns.
#ifndef DECANT_KV_DETAIL_PRODUCT_AVX2_HPP
#define DECANT_KV_DETAIL_PRODUCT_AVX2_HPP

#include "product_portable.hpp"

#if DECANT_X86
#include "../../core/detail/intrinsics.hpp"

namespace decant::kv::detail {

template <int Rows>
DECANT_TARGET_AVX2 DECANT_INLINE void product_block_avx2(const Product<float>& p, index_t i, index_t j) {
  __m256 low[Rows];
  __m256 high[Rows];
#pragma GCC unroll 6
  for (int r = 0; r < Rows; ++r) low[r] = high[r] = _mm256_setzero_ps();
  const float* a = p.a + i * p.a_row;
  const float* b = p.b + j;
  for (index_t k = 0; k < p.k; ++k, a += p.a_column, b += p.ldb) {
    const __m256 b0 = _mm256_loadu_ps(b);
    const __m256 b1 = _mm256_loadu_ps(b + 8);
#pragma GCC unroll 6
    for (int r = 0; r < Rows; ++r) {
      const __m256 x = _mm256_broadcast_ss(a + r * p.a_row);
      low[r] = _mm256_fmadd_ps(x, b0, low[r]);
      high[r] = _mm256_fmadd_ps(x, b1, high[r]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < Rows; ++r) {
    float* const c = p.c + (i + r) * p.ldc + j;
    if (p.add) {
      low[r] = _mm256_add_ps(low[r], _mm256_loadu_ps(c));
      high[r] = _mm256_add_ps(high[r], _mm256_loadu_ps(c + 8));
    }
    _mm256_storeu_ps(c, low[r]);
    _mm256_storeu_ps(c + 8, high[r]);
  }
}

DECANT_TARGET_AVX2 inline void product_avx2(const Product<float>& p) {
  for (index_t j = 0; j < p.n; j += 16) {
    index_t i = 0;
    for (; i + 6 <= p.m; i += 6) product_block_avx2<6>(p, i, j);
    for (; i + 2 <= p.m; i += 2) product_block_avx2<2>(p, i, j);
    for (; i < p.m; ++i) product_block_avx2<1>(p, i, j);
  }
}

}  // namespace decant::kv::detail

#endif
#endif
