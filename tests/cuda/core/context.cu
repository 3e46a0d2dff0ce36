// The Cuda context: what its workspace allocates, faults that kernels report, capture, and errors of the runtime.
#include "decant/core/cuda.cuh"

#include <vector>

#include "catch_compat.hpp"
#include "decant/core/detail/device.cuh"
#include "decant/core/random.hpp"
#include "device_memory.cuh"
#include "graph.cuh"

namespace context_test {  // kernels inside an unnamed namespace clash with those that Catch opens

using namespace cuda_test;
using decant::Cuda;
using decant::CudaGrid;
using decant::View;
using decant::Workspace;

__global__ void fill_uniform(View<float, 1> out, std::uint64_t seed) {
  const index_t i = index_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < out.extent(0)) out[i] = decant::Philox{seed}.uniform(static_cast<std::uint32_t>(i), 1, 2, 3);
}

__global__ void report_all(decant::FaultWord* word) {
  decant::detail::report(word, decant::detail::Fault::length, 2, threadIdx.x + 1, 100 - threadIdx.x);
}

__global__ void block_sums(View<float, 2> out) {
  __shared__ float shared[32];
  float total = 0;
  const auto own = static_cast<float>(threadIdx.x);
  out(index_t{0}, index_t{threadIdx.x}) = decant::detail::block_reduce(own, decant::detail::Plus{}, 0.0f, shared);
  out(index_t{1}, index_t{threadIdx.x}) = decant::detail::block_scan_before(own, total, shared);
  out(index_t{2}, index_t{threadIdx.x}) = total;
}

__global__ void widen_all(const std::uint16_t* bits, float* fp16, float* bf16, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  fp16[i] = decant::detail::widen(decant::fp16::from_bits(bits[i]));
  bf16[i] = decant::detail::widen(decant::bf16::from_bits(bits[i]));
}

TEST_CASE("Philox gives the same numbers on the device") {
  const Stream stream;
  Cuda cuda(stream);
  const DeviceBuffer<float> out(100);
  launch(cuda, "test", fill_uniform, CudaGrid{1, 128}, out.view(100), 7);
  const auto got = out.download();
  for (std::uint32_t i = 0; i < 100; ++i) CHECK(got[i] == decant::Philox{7}.uniform(i, 1, 2, 3));
}

TEST_CASE("of many faults the same one is told, once") {
  const Stream stream;
  Cuda cuda(stream);
  launch(cuda, "test", report_all, CudaGrid{1, 64}, cuda.fault());
  CHECK_THROWS_WITH(cuda.check(),
                    "decant::kv::CacheView: argument `lengths`: expected lengths from 0 to the capacity, got a fault at "
                    "layer 2, head 1, index 100");
  CHECK_NOTHROW(cuda.check());
}

TEST_CASE("sums and scans of a block") {
  const Stream stream;
  Cuda cuda(stream);
  for (const unsigned threads : {32u, 96u, 1024u}) {
    const DeviceBuffer<float> out(3 * index_t{threads});
    launch(cuda, "test", block_sums, CudaGrid{1, threads}, out.view(3, threads));
    const auto got = out.download();
    const auto sum = static_cast<float>(threads * (threads - 1) / 2);
    for (unsigned i = 0; i < threads; ++i) {
      CHECK(got[i] == sum);
      CHECK(got[threads + i] == static_cast<float>(i * (i - 1) / 2));
      CHECK(got[2 * threads + i] == sum);
    }
  }
}

TEST_CASE("every fp16 and bf16 widens as on the CPU") {
  const Stream stream;
  Cuda cuda(stream);
  std::vector<std::uint16_t> bits(65536);
  for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<std::uint16_t>(i);
  const DeviceBuffer<std::uint16_t> device_bits(bits);
  const DeviceBuffer<float> fp16(65536), bf16(65536);
  launch(cuda, "test", widen_all, CudaGrid{256, 256}, device_bits.data(), fp16.data(), bf16.data(), 65536);
  const auto half = fp16.download(), brain = bf16.download();
  int wrong = 0;
  const auto same = [](float a, float b) {  // NaN: any
    return (a != a && b != b) || decant::bit_cast<std::uint32_t>(a) == decant::bit_cast<std::uint32_t>(b);
  };
  for (std::size_t i = 0; i < bits.size(); ++i) {
    wrong += !same(half[i], static_cast<float>(decant::fp16::from_bits(bits[i])));
    wrong += !same(brain[i], static_cast<float>(decant::bf16::from_bits(bits[i])));
  }
  CHECK(wrong == 0);
}

TEST_CASE("the workspace grows once, and not while a stream is captured") {
  const Stream stream;
  Cuda cuda(stream);
  const auto call = [&] {
    Workspace::Scope scope(cuda.workspace());
    const auto out = cuda.workspace().take_view<float>(5000);
    launch(cuda, "test", fill_uniform, CudaGrid{decant::cuda_blocks(5000, 128), 128}, out, 7);
    return out.data();
  };
  CHECK_THROWS_AS(Graph(stream, call), decant::WorkspaceError);
  cudaGraph_t broken = nullptr;
  (void)cudaStreamEndCapture(stream, &broken);
  (void)cudaGraphDestroy(broken);
  (void)cudaGetLastError();
  call();
  float* const second = call();
  CHECK(call() == second);  // the folded block stays
  const Graph graph(stream, call);
  graph.launch(stream);
  stream.wait();
  CHECK_NOTHROW(cuda.check());
}

TEST_CASE("scratch in the caller's memory never grows") {
  const Stream stream;
  const DeviceBuffer<float> memory(64);
  Cuda cuda(stream, memory.data(), 256);
  Workspace::Scope scope(cuda.workspace());
  CHECK(cuda.workspace().take<float>(64) == memory.data());
  CHECK_THROWS_AS(cuda.workspace().take<float>(1), decant::WorkspaceError);
}

TEST_CASE("a launch that the device cannot run is an error with the caller's name") {
  const Stream stream;
  Cuda cuda(stream);
  const DeviceBuffer<float> out(1);
  CHECK_THROWS_AS(launch(cuda, "some::function", fill_uniform, CudaGrid{1, 2048}, out.view(1), 7), decant::CudaError);
  CHECK_THROWS_WITH(launch(cuda, "some::function", fill_uniform, CudaGrid{1, 2048}, out.view(1), 7),
                    "decant::some::function: cudaLaunchKernel: invalid configuration argument "
                    "(cudaErrorInvalidConfiguration)");
  CHECK(cudaPeekAtLastError() == cudaSuccess);  // the next call does not report it again
  launch(cuda, "test", fill_uniform, CudaGrid{0, 32}, out.view(1), 7);  // nothing to do
}

}  // namespace context_test
