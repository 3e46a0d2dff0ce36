// decant: FieldCodec, how SplitZip (arXiv 2605.01708) takes a float apart: the exponent, which a code of 3 or
// 4 bits replaces, and the rest (sign and mantissa), which is kept. Bit geometry alone, shared by CPU and CUDA. The
// paper gives the planes of BF16; those of the FP8 types are our reading: a field of w bits lies in planes of 8, 4, 2
// and 1 bits as the binary digits of w say, the widest with the field's highest bits, so that no element straddles two
// bytes.
#ifndef DECANT_CODEC_FIELD_CODEC_HPP
#define DECANT_CODEC_FIELD_CODEC_HPP

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "../core/dtype.hpp"

namespace decant::codec {

/// How many planes a field of `width` bits (0 to 8) has.
DECANT_HD constexpr int plane_count(int width) {
  int count = 0;
  for (int bit = 8; bit > 0; bit /= 2) count += (width & bit) != 0 ? 1 : 0;
  return count;
}

/// The bits per element of its plane i, the widest first.
DECANT_HD constexpr int plane_width(int width, int i) {
  for (int bit = 8; bit > 0; bit /= 2) {
    if ((width & bit) != 0 && i-- == 0) return bit;
  }
  return 0;
}

/// Where plane i's bits lie in the field: counted from its lowest bit.
DECANT_HD constexpr int plane_shift(int width, int i) {
  return width & (plane_width(width, i) - 1);
}

/// Bytes of a plane of n elements. Exact for every n below 2^60.
DECANT_HD constexpr index_t plane_bytes(int plane_width, index_t n) {
  return (n * plane_width + 7) / 8;
}

/// Bytes of all planes of a field, one after another without alignment.
DECANT_HD constexpr index_t field_bytes(int width, index_t n) {
  index_t bytes = 0;
  for (int i = 0; i < plane_count(width); ++i) bytes += plane_bytes(plane_width(width, i), n);
  return bytes;
}

/// Element i of a plane: the first element is in the high bits of a byte.
DECANT_HD constexpr unsigned load_from_plane(const std::byte* plane, int width, index_t i) {
  const index_t bit = i * width;
  return static_cast<unsigned>(plane[bit >> 3]) >> (8 - width - static_cast<int>(bit & 7)) & ((1u << width) - 1u);
}

/// T's sign, exponent and mantissa, in bits.
template <class T>
struct FloatBits;
template <>
struct FloatBits<bf16> {
  static constexpr int sign = 1, exponent = 8, mantissa = 7;
};
template <>
struct FloatBits<fp8_e5m2> {
  static constexpr int sign = 1, exponent = 5, mantissa = 2;
};
template <>
struct FloatBits<fp8_e4m3> {
  static constexpr int sign = 1, exponent = 4, mantissa = 3;
};

template <int SignBits, int ExpBits, int ManBits, int CodeBits>
struct FieldCodec {
  static_assert(SignBits == 1 && CodeBits > 0 && CodeBits < ExpBits);
  static_assert(SignBits + ExpBits + ManBits == 8 || SignBits + ExpBits + ManBits == 16);

  static constexpr int width = SignBits + ExpBits + ManBits;
  static constexpr int exp_bits = ExpBits;
  static constexpr int man_bits = ManBits;
  static constexpr int code_bits = CodeBits;
  static constexpr int rest_bits = SignBits + ManBits;
  /// What of an exponent does not fit into a code: kept aside for the chunks that are not worth coding.
  static constexpr int high_bits = ExpBits - CodeBits;
  /// The rest is sign, mantissa; but mantissa, sign where that gives the sign a plane of its own.
  static constexpr bool sign_is_low = (rest_bits & (rest_bits - 1)) != 0;

  using Word = std::conditional_t<width == 8, std::uint8_t, std::uint16_t>;

  DECANT_HD static constexpr unsigned exponent(unsigned bits) { return bits >> ManBits & ((1u << ExpBits) - 1u); }

  DECANT_HD static constexpr unsigned rest(unsigned bits) {
    const unsigned sign = bits >> (width - 1);
    const unsigned mantissa = bits & ((1u << ManBits) - 1u);
    return sign_is_low ? mantissa << 1 | sign : sign << ManBits | mantissa;
  }

  DECANT_HD static constexpr Word join(unsigned exponent, unsigned rest) {
    const unsigned sign = sign_is_low ? rest & 1u : rest >> ManBits;
    const unsigned mantissa = sign_is_low ? rest >> 1 : rest & ((1u << ManBits) - 1u);
    return static_cast<Word>(sign << (width - 1) | exponent << ManBits | mantissa);
  }

  /// The word with another exponent.
  DECANT_HD static constexpr Word with_exponent(unsigned bits, unsigned exponent) {
    return static_cast<Word>((bits & ~(((1u << ExpBits) - 1u) << ManBits)) | exponent << ManBits);
  }
};

/// The geometry of T with codes of CodeBits.
template <class T, int CodeBits>
using FieldCodecOf = FieldCodec<FloatBits<T>::sign, FloatBits<T>::exponent, FloatBits<T>::mantissa, CodeBits>;

/// An element type that SplitZip codes.
template <class T>
concept SplitZipElement = Storage<T> && requires {
  FloatBits<T>::exponent;
};

/// Whether T may have codes of this many bits; 0, which is no code at all, aside.
template <SplitZipElement T>
DECANT_HD constexpr bool codes_of(int code_bits) {
  return code_bits == 3 || (code_bits == 4 && FloatBits<T>::exponent > 4);
}

}  // namespace decant::codec

#endif
