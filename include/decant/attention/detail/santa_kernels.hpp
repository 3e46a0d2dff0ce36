// decant: picks the kernels of SANTA for a processor.
#ifndef DECANT_ATTENTION_DETAIL_SANTA_KERNELS_HPP
#define DECANT_ATTENTION_DETAIL_SANTA_KERNELS_HPP

#include "../../core/simd.hpp"
#include "santa_avx2.hpp"
#include "santa_avx512.hpp"
#include "santa_portable.hpp"

namespace decant::attention::detail {

inline const SantaKernels& santa_kernels([[maybe_unused]] Isa isa) {
#if DECANT_X86
  if (isa == Isa::avx512) return santa_avx512;
  if (isa == Isa::avx2) return santa_avx2;
#endif
  return santa_portable;
}

}  // namespace decant::attention::detail

#endif
