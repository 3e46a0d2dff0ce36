// decant: residual_tile.hpp for AVX2, whole tiles; the same bits. 64 lanes of three sums do not fit the registers: the
// lower 32 lanes of the tile first, then the upper ones.
#ifndef DECANT_SPECULATIVE_DETAIL_RESIDUAL_TILE_AVX2_HPP
#define DECANT_SPECULATIVE_DETAIL_RESIDUAL_TILE_AVX2_HPP

#include "residual_tile.hpp"

#if DECANT_X86

#include "../../core/detail/intrinsics.hpp"

namespace decant::speculative::detail {

DECANT_TARGET_AVX2 DECANT_INLINE __m256 product_avx2(__m256 a, __m256 b) {
  __m256 c = _mm256_mul_ps(a, b);
  asm("" : "+x"(c));
  return c;
}

/// The halves of 64 lanes, folded.
DECANT_TARGET_AVX2 DECANT_INLINE float fold_avx2(const __m256 (&low)[4], const __m256 (&high)[4]) {
  __m256 a[4];
  DECANT_UNROLL
  for (int k = 0; k < 4; ++k) a[k] = _mm256_add_ps(low[k], high[k]);
  const __m256 b = _mm256_add_ps(_mm256_add_ps(a[0], a[2]), _mm256_add_ps(a[1], a[3]));
  const __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  const __m128 d = _mm_add_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_add_ss(d, _mm_shuffle_ps(d, d, 1)));
}

struct HalfSums {
  __m256 left[4];
  __m256 over[4];
  __m256 drawn[4];
};

DECANT_TARGET_AVX2 inline HalfSums pass_half_avx2(const TilePass& t, std::int32_t half) {
  const __m256 scale = _mm256_set1_ps(t.scalars.scale);
  const __m256 cut = _mm256_set1_ps(t.scalars.cut);
  const __m256 step = _mm256_set1_ps(t.scalars.step);
  const __m256 zero = _mm256_setzero_ps();
  HalfSums sums = {{zero, zero, zero, zero}, {zero, zero, zero, zero}, {zero, zero, zero, zero}};
  std::int32_t at = t.at;
  std::int32_t special = t.next_special(t.first, at) - t.first;
  for (std::int32_t group = half; group < tile_size; group += tile_lanes) {
    if (special < group) special = t.next_special(t.first + group, at) - t.first;
    if (special >= group + tile_lanes / 2) [[likely]] {
      DECANT_UNROLL
      for (std::int32_t k = 0; k < 4; ++k) {
        const __m256 p = _mm256_loadu_ps(t.p + group + 8 * k);
        const __m256 q = _mm256_loadu_ps(t.q + group + 8 * k);
        const __m256 d = _mm256_sub_ps(product_avx2(scale, p), product_avx2(cut, q));
        // max and min give their second operand where one is NaN: NaN stays.
        sums.left[k] = _mm256_add_ps(sums.left[k], _mm256_max_ps(zero, d));
        const __m256 lost = _mm256_max_ps(_mm256_sub_ps(zero, d), zero);
        sums.over[k] = _mm256_add_ps(sums.over[k], _mm256_min_ps(product_avx2(step, q), lost));
        sums.drawn[k] = _mm256_add_ps(sums.drawn[k], q);
      }
      continue;
    }
    alignas(32) float terms[3][tile_lanes / 2];
    for (std::int32_t l = 0; l < tile_lanes / 2; ++l) {
      const TileSums one = special_terms(t, group + l, at);
      terms[0][l] = one.left;
      terms[1][l] = one.over;
      terms[2][l] = one.drawn;
    }
    for (std::int32_t k = 0; k < 4; ++k) {
      sums.left[k] = _mm256_add_ps(sums.left[k], _mm256_load_ps(terms[0] + 8 * k));
      sums.over[k] = _mm256_add_ps(sums.over[k], _mm256_load_ps(terms[1] + 8 * k));
      sums.drawn[k] = _mm256_add_ps(sums.drawn[k], _mm256_load_ps(terms[2] + 8 * k));
    }
  }
  return sums;
}

DECANT_TARGET_AVX2 inline TileSums pass_tile_avx2(const TilePass& t) {
  const HalfSums low = pass_half_avx2(t, 0);
  const HalfSums high = pass_half_avx2(t, tile_lanes / 2);
  return {fold_avx2(low.left, high.left), fold_avx2(low.over, high.over), fold_avx2(low.drawn, high.drawn)};
}

/// The total of a whole tile without a floor.
template <bool WithQ>
DECANT_TARGET_AVX2 inline float draw_tile_avx2(const DrawTerm& t) {
  const __m256 scale = _mm256_set1_ps(t.scale);
  const __m256 cut = _mm256_set1_ps(t.cut);
  const __m256 zero = _mm256_setzero_ps();
  __m256 left[2][4] = {{zero, zero, zero, zero}, {zero, zero, zero, zero}};
  for (std::int32_t group = 0; group < tile_size; group += tile_lanes) {
    if (t.lists(t.first + group)) [[unlikely]] {
      alignas(32) float listed[tile_lanes];
      t.listed_block(t.first + group, listed);
      for (std::int32_t k = 0; k < 8; ++k) {
        left[k / 4][k % 4] = _mm256_add_ps(left[k / 4][k % 4], _mm256_load_ps(listed + 8 * k));
      }
      continue;
    }
    DECANT_UNROLL
    for (std::int32_t k = 0; k < 8; ++k) {
      __m256 d = product_avx2(scale, _mm256_loadu_ps(t.p + group + 8 * k));
      if constexpr (WithQ) d = _mm256_sub_ps(d, product_avx2(cut, _mm256_loadu_ps(t.q + group + 8 * k)));
      left[k / 4][k % 4] = _mm256_add_ps(left[k / 4][k % 4], _mm256_max_ps(zero, d));
    }
  }
  return fold_avx2(left[0], left[1]);
}

}  // namespace decant::speculative::detail

#endif

#endif
