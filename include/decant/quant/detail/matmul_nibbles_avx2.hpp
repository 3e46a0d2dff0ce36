// decant: the kernels of matmul_nibbles.hpp on AVX2. Floats: vpshufb takes 32 codes to the low and to the high bytes of
// their weights as bf16; interleaved they are pairs, of which a shift and a mask make floats. int8: vpshufb, the sign
// of an activation moved to its weight, vpmaddubsw. Activations lie in the order in which weights come out.
#ifndef DECANT_QUANT_DETAIL_MATMUL_NIBBLES_AVX2_HPP
#define DECANT_QUANT_DETAIL_MATMUL_NIBBLES_AVX2_HPP

#include "matmul_nibbles.hpp"

#if DECANT_X86

namespace decant::quant::detail {

/// The sums over lanes of four registers each, all in the same order.
DECANT_TARGET_AVX2 inline void finish_avx2(const float* sums, index_t count, float* out) {
  for (index_t i = 0; i < count; i += 4) {
    const __m256 ab = _mm256_hadd_ps(_mm256_load_ps(sums + 8 * i), _mm256_load_ps(sums + 8 * i + 8));
    const __m256 cd = _mm256_hadd_ps(_mm256_load_ps(sums + 8 * i + 16), _mm256_load_ps(sums + 8 * i + 24));
    const __m256 all = _mm256_hadd_ps(ab, cd);
    _mm_storeu_ps(out + i, _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
  }
}

/// Loads and stores of a step's sums.
template <int R, int T>
DECANT_TARGET_AVX2 DECANT_INLINE void load_sums8(const NibbleStep& step, __m256 (&sum)[R][T]) {
  DECANT_UNROLL
  for (int r = 0; r < R; ++r) {
    DECANT_UNROLL
    for (int t = 0; t < T; ++t) sum[r][t] = _mm256_load_ps(step.sum + 8 * (r * T + t));
  }
}
template <int R, int T>
DECANT_TARGET_AVX2 DECANT_INLINE void store_sums8(const NibbleStep& step, const __m256 (&sum)[R][T]) {
  DECANT_UNROLL
  for (int r = 0; r < R; ++r) {
    DECANT_UNROLL
    for (int t = 0; t < T; ++t) _mm256_store_ps(step.sum + 8 * (r * T + t), sum[r][t]);
  }
}

/// Of the 32 bytes of half h of a block, all bits of those whose table is 1.
template <NibbleKind K, int R>
DECANT_TARGET_AVX2 DECANT_INLINE __m256i choice_avx2(const NibbleStep& step, const NibbleScales<K, R>& scales, int r,
                                                     index_t b, int h, index_t each, int shift) {
  if constexpr (K == NibbleKind::signs) {
    const __m256i words = _mm256_srli_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), shift);
    const __m256 scale = _mm256_loadu_ps(scales.scale[r] + each * b + each / 2 * h);
    return _mm256_srai_epi32(_mm256_castps_si256(_mm256_permutevar8x32_ps(scale, words)), 31);
  } else {
    const std::byte* const selectors = step.row + r * step.row_bytes + step.format->selectors_at + step.first_block;
    const __m256i bits = _mm256_slli_epi64(_mm256_setr_epi64x(1, 2, 4, 8), 4 * h);
    return _mm256_cmpeq_epi64(_mm256_and_si256(_mm256_set1_epi64x(static_cast<int>(selectors[b])), bits), bits);
  }
}

/// The scales or offsets of eight lanes, of which `group` says in which of a half's groups each is.
template <bool PerBlock>
DECANT_TARGET_AVX2 DECANT_INLINE __m256 lane_numbers(const float* of_row, index_t b, int h, index_t each,
                                                     __m256i group) {
  if constexpr (PerBlock) return _mm256_broadcast_ss(of_row + b);
  else return _mm256_permutevar8x32_ps(_mm256_loadu_ps(of_row + each * b + each / 2 * h), group);
}
DECANT_TARGET_AVX2 DECANT_INLINE __m256 magnitude8(__m256 x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }

