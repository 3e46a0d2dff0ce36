// decant: sums over a row of weights, and the draw of an index from them, in the one order that every instruction set
// and the CUDA twin (row_sum.cuh) follow, so that all of them draw the same index. A row is cut into tiles of 1024. In
// a tile, lane l of 64 adds elements l, l + 64 ... in fp32, then halves are folded; tiles follow one another in double.
// In the tile that the draw falls into, 32 chunks of 32 elements are added up in double. [ours]
#ifndef DECANT_CORE_ROW_SUM_HPP
#define DECANT_CORE_ROW_SUM_HPP

#include <cstdint>

#include "error.hpp"
#include "simd.hpp"

// Before a function whose loops round each product by itself (detail/rounded.hpp): g++ fuses products with sums, also
// across functions, wherever the target can.
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__)
#define DECANT_UNFUSED __attribute__((optimize("fp-contract=off")))
#else
#define DECANT_UNFUSED
#endif

namespace decant {

inline constexpr index_t row_tile = 1024;
inline constexpr index_t row_lanes = 64;

/// How many tiles a row of n elements has.
DECANT_HD constexpr index_t row_tiles(index_t n) { return (n + row_tile - 1) / row_tile; }

/// Where a draw falls: a tile, and what is left of the cumulated sum there.
struct RowPlace {
  index_t tile;
  double rest;
};

/// The tile in which the sum of tile totals first exceeds `wanted`; rounding aside, the last with a positive total.
/// tiles >= 1. O(tiles).
DECANT_HD inline RowPlace find_tile(const float* totals, index_t tiles, double wanted) {
  double sum = 0;
  RowPlace last{0, wanted};
  for (index_t t = 0; t < tiles; ++t) {
    const double next = sum + static_cast<double>(totals[t]);
    if (totals[t] > 0) last = {t, wanted - sum};
    if (next > wanted) return {t, wanted - sum};
    sum = next;
  }
  return last;
}

/// The index in [first, last), at most a tile, whose cumulated weight exceeds `wanted`; rounding aside, the last one
/// with a positive weight; -1: none has one. Term: float operator()(index_t) const. O(last - first).
template <class Term>
DECANT_UNFUSED index_t find_in_tile(const Term& term, index_t first, index_t last, double wanted) {
  double before = 0;
  index_t found = -1;
  for (index_t begin = first; begin < last; begin += 32) {
    const index_t end = begin + 32 < last ? begin + 32 : last;
    double chunk = 0;
    for (index_t i = begin; i < end; ++i) {
      const float w = term(i);
      chunk += static_cast<double>(w);
      if (w > 0) found = i;
    }
    if (before + chunk > wanted) {
      for (index_t i = begin; i < end; ++i) {
        const float w = term(i);
        if (w > 0) found = i;
        before += static_cast<double>(w);
        if (before > wanted) break;
      }
      return found;
    }
    before += chunk;
  }
  return found;
}

namespace detail {

/// The lanes of a tile, halves folded.
DECANT_INLINE float fold_lanes(float (&lane)[row_lanes]) {
  for (index_t l = 0; l < 32; ++l) lane[l] += lane[l + 32];
  for (index_t l = 0; l < 16; ++l) lane[l] += lane[l + 16];
  for (index_t width = 8; width > 0; width /= 2) {
    for (index_t l = 0; l < width; ++l) lane[l] += lane[l + width];
  }
  return lane[0];
}

template <class Term>
DECANT_INLINE float tile_total(const Term& term, index_t first, index_t last) {
  float lane[row_lanes] = {};
  index_t i = first;
  for (; i + row_lanes <= last; i += row_lanes) {
    if constexpr (requires(float* w) { term.block(i, w); }) {
      float w[row_lanes];
      term.block(i, w);
      for (index_t l = 0; l < row_lanes; ++l) lane[l] += w[l];
    } else {
      for (index_t l = 0; l < row_lanes; ++l) lane[l] += term(i + l);
    }
  }
  for (index_t l = 0; i + l < last; ++l) lane[l] += term(i + l);
  return fold_lanes(lane);
}

template <class Term>
DECANT_INLINE double tile_totals_lanes(const Term& term, index_t n, float* totals) {
  double sum = 0;
  for (index_t t = 0; t < row_tiles(n); ++t) {
    totals[t] = tile_total(term, t * row_tile, (t + 1) * row_tile < n ? (t + 1) * row_tile : n);
    sum += static_cast<double>(totals[t]);
  }
  return sum;
}

template <class Term>
DECANT_UNFUSED inline double tile_totals_portable(const Term& term, index_t n, float* totals) {
  return tile_totals_lanes(term, n, totals);
}
#if DECANT_X86
template <class Term>
DECANT_TARGET_AVX2 DECANT_UNFUSED inline double tile_totals_avx2(const Term& term, index_t n, float* totals) {
  return tile_totals_lanes(term, n, totals);
}
template <class Term>
DECANT_TARGET_AVX512 DECANT_UNFUSED inline double tile_totals_avx512(const Term& term, index_t n, float* totals) {
  return tile_totals_lanes(term, n, totals);
}
#endif

}  // namespace detail

/// The totals of a row's tiles, to totals[row_tiles(n)]; returns their sum. Term: float operator()(index_t) const,
/// always inlined; with void block(index_t, float*) const for 64 elements, where that is faster. O(n).
template <class Term>
double tile_totals(Isa isa, const Term& term, index_t n, float* totals) {
#if DECANT_X86
  if (isa == Isa::avx512) return detail::tile_totals_avx512(term, n, totals);
  if (isa == Isa::avx2) return detail::tile_totals_avx2(term, n, totals);
#else
  (void)isa;
#endif
  return detail::tile_totals_portable(term, n, totals);
}

/// The index that u in [0, 1) draws, from totals that sum up to sum > 0; -1: no weight is positive. O(n / 1024).
template <class Term>
index_t draw_index(const Term& term, index_t n, const float* totals, double sum, double u) {
  const RowPlace place = find_tile(totals, row_tiles(n), u * sum);
  const index_t first = place.tile * row_tile;
  return find_in_tile(term, first, first + row_tile < n ? first + row_tile : n, place.rest);
}

}  // namespace decant

#endif
