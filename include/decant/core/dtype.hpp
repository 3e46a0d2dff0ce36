// decant: the storage types fp16, bf16, fp8_e4m3 and fp8_e5m2. They hold bits and convert, exactly, to and from float;
// they do not calculate. Layout-identical to __half, __nv_bfloat16, __nv_fp8_e4m3 and __nv_fp8_e5m2.
// From float: round to nearest, ties to even. fp16 and bf16 overflow to infinity (IEEE 754); the fp8 types saturate to
// the largest finite value, as CUDA's constructors do (OCP 8-bit floating point, revision 1.0). NaN stays NaN.
#ifndef DECANT_CORE_DTYPE_HPP
#define DECANT_CORE_DTYPE_HPP

#include <concepts>
#include <cstdint>
#include <type_traits>

#include "bits.hpp"
#include "error.hpp"

namespace decant {

namespace detail {

/// float -> bits of a smaller IEEE-like type with ExpBits and ManBits, bias 2^(ExpBits-1)-1. Rounds to nearest even and
/// handles subnormals; overflow gives `overflow` (the bits without sign), NaN gives `nan`, infinity gives `infinity`.
template <int ExpBits, int ManBits>
DECANT_HD constexpr std::uint32_t narrow_float(float value, std::uint32_t max_finite, std::uint32_t overflow,
                                               std::uint32_t infinity, std::uint32_t nan) {
  constexpr int bias = (1 << (ExpBits - 1)) - 1;
  const std::uint32_t bits = bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 31) << (ExpBits + ManBits);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | nan;
  if (magnitude == 0x7f800000u) return sign | infinity;
  const int exponent = static_cast<int>(magnitude >> 23) - 127 + bias;  // in the target's biased scale
  std::uint32_t mantissa = magnitude & 0x7fffffu;
  int drop = 23 - ManBits;
  std::uint32_t base = 0;
  if (exponent >= 1) {
    base = static_cast<std::uint32_t>(exponent) << ManBits;
  } else {
    // Subnormal in the target: shift the significand, implicit bit included, down to the fixed exponent.
    drop += 1 - exponent;
    mantissa |= (magnitude >> 23) == 0 ? 0u : 0x800000u;
    if (drop > 24) return sign;  // below half of the smallest subnormal (ties at drop == 24 go to even = 0 or round up)
  }
  const std::uint32_t kept = mantissa >> drop;
  const std::uint32_t rest = mantissa & ((1u << drop) - 1u);
  const std::uint32_t half = 1u << (drop - 1);
  const std::uint32_t up = (rest > half || (rest == half && (kept & 1u) != 0)) ? 1u : 0u;
  const std::uint32_t result = base + kept + up;  // a carry out of the mantissa raises the exponent, as it should
  return sign | (result > max_finite ? overflow : result);
}

/// Bits of a smaller IEEE-like type -> float, exactly. `Ieee` says that the top exponent holds infinities and NaN.
template <int ExpBits, int ManBits, bool Ieee>
DECANT_HD constexpr float widen_float(std::uint32_t bits) {
  constexpr int bias = (1 << (ExpBits - 1)) - 1;
  constexpr std::uint32_t top = (1u << ExpBits) - 1u;
  const std::uint32_t sign = (bits >> (ExpBits + ManBits)) << 31;
  const std::uint32_t exponent = (bits >> ManBits) & top;
  const std::uint32_t mantissa = bits & ((1u << ManBits) - 1u);
  if (Ieee && exponent == top) {
    return bit_cast<float>(sign | 0x7f800000u | (mantissa << (23 - ManBits)));
  }
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) *
                            bit_cast<float>(static_cast<std::uint32_t>(127 + 1 - bias - ManBits) << 23);
    return bit_cast<float>(sign | bit_cast<std::uint32_t>(magnitude));
  }
  return bit_cast<float>(sign | (static_cast<std::uint32_t>(static_cast<int>(exponent) - bias + 127) << 23) |
                              (mantissa << (23 - ManBits)));
}

}  // namespace detail

/// IEEE 754 binary16.
struct fp16 {
  std::uint16_t bits;
  fp16() = default;
  DECANT_HD constexpr explicit fp16(float value)
      : bits(static_cast<std::uint16_t>(detail::narrow_float<5, 10>(value, 0x7bff, 0x7c00, 0x7c00, 0x7e00))) {}
  DECANT_HD constexpr operator float() const { return detail::widen_float<5, 10, true>(bits); }
  DECANT_HD static constexpr fp16 from_bits(std::uint16_t b) {
    fp16 x{};
    x.bits = b;
    return x;
  }
};

