// decant: tiles of EAR on AVX-512.
#ifndef DECANT_QUANT_DETAIL_EAR_AVX512_HPP
#define DECANT_QUANT_DETAIL_EAR_AVX512_HPP

#include "../../core/detail/intrinsics.hpp"
#include "../../core/dtype.hpp"
#include "ear_tile.hpp"

#if DECANT_X86

namespace decant::quant::detail {

DECANT_TARGET_AVX512 DECANT_INLINE __m512 load16(const float* x) { return _mm512_loadu_ps(x); }
DECANT_TARGET_AVX512 DECANT_INLINE __m512 load16(const bf16* x) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
DECANT_TARGET_AVX512 DECANT_INLINE __m512 load16(const fp16* x) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
}

/// 2^x for x at most 0: a polynomial of x - floor(x), scaled by an instruction. -inf gives 0; NaN stays.
DECANT_TARGET_AVX512 DECANT_INLINE __m512 ear_exp2_avx512(__m512 x) {
  const __m512 f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF);
  __m512 p = _mm512_set1_ps(ear_exp2[0]);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(ear_exp2[1]));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(ear_exp2[2]));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(ear_exp2[3]));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(ear_exp2[4]));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(ear_exp2[5]));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(ear_exp2[6]));
  return _mm512_scalef_ps(p, x);
}

struct EarSum512 {
  __m512d low;
  __m512d high;
};
DECANT_TARGET_AVX512 DECANT_INLINE void add_floats(EarSum512& sum, __m512 x) {
  sum.low = _mm512_add_pd(sum.low, _mm512_cvtps_pd(_mm512_castps512_ps256(x)));
  sum.high = _mm512_add_pd(sum.high, _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1)));
}
DECANT_TARGET_AVX512 DECANT_INLINE double total(const EarSum512& sum) {
  return _mm512_reduce_add_pd(_mm512_add_pd(sum.low, sum.high));
}

struct EarSums512 {
  EarSum512 p;
  EarSum512 q;
  EarSum512 cross;
};

/// As ear_block.
template <bool Keep, class P, class Q>
DECANT_TARGET_AVX512 DECANT_INLINE void ear_block_avx512(const P* p, const Q* q, __m512 base_p, __m512 base_q,
                                                         __m512 scale, float* a, float* b, EarSums512& sums) {
  __m512 part_p = _mm512_setzero_ps();
  __m512 part_q = _mm512_setzero_ps();
  __m512 part_x = _mm512_setzero_ps();
  for (int g = 0; g < 64; g += 16) {
    const __m512 dp = _mm512_sub_ps(load16(p + g), base_p);
    const __m512 dq = _mm512_sub_ps(load16(q + g), base_q);
    const __m512 ep = ear_exp2_avx512(_mm512_mul_ps(dp, scale));
    const __m512 eq = ear_exp2_avx512(_mm512_mul_ps(dq, scale));
    part_p = _mm512_add_ps(part_p, ep);
    part_q = _mm512_add_ps(part_q, eq);
    if constexpr (Keep) {
      _mm512_storeu_ps(a + g, ep);
      _mm512_storeu_ps(b + g, eq);
      const __mmask16 some = _mm512_cmp_ps_mask(ep, _mm512_setzero_ps(), _CMP_GT_OQ);
      part_x = _mm512_mask_add_ps(part_x, some, part_x, _mm512_mul_ps(ep, _mm512_sub_ps(dp, dq)));
    }
  }
  add_floats(sums.p, part_p);
  add_floats(sums.q, part_q);
  if constexpr (Keep) add_floats(sums.cross, part_x);
}

template <class T>
DECANT_TARGET_AVX512 DECANT_INLINE float max_avx512(const T* x, index_t n) {
  __m512 m0 = _mm512_set1_ps(-__builtin_huge_valf());
  __m512 m1 = m0;
  __m512 m2 = m0;
  __m512 m3 = m0;
  index_t i = 0;
  for (; i + 64 <= n; i += 64) {
    m0 = _mm512_max_ps(load16(x + i), m0);  // NaN ignored
    m1 = _mm512_max_ps(load16(x + i + 16), m1);
    m2 = _mm512_max_ps(load16(x + i + 32), m2);
    m3 = _mm512_max_ps(load16(x + i + 48), m3);
  }
  m0 = _mm512_max_ps(_mm512_max_ps(m0, m1), _mm512_max_ps(m2, m3));
  float largest = _mm512_reduce_max_ps(m0);
  for (; i < n; ++i) largest = static_cast<float>(x[i]) > largest ? static_cast<float>(x[i]) : largest;
  return largest;
}

template <bool Keep, class P, class Q>
DECANT_TARGET_AVX512 inline EarTile ear_tile_avx512(const P* p, const Q* q, index_t n, float inverse, float* a,
                                                    float* b) {
  EarTile tile;
  tile.max_p = max_avx512(p, n);
  tile.max_q = max_avx512(q, n);
  const __m512 base_p = _mm512_set1_ps(ear_base(tile.max_p));
  const __m512 base_q = _mm512_set1_ps(ear_base(tile.max_q));
  const __m512 scale = _mm512_set1_ps(inverse * ear_log2_e);
  const __m512d zero = _mm512_setzero_pd();
  EarSums512 sums{{zero, zero}, {zero, zero}, {zero, zero}};
  index_t i = 0;
  for (; i + 64 <= n; i += 64)
    ear_block_avx512<Keep>(p + i, q + i, base_p, base_q, scale, Keep ? a + i : nullptr, Keep ? b + i : nullptr, sums);
  if (i < n) {
    EarRest rest(p + i, q + i, n - i);
    ear_block_avx512<Keep>(rest.p, rest.q, base_p, base_q, scale, rest.a, rest.b, sums);
    if constexpr (Keep) rest.store(a + i, b + i, n - i);
  }
  tile.sum_p = total(sums.p);
  tile.sum_q = total(sums.q);
  tile.cross = total(sums.cross);
  return tile;
}

DECANT_TARGET_AVX512 inline double ear_distance_avx512(const float* a, const float* b, index_t n, float scale_p,
                                                       float scale_q) {
  const __m512 of_p = _mm512_set1_ps(scale_p);
  const __m512 of_q = _mm512_set1_ps(scale_q);
  EarSum512 sum{_mm512_setzero_pd(), _mm512_setzero_pd()};
  index_t i = 0;
  for (; i + 64 <= n; i += 64) {
    __m512 part = _mm512_setzero_ps();
    for (int g = 0; g < 64; g += 16) {
      const __m512 p = _mm512_mul_ps(_mm512_loadu_ps(a + i + g), of_p);
      const __m512 q = _mm512_mul_ps(_mm512_loadu_ps(b + i + g), of_q);
      part = _mm512_add_ps(part, _mm512_sub_ps(_mm512_max_ps(p, q), _mm512_min_ps(p, q)));
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
