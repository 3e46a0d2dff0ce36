// Integer arithmetic. Division by zero gives all ones and a remainder by zero the dividend, as the hardware does.

#include <algorithm>
#include <limits>

#include "alu.hpp"

namespace ptx {
namespace {

template <class T>
using Unsigned = std::make_unsigned_t<T>;

// The type of twice the width.
template <class T>
struct Wider;
template <>
struct Wider<std::int16_t> {
  using type = std::int32_t;
};
template <>
struct Wider<std::uint16_t> {
  using type = std::uint32_t;
};
template <>
struct Wider<std::int32_t> {
  using type = std::int64_t;
};
template <>
struct Wider<std::uint32_t> {
  using type = std::uint64_t;
};
__extension__ using Int128 = __int128;
__extension__ using UInt128 = unsigned __int128;
template <>
struct Wider<std::int64_t> {
  using type = Int128;
};
template <>
struct Wider<std::uint64_t> {
  using type = UInt128;
};
template <class T>
using WiderOf = typename Wider<T>::type;

// Arithmetic wraps, so it is done without sign (and without C++'s promotion of 16-bit types to int).
template <class T>
T wrap_add(T a, T b) {
  return static_cast<T>(static_cast<Unsigned<T>>(a) + static_cast<Unsigned<T>>(b));
}
template <class T>
T wrap_sub(T a, T b) {
  return static_cast<T>(static_cast<Unsigned<T>>(a) - static_cast<Unsigned<T>>(b));
}
template <class T>
T wrap_mul(T a, T b) {
  return static_cast<T>(std::uint64_t{static_cast<Unsigned<T>>(a)} * std::uint64_t{static_cast<Unsigned<T>>(b)});
}
template <>
std::int32_t wrap_mul(std::int32_t a, std::int32_t b) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(a) * static_cast<std::uint32_t>(b));
}
template <>
std::uint32_t wrap_mul(std::uint32_t a, std::uint32_t b) {
  return a * b;
}
template <class T>
T high_mul(T a, T b) {
  return static_cast<T>((static_cast<WiderOf<T>>(a) * static_cast<WiderOf<T>>(b)) >> (8 * sizeof(T)));
}

struct Add {
  template <class T>
  T operator()(T a, T b) const {
    return wrap_add(a, b);
  }
};
struct Sub {
  template <class T>
  T operator()(T a, T b) const {
    return wrap_sub(a, b);
  }
};
struct MulLow {
  template <class T>
  T operator()(T a, T b) const {
    return wrap_mul(a, b);
  }
};
struct MulHigh {
  template <class T>
  T operator()(T a, T b) const {
    return high_mul(a, b);
  }
};
struct MulWide {
  template <class T>
  WiderOf<T> operator()(T a, T b) const {
    return static_cast<WiderOf<T>>(a) * static_cast<WiderOf<T>>(b);
  }
};
struct MadLow {
  template <class T>
  T operator()(T a, T b, T c) const {
    return wrap_add(wrap_mul(a, b), c);
  }
};
struct MadHigh {
  template <class T>
  T operator()(T a, T b, T c) const {
    return wrap_add(high_mul(a, b), c);
  }
};
struct MadWide {
  template <class T>
  WiderOf<T> operator()(T a, T b, WiderOf<T> c) const {
    return wrap_add(static_cast<WiderOf<T>>(static_cast<WiderOf<T>>(a) * static_cast<WiderOf<T>>(b)), c);
  }
};
struct AddSaturated {
  std::int32_t operator()(std::int32_t a, std::int32_t b) const {
    return static_cast<std::int32_t>(std::clamp<std::int64_t>(std::int64_t{a} + b, INT32_MIN, INT32_MAX));
  }
};
struct SubSaturated {
  std::int32_t operator()(std::int32_t a, std::int32_t b) const {
    return static_cast<std::int32_t>(std::clamp<std::int64_t>(std::int64_t{a} - b, INT32_MIN, INT32_MAX));
  }
};
struct MadHighSaturated {
  std::int32_t operator()(std::int32_t a, std::int32_t b, std::int32_t c) const {
    return AddSaturated{}(high_mul(a, b), c);
  }
};
struct Div {
  template <class T>
  T operator()(T a, T b) const {
    if (b == 0) return static_cast<T>(-1);
    if constexpr (std::is_signed_v<T>)
      if (b == -1) return wrap_sub(T{0}, a);
    return static_cast<T>(a / b);
  }
};
struct Rem {
  template <class T>
  T operator()(T a, T b) const {
    if (b == 0) return a;
    if constexpr (std::is_signed_v<T>)
      if (b == -1) return 0;
    return static_cast<T>(a % b);
  }
};
struct Min {
  template <class T>
  T operator()(T a, T b) const {
    return b < a ? b : a;
  }
};
struct Max {
  template <class T>
  T operator()(T a, T b) const {
    return a < b ? b : a;
  }
};
struct MinRelu {
  template <class T>
  T operator()(T a, T b) const {
    return std::max<T>(std::min(a, b), 0);
  }
};
struct MaxRelu {
  template <class T>
  T operator()(T a, T b) const {
    return std::max<T>(std::max(a, b), 0);
  }
};
struct Neg {
  template <class T>
  T operator()(T a) const {
    return wrap_sub(T{0}, a);
  }
};
struct Abs {
  template <class T>
  T operator()(T a) const {
    return a < 0 ? wrap_sub(T{0}, a) : a;
  }
};
struct Sad {
  template <class T>
  T operator()(T a, T b, T c) const {
    return wrap_add(a < b ? wrap_sub(b, a) : wrap_sub(a, b), c);
  }
};

