// A few calls that allocate and launch, for run.sh, which makes the runtime fail under them: 0 when all went well, 3 when
// decant told what failed, anything else is a crash.
#include <cstdio>
#include <vector>

#include "decant/attention/dense.cuh"
#include "decant/codec/splitzip.cuh"
#include "decant/kv/compact.cuh"
#include "decant/kv/dense_kv.hpp"
#include "decant/kv/eviction.cuh"
#include "decant/kv/knorm.cuh"

namespace kv = decant::kv;
using decant::View;

/// Device memory from a runtime that may fail.
template <class T>
T* device_copy(const std::vector<T>& values) {
  void* memory = nullptr;
  decant::detail::require_cuda(cudaMalloc(&memory, values.size() * sizeof(T)), "calls", "cudaMalloc");
  decant::detail::require_cuda(cudaMemcpy(memory, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice),
                               "calls", "cudaMemcpy");
  return static_cast<T*>(memory);
}

int main() try {
  cudaStream_t stream = nullptr;
  decant::detail::require_cuda(cudaStreamCreate(&stream), "calls", "cudaStreamCreate");
  decant::Cuda cuda(stream);
  const auto rows = device_copy(std::vector<float>(2 * 64 * 8, 0.5f));
  const auto length = device_copy(std::vector<std::int32_t>{64});
  const auto kept_tokens = device_copy(std::vector<std::int32_t>(2 * 64));
  const auto kept_counts = device_copy(std::vector<std::int32_t>(2));
  const auto q = device_copy(std::vector<float>(4 * 8, 1.0f));
  const auto out = device_copy(std::vector<float>(4 * 8));
  const kv::DenseKV<float> cache{View<float, 4>(rows, 1, 2, 64, 8), View<float, 4>(rows, 1, 2, 64, 8),
                                 View<std::int32_t, 1>(length, 1)};
  const kv::KeptView kept{View<std::int32_t, 2>(kept_tokens, 2, 64), View<std::int32_t, 1>(kept_counts, 2)};
  select(cuda, kv::KNorm{}, kv::LayerView{cache}, kv::Budget::tokens(16), kept);
  compact(cuda, cache, kept);
  attend(cuda, decant::attention::Dense{}, View<const float, 3>(q, 1, 4, 8), cache, View<float, 3>(out, 1, 4, 8));
  const decant::codec::SplitZip<decant::bf16> codec;
  const auto elements = device_copy(std::vector<decant::bf16>(2000, decant::bf16(1.0f)));
  const decant::index_t room = max_encoded_size(codec, 2000);
  const auto payload = device_copy(std::vector<std::byte>(static_cast<std::size_t>(room)));
  const auto size = device_copy(std::vector<decant::index_t>(1));
  encode(cuda, codec, View<const decant::bf16, 1>(elements, 2000), View<std::byte, 1>(payload, room), size);
  decode(cuda, codec, View<const std::byte, 1>(payload, room), View<decant::bf16, 1>(elements, 2000));
  (void)calibrate(cuda, codec, View<const decant::bf16, 1>(elements, 2000));
  cuda.check();
  std::printf("all went well\n");
  return 0;
} catch (const decant::Error& e) {
  std::printf("%s\n", e.what());
  return 3;
}
