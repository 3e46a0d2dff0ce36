// decant: the kernels of matmul_nibbles.hpp on AVX-512. bf16 activations: a table, twice, is a register of 32 bf16;
// vpermw takes 32 codes to their weights and vdpbf16ps multiplies them. int8: a table of bytes, vpermb and vpdpbusd.
// fp32: vpermps and a multiply-add. 64 bytes of codes, seen as 32 words, have at bits 4s the columns 4i + s of a block:
// a shift, and the bits above are of no account where the table is repeated. Which table a group has is an address or a
// bit of the index and never a branch, which would be mispredicted every other time.
#ifndef DECANT_QUANT_DETAIL_MATMUL_NIBBLES_AVX512_HPP
#define DECANT_QUANT_DETAIL_MATMUL_NIBBLES_AVX512_HPP

#include "matmul_nibbles.hpp"

#if DECANT_X86

namespace decant::quant::detail {

#define DECANT_TARGET_NIBBLES_BF16 \
  __attribute__((target("avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi,bmi2")))
#define DECANT_TARGET_NIBBLES_INT8 \
  __attribute__((target("avx512vnni,avx512vbmi,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi,bmi2")))

/// Of the index of a weight, the low four bits from the code and the others from `choice`.
DECANT_TARGET_AVX512 DECANT_INLINE __m512i pick_index(__m512i code, __m512i choice, __m512i low) {
  return _mm512_ternarylogic_epi32(low, code, choice, 0xca);
}

/// All bits of the lanes where the table is 1: the byte has a bit per two lanes.
DECANT_TARGET_AVX512 DECANT_INLINE __m512i spread_selectors(std::byte bits) {
  return _mm512_movm_epi32(static_cast<__mmask16>(3 * _pdep_u32(static_cast<std::uint32_t>(bits), 0x5555u)));
}

/// Of each lane, which of a block's groups it is in.
DECANT_TARGET_AVX512 DECANT_INLINE __m512i lane_groups(index_t group) {
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return group >= 64   ? _mm512_srli_epi32(lane, 3)
         : group == 32 ? _mm512_srli_epi32(lane, 2)
                       : _mm512_srli_epi32(lane, 1);
}

/// A block of R rows: what their codes and scales are.
template <NibbleKind K, int R>
struct Nibbles512 {
  __m512i codes[R];
  __m512i choice[R];  // signs and selectors: all bits where the table is 1
  __m512 scale[R];

  DECANT_TARGET_AVX512 DECANT_INLINE void load(const NibbleStep& step, const NibbleScales<K, R>& scales, index_t b,
                                               index_t each, __m512i lanes, const std::byte* at, index_t stride) {
    DECANT_UNROLL
    for (int r = 0; r < R; ++r) {
      codes[r] = _mm512_loadu_si512(at + r * stride);
      if constexpr (NibbleScales<K, R>::per_block) {
        scale[r] = _mm512_set1_ps(scales.scale[r][b]);
      } else {
        scale[r] = _mm512_permutexvar_ps(lanes, _mm512_loadu_ps(scales.scale[r] + each * b));
      }
      if constexpr (K == NibbleKind::signs) {
        choice[r] = _mm512_srai_epi32(_mm512_castps_si512(scale[r]), 31);
        scale[r] = _mm512_andnot_ps(_mm512_set1_ps(-0.0f), scale[r]);
      }
      if constexpr (K == NibbleKind::selectors)
        choice[r] = spread_selectors(step.row[r * step.row_bytes + step.format->selectors_at + step.first_block + b]);
    }
  }
  DECANT_TARGET_AVX512 DECANT_INLINE static __m512 offset(const NibbleScales<K, R>& scales, int r, index_t b,
                                                          index_t each, __m512i lanes) {
    if constexpr (NibbleScales<K, R>::per_block) return _mm512_set1_ps(scales.offset[r][b]);
    else return _mm512_permutexvar_ps(lanes, _mm512_loadu_ps(scales.offset[r] + each * b));
  }
};

/// The sums over lanes of four registers each, all in the same order.
DECANT_TARGET_AVX512 inline void finish_avx512(const float* sums, index_t count, float* out) {
  for (index_t i = 0; i < count; i += 4) {
    const __m512 x0 = _mm512_load_ps(sums + 16 * i), x1 = _mm512_load_ps(sums + 16 * i + 16);
    const __m512 x2 = _mm512_load_ps(sums + 16 * i + 32), x3 = _mm512_load_ps(sums + 16 * i + 48);
    const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(x0, x1), _mm512_unpackhi_ps(x0, x1));
    const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(x2, x3), _mm512_unpackhi_ps(x2, x3));
    const __m512 all =
        _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd))),
                      _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd))));
    const __m256 halves = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
    _mm_storeu_ps(out + i, _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1)));
  }
}

