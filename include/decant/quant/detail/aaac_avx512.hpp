// decant: the sweeps of detail/aaac_rows.hpp with AVX-512. A table, or its limits, is one register, which permutations
// index: the search for the nearest entry is four compares.
#ifndef DECANT_QUANT_DETAIL_AAAC_AVX512_HPP
#define DECANT_QUANT_DETAIL_AAAC_AVX512_HPP

#include "../../core/detail/intrinsics.hpp"
#include "aaac_rows.hpp"

#if DECANT_X86

namespace decant::quant::detail {

DECANT_TARGET_AVX512 inline __m512i nearest_avx512(__m512 limit, __m512 u) {
  const __m512 middle = _mm512_permutexvar_ps(_mm512_set1_epi32(7), limit);
  __m512i c = _mm512_maskz_set1_epi32(_mm512_cmp_ps_mask(u, middle, _CMP_GT_OQ), 8);
  for (int step = 4; step > 0; step /= 2) {
    const __m512i at = _mm512_add_epi32(c, _mm512_set1_epi32(step - 1));
    const __mmask16 above = _mm512_cmp_ps_mask(u, _mm512_permutexvar_ps(at, limit), _CMP_GT_OQ);
    c = _mm512_mask_add_epi32(c, above, c, _mm512_set1_epi32(step));
  }
  return c;
}

/// The lanes' sum, in the order of fold16().
DECANT_TARGET_AVX512 inline float fold_avx512(__m512 x) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

DECANT_TARGET_AVX512 inline __m512 add_error_avx512(__m512 table, __m512 limit, __m512 u, __m512 importance,
                                                    __m512 sum) {
  const __m512 d = _mm512_sub_ps(u, _mm512_permutexvar_ps(nearest_avx512(limit, u), table));
  return _mm512_fmadd_ps(_mm512_mul_ps(importance, d), d, sum);
}

DECANT_TARGET_AVX512 inline void choose_avx512(const AaacTables& t, const AaacRow& row, std::uint8_t* chosen,
                                               float* error) {
  const __m512 table0 = _mm512_load_ps(t.table[0]);
  const __m512 table1 = _mm512_load_ps(t.table[1]);
  const __m512 limit0 = _mm512_load_ps(t.limit[0]);
  const __m512 limit1 = _mm512_load_ps(t.limit[1]);
  for (index_t g = 0; g < row.groups; ++g) {
    __m512 sum0 = _mm512_setzero_ps();
    __m512 sum1 = _mm512_setzero_ps();
    for (index_t i = g * row.pad; i < (g + 1) * row.pad; i += 16) {
      const __m512 u = _mm512_loadu_ps(row.u + i);
      const __m512 importance = _mm512_loadu_ps(row.importance + i);
      sum0 = add_error_avx512(table0, limit0, u, importance, sum0);
      sum1 = add_error_avx512(table1, limit1, u, importance, sum1);
    }
    const float first = fold_avx512(sum0);
    const float second = fold_avx512(sum1);
    chosen[g] = second < first ? 1 : 0;
    error[g] = second < first ? second : first;
  }
}

DECANT_TARGET_AVX512 inline void scale_avx512(const AaacTables& t, const AaacRow& row, const std::uint8_t* chosen,
                                              float* product, float* square) {
  for (index_t g = 0; g < row.groups; ++g) {
    const __m512 table = _mm512_load_ps(t.table[chosen[g]]);
    const __m512 limit = _mm512_load_ps(t.limit[chosen[g]]);
    __m512 with_u = _mm512_setzero_ps();
    __m512 with_c = _mm512_setzero_ps();
    for (index_t i = g * row.pad; i < (g + 1) * row.pad; i += 16) {
      const __m512 u = _mm512_loadu_ps(row.u + i);
      const __m512 c = _mm512_permutexvar_ps(nearest_avx512(limit, u), table);
      const __m512 each = _mm512_mul_ps(_mm512_loadu_ps(row.importance + i), c);
      with_u = _mm512_fmadd_ps(each, u, with_u);
      with_c = _mm512_fmadd_ps(each, c, with_c);
    }
    product[g] = fold_avx512(with_u);
    square[g] = fold_avx512(with_c);
  }
}

DECANT_TARGET_AVX512 inline void accumulate_avx512(const AaacTables& t, const AaacRow& row, const std::uint8_t* chosen,
                                                   const float* square, AaacTail tail, AaacSums& sums) {
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  // Both sums of a weight are one number of 8 bytes, added to in memory: lanes do not meet.
  alignas(64) double pair[16];
  alignas(64) std::uint8_t at[16];
  for (index_t g = 0; g < row.groups; ++g) {
    const __m512 limit = _mm512_load_ps(t.limit[chosen[g]]);
    const __m128 scale = _mm_set1_ps(square[g]);
    double* const table_sums = reinterpret_cast<double*>(&sums.at[chosen[g]][0][0][0]);
    for (index_t i = g * row.pad; i < (g + 1) * row.pad; i += 16) {
      const __m512 u = _mm512_loadu_ps(row.u + i);
      __m512 each = _mm512_loadu_ps(row.importance + i);
      if (tail == AaacTail::magnitude) each = _mm512_mul_ps(each, _mm512_abs_ps(u));
      const __m512 with_u = _mm512_mul_ps(each, u);
      const __m512i code = _mm512_slli_epi32(nearest_avx512(limit, u), 4);
      _mm_store_si128(reinterpret_cast<__m128i*>(at), _mm512_cvtepi32_epi8(code));
      const __m512d first = _mm512_castps_pd(_mm512_permutex2var_ps(with_u, low, each));
      const __m512d second = _mm512_castps_pd(_mm512_permutex2var_ps(with_u, high, each));
      _mm256_store_pd(pair, _mm512_castpd512_pd256(first));
      _mm256_store_pd(pair + 4, _mm512_extractf64x4_pd(first, 1));
      _mm256_store_pd(pair + 8, _mm512_castpd512_pd256(second));
      _mm256_store_pd(pair + 12, _mm512_extractf64x4_pd(second, 1));
      for (int l = 0; l < 16; ++l) {
        double* const sum = table_sums + at[l] + l;
        const __m128 old = _mm_castpd_ps(_mm_load_sd(sum));
        _mm_store_sd(sum, _mm_castps_pd(_mm_fmadd_ps(_mm_castpd_ps(_mm_load_sd(pair + l)), scale, old)));
      }
    }
  }
}

DECANT_TARGET_AVX512 inline void encode_avx512(const AaacTables& t, const AaacRow& row, const std::uint8_t* chosen,
                                               std::uint8_t* codes) {
  for (index_t g = 0; g < row.groups; ++g) {
    const __m512 limit = _mm512_load_ps(t.limit[chosen[g]]);
    for (index_t i = g * row.pad; i < (g + 1) * row.pad; i += 16) {
      const __m512i code = nearest_avx512(limit, _mm512_loadu_ps(row.u + i));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + i), _mm512_cvtepi32_epi8(code));
    }
  }
}

}  // namespace decant::quant::detail

#endif

#endif
