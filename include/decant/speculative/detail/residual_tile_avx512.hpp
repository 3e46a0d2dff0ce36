// decant: residual_tile.hpp for AVX-512, whole tiles; the same bits. Each product is kept from being fused with the
// difference that follows it.
#ifndef DECANT_SPECULATIVE_DETAIL_RESIDUAL_TILE_AVX512_HPP
#define DECANT_SPECULATIVE_DETAIL_RESIDUAL_TILE_AVX512_HPP

#include "residual_tile.hpp"

#if DECANT_X86

#include "../../core/detail/intrinsics.hpp"

namespace decant::speculative::detail {

DECANT_TARGET_AVX512 DECANT_INLINE __m512 product_avx512(__m512 a, __m512 b) {
  __m512 c = _mm512_mul_ps(a, b);
  asm("" : "+v"(c));
  return c;
}

/// Sums of 64 lanes, halves folded.
DECANT_TARGET_AVX512 DECANT_INLINE float fold_avx512(const __m512 (&lanes)[4]) {
  const __m512 a = _mm512_add_ps(_mm512_add_ps(lanes[0], lanes[2]), _mm512_add_ps(lanes[1], lanes[3]));
  const __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
  const __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  const __m128 d = _mm_add_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_add_ss(d, _mm_shuffle_ps(d, d, 1)));
}

DECANT_TARGET_AVX512 inline TileSums pass_tile_avx512(const TilePass& t) {
  const __m512 scale = _mm512_set1_ps(t.scalars.scale);
  const __m512 cut = _mm512_set1_ps(t.scalars.cut);
  const __m512 step = _mm512_set1_ps(t.scalars.step);
  const __m512 zero = _mm512_setzero_ps();
  __m512 left[4] = {zero, zero, zero, zero};
  __m512 over[4] = {zero, zero, zero, zero};
  __m512 drawn[4] = {zero, zero, zero, zero};
  std::int32_t at = t.at;
  std::int32_t special = t.next_special(t.first, at) - t.first;
  for (std::int32_t group = 0; group < tile_size; group += tile_lanes) {
    if (special >= group + tile_lanes) [[likely]] {
      DECANT_UNROLL
      for (std::int32_t k = 0; k < 4; ++k) {
        const __m512 p = _mm512_loadu_ps(t.p + group + 16 * k);
        const __m512 q = _mm512_loadu_ps(t.q + group + 16 * k);
        const __m512 d = _mm512_sub_ps(product_avx512(scale, p), product_avx512(cut, q));
        // max and min give their second operand where one is NaN: NaN stays.
        left[k] = _mm512_add_ps(left[k], _mm512_max_ps(zero, d));
        const __m512 lost = _mm512_max_ps(_mm512_sub_ps(zero, d), zero);
        over[k] = _mm512_add_ps(over[k], _mm512_min_ps(product_avx512(step, q), lost));
        drawn[k] = _mm512_add_ps(drawn[k], q);
      }
      continue;
    }
    alignas(64) float terms[3][tile_lanes];
    for (std::int32_t l = 0; l < tile_lanes; ++l) {
      const TileSums one = special_terms(t, group + l, at);
      terms[0][l] = one.left;
      terms[1][l] = one.over;
      terms[2][l] = one.drawn;
    }
    for (std::int32_t k = 0; k < 4; ++k) {
      left[k] = _mm512_add_ps(left[k], _mm512_load_ps(terms[0] + 16 * k));
      over[k] = _mm512_add_ps(over[k], _mm512_load_ps(terms[1] + 16 * k));
      drawn[k] = _mm512_add_ps(drawn[k], _mm512_load_ps(terms[2] + 16 * k));
    }
    special = t.next_special(t.first + group + tile_lanes, at) - t.first;
  }
  return {fold_avx512(left), fold_avx512(over), fold_avx512(drawn)};
}

/// The total of a whole tile without a floor.
template <bool WithQ>
DECANT_TARGET_AVX512 inline float draw_tile_avx512(const DrawTerm& t) {
  const __m512 scale = _mm512_set1_ps(t.scale);
  const __m512 cut = _mm512_set1_ps(t.cut);
  const __m512 zero = _mm512_setzero_ps();
  __m512 left[4] = {zero, zero, zero, zero};
  for (std::int32_t group = 0; group < tile_size; group += tile_lanes) {
    if (t.lists(t.first + group)) [[unlikely]] {
      alignas(64) float listed[tile_lanes];
      t.listed_block(t.first + group, listed);
      for (std::int32_t k = 0; k < 4; ++k) left[k] = _mm512_add_ps(left[k], _mm512_load_ps(listed + 16 * k));
      continue;
    }
    DECANT_UNROLL
    for (std::int32_t k = 0; k < 4; ++k) {
      __m512 d = product_avx512(scale, _mm512_loadu_ps(t.p + group + 16 * k));
      if constexpr (WithQ) d = _mm512_sub_ps(d, product_avx512(cut, _mm512_loadu_ps(t.q + group + 16 * k)));
      left[k] = _mm512_add_ps(left[k], _mm512_max_ps(zero, d));
    }
  }
  return fold_avx512(left);
}

}  // namespace decant::speculative::detail

#endif

#endif