// Activations of a block as bf16: 256 bytes, word j of line s being column 4j + s (4j + (s ^ 1) where the high nibble
// is first); then, where there are offsets, the sums of each lane's columns in 64 bytes.

inline index_t bf16_x_bytes(const NibbleFormat& f, index_t cols) {
  const bool sums = has_offsets(f, whole_blocks(f, cols));
  return (cols + nibble_block - 1) / nibble_block * (sums ? 320 : 256);
}

DECANT_TARGET_NIBBLES_BF16 inline void arrange_bf16_nibbles(const NibbleFormat& f, index_t cols, const float* x,
                                                            std::byte* to) {
  const bool sums = has_offsets(f, whole_blocks(f, cols));
  // Of 64 consecutive words, 16 quadruples: their first or third words, then their second or fourth.
  std::uint16_t order[32];
  for (int i = 0; i < 32; ++i) order[i] = static_cast<std::uint16_t>(4 * (i % 16) + i / 16);
  const __m512i pairs = _mm512_loadu_si512(order);
  const __m512i swap = _mm512_set1_epi16(f.high_first ? 1 : 0);
  const __m512i first = _mm512_xor_si512(pairs, swap);
  const __m512i second = _mm512_add_epi16(first, _mm512_set1_epi16(2));
  for (index_t k = 0; k < cols; k += nibble_block, to += sums ? 320 : 256) {
    __m512i word[4];
    DECANT_UNROLL
    for (int i = 0; i < 4; ++i) {
      __m512 part[2];
      for (int h = 0; h < 2; ++h) {
        const index_t at = k + 32 * i + 16 * h;
        const index_t left = cols - at;
        const __mmask16 mask = left >= 16  ? __mmask16{0xffff}
                               : left <= 0 ? __mmask16{0}
                                           : static_cast<__mmask16>((1u << left) - 1u);
        part[h] = mask ? _mm512_maskz_loadu_ps(mask, x + at) : _mm512_setzero_ps();
      }
      word[i] = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(part[1], part[0]));
    }
    const __m512i low01 = _mm512_permutex2var_epi16(word[0], first, word[1]);
    const __m512i low23 = _mm512_permutex2var_epi16(word[2], first, word[3]);
    const __m512i high01 = _mm512_permutex2var_epi16(word[0], second, word[1]);
    const __m512i high23 = _mm512_permutex2var_epi16(word[2], second, word[3]);
    _mm512_store_si512(to, _mm512_shuffle_i64x2(low01, low23, 0x44));
    _mm512_store_si512(to + 64, _mm512_shuffle_i64x2(low01, low23, 0xee));
    _mm512_store_si512(to + 128, _mm512_shuffle_i64x2(high01, high23, 0x44));
    _mm512_store_si512(to + 192, _mm512_shuffle_i64x2(high01, high23, 0xee));
    if (!sums) continue;
    __m512 sum = _mm512_setzero_ps();
    for (int s = 0; s < 4; ++s) {
      const __m512i line = _mm512_load_si512(to + 64 * s);
      sum = _mm512_add_ps(sum, _mm512_castsi512_ps(_mm512_slli_epi32(line, 16)));
      sum = _mm512_add_ps(
          sum, _mm512_castsi512_ps(_mm512_and_si512(line, _mm512_set1_epi32(static_cast<int>(0xffff0000u)))));
    }
    _mm512_store_ps(reinterpret_cast<float*>(to + 256), sum);
  }
}

/// Values as bf16, and in the second half what is left of them.
inline void prepare_bf16_nibbles(const NibbleFormat& f, std::byte* to) {
  auto* const table = reinterpret_cast<std::uint16_t*>(to);
  for (int half = 0; half < 2; ++half) {
    for (int t = 0; t < 17; ++t) {
      if (t >= f.tables && t < 16) continue;
      for (int i = 0; i < 32; ++i) {
        const float v = t == 16 ? f.table[i / 16][i % 16] : f.table[t][i % 16];
        const float high = bf16(v);
        table[32 * (17 * half + t) + i] = bf16(half == 0 ? high : v - high).bits;
      }
    }
  }
}

