// decant: the kernels of matmul_ggml.hpp on AVX2: half a unit at a time, bytes 0 ... 31 of a and b with lanes 0 ... 7,
// then the others. int8: vpmaddubsw and vpmaddwd, exact, as codes are small; those of Q8_0 and IQ4_NL, which need all
// of a byte, are taken signed, their signs moved to the activations.
#ifndef DECANT_QUANT_DETAIL_MATMUL_GGML_AVX2_HPP
#define DECANT_QUANT_DETAIL_MATMUL_GGML_AVX2_HPP

#include <type_traits>

#include "../../core/detail/intrinsics.hpp"
#include "matmul_ggml.hpp"

#if DECANT_X86

namespace decant::quant::detail {

/// Half a unit: codes as bytes, unsigned unless they are ggml_wide; else as GgmlUnit512.
struct GgmlUnit256 {
  __m256i a, b;
  __m256 scale_a, scale_b;
  __m256 minima;
  __m256 minimum_a, minimum_b;
};

template <class F>
inline constexpr bool ggml_wide = GgmlOrder<F>::bias == 128;

DECANT_TARGET_AVX2 DECANT_INLINE __m128i load128(const std::byte* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
DECANT_TARGET_AVX2 DECANT_INLINE __m256i load256(const std::byte* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
DECANT_TARGET_AVX2 DECANT_INLINE __m256i two_blocks256(const std::byte* p, const std::byte* next) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(load128(p)), load128(next), 1);
}
DECANT_TARGET_AVX2 DECANT_INLINE __m256i low_nibbles256(__m256i x) {
  return _mm256_and_si256(x, _mm256_set1_epi8(15));
}
DECANT_TARGET_AVX2 DECANT_INLINE __m256i high_nibbles256(__m256i x) {
  return low_nibbles256(_mm256_srli_epi16(x, 4));
}

DECANT_TARGET_AVX2 DECANT_INLINE float half_at(const std::byte* p) {
  return _cvtsh_ss(load_le<std::uint16_t>(p));
}

/// Four lanes of x and four of y.
DECANT_TARGET_AVX2 DECANT_INLINE __m256 two_of256(float x, float y) {
  return _mm256_insertf128_ps(_mm256_set1_ps(x), _mm_set1_ps(y), 1);
}

/// Q4_K's eight scales of six bits, then its eight minima, as 16 bytes, from the 12 at p (16 are read).
DECANT_TARGET_AVX2 DECANT_INLINE __m128i six_bits(const std::byte* p) {
  const __m128i raw = load128(p);
  const __m128i low =
      _mm_srlv_epi32(_mm_shuffle_epi8(raw, _mm_setr_epi8(0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 8, 9, 10, 11)),
                     _mm_setr_epi32(0, 0, 0, 4));
  const __m128i high = _mm_shuffle_epi8(raw, _mm_setr_epi8(-1, -1, -1, -1, 0, 1, 2, 3, -1, -1, -1, -1, 4, 5, 6, 7));
  return _mm_or_si128(_mm_and_si128(low, _mm_setr_epi32(0x3f3f3f3f, 0x0f0f0f0f, 0x3f3f3f3f, 0x0f0f0f0f)),
                      _mm_and_si128(_mm_srli_epi16(high, 2), _mm_set1_epi8(0x30)));
}

/// Half V of the units of the chunk at p.
template <class F>
struct GgmlLoad256;

template <>
struct GgmlLoad256<ggml::Q8_0> {
  template <int V>
  DECANT_TARGET_AVX2 DECANT_INLINE static void load(const std::byte* p, GgmlUnit256 (&u)[1]) {
    u[0].a = load256(p + 34 * V + 2);
    u[0].b = load256(p + 34 * V + 70);
    u[0].scale_a = _mm256_set1_ps(half_at(p + 34 * V));
    u[0].scale_b = _mm256_set1_ps(half_at(p + 34 * V + 68));
  }
};
template <>
struct GgmlLoad256<ggml::Q4_0> {
  template <int V>
  DECANT_TARGET_AVX2 DECANT_INLINE static void load(const std::byte* p, GgmlUnit256 (&u)[1]) {
    const std::byte* const block = p + 36 * V;
    const __m256i codes = two_blocks256(block + 2, block + 20);
    u[0].a = low_nibbles256(codes);
    u[0].b = high_nibbles256(codes);
    u[0].scale_a = two_of256(half_at(block), half_at(block + 18));
  }
};
template <>
struct GgmlLoad256<ggml::Q4_1> {
  template <int V>
  DECANT_TARGET_AVX2 DECANT_INLINE static void load(const std::byte* p, GgmlUnit256 (&u)[1]) {
    const std::byte* const block = p + 40 * V;
    const __m256i codes = two_blocks256(block + 4, block + 24);
    u[0].a = low_nibbles256(codes);
    u[0].b = high_nibbles256(codes);
    u[0].scale_a = two_of256(half_at(block), half_at(block + 20));
    u[0].minima = u[0].minimum_a = u[0].minimum_b = two_of256(half_at(block + 2), half_at(block + 22));
  }
};
template <>
struct GgmlLoad256<ggml::IQ4_NL> {
  template <int V>
  DECANT_TARGET_AVX2 DECANT_INLINE static void load(const std::byte* p, GgmlUnit256 (&u)[1]) {
    const std::byte* const block = p + 36 * V;
    const __m256i codes = two_blocks256(block + 2, block + 20);
    const __m256i levels = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113));
    u[0].a = _mm256_shuffle_epi8(levels, low_nibbles256(codes));
    u[0].b = _mm256_shuffle_epi8(levels, high_nibbles256(codes));
    u[0].scale_a = two_of256(half_at(block), half_at(block + 18));
  }
};

