// decant: rows of fp8 in registers of AVX-512, as binary16 on the way to float. A vector of bytes becomes the even ones
// and the odd ones, which takes a shift and a mask each and no shuffle. All 256 patterns become what dtype.hpp
// says, but for the factor pairs_scale, which the callers of the functions for pairs owe.
#ifndef DECANT_ATTENTION_DETAIL_FP8_ROWS_AVX512_HPP
#define DECANT_ATTENTION_DETAIL_FP8_ROWS_AVX512_HPP

#include "dense_portable.hpp"

#if DECANT_X86

#include "../../core/detail/intrinsics.hpp"

namespace decant::attention::detail {

/// E5M2 in the upper byte of each word is a binary16 but for the lower byte.
DECANT_TARGET_AVX512 DECANT_INLINE __m512 upper_bytes(__m256i x, fp8_e5m2) {
  return _mm512_cvtph_ps(_mm256_and_si256(x, _mm256_set1_epi16(static_cast<short>(0xff00))));
}
/// E4M3, moved into place, is a binary16 that is pairs_scale too small, subnormals too. Only its NaN has another form.
DECANT_TARGET_AVX512 DECANT_INLINE __m512 upper_bytes(__m256i x, fp8_e4m3) {
  const __m256i moved = _mm256_and_si256(_mm256_srai_epi16(x, 1), _mm256_set1_epi16(static_cast<short>(0xbf80)));
  const __m256i carried = _mm256_add_epi16(moved, _mm256_set1_epi16(0x0080));  // into the exponent by NaN only
  return _mm512_cvtph_ps(_mm256_ternarylogic_epi32(moved, carried, _mm256_set1_epi16(0x4000), 0xf8));
}

/// Of 32 bytes at p the even ones (i = 0) or the odd ones.
template <class T>
  requires(sizeof(T) == 1)
DECANT_TARGET_AVX512 DECANT_INLINE __m512 load_pair_part(const T* p, int i) {
  const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return upper_bytes(i == 0 ? _mm256_slli_epi16(x, 8) : x, T{});
}

/// Sixteen bytes in the order of memory.
template <class T>
  requires(sizeof(T) == 1)
DECANT_TARGET_AVX512 DECANT_INLINE __m512 widen16(__m128i x, T type) {
  const __m512 value = upper_bytes(_mm256_slli_epi16(_mm256_cvtepu8_epi16(x), 8), type);
  return pairs_scale<T> == 1 ? value : _mm512_mul_ps(value, _mm512_set1_ps(pairs_scale<T>));
}

}  // namespace decant::attention::detail

#endif

#endif