/// Loads and stores of a step's sums.
template <int R, int T>
DECANT_TARGET_AVX512 DECANT_INLINE void load_sums(const NibbleStep& step, __m512 (&sum)[R][T]) {
  DECANT_UNROLL
  for (int r = 0; r < R; ++r) {
    DECANT_UNROLL
    for (int t = 0; t < T; ++t) sum[r][t] = _mm512_load_ps(step.sum + 16 * (r * T + t));
  }
}
template <int R, int T>
DECANT_TARGET_AVX512 DECANT_INLINE void store_sums(const NibbleStep& step, const __m512 (&sum)[R][T]) {
  DECANT_UNROLL
  for (int r = 0; r < R; ++r) {
    DECANT_UNROLL
    for (int t = 0; t < T; ++t) _mm512_store_ps(step.sum + 16 * (r * T + t), sum[r][t]);
  }
}

template <NibbleKind K, bool Pair, int Rows, int Tokens>
struct NibblesBf16Avx512 {
  static constexpr int R = Rows, T = Tokens;
  static constexpr index_t lanes = 16;
  static void finish(const float* sums, index_t count, float* out) { finish_avx512(sums, count, out); }

  DECANT_TARGET_NIBBLES_BF16 DECANT_INLINE static void block(const NibbleStep& step, const NibbleScales<K, R>& scales,
                                                             index_t b, index_t each, __m512i lane_group,
                                                             const std::byte* codes, index_t stride, index_t x_block,
                                                             bool offsets, __m512 (&sum)[R][T]) {
    constexpr bool choose = K == NibbleKind::signs || K == NibbleKind::selectors;
    constexpr index_t rest = 17 * 64;
    fetch_lines<R>(step, b);
    Nibbles512<K, R> n;
    n.load(step, scales, b, each, lane_group, codes, stride);
    const __m512i low = _mm512_set1_epi32(0x000f000f);
    const index_t at = (step.first_block + b) * x_block;
    __m512 d[R][T];
    __m512i table[R], table_rest[R];
    DECANT_UNROLL
    for (int r = 0; r < R; ++r) {
      const std::byte* const from = step.tables + (K == NibbleKind::block ? scales.table[r][b]
                                                   : choose               ? 16 * 64u
                                                                          : 0u);
      table[r] = _mm512_load_si512(from);
      table_rest[r] = Pair ? _mm512_load_si512(from + rest) : table[r];
      DECANT_UNROLL
      for (int t = 0; t < T; ++t) d[r][t] = _mm512_setzero_ps();
    }
    DECANT_UNROLL
    for (int s = 0; s < 4; ++s) {
      __m512bh x[T];
      DECANT_UNROLL
      for (int t = 0; t < T; ++t) x[t] = reinterpret_cast<__m512bh>(_mm512_load_si512(step.x[t] + at + 64 * s));
      DECANT_UNROLL
      for (int r = 0; r < R; ++r) {
        __m512i index = s == 0 ? n.codes[r] : _mm512_srli_epi16(n.codes[r], static_cast<unsigned>(4 * s));
        if constexpr (choose) index = pick_index(index, n.choice[r], low);
        const __m512bh w = reinterpret_cast<__m512bh>(_mm512_permutexvar_epi16(index, table[r]));
        DECANT_UNROLL
        for (int t = 0; t < T; ++t) d[r][t] = _mm512_dpbf16_ps(d[r][t], w, x[t]);
        if constexpr (Pair) {
          const __m512bh v = reinterpret_cast<__m512bh>(_mm512_permutexvar_epi16(index, table_rest[r]));
          DECANT_UNROLL
          for (int t = 0; t < T; ++t) d[r][t] = _mm512_dpbf16_ps(d[r][t], v, x[t]);
        }
      }
    }
    DECANT_UNROLL
    for (int r = 0; r < R; ++r) {
      DECANT_UNROLL
      for (int t = 0; t < T; ++t) sum[r][t] = _mm512_fmadd_ps(n.scale[r], d[r][t], sum[r][t]);
    }
    if (!offsets) return;
    DECANT_UNROLL
    for (int r = 0; r < R; ++r) {
      const __m512 offset = n.offset(scales, r, b, each, lane_group);
      DECANT_UNROLL
      for (int t = 0; t < T; ++t)
        sum[r][t] =
            _mm512_fmadd_ps(offset, _mm512_load_ps(reinterpret_cast<const float*>(step.x[t] + at + 256)), sum[r][t]);
    }
  }

