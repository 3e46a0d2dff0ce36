// decant: integers of other widths than 4 and 8-bit floats: a code's planes are shifted out of one load each, a float
// is half an fp16. On AVX-512 weights are multiplied as they come out, four rows at once, where groups are sixteens;
// else they are decoded to floats, eight at a time, and multiplied then. Any group size.
#ifndef DECANT_QUANT_DETAIL_MATMUL_DECODE_HPP
#define DECANT_QUANT_DETAIL_MATMUL_DECODE_HPP

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "../../core/bytes.hpp"
#include "../../core/detail/intrinsics.hpp"
#include "../fp8.hpp"
#include "../int_group.hpp"
#include "matmul_kernels.hpp"
#include "matmul_nibbles.hpp"

namespace decant::quant::detail {

#if DECANT_X86

/// Eight codes of a plane of `Plane` bits, in its `Plane` bytes.
template <int Plane>
DECANT_TARGET_AVX2 DECANT_INLINE __m256i load_eight_of_plane(const std::byte* from) {
  if constexpr (Plane == 8) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
  } else {
    std::uint32_t bits = 0;
    std::memcpy(&bits, from, Plane);
    const __m256i shift =
        _mm256_setr_epi32(0, Plane, 2 * Plane, 3 * Plane, 4 * Plane, 5 * Plane, 6 * Plane, 7 * Plane);
    return _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(static_cast<int>(bits)), shift),
                            _mm256_set1_epi32((1 << Plane) - 1));
  }
}

/// Eight codes of `Bits` from column k, a multiple of 8, of a row of n columns: their planes from `Plane` bits on down,
/// whose lowest bit is bit `Low` of the code.
template <int Bits, int Plane = 8, int Low = 0>
DECANT_TARGET_AVX2 DECANT_INLINE __m256i load_eight_codes(const std::byte* planes, index_t n, index_t k) {
  if constexpr (Plane == 0) {
    return _mm256_setzero_si256();
  } else if constexpr ((Bits & Plane) == 0) {
    return load_eight_codes<Bits, Plane / 2, Low>(planes, n, k);
  } else {
    const __m256i part = _mm256_slli_epi32(load_eight_of_plane<Plane>(planes + k * Plane / 8), Low);
    return _mm256_or_si256(part,
                           load_eight_codes<Bits, Plane / 2, Low + Plane>(planes + plane_bytes(Plane, n), n, k));
  }
}

template <int Bits>
DECANT_TARGET_AVX2 void decode_row_avx2(const Packed<Int<Bits>>& w, const typename Int<Bits>::Layer& layer, index_t r,
                                        float* out) {
  const Int<Bits>& format = w.format();
  const std::byte* const row = w.row(r);
  const index_t cols = w.cols();
  const index_t size = format.group_size(cols);
  const bool minimum = format.grid == IntGrid::minimum;
  for (index_t j = 0, k = 0; k < cols; ++j) {
    const typename Int<Bits>::Group group = format.load_group(layer, row, cols, j);
    const __m256 scale = _mm256_set1_ps(group.scale);
    const __m256 origin = _mm256_set1_ps(group.origin);
    const index_t end = cols - k < size ? cols : k + size;
    while (k < end) {
      if (k % 8 != 0 || end - k < 8) {
        out[k] = format.value(layer, group, 0, format.load_code(row, cols, k));
        ++k;
        continue;
      }
      const __m256 q = _mm256_cvtepi32_ps(load_eight_codes<Bits>(row, cols, k));
      _mm256_storeu_ps(out + k, minimum ? _mm256_fmadd_ps(scale, q, origin)
                                        : _mm256_mul_ps(scale, _mm256_sub_ps(q, origin)));
      k += 8;
    }
  }
}

/// The bits of fp16 that an 8-bit float is the upper ones of: E5M2 itself, E4M3 2^8 times too small.
template <class T>
DECANT_TARGET_AVX2 void decode_row_avx2(const Packed<Fp8<T>>& w, const typename Fp8<T>::Layer& layer, index_t r,
                                        float* out) {
  constexpr bool e4m3 = std::is_same_v<T, fp8_e4m3>;
  const std::byte* const row = w.row(r);
  const index_t cols = w.cols();
  const float scale = w.format().load_group(layer, row, cols, 0).scale;
  const __m256 by = _mm256_set1_ps(scale);
  index_t k = 0;
  for (; k + 8 <= cols; k += 8) {
    const __m128i code = _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(row + k)));
    if constexpr (e4m3) {
      const __m128i size = _mm_and_si128(code, _mm_set1_epi16(0x7f));
      const __m128i sign = _mm_slli_epi16(_mm_and_si128(code, _mm_set1_epi16(0x80)), 8);
      // 0x7f is not a number, which no fp16 with these bits is.
      const __m128i none = _mm_and_si128(_mm_cmpeq_epi16(size, _mm_set1_epi16(0x7f)), _mm_set1_epi16(0x7e00));
      const __m128i half = _mm_or_si128(_mm_or_si128(_mm_slli_epi16(size, 7), sign), none);
      const __m256 value = _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256.0f));
      _mm256_storeu_ps(out + k, _mm256_mul_ps(value, by));
    } else {
      _mm256_storeu_ps(out + k, _mm256_mul_ps(_mm256_cvtph_ps(_mm_slli_epi16(code, 8)), by));
    }
  }
  for (; k < cols; ++k) out[k] = static_cast<float>(T::from_bits(static_cast<std::uint8_t>(row[k]))) * scale;
}

