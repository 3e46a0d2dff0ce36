// backend.hpp on CUDA: device memory that stays between calls, weights uploaded once, lists staged in the workspace, and
// a dense KV cache. Include it before llama.hpp.
#pragma once

#include <decant/kv/compact.cuh>
#include <decant/kv/write.cuh>
#include <decant/quant/plain.cuh>

#include "backend.hpp"
#include "device_vector.cuh"
#include "kv_cache.hpp"
#include "ops.cuh"

namespace runtime {

/// kv::Kept on the device.
class DeviceKept {
 public:
  void resize(index_t kv_heads, index_t capacity) {
    heads_ = kv_heads;
    capacity_ = capacity;
    indices_.resize(kv_heads * capacity);
    counts_.resize(kv_heads);
  }
  decant::kv::KeptView view() {
    return {View<std::int32_t, 2>(indices_.data(), heads_, capacity_), View<std::int32_t, 1>(counts_.data(), heads_)};
  }

 private:
  index_t heads_ = 0, capacity_ = 0;
  DeviceVector<std::int32_t> indices_;
  DeviceVector<std::int32_t> counts_;
};

template <>
struct Backend<decant::Cuda> {
  template <class T>
  using Vector = DeviceVector<T>;
  using Rope = DeviceRopeTable;
  using Kept = DeviceKept;
};

namespace kernels {

__global__ void gather(View<const float, 2> x, View<const std::int32_t, 1> which, View<float, 2> out) {
  for (index_t c = threadIdx.x; c < x.extent(1); c += blockDim.x)
    out(index_t{blockIdx.x}, c) = x(index_t{which[blockIdx.x]}, c);
}

template <class T>
__global__ void embed(View<const T, 2> embedding, View<const std::int32_t, 1> ids, View<float, 2> x) {
  for (index_t c = threadIdx.x; c < x.extent(1); c += blockDim.x)
    x(index_t{blockIdx.x}, c) = decant::detail::widen(embedding(index_t{ids[blockIdx.x]}, c));
}

}  // namespace kernels

namespace detail {

inline void copy(decant::Cuda& cuda, void* to, const void* from, index_t bytes, cudaMemcpyKind kind) {
  decant::detail::require_cuda(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), kind, cuda.stream()), "runtime",
                               "cudaMemcpyAsync");
}

}  // namespace detail

inline View<std::int32_t, 1> stage(decant::Cuda& cuda, const std::vector<std::int32_t>& list) {
  const auto staged = cuda.workspace().take_view<std::int32_t>(static_cast<index_t>(list.size()));
  // From pageable memory: the runtime has read it when the call returns.
  detail::copy(cuda, staged.data(), list.data(), staged.size() * 4, cudaMemcpyHostToDevice);
  return staged;
}

inline void store(decant::Cuda& cuda, View<const float, 2> rows, DeviceVector<float>& to) {
  to.resize(rows.size());
  detail::copy(cuda, to.data(), rows.data(), rows.size() * 4, cudaMemcpyDeviceToDevice);
}

/// Waits, and raises what kernels have found wrong since the last time.
inline void fetch(decant::Cuda& cuda, View<const float, 2> rows, std::vector<float>& to) {
  to.resize(static_cast<std::size_t>(rows.size()));
  detail::copy(cuda, to.data(), rows.data(), rows.size() * 4, cudaMemcpyDeviceToHost);
  cuda.check();
}

inline View<float, 2> keep_rows(decant::Cuda& cuda, View<float, 2> x, const std::vector<std::int32_t>& which) {
  const auto count = static_cast<index_t>(which.size());
  const auto rows = x.slice(0, 0, count);
  if (count == x.extent(0)) return rows;
  decant::Workspace::Scope scope(cuda.workspace());
  const auto gathered = cuda.workspace().take_view<float>(count, x.extent(1));
  launch(cuda, "keep_rows", kernels::gather, decant::CudaGrid{static_cast<unsigned>(count), 128}, x,
         stage(cuda, which), gathered);
  detail::copy(cuda, rows.data(), gathered.data(), gathered.size() * 4, cudaMemcpyDeviceToDevice);
  return rows;
}

