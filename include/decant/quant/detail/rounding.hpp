// decant: the two roundings to integers that published weight formats use. They differ at halves only, and bytes that
// agree with other libraries depend on it.
#ifndef DECANT_QUANT_DETAIL_ROUNDING_HPP
#define DECANT_QUANT_DETAIL_ROUNDING_HPP

#include <cmath>

#include "../../config.hpp"

namespace decant::quant::detail {

/// To the nearest, halves to even: GPTQ, AWQ, NVFP4, IF4, ggml's K types. Not nearbyint, a call in plain builds.
DECANT_HD inline float round_even(float x) {
  constexpr float shift = 12582912.0f;  // 1.5 * 2^23
  if (!(x > -4194304.0f && x < 4194304.0f)) return x > 0 || x < 0 ? std::nearbyint(x) : x;
  return (x + shift) - shift;
}

/// Halves away from zero: ggml's Q8_0.
DECANT_HD inline float round_away(float x) { return std::round(x); }

}  // namespace decant::quant::detail

#endif
