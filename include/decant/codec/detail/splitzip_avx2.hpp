// decant: SplitZip's kernels for AVX2, 32 elements at a time. Exponents are looked up in rows of 16, those that the
// book has exponents in; escapes are listed one by one.
#ifndef DECANT_CODEC_DETAIL_SPLITZIP_AVX2_HPP
#define DECANT_CODEC_DETAIL_SPLITZIP_AVX2_HPP

#include "splitzip_portable.hpp"

#if DECANT_X86
#include "../../core/detail/intrinsics.hpp"

namespace decant::codec::detail {

/// The exponents and rests of 32 elements, a byte each.
template <class F, class T>
DECANT_TARGET_AVX2 inline void split_256(const T* x, __m256i& exponent, __m256i& rest) {
  if constexpr (F::width == 16) {
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + 16));
    const __m256i byte = _mm256_set1_epi16(0xff);
    const __m256i sign = _mm256_set1_epi16(0x80);
    const __m256i mantissa = _mm256_set1_epi16(0x7f);
    const __m256i exponents = _mm256_packus_epi16(_mm256_and_si256(_mm256_srli_epi16(a, 7), byte),
                                                  _mm256_and_si256(_mm256_srli_epi16(b, 7), byte));
    const __m256i rest_a =
        _mm256_or_si256(_mm256_and_si256(a, mantissa), _mm256_and_si256(_mm256_srli_epi16(a, 8), sign));
    const __m256i rest_b =
        _mm256_or_si256(_mm256_and_si256(b, mantissa), _mm256_and_si256(_mm256_srli_epi16(b, 8), sign));
    exponent = _mm256_permute4x64_epi64(exponents, 0xd8);
    rest = _mm256_permute4x64_epi64(_mm256_packus_epi16(rest_a, rest_b), 0xd8);
  } else {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
    const __m256i mantissa = _mm256_and_si256(bits, _mm256_set1_epi8((1 << F::man_bits) - 1));
    exponent = _mm256_and_si256(_mm256_srli_epi16(bits, F::man_bits), _mm256_set1_epi8((1 << F::exp_bits) - 1));
    if constexpr (F::sign_is_low) {
      const __m256i sign = _mm256_and_si256(_mm256_srli_epi16(bits, 7), _mm256_set1_epi8(1));
      rest = _mm256_or_si256(_mm256_add_epi8(mantissa, mantissa), sign);
    } else {
      const __m256i sign =
          _mm256_and_si256(_mm256_srli_epi16(bits, 7 - F::man_bits), _mm256_set1_epi8(1 << F::man_bits));
      rest = _mm256_or_si256(mantissa, sign);
    }
  }
}

/// The book in rows of 16 exponents: code | 16, or 0.
struct SplitZipRows256 {
  alignas(16) std::uint8_t row[16][16];
  std::uint8_t high[16];  // a row's exponents' upper half-byte, in place
  int count = 0;

  SplitZipRows256(const SplitZipTables& tables, int exponents) {
    for (int first = 0; first < exponents; first += 16) {
      bool any = false;
      for (int e = 0; e < 16; ++e) {
        const std::uint8_t code = tables.code[first + e];
        row[count][e] = code == splitzip_escape ? std::uint8_t{0} : static_cast<std::uint8_t>(code | 16);
        any = any || code != splitzip_escape;
      }
      high[count] = static_cast<std::uint8_t>(first);
      count += any ? 1 : 0;
    }
  }
};

/// A store, or one around the caches; `to` is then aligned to the vector.
template <bool Stream>
DECANT_TARGET_AVX2 inline void store_256(void* to, __m256i bytes) {
  if constexpr (Stream) {
    _mm256_stream_si256(static_cast<__m256i*>(to), bytes);
  } else {
    _mm256_storeu_si256(static_cast<__m256i*>(to), bytes);
  }
}

