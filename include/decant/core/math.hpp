// decant: the little arithmetic that several families share: a fast exponential, dot products, and Cholesky
// factorisation with triangular solves for matrices up to a head dim or two in size.
// Float results are deterministic on one processor; instruction sets differ by rounding (fused or not).
#ifndef DECANT_CORE_MATH_HPP
#define DECANT_CORE_MATH_HPP

#include <cstdint>
#include <type_traits>

#include "bits.hpp"
#include "error.hpp"
#include "simd.hpp"
#include "view.hpp"

namespace decant {

/// e^x within 1.5 ulp for normal results, within one spacing for subnormal ones; exact at 0; 0 below -104, inf above
/// 88.73; NaN stays NaN. No branches, so that loops over it vectorise.
DECANT_HD DECANT_INLINE constexpr float fast_exp(float x) {
  // x = n ln 2 + r with |r| <= ln 2 / 2; 2^n is applied in two halves, so that subnormal results come out.
  float y = x < -104.0f ? -104.0f : x;
  y = y > 89.0f ? 89.0f : y;
  constexpr float shift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low mantissa bits
  const float shifted = y * 1.44269504f + shift;
  const float n = shifted - shift;
  const float r = (y - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const std::int32_t whole = bit_cast<std::int32_t>(shifted) - bit_cast<std::int32_t>(shift);
  const std::int32_t half = whole >> 1;
  const float first = bit_cast<float>((half + 127) << 23);
  const float second = bit_cast<float>((whole - half + 127) << 23);
  return (p * first) * second;
}

namespace detail {

/// 16 running sums, folded as a tree: the body that each instruction set compiles for itself.
DECANT_INLINE float dot_lanes(const float* a, const float* b, index_t n) {
  float lane[16] = {};
  index_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (int l = 0; l < 16; ++l) lane[l] += a[i + l] * b[i + l];
  }
  for (int l = 0; i + l < n; ++l) lane[l] += a[i + l] * b[i + l];
  for (int width = 8; width > 0; width /= 2) {
    for (int l = 0; l < width; ++l) lane[l] += lane[l + width];
  }
  return lane[0];
}

#if DECANT_X86
DECANT_TARGET_AVX2 inline float dot_avx2(const float* a, const float* b, index_t n) { return dot_lanes(a, b, n); }
DECANT_TARGET_AVX512 inline float dot_avx512(const float* a, const float* b, index_t n) { return dot_lanes(a, b, n); }
#endif

template <class Real>
Real dot_serial(const Real* a, const Real* b, index_t n) {
  Real sum = 0;
  for (index_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

template <class Real>
void validate_factor(const View<Real, 2>& l, const char* where) {
  require_equal(l.extent(1), l.extent(0), where, "matrix");
  require(l.stride(1) == 1 || l.extent(1) <= 1, where, "matrix", "stride 1 along rows", l.stride(1));
}

}  // namespace detail

/// sum of a[i] b[i] in 16 partial sums. O(n).
inline float dot(Isa isa, const float* a, const float* b, index_t n) {
#if DECANT_X86
  if (isa == Isa::avx512) return detail::dot_avx512(a, b, n);
  if (isa == Isa::avx2) return detail::dot_avx2(a, b, n);
#else
  (void)isa;
#endif
  return detail::dot_lanes(a, b, n);
}

/// Factorises a symmetric positive definite matrix in place: reads its lower triangle, leaves L there with
/// L L^T = matrix; what lies above the diagonal is neither read nor written. False, with the matrix spoilt, when a
/// pivot is not positive (or NaN): it is not positive definite to working precision. Rows contiguous. O(n^3 / 3).
template <class Real>
  requires std::is_floating_point_v<Real>
[[nodiscard]] bool cholesky(View<Real, 2> matrix) {
  detail::validate_factor(matrix, "cholesky");
  const index_t n = matrix.extent(0);
  for (index_t i = 0; i < n; ++i) {
    Real* const row = &matrix(i, 0);
    for (index_t j = 0; j < i; ++j) {
      row[j] = (row[j] - detail::dot_serial<Real>(row, &matrix(j, 0), j)) / matrix(j, j);
    }
    const Real pivot = row[i] - detail::dot_serial<Real>(row, row, i);
    if (!(pivot > 0)) return false;
    row[i] = static_cast<Real>(__builtin_sqrt(static_cast<double>(pivot)));
  }
  return true;
}

/// b becomes L^-1 b, L the lower triangle of `factor`. O(n^2 / 2).
template <class Real>
  requires std::is_floating_point_v<std::remove_const_t<Real>>
void solve_lower(View<Real, 2> factor, View<std::remove_const_t<Real>, 1> b) {
  detail::validate_factor(factor, "solve_lower");
  require_equal(b.extent(0), factor.extent(0), "solve_lower", "b");
  for (index_t i = 0; i < b.extent(0); ++i) {
    auto sum = b[i];
    for (index_t j = 0; j < i; ++j) sum -= factor(i, j) * b[j];
    b[i] = sum / factor(i, i);
  }
}

/// b becomes L^-T b; after solve_lower, b is then the solution of L L^T x = b. O(n^2 / 2).
template <class Real>
  requires std::is_floating_point_v<std::remove_const_t<Real>>
void solve_lower_transposed(View<Real, 2> factor, View<std::remove_const_t<Real>, 1> b) {
  detail::validate_factor(factor, "solve_lower_transposed");
  require_equal(b.extent(0), factor.extent(0), "solve_lower_transposed", "b");
  for (index_t i = b.extent(0) - 1; i >= 0; --i) {
    b[i] /= factor(i, i);
    for (index_t j = 0; j < i; ++j) b[j] -= factor(i, j) * b[i];
  }
}

/// log det (L L^T). O(n).
template <class Real>
  requires std::is_floating_point_v<std::remove_const_t<Real>>
double log_det(View<Real, 2> factor) {
  detail::validate_factor(factor, "log_det");
  double sum = 0;
  for (index_t i = 0; i < factor.extent(0); ++i) sum += __builtin_log(static_cast<double>(factor(i, i)));
  return 2 * sum;
}

}  // namespace decant

#endif
