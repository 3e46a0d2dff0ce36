// decant: SplitZip's kernels for AVX-512 with VBMI and VBMI2, 64 elements at a time: bytes are picked, looked up and
// unpacked by full permutations, escapes are compressed into their list.
#ifndef DECANT_CODEC_DETAIL_SPLITZIP_AVX512_HPP
#define DECANT_CODEC_DETAIL_SPLITZIP_AVX512_HPP

#include "splitzip_portable.hpp"

#if DECANT_X86
#include "../../core/detail/intrinsics.hpp"

namespace decant::codec::detail {

/// Constants of byte permutations, and tables of books.
struct alignas(64) SplitZipVectors512 {
  std::uint8_t even[64], odd[64];          // bytes of two vectors of words
  std::uint8_t zip_low[64], zip_high[64];  // bytes of two vectors by turns
  constexpr SplitZipVectors512() : even(), odd(), zip_low(), zip_high() {
    for (int i = 0; i < 64; ++i) {
      even[i] = static_cast<std::uint8_t>(2 * i);
      odd[i] = static_cast<std::uint8_t>(2 * i + 1);
      zip_low[i] = static_cast<std::uint8_t>(i / 2 + (i % 2) * 64);
      zip_high[i] = static_cast<std::uint8_t>(32 + i / 2 + (i % 2) * 64);
    }
  }
};
inline constexpr SplitZipVectors512 splitzip_vectors_512{};

/// The exponents and rests of 64 elements, a byte each.
template <class F, class T>
DECANT_TARGET_VBMI inline void split_512(const T* x, __m512i& exponent, __m512i& rest) {
  if constexpr (F::width == 16) {
    const __m512i even = _mm512_load_si512(splitzip_vectors_512.even);
    const __m512i odd = _mm512_load_si512(splitzip_vectors_512.odd);
    const __m512i a = _mm512_loadu_si512(x);
    const __m512i b = _mm512_loadu_si512(x + 32);
    exponent = _mm512_permutex2var_epi8(_mm512_slli_epi16(a, 1), odd, _mm512_slli_epi16(b, 1));
    // The mantissa's bits of the low byte, the sign of the high one.
    const __m512i mantissa = _mm512_set1_epi16(0x7f);
    const __m512i low_a = _mm512_ternarylogic_epi64(mantissa, a, _mm512_srli_epi16(a, 8), 0xca);
    const __m512i low_b = _mm512_ternarylogic_epi64(mantissa, b, _mm512_srli_epi16(b, 8), 0xca);
    rest = _mm512_permutex2var_epi8(low_a, even, low_b);
  } else {
    const __m512i bits = _mm512_loadu_si512(x);
    const __m512i mantissa = _mm512_and_si512(bits, _mm512_set1_epi8((1 << F::man_bits) - 1));
    exponent = _mm512_and_si512(_mm512_srli_epi16(bits, F::man_bits), _mm512_set1_epi8((1 << F::exp_bits) - 1));
    if constexpr (F::sign_is_low) {
      const __m512i sign = _mm512_and_si512(_mm512_srli_epi16(bits, 7), _mm512_set1_epi8(1));
      rest = _mm512_or_si512(_mm512_add_epi8(mantissa, mantissa), sign);
    } else {
      const __m512i sign =
          _mm512_and_si512(_mm512_srli_epi16(bits, 7 - F::man_bits), _mm512_set1_epi8(1 << F::man_bits));
      rest = _mm512_or_si512(mantissa, sign);
    }
  }
}

/// Codes, and which elements are escaped; those have code 0.
template <class F>
DECANT_TARGET_VBMI inline __mmask64 look_up_512(const SplitZipTables& tables, __m512i exponent, __m512i& code) {
  __m512i found;
  if constexpr (F::exp_bits == 8) {
    const __m512i t0 = _mm512_load_si512(tables.code);
    const __m512i t1 = _mm512_load_si512(tables.code + 64);
    const __m512i t2 = _mm512_load_si512(tables.code + 128);
    const __m512i t3 = _mm512_load_si512(tables.code + 192);
    found = _mm512_mask_mov_epi8(_mm512_permutex2var_epi8(t0, exponent, t1), _mm512_movepi8_mask(exponent),
                                 _mm512_permutex2var_epi8(t2, exponent, t3));
  } else {
    found = _mm512_permutexvar_epi8(exponent, _mm512_load_si512(tables.code));
  }
  const __mmask64 escaped = _mm512_movepi8_mask(found);
  code = _mm512_and_si512(found, _mm512_set1_epi8(15));
  return escaped;
}

/// A store, or one around the caches; `to` is then aligned to the vector.
template <bool Stream>
DECANT_TARGET_VBMI inline void store_512(void* to, __m512i bytes) {
  if constexpr (Stream) {
    _mm512_stream_si512(static_cast<__m512i*>(to), bytes);
  } else {
    _mm512_storeu_si512(to, bytes);
  }
}

/// Writes one plane of 64 fields: 8 * Width bytes.
template <int Width, int Shift, bool Stream>
DECANT_TARGET_VBMI inline void store_plane_512(__m512i fields, std::byte* plane) {
  if constexpr (Shift > 0) fields = _mm512_srli_epi16(fields, Shift);
  if constexpr (Width == 8) {
    store_512<Stream>(plane, fields);
  } else if constexpr (Width == 4) {
    fields = _mm512_and_si512(fields, _mm512_set1_epi8(15));
    const __m256i bytes = _mm512_cvtepi16_epi8(_mm512_maddubs_epi16(fields, _mm512_set1_epi16(0x0110)));
    if constexpr (Stream) {
      _mm256_stream_si256(reinterpret_cast<__m256i*>(plane), bytes);
    } else {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(plane), bytes);
    }
  } else if constexpr (Width == 2) {
    fields = _mm512_and_si512(fields, _mm512_set1_epi8(3));
    const __m512i pairs = _mm512_maddubs_epi16(fields, _mm512_set1_epi16(0x0104));
    const __m128i bytes = _mm512_cvtepi32_epi8(_mm512_madd_epi16(pairs, _mm512_set1_epi32(0x00010010)));
    if constexpr (Stream) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(plane), bytes);
    } else {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(plane), bytes);
    }
  } else {
    // The first of eight elements is a byte's highest bit.
    const __m512i reverse = _mm512_set4_epi32(0x08090a0b, 0x0c0d0e0f, 0x00010203, 0x04050607);
    const auto bits =
        static_cast<long long>(_mm512_test_epi8_mask(_mm512_shuffle_epi8(fields, reverse), _mm512_set1_epi8(1)));
    if constexpr (Stream) {
      _mm_stream_si64(reinterpret_cast<long long*>(plane), bits);
    } else {
      __builtin_memcpy(plane, &bits, 8);
    }
  }
}

