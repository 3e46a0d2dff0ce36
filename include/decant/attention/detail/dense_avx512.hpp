// decant: the kernels of dense attention on AVX-512 (F, BW, DQ, VL; BF16 where present). Rows of any storage type are
// widened as they are loaded; a row's tail is read under a mask, never past its end. What decides the structure: with G
// query heads a line of 64 bytes of bf16 takes 2 G multiply-adds, for G = 4 the 8 cycles in which one core of a server
// reads it from memory; so what is widened serves several rows, and all else must run beside the multiplications.
#ifndef DECANT_ATTENTION_DETAIL_DENSE_AVX512_HPP
#define DECANT_ATTENTION_DETAIL_DENSE_AVX512_HPP

#include "dense_portable.hpp"
#include "fp8_rows_avx512.hpp"

#if DECANT_X86

#include "../../core/detail/intrinsics.hpp"
#include "../../core/simd.hpp"

namespace decant::attention::detail {

// Sixteen stored elements as floats, all of them or the first ones that the mask names.
DECANT_TARGET_AVX512 DECANT_INLINE __m512 load16(const float* p) { return _mm512_loadu_ps(p); }
DECANT_TARGET_AVX512 DECANT_INLINE __m512 load16(const float* p, __mmask16 k) { return _mm512_maskz_loadu_ps(k, p); }

DECANT_TARGET_AVX512 DECANT_INLINE __m512 widen16(__m256i x, bf16) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}
DECANT_TARGET_AVX512 DECANT_INLINE __m512 widen16(__m256i x, fp16) { return _mm512_cvtph_ps(x); }

template <class T>
  requires(sizeof(T) == 2)
DECANT_TARGET_AVX512 DECANT_INLINE __m512 load16(const T* p) {
  return widen16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), T{});
}
template <class T>
  requires(sizeof(T) == 2)
DECANT_TARGET_AVX512 DECANT_INLINE __m512 load16(const T* p, __mmask16 k) {
  return widen16(_mm256_maskz_loadu_epi16(k, p), T{});
}
template <class T>
  requires(sizeof(T) == 1)
DECANT_TARGET_AVX512 DECANT_INLINE __m512 load16(const T* p) {
  return widen16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), T{});
}
template <class T>
  requires(sizeof(T) == 1)
DECANT_TARGET_AVX512 DECANT_INLINE __m512 load16(const T* p, __mmask16 k) {
  return widen16(_mm_maskz_loadu_epi8(k, p), T{});
}

DECANT_TARGET_AVX512 DECANT_INLINE __mmask16 first_lanes(index_t count) {
  return static_cast<__mmask16>((1u << count) - 1u);
}

/// Registers in 64 bytes of T, in 32 of fp8.
template <class T>
inline constexpr int line_parts = sizeof(T) == 1 ? 2 : 4 / static_cast<int>(sizeof(T));