/// f of the matrix as stored plainly; packed ones this runtime multiplies on the processor only.
template <class M, class F>
void with_plain(M& matrix, F&& f) {
  std::visit(
      [&](auto& m) {
        if constexpr (std::is_same_v<std::remove_const_t<std::remove_reference_t<decltype(m)>>, PackedMatrix>)
          decant::require(false, "runtime", "weights", "F32, F16 or BF16 on Cuda", m.format());
        else
          f(m);
      },
      matrix);
}

inline void linear(decant::Cuda& cuda, const Matrix& w, View<const float, 2> x, View<float, 2> y) {
  with_plain(w, [&](const auto& plain) { matmul(cuda, plain, x, y); });
}

inline void embed(decant::Cuda& cuda, const Matrix& embedding, const std::vector<std::int32_t>& ids, View<float, 2> x) {
  decant::Workspace::Scope scope(cuda.workspace());
  const auto staged = stage(cuda, ids);
  const decant::CudaGrid grid{static_cast<unsigned>(ids.size()), 128};
  with_plain(embedding, [&]<class T>(const quant::Plain<T>& plain) {
    launch(cuda, "embed", kernels::embed<T>, grid, plain.weights, staged, x);
  });
}

/// The same weights in device memory, which this holds.
class DeviceWeights {
 public:
  explicit DeviceWeights(const Weights& host) : weights_(host) {
    upload(weights_.embedding);
    for (LayerWeights& w : weights_.layers) {
      upload(w.attention_norm);
      upload(w.ffn_norm);
      for (Matrix* m : {&w.q, &w.k, &w.v, &w.o, &w.gate, &w.up, &w.down}) upload(*m);
    }
    upload(weights_.norm);
    upload(weights_.head);
  }
  const Weights& weights() const { return weights_; }

 private:
  void upload(View<const float, 1>& v) { v = View<const float, 1>(upload(v.data(), v.size()), v.size()); }
  void upload(Matrix& matrix) {
    with_plain(matrix, [&]<class T>(quant::Plain<T>& m) {
      m.weights = View<const T, 2>(upload(m.weights.data(), m.weights.size()), m.rows(), m.cols());
    });
  }
  template <class T>
  const T* upload(const T* from, index_t count) {
    const index_t bytes = count * static_cast<index_t>(sizeof(T));
    memory_.emplace_back(bytes);
    decant::detail::require_cuda(
        cudaMemcpy(memory_.back().data(), from, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice), "runtime",
        "cudaMemcpy");
    return reinterpret_cast<const T*>(memory_.back().data());
  }

  Weights weights_;
  std::vector<DeviceVector<unsigned char>> memory_;
};

/// DenseCache in device memory.
template <class T>
class DeviceDenseCache {
 public:
  DeviceDenseCache(const Config& c, index_t capacity, const CacheOptions&)
      : heads_(c.kv_heads), capacity_(capacity), dim_(c.head_dim), keys_(rows()), values_(rows()) {
    length_.assign({0});
  }

  decant::kv::DenseKV<T> view() {
    return {View<T, 4>(keys_.data(), 1, heads_, capacity_, dim_), View<T, 4>(values_.data(), 1, heads_, capacity_, dim_),
            View<std::int32_t, 1>(length_.data(), 1)};
  }
  void append(decant::Cuda& cuda, View<float, 3> keys, View<float, 3> values) {
    decant::kv::append(cuda, view(), 0, keys, values);
  }
  void compact(decant::Cuda& cuda, decant::kv::KeptView kept) { decant::kv::compact(cuda, view(), kept); }
  index_t bytes_in_use() {
    return length_.to_host()[0] * heads_ * 2 * dim_ * static_cast<index_t>(sizeof(T));
  }

 private:
  index_t rows() const { return heads_ * capacity_ * dim_; }

  index_t heads_, capacity_, dim_;
  DeviceVector<T> keys_;
  DeviceVector<T> values_;
  DeviceVector<std::int32_t> length_;
};

}  // namespace runtime
