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

DECANT_TARGET_AVX2 inline void santa_weigh_avx2(const float* e, float factor, std::int64_t* sums) {
  const __m256 f = _mm256_set1_ps(factor);
  for (int k = 0; k < santa_spans; ++k) sums[k] = sum4(whole8_sum(_mm256_mul_ps(_mm256_loadu_ps(e + 8 * k), f)));
}

DECANT_TARGET_AVX2 inline std::uint64_t santa_split_avx2(const float* e, float factor, float limit,
                                                         std::int64_t* sums) {
  const __m256 f = _mm256_set1_ps(factor);
  const __m256 l = _mm256_set1_ps(limit);
  std::uint64_t bits = 0;
  for (int k = 0; k < santa_spans; ++k) {
    const __m256 w = _mm256_mul_ps(_mm256_loadu_ps(e + 8 * k), f);
    const __m256 high = _mm256_cmp_ps(w, l, _CMP_GE_OQ);
    bits |= static_cast<std::uint64_t>(static_cast<unsigned>(_mm256_movemask_ps(high))) << (8 * k);
    sums[k] = sum4(whole8_sum(_mm256_andnot_ps(high, w)));
  }
  return bits;
}

/// Running sums of four lanes.
DECANT_TARGET_AVX2 DECANT_INLINE __m256i running4(__m256i x) {
  x = _mm256_add_epi64(x, _mm256_blend_epi32(_mm256_permute4x64_epi64(x, 0x90), _mm256_setzero_si256(), 0x03));
  return _mm256_add_epi64(x, _mm256_permute2x128_si256(x, x, 0x08));
}

DECANT_TARGET_AVX2 inline void santa_locate_avx2(const SantaStretch& s, const std::int64_t* targets, index_t n,
                                                 std::int32_t* keys) {
  const __m256 limit = _mm256_set1_ps(s.limit);
  index_t span = s.first;
  std::int64_t before = 0;
  for (index_t i = 0; i < n; ++i) {
    for (; targets[i] >= before + s.sums[span]; ++span) before += s.sums[span];
    __m256 w = _mm256_mul_ps(_mm256_loadu_ps(s.exponentials(span)), _mm256_set1_ps(s.factor(span)));
    w = _mm256_andnot_ps(_mm256_cmp_ps(w, limit, _CMP_GE_OQ), w);
    const __m256i low = running4(whole4(_mm256_castps256_ps128(w)));
    const __m256i high = _mm256_add_epi64(running4(whole4(_mm256_extractf128_ps(w, 1))),
                                          _mm256_permute4x64_epi64(low, 0xff));
    const __m256i target = _mm256_set1_epi64x(targets[i] - before);
    const int past = _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpgt_epi64(low, target))) |
                     _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpgt_epi64(high, target))) << 4;
    keys[i] = static_cast<std::int32_t>((span - s.first) * santa_span + __builtin_ctz(static_cast<unsigned>(past)));
  }
}

inline constexpr SantaKernels santa_avx2{santa_factors_portable, santa_weigh_avx2, santa_split_avx2, santa_locate_avx2};

}  // namespace decant::attention::detail

#endif

#endif
