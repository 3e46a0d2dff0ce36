#pragma once
// Floating-point formats: decoding, and encoding under every rounding mode that PTX has.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace ptx {

enum class Rounding : std::uint8_t { kNearest, kNearestAway, kZero, kDown, kUp };

struct Format {
  int exponent_bits, mantissa_bits;
  std::uint32_t nan;       // the canonical NaN
  std::uint32_t infinity;  // the bits of +infinity; of the largest finite value + 1 where there is none
  std::uint32_t largest;   // finite
  bool has_infinity;

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  std::uint32_t sign_bit() const { return 1u << (exponent_bits + mantissa_bits); }
};

inline constexpr Format kFormatF16{5, 10, 0x7fff, 0x7c00, 0x7bff, true};
inline constexpr Format kFormatBF16{8, 7, 0x7fff, 0x7f80, 0x7f7f, true};
inline constexpr Format kFormatTF32{8, 10, 0x3ffff, 0x3fc00, 0x3fbff, true};  // of the 19 high bits of a word
inline constexpr Format kFormatF32{8, 23, 0x7fffffff, 0x7f800000, 0x7f7fffff, true};
inline constexpr Format kFormatE4M3{4, 3, 0x7f, 0x7f, 0x7e, false};
inline constexpr Format kFormatE5M2{5, 2, 0x7f, 0x7c, 0x7b, true};

// A real number as a double and whether, and to which side, it lies beside it: +1 where the number is larger in
// magnitude. With round_to_odd() the double alone is enough for one later rounding to a narrower format.
inline double round_to_odd(double value, double error) {
  if (error == 0 || !std::isfinite(value)) return value;
  auto bits = std::bit_cast<std::uint64_t>(value);
  if (bits & 1) return value;
  // The number lies between value and its neighbour on the error's side; of the two, the one with an odd mantissa.
  const bool away = (error > 0) == (value > 0);
  if (value == 0)
    return error > 0 ? std::numeric_limits<double>::denorm_min() : -std::numeric_limits<double>::denorm_min();
  return std::bit_cast<double>(away ? bits + 1 : bits - 1);
}

// a * b + c for operands of at most 24 bits each, exact but for a sticky last bit.
inline double exact_fma(double a, double b, double c) {
  const double product = a * b;
  const double sum = product + c;
  const double c_part = sum - product;
  const double error = (product - (sum - c_part)) + (c - c_part);
  return round_to_odd(sum, error);
}

// The bits of `value` in the format. Overflow gives infinity (or, saturating, the largest finite value), where the
// rounding mode does not already stop at the largest one. NaN gives the canonical NaN.
inline std::uint32_t encode(double value, const Format& format, Rounding rounding, bool saturate_finite = false) {
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(value);
  const bool negative = bits >> 63;
  const std::uint32_t sign = negative ? format.sign_bit() : 0;
  if (std::isnan(value)) return format.nan;
  if (std::isinf(value)) return sign | (saturate_finite || !format.has_infinity ? format.largest : format.infinity);
  if (value == 0) return sign;
  int exponent = 0;
  const double fraction = std::frexp(std::fabs(value), &exponent);  // in [0.5, 1)
  // The mantissa as an integer of 53 bits; value = mantissa * 2^(exponent - 53).
  const auto mantissa = static_cast<std::uint64_t>(std::ldexp(fraction, 53));
  const int smallest = 1 - format.bias();                                    // exponent of the smallest normal number
  const int unit = std::max(exponent - 1, smallest) - format.mantissa_bits;  // exponent of the result's last bit
  const int drop = unit - (exponent - 53);                                   // bits of the mantissa below the last one
  std::uint64_t kept = 0, rest = 0, half = 0;
  if (drop > 60) {
    kept = 0;
    rest = 1;
    half = 2;
  } else {
    kept = mantissa >> drop;
    rest = mantissa & ((std::uint64_t{1} << drop) - 1);
    half = std::uint64_t{1} << (drop - 1);
  }
  bool up = false;
  switch (rounding) {
    case Rounding::kNearest:
      up = rest > half || (rest == half && (kept & 1));
      break;
    case Rounding::kNearestAway:
      up = rest >= half;
      break;
    case Rounding::kZero:
      break;
    case Rounding::kDown:
      up = negative && rest != 0;
      break;
    case Rounding::kUp:
      up = !negative && rest != 0;
      break;
  }
  if (up) ++kept;
  // kept has the hidden bit of a normal number, whose carry into the exponent is what the addition does.
  const std::uint64_t biased = static_cast<std::uint64_t>(unit + format.mantissa_bits + format.bias() - 1);
  const std::uint64_t magnitude = (biased << format.mantissa_bits) + kept;
  if (magnitude > format.largest) {
    const bool towards_zero = rounding == Rounding::kZero || (rounding == Rounding::kDown && !negative) ||
                              (rounding == Rounding::kUp && negative);
    const bool stop = saturate_finite || towards_zero || !format.has_infinity;
    return sign | (stop ? format.largest : format.infinity);
  }
  return sign | static_cast<std::uint32_t>(magnitude);
}

inline double decode(std::uint32_t bits, const Format& format) {
  const std::uint32_t magnitude = bits & (format.sign_bit() - 1);
  const double sign = (bits & format.sign_bit()) ? -1 : 1;
  if (format.has_infinity) {
    if (magnitude == format.infinity) return sign * std::numeric_limits<double>::infinity();
    if (magnitude > format.infinity) return std::numeric_limits<double>::quiet_NaN();
  } else if (magnitude == format.nan) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  const int exponent = static_cast<int>(magnitude >> format.mantissa_bits);
  const auto mantissa = static_cast<double>(magnitude & ((1u << format.mantissa_bits) - 1));
  const double hidden = exponent ? std::ldexp(1.0, format.mantissa_bits) : 0;
  return sign * std::ldexp(mantissa + hidden, std::max(exponent, 1) - format.bias() - format.mantissa_bits);
}

// ---- fast paths

// clang 14 has no _Float16 for this machine; the slow way gives the same.
#ifndef __clang__
inline float f16_to_float(std::uint16_t bits) { return static_cast<float>(std::bit_cast<_Float16>(bits)); }
#else
inline float f16_to_float(std::uint16_t bits) { return static_cast<float>(decode(bits, kFormatF16)); }
#endif
inline float bf16_to_float(std::uint16_t bits) {
  return std::bit_cast<float>(std::uint32_t{bits} << 16);
}

#ifndef __clang__
inline std::uint16_t float_to_f16(float value) {
  const auto bits = std::bit_cast<std::uint16_t>(static_cast<_Float16>(value));
  return value != value ? std::uint16_t{0x7fff} : bits;
}
#else
inline std::uint16_t float_to_f16(float value) {
  return static_cast<std::uint16_t>(encode(value, kFormatF16, Rounding::kNearest));
}
#endif

inline std::uint16_t float_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto rounded = static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  return value != value ? std::uint16_t{0x7fff} : rounded;
}

// Subnormal single-precision numbers become zeros of their sign.
inline float flush(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return std::bit_cast<float>((bits & 0x7f800000u) ? bits : bits & 0x80000000u);
}

// PTX's arithmetic on f32 gives this NaN alone.
inline float canonical(float value) {
  return value != value ? std::bit_cast<float>(0x7fffffffu) : value;
}

inline float saturate(float value) {
  return value > 0 ? (value < 1 ? value : 1.0f) : 0.0f;
}  // NaN gives +0
inline double saturate(double value) {
  return value > 0 ? (value < 1 ? value : 1.0) : 0.0;
}

}  // namespace ptx
