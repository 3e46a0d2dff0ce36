// A kernel of a common mix (fma, integer address arithmetic, shared memory, shuffles, a barrier per step), for speed.sh.
// Prints the seconds that its launch took.
#include <chrono>
#include <cstdio>

__global__ void mix(const float* in, float* out, int steps) {
  __shared__ float tile[256];
  float sum = 0;
  for (int s = 0; s < steps; ++s) {
    tile[threadIdx.x] = in[(blockIdx.x * 256 + threadIdx.x + 32 * s) % 65536];
    __syncthreads();
#pragma unroll 8
    for (int i = 0; i < 64; ++i) sum = fmaf(tile[(threadIdx.x + i) % 256], 0.5f + static_cast<float>(i), sum);
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    __syncthreads();
  }
  out[blockIdx.x * 256 + threadIdx.x] = sum;
}

int main() {
  float *in = nullptr, *out = nullptr;
  if (cudaMalloc(&in, 65536 * sizeof(float)) != cudaSuccess || cudaMalloc(&out, 65536 * sizeof(float)) != cudaSuccess ||
      cudaMemset(in, 0, 65536 * sizeof(float)) != cudaSuccess) {
    return 2;
  }
  const auto start = std::chrono::steady_clock::now();
  mix<<<256, 256>>>(in, out, 50);
  if (cudaDeviceSynchronize() != cudaSuccess) return 1;
  std::printf("%.6f\n", std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  return 0;
}