/// Reads one plane of 64 fields: 8 * Width bytes. Clean: bits that are not the field's are 0; else, of half-bytes, any.
template <int Width, bool Clean>
DECANT_TARGET_VBMI inline __m512i load_plane_512(const std::byte* plane) {
  if constexpr (Width == 8) {
    return _mm512_loadu_si512(plane);
  } else if constexpr (Width == 4) {
    const __m512i spread = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(plane)));
    const __m512i fields = _mm512_multishift_epi64_epi8(_mm512_set1_epi64(0x3034202410140004), spread);
    return Clean ? _mm512_and_si512(fields, _mm512_set1_epi8(15)) : fields;
  } else if constexpr (Width == 2) {
    const __m512i spread = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(plane)));
    const __m512i fields = _mm512_multishift_epi64_epi8(_mm512_set1_epi64(0x2022242600020406), spread);
    return _mm512_and_si512(fields, _mm512_set1_epi8(3));
  } else {
    const __m512i spread = _mm512_cvtepu8_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(plane)));
    const __m512i fields = _mm512_multishift_epi64_epi8(_mm512_set1_epi64(0x0001020304050607), spread);
    return _mm512_and_si512(fields, _mm512_set1_epi8(1));
  }
}

template <int Width, bool Stream>
DECANT_TARGET_VBMI inline void store_field_512(__m512i fields, std::byte* const* planes, index_t i) {
  constexpr int first = plane_width(Width, 0);
  constexpr int second = plane_width(Width, 1);
  store_plane_512<first, plane_shift(Width, 0), Stream>(fields, planes[0] + i / 8 * first);
  if constexpr (second != 0) store_plane_512<second, 0, Stream>(fields, planes[1] + i / 8 * second);
}

