// decant: what symmetric grids lose to asymmetric ones: the gamma-squared law (SLQ: Helcig, Kurtic, Alistarh, arXiv
// 2605.02404, definition 3.1 and lemma 3.2). Both grids have n levels over weights in [low, high], the asymmetric one
// from end to end, the symmetric one from -max to max; errors are uniform in a step, so their mean squares are as the
// steps squared. Clean for IntGrid::minimum; a zero point adds up to half a step at one end.
#ifndef DECANT_QUANT_GAMMA_LAW_HPP
#define DECANT_QUANT_GAMMA_LAW_HPP

#include "../core/error.hpp"

namespace decant::quant {

/// gamma = 2 max(|low|, |high|) / (high - low), the ratio of the steps: 1 to 2 where 0 lies in the range, unbounded
/// otherwise. ArgumentError unless low < high.
inline double range_gamma(double low, double high) {
  require(low < high, "quant::range_gamma", "high", "a number above low", high);
  const double largest = -low > high ? -low : high;
  return 2 * largest / (high - low);
}

/// The mean squared error of a symmetric grid over that of an asymmetric one: gamma^2 where both have 2^bits levels,
/// ((2^bits - 1) / (2^bits - 2))^2 times as much [ours] where the symmetric one has a level less, as
/// IntGrid::symmetric.
inline double symmetric_error_ratio(double low, double high, int bits, bool level_less = true) {
  require(bits >= 2 && bits <= 8, "quant::symmetric_error_ratio", "bits", "2 to 8", bits);
  const double steps = static_cast<double>((1 << bits) - 1);
  const double ratio = range_gamma(low, high) * (level_less ? steps / (steps - 1) : 1);
  return ratio * ratio;
}

}  // namespace decant::quant

#endif
