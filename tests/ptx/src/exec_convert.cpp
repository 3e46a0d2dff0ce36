// cvt: between all integer and floating-point types, with every rounding, saturation and packed form.

#include <algorithm>

#include "float.hpp"

namespace ptx {
namespace {

__extension__ using Int128 = __int128;

enum : std::uint32_t {
  kIntegral = 1u << 3,  // the rounding is to an integral value (.rni and its like)
  kFlushBit = 1u << 4,
  kSaturateBit = 1u << 5,
  kFiniteBit = 1u << 6,  // .satfinite
  kReluBit = 1u << 7,
};

// Inst::option: the rounding in the low three bits, the flags above, the types on top.
Rounding rounding_of(const Inst& inst) {
  return static_cast<Rounding>(inst.option & 7);
}
Type to_type(const Inst& inst) {
  return static_cast<Type>(inst.option >> 8 & 255);
}
Type from_type(const Inst& inst) {
  return static_cast<Type>(inst.option >> 16 & 255);
}

const Format& format_of(Type type) {
  switch (type) {
    case Type::kF16:
    case Type::kF16x2:
      return kFormatF16;
    case Type::kBF16:
    case Type::kBF16x2:
      return kFormatBF16;
    case Type::kTF32:
      return kFormatTF32;
    case Type::kE4M3:
    case Type::kE4M3x2:
      return kFormatE4M3;
    case Type::kE5M2:
    case Type::kE5M2x2:
      return kFormatE5M2;
    default:
      return kFormatF32;
  }
}

double round_integral(double value, Rounding rounding) {
  switch (rounding) {
    case Rounding::kNearest:
      return std::nearbyint(value);
    case Rounding::kNearestAway:
      return std::round(value);
    case Rounding::kZero:
      return std::trunc(value);
    case Rounding::kDown:
      return std::floor(value);
    default:
      return std::ceil(value);
  }
}

struct Range {
  Int128 low, high;
};

Range range_of(Type type) {
  const int bits = static_cast<int>(8 * size_of(type));
  if (is_signed_integer(type)) return {-(Int128{1} << (bits - 1)), (Int128{1} << (bits - 1)) - 1};
  return {0, (Int128{1} << bits) - 1};
}

// An integer as a double for one rounding to a narrower format.
double sticky_double(Int128 value) {
  const auto nearest = static_cast<double>(value);
  const Int128 error = value - static_cast<Int128>(nearest);
  return round_to_odd(nearest, static_cast<double>(error));
}

double integer_to_f64(Int128 value, Rounding rounding) {
  double result = static_cast<double>(value);
  const Int128 error = value - static_cast<Int128>(result);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const bool zero_down = rounding == Rounding::kZero && value > 0, zero_up = rounding == Rounding::kZero && value < 0;
  if (error < 0 && (rounding == Rounding::kDown || zero_down)) result = std::nextafter(result, -kInfinity);
  if (error > 0 && (rounding == Rounding::kUp || zero_up)) result = std::nextafter(result, kInfinity);
  return result;
}

std::uint64_t float_to_integer(double value, const Inst& inst) {
  const Type to = to_type(inst), from = from_type(inst);
  const Range range = range_of(to);
  if (std::isnan(value)) {
    const bool wide = from == Type::kF64 || size_of(to) == 8;
    return wide ? std::uint64_t{1} << (8 * size_of(to) - 1) : 0;
  }
  value = round_integral(value, rounding_of(inst));
  if (value <= static_cast<double>(range.low)) return static_cast<std::uint64_t>(range.low);
  if (value >= static_cast<double>(range.high)) return static_cast<std::uint64_t>(range.high);
  return static_cast<std::uint64_t>(static_cast<Int128>(value));
}

bool is_integer(Type type) {
  return type >= Type::kB8 && type <= Type::kS64;
}

double flush_double(double value) {
  return std::fabs(value) < 0x1p-126 ? std::copysign(0.0, value) : value;
}

std::uint32_t encode_narrow(double value, Type to, const Inst& inst) {
  if (inst.option & kReluBit) value = value > 0 || std::isnan(value) ? value : 0.0;
  if (inst.option & kSaturateBit) value = saturate(value);
  const bool finite = inst.option & kFiniteBit;
  const std::uint32_t bits = encode(value, format_of(to), rounding_of(inst), finite);
  return to == Type::kTF32 ? bits << 13 : bits;
}

std::uint64_t convert_float(double value, const Inst& inst) {
  const Type to = to_type(inst), from = from_type(inst);
  if ((inst.option & kFlushBit) && from == Type::kF32) value = flush_double(value);
  if (is_integer(to)) return float_to_integer(value, inst);
  if (inst.option & kIntegral) value = round_integral(value, rounding_of(inst));
  if (to == Type::kF64) return std::bit_cast<std::uint64_t>((inst.option & kSaturateBit) ? saturate(value) : value);
  std::uint32_t bits = encode_narrow(value, to, inst);
  if (to == Type::kF32 && (inst.option & kFlushBit) && !(bits & 0x7f800000u)) bits &= 0x80000000u;
  return bits;
}

std::uint64_t convert_integer(Int128 value, const Inst& inst) {
  const Type to = to_type(inst);
  if (to == Type::kF64) return std::bit_cast<std::uint64_t>(integer_to_f64(value, rounding_of(inst)));
  if (is_float(to)) return encode_narrow(sticky_double(value), to, inst);
  if (inst.option & kSaturateBit) {
    const Range range = range_of(to);
    value = std::clamp(value, range.low, range.high);
  }
  return static_cast<std::uint64_t>(value);
}

Int128 read_integer(std::uint64_t bits, Type type) {
  switch (type) {
    case Type::kS8:
      return static_cast<std::int8_t>(bits);
    case Type::kS16:
      return static_cast<std::int16_t>(bits);
    case Type::kS32:
      return static_cast<std::int32_t>(bits);
    case Type::kS64:
      return static_cast<std::int64_t>(bits);
    case Type::kU8:
      return static_cast<std::uint8_t>(bits);
    case Type::kU16:
      return static_cast<std::uint16_t>(bits);
    case Type::kU32:
      return static_cast<std::uint32_t>(bits);
    default:
      return bits;
  }
}

std::uint64_t read_register(const Warp& warp, Reg reg, std::size_t bytes, int lane) {
  switch (bytes) {
    case 1:
      return warp.lanes<std::uint8_t>(reg)[lane];
    case 2:
      return warp.lanes<std::uint16_t>(reg)[lane];
    case 4:
      return warp.lanes<std::uint32_t>(reg)[lane];
    default:
      return warp.lanes<std::uint64_t>(reg)[lane];
  }
}

void write_register(const Warp& warp, Reg reg, std::size_t bytes, int lane, std::uint64_t bits) {
  switch (bytes) {
    case 1:
      warp.lanes<std::uint8_t>(reg)[lane] = static_cast<std::uint8_t>(bits);
      break;
    case 2:
      warp.lanes<std::uint16_t>(reg)[lane] = static_cast<std::uint16_t>(bits);
      break;
    case 4:
      warp.lanes<std::uint32_t>(reg)[lane] = static_cast<std::uint32_t>(bits);
      break;
    default:
      warp.lanes<std::uint64_t>(reg)[lane] = bits;
  }
}

double read_float(std::uint64_t bits, Type type) {
  switch (type) {
    case Type::kF16:
      return f16_to_float(static_cast<std::uint16_t>(bits));
    case Type::kBF16:
      return bf16_to_float(static_cast<std::uint16_t>(bits));
    case Type::kF32:
      return std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    default:
      return std::bit_cast<double>(bits);
  }
}

Flow execute_any(Warp& warp, const Inst& inst, std::uint32_t mask) {
  const Type from = from_type(inst), to = to_type(inst);
  for_each_lane(mask, [&](int i) {
    const std::uint64_t bits = read_register(warp, inst.src[0], inst.size, i);
    std::uint64_t result =
        is_float(from) ? convert_float(read_float(bits, from), inst) : convert_integer(read_integer(bits, from), inst);
    // A wider register is filled up according to the type.
    if (is_integer(to)) result = static_cast<std::uint64_t>(read_integer(result, to));
    write_register(warp, inst.dst[0], inst.reg_size, i, result);
  });
  return Flow::kNext;
}

// ---- the frequent conversions, vectorised

struct Cast32to64s {
  std::int64_t operator()(std::int32_t a) const { return a; }
};
struct Cast32to64u {
  std::uint64_t operator()(std::uint32_t a) const { return a; }
};
struct Cast64to32 {
  std::uint32_t operator()(std::uint64_t a) const { return static_cast<std::uint32_t>(a); }
};
struct Cast16to32s {
  std::int32_t operator()(std::int16_t a) const { return a; }
};
struct Cast16to32u {
  std::uint32_t operator()(std::uint16_t a) const { return a; }
};
struct Cast32to16 {
  std::uint16_t operator()(std::uint32_t a) const { return static_cast<std::uint16_t>(a); }
};
struct S32toF32 {
  float operator()(std::int32_t a) const { return static_cast<float>(a); }
};
struct U32toF32 {
  float operator()(std::uint32_t a) const { return static_cast<float>(a); }
};
struct F16toF32 {
  float operator()(std::uint16_t a) const { return canonical(f16_to_float(a)); }
};
struct BF16toF32 {
  float operator()(std::uint16_t a) const { return bf16_to_float(a); }
};
struct F32toF16 {
  std::uint16_t operator()(float a) const { return float_to_f16(a); }
};
struct F32toBF16 {
  std::uint16_t operator()(float a) const { return float_to_bf16(a); }
};
struct F32toF64 {
  double operator()(float a) const { return a; }
};
struct F64toF32 {
  float operator()(double a) const { return canonical(static_cast<float>(a)); }
};

Execute fast_path(Type to, Type from, std::uint32_t option) {
  const bool plain = (option & ~7u) == 0;
  if (!plain) return nullptr;
  const bool nearest = (option & 7) == static_cast<std::uint32_t>(Rounding::kNearest);
  const bool to_64 = to == Type::kU64 || to == Type::kS64, to_32 = to == Type::kU32 || to == Type::kS32;
  const bool to_16 = to == Type::kU16 || to == Type::kS16;
  if (from == Type::kS32 && to_64) return unary<std::int64_t, std::int32_t, Cast32to64s>;
  if (from == Type::kU32 && to_64) return unary<std::uint64_t, std::uint32_t, Cast32to64u>;
  if ((from == Type::kU64 || from == Type::kS64) && to_32) return unary<std::uint32_t, std::uint64_t, Cast64to32>;
  if (from == Type::kS16 && to_32) return unary<std::int32_t, std::int16_t, Cast16to32s>;
  if (from == Type::kU16 && to_32) return unary<std::uint32_t, std::uint16_t, Cast16to32u>;
  if ((from == Type::kU32 || from == Type::kS32) && to_16) return unary<std::uint16_t, std::uint32_t, Cast32to16>;
  if (from == Type::kF16 && to == Type::kF32) return unary<float, std::uint16_t, F16toF32>;
  if (from == Type::kBF16 && to == Type::kF32) return unary<float, std::uint16_t, BF16toF32>;
  if (from == Type::kF32 && to == Type::kF64) return unary<double, float, F32toF64>;
  if (!nearest) return nullptr;
  if (from == Type::kS32 && to == Type::kF32) return unary<float, std::int32_t, S32toF32>;
  if (from == Type::kU32 && to == Type::kF32) return unary<float, std::uint32_t, U32toF32>;
  if (from == Type::kF32 && to == Type::kF16) return unary<std::uint16_t, float, F32toF16>;
  if (from == Type::kF32 && to == Type::kBF16) return unary<std::uint16_t, float, F32toBF16>;
  if (from == Type::kF64 && to == Type::kF32) return unary<float, double, F64toF32>;
  return nullptr;
}

// ---- packed forms: the first operand goes to the high half

Flow execute_pack_f32(Warp& warp, const Inst& inst, std::uint32_t mask) {
  const Type to = to_type(inst);
  const bool bytes = size_of(to) == 2;
  for_each_lane(mask, [&](int i) {
    const auto value = [&](std::size_t k) {
      double x = warp.lanes<float>(inst.src[k])[i];
      if (inst.option & kFlushBit) x = flush_double(x);
      return encode_narrow(x, to, inst);
    };
    const std::uint32_t word = value(0) << (bytes ? 8 : 16) | value(1);
    write_register(warp, inst.dst[0], bytes ? 2 : 4, i, word);
  });
  return Flow::kNext;
}

Flow execute_pack_bf16(Warp& warp, const Inst& inst, std::uint32_t mask) {
  std::uint32_t* d = warp.lanes<std::uint32_t>(inst.dst[0]);
  const float* high = warp.lanes<float>(inst.src[0]);
  const float* low = warp.lanes<float>(inst.src[1]);
  for_lanes(mask, [=](int i) { d[i] = std::uint32_t{float_to_bf16(high[i])} << 16 | float_to_bf16(low[i]); });
  return Flow::kNext;
}

Flow execute_pack_f16(Warp& warp, const Inst& inst, std::uint32_t mask) {
  std::uint32_t* d = warp.lanes<std::uint32_t>(inst.dst[0]);
  const float* high = warp.lanes<float>(inst.src[0]);
  const float* low = warp.lanes<float>(inst.src[1]);
  for_lanes(mask, [=](int i) { d[i] = std::uint32_t{float_to_f16(high[i])} << 16 | float_to_f16(low[i]); });
  return Flow::kNext;
}

// A pair of halves to a pair of bytes, and back.
Flow execute_halves_to_bytes(Warp& warp, const Inst& inst, std::uint32_t mask) {
  const Type to = to_type(inst), from = from_type(inst);
  const Type half = from == Type::kF16x2 ? Type::kF16 : Type::kBF16;
  const std::uint32_t* a = warp.lanes<std::uint32_t>(inst.src[0]);
  std::uint16_t* d = warp.lanes<std::uint16_t>(inst.dst[0]);
  for_each_lane(mask, [&](int i) {
    const std::uint32_t low = encode_narrow(read_float(a[i] & 0xffff, half), to, inst);
    const std::uint32_t high = encode_narrow(read_float(a[i] >> 16, half), to, inst);
    d[i] = static_cast<std::uint16_t>(high << 8 | low);
  });
  return Flow::kNext;
}

Flow execute_bytes_to_halves(Warp& warp, const Inst& inst, std::uint32_t mask) {
  const Format& from = format_of(from_type(inst));
  const std::uint16_t* a = warp.lanes<std::uint16_t>(inst.src[0]);
  std::uint32_t* d = warp.lanes<std::uint32_t>(inst.dst[0]);
  for_each_lane(mask, [&](int i) {
    const std::uint32_t low = encode_narrow(decode(a[i] & 255, from), to_type(inst), inst);
    const std::uint32_t high = encode_narrow(decode(a[i] >> 8, from), to_type(inst), inst);
    d[i] = high << 16 | low;
  });
  return Flow::kNext;
}

bool is_byte_pair(Type type) {
  return type == Type::kE4M3x2 || type == Type::kE5M2x2;
}

void lower_packed(Lowering& lowering, Inst& inst, Type to, Type from) {
  const bool plain = (inst.option & 0xff) == static_cast<std::uint32_t>(Rounding::kNearest);
  if (is_byte_pair(from)) {
    if (to != Type::kF16x2) lowering.fail("fp8 converts to f16x2 only");
    lowering.expect_operands(2);
    inst.dst[0] = lowering.destination(0, 4);
    inst.src[0] = lowering.source(1, 2);
    inst.execute = execute_bytes_to_halves;
    return;
  }
  if (from == Type::kF16x2 || from == Type::kBF16x2) {
    if (!is_byte_pair(to)) lowering.fail("not a known conversion");
    lowering.expect_operands(2);
    inst.dst[0] = lowering.destination(0, 2);
    inst.src[0] = lowering.source(1, 4);
    inst.execute = execute_halves_to_bytes;
    return;
  }
  if (from != Type::kF32) lowering.fail("not a known conversion");
  if (is_byte_pair(to) && !(inst.option & kFiniteBit)) lowering.fail("fp8 needs .satfinite");
  lowering.expect_operands(3);
  inst.dst[0] = lowering.destination(0, size_of(to));
  inst.src[0] = lowering.source(1, 4);
  inst.src[1] = lowering.source(2, 4);
  inst.execute = execute_pack_f32;
  if (plain && to == Type::kBF16x2) inst.execute = execute_pack_bf16;
  if (plain && to == Type::kF16x2) inst.execute = execute_pack_f16;
}

void lower_cvt(Lowering& lowering, Inst& inst) {
  // cvt.pack is another instruction.
  if (lowering.take("pack")) lowering.fail("cvt.pack is not supported");
  struct Row {
    std::string_view name;
    Rounding rounding;
    bool integral;
  };
  static constexpr Row kRoundings[] = {
      {"rn", Rounding::kNearest, false}, {"rz", Rounding::kZero, false},         {"rm", Rounding::kDown, false},
      {"rp", Rounding::kUp, false},      {"rna", Rounding::kNearestAway, false}, {"rni", Rounding::kNearest, true},
      {"rzi", Rounding::kZero, true},    {"rmi", Rounding::kDown, true},         {"rpi", Rounding::kUp, true}};
  bool rounded = false;
  for (const Row& row : kRoundings) {
    if (!lowering.take(row.name)) continue;
    inst.option = static_cast<std::uint32_t>(row.rounding) | (row.integral ? std::uint32_t{kIntegral} : 0u);
    rounded = true;
    break;
  }
  if (lowering.take("ftz")) inst.option |= kFlushBit;
  if (lowering.take("sat")) inst.option |= kSaturateBit;
  if (lowering.take("satfinite")) inst.option |= kFiniteBit;
  if (lowering.take("relu")) inst.option |= kReluBit;
  const Type to = lowering.take_type(), from = lowering.take_type();
  inst.option |= static_cast<std::uint32_t>(to) << 8 | static_cast<std::uint32_t>(from) << 16;
  if (!is_float(from) && !is_float(to)) {
    if (rounded) lowering.fail("a rounding between integers");
  } else if (is_float(from) && !is_float(to)) {
    if (!(inst.option & kIntegral)) lowering.fail("a conversion to an integer needs .rni, .rzi, .rmi or .rpi");
    if (to == Type::kB8) lowering.fail("not a known conversion");
  }
  const bool pairs = size_of(to) != 0 && (to == Type::kF16x2 || to == Type::kBF16x2 || is_byte_pair(to));
  if (pairs) return lower_packed(lowering, inst, to, from);
  if (is_byte_pair(from) || from == Type::kF16x2 || from == Type::kBF16x2) lowering.fail("not a known conversion");
  lowering.expect_operands(2);
  std::uint8_t width = 0;
  inst.dst[0] = lowering.destination_wide(lowering.operand(0), size_of(to), width);
  inst.reg_size = width;
  inst.src[0] = lowering.source_wide(lowering.operand(1), size_of(from), width);
  inst.size = width;
  // Flags that change nothing between these types must not keep off the fast path.
  std::uint32_t option = inst.option & 0xff;
  if (from != Type::kF32 && to != Type::kF32) option &= ~std::uint32_t{kFlushBit};
  const bool exact_widths = inst.reg_size == size_of(to) && inst.size == size_of(from);
  inst.execute = exact_widths ? fast_path(to, from, option) : nullptr;
  if (!inst.execute) inst.execute = execute_any;
}

}  // namespace

void add_convert(InstructionSet& set) {
  set.general["cvt"] = lower_cvt;
}

}  // namespace ptx
