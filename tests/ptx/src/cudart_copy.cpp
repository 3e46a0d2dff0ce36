// Copies, fills, and the program's device variables.

#include <cstring>

#include "cudart.hpp"

namespace ptx::cudart {
namespace {

bool on_device(const void* address) {
  const Allocation* allocation = memory().find(reinterpret_cast<std::uint64_t>(address));
  return allocation && (allocation->kind == AllocationKind::kDevice || allocation->kind == AllocationKind::kModule);
}

// A range that begins in device memory must lie within one allocation.
bool valid_range(const void* address, std::size_t bytes, bool must_be_device) {
  if (memory().find(reinterpret_cast<std::uint64_t>(address))) return memory().contains(address, bytes);
  return !must_be_device;
}

}  // namespace

cudaError_t check_copy(const void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  if (bytes == 0) return cudaSuccess;
  if (!to || !from) return cudaErrorInvalidValue;
  bool to_device = false, from_device = false;
  switch (kind) {
    case cudaMemcpyHostToHost:
      break;
    case cudaMemcpyHostToDevice:
      to_device = true;
      break;
    case cudaMemcpyDeviceToHost:
      from_device = true;
      break;
    case cudaMemcpyDeviceToDevice:
      to_device = from_device = true;
      break;
    case cudaMemcpyDefault:
      break;
    default:
      return cudaErrorInvalidMemcpyDirection;
  }
  if (kind != cudaMemcpyDefault) {
    // The wrong way round is an error of the program that the real runtime notices too.
    if ((!to_device && on_device(to)) || (!from_device && on_device(from))) return cudaErrorInvalidValue;
  }
  if (!valid_range(to, bytes, to_device) || !valid_range(from, bytes, from_device)) return cudaErrorInvalidValue;
  return cudaSuccess;
}

cudaError_t copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  if (const cudaError_t error = check_copy(to, from, bytes, kind)) return error;
  if (bytes == 0) return cudaSuccess;
  std::memmove(to, from, bytes);
  if (on_device(from)) {
    memory().copy_initialised(to, from, bytes);
  } else {
    memory().mark_initialised(to, bytes);
  }
  return cudaSuccess;
}

cudaError_t fill(void* to, int value, std::size_t bytes) {
  if (bytes == 0) return cudaSuccess;
  if (!memory().contains(to, bytes)) return cudaErrorInvalidValue;
  std::memset(to, value, bytes);
  memory().mark_initialised(to, bytes);
  return cudaSuccess;
}

namespace {

cudaError_t copy_rows(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t width,
                      std::size_t height, cudaMemcpyKind kind) {
  if (width > to_pitch || width > from_pitch) return cudaErrorInvalidPitchValue;
  for (std::size_t row = 0; row < height; ++row) {
    auto* to_row = static_cast<std::byte*>(to) + row * to_pitch;
    const auto* from_row = static_cast<const std::byte*>(from) + row * from_pitch;
    if (const cudaError_t error = copy(to_row, from_row, width, kind)) return error;
  }
  return cudaSuccess;
}

// The address of a device variable.
cudaError_t find_symbol(const void* symbol, Module::Global& global) try {
  const DeviceVariable* variable = find_variable(symbol);
  if (!variable) return cudaErrorInvalidSymbol;
  const auto found = variable->code->module().global(variable->name);
  if (!found) return cudaErrorInvalidSymbol;
  global = *found;
  return cudaSuccess;
} catch (const Error& error) {
  report_host(error.what());
  return cudaErrorNotSupported;
}

}  // namespace
}  // namespace ptx::cudart

using namespace ptx::cudart;

DECANT_CUDART cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  DECANT_CUDART_READY();
  if (const cudaError_t refused = refuse_while_capturing()) return refused;
  return fail(copy(to, from, bytes, kind));
}

DECANT_CUDART cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                                          cudaStream_t stream) {
  DECANT_CUDART_READY();
  if (const cudaError_t error = check_copy(to, from, bytes, kind)) return fail(error);
  return fail(submit(stream, cudaGraphNodeTypeMemcpy, [=] { return copy(to, from, bytes, kind); }));
}

DECANT_CUDART cudaError_t cudaMemcpyPeer(void* to, int, const void* from, int, std::size_t bytes) {
  return cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToDevice);
}

DECANT_CUDART cudaError_t cudaMemcpy2D(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                                       std::size_t width, std::size_t height, cudaMemcpyKind kind) {
  DECANT_CUDART_READY();
  if (const cudaError_t refused = refuse_while_capturing()) return refused;
  return fail(copy_rows(to, to_pitch, from, from_pitch, width, height, kind));
}