/// Writes one plane of 32 fields: 4 * Width bytes.
template <int Width, int Shift, bool Stream>
DECANT_TARGET_AVX2 inline void store_plane_256(__m256i fields, std::byte* plane) {
  if constexpr (Shift > 0) fields = _mm256_srli_epi16(fields, Shift);
  if constexpr (Width == 8) {
    store_256<Stream>(plane, fields);
  } else if constexpr (Width == 1) {
    // The first of eight elements is a byte's highest bit.
    const __m256i reverse = _mm256_broadcastsi128_si256(_mm_set_epi32(0x08090a0b, 0x0c0d0e0f, 0x00010203, 0x04050607));
    const int bits = _mm256_movemask_epi8(_mm256_slli_epi16(_mm256_shuffle_epi8(fields, reverse), 7));
    if constexpr (Stream) {
      _mm_stream_si32(reinterpret_cast<int*>(plane), bits);
    } else {
      __builtin_memcpy(plane, &bits, 4);
    }
  } else {
    fields = _mm256_and_si256(fields, _mm256_set1_epi8((1 << Width) - 1));
    const __m256i pairs = _mm256_maddubs_epi16(fields, _mm256_set1_epi16(0x0100 | 1 << Width));
    const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
    if constexpr (Width == 4) {
      if constexpr (Stream) {
        _mm_stream_si128(reinterpret_cast<__m128i*>(plane), bytes);
      } else {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(plane), bytes);
      }
    } else {
      const __m128i fours = _mm_maddubs_epi16(bytes, _mm_set1_epi16(0x0110));
      const long long packed = _mm_cvtsi128_si64(_mm_packus_epi16(fours, fours));
      if constexpr (Stream) {
        _mm_stream_si64(reinterpret_cast<long long*>(plane), packed);
      } else {
        __builtin_memcpy(plane, &packed, 8);
      }
    }
  }
}

/// Reads one plane of 32 fields: 4 * Width bytes.
template <int Width>
DECANT_TARGET_AVX2 inline __m256i load_plane_256(const std::byte* plane) {
  if constexpr (Width == 8) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(plane));
  } else if constexpr (Width == 4) {
    const __m256i spread = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(plane)));
    return _mm256_and_si256(_mm256_or_si256(_mm256_srli_epi16(spread, 4), _mm256_slli_epi16(spread, 8)),
                            _mm256_set1_epi8(15));
  } else if constexpr (Width == 2) {
    const __m256i spread = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(plane)));
    const __m256i low = _mm256_or_si256(_mm256_srli_epi32(spread, 6), _mm256_slli_epi32(spread, 4));
    const __m256i high = _mm256_or_si256(_mm256_slli_epi32(spread, 14), _mm256_slli_epi32(spread, 24));
    return _mm256_and_si256(_mm256_or_si256(low, high), _mm256_set1_epi8(3));
  } else {
    int bits;
    __builtin_memcpy(&bits, plane, 4);
    // Each byte to the eight elements of its bits, of which each keeps its own.
    const __m256i eight_times = _mm256_set_epi64x(0x0303030303030303, 0x0202020202020202, 0x0101010101010101, 0);
    const __m256i own = _mm256_set1_epi64x(0x0102040810204080);
    const __m256i spread = _mm256_shuffle_epi8(_mm256_set1_epi32(bits), eight_times);
    return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(spread, own), own), _mm256_set1_epi8(1));
  }
}

template <int Width, bool Stream>
DECANT_TARGET_AVX2 inline void store_field_256(__m256i fields, std::byte* const* planes, index_t i) {
  constexpr int first = plane_width(Width, 0);
  constexpr int second = plane_width(Width, 1);
  store_plane_256<first, plane_shift(Width, 0), Stream>(fields, planes[0] + i / 8 * first);
  if constexpr (second != 0) store_plane_256<second, 0, Stream>(fields, planes[1] + i / 8 * second);
}

template <int Width>
DECANT_TARGET_AVX2 inline __m256i load_field_256(const std::byte* const* planes, index_t i) {
  const __m256i first = load_plane_256<plane_width(Width, 0)>(planes[0] + i / 8 * plane_width(Width, 0));
  if constexpr (plane_count(Width) == 1) {
    return first;
  } else {
    const __m256i second = load_plane_256<plane_width(Width, 1)>(planes[1] + i / 8 * plane_width(Width, 1));
    return _mm256_or_si256(_mm256_slli_epi16(first, plane_shift(Width, 0)), second);
  }
}

