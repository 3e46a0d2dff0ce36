// Arithmetic on f32 and f64 to the nearest even, and the approximate functions of f32. Half precision is in
// exec_half.cpp, the directed roundings in exec_rounded.cpp.
//
// The approximate instructions are computed exactly or nearly so: their low bits differ from the hardware's.

#include "float.hpp"

namespace ptx {
namespace {

template <class T>
T tidy(T value) {
  if constexpr (std::is_same_v<T, float>) return canonical(value);
  return value;
}

template <bool kFlush, class T>
T flushed(T value) {
  if constexpr (kFlush && std::is_same_v<T, float>) return flush(value);
  return value;
}

// Wraps an operation on T: flushes inputs and result, saturates, makes NaN canonical.
template <class F, bool kFlush, bool kSaturate>
struct Wrapped {
  template <class... T>
  auto operator()(T... values) const {
    auto result = flushed<kFlush>(F{}(flushed<kFlush>(values)...));
    if constexpr (kSaturate) return saturate(result);
    return tidy(result);
  }
};

struct Add {
  template <class T>
  T operator()(T a, T b) const {
    return a + b;
  }
};
struct Sub {
  template <class T>
  T operator()(T a, T b) const {
    return a - b;
  }
};
struct Mul {
  template <class T>
  T operator()(T a, T b) const {
    return a * b;
  }
};
struct Div {
  template <class T>
  T operator()(T a, T b) const {
    return a / b;
  }
};
struct Fma {
  template <class T>
  T operator()(T a, T b, T c) const {
    return std::fma(a, b, c);
  }
};
struct Rcp {
  template <class T>
  T operator()(T a) const {
    return T{1} / a;
  }
};
struct Sqrt {
  template <class T>
  T operator()(T a) const {
    return std::sqrt(a);
  }
};
struct Rsqrt {
  template <class T>
  T operator()(T a) const {
    return static_cast<T>(1 / std::sqrt(static_cast<double>(a)));
  }
};
struct Sin {
  float operator()(float a) const { return std::sin(a); }
};
struct Cos {
  float operator()(float a) const { return std::cos(a); }
};
struct Exp2 {
  float operator()(float a) const { return std::exp2(a); }
};
struct Log2 {
  float operator()(float a) const { return std::log2(a); }
};
struct Tanh {
  float operator()(float a) const { return std::tanh(a); }
};

// min and max: a NaN loses against a number (with .NaN it wins), -0 < +0.
template <bool kNan>
struct Min {
  template <class T>
  T operator()(T a, T b) const {
    if (a != a) return kNan ? a : b;
    if (b != b) return kNan ? b : a;
    if (a == b) return std::signbit(a) ? a : b;
    return a < b ? a : b;
  }
};
template <bool kNan>
struct Max {
  template <class T>
  T operator()(T a, T b) const {
    if (a != a) return kNan ? a : b;
    if (b != b) return kNan ? b : a;
    if (a == b) return std::signbit(a) ? b : a;
    return a > b ? a : b;
  }
};
// .xorsign.abs: of the magnitudes, with the signs' exclusive or.
template <class F>
struct XorSignAbs {
  template <class T>
  T operator()(T a, T b) const {
    const T sign = std::signbit(a) != std::signbit(b) ? T{-1} : T{1};
    return std::copysign(F{}(std::fabs(a), std::fabs(b)), sign);
  }
};

template <class F, std::size_t kArity>
Execute execute_of(Type type, bool flush, bool saturate) {
  const auto make = []<class T, class G>(T, G) -> Execute {
    if constexpr (kArity == 1)
      return unary_of<T, G>;
    else if constexpr (kArity == 2)
      return binary_of<T, G>;
    else
      return ternary_of<T, G>;
  };
  if (type == Type::kF64) return make(double{}, Wrapped<F, false, false>{});
  if (flush) return saturate ? make(float{}, Wrapped<F, true, true>{}) : make(float{}, Wrapped<F, true, false>{});
  return saturate ? make(float{}, Wrapped<F, false, true>{}) : make(float{}, Wrapped<F, false, false>{});
}

// Two f32 in a 64-bit register.
template <class F>
struct Paired {
  template <class... T>
  std::uint64_t operator()(T... pairs) const {
    const auto half = [](std::uint64_t pair, int shift) {
      return std::bit_cast<float>(static_cast<std::uint32_t>(pair >> shift));
    };
    const auto low = std::bit_cast<std::uint32_t>(F{}(half(pairs, 0)...));
    const auto high = std::bit_cast<std::uint32_t>(F{}(half(pairs, 32)...));
    return low | std::uint64_t{high} << 32;
  }
};

template <class F, std::size_t kArity>
void lower_pair(Lowering& lowering, Inst& inst, const FloatModifiers& modifiers) {
  if (modifiers.saturate || modifiers.rounding != Rounding::kNearest) lowering.fail("not supported for f32x2");
  if constexpr (kArity == 2) {
    inst.execute = modifiers.flush ? binary_of<std::uint64_t, Paired<Wrapped<F, true, false>>>
                                   : binary_of<std::uint64_t, Paired<Wrapped<F, false, false>>>;
  } else {
    inst.execute = modifiers.flush ? ternary_of<std::uint64_t, Paired<Wrapped<F, true, false>>>
                                   : ternary_of<std::uint64_t, Paired<Wrapped<F, false, false>>>;
  }
  same_width_operands(lowering, inst, kArity, 8);
}

template <class F, std::size_t kArity, FloatOperation kOperation>
void lower_arithmetic(Lowering& lowering, Inst& inst) {
  const FloatModifiers modifiers = take_float_modifiers(lowering);
  const Type type = lowering.take_type();
  if (is_half(type)) return lower_half(lowering, inst, kOperation, kArity, type, modifiers);
  if (type == Type::kF32x2) {
    if constexpr (kArity >= 2) return lower_pair<F, kArity>(lowering, inst, modifiers);
  }
  if (type != Type::kF32 && type != Type::kF64) lowering.fail("the type is not supported here");
  if (type == Type::kF64 && (modifiers.flush || modifiers.saturate)) lowering.fail("not for f64");
  if (lowering.has_type()) {
    // add.f32.bf16 and its like: the first operand is converted.
    lower_mixed(lowering, inst, kOperation, kArity, modifiers);
    return;
  }
  if (modifiers.rounding == Rounding::kNearest) {
    inst.execute = execute_of<F, kArity>(type, modifiers.flush, modifiers.saturate);
  } else {
    lower_rounded(inst, kOperation, type, modifiers);
  }
  same_width_operands(lowering, inst, kArity, size_of(type));
}

// ---- functions of one value

template <class F>
void lower_approximate(Lowering& lowering, Inst& inst) {
  const bool approximate = lowering.take("approx");
  const bool flush = lowering.take("ftz");
  if (!approximate) lowering.fail(".approx is expected");
  const Type type = lowering.take_type();
  if (is_half(type)) {
    const FloatOperation operation = lowering.opcode() == "ex2" ? FloatOperation::kExp2 : FloatOperation::kTanh;
    if (lowering.opcode() != "ex2" && lowering.opcode() != "tanh") lowering.fail("not for half precision");
    FloatModifiers modifiers;
    modifiers.flush = flush;
    return lower_half(lowering, inst, operation, 1, type, modifiers);
  }
  if (type == Type::kF64) {
    if constexpr (std::is_same_v<F, Rsqrt> || std::is_same_v<F, Rcp>) {
      inst.execute = unary_of<double, Wrapped<F, false, false>>;
      return same_width_operands(lowering, inst, 1, 8);
    }
  }
  if (type != Type::kF32) lowering.fail("the type is not supported here");
  inst.execute = flush ? unary_of<float, Wrapped<F, true, false>> : unary_of<float, Wrapped<F, false, false>>;
  same_width_operands(lowering, inst, 1, 4);
}

template <class F, FloatOperation kOperation>
void lower_rcp_sqrt(Lowering& lowering, Inst& inst) {
  const auto& all = lowering.statement().modifiers;
  if (std::find(all.begin(), all.end(), "approx") != all.end()) return lower_approximate<F>(lowering, inst);
  lower_arithmetic<F, 1, kOperation>(lowering, inst);
}

void lower_div(Lowering& lowering, Inst& inst) {
  // Division is correctly rounded even where .approx or .full would allow an error.
  lowering.take_any({"approx", "full"});
  lower_arithmetic<Div, 2, FloatOperation::kDiv>(lowering, inst);
}

template <template <bool> class F, FloatOperation kOperation>
void lower_min_max(Lowering& lowering, Inst& inst) {
  FloatModifiers modifiers = take_float_modifiers(lowering);
  modifiers.nan = lowering.take("NaN");
  modifiers.xorsign = lowering.take("xorsign");
  if (modifiers.xorsign && !lowering.take("abs")) lowering.fail(".xorsign needs .abs");
  const Type type = lowering.take_type();
  if (is_half(type)) return lower_half(lowering, inst, kOperation, lowering.operand_count() - 1, type, modifiers);
  if (lowering.operand_count() != 3) lowering.fail("three operands of min and max are not supported");
  if (modifiers.xorsign) {
    if (type != Type::kF32) lowering.fail("not for this type");
    using Plain = XorSignAbs<F<false>>;
    using Nan = XorSignAbs<F<true>>;
    inst.execute = modifiers.nan ? execute_of<Nan, 2>(Type::kF32, modifiers.flush, false)
                                 : execute_of<Plain, 2>(Type::kF32, modifiers.flush, false);
    return same_width_operands(lowering, inst, 2, 4);
  }
  inst.execute = modifiers.nan ? execute_of<F<true>, 2>(type, modifiers.flush, false)
                               : execute_of<F<false>, 2>(type, modifiers.flush, false);
  same_width_operands(lowering, inst, 2, size_of(type));
}

// ---- signs and classes

template <class T, bool kFlush>
struct Negate {
  T operator()(T a) const { return -flushed<kFlush>(a); }
};
template <class T, bool kFlush>
struct Magnitude {
  T operator()(T a) const { return std::fabs(flushed<kFlush>(a)); }
};

template <template <class, bool> class F, FloatOperation kOperation>
void lower_sign(Lowering& lowering, Inst& inst) {
  FloatModifiers modifiers;
  modifiers.flush = lowering.take("ftz");
  const Type type = lowering.take_type();
  if (is_half(type)) return lower_half(lowering, inst, kOperation, 1, type, modifiers);
  if (type == Type::kF64) {
    inst.execute = unary_of<double, F<double, false>>;
  } else {
    inst.execute = modifiers.flush ? unary_of<float, F<float, true>> : unary_of<float, F<float, false>>;
  }
  same_width_operands(lowering, inst, 1, size_of(type));
}

// copysign d, a, b: the magnitude of b with the sign of a.
struct CopySign {
  template <class T>
  T operator()(T a, T b) const {
    return std::copysign(b, a);
  }
};

void lower_copysign(Lowering& lowering, Inst& inst) {
  const Type type = lowering.take_type({Type::kF32, Type::kF64});
  inst.execute = type == Type::kF32 ? binary_of<float, CopySign> : binary_of<double, CopySign>;
  same_width_operands(lowering, inst, 2, size_of(type));
}

enum Class : int { kFinite, kInfinite, kNumber, kNotANumber, kNormal, kSubnormal };

template <class T>
Flow execute_testp(Warp& warp, const Inst& inst, std::uint32_t mask) {
  const T* a = warp.lanes<T>(inst.src[0]);
  std::uint32_t result = 0;
  for_each_lane(mask, [&](int i) {
    bool is = false;
    switch (inst.option) {
      case kFinite:
        is = std::isfinite(a[i]);
        break;
      case kInfinite:
        is = std::isinf(a[i]);
        break;
      case kNumber:
        is = !std::isnan(a[i]);
        break;
      case kNotANumber:
        is = std::isnan(a[i]);
        break;
      case kNormal:
        is = std::isnormal(a[i]);
        break;
      default:
        is = std::fpclassify(a[i]) == FP_SUBNORMAL;
    }
    result |= std::uint32_t{is} << i;
  });
  set_predicate(warp, inst.dst[0], mask, result);
  return Flow::kNext;
}

void lower_testp(Lowering& lowering, Inst& inst) {
  const int what = lowering.take_any({"finite", "infinite", "number", "notanumber", "normal", "subnormal"});
  if (what < 0) lowering.fail("testp needs a class");
  inst.option = static_cast<std::uint32_t>(what);
  const Type type = lowering.take_type({Type::kF32, Type::kF64});
  lowering.expect_operands(2);
  inst.dst[0] = lowering.destination_predicate(0);
  inst.src[0] = lowering.source(1, size_of(type));
  inst.execute = type == Type::kF32 ? execute_testp<float> : execute_testp<double>;
}

}  // namespace

FloatModifiers take_float_modifiers(Lowering& lowering) {
  FloatModifiers result;
  switch (lowering.take_any({"rn", "rz", "rm", "rp"})) {
    case 1:
      result.rounding = Rounding::kZero;
      break;
    case 2:
      result.rounding = Rounding::kDown;
      break;
    case 3:
      result.rounding = Rounding::kUp;
      break;
    default:
      break;
  }
  result.flush = lowering.take("ftz");
  result.saturate = lowering.take("sat");
  result.relu = lowering.take("relu");
  return result;
}

void add_float(InstructionSet& set) {
  auto& all = set.floating;
  all["add"] = lower_arithmetic<Add, 2, FloatOperation::kAdd>;
  all["sub"] = lower_arithmetic<Sub, 2, FloatOperation::kSub>;
  all["mul"] = lower_arithmetic<Mul, 2, FloatOperation::kMul>;
  all["fma"] = lower_arithmetic<Fma, 3, FloatOperation::kFma>;
  all["mad"] = lower_arithmetic<Fma, 3, FloatOperation::kFma>;
  all["div"] = lower_div;
  all["rcp"] = lower_rcp_sqrt<Rcp, FloatOperation::kRcp>;
  all["sqrt"] = lower_rcp_sqrt<Sqrt, FloatOperation::kSqrt>;
  all["rsqrt"] = lower_approximate<Rsqrt>;
  all["sin"] = lower_approximate<Sin>;
  all["cos"] = lower_approximate<Cos>;
  all["ex2"] = lower_approximate<Exp2>;
  all["lg2"] = lower_approximate<Log2>;
  all["tanh"] = lower_approximate<Tanh>;
  all["min"] = lower_min_max<Min, FloatOperation::kMin>;
  all["max"] = lower_min_max<Max, FloatOperation::kMax>;
  all["neg"] = lower_sign<Negate, FloatOperation::kNeg>;
  all["abs"] = lower_sign<Magnitude, FloatOperation::kAbs>;
  all["copysign"] = lower_copysign;
  all["testp"] = lower_testp;
}

}  // namespace ptx
