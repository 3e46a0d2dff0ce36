// decant: the kernels of matmul_ggml.hpp on AVX-512 with VNNI. A unit's 32-bit lanes of codes become sums of products
// by vpdpbusd, exact, and floats by the lanes' scales; or, with activations that are floats, all codes become floats.
#ifndef DECANT_QUANT_DETAIL_MATMUL_GGML_AVX512_HPP
#define DECANT_QUANT_DETAIL_MATMUL_GGML_AVX512_HPP

#include "../../core/detail/intrinsics.hpp"
#include "matmul_ggml.hpp"
#include "matmul_ggml_avx2.hpp"

#if DECANT_X86

namespace decant::quant::detail {

#define DECANT_TARGET_GGML \
  __attribute__((target("avx512vnni,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi,bmi2")))

inline bool has_vnni() {
  static const bool has = best_isa() == Isa::avx512 && __builtin_cpu_supports("avx512vnni");
  return has;
}

/// A unit: codes as unsigned bytes, the lanes' scales; for int8 activations the minima that belong to their sums, for
/// floats the lanes' minima. What a format or a kernel does not need is not computed.
struct GgmlUnit512 {
  __m512i a, b;
  __m512 scale_a, scale_b;
  __m512 minima;
  __m512 minimum_a, minimum_b;
};

/// 16 bytes each of four blocks.
template <int Stride>
DECANT_TARGET_GGML DECANT_INLINE __m512i four_blocks512(const std::byte* p) {
  const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(load128(p)), load128(p + Stride), 1);
  const __m256i high =
      _mm256_inserti128_si256(_mm256_castsi128_si256(load128(p + 2 * Stride)), load128(p + 3 * Stride), 1);
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}
DECANT_TARGET_GGML DECANT_INLINE __m512i low_nibbles512(__m512i x) {
  return _mm512_and_si512(x, _mm512_set1_epi8(15));
}
DECANT_TARGET_GGML DECANT_INLINE __m512i high_nibbles512(__m512i x) {
  return low_nibbles512(_mm512_srli_epi16(x, 4));
}

/// The fp16 numbers at words `first`, + Step, + 2 Step and + 3 Step of 64 bytes, each in four lanes.
template <int First, int Step>
DECANT_TARGET_GGML DECANT_INLINE __m512 four_halves512(__m512i words) {
  constexpr short w0 = First, w1 = First + Step, w2 = First + 2 * Step, w3 = First + 3 * Step;
  const __m256i at = _mm256_setr_epi16(w0, w0, w0, w0, w1, w1, w1, w1, w2, w2, w2, w2, w3, w3, w3, w3);
  return _mm512_cvtph_ps(_mm512_castsi512_si256(_mm512_permutexvar_epi16(_mm512_castsi256_si512(at), words)));
}
/// Two of them, each in eight lanes.
template <int Second>
DECANT_TARGET_GGML DECANT_INLINE __m512 two_halves512(__m512i words) {
  constexpr short s = Second;
  const __m256i at = _mm256_setr_epi16(0, 0, 0, 0, 0, 0, 0, 0, s, s, s, s, s, s, s, s);
  return _mm512_cvtph_ps(_mm512_castsi512_si256(_mm512_permutexvar_epi16(_mm512_castsi256_si512(at), words)));
}

/// Lanes 4n ... 4n + 3 of the result are element i_n of x.
DECANT_TARGET_GGML DECANT_INLINE __m512 four_of512(__m512 x, int i0, int i1, int i2, int i3) {
  return _mm512_permutexvar_ps(_mm512_setr_epi32(i0, i0, i0, i0, i1, i1, i1, i1, i2, i2, i2, i2, i3, i3, i3, i3), x);
}

/// The units of the chunk at p.
template <class F>
struct GgmlLoad512;

