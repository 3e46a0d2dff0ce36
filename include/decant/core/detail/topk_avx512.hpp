// decant: the AVX-512 halves of top-k's scans. Each does whole vectors and says where the portable loop goes on.
#ifndef DECANT_CORE_DETAIL_TOPK_AVX512_HPP
#define DECANT_CORE_DETAIL_TOPK_AVX512_HPP

#include <cstdint>

#include "../error.hpp"

#if DECANT_X86
#include "intrinsics.hpp"

namespace decant::detail {

/// See make_keys, for contiguous scores and mask.
DECANT_TARGET_AVX512 inline index_t make_keys_avx512(const float* scores, const std::uint8_t* keep, index_t n,
                                                     std::uint32_t* keys, index_t& kept) {
  const __m512i infinity = _mm512_set1_epi32(0x7f800000);
  const __m512i magnitude_bits = _mm512_set1_epi32(0x7fffffff);
  const __m512i minus_infinity = _mm512_set1_epi32(static_cast<int>(0xff800000u));
  const __m512i sign_bit = _mm512_set1_epi32(static_cast<int>(0x80000000u));
  const __m512i all_bits = _mm512_set1_epi32(-1);
  index_t i = 0;
  for (; i + 16 <= n; i += 16) {
    __m512i bits = _mm512_loadu_si512(scores + i);
    const __m512i magnitude = _mm512_and_si512(bits, magnitude_bits);
    bits = _mm512_maskz_mov_epi32(_mm512_test_epi32_mask(magnitude, magnitude), bits);
    bits = _mm512_mask_mov_epi32(bits, _mm512_cmpgt_epi32_mask(magnitude, infinity), minus_infinity);
    __m512i key = _mm512_xor_si512(bits, _mm512_mask_mov_epi32(sign_bit, _mm512_movepi32_mask(bits), all_bits));
    if (keep) {
      const __m128i mask = _mm_loadu_si128(reinterpret_cast<const __m128i*>(keep + i));
      const __mmask16 is_kept = _mm_test_epi8_mask(mask, mask);
      key = _mm512_mask_mov_epi32(key, is_kept, all_bits);
      kept += __builtin_popcount(is_kept);
    }
    _mm512_storeu_si512(keys + i, key);
  }
  return i;
}

/// See collect_digit. Compresses in registers and stores whole vectors: what lies past the last one found is
/// overwritten later or never read, and found <= i keeps the store inside out's n.
DECANT_TARGET_AVX512 inline index_t collect_digit_avx512(const std::uint32_t* keys, index_t n, std::uint32_t digit,
                                                         std::uint32_t* out, index_t& found) {
  const __m512i lowest = _mm512_set1_epi32(static_cast<int>(digit << 21));
  const __m512i span = _mm512_set1_epi32(1 << 21);
  index_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m512i key = _mm512_loadu_si512(keys + i);
    const __mmask16 match = _mm512_cmplt_epu32_mask(_mm512_sub_epi32(key, lowest), span);
    _mm512_storeu_si512(out + found, _mm512_maskz_compress_epi32(match, key));
    found += __builtin_popcount(match);
  }
  return i;
}

/// See emit_indices. Stops where a whole vector no longer fits in front of out + k; decrements ties as it takes them.
DECANT_TARGET_AVX512 inline index_t emit_indices_avx512(const std::uint32_t* keys, std::uint32_t threshold,
                                                        index_t& ties, index_t k, std::int32_t* out, index_t& count) {
  const __m512i limit = _mm512_set1_epi32(static_cast<int>(threshold));
  __m512i index = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  index_t i = 0;
  // At least 16 still to be taken means at least 16 keys still to be read.
  for (; count + 16 <= k; i += 16) {
    const __m512i key = _mm512_loadu_si512(keys + i);
    unsigned take = _mm512_cmpgt_epu32_mask(key, limit);
    unsigned equal = _mm512_cmpeq_epi32_mask(key, limit);
    while (equal != 0 && ties > 0) {
      take |= equal & (~equal + 1u);  // the lowest tie
      equal &= equal - 1u;
      --ties;
    }
    _mm512_storeu_si512(out + count, _mm512_maskz_compress_epi32(static_cast<__mmask16>(take), index));
    count += __builtin_popcount(take);
    index = _mm512_add_epi32(index, _mm512_set1_epi32(16));
  }
  return i;
}

}  // namespace decant::detail

#endif
#endif
