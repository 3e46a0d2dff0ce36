// decant: softmax and log-sum-exp in fp32, with the maximum subtracted and 16 partial sums. Total: empty or all -inf
// gives weights 0 and log-sum-exp -inf (the identity of attention::State); entries of +inf share the weight equally
// and give +inf; a NaN anywhere makes the result, and every weight, NaN.
// Error, for finite input: log-sum-exp within 1e-6 + 2e-7 |result|; a weight is within 1e-6 + 6e-8 |x - max| relative,
// below 1e-37 within 1e-43 absolute. Instruction sets differ by rounding within that.
#ifndef DECANT_CORE_SOFTMAX_HPP
#define DECANT_CORE_SOFTMAX_HPP

#include "cpu.hpp"
#include "math.hpp"
#include "view.hpp"

namespace decant {

namespace detail {

/// Tree-folds 16 lanes.
DECANT_INLINE float sum_lanes(float* lane) {
  for (int width = 8; width > 0; width /= 2) {
    for (int l = 0; l < width; ++l) lane[l] += lane[l + width];
  }
  return lane[0];
}

/// The largest of n > 0 values, NaN ignored.
DECANT_INLINE float max_lanes(const float* x, index_t n) {
  constexpr float lowest = -__builtin_huge_valf();
  float lane[16];
  for (int l = 0; l < 16; ++l) lane[l] = lowest;
  index_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (int l = 0; l < 16; ++l) lane[l] = x[i + l] > lane[l] ? x[i + l] : lane[l];
  }
  for (int l = 0; i + l < n; ++l) lane[l] = x[i + l] > lane[l] ? x[i + l] : lane[l];
  for (int l = 1; l < 16; ++l) lane[0] = lane[l] > lane[0] ? lane[l] : lane[0];
  return lane[0];
}

/// Sum of e^(x - max) for a finite max; the terms go to `out` unless it is null. out may be x. Blocks of 1024 are
/// summed in lanes, blocks in double, so that the error does not grow with n.
template <bool Store>
DECANT_INLINE float exp_sum_lanes(const float* x, index_t n, float max, float* out) {
  double total = 0;
  for (index_t block = 0; block < n; block += 1024) {
    const index_t end = block + 1024 < n ? block + 1024 : n;
    float lane[16] = {};
    index_t i = block;
    for (; i + 16 <= end; i += 16) {
      float e[16];
      for (int l = 0; l < 16; ++l) e[l] = fast_exp(x[i + l] - max);
      for (int l = 0; l < 16; ++l) lane[l] += e[l];
      if constexpr (Store) {
        for (int l = 0; l < 16; ++l) out[i + l] = e[l];
      }
    }
    for (int l = 0; i + l < end; ++l) {
      const float e = fast_exp(x[i + l] - max);
      lane[l] += e;
      if constexpr (Store) out[i + l] = e;
    }
    total += static_cast<double>(sum_lanes(lane));
  }
  return static_cast<float>(total);
}

/// max is infinite: each +inf counts 1, anything else 0 but NaN.
template <bool Store>
DECANT_INLINE float count_infinite(const float* x, index_t n, float max, float* out) {
  float sum = 0;
  for (index_t i = 0; i < n; ++i) {
    const float e = x[i] != x[i] ? x[i] : (x[i] == max && max > 0) ? 1.0f : 0.0f;
    sum += e;
    if constexpr (Store) out[i] = e;
  }
  return sum;
}

/// Log-sum-exp of x; with Store also the weights.
template <bool Store>
DECANT_INLINE float softmax_lanes(const float* x, index_t n, float* out) {
  const float max = max_lanes(x, n);
  const bool infinite = max - max != 0;
  const float sum = infinite ? count_infinite<Store>(x, n, max, out) : exp_sum_lanes<Store>(x, n, max, out);
  if constexpr (Store) {
    const float scale = sum == 0 ? 0.0f : 1.0f / sum;
    for (index_t i = 0; i < n; ++i) out[i] *= scale;
  }
  return sum != sum ? sum : infinite ? max : max + static_cast<float>(__builtin_log(static_cast<double>(sum)));
}

#if DECANT_X86
template <bool Store>
DECANT_TARGET_AVX2 inline float softmax_avx2(const float* x, index_t n, float* out) {
  return softmax_lanes<Store>(x, n, out);
}
template <bool Store>
DECANT_TARGET_AVX512 inline float softmax_avx512(const float* x, index_t n, float* out) {
  return softmax_lanes<Store>(x, n, out);
}
#endif

template <bool Store>
inline float softmax(Isa isa, const float* x, index_t n, float* out) {
#if DECANT_X86
  if (isa == Isa::avx512) return softmax_avx512<Store>(x, n, out);
  if (isa == Isa::avx2) return softmax_avx2<Store>(x, n, out);
#else
  (void)isa;
#endif
  return softmax_lanes<Store>(x, n, out);
}

}  // namespace detail

/// out[i] = e^x[i] / sum of e^x[j]; returns the natural log-sum-exp. In place when out is x. Takes no scratch and does
/// not throw, so it may be called from parallel bodies. O(n).
inline float softmax(Isa isa, const float* x, index_t n, float* out) { return detail::softmax<true>(isa, x, n, out); }

/// log(sum of e^x[i]); -inf for n = 0. O(n).
inline float log_sum_exp(Isa isa, const float* x, index_t n) { return detail::softmax<false>(isa, x, n, nullptr); }

/// The same over views, which must be contiguous and equally long.
inline float softmax(Cpu& cpu, View<const float, 1> x, View<float, 1> out) {
  require_equal(out.extent(0), x.extent(0), "softmax", "out");
  require(x.contiguous(), "softmax", "x", "stride 1", x.stride(0));
  require(out.contiguous(), "softmax", "out", "stride 1", out.stride(0));
  return softmax(cpu.isa(), x.data(), x.extent(0), out.data());
}

inline float log_sum_exp(Cpu& cpu, View<const float, 1> x) {
  require(x.contiguous(), "log_sum_exp", "x", "stride 1", x.stride(0));
  return log_sum_exp(cpu.isa(), x.data(), x.extent(0));
}

}  // namespace decant

#endif
