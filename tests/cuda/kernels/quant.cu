// The kernels of quant::Plain, for the table of what they take. Never run.
#include "decant/quant/plain.cuh"

using decant::View;

void instantiate(decant::Cuda& cuda) {
  matmul(cuda, decant::quant::Plain<decant::bf16>{}, View<const float, 2>{}, View<float, 2>{});
  dequantize_row(cuda, decant::quant::Plain<decant::bf16>{}, 0, View<float, 1>{});
}