/// The upper half of an IEEE 754 binary32.
struct bf16 {
  std::uint16_t bits;
  bf16() = default;
  DECANT_HD constexpr explicit bf16(float value) : bits(round(value)) {}
  DECANT_HD constexpr operator float() const { return bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
  DECANT_HD static constexpr bf16 from_bits(std::uint16_t b) {
    bf16 x{};
    x.bits = b;
    return x;
  }

 private:
  DECANT_HD static constexpr std::uint16_t round(float value) {
    const std::uint32_t u = bit_cast<std::uint32_t>(value);
    if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((u >> 16) | 0x0040u);
    return static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
};

/// OCP E4M3: bias 7, no infinity, NaN is S.1111.111, largest finite 448.
struct fp8_e4m3 {
  std::uint8_t bits;
  fp8_e4m3() = default;
  DECANT_HD constexpr explicit fp8_e4m3(float value)
      : bits(static_cast<std::uint8_t>(detail::narrow_float<4, 3>(value, 0x7e, 0x7e, 0x7e, 0x7f))) {}
  DECANT_HD constexpr operator float() const {
    if ((bits & 0x7fu) != 0x7fu) return detail::widen_float<4, 3, false>(bits);
    return bit_cast<float>((static_cast<std::uint32_t>(bits & 0x80u) << 24) | 0x7fc00000u);
  }
  DECANT_HD static constexpr fp8_e4m3 from_bits(std::uint8_t b) {
    fp8_e4m3 x{};
    x.bits = b;
    return x;
  }
};

/// OCP E5M2: bias 15, IEEE-like infinities and NaN, largest finite 57344. Conversion from float saturates.
struct fp8_e5m2 {
  std::uint8_t bits;
  fp8_e5m2() = default;
  DECANT_HD constexpr explicit fp8_e5m2(float value)
      : bits(static_cast<std::uint8_t>(detail::narrow_float<5, 2>(value, 0x7b, 0x7b, 0x7b, 0x7f))) {}
  DECANT_HD constexpr operator float() const { return detail::widen_float<5, 2, true>(bits); }
  DECANT_HD static constexpr fp8_e5m2 from_bits(std::uint8_t b) {
    fp8_e5m2 x{};
    x.bits = b;
    return x;
  }
};

static_assert(sizeof(fp16) == 2 && sizeof(bf16) == 2 && sizeof(fp8_e4m3) == 1 && sizeof(fp8_e5m2) == 1);
static_assert(std::is_trivially_copyable_v<fp16> && std::is_trivially_copyable_v<bf16> &&
              std::is_trivially_copyable_v<fp8_e4m3> && std::is_trivially_copyable_v<fp8_e5m2>);

/// The element types that caches, weights and activations may have.
enum class DType : std::uint8_t { f32, f16, bf16, e4m3, e5m2 };

namespace detail {
template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct DTypeOf<fp16> {
  static constexpr DType value = DType::f16;
};
template <>
struct DTypeOf<bf16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct DTypeOf<fp8_e4m3> {
  static constexpr DType value = DType::e4m3;
};
template <>
struct DTypeOf<fp8_e5m2> {
  static constexpr DType value = DType::e5m2;
};
}  // namespace detail

/// A type that tensors are stored in: float or one of the types above.
template <class T>
concept Storage = requires { detail::DTypeOf<std::remove_cv_t<T>>::value; };

/// dtype_of<bf16> == DType::bf16.
template <Storage T>
inline constexpr DType dtype_of = detail::DTypeOf<std::remove_cv_t<T>>::value;

/// Bytes of one element.
DECANT_HD constexpr index_t size_of(DType t) {
  return t == DType::f32 ? 4 : (t == DType::f16 || t == DType::bf16) ? 2 : 1;
}

/// The usual short name, as in benchmark rows: "f32", "f16", "bf16", "e4m3", "e5m2".
constexpr const char* name(DType t) {
  constexpr const char* names[] = {"f32", "f16", "bf16", "e4m3", "e5m2"};
  return names[static_cast<int>(t)];
}

}  // namespace decant

#endif
