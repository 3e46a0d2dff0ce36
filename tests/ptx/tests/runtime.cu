// The stand-in for libcudart: streams, capture, graphs, limits, attributes, errors.
//   runtime                  everything that needs no failure
//   runtime no-driver        with DECANT_PTX_NO_DRIVER=1
//   runtime allocation       with DECANT_PTX_FAIL_ALLOCATION=2
//   runtime launch           with DECANT_PTX_FAIL_LAUNCH=2
//   runtime illegal-address  a kernel that fails, after which every call does

#include <cstring>
#include <string>

#include "check.cuh"

namespace {

__global__ void add(int* p, int by) {
  p[threadIdx.x] += by;
}
__global__ void __launch_bounds__(64) bounded(int* p) {
  p[threadIdx.x] = 1;
}
__global__ void dynamic_shared(int* p) {
  extern __shared__ int s[];
  s[threadIdx.x] = threadIdx.x;
  __syncthreads();
  p[threadIdx.x] = s[threadIdx.x ^ 1];
}
__global__ void out_of_bounds(int* p) {
  p[1 << 20] = 1;
}

__constant__ int table[4] = {1, 2, 3, 4};
__device__ int counter = 7;
__global__ void use_variables(int* p) {
  p[threadIdx.x] = table[threadIdx.x] + counter;
  __syncthreads();
  if (threadIdx.x == 0) counter = 100;
}
__global__ void say(int x) {
  printf("kernel says %d %s %.2f %lld%%\n", x, "words", 1.5, 1ll << 40);
}

#define CHECK_ERROR(call, expected) CHECK((call) == (expected))

void capture_and_graphs() {
  cudaStream_t stream;
  CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  Device<int> d(std::vector<int>(32, 0));
  std::vector<int> host(32);
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CHECK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  cudaStreamCaptureStatus status;
  CHECK_CUDA(cudaStreamIsCapturing(stream, &status));
  CHECK(status == cudaStreamCaptureStatusActive);
  CHECK_CUDA(cudaMemsetAsync(d.get(), 0, 32 * sizeof(int), stream));
  add<<<1, 32, 0, stream>>>(d.get(), 2);
  add<<<1, 32, 0, stream>>>(d.get(), 3);
  CHECK_CUDA(cudaMemcpyAsync(host.data(), d.get(), 32 * sizeof(int), cudaMemcpyDeviceToHost, stream));
  CHECK_CUDA(cudaStreamEndCapture(stream, &graph));
  CHECK(host[5] == 0);  // recorded, not run
  std::size_t nodes = 0;
  CHECK_CUDA(cudaGraphGetNodes(graph, nullptr, &nodes));
  CHECK(nodes == 4);
  CHECK_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  for (int i = 0; i < 2; ++i) {
    host.assign(32, -1);
    CHECK_CUDA(cudaGraphLaunch(executable, stream));
    CHECK_CUDA(cudaStreamSynchronize(stream));
    CHECK(host[5] == 5);
  }
  CHECK_CUDA(cudaGraphExecDestroy(executable));
  CHECK_CUDA(cudaGraphDestroy(graph));

  // What a capture refuses, and what is left of it then.
  int* memory = nullptr;
  CHECK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  CHECK_ERROR(cudaStreamSynchronize(stream), cudaErrorStreamCaptureUnsupported);
  CHECK_ERROR(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
  CHECK(graph == nullptr);
  CHECK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  CHECK_ERROR(cudaMalloc(&memory, 16), cudaErrorStreamCaptureUnsupported);
  CHECK_ERROR(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
  CHECK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  CHECK_ERROR(cudaDeviceSynchronize(), cudaErrorStreamCaptureUnsupported);
  CHECK_ERROR(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
  cudaStream_t blocking;
  CHECK_CUDA(cudaStreamCreate(&blocking));
  CHECK_CUDA(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeGlobal));
  add<<<1, 32>>>(d.get(), 1);  // the legacy stream
  CHECK_ERROR(cudaGetLastError(), cudaErrorStreamCaptureImplicit);
  CHECK_ERROR(cudaStreamEndCapture(blocking, &graph), cudaErrorStreamCaptureInvalidated);
  CHECK_ERROR(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal), cudaErrorStreamCaptureUnsupported);

  // Two streams joined by events; work that is not joined again is an error.
  cudaEvent_t fork, join;
  CHECK_CUDA(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
  CHECK_CUDA(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
  for (const bool joins : {true, false}) {
    CHECK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CHECK_CUDA(cudaEventRecord(fork, stream));
    CHECK_CUDA(cudaStreamWaitEvent(blocking, fork, 0));
    add<<<1, 32, 0, blocking>>>(d.get(), 1);
    CHECK_CUDA(cudaEventRecord(join, blocking));
    if (joins) CHECK_CUDA(cudaStreamWaitEvent(stream, join, 0));
    CHECK_ERROR(cudaStreamEndCapture(stream, &graph), joins ? cudaSuccess : cudaErrorStreamCaptureUnjoined);
    if (graph) CHECK_CUDA(cudaGraphDestroy(graph));
  }
  CHECK_CUDA(cudaEventDestroy(fork));
  CHECK_CUDA(cudaEventDestroy(join));
  CHECK_CUDA(cudaStreamDestroy(blocking));

  // Stream-ordered allocation, outside of a capture and in one.
  CHECK_CUDA(cudaMallocAsync(reinterpret_cast<void**>(&memory), 128, stream));
  CHECK_CUDA(cudaMemsetAsync(memory, 0, 128, stream));
  add<<<1, 32, 0, stream>>>(memory, 4);
  CHECK_CUDA(cudaMemcpyAsync(host.data(), memory, 128, cudaMemcpyDeviceToHost, stream));
  CHECK_CUDA(cudaFreeAsync(memory, stream));
  CHECK_CUDA(cudaStreamSynchronize(stream));
  CHECK(host[31] == 4);
  CHECK_ERROR(cudaFreeAsync(memory, stream), cudaErrorInvalidValue);
  CHECK_ERROR(cudaGetLastError(), cudaErrorInvalidValue);
  CHECK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  CHECK_CUDA(cudaMallocAsync(reinterpret_cast<void**>(&memory), 128, stream));
  CHECK_CUDA(cudaMemsetAsync(memory, 0, 128, stream));
  CHECK_CUDA(cudaFreeAsync(memory, stream));
  CHECK_CUDA(cudaStreamEndCapture(stream, &graph));
  CHECK_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  CHECK_CUDA(cudaGraphLaunch(executable, stream));
  CHECK_CUDA(cudaGraphExecDestroy(executable));
  CHECK_CUDA(cudaGraphDestroy(graph));
  CHECK_CUDA(cudaStreamDestroy(stream));
  CHECK_ERROR(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle);
  cudaGetLastError();
}

void launches_and_limits() {
  Device<int> d(std::vector<int>(1024, 0));
  add<<<0, 32>>>(d.get(), 1);
  CHECK_ERROR(cudaGetLastError(), cudaErrorInvalidConfiguration);
  CHECK_ERROR(cudaGetLastError(), cudaSuccess);
  add<<<1, 1025>>>(d.get(), 1);
  CHECK_ERROR(cudaGetLastError(), cudaErrorInvalidConfiguration);
  add<<<dim3(1, 65536), 32>>>(d.get(), 1);
  CHECK_ERROR(cudaGetLastError(), cudaErrorInvalidConfiguration);
  bounded<<<1, 128>>>(d.get());
  CHECK(cudaGetLastError() != cudaSuccess);
  bounded<<<1, 64>>>(d.get());
  CHECK_CUDA(cudaGetLastError());

  // More than 48 KiB of shared memory must be asked for.
  const int big = 64 << 10;
  dynamic_shared<<<1, 32, big>>>(d.get());
  CHECK_ERROR(cudaGetLastError(), cudaErrorInvalidValue);
  int limit = 0;
  CHECK_CUDA(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
  CHECK(limit > big);
  CHECK_ERROR(cudaFuncSetAttribute(dynamic_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, limit + 1),
              cudaErrorInvalidValue);
  CHECK_CUDA(cudaFuncSetAttribute(dynamic_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, big));
  cudaGetLastError();
  dynamic_shared<<<1, 32, big>>>(d.get());
  CHECK_CUDA(cudaGetLastError());
  CHECK(d.values()[6] == 7);

  cudaFuncAttributes attributes;
  CHECK_CUDA(cudaFuncGetAttributes(&attributes, bounded));
  CHECK(attributes.maxThreadsPerBlock == 64);
  int blocks = 0;
  CHECK_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, bounded, 64, 0));
  CHECK(blocks > 0);
  CHECK_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, dynamic_shared, 64, limit / 2 + 1024));
  CHECK(blocks == 1);
  cudaDeviceProp properties;
  CHECK_CUDA(cudaGetDeviceProperties(&properties, 0));
  CHECK(properties.warpSize == 32);
  CHECK(properties.sharedMemPerBlockOptin == static_cast<std::size_t>(limit));
  CHECK(attributes.ptxVersion == 10 * properties.major + properties.minor);

  // A cooperative launch that does not fit.
  int* pointer = d.get();
  int one = 1;
  void* arguments[] = {&pointer, &one};
  CHECK_ERROR(cudaLaunchCooperativeKernel(reinterpret_cast<void*>(add), dim3(100000), dim3(32), arguments, 0, nullptr),
              cudaErrorCooperativeLaunchTooLarge);
  cudaGetLastError();
}

void memory_and_variables() {
  int* d = nullptr;
  CHECK_CUDA(cudaMalloc(&d, 64));
  int host[16] = {};
  CHECK_ERROR(cudaMemcpy(d, host, 128, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  CHECK_ERROR(cudaMemcpy(d, host, 64, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  CHECK_ERROR(cudaMemset(d, 0, 65), cudaErrorInvalidValue);
  CHECK_ERROR(cudaFree(d + 1), cudaErrorInvalidValue);
  CHECK_CUDA(cudaFree(d));
  CHECK_ERROR(cudaFree(d), cudaErrorInvalidValue);
  CHECK_CUDA(cudaFree(nullptr));
  void* huge = nullptr;
  CHECK_ERROR(cudaMalloc(&huge, std::size_t{1} << 50), cudaErrorMemoryAllocation);
  cudaGetLastError();

  int* pinned = nullptr;
  CHECK_CUDA(cudaMallocHost(reinterpret_cast<void**>(&pinned), 128));
  std::memset(pinned, 0, 128);
  add<<<1, 32>>>(pinned, 3);
  CHECK_CUDA(cudaDeviceSynchronize());
  CHECK(pinned[31] == 3);
  cudaPointerAttributes attributes;
  CHECK_CUDA(cudaPointerGetAttributes(&attributes, pinned));
  CHECK(attributes.type == cudaMemoryTypeHost);
  CHECK_CUDA(cudaFreeHost(pinned));

  Device<int> out(4);
  use_variables<<<1, 4>>>(out.get());
  CHECK(out.values() == (std::vector<int>{8, 9, 10, 11}));
  const int other[4] = {10, 20, 30, 40};
  CHECK_CUDA(cudaMemcpyToSymbol(table, other, sizeof other));
  int value = 0;
  CHECK_CUDA(cudaMemcpyFromSymbol(&value, counter, sizeof value));
  CHECK(value == 100);
  void* address = nullptr;
  CHECK_CUDA(cudaGetSymbolAddress(&address, counter));
  CHECK_CUDA(cudaMemset(address, 0, sizeof value));
  use_variables<<<1, 4>>>(out.get());
  CHECK(out.values() == (std::vector<int>{10, 20, 30, 40}));

  CHECK(std::string(cudaGetErrorName(cudaErrorMemoryAllocation)) == "cudaErrorMemoryAllocation");
  CHECK(std::string(cudaGetErrorString(cudaErrorMemoryAllocation)) == "out of memory");
  cudaEvent_t begin, end;
  CHECK_CUDA(cudaEventCreate(&begin));
  CHECK_CUDA(cudaEventCreate(&end));
  CHECK_CUDA(cudaEventRecord(begin));
  say<<<1, 1>>>(42);
  CHECK_CUDA(cudaEventRecord(end));
  CHECK_CUDA(cudaEventSynchronize(end));
  float milliseconds = -1;
  CHECK_CUDA(cudaEventElapsedTime(&milliseconds, begin, end));
  CHECK(milliseconds >= 0);
  CHECK_CUDA(cudaEventDestroy(begin));
  CHECK_CUDA(cudaEventDestroy(end));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "no-driver") {
    int count = -1;
    void* memory = nullptr;
    CHECK_ERROR(cudaGetDeviceCount(&count), cudaErrorInsufficientDriver);
    CHECK_ERROR(cudaMalloc(&memory, 16), cudaErrorInsufficientDriver);
    add<<<1, 1>>>(nullptr, 0);
    CHECK_ERROR(cudaGetLastError(), cudaErrorInsufficientDriver);
  } else if (what == "allocation") {
    void *a = nullptr, *b = nullptr, *c = nullptr;
    CHECK_CUDA(cudaMalloc(&a, 16));
    CHECK_ERROR(cudaMalloc(&b, 16), cudaErrorMemoryAllocation);
    CHECK(b == nullptr);
    CHECK_ERROR(cudaGetLastError(), cudaErrorMemoryAllocation);
    CHECK_CUDA(cudaMalloc(&c, 16));
  } else if (what == "launch") {
    Device<int> d(std::vector<int>(32, 0));
    for (int i = 0; i < 3; ++i) {
      add<<<1, 32>>>(d.get(), 1);
      CHECK_ERROR(cudaGetLastError(), i == 1 ? cudaErrorLaunchOutOfResources : cudaSuccess);
    }
    CHECK(d.values()[0] == 2);
  } else if (what == "illegal-address") {
    int* d = nullptr;
    CHECK_CUDA(cudaMalloc(&d, 16));
    out_of_bounds<<<1, 1>>>(d);
    CHECK_ERROR(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
    CHECK_ERROR(cudaGetLastError(), cudaErrorIllegalAddress);
    CHECK_ERROR(cudaGetLastError(), cudaErrorIllegalAddress);
    CHECK_ERROR(cudaFree(d), cudaErrorIllegalAddress);
  } else {
    launches_and_limits();
    memory_and_variables();
    capture_and_graphs();
  }
  return finish("runtime");
}
