// decant: the inner kernel of quant::Plain's matmul: dot products of a block of weight rows with all tokens, in tiles
// of 4 rows by 4 tokens held in registers. Every output is summed in one fixed order: by lanes along the columns, then
// over the lanes; a tile's shape does not enter, so a row of the result never depends on its neighbours.
#ifndef DECANT_QUANT_DETAIL_DOT_TILE_HPP
#define DECANT_QUANT_DETAIL_DOT_TILE_HPP

#include <type_traits>

#include "../../core/detail/intrinsics.hpp"
#include "../../core/dtype.hpp"
#include "../../core/simd.hpp"


namespace decant::quant::detail {

inline constexpr index_t dot_side = 4;

/// out[t * out_stride + r] = dot(w + r * w_stride, x + t * x_stride) over `cols`, 8 partial sums.
template <class T>
void dot_tile_portable(const T* w, index_t w_stride, index_t rows, const float* x, index_t x_stride, index_t tokens,
                       index_t cols, float* out, index_t out_stride) {
  for (index_t t = 0; t < tokens; ++t) {
    for (index_t r = 0; r < rows; ++r) {
      float sum[8] = {};
      index_t c = 0;
      for (; c + 8 <= cols; c += 8) {
        for (index_t i = 0; i < 8; ++i) sum[i] += static_cast<float>(w[r * w_stride + c + i]) * x[t * x_stride + c + i];
      }
      for (; c < cols; ++c) sum[c % 8] += static_cast<float>(w[r * w_stride + c]) * x[t * x_stride + c];
      out[t * out_stride + r] = ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
    }
  }
}

#if DECANT_X86

DECANT_TARGET_AVX512 inline __m512 dot_load16(const float* p, __mmask16 m) { return _mm512_maskz_loadu_ps(m, p); }
DECANT_TARGET_AVX512 inline __m512 dot_load16(const bf16* p, __mmask16 m) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(m, p)), 16));
}
DECANT_TARGET_AVX512 inline __m512 dot_load16(const fp16* p, __mmask16 m) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(m, p));
}

/// The sums over the lanes of four registers, each in the order of _mm512_reduce_add_ps.
DECANT_TARGET_AVX512 inline __m128 dot_sum4(__m512 a, __m512 b, __m512 c, __m512 d) {
  const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
  const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
  // A quarter of the register for each of them.
  const __m512 four = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
  const __m512 two = _mm512_add_ps(four, _mm512_permute_ps(four, 0x4e));
  const __m512 one = _mm512_add_ps(two, _mm512_permute_ps(two, 0xb1));
  return _mm512_castps512_ps128(_mm512_maskz_compress_ps(__mmask16(0x1111), one));
}

template <int Rows, int Tokens, class T>
DECANT_TARGET_AVX512 void dot_tile_avx512(const T* w, index_t w_stride, const float* x, index_t x_stride, index_t cols,
                                          float* out, index_t out_stride) {
  __m512 sum[Rows][Tokens];
  DECANT_UNROLL
  for (int r = 0; r < Rows; ++r) {
    DECANT_UNROLL
    for (int t = 0; t < Tokens; ++t) sum[r][t] = _mm512_setzero_ps();
  }
  for (index_t c = 0; c < cols; c += 16) {
    const __mmask16 m = cols - c >= 16 ? __mmask16(0xffff) : static_cast<__mmask16>((1u << (cols - c)) - 1u);
    __m512 token[Tokens];
    DECANT_UNROLL
    for (int t = 0; t < Tokens; ++t) token[t] = dot_load16(x + t * x_stride + c, m);
    DECANT_UNROLL
    for (int r = 0; r < Rows; ++r) {
      const __m512 weight = dot_load16(w + r * w_stride + c, m);
      DECANT_UNROLL
      for (int t = 0; t < Tokens; ++t) sum[r][t] = _mm512_fmadd_ps(weight, token[t], sum[r][t]);
    }
  }
  DECANT_UNROLL
  for (int t = 0; t < Tokens; ++t) {
    if constexpr (Rows == 4) {
      _mm_storeu_ps(out + t * out_stride, dot_sum4(sum[0][t], sum[1][t], sum[2][t], sum[3][t]));
    } else {
      DECANT_UNROLL
      for (int r = 0; r < Rows; ++r) out[t * out_stride + r] = _mm512_reduce_add_ps(sum[r][t]);
    }
  }
}

