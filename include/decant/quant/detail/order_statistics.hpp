// decant: exact order statistics of many floats that need not lie together: the values at some ranks of their ascending
// order, by three counting passes over 11, 11 and 10 bits. Counts are integers, so threads do not change the result.
#ifndef DECANT_QUANT_DETAIL_ORDER_STATISTICS_HPP
#define DECANT_QUANT_DETAIL_ORDER_STATISTICS_HPP

#include <cstdint>

#include "../../core/bits.hpp"
#include "../../core/cpu.hpp"

namespace decant::quant::detail {

inline constexpr int most_ranks = 64;

/// Unsigned order of floats, -0 before +0.
DECANT_HD inline std::uint32_t ordered_bits(float x) {
  const std::uint32_t bits = bit_cast<std::uint32_t>(x);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
DECANT_HD inline float from_ordered_bits(std::uint32_t bits) {
  return bit_cast<float>((bits & 0x80000000u) != 0 ? bits & 0x7fffffffu : ~bits);
}

/// out[i] = the value at rank[i] < count, i < n <= 64. visit(first, last, f) calls f(value) for the finite values of
/// units [first, last) of `units`, `count` values in all.
template <class Visit>
void order_statistics(Cpu& cpu, index_t units, const Visit& visit, const index_t* rank, int n, float* out) {
  constexpr int bins = 2048;
  index_t parts = cpu.parts(units, 1);
  parts = parts > 16 ? 16 : parts;
  Workspace::Scope scope(cpu.workspace());
  const View<std::uint32_t, 2> counts = cpu.workspace().take_view<std::uint32_t>(parts, index_t{most_ranks} * bins);
  std::int16_t* const first_slot = cpu.workspace().take<std::int16_t>(bins);
  std::int16_t* const second_slot = cpu.workspace().take<std::int16_t>(index_t{most_ranks} * bins);

  // Each rank's bits so far, what of the rank is left among the values that share them, and where these are counted.
  std::uint32_t prefix[most_ranks] = {};
  index_t left[most_ranks] = {};
  int slot[most_ranks] = {};
  int slots = 1;
  for (int i = 0; i < n; ++i) left[i] = rank[i];

  for (int level = 0; level < 3; ++level) {
    const int shift = level == 0 ? 21 : level == 1 ? 10 : 0;
    const std::uint32_t mask = level < 2 ? 2047u : 1023u;
    cpu.parallel_for(parts, [&](index_t part) {
      std::uint32_t* const count = &counts(part, index_t{0});
      for (index_t b = 0; b < index_t{slots} * bins; ++b) count[b] = 0;
      visit(units * part / parts, units * (part + 1) / parts, [&](float x) {
        const std::uint32_t bits = ordered_bits(x);
        index_t at = 0;
        if (level >= 1) at = first_slot[bits >> 21];
        if (level == 2 && at >= 0) at = second_slot[at * bins + (bits >> 10 & 2047u)];
        if (at >= 0) ++count[at * bins + (bits >> shift & mask)];
      });
    });
    for (int i = 0; i < n; ++i) {
      std::uint32_t bin = 0;
      for (;; ++bin) {
        index_t here = 0;
        for (index_t part = 0; part < parts; ++part) here += counts(part, index_t{slot[i]} * bins + bin);
        if (left[i] < here || bin == mask) break;
        left[i] -= here;
      }
      prefix[i] |= bin << shift;
    }
    if (level == 2) break;
    std::int16_t* const map = level == 0 ? first_slot : second_slot;
    for (index_t b = 0; b < index_t{slots} * bins; ++b) map[b] = -1;
    int next = 0;
    for (int i = 0; i < n; ++i) {
      std::int16_t& at = map[index_t{slot[i]} * bins + (prefix[i] >> shift & mask)];
      if (at < 0) at = static_cast<std::int16_t>(next++);
      slot[i] = at;
    }
    slots = next;
  }
  for (int i = 0; i < n; ++i) out[i] = from_ordered_bits(prefix[i]);
}

}  // namespace decant::quant::detail

#endif
