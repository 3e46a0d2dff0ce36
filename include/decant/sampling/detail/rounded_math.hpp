// decant: an exponential and a logarithm whose bits are the same on every instruction set and device: each product is
// rounded by itself (core/detail/rounded.hpp). Loops over them belong in DECANT_UNFUSED functions.
#ifndef DECANT_SAMPLING_DETAIL_ROUNDED_MATH_HPP
#define DECANT_SAMPLING_DETAIL_ROUNDED_MATH_HPP

#include <cstdint>

#include "../../core/bits.hpp"
#include "../../core/detail/rounded.hpp"

namespace decant::sampling::detail {

using ::decant::detail::rounded_product;

/// e^y for y in [-104, 89] within 2 ulp of normal results, as fast_exp.
DECANT_HD DECANT_INLINE float rounded_exp_inside(float y) {
  constexpr float shift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low mantissa bits
  const float shifted = rounded_product(y, 1.44269504f) + shift;
  const float n = shifted - shift;
  const float r = (y - rounded_product(n, 0.693359375f)) + rounded_product(n, 2.12194440e-4f);
  float p = 1.9875691500e-4f;
  p = rounded_product(p, r) + 1.3981999507e-3f;
  p = rounded_product(p, r) + 8.3334519073e-3f;
  p = rounded_product(p, r) + 4.1665795894e-2f;
  p = rounded_product(p, r) + 1.6666665459e-1f;
  p = rounded_product(p, r) + 5.0000001201e-1f;
  p = rounded_product(p, rounded_product(r, r)) + r + 1.0f;
  const std::int32_t whole = bit_cast<std::int32_t>(shifted) - bit_cast<std::int32_t>(shift);
  const std::int32_t half = whole >> 1;
  const float first = bit_cast<float>((half + 127) << 23);
  const float second = bit_cast<float>((whole - half + 127) << 23);
  return rounded_product(rounded_product(p, first), second);
}

/// e^x; 0 below -104, inf above 88.73; NaN stays NaN.
DECANT_HD DECANT_INLINE float rounded_exp(float x) {
  const float y = x < -104.0f ? -104.0f : x;
  return rounded_exp_inside(y > 89.0f ? 89.0f : y);
}

/// rounded_exp of 64 numbers in place. One loop for each step: g++ vectorises these, and not all of it at once.
DECANT_INLINE void rounded_exp_64(float* x) {
  for (int l = 0; l < 64; ++l) x[l] = x[l] < -104.0f ? -104.0f : x[l];
  for (int l = 0; l < 64; ++l) x[l] = x[l] > 89.0f ? 89.0f : x[l];
  for (int l = 0; l < 64; ++l) x[l] = rounded_exp_inside(x[l]);
}

/// log x for a finite normal x > 0, within 3 ulp, also close to 1.
DECANT_HD DECANT_INLINE double rounded_log(double x) {
  // x = 2^k m, m in [0.707, 1.414]; log m = 2 artanh(s), s = (m - 1) / (m + 1).
  const auto bits = bit_cast<std::uint64_t>(x);
  const std::uint64_t mantissa = bits & 0x000fffffffffffffu;
  const bool above = mantissa > 0x6a09e667f3bccu;  // sqrt 2
  const auto k = static_cast<std::int32_t>(bits >> 52) - 1023 + (above ? 1 : 0);
  const double m = bit_cast<double>(mantissa | (above ? 0x3fe0000000000000u : 0x3ff0000000000000u));
  const double f = m - 1;
  // 1 / (m + 1) by Newton's iteration: a line is within 1.6 %, four steps within 2 ulp. Cheaper than a division.
  const double d = m + 1;
  double inverse = 0.99257 - rounded_product(0.24263, d);
  for (int step = 0; step < 4; ++step) inverse += rounded_product(inverse, 1 - rounded_product(d, inverse));
  const double s = rounded_product(f, inverse);
  const double z = rounded_product(s, s);
  double p = 1.0 / 21;
  p = rounded_product(p, z) + 1.0 / 19;
  p = rounded_product(p, z) + 1.0 / 17;
  p = rounded_product(p, z) + 1.0 / 15;
  p = rounded_product(p, z) + 1.0 / 13;
  p = rounded_product(p, z) + 1.0 / 11;
  p = rounded_product(p, z) + 1.0 / 9;
  p = rounded_product(p, z) + 1.0 / 7;
  p = rounded_product(p, z) + 1.0 / 5;
  p = rounded_product(p, z) + 1.0 / 3;
  // 2 s = f - s f, so that the leading term is exact
  const double tail = rounded_product(s, rounded_product(2 * z, p) - f);
  constexpr double high = 6.93147180369123816490e-01;
  constexpr double low = 1.90821492927058770002e-10;
  return rounded_product(k, high) + (f + (tail + rounded_product(k, low)));
}

}  // namespace decant::sampling::detail

#endif