// Two 16-bit values in one register.
template <class T, class F>
struct InPairs {
  std::uint32_t operator()(std::uint32_t a, std::uint32_t b) const {
    const auto half = [](std::uint32_t x, int shift) { return static_cast<T>(static_cast<std::uint16_t>(x >> shift)); };
    const auto low = static_cast<std::uint16_t>(F{}(half(a, 0), half(b, 0)));
    const auto high = static_cast<std::uint16_t>(F{}(half(a, 16), half(b, 16)));
    return low | std::uint32_t{high} << 16;
  }
};

template <class F>
bool lower_pairs(Lowering& lowering, Inst& inst) {
  if (lowering.take("u16x2")) {
    inst.execute = binary_of<std::uint32_t, InPairs<std::uint16_t, F>>;
  } else if (lowering.take("s16x2")) {
    inst.execute = binary_of<std::uint32_t, InPairs<std::int16_t, F>>;
  } else {
    return false;
  }
  same_width_operands(lowering, inst, 2, 4);
  return true;
}

template <class F>
void lower_binary(Lowering& lowering, Inst& inst) {
  const Type type = lowering.take_type();
  inst.execute = with_integer_type(lowering, type, []<class T>(T) { return binary_of<T, F>; });
  same_width_operands(lowering, inst, 2, size_of(type));
}

// ---- add, sub and their carry chains

// Inst::option of the carry instructions.
constexpr std::uint32_t kReadsCarry = 1, kWritesCarry = 2;

template <class T, bool kSubtract>
Flow add_with_carry(Warp& warp, const Inst& inst, std::uint32_t mask) {
  T* d = warp.lanes<T>(inst.dst[0]);
  const T* a = warp.lanes<T>(inst.src[0]);
  const T* b = warp.lanes<T>(inst.src[1]);
  std::uint32_t& carry = warp.predicate(inst.src[3]);
  for_each_lane(mask, [&](int i) {
    const T in = (inst.option & kReadsCarry) ? carry >> i & 1 : 0;
    // A subtraction's carry is its borrow.
    UInt128 wide = kSubtract ? UInt128{a[i]} - b[i] - in : UInt128{a[i]} + b[i] + in;
    d[i] = static_cast<T>(wide);
    const auto out = static_cast<std::uint32_t>(wide >> (8 * sizeof(T))) & 1;
    if (inst.option & kWritesCarry) carry = (carry & ~(1u << i)) | out << i;
  });
  return Flow::kNext;
}

template <class T, bool kHigh>
Flow mad_with_carry(Warp& warp, const Inst& inst, std::uint32_t mask) {
  using U = Unsigned<T>;
  T* d = warp.lanes<T>(inst.dst[0]);
  const T* a = warp.lanes<T>(inst.src[0]);
  const T* b = warp.lanes<T>(inst.src[1]);
  const T* c = warp.lanes<T>(inst.src[2]);
  std::uint32_t& carry = warp.predicate(inst.src[3]);
  for_each_lane(mask, [&](int i) {
    const U in = (inst.option & kReadsCarry) ? carry >> i & 1 : 0;
    const U product = static_cast<U>(kHigh ? high_mul(a[i], b[i]) : wrap_mul(a[i], b[i]));
    const UInt128 wide = UInt128{product} + static_cast<U>(c[i]) + in;
    d[i] = static_cast<T>(wide);
    const auto out = static_cast<std::uint32_t>(wide >> (8 * sizeof(T))) & 1;
    if (inst.option & kWritesCarry) carry = (carry & ~(1u << i)) | out << i;
  });
  return Flow::kNext;
}

