// The one device: its limits follow the compute capability that the program's PTX is for.

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cudart.hpp"

namespace ptx::cudart {
namespace {

struct Row {
  int capability;
  int threads, blocks;
  std::size_t shared_kib;
};

// Per multiprocessor; a block may use one KiB less than all of it from 8.0 on.
constexpr Row kModels[] = {{75, 1024, 16, 64},   {80, 2048, 32, 164},  {86, 1536, 16, 100},
                           {87, 1536, 16, 164},  {89, 1536, 24, 100},  {90, 2048, 32, 228},
                           {100, 2048, 32, 228}, {103, 2048, 32, 228}, {120, 1536, 24, 100}};

DeviceModel make_model() {
  int capability = options().compute_capability ? options().compute_capability : highest_target();
  if (capability == 0) capability = 80;
  const Row* row = &kModels[0];
  for (const Row& candidate : kModels)
    if (candidate.capability <= capability) row = &candidate;
  DeviceModel model;
  model.major = capability / 10;
  model.minor = capability % 10;
  // Few, so that kernels that fill the device stay small.
  const char* multiprocessors = std::getenv("DECANT_PTX_MULTIPROCESSORS");
  model.multiprocessors = multiprocessors ? std::atoi(multiprocessors) : 8;
  model.threads_per_multiprocessor = row->threads;
  model.blocks_per_multiprocessor = row->blocks;
  model.shared_per_multiprocessor = row->shared_kib << 10;
  model.shared_per_block = 48 << 10;
  model.shared_per_block_opt_in = (row->shared_kib << 10) - (row->capability >= 80 ? 1024 : 0);
  model.memory = std::size_t{16} << 30;
  return model;
}

}  // namespace

const DeviceModel& device() {
  static const DeviceModel model = make_model();
  return model;
}

}  // namespace ptx::cudart

using namespace ptx::cudart;

DECANT_CUDART cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  DECANT_CUDART_READY();
  *count = 1;
  return cudaSuccess;
}

DECANT_CUDART cudaError_t cudaGetDevice(int* which) {
  DECANT_CUDART_READY();
  *which = 0;
  return cudaSuccess;
}

DECANT_CUDART cudaError_t cudaSetDevice(int which) {
  DECANT_CUDART_READY();
  return which == 0 ? cudaSuccess : fail(cudaErrorInvalidDevice);
}

DECANT_CUDART cudaError_t cudaInitDevice(int which, unsigned, unsigned) {
  return cudaSetDevice(which);
}
DECANT_CUDART cudaError_t cudaSetDeviceFlags(unsigned) {
  return ready();
}
DECANT_CUDART cudaError_t cudaGetDeviceFlags(unsigned* flags) {
  DECANT_CUDART_READY();
  *flags = 0;
  return cudaSuccess;
}
DECANT_CUDART cudaError_t cudaDeviceReset() {
  return ready();
}

DECANT_CUDART cudaError_t cudaDriverGetVersion(int* version) {
  // Without a driver the call succeeds and says 0.
  *version = ptx::options().no_driver ? 0 : CUDART_VERSION;
  return cudaSuccess;
}

DECANT_CUDART cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

DECANT_CUDART cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int which) {
  DECANT_CUDART_READY();
  if (which != 0) return fail(cudaErrorInvalidDevice);
  const DeviceModel& model = device();
  cudaDeviceProp p;
  std::memset(&p, 0, sizeof p);
  std::snprintf(p.name, sizeof p.name, "PTX interpreter (compute capability %d.%d)", model.major, model.minor);
  p.major = model.major;
  p.minor = model.minor;
  p.totalGlobalMem = model.memory;
  p.sharedMemPerBlock = model.shared_per_block;
  p.sharedMemPerBlockOptin = model.shared_per_block_opt_in;
  p.sharedMemPerMultiprocessor = model.shared_per_multiprocessor;
  p.reservedSharedMemPerBlock = model.major >= 8 ? 1024 : 0;
  p.regsPerBlock = p.regsPerMultiprocessor = 65536;
  p.warpSize = 32;
  p.memPitch = 2147483647;
  p.maxThreadsPerBlock = 1024;
  p.maxThreadsDim[0] = p.maxThreadsDim[1] = 1024;
  p.maxThreadsDim[2] = 64;
  p.maxGridSize[0] = 2147483647;
  p.maxGridSize[1] = p.maxGridSize[2] = 65535;
  p.totalConstMem = 65536;
  p.textureAlignment = 512;
  p.multiProcessorCount = model.multiprocessors;
  p.maxThreadsPerMultiProcessor = model.threads_per_multiprocessor;
  p.maxBlocksPerMultiProcessor = model.blocks_per_multiprocessor;
  p.unifiedAddressing = 1;
  p.managedMemory = 1;
  p.concurrentKernels = 1;
  p.asyncEngineCount = 1;
  p.cooperativeLaunch = 1;
  p.canMapHostMemory = 1;
  p.l2CacheSize = 32 << 20;
  p.memoryBusWidth = 4096;
  p.streamPrioritiesSupported = 1;
  p.globalL1CacheSupported = p.localL1CacheSupported = 1;
  p.memoryPoolsSupported = 1;
  *properties = p;
  return cudaSuccess;
}