DECANT_CUDART cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                                            std::size_t width, std::size_t height, cudaMemcpyKind kind,
                                            cudaStream_t stream) {
  DECANT_CUDART_READY();
  return fail(submit(stream, cudaGraphNodeTypeMemcpy,
                     [=] { return copy_rows(to, to_pitch, from, from_pitch, width, height, kind); }));
}

DECANT_CUDART cudaError_t cudaMemset(void* to, int value, std::size_t bytes) {
  DECANT_CUDART_READY();
  if (const cudaError_t refused = refuse_legacy_while_capturing(nullptr)) return refused;
  return fail(fill(to, value, bytes));
}

DECANT_CUDART cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  DECANT_CUDART_READY();
  if (bytes && !ptx::memory().contains(to, bytes)) return fail(cudaErrorInvalidValue);
  return fail(submit(stream, cudaGraphNodeTypeMemset, [=] { return fill(to, value, bytes); }));
}

DECANT_CUDART cudaError_t cudaMemset2DAsync(void* to, std::size_t pitch, int value, std::size_t width,
                                            std::size_t height, cudaStream_t stream) {
  DECANT_CUDART_READY();
  return fail(submit(stream, cudaGraphNodeTypeMemset, [=] {
    for (std::size_t row = 0; row < height; ++row)
      if (const cudaError_t error = fill(static_cast<std::byte*>(to) + row * pitch, value, width)) return error;
    return cudaSuccess;
  }));
}

DECANT_CUDART cudaError_t cudaMemset2D(void* to, std::size_t pitch, int value, std::size_t width, std::size_t height) {
  return cudaMemset2DAsync(to, pitch, value, width, height, nullptr);
}

// ---- device variables

DECANT_CUDART cudaError_t cudaGetSymbolAddress(void** address, const void* symbol) {
  DECANT_CUDART_READY();
  ptx::Module::Global global;
  if (const cudaError_t error = find_symbol(symbol, global)) return fail(error);
  *address = global.address;
  return cudaSuccess;
}

DECANT_CUDART cudaError_t cudaGetSymbolSize(std::size_t* bytes, const void* symbol) {
  DECANT_CUDART_READY();
  ptx::Module::Global global;
  if (const cudaError_t error = find_symbol(symbol, global)) return fail(error);
  *bytes = global.bytes;
  return cudaSuccess;
}

DECANT_CUDART cudaError_t cudaMemcpyToSymbolAsync(const void* symbol, const void* from, std::size_t bytes,
                                                  std::size_t offset, cudaMemcpyKind kind, cudaStream_t stream) {
  DECANT_CUDART_READY();
  ptx::Module::Global global;
  if (const cudaError_t error = find_symbol(symbol, global)) return fail(error);
  if (offset + bytes > global.bytes) return fail(cudaErrorInvalidValue);
  std::byte* to = global.address + offset;
  return fail(submit(stream, cudaGraphNodeTypeMemcpy, [=] { return copy(to, from, bytes, kind); }));
}

DECANT_CUDART cudaError_t cudaMemcpyFromSymbolAsync(void* to, const void* symbol, std::size_t bytes, std::size_t offset,
                                                    cudaMemcpyKind kind, cudaStream_t stream) {
  DECANT_CUDART_READY();
  ptx::Module::Global global;
  if (const cudaError_t error = find_symbol(symbol, global)) return fail(error);
  if (offset + bytes > global.bytes) return fail(cudaErrorInvalidValue);
  const std::byte* from = global.address + offset;
  return fail(submit(stream, cudaGraphNodeTypeMemcpy, [=] { return copy(to, from, bytes, kind); }));
}

DECANT_CUDART cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* from, std::size_t bytes,
                                             std::size_t offset, cudaMemcpyKind kind) {
  if (const cudaError_t refused = refuse_while_capturing()) return refused;
  return cudaMemcpyToSymbolAsync(symbol, from, bytes, offset, kind, nullptr);
}

DECANT_CUDART cudaError_t cudaMemcpyFromSymbol(void* to, const void* symbol, std::size_t bytes, std::size_t offset,
                                               cudaMemcpyKind kind) {
  if (const cudaError_t refused = refuse_while_capturing()) return refused;
  return cudaMemcpyFromSymbolAsync(to, symbol, bytes, offset, kind, nullptr);
}
