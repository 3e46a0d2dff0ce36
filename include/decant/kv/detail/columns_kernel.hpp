// decant: the two passes over a tile of attention scores with queries side by side in lanes: exponentials against a
// maximum per query, and for each key the sum over queries of a function of its weight.
#ifndef DECANT_KV_DETAIL_COLUMNS_KERNEL_HPP
#define DECANT_KV_DETAIL_COLUMNS_KERNEL_HPP

#include <type_traits>

#include "../../core/math.hpp"
#include "../../core/simd.hpp"

namespace decant::kv::detail {

/// What a column adds up: the attention weight, or its square.
struct Weight {
  template <class Real>
  static DECANT_INLINE Real of(Real p) {
    return p;
  }
};
struct SquaredWeight {
  template <class Real>
  static DECANT_INLINE Real of(Real p) {
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
DECANT_TARGET_AVX2 inline void exponentials_avx2(float* s, index_t keys, index_t rows, const float* top, float* sum) {
  exponentials_lanes(s, keys, rows, top, sum);
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

inline void exponentials([[maybe_unused]] Isa isa, float* s, index_t keys, index_t rows, const float* top,
                         float* sum) {
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
