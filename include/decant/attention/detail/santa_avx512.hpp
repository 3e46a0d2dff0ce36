// decant: the kernels of SANTA over weights on AVX-512 (F, DQ, VL).
#ifndef DECANT_ATTENTION_DETAIL_SANTA_AVX512_HPP
#define DECANT_ATTENTION_DETAIL_SANTA_AVX512_HPP

#include "santa_portable.hpp"

#if DECANT_X86

#include "../../core/detail/intrinsics.hpp"

namespace decant::attention::detail {

DECANT_TARGET_AVX512 DECANT_INLINE __m512i whole8(__m256 w) {
  return _mm512_cvttps_epi64(w);
}

DECANT_TARGET_AVX512 DECANT_INLINE __m512i whole16_sum(__m512 w) {
  return _mm512_add_epi64(whole8(_mm512_castps512_ps256(w)), whole8(_mm512_extractf32x8_ps(w, 1)));
}

/// The sums over lanes of four registers.
DECANT_TARGET_AVX512 DECANT_INLINE __m256i sum_lanes(__m512i a, __m512i b, __m512i c, __m512i d) {
  const __m512i ab = _mm512_add_epi64(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
  const __m512i cd = _mm512_add_epi64(_mm512_unpacklo_epi64(c, d), _mm512_unpackhi_epi64(c, d));
  const __m256i ab4 = _mm256_add_epi64(_mm512_castsi512_si256(ab), _mm512_extracti64x4_epi64(ab, 1));
  const __m256i cd4 = _mm256_add_epi64(_mm512_castsi512_si256(cd), _mm512_extracti64x4_epi64(cd, 1));
  return _mm256_add_epi64(_mm256_permute2x128_si256(ab4, cd4, 0x20), _mm256_permute2x128_si256(ab4, cd4, 0x31));
}

DECANT_TARGET_AVX512 inline void santa_scale_avx512(float* w, float factor, std::int64_t* sums) {
  const __m512 f = _mm512_set1_ps(factor);
  __m512i sum[santa_spans];
  DECANT_UNROLL
  for (int k = 0; k < santa_spans; ++k) {
    const __m512 x = _mm512_mul_ps(_mm512_loadu_ps(w + 16 * k), f);
    _mm512_storeu_ps(w + 16 * k, x);
    sum[k] = whole16_sum(x);
  }
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums), sum_lanes(sum[0], sum[1], sum[2], sum[3]));
}

DECANT_TARGET_AVX512 inline std::uint64_t santa_split_avx512(const float* w, float limit, std::int64_t* sums) {
  const __m512 l = _mm512_set1_ps(limit);
  __m512i sum[santa_spans];
  std::uint64_t bits = 0;
  DECANT_UNROLL
  for (int k = 0; k < santa_spans; ++k) {
    const __m512 x = _mm512_loadu_ps(w + 16 * k);
    const __mmask16 low = _mm512_cmp_ps_mask(x, l, _CMP_LT_OQ);
    bits |= static_cast<std::uint64_t>(static_cast<std::uint16_t>(~low)) << (16 * k);
    sum[k] = whole16_sum(_mm512_maskz_mov_ps(low, x));
  }
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums), sum_lanes(sum[0], sum[1], sum[2], sum[3]));
  return bits;
}

/// Running sums of eight lanes.
DECANT_TARGET_AVX512 DECANT_INLINE __m512i running8(__m512i x) {
  const __m512i zero = _mm512_setzero_si512();
  x = _mm512_add_epi64(x, _mm512_alignr_epi64(x, zero, 7));
  x = _mm512_add_epi64(x, _mm512_alignr_epi64(x, zero, 6));
  return _mm512_add_epi64(x, _mm512_alignr_epi64(x, zero, 4));
}

DECANT_TARGET_AVX512 inline int santa_find_avx512(const float* w, float limit, std::int64_t offset) {
  const __m512 all = _mm512_loadu_ps(w);
  const __m512 x = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(all, _mm512_set1_ps(limit), _CMP_LT_OQ), all);
  const __m512i low = running8(whole8(_mm512_castps512_ps256(x)));
  const __m512i of_low = _mm512_permutexvar_epi64(_mm512_set1_epi64(7), low);
  const __m512i high = _mm512_add_epi64(running8(whole8(_mm512_extractf32x8_ps(x, 1))), of_low);
  const __m512i target = _mm512_set1_epi64(offset);
  return __builtin_ctz(static_cast<unsigned>(_mm512_cmpgt_epi64_mask(low, target)) |
                       static_cast<unsigned>(_mm512_cmpgt_epi64_mask(high, target)) << 8);
}

inline constexpr SantaKernels santa_avx512{santa_scale_avx512, santa_split_avx512, santa_find_avx512};

}  // namespace decant::attention::detail

#endif

#endif
