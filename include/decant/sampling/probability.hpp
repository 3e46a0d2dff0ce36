// decant: the probability of a token by a LogitRow: one formula, the same bits on every context.
// Loops over it belong in DECANT_UNFUSED functions (core/row_sum.hpp).
#ifndef DECANT_SAMPLING_PROBABILITY_HPP
#define DECANT_SAMPLING_PROBABILITY_HPP

#include "detail/rounded_math.hpp"
#include "logit_row.hpp"

namespace decant::sampling {

/// p of a token with this logit, for rows whose `top` is -1. The product of two floats is exact in double, so that
/// neither a large logit nor a low temperature costs accuracy.
DECANT_HD DECANT_INLINE float probability(const LogitRow& row, float logit) {
  const double exponent =
      static_cast<double>(logit) * static_cast<double>(row.inverse_temperature) - row.log_sum_exp;
  const float p = detail::rounded_exp(static_cast<float>(exponent));
  return logit >= row.cutoff ? p : 0.0f;
}

/// The same for 64 tokens in a row.
DECANT_INLINE void probabilities_64(const LogitRow& row, const float* logits, float* p) {
  const double scale = static_cast<double>(row.inverse_temperature);
  const double log_sum_exp = row.log_sum_exp;
  const float cutoff = row.cutoff;
  std::int32_t kept = 0;
  for (int l = 0; l < 64; ++l) kept += logits[l] >= cutoff ? 1 : 0;
  if (kept == 0) {  // as a rule, in a filtered row
    for (int l = 0; l < 64; ++l) p[l] = 0;
    return;
  }
  float e[64];
  for (int l = 0; l < 64; ++l) e[l] = static_cast<float>(static_cast<double>(logits[l]) * scale - log_sum_exp);
  detail::rounded_exp_64(e);
  for (int l = 0; l < 64; ++l) p[l] = logits[l] >= cutoff ? e[l] : 0.0f;
}

/// p of `token`, whose logit this is, for any row.
DECANT_HD DECANT_INLINE float probability(const LogitRow& row, std::int32_t token, float logit) {
  if (row.top >= 0) return token == row.top ? 1.0f : 0.0f;
  return probability(row, logit);
}

}  // namespace decant::sampling

#endif
