// What rows on a GPU need beside harness.hpp: a clock of CUDA events that starts every call with cold caches, and the
// limit: a device-to-device copy that moves as many bytes.
#pragma once

#include <cmath>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "decant/core/cuda.cuh"
#include "harness.hpp"

namespace bench {

inline void must(cudaError_t code, const char* call) {
  if (code != cudaSuccess) throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(code));
}

/// |got - expected| / |expected| over as many numbers as are expected.
inline double relative_l2(const std::vector<float>& got, const std::vector<float>& expected) {
  double square = 0, scale = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double d = static_cast<double>(got[i]) - static_cast<double>(expected[i]);
    square += d * d;
    scale += static_cast<double>(expected[i]) * static_cast<double>(expected[i]);
  }
  return std::sqrt(square / scale);
}

/// Memory on the device, filled from the host.
template <class T>
class DeviceBuffer {
 public:
  explicit DeviceBuffer(std::size_t n) : size_(n) {
    void* memory = nullptr;
    must(cudaMalloc(&memory, n > 0 ? n * sizeof(T) : 1), "cudaMalloc");
    data_.reset(static_cast<T*>(memory));
  }
  explicit DeviceBuffer(const std::vector<T>& values) : DeviceBuffer(values.size()) { upload(values.data()); }
  explicit DeviceBuffer(const Buffer<T>& values) : DeviceBuffer(values.size()) { upload(values.data()); }

  T* data() const { return data_.get(); }
  std::size_t size() const { return size_; }
  std::size_t bytes() const { return size_ * sizeof(T); }
  std::vector<T> download() const {
    std::vector<T> values(size_);
    must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    must(cudaMemcpy(values.data(), data_.get(), bytes(), cudaMemcpyDeviceToHost), "cudaMemcpy");
    return values;
  }

 private:
  struct Free {
    void operator()(T* p) const { (void)cudaFree(p); }
  };
  void upload(const T* from) { must(cudaMemcpy(data_.get(), from, bytes(), cudaMemcpyHostToDevice), "cudaMemcpy"); }

  std::unique_ptr<T, Free> data_;
  std::size_t size_;
};

/// A stream with its context, and the time of calls on it. One a program.
class Gpu {
 public:
  Gpu() : cuda_(make_stream()) {
    must(cudaEventCreate(&start_), "cudaEventCreate");
    must(cudaEventCreate(&stop_), "cudaEventCreate");
    int cache = 0;
    must(cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, cuda_.device().id), "cudaDeviceGetAttribute");
    flush_ = std::make_unique<DeviceBuffer<char>>(2 * static_cast<std::size_t>(cache));
  }

  decant::Cuda& context() { return cuda_; }
  /// "sm_90"
  std::string architecture() const { return "sm_" + std::to_string(cuda_.device().compute_capability); }

  /// Seconds of one call, with the second-level cache full of something else. Host time before the first kernel starts
  /// is hidden by the flush.
  double operator()(const Call& call) {
    must(cudaMemsetAsync(flush_->data(), 0, flush_->bytes(), cuda_.stream()), "cudaMemsetAsync");
    must(cudaEventRecord(start_, cuda_.stream()), "cudaEventRecord");
    call();
    must(cudaEventRecord(stop_, cuda_.stream()), "cudaEventRecord");
    cuda_.check();
    float milliseconds = 0;
    must(cudaEventElapsedTime(&milliseconds, start_, stop_), "cudaEventElapsedTime");
    return static_cast<double>(milliseconds) * 1e-3;
  }

  /// A copy that reads and writes `bytes` in all.
  Limit copy(std::size_t bytes) {
    const std::size_t half = bytes / 2;
    if (!from_ || from_->size() < half) {
      from_ = std::make_shared<DeviceBuffer<char>>(half);
      to_ = std::make_shared<DeviceBuffer<char>>(half);
    }
    return {"copy", [this, half] {
              must(cudaMemcpyAsync(to_->data(), from_->data(), half, cudaMemcpyDeviceToDevice, cuda_.stream()),
                   "cudaMemcpyAsync");
            }};
  }

 private:
  static cudaStream_t make_stream() {
    cudaStream_t stream = nullptr;
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    return stream;
  }

  decant::Cuda cuda_;
  cudaEvent_t start_ = nullptr, stop_ = nullptr;
  std::unique_ptr<DeviceBuffer<char>> flush_;
  std::shared_ptr<DeviceBuffer<char>> from_, to_;
};

}  // namespace bench
