// decant: the weights that draws add up (core/row_sum.hpp): of a row of probabilities, and of a LogitRow.
#ifndef DECANT_SAMPLING_DETAIL_ROW_TERMS_HPP
#define DECANT_SAMPLING_DETAIL_ROW_TERMS_HPP

#include "../../core/row_sum.hpp"
#include "../probability.hpp"

namespace decant::sampling::detail {

/// As they are; a negative, infinite or NaN one becomes NaN, and so does the sum.
struct WeightTerm {
  const float* weights;

  DECANT_HD DECANT_INLINE float operator()(index_t i) const {
    const float w = weights[i];
    return w >= 0 && w <= 3.40282347e38f ? w : __builtin_nanf("");
  }
};

struct LogitTerm {
  const float* logits;
  LogitRow row;

  DECANT_HD DECANT_INLINE float operator()(index_t i) const {
#if defined(__CUDA_ARCH__)
    if (!(logits[i] >= row.cutoff)) return 0;  // most tokens of a filtered row
#endif
    return probability(row, logits[i]);
  }
  DECANT_INLINE void block(index_t i, float* p) const { probabilities_64(row, logits + i, p); }
};

}  // namespace decant::sampling::detail

#endif