  DECANT_TARGET_NIBBLES_BF16 static void run(const NibbleStep& step) {
    NibbleScales<K, R> scales;
    expand_rows(step, scales);
    const bool offsets = has_offsets(*step.format, scales.per_block);
    const index_t x_block = offsets ? 320 : 256;
    const index_t each = scales.per_block ? 0 : nibble_block / step.format->group;
    const __m512i lane_group = lane_groups(step.format->group);
    __m512 sum[R][T];
    load_sums(step, sum);
    std::byte last[R][64];
    for (int part = 0; part < 2; ++part) {
      NibbleSpan span = nibble_span<R>(step, part, last);
      for (index_t b = span.begin; b < span.end; ++b, span.codes += 64)
        block(step, scales, b, each, lane_group, span.codes, span.row_bytes, x_block, offsets, sum);
    }
    store_sums(step, sum);
  }
};

template <NibbleKind K, int Rows, int Tokens>
struct NibblesInt8Avx512 {
  static constexpr int R = Rows, T = Tokens;
  static constexpr index_t lanes = 16;
  static void finish(const float* sums, index_t count, float* out) { finish_avx512(sums, count, out); }

  DECANT_TARGET_NIBBLES_INT8 DECANT_INLINE static void block(const NibbleStep& step, const NibbleScales<K, R>& scales,
                                                             index_t b, index_t each, __m512i lane_group,
                                                             const std::byte* codes, index_t stride, index_t x_scales,
                                                             bool offsets, __m512 (&sum)[R][T]) {
    constexpr bool choose = K == NibbleKind::signs || K == NibbleKind::selectors;
    fetch_lines<R>(step, b);
    Nibbles512<K, R> n;
    n.load(step, scales, b, each, lane_group, codes, stride);
    const __m512i low = _mm512_set1_epi32(0x0f0f0f0f);
    __m512i x[2][T], undo[T];
    __m512 x_scale[T];
    DECANT_UNROLL
    for (int t = 0; t < T; ++t) {
      const std::byte* const at = step.x[t] + 192 * (step.first_block + b);
      x[0][t] = _mm512_load_si512(at);
      x[1][t] = _mm512_load_si512(at + 64);
      undo[t] = _mm512_load_si512(at + 128);
      x_scale[t] = _mm512_set1_ps(reinterpret_cast<const float*>(step.x[t] + x_scales)[step.first_block + b]);
    }
    DECANT_UNROLL
    for (int r = 0; r < R; ++r) {
      const __m512i table =
          _mm512_load_si512(step.tables + (K == NibbleKind::block ? scales.table[r][b] : choose ? 16 * 64u : 0u));
      __m512i first = n.codes[r];
      __m512i second = _mm512_srli_epi16(n.codes[r], 4);
      if constexpr (choose) {
        first = pick_index(first, n.choice[r], low);
        second = pick_index(second, n.choice[r], low);
      }
      const __m512i w0 = _mm512_permutexvar_epi8(first, table);
      const __m512i w1 = _mm512_permutexvar_epi8(second, table);
      DECANT_UNROLL
      for (int t = 0; t < T; ++t) {
        const __m512i d = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(undo[t], w0, x[0][t]), w1, x[1][t]);
        const __m512 scale = scaled_before ? n.scale[r] : _mm512_mul_ps(n.scale[r], x_scale[t]);
        sum[r][t] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(d), sum[r][t]);
      }
    }
    if (!offsets) return;
    DECANT_UNROLL
    for (int t = 0; t < T; ++t) {
      const __m512 share = _mm512_mul_ps(x_scale[t], _mm512_set1_ps(-1.0f / 128));
      const __m512 x_sum = _mm512_mul_ps(_mm512_cvtepi32_ps(undo[t]), share);
      DECANT_UNROLL
      for (int r = 0; r < R; ++r)
        sum[r][t] = _mm512_fmadd_ps(n.offset(scales, r, b, each, lane_group), x_sum, sum[r][t]);
    }
  }

  /// One token: a block's two scales are multiplied for eight blocks at once.
  static constexpr bool scaled_before = T == 1 && NibbleScales<K, R>::per_block;

  DECANT_TARGET_NIBBLES_INT8 static void run(const NibbleStep& step) {
    NibbleScales<K, R> scales;
    expand_rows(step, scales);
    const bool offsets = has_offsets(*step.format, scales.per_block);
    const index_t each = scales.per_block ? 0 : nibble_block / step.format->group;
    const index_t x_scales = (step.cols + nibble_block - 1) / nibble_block * 192;
    const __m512i lane_group = lane_groups(step.format->group);
    if constexpr (scaled_before)
      scale_blocks(scales, reinterpret_cast<const float*>(step.x[0] + x_scales) + step.first_block, step.blocks);
    __m512 sum[R][T];
    load_sums(step, sum);
    std::byte last[R][64];
    for (int part = 0; part < 2; ++part) {
      NibbleSpan span = nibble_span<R>(step, part, last);
      for (index_t b = span.begin; b < span.end; ++b, span.codes += 64)
        block(step, scales, b, each, lane_group, span.codes, span.row_bytes, x_scales, offsets, sum);
    }
    store_sums(step, sum);
  }
};

