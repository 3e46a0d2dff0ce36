// decant: Stored on CUDA: a copy, 16 bytes at a time where the addresses allow it. Moves 2 sizeof(T) bytes per element.
#ifndef DECANT_CODEC_STORED_CUH
#define DECANT_CODEC_STORED_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "detail/copy_bytes.cuh"
#include "stored.hpp"

namespace decant::codec {

static_assert(!detail::big_endian_host, "devices are little-endian, as payloads are");

template <Storage T>
Stored<T> calibrate(Cuda&, const Stored<T>& codec, View<const T, 1>) {
  return codec;
}

/// x [n] contiguous, out at least n * sizeof(T) bytes, *size: all on the device.
template <Storage T>
void encode(Cuda& cuda, const Stored<T>& codec, View<const T, 1> x, View<std::byte, 1> out, index_t* size) {
  constexpr const char* where = "codec::encode";
  const index_t bytes = max_encoded_size(codec, x.extent(0));
  detail::require_encode(x, out, bytes);
  launch(cuda, where, detail::copy_stored<std::byte>, detail::copy_grid(bytes),
         reinterpret_cast<const std::byte*>(x.data()), out.data(), bytes, size, cuda.fault());
}

/// y [n] contiguous. FormatError unless `in` has n * sizeof(T) bytes.
template <Storage T>
void decode(Cuda& cuda, const Stored<T>&, View<const std::byte, 1> in, View<T, 1> y) {
  constexpr const char* where = "codec::decode";
  detail::require_decode(where, in, y);
  const index_t bytes = y.extent(0) * index_t{sizeof(T)};
  if (in.extent(0) != bytes) ::decant::detail::fail_format(where, "in", bytes, in.extent(0));
  if (bytes == 0) return;
  launch(cuda, where, detail::copy_stored<std::byte>, detail::copy_grid(bytes), in.data(),
         reinterpret_cast<std::byte*>(y.data()), bytes, static_cast<index_t*>(nullptr), cuda.fault());
}

static_assert(KVCodec<Stored<bf16>, Cuda>);

}  // namespace decant::codec

#endif