template <int Width, bool Clean>
DECANT_TARGET_VBMI inline __m512i load_field_512(const std::byte* const* planes, index_t i) {
  constexpr int first = plane_width(Width, 0);
  constexpr int second = plane_width(Width, 1);
  constexpr bool two = second != 0;
  const __m512i high = load_plane_512 < first, Clean || two > (planes[0] + i / 8 * first);
  if constexpr (!two) {
    return high;
  } else {
    const __m512i low = load_plane_512<second, true>(planes[1] + i / 8 * second);
    return _mm512_or_si512(_mm512_slli_epi16(high, plane_shift(Width, 0)), low);
  }
}

/// See EncodeKernels::coded. Escapes are listed after the planes are written: whether there are any in a vector is not
/// foreseen, and a branch on it would wait for the elements, and all behind it with it.
template <class F, bool Stream, class T>
DECANT_TARGET_VBMI void encode_dense_vbmi(const SplitZipTables& tables, const T* x, index_t n,
                                          const SplitZipPlanes<std::byte>& planes, SplitZipEscapes& escapes,
                                          index_t limit) {
  constexpr index_t stretch = 64 * 64;          // as many elements as a mask of masks has bits for
  const SplitZipPlanes<std::byte> to = planes;  // not in memory, which bytes are written to
  index_t i = 0;
  while (i + 64 <= n && escapes.count <= limit) {
    const index_t begin = i;
    const index_t end = n - begin < stretch ? n / 64 * 64 : begin + stretch;
    std::uint64_t masks[64];
    std::uint64_t any = 0;
    for (; i < end; i += 64) {
      __m512i exponent, rest, code;
      split_512<F>(x + i, exponent, rest);
      const std::uint64_t escaped = look_up_512<F>(tables, exponent, code);
      store_field_512<F::code_bits, Stream>(code, to.code, i);
      store_field_512<F::rest_bits, Stream>(rest, to.rest, i);
      masks[(i - begin) / 64] = escaped;
      any |= std::uint64_t{escaped != 0} << (i - begin) / 64;
    }
    for (; any != 0 && escapes.count <= limit; any &= any - 1) {
      const index_t v = __builtin_ctzll(any);
      list_escapes<F>(masks[v], x, begin + 64 * v, escapes);
    }
  }
  encode_portable<F>(tables, x, i, n, planes, escapes, limit);
}

/// A chunk's list of escapes as vectors want it: a mask for each 64 elements, and the exponents with room behind them.
struct SplitZipMasks512 {
  std::uint64_t masks[splitzip_max_chunk / 64 + 1];
  std::uint8_t exponents[SplitZipEscapes::most + 64];

  void fill(const SplitZipList& list, index_t n) {
    for (index_t v = 0; v <= n >> 6; ++v) masks[v] = 0;
    for (index_t k = 0; k < list.count; ++k) {
      const index_t position = list.position(k);
      masks[position >> 6] |= std::uint64_t{1} << (position & 63);
      exponents[k] = static_cast<std::uint8_t>(list.exponent(k));
    }
  }
};

/// The bits of 64 words but their exponents, from their rests; F::width 8.
template <class F>
DECANT_TARGET_VBMI inline __m512i place_rest_512(__m512i rest) {
  const __m512i mantissa = F::sign_is_low ? _mm512_srli_epi16(rest, 1) : rest;
  const __m512i sign = _mm512_slli_epi16(rest, F::sign_is_low ? 7 : 7 - F::man_bits);
  return _mm512_or_si512(_mm512_and_si512(mantissa, _mm512_set1_epi8((1 << F::man_bits) - 1)),
                         _mm512_and_si512(sign, _mm512_set1_epi8(-128)));
}

/// Stores 64 elements. low, high: their exponents, shifted for a word's low and high byte; of the 8-bit formats low
/// alone counts. Bits of other exponents that the shifts brought in are not looked at.
template <class F, bool Stream, class T>
DECANT_TARGET_VBMI inline void join_512(__m512i low, __m512i high, __m512i rest, T* y) {
  const __m512i sign = _mm512_set1_epi8(-128);
  if constexpr (F::width == 16) {
    // An exponent's lowest bit is the highest of the low byte, the others are the lower seven of the high byte.
    low = _mm512_ternarylogic_epi64(sign, low, rest, 0xca);
    high = _mm512_ternarylogic_epi64(sign, rest, high, 0xca);
    const __m512i zip_low = _mm512_load_si512(splitzip_vectors_512.zip_low);
    const __m512i zip_high = _mm512_load_si512(splitzip_vectors_512.zip_high);
    store_512<Stream>(y, _mm512_permutex2var_epi8(low, zip_low, high));
    store_512<Stream>(y + 32, _mm512_permutex2var_epi8(low, zip_high, high));
  } else {
    store_512<Stream>(y, _mm512_or_si512(low, place_rest_512<F>(rest)));
  }
}