/// Sixteen codes of a plane of `Plane` bits, in its 2 `Plane` bytes, from bit `Low` on.
template <int Plane, int Low>
DECANT_TARGET_AVX512 DECANT_INLINE __m512i load_sixteen_of_plane(const std::byte* from) {
  if constexpr (Plane == 8) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  } else if constexpr (Plane == 1) {
    return _mm512_maskz_set1_epi32(static_cast<__mmask16>(load_le<std::uint16_t>(from)), 1 << Low);
  } else {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i by = _mm512_and_si512(_mm512_slli_epi32(lane, Plane / 2), _mm512_set1_epi32(31));  // Plane 2 or 4
    __m512i bits;
    if constexpr (Plane == 2) {
      bits = _mm512_set1_epi32(static_cast<int>(load_le<std::uint32_t>(from)));
    } else {
      const __m512i words = _mm512_castsi128_si512(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
      bits = _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1), words);
    }
    const __m512i code = _mm512_and_si512(_mm512_srlv_epi32(bits, by), _mm512_set1_epi32((1 << Plane) - 1));
    return Low == 0 ? code : _mm512_slli_epi32(code, Low);
  }
}

/// As load_eight_codes, k a multiple of 16.
template <int Bits, int Plane = 8, int Low = 0>
DECANT_TARGET_AVX512 DECANT_INLINE __m512i load_sixteen_codes(const std::byte* planes, index_t n, index_t k) {
  if constexpr (Plane == 0) {
    return _mm512_setzero_si512();
  } else if constexpr ((Bits & Plane) == 0) {
    return load_sixteen_codes<Bits, Plane / 2, Low>(planes, n, k);
  } else {
    const __m512i part = load_sixteen_of_plane<Plane, Low>(planes + k * Plane / 8);
    if constexpr ((Bits & (Plane - 1)) == 0) return part;
    else
      return _mm512_or_si512(part,
                             load_sixteen_codes<Bits, Plane / 2, Low + Plane>(planes + plane_bytes(Plane, n), n, k));
  }
}

/// The first `left` codes, at most 16, from column k on, as floats; the others are anything finite.
template <int Bits>
DECANT_TARGET_AVX512 DECANT_INLINE __m512 load_sixteen(const Packed<Int<Bits>>& w, const std::byte* row, index_t k,
                                                       index_t left) {
  if (left >= 16) return _mm512_cvtepi32_ps(load_sixteen_codes<Bits>(row, w.cols(), k));
  int few[16] = {};
  for (index_t i = 0; i < left; ++i) few[i] = w.format().load_code(row, w.cols(), k + i);
  return _mm512_cvtepi32_ps(_mm512_loadu_si512(few));
}
template <class T>
DECANT_TARGET_AVX512 DECANT_INLINE __m512 load_sixteen(const Packed<Fp8<T>>&, const std::byte* row, index_t k,
                                                       index_t left) {
  const __mmask16 mask = left >= 16 ? __mmask16{0xffff} : static_cast<__mmask16>((1u << left) - 1u);
  const __m256i code = _mm256_cvtepu8_epi16(_mm_maskz_loadu_epi8(mask, row + k));
  if constexpr (!std::is_same_v<T, fp8_e4m3>) return _mm512_cvtph_ps(_mm256_slli_epi16(code, 8));
  const __m256i size = _mm256_and_si256(code, _mm256_set1_epi16(0x7f));
  const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(code, _mm256_set1_epi16(0x80)), 8);
  const __m256i half = _mm256_or_si256(_mm256_slli_epi16(size, 7), sign);
  const __mmask16 none = _mm256_cmpeq_epi16_mask(size, _mm256_set1_epi16(0x7f));
  return _mm512_cvtph_ps(_mm256_mask_mov_epi16(half, none, _mm256_set1_epi16(0x7e00)));
}

/// A group's numbers: a weight is scale * (code - origin), or origin + scale * code.
struct Affine {
  float scale, origin;
  bool minimum;
};
template <int Bits>
Affine affine(const Int<Bits>& format, const typename Int<Bits>::Group& group) {
  return {group.scale, group.origin, format.grid == IntGrid::minimum};
}
template <class T>
Affine affine(const Fp8<T>&, const typename Fp8<T>::Group& group) {
  return {std::is_same_v<T, fp8_e4m3> ? group.scale * 256.0f : group.scale, 0, false};
}

