// Arithmetic under the roundings .rz, .rm and .rp, done by the host's own unit in that mode. This file is compiled with
// -frounding-math.

#include <cfenv>

#include "float.hpp"

namespace ptx {
namespace {

constexpr std::uint32_t kFlush = 1u << 8, kSaturate = 1u << 9;

class InRounding {
 public:
  explicit InRounding(int mode) { std::fesetround(mode); }
  ~InRounding() { std::fesetround(FE_TONEAREST); }
  InRounding(const InRounding&) = delete;
  InRounding& operator=(const InRounding&) = delete;
};

template <class T>
T compute(FloatOperation operation, T a, T b, T c) {
  switch (operation) {
    case FloatOperation::kAdd:
      return a + b;
    case FloatOperation::kSub:
      return a - b;
    case FloatOperation::kMul:
      return a * b;
    case FloatOperation::kFma:
      return std::fma(a, b, c);
    case FloatOperation::kDiv:
      return a / b;
    case FloatOperation::kRcp:
      return T{1} / a;
    case FloatOperation::kSqrt:
      return std::sqrt(a);
    default:
      throw Error("an operation without directed rounding");
  }
}

template <class T>
Flow execute(Warp& warp, const Inst& inst, std::uint32_t mask) {
  const auto operation = static_cast<FloatOperation>(inst.option & 255);
  const auto input = [&](std::size_t k, int lane) {
    const T value = inst.src[k] == kNoReg ? T{} : warp.lanes<T>(inst.src[k])[lane];
    if constexpr (std::is_same_v<T, float>)
      if (inst.option & kFlush) return flush(value);
    return value;
  };
  T* d = warp.lanes<T>(inst.dst[0]);
  const InRounding mode(static_cast<int>(inst.imm));
  for_each_lane(mask, [&](int i) {
    T result = compute(operation, input(0, i), input(1, i), input(2, i));
    if constexpr (std::is_same_v<T, float>) {
      if (inst.option & kFlush) result = flush(result);
      result = canonical(result);
      if (inst.option & kSaturate) result = saturate(result);
    }
    d[i] = result;
  });
  return Flow::kNext;
}

}  // namespace

void lower_rounded(Inst& inst, FloatOperation operation, Type type, const FloatModifiers& modifiers) {
  inst.option =
      static_cast<std::uint32_t>(operation) | (modifiers.flush ? kFlush : 0) | (modifiers.saturate ? kSaturate : 0);
  inst.imm = modifiers.rounding == Rounding::kZero   ? FE_TOWARDZERO
             : modifiers.rounding == Rounding::kDown ? FE_DOWNWARD
                                                     : FE_UPWARD;
  inst.execute = type == Type::kF64 ? execute<double> : execute<float>;
}

}  // namespace ptx