/// Part i of a line of 64 bytes at p. bf16 comes in pair order, the even elements first and then the odd ones: a shift
/// and a mask of the line as it lies, where the order of memory would take a shuffle per register more.
template <class T>
DECANT_TARGET_AVX512 DECANT_INLINE __m512 load_part(const T* p, int i) {
  if constexpr (sizeof(T) == 1) {
    return load_pair_part(p, i);
  } else if constexpr (in_pairs<T>) {
    const __m512i line = _mm512_loadu_si512(p);
    return _mm512_castsi512_ps(i == 0 ? _mm512_slli_epi32(line, 16)
                                      : _mm512_and_si512(line, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  } else {
    return load16(p + 16 * i);
  }
}

/// 32 floats in the order of memory become the even ones and the odd ones, or back.
DECANT_TARGET_AVX512 DECANT_INLINE void to_pairs(__m512& low, __m512& high) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512 first = low;
  low = _mm512_permutex2var_ps(first, even, high);
  high = _mm512_permutex2var_ps(first, _mm512_or_si512(even, _mm512_set1_epi32(1)), high);
}
DECANT_TARGET_AVX512 DECANT_INLINE void from_pairs(__m512& even, __m512& odd) {
  const __m512i order = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512 first = even;
  even = _mm512_permutex2var_ps(first, order, odd);
  odd = _mm512_permutex2var_ps(first, _mm512_or_si512(order, _mm512_set1_epi32(8)), odd);
}

template <class T>
DECANT_TARGET_AVX512 void arrange_avx512(float* q, index_t q_stride, index_t rows, index_t dim) {
  if constexpr (in_pairs<T>) {
    for (index_t r = 0; r < rows; ++r) {
      for (index_t d = 0; d + 32 <= dim; d += 32) {
        float* const to = q + r * q_stride + d;
        __m512 low = _mm512_loadu_ps(to);
        __m512 high = _mm512_loadu_ps(to + 16);
        to_pairs(low, high);
        _mm512_storeu_ps(to, low);
        _mm512_storeu_ps(to + 16, high);
      }
    }
  }
}

/// The four sums over lanes of four registers, each formed in the same order.
DECANT_TARGET_AVX512 DECANT_INLINE __m128 sum_lanes(const __m512 (&x)[4]) {
  const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1]));
  const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3]));
  const __m512 sums = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd))),
                                    _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd))));
  const __m256 halves = _mm256_add_ps(_mm512_castps512_ps256(sums), _mm512_extractf32x8_ps(sums, 1));
  return _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1));
}

/// R rows by four keys: a register of a key serves all rows, and one of a query all keys. More keys at once would be as
/// many streams from memory, which the processor's own prefetching does not follow.
template <class T, int R>
DECANT_TARGET_AVX512 void scores_rows_avx512(const float* q, index_t q_stride, const T* const* keys, index_t dim,
                                             float* s) {
  constexpr int parts = line_parts<T>;
  __m512 sum[R][4] = {};
  index_t d = 0;
  for (; d + 16 * parts <= dim; d += 16 * parts) {
    DECANT_UNROLL
    for (int i = 0; i < parts; ++i) {
      __m512 x[R];
      DECANT_UNROLL
      for (int r = 0; r < R; ++r) x[r] = _mm512_loadu_ps(q + r * q_stride + d + 16 * i);
      DECANT_UNROLL
      for (int k = 0; k < 4; ++k) {
        const __m512 key = load_part(keys[k] + d, i);
        DECANT_UNROLL
        for (int r = 0; r < R; ++r) sum[r][k] = _mm512_fmadd_ps(x[r], key, sum[r][k]);
      }
    }
  }
  for (; d < dim; d += 16) {
    const __mmask16 mask = first_lanes(dim - d < 16 ? dim - d : 16);
    DECANT_UNROLL
    for (int k = 0; k < 4; ++k) {
      __m512 key = load16(keys[k] + d, mask);
      if constexpr (pairs_scale<T> != 1) key = _mm512_mul_ps(key, _mm512_set1_ps(1 / pairs_scale<T>));
      DECANT_UNROLL
      for (int r = 0; r < R; ++r)
        sum[r][k] = _mm512_fmadd_ps(_mm512_loadu_ps(q + r * q_stride + d), key, sum[r][k]);
    }
  }
  DECANT_UNROLL
  for (int r = 0; r < R; ++r) {
    __m128 sums = sum_lanes(sum[r]);
    if constexpr (pairs_scale<T> != 1) sums = _mm_mul_ps(sums, _mm_set1_ps(pairs_scale<T>));
    _mm_storeu_ps(s + r * dense_block, sums);
  }
}

// bf16 queries over bf16 keys, on processors that multiply pairs of bf16 and add to float: half the instructions, and
// nothing to widen. The products are exact, so Dense::error_bound holds as everywhere.
#define DECANT_TARGET_AVX512_BF16 \
  __attribute__((target("avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi,bmi2")))

inline bool has_bf16_dot() {
  static const bool has = best_isa() == Isa::avx512 && __builtin_cpu_supports("avx512bf16");
  return has;
}

