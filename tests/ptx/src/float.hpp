#pragma once
// What the floating-point groups share.

#include <algorithm>
#include <cmath>

#include "alu.hpp"
#include "numbers.hpp"

namespace ptx {

enum class FloatOperation : std::uint8_t {
  kAdd,
  kSub,
  kMul,
  kFma,
  kDiv,
  kRcp,
  kSqrt,
  kMin,
  kMax,
  kNeg,
  kAbs,
  kExp2,
  kTanh,
};

struct FloatModifiers {
  Rounding rounding = Rounding::kNearest;
  bool flush = false, saturate = false, relu = false, nan = false, xorsign = false;
};

FloatModifiers take_float_modifiers(Lowering& lowering);

inline bool is_half(Type type) {
  return type == Type::kF16 || type == Type::kBF16 || type == Type::kF16x2 || type == Type::kBF16x2;
}

void lower_half(Lowering& lowering, Inst& inst, FloatOperation operation, std::size_t arity, Type type,
                const FloatModifiers& modifiers);
// f32 or f64 under a directed rounding: chooses inst.execute.
void lower_rounded(Inst& inst, FloatOperation operation, Type type, const FloatModifiers& modifiers);
// add, sub and fma of f32 with operands of half precision.
void lower_mixed(Lowering& lowering, Inst& inst, FloatOperation operation, std::size_t arity,
                 const FloatModifiers& modifiers);

}  // namespace ptx
