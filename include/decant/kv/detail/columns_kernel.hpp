// decant: the two passes over a tile of attention scores with queries side by side in lanes: exponentials against a
// maximum per query, and for each key the sum over queries of a function of its weight.
#ifndef DECANT_KV_DETAIL_COLUMNS_KERNEL_HPP
#define DECANT_KV_DETAIL_COLUMNS_KERNEL_HPP

#include <type_traits>

#include "../../core/math.hpp"
#include "../../core/simd.hpp"

#if DECANT_X86
#include <immintrin.h>
#endif

namespace decant::kv::detail {

/// What a column adds up: the attention weight, or its square.
struct Weight {
  template <class Real>
  DECANT_HD static DECANT_INLINE Real of(Real p) {
    return p;
  }
};
struct SquaredWeight {
  template <class Real>
  DECANT_HD static DECANT_INLINE Real of(Real p) {
    return p * p;
  }
};

/// s [keys][rows], rows a multiple of 16: raises top[r] to the column maximum.
DECANT_INLINE void raise_top_lanes(const float* s, index_t keys, index_t rows, float* top) {
  for (index_t r = 0; r < rows; r += 16) {
    float lane[16];
    for (int l = 0; l < 16; ++l) lane[l] = top[r + l];
    for (index_t j = 0; j < keys; ++j) {
      const float* const x = s + j * rows + r;
      for (int l = 0; l < 16; ++l) lane[l] = x[l] > lane[l] ? x[l] : lane[l];
    }
    for (int l = 0; l < 16; ++l) top[r + l] = lane[l];
  }
}

/// s = e^(s - top), and adds each query's sum to sum[r].
DECANT_INLINE void exponentials_lanes(float* s, index_t keys, index_t rows, const float* top, float* sum) {
  for (index_t r = 0; r < rows; r += 16) {
    float lane[16] = {};
    float highest[16];
    for (int l = 0; l < 16; ++l) highest[l] = top[r + l];
    for (index_t j = 0; j < keys; ++j) {
      float* const x = s + j * rows + r;
      float e[16];
      for (int l = 0; l < 16; ++l) e[l] = fast_exp(x[l] - highest[l]);
      for (int l = 0; l < 16; ++l) lane[l] += e[l];
      for (int l = 0; l < 16; ++l) x[l] = e[l];
    }
    for (int l = 0; l < 16; ++l) sum[r + l] += lane[l];
  }
}

/// out[j] += sum over r of F(e[j][r] * scale[r]).
template <class F, class Real>
DECANT_INLINE void add_columns_lanes(const Real* e, index_t keys, index_t rows, const Real* scale, Real* out) {
  for (index_t j = 0; j < keys; ++j) {
    const Real* const x = e + j * rows;
    Real lane[16] = {};
    for (index_t r = 0; r < rows; r += 16) {
      for (int l = 0; l < 16; ++l) lane[l] += F::of(x[r + l] * scale[r + l]);
    }
    for (int width = 8; width > 0; width /= 2) {
      for (int l = 0; l < width; ++l) lane[l] += lane[l + width];
    }
    out[j] += lane[0];
  }
}

#if DECANT_X86
DECANT_TARGET_AVX2 inline void raise_top_avx2(const float* s, index_t keys, index_t rows, float* top) {
  raise_top_lanes(s, keys, rows, top);
}
DECANT_TARGET_AVX512 inline void raise_top_avx512(const float* s, index_t keys, index_t rows, float* top) {
  raise_top_lanes(s, keys, rows, top);
}
/// fast_exp by hand: g++ 12 does not vectorise it for AVX2. Fused multiply-adds, so results differ by rounding.
DECANT_TARGET_AVX2 DECANT_INLINE __m256 fast_exp_avx2(__m256 x) {
  x = _mm256_max_ps(_mm256_set1_ps(-104.0f), x);  // in this order a NaN stays
  x = _mm256_min_ps(_mm256_set1_ps(89.0f), x);
  const __m256 shift = _mm256_set1_ps(12582912.0f);
  const __m256 shifted = _mm256_fmadd_ps(x, _mm256_set1_ps(1.44269504f), shift);
  const __m256 n = _mm256_sub_ps(shifted, shift);
  __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x);
  r = _mm256_fmadd_ps(n, _mm256_set1_ps(2.12194440e-4f), r);
  __m256 p = _mm256_set1_ps(1.9875691500e-4f);
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.3981999507e-3f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(8.3334519073e-3f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(4.1665795894e-2f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.6666665459e-1f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(5.0000001201e-1f));
  p = _mm256_add_ps(_mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r), _mm256_set1_ps(1.0f));
  const __m256i whole = _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_castps_si256(shift));
  const __m256i half = _mm256_srai_epi32(whole, 1);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256i first = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
  const __m256i second = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(whole, half), bias), 23);
  return _mm256_mul_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(first)), _mm256_castsi256_ps(second));
}
DECANT_TARGET_AVX2 inline void exponentials_avx2(float* s, index_t keys, index_t rows, const float* top, float* sum) {
  for (index_t r = 0; r < rows; r += 8) {
    const __m256 highest = _mm256_loadu_ps(top + r);
    __m256 lane = _mm256_setzero_ps();
    for (index_t j = 0; j < keys; ++j) {
      float* const x = s + j * rows + r;
      const __m256 e = fast_exp_avx2(_mm256_sub_ps(_mm256_loadu_ps(x), highest));
      lane = _mm256_add_ps(lane, e);
      _mm256_storeu_ps(x, e);
    }
    _mm256_storeu_ps(sum + r, _mm256_add_ps(_mm256_loadu_ps(sum + r), lane));
  }
}
DECANT_TARGET_AVX512 inline void exponentials_avx512(float* s, index_t keys, index_t rows, const float* top,
                                                     float* sum) {
  exponentials_lanes(s, keys, rows, top, sum);
}
template <class F>
DECANT_TARGET_AVX2 inline void add_columns_avx2(const float* e, index_t keys, index_t rows, const float* scale,
                                                float* out) {
  add_columns_lanes<F>(e, keys, rows, scale, out);
}
template <class F>
DECANT_TARGET_AVX512 inline void add_columns_avx512(const float* e, index_t keys, index_t rows, const float* scale,
                                                    float* out) {
  add_columns_lanes<F>(e, keys, rows, scale, out);
}
#endif