template <>
struct GgmlLoad512<ggml::Q8_0> {
  DECANT_TARGET_GGML DECANT_INLINE static void load(const std::byte* p, GgmlUnit512 (&u)[1]) {
    const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
    u[0].a = _mm512_xor_si512(_mm512_inserti64x4(_mm512_castsi256_si512(load256(p + 2)), load256(p + 36), 1), sign);
    u[0].b = _mm512_xor_si512(_mm512_inserti64x4(_mm512_castsi256_si512(load256(p + 70)), load256(p + 104), 1), sign);
    u[0].scale_a = two_halves512<17>(_mm512_loadu_si512(p));
    u[0].scale_b = two_halves512<17>(_mm512_loadu_si512(p + 68));
  }
};
template <>
struct GgmlLoad512<ggml::Q4_0> {
  DECANT_TARGET_GGML DECANT_INLINE static void load(const std::byte* p, GgmlUnit512 (&u)[1]) {
    const __m512i codes = four_blocks512<18>(p + 2);
    u[0].a = low_nibbles512(codes);
    u[0].b = high_nibbles512(codes);
    u[0].scale_a = four_halves512<0, 9>(_mm512_loadu_si512(p));
  }
};
template <>
struct GgmlLoad512<ggml::Q4_1> {
  DECANT_TARGET_GGML DECANT_INLINE static void load(const std::byte* p, GgmlUnit512 (&u)[1]) {
    const __m512i codes = four_blocks512<20>(p + 4);
    const __m512i words = _mm512_loadu_si512(p);
    u[0].a = low_nibbles512(codes);
    u[0].b = high_nibbles512(codes);
    u[0].scale_a = four_halves512<0, 10>(words);
    u[0].minima = u[0].minimum_a = u[0].minimum_b = four_halves512<1, 10>(words);
  }
};
template <>
struct GgmlLoad512<ggml::IQ4_NL> {
  DECANT_TARGET_GGML DECANT_INLINE static void load(const std::byte* p, GgmlUnit512 (&u)[1]) {
    // The levels, 128 added.
    const __m512i levels = _mm512_broadcast_i32x4(
        _mm_setr_epi8(1, 24, 45, 63, 79, 93, 106, 118, -127, -115, -103, -90, -75, -59, -39, -15));
    load_codes(p, u);
    u[0].a = _mm512_shuffle_epi8(levels, u[0].a);
    u[0].b = _mm512_shuffle_epi8(levels, u[0].b);
  }
  DECANT_TARGET_GGML DECANT_INLINE static void load_codes(const std::byte* p, GgmlUnit512 (&u)[1]) {
    const __m512i codes = four_blocks512<18>(p + 2);
    u[0].a = low_nibbles512(codes);
    u[0].b = high_nibbles512(codes);
    u[0].scale_a = four_halves512<0, 9>(_mm512_loadu_si512(p));
  }
};

/// Doubled E2M1, 12 added.
DECANT_TARGET_GGML DECANT_INLINE __m512i e2m1_512() {
  return _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
}
template <>
struct GgmlLoad512<ggml::MXFP4> {
  DECANT_TARGET_GGML DECANT_INLINE static void load(const std::byte* p, GgmlUnit512 (&u)[1]) {
    const __m512i codes = four_blocks512<17>(p + 1);
    u[0].a = _mm512_shuffle_epi8(e2m1_512(), low_nibbles512(codes));
    u[0].b = _mm512_shuffle_epi8(e2m1_512(), high_nibbles512(codes));
    // Bytes 0, 17, 34, 51 become exponents, of 2^(e - 127); e = 0 is subnormal.
    const __m512i at = _mm512_setr_epi32(0, 0, 0, 0, 8, 8, 8, 8, 17, 17, 17, 17, 25, 25, 25, 25);
    const __m512i up = _mm512_setr_epi32(23, 23, 23, 23, 15, 15, 15, 15, 23, 23, 23, 23, 15, 15, 15, 15);
    const __m512i words = _mm512_permutexvar_epi16(at, _mm512_loadu_si512(p));
    const __m512i powers = _mm512_and_si512(_mm512_sllv_epi32(words, up), _mm512_set1_epi32(0x7f800000));
    const __m512 halves =
        _mm512_mul_ps(_mm512_castsi512_ps(_mm512_max_epu32(powers, _mm512_set1_epi32(0x400000))), _mm512_set1_ps(0.5f));
    u[0].scale_a = _mm512_min_ps(halves, _mm512_set1_ps(0x1p127f));  // e = 255, which is 2^128 before it is halved
  }
};
template <>
struct GgmlLoad512<ggml::NVFP4> {
  DECANT_TARGET_GGML DECANT_INLINE static void load(const std::byte* p, GgmlUnit512 (&u)[1]) {
    const __m512i codes = _mm512_inserti64x4(_mm512_castsi256_si512(load256(p + 4)), load256(p + 40), 1);
    u[0].a = _mm512_shuffle_epi8(e2m1_512(), low_nibbles512(codes));
    u[0].b = _mm512_shuffle_epi8(e2m1_512(), high_nibbles512(codes));
    const __m128i stored = _mm_set_epi64x(
        0, static_cast<long long>(load_le<std::uint32_t>(p) | std::uint64_t{load_le<std::uint32_t>(p + 36)} << 32));
    // As fp16 whose exponent is 8 too small, halved; 0x7f is 0.
    const __m128i scale = _mm_andnot_si128(_mm_cmpeq_epi8(stored, _mm_set1_epi8(0x7f)), stored);
    const __m128i half = _mm_slli_epi16(_mm_and_si128(_mm_cvtepu8_epi16(scale), _mm_set1_epi16(0x7f)), 7);
    const __m256 scales = _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(128.0f));
    const __m512i at = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    u[0].scale_a = _mm512_permutexvar_ps(at, _mm512_castps256_ps512(scales));
  }
};