/// Codes of 32 exponents, and of which there is one; others have code 0. A window's codes are differences.
template <class F>
DECANT_TARGET_AVX2 inline __m256i look_up_256(const SplitZipTables& tables, const SplitZipRows256& rows,
                                              __m256i exponent, __m256i& code) {
  const __m256i last = _mm256_set1_epi8((1 << F::code_bits) - 1);
  if (tables.window) {
    const __m256i base = _mm256_set1_epi8(static_cast<char>(tables.exponent[0]));
    const __m256i difference = _mm256_sub_epi8(exponent, base);
    const __m256i known = _mm256_cmpeq_epi8(_mm256_min_epu8(difference, last), difference);
    code = _mm256_and_si256(difference, known);
    return known;
  }
  __m256i found = _mm256_setzero_si256();
  for (int r = 0; r < rows.count; ++r) {
    // Of exponents in this row 0x70 | the index in it, of others 0x80 and more, which the shuffle makes 0.
    const __m256i high = _mm256_set1_epi8(static_cast<char>(rows.high[r]));
    const __m256i index = _mm256_adds_epu8(_mm256_xor_si256(exponent, high), _mm256_set1_epi8(0x70));
    const __m256i row = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(rows.row[r])));
    found = _mm256_or_si256(found, _mm256_shuffle_epi8(row, index));
  }
  code = _mm256_and_si256(found, last);
  return _mm256_cmpgt_epi8(found, last);  // 16 | code
}

/// See EncodeKernels::coded.
template <class F, bool Stream, class T>
DECANT_TARGET_AVX2 void encode_dense_avx2(const SplitZipTables& tables, const T* x, index_t n,
                                          const SplitZipPlanes<std::byte>& planes, SplitZipEscapes& escapes,
                                          index_t limit) {
  const SplitZipRows256 rows(tables, tables.window ? 0 : 1 << F::exp_bits);
  index_t i = 0;
  for (; i + 32 <= n; i += 32) {
    __m256i exponent, rest, code;
    split_256<F>(x + i, exponent, rest);
    const __m256i known = look_up_256<F>(tables, rows, exponent, code);
    store_field_256<F::code_bits, Stream>(code, planes.code, i);
    store_field_256<F::rest_bits, Stream>(rest, planes.rest, i);
    const std::uint32_t escaped = ~static_cast<std::uint32_t>(_mm256_movemask_epi8(known));
    if (escaped == 0) continue;
    list_escapes<F>(escaped, x, i, escapes);
    if (escapes.count > limit) return;
  }
  encode_portable<F>(tables, x, i, n, planes, escapes, limit);
}

/// The bits of 32 words but their exponents, from their rests; F::width 8.
template <class F>
DECANT_TARGET_AVX2 inline __m256i place_rest_256(__m256i rest) {
  const __m256i mantissa = F::sign_is_low ? _mm256_srli_epi16(rest, 1) : rest;
  const __m256i sign = _mm256_slli_epi16(rest, F::sign_is_low ? 7 : 7 - F::man_bits);
  return _mm256_or_si256(_mm256_and_si256(mantissa, _mm256_set1_epi8((1 << F::man_bits) - 1)),
                         _mm256_and_si256(sign, _mm256_set1_epi8(-128)));
}

/// Two vectors of 16 words, or one of 32, from exponents that are shifted for a word's low and high byte; of the 8-bit
/// formats low alone counts. Bits of other exponents that the shifts brought in are not looked at.
template <class F>
DECANT_TARGET_AVX2 inline void join_256(__m256i low, __m256i high, __m256i rest, __m256i* out) {
  if constexpr (F::width == 16) {
    // An exponent's lowest bit is the highest of the low byte, the others are the lower seven of the high byte.
    const __m256i sign = _mm256_set1_epi8(-128);
    low = _mm256_or_si256(_mm256_andnot_si256(sign, rest), _mm256_and_si256(sign, low));
    high = _mm256_or_si256(_mm256_and_si256(sign, rest), _mm256_andnot_si256(sign, high));
    const __m256i a = _mm256_unpacklo_epi8(low, high);
    const __m256i b = _mm256_unpackhi_epi8(low, high);
    out[0] = _mm256_permute2x128_si256(a, b, 0x20);
    out[1] = _mm256_permute2x128_si256(a, b, 0x31);
  } else {
    out[0] = _mm256_or_si256(low, place_rest_256<F>(rest));
  }
}