/// How often an eighth of a half, eight columns, must be halved to be its group.
constexpr int group_shift(index_t group) { return group >= 64 ? 3 : group == 32 ? 2 : 1; }

/// For the lanes of registers of pairs, by half of a 128-bit lane: in which group of a half of a block they are.
DECANT_TARGET_AVX2 DECANT_INLINE __m256i pair_groups(int u, int shift) {
  const __m256i eighth = _mm256_setr_epi32(0, 0, 1, 1, 4, 4, 5, 5);
  return _mm256_srli_epi32(_mm256_add_epi32(eighth, _mm256_set1_epi32(2 * u)), shift);
}

// Activations as floats: per half of a block eight registers, by half of a 128-bit lane (u), nibble (n) and parity (e)
// of the byte: register 4u + 2n + e has in lane i the column of nibble n of byte 16 (i / 4) + 8u + 2 (i % 4) + e. After
// both halves, where there are offsets, the sums of the registers with the same u.

inline index_t pairs_x_bytes(const NibbleFormat& f, index_t cols) {
  return (cols + nibble_block - 1) / nibble_block * (has_offsets(f, whole_blocks(f, cols)) ? 640 : 512);
}

template <Activations A>
void arrange_pairs_nibbles(const NibbleFormat& f, index_t cols, const float* x, std::byte* to) {
  const bool sums = has_offsets(f, whole_blocks(f, cols));
  for (index_t k = 0; k < cols; k += nibble_block, to += sums ? 640 : 512) {
    float v[nibble_block] = {};
    round_row<A>(x + k, cols - k < nibble_block ? cols - k : nibble_block, v);
    float* const out = reinterpret_cast<float*>(to);
    for (int h = 0; h < 2; ++h) {
      for (int u = 0; u < 2; ++u) {
        for (int i = 0; i < 8; ++i) {
          float sum = 0;
          for (int n = 0; n < 2; ++n) {
            for (int e = 0; e < 2; ++e) {
              const int byte = 16 * (i / 4) + 8 * u + 2 * (i % 4) + e;
              const float value = v[64 * h + 2 * byte + (f.high_first ? 1 - n : n)];
              out[64 * h + 8 * (4 * u + 2 * n + e) + i] = value;
              sum += value;
            }
          }
          if (sums) out[128 + 16 * h + 8 * u + i] = sum;
        }
      }
    }
  }
}

/// Per table the low bytes of its values as bf16, twice, and the high ones; in the second half what is left of them.
inline void prepare_pairs_nibbles(const NibbleFormat& f, std::byte* to) {
  for (int half = 0; half < 2; ++half) {
    for (int t = 0; t < f.tables; ++t) {
      std::byte* const table = to + 64 * (17 * half + t);
      for (int i = 0; i < 32; ++i) {
        const float v = f.table[t][i % 16];
        const float high = bf16(v);
        const std::uint16_t bits = bf16(half == 0 ? high : v - high).bits;
        table[i] = static_cast<std::byte>(bits & 0xff);
        table[32 + i] = static_cast<std::byte>(bits >> 8);
      }
    }
  }
}

template <NibbleKind K, bool Pair, int Rows, int Tokens>
struct NibblesPairsAvx2 {
  static constexpr int R = Rows, T = Tokens;
  static constexpr index_t lanes = 8;
  static void finish(const float* sums, index_t count, float* out) { finish_avx2(sums, count, out); }