template <bool kSubtract>
void lower_carry(Lowering& lowering, Inst& inst, bool reads) {
  inst.option = (reads ? kReadsCarry : 0) | (lowering.take("cc") ? kWritesCarry : 0);
  const Type type = lowering.take_type({Type::kU32, Type::kS32, Type::kB32, Type::kU64, Type::kS64, Type::kB64});
  inst.execute =
      size_of(type) == 4 ? add_with_carry<std::uint32_t, kSubtract> : add_with_carry<std::uint64_t, kSubtract>;
  same_width_operands(lowering, inst, 2, size_of(type));
  inst.src[3] = lowering.carry_flag();
}

bool has_modifier(const Lowering& lowering, std::string_view modifier) {
  const auto& modifiers = lowering.statement().modifiers;
  return std::find(modifiers.begin(), modifiers.end(), modifier) != modifiers.end();
}

template <bool kSubtract, class Wrapping, class Saturating>
void lower_add_sub(Lowering& lowering, Inst& inst) {
  if (has_modifier(lowering, "cc")) return lower_carry<kSubtract>(lowering, inst, false);
  if (lower_pairs<Wrapping>(lowering, inst)) return;
  if (lowering.take("sat")) {
    lowering.take_type({Type::kS32});
    inst.execute = binary_of<std::int32_t, Saturating>;
    return same_width_operands(lowering, inst, 2, 4);
  }
  lower_binary<Wrapping>(lowering, inst);
}

// ---- mul, mad

void lower_mul(Lowering& lowering, Inst& inst) {
  const int part = lowering.take_any({"lo", "hi", "wide"});
  if (part < 0) lowering.fail("mul needs .lo, .hi or .wide");
  const Type type = lowering.take_type();
  const std::size_t bytes = size_of(type);
  if (part == 2) {
    if (bytes == 8) lowering.fail("mul.wide of 64-bit values");
    lowering.expect_operands(3);
    inst.dst[0] = lowering.destination(0, 2 * bytes);
    inst.src[0] = lowering.source(1, bytes);
    inst.src[1] = lowering.source(2, bytes);
    inst.execute = with_integer_type(lowering, type, []<class T>(T) { return binary<WiderOf<T>, T, T, MulWide>; });
    return;
  }
  inst.execute = part == 0 ? with_integer_type(lowering, type, []<class T>(T) { return binary_of<T, MulLow>; })
                           : with_integer_type(lowering, type, []<class T>(T) { return binary_of<T, MulHigh>; });
  same_width_operands(lowering, inst, 2, bytes);
}

void lower_mad_carry(Lowering& lowering, Inst& inst, bool reads) {
  inst.option = (reads ? kReadsCarry : 0) | (lowering.take("cc") ? kWritesCarry : 0);
  const bool high = lowering.take_any({"lo", "hi"}) == 1;
  const Type type = lowering.take_type({Type::kU32, Type::kS32, Type::kU64, Type::kS64});
  inst.execute =
      high ? with_integer_type(lowering, type, []<class T>(T) -> Execute { return mad_with_carry<T, true>; })
           : with_integer_type(lowering, type, []<class T>(T) -> Execute { return mad_with_carry<T, false>; });
  same_width_operands(lowering, inst, 3, size_of(type));
  inst.src[3] = lowering.carry_flag();
}

void lower_mad(Lowering& lowering, Inst& inst) {
  if (has_modifier(lowering, "cc")) return lower_mad_carry(lowering, inst, false);
  const int part = lowering.take_any({"lo", "hi", "wide"});
  if (part < 0) lowering.fail("mad needs .lo, .hi or .wide");
  if (lowering.take("sat")) {
    if (part != 1) lowering.fail("only mad.hi saturates");
    lowering.take_type({Type::kS32});
    inst.execute = ternary_of<std::int32_t, MadHighSaturated>;
    return same_width_operands(lowering, inst, 3, 4);
  }
  const Type type = lowering.take_type();
  const std::size_t bytes = size_of(type);
  if (part == 2) {
    if (bytes == 8) lowering.fail("mad.wide of 64-bit values");
    lowering.expect_operands(4);
    inst.dst[0] = lowering.destination(0, 2 * bytes);
    inst.src[0] = lowering.source(1, bytes);
    inst.src[1] = lowering.source(2, bytes);
    inst.src[2] = lowering.source(3, 2 * bytes);
    switch (type) {
      case Type::kU16:
        inst.execute = ternary<std::uint32_t, std::uint16_t, std::uint16_t, std::uint32_t, MadWide>;
        break;
      case Type::kS16:
        inst.execute = ternary<std::int32_t, std::int16_t, std::int16_t, std::int32_t, MadWide>;
        break;
      case Type::kU32:
        inst.execute = ternary<std::uint64_t, std::uint32_t, std::uint32_t, std::uint64_t, MadWide>;
        break;
      case Type::kS32:
        inst.execute = ternary<std::int64_t, std::int32_t, std::int32_t, std::int64_t, MadWide>;
        break;
      default:
        lowering.fail("the type is not supported by mad.wide");
    }
    return;
  }
  inst.execute = part == 0 ? with_integer_type(lowering, type, []<class T>(T) { return ternary_of<T, MadLow>; })
                           : with_integer_type(lowering, type, []<class T>(T) { return ternary_of<T, MadHigh>; });
  same_width_operands(lowering, inst, 3, bytes);
}

