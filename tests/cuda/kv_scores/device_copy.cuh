// A layer's tensors on the device: the caches and queries of the CPU tests, copied with their strides.
#pragma once

#include <deque>
#include <vector>

#include "cuda/device_memory.cuh"
#include "decant/core/cuda.cuh"
#include "decant/kv/dense_kv.hpp"
#include "decant/kv/layer.hpp"
#include "decant/kv/paged_kv.hpp"
#include "decant/kv/ragged_kv.hpp"

namespace cuda_test {

namespace kv = decant::kv;
using decant::View;

/// Owns copies of host views; of every view the whole stretch of memory that it reaches, as it is.
class DeviceCopy {
 public:
  template <class T, int Rank>
  View<T, Rank> operator()(const View<T, Rank>& host) {
    bool given = host.data() != nullptr;  // or empty, but with a shape
    for (int r = 0; r < Rank; ++r) given = given || host.extent(r) != 0;
    if (!given) return {};
    index_t extents[Rank], strides[Rank];
    for (int r = 0; r < Rank; ++r) {
      extents[r] = host.extent(r);
      strides[r] = host.stride(r);
    }
    const auto* const bytes = reinterpret_cast<const unsigned char*>(host.data());
    memory_.emplace_back(std::vector<unsigned char>(bytes, bytes + reach(host) * static_cast<index_t>(sizeof(T))));
    return View<T, Rank>(reinterpret_cast<T*>(memory_.back().data()), extents, strides);
  }

  /// The copy of a view, as the device's kernels left it, back over the host's memory.
  template <class T, int Rank>
  static void back(const View<T, Rank>& copy, const View<T, Rank>& host) {
    must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    must(cudaMemcpy(host.data(), copy.data(), static_cast<std::size_t>(reach(host)) * sizeof(T),
                    cudaMemcpyDeviceToHost),
         "cudaMemcpy");
  }

  template <class T>
  kv::DenseKV<T> operator()(const kv::DenseKV<T>& c) {
    return {(*this)(c.keys), (*this)(c.values), (*this)(c.lengths)};
  }
  template <class T>
  kv::PagedKV<T> operator()(const kv::PagedKV<T>& c) {
    return {(*this)(c.keys), (*this)(c.values), (*this)(c.indptr), (*this)(c.indices), (*this)(c.last_page_len)};
  }
  template <class T>
  kv::RaggedKV<T> operator()(const kv::RaggedKV<T>& c) {
    return {(*this)(c.keys), (*this)(c.values), (*this)(c.offsets), (*this)(c.lengths), c.heads};
  }

  template <class C, class Q>
  kv::LayerView<C, Q> operator()(const kv::LayerView<C, Q>& x) {
    kv::LayerView<C, Q> y = x;
    y.cache = (*this)(x.cache);
    y.queries = (*this)(x.queries);
    y.lse = (*this)(x.lse);
    y.queries_pre_rope = (*this)(x.queries_pre_rope);
    y.positions = (*this)(x.positions);
    y.rope.frequencies = (*this)(x.rope.frequencies);
    return y;
  }

 private:
  /// From a view's first element to behind its last.
  template <class T, int Rank>
  static index_t reach(const View<T, Rank>& view) {
    if (view.size() == 0) return 0;
    index_t reach = 1;
    for (int r = 0; r < Rank; ++r) reach += (view.extent(r) - 1) * view.stride(r);
    return reach;
  }

  std::deque<DeviceBuffer<unsigned char>> memory_;
};

/// The scores [kv_heads, n] of a layer in device memory.
template <class S, class X>
std::vector<float> scored(decant::Cuda& cuda, const S& scorer, const X& on_device, index_t n) {
  const DeviceBuffer<float> out(std::vector<float>(static_cast<std::size_t>(on_device.kv_heads() * n), -7.0f));
  score(cuda, scorer, on_device, out.view(on_device.kv_heads(), n));
  cuda.check();
  return out.download();
}

}  // namespace cuda_test
