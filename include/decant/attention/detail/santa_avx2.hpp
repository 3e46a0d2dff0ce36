// decant: the kernels of SANTA over weights on AVX2, which has no conversion of floats to 64-bit integers: a double
// that was cut to an integer below 2^52 has its bits in the mantissa once 2^52 is added.
#ifndef DECANT_ATTENTION_DETAIL_SANTA_AVX2_HPP
#define DECANT_ATTENTION_DETAIL_SANTA_AVX2_HPP

#include "santa_portable.hpp"

#if DECANT_X86

#include "../../core/detail/intrinsics.hpp"

namespace decant::attention::detail {

DECANT_TARGET_AVX2 DECANT_INLINE __m256i whole4(__m128 w) {
  const __m256d magic = _mm256_set1_pd(0x1p52);
  const __m256d cut = _mm256_round_pd(_mm256_cvtps_pd(w), _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
  return _mm256_xor_si256(_mm256_castpd_si256(_mm256_add_pd(cut, magic)), _mm256_castpd_si256(magic));
}

DECANT_TARGET_AVX2 DECANT_INLINE std::int64_t sum4(__m256i x) {
  const __m128i pair = _mm_add_epi64(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  return _mm_cvtsi128_si64(pair) + _mm_extract_epi64(pair, 1);
}

DECANT_TARGET_AVX2 DECANT_INLINE __m256i whole8_sum(__m256 w) {
  return _mm256_add_epi64(whole4(_mm256_castps256_ps128(w)), whole4(_mm256_extractf128_ps(w, 1)));
}

DECANT_TARGET_AVX2 inline void santa_scale_avx2(float* w, float factor, std::int64_t* sums) {
  const __m256 f = _mm256_set1_ps(factor);
  for (int k = 0; k < santa_spans; ++k) {
    const __m256 a = _mm256_mul_ps(_mm256_loadu_ps(w + 16 * k), f);
    const __m256 b = _mm256_mul_ps(_mm256_loadu_ps(w + 16 * k + 8), f);
    _mm256_storeu_ps(w + 16 * k, a);
    _mm256_storeu_ps(w + 16 * k + 8, b);
    sums[k] = sum4(_mm256_add_epi64(whole8_sum(a), whole8_sum(b)));
  }
}

DECANT_TARGET_AVX2 inline std::uint64_t santa_split_avx2(const float* w, float limit, std::int64_t* sums) {
  const __m256 l = _mm256_set1_ps(limit);
  std::uint64_t bits = 0;
  for (int k = 0; k < santa_spans; ++k) {
    __m256i sum = _mm256_setzero_si256();
    for (int j = 16 * k; j < 16 * k + 16; j += 8) {
      const __m256 x = _mm256_loadu_ps(w + j);
      const __m256 high = _mm256_cmp_ps(x, l, _CMP_GE_OQ);
      bits |= static_cast<std::uint64_t>(static_cast<unsigned>(_mm256_movemask_ps(high))) << j;
      sum = _mm256_add_epi64(sum, whole8_sum(_mm256_andnot_ps(high, x)));
    }
    sums[k] = sum4(sum);
  }
  return bits;
}

DECANT_TARGET_AVX2 inline int santa_find_avx2(const float* w, float limit, std::int64_t offset) {
  const __m128 l = _mm_set1_ps(limit);
  const __m256i target = _mm256_set1_epi64x(offset);
  __m256i before = _mm256_setzero_si256();
  for (int j = 0;; j += 4) {
    const __m128 x = _mm_loadu_ps(w + j);
    __m256i sum = whole4(_mm_andnot_ps(_mm_cmpge_ps(x, l), x));  // then running sums, by two shifts and additions
    sum = _mm256_add_epi64(sum, _mm256_blend_epi32(_mm256_permute4x64_epi64(sum, 0x90), _mm256_setzero_si256(), 0x03));
    sum = _mm256_add_epi64(sum, _mm256_permute2x128_si256(sum, sum, 0x08));
    sum = _mm256_add_epi64(sum, before);
    const int above = _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpgt_epi64(sum, target)));
    if (above != 0) return j + __builtin_ctz(static_cast<unsigned>(above));
    before = _mm256_permute4x64_epi64(sum, 0xff);
  }
}

inline constexpr SantaKernels santa_avx2{santa_scale_avx2, santa_split_avx2, santa_find_avx2};

}  // namespace decant::attention::detail

#endif

#endif
