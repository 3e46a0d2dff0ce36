// Kernel launches: configuration checks, arguments, and what a failed kernel leaves behind.

#include <algorithm>
#include <cstring>

#include "cudart.hpp"

namespace ptx::cudart {
namespace {

std::int64_t launches = 0;

// A kernel whose PTX cannot be run is a report of its own, and an error of the launch.
cudaError_t unsupported(const std::string& what) {
  report_host(what);
  return cudaErrorNotSupported;
}

int max_threads(const Program& program) {
  const Function& function = *program.kernel;
  if (function.required_threads) return static_cast<int>(function.required_threads->count());
  if (function.max_threads) return static_cast<int>(std::min<std::uint64_t>(function.max_threads->count(), 1024));
  return 1024;
}

}  // namespace

int resident_blocks(Kernel& kernel, std::uint64_t threads, std::size_t dynamic_shared) {
  const DeviceModel& model = device();
  const std::uint64_t warps = (threads + 31) / 32;
  if (warps == 0) return 0;
  const std::size_t shared = static_shared(kernel) + dynamic_shared + (model.major >= 8 ? 1024 : 0);
  const std::uint64_t by_threads = static_cast<std::uint64_t>(model.threads_per_multiprocessor) / (32 * warps);
  const std::uint64_t by_shared = shared ? model.shared_per_multiprocessor / shared : ~std::uint64_t{0};
  return static_cast<int>(
      std::min<std::uint64_t>({by_threads, by_shared, static_cast<std::uint64_t>(model.blocks_per_multiprocessor)}));
}

int max_threads_of(Kernel& kernel) {
  return max_threads(*kernel.code->module().kernel(kernel.name));
}

cudaError_t check_launch(const KernelWork& work) try {
  Kernel* kernel = find_kernel(work.function);
  if (!kernel) return cudaErrorInvalidDeviceFunction;
  if (kernel->code->empty() || kernel->code->target() == 0) return cudaErrorNoKernelImageForDevice;
  const Program* program = kernel->code->module().kernel(kernel->name);
  if (!program) return cudaErrorInvalidDeviceFunction;
  const dim3 grid = work.grid, block = work.block;
  if (!grid.x || !grid.y || !grid.z || !block.x || !block.y || !block.z) return cudaErrorInvalidConfiguration;
  const std::uint64_t threads = std::uint64_t{block.x} * block.y * block.z;
  if (threads > 1024 || block.z > 64 || grid.x > 2147483647u || grid.y > 65535 || grid.z > 65535)
    return cudaErrorInvalidConfiguration;
  if (threads > static_cast<std::uint64_t>(max_threads(*program))) return cudaErrorLaunchOutOfResources;
  const DeviceModel& model = device();
  const std::size_t opted_in =
      kernel->max_dynamic_shared >= 0 ? static_cast<std::size_t>(kernel->max_dynamic_shared) : 0;
  const std::size_t limit =
      std::max(opted_in, model.shared_per_block - std::min(program->static_shared, model.shared_per_block));
  if (work.shared > limit) return cudaErrorInvalidValue;
  if (work.cooperative) {
    const std::uint64_t blocks = std::uint64_t{grid.x} * grid.y * grid.z;
    const int per_multiprocessor = resident_blocks(*kernel, threads, work.shared);
    if (blocks > static_cast<std::uint64_t>(per_multiprocessor) * static_cast<std::uint64_t>(model.multiprocessors))
      return cudaErrorCooperativeLaunchTooLarge;
  }
  if (++launches == options().fail_launch) return cudaErrorLaunchOutOfResources;
  return cudaSuccess;
} catch (const Error& error) {
  return unsupported(error.what());
}

cudaError_t gather_arguments(const void* function, void** arguments, KernelWork& work) try {
  Kernel* kernel = find_kernel(function);
  if (!kernel) return cudaErrorInvalidDeviceFunction;
  if (kernel->code->empty() || kernel->code->target() == 0) return cudaErrorNoKernelImageForDevice;
  const Function* entry = kernel->code->module().find_entry(kernel->name);
  if (!entry) return cudaErrorInvalidDeviceFunction;
  work.function = function;
  for (std::size_t i = 0; i < entry->parameters.size(); ++i) {
    const auto* bytes = static_cast<const std::byte*>(arguments[i]);
    work.arguments.emplace_back(bytes, bytes + entry->parameters[i].bytes());
  }
  return cudaSuccess;
} catch (const Error& error) {
  return unsupported(error.what());
}

cudaError_t run_kernel(const KernelWork& work) try {
  Kernel& kernel = *find_kernel(work.function);
  LaunchConfiguration configuration;
  configuration.grid = {work.grid.x, work.grid.y, work.grid.z};
  configuration.block = {work.block.x, work.block.y, work.block.z};
  configuration.dynamic_shared = work.shared;
  configuration.cooperative = work.cooperative;
  const auto per_multiprocessor =
      static_cast<std::size_t>(resident_blocks(kernel, configuration.block.count(), work.shared));
  configuration.max_resident =
      std::max<std::size_t>(per_multiprocessor, 1) * static_cast<std::size_t>(device().multiprocessors);
  std::vector<const void*> arguments;
  for (const auto& argument : work.arguments) arguments.push_back(argument.data());
  const LaunchResult result = launch(kernel.code->module(), kernel.name, configuration, arguments.data());
  // As on a device: what the hardware would notice ends the context. Races and their like it would not notice.
  switch (static_cast<ReportKind>(result.first_failure)) {
    case ReportKind::kBounds:
      fail_for_ever(cudaErrorIllegalAddress);
      break;
    case ReportKind::kAlignment:
      fail_for_ever(cudaErrorMisalignedAddress);
      break;
    case ReportKind::kAssert:
      fail_for_ever(cudaErrorAssert);
      break;
    case ReportKind::kTrap:
    case ReportKind::kDeadlock:
      fail_for_ever(cudaErrorLaunchFailure);
      break;
    default:
      break;
  }
  return cudaSuccess;
} catch (const Error& error) {
  return unsupported(std::string("kernel ") + find_kernel(work.function)->name + ": " + error.what());
}

}  // namespace ptx::cudart

