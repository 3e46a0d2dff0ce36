// The kernels of products with packed weights, for the table of what they take. Never run.
#include "decant/quant/matmul.cuh"

using decant::View;
namespace quant = decant::quant;

template <class F>
void call(decant::Cuda& cuda) {
  matmul(cuda, quant::Packed<F>{}, View<const float, 2>{}, View<float, 2>{});
  dequantize_row(cuda, quant::Packed<F>{}, 0, View<float, 1>{});
}

void instantiate(decant::Cuda& cuda) {
  call<quant::Scaled<quant::Int<4>>>(cuda);
  call<quant::Codebook2x16<decant::fp16>>(cuda);
  call<quant::NvFp4>(cuda);
  call<quant::ggml::Q4_0>(cuda);
}
