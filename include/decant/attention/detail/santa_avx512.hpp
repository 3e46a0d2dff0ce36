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

/// The sums over lanes of eight registers, in their order.
DECANT_TARGET_AVX512 DECANT_INLINE __m512i sum_lanes(const __m512i (&x)[8]) {
  __m512i two[4];
  DECANT_UNROLL
  for (int i = 0; i < 4; ++i)
    two[i] = _mm512_add_epi64(_mm512_unpacklo_epi64(x[2 * i], x[2 * i + 1]),
                              _mm512_unpackhi_epi64(x[2 * i], x[2 * i + 1]));
  const __m512i low = _mm512_add_epi64(_mm512_shuffle_i64x2(two[0], two[1], 0x88),
                                       _mm512_shuffle_i64x2(two[0], two[1], 0xdd));
  const __m512i high = _mm512_add_epi64(_mm512_shuffle_i64x2(two[2], two[3], 0x88),
                                        _mm512_shuffle_i64x2(two[2], two[3], 0xdd));
  return _mm512_add_epi64(_mm512_shuffle_i64x2(low, high, 0x88), _mm512_shuffle_i64x2(low, high, 0xdd));
}

/// A product that compilers do not fuse with a sum.
DECANT_TARGET_AVX512 DECANT_INLINE __m512 santa_product(__m512 a, float b) {
  return _mm512_mul_round_ps(a, _mm512_set1_ps(b), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
DECANT_TARGET_AVX512 DECANT_INLINE __m512 santa_product(__m512 a, __m512 b) {
  return _mm512_mul_round_ps(a, b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

DECANT_TARGET_AVX512 DECANT_INLINE __m512 santa_sum(float a, __m512 b) {
  return _mm512_add_ps(_mm512_set1_ps(a), b);
}

/// santa_factor of sixteen, step by step.
DECANT_TARGET_AVX512 inline void santa_factors_avx512(float* tops, index_t n, const float* references, index_t group) {
  const __m512 magic = _mm512_set1_ps(12582912.0f);
  for (index_t i = 0; i < n; i += 16) {
    const __mmask16 lanes = first_lanes(n - i < 16 ? n - i : 16);
    const __m512 top = _mm512_maskz_loadu_ps(lanes, tops + i);
    const __m512 x = _mm512_sub_ps(top, _mm512_loadu_ps(references + i % group));
    const __m512 shifted = _mm512_add_ps(santa_product(x, 1.44269502f), magic);
    const __m512 whole = _mm512_sub_ps(shifted, magic);
    const __m512 high = _mm512_sub_ps(x, santa_product(whole, 0.693359375f));
    const __m512 r = _mm512_sub_ps(high, santa_product(whole, -2.12194440e-4f));
    __m512 tail = santa_sum(0.008363173343241215f, santa_product(r, 0.001392617588862777f));
    tail = santa_sum(0.041666556149721146f, santa_product(r, tail));
    tail = santa_sum(0.166665777564048770f, santa_product(r, tail));
    tail = santa_sum(0.5f, santa_product(r, tail));
    const __m512 e = santa_sum(1.0f, _mm512_add_ps(r, santa_product(santa_product(r, r), tail)));
    const __m512i power = _mm512_slli_epi32(_mm512_add_epi32(_mm512_castps_si512(shifted), _mm512_set1_epi32(127)), 23);
    const __mmask16 alive = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.3f), _CMP_NLT_UQ) &
                            _mm512_cmp_ps_mask(top, _mm512_set1_ps(-INFINITY), _CMP_NEQ_UQ);
    const __m512 factor = santa_product(santa_product(e, _mm512_castsi512_ps(power)), santa_one);
    _mm512_mask_storeu_ps(tops + i, lanes, _mm512_maskz_mov_ps(alive, factor));
  }
}

DECANT_TARGET_AVX512 inline void santa_weigh_avx512(const float* e, float factor, std::int64_t* sums) {
  const __m256 f = _mm256_set1_ps(factor);
  __m512i whole[santa_spans];
  DECANT_UNROLL
  for (int k = 0; k < santa_spans; ++k) whole[k] = whole8(_mm256_mul_ps(_mm256_loadu_ps(e + 8 * k), f));
  _mm512_storeu_si512(sums, sum_lanes(whole));
}

DECANT_TARGET_AVX512 inline std::uint64_t santa_split_avx512(const float* e, float factor, float limit,
                                                             std::int64_t* sums) {
  const __m256 f = _mm256_set1_ps(factor);
  const __m256 l = _mm256_set1_ps(limit);
  __m512i whole[santa_spans];
  std::uint64_t bits = 0;
  DECANT_UNROLL
  for (int k = 0; k < santa_spans; ++k) {
    const __m256 w = _mm256_mul_ps(_mm256_loadu_ps(e + 8 * k), f);
    const __mmask8 low = _mm256_cmp_ps_mask(w, l, _CMP_LT_OQ);
    bits |= static_cast<std::uint64_t>(static_cast<std::uint8_t>(~low)) << (8 * k);
    whole[k] = whole8(_mm256_maskz_mov_ps(low, w));
  }
  _mm512_storeu_si512(sums, sum_lanes(whole));
  return bits;
}

/// Running sums of eight lanes.
DECANT_TARGET_AVX512 DECANT_INLINE __m512i running8(__m512i x) {
  const __m512i zero = _mm512_setzero_si512();
  x = _mm512_add_epi64(x, _mm512_alignr_epi64(x, zero, 7));
  x = _mm512_add_epi64(x, _mm512_alignr_epi64(x, zero, 6));
  return _mm512_add_epi64(x, _mm512_alignr_epi64(x, zero, 4));
}

template <bool Limited>
DECANT_TARGET_AVX512 void santa_locate_some_avx512(const SantaStretch& s, const std::int64_t* targets, index_t n,
                                                   std::int32_t* keys) {
  constexpr int parts = santa_stretch / 8;
  const std::uint64_t lanes = (std::uint64_t{1} << s.count) - 1;
  std::int64_t before[santa_stretch + 1];
  before[0] = 0;
  __m512i ends[parts];
  __m512i last = _mm512_setzero_si512();
  DECANT_UNROLL
  for (int i = 0; i < parts; ++i) {
    const auto mask = static_cast<__mmask8>(lanes >> (8 * i));
    ends[i] = _mm512_add_epi64(running8(_mm512_maskz_loadu_epi64(mask, s.sums + s.first + 8 * i)), last);
    last = _mm512_permutexvar_epi64(_mm512_set1_epi64(7), ends[i]);
    _mm512_storeu_si512(before + 1 + 8 * i, ends[i]);
  }
  const __m256 limit = _mm256_set1_ps(s.limit);
  for (index_t i = 0; i < n; ++i) {
    const __m512i target = _mm512_set1_epi64(targets[i]);
    unsigned above = 0;
    DECANT_UNROLL
    for (int k = 0; k < parts; ++k)
      above |= static_cast<unsigned>(_mm512_cmpgt_epi64_mask(ends[k], target)) << (8 * k);
    const int span = __builtin_ctz(above);
    __m256 w = _mm256_mul_ps(_mm256_loadu_ps(s.exponentials(s.first + span)),
                             _mm256_set1_ps(s.factor(s.first + span)));
    if constexpr (Limited) w = _mm256_maskz_mov_ps(_mm256_cmp_ps_mask(w, limit, _CMP_LT_OQ), w);
    const __m512i running = _mm512_add_epi64(running8(whole8(w)), _mm512_set1_epi64(before[span]));
    const __mmask8 past = _mm512_cmpgt_epi64_mask(running, target);
    keys[i] = span * santa_span + __builtin_ctz(past);
  }
}

DECANT_TARGET_AVX512 inline void santa_locate_avx512(const SantaStretch& s, const std::int64_t* targets, index_t n,
                                                     std::int32_t* keys) {
  if (s.limit == INFINITY) santa_locate_some_avx512<false>(s, targets, n, keys);
  else santa_locate_some_avx512<true>(s, targets, n, keys);
}

inline constexpr SantaKernels santa_avx512{santa_factors_avx512, santa_weigh_avx512, santa_split_avx512, santa_locate_avx512};

}  // namespace decant::attention::detail

#endif

#endif
