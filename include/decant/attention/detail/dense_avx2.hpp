// decant: the kernels of dense attention on AVX2 with FMA and F16C. Rows of any storage type are widened as they are
// loaded; a row's tail is copied or masked, never read past its end.
#ifndef DECANT_ATTENTION_DETAIL_DENSE_AVX2_HPP
#define DECANT_ATTENTION_DETAIL_DENSE_AVX2_HPP

#include "dense_portable.hpp"
#include "fp8_rows_avx2.hpp"

#if DECANT_X86

#include "../../core/detail/intrinsics.hpp"

namespace decant::attention::detail {

// Eight stored elements as floats, all of them or the first `count`.
DECANT_TARGET_AVX2 DECANT_INLINE __m256 widen8(__m128i x, bf16) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}
DECANT_TARGET_AVX2 DECANT_INLINE __m256 widen8(__m128i x, fp16) { return _mm256_cvtph_ps(x); }

DECANT_TARGET_AVX2 DECANT_INLINE __m256 load8(const float* p) { return _mm256_loadu_ps(p); }
template <class T>
  requires(sizeof(T) == 2)
DECANT_TARGET_AVX2 DECANT_INLINE __m256 load8(const T* p) {
  return widen8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), T{});
}
template <class T>
DECANT_TARGET_AVX2 DECANT_INLINE __m256 load8(const T* p, index_t count) {
  if (count == 8) return load8(p);
  T part[8] = {};
  std::memcpy(part, p, static_cast<std::size_t>(count) * sizeof(T));
  return load8(part);
}

/// Sixteen stored elements as two registers; in pairs: the even elements and the odd ones, for bf16 a shift and a mask.
template <class T>
DECANT_TARGET_AVX2 DECANT_INLINE void load16(const T* p, __m256& a, __m256& b) {
  if constexpr (sizeof(T) == 1) {
    load_pairs(p, a, b);
  } else if constexpr (in_pairs<T>) {
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    a = _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
    b = _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
  } else {
    a = load8(p);
    b = load8(p + 8);
  }
}

/// 16 floats in the order of memory become the even ones and the odd ones, or back.
DECANT_TARGET_AVX2 DECANT_INLINE void to_pairs(__m256& low, __m256& high) {
  const __m256d even = _mm256_castps_pd(_mm256_shuffle_ps(low, high, 0x88));
  const __m256d odd = _mm256_castps_pd(_mm256_shuffle_ps(low, high, 0xdd));
  low = _mm256_castpd_ps(_mm256_permute4x64_pd(even, 0xd8));
  high = _mm256_castpd_ps(_mm256_permute4x64_pd(odd, 0xd8));
}
DECANT_TARGET_AVX2 DECANT_INLINE void from_pairs(__m256& even, __m256& odd) {
  const __m256 low = _mm256_unpacklo_ps(even, odd);
  const __m256 high = _mm256_unpackhi_ps(even, odd);
  even = _mm256_permute2f128_ps(low, high, 0x20);
  odd = _mm256_permute2f128_ps(low, high, 0x31);
}

template <class T>
DECANT_TARGET_AVX2 void arrange_avx2(float* q, index_t q_stride, index_t rows, index_t dim) {
  if constexpr (in_pairs<T>) {
    for (index_t r = 0; r < rows; ++r) {
      for (index_t d = 0; d + 16 <= dim; d += 16) {
        float* const to = q + r * q_stride + d;
        __m256 low = _mm256_loadu_ps(to);
        __m256 high = _mm256_loadu_ps(to + 8);
        to_pairs(low, high);
        _mm256_storeu_ps(to, low);
        _mm256_storeu_ps(to + 8, high);
      }
    }
  }
}

/// The four sums over lanes of four registers, each formed in the same order.
DECANT_TARGET_AVX2 DECANT_INLINE __m128 sum_lanes(__m256 a, __m256 b, __m256 c, __m256 d) {
  const __m256 sums = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
  return _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1));
}

