// decant: rows of fp8 in registers of AVX2, as binary16 on the way to float. A vector of bytes becomes the even ones
// and the odd ones, which takes a shift and a mask each and no shuffle. All 256 patterns become what dtype.hpp
// says, but for the factor pairs_scale, which the callers of the functions for pairs owe.
#ifndef DECANT_ATTENTION_DETAIL_FP8_ROWS_AVX2_HPP
#define DECANT_ATTENTION_DETAIL_FP8_ROWS_AVX2_HPP

#include "dense_portable.hpp"

#if DECANT_X86

#include "../../core/detail/intrinsics.hpp"

namespace decant::attention::detail {

/// E5M2 in the upper byte of each word is a binary16 but for the lower byte.
DECANT_TARGET_AVX2 DECANT_INLINE __m256 upper_bytes(__m128i x, fp8_e5m2) {
  return _mm256_cvtph_ps(_mm_and_si128(x, _mm_set1_epi16(static_cast<short>(0xff00))));
}
/// E4M3, moved into place, is a binary16 that is pairs_scale too small, subnormals too. Only its NaN has another form.
DECANT_TARGET_AVX2 DECANT_INLINE __m256 upper_bytes(__m128i x, fp8_e4m3) {
  const __m128i moved = _mm_and_si128(_mm_srai_epi16(x, 1), _mm_set1_epi16(static_cast<short>(0xbf80)));
  const __m128i carried = _mm_add_epi16(moved, _mm_set1_epi16(0x0080));  // into the exponent by NaN only
  return _mm256_cvtph_ps(_mm_or_si128(moved, _mm_and_si128(carried, _mm_set1_epi16(0x4000))));
}

template <class T>
  requires(sizeof(T) == 1)
DECANT_TARGET_AVX2 DECANT_INLINE void load_pairs(const T* p, __m256& even, __m256& odd) {
  const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  even = upper_bytes(_mm_slli_epi16(x, 8), T{});
  odd = upper_bytes(x, T{});
}

/// Eight bytes in the order of memory.
template <class T>
  requires(sizeof(T) == 1)
DECANT_TARGET_AVX2 DECANT_INLINE __m256 load8(const T* p) {
  const __m128i x = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  const __m256 value = upper_bytes(_mm_unpacklo_epi8(_mm_setzero_si128(), x), T{});
  return pairs_scale<T> == 1 ? value : _mm256_mul_ps(value, _mm256_set1_ps(pairs_scale<T>));
}

}  // namespace decant::attention::detail

#endif

#endif
