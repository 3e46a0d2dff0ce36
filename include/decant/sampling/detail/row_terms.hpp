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
  /// Whether all of [first, last) is below the cutoff.
  DECANT_INLINE bool none(index_t first, index_t last) const {
    const float cutoff = row.cutoff;
    if (!(cutoff > -__builtin_huge_valf())) return false;
    std::int32_t any[64] = {};
    index_t i = first;
    for (; i + 64 <= last; i += 64) {
      for (int l = 0; l < 64; ++l) any[l] |= logits[i + l] >= cutoff ? 1 : 0;
    }
    for (int l = 0; i + l < last; ++l) any[l] |= logits[i + l] >= cutoff ? 1 : 0;
    std::int32_t all = 0;
    for (int l = 0; l < 64; ++l) all |= any[l];
    return all == 0;
  }
};

}  // namespace decant::sampling::detail

#endif
