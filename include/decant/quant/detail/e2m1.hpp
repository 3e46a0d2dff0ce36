// decant: E2M1, the 4-bit float of the OCP microscaling formats (revision 1.0): bit 3 the sign, magnitudes 0, 0.5, 1,
// 1.5, 2, 3, 4, 6.
#ifndef DECANT_QUANT_DETAIL_E2M1_HPP
#define DECANT_QUANT_DETAIL_E2M1_HPP

#include <cstdint>

#include "../../config.hpp"

namespace decant::quant::detail {

DECANT_HD constexpr float e2m1_value(std::uint8_t code) {
  const int exponent = code >> 1 & 3;
  const float mantissa = static_cast<float>(code & 1);
  const float magnitude =
      exponent == 0 ? 0.5f * mantissa : (1 + 0.5f * mantissa) * static_cast<float>(1 << exponent) / 2;
  return (code & 8) != 0 ? -magnitude : magnitude;
}

/// Halves to the even code; magnitudes above 6 give 6. Zero of either sign is code 0, a negative number that rounds to
/// zero is code 8.
DECANT_HD constexpr std::uint8_t e2m1_nearest(float x) {
  const float a = x < 0 ? -x : x;
  const int magnitude = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
  return static_cast<std::uint8_t>(magnitude + (x < 0 ? 8 : 0));
}

}  // namespace decant::quant::detail

#endif
