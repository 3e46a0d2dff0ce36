// The kernels of Aaac, for the table of what they take. Never run.
#include "decant/quant/aaac.cuh"

using decant::View;

template <class Scale>
void instantiate(decant::Cuda& cuda) {
  decant::quant::Aaac<Scale> q;
  quantize(cuda, q, View<const float, 2>{}, {}, decant::quant::Packed<decant::quant::Codebook2x16<Scale>, std::byte>{});
}
template void instantiate<decant::fp16>(decant::Cuda&);
template void instantiate<decant::fp8_e4m3>(decant::Cuda&);