DECANT_CUDART cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int which) {
  DECANT_CUDART_READY();
  if (which != 0) return fail(cudaErrorInvalidDevice);
  const DeviceModel& model = device();
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = model.major;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = model.minor;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = model.multiprocessors;
      break;
    case cudaDevAttrMaxThreadsPerBlock:
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY:
      *value = 1024;
      break;
    case cudaDevAttrMaxBlockDimZ:
      *value = 64;
      break;
    case cudaDevAttrMaxGridDimX:
      *value = 2147483647;
      break;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ:
      *value = 65535;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = static_cast<int>(model.shared_per_block);
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(model.shared_per_block_opt_in);
      break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = static_cast<int>(model.shared_per_multiprocessor);
      break;
    case cudaDevAttrReservedSharedMemoryPerBlock:
      *value = model.major >= 8 ? 1024 : 0;
      break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = model.threads_per_multiprocessor;
      break;
    case cudaDevAttrMaxBlocksPerMultiprocessor:
      *value = model.blocks_per_multiprocessor;
      break;
    case cudaDevAttrMaxRegistersPerBlock:
    case cudaDevAttrMaxRegistersPerMultiprocessor:
    case cudaDevAttrTotalConstantMemory:
      *value = 65536;
      break;
    case cudaDevAttrWarpSize:
      *value = 32;
      break;
    case cudaDevAttrMaxPitch:
      *value = 2147483647;
      break;
    case cudaDevAttrClockRate:
      *value = 1000000;
      break;
    case cudaDevAttrMemoryClockRate:
      *value = 1000000;
      break;
    case cudaDevAttrGlobalMemoryBusWidth:
      *value = 4096;
      break;
    case cudaDevAttrL2CacheSize:
      *value = 32 << 20;
      break;
    case cudaDevAttrTextureAlignment:
      *value = 512;
      break;
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrManagedMemory:
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrAsyncEngineCount:
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrStreamPrioritiesSupported:
    case cudaDevAttrGlobalL1CacheSupported:
    case cudaDevAttrLocalL1CacheSupported:
    case cudaDevAttrHostRegisterSupported:
    case cudaDevAttrCanUseHostPointerForRegisteredMem:
    case cudaDevAttrMemoryPoolsSupported:
      *value = 1;
      break;
    default:
      *value = 0;
  }
  return cudaSuccess;
}

DECANT_CUDART cudaError_t cudaDeviceGetLimit(std::size_t* value, cudaLimit limit) {
  DECANT_CUDART_READY();
  switch (limit) {
    case cudaLimitStackSize:
      *value = 16384;
      break;
    case cudaLimitPrintfFifoSize:
      *value = 1 << 20;
      break;
    case cudaLimitMallocHeapSize:
      *value = 8 << 20;
      break;
    default:
      *value = 0;
  }
  return cudaSuccess;
}

DECANT_CUDART cudaError_t cudaDeviceSetLimit(cudaLimit, std::size_t) {
  return ready();
}
DECANT_CUDART cudaError_t cudaDeviceGetCacheConfig(cudaFuncCache* config) {
  DECANT_CUDART_READY();
  *config = cudaFuncCachePreferNone;
  return cudaSuccess;
}
DECANT_CUDART cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache) {
  return ready();
}
DECANT_CUDART cudaError_t cudaCtxResetPersistingL2Cache() {
  return ready();
}
DECANT_CUDART cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  DECANT_CUDART_READY();
  *can = 0;
  return cudaSuccess;
}
DECANT_CUDART cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int) {
  DECANT_CUDART_READY();
  std::snprintf(id, static_cast<std::size_t>(length), "0000:00:00.0");
  return cudaSuccess;
}
DECANT_CUDART cudaError_t cudaProfilerStart() {
  return ready();
}
DECANT_CUDART cudaError_t cudaProfilerStop() {
  return ready();
}
DECANT_CUDART cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** pointer, unsigned, unsigned long long,
                                                           cudaDriverEntryPointQueryResult* result) {
  DECANT_CUDART_READY();
  *pointer = nullptr;
  if (result) *result = cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