template <class T>
DECANT_TARGET_AVX2 DECANT_INLINE __m128 scaled(__m128 sums) {
  return pairs_scale<T> == 1 ? sums : _mm_mul_ps(sums, _mm_set1_ps(pairs_scale<T>));
}

/// R rows by N keys: eight sums at most, one chain each. The empty asm keeps a part of a query in its register: a
/// compiler would load it again for each key, and loads are what there are too many of.
template <class T, int R, int N>
DECANT_TARGET_AVX2 DECANT_INLINE void scores_tile_avx2(const float* q, index_t q_stride, const T* const* keys,
                                                       index_t dim, float* s) {
  __m256 sum[R][N];
  DECANT_UNROLL
  for (int r = 0; r < R; ++r) {
    DECANT_UNROLL
    for (int k = 0; k < N; ++k) sum[r][k] = _mm256_setzero_ps();
  }
  index_t d = 0;
  for (; d + 16 <= dim; d += 16) {
    __m256 low[N], high[N];
    DECANT_UNROLL
    for (int k = 0; k < N; ++k) load16(keys[k] + d, low[k], high[k]);
    DECANT_UNROLL
    for (int r = 0; r < R; ++r) {
      __m256 x = _mm256_loadu_ps(q + r * q_stride + d);
      asm("" : "+x"(x));
      DECANT_UNROLL
      for (int k = 0; k < N; ++k) sum[r][k] = _mm256_fmadd_ps(x, low[k], sum[r][k]);
      __m256 y = _mm256_loadu_ps(q + r * q_stride + d + 8);
      asm("" : "+x"(y));
      DECANT_UNROLL
      for (int k = 0; k < N; ++k) sum[r][k] = _mm256_fmadd_ps(y, high[k], sum[r][k]);
    }
  }
  for (; d < dim; d += 8) {
    DECANT_UNROLL
    for (int k = 0; k < N; ++k) {
      __m256 key = load8(keys[k] + d, dim - d < 8 ? dim - d : 8);
      if constexpr (pairs_scale<T> != 1) key = _mm256_mul_ps(key, _mm256_set1_ps(1 / pairs_scale<T>));
      DECANT_UNROLL
      for (int r = 0; r < R; ++r)
        sum[r][k] = _mm256_fmadd_ps(_mm256_loadu_ps(q + r * q_stride + d), key, sum[r][k]);
    }
  }
  if constexpr (N == 4) {
    DECANT_UNROLL
    for (int r = 0; r < R; ++r)
      _mm_storeu_ps(s + r * dense_block, scaled<T>(sum_lanes(sum[r][0], sum[r][1], sum[r][2], sum[r][3])));
  } else {
    DECANT_UNROLL
    for (int r = 0; r < R; r += 2) {
      const __m128 sums = scaled<T>(sum_lanes(sum[r][0], sum[r][1], sum[r + 1][0], sum[r + 1][1]));
      _mm_storel_pi(reinterpret_cast<__m64*>(s + r * dense_block), sums);
      _mm_storeh_pi(reinterpret_cast<__m64*>(s + (r + 1) * dense_block), sums);
    }
  }
}

template <class T>
DECANT_TARGET_AVX2 void scores_avx2(const float* q, index_t q_stride, index_t rows, const T* const* keys, index_t count,
                                    index_t dim, float* s, const Ahead<T>& ahead) {
  for (index_t j = 0; j < count; j += 4) {
    const index_t end = count - 1;  // past the last key its row stands in; those columns are masked
    const T* const four[4] = {keys[j], keys[j + 1 < end ? j + 1 : end], keys[j + 2 < end ? j + 2 : end],
                              keys[j + 3 < end ? j + 3 : end]};
    const float* from = q;
    float* to = s + j;
    index_t left = rows;
    ahead.fetch(j, 4);
    for (; left >= 4; left -= 4, from += 4 * q_stride, to += 4 * dense_block) {
      scores_tile_avx2<T, 4, 2>(from, q_stride, four, dim, to);
      scores_tile_avx2<T, 4, 2>(from, q_stride, four + 2, dim, to + 2);
    }
    if (left >= 2) {
      scores_tile_avx2<T, 2, 4>(from, q_stride, four, dim, to);
      left -= 2, from += 2 * q_stride, to += 2 * dense_block;
    }
    if (left > 0) scores_tile_avx2<T, 1, 4>(from, q_stride, four, dim, to);
  }
}

