#pragma once
// What the parts of the stand-in for libcudart share: errors, streams and captures, registered kernels and variables.

#include <cuda_runtime_api.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "interpreter.hpp"

#define DECANT_CUDART extern "C" __attribute__((visibility("default")))

namespace ptx::cudart {

// ---- errors (cudart_error.cpp)

// Remembers an error for cudaGetLastError and returns it.
cudaError_t fail(cudaError_t error);
// A failure that no later call gets past, as a kernel's illegal access is.
void fail_for_ever(cudaError_t error);
// What every call begins with: a missing driver, or an earlier failure of that kind. cudaSuccess: go on.
cudaError_t ready();

#define DECANT_CUDART_READY()                                                   \
  do {                                                                          \
    if (const cudaError_t not_ready = ::ptx::cudart::ready()) return not_ready; \
  } while (false)

// ---- device (cudart_device.cpp)

struct DeviceModel {
  int major = 0, minor = 0;
  int multiprocessors = 0;
  int threads_per_multiprocessor = 0, blocks_per_multiprocessor = 0;
  std::size_t shared_per_multiprocessor = 0, shared_per_block = 0, shared_per_block_opt_in = 0;
  std::size_t memory = 0;
};

const DeviceModel& device();

// ---- registered code (cudart_register.cpp)

// The code of one fat binary; the PTX that fits the device is parsed when first needed.
class FatBinary {
 public:
  explicit FatBinary(std::vector<std::string> texts) : texts_(std::move(texts)) {}
  Module& module();  // throws ptx::Error
  int target() const;
  bool empty() const { return texts_.empty(); }

 private:
  std::size_t chosen() const;
  std::vector<std::string> texts_;
  std::unique_ptr<Module> module_;
};

struct Kernel {
  std::string name;
  FatBinary* code = nullptr;
  int max_dynamic_shared = -1;  // set by cudaFuncSetAttribute
  int carveout = -1;
};

struct DeviceVariable {
  std::string name;
  FatBinary* code = nullptr;
  void** managed = nullptr;
};

Kernel* find_kernel(const void* function);
DeviceVariable* find_variable(const void* symbol);
// The highest target among all registered PTX, or 0.
int highest_target();
std::size_t static_shared(Kernel& kernel);

// ---- streams (cudart_stream.cpp)

struct Graph;

struct Capture {
  Graph* graph = nullptr;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  bool invalidated = false;
  struct Stream* origin = nullptr;
  std::vector<struct Stream*> forked;
  unsigned long long id = 0;
};

struct Stream {
  unsigned flags = 0;
  int priority = 0;
  unsigned long long id = 0;
  std::shared_ptr<Capture> capture;
  unsigned long long position = 0;         // work put in while capturing
  unsigned long long joined_position = 0;  // how much of it the origin has waited for
};

struct Event {
  unsigned flags = 0;
  bool recorded = false;
  double milliseconds = 0;
  std::shared_ptr<Capture> capture;
  Stream* stream = nullptr;
  unsigned long long position = 0;
};

Stream* stream_of(cudaStream_t handle);  // nullptr for a handle that is none
bool is_legacy(cudaStream_t handle);
// A call that may not be made while any stream captures in global mode: invalidates those captures and fails.
cudaError_t refuse_while_capturing();
// Use of the legacy stream while a blocking stream captures.
cudaError_t refuse_legacy_while_capturing(cudaStream_t handle);

// ---- work (cudart_graph.cpp)

struct KernelWork {
  const void* function = nullptr;
  dim3 grid, block;
  std::size_t shared = 0;
  bool cooperative = false;
  std::vector<std::vector<std::byte>> arguments;
};

struct Node {
  cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
  std::function<cudaError_t()> run;
  std::unique_ptr<KernelWork> kernel;  // where the node is a kernel, run does nothing else than this
  std::vector<std::byte*> owned;       // allocations that end with the graph
  Graph* graph = nullptr;
  bool enabled = true;
};

struct Graph {
  std::vector<std::unique_ptr<Node>> nodes;
  ~Graph();
};

// Runs the work, or records it where the stream captures.
cudaError_t submit(cudaStream_t stream, cudaGraphNodeType type, std::function<cudaError_t()> work);
cudaError_t submit_kernel(cudaStream_t stream, KernelWork&& work);

// ---- launches (cudart_launch.cpp)

// The errors that a launch reports at once.
cudaError_t check_launch(const KernelWork& work);
cudaError_t run_kernel(const KernelWork& work);
// Blocks of this size that a multiprocessor holds, and the most threads that a block may have.
int resident_blocks(Kernel& kernel, std::uint64_t threads, std::size_t dynamic_shared);
int max_threads_of(Kernel& kernel);
// Copies the arguments; false where the function is unknown.
cudaError_t gather_arguments(const void* function, void** arguments, KernelWork& work);

// ---- memory (cudart_memory.cpp)

// nullptr: out of memory, or told to fail.
std::byte* allocate(std::size_t bytes, AllocationKind kind);
cudaError_t copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind);
cudaError_t check_copy(const void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind);
cudaError_t fill(void* to, int value, std::size_t bytes);

}  // namespace ptx::cudart