/// Doubled E2M1, 12 added.
DECANT_TARGET_AVX2 DECANT_INLINE __m256i e2m1_256() {
  return _mm256_broadcastsi128_si256(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
}
template <>
struct GgmlLoad256<ggml::MXFP4> {
  template <int V>
  DECANT_TARGET_AVX2 DECANT_INLINE static void load(const std::byte* p, GgmlUnit256 (&u)[1]) {
    const std::byte* const block = p + 34 * V;
    const __m256i codes = two_blocks256(block + 1, block + 18);
    u[0].a = _mm256_shuffle_epi8(e2m1_256(), low_nibbles256(codes));
    u[0].b = _mm256_shuffle_epi8(e2m1_256(), high_nibbles256(codes));
    u[0].scale_a = two_of256(ggml::MXFP4::half_scale(static_cast<int>(block[0])),
                             ggml::MXFP4::half_scale(static_cast<int>(block[17])));
  }
};
template <>
struct GgmlLoad256<ggml::NVFP4> {
  template <int V>
  DECANT_TARGET_AVX2 DECANT_INLINE static void load(const std::byte* p, GgmlUnit256 (&u)[1]) {
    const std::byte* const block = p + 36 * V;
    const __m256i codes = load256(block + 4);
    u[0].a = _mm256_shuffle_epi8(e2m1_256(), low_nibbles256(codes));
    u[0].b = _mm256_shuffle_epi8(e2m1_256(), high_nibbles256(codes));
    // As fp16 whose exponent is 8 too small, halved; 0x7f is 0.
    const __m128i stored = _mm_cvtsi32_si128(static_cast<int>(load_le<std::uint32_t>(block)));
    const __m128i scale = _mm_andnot_si128(_mm_cmpeq_epi8(stored, _mm_set1_epi8(0x7f)), stored);
    const __m128i half = _mm_slli_epi16(_mm_and_si128(_mm_cvtepu8_epi16(scale), _mm_set1_epi16(0x7f)), 7);
    const __m128 scales = _mm_mul_ps(_mm_cvtph_ps(half), _mm_set1_ps(128.0f));
    u[0].scale_a = _mm256_permutevar8x32_ps(_mm256_castps128_ps256(scales), _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3));
  }
};
template <>
struct GgmlLoad256<ggml::Q4_K> {
  template <int V>
  DECANT_TARGET_AVX2 DECANT_INLINE static void load(const std::byte* p, GgmlUnit256 (&u)[2]) {
    const __m128i bytes = six_bits(p + 4);
    const __m256 scales = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)), _mm256_set1_ps(half_at(p)));
    const __m256 minima = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8))),
                                        _mm256_set1_ps(-half_at(p + 2)));
    DECANT_UNROLL
    for (int h = 0; h < 2; ++h) {
      const __m256i codes = load256(p + 16 + 64 * h + 32 * V);
      const __m256i part = _mm256_set1_epi32(4 * h + 2 * V);
      const __m256i next = _mm256_set1_epi32(4 * h + 2 * V + 1);
      u[h].a = low_nibbles256(codes);
      u[h].b = high_nibbles256(codes);
      u[h].scale_a = _mm256_permutevar8x32_ps(scales, part);
      u[h].scale_b = _mm256_permutevar8x32_ps(scales, next);
      u[h].minima = minima;  // for lanes 8 ... 15 of the sums
      u[h].minimum_a = _mm256_permutevar8x32_ps(minima, part);
      u[h].minimum_b = _mm256_permutevar8x32_ps(minima, next);
    }
  }
};
template <>
struct GgmlLoad256<ggml::Q6_K> {
  template <int V>
  DECANT_TARGET_AVX2 DECANT_INLINE static void load(const std::byte* p, GgmlUnit256 (&u)[2]) {
    const __m256 d = _mm256_set1_ps(half_at(p + 208));
    const __m256i two_bits = _mm256_set1_epi8(0x30);
    DECANT_UNROLL
    for (int h = 0; h < 2; ++h) {
      const __m256i low = load256(p + 64 * h + 32 * V);
      const __m256i high = load256(p + 128 + 32 * h);
      const __m256i up = V == 0 ? _mm256_slli_epi16(high, 4) : _mm256_slli_epi16(high, 2);
      const __m256i down = V == 0 ? high : _mm256_srli_epi16(high, 2);
      u[h].a = _mm256_or_si256(low_nibbles256(low), _mm256_and_si256(up, two_bits));
      u[h].b = _mm256_or_si256(high_nibbles256(low), _mm256_and_si256(down, two_bits));
      const __m256i bytes = _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 192 + 8 * h)));
      const __m256 scales = _mm256_mul_ps(_mm256_cvtepi32_ps(bytes), d);
      constexpr int s = 2 * V;
      u[h].scale_a = _mm256_permutevar8x32_ps(scales, _mm256_setr_epi32(s, s, s, s, s + 1, s + 1, s + 1, s + 1));
      u[h].scale_b =
          _mm256_permutevar8x32_ps(scales, _mm256_setr_epi32(s + 4, s + 4, s + 4, s + 4, s + 5, s + 5, s + 5, s + 5));
    }
  }
};

