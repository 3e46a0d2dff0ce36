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

DECANT_HD inline float magnitude(float x) { return x < 0 ? -x : x; }

/// 0 for n = 0.
DECANT_HD inline float largest_magnitude(const float* w, index_t n) {
  float top = 0;
  for (index_t i = 0; i < n; ++i) top = magnitude(w[i]) > top ? magnitude(w[i]) : top;
  return top;
}

DECANT_HD inline float largest_magnitude(const View<const float, 2>& w) {
  float top = 0;
  for (index_t r = 0; r < w.extent(0); ++r)
    for (index_t k = 0; k < w.extent(1); ++k) top = magnitude(w(r, k)) > top ? magnitude(w(r, k)) : top;
  return top;
}

/// The first of the n weights that has the largest magnitude, with its sign; 0 if all are 0.
DECANT_HD inline float signed_max(const float* w, index_t n) {
  float top = 0;
  for (index_t i = 0; i < n; ++i) top = magnitude(w[i]) > magnitude(top) ? w[i] : top;
  return top;
}

/// The smallest and the largest of n > 0 weights.
struct WeightRange {
  float low;
  float high;
};
DECANT_HD inline WeightRange range_of(const float* w, index_t n) {
  WeightRange range{w[0], w[0]};
  for (index_t i = 1; i < n; ++i) {
    range.low = w[i] < range.low ? w[i] : range.low;
    range.high = w[i] > range.high ? w[i] : range.high;
  }
  return range;
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
