// decant: tiles of EAR on AVX2.
#ifndef DECANT_QUANT_DETAIL_EAR_AVX2_HPP
#define DECANT_QUANT_DETAIL_EAR_AVX2_HPP

#include "../../core/detail/intrinsics.hpp"
#include "../../core/dtype.hpp"
#include "ear_tile.hpp"

#if DECANT_X86

namespace decant::quant::detail {

DECANT_TARGET_AVX2 DECANT_INLINE __m256 load8(const float* x) { return _mm256_loadu_ps(x); }
DECANT_TARGET_AVX2 DECANT_INLINE __m256 load8(const bf16* x) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
DECANT_TARGET_AVX2 DECANT_INLINE __m256 load8(const fp16* x) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
}

/// 2^x for x at most 0: a polynomial of x - floor(x), scaled through the exponent's bits. 0 below -126; NaN stays.
DECANT_TARGET_AVX2 DECANT_INLINE __m256 ear_exp2_avx2(__m256 x) {
  const __m256 lowest = _mm256_set1_ps(-126.0f);
  const __m256 y = _mm256_max_ps(lowest, x);  // the second operand, if that is NaN
  const __m256 n = _mm256_floor_ps(y);
  const __m256 f = _mm256_sub_ps(y, n);
  __m256 p = _mm256_set1_ps(ear_exp2[0]);
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(ear_exp2[1]));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(ear_exp2[2]));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(ear_exp2[3]));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(ear_exp2[4]));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(ear_exp2[5]));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(ear_exp2[6]));
  const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  p = _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
  return _mm256_and_ps(p, _mm256_cmp_ps(x, lowest, _CMP_NLT_UQ));
}

struct EarSum256 {
  __m256d low;
  __m256d high;
};
DECANT_TARGET_AVX2 DECANT_INLINE void add_floats(EarSum256& sum, __m256 x) {
  sum.low = _mm256_add_pd(sum.low, _mm256_cvtps_pd(_mm256_castps256_ps128(x)));
  sum.high = _mm256_add_pd(sum.high, _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)));
}
DECANT_TARGET_AVX2 DECANT_INLINE double total(const EarSum256& sum) {
  double lane[4];
  _mm256_storeu_pd(lane, _mm256_add_pd(sum.low, sum.high));
  return (lane[0] + lane[2]) + (lane[1] + lane[3]);
}

struct EarSums256 {
  EarSum256 p;
  EarSum256 q;
  EarSum256 cross;
};

/// As ear_block, by halves of 32.
template <bool Keep, class P, class Q>
DECANT_TARGET_AVX2 DECANT_INLINE void ear_block_avx2(const P* p, const Q* q, __m256 base_p, __m256 base_q,
                                                     __m256 scale, float* a, float* b, EarSums256& sums) {
  for (int half = 0; half < 64; half += 32) {
    __m256 part_p = _mm256_setzero_ps();
    __m256 part_q = _mm256_setzero_ps();
    __m256 part_x = _mm256_setzero_ps();
    for (int g = half; g < half + 32; g += 8) {
      const __m256 dp = _mm256_sub_ps(load8(p + g), base_p);
      const __m256 dq = _mm256_sub_ps(load8(q + g), base_q);
      const __m256 ep = ear_exp2_avx2(_mm256_mul_ps(dp, scale));
      const __m256 eq = ear_exp2_avx2(_mm256_mul_ps(dq, scale));
      part_p = _mm256_add_ps(part_p, ep);
      part_q = _mm256_add_ps(part_q, eq);
      if constexpr (Keep) {
        _mm256_storeu_ps(a + g, ep);
        _mm256_storeu_ps(b + g, eq);
        const __m256 some = _mm256_cmp_ps(ep, _mm256_setzero_ps(), _CMP_GT_OQ);
        part_x = _mm256_add_ps(part_x, _mm256_and_ps(some, _mm256_mul_ps(ep, _mm256_sub_ps(dp, dq))));
      }
    }
    add_floats(sums.p, part_p);
    add_floats(sums.q, part_q);
    if constexpr (Keep) add_floats(sums.cross, part_x);
  }
}

