// CUB's device and block algorithms and cooperative groups as a conformance suite: what the best-tuned kernels do is
// what the interpreter must run. All results are exact.

#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>

#include <algorithm>
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/device/device_histogram.cuh>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_reduce.cuh>
#include <cub/device/device_scan.cuh>
#include <cub/device/device_segmented_radix_sort.cuh>
#include <cub/device/device_segmented_reduce.cuh>
#include <cub/device/device_select.cuh>
#include <numeric>

#include "check.cuh"

namespace cg = cooperative_groups;

namespace {

constexpr int kCount = 6000;

// CUB's two-step calls: how much memory, then the work.
template <class F>
void run(F&& call) {
  std::size_t bytes = 0;
  CHECK_CUDA(call(nullptr, bytes));
  Device<char> temporary(bytes + 1);
  CHECK_CUDA(call(temporary.get(), bytes));
  CHECK_CUDA(cudaDeviceSynchronize());
}

struct IsPositive {
  __host__ __device__ bool operator()(float x) const { return x > 0; }
};

__global__ void block_algorithms(const float* in, float* keys, int* values, int* sums, float* largest) {
  using Sort = cub::BlockRadixSort<float, 128, 4, int>;
  using Scan = cub::BlockScan<int, 128>;
  using Reduce = cub::BlockReduce<float, 128>;
  __shared__ union {
    Sort::TempStorage sort;
    Scan::TempStorage scan;
    Reduce::TempStorage reduce;
  } shared;
  float key[4];
  int value[4];
  const int first = blockIdx.x * 512 + threadIdx.x * 4;
  for (int i = 0; i < 4; ++i) {
    key[i] = in[first + i];
    value[i] = first + i;
  }
  Sort(shared.sort).SortDescending(key, value);
  __syncthreads();
  for (int i = 0; i < 4; ++i) {
    keys[first + i] = key[i];
    values[first + i] = value[i];
  }
  int before;
  Scan(shared.scan).ExclusiveSum(static_cast<int>(threadIdx.x), before);
  sums[blockIdx.x * 128 + threadIdx.x] = before;
  __syncthreads();
  const float greatest = Reduce(shared.reduce).Reduce(key[0], cuda::maximum<>{});
  if (threadIdx.x == 0) largest[blockIdx.x] = greatest;
}

__global__ void groups(const int* in, int* out) {
  const cg::thread_block block = cg::this_thread_block();
  const auto warp = cg::tiled_partition<32>(block);
  const auto eight = cg::tiled_partition<8>(warp);
  const int value = in[threadIdx.x];
  int result = cg::reduce(warp, value, cg::plus<int>()) + 1000 * eight.shfl_down(value, 1);
  if (value % 3 == 0) {
    const cg::coalesced_group some = cg::coalesced_threads();
    result += 1000000 * static_cast<int>(some.size());
  }
  block.sync();
  out[threadIdx.x] = result;
}

}  // namespace