using namespace ptx::cudart;

namespace {

// What <<<>>> leaves for the stub that it calls.
struct Configuration {
  dim3 grid, block;
  std::size_t shared;
  cudaStream_t stream;
};
thread_local std::vector<Configuration> configurations;

cudaError_t launch(const void* function, dim3 grid, dim3 block, void** arguments, std::size_t shared,
                   cudaStream_t stream, bool cooperative) {
  DECANT_CUDART_READY();
  KernelWork work;
  if (const cudaError_t error = gather_arguments(function, arguments, work)) return fail(error);
  work.grid = grid;
  work.block = block;
  work.shared = shared;
  work.cooperative = cooperative;
  if (const cudaError_t error = check_launch(work)) return fail(error);
  return fail(submit_kernel(stream, std::move(work)));
}

}  // namespace

DECANT_CUDART unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared, CUstream_st* stream) {
  configurations.push_back({grid, block, shared, stream});
  return 0;
}

DECANT_CUDART cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared, void* stream) {
  if (configurations.empty()) return fail(cudaErrorMissingConfiguration);
  const Configuration top = configurations.back();
  configurations.pop_back();
  *grid = top.grid;
  *block = top.block;
  *shared = top.shared;
  *static_cast<cudaStream_t*>(stream) = top.stream;
  return cudaSuccess;
}

DECANT_CUDART cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments,
                                           std::size_t shared, cudaStream_t stream) {
  return launch(function, grid, block, arguments, shared, stream, false);
}

DECANT_CUDART cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3 grid, dim3 block, void** arguments,
                                                      std::size_t shared, cudaStream_t stream) {
  return launch(function, grid, block, arguments, shared, stream, true);
}

DECANT_CUDART cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}

DECANT_CUDART cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                                             std::size_t shared, cudaStream_t stream) {
  return launch(kernel, grid, block, arguments, shared, stream, false);
}

DECANT_CUDART cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* configuration, const void* function,
                                              void** arguments) {
  bool cooperative = false;
  for (unsigned i = 0; i < configuration->numAttrs; ++i) {
    const cudaLaunchAttribute& attribute = configuration->attrs[i];
    if (attribute.id == cudaLaunchAttributeCooperative) cooperative = attribute.val.cooperative != 0;
    if (attribute.id == cudaLaunchAttributeClusterDimension) {
      const auto& size = attribute.val.clusterDim;
      if (size.x * size.y * size.z != 1) return fail(cudaErrorNotSupported);
    }
  }
  return launch(function, configuration->gridDim, configuration->blockDim, arguments, configuration->dynamicSmemBytes,
                configuration->stream, cooperative);
}

DECANT_CUDART cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  DECANT_CUDART_READY();
  return fail(submit(stream, cudaGraphNodeTypeHost, [=] {
    function(data);
    return cudaSuccess;
  }));
}

