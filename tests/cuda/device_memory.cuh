// Device memory for tests: a stream, buffers that free themselves, and copies that wait.
#pragma once

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "decant/core/view.hpp"

namespace cuda_test {

using decant::index_t;

inline void must(cudaError_t code, const char* what) {
  if (code != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(code));
}

class Stream {
 public:
  Stream() { must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags"); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { (void)cudaStreamDestroy(stream_); }
  operator cudaStream_t() const { return stream_; }
  void wait() const { must(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

 private:
  cudaStream_t stream_ = nullptr;
};

/// n elements of T on the device. download() waits for the whole device first.
template <class T>
class DeviceBuffer {
 public:
  explicit DeviceBuffer(index_t n) : size_(n) {
    must(cudaMalloc(reinterpret_cast<void**>(&data_), bytes() > 0 ? bytes() : 1), "cudaMalloc");
  }
  explicit DeviceBuffer(const std::vector<T>& values) : DeviceBuffer(static_cast<index_t>(values.size())) {
    upload(values);
  }
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  ~DeviceBuffer() { (void)cudaFree(data_); }

  void upload(const std::vector<T>& values) {
    must(cudaMemcpy(data_, values.data(), bytes(), cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  std::vector<T> download() const {
    must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    std::vector<T> values(static_cast<std::size_t>(size_));
    must(cudaMemcpy(values.data(), data_, bytes(), cudaMemcpyDeviceToHost), "cudaMemcpy");
    return values;
  }

  T* data() const { return data_; }
  index_t size() const { return size_; }
  /// Row-major, on the device.
  template <class... Extents>
  decant::View<T, static_cast<int>(sizeof...(Extents))> view(Extents... extents) const {
    return decant::View<T, static_cast<int>(sizeof...(Extents))>(data_, extents...);
  }

 private:
  std::size_t bytes() const { return static_cast<std::size_t>(size_) * sizeof(T); }

  T* data_ = nullptr;
  index_t size_ = 0;
};

}  // namespace cuda_test
