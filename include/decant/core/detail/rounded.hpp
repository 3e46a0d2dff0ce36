// decant: a product that is rounded by itself. Compilers for devices fuse a product with a following sum; where host
// and device must agree to the bit, the product goes through here.
#ifndef DECANT_CORE_DETAIL_ROUNDED_HPP
#define DECANT_CORE_DETAIL_ROUNDED_HPP

#include "../../config.hpp"

namespace decant::detail {

DECANT_HD inline double rounded_product(double a, double b) {
#if defined(__CUDA_ARCH__)
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}

DECANT_HD inline float rounded_product(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

/// sum + a b, rounded twice.
DECANT_HD inline double add_product(double sum, double a, double b) {
  return sum + rounded_product(a, b);
}

}  // namespace decant::detail

#endif
