// decant: LogitRow, a processed distribution as numbers beside its logits, so that probabilities need not be in memory.
#ifndef DECANT_SAMPLING_LOGIT_ROW_HPP
#define DECANT_SAMPLING_LOGIT_ROW_HPP

#include <cstdint>

#include "../core/view.hpp"

namespace decant::sampling {

/// p(x) = exp(logit(x) * inverse_temperature - log_sum_exp) where logit(x) >= cutoff, else 0. filter() makes one.
/// Temperature 0: all of p is at `top`.
struct LogitRow {
  float inverse_temperature = 1;
  double log_sum_exp = 0;
  float cutoff = -__builtin_huge_valf();
  std::int32_t top = -1;  ///< -1: by the formula
};

/// A batch of them.
struct LogitRows {
  View<const float, 2> logits{};    ///< [rows, vocab], rows contiguous
  View<const LogitRow, 1> rows{};   ///< [rows]
};

}  // namespace decant::sampling

#endif