/// 32 activations as round_activations has them; their scale.
DECANT_TARGET_AVX2 inline float int8_block_avx2(const float* x, std::byte* to) {
  const __m256 x0 = _mm256_loadu_ps(x), x1 = _mm256_loadu_ps(x + 8);
  const __m256 x2 = _mm256_loadu_ps(x + 16), x3 = _mm256_loadu_ps(x + 24);
  const __m256 sign = _mm256_set1_ps(-0.0f);
  const __m256 top8 = _mm256_max_ps(_mm256_max_ps(_mm256_andnot_ps(sign, x0), _mm256_andnot_ps(sign, x1)),
                                    _mm256_max_ps(_mm256_andnot_ps(sign, x2), _mm256_andnot_ps(sign, x3)));
  const __m128 top4 = _mm_max_ps(_mm256_castps256_ps128(top8), _mm256_extractf128_ps(top8, 1));
  const __m128 top2 = _mm_max_ps(top4, _mm_movehl_ps(top4, top4));
  const __m256 odd = _mm256_or_ps(_mm256_cmp_ps(x0, x1, _CMP_UNORD_Q), _mm256_cmp_ps(x2, x3, _CMP_UNORD_Q));
  const float top = _mm_cvtss_f32(_mm_max_ss(top2, _mm_movehdup_ps(top2)));
  const float scale = _mm256_movemask_ps(odd) != 0 ? __builtin_nanf("") : top / 127.0f;
  const __m256 inverse = _mm256_set1_ps(int8_inverse(scale));
  const __m256i low = _mm256_packs_epi32(_mm256_cvtps_epi32(_mm256_mul_ps(x0, inverse)),
                                         _mm256_cvtps_epi32(_mm256_mul_ps(x1, inverse)));
  const __m256i high = _mm256_packs_epi32(_mm256_cvtps_epi32(_mm256_mul_ps(x2, inverse)),
                                          _mm256_cvtps_epi32(_mm256_mul_ps(x3, inverse)));
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order));
  return scale;
}