template <class F, bool Stream, class T>
DECANT_TARGET_AVX2 inline void store_words_256(const __m256i* words, T* y) {
  store_256<Stream>(y, words[0]);
  if constexpr (F::width == 16) store_256<Stream>(y + 16, words[1]);
}

/// See DecodeKernels::coded.
template <class F, bool Stream, class T>
DECANT_TARGET_AVX2 void decode_dense_avx2(const SplitZipTables& tables, const SplitZipPlanes<const std::byte>& planes,
                                          index_t n, const SplitZipList& list, T* y) {
  // A line that was streamed is expensive to change; a few escapes are put in their places before.
  if (Stream && list.count > n / 64) return decode_dense_avx2<F, false>(tables, planes, n, list, y);
  const __m256i exponents =
      _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(tables.exponent)));
  const __m256i low_table = _mm256_slli_epi16(exponents, F::width == 16 ? 7 : F::man_bits);
  const __m256i high_table = _mm256_srli_epi16(exponents, 1);
  index_t escape = 0;
  index_t escape_at = Stream && list.count > 0 ? list.position(0) : n;
  index_t i = 0;
  for (; i + 32 <= n; i += 32) {
    const __m256i code = load_field_256<F::code_bits>(planes.code, i);
    const __m256i rest = load_field_256<F::rest_bits>(planes.rest, i);
    __m256i words[2];
    join_256<F>(_mm256_shuffle_epi8(low_table, code), _mm256_shuffle_epi8(high_table, code), rest, words);
    if (Stream && escape_at < i + 32) {
      alignas(32) T block[32];
      store_words_256<F, false>(words, block);
      escape = list.patch<F>(escape, block, i, i + 32);
      escape_at = escape < list.count ? list.position(escape) : n;
      words[0] = _mm256_load_si256(reinterpret_cast<const __m256i*>(block));
      if constexpr (F::width == 16) words[1] = _mm256_load_si256(reinterpret_cast<const __m256i*>(block + 16));
    }
    store_words_256<F, Stream>(words, y + i);
  }
  decode_portable<F>(tables, planes, i, n, y);
  list.patch<F>(escape, y, 0, n);
}

/// See EncodeKernels::raw.
template <class F, class T>
DECANT_TARGET_AVX2 void encode_raw_avx2(const T* x, index_t n, const SplitZipPlanes<std::byte>& planes,
                                        std::byte* side) {
  std::byte* high[2];
  high_planes<F>(side, n, high);
  index_t i = 0;
  for (; i + 32 <= n; i += 32) {
    __m256i exponent, rest;
    split_256<F>(x + i, exponent, rest);
    store_field_256<F::code_bits, false>(exponent, planes.code, i);
    // A plane takes the bits it needs: those shifted in from the next byte lie above them.
    store_field_256<F::high_bits, false>(_mm256_srli_epi16(exponent, F::code_bits), high, i);
    store_field_256<F::rest_bits, false>(rest, planes.rest, i);
  }
  encode_raw_exponents<F>(x, i, n, planes, side);
}

/// See DecodeKernels::raw.
template <class F, class T>
DECANT_TARGET_AVX2 void decode_raw_avx2(const SplitZipPlanes<const std::byte>& planes, const std::byte* side, index_t n,
                                        T* y) {
  const std::byte* high[2];
  high_planes<F>(side, n, high);
  index_t i = 0;
  for (; i + 32 <= n; i += 32) {
    const __m256i low_bits = load_field_256<F::code_bits>(planes.code, i);
    const __m256i high_bits = load_field_256<F::high_bits>(high, i);
    const __m256i rest = load_field_256<F::rest_bits>(planes.rest, i);
    const __m256i exponent = _mm256_or_si256(low_bits, _mm256_slli_epi16(high_bits, F::code_bits));
    __m256i words[2];
    join_256<F>(_mm256_slli_epi16(exponent, F::width == 16 ? 7 : F::man_bits), _mm256_srli_epi16(exponent, 1), rest,
                words);
    store_words_256<F, false>(words, y + i);
  }
  decode_raw_exponents<F>(planes, side, i, n, y);
}

}  // namespace decant::codec::detail
#endif

#endif