  DECANT_TARGET_AVX2 DECANT_INLINE static void block(const NibbleStep& step, const NibbleScales<K, R>& scales,
                                                     index_t b, index_t each, const std::byte* codes, index_t stride,
                                                     index_t x_block, bool offsets, __m256 (&sum)[R][T]) {
    constexpr bool choose = K == NibbleKind::signs || K == NibbleKind::selectors;
    constexpr bool per_block = NibbleScales<K, R>::per_block;
    fetch_lines<R>(step, b);
    const __m256i low_bits = _mm256_set1_epi8(15);
    const __m256i high_half = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
    const index_t at = (step.first_block + b) * x_block;
    const int shift = group_shift(step.format->group);
    DECANT_UNROLL
    for (int r = 0; r < R; ++r) {
      const auto* const table =
          reinterpret_cast<const __m256i*>(step.tables + (K == NibbleKind::block ? scales.table[r][b] : 0u));
      __m256 d[2][T];
      DECANT_UNROLL
      for (int h = 0; h < 2; ++h) {
        if (h == 0 || !per_block) {
          DECANT_UNROLL
          for (int t = 0; t < T; ++t) d[0][t] = d[1][t] = _mm256_setzero_ps();
        }
        const __m256i all = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + r * stride + 32 * h));
        const __m256i nibble[2] = {_mm256_and_si256(all, low_bits),
                                   _mm256_and_si256(_mm256_srli_epi16(all, 4), low_bits)};
        __m256i choice = all;
        if constexpr (choose) choice = choice_avx2<K, R>(step, scales, r, b, h, each, shift);
        DECANT_UNROLL
        for (int n = 0; n < 2; ++n) {
          DECANT_UNROLL
          for (int p = 0; p < (Pair ? 2 : 1); ++p) {
            const __m256i* const from = table + 34 * p;
            __m256i low = _mm256_shuffle_epi8(_mm256_load_si256(from), nibble[n]);
            __m256i high = _mm256_shuffle_epi8(_mm256_load_si256(from + 1), nibble[n]);
            if constexpr (choose) {
              low = _mm256_blendv_epi8(low, _mm256_shuffle_epi8(_mm256_load_si256(from + 2), nibble[n]), choice);
              high = _mm256_blendv_epi8(high, _mm256_shuffle_epi8(_mm256_load_si256(from + 3), nibble[n]), choice);
            }
            const __m256i pairs[2] = {_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high)};
            DECANT_UNROLL
            for (int u = 0; u < 2; ++u) {
              const __m256 even = _mm256_castsi256_ps(_mm256_slli_epi32(pairs[u], 16));
              const __m256 odd = _mm256_castsi256_ps(_mm256_and_si256(pairs[u], high_half));
              DECANT_UNROLL
              for (int t = 0; t < T; ++t) {
                const auto* const x = reinterpret_cast<const float*>(step.x[t] + at) + 64 * h + 8 * (4 * u + 2 * n);
                d[u][t] = _mm256_fmadd_ps(even, _mm256_load_ps(x), d[u][t]);
                d[u][t] = _mm256_fmadd_ps(odd, _mm256_load_ps(x + 8), d[u][t]);
              }
            }
          }
        }
        if (per_block && h == 0) continue;
        DECANT_UNROLL
        for (int u = 0; u < 2; ++u) {
          const __m256i group = pair_groups(u, shift);
          __m256 scale = lane_numbers<per_block>(scales.scale[r], b, h, each, group);
          if constexpr (K == NibbleKind::signs) scale = magnitude8(scale);
          DECANT_UNROLL
          for (int t = 0; t < T; ++t) sum[r][t] = _mm256_fmadd_ps(scale, d[u][t], sum[r][t]);
        }
      }
    }
    if (!offsets) return;
    DECANT_UNROLL
    for (int r = 0; r < R; ++r) {
      for (int h = 0; h < 2; ++h) {
        for (int u = 0; u < 2; ++u) {
          const __m256 offset = lane_numbers<per_block>(scales.offset[r], b, h, each, pair_groups(u, shift));
          DECANT_UNROLL
          for (int t = 0; t < T; ++t) {
            const auto* const x = reinterpret_cast<const float*>(step.x[t] + at) + 128 + 16 * h + 8 * u;
            sum[r][t] = _mm256_fmadd_ps(offset, _mm256_load_ps(x), sum[r][t]);
          }
        }
      }
    }
  }

  DECANT_TARGET_AVX2 static void run(const NibbleStep& step) {
    NibbleScales<K, R> scales;
    expand_rows(step, scales);
    const bool offsets = has_offsets(*step.format, scales.per_block);
    const index_t x_block = offsets ? 640 : 512;
    const index_t each = scales.per_block ? 0 : nibble_block / step.format->group;
    __m256 sum[R][T];
    load_sums8(step, sum);
    std::byte last[R][64];
    for (int part = 0; part < 2; ++part) {
      NibbleSpan span = nibble_span<R>(step, part, last);
      for (index_t b = span.begin; b < span.end; ++b, span.codes += 64)
        block(step, scales, b, each, span.codes, span.row_bytes, x_block, offsets, sum);
    }
    store_sums8(step, sum);
  }
};