/// The floats are rounded to bf16, in place: each row in its first half.
DECANT_TARGET_AVX512_BF16 inline void arrange_bf16_avx512(float* q, index_t q_stride, index_t rows, index_t dim) {
  for (index_t r = 0; r < rows; ++r) {
    for (index_t d = 0; d < dim; d += 16) {
      const __m256bh narrow = _mm512_cvtneps_pbh(_mm512_loadu_ps(q + r * q_stride + d));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(q + r * q_stride + d / 2), reinterpret_cast<__m256i>(narrow));
    }
  }
}

/// R rows by four keys, one after the other: for few rows, whose products take less time than memory, nothing is faster
/// than to read it in order and leave what comes next to the processor's own prefetching.
template <int R>
DECANT_TARGET_AVX512_BF16 void dot_in_order_avx512(const float* q, index_t q_stride, const bf16* const* keys,
                                                   index_t dim, float* s) {
  __m512 sum[R][4] = {};
  DECANT_UNROLL
  for (int k = 0; k < 4; ++k) {
    for (index_t d = 0; d < dim; d += 32) {
      const __mmask32 mask = dim - d < 32 ? (__mmask32{1} << (dim - d)) - 1 : ~__mmask32{0};
      const __m512i key = _mm512_maskz_loadu_epi16(mask, keys[k] + d);
      DECANT_UNROLL
      for (int r = 0; r < R; ++r) {
        const __m512i x = _mm512_maskz_loadu_epi16(mask, q + r * q_stride + d / 2);
        sum[r][k] = _mm512_dpbf16_ps(sum[r][k], reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(key));
      }
    }
  }
  DECANT_UNROLL
  for (int r = 0; r < R; ++r) _mm_storeu_ps(s + r * dense_block, sum_lanes(sum[r]));
}

/// R rows by four keys, of which a register of the query serves all.
template <int R>
DECANT_TARGET_AVX512_BF16 void dot_rows_avx512(const float* q, index_t q_stride, const bf16* const* keys, index_t dim,
                                               float* s) {
  __m512 sum[R][4] = {};
  for (index_t d = 0; d < dim; d += 32) {
    const __mmask32 mask = dim - d < 32 ? (__mmask32{1} << (dim - d)) - 1 : ~__mmask32{0};
    __m512i x[R];
    DECANT_UNROLL
    for (int r = 0; r < R; ++r) x[r] = _mm512_maskz_loadu_epi16(mask, q + r * q_stride + d / 2);
    DECANT_UNROLL
    for (int k = 0; k < 4; ++k) {
      const __m512i key = _mm512_maskz_loadu_epi16(mask, keys[k] + d);
      DECANT_UNROLL
      for (int r = 0; r < R; ++r)
        sum[r][k] = _mm512_dpbf16_ps(sum[r][k], reinterpret_cast<__m512bh>(x[r]), reinterpret_cast<__m512bh>(key));
    }
  }
  DECANT_UNROLL
  for (int r = 0; r < R; ++r) _mm_storeu_ps(s + r * dense_block, sum_lanes(sum[r]));
}