// ---- 24-bit multiplication: the low 24 bits of each operand, extended by their sign bit for .s32

std::int64_t low24(std::int32_t x) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(x) << 8) >> 8;
}
std::int64_t low24(std::uint32_t x) {
  return x & 0xffffff;
}

struct Mul24Low {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(low24(a) * low24(b));
  }
};
struct Mul24High {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>((low24(a) * low24(b)) >> 16);
  }
};
struct Mad24Low {
  template <class T>
  T operator()(T a, T b, T c) const {
    return wrap_add(Mul24Low{}(a, b), c);
  }
};
struct Mad24High {
  template <class T>
  T operator()(T a, T b, T c) const {
    return wrap_add(Mul24High{}(a, b), c);
  }
};
struct Mad24HighSaturated {
  std::int32_t operator()(std::int32_t a, std::int32_t b, std::int32_t c) const {
    return AddSaturated{}(Mul24High{}(a, b), c);
  }
};

void lower_mul24(Lowering& lowering, Inst& inst) {
  const bool high = lowering.take_any({"lo", "hi"}) == 1;
  const bool is_signed = is_signed_integer(lowering.take_type({Type::kU32, Type::kS32}));
  if (is_signed) {
    inst.execute = high ? binary_of<std::int32_t, Mul24High> : binary_of<std::int32_t, Mul24Low>;
  } else {
    inst.execute = high ? binary_of<std::uint32_t, Mul24High> : binary_of<std::uint32_t, Mul24Low>;
  }
  same_width_operands(lowering, inst, 2, 4);
}

void lower_mad24(Lowering& lowering, Inst& inst) {
  const bool high = lowering.take_any({"lo", "hi"}) == 1;
  const bool saturated = lowering.take("sat");
  const bool is_signed = is_signed_integer(lowering.take_type({Type::kU32, Type::kS32}));
  if (saturated && !(high && is_signed)) lowering.fail("only mad24.hi.s32 saturates");
  if (saturated) {
    inst.execute = ternary_of<std::int32_t, Mad24HighSaturated>;
  } else if (is_signed) {
    inst.execute = high ? ternary_of<std::int32_t, Mad24High> : ternary_of<std::int32_t, Mad24Low>;
  } else {
    inst.execute = high ? ternary_of<std::uint32_t, Mad24High> : ternary_of<std::uint32_t, Mad24Low>;
  }
  same_width_operands(lowering, inst, 3, 4);
}

// ---- the rest

template <class Plain, class Relu>
void lower_min_max(Lowering& lowering, Inst& inst) {
  const bool relu = lowering.take("relu");
  if (relu) {
    if (lowering.take("s16x2")) {
      inst.execute = binary_of<std::uint32_t, InPairs<std::int16_t, Relu>>;
    } else {
      lowering.take_type({Type::kS32});
      inst.execute = binary_of<std::int32_t, Relu>;
    }
    return same_width_operands(lowering, inst, 2, 4);
  }
  if (lower_pairs<Plain>(lowering, inst)) return;
  lower_binary<Plain>(lowering, inst);
}

template <class F>
void lower_signed_unary(Lowering& lowering, Inst& inst) {
  const Type type = lowering.take_type({Type::kS16, Type::kS32, Type::kS64});
  inst.execute = with_integer_type(lowering, type, []<class T>(T) { return unary_of<T, F>; });
  same_width_operands(lowering, inst, 1, size_of(type));
}

void lower_sad(Lowering& lowering, Inst& inst) {
  const Type type = lowering.take_type();
  inst.execute = with_integer_type(lowering, type, []<class T>(T) { return ternary_of<T, Sad>; });
  same_width_operands(lowering, inst, 3, size_of(type));
}

