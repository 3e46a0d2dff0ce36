// Sums and scans of a block, several after each other in one piece of shared memory: every barrier in them counts.
#include <cstdio>

#include "decant/core/detail/device.cuh"

__global__ void sums(float* out) {
  __shared__ float shared[32];
  float total = 0;
  auto value = static_cast<float>(threadIdx.x);
  value = decant::detail::block_reduce(value, decant::detail::Plus{}, 0.0f, shared);
  value += decant::detail::block_scan_before(1.0f, total, shared);
  value += decant::detail::block_reduce(total, decant::detail::Larger{}, 0.0f, shared);
  out[threadIdx.x] = value;
}

int main() {
  float* out = nullptr;
  if (cudaMalloc(&out, 256 * sizeof(float)) != cudaSuccess) return 2;
  sums<<<1, 256>>>(out);
  const cudaError_t code = cudaDeviceSynchronize();
  std::printf("%s\n", cudaGetErrorString(code));
  return code == cudaSuccess ? 0 : 1;
}