template <>
struct GgmlLoad512<ggml::Q4_K> {
  DECANT_TARGET_GGML DECANT_INLINE static void load(const std::byte* p, GgmlUnit512 (&u)[2]) {
    const __m512 minus = _mm512_castsi512_ps(_mm512_maskz_set1_epi32(0xff00, static_cast<int>(0x80000000u)));
    const __m512 d = _mm512_xor_ps(two_halves512<1>(_mm512_loadu_si512(p)), minus);
    const __m512 scales = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(six_bits(p + 4))), d);
    DECANT_UNROLL
    for (int h = 0; h < 2; ++h) {
      const __m512i codes = _mm512_loadu_si512(p + 16 + 64 * h);
      const int part = 4 * h;
      u[h].a = low_nibbles512(codes);
      u[h].b = high_nibbles512(codes);
      u[h].scale_a = four_of512(scales, part, part, part + 2, part + 2);
      u[h].scale_b = four_of512(scales, part + 1, part + 1, part + 3, part + 3);
      u[h].minima = scales;
      u[h].minimum_a = four_of512(scales, part + 8, part + 8, part + 10, part + 10);
      u[h].minimum_b = four_of512(scales, part + 9, part + 9, part + 11, part + 11);
    }
  }
};
template <>
struct GgmlLoad512<ggml::Q6_K> {
  DECANT_TARGET_GGML DECANT_INLINE static void load(const std::byte* p, GgmlUnit512 (&u)[2]) {
    const __m512 d = _mm512_set1_ps(_cvtsh_ss(load_le<std::uint16_t>(p + 208)));
    const __m512 scales = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load128(p + 192))), d);
    const __m512i two_bits = _mm512_set1_epi8(0x30);
    DECANT_UNROLL
    for (int h = 0; h < 2; ++h) {
      const __m512i low = _mm512_loadu_si512(p + 64 * h);
      const __m512i high = _mm512_broadcast_i64x4(load256(p + 128 + 32 * h));
      const __m512i up = _mm512_sllv_epi64(high, _mm512_setr_epi64(4, 4, 4, 4, 2, 2, 2, 2));
      const __m512i down = _mm512_srlv_epi64(high, _mm512_setr_epi64(0, 0, 0, 0, 2, 2, 2, 2));
      u[h].a = _mm512_or_si512(low_nibbles512(low), _mm512_and_si512(up, two_bits));
      u[h].b = _mm512_or_si512(high_nibbles512(low), _mm512_and_si512(down, two_bits));
      const int part = 8 * h;
      u[h].scale_a = four_of512(scales, part, part + 1, part + 2, part + 3);
      u[h].scale_b = four_of512(scales, part + 4, part + 5, part + 6, part + 7);
    }
  }
};

/// A unit's products with int8 activations.
template <class F>
DECANT_TARGET_GGML DECANT_INLINE __m512 add_int8_512(const GgmlUnit512& u, const std::byte* x, __m512 sum) {
  using Order = GgmlOrder<F>;
  using Layout = GgmlInt8<F>;
  const auto* const scales = reinterpret_cast<const float*>(x + Layout::scales);
  __m512i a = Order::bias != 0 ? _mm512_load_si512(x + Layout::excess) : _mm512_setzero_si512();
  a = _mm512_dpbusd_epi32(a, u.a, _mm512_load_si512(x));
  if constexpr (Order::two_scales) {
    __m512i b = Order::bias != 0 ? _mm512_load_si512(x + Layout::excess + 64) : _mm512_setzero_si512();
    b = _mm512_dpbusd_epi32(b, u.b, _mm512_load_si512(x + 64));
    sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(b), _mm512_mul_ps(u.scale_b, _mm512_load_ps(scales + 16)), sum);
  } else {
    a = _mm512_dpbusd_epi32(a, u.b, _mm512_load_si512(x + 64));
  }
  sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(a), _mm512_mul_ps(u.scale_a, _mm512_load_ps(scales)), sum);
  if constexpr (Order::minima != GgmlMinima::none)
    sum = _mm512_fmadd_ps(u.minima, _mm512_load_ps(reinterpret_cast<const float*>(x + Layout::sums)), sum);
  return sum;
}

