// decant: the three linear scans of top-k over 32-bit keys: histogram, collection, emission. The portable code; the
// AVX-512 scans give the same bytes.
#ifndef DECANT_CORE_DETAIL_TOPK_SCAN_HPP
#define DECANT_CORE_DETAIL_TOPK_SCAN_HPP

#include <cstdint>

#include "../error.hpp"
#include "../simd.hpp"
#include "topk_avx512.hpp"

namespace decant::detail {

inline constexpr std::uint32_t radix_buckets = 1u << 11;
/// Room for one part's histogram: four interleaved tables, so that runs of equal digits do not wait for each other.
inline constexpr index_t radix_words = 4 * index_t{radix_buckets};

/// How many of n keys have each value of the first (top 11 bits) digit, into histogram[0 ... radix_buckets).
inline void count_first_digits(const std::uint32_t* keys, index_t n, std::uint32_t* histogram) {
  for (index_t b = 0; b < radix_words; ++b) histogram[b] = 0;
  std::uint32_t* const h1 = histogram + radix_buckets;
  std::uint32_t* const h2 = h1 + radix_buckets;
  std::uint32_t* const h3 = h2 + radix_buckets;
  index_t i = 0;
  for (; i + 4 <= n; i += 4) {
    ++histogram[keys[i] >> 21];
    ++h1[keys[i + 1] >> 21];
    ++h2[keys[i + 2] >> 21];
    ++h3[keys[i + 3] >> 21];
  }
  for (; i < n; ++i) ++histogram[keys[i] >> 21];
  for (std::uint32_t b = 0; b < radix_buckets; ++b) histogram[b] += h1[b] + h2[b] + h3[b];
}

/// Copies the keys with this first digit to out, in order; returns how many. out: room for n.
inline index_t collect_digit(Isa isa, const std::uint32_t* keys, index_t n, std::uint32_t digit, std::uint32_t* out) {
  index_t i = 0;
  index_t found = 0;
#if DECANT_X86
  if (isa == Isa::avx512) i = collect_digit_avx512(keys, n, digit, out, found);
#else
  (void)isa;
#endif
  for (; i < n; ++i) {
    out[found] = keys[i];  // found <= i < n: always in bounds
    found += (keys[i] >> 21) == digit;
  }
  return found;
}

/// Writes, ascending, the indices of the keys above the threshold and of the first `ties` equal to it: k in all, which
/// the keys must hold.
inline void emit_indices(Isa isa, const std::uint32_t* keys, std::uint32_t threshold, index_t ties, index_t k,
                         std::int32_t* out) {
  index_t i = 0;
  index_t count = 0;
#if DECANT_X86
  if (isa == Isa::avx512) i = emit_indices_avx512(keys, threshold, ties, k, out, count);
#else
  (void)isa;
#endif
  while (count < k) {  // so out[count] is always in bounds
    const bool tie = keys[i] == threshold && ties > 0;
    out[count] = static_cast<std::int32_t>(i);
    count += keys[i] > threshold || tie;
    ties -= tie;
    ++i;
  }
}

}  // namespace decant::detail

#endif
