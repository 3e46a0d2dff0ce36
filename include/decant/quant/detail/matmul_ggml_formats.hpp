// decant: which kernels multiply with ggml's blocks, and what they make of int8 activations.
#ifndef DECANT_QUANT_DETAIL_MATMUL_GGML_FORMATS_HPP
#define DECANT_QUANT_DETAIL_MATMUL_GGML_FORMATS_HPP

#include "matmul_ggml.hpp"
#include "matmul_ggml_avx2.hpp"
#include "matmul_ggml_avx512.hpp"
#include "matmul_ggml_bf16.hpp"

namespace decant::quant::ggml {

template <class F>
concept Blocks = Codes<F> && requires {
  detail::GgmlOrder<F>::run;
};

/// AVX-512 with VNNI (and its bf16), AVX2, or decoding first.
template <Blocks F>
MatmulKernels<F> matmul_kernels(Isa isa, const Packed<F>&, Activations a) {
#if DECANT_X86
  if (isa != Isa::portable) {
    const bool avx512 = isa == Isa::avx512 && detail::has_vnni();
    if (a == Activations::int8)
      return {detail::ggml_int8_bytes<F>, detail::arrange_each<F, detail::ggml_int8_arrange<F>>, nullptr,
              avx512 ? detail::ggml_rows_avx512<F, true> : detail::ggml_rows_avx2<F, true>};
    if (a == Activations::bf16 && avx512 && detail::has_vnni_and_bf16())
      return {detail::ggml_bf16_bytes<F>, detail::arrange_each<F, detail::ggml_bf16_arrange<F>>, nullptr,
              detail::ggml_rows_bf16<F>};
    return {detail::ggml_float_bytes<F>,
            a == Activations::bf16 ? detail::arrange_each<F, detail::ggml_float_arrange<F, Activations::bf16>>
                                   : detail::arrange_each<F, detail::ggml_float_arrange<F, Activations::fp32>>,
            nullptr, avx512 ? detail::ggml_rows_avx512<F, false> : detail::ggml_rows_avx2<F, false>};
  }
#endif
  MatmulKernels<F> kernels = detail::decoded_kernels<F>(isa, a);
  if (a == Activations::int8) kernels.arrange = detail::arrange_each<F, detail::ggml_decoded_arrange<F>>;
  return kernels;
}

}  // namespace decant::quant::ggml

#endif