/// Eight rows of eight: x[i] lane j becomes x[j] lane i.
DECANT_TARGET_AVX2 DECANT_INLINE void transpose8(__m256 (&x)[8]) {
  __m256 t[8];
  DECANT_UNROLL
  for (int i = 0; i < 8; i += 4) {
    const __m256 low01 = _mm256_unpacklo_ps(x[i], x[i + 1]);
    const __m256 high01 = _mm256_unpackhi_ps(x[i], x[i + 1]);
    const __m256 low23 = _mm256_unpacklo_ps(x[i + 2], x[i + 3]);
    const __m256 high23 = _mm256_unpackhi_ps(x[i + 2], x[i + 3]);
    t[i] = _mm256_shuffle_ps(low01, low23, 0x44);
    t[i + 1] = _mm256_shuffle_ps(low01, low23, 0xee);
    t[i + 2] = _mm256_shuffle_ps(high01, high23, 0x44);
    t[i + 3] = _mm256_shuffle_ps(high01, high23, 0xee);
  }
  DECANT_UNROLL
  for (int c = 0; c < 4; ++c) {
    x[c] = _mm256_permute2f128_ps(t[c], t[4 + c], 0x20);
    x[4 + c] = _mm256_permute2f128_ps(t[c], t[4 + c], 0x31);
  }
}

template <class T>
DECANT_TARGET_AVX2 void pack_avx2(const T* const* keys, index_t count, index_t dim, float* packed) {
  for (index_t j = 0; j < dense_block; j += 8) {
    for (index_t d = 0; d < dim; d += 8) {
      const index_t lanes = dim - d < 8 ? dim - d : 8;
      __m256 x[8];
      DECANT_UNROLL
      for (int i = 0; i < 8; ++i) x[i] = j + i < count ? load8(keys[j + i] + d, lanes) : _mm256_setzero_ps();
      transpose8(x);
      float* to = packed + d * dense_block + j;
      DECANT_UNROLL
      for (int i = 0; i < 8; ++i)
        if (i < lanes) _mm256_storeu_ps(to + i * dense_block, x[i]);
    }
  }
}

template <class T>
DECANT_TARGET_AVX2 void widen_avx2(const T* const* rows, index_t count, index_t dim, float* out, index_t stride) {
  const index_t whole = dim / 8 * 8;
  for (index_t j = 0; j < count; ++j) {
    for (index_t d = 0; d < whole; d += 8) _mm256_storeu_ps(out + j * stride + d, load8(rows[j] + d));
    if (whole < dim) _mm256_storeu_ps(out + j * stride + whole, load8(rows[j] + whole, dim - whole));
  }
}