int main() {
  std::srand(7);
  std::vector<float> keys(kCount);
  std::vector<int> values(kCount);
  for (int i = 0; i < kCount; ++i) {
    keys[i] = static_cast<float>(std::rand() % 2001 - 1000) / 8;
    values[i] = i;
  }
  Device<float> d_keys(keys), out_keys(kCount);
  Device<int> d_values(values), out_values(kCount), number(1);

  {
    run([&](void* t, std::size_t& n) {
      return cub::DeviceRadixSort::SortPairsDescending(t, n, d_keys.get(), out_keys.get(), d_values.get(),
                                                       out_values.get(), kCount);
    });
    std::vector<int> expected = values;
    std::stable_sort(expected.begin(), expected.end(), [&](int a, int b) { return keys[a] > keys[b]; });
    CHECK(out_values.values() == expected);
  }
  {
    run([&](void* t, std::size_t& n) {
      return cub::DeviceScan::ExclusiveSum(t, n, d_values.get(), out_values.get(), kCount);
    });
    std::vector<int> expected(kCount);
    std::exclusive_scan(values.begin(), values.end(), expected.begin(), 0);
    CHECK(out_values.values() == expected);
  }
  {
    run([&](void* t, std::size_t& n) {
      return cub::DeviceSelect::If(t, n, d_keys.get(), out_keys.get(), number.get(), kCount, IsPositive{});
    });
    std::vector<float> expected;
    std::copy_if(keys.begin(), keys.end(), std::back_inserter(expected), IsPositive{});
    std::vector<float> got = out_keys.values();
    CHECK(number.values()[0] == static_cast<int>(expected.size()));
    got.resize(expected.size());
    CHECK(got == expected);
  }
  {
    Device<float> sum(1);
    run([&](void* t, std::size_t& n) { return cub::DeviceReduce::Sum(t, n, d_keys.get(), sum.get(), kCount); });
    CHECK(sum.values()[0] == std::accumulate(keys.begin(), keys.end(), 0.0f));  // multiples of 1/8: exact in any order
  }
  {
    const std::vector<int> offsets{0, 1000, 1500, 1500, kCount};
    Device<int> d_offsets(offsets);
    run([&](void* t, std::size_t& n) {
      return cub::DeviceSegmentedRadixSort::SortKeys(t, n, d_keys.get(), out_keys.get(), kCount, 4, d_offsets.get(),
                                                     d_offsets.get() + 1);
    });
    std::vector<float> expected = keys;
    for (int s = 0; s < 4; ++s) std::sort(expected.begin() + offsets[s], expected.begin() + offsets[s + 1]);
    CHECK(out_keys.values() == expected);
    Device<int> sums(4);
    run([&](void* t, std::size_t& n) {
      return cub::DeviceSegmentedReduce::Sum(t, n, d_values.get(), sums.get(), 4, d_offsets.get(), d_offsets.get() + 1);
    });
    std::vector<int> expected_sums;
    for (int s = 0; s < 4; ++s)
      expected_sums.push_back(std::accumulate(values.begin() + offsets[s], values.begin() + offsets[s + 1], 0));
    CHECK(sums.values() == expected_sums);
  }
  {
    Device<int> histogram(10);
    run([&](void* t, std::size_t& n) {
      return cub::DeviceHistogram::HistogramEven(t, n, d_values.get(), histogram.get(), 11, 0, kCount, kCount);
    });
    CHECK(histogram.values() == std::vector<int>(10, kCount / 10));
  }
  {
    Device<float> largest(4);
    Device<int> sums(512);
    block_algorithms<<<4, 128>>>(d_keys.get(), out_keys.get(), out_values.get(), sums.get(), largest.get());
    CHECK_CUDA(cudaDeviceSynchronize());
    const auto got = out_values.values();
    for (int block = 0; block < 4; ++block) {
      std::vector<int> expected(values.begin() + 512 * block, values.begin() + 512 * (block + 1));
      std::stable_sort(expected.begin(), expected.end(), [&](int a, int b) { return keys[a] > keys[b]; });
      CHECK(std::equal(expected.begin(), expected.end(), got.begin() + 512 * block));
      CHECK(largest.values()[block] == keys[expected[0]]);
      for (int i = 0; i < 128; ++i) CHECK(sums.values()[128 * block + i] == i * (i - 1) / 2);
    }
  }
  {
    Device<int> out(64);
    groups<<<1, 64>>>(d_values.get(), out.get());
    const auto got = out.values();
    for (int i = 0; i < 64; ++i) {
      int sum = 0, thirds = 0;
      for (int k = i / 32 * 32; k < i / 32 * 32 + 32; ++k) {
        sum += k;
        thirds += k % 3 == 0;
      }
      CHECK(got[i] == sum + 1000 * (i % 8 == 7 ? i : i + 1) + (i % 3 == 0 ? 1000000 * thirds : 0));
    }
  }
  return finish("cub");
}