// Activations of a block as floats: 512 bytes, float i of line s being column 8i + s (8i + (s ^ 1)); then, where there
// are offsets, the sums of each lane's columns.

inline index_t fp32_x_bytes(const NibbleFormat& f, index_t cols) {
  return (cols + nibble_block - 1) / nibble_block * (has_offsets(f, whole_blocks(f, cols)) ? 576 : 512);
}

template <Activations A>
void arrange_fp32_nibbles(const NibbleFormat& f, index_t cols, const float* x, std::byte* to) {
  const bool sums = has_offsets(f, whole_blocks(f, cols));
  for (index_t k = 0; k < cols; k += nibble_block, to += sums ? 576 : 512) {
    float v[nibble_block] = {};
    round_row<A>(x + k, cols - k < nibble_block ? cols - k : nibble_block, v);
    float* const out = reinterpret_cast<float*>(to);
    for (int i = 0; i < 16; ++i) {
      float sum = 0;
      for (int s = 0; s < 8; ++s) {
        out[16 * s + i] = v[8 * i + (s ^ (f.high_first ? 1 : 0))];
        sum += v[8 * i + s];
      }
      if (sums) out[128 + i] = sum;
    }
  }
}

template <NibbleKind K, int Rows, int Tokens>
struct NibblesFp32Avx512 {
  static constexpr int R = Rows, T = Tokens;
  static constexpr index_t lanes = 16;
  static void finish(const float* sums, index_t count, float* out) { finish_avx512(sums, count, out); }

  DECANT_TARGET_AVX512 DECANT_INLINE static void block(const NibbleStep& step, const NibbleScales<K, R>& scales,
                                                       index_t b, index_t each, __m512i lane_group,
                                                       const std::byte* codes, index_t stride, index_t x_block,
                                                       bool offsets, __m512 (&sum)[R][T]) {
    constexpr bool choose = K == NibbleKind::signs || K == NibbleKind::selectors;
    fetch_lines<R>(step, b);
    Nibbles512<K, R> n;
    n.load(step, scales, b, each, lane_group, codes, stride);
    const __m512i low = _mm512_set1_epi32(15);
    const index_t at = (step.first_block + b) * x_block;
    __m512 table[R], d[R][T];
    DECANT_UNROLL
    for (int r = 0; r < R; ++r) {
      table[r] = _mm512_load_ps(step.tables + (K == NibbleKind::block ? scales.table[r][b] : 0u));
      DECANT_UNROLL
      for (int t = 0; t < T; ++t) d[r][t] = _mm512_setzero_ps();
    }
    const __m512 second = _mm512_load_ps(step.tables + (choose ? 64 : 0));
    DECANT_UNROLL
    for (int s = 0; s < 8; ++s) {
      __m512 x[T];
      DECANT_UNROLL
      for (int t = 0; t < T; ++t) x[t] = _mm512_load_ps(step.x[t] + at + 64 * s);
      DECANT_UNROLL
      for (int r = 0; r < R; ++r) {
        const __m512i code = s == 0 ? n.codes[r] : _mm512_srli_epi32(n.codes[r], static_cast<unsigned>(4 * s));
        __m512 w;
        if constexpr (choose) w = _mm512_permutex2var_ps(table[r], pick_index(code, n.choice[r], low), second);
        else w = _mm512_permutexvar_ps(code, table[r]);
        DECANT_UNROLL
        for (int t = 0; t < T; ++t) d[r][t] = _mm512_fmadd_ps(w, x[t], d[r][t]);
      }
    }
    DECANT_UNROLL
    for (int r = 0; r < R; ++r) {
      DECANT_UNROLL
      for (int t = 0; t < T; ++t) sum[r][t] = _mm512_fmadd_ps(n.scale[r], d[r][t], sum[r][t]);
    }
    if (!offsets) return;
    DECANT_UNROLL
    for (int r = 0; r < R; ++r) {
      const __m512 offset = n.offset(scales, r, b, each, lane_group);
      DECANT_UNROLL
      for (int t = 0; t < T; ++t)
        sum[r][t] = _mm512_fmadd_ps(offset, _mm512_load_ps(step.x[t] + at + 512), sum[r][t]);
    }
  }

