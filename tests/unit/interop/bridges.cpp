// Views of other libraries' tensors: mdspan-like and DLPack-shaped structs. No library is needed for either.
#include <array>
#include <cstdint>
#include <vector>

#include "catch_compat.hpp"
#include "decant/interop/dlpack.hpp"
#include "decant/interop/mdspan.hpp"

#if __has_include(<dlpack/dlpack.h>)
#include <dlpack/dlpack.h>
#endif

namespace {

using decant::bf16;
using decant::index_t;
using decant::View;

/// What View asks of an mdspan, and no more.
template <class T, std::size_t Rank>
struct MinimalMdspan {
  T* pointer;
  std::array<int, Rank> sizes;
  std::array<int, Rank> steps;
  T* data_handle() const { return pointer; }
  int extent(std::size_t r) const { return sizes[r]; }
  int stride(std::size_t r) const { return steps[r]; }
  static constexpr std::size_t rank() { return Rank; }
};

TEST_CASE("a view converts from an mdspan of its rank") {
  std::vector<float> memory(24);
  for (std::size_t i = 0; i < 24; ++i) memory[i] = static_cast<float>(i);
  const MinimalMdspan<float, 2> columns{memory.data(), {4, 6}, {1, 4}};  // column-major
  const View<const float, 2> v = columns;
  REQUIRE(v.extent(0) == 4);
  REQUIRE(v.extent(1) == 6);
  REQUIRE(v(3, 5) == 23.0f);
  REQUIRE(v(1, 2) == 9.0f);
  static_assert(std::is_convertible_v<MinimalMdspan<float, 3>, View<float, 3>>);
  static_assert(!std::is_convertible_v<MinimalMdspan<float, 3>, View<float, 2>>);
  static_assert(!std::is_convertible_v<MinimalMdspan<const float, 2>, View<float, 2>>);
  static_assert(!std::is_convertible_v<MinimalMdspan<double, 2>, View<float, 2>>);
#if defined(__cpp_lib_mdspan)
  const auto back = decant::to_mdspan(v);
  REQUIRE(back[1, 2] == 9.0f);
#endif
}

/// The layout of DLTensor, for machines without <dlpack/dlpack.h>.
struct Tensor {
  void* data;
  struct {
    int device_type;
    std::int32_t device_id;
  } device;
  std::int32_t ndim;
  struct {
    std::uint8_t code;
    std::uint8_t bits;
    std::uint16_t lanes;
  } dtype;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};

template <class T>
void accepts(int code, int bits) {
  std::vector<std::uint64_t> memory(64);
  std::int64_t shape[] = {2, 3};
  std::int64_t strides[] = {1, 2};
  const auto c = static_cast<std::uint8_t>(code);
  const auto b = static_cast<std::uint8_t>(bits);
  Tensor tensor{memory.data(), {1, 0}, 2, {c, b, 1}, shape, nullptr, 16};
  const auto packed = decant::from_dlpack<const T, 2>(tensor);
  REQUIRE(static_cast<const void*>(packed.data()) == memory.data() + 2);
  REQUIRE((packed.extent(0) == 2 && packed.extent(1) == 3 && packed.stride(0) == 3 && packed.stride(1) == 1));
  tensor.strides = strides;
  const auto strided = decant::from_dlpack<T, 2>(tensor);
  REQUIRE((strided.stride(0) == 1 && strided.stride(1) == 2));
}

TEST_CASE("DLPack tensors of every element type") {
  accepts<float>(2, 32);
  accepts<double>(2, 64);
  accepts<decant::fp16>(2, 16);
  accepts<bf16>(4, 16);
  accepts<decant::fp8_e4m3>(10, 8);
  accepts<decant::fp8_e5m2>(12, 8);
  accepts<std::int32_t>(0, 32);
  accepts<std::int64_t>(0, 64);
  accepts<std::uint8_t>(1, 8);
}

TEST_CASE("DLPack tensors that do not fit are refused") {
  alignas(8) unsigned char memory[64] = {};
  std::int64_t shape[] = {2, 3};
  const Tensor good{memory, {1, 0}, 2, {4, 16, 1}, shape, nullptr, 0};
  const auto convert = [](const Tensor& t) { return decant::from_dlpack<const bf16, 2>(t); };
  REQUIRE(convert(good).size() == 6);
  Tensor t = good;
  t.device.device_type = 2;
  REQUIRE_THROWS_WITH(convert(t),
                      "decant::from_dlpack: argument `device`: expected host memory (kDLCPU or "
                      "kDLCUDAHost), got 2");
  t = good;
  t.ndim = 3;
  REQUIRE_THROWS_WITH(convert(t), "decant::from_dlpack: argument `ndim`: expected 2, got 3");
  t = good;
  t.dtype.code = 2;
  REQUIRE_THROWS_WITH(convert(t),
                      "decant::from_dlpack: argument `dtype`: expected code 4, 16 bits, 1 lane(s), got "
                      "code 2, 16 bits, 1 lane(s)");
  t = good;
  t.dtype.lanes = 4;
  REQUIRE_THROWS_AS(convert(t), decant::ArgumentError);
  t = good;
  t.byte_offset = 1;
  REQUIRE_THROWS_WITH(convert(t),
                      catch_compat::contains("argument `data`: expected an address that is a multiple of 2"));
  t = good;
  t.data = nullptr;
  REQUIRE_THROWS_WITH(convert(t), catch_compat::contains("got a null pointer"));
  std::int64_t negative[] = {2, -1};
  t = good;
  t.shape = negative;
  REQUIRE_THROWS_WITH(convert(t), "decant::from_dlpack: argument `shape`: expected extents of at least 0, got -1");
}

#if __has_include(<dlpack/dlpack.h>)
TEST_CASE("the real DLTensor is accepted") {
  float memory[6] = {0, 1, 2, 3, 4, 5};
  std::int64_t shape[] = {2, 3};
  DLTensor tensor{};
  tensor.data = memory;
  tensor.device.device_type = kDLCPU;
  tensor.ndim = 2;
  tensor.dtype.code = kDLFloat;
  tensor.dtype.bits = 32;
  tensor.dtype.lanes = 1;
  tensor.shape = shape;
  REQUIRE(decant::from_dlpack<float, 2>(tensor)(1, 2) == 5.0f);
}
#endif

}  // namespace