/// Per lane the sum of four codes.
DECANT_TARGET_AVX2 DECANT_INLINE __m256i code_sums256(const std::byte* codes) {
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), load256(codes));
  return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

/// As round_activations, but in blocks of 32.
template <class F>
DECANT_TARGET_AVX2 void ggml_int8_arrange(const Packed<F>& w, const float* x, std::byte* to) {
  using Order = GgmlOrder<F>;
  using Layout = GgmlInt8<F>;
  const index_t cols = w.cols();
  for (index_t k = 0; k < cols; k += ggml_unit, to += Layout::bytes) {
    float scale[4] = {};
    alignas(32) std::byte code[ggml_unit] = {};
    for (index_t j = 0; j < 4 && k + j * ggml_activations < cols; ++j)
      scale[j] = int8_block_avx2(x + k + j * ggml_activations, code + j * ggml_activations);
    for (index_t p = 0; p < 128; p += Order::run)
      std::memcpy(to + p, code + ggml_column<F>(p), static_cast<std::size_t>(Order::run));
    float* const scales = reinterpret_cast<float*>(to + Layout::scales);
    for (index_t i = 0; i < (Order::two_scales ? 8 : 4); ++i)
      _mm_store_ps(scales + 4 * i, _mm_set1_ps(scale[ggml_column<F>(16 * i) / ggml_activations]));
    __m256i sum[4];
    for (index_t i = 0; i < 4; ++i) sum[i] = code_sums256(to + 32 * i);
    if constexpr (!Order::two_scales) {
      sum[0] = _mm256_add_epi32(sum[0], sum[2]);
      sum[1] = _mm256_add_epi32(sum[1], sum[3]);
    }
    if constexpr (Order::bias != 0) {
      auto* const excess = reinterpret_cast<__m256i*>(to + Layout::excess);
      for (index_t i = 0; i < (Order::two_scales ? 4 : 2); ++i)
        _mm256_store_si256(excess + i, _mm256_mullo_epi32(sum[i], _mm256_set1_epi32(-Order::bias)));
    }
    float* const sums = reinterpret_cast<float*>(to + Layout::sums);
    if constexpr (Order::minima == GgmlMinima::lanes) {
      for (index_t i = 0; i < 2; ++i)
        _mm256_store_ps(sums + 8 * i, _mm256_mul_ps(_mm256_load_ps(scales + 8 * i), _mm256_cvtepi32_ps(sum[i])));
    } else if constexpr (Order::minima == GgmlMinima::parts) {
      // Behind the eight scales of a block, the minima of this half's four parts: half of a's or b's lanes each.
      const __m256i ab = _mm256_hadd_epi32(_mm256_hadd_epi32(sum[0], sum[2]), _mm256_hadd_epi32(sum[1], sum[3]));
      const __m128i parts = _mm_add_epi32(_mm256_castsi256_si128(ab), _mm256_extracti128_si256(ab, 1));
      for (index_t i = 0; i < 4; ++i) _mm_store_ps(sums + 4 * i, _mm_setzero_ps());
      _mm_store_ps(sums + 8 + k / ggml_unit % 2 * 4, _mm_mul_ps(_mm_loadu_ps(scale), _mm_cvtepi32_ps(parts)));
    }
  }
}

