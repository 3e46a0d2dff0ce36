// DeviceVector<T>: device memory of its own, with the few members of std::vector that Llama uses.
#pragma once

#include <utility>
#include <vector>

#include <decant/core/cuda.cuh>

namespace runtime {

using decant::index_t;

template <class T>
class DeviceVector {
 public:
  DeviceVector() = default;
  explicit DeviceVector(index_t n) { resize(n); }
  DeviceVector(const DeviceVector& other) {
    resize(other.size_);
    check(cudaMemcpy(data_, other.data_, bytes(), cudaMemcpyDeviceToDevice), "cudaMemcpy");
  }
  DeviceVector(DeviceVector&& other) noexcept { swap(other); }
  DeviceVector& operator=(DeviceVector other) noexcept {
    swap(other);
    return *this;
  }
  ~DeviceVector() { (void)cudaFree(data_); }

  /// Contents are lost, and not initialised.
  void resize(index_t n) {
    if (n == size_) return;
    check(cudaFree(std::exchange(data_, nullptr)), "cudaFree");
    size_ = 0;
    if (n > 0) check(cudaMalloc(reinterpret_cast<void**>(&data_), static_cast<std::size_t>(n) * sizeof(T)), "cudaMalloc");
    size_ = n;
  }
  void assign(const std::vector<T>& values) {
    resize(static_cast<index_t>(values.size()));
    check(cudaMemcpy(data_, values.data(), bytes(), cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  std::vector<T> to_host() const {
    std::vector<T> values(static_cast<std::size_t>(size_));
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    check(cudaMemcpy(values.data(), data_, bytes(), cudaMemcpyDeviceToHost), "cudaMemcpy");
    return values;
  }

  T* data() const { return data_; }
  index_t size() const { return size_; }

 private:
  static void check(cudaError_t code, const char* call) { decant::detail::require_cuda(code, "runtime", call); }
  std::size_t bytes() const { return static_cast<std::size_t>(size_) * sizeof(T); }
  void swap(DeviceVector& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }

  T* data_ = nullptr;
  index_t size_ = 0;
};

}  // namespace runtime