/// R rows by V registers of the output, whole ones, from element d on.
template <class T, int R, int V>
DECANT_TARGET_AVX2 DECANT_INLINE void values_tile_avx2(const float* p, const float* alpha, const T* const* values,
                                                       index_t count, float* o, index_t o_stride, index_t d,
                                                       const Ahead<T>& ahead) {
  __m256 sum[R][V];
  DECANT_UNROLL
  for (int r = 0; r < R; ++r) {
    const __m256 a = _mm256_set1_ps(alpha[r] * (1 / pairs_scale<T>));
    DECANT_UNROLL
    for (int v = 0; v < V; ++v) sum[r][v] = _mm256_mul_ps(_mm256_loadu_ps(o + r * o_stride + d + 8 * v), a);
    if constexpr (in_pairs<T>) {
      DECANT_UNROLL
      for (int v = 0; v < V; v += 2) to_pairs(sum[r][v], sum[r][v + 1]);
    }
  }
  index_t next = 0;
  for (index_t j = 0; j < count;) {
    ahead.fetch(next++);
    const index_t end = j + ahead.every < count ? j + ahead.every : count;
    for (; j < end; ++j) {
      __m256 weight[R];
      DECANT_UNROLL
      for (int r = 0; r < R; ++r) weight[r] = _mm256_set1_ps(p[r * dense_block + j]);
      DECANT_UNROLL
      for (int v = 0; v < V; v += 2) {
        __m256 low, high;
        load16(values[j] + d + 8 * v, low, high);
        DECANT_UNROLL
        for (int r = 0; r < R; ++r) {
          sum[r][v] = _mm256_fmadd_ps(weight[r], low, sum[r][v]);
          sum[r][v + 1] = _mm256_fmadd_ps(weight[r], high, sum[r][v + 1]);
        }
      }
    }
  }
  DECANT_UNROLL
  for (int r = 0; r < R; ++r) {
    if constexpr (in_pairs<T>) {
      DECANT_UNROLL
      for (int v = 0; v < V; v += 2) from_pairs(sum[r][v], sum[r][v + 1]);
    }
    DECANT_UNROLL
    for (int v = 0; v < V; ++v) {
      if constexpr (pairs_scale<T> != 1) sum[r][v] = _mm256_mul_ps(sum[r][v], _mm256_set1_ps(pairs_scale<T>));
      _mm256_storeu_ps(o + r * o_stride + d + 8 * v, sum[r][v]);
    }
  }
}

/// As much of memory as is due is asked for: part `part` of `parts`.
template <class T, int R>
DECANT_TARGET_AVX2 void values_rows_avx2(const float* p, const float* alpha, const T* const* values, index_t count,
                                         index_t dim, float* o, index_t o_stride, const Ahead<T>& ahead, index_t part,
                                         index_t parts) {
  constexpr int V = 8 / R;
  const index_t steps = dim / (8 * V) > 0 ? dim / (8 * V) : 1;
  index_t d = 0;
  for (; d + 8 * V <= dim; d += 8 * V)
    values_tile_avx2<T, R, V>(p, alpha, values, count, o, o_stride, d,
                              ahead.part(part * steps + d / (8 * V), parts * steps));
  if constexpr (V > 2)
    for (; d + 16 <= dim; d += 16) values_tile_avx2<T, R, 2>(p, alpha, values, count, o, o_stride, d, {});
  for (; d < dim; d += 8) {
    const index_t lanes = dim - d < 8 ? dim - d : 8;
    for (int r = 0; r < R; ++r) {
      float* const to = o + r * o_stride + d;
      __m256 sum = _mm256_mul_ps(_mm256_loadu_ps(to), _mm256_set1_ps(alpha[r]));
      for (index_t j = 0; j < count; ++j)
        sum = _mm256_fmadd_ps(_mm256_set1_ps(p[r * dense_block + j]), load8(values[j] + d, lanes), sum);
      _mm256_storeu_ps(to, sum);
    }
  }
}

template <class T>
DECANT_TARGET_AVX2 void values_avx2(const float* p, const float* alpha, index_t rows, const T* const* values,
                                    index_t count, index_t dim, float* o, index_t o_stride, Ahead<T> ahead) {
  const index_t parts = (rows + 3) / 4;
  index_t part = 0;
  for (; rows >= 4; rows -= 4, p += 4 * dense_block, alpha += 4, o += 4 * o_stride)
    values_rows_avx2<T, 4>(p, alpha, values, count, dim, o, o_stride, ahead, part++, parts);
  if (rows >= 2) {
    values_rows_avx2<T, 2>(p, alpha, values, count, dim, o, o_stride, ahead, part, parts);
    rows -= 2, p += 2 * dense_block, alpha += 2, o += 2 * o_stride, ahead.count = 0;
  }
  if (rows > 0) values_rows_avx2<T, 1>(p, alpha, values, count, dim, o, o_stride, ahead, part, parts);
}

