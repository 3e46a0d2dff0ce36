// A downstream's first CUDA program: evict from a cache in device memory.
#include <cstdio>
#include <vector>

#include <decant/kv/compact.cuh>
#include <decant/kv/dense_kv.hpp>
#include <decant/kv/eviction.cuh>
#include <decant/kv/knorm.cuh>

int main() {
  namespace kv = decant::kv;
  using decant::View;
  // Token t's keys have length 16 - t: KNorm keeps the last ones.
  std::vector<float> rows(2 * 16 * 4, 0.0f);  // keys, then values
  for (int t = 0; t < 16; ++t) rows[static_cast<std::size_t>(4 * t)] = static_cast<float>(16 - t);
  float* device = nullptr;
  std::int32_t* lists = nullptr;  // one length, four kept tokens, one count
  const std::vector<std::int32_t> start = {16, 0, 0, 0, 0, 0};
  std::vector<std::int32_t> end(6);
  if (cudaMalloc(&device, rows.size() * sizeof(float)) != cudaSuccess) return 2;
  if (cudaMalloc(&lists, start.size() * 4) != cudaSuccess) return 2;
  if (cudaMemcpy(device, rows.data(), rows.size() * sizeof(float), cudaMemcpyHostToDevice) != cudaSuccess) return 2;
  if (cudaMemcpy(lists, start.data(), start.size() * 4, cudaMemcpyHostToDevice) != cudaSuccess) return 2;

  cudaStream_t stream = nullptr;
  if (cudaStreamCreate(&stream) != cudaSuccess) return 2;
  {
    decant::Cuda cuda(stream);
    const kv::DenseKV<float> cache{
        View<float, 4>(device, 1, 1, 16, 4), View<float, 4>(device + 64, 1, 1, 16, 4), View<std::int32_t, 1>(lists, 1)};
    const kv::KeptView kept{View<std::int32_t, 2>(lists + 1, 1, 4), View<std::int32_t, 1>(lists + 5, 1)};
    select(cuda, kv::KNorm{}, kv::LayerView{cache}, kv::Budget::tokens(4), kept);
    compact(cuda, cache, kept);
    cuda.check();
  }
  if (cudaMemcpy(end.data(), lists, end.size() * 4, cudaMemcpyDeviceToHost) != cudaSuccess) return 2;
  std::printf("%d tokens left: %d %d %d %d\n", end[0], end[1], end[2], end[3], end[4]);
  return end == std::vector<std::int32_t>{4, 12, 13, 14, 15, 4} ? 0 : 1;
}