/// How far an exponent is shifted left for the low byte; for the high one it is shifted right by 1.
template <class F>
inline constexpr int low_shift = F::width == 16 ? 7 : F::man_bits;

/// See DecodeKernels::coded.
template <class F, bool Stream, class T>
DECANT_TARGET_VBMI void decode_dense_vbmi(const SplitZipTables& tables, const SplitZipPlanes<const std::byte>& planes,
                                          index_t n, const SplitZipList& list, T* y) {
  // Four times the 16 exponents, as a permutation looks at six bits, of which the upper two may be any.
  const __m512i exponents = _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(tables.exponent)));
  const __m512i low_table = _mm512_slli_epi16(exponents, low_shift<F>);
  const __m512i high_table = _mm512_srli_epi16(exponents, 1);
  SplitZipMasks512 escapes;  // a line that was streamed is expensive to change; others are changed afterwards
  if constexpr (Stream) escapes.fill(list, n);
  index_t escape = 0;
  index_t i = 0;
  for (; i + 64 <= n; i += 64) {
    const __m512i code = load_field_512<F::code_bits, false>(planes.code, i);
    const __m512i rest = load_field_512<F::rest_bits, true>(planes.rest, i);
    __m512i low = _mm512_permutexvar_epi8(code, low_table);
    __m512i high = _mm512_permutexvar_epi8(code, high_table);
    if constexpr (Stream) {
      const __mmask64 escaped = escapes.masks[i / 64];
      if (escaped != 0) {
        const __m512i exponent = _mm512_maskz_expand_epi8(escaped, _mm512_loadu_si512(escapes.exponents + escape));
        escape += __builtin_popcountll(escaped);
        low = _mm512_mask_mov_epi8(low, escaped, _mm512_slli_epi16(exponent, low_shift<F>));
        high = _mm512_mask_mov_epi8(high, escaped, _mm512_srli_epi16(exponent, 1));
      }
    }
    join_512<F, Stream>(low, high, rest, y + i);
  }
  decode_portable<F>(tables, planes, i, n, y);
  list.patch<F>(escape, y, 0, n);
}

/// See EncodeKernels::raw.
template <class F, class T>
DECANT_TARGET_VBMI void encode_raw_vbmi(const T* x, index_t n, const SplitZipPlanes<std::byte>& planes,
                                        std::byte* side) {
  std::byte* high[2];
  high_planes<F>(side, n, high);
  index_t i = 0;
  for (; i + 64 <= n; i += 64) {
    __m512i exponent, rest;
    split_512<F>(x + i, exponent, rest);
    store_field_512<F::code_bits, false>(exponent, planes.code, i);
    // A plane takes the bits it needs: those shifted in from the next byte lie above them.
    store_field_512<F::high_bits, false>(_mm512_srli_epi16(exponent, F::code_bits), high, i);
    store_field_512<F::rest_bits, false>(rest, planes.rest, i);
  }
  encode_raw_exponents<F>(x, i, n, planes, side);
}

/// See DecodeKernels::raw.
template <class F, class T>
DECANT_TARGET_VBMI void decode_raw_vbmi(const SplitZipPlanes<const std::byte>& planes, const std::byte* side, index_t n,
                                        T* y) {
  const std::byte* planes_high[2];
  high_planes<F>(side, n, planes_high);
  index_t i = 0;
  for (; i + 64 <= n; i += 64) {
    const __m512i low_bits = load_field_512<F::code_bits, true>(planes.code, i);
    const __m512i high_bits = load_field_512<F::high_bits, true>(planes_high, i);
    const __m512i rest = load_field_512<F::rest_bits, true>(planes.rest, i);
    const __m512i exponent = _mm512_or_si512(low_bits, _mm512_slli_epi16(high_bits, F::code_bits));
    join_512<F, false>(_mm512_slli_epi16(exponent, low_shift<F>), _mm512_srli_epi16(exponent, 1), rest, y + i);
  }
  decode_raw_exponents<F>(planes, side, i, n, y);
}

}  // namespace decant::codec::detail
#endif

#endif