DECANT_TARGET_AVX2 inline __m256 dot_load8(const float* p) { return _mm256_loadu_ps(p); }
DECANT_TARGET_AVX2 inline __m256 dot_load8(const bf16* p) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
DECANT_TARGET_AVX2 inline __m256 dot_load8(const fp16* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

template <int Rows, int Tokens, class T>
DECANT_TARGET_AVX2 void dot_tile_avx2(const T* w, index_t w_stride, const float* x, index_t x_stride, index_t cols,
                                      float* out, index_t out_stride) {
  __m256 sum[Rows][Tokens];
  DECANT_UNROLL
  for (int r = 0; r < Rows; ++r) {
    DECANT_UNROLL
    for (int t = 0; t < Tokens; ++t) sum[r][t] = _mm256_setzero_ps();
  }
  index_t c = 0;
  for (; c + 8 <= cols; c += 8) {
    DECANT_UNROLL
    for (int r = 0; r < Rows; ++r) {
      const __m256 weight = dot_load8(w + r * w_stride + c);
      DECANT_UNROLL
      for (int t = 0; t < Tokens; ++t) {
        sum[r][t] = _mm256_fmadd_ps(weight, _mm256_loadu_ps(x + t * x_stride + c), sum[r][t]);
      }
    }
  }
  DECANT_UNROLL
  for (int r = 0; r < Rows; ++r) {
    DECANT_UNROLL
    for (int t = 0; t < Tokens; ++t) {
      const __m128 four = _mm_add_ps(_mm256_castps256_ps128(sum[r][t]), _mm256_extractf128_ps(sum[r][t], 1));
      const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
      float total = _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
      for (index_t i = c; i < cols; ++i) total += static_cast<float>(w[r * w_stride + i]) * x[t * x_stride + i];
      out[t * out_stride + r] = total;
    }
  }
}

template <class T>
inline constexpr bool has_vector_load = std::is_same_v<T, float> || std::is_same_v<T, bf16> || std::is_same_v<T, fp16>;

#endif

/// One tile of at most 4 rows by 4 tokens on the given path.
template <class T>
void dot_tile(Isa isa, const T* w, index_t w_stride, index_t rows, const float* x, index_t x_stride, index_t tokens,
              index_t cols, float* out, index_t out_stride) {
#if DECANT_X86
  if constexpr (has_vector_load<T>) {
    if (isa == Isa::avx512) {
      if (rows == dot_side) {
        const auto tile = tokens == 4   ? &dot_tile_avx512<dot_side, 4, T>
                          : tokens == 3 ? &dot_tile_avx512<dot_side, 3, T>
                          : tokens == 2 ? &dot_tile_avx512<dot_side, 2, T>
                                        : &dot_tile_avx512<dot_side, 1, T>;
        return tile(w, w_stride, x, x_stride, cols, out, out_stride);
      }
      for (index_t t = 0; t < tokens; ++t) {
        for (index_t r = 0; r < rows; ++r) {
          dot_tile_avx512<1, 1>(w + r * w_stride, w_stride, x + t * x_stride, x_stride, cols,
                                out + t * out_stride + r, out_stride);
        }
      }
      return;
    }
    if (isa == Isa::avx2) {
      index_t r = 0;
      for (; r + 2 <= rows; r += 2) {
        index_t t = 0;
        for (; t + dot_side <= tokens; t += dot_side) {
          dot_tile_avx2<2, dot_side>(w + r * w_stride, w_stride, x + t * x_stride, x_stride, cols,
                                 out + t * out_stride + r, out_stride);
        }
        for (; t < tokens; ++t) {
          dot_tile_avx2<2, 1>(w + r * w_stride, w_stride, x + t * x_stride, x_stride, cols, out + t * out_stride + r,
                              out_stride);
        }
      }
      for (; r < rows; ++r) {
        for (index_t t = 0; t < tokens; ++t) {
          dot_tile_avx2<1, 1>(w + r * w_stride, w_stride, x + t * x_stride, x_stride, cols, out + t * out_stride + r,
                              out_stride);
        }
      }
      return;
    }
  }
#endif
  (void)isa;
  dot_tile_portable(w, w_stride, rows, x, x_stride, tokens, cols, out, out_stride);
}

/// All tokens against `rows` weight rows.
template <class T>
void dot_block(Isa isa, const T* w, index_t w_stride, index_t rows, const float* x, index_t x_stride, index_t tokens,
               index_t cols, float* out, index_t out_stride) {
  for (index_t t = 0; t < tokens; t += dot_side) {
    const index_t token_count = tokens - t < dot_side ? tokens - t : dot_side;
    for (index_t r = 0; r < rows; r += dot_side) {
      const index_t row_count = rows - r < dot_side ? rows - r : dot_side;
      dot_tile(isa, w + r * w_stride, w_stride, row_count, x + t * x_stride, x_stride, token_count, cols,
               out + t * out_stride + r, out_stride);
    }
  }
}

}  // namespace decant::quant::detail

#endif