template <int R>
DECANT_TARGET_AVX2 DECANT_INLINE void scores_packed_rows_avx2(const float* q, index_t q_stride, const float* packed,
                                                              index_t dim, float* s) {
  __m256 sum[R][2];
  DECANT_UNROLL
  for (int r = 0; r < R; ++r) {
    DECANT_UNROLL
    for (int k = 0; k < 2; ++k) sum[r][k] = _mm256_setzero_ps();
  }
  for (index_t d = 0; d < dim; ++d) {
    const __m256 key0 = _mm256_loadu_ps(packed + d * dense_block);
    const __m256 key1 = _mm256_loadu_ps(packed + d * dense_block + 8);
    DECANT_UNROLL
    for (int r = 0; r < R; ++r) {
      const __m256 x = _mm256_set1_ps(q[r * q_stride + d]);
      sum[r][0] = _mm256_fmadd_ps(x, key0, sum[r][0]);
      sum[r][1] = _mm256_fmadd_ps(x, key1, sum[r][1]);
    }
  }
  DECANT_UNROLL
  for (int r = 0; r < R; ++r) {
    _mm256_storeu_ps(s + r * dense_block, sum[r][0]);
    _mm256_storeu_ps(s + r * dense_block + 8, sum[r][1]);
  }
}

DECANT_TARGET_AVX2 inline void scores_packed_avx2(const float* q, index_t q_stride, index_t rows, const float* packed,
                                                  index_t dim, float* s) {
  for (index_t j = 0; j < dense_block; j += 16) {
    index_t r = 0;
    for (; r + 6 <= rows; r += 6)
      scores_packed_rows_avx2<6>(q + r * q_stride, q_stride, packed + j, dim, s + r * dense_block + j);
    if (r + 4 <= rows) {
      scores_packed_rows_avx2<4>(q + r * q_stride, q_stride, packed + j, dim, s + r * dense_block + j);
      r += 4;
    }
    if (r + 2 <= rows) {
      scores_packed_rows_avx2<2>(q + r * q_stride, q_stride, packed + j, dim, s + r * dense_block + j);
      r += 2;
    }
    if (r < rows) scores_packed_rows_avx2<1>(q + r * q_stride, q_stride, packed + j, dim, s + r * dense_block + j);
  }
}

/// exp as in exp_portable.
DECANT_TARGET_AVX2 DECANT_INLINE __m256 exp_avx2(__m256 x) {
  using namespace exp_constants;
  const __m256 alive = _mm256_cmp_ps(x, _mm256_set1_ps(lowest), _CMP_NLT_UQ);  // NaN is alive
  const __m256 magic = _mm256_set1_ps(round_magic);
  const __m256 shifted = _mm256_fmadd_ps(x, _mm256_set1_ps(log2e), magic);
  const __m256 n = _mm256_sub_ps(shifted, magic);
  __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(ln2_high), x);
  r = _mm256_fnmadd_ps(n, _mm256_set1_ps(ln2_low), r);
  __m256 tail = _mm256_fmadd_ps(r, _mm256_set1_ps(c6), _mm256_set1_ps(c5));
  tail = _mm256_fmadd_ps(r, tail, _mm256_set1_ps(c4));
  tail = _mm256_fmadd_ps(r, tail, _mm256_set1_ps(c3));
  tail = _mm256_fmadd_ps(r, tail, _mm256_set1_ps(c2));
  const __m256 e = _mm256_add_ps(_mm256_fmadd_ps(_mm256_mul_ps(r, r), tail, r), _mm256_set1_ps(1.0f));
  const __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_castps_si256(shifted), _mm256_set1_epi32(127)), 23);
  return _mm256_and_ps(alive, _mm256_mul_ps(e, _mm256_castsi256_ps(power)));
}

