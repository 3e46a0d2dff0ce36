// decant: the largest magnitude among weights, and how far a group lies from its weights: what formats fit scales by.
#ifndef DECANT_QUANT_DETAIL_MAGNITUDE_HPP
#define DECANT_QUANT_DETAIL_MAGNITUDE_HPP

#include <cstdint>

#include "../../core/view.hpp"

namespace decant::quant {

/// How the error of a group of weights is summed up where a format chooses between two encodings of it.
enum class BlockError : std::uint8_t {
  mse,      ///< sum of squares
  mae,      ///< sum of magnitudes
  max_abs,  ///< the largest magnitude
};

namespace detail {

/// 0 for n = 0.
DECANT_HD inline float largest_magnitude(const float* w, index_t n) {
  float top = 0;
  for (index_t i = 0; i < n; ++i) {
    const float a = w[i] < 0 ? -w[i] : w[i];
    top = a > top ? a : top;
  }
  return top;
}

DECANT_HD inline float largest_magnitude(const View<const float, 2>& w) {
  float top = 0;
  for (index_t r = 0; r < w.extent(0); ++r)
    for (index_t k = 0; k < w.extent(1); ++k) {
      const float a = w(r, k) < 0 ? -w(r, k) : w(r, k);
      top = a > top ? a : top;
    }
  return top;
}

/// Of n weights in their nearest codes; each error counts as often as its importance says (null: once).
template <class F>
DECANT_HD double group_error(const F& format, BlockError by, const typename F::Layer& layer,
                             const typename F::Group& group, const float* w, const float* importance, index_t n) {
  double total = 0;
  for (index_t i = 0; i < n; ++i) {
    const double d = static_cast<double>(format.value(layer, group, i, format.nearest(layer, group, i, w[i]))) - w[i];
    const double size = by == BlockError::mse ? d * d : d < 0 ? -d : d;
    const double e = importance != nullptr ? size * static_cast<double>(importance[i]) : size;
    total = by != BlockError::max_abs ? total + e : e > total ? e : total;
  }
  return total;
}

}  // namespace detail

}  // namespace decant::quant

#endif
