// Allocation: device, pinned, managed, stream-ordered, pools.

#include <cstring>
#include <new>

#include "cudart.hpp"

namespace ptx::cudart {
namespace {

std::int64_t allocations = 0;

cudaMemPool_t default_pool() {
  static int pool;
  return reinterpret_cast<cudaMemPool_t>(&pool);
}

}  // namespace

std::byte* allocate(std::size_t bytes, AllocationKind kind) {
  if (++allocations == options().fail_allocation) return nullptr;
  if (bytes > device().memory || memory().bytes_in_use() + bytes > device().memory) return nullptr;
  try {
    return memory().allocate(bytes, kind);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

namespace {

// Allocations are not allowed during a capture; cudaMallocAsync is, as it becomes part of the graph.
cudaError_t allocate_now(void** address, std::size_t bytes, AllocationKind kind) {
  DECANT_CUDART_READY();
  if (!address) return fail(cudaErrorInvalidValue);
  if (const cudaError_t refused = refuse_while_capturing()) return refused;
  *address = nullptr;
  if (bytes == 0) return cudaSuccess;
  *address = allocate(bytes, kind);
  return *address ? cudaSuccess : fail(cudaErrorMemoryAllocation);
}

cudaError_t free_now(void* address) {
  DECANT_CUDART_READY();
  if (!address) return cudaSuccess;
  if (const cudaError_t refused = refuse_while_capturing()) return refused;
  return memory().release(address) ? cudaSuccess : fail(cudaErrorInvalidValue);
}

}  // namespace
}  // namespace ptx::cudart

using namespace ptx::cudart;
using ptx::AllocationKind;

DECANT_CUDART cudaError_t cudaMalloc(void** address, std::size_t bytes) {
  return allocate_now(address, bytes, AllocationKind::kDevice);
}
DECANT_CUDART cudaError_t cudaFree(void* address) {
  return free_now(address);
}
DECANT_CUDART cudaError_t cudaMallocHost(void** address, std::size_t bytes) {
  return allocate_now(address, bytes, AllocationKind::kPinnedHost);
}
DECANT_CUDART cudaError_t cudaHostAlloc(void** address, std::size_t bytes, unsigned) {
  return allocate_now(address, bytes, AllocationKind::kPinnedHost);
}
DECANT_CUDART cudaError_t cudaFreeHost(void* address) {
  return free_now(address);
}
DECANT_CUDART cudaError_t cudaMallocManaged(void** address, std::size_t bytes, unsigned) {
  return allocate_now(address, bytes, AllocationKind::kManaged);
}

DECANT_CUDART cudaError_t cudaMallocPitch(void** address, std::size_t* pitch, std::size_t width, std::size_t height) {
  *pitch = (width + 511) / 512 * 512;
  return allocate_now(address, *pitch * height, AllocationKind::kDevice);
}

DECANT_CUDART cudaError_t cudaHostRegister(void* address, std::size_t bytes, unsigned) {
  DECANT_CUDART_READY();
  if (!address || bytes == 0) return fail(cudaErrorInvalidValue);
  if (ptx::memory().find(reinterpret_cast<std::uint64_t>(address))) return fail(cudaErrorHostMemoryAlreadyRegistered);
  ptx::memory().adopt(static_cast<std::byte*>(address), bytes);
  return cudaSuccess;
}

DECANT_CUDART cudaError_t cudaHostUnregister(void* address) {
  DECANT_CUDART_READY();
  return ptx::memory().release(address) ? cudaSuccess : fail(cudaErrorHostMemoryNotRegistered);
}

DECANT_CUDART cudaError_t cudaHostGetDevicePointer(void** device_pointer, void* host, unsigned) {
  DECANT_CUDART_READY();
  if (!ptx::memory().find(reinterpret_cast<std::uint64_t>(host))) return fail(cudaErrorInvalidValue);
  *device_pointer = host;
  return cudaSuccess;
}

DECANT_CUDART cudaError_t cudaHostGetFlags(unsigned* flags, void* host) {
  DECANT_CUDART_READY();
  if (!ptx::memory().find(reinterpret_cast<std::uint64_t>(host))) return fail(cudaErrorInvalidValue);
  *flags = cudaHostAllocDefault;
  return cudaSuccess;
}

DECANT_CUDART cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total) {
  DECANT_CUDART_READY();
  *total = device().memory;
  *free_bytes = device().memory - ptx::memory().bytes_in_use();
  return cudaSuccess;
}

DECANT_CUDART cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  DECANT_CUDART_READY();
  std::memset(attributes, 0, sizeof *attributes);
  const ptx::Allocation* allocation = ptx::memory().find(reinterpret_cast<std::uint64_t>(address));
  attributes->device = allocation ? 0 : -2;
  attributes->type = cudaMemoryTypeUnregistered;
  attributes->hostPointer = const_cast<void*>(address);
  if (!allocation) return cudaSuccess;
  attributes->devicePointer = const_cast<void*>(address);
  switch (allocation->kind) {
    case AllocationKind::kDevice:
    case AllocationKind::kModule:
      attributes->type = cudaMemoryTypeDevice;
      attributes->hostPointer = nullptr;
      break;
    case AllocationKind::kManaged:
      attributes->type = cudaMemoryTypeManaged;
      break;
    default:
      attributes->type = cudaMemoryTypeHost;
  }
  return cudaSuccess;
}