/// Per lane the sum of four products of codes with int8 activations, what the bias adds included.
template <class F>
DECANT_TARGET_AVX2 DECANT_INLINE __m256i lane_sums256(__m256i codes, const std::byte* x) {
  const __m256i values = _mm256_load_si256(reinterpret_cast<const __m256i*>(x));
  const __m256i pairs = ggml_wide<F> ? _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(values, codes))
                                     : _mm256_maddubs_epi16(codes, values);
  return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}
template <class F, int V>
DECANT_TARGET_AVX2 DECANT_INLINE __m256 add_int8_256(const GgmlUnit256& u, const std::byte* x, __m256 sum) {
  using Order = GgmlOrder<F>;
  using Layout = GgmlInt8<F>;
  constexpr bool biased = Order::bias != 0 && !ggml_wide<F>;
  const auto* const scales = reinterpret_cast<const float*>(x + Layout::scales) + 8 * V;
  const auto* const excess = reinterpret_cast<const __m256i*>(x + Layout::excess) + V;
  __m256i a = lane_sums256<F>(u.a, x + 32 * V);
  __m256i b = lane_sums256<F>(u.b, x + 64 + 32 * V);
  if constexpr (biased) a = _mm256_add_epi32(a, _mm256_load_si256(excess));
  if constexpr (Order::two_scales) {
    if constexpr (biased) b = _mm256_add_epi32(b, _mm256_load_si256(excess + 2));
    sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(b), _mm256_mul_ps(u.scale_b, _mm256_load_ps(scales + 16)), sum);
  } else {
    a = _mm256_add_epi32(a, b);
  }
  sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(a), _mm256_mul_ps(u.scale_a, _mm256_load_ps(scales)), sum);
  if constexpr (Order::minima == GgmlMinima::lanes || (Order::minima == GgmlMinima::parts && V == 1))
    sum = _mm256_fmadd_ps(u.minima, _mm256_load_ps(reinterpret_cast<const float*>(x + Layout::sums) + 8 * V), sum);
  return sum;
}

/// 8 weights as floats, exactly: bytes 8 Eighth ... of a or b.
template <class F, int Eighth>
DECANT_TARGET_AVX2 DECANT_INLINE __m256 weights256(__m256i codes, __m256 scale, __m256 minimum) {
  const __m128i half = Eighth < 2 ? _mm256_castsi256_si128(codes) : _mm256_extracti128_si256(codes, 1);
  const __m256 w = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(Eighth % 2 == 0 ? half : _mm_srli_si128(half, 8)));
  constexpr int i = 2 * Eighth;
  const __m256i at = _mm256_setr_epi32(i, i, i, i, i + 1, i + 1, i + 1, i + 1);
  const __m256 s = _mm256_permutevar8x32_ps(scale, at);
  if constexpr (GgmlOrder<F>::minima == GgmlMinima::none)
    return _mm256_mul_ps(w, s);
  else
    return _mm256_fmadd_ps(w, s, _mm256_permutevar8x32_ps(minimum, at));
}
template <class F, int T>
DECANT_TARGET_AVX2 DECANT_INLINE void add_float_256(__m256i codes, __m256 scale, __m256 minimum, const float* x,
                                                    index_t x_stride, __m256 (&sum)[T]) {
  constexpr int bias = ggml_wide<F> ? 0 : GgmlOrder<F>::bias;
  const __m256i w = _mm256_sub_epi8(codes, _mm256_set1_epi8(static_cast<char>(bias)));
  const __m256 w0 = weights256<F, 0>(w, scale, minimum), w1 = weights256<F, 1>(w, scale, minimum);
  const __m256 w2 = weights256<F, 2>(w, scale, minimum), w3 = weights256<F, 3>(w, scale, minimum);
  DECANT_UNROLL
  for (int t = 0; t < T; ++t) {
    const float* const from = x + t * x_stride;
    sum[t] = _mm256_fmadd_ps(w0, _mm256_load_ps(from), sum[t]);
    sum[t] = _mm256_fmadd_ps(w1, _mm256_load_ps(from + 8), sum[t]);
    sum[t] = _mm256_fmadd_ps(w2, _mm256_load_ps(from + 16), sum[t]);
    sum[t] = _mm256_fmadd_ps(w3, _mm256_load_ps(from + 24), sum[t]);
  }
}

