// decant: products of ggml's blocks with activations in bf16, on AVX-512 with dot products of bf16 numbers. A code less
// its bias is such a number, found in a table of 32 (vpermw) or 64 (Q6_K) by 16 bits of which the low ones count;
// Q8_0's codes are sums of two. Products are exact; subnormal activations count as 0.
#ifndef DECANT_QUANT_DETAIL_MATMUL_GGML_BF16_HPP
#define DECANT_QUANT_DETAIL_MATMUL_GGML_BF16_HPP

#include <type_traits>

#include "matmul_ggml_avx512.hpp"

namespace decant::quant::detail {

/// A unit of activations: four lines of 32 in bf16, word j of line s being that of byte 2j + s / 2 of a (s even) or b;
/// then, per minimum, the sum of its activations.
template <class F>
inline constexpr index_t ggml_bf16_unit = GgmlOrder<F>::minima == GgmlMinima::none ? 256 : 320;

template <class F>
index_t ggml_bf16_bytes(const Packed<F>& w) {
  return ggml_units(w.cols()) * ggml_bf16_unit<F>;
}
#if DECANT_X86

#define DECANT_TARGET_GGML_BF16 \
  __attribute__((target("avx512bf16,avx512vnni,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi,bmi2")))

inline bool has_vnni_and_bf16() {
  static const bool has = has_vnni() && __builtin_cpu_supports("avx512bf16");
  return has;
}

/// Of line s, where in 64 columns its words are, and which are of the other 64.
template <class F>
struct GgmlLines {
  alignas(64) std::uint16_t word[4][32] = {};
  std::uint32_t upper[4] = {};

  constexpr GgmlLines() {
    for (index_t s = 0; s < 4; ++s) {
      for (index_t j = 0; j < 32; ++j) {
        const index_t column = ggml_column<F>(2 * j + s / 2 + s % 2 * 64);
        word[s][j] = static_cast<std::uint16_t>(column % 64);
        upper[s] |= static_cast<std::uint32_t>(column / 64) << j;
      }
    }
  }
};

/// 32 activations from x on, of which `left` are there.
DECANT_TARGET_GGML_BF16 DECANT_INLINE __m512i bf16_words(const float* x, index_t left) {
  const __mmask16 all = 0xffff;
  const __m512 low = _mm512_maskz_loadu_ps(left > 0 ? all : __mmask16{0}, x);
  const __m512 high = _mm512_maskz_loadu_ps(left > 16 ? all : __mmask16{0}, x + 16);
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
}
/// Per lane the sum of two activations.
DECANT_TARGET_GGML_BF16 DECANT_INLINE __m512 word_sums(__m512i line) {
  return _mm512_add_ps(_mm512_castsi512_ps(_mm512_slli_epi32(line, 16)),
                       _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_srli_epi32(line, 16), 16)));
}

template <class F>
DECANT_TARGET_GGML_BF16 void ggml_bf16_arrange(const Packed<F>& w, const float* x, std::byte* to) {
  using Order = GgmlOrder<F>;
  static constexpr GgmlLines<F> lines;
  for (index_t k = 0; k < w.cols(); k += ggml_unit, to += ggml_bf16_unit<F>) {
    const index_t left = w.cols() - k;
    const __m512i v0 = bf16_words(x + k, left), v1 = bf16_words(x + k + 32, left - 32);
    const __m512i v2 = bf16_words(x + k + 64, left - 64), v3 = bf16_words(x + k + 96, left - 96);
    __m512 sum[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    DECANT_UNROLL
    for (int s = 0; s < 4; ++s) {
      const __m512i word = _mm512_load_si512(lines.word[s]);
      const __m512i line = _mm512_mask_mov_epi16(_mm512_permutex2var_epi16(v0, word, v1), lines.upper[s],
                                                 _mm512_permutex2var_epi16(v2, word, v3));
      _mm512_store_si512(to + 64 * s, line);
      sum[s % 2] = _mm512_add_ps(sum[s % 2], word_sums(line));
    }
    float* const sums = reinterpret_cast<float*>(to + 256);
    if constexpr (Order::minima == GgmlMinima::lanes) {
      _mm512_store_ps(sums, _mm512_add_ps(sum[0], sum[1]));
    } else if constexpr (Order::minima == GgmlMinima::parts) {
      // Behind the eight scales of a block, the minima of this half's four parts: half of a's or b's lanes each.
      const __mmask16 first = 0x00ff, second = 0xff00;
      _mm512_store_ps(sums, _mm512_setzero_ps());
      float* const part = sums + 8 + k / ggml_unit % 2 * 4;
      part[0] = _mm512_mask_reduce_add_ps(first, sum[0]);
      part[1] = _mm512_mask_reduce_add_ps(first, sum[1]);
      part[2] = _mm512_mask_reduce_add_ps(second, sum[0]);
      part[3] = _mm512_mask_reduce_add_ps(second, sum[1]);
    }
  }
}

/// Numbers by code: code - bias, or IQ4_NL's levels; Q8_0: the low four bits, then the high ones, less 128.
template <class F>
struct GgmlTable {
  alignas(64) bf16 number[64];

  GgmlTable() {
    for (int i = 0; i < 64; ++i) {
      float value = static_cast<float>(i - GgmlOrder<F>::bias);
      if constexpr (std::is_same_v<F, ggml::Q8_0>) value = static_cast<float>(i < 32 ? i % 16 : i % 16 * 16 - 128);
      if constexpr (std::is_same_v<F, ggml::IQ4_NL>) value = ggml::IQ4_NL::level(i % 16);
      number[i] = bf16(value);
    }
  }
};

DECANT_TARGET_GGML_BF16 DECANT_INLINE __m512 dot_bf16(__m512 sum, __m512i w, const std::byte* x) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(w), reinterpret_cast<__m512bh>(_mm512_load_si512(x)));
}