// ---- stream-ordered allocation. While a stream captures, the memory belongs to the graph.

DECANT_CUDART cudaError_t cudaMallocAsync(void** address, std::size_t bytes, cudaStream_t handle) {
  DECANT_CUDART_READY();
  Stream* stream = stream_of(handle);
  if (!stream || !address) return fail(stream ? cudaErrorInvalidValue : cudaErrorInvalidResourceHandle);
  if (const cudaError_t refused = refuse_legacy_while_capturing(handle)) return refused;
  *address = nullptr;
  if (bytes == 0) return cudaSuccess;
  std::byte* memory = allocate(bytes, AllocationKind::kDevice);
  if (!memory) return fail(cudaErrorMemoryAllocation);
  *address = memory;
  if (!stream->capture) return cudaSuccess;
  if (const cudaError_t error = submit(handle, cudaGraphNodeTypeMemAlloc, [] { return cudaSuccess; })) return error;
  stream->capture->graph->nodes.back()->owned.push_back(memory);
  return cudaSuccess;
}

DECANT_CUDART cudaError_t cudaFreeAsync(void* address, cudaStream_t handle) {
  DECANT_CUDART_READY();
  Stream* stream = stream_of(handle);
  if (!stream) return fail(cudaErrorInvalidResourceHandle);
  if (!address) return cudaSuccess;
  if (const cudaError_t refused = refuse_legacy_while_capturing(handle)) return refused;
  // In a graph the memory is there again at the next launch.
  if (stream->capture) return fail(submit(handle, cudaGraphNodeTypeMemFree, [] { return cudaSuccess; }));
  return ptx::memory().release(address) ? cudaSuccess : fail(cudaErrorInvalidValue);
}

DECANT_CUDART cudaError_t cudaMallocFromPoolAsync(void** address, std::size_t bytes, cudaMemPool_t,
                                                  cudaStream_t stream) {
  return cudaMallocAsync(address, bytes, stream);
}

DECANT_CUDART cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int) {
  DECANT_CUDART_READY();
  *pool = default_pool();
  return cudaSuccess;
}
DECANT_CUDART cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int which) {
  return cudaDeviceGetDefaultMemPool(pool, which);
}
DECANT_CUDART cudaError_t cudaDeviceSetMemPool(int, cudaMemPool_t) {
  return ready();
}
DECANT_CUDART cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps*) {
  return cudaDeviceGetDefaultMemPool(pool, 0);
}
DECANT_CUDART cudaError_t cudaMemPoolDestroy(cudaMemPool_t) {
  return ready();
}
DECANT_CUDART cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) {
  return ready();
}
DECANT_CUDART cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void* value) {
  DECANT_CUDART_READY();
  std::memset(value, 0, sizeof(std::uint64_t));
  return cudaSuccess;
}
DECANT_CUDART cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, std::size_t) {
  return ready();
}
DECANT_CUDART cudaError_t cudaMemAdvise(const void*, std::size_t, cudaMemoryAdvise, cudaMemLocation) {
  return ready();
}
DECANT_CUDART cudaError_t cudaMemPrefetchAsync(const void*, std::size_t, cudaMemLocation, unsigned, cudaStream_t) {
  return ready();
}
