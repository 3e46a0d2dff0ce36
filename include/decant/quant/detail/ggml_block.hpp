// decant: what ggml's blocks have in common, and the float arithmetic of ggml's reference encoders. Their bytes depend
// on every rounding: a product that a compiler fuses into the addition behind it (-march=native, AArch64, device code)
// would change codes, so such products pass through product(). Decoding needs no such care: a scale in fp16 times small
// integers is exact.
#ifndef DECANT_QUANT_DETAIL_GGML_BLOCK_HPP
#define DECANT_QUANT_DETAIL_GGML_BLOCK_HPP

#include <cstddef>
#include <cstdint>
#include <string>

#include "../../core/bits.hpp"
#include "../../core/bytes.hpp"
#include "../../core/dtype.hpp"
#include "../../core/error.hpp"
#include "../../core/view.hpp"
#include "magnitude.hpp"

namespace decant::quant::detail {

/// The members that all block formats share: a row is a sequence of blocks of Size weights in Bytes bytes, as in a
/// tensor of ggml; the matrix shares nothing; a block is a group.
template <int Size, int Bytes>
struct GgmlBlocks {
  static constexpr index_t block_size = Size;
  static constexpr index_t block_bytes = Bytes;
  struct Layer {};

  bool operator==(const GgmlBlocks&) const = default;

  DECANT_HD index_t group_size(index_t) const { return Size; }
  DECANT_HD constexpr index_t row_bytes(index_t cols) const { return cols / Size * Bytes; }
  DECANT_HD index_t layer_bytes() const { return 0; }
  Layer layer(const View<const float, 2>&) const { return {}; }
  DECANT_HD Layer load_layer(const std::byte*) const { return {}; }
  void store_layer(const Layer&, std::byte*) const {}
};

inline void require_blocks(index_t cols, index_t size, const char* where) {
  require(
      cols >= 1 && cols % size == 0, where, "cols", [&] { return "a multiple of " + std::to_string(size); }, cols);
}

/// a * b, rounded, whatever is added to it.
DECANT_HD inline float product(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#elif defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
  float p = a * b;
  asm("" : "+x"(p));
  return p;
#elif defined(__aarch64__) && (defined(__GNUC__) || defined(__clang__))
  float p = a * b;
  asm("" : "+w"(p));
  return p;
#else
  volatile float p = a * b;
  return p;
#endif
}

/// The K types' rounding to integers, halves to even; from |x| >= 2^22 on, or NaN, what its bits come to.
DECANT_HD inline int low_bits(float x) {
  return static_cast<int>(bit_cast<std::uint32_t>(x + 12582912.0f) & 0x007fffffu) - 0x00400000;
}

/// As low_bits, but between low and high for all finite x.
DECANT_HD inline int round_between(float x, int low, int high) {
  if (x > static_cast<float>(high) && x <= 3.402823466e+38f) return high;
  const int q = x < static_cast<float>(low) ? low : low_bits(x);
  return q < low ? low : q;
}

/// The integer part, between low and high; 0 for what no int can hold, as x86's conversion and a cut to bytes give.
DECANT_HD inline int truncate_between(float x, int low, int high) {
  if (!(x > -2147483648.0f && x < 2147483648.0f)) return 0;
  const int q = static_cast<int>(x);
  return q < low ? low : q > high ? high : q;
}

DECANT_HD inline float reciprocal(float d) {
  return d != 0 ? 1.0f / d : 0.0f;
}

DECANT_HD inline float load_half(const std::byte* p) {
  return fp16::from_bits(load_le<std::uint16_t>(p));
}
DECANT_HD inline void store_half(std::byte* p, float x) {
  store_le(p, fp16(x).bits);
}

/// Nibble i of 2 * half: the first half low, the second half high.
DECANT_HD inline std::uint8_t load_nibble(const std::byte* codes, index_t half, index_t i) {
  const unsigned both = static_cast<unsigned>(codes[i % half]);
  return static_cast<std::uint8_t>(i < half ? both & 15u : both >> 4);
}
DECANT_HD inline void store_nibble(std::uint8_t code, std::byte* codes, index_t half, index_t i) {
  const unsigned both = static_cast<unsigned>(codes[i % half]);
  codes[i % half] =
      static_cast<std::byte>(i < half ? (both & 0xf0u) | (code & 15u) : (both & 0x0fu) | (code & 15u) << 4);
}

/// Blocks of 32 that begin with a scale in fp16.
template <int Bytes>
struct GgmlScaled : GgmlBlocks<32, Bytes> {
  struct Group {
    float d;
    float inverse;  ///< what the codes' weights were divided by, inverted: of the fitted d rather than the stored one
  };
  bool operator==(const GgmlScaled&) const = default;

  DECANT_HD Group load_group(const typename GgmlScaled::Layer&, const std::byte* row, index_t, index_t j) const {
    const float d = load_half(row + j * Bytes);
    return {d, reciprocal(d)};
  }
  DECANT_HD void store_group(const typename GgmlScaled::Layer&, const Group& g, std::byte* row, index_t,
                             index_t j) const {
    store_half(row + j * Bytes, g.d);
  }
};

/// The same with nibbles behind it: elements 0 ... 15 low and 16 ... 31 high.
struct GgmlScaledNibbles : GgmlScaled<18> {
  bool operator==(const GgmlScaledNibbles&) const = default;
  DECANT_HD std::uint8_t load_code(const std::byte* row, index_t, index_t k) const {
    return load_nibble(row + k / block_size * block_bytes + 2, 16, k % block_size);
  }
  DECANT_HD void store_code(std::uint8_t code, std::byte* row, index_t, index_t k) const {
    store_nibble(code, row + k / block_size * block_bytes + 2, 16, k % block_size);
  }
};

}  // namespace decant::quant::detail

#endif
