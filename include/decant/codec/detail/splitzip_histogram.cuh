// decant: how often each exponent occurs, on CUDA. Every warp counts in shared memory, every block adds its warps'
// counts, a second launch adds the blocks'. Integers: the order of additions does not matter. Reads x once.
#ifndef DECANT_CODEC_DETAIL_SPLITZIP_HISTOGRAM_CUH
#define DECANT_CODEC_DETAIL_SPLITZIP_HISTOGRAM_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "../../core/cuda.cuh"
#include "splitzip_encode.cuh"

namespace decant::codec::detail {

template <class T>
inline constexpr int exponent_count = 1 << FloatBits<T>::exponent;
inline constexpr index_t histogram_block_elements = index_t{1} << 14;

/// found [blocks][exponents]. A warp's counters have 32 bits: enough for what a device's memory holds.
template <class T>
__global__ void __launch_bounds__(splitzip_threads) splitzip_count(View<const T, 1> x, std::uint64_t* found) {
  __shared__ std::uint32_t counts[splitzip_warps][exponent_count<T>];
  for (int e = static_cast<int>(threadIdx.x); e < splitzip_warps * exponent_count<T>; e += splitzip_threads) {
    counts[e / exponent_count<T>][e % exponent_count<T>] = 0;
  }
  __syncthreads();
  std::uint32_t* const own = counts[threadIdx.x / 32];
  const index_t n = x.extent(0);
  const bool wide = aligned_to_access(x.data());
  const index_t step = index_t{gridDim.x} * splitzip_threads;
  const index_t thread = index_t{blockIdx.x} * splitzip_threads + threadIdx.x;
  if (n <= 1 || x.stride(0) == 1) {
    for (index_t i = thread * lane_elements<T>; i < n; i += step * lane_elements<T>) {
      std::uint32_t words[4];
      const index_t left = n - i;
      load_elements(x.data() + i, left < lane_elements<T> ? static_cast<int>(left) : lane_elements<T>, wide, words);
#pragma unroll
      for (int j = 0; j < lane_elements<T>; ++j) {
        std::uint32_t exponents = 0, rests = 0;
        split_quad<T>(words, j / 4, exponents, rests);
        if (j < left) atomicAdd(&own[exponents >> (8 * (j % 4)) & 0xffu], 1u);
      }
    }
  } else {
    for (index_t i = thread; i < n; i += step) atomicAdd(&own[FieldCodecOf<T, 3>::exponent(x[i].bits)], 1u);
  }
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < exponent_count<T>; e += splitzip_threads) {
    std::uint64_t sum = 0;
    for (int w = 0; w < splitzip_warps; ++w) sum += counts[w][e];
    found[index_t{blockIdx.x} * exponent_count<T> + e] = sum;
  }
}

/// A thread per exponent.
template <class T>
__global__ void __launch_bounds__(exponent_count<T>)
    splitzip_add_counts(const std::uint64_t* found, int blocks, View<std::uint64_t, 1> counts, const FaultWord* fault) {
  if (::decant::detail::faulted(fault)) return;
  std::uint64_t sum = 0;
#pragma unroll 8
  for (int b = 0; b < blocks; ++b) sum += found[index_t{b} * exponent_count<T> + threadIdx.x];
  counts[threadIdx.x] = sum;
}

}  // namespace decant::codec::detail

#endif