template <NibbleKind K, int Rows, int Tokens>
struct NibblesInt8Avx2 {
  static constexpr int R = Rows, T = Tokens;
  static constexpr index_t lanes = 8;
  static void finish(const float* sums, index_t count, float* out) { finish_avx2(sums, count, out); }

  DECANT_TARGET_AVX2 DECANT_INLINE static void block(const NibbleStep& step, const NibbleScales<K, R>& scales,
                                                     index_t b, index_t each, const std::byte* codes, index_t stride,
                                                     index_t x_scales, bool offsets, __m256 (&sum)[R][T]) {
    constexpr bool choose = K == NibbleKind::signs || K == NibbleKind::selectors;
    constexpr bool per_block = NibbleScales<K, R>::per_block;
    fetch_lines<R>(step, b);
    const __m256i low_bits = _mm256_set1_epi8(15);
    const __m256i ones = _mm256_set1_epi16(1);
    const index_t at = (step.first_block + b) * 320;
    const int shift = group_shift(step.format->group);
    const __m256i group = _mm256_srli_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), shift);
    __m256 x_scale[T];
    DECANT_UNROLL
    for (int t = 0; t < T; ++t)
      x_scale[t] = _mm256_broadcast_ss(reinterpret_cast<const float*>(step.x[t] + x_scales) + step.first_block + b);
    DECANT_UNROLL
    for (int r = 0; r < R; ++r) {
      const auto* const table =
          reinterpret_cast<const __m256i*>(step.tables + (K == NibbleKind::block ? scales.table[r][b] : 0u));
      __m256i d[T];
      DECANT_UNROLL
      for (int h = 0; h < 2; ++h) {
        const __m256i all = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + r * stride + 32 * h));
        const __m256i nibble[2] = {_mm256_and_si256(all, low_bits),
                                   _mm256_and_si256(_mm256_srli_epi16(all, 4), low_bits)};
        __m256i w[2];
        DECANT_UNROLL
        for (int n = 0; n < 2; ++n) {
          w[n] = _mm256_shuffle_epi8(_mm256_load_si256(table), nibble[n]);
          if constexpr (choose)
            w[n] = _mm256_blendv_epi8(w[n], _mm256_shuffle_epi8(_mm256_load_si256(table + 2), nibble[n]),
                                      choice_avx2<K, R>(step, scales, r, b, h, each, shift));
        }
        DECANT_UNROLL
        for (int t = 0; t < T; ++t) {
          const auto* const x = reinterpret_cast<const __m256i*>(step.x[t] + at) + h;
          // After a block's codes, 64 bytes per nibble, come 64 bytes of sums and then magnitudes.
          const __m256i first =
              _mm256_maddubs_epi16(_mm256_load_si256(x + 6), _mm256_sign_epi8(w[0], _mm256_load_si256(x)));
          const __m256i second =
              _mm256_maddubs_epi16(_mm256_load_si256(x + 8), _mm256_sign_epi8(w[1], _mm256_load_si256(x + 2)));
          const __m256i both = _mm256_add_epi32(_mm256_madd_epi16(first, ones), _mm256_madd_epi16(second, ones));
          d[t] = per_block && h == 1 ? _mm256_add_epi32(d[t], both) : both;
        }
        if (per_block && h == 0) continue;
        __m256 scale = lane_numbers<per_block>(scales.scale[r], b, h, each, group);
        if constexpr (K == NibbleKind::signs) scale = magnitude8(scale);
        DECANT_UNROLL
        for (int t = 0; t < T; ++t) {
          const __m256 s = scaled_before ? scale : _mm256_mul_ps(scale, x_scale[t]);
          sum[r][t] = _mm256_fmadd_ps(s, _mm256_cvtepi32_ps(d[t]), sum[r][t]);
        }
      }
    }
    if (!offsets) return;
    for (int h = 0; h < 2; ++h) {
      DECANT_UNROLL
      for (int t = 0; t < T; ++t) {
        const __m256i undo = _mm256_load_si256(reinterpret_cast<const __m256i*>(step.x[t] + at + 128) + h);
        const __m256 share = _mm256_mul_ps(x_scale[t], _mm256_set1_ps(-1.0f / 128));
        const __m256 x_sum = _mm256_mul_ps(_mm256_cvtepi32_ps(undo), share);
        DECANT_UNROLL
        for (int r = 0; r < R; ++r)
          sum[r][t] = _mm256_fmadd_ps(lane_numbers<per_block>(scales.offset[r], b, h, each, group), x_sum, sum[r][t]);
      }
    }
  }

  /// One token: a block's two scales are multiplied for eight blocks at once.
  static constexpr bool scaled_before = T == 1 && NibbleScales<K, R>::per_block;

  DECANT_TARGET_AVX2 static void run(const NibbleStep& step) {
    NibbleScales<K, R> scales;
    expand_rows(step, scales);
    const bool offsets = has_offsets(*step.format, scales.per_block);
    const index_t each = scales.per_block ? 0 : nibble_block / step.format->group;
    const index_t x_scales = (step.cols + nibble_block - 1) / nibble_block * 320;
    if constexpr (scaled_before)
      scale_blocks(scales, reinterpret_cast<const float*>(step.x[0] + x_scales) + step.first_block, step.blocks);
    __m256 sum[R][T];
    load_sums8(step, sum);
    std::byte last[R][64];
    for (int part = 0; part < 2; ++part) {
      NibbleSpan span = nibble_span<R>(step, part, last);
      for (index_t b = span.begin; b < span.end; ++b, span.codes += 64)
        block(step, scales, b, each, span.codes, span.row_bytes, x_scales, offsets, sum);
    }
    store_sums8(step, sum);
  }
};

