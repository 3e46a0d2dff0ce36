// decant: the kernels of SANTA over weights, in plain C++, and the table through which a path is chosen. A weight is a
// float in [0, 2^36] that counts as the integer below it; all sums are of those integers, so every path gives the same.
#ifndef DECANT_ATTENTION_DETAIL_SANTA_PORTABLE_HPP
#define DECANT_ATTENTION_DETAIL_SANTA_PORTABLE_HPP

#include <cstdint>

#include "dense_portable.hpp"

namespace decant::attention::detail {

/// Keys per sum: what is looked through to find a threshold's key.
inline constexpr int santa_span = 16;
inline constexpr int santa_spans = dense_block / santa_span;

struct SantaKernels {
  /// w[64] *= factor; sums[4]: of each 16 weights.
  void (*scale)(float* w, float factor, std::int64_t* sums);
  /// Bits of the weights that are at least `limit`; sums[4]: of the others.
  std::uint64_t (*split)(const float* w, float limit, std::int64_t* sums);
  /// The first of w[16] with a running sum above `offset`, which is below the sum of all. Those from `limit` on count
  /// 0.
  int (*find)(const float* w, float limit, std::int64_t offset);
};

inline void santa_scale_portable(float* w, float factor, std::int64_t* sums) {
  for (int k = 0; k < santa_spans; ++k) {
    std::int64_t sum = 0;
    for (int j = k * santa_span; j < (k + 1) * santa_span; ++j) {
      w[j] *= factor;
      sum += static_cast<std::int64_t>(w[j]);
    }
    sums[k] = sum;
  }
}

inline std::uint64_t santa_split_portable(const float* w, float limit, std::int64_t* sums) {
  std::uint64_t bits = 0;
  for (int k = 0; k < santa_spans; ++k) {
    std::int64_t sum = 0;
    for (int j = k * santa_span; j < (k + 1) * santa_span; ++j) {
      bits |= std::uint64_t{w[j] >= limit} << j;
      sum += w[j] >= limit ? 0 : static_cast<std::int64_t>(w[j]);
    }
    sums[k] = sum;
  }
  return bits;
}

inline int santa_find_portable(const float* w, float limit, std::int64_t offset) {
  std::int64_t sum = 0;
  for (int j = 0;; ++j) {
    sum += w[j] >= limit ? 0 : static_cast<std::int64_t>(w[j]);
    if (sum > offset) return j;
  }
}

inline constexpr SantaKernels santa_portable{santa_scale_portable, santa_split_portable, santa_find_portable};

}  // namespace decant::attention::detail

#endif
