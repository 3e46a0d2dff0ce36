// decant: the one dense product behind the algorithms that work with second moments (calibration, GPTQ, AWQ, OSAQ), in
// double precision: C = keep C + scale A B. Every element is summed along k in one chain from 0, so it does not depend
// on its neighbours; instruction sets differ by rounding (fused or not), as do whole vectors of columns and the rest.
#ifndef DECANT_QUANT_DETAIL_PRODUCT_F64_HPP
#define DECANT_QUANT_DETAIL_PRODUCT_F64_HPP

#include "../../core/detail/intrinsics.hpp"
#include "../../core/error.hpp"
#include "../../core/simd.hpp"

namespace decant::quant::detail {

/// C[m][n] = keep C[m][n] + scale sum over k of A(m, k) B[k][n]; keep = 0 does not read C. A(m, k) =
/// a[m a_row + k a_column]; B and C have contiguous rows, ldb and ldc apart.
struct ProductF64 {
  index_t m, n, k;
  const double* a;
  index_t a_row, a_column;
  const double* b;
  index_t ldb;
  double* c;
  index_t ldc;
  double keep, scale;
};

/// From column j on.
inline void product_f64_portable(const ProductF64& p, index_t j = 0) {
  for (; j < p.n; j += 8) {
    const index_t width = p.n - j < 8 ? p.n - j : 8;
    for (index_t i = 0; i < p.m; ++i) {
      double sum[8] = {};
      const double* a = p.a + i * p.a_row;
      const double* b = p.b + j;
      if (width == 8) {
        for (index_t k = 0; k < p.k; ++k, a += p.a_column, b += p.ldb) {
          for (int l = 0; l < 8; ++l) sum[l] += *a * b[l];
        }
      } else {
        for (index_t k = 0; k < p.k; ++k, a += p.a_column, b += p.ldb) {
          for (index_t l = 0; l < width; ++l) sum[l] += *a * b[l];
        }
      }
      double* const c = p.c + i * p.ldc + j;
      for (index_t l = 0; l < width; ++l) c[l] = p.keep == 0 ? p.scale * sum[l] : p.keep * c[l] + p.scale * sum[l];
    }
  }
}

#if DECANT_X86

/// Rows x 8 of C.
template <int Rows>
DECANT_TARGET_AVX2 DECANT_INLINE void product_f64_block_avx2(const ProductF64& p, index_t i, index_t j) {
  __m256d low[Rows];
  __m256d high[Rows];
#pragma GCC unroll 6
  for (int r = 0; r < Rows; ++r) low[r] = high[r] = _mm256_setzero_pd();
  const double* a = p.a + i * p.a_row;
  const double* b = p.b + j;
  for (index_t k = 0; k < p.k; ++k, a += p.a_column, b += p.ldb) {
    const __m256d b0 = _mm256_loadu_pd(b);
    const __m256d b1 = _mm256_loadu_pd(b + 4);
#pragma GCC unroll 6
    for (int r = 0; r < Rows; ++r) {
      const __m256d x = _mm256_set1_pd(a[r * p.a_row]);
      low[r] = _mm256_fmadd_pd(x, b0, low[r]);
      high[r] = _mm256_fmadd_pd(x, b1, high[r]);
    }
  }
  const __m256d scale = _mm256_set1_pd(p.scale);
  const __m256d keep = _mm256_set1_pd(p.keep);
#pragma GCC unroll 6
  for (int r = 0; r < Rows; ++r) {
    double* const c = p.c + (i + r) * p.ldc + j;
    low[r] = _mm256_mul_pd(scale, low[r]);
    high[r] = _mm256_mul_pd(scale, high[r]);
    if (p.keep != 0) {
      low[r] = _mm256_fmadd_pd(keep, _mm256_loadu_pd(c), low[r]);
      high[r] = _mm256_fmadd_pd(keep, _mm256_loadu_pd(c + 4), high[r]);
    }
    _mm256_storeu_pd(c, low[r]);
    _mm256_storeu_pd(c + 4, high[r]);
  }
}

DECANT_TARGET_AVX2 inline void product_f64_avx2(const ProductF64& p) {
  index_t j = 0;
  for (; j + 8 <= p.n; j += 8) {
    index_t i = 0;
    for (; i + 6 <= p.m; i += 6) product_f64_block_avx2<6>(p, i, j);
    for (; i + 2 <= p.m; i += 2) product_f64_block_avx2<2>(p, i, j);
    for (; i < p.m; ++i) product_f64_block_avx2<1>(p, i, j);
  }
  product_f64_portable(p, j);
}

/// Rows x 16 of C.
template <int Rows>
DECANT_TARGET_AVX512 DECANT_INLINE void product_f64_block_avx512(const ProductF64& p, index_t i, index_t j) {
  __m512d low[Rows];
  __m512d high[Rows];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) low[r] = high[r] = _mm512_setzero_pd();
  const double* a = p.a + i * p.a_row;
  const double* b = p.b + j;
  for (index_t k = 0; k < p.k; ++k, a += p.a_column, b += p.ldb) {
    const __m512d b0 = _mm512_loadu_pd(b);
    const __m512d b1 = _mm512_loadu_pd(b + 8);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const __m512d x = _mm512_set1_pd(a[r * p.a_row]);
      low[r] = _mm512_fmadd_pd(x, b0, low[r]);
      high[r] = _mm512_fmadd_pd(x, b1, high[r]);
    }
  }
  const __m512d scale = _mm512_set1_pd(p.scale);
  const __m512d keep = _mm512_set1_pd(p.keep);
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
    double* const c = p.c + (i + r) * p.ldc + j;
    low[r] = _mm512_mul_pd(scale, low[r]);
    high[r] = _mm512_mul_pd(scale, high[r]);
    if (p.keep != 0) {
      low[r] = _mm512_fmadd_pd(keep, _mm512_loadu_pd(c), low[r]);
      high[r] = _mm512_fmadd_pd(keep, _mm512_loadu_pd(c + 8), high[r]);
    }
    _mm512_storeu_pd(c, low[r]);
    _mm512_storeu_pd(c + 8, high[r]);
  }
}

DECANT_TARGET_AVX512 inline void product_f64_avx512(const ProductF64& p) {
  index_t j = 0;
  for (; j + 16 <= p.n; j += 16) {
    index_t i = 0;
    for (; i + 8 <= p.m; i += 8) product_f64_block_avx512<8>(p, i, j);
    for (; i + 2 <= p.m; i += 2) product_f64_block_avx512<2>(p, i, j);
    for (; i < p.m; ++i) product_f64_block_avx512<1>(p, i, j);
  }
  product_f64_portable(p, j);
}

#endif

inline void product_f64(Isa isa, const ProductF64& p) {
#if DECANT_X86
  if (isa == Isa::avx512) return product_f64_avx512(p);
  if (isa == Isa::avx2) return product_f64_avx2(p);
#else
  (void)isa;
#endif
  product_f64_portable(p);
}

}  // namespace decant::quant::detail

#endif
