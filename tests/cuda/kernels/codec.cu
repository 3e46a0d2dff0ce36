// The kernels of codec::SplitZip and codec::Stored, for the table of what they take. Never run.
#include "decant/codec/splitzip.cuh"

using decant::View;

template <class T>
void instantiate(decant::Cuda& cuda) {
  using decant::index_t;
  const decant::codec::SplitZip<T> codec;
  encode(cuda, codec, View<const T, 1>{}, View<std::byte, 1>{}, static_cast<index_t*>(nullptr));
  decode(cuda, codec, View<const std::byte, 1>{}, View<T, 1>{});
  (void)calibrate(cuda, codec, View<const T, 1>{});
}

void instantiate_all(decant::Cuda& cuda) {
  instantiate<decant::bf16>(cuda);
  instantiate<decant::fp8_e5m2>(cuda);
  instantiate<decant::fp8_e4m3>(cuda);
  decode(cuda, decant::codec::Stored<decant::bf16>{}, View<const std::byte, 1>{}, View<decant::bf16, 1>{});
}