/// 16 weights as floats, exactly: bytes 16 Quarter ... of a or b.
template <class F, int Quarter>
DECANT_TARGET_GGML DECANT_INLINE __m512 weights512(__m512i codes, __m512 scale, __m512 minimum) {
  constexpr int q = 4 * Quarter;
  const __m512 w = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm512_extracti32x4_epi32(codes, Quarter)));
  const __m512 s = four_of512(scale, q, q + 1, q + 2, q + 3);
  if constexpr (GgmlOrder<F>::minima == GgmlMinima::none)
    return _mm512_mul_ps(w, s);
  else
    return _mm512_fmadd_ps(w, s, four_of512(minimum, q, q + 1, q + 2, q + 3));
}

/// Half a unit's products with floats, for T tokens.
template <class F, int T>
DECANT_TARGET_GGML DECANT_INLINE void add_float_512(__m512i codes, __m512 scale, __m512 minimum, const float* x,
                                                    index_t x_stride, __m512 (&sum)[T]) {
  const __m512i w = _mm512_sub_epi8(codes, _mm512_set1_epi8(static_cast<char>(GgmlOrder<F>::bias)));
  const __m512 w0 = weights512<F, 0>(w, scale, minimum), w1 = weights512<F, 1>(w, scale, minimum);
  const __m512 w2 = weights512<F, 2>(w, scale, minimum), w3 = weights512<F, 3>(w, scale, minimum);
  DECANT_UNROLL
  for (int t = 0; t < T; ++t) {
    const float* const from = x + t * x_stride;
    sum[t] = _mm512_fmadd_ps(w0, _mm512_load_ps(from), sum[t]);
    sum[t] = _mm512_fmadd_ps(w1, _mm512_load_ps(from + 16), sum[t]);
    sum[t] = _mm512_fmadd_ps(w2, _mm512_load_ps(from + 32), sum[t]);
    sum[t] = _mm512_fmadd_ps(w3, _mm512_load_ps(from + 48), sum[t]);
  }
}

/// T tokens with `rows` rows.
template <class F, bool Int8, int T>
DECANT_TARGET_GGML inline void ggml_panel_avx512(const GgmlPanel<F>& panel, index_t rows, const std::byte* x,
                                                 index_t x_stride, float* y, index_t y_stride) {
  constexpr int units = static_cast<int>(ggml_chunk_units<F>);
  constexpr index_t x_bytes = Int8 ? GgmlInt8<F>::bytes : ggml_unit * static_cast<index_t>(sizeof(float));
  __m512 sum[ggml_rows][T];
  DECANT_UNROLL
  for (int r = 0; r < ggml_rows; ++r) {
    DECANT_UNROLL
    for (int t = 0; t < T; ++t) sum[r][t] = _mm512_setzero_ps();
  }
  for (index_t c = 0; c < panel.chunks; ++c, x += units * x_bytes) {
    panel.fetch(c);
    DECANT_UNROLL
    for (int r = 0; r < ggml_rows; ++r) {
      GgmlUnit512 u[units];
      GgmlLoad512<F>::load(panel.chunk(r, c), u);
      DECANT_UNROLL
      for (int i = 0; i < units; ++i) {
        if constexpr (Int8) {
          DECANT_UNROLL
          for (int t = 0; t < T; ++t) sum[r][t] = add_int8_512<F>(u[i], x + i * x_bytes + t * x_stride, sum[r][t]);
        } else {
          const auto* const from = reinterpret_cast<const float*>(x + i * x_bytes);
          const index_t stride = x_stride / static_cast<index_t>(sizeof(float));
          add_float_512<F>(u[i].a, u[i].scale_a, u[i].minimum_a, from, stride, sum[r]);
          add_float_512<F>(u[i].b, GgmlOrder<F>::two_scales ? u[i].scale_b : u[i].scale_a, u[i].minimum_b, from + 64,
                           stride, sum[r]);
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

template <class F, bool Int8>
void ggml_rows_avx512(const Packed<F>& w, index_t first, index_t last, const std::byte* x, index_t x_stride,
                      index_t tokens, float* y, index_t y_stride, std::byte*) {
  ggml_panels<4>(w, first, last, x, x_stride, tokens, y, y_stride, ggml_panel_avx512<F, Int8, 4>,
                 ggml_panel_avx512<F, Int8, 1>);
}

}  // namespace decant::quant::detail

#endif

#endif
