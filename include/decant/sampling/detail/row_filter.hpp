// decant: the filters of one row on the CPU. Groups of 64 logits keep their maximum (group l of a tile of 1024:
// elements l, l + 16 ...), so that later steps look only where something can be: the k-th largest maximum is a lower
// bound of the k-th largest logit, and candidates above it are few. Top-p narrows the threshold by passes over the
// weights first.
#ifndef DECANT_SAMPLING_DETAIL_ROW_FILTER_HPP
#define DECANT_SAMPLING_DETAIL_ROW_FILTER_HPP

#include "../../core/detail/intrinsics.hpp"
#include "../../core/row_sum.hpp"
#include "../status.hpp"
#include "threshold.hpp"

namespace decant::sampling::detail {

inline constexpr index_t tile_groups = 16;

struct FilterScratch {
  float* maxima;          // [tiles, 16]; of no elements: -inf
  float* weights;         // [n]; null without top-p
  std::uint32_t* keys;    // [16 tiles], or [n]
  std::uint64_t* masses;  // [n]; null without top-p
};

/// The maxima of a row's groups, and whether a NaN or +inf is among the logits.
DECANT_INLINE bool scan_row_lanes(const float* x, index_t n, float* maxima) {
  std::int32_t bad[64] = {};
  for (index_t tile = 0; tile < row_tiles(n); ++tile) {
    const index_t end = (tile + 1) * row_tile < n ? (tile + 1) * row_tile : n;
    float most[64];
    for (int l = 0; l < 64; ++l) most[l] = lowest_logit;
    index_t i = tile * row_tile;
    for (; i + 64 <= end; i += 64) {
      for (int l = 0; l < 64; ++l) most[l] = x[i + l] > most[l] ? x[i + l] : most[l];
      for (int l = 0; l < 64; ++l) bad[l] |= x[i + l] <= 3.40282347e38f ? 0 : 1;
    }
    for (int l = 0; i + l < end; ++l) {
      most[l] = x[i + l] > most[l] ? x[i + l] : most[l];
      bad[l] |= x[i + l] <= 3.40282347e38f ? 0 : 1;
    }
    for (int l = 0; l < 32; ++l) most[l] = most[l] > most[l + 32] ? most[l] : most[l + 32];
    for (int l = 0; l < 16; ++l) most[l] = most[l] > most[l + 16] ? most[l] : most[l + 16];
    for (int l = 0; l < 16; ++l) maxima[tile * tile_groups + l] = most[l];
  }
  std::int32_t any = 0;
  for (int l = 0; l < 64; ++l) any |= bad[l];
  return any != 0;
}

DECANT_INLINE float max_of_groups(const float* maxima) {
  float most = maxima[0];
  for (int l = 1; l < tile_groups; ++l) most = maxima[l] > most ? maxima[l] : most;
  return most;
}

/// The masses of a tile's logits that are at least `cutoff`, in units of 1. With Store their weights go to `weights`,
/// with Load they come from there.
template <bool Store, bool Load>
DECANT_INLINE double tile_mass(const RowScale& row, const float* x, index_t n, float cutoff, float* weights) {
  double lane[64] = {};
  const double scale = row.scale;
  const double top = row.top;
  index_t i = 0;
  for (; i + 64 <= n; i += 64) {
    float w[64];
    if constexpr (Load) {
      for (int l = 0; l < 64; ++l) w[l] = weights[i + l];
    } else {
      for (int l = 0; l < 64; ++l) w[l] = static_cast<float>(static_cast<double>(x[i + l]) * scale - top);
      rounded_exp_64(w);
      if constexpr (Store) {
        for (int l = 0; l < 64; ++l) weights[i + l] = w[l];
      }
    }
    for (int l = 0; l < 64; ++l) w[l] = x[i + l] >= cutoff ? w[l] : 0.0f;
    for (int l = 0; l < 64; ++l) lane[l] += (static_cast<double>(w[l]) + mass_shift) - mass_shift;
  }
  for (int l = 0; i + l < n; ++l) {
    const float w = Load ? weights[i + l] : row.weight(x[i + l]);
    if constexpr (Store) weights[i + l] = w;
    if (x[i + l] >= cutoff) lane[l] += (static_cast<double>(w) + mass_shift) - mass_shift;
  }
  double sum = 0;
  for (int l = 0; l < 64; ++l) sum += lane[l];  // exact: at most 1024 with 40 bits behind the point
  return sum;
}

template <bool Store, bool Load>
DECANT_INLINE std::uint64_t row_mass_lanes(const RowScale& row, const float* x, index_t n, const float* maxima,
                                           float cutoff, float* weights) {
  std::uint64_t sum = 0;
  for (index_t tile = 0; tile < row_tiles(n); ++tile) {
    if (!(max_of_groups(maxima + tile * tile_groups) >= cutoff)) continue;
    const index_t first = tile * row_tile;
    const index_t count = n - first < row_tile ? n - first : row_tile;
    sum += static_cast<std::uint64_t>(
        tile_mass<Store, Load>(row, x + first, count, cutoff, weights ? weights + first : nullptr) * 0x1p40);
  }
  return sum;
}

inline bool scan_row_portable(const float* x, index_t n, float* maxima) { return scan_row_lanes(x, n, maxima); }
template <bool Store, bool Load>
DECANT_UNFUSED inline std::uint64_t row_mass_portable(const RowScale& row, const float* x, index_t n,
                                                      const float* maxima, float cutoff, float* weights) {
  return row_mass_lanes<Store, Load>(row, x, n, maxima, cutoff, weights);
}
#if DECANT_X86
DECANT_TARGET_AVX2 inline bool scan_row_avx2(const float* x, index_t n, float* maxima) {
  return scan_row_lanes(x, n, maxima);
}
DECANT_TARGET_AVX512 inline bool scan_row_avx512(const float* x, index_t n, float* maxima) {
  return scan_row_lanes(x, n, maxima);
}
template <bool Store, bool Load>
DECANT_TARGET_AVX2 DECANT_UNFUSED inline std::uint64_t row_mass_avx2(const RowScale& row, const float* x, index_t n,
                                                                     const float* maxima, float cutoff,
                                                                     float* weights) {
  return row_mass_lanes<Store, Load>(row, x, n, maxima, cutoff, weights);
}
template <bool Store, bool Load>
DECANT_TARGET_AVX512 DECANT_UNFUSED inline std::uint64_t row_mass_avx512(const RowScale& row, const float* x,
                                                                         index_t n, const float* maxima, float cutoff,
                                                                         float* weights) {
  return row_mass_lanes<Store, Load>(row, x, n, maxima, cutoff, weights);
}
#endif

inline bool scan_row(Isa isa, const float* x, index_t n, float* maxima) {
#if DECANT_X86
  if (isa == Isa::avx512) return scan_row_avx512(x, n, maxima);
  if (isa == Isa::avx2) return scan_row_avx2(x, n, maxima);
#else
  (void)isa;
#endif
  return scan_row_portable(x, n, maxima);
}

/// The mass of the logits that are at least `cutoff`.
template <bool Store, bool Load>
std::uint64_t row_mass(Isa isa, const RowScale& row, const float* x, index_t n, const float* maxima, float cutoff,
                       float* weights) {
#if DECANT_X86
  if (isa == Isa::avx512) return row_mass_avx512<Store, Load>(row, x, n, maxima, cutoff, weights);
  if (isa == Isa::avx2) return row_mass_avx2<Store, Load>(row, x, n, maxima, cutoff, weights);
#else
  (void)isa;
#endif
  return row_mass_portable<Store, Load>(row, x, n, maxima, cutoff, weights);
}

/// The largest key whose own and larger keys together have `target` or more: masses, or where they are null a count.
/// 0: all of them have less. Changes keys and masses.
inline std::uint32_t select_key(std::uint32_t* keys, std::uint64_t* masses, index_t n, std::uint64_t target) {
  KeyBracket bracket{0xffffffffu, 0};
  for (index_t i = 0; i < n; ++i) {
    bracket.low = keys[i] < bracket.low ? keys[i] : bracket.low;
    bracket.high = keys[i] > bracket.high ? keys[i] : bracket.high;
  }
  if (n == 0) return 0;
  for (;;) {
    std::uint64_t sums[256] = {};
    const int shift = bracket.shift();
    for (index_t i = 0; i < n; ++i) sums[(keys[i] - bracket.low) >> shift] += masses ? masses[i] : 1;
    const int part = pick_part(sums, target);
    if (part < 0) return 0;
    bracket.narrow(static_cast<std::uint32_t>(part), shift);
    if (shift == 0) return bracket.low;
    index_t left = 0;
    for (index_t i = 0; i < n; ++i) {
      const bool inside = keys[i] >= bracket.low && keys[i] <= bracket.high;
      keys[left] = keys[i];
      if (masses) masses[left] = masses[i];
      left += inside;
    }
    n = left;
  }
}

/// visit(i) for the elements of groups whose maximum is at least `low`.
template <class Visit>
DECANT_INLINE void visit_groups(index_t n, const float* maxima, float low, const Visit& visit) {
  for (index_t group = 0; group < row_tiles(n) * tile_groups; ++group) {
    if (!(maxima[group] >= low)) continue;
    const index_t tile = group / tile_groups * row_tile;
    const index_t end = tile + row_tile < n ? tile + row_tile : n;
    for (index_t i = tile + group % tile_groups; i < end; i += tile_groups) visit(i);
  }
}

inline float top_k_cutoff(const float* x, index_t n, index_t k, const FilterScratch& scratch) {
  const index_t groups = row_tiles(n) * tile_groups;
  float low = lowest_logit;
  if (k <= groups) {
    for (index_t g = 0; g < groups; ++g) scratch.keys[g] = score_key(scratch.maxima[g]);
    low = logit_of_key(select_key(scratch.keys, nullptr, groups, static_cast<std::uint64_t>(k)));
  }
  index_t count = 0;
  visit_groups(n, scratch.maxima, low, [&](index_t i) {
    scratch.keys[count] = score_key(x[i]);
    count += x[i] >= low;
  });
  const std::uint32_t key = select_key(scratch.keys, nullptr, count, static_cast<std::uint64_t>(k));
  return key == 0 ? lowest_logit : logit_of_key(key);
}

/// About the sum of the weights that are at least `least`, all of them in tiles with a logit of at least `cutoff`.
DECANT_INLINE double rough_mass_lanes(const float* weights, index_t n, const float* maxima, float cutoff,
                                      float least) {
  double sum = 0;
  for (index_t tile = 0; tile < row_tiles(n); ++tile) {
    if (!(max_of_groups(maxima + tile * tile_groups) >= cutoff)) continue;
    const index_t end = (tile + 1) * row_tile < n ? (tile + 1) * row_tile : n;
    float lane[64] = {};
    index_t i = tile * row_tile;
    for (; i + 64 <= end; i += 64) {
      for (int l = 0; l < 64; ++l) lane[l] += weights[i + l] >= least ? weights[i + l] : 0.0f;
    }
    for (int l = 0; i + l < end; ++l) lane[l] += weights[i + l] >= least ? weights[i + l] : 0.0f;
    for (int l = 0; l < 32; ++l) lane[l] += lane[l + 32];
    for (int l = 0; l < 16; ++l) lane[l] += lane[l + 16];
    for (int l = 0; l < 16; ++l) sum += static_cast<double>(lane[l]);
  }
  return sum;
}

/// Which of 64 logits are in [lower, upper).
struct BetweenPortable {
  DECANT_INLINE std::uint64_t operator()(const float* x, float lower, float upper) const {
    std::uint64_t mask = 0;
    for (int l = 0; l < 64; ++l) mask |= static_cast<std::uint64_t>(x[l] >= lower && x[l] < upper) << l;
    return mask;
  }
};

/// The keys and masses of the logits in [lower, upper); returns how many they are.
template <class Between>
DECANT_INLINE index_t collect_lanes(const float* x, index_t n, float lower, float upper, const FilterScratch& scratch,
                                    const Between& between) {
  index_t count = 0;
  for (index_t tile = 0; tile < row_tiles(n); ++tile) {
    if (!(max_of_groups(scratch.maxima + tile * tile_groups) >= lower)) continue;
    const index_t end = (tile + 1) * row_tile < n ? (tile + 1) * row_tile : n;
    for (index_t i = tile * row_tile; i < end; i += 64) {
      std::uint64_t mask = 0;
      if (i + 64 <= end) {
        mask = between(x + i, lower, upper);
      } else {
        for (int l = 0; i + l < end; ++l) {
          mask |= static_cast<std::uint64_t>(x[i + l] >= lower && x[i + l] < upper) << l;
        }
      }
      for (; mask != 0; mask &= mask - 1) {
        const index_t at = i + __builtin_ctzll(mask);
        scratch.keys[count] = score_key(x[at]);
        scratch.masses[count] = mass_of(scratch.weights[at]);
        ++count;
      }
    }
  }
  return count;
}

#if DECANT_X86
struct BetweenAvx2 {
  DECANT_TARGET_AVX2 std::uint64_t operator()(const float* x, float lower, float upper) const {
    std::uint64_t mask = 0;
    for (int l = 0; l < 64; l += 8) {
      const __m256 v = _mm256_loadu_ps(x + l);
      const __m256 in = _mm256_and_ps(_mm256_cmp_ps(v, _mm256_set1_ps(lower), _CMP_GE_OQ),
                                      _mm256_cmp_ps(v, _mm256_set1_ps(upper), _CMP_LT_OQ));
      mask |= static_cast<std::uint64_t>(static_cast<std::uint32_t>(_mm256_movemask_ps(in))) << l;
    }
    return mask;
  }
};
struct BetweenAvx512 {
  DECANT_TARGET_AVX512 std::uint64_t operator()(const float* x, float lower, float upper) const {
    std::uint64_t mask = 0;
    for (int l = 0; l < 64; l += 16) {
      const __m512 v = _mm512_loadu_ps(x + l);
      const __mmask16 above = _mm512_cmp_ps_mask(v, _mm512_set1_ps(lower), _CMP_GE_OQ);
      const __mmask16 in = _mm512_mask_cmp_ps_mask(above, v, _mm512_set1_ps(upper), _CMP_LT_OQ);
      mask |= static_cast<std::uint64_t>(in) << l;
    }
    return mask;
  }
};
DECANT_TARGET_AVX2 inline index_t collect_avx2(const float* x, index_t n, float lower, float upper,
                                               const FilterScratch& scratch) {
  return collect_lanes(x, n, lower, upper, scratch, BetweenAvx2{});
}
DECANT_TARGET_AVX512 inline index_t collect_avx512(const float* x, index_t n, float lower, float upper,
                                                   const FilterScratch& scratch) {
  return collect_lanes(x, n, lower, upper, scratch, BetweenAvx512{});
}
DECANT_TARGET_AVX2 inline double rough_mass_avx2(const float* weights, index_t n, const float* maxima,
                                                 float cutoff, float least) {
  return rough_mass_lanes(weights, n, maxima, cutoff, least);
}
DECANT_TARGET_AVX512 inline double rough_mass_avx512(const float* weights, index_t n, const float* maxima,
                                                     float cutoff, float least) {
  return rough_mass_lanes(weights, n, maxima, cutoff, least);
}
#endif

inline index_t collect(Isa isa, const float* x, index_t n, float lower, float upper, const FilterScratch& scratch) {
#if DECANT_X86
  if (isa == Isa::avx512) return collect_avx512(x, n, lower, upper, scratch);
  if (isa == Isa::avx2) return collect_avx2(x, n, lower, upper, scratch);
#else
  (void)isa;
#endif
  return collect_lanes(x, n, lower, upper, scratch, BetweenPortable{});
}

inline double rough_mass(Isa isa, const float* weights, index_t n, const float* maxima, float cutoff, float least) {
#if DECANT_X86
  if (isa == Isa::avx512) return rough_mass_avx512(weights, n, maxima, cutoff, least);
  if (isa == Isa::avx2) return rough_mass_avx2(weights, n, maxima, cutoff, least);
#else
  (void)isa;
#endif
  return rough_mass_lanes(weights, n, maxima, cutoff, least);
}

/// A range [lower, upper) of logits that should hold the threshold, and do if sums are not too rough.
struct LogitBracket {
  float lower;
  float upper;
};

/// `depth` below the largest logit: first doubled, then bisected.
inline LogitBracket rough_bracket(Isa isa, const Processing& p, double target, index_t n, float largest, float floor,
                                  const FilterScratch& scratch) {
  LogitBracket bracket{floor, __builtin_huge_valf()};
  double shallow = 0;
  double deep = 1;
  const auto narrow = [&](double depth) {
    const float pivot = logit_at_depth(p, largest, depth);
    if (!(pivot > bracket.lower && pivot < bracket.upper)) return false;
    const double mass = rough_mass(isa, scratch.weights, n, scratch.maxima, pivot,
                                   rounded_exp(static_cast<float>(-depth)));
    if (mass > target * (1 + 1e-5)) {
      bracket.lower = pivot;
      deep = depth;
    } else if (mass < target * (1 - 1e-5)) {
      bracket.upper = pivot;
      shallow = depth;
    } else {
      return false;
    }
    return true;
  };
  while (deep < 32 && bracket.lower == floor && narrow(deep)) deep *= bracket.lower == floor ? 2 : 1;
  for (int step = 0; step < 5 && narrow((shallow + deep) / 2); ++step) continue;
  return bracket;
}

/// Where the mass of larger logits reaches top_p of that of the logits that are at least `floor`. Below `known` it is
/// not looked for: -inf then. few: whether little is above `known`.
inline float top_p_cutoff(Isa isa, const Processing& p, const RowScale& row, const float* x, index_t n, float largest,
                          float floor, float known, bool few, const FilterScratch& scratch) {
  const std::uint64_t total = row_mass<true, false>(isa, row, x, n, scratch.maxima, floor, scratch.weights);
  const std::uint64_t target = mass_target(p.top_p, total);
  const auto mass = [&](float cutoff) {
    return row_mass<false, true>(isa, row, x, n, scratch.maxima, cutoff, scratch.weights);
  };
  LogitBracket bracket{known, __builtin_huge_valf()};
  std::uint64_t above = 0;
  if (!few) {
    bracket = rough_bracket(isa, p, static_cast<double>(target) * 0x1p-40, n, largest, known, scratch);
    if (bracket.upper < __builtin_huge_valf()) above = mass(bracket.upper);
    if (above >= target || (bracket.lower > known && mass(bracket.lower) < target)) {
      bracket = {known, __builtin_huge_valf()};
      above = 0;
    }
  }
  const index_t count = collect(isa, x, n, bracket.lower, bracket.upper, scratch);
  const std::uint32_t key = select_key(scratch.keys, scratch.masses, count, target - above);
  return key == 0 ? lowest_logit : logit_of_key(key);
}

/// The mass of the logits that are at least `cutoff`.
inline std::uint64_t kept_mass(Isa isa, const RowScale& row, const float* x, index_t n, const FilterScratch& scratch,
                               float cutoff) {
  const float* const maxima = scratch.maxima;
  const index_t groups = row_tiles(n) * tile_groups;
  index_t touched = 0;
  for (index_t g = 0; g < groups; ++g) touched += maxima[g] >= cutoff;
  if (touched * 8 > groups) {
    return scratch.weights ? row_mass<false, true>(isa, row, x, n, maxima, cutoff, scratch.weights)
                           : row_mass<false, false>(isa, row, x, n, maxima, cutoff, nullptr);
  }
  std::uint64_t sum = 0;
  visit_groups(n, maxima, cutoff, [&](index_t i) {
    if (x[i] >= cutoff) sum += mass_of(row.weight(x[i]));
  });
  return sum;
}

/// One row's LogitRow, unless its status is another than ok.
DECANT_UNFUSED inline RowStatus filter_row(Isa isa, const Processing& p, const FilterNumbers& numbers, const float* x,
                                           index_t n, const FilterScratch& scratch, LogitRow& out) {
  if (scan_row(isa, x, n, scratch.maxima)) return RowStatus::bad_row;
  float largest = lowest_logit;
  index_t tile = 0;  // the first with the largest logit
  for (index_t t = 0; t < row_tiles(n); ++t) {
    const float most = max_of_groups(scratch.maxima + t * tile_groups);
    if (most > largest) {
      largest = most;
      tile = t;
    }
  }
  if (!(largest > lowest_logit)) return RowStatus::empty_support;
  if (p.temperature == 0) {
    index_t top = tile * row_tile;
    while (x[top] != largest) ++top;
    out = one_hot(largest, static_cast<std::int32_t>(top));
    return RowStatus::ok;
  }
  const RowScale row = RowScale::of(numbers, largest);
  float cutoff = lowest_logit;
  const bool limited = p.top_k > 0 && p.top_k < n;
  if (limited) cutoff = top_k_cutoff(x, n, p.top_k, scratch);
  if (p.top_p < 1) {
    const float floor = p.order == Order::k_then_p ? cutoff : lowest_logit;
    const float nucleus =
        top_p_cutoff(isa, p, row, x, n, largest, floor, cutoff, limited && p.top_k <= n / 32, scratch);
    cutoff = nucleus > cutoff ? nucleus : cutoff;
  }
  if (p.min_p > 0) {
    const float least = min_p_cutoff(p, row, largest, numbers.log_min_p);
    cutoff = least > cutoff ? least : cutoff;
  }
  out = finish_row(numbers, row, cutoff, kept_mass(isa, row, x, n, scratch, cutoff));
  return RowStatus::ok;
}

}  // namespace decant::sampling::detail

#endif
