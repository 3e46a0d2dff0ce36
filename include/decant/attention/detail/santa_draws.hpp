// decant: the integer arithmetic of SANTA. A key's weight is an integer; S samples are S thresholds on the axis of the
// running sum of weights, and a key is drawn as often as thresholds fall on its piece of that axis. Everything here is
// exact in 64 bits, so the counts are the same on every processor and in any order of summation, given the weights.
// [ours]
#ifndef DECANT_ATTENTION_DETAIL_SANTA_DRAWS_HPP
#define DECANT_ATTENTION_DETAIL_SANTA_DRAWS_HPP

#include <cstdint>

#include "../../config.hpp"
#include "../../core/bits.hpp"
#include "../../core/view.hpp"

namespace decant::attention::detail {

/// Weights are exp(logit - the head's largest logit) in units of 2^-36, cut to integers.
inline constexpr float santa_one = 0x1p36f;
/// Fewer keys than this keep sums of weights below 2^62, fewer samples keep everything below within 64 bits.
inline constexpr index_t santa_most_keys = index_t{1} << 26;
inline constexpr index_t santa_most_samples = index_t{1} << 20;

/// Products and sums that no compiler for devices fuses: host and device agree to the bit.
DECANT_HD inline float santa_product(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
DECANT_HD inline float santa_sum(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}

/// exp for x <= 0 (or NaN), the same bits everywhere: what dense attention's portable path computes. Relative error at
/// most 1.3e-7; exactly 1 at 0 and 0 below -87.3.
DECANT_HD inline float santa_exp(float x) {
  if (x < -87.3f) return 0.0f;
  constexpr float round_magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, kept in the low bits
  const float shifted = santa_sum(santa_product(x, 1.44269502f), round_magic);
  const float n = santa_sum(shifted, -round_magic);
  const float r = santa_sum(santa_sum(x, -santa_product(n, 0.693359375f)), -santa_product(n, -2.12194440e-4f));
  float tail = santa_sum(0.008363173343241215f, santa_product(r, 0.001392617588862777f));
  tail = santa_sum(0.041666556149721146f, santa_product(r, tail));
  tail = santa_sum(0.166665777564048770f, santa_product(r, tail));
  tail = santa_sum(0.5f, santa_product(r, tail));
  const float e = santa_sum(1.0f, santa_sum(r, santa_product(santa_product(r, r), tail)));
  return santa_product(e, bit_cast<float>((bit_cast<std::uint32_t>(shifted) + 127u) << 23));
}

/// What exponentials that are counted from `top` are multiplied with to become weights.
DECANT_HD inline float santa_factor(float top, float reference) {
  if (top == -__builtin_huge_valf()) return 0.0f;
  return santa_product(santa_exp(santa_sum(top, -reference)), santa_one);
}

/// The integer that an exponential becomes.
DECANT_HD inline std::int64_t santa_weight(float exponential, float factor) {
  return static_cast<std::int64_t>(santa_product(exponential, factor));
}

/// The smallest float that is not below x, for 0 < x <= 2^62.
DECANT_HD inline float float_from(std::int64_t x) {
  const auto nearest = static_cast<float>(x);
  if (static_cast<std::int64_t>(nearest) >= x) return nearest;
  return bit_cast<float>(bit_cast<std::uint32_t>(nearest) + 1);
}

/// The thresholds floor((s + offset 2^-32) mass / samples) for s = 0, 1, 2 ..., one after another. The first is at
/// least 0 and the last of `samples` below mass, so exactly `samples` thresholds fall on the axis.
struct SantaGrid {
  std::int64_t at;  // the threshold; what has been cut from it is rest / unit
  std::uint64_t rest;
  std::int64_t step;
  std::uint64_t step_rest;
  std::uint64_t unit;

  DECANT_HD static constexpr SantaGrid first(std::uint32_t offset, std::int64_t mass, index_t samples) {
    const std::int64_t whole = mass / samples;
    const auto left = static_cast<std::uint64_t>(mass % samples);
    const auto high = static_cast<std::uint64_t>(whole) >> 32;
    const std::uint64_t low = (static_cast<std::uint64_t>(whole) & 0xffffffffu) * offset;
    const std::uint64_t unit = static_cast<std::uint64_t>(samples) << 32;
    const std::uint64_t rest = (low & 0xffffffffu) * static_cast<std::uint64_t>(samples) + offset * left;
    return {static_cast<std::int64_t>(offset * high + (low >> 32) + rest / unit), rest % unit, whole, left << 32, unit};
  }
  /// The threshold that `s` calls of next() lead to from the first, without them.
  DECANT_HD constexpr std::int64_t nth(index_t s) const {
    const auto samples = static_cast<index_t>(unit >> 32);
    const index_t left = s * static_cast<index_t>(step_rest >> 32);  // below 2^40
    const std::uint64_t more = rest + (static_cast<std::uint64_t>(left % samples) << 32);
    return at + s * step + left / samples + (more >= unit ? 1 : 0);
  }
  /// What nth(s) leaves in rest.
  DECANT_HD constexpr std::uint64_t nth_rest(index_t s) const {
    const auto samples = static_cast<index_t>(unit >> 32);
    const index_t left = s * static_cast<index_t>(step_rest >> 32);
    const std::uint64_t more = rest + (static_cast<std::uint64_t>(left % samples) << 32);
    return more >= unit ? more - unit : more;
  }
  DECANT_HD constexpr void next() {
    at += step;
    rest += step_rest;
    const bool over = rest >= unit;  // unpredictable: no branch
    rest -= over ? unit : 0;
    at += over ? 1 : 0;
  }
};

/// floor(samples * part / mass) and what is left over, for 0 <= part <= mass, by long multiplication.
struct SantaShare {
  index_t whole;
  std::uint64_t rest;

  DECANT_HD static constexpr SantaShare of(index_t samples, std::int64_t part, std::int64_t mass) {
    const auto m = static_cast<std::uint64_t>(mass);
    SantaShare s{0, 0};
    for (int bit = 20; bit >= 0; --bit) {
      s.whole *= 2;
      s.rest *= 2;
      if (((samples >> bit) & 1) != 0) s.rest += static_cast<std::uint64_t>(part);
      while (s.rest >= m) {
        s.rest -= m;
        ++s.whole;
      }
    }
    return s;
  }
};

/// How many thresholds of SantaGrid::first(offset, mass, samples) lie below x, for 0 <= x <= mass.
DECANT_HD constexpr index_t santa_thresholds_below(std::int64_t x, std::uint32_t offset, std::int64_t mass,
                                                   index_t samples) {
  // (s + offset 2^-32) mass < x samples = whole mass + rest: all s < whole, and whole too if offset mass < rest 2^32.
  const SantaShare share = SantaShare::of(samples, x, mass);
  const auto m = static_cast<std::uint64_t>(mass);
  const std::uint64_t low = (m & 0xffffffffu) * offset;
  const std::uint64_t high = (m >> 32) * offset + (low >> 32);  // offset mass = high 2^32 + the low half of low
  return share.whole + (high < share.rest ? 1 : 0);
}

/// Makes x[parent] ... x[n - 1] a heap, largest first, where only x[parent] may be out of place.
DECANT_HD constexpr void sift_down(std::int64_t* x, index_t parent, index_t n) {
  const std::int64_t moved = x[parent];
  for (index_t child = 2 * parent + 1; child < n; child = 2 * parent + 1) {
    if (child + 1 < n && x[child + 1] > x[child]) ++child;
    if (x[child] <= moved) break;
    x[parent] = x[child];
    parent = child;
  }
  x[parent] = moved;
}

/// Sorts ascending, in place (<algorithm> would cost every user 20000 lines).
DECANT_HD constexpr void heap_sort(std::int64_t* x, index_t n) {
  for (index_t parent = n / 2 - 1; parent >= 0; --parent) sift_down(x, parent, n);
  for (index_t end = n - 1; end > 0; --end) {
    const std::int64_t top = x[0];
    x[0] = x[end];
    x[end] = top;
    sift_down(x, 0, end);
  }
}

/// Adds to counts[t] a share of `samples` in proportion to part[t]: rounded down, and one more for the largest
/// remainders, of equal ones those that come first. rests, sorted: room for n each.
DECANT_HD constexpr void santa_allot(index_t samples, const std::int64_t* part, std::int64_t mass, index_t n,
                                     std::int32_t* counts, std::int64_t* rests, std::int64_t* sorted) {
  index_t left = samples;
  for (index_t t = 0; t < n; ++t) {
    const SantaShare share = SantaShare::of(samples, part[t], mass);
    counts[t] += static_cast<std::int32_t>(share.whole);
    left -= share.whole;
    rests[t] = sorted[t] = static_cast<std::int64_t>(share.rest);
  }
  if (left == 0) return;
  heap_sort(sorted, n);
  const std::int64_t least = sorted[n - left];
  index_t ties = left;
  for (index_t t = 0; t < n; ++t) ties -= rests[t] > least;
  for (index_t t = 0; t < n; ++t) {
    if (rests[t] < least || (rests[t] == least && ties-- <= 0)) continue;
    ++counts[t];
  }
}

}  // namespace decant::attention::detail

#endif
