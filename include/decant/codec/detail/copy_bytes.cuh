// decant: bytes copied by a group of threads: what codecs store as it is.
#ifndef DECANT_CODEC_DETAIL_COPY_BYTES_CUH
#define DECANT_CODEC_DETAIL_COPY_BYTES_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include <cstddef>
#include <cstdint>

#include "../../core/cuda.cuh"
#include "../../core/detail/device.cuh"

namespace decant::codec::detail {

inline constexpr int copy_threads = 256;
inline constexpr index_t copy_block_bytes = index_t{64} * copy_threads;

/// Thread `at` of `threads`: 16 bytes at a time, four in flight, where both addresses allow it.
__device__ inline void copy_bytes(const std::byte* from, std::byte* to, index_t bytes, index_t at, index_t threads) {
  using Wide = ::decant::detail::Pack<std::uint32_t, 4>;
  index_t done = 0;
  if ((reinterpret_cast<std::uintptr_t>(from) | reinterpret_cast<std::uintptr_t>(to)) % 16 == 0) {
    const auto* const in = reinterpret_cast<const Wide*>(from);
    auto* const out = reinterpret_cast<Wide*>(to);
    const index_t wides = bytes / 16;
    index_t i = at;
    for (; i + 3 * threads < wides; i += 4 * threads) {
      const Wide a = in[i], b = in[i + threads], c = in[i + 2 * threads], d = in[i + 3 * threads];
      out[i] = a;
      out[i + threads] = b;
      out[i + 2 * threads] = c;
      out[i + 3 * threads] = d;
    }
    for (; i < wides; i += threads) out[i] = in[i];
    done = 16 * wides;
  }
  for (index_t i = done + at; i < bytes; i += threads) to[i] = from[i];
}

/// The whole grid copies; *size, unless null, becomes `bytes`. Nothing after a fault.
template <class Byte>
__global__ void __launch_bounds__(copy_threads)
    copy_stored(const Byte* from, Byte* to, index_t bytes, index_t* size, const FaultWord* fault) {
  if (::decant::detail::faulted(fault)) return;
  const index_t at = index_t{blockIdx.x} * copy_threads + threadIdx.x;
  copy_bytes(from, to, bytes, at, index_t{gridDim.x} * copy_threads);
  if (size != nullptr && at == 0) *size = bytes;
}

/// The blocks for so many bytes, at least one.
inline CudaGrid copy_grid(index_t bytes) {
  return {dim3(cuda_blocks(bytes > 0 ? bytes : 1, copy_block_bytes)), dim3(copy_threads)};
}

}  // namespace decant::codec::detail

#endif
