// decant: the threshold below which a filter drops logits, without sorting. Tokens are counted, or their weights added
// up, in integers: weights relative to the row's largest in units of 2^-40. So sums do not depend on their order, and
// every instruction set and device finds the same threshold. A weight below 2^-41 counts as nothing.
#ifndef DECANT_SAMPLING_DETAIL_THRESHOLD_HPP
#define DECANT_SAMPLING_DETAIL_THRESHOLD_HPP

#include <cstdint>

#include "../../core/topk.hpp"
#include "../logit_row.hpp"
#include "../processing.hpp"
#include "rounded_math.hpp"

namespace decant::sampling::detail {

inline constexpr float lowest_logit = -__builtin_huge_valf();

/// Adding and taking it off again rounds a weight to units of 2^-40, to nearest even.
inline constexpr double mass_shift = 6144;

/// A weight in [0, 2) in units of 2^-40, rounded to nearest even.
DECANT_HD inline std::uint64_t mass_of(float weight) {
#if defined(__CUDA_ARCH__)
  return __float2ull_rn(weight * 0x1p40f);
#else
  const double rounded = (static_cast<double>(weight) + mass_shift) - mass_shift;
  return static_cast<std::uint64_t>(rounded * 0x1p40);
#endif
}

/// The logit with this key (score_key).
DECANT_HD constexpr float logit_of_key(std::uint32_t key) {
  return bit_cast<float>((key >> 31) != 0 ? key ^ 0x80000000u : ~key);
}

/// What filters need beside a Processing, computed on the host.
struct FilterNumbers {
  float inverse_temperature;
  double log_min_p;  // where min_p is not 0

  static FilterNumbers of(const Processing& p) {
    return {p.temperature > 0 ? 1.0f / p.temperature : 1.0f,
            p.min_p > 0 ? rounded_log(static_cast<double>(p.min_p)) : 0.0};
  }
};

/// How a row's weights follow from its logits: e^(logit scale - top), 1 at the largest.
struct RowScale {
  double scale;
  double top;

  DECANT_HD static RowScale of(const FilterNumbers& numbers, float largest) {
    const auto scale = static_cast<double>(numbers.inverse_temperature);
    return {scale, static_cast<double>(largest) * scale};
  }
  DECANT_HD DECANT_INLINE float exponent(float logit) const {
    return static_cast<float>(static_cast<double>(logit) * scale - top);
  }
  DECANT_HD DECANT_INLINE float weight(float logit) const { return rounded_exp(exponent(logit)); }
};

/// The least mass that is at least the share top_p of `total`; at least 1.
DECANT_HD inline std::uint64_t mass_target(float top_p, std::uint64_t total) {
  const double wanted = static_cast<double>(top_p) * static_cast<double>(total);
  if (!(wanted > 1)) return 1;
  const auto floor = static_cast<std::uint64_t>(wanted);
  return static_cast<double>(floor) < wanted ? floor + 1 : floor;
}

/// The logit `depth` below the largest after temperature, about.
DECANT_HD inline float logit_at_depth(const Processing& p, float largest, double depth) {
  return static_cast<float>(static_cast<double>(largest) - depth * static_cast<double>(p.temperature));
}

/// The lowest logit that min-p keeps.
DECANT_HD inline float min_p_cutoff(const Processing& p, const RowScale& row, float largest, double log_min_p) {
  const auto kept = [&](float logit) { return static_cast<double>(logit) * row.scale - row.top >= log_min_p; };
  std::uint32_t key = score_key(logit_at_depth(p, largest, -log_min_p));
  const std::uint32_t highest = score_key(largest);
  const std::uint32_t lowest = score_key(lowest_logit) + 1;
  key = key > highest ? highest : key < lowest ? lowest : key;
  while (key < highest && !kept(logit_of_key(key))) ++key;
  while (key > lowest && kept(logit_of_key(key - 1))) --key;
  return logit_of_key(key);
}

DECANT_HD DECANT_INLINE LogitRow finish_row(const FilterNumbers& numbers, const RowScale& row, float cutoff,
                                           std::uint64_t kept) {
  LogitRow result;
  result.inverse_temperature = numbers.inverse_temperature;
  result.log_sum_exp = row.top + rounded_log(static_cast<double>(kept) * 0x1p-40);
  result.cutoff = cutoff;
  return result;
}

/// All of p at one token.
DECANT_HD inline LogitRow one_hot(float largest, std::int32_t top) {
  return {1.0f, static_cast<double>(largest), largest, top};
}

/// A range of keys that is searched: its 256 parts of equal width.
struct KeyBracket {
  std::uint32_t low;
  std::uint32_t high;  // included

  DECANT_HD int shift() const {
    int s = 0;
    while (((high - low) >> s) > 255) ++s;
    return s;
  }
  /// Narrows to one part.
  DECANT_HD void narrow(std::uint32_t part, int shift) {
    low += part << shift;
    const std::uint32_t width = (std::uint32_t{1} << shift) - 1;
    high = high - low > width ? low + width : high;
  }
};

/// Goes down the parts' sums until they reach `target`, from which those passed are taken off. -1: they do not.
DECANT_HD inline int pick_part(const std::uint64_t* sums, std::uint64_t& target) {
  for (int part = 255; part >= 0; --part) {
    if (sums[part] >= target) return part;
    target -= sums[part];
  }
  return -1;
}

}  // namespace decant::sampling::detail

#endif