template <NibbleKind K, int R, int T>
using NibblesPlainAvx2 = NibblesPairsAvx2<K, false, R, T>;
template <NibbleKind K, int R, int T>
using NibblesResidueAvx2 = NibblesPairsAvx2<K, true, R, T>;

template <NibbleNeeds N>
void product_pairs_avx2(const NibbleFormat& f, const NibbleRows& w, const std::byte* x, index_t x_stride,
                        index_t tokens, float* y, index_t y_stride) {
  alignas(64) std::byte tables[nibble_table_bytes];
  prepare_pairs_nibbles(f, tables);
  if constexpr (N == NibbleNeeds::residue)
    nibble_product_of_kind<NibblesResidueAvx2, N>(f, w, tables, x, x_stride, tokens, y, y_stride);
  else
    nibble_product_of_kind<NibblesPlainAvx2, N>(f, w, tables, x, x_stride, tokens, y, y_stride);
}

template <NibbleNeeds N>
void product_int8_avx2(const NibbleFormat& f, const NibbleRows& w, const std::byte* x, index_t x_stride,
                       index_t tokens, float* y, index_t y_stride) {
  alignas(64) std::byte tables[nibble_table_bytes];
  const NibbleFormat scaled = prepare_int8_nibbles(f, 0, tables);
  nibble_product_of_kind<NibblesInt8Avx2, N>(scaled, w, tables, x, x_stride, tokens, y, y_stride);
}

}  // namespace decant::quant::detail

#endif

#endif