// Dot products of packed bytes: option bit 0 and 1 say whether a and b are signed, bit 2 whether dp2a uses b's high
// half.
constexpr std::uint32_t kSignedA = 1, kSignedB = 2, kHighHalf = 4;

Flow execute_dp4a(Warp& warp, const Inst& inst, std::uint32_t mask) {
  const auto byte = [](std::uint32_t x, int k, bool is_signed) -> std::uint32_t {
    const std::uint8_t value = static_cast<std::uint8_t>(x >> (8 * k));
    return is_signed ? static_cast<std::uint32_t>(static_cast<std::int8_t>(value)) : value;
  };
  std::uint32_t* d = warp.lanes<std::uint32_t>(inst.dst[0]);
  const std::uint32_t* a = warp.lanes<std::uint32_t>(inst.src[0]);
  const std::uint32_t* b = warp.lanes<std::uint32_t>(inst.src[1]);
  const std::uint32_t* c = warp.lanes<std::uint32_t>(inst.src[2]);
  const bool signed_a = inst.option & kSignedA, signed_b = inst.option & kSignedB;
  for_lanes(mask, [=](int i) {
    std::uint32_t sum = c[i];
    for (int k = 0; k < 4; ++k) sum += byte(a[i], k, signed_a) * byte(b[i], k, signed_b);
    d[i] = sum;
  });
  return Flow::kNext;
}

Flow execute_dp2a(Warp& warp, const Inst& inst, std::uint32_t mask) {
  std::uint32_t* d = warp.lanes<std::uint32_t>(inst.dst[0]);
  const std::uint32_t* a = warp.lanes<std::uint32_t>(inst.src[0]);
  const std::uint32_t* b = warp.lanes<std::uint32_t>(inst.src[1]);
  const std::uint32_t* c = warp.lanes<std::uint32_t>(inst.src[2]);
  for_each_lane(mask, [&](int i) {
    std::uint32_t sum = c[i];
    for (int k = 0; k < 2; ++k) {
      const auto half = static_cast<std::uint16_t>(a[i] >> (16 * k));
      const auto byte = static_cast<std::uint8_t>(b[i] >> (8 * k + ((inst.option & kHighHalf) ? 16 : 0)));
      const std::uint32_t x =
          (inst.option & kSignedA) ? static_cast<std::uint32_t>(static_cast<std::int16_t>(half)) : half;
      const std::uint32_t y =
          (inst.option & kSignedB) ? static_cast<std::uint32_t>(static_cast<std::int8_t>(byte)) : byte;
      sum += x * y;
    }
    d[i] = sum;
  });
  return Flow::kNext;
}

void lower_dot(Lowering& lowering, Inst& inst) {
  const bool two = lowering.opcode() == "dp2a";
  if (two) {
    const int half = lowering.take_any({"lo", "hi"});
    if (half < 0) lowering.fail("dp2a needs .lo or .hi");
    inst.option = half == 1 ? kHighHalf : 0;
  }
  if (is_signed_integer(lowering.take_type({Type::kU32, Type::kS32}))) inst.option |= kSignedA;
  if (is_signed_integer(lowering.take_type({Type::kU32, Type::kS32}))) inst.option |= kSignedB;
  inst.execute = two ? execute_dp2a : execute_dp4a;
  same_width_operands(lowering, inst, 3, 4);
}

}  // namespace

void add_integer(InstructionSet& set) {
  auto& all = set.general;
  all["add"] = lower_add_sub<false, Add, AddSaturated>;
  all["sub"] = lower_add_sub<true, Sub, SubSaturated>;
  all["addc"] = [](Lowering& lowering, Inst& inst) { lower_carry<false>(lowering, inst, true); };
  all["subc"] = [](Lowering& lowering, Inst& inst) { lower_carry<true>(lowering, inst, true); };
  all["mul"] = lower_mul;
  all["mad"] = lower_mad;
  all["madc"] = [](Lowering& lowering, Inst& inst) { lower_mad_carry(lowering, inst, true); };
  all["mul24"] = lower_mul24;
  all["mad24"] = lower_mad24;
  all["div"] = lower_binary<Div>;
  all["rem"] = lower_binary<Rem>;
  all["min"] = lower_min_max<Min, MinRelu>;
  all["max"] = lower_min_max<Max, MaxRelu>;
  all["neg"] = lower_signed_unary<Neg>;
  all["abs"] = lower_signed_unary<Abs>;
  all["sad"] = lower_sad;
  all["dp4a"] = lower_dot;
  all["dp2a"] = lower_dot;
}

}  // namespace ptx