template <class T>
DECANT_TARGET_AVX2 DECANT_INLINE float max_avx2(const T* x, index_t n) {
  __m256 m0 = _mm256_set1_ps(-__builtin_huge_valf());
  __m256 m1 = m0;
  __m256 m2 = m0;
  __m256 m3 = m0;
  index_t i = 0;
  for (; i + 32 <= n; i += 32) {
    m0 = _mm256_max_ps(load8(x + i), m0);  // NaN ignored
    m1 = _mm256_max_ps(load8(x + i + 8), m1);
    m2 = _mm256_max_ps(load8(x + i + 16), m2);
    m3 = _mm256_max_ps(load8(x + i + 24), m3);
  }
  m0 = _mm256_max_ps(_mm256_max_ps(m0, m1), _mm256_max_ps(m2, m3));
  float lane[8];
  _mm256_storeu_ps(lane, m0);
  float largest = lane[0];
  for (int l = 1; l < 8; ++l) largest = lane[l] > largest ? lane[l] : largest;
  for (; i < n; ++i) largest = static_cast<float>(x[i]) > largest ? static_cast<float>(x[i]) : largest;
  return largest;
}

template <bool Keep, class P, class Q>
DECANT_TARGET_AVX2 inline EarTile ear_tile_avx2(const P* p, const Q* q, index_t n, float inverse, float* a, float* b) {
  EarTile tile;
  tile.max_p = max_avx2(p, n);
  tile.max_q = max_avx2(q, n);
  const __m256 base_p = _mm256_set1_ps(ear_base(tile.max_p));
  const __m256 base_q = _mm256_set1_ps(ear_base(tile.max_q));
  const __m256 scale = _mm256_set1_ps(inverse * ear_log2_e);
  const __m256d zero = _mm256_setzero_pd();
  EarSums256 sums{{zero, zero}, {zero, zero}, {zero, zero}};
  index_t i = 0;
  for (; i + 64 <= n; i += 64) {
    ear_block_avx2<Keep>(p + i, q + i, base_p, base_q, scale, Keep ? a + i : nullptr, Keep ? b + i : nullptr, sums);
  }
  if (i < n) {
    EarRest rest(p + i, q + i, n - i);
    ear_block_avx2<Keep>(rest.p, rest.q, base_p, base_q, scale, rest.a, rest.b, sums);
    if constexpr (Keep) rest.store(a + i, b + i, n - i);
  }
  tile.sum_p = total(sums.p);
  tile.sum_q = total(sums.q);
  tile.cross = total(sums.cross);
  return tile;
}

DECANT_TARGET_AVX2 inline double ear_distance_avx2(const float* a, const float* b, index_t n, float scale_p,
                                                   float scale_q) {
  const __m256 of_p = _mm256_set1_ps(scale_p);
  const __m256 of_q = _mm256_set1_ps(scale_q);
  EarSum256 sum{_mm256_setzero_pd(), _mm256_setzero_pd()};
  index_t i = 0;
  for (; i + 32 <= n; i += 32) {
    __m256 part = _mm256_setzero_ps();
    for (int g = 0; g < 32; g += 8) {
      const __m256 p = _mm256_mul_ps(_mm256_loadu_ps(a + i + g), of_p);
      const __m256 q = _mm256_mul_ps(_mm256_loadu_ps(b + i + g), of_q);
      part = _mm256_add_ps(part, _mm256_sub_ps(_mm256_max_ps(p, q), _mm256_min_ps(p, q)));
    }
    add_floats(sum, part);
  }
  double result = total(sum);
  for (; i < n; ++i) result += ear_difference(a[i] * scale_p, b[i] * scale_q);
  return result;
}

}  // namespace decant::quant::detail

#endif
#endif