/// Half V of a chunk with T tokens.
template <class F, bool Int8, int V, int T>
DECANT_TARGET_AVX2 DECANT_INLINE void add_half_256(const std::byte* p, const std::byte* x, index_t x_stride,
                                                   __m256 (&sum)[T]) {
  constexpr int units = static_cast<int>(ggml_chunk_units<F>);
  constexpr index_t x_bytes = Int8 ? GgmlInt8<F>::bytes : ggml_unit * static_cast<index_t>(sizeof(float));
  GgmlUnit256 u[units];
  GgmlLoad256<F>::template load<V>(p, u);
  DECANT_UNROLL
  for (int i = 0; i < units; ++i) {
    if constexpr (Int8) {
      DECANT_UNROLL
      for (int t = 0; t < T; ++t) sum[t] = add_int8_256<F, V>(u[i], x + i * x_bytes + t * x_stride, sum[t]);
    } else {
      const auto* const from = reinterpret_cast<const float*>(x + i * x_bytes) + 32 * V;
      const index_t stride = x_stride / static_cast<index_t>(sizeof(float));
      add_float_256<F>(u[i].a, u[i].scale_a, u[i].minimum_a, from, stride, sum);
      add_float_256<F>(u[i].b, GgmlOrder<F>::two_scales ? u[i].scale_b : u[i].scale_a, u[i].minimum_b, from + 64,
                       stride, sum);
    }
  }
}

/// T tokens with `rows` rows.
template <class F, bool Int8, int T>
DECANT_TARGET_AVX2 inline void ggml_panel_avx2(const GgmlPanel<F>& panel, index_t rows, const std::byte* x,
                                               index_t x_stride, float* y, index_t y_stride) {
  constexpr index_t x_bytes = Int8 ? GgmlInt8<F>::bytes : ggml_unit * static_cast<index_t>(sizeof(float));
  __m256 sum[ggml_rows][T];
  DECANT_UNROLL
  for (int r = 0; r < ggml_rows; ++r) {
    DECANT_UNROLL
    for (int t = 0; t < T; ++t) sum[r][t] = _mm256_setzero_ps();
  }
  for (index_t c = 0; c < panel.chunks; ++c, x += ggml_chunk_units<F> * x_bytes) {
    panel.fetch(c);
    DECANT_UNROLL
    for (int r = 0; r < ggml_rows; ++r) {
      const std::byte* const p = panel.chunk(r, c);
      add_half_256<F, Int8, 0>(p, x, x_stride, sum[r]);
      add_half_256<F, Int8, 1>(p, x, x_stride, sum[r]);
    }
  }
  DECANT_UNROLL
  for (int r = 0; r < ggml_rows; ++r) {
    if (r >= rows) break;
    DECANT_UNROLL
    for (int t = 0; t < T; ++t) {
      const __m128 four = _mm_add_ps(_mm256_castps256_ps128(sum[r][t]), _mm256_extractf128_ps(sum[r][t], 1));
      const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
      y[t * y_stride + r] = _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
    }
  }
}

template <class F, bool Int8>
void ggml_rows_avx2(const Packed<F>& w, index_t first, index_t last, const std::byte* x, index_t x_stride,
                    index_t tokens, float* y, index_t y_stride, std::byte*) {
  ggml_panels<2>(w, first, last, x, x_stride, tokens, y, y_stride, ggml_panel_avx2<F, Int8, 2>,
                 ggml_panel_avx2<F, Int8, 1>);
}

}  // namespace decant::quant::detail

#endif

#endif