/// R rows from `row` on by T tokens. What comes after `next` is fetched ahead, in its order.
template <class F, int R, int T>
DECANT_TARGET_AVX512 void affine_rows_avx512(const Packed<F>& w, index_t row, const float* const (&x)[T],
                                             const char* next, float* const (&y)[R]) {
  const F& format = w.format();
  const index_t cols = w.cols();
  const index_t size = format.group_size(cols);
  bool minimum = false;
  __m512 sum[R][T];
  const std::byte* at[R];
  DECANT_UNROLL
  for (int r = 0; r < R; ++r) {
    at[r] = w.row(row + r);
    DECANT_UNROLL
    for (int t = 0; t < T; ++t) sum[r][t] = _mm512_setzero_ps();
  }
  for (index_t j = 0, k = 0; k < cols; ++j) {
    __m512 scale[R], origin[R];
    DECANT_UNROLL
    for (int r = 0; r < R; ++r) {
      const Affine group = affine(format, format.load_group({}, at[r], cols, j));
      scale[r] = _mm512_set1_ps(group.scale);
      origin[r] = _mm512_set1_ps(group.origin);
      minimum = group.minimum;
    }
    const index_t end = cols - k < size ? cols : k + size;
    for (; k < end; k += 16) {
      __builtin_prefetch(next + R * k * F::bits / 8, 0, 2);
      const index_t left = end - k;
      const __mmask16 mask = left >= 16 ? __mmask16{0xffff} : static_cast<__mmask16>((1u << left) - 1u);
      __m512 v[T];
      DECANT_UNROLL
      for (int t = 0; t < T; ++t) v[t] = _mm512_maskz_loadu_ps(mask, x[t] + k);
      DECANT_UNROLL
      for (int r = 0; r < R; ++r) {
        const __m512 q = load_sixteen(w, at[r], k, left);
        const __m512 value =
            minimum ? _mm512_fmadd_ps(scale[r], q, origin[r]) : _mm512_mul_ps(scale[r], _mm512_sub_ps(q, origin[r]));
        DECANT_UNROLL
        for (int t = 0; t < T; ++t) sum[r][t] = _mm512_fmadd_ps(value, v[t], sum[r][t]);
      }
    }
  }
  DECANT_UNROLL
  for (int r = 0; r < R; ++r) {
    DECANT_UNROLL
    for (int t = 0; t < T; ++t) y[r][t] = _mm512_reduce_add_ps(sum[r][t]);
  }
}

template <class F>
void affine_product_avx512(const Packed<F>& w, index_t first, index_t last, const std::byte* x,
                            index_t x_stride, index_t tokens, float* y, index_t y_stride, std::byte*) {
  const auto token = [&](index_t t) { return reinterpret_cast<const float*>(x + (t < tokens ? t : 0) * x_stride); };
  float out[4][4];
  for (index_t r = first; r < last;) {
    const bool four = tokens == 1 && last - r >= 4;
    const index_t count = four ? 4 : 1;
    const auto* const next = reinterpret_cast<const char*>(w.row(r + count < last ? r + count : r));
    for (index_t t = 0; t < tokens; t += 4) {
      const index_t some = tokens - t < 4 ? tokens - t : 4;
      if (four) {
        affine_rows_avx512<F, 4, 1>(w, r, {token(t)}, next, {out[0], out[1], out[2], out[3]});
      } else if (some == 1) {
        affine_rows_avx512<F, 1, 1>(w, r, {token(t)}, next, {out[0]});
      } else {
        affine_rows_avx512<F, 1, 4>(w, r, {token(t), token(t + 1), token(t + 2), token(t + 3)}, next, {out[0]});
      }
      for (index_t i = 0; i < count; ++i)
        for (index_t k = 0; k < some; ++k) y[(t + k) * y_stride + r + i] = out[i][k];
    }
    r += count;
  }
}

#endif

template <class F>
MatmulKernels<F> affine_kernels(Isa isa, const Packed<F>& w, Activations a) {
#if DECANT_X86
  MatmulKernels<F> kernels =
      isa >= Isa::avx2 ? decoded_kernels<F, decode_row_avx2>(isa, a) : decoded_kernels<F>(isa, a);
  const index_t size = w.format().group_size(w.cols());
  if (isa == Isa::avx512 && (size % 16 == 0 || size == w.cols())) {
    kernels.scratch_bytes = nullptr;
    kernels.rows = affine_product_avx512<F>;
  }
  return kernels;
#else
  static_cast<void>(w);
  return decoded_kernels<F>(isa, a);
#endif
}

}  // namespace decant::quant::detail

namespace decant::quant {

template <int Bits>
  requires(Bits != 4)
MatmulKernels<Int<Bits>> matmul_kernels(Isa isa, const Packed<Int<Bits>>& w, Activations a) {
  return detail::affine_kernels(isa, w, a);
}

template <class T>
MatmulKernels<Fp8<T>> matmul_kernels(Isa isa, const Packed<Fp8<T>>& w, Activations a) {
  return detail::affine_kernels(isa, w, a);
}

}  // namespace decant::quant

#endif
