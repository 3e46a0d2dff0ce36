#pragma once
// Instructions that compute a lane's result from its operands: loops over lanes, and the choice of their types.

#include <concepts>
#include <type_traits>

#include "lower.hpp"
#include "machine.hpp"

namespace ptx {

template <class D, class A, class F>
Flow unary(Warp& warp, const Inst& inst, std::uint32_t mask) {
  D* d = warp.lanes<D>(inst.dst[0]);
  const A* a = warp.lanes<A>(inst.src[0]);
  for_lanes(mask, [=](int i) { d[i] = F{}(a[i]); });
  return Flow::kNext;
}

template <class D, class A, class B, class F>
Flow binary(Warp& warp, const Inst& inst, std::uint32_t mask) {
  D* d = warp.lanes<D>(inst.dst[0]);
  const A* a = warp.lanes<A>(inst.src[0]);
  const B* b = warp.lanes<B>(inst.src[1]);
  for_lanes(mask, [=](int i) { d[i] = F{}(a[i], b[i]); });
  return Flow::kNext;
}

template <class D, class A, class B, class C, class F>
Flow ternary(Warp& warp, const Inst& inst, std::uint32_t mask) {
  D* d = warp.lanes<D>(inst.dst[0]);
  const A* a = warp.lanes<A>(inst.src[0]);
  const B* b = warp.lanes<B>(inst.src[1]);
  const C* c = warp.lanes<C>(inst.src[2]);
  for_lanes(mask, [=](int i) { d[i] = F{}(a[i], b[i], c[i]); });
  return Flow::kNext;
}

template <class T, class F>
constexpr Execute unary_of = unary<T, T, F>;
template <class T, class F>
constexpr Execute binary_of = binary<T, T, T, F>;
template <class T, class F>
constexpr Execute ternary_of = ternary<T, T, T, T, F>;

// Calls f with a value of the C++ type that a PTX integer type (bits count as unsigned) has.
template <class F>
Execute with_integer_type(Lowering& lowering, Type type, F&& f) {
  switch (type) {
    case Type::kB16:
    case Type::kU16:
      return f(std::uint16_t{});
    case Type::kS16:
      return f(std::int16_t{});
    case Type::kB32:
    case Type::kU32:
      return f(std::uint32_t{});
    case Type::kS32:
      return f(std::int32_t{});
    case Type::kB64:
    case Type::kU64:
      return f(std::uint64_t{});
    case Type::kS64:
      return f(std::int64_t{});
    default:
      lowering.fail(std::string("type .") + type_name(type) + " is not supported here");
  }
}

// Bitwise logic.
struct And {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a & b);
  }
};
struct Or {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a | b);
  }
};
struct Xor {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a ^ b);
  }
};

// Registers of one width for one destination and `sources` operands after it.
inline void same_width_operands(Lowering& lowering, Inst& inst, std::size_t sources, std::size_t bytes) {
  lowering.expect_operands(sources + 1);
  inst.dst[0] = lowering.destination(0, bytes);
  for (std::size_t i = 0; i < sources; ++i) inst.src[i] = lowering.source(i + 1, bytes);
}

}  // namespace ptx
