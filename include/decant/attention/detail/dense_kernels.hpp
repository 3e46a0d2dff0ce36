// decant: picks the kernels of dense attention for a processor.
#ifndef DECANT_ATTENTION_DETAIL_DENSE_KERNELS_HPP
#define DECANT_ATTENTION_DETAIL_DENSE_KERNELS_HPP

#include "../../core/simd.hpp"
#include "dense_avx2.hpp"
#include "dense_avx512.hpp"
#include "dense_portable.hpp"

namespace decant::attention::detail {

/// For rows of T and queries that were of type Q before they became floats; rounded: others may be rounded to T.
template <class T, class Q = float>
const DenseKernels<T>& dense_kernels([[maybe_unused]] Isa isa, [[maybe_unused]] bool rounded = false) {
#if DECANT_X86
  if constexpr (std::is_same_v<T, bf16>)
    if ((rounded || std::is_same_v<Q, bf16>) && isa == Isa::avx512 && has_bf16_dot()) return dense_bf16_avx512;
  if (isa == Isa::avx512) return dense_avx512<T>;
  if (isa == Isa::avx2) return dense_avx2<T>;
#endif
  return dense_portable<T>;
}

inline const DenseFloatKernels& dense_float_kernels([[maybe_unused]] Isa isa) {
#if DECANT_X86
  if (isa == Isa::avx512) return dense_float_avx512;
  if (isa == Isa::avx2) return dense_float_avx2;
#endif
  return dense_float_portable;
}

}  // namespace decant::attention::detail

#endif
