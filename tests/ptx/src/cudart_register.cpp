// What nvcc's host code registers before main: fat binaries, kernels, variables. And the end of the process, where
// counters and a summary are written.

#include <cstdio>
#include <cstdlib>

#include "cudart.hpp"

namespace ptx::cudart {
namespace {

template <class T>
T& immortal() {
  static T* const instance = new T;
  return *instance;
}

auto& binaries() {
  return immortal<std::vector<std::unique_ptr<FatBinary>>>();
}
auto& kernels() {
  return immortal<std::map<const void*, Kernel>>();
}
auto& variables() {
  return immortal<std::map<const void*, DeviceVariable>>();
}

int target_of(const std::string& text) {
  const std::size_t at = text.find(".target sm_");
  return at == std::string::npos ? 0 : std::atoi(text.c_str() + at + 11);
}

struct AtExit {
  ~AtExit() {
    const Options& how = options();
    if (!how.counters_file.empty()) write_counters(how.counters_file);
    if (!all_reports().empty()) std::fprintf(stderr, "[ptx] %zu reports\n", all_reports().size());
  }
} at_exit;

}  // namespace

// The highest target that the device can run.
std::size_t FatBinary::chosen() const {
  const int limit = options().compute_capability;
  std::size_t best = texts_.size();
  for (std::size_t i = 0; i < texts_.size(); ++i) {
    const int target = target_of(texts_[i]);
    if (limit != 0 && target > limit) continue;
    if (best == texts_.size() || target > target_of(texts_[best])) best = i;
  }
  return best;
}

Module& FatBinary::module() {
  if (module_) return *module_;
  const std::size_t i = chosen();
  if (i == texts_.size())
    throw Error("no PTX in the program that the device can run (build with PTX and -no-compress)");
  module_ = std::make_unique<Module>(texts_[i]);
  return *module_;
}

int FatBinary::target() const {
  const std::size_t i = chosen();
  return i == texts_.size() ? 0 : target_of(texts_[i]);
}

Kernel* find_kernel(const void* function) {
  const auto found = kernels().find(function);
  return found == kernels().end() ? nullptr : &found->second;
}

DeviceVariable* find_variable(const void* symbol) {
  const auto found = variables().find(symbol);
  return found == variables().end() ? nullptr : &found->second;
}

int highest_target() {
  int highest = 0;
  for (const auto& binary : binaries()) highest = std::max(highest, binary->target());
  return highest;
}

std::size_t static_shared(Kernel& kernel) {
  return kernel.code->module().kernel(kernel.name)->static_shared;
}

}  // namespace ptx::cudart

using namespace ptx::cudart;

DECANT_CUDART void** __cudaRegisterFatBinary(void* fatbin) {
  std::vector<std::string> texts;
  try {
    texts = ptx::ptx_of_fatbin(fatbin);
  } catch (const ptx::Error& error) {
    ptx::report_host(error.what());
  }
  binaries().push_back(std::make_unique<FatBinary>(std::move(texts)));
  return reinterpret_cast<void**>(binaries().back().get());
}

DECANT_CUDART void __cudaRegisterFatBinaryEnd(void**) {}
DECANT_CUDART void __cudaUnregisterFatBinary(void**) {}
DECANT_CUDART char __cudaInitModule(void**) {
  return 1;
}

DECANT_CUDART void __cudaRegisterFunction(void** handle, const char* host, char*, const char* name, int, uint3*, uint3*,
                                          dim3*, dim3*, int*) {
  kernels()[host] = Kernel{name, reinterpret_cast<FatBinary*>(handle), -1, -1};
}

DECANT_CUDART void __cudaRegisterVar(void** handle, char* host, char*, const char* name, int, std::size_t, int, int) {
  variables()[host] = DeviceVariable{name, reinterpret_cast<FatBinary*>(handle), nullptr};
}

DECANT_CUDART void __cudaRegisterManagedVar(void** handle, void** host, char*, const char* name, int, std::size_t, int,
                                            int) {
  auto* code = reinterpret_cast<FatBinary*>(handle);
  variables()[host] = DeviceVariable{name, code, host};
  try {
    if (const auto global = code->module().global(name)) *host = global->address;
  } catch (const ptx::Error& error) {
    ptx::report_host(error.what());
  }
}

// For tests: how many reports there have been.
DECANT_CUDART std::size_t decant_ptx_reports() {
  return ptx::all_reports().size();
}
