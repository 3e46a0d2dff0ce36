// decant: what a distribution says about how sure its model is: entropy in bits and the largest probability, the signals
// that controllers of the draft length look at. The small term inside the logarithm is SpecKV's (arXiv 2605.02888,
// published code), so that weights trained there see the same numbers.
#ifndef DECANT_SPECULATIVE_ROW_SIGNALS_HPP
#define DECANT_SPECULATIVE_ROW_SIGNALS_HPP

#include "../core/view.hpp"

namespace decant::speculative {

struct RowSignals {
  float entropy = 0;     ///< bits: -sum p log2(p + 1e-10)
  float confidence = 0;  ///< max p
  bool operator==(const RowSignals&) const = default;
};

/// Of a row of probabilities. NaN anywhere gives NaN entropy. One pass, a logarithm per probability that is not 0.
inline RowSignals row_signals(View<const float, 1> probabilities) {
  double sum = 0;
  float most = 0;
  for (index_t i = 0; i < probabilities.size(); ++i) {
    const float p = probabilities[i];
    if (p == 0) continue;
    most = p > most ? p : most;
    sum -= static_cast<double>(p) * __builtin_log2(static_cast<double>(p) + 1e-10);
  }
  return {static_cast<float>(sum), most};
}

}  // namespace decant::speculative

#endif
