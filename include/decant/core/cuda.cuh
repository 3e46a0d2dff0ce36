// decant: Cuda, the context that says "on this stream". It holds the device workspace, the device's limits, and a word
// in device memory in which kernels record what they find wrong. Calls enqueue and return: they never synchronise,
// never allocate outside the workspace, and are legal under stream capture once the workspace is large enough.
// What the host can see is checked at once, with ArgumentError. What only the device can see (lengths, page tables,
// scores) is checked there: the call then writes nothing, and check() raises the error, as cudaGetLastError would.
#ifndef DECANT_CORE_CUDA_CUH
#define DECANT_CORE_CUDA_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <type_traits>

#include "detail/fault.cuh"
#include "error.hpp"
#include "workspace.hpp"

namespace decant {

/// A call of the CUDA runtime failed.
class CudaError : public Error {
 public:
  CudaError(const std::string& what, cudaError_t code) : Error(what), code_(code) {}
  cudaError_t code() const { return code_; }

 private:
  cudaError_t code_;
};

namespace detail {

[[noreturn]] DECANT_NOINLINE inline void fail_cuda(cudaError_t code, const char* where, const char* call) {
  DECANT_THROW(CudaError(std::string("decant::") + where + ": " + call + ": " + cudaGetErrorString(code) + " (" +
                             cudaGetErrorName(code) + ")",
                         code));
}

/// Raises CudaError unless the runtime call `call`, made by the decant function `where`, succeeded. The runtime's own
/// record of it is cleared, so that the next call does not report it again.
inline void require_cuda(cudaError_t code, const char* where, const char* call) {
  if (code == cudaSuccess) return;
  (void)cudaGetLastError();
  fail_cuda(code, where, call);
}

}  // namespace detail

/// What kernels are tuned by.
struct CudaDevice {
  int id = 0;
  int compute_capability = 0;         // 80, 90, 100
  int multiprocessors = 1;
  index_t shared_bytes = 48 * 1024;   // the most that one block may have, when it asks for it
};

/// One Cuda per stream; not thread-safe; the stream must outlive it. Functions that take one expect device pointers in
/// views, and host values in everything else.
class Cuda {
 public:
  /// Scratch through cudaMallocAsync on this stream, growing at first use.
  explicit Cuda(cudaStream_t stream) : Cuda(stream, nullptr, 0) {}

  /// Scratch in the caller's device memory, never more; null: as above. CudaError when there is no device.
  Cuda(cudaStream_t stream, void* memory, std::size_t bytes)
      : stream_(stream), own_(Allocator{allocate, deallocate, this}), fixed_(memory, bytes), is_fixed_(memory) {
    constexpr const char* where = "Cuda";
    detail::require_cuda(cudaGetDevice(&device_.id), where, "cudaGetDevice");
    const auto attribute = [&](cudaDeviceAttr which) {
      int value = 0;
      detail::require_cuda(cudaDeviceGetAttribute(&value, which, device_.id), where, "cudaDeviceGetAttribute");
      return value;
    };
    device_.compute_capability = 10 * attribute(cudaDevAttrComputeCapabilityMajor) +
                                 attribute(cudaDevAttrComputeCapabilityMinor);
    device_.multiprocessors = attribute(cudaDevAttrMultiProcessorCount);
    device_.shared_bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    void* fault = nullptr;
    detail::require_cuda(cudaMallocAsync(&fault, sizeof(FaultWord), stream_), where, "cudaMallocAsync");
    fault_ = static_cast<FaultWord*>(fault);
    const cudaError_t cleared = cudaMemsetAsync(fault_, 0xff, sizeof(FaultWord), stream_);
    if (cleared != cudaSuccess) {
      (void)cudaFreeAsync(fault_, stream_);
      detail::require_cuda(cleared, where, "cudaMemsetAsync");
    }
  }

