// decant: the kernels of SANTA over weights, in plain C++, and the table through which a path is chosen. A weight is the
// product of an exponential and its block's factor, a float in [0, 2^36] that counts as the integer below it; all sums
// are of those integers, so every path gives the same.
#ifndef DECANT_ATTENTION_DETAIL_SANTA_PORTABLE_HPP
#define DECANT_ATTENTION_DETAIL_SANTA_PORTABLE_HPP

#include <cstdint>

#include "dense_portable.hpp"
#include "santa_draws.hpp"

namespace decant::attention::detail {

/// Keys per sum: what is looked through to find a threshold's key.
inline constexpr int santa_span = 8;
inline constexpr int santa_spans = dense_block / santa_span;
static_assert(santa_spans == 8);  // SantaStretch counts on it
/// Spans that are looked through together.
inline constexpr int santa_stretch = 32;

/// Some of a head's spans, at most santa_stretch.
struct SantaStretch {
  const float* e;              // exponentials of the head's first block
  index_t e_stride;            // from one of its blocks to the next
  const float* factors;        // of its first block, as far apart as the group is large
  index_t factor_stride;
  const std::int64_t* sums;    // of its first span
  index_t first;               // the first of these spans
  index_t count;
  float limit;                 // weights from here on count 0, in sums too

  DECANT_INLINE const float* exponentials(index_t span) const {
    return e + (span >> 3) * e_stride + (span & 7) * santa_span;
  }
  DECANT_INLINE float factor(index_t span) const { return factors[(span >> 3) * factor_stride]; }
};

struct SantaKernels {
  /// Turns the largest logits of blocks into what their exponentials are multiplied with; references[group + 15]: the
  /// largest of each head, over and over.
  void (*factors)(float* tops, index_t n, const float* references, index_t group);
  /// sums[santa_spans] of a block's weights.
  void (*weigh)(const float* e, float factor, std::int64_t* sums);
  /// Bits of the block's weights that are at least `limit`; sums of the others.
  std::uint64_t (*split)(const float* e, float factor, float limit, std::int64_t* sums);
  /// keys[i]: the first key, counted from the stretch's first, up to which more than targets[i] of weight lies. Targets
  /// ascend from at least 0 and are below the weight of all.
  void (*locate)(const SantaStretch& s, const std::int64_t* targets, index_t n, std::int32_t* keys);
};

inline void santa_factors_portable(float* tops, index_t n, const float* references, index_t group) {
  for (index_t i = 0; i < n; ++i) tops[i] = santa_factor(tops[i], references[i % group]);
}

inline void santa_weigh_portable(const float* e, float factor, std::int64_t* sums) {
  for (int k = 0; k < santa_spans; ++k) {
    sums[k] = 0;
    for (int j = k * santa_span; j < (k + 1) * santa_span; ++j) sums[k] += santa_weight(e[j], factor);
  }
}

inline std::uint64_t santa_split_portable(const float* e, float factor, float limit, std::int64_t* sums) {
  std::uint64_t bits = 0;
  for (int k = 0; k < santa_spans; ++k) {
    sums[k] = 0;
    for (int j = k * santa_span; j < (k + 1) * santa_span; ++j) {
      const float w = santa_product(e[j], factor);
      bits |= std::uint64_t{w >= limit} << j;
      sums[k] += w >= limit ? 0 : static_cast<std::int64_t>(w);
    }
  }
  return bits;
}

inline void santa_locate_portable(const SantaStretch& s, const std::int64_t* targets, index_t n, std::int32_t* keys) {
  index_t span = s.first;
  std::int64_t before = 0;
  for (index_t i = 0; i < n; ++i) {
    for (; targets[i] >= before + s.sums[span]; ++span) before += s.sums[span];
    const float* const e = s.exponentials(span);
    const float factor = s.factor(span);
    std::int64_t sum = before;
    int j = -1;
    do {
      const float w = santa_product(e[++j], factor);
      sum += w >= s.limit ? 0 : static_cast<std::int64_t>(w);
    } while (sum <= targets[i]);
    keys[i] = static_cast<std::int32_t>((span - s.first) * santa_span + j);
  }
}

inline constexpr SantaKernels santa_portable{santa_factors_portable, santa_weigh_portable, santa_split_portable,
                                             santa_locate_portable};

}  // namespace decant::attention::detail

#endif