// ---- attributes and occupancy

DECANT_CUDART cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) try {
  DECANT_CUDART_READY();
  std::memset(attributes, 0, sizeof *attributes);
  Kernel* kernel = find_kernel(function);
  if (!kernel) return fail(cudaErrorInvalidDeviceFunction);
  const int target = kernel->code->target();
  if (target == 0) return fail(cudaErrorNoKernelImageForDevice);
  const ptx::Program* program = kernel->code->module().kernel(kernel->name);
  if (!program) return fail(cudaErrorInvalidDeviceFunction);
  attributes->sharedSizeBytes = program->static_shared;
  attributes->localSizeBytes = program->local;
  attributes->maxThreadsPerBlock = max_threads_of(*kernel);
  attributes->numRegs = 32;
  attributes->ptxVersion = target;
  attributes->binaryVersion = device().major * 10 + device().minor;
  const std::size_t rest = device().shared_per_block - std::min(program->static_shared, device().shared_per_block);
  attributes->maxDynamicSharedSizeBytes =
      kernel->max_dynamic_shared >= 0 ? kernel->max_dynamic_shared : static_cast<int>(rest);
  attributes->preferredShmemCarveout = kernel->carveout;
  return cudaSuccess;
} catch (const ptx::Error& error) {
  ptx::report_host(error.what());
  return fail(cudaErrorNotSupported);
}

DECANT_CUDART cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) try {
  DECANT_CUDART_READY();
  Kernel* kernel = find_kernel(function);
  if (!kernel) return fail(cudaErrorInvalidDeviceFunction);
  switch (attribute) {
    case cudaFuncAttributeMaxDynamicSharedMemorySize:
      if (value < 0 || static_cast<std::size_t>(value) + static_shared(*kernel) > device().shared_per_block_opt_in)
        return fail(cudaErrorInvalidValue);
      kernel->max_dynamic_shared = value;
      return cudaSuccess;
    case cudaFuncAttributePreferredSharedMemoryCarveout:
      if (value < -1 || value > 100) return fail(cudaErrorInvalidValue);
      kernel->carveout = value;
      return cudaSuccess;
    default:
      return fail(cudaErrorInvalidValue);
  }
} catch (const ptx::Error& error) {
  ptx::report_host(error.what());
  return fail(cudaErrorNotSupported);
}

DECANT_CUDART cudaError_t cudaFuncSetCacheConfig(const void* function, cudaFuncCache) {
  DECANT_CUDART_READY();
  return find_kernel(function) ? cudaSuccess : fail(cudaErrorInvalidDeviceFunction);
}

DECANT_CUDART cudaError_t cudaFuncGetName(const char** name, const void* function) {
  DECANT_CUDART_READY();
  Kernel* kernel = find_kernel(function);
  if (!kernel) return fail(cudaErrorInvalidDeviceFunction);
  *name = kernel->name.c_str();
  return cudaSuccess;
}

DECANT_CUDART cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* function,
                                                                                 int threads, std::size_t shared,
                                                                                 unsigned) try {
  DECANT_CUDART_READY();
  Kernel* kernel = find_kernel(function);
  if (!kernel) return fail(cudaErrorInvalidDeviceFunction);
  if (threads <= 0) return fail(cudaErrorInvalidValue);
  *blocks =
      threads > max_threads_of(*kernel) ? 0 : resident_blocks(*kernel, static_cast<std::uint64_t>(threads), shared);
  return cudaSuccess;
} catch (const ptx::Error& error) {
  ptx::report_host(error.what());
  return fail(cudaErrorNotSupported);
}

DECANT_CUDART cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function, int threads,
                                                                        std::size_t shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared, 0);
}

DECANT_CUDART cudaError_t cudaOccupancyAvailableDynamicSMemPerBlock(std::size_t* bytes, const void* function,
                                                                    int blocks, int) try {
  DECANT_CUDART_READY();
  Kernel* kernel = find_kernel(function);
  if (!kernel) return fail(cudaErrorInvalidDeviceFunction);
  if (blocks <= 0) return fail(cudaErrorInvalidValue);
  const std::size_t share = device().shared_per_multiprocessor / static_cast<std::size_t>(blocks);
  const std::size_t taken = static_shared(*kernel) + 1024;
  *bytes = std::min(share > taken ? share - taken : 0, device().shared_per_block_opt_in);
  return cudaSuccess;
} catch (const ptx::Error& error) {
  ptx::report_host(error.what());
  return fail(cudaErrorNotSupported);
}