/// Sixteen rows of sixteen: x[i] lane j becomes x[j] lane i.
DECANT_TARGET_AVX512 DECANT_INLINE void transpose16(__m512 (&x)[16]) {
  __m512 t[16];
  DECANT_UNROLL
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(x[i], x[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
  }
  DECANT_UNROLL
  for (int i = 0; i < 16; i += 4) {
    DECANT_UNROLL
    for (int k = 0; k < 2; ++k) {
      const __m512d a = _mm512_castps_pd(t[i + k]);
      const __m512d b = _mm512_castps_pd(t[i + 2 + k]);
      x[i + 2 * k] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
      x[i + 2 * k + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
    }
  }
  // Now x[4 a + c] holds, in its 128-bit part p, column 4 p + c of the rows 4 a ... 4 a + 3.
  DECANT_UNROLL
  for (int c = 0; c < 4; ++c) {
    const __m512 low01 = _mm512_shuffle_f32x4(x[c], x[4 + c], 0x88);
    const __m512 high01 = _mm512_shuffle_f32x4(x[c], x[4 + c], 0xdd);
    const __m512 low23 = _mm512_shuffle_f32x4(x[8 + c], x[12 + c], 0x88);
    const __m512 high23 = _mm512_shuffle_f32x4(x[8 + c], x[12 + c], 0xdd);
    t[c] = _mm512_shuffle_f32x4(low01, low23, 0x88);
    t[8 + c] = _mm512_shuffle_f32x4(low01, low23, 0xdd);
    t[4 + c] = _mm512_shuffle_f32x4(high01, high23, 0x88);
    t[12 + c] = _mm512_shuffle_f32x4(high01, high23, 0xdd);
  }
  DECANT_UNROLL
  for (int i = 0; i < 16; ++i) x[i] = t[i];
}

template <class T>
DECANT_TARGET_AVX512 void pack_avx512(const T* const* keys, index_t count, index_t dim, float* packed) {
  for (index_t j = 0; j < dense_block; j += 16) {
    for (index_t d = 0; d < dim; d += 16) {
      const index_t lanes = dim - d < 16 ? dim - d : 16;
      const __mmask16 mask = first_lanes(lanes);
      __m512 x[16];
      DECANT_UNROLL
      for (int i = 0; i < 16; ++i) x[i] = j + i < count ? load16(keys[j + i] + d, mask) : _mm512_setzero_ps();
      transpose16(x);
      float* to = packed + d * dense_block + j;
      DECANT_UNROLL
      for (int i = 0; i < 16; ++i)
        if (i < lanes) _mm512_storeu_ps(to + i * dense_block, x[i]);
    }
  }
}

template <class T>
DECANT_TARGET_AVX512 void widen_avx512(const T* const* rows, index_t count, index_t dim, float* out, index_t stride) {
  const index_t whole = dim / 16 * 16;
  const __mmask16 tail = first_lanes(dim - whole);
  for (index_t j = 0; j < count; ++j) {
    for (index_t d = 0; d < whole; d += 16) _mm512_storeu_ps(out + j * stride + d, load16(rows[j] + d));
    if (tail) _mm512_storeu_ps(out + j * stride + whole, load16(rows[j] + whole, tail));
  }
}

/// R rows by N registers of the output, from element d on: whole lines of T, or the last elements, of which `mask`
/// names those of the last register.
template <class T, int R, int N, bool Whole>
DECANT_TARGET_AVX512 DECANT_INLINE void values_tile_avx512(const float* p, const float* alpha, const T* const* values,
                                                           index_t count, index_t d, __mmask16 mask, float* o,
                                                           index_t o_stride, const Ahead<T>& ahead) {
  constexpr int parts = line_parts<T>;
  __m512 sum[R][N];
  DECANT_UNROLL
  for (int r = 0; r < R; ++r) {
    const __m512 a = _mm512_set1_ps(Whole ? alpha[r] * (1 / pairs_scale<T>) : alpha[r]);
    DECANT_UNROLL
    for (int v = 0; v < N; ++v) sum[r][v] = _mm512_mul_ps(_mm512_loadu_ps(o + r * o_stride + d + 16 * v), a);
    if constexpr (Whole && in_pairs<T>) {
      DECANT_UNROLL
      for (int v = 0; v < N; v += 2) to_pairs(sum[r][v], sum[r][v + 1]);
    }
  }
  index_t next = 0;
  for (index_t j = 0, due = 0; j < count; ++j, --due) {
    if (due == 0) {
      ahead.fetch(next++);
      due = ahead.every;
    }
    __m512 weight[R];
    DECANT_UNROLL
    for (int r = 0; r < R; ++r) weight[r] = _mm512_set1_ps(p[r * dense_block + j]);
    DECANT_UNROLL
    for (int v = 0; v < N; ++v) {
      __m512 value;
      if constexpr (Whole) value = load_part(values[j] + d + v / parts * parts * 16, v % parts);
      else value = load16(values[j] + d + 16 * v, v + 1 < N ? __mmask16{0xffff} : mask);
      DECANT_UNROLL
      for (int r = 0; r < R; ++r) sum[r][v] = _mm512_fmadd_ps(weight[r], value, sum[r][v]);
    }
  }
  DECANT_UNROLL
  for (int r = 0; r < R; ++r) {
    if constexpr (Whole && in_pairs<T>) {
      DECANT_UNROLL
      for (int v = 0; v < N; v += 2) from_pairs(sum[r][v], sum[r][v + 1]);
    }
    DECANT_UNROLL
    for (int v = 0; v < N; ++v) {
      if constexpr (Whole && pairs_scale<T> != 1) sum[r][v] = _mm512_mul_ps(sum[r][v], _mm512_set1_ps(pairs_scale<T>));
      _mm512_storeu_ps(o + r * o_stride + d + 16 * v, sum[r][v]);
    }
  }
}

template <class T, int R>
DECANT_TARGET_AVX512 void values_rows_avx512(const float* p, const float* alpha, const T* const* values, index_t count,
                                             index_t dim, float* o, index_t o_stride, Ahead<T> ahead, index_t part,
                                             index_t parts) {
  constexpr int N = R > 3 ? 4 : 8;
  constexpr index_t width = 16 * N;
  const index_t steps = (dim + width - 1) / width;
  index_t d = 0;
  for (; d + width <= dim; d += width)
    values_tile_avx512<T, R, N, true>(p, alpha, values, count, d, 0, o, o_stride,
                                      ahead.part(part * steps + d / width, parts * steps));
  Ahead<T> rest = ahead.part((part + 1) * steps - 1, parts * steps);
  for (; d < dim; rest = {}) {
    const index_t left = dim - d;
    if (left >= 64) {
      values_tile_avx512<T, R, 4, true>(p, alpha, values, count, d, 0, o, o_stride, rest);
      d += 64;
    } else if (left > 16) {
      values_tile_avx512<T, R, 2, false>(p, alpha, values, count, d, first_lanes(left < 32 ? left - 16 : 16), o,
                                         o_stride, rest);
      d += 32;
    } else {
      values_tile_avx512<T, R, 1, false>(p, alpha, values, count, d, first_lanes(left), o, o_stride, rest);
      d += 16;
    }
  }
}

/// As many rows of the output at a time as registers hold: a value that is widened once serves them all.
template <class T>
DECANT_TARGET_AVX512 void values_avx512(const float* p, const float* alpha, index_t rows, const T* const* values,
                                        index_t count, index_t dim, float* o, index_t o_stride, Ahead<T> ahead) {
  const index_t parts = (rows + 3) / 4;
  for (index_t r = 0, part = 0; r < rows; ++part) {
    const index_t left = rows - r;
    const float* const weights = p + r * dense_block;
    float* const to = o + r * o_stride;
    if (left == 1) {
      values_rows_avx512<T, 1>(weights, alpha + r, values, count, dim, to, o_stride, ahead, part, parts);
      r += 1;
    } else if (left == 2) {
      values_rows_avx512<T, 2>(weights, alpha + r, values, count, dim, to, o_stride, ahead, part, parts);
      r += 2;
    } else if (left == 3 || left == 6) {
      values_rows_avx512<T, 3>(weights, alpha + r, values, count, dim, to, o_stride, ahead, part, parts);
      r += 3;
    } else {
      values_rows_avx512<T, 4>(weights, alpha + r, values, count, dim, to, o_stride, ahead, part, parts);
      r += 4;
    }
  }
}

template <int R>
DECANT_TARGET_AVX512 DECANT_INLINE void scores_packed_rows_avx512(const float* q, index_t q_stride, const float* packed,
                                                                  index_t dim, float* s) {
  __m512 sum[R][4];
  DECANT_UNROLL
  for (int r = 0; r < R; ++r) {
    DECANT_UNROLL
    for (int k = 0; k < 4; ++k) sum[r][k] = _mm512_setzero_ps();
  }
  for (index_t d = 0; d < dim; ++d) {
    __m512 key[4];
    DECANT_UNROLL
    for (int k = 0; k < 4; ++k) key[k] = _mm512_loadu_ps(packed + d * dense_block + 16 * k);
    DECANT_UNROLL
    for (int r = 0; r < R; ++r) {
      const __m512 x = _mm512_set1_ps(q[r * q_stride + d]);
      DECANT_UNROLL
      for (int k = 0; k < 4; ++k) sum[r][k] = _mm512_fmadd_ps(x, key[k], sum[r][k]);
    }
  }
  DECANT_UNROLL
  for (int r = 0; r < R; ++r) {
    DECANT_UNROLL
    for (int k = 0; k < 4; ++k) _mm512_storeu_ps(s + r * dense_block + 16 * k, sum[r][k]);
  }
}

DECANT_TARGET_AVX512 inline void scores_packed_avx512(const float* q, index_t q_stride, index_t rows,
                                                      const float* packed, index_t dim, float* s) {
  index_t r = 0;
  for (; r + 6 <= rows; r += 6)
    scores_packed_rows_avx512<6>(q + r * q_stride, q_stride, packed, dim, s + r * dense_block);
  if (r + 4 <= rows) {
    scores_packed_rows_avx512<4>(q + r * q_stride, q_stride, packed, dim, s + r * dense_block);
    r += 4;
  }
  if (r + 2 <= rows) {
    scores_packed_rows_avx512<2>(q + r * q_stride, q_stride, packed, dim, s + r * dense_block);
    r += 2;
  }
  if (r < rows) scores_packed_rows_avx512<1>(q + r * q_stride, q_stride, packed, dim, s + r * dense_block);
}

/// exp as in exp_portable.
DECANT_TARGET_AVX512 DECANT_INLINE __m512 exp_avx512(__m512 x) {
  using namespace exp_constants;
  const __mmask16 alive = _mm512_cmp_ps_mask(x, _mm512_set1_ps(lowest), _CMP_NLT_UQ);  // NaN is alive
  const __m512 magic = _mm512_set1_ps(round_magic);
  const __m512 shifted = _mm512_fmadd_ps(x, _mm512_set1_ps(log2e), magic);
  const __m512 n = _mm512_sub_ps(shifted, magic);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(ln2_high), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(ln2_low), r);
  __m512 tail = _mm512_fmadd_ps(r, _mm512_set1_ps(c6), _mm512_set1_ps(c5));
  tail = _mm512_fmadd_ps(r, tail, _mm512_set1_ps(c4));
  tail = _mm512_fmadd_ps(r, tail, _mm512_set1_ps(c3));
  tail = _mm512_fmadd_ps(r, tail, _mm512_set1_ps(c2));
  const __m512 e = _mm512_add_ps(_mm512_fmadd_ps(_mm512_mul_ps(r, r), tail, r), _mm512_set1_ps(1.0f));
  const __m512i power = _mm512_slli_epi32(_mm512_add_epi32(_mm512_castps_si512(shifted), _mm512_set1_epi32(127)), 23);
  return _mm512_maskz_mul_ps(alive, e, _mm512_castsi512_ps(power));
}

/// tanh: an odd polynomial for small x, (1 - e) / (1 + e) with e = exp(-2 |x|) beyond. Absolute error below 2e-7.
DECANT_TARGET_AVX512 DECANT_INLINE __m512 tanh_avx512(__m512 x) {
  using namespace tanh_constants;
  const __m512 size = _mm512_abs_ps(x);
  const __m512 e = exp_avx512(_mm512_mul_ps(size, _mm512_set1_ps(-2.0f)));
  const __m512 one = _mm512_set1_ps(1.0f);
  const __m512 large = _mm512_div_ps(_mm512_sub_ps(one, e), _mm512_add_ps(one, e));
  const __m512 z = _mm512_mul_ps(x, x);
  __m512 tail = _mm512_fmadd_ps(z, _mm512_set1_ps(t4), _mm512_set1_ps(t3));
  tail = _mm512_fmadd_ps(z, tail, _mm512_set1_ps(t2));
  tail = _mm512_fmadd_ps(z, tail, _mm512_set1_ps(t1));
  tail = _mm512_fmadd_ps(z, tail, _mm512_set1_ps(t0));
  const __m512 near_zero = _mm512_fmadd_ps(_mm512_mul_ps(z, size), tail, size);
  const __mmask16 is_large = _mm512_cmp_ps_mask(size, _mm512_set1_ps(limit), _CMP_GT_OQ);
  const __m512 magnitude = _mm512_mask_mov_ps(near_zero, is_large, large);
  const __m512 sign = _mm512_set1_ps(-0.0f);
  return _mm512_or_ps(magnitude, _mm512_and_ps(x, sign));
}

DECANT_TARGET_AVX512 inline void softmax_avx512(const SoftmaxBlock& b) {
  const __m512 none = _mm512_set1_ps(-INFINITY);
  const __m512 scale = _mm512_set1_ps(b.scale);
  const __m512 cap = _mm512_set1_ps(b.soft_cap);
  // Two loops of short chains, so that the work of several rows overlaps.
  for (index_t r = 0; r < b.rows; ++r) {
    float* s = b.s + r * dense_block;
    const std::uint64_t bits = b.bits[r / b.group];
    __m512 top = none;
    DECANT_UNROLL
    for (int k = 0; k < 4; ++k) {
      __m512 x = _mm512_mul_ps(_mm512_loadu_ps(s + 16 * k), scale);
      if (b.soft_cap > 0) x = _mm512_mul_ps(cap, tanh_avx512(_mm512_div_ps(x, cap)));
      x = _mm512_mask_mov_ps(none, static_cast<__mmask16>(bits >> (16 * k)), x);
      _mm512_storeu_ps(s + 16 * k, x);
      top = _mm512_max_ps(x, top);  // the second where one is NaN
    }
    const __m256 top8 = _mm256_max_ps(_mm512_castps512_ps256(top), _mm512_extractf32x8_ps(top, 1));
    __m128 top4 = _mm_max_ps(_mm256_castps256_ps128(top8), _mm256_extractf128_ps(top8, 1));
    top4 = _mm_max_ps(top4, _mm_movehl_ps(top4, top4));
    top4 = _mm_max_ss(top4, _mm_movehdup_ps(top4));
    const float block_top = _mm_cvtss_f32(top4);
    const float high = block_top > b.m[r] ? block_top : b.m[r];
    b.alpha[r] = high == b.m[r] ? 1.0f : exp_portable(b.m[r] - high);
    b.m[r] = high;
  }
  for (index_t r = 0; r < b.rows; ++r) {
    float* s = b.s + r * dense_block;
    const __m512 base = _mm512_set1_ps(b.m[r] == -INFINITY ? 0.0f : b.m[r]);
    __m512 sum = _mm512_setzero_ps();
    DECANT_UNROLL
    for (int k = 0; k < 4; ++k) {
      const __m512 x = exp_avx512(_mm512_sub_ps(_mm512_loadu_ps(s + 16 * k), base));
      _mm512_storeu_ps(s + 16 * k, x);
      sum = _mm512_add_ps(sum, x);
    }
    const __m256 sum8 = _mm256_add_ps(_mm512_castps512_ps256(sum), _mm512_extractf32x8_ps(sum, 1));
    __m128 sum4 = _mm_add_ps(_mm256_castps256_ps128(sum8), _mm256_extractf128_ps(sum8, 1));
    sum4 = _mm_add_ps(sum4, _mm_movehl_ps(sum4, sum4));
    sum4 = _mm_add_ss(sum4, _mm_movehdup_ps(sum4));
    b.l[r] = b.l[r] * b.alpha[r] + _mm_cvtss_f32(sum4);
  }
}

template <class T>
inline constexpr DenseKernels<T> dense_avx512{
    arrange_avx512<T>, scores_by_four<T, scores_rows_avx512<T, 1>, scores_rows_avx512<T, 2>, scores_rows_avx512<T, 4>>,
    pack_avx512<T>, widen_avx512<T>, values_avx512<T>};
inline constexpr DenseKernels<bf16> dense_bf16_avx512{
    arrange_bf16_avx512, scores_by_four<bf16, dot_in_order_avx512<1>, dot_in_order_avx512<2>, dot_rows_avx512<4>>,
    pack_avx512<bf16>, widen_avx512<bf16>, values_avx512<bf16>, 2};
inline constexpr DenseFloatKernels dense_float_avx512{scores_packed_avx512, softmax_avx512};

}  // namespace decant::attention::detail

#endif

#endif
