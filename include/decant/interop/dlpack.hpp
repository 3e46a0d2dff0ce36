// decant: tensors in the DLPack ABI (PyTorch, JAX, NumPy, TVM) as views, without copies. A template over the struct, so
// that any copy of <dlpack/dlpack.h> serves and none is needed here. Type codes as of DLPack 1.1.
#ifndef DECANT_INTEROP_DLPACK_HPP
#define DECANT_INTEROP_DLPACK_HPP

#include <cstdint>
#include <string>
#include <type_traits>

#include "../core/dtype.hpp"
#include "../core/view.hpp"

namespace decant {

namespace detail {

/// DLDataTypeCode of an element type.
template <class T>
constexpr int dlpack_code() {
  if constexpr (std::is_same_v<T, bf16>) return 4;
  else if constexpr (std::is_same_v<T, fp8_e4m3>) return 10;
  else if constexpr (std::is_same_v<T, fp8_e5m2>) return 12;
  else if constexpr (std::is_same_v<T, fp16> || std::is_floating_point_v<T>) return 2;
  else {
    static_assert(std::is_integral_v<T> && !std::is_same_v<T, bool>, "not an element type that DLPack knows");
    return std::is_signed_v<T> ? 0 : 1;
  }
}

}  // namespace detail

/// A view of a DLTensor: from_dlpack<const bf16, 4>(tensor). ArgumentError unless it lies in host memory, has that
/// element type and rank, and is aligned for T. The tensor's owner keeps the memory alive and, for a T that is not
/// const, vouches that it may be written.
template <class T, int Rank, class Tensor>
  requires requires(const Tensor& t) { t.data, t.device.device_type, t.ndim, t.dtype.code, t.shape, t.strides; }
View<T, Rank> from_dlpack(const Tensor& tensor) {
  constexpr const char* where = "from_dlpack";
  using Element = std::remove_const_t<T>;
  const int device = static_cast<int>(tensor.device.device_type);
  require(device == 1 || device == 3, where, "device", "host memory (kDLCPU or kDLCUDAHost)", device);
  require_equal(tensor.ndim, Rank, where, "ndim");
  constexpr int bits = 8 * static_cast<int>(sizeof(Element));
  const auto text = [](int type, int width, int lanes) {
    return "code " + std::to_string(type) + ", " + std::to_string(width) + " bits, " + std::to_string(lanes) +
           " lane(s)";
  };
  constexpr int code = detail::dlpack_code<Element>();
  require(tensor.dtype.code == code && tensor.dtype.bits == bits && tensor.dtype.lanes == 1, where, "dtype",
          [&] { return text(code, bits, 1); },
          [&] { return text(tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes); });
  index_t extents[Rank];
  index_t strides[Rank];
  index_t packed = 1;
  for (int r = Rank - 1; r >= 0; --r) {
    require(tensor.shape[r] >= 0, where, "shape", "extents of at least 0", tensor.shape[r]);
    extents[r] = tensor.shape[r];
    strides[r] = tensor.strides ? static_cast<index_t>(tensor.strides[r]) : packed;  // no strides: row-major
    packed *= extents[r];
  }
  const auto address = reinterpret_cast<std::uintptr_t>(tensor.data) + static_cast<std::uintptr_t>(tensor.byte_offset);
  require(address % alignof(Element) == 0, where, "data",
          [&] { return "an address that is a multiple of " + std::to_string(alignof(Element)); }, address);
  require(tensor.data != nullptr || packed == 0, where, "data", "memory", "a null pointer");
  return View<T, Rank>(reinterpret_cast<T*>(address), extents, strides);
}

}  // namespace decant

#endif