/// tanh: an odd polynomial for small x, (1 - e) / (1 + e) with e = exp(-2 |x|) beyond. Absolute error below 2e-7.
DECANT_TARGET_AVX2 DECANT_INLINE __m256 tanh_avx2(__m256 x) {
  using namespace tanh_constants;
  const __m256 sign = _mm256_set1_ps(-0.0f);
  const __m256 size = _mm256_andnot_ps(sign, x);
  const __m256 e = exp_avx2(_mm256_mul_ps(size, _mm256_set1_ps(-2.0f)));
  const __m256 one = _mm256_set1_ps(1.0f);
  const __m256 large = _mm256_div_ps(_mm256_sub_ps(one, e), _mm256_add_ps(one, e));
  const __m256 z = _mm256_mul_ps(x, x);
  __m256 tail = _mm256_fmadd_ps(z, _mm256_set1_ps(t4), _mm256_set1_ps(t3));
  tail = _mm256_fmadd_ps(z, tail, _mm256_set1_ps(t2));
  tail = _mm256_fmadd_ps(z, tail, _mm256_set1_ps(t1));
  tail = _mm256_fmadd_ps(z, tail, _mm256_set1_ps(t0));
  const __m256 near_zero = _mm256_fmadd_ps(_mm256_mul_ps(z, size), tail, size);
  const __m256 is_large = _mm256_cmp_ps(size, _mm256_set1_ps(limit), _CMP_GT_OQ);
  return _mm256_or_ps(_mm256_blendv_ps(near_zero, large, is_large), _mm256_and_ps(x, sign));
}

DECANT_TARGET_AVX2 inline void softmax_avx2(const SoftmaxBlock& b) {
  const __m256 none = _mm256_set1_ps(-INFINITY);
  const __m256 scale = _mm256_set1_ps(b.scale);
  const __m256 cap = _mm256_set1_ps(b.soft_cap);
  const __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  for (index_t r = 0; r < b.rows; ++r) {
    float* s = b.s + r * dense_block;
    const std::uint64_t bits = b.bits[r / b.group];
    __m256 x[8];
    __m256 top = none;
    DECANT_UNROLL
    for (int k = 0; k < 8; ++k) {
      x[k] = _mm256_mul_ps(_mm256_loadu_ps(s + 8 * k), scale);
      if (b.soft_cap > 0) x[k] = _mm256_mul_ps(cap, tanh_avx2(_mm256_div_ps(x[k], cap)));
      const __m256i word = _mm256_set1_epi32(static_cast<int>((bits >> (8 * k)) & 0xff));
      const __m256 allowed = _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(word, lane), lane));
      x[k] = _mm256_blendv_ps(none, x[k], allowed);
      top = _mm256_max_ps(x[k], top);  // the second where one is NaN
    }
    __m128 top4 = _mm_max_ps(_mm256_castps256_ps128(top), _mm256_extractf128_ps(top, 1));
    top4 = _mm_max_ps(top4, _mm_movehl_ps(top4, top4));
    top4 = _mm_max_ss(top4, _mm_movehdup_ps(top4));
    const float block_top = _mm_cvtss_f32(top4);
    const float high = block_top > b.m[r] ? block_top : b.m[r];
    const float reference = high == -INFINITY ? 0.0f : high;
    const __m256 base = _mm256_set1_ps(reference);
    __m256 sum = _mm256_setzero_ps();
    DECANT_UNROLL
    for (int k = 0; k < 8; ++k) {
      x[k] = exp_avx2(_mm256_sub_ps(x[k], base));
      _mm256_storeu_ps(s + 8 * k, x[k]);
      sum = _mm256_add_ps(sum, x[k]);
    }
    __m128 sum4 = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps(sum, 1));
    sum4 = _mm_add_ps(sum4, _mm_movehl_ps(sum4, sum4));
    sum4 = _mm_add_ss(sum4, _mm_movehdup_ps(sum4));
    const float alpha = exp_portable(b.m[r] - reference);
    b.l[r] = b.l[r] * alpha + _mm_cvtss_f32(sum4);
    b.m[r] = high;
    b.alpha[r] = alpha;
  }
}

template <class T>
inline constexpr DenseKernels<T> dense_avx2{arrange_avx2<T>, scores_avx2<T>, pack_avx2<T>, widen_avx2<T>,
                                            values_avx2<T>};
inline constexpr DenseFloatKernels dense_float_avx2{scores_packed_avx2, softmax_avx2};

}  // namespace decant::attention::detail

#endif

#endif
