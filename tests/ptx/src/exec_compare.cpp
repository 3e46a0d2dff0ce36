// setp, set, selp, slct.

#include <algorithm>
#include <array>
#include <cmath>

#include "alu.hpp"
#include "numbers.hpp"

namespace ptx {
namespace {

enum class Compare : std::uint8_t { kEq, kNe, kLt, kLe, kGt, kGe, kEqu, kNeu, kLtu, kLeu, kGtu, kGeu, kNum, kNan };
enum class Combine : std::uint8_t { kNone, kAnd, kOr, kXor };

// The unordered comparisons are the negations of ordered ones; lo, ls, hi, hs are the unsigned names.
template <Compare kCompare, class T>
bool holds(T a, T b) {
  switch (kCompare) {
    case Compare::kEq:
      return a == b;
    case Compare::kNe:
      return a < b || a > b;
    case Compare::kLt:
      return a < b;
    case Compare::kLe:
      return a <= b;
    case Compare::kGt:
      return a > b;
    case Compare::kGe:
      return a >= b;
    case Compare::kEqu:
      return !(a < b || a > b);
    case Compare::kNeu:
      return !(a == b);
    case Compare::kLtu:
      return !(a >= b);
    case Compare::kLeu:
      return !(a > b);
    case Compare::kGtu:
      return !(a <= b);
    case Compare::kGeu:
      return !(a < b);
    case Compare::kNum:
      return a == a && b == b;
    case Compare::kNan:
      return a != a || b != b;
  }
}

constexpr std::uint32_t kFlushInputs = 1;

template <Compare kCompare, class T>
std::uint32_t compare_lanes(const Warp& warp, const Inst& inst) {
  const T* a = warp.lanes<T>(inst.src[0]);
  const T* b = warp.lanes<T>(inst.src[1]);
  std::array<std::uint8_t, kLanes> results;
  if (std::is_same_v<T, float> && (inst.option & kFlushInputs)) {
    for (std::size_t i = 0; i < kLanes; ++i) {
      if constexpr (std::is_same_v<T, float>) results[i] = holds<kCompare>(flush(a[i]), flush(b[i]));
    }
  } else {
    for (std::size_t i = 0; i < kLanes; ++i) results[i] = holds<kCompare>(a[i], b[i]);
  }
  // Eight bytes of 0 or 1 become eight bits by one multiplication.
  std::uint32_t bits = 0;
  for (std::size_t part = 0; part < 4; ++part) {
    std::uint64_t eight;
    __builtin_memcpy(&eight, results.data() + 8 * part, 8);
    bits |= static_cast<std::uint32_t>((eight * 0x0102040810204080ull) >> 56) << (8 * part);
  }
  return bits;
}

template <Compare kCompare, class T>
Flow execute_setp(Warp& warp, const Inst& inst, std::uint32_t mask) {
  std::uint32_t result = compare_lanes<kCompare, T>(warp, inst);
  if (inst.dst[1] == kNoReg && inst.src[2] == kNoReg) {
    set_predicate(warp, inst.dst[0], mask, result);
    return Flow::kNext;
  }
  std::uint32_t opposite = ~result;
  if (inst.src[2] != kNoReg) {
    const std::uint32_t with = warp.predicate(inst.src[2]);
    switch (static_cast<Combine>(inst.imm)) {
      case Combine::kAnd:
        result &= with;
        opposite &= with;
        break;
      case Combine::kOr:
        result |= with;
        opposite |= with;
        break;
      default:
        result ^= with;
        opposite ^= with;
    }
  }
  set_predicate(warp, inst.dst[0], mask, result);
  if (inst.dst[1] != kNoReg) set_predicate(warp, inst.dst[1], mask, opposite);
  return Flow::kNext;
}

// set: all ones or 1.0.
constexpr std::uint32_t kFloatResult = 2;

template <Compare kCompare, class T>
Flow execute_set(Warp& warp, const Inst& inst, std::uint32_t mask) {
  std::uint32_t result = compare_lanes<kCompare, T>(warp, inst);
  if (inst.src[2] != kNoReg) {
    const std::uint32_t with = warp.predicate(inst.src[2]);
    switch (static_cast<Combine>(inst.imm)) {
      case Combine::kAnd:
        result &= with;
        break;
      case Combine::kOr:
        result |= with;
        break;
      default:
        result ^= with;
    }
  }
  const std::uint32_t yes = (inst.option & kFloatResult) ? 0x3f800000u : ~0u;
  std::uint32_t* d = warp.lanes<std::uint32_t>(inst.dst[0]);
  for_lanes(mask, [=](int i) { d[i] = (result >> i & 1) ? yes : 0; });
  return Flow::kNext;
}

template <Compare kCompare>
Execute setp_of(Lowering& lowering, Type type, bool set) {
  if (type == Type::kF32) return set ? execute_set<kCompare, float> : execute_setp<kCompare, float>;
  if (type == Type::kF64) return set ? execute_set<kCompare, double> : execute_setp<kCompare, double>;
  if constexpr (kCompare <= Compare::kGe) {
    return with_integer_type(lowering, type, [set]<class T>(T) -> Execute {
      return set ? execute_set<kCompare, T> : execute_setp<kCompare, T>;
    });
  }
  lowering.fail("the comparison is not for integers");
}

Execute choose(Lowering& lowering, Compare compare, Type type, bool set) {
  switch (compare) {
    case Compare::kEq:
      return setp_of<Compare::kEq>(lowering, type, set);
    case Compare::kNe:
      return setp_of<Compare::kNe>(lowering, type, set);
    case Compare::kLt:
      return setp_of<Compare::kLt>(lowering, type, set);
    case Compare::kLe:
      return setp_of<Compare::kLe>(lowering, type, set);
    case Compare::kGt:
      return setp_of<Compare::kGt>(lowering, type, set);
    case Compare::kGe:
      return setp_of<Compare::kGe>(lowering, type, set);
    case Compare::kEqu:
      return setp_of<Compare::kEqu>(lowering, type, set);
    case Compare::kNeu:
      return setp_of<Compare::kNeu>(lowering, type, set);
    case Compare::kLtu:
      return setp_of<Compare::kLtu>(lowering, type, set);
    case Compare::kLeu:
      return setp_of<Compare::kLeu>(lowering, type, set);
    case Compare::kGtu:
      return setp_of<Compare::kGtu>(lowering, type, set);
    case Compare::kGeu:
      return setp_of<Compare::kGeu>(lowering, type, set);
    case Compare::kNum:
      return setp_of<Compare::kNum>(lowering, type, set);
    case Compare::kNan:
      return setp_of<Compare::kNan>(lowering, type, set);
  }
  return nullptr;
}

Compare take_compare(Lowering& lowering) {
  static constexpr struct {
    std::string_view name;
    Compare compare;
  } kNames[] = {{"eq", Compare::kEq},   {"ne", Compare::kNe},   {"lt", Compare::kLt},   {"le", Compare::kLe},
                {"gt", Compare::kGt},   {"ge", Compare::kGe},   {"lo", Compare::kLt},   {"ls", Compare::kLe},
                {"hi", Compare::kGt},   {"hs", Compare::kGe},   {"equ", Compare::kEqu}, {"neu", Compare::kNeu},
                {"ltu", Compare::kLtu}, {"leu", Compare::kLeu}, {"gtu", Compare::kGtu}, {"geu", Compare::kGeu},
                {"num", Compare::kNum}, {"nan", Compare::kNan}};
  for (const auto& row : kNames)
    if (lowering.take(row.name)) return row.compare;
  lowering.fail("a comparison is missing");
}

Combine take_combine(Lowering& lowering) {
  switch (lowering.take_any({"and", "or", "xor"})) {
    case 0:
      return Combine::kAnd;
    case 1:
      return Combine::kOr;
    case 2:
      return Combine::kXor;
    default:
      return Combine::kNone;
  }
}

// ---- half precision: compared as single precision after conversion into scratch registers

struct WidenF16 {
  float operator()(std::uint16_t a) const { return f16_to_float(a); }
};
struct WidenBF16 {
  float operator()(std::uint16_t a) const { return bf16_to_float(a); }
};

Reg widened(Lowering& lowering, std::size_t operand, Type type) {
  Inst convert;
  convert.src[0] = lowering.source(operand, 2);
  convert.dst[0] = lowering.scratch(4);
  convert.execute = type == Type::kF16 ? unary<float, std::uint16_t, WidenF16> : unary<float, std::uint16_t, WidenBF16>;
  lowering.emit(convert);
  return convert.dst[0];
}

template <int kShift, bool kBF16>
struct WidenPart {
  float operator()(std::uint32_t a) const {
    const auto bits = static_cast<std::uint16_t>(a >> kShift);
    return kBF16 ? bf16_to_float(bits) : f16_to_float(bits);
  }
};

template <int kShift>
Reg widened_part(Lowering& lowering, std::size_t operand, bool bf16) {
  Inst convert;
  convert.src[0] = lowering.source(operand, 4);
  convert.dst[0] = lowering.scratch(4);
  convert.execute = bf16 ? unary<float, std::uint32_t, WidenPart<kShift, true>>
                         : unary<float, std::uint32_t, WidenPart<kShift, false>>;
  lowering.emit(convert);
  return convert.dst[0];
}

// setp.f16x2 p|q, a, b: p compares the low halves, q the high ones.
void lower_setp_pair(Lowering& lowering, Inst& inst, Compare compare, Combine combine, bool bf16) {
  if (!lowering.has_second_destination() || combine != Combine::kNone)
    lowering.fail("the form is not supported for pairs");
  lowering.expect_operands(4);
  inst.execute = choose(lowering, compare, Type::kF32, false);
  inst.dst[0] = lowering.destination_predicate(0);
  inst.src[0] = widened_part<0>(lowering, 2, bf16);
  inst.src[1] = widened_part<0>(lowering, 3, bf16);
  const Reg high_a = widened_part<16>(lowering, 2, bf16), high_b = widened_part<16>(lowering, 3, bf16);
  lowering.emit(inst);
  inst.dst[0] = lowering.destination_predicate(1);
  inst.src[0] = high_a;
  inst.src[1] = high_b;
}

void lower_setp(Lowering& lowering, Inst& inst) {
  const Compare compare = take_compare(lowering);
  const Combine combine = take_combine(lowering);
  if (lowering.take("ftz")) inst.option |= kFlushInputs;
  const Type type = lowering.take_type();
  if (type == Type::kF16x2 || type == Type::kBF16x2)
    return lower_setp_pair(lowering, inst, compare, combine, type == Type::kBF16x2);
  const bool half = type == Type::kF16 || type == Type::kBF16;
  const std::size_t first = lowering.has_second_destination() ? 2 : 1;
  lowering.expect_operands(first + 2 + (combine != Combine::kNone));
  inst.execute = choose(lowering, compare, half ? Type::kF32 : type, false);
  inst.dst[0] = lowering.destination_predicate(0);
  if (first == 2) inst.dst[1] = lowering.destination_predicate(1);
  for (std::size_t k = 0; k < 2; ++k)
    inst.src[k] = half ? widened(lowering, first + k, type) : lowering.source(first + k, size_of(type));
  if (combine != Combine::kNone) inst.src[2] = lowering.source_predicate(first + 2);
  inst.imm = static_cast<std::int64_t>(combine);
}

void lower_set(Lowering& lowering, Inst& inst) {
  const Compare compare = take_compare(lowering);
  const Combine combine = take_combine(lowering);
  if (lowering.take("ftz")) inst.option |= kFlushInputs;
  const Type to = lowering.take_type({Type::kU32, Type::kS32, Type::kF32});
  const Type type = lowering.take_type();
  if (to == Type::kF32) inst.option |= kFloatResult;
  const bool half = type == Type::kF16 || type == Type::kBF16;
  lowering.expect_operands(combine != Combine::kNone ? 4 : 3);
  inst.execute = choose(lowering, compare, half ? Type::kF32 : type, true);
  inst.dst[0] = lowering.destination(0, 4);
  for (std::size_t k = 0; k < 2; ++k)
    inst.src[k] = half ? widened(lowering, 1 + k, type) : lowering.source(1 + k, size_of(type));
  if (combine != Combine::kNone) inst.src[2] = lowering.source_predicate(3);
  inst.imm = static_cast<std::int64_t>(combine);
}

template <class U>
Flow execute_selp(Warp& warp, const Inst& inst, std::uint32_t mask) {
  U* d = warp.lanes<U>(inst.dst[0]);
  const U* a = warp.lanes<U>(inst.src[0]);
  const U* b = warp.lanes<U>(inst.src[1]);
  const std::uint32_t which = warp.predicate(inst.src[2]);
  for_lanes(mask, [=](int i) { d[i] = (which >> i & 1) ? a[i] : b[i]; });
  return Flow::kNext;
}

void lower_selp(Lowering& lowering, Inst& inst) {
  const Type type = lowering.take_type();
  lowering.expect_operands(4);
  inst.dst[0] = lowering.destination(0, size_of(type));
  inst.src[0] = lowering.source(1, size_of(type));
  inst.src[1] = lowering.source(2, size_of(type));
  inst.src[2] = lowering.source_predicate(3);
  switch (size_of(type)) {
    case 2:
      inst.execute = execute_selp<std::uint16_t>;
      break;
    case 4:
      inst.execute = execute_selp<std::uint32_t>;
      break;
    case 8:
      inst.execute = execute_selp<std::uint64_t>;
      break;
    default:
      lowering.fail("the type is not supported here");
  }
}

template <class U, class T>
Flow execute_slct(Warp& warp, const Inst& inst, std::uint32_t mask) {
  U* d = warp.lanes<U>(inst.dst[0]);
  const U* a = warp.lanes<U>(inst.src[0]);
  const U* b = warp.lanes<U>(inst.src[1]);
  const T* c = warp.lanes<T>(inst.src[2]);
  const bool flushes = inst.option & kFlushInputs;
  for_each_lane(mask, [&](int i) {
    T which = c[i];
    if constexpr (std::is_same_v<T, float>)
      if (flushes) which = flush(which);
    d[i] = which >= 0 ? a[i] : b[i];
  });
  return Flow::kNext;
}

void lower_slct(Lowering& lowering, Inst& inst) {
  if (lowering.take("ftz")) inst.option |= kFlushInputs;
  const Type type = lowering.take_type();
  const bool by_float = lowering.take_type({Type::kS32, Type::kF32}) == Type::kF32;
  lowering.expect_operands(4);
  inst.dst[0] = lowering.destination(0, size_of(type));
  inst.src[0] = lowering.source(1, size_of(type));
  inst.src[1] = lowering.source(2, size_of(type));
  inst.src[2] = lowering.source(3, 4);
  switch (size_of(type)) {
    case 2:
      inst.execute = by_float ? execute_slct<std::uint16_t, float> : execute_slct<std::uint16_t, std::int32_t>;
      break;
    case 4:
      inst.execute = by_float ? execute_slct<std::uint32_t, float> : execute_slct<std::uint32_t, std::int32_t>;
      break;
    default:
      inst.execute = by_float ? execute_slct<std::uint64_t, float> : execute_slct<std::uint64_t, std::int32_t>;
  }
}

}  // namespace

void add_compare(InstructionSet& set) {
  auto& all = set.general;
  all["setp"] = lower_setp;
  all["set"] = lower_set;
  all["selp"] = lower_selp;
  all["slct"] = lower_slct;
}

}  // namespace ptx
