// The kernels of quant::Plain and ear, for the table of what they take. Never run.
#include "decant/quant/ear.cuh"
#include "decant/quant/plain.cuh"

using decant::View;

void instantiate(decant::Cuda& cuda) {
  matmul(cuda, decant::quant::Plain<decant::bf16>{}, View<const float, 2>{}, View<float, 2>{});
  dequantize_row(cuda, decant::quant::Plain<decant::bf16>{}, 0, View<float, 1>{});
  decant::quant::ear(cuda, View<const decant::bf16, 2>{}, View<const decant::bf16, 2>{}, nullptr);
}
