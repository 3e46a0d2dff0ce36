// decant: rows of floats to rows of a storage type and back. The same bits as the conversions of dtype.hpp on every
// instruction set (NaN payloads included); only faster.
#ifndef DECANT_CORE_CONVERT_HPP
#define DECANT_CORE_CONVERT_HPP

#include <cstring>
#include <type_traits>

#include "dtype.hpp"
#include "simd.hpp"

#if DECANT_X86
#include "detail/intrinsics.hpp"
#endif

namespace decant {

namespace detail {

/// Fixed inner counts, so that each instruction set that compiles this body turns it into whole vectors.
template <class To, class From>
DECANT_INLINE void convert_lanes(const From* from, index_t n, To* to) {
  index_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (int l = 0; l < 16; ++l) to[i + l] = To(static_cast<float>(from[i + l]));
  }
  for (; i < n; ++i) to[i] = To(static_cast<float>(from[i]));
}

#if DECANT_X86
template <class To, class From>
DECANT_TARGET_AVX2 inline void convert_avx2(const From* from, index_t n, To* to) {
  convert_lanes(from, n, to);
}
template <class To, class From>
DECANT_TARGET_AVX512 inline void convert_avx512(const From* from, index_t n, To* to) {
  convert_lanes(from, n, to);
}

/// binary16 by instruction, NaN by dtype.hpp: the instruction keeps payloads that dtype.hpp makes canonical.
DECANT_TARGET_AVX2 inline void narrow_f16c(const float* from, index_t n, fp16* to) {
  index_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 x = _mm256_loadu_ps(from + i);
    if (_mm256_movemask_ps(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)) != 0) {
      for (int l = 0; l < 8; ++l) to[i + l] = fp16(from[i + l]);
    } else {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
    }
  }
  for (; i < n; ++i) to[i] = fp16(from[i]);
}
#endif

}  // namespace detail

/// to[i] = To(float(from[i])) for i in [0, n). One of the types is float, or both are the same (a copy of bits).
template <Storage To, Storage From>
  requires(std::is_same_v<To, float> || std::is_same_v<From, float> || std::is_same_v<To, From>)
void convert(Isa isa, const From* from, index_t n, To* to) {
  if constexpr (std::is_same_v<To, From>) {
    if (n > 0) std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(To));
  } else {
#if DECANT_X86
    if constexpr (std::is_same_v<To, fp16>) {
      if (isa >= Isa::avx2) return detail::narrow_f16c(from, n, to);
    } else {
      if (isa == Isa::avx512) return detail::convert_avx512(from, n, to);
      if (isa == Isa::avx2) return detail::convert_avx2(from, n, to);
    }
#else
    (void)isa;
#endif
    detail::convert_lanes(from, n, to);
  }
}

}  // namespace decant

#endif