  DECANT_TARGET_AVX512 static void run(const NibbleStep& step) {
    NibbleScales<K, R> scales;
    expand_rows(step, scales);
    const bool offsets = has_offsets(*step.format, scales.per_block);
    const index_t x_block = offsets ? 576 : 512;
    const index_t each = scales.per_block ? 0 : nibble_block / step.format->group;
    const __m512i lane_group = lane_groups(step.format->group);
    __m512 sum[R][T];
    load_sums(step, sum);
    std::byte last[R][64];
    for (int part = 0; part < 2; ++part) {
      NibbleSpan span = nibble_span<R>(step, part, last);
      for (index_t b = span.begin; b < span.end; ++b, span.codes += 64)
        block(step, scales, b, each, lane_group, span.codes, span.row_bytes, x_block, offsets, sum);
    }
    store_sums(step, sum);
  }
};

inline bool has_nibbles_bf16() {
  static const bool has = best_isa() == Isa::avx512 && __builtin_cpu_supports("avx512bf16");
  return has;
}
inline bool has_nibbles_int8() {
  static const bool has = has_vbmi() && __builtin_cpu_supports("avx512vnni");
  return has;
}

template <NibbleKind K, int R, int T>
using NibblesPlainBf16Avx512 = NibblesBf16Avx512<K, false, R, T>;
template <NibbleKind K, int R, int T>
using NibblesResidueBf16Avx512 = NibblesBf16Avx512<K, true, R, T>;

template <NibbleNeeds N>
void product_bf16_avx512(const NibbleFormat& f, const NibbleRows& w, const std::byte* x, index_t x_stride,
                         index_t tokens, float* y, index_t y_stride) {
  alignas(64) std::byte tables[nibble_table_bytes];
  prepare_bf16_nibbles(f, tables);
  if constexpr (N == NibbleNeeds::residue)
    nibble_product_of_kind<NibblesResidueBf16Avx512, N>(f, w, tables, x, x_stride, tokens, y, y_stride);
  else
    nibble_product_of_kind<NibblesPlainBf16Avx512, N>(f, w, tables, x, x_stride, tokens, y, y_stride);
}

template <NibbleNeeds N>
void product_int8_avx512(const NibbleFormat& f, const NibbleRows& w, const std::byte* x, index_t x_stride,
                         index_t tokens, float* y, index_t y_stride) {
  alignas(64) std::byte tables[nibble_table_bytes];
  const NibbleFormat scaled = prepare_int8_nibbles(f, 128, tables);
  nibble_product_of_kind<NibblesInt8Avx512, N>(scaled, w, tables, x, x_stride, tokens, y, y_stride);
}

template <NibbleNeeds N>
void product_fp32_avx512(const NibbleFormat& f, const NibbleRows& w, const std::byte* x, index_t x_stride,
                         index_t tokens, float* y, index_t y_stride) {
  nibble_product_of_kind<NibblesFp32Avx512, N>(f, w, reinterpret_cast<const std::byte*>(f.table), x, x_stride, tokens,
                                               y, y_stride);
}

}  // namespace decant::quant::detail

#endif

#endif