inline void raise_top([[maybe_unused]] Isa isa, const float* s, index_t keys, index_t rows, float* top) {
#if DECANT_X86
  if (isa == Isa::avx512) return raise_top_avx512(s, keys, rows, top);
  if (isa == Isa::avx2) return raise_top_avx2(s, keys, rows, top);
#endif
  raise_top_lanes(s, keys, rows, top);
}

inline void exponentials([[maybe_unused]] Isa isa, float* s, index_t keys, index_t rows, const float* top, float* sum) {
#if DECANT_X86
  if (isa == Isa::avx512) return exponentials_avx512(s, keys, rows, top, sum);
  if (isa == Isa::avx2) return exponentials_avx2(s, keys, rows, top, sum);
#endif
  exponentials_lanes(s, keys, rows, top, sum);
}

template <class F, class Real>
void add_columns([[maybe_unused]] Isa isa, const Real* e, index_t keys, index_t rows, const Real* scale, Real* out) {
#if DECANT_X86
  if constexpr (std::is_same_v<Real, float>) {
    if (isa == Isa::avx512) return add_columns_avx512<F>(e, keys, rows, scale, out);
    if (isa == Isa::avx2) return add_columns_avx2<F>(e, keys, rows, scale, out);
  }
#endif
  add_columns_lanes<F>(e, keys, rows, scale, out);
}

}  // namespace decant::kv::detail

#endif
