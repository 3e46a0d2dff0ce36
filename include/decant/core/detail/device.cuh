// decant: what kernels of several families share: sums and maxima over a warp or a block in a fixed order (so that the
// same input gives the same bits), 16-byte loads, and conversions of the storage types by instruction.
#ifndef DECANT_CORE_DETAIL_DEVICE_CUH
#define DECANT_CORE_DETAIL_DEVICE_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include <cstdint>

#include "../dtype.hpp"

namespace decant::detail {

inline constexpr unsigned whole_warp = 0xffffffffu;

struct Plus {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct Larger {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return b > a ? b : a;
  }
};
struct Smaller {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return b < a ? b : a;
  }
};

/// op over the lanes of a full warp, in all lanes, always as the same tree. Width: 32, 16, 8 ...: groups of lanes.
template <int Width = 32, class T, class Op>
__device__ T warp_reduce(T value, Op op) {
#pragma unroll
  for (int offset = Width / 2; offset > 0; offset /= 2) value = op(value, __shfl_xor_sync(whole_warp, value, offset));
  return value;
}

/// op over all threads of a one-dimensional block of at most 1024, a multiple of 32, in all threads. `shared`: room for
/// 32 T; free again when the call returns.
template <class T, class Op>
__device__ T block_reduce(T value, Op op, T identity, T* shared) {
  const unsigned lane = threadIdx.x % 32;
  const unsigned warps = blockDim.x / 32;
  value = warp_reduce(value, op);
  if (lane == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  value = warp_reduce(lane < warps ? shared[lane] : identity, op);
  __syncthreads();
  return value;
}

/// The sum of the values of lower lanes.
template <class T>
__device__ T warp_scan_before(T value) {
  const unsigned lane = threadIdx.x % 32;
  T sum = value;
#pragma unroll
  for (unsigned offset = 1; offset < 32; offset *= 2) {
    const T below = __shfl_up_sync(whole_warp, sum, offset);
    if (lane >= offset) sum += below;
  }
  return sum - value;
}

/// The sum of the values of lower threads of the block (as block_reduce), and the block's in `total`.
template <class T>
__device__ T block_scan_before(T value, T& total, T* shared) {
  const unsigned lane = threadIdx.x % 32;
  const unsigned warp = threadIdx.x / 32;
  const T before = warp_scan_before(value);
  if (lane == 31) shared[warp] = before + value;
  __syncthreads();
  const T own = lane < blockDim.x / 32 ? shared[lane] : T{};
  const T base = warp_scan_before(own);
  total = __shfl_sync(whole_warp, base + own, 31);
  const T result = before + __shfl_sync(whole_warp, base, static_cast<int>(warp));
  __syncthreads();
  return result;
}

/// Storage types to float, exactly.
__device__ inline float widen(float x) { return x; }
__device__ inline float widen(bf16 x) { return static_cast<float>(x); }
__device__ inline float widen(fp16 x) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(x.bits));
  return result;
}
/// The bits of E5M2 are the upper ones of binary16; those of E4M3, one place lower, are 2^-8 of the number there.
__device__ inline float widen(fp8_e5m2 x) { return widen(fp16::from_bits(static_cast<std::uint16_t>(x.bits << 8))); }
__device__ inline float widen(fp8_e4m3 x) {
  const float small = widen(fp16::from_bits(static_cast<std::uint16_t>((x.bits & 0x80) << 8 | (x.bits & 0x7f) << 7)));
  return (x.bits & 0x7f) == 0x7f ? __int_as_float(0x7fc00000) : small * 256;
}

/// N elements that one instruction can load: N * sizeof(T) is 1, 2, 4, 8 or 16.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T at[N];
};

/// How many elements of T a 16-byte access holds.
template <class T>
inline constexpr int per_access = 16 / static_cast<int>(sizeof(T));

/// Whether rows at this address, this many elements apart, can be read by accesses of 16 bytes.
template <class T>
__host__ __device__ bool aligned_rows(const T* data, index_t stride, index_t dim) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && stride % per_access<T> == 0 && dim % per_access<T> == 0;
}

}  // namespace decant::detail

#endif
