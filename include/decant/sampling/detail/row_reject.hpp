// decant: the passes of rejection sampling (rejection.hpp) over one row on the CPU.
#ifndef DECANT_SAMPLING_DETAIL_ROW_REJECT_HPP
#define DECANT_SAMPLING_DETAIL_ROW_REJECT_HPP

#include "../../core/row_sum.hpp"
#include "../status.hpp"
#include "threshold.hpp"

namespace decant::sampling::detail {

/// The weights above a pivot.
struct AboveTerm {
  const float* weights;
  float low;

  DECANT_HD DECANT_INLINE float operator()(index_t i) const { return weights[i] > low ? weights[i] : 0.0f; }
};

/// How many weights are above a pivot, and how much they are together, in units of 2^-40.
struct Above {
  std::uint64_t mass = 0;
  std::uint64_t count = 0;
};

/// What a row has to satisfy at a pivot for tokens there to be kept.
struct RejectLimits {
  std::uint64_t count;  // all that is above must be fewer
  std::uint64_t mass;

  DECANT_HD bool hold(const Above& above) const { return above.count < count && above.mass < mass; }
};

DECANT_HD inline RejectLimits reject_limits(const Processing& p, index_t n, std::uint64_t total) {
  constexpr std::uint64_t all = ~std::uint64_t{0};
  return {p.top_k > 0 && p.top_k < n ? static_cast<std::uint64_t>(p.top_k) : all,
          p.top_p < 1 ? mass_target(p.top_p, total) : all};
}

/// The largest float below min_p * max, at least 0: weights above it are kept by min-p.
DECANT_HD inline float min_p_floor(float min_p, float largest) {
  const float least = rounded_product(min_p, largest);
  return least > 0 ? bit_cast<float>(bit_cast<std::uint32_t>(least) - 1) : 0.0f;
}

/// A round of the search: pivots at a drawn weight, and half way from there to `high`.
struct RejectState {
  float low;
  float high;

  DECANT_HD float middle(float drawn) const { return rounded_product(0.5f, drawn) + rounded_product(0.5f, high); }
  /// The token was not accepted: whether the limits hold at the middle decides where to go on.
  DECANT_HD void narrow(float drawn, float middle, bool holds) {
    low = holds ? drawn : middle;
    high = holds ? middle : high;
  }
};

DECANT_INLINE Above above_lanes(const float* w, index_t n, float pivot) {
  Above result;
  for (index_t first = 0; first < n; first += row_tile) {
    const index_t end = first + row_tile < n ? first + row_tile : n;
    double mass[64] = {};
    std::int32_t count[64] = {};
    index_t i = first;
    for (; i + 64 <= end; i += 64) {
      float x[64];
      for (int l = 0; l < 64; ++l) count[l] += w[i + l] > pivot ? 1 : 0;
      for (int l = 0; l < 64; ++l) x[l] = w[i + l] > pivot ? w[i + l] : 0.0f;
      for (int l = 0; l < 64; ++l) mass[l] += (static_cast<double>(x[l]) + mass_shift) - mass_shift;
    }
    for (int l = 0; i + l < end; ++l) {
      if (!(w[i + l] > pivot)) continue;
      ++count[l];
      mass[l] += (static_cast<double>(w[i + l]) + mass_shift) - mass_shift;
    }
    double sum = 0;
    for (int l = 0; l < 64; ++l) {
      sum += mass[l];  // exact
      result.count += static_cast<std::uint64_t>(count[l]);
    }
    result.mass += static_cast<std::uint64_t>(sum * 0x1p40);
  }
  return result;
}

/// The largest weight; -1: one is negative, NaN, or 2 or more.
DECANT_INLINE float check_lanes(const float* w, index_t n) {
  float most[64] = {};
  std::int32_t bad[64] = {};
  index_t i = 0;
  for (; i + 64 <= n; i += 64) {
    for (int l = 0; l < 64; ++l) most[l] = w[i + l] > most[l] ? w[i + l] : most[l];
    for (int l = 0; l < 64; ++l) bad[l] |= w[i + l] >= 0 ? 0 : 1;
  }
  for (int l = 0; i + l < n; ++l) {
    most[l] = w[i + l] > most[l] ? w[i + l] : most[l];
    bad[l] |= w[i + l] >= 0 ? 0 : 1;
  }
  for (int l = 1; l < 64; ++l) {
    most[0] = most[l] > most[0] ? most[l] : most[0];
    bad[0] |= bad[l];
  }
  return bad[0] != 0 || most[0] >= 2 ? -1.0f : most[0];
}

#if DECANT_X86
DECANT_TARGET_AVX2 inline Above above_avx2(const float* w, index_t n, float pivot) { return above_lanes(w, n, pivot); }
DECANT_TARGET_AVX512 inline Above above_avx512(const float* w, index_t n, float pivot) {
  return above_lanes(w, n, pivot);
}
#endif

inline Above above(Isa isa, const float* w, index_t n, float pivot) {
#if DECANT_X86
  if (isa == Isa::avx512) return above_avx512(w, n, pivot);
  if (isa == Isa::avx2) return above_avx2(w, n, pivot);
#else
  (void)isa;
#endif
  return above_lanes(w, n, pivot);
}

}  // namespace decant::sampling::detail

#endif