/// The numbers of 64 codes, those of even bytes and those of odd ones; of Q8_0, their high parts too.
template <class F>
struct GgmlNumbers {
  __m512i even, odd, high_even, high_odd;

  DECANT_TARGET_GGML_BF16 DECANT_INLINE void look_up(__m512i codes, __m512i low, __m512i high) {
    const __m512i shifted = _mm512_srli_epi16(codes, 8);
    if constexpr (std::is_same_v<F, ggml::Q6_K>) {
      even = _mm512_permutex2var_epi16(low, codes, high);
      odd = _mm512_permutex2var_epi16(low, shifted, high);
    } else {
      even = _mm512_permutexvar_epi16(codes, low);
      odd = _mm512_permutexvar_epi16(shifted, low);
    }
    if constexpr (std::is_same_v<F, ggml::Q8_0>) {
      high_even = _mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 4), high);
      high_odd = _mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 12), high);
    }
  }
  /// `x`: the line of the even bytes.
  DECANT_TARGET_GGML_BF16 DECANT_INLINE __m512 dot(__m512 sum, const std::byte* x) const {
    sum = dot_bf16(dot_bf16(sum, even, x), odd, x + 128);
    if constexpr (std::is_same_v<F, ggml::Q8_0>) sum = dot_bf16(dot_bf16(sum, high_even, x), high_odd, x + 128);
    return sum;
  }
};

/// As ggml_panel_avx512.
template <class F, int T>
DECANT_TARGET_GGML_BF16 inline void ggml_panel_bf16(const GgmlPanel<F>& panel, const GgmlTable<F>& table, index_t rows,
                                                    const std::byte* x, index_t x_stride, float* y, index_t y_stride) {
  using Order = GgmlOrder<F>;
  constexpr int units = static_cast<int>(ggml_chunk_units<F>);
  const __m512i low = _mm512_load_si512(table.number), high = _mm512_load_si512(table.number + 32);
  __m512 sum[ggml_rows][T];
  DECANT_UNROLL
  for (int r = 0; r < ggml_rows; ++r) {
    DECANT_UNROLL
    for (int t = 0; t < T; ++t) sum[r][t] = _mm512_setzero_ps();
  }
  for (index_t c = 0; c < panel.chunks; ++c, x += units * ggml_bf16_unit<F>) {
    panel.fetch(c);
    DECANT_UNROLL
    for (int r = 0; r < ggml_rows; ++r) {
      GgmlUnit512 u[units];
      if constexpr (std::is_same_v<F, ggml::IQ4_NL>)
        GgmlLoad512<F>::load_codes(panel.chunk(r, c), u);
      else
        GgmlLoad512<F>::load(panel.chunk(r, c), u);
      DECANT_UNROLL
      for (int i = 0; i < units; ++i) {
        GgmlNumbers<F> a, b;
        a.look_up(u[i].a, low, high);
        b.look_up(u[i].b, low, high);
        DECANT_UNROLL
        for (int t = 0; t < T; ++t) {
          const std::byte* const from = x + i * ggml_bf16_unit<F> + t * x_stride;
          const __m512 part = a.dot(_mm512_setzero_ps(), from);
          const __m512 rest = b.dot(Order::two_scales ? _mm512_setzero_ps() : part, from + 64);
          if constexpr (Order::two_scales) sum[r][t] = _mm512_fmadd_ps(part, u[i].scale_a, sum[r][t]);
          sum[r][t] = _mm512_fmadd_ps(rest, Order::two_scales ? u[i].scale_b : u[i].scale_a, sum[r][t]);
          if constexpr (Order::minima != GgmlMinima::none)
            sum[r][t] =
                _mm512_fmadd_ps(u[i].minima, _mm512_load_ps(reinterpret_cast<const float*>(from + 256)), sum[r][t]);
        }
      }
    }
  }
  DECANT_UNROLL
  for (int r = 0; r < ggml_rows; ++r) {
    if (r >= rows) break;
    DECANT_UNROLL
    for (int t = 0; t < T; ++t) y[t * y_stride + r] = _mm512_reduce_add_ps(sum[r][t]);
  }
}

template <class F>
void ggml_rows_bf16(const Packed<F>& w, index_t first, index_t last, const std::byte* x, index_t x_stride,
                    index_t tokens, float* y, index_t y_stride, std::byte*) {
  const GgmlTable<F> table;
  ggml_panels<4>(
      w, first, last, x, x_stride, tokens, y, y_stride,
      [&table](const auto& panel, auto... rest) { ggml_panel_bf16<F, 4>(panel, table, rest...); },
      [&table](const auto& panel, auto... rest) { ggml_panel_bf16<F, 1>(panel, table, rest...); });
}

#endif

}  // namespace decant::quant::detail

#endif
