// ops.hpp on CUDA: RMS norm, rotary embedding, SwiGLU, residual sums. Simple kernels; what they cost is a fraction of the
// matrix products between them.
#pragma once

#include <decant/core/cuda.cuh>
#include <decant/core/detail/device.cuh>

#include "device_vector.cuh"
#include "ops.hpp"

namespace runtime {

namespace kernels {

/// One block per row; the sum of squares in double, in a fixed order.
__global__ void rms_norm(View<const float, 2> x, View<const float, 1> weight, float eps, View<float, 2> out) {
  __shared__ double shared[32];
  const index_t width = x.extent(1);
  const float* const in = &x(index_t{blockIdx.x}, index_t{0});
  double sum = 0;
  for (index_t i = threadIdx.x; i < width; i += blockDim.x) sum += static_cast<double>(in[i]) * static_cast<double>(in[i]);
  sum = decant::detail::block_reduce(sum, decant::detail::Plus{}, 0.0, shared);
  const auto scale = static_cast<float>(1.0 / sqrt(sum / static_cast<double>(width) + static_cast<double>(eps)));
  float* const to = &out(index_t{blockIdx.x}, index_t{0});
  for (index_t i = threadIdx.x; i < width; i += blockDim.x) to[i] = in[i] * scale * weight[i];
}

__global__ void swiglu(float* gate, const float* up, index_t n) {
  const index_t i = index_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) gate[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
}

__global__ void add(float* x, const float* y, index_t n) {
  const index_t i = index_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) x[i] += y[i];
}

/// One block per row, one thread per pair of one head. cosines, sines [positions, half].
__global__ void rotate(View<float, 3> rows, View<const std::int32_t, 1> positions, const float* cosines,
                       const float* sines) {
  const index_t t = blockIdx.x;
  const index_t half = rows.extent(2) / 2;
  for (index_t i = threadIdx.x; i < rows.extent(1) * half; i += blockDim.x) {
    float& a = rows(t, i / half, i % half);
    float& b = rows(t, i / half, half + i % half);
    const float c = cosines[positions[t] * half + i % half];
    const float s = sines[positions[t] * half + i % half];
    const float x = a;
    const float y = b;
    a = x * c - y * s;
    b = y * c + x * s;
  }
}

}  // namespace kernels

inline void rms_norm(decant::Cuda& cuda, View<const float, 2> x, View<const float, 1> weight, float eps,
                     View<float, 2> out) {
  const decant::CudaGrid grid{static_cast<unsigned>(x.extent(0)), 128};
  launch(cuda, "rms_norm", kernels::rms_norm, grid, x, weight, eps, out);
}

inline void swiglu(decant::Cuda& cuda, View<float, 2> gate, View<const float, 2> up) {
  const decant::CudaGrid grid{decant::cuda_blocks(gate.size(), 256), 256};
  launch(cuda, "swiglu", kernels::swiglu, grid, gate.data(), up.data(), gate.size());
}

inline void add(decant::Cuda& cuda, View<float, 2> x, View<const float, 2> y) {
  const decant::CudaGrid grid{decant::cuda_blocks(x.size(), 256), 256};
  launch(cuda, "add", kernels::add, grid, x.data(), y.data(), x.size());
}

/// RopeTable with its numbers on the device.
class DeviceRopeTable {
 public:
  DeviceRopeTable(const decant::kv::Rope& rope, index_t head_dim) : table_(rope, head_dim) {}

  void reserve(index_t count) {
    table_.reserve(count);
    if (static_cast<index_t>(table_.cosines().size()) == cosines_.size()) return;
    cosines_.assign(table_.cosines());
    sines_.assign(table_.sines());
  }
  void rotate(decant::Cuda& cuda, View<float, 3> rows, View<const std::int32_t, 1> positions) const {
    const decant::CudaGrid grid{static_cast<unsigned>(rows.extent(0)), 128};
    launch(cuda, "rotate", kernels::rotate, grid, rows, positions, cosines_.data(), sines_.data());
  }

 private:
  RopeTable table_;
  DeviceVector<float> cosines_;
  DeviceVector<float> sines_;
};

}  // namespace runtime