  Cuda(const Cuda&) = delete;
  Cuda& operator=(const Cuda&) = delete;
  ~Cuda() { (void)cudaFreeAsync(fault_, stream_); }

  cudaStream_t stream() const { return stream_; }
  const CudaDevice& device() const { return device_; }
  Workspace& workspace() { return is_fixed_ ? fixed_ : own_; }
  /// Scratch on the host: a few views per layer. Grows at first use, through operator new.
  Workspace& host_workspace() { return host_; }

  /// Where the kernels of a call record what they find wrong (detail/fault.cuh).
  FaultWord* fault() const { return fault_; }

  /// Waits for the stream, and raises ArgumentError for what kernels found wrong since the last check(), FormatError
  /// where that is a codec's payload, CudaError for what the runtime did. Of several findings the same one is always
  /// told. After a fault, calls enqueued before check() have written nothing.
  void check() {
    constexpr const char* where = "Cuda::check";
    FaultWord word = no_fault;
    detail::require_cuda(cudaMemcpyAsync(&word, fault_, sizeof word, cudaMemcpyDeviceToHost, stream_), where,
                         "cudaMemcpyAsync");
    detail::require_cuda(cudaStreamSynchronize(stream_), where, "cudaStreamSynchronize");
    if (word == no_fault) return;
    detail::require_cuda(cudaMemsetAsync(fault_, 0xff, sizeof word, stream_), where, "cudaMemsetAsync");
    detail::raise_fault(word);
  }

 private:
  /// Null while the stream is being captured: reserve() before, or make the call once.
  static void* allocate(void* state, std::size_t bytes) {
    const auto& self = *static_cast<const Cuda*>(state);
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(self.stream_, &status) != cudaSuccess || status != cudaStreamCaptureStatusNone) {
      return nullptr;
    }
    void* memory = nullptr;
    if (cudaMallocAsync(&memory, bytes, self.stream_) == cudaSuccess) return memory;
    (void)cudaGetLastError();
    return nullptr;
  }
  static void deallocate(void* state, void* memory, std::size_t) {
    (void)cudaFreeAsync(memory, static_cast<const Cuda*>(state)->stream_);
  }

  cudaStream_t stream_;
  CudaDevice device_;
  Workspace own_;
  Workspace fixed_;
  bool is_fixed_;
  Workspace host_;
  FaultWord* fault_ = nullptr;
};

/// The shape of one launch.
struct CudaGrid {
  dim3 blocks;
  dim3 threads;
  std::size_t shared = 0;  // dynamic shared memory, bytes
};

/// Enqueues a kernel on the context's stream; nothing for an empty grid. `where` names the decant function in errors.
template <class... Parameters>
void launch(const Cuda& cuda, const char* where, void (*kernel)(Parameters...), const CudaGrid& grid,
            const std::type_identity_t<Parameters>&... arguments) {
  if (grid.blocks.x == 0 || grid.blocks.y == 0 || grid.blocks.z == 0) return;
  const auto* const function = reinterpret_cast<const void*>(kernel);
  if (grid.shared > 48 * 1024) {
    detail::require_cuda(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                              static_cast<int>(grid.shared)),
                         where, "cudaFuncSetAttribute");
  }
  void* pointers[] = {const_cast<void*>(static_cast<const void*>(&arguments))..., nullptr};
  detail::require_cuda(cudaLaunchKernel(function, grid.blocks, grid.threads, pointers, grid.shared, cuda.stream()),
                       where, "cudaLaunchKernel");
  detail::require_cuda(cudaPeekAtLastError(), where, "a launch");
}

/// How many blocks of `per_block` items cover n, at most `most`: kernels step through the rest.
inline unsigned cuda_blocks(index_t n, index_t per_block, index_t most = 0x7fffffff) {
  const index_t blocks = (n + per_block - 1) / per_block;
  return static_cast<unsigned>(blocks < most ? blocks : most);
}

}  // namespace decant

#endif
