// decant: dot products of many rows, with one vector or with rows of their own: norms, cosines and diagonals of forms.
#ifndef DECANT_KV_DETAIL_ROW_DOTS_HPP
#define DECANT_KV_DETAIL_ROW_DOTS_HPP

#include "../../core/math.hpp"
#include "../../core/simd.hpp"

#if DECANT_X86
#include <immintrin.h>
#endif

namespace decant::kv::detail {

/// out[i] = sum over d of a[i * a_stride + d] * b[i * b_stride + d], for i in [0, rows).
struct RowDots {
  const float* a;
  index_t a_stride;
  const float* b;
  index_t b_stride;  // 0: one vector for all
  index_t rows;
  index_t dim;
  float* out;
};

#if DECANT_X86
DECANT_TARGET_AVX2 inline void row_dots_avx2(const RowDots& x) {
  for (index_t i = 0; i < x.rows; ++i) {
    const float* const a = x.a + i * x.a_stride;
    const float* const b = x.b + i * x.b_stride;
    __m256 s0 = _mm256_setzero_ps();
    __m256 s1 = _mm256_setzero_ps();
    index_t d = 0;
    for (; d + 16 <= x.dim; d += 16) {
      s0 = _mm256_fmadd_ps(_mm256_loadu_ps(a + d), _mm256_loadu_ps(b + d), s0);
      s1 = _mm256_fmadd_ps(_mm256_loadu_ps(a + d + 8), _mm256_loadu_ps(b + d + 8), s1);
    }
    s0 = _mm256_add_ps(s0, s1);
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(s0), _mm256_extractf128_ps(s0, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    s = _mm_add_ss(s, _mm_movehdup_ps(s));
    float sum = _mm_cvtss_f32(s);
    for (; d < x.dim; ++d) sum += a[d] * b[d];
    x.out[i] = sum;
  }
}

DECANT_TARGET_AVX512 inline void row_dots_avx512(const RowDots& x) {
  for (index_t i = 0; i < x.rows; ++i) {
    const float* const a = x.a + i * x.a_stride;
    const float* const b = x.b + i * x.b_stride;
    __m512 s0 = _mm512_setzero_ps();
    __m512 s1 = _mm512_setzero_ps();
    index_t d = 0;
    for (; d + 32 <= x.dim; d += 32) {
      s0 = _mm512_fmadd_ps(_mm512_loadu_ps(a + d), _mm512_loadu_ps(b + d), s0);
      s1 = _mm512_fmadd_ps(_mm512_loadu_ps(a + d + 16), _mm512_loadu_ps(b + d + 16), s1);
    }
    for (; d < x.dim; d += 16) {
      const index_t left = x.dim - d;
      const __mmask16 some = static_cast<__mmask16>(left < 16 ? (1u << left) - 1u : 0xffffu);
      s0 = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(some, a + d), _mm512_maskz_loadu_ps(some, b + d), s0);
    }
    s0 = _mm512_add_ps(s0, s1);
    const __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(s0), 1));
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(s0), high);
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    s = _mm_add_ss(s, _mm_movehdup_ps(s));
    x.out[i] = _mm_cvtss_f32(s);
  }
}
#endif

inline void row_dots([[maybe_unused]] Isa isa, const RowDots& x) {
#if DECANT_X86
  if (isa == Isa::avx512) return row_dots_avx512(x);
  if (isa == Isa::avx2) return row_dots_avx2(x);
#endif
  for (index_t i = 0; i < x.rows; ++i) {
    x.out[i] = ::decant::detail::dot_lanes(x.a + i * x.a_stride, x.b + i * x.b_stride, x.dim);
  }
}

/// sum += scale * row.
inline void add_scaled(const float* DECANT_RESTRICT row, float scale, index_t dim, float* DECANT_RESTRICT sum) {
  index_t d = 0;
  for (; d + 16 <= dim; d += 16) {  // in sixteens, so that -O2 vectorises it
    for (int l = 0; l < 16; ++l) sum[d + l] += scale * row[d + l];
  }
  for (; d < dim; ++d) sum[d] += scale * row[d];
}

}  // namespace decant::kv::detail

#endif
