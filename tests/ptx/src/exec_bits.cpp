// Bitwise logic, shifts, bit fields and permutations.

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "alu.hpp"

namespace ptx {
namespace {

struct Not {
  template <class T>
  T operator()(T a) const {
    return static_cast<T>(~a);
  }
};
struct CountNot {
  template <class T>
  T operator()(T a) const {
    return a == 0;
  }
};

template <class F>
Flow predicate_binary(Warp& warp, const Inst& inst, std::uint32_t mask) {
  set_predicate(warp, inst.dst[0], mask, F{}(warp.predicate(inst.src[0]), warp.predicate(inst.src[1])));
  return Flow::kNext;
}

Flow predicate_not(Warp& warp, const Inst& inst, std::uint32_t mask) {
  set_predicate(warp, inst.dst[0], mask, ~warp.predicate(inst.src[0]));
  return Flow::kNext;
}

template <class F>
Execute bits_binary(Lowering& lowering, Type type) {
  return with_integer_type(lowering, type, []<class T>(T) { return binary_of<std::make_unsigned_t<T>, F>; });
}

template <class F>
void lower_logic(Lowering& lowering, Inst& inst) {
  const Type type = lowering.take_type({Type::kPred, Type::kB16, Type::kB32, Type::kB64});
  if (type == Type::kPred) {
    lowering.expect_operands(3);
    inst.dst[0] = lowering.destination_predicate(0);
    inst.src[0] = lowering.source_predicate(1);
    inst.src[1] = lowering.source_predicate(2);
    inst.execute = predicate_binary<F>;
    return;
  }
  inst.execute = bits_binary<F>(lowering, type);
  same_width_operands(lowering, inst, 2, size_of(type));
}

void lower_not(Lowering& lowering, Inst& inst) {
  const Type type = lowering.take_type({Type::kPred, Type::kB16, Type::kB32, Type::kB64});
  if (type == Type::kPred) {
    inst.dst[0] = lowering.destination_predicate(0);
    inst.src[0] = lowering.source_predicate(1);
    inst.execute = predicate_not;
    return;
  }
  inst.execute = with_integer_type(lowering, type, []<class T>(T) { return unary_of<T, Not>; });
  same_width_operands(lowering, inst, 1, size_of(type));
}

void lower_cnot(Lowering& lowering, Inst& inst) {
  const Type type = lowering.take_type({Type::kB16, Type::kB32, Type::kB64});
  inst.execute = with_integer_type(lowering, type, []<class T>(T) { return unary_of<T, CountNot>; });
  same_width_operands(lowering, inst, 1, size_of(type));
}

// ---- shifts: amounts beyond the width give zero, or copies of the sign

struct ShiftLeft {
  template <class T>
  T operator()(T a, std::uint32_t by) const {
    return by >= 8 * sizeof(T) ? T{0} : static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) << by);
  }
};
struct ShiftRight {
  template <class T>
  T operator()(T a, std::uint32_t by) const {
    constexpr std::uint32_t kWidth = 8 * sizeof(T);
    if constexpr (std::is_signed_v<T>) return static_cast<T>(a >> std::min(by, kWidth - 1));
    return by >= kWidth ? T{0} : static_cast<T>(a >> by);
  }
};

template <class F>
void lower_shift(Lowering& lowering, Inst& inst) {
  const Type type = lowering.take_type();
  inst.execute =
      with_integer_type(lowering, type, []<class T>(T) -> Execute { return binary<T, T, std::uint32_t, F>; });
  lowering.expect_operands(3);
  inst.dst[0] = lowering.destination(0, size_of(type));
  inst.src[0] = lowering.source(1, size_of(type));
  inst.src[1] = lowering.source(2, 4);
}

// A funnel shift of the 64 bits b:a.
struct FunnelLeftWrap {
  std::uint32_t operator()(std::uint32_t a, std::uint32_t b, std::uint32_t by) const {
    return static_cast<std::uint32_t>(((std::uint64_t{b} << 32 | a) << (by & 31)) >> 32);
  }
};
struct FunnelLeftClamp {
  std::uint32_t operator()(std::uint32_t a, std::uint32_t b, std::uint32_t by) const {
    return by >= 32 ? a : FunnelLeftWrap{}(a, b, by);
  }
};
struct FunnelRightWrap {
  std::uint32_t operator()(std::uint32_t a, std::uint32_t b, std::uint32_t by) const {
    return static_cast<std::uint32_t>((std::uint64_t{b} << 32 | a) >> (by & 31));
  }
};
struct FunnelRightClamp {
  std::uint32_t operator()(std::uint32_t a, std::uint32_t b, std::uint32_t by) const {
    return by >= 32 ? b : FunnelRightWrap{}(a, b, by);
  }
};

void lower_funnel(Lowering& lowering, Inst& inst) {
  const int direction = lowering.take_any({"l", "r"});
  const int beyond = lowering.take_any({"wrap", "clamp"});
  if (direction < 0 || beyond < 0) lowering.fail("shf needs .l or .r, and .wrap or .clamp");
  lowering.take_type({Type::kB32});
  using U = std::uint32_t;
  if (direction == 0) {
    inst.execute = beyond == 0 ? ternary_of<U, FunnelLeftWrap> : ternary_of<U, FunnelLeftClamp>;
  } else {
    inst.execute = beyond == 0 ? ternary_of<U, FunnelRightWrap> : ternary_of<U, FunnelRightClamp>;
  }
  same_width_operands(lowering, inst, 3, 4);
}

// ---- counting

struct Popc {
  template <class T>
  std::uint32_t operator()(T a) const {
    return static_cast<std::uint32_t>(std::popcount(a));
  }
};
struct Clz {
  template <class T>
  std::uint32_t operator()(T a) const {
    return static_cast<std::uint32_t>(std::countl_zero(a));
  }
};

template <class F>
void lower_count(Lowering& lowering, Inst& inst) {
  const Type type = lowering.take_type({Type::kB32, Type::kB64});
  lowering.expect_operands(2);
  inst.dst[0] = lowering.destination(0, 4);
  inst.src[0] = lowering.source(1, size_of(type));
  inst.execute = size_of(type) == 4 ? unary<std::uint32_t, std::uint32_t, F> : unary<std::uint32_t, std::uint64_t, F>;
}

// The highest bit that differs from the sign (or the highest one bit); none: all ones.
template <class T>
std::uint32_t highest_bit(T a) {
  auto bits = static_cast<std::make_unsigned_t<T>>(a);
  if (std::is_signed_v<T> && a < 0) bits = static_cast<decltype(bits)>(~bits);
  return bits == 0 ? ~0u
                   : static_cast<std::uint32_t>(8 * sizeof(T) - 1) - static_cast<std::uint32_t>(std::countl_zero(bits));
}
struct FindBit {
  template <class T>
  std::uint32_t operator()(T a) const {
    return highest_bit(a);
  }
};
struct FindShift {
  template <class T>
  std::uint32_t operator()(T a) const {
    const std::uint32_t at = highest_bit(a);
    return at == ~0u ? at : static_cast<std::uint32_t>(8 * sizeof(T) - 1) - at;
  }
};

void lower_bfind(Lowering& lowering, Inst& inst) {
  const bool shift = lowering.take("shiftamt");
  const Type type = lowering.take_type({Type::kU32, Type::kS32, Type::kU64, Type::kS64});
  lowering.expect_operands(2);
  inst.dst[0] = lowering.destination(0, 4);
  inst.src[0] = lowering.source(1, size_of(type));
  inst.execute =
      shift
          ? with_integer_type(lowering, type, []<class T>(T) -> Execute { return unary<std::uint32_t, T, FindShift>; })
          : with_integer_type(lowering, type, []<class T>(T) -> Execute { return unary<std::uint32_t, T, FindBit>; });
}

// The n-th set bit from `base` on, upwards for n > 0 and downwards for n < 0; none: all ones.
struct FindNthSet {
  std::uint32_t operator()(std::uint32_t mask, std::uint32_t base, std::int32_t n) const {
    if (n == 0) return (mask >> (base & 31) & 1) ? base : ~0u;
    const int step = n > 0 ? 1 : -1;
    std::int32_t left = n > 0 ? n : -n;
    for (std::int64_t at = base; at >= 0 && at < 32; at += step)
      if ((mask >> at & 1) && --left == 0) return static_cast<std::uint32_t>(at);
    return ~0u;
  }
};

void lower_fns(Lowering& lowering, Inst& inst) {
  lowering.take_type({Type::kB32});
  same_width_operands(lowering, inst, 3, 4);
  inst.execute = ternary<std::uint32_t, std::uint32_t, std::uint32_t, std::int32_t, FindNthSet>;
}

struct Reverse {
  template <class T>
  T operator()(T a) const {
    T result = 0;
    for (std::size_t i = 0; i < 8 * sizeof(T); ++i) result = static_cast<T>(result << 1 | (a >> i & 1));
    return result;
  }
};

void lower_brev(Lowering& lowering, Inst& inst) {
  const Type type = lowering.take_type({Type::kB32, Type::kB64});
  inst.execute = size_of(type) == 4 ? unary_of<std::uint32_t, Reverse> : unary_of<std::uint64_t, Reverse>;
  same_width_operands(lowering, inst, 1, size_of(type));
}

// ---- bit fields: position and length are the low eight bits of their registers

template <class U>
U low_bits(std::uint32_t length) {
  return length >= 8 * sizeof(U) ? static_cast<U>(~U{0}) : static_cast<U>((U{1} << length) - 1);
}

struct Extract {
  template <class T>
  T operator()(T value, std::uint32_t position, std::uint32_t length) const {
    using U = std::make_unsigned_t<T>;
    constexpr std::uint32_t kWidth = 8 * sizeof(T);
    position &= 255;
    length &= 255;
    if (length == 0) return 0;
    const U bits = static_cast<U>(value);
    const std::uint32_t top = std::min(position + length - 1, kWidth - 1);
    const bool sign = std::is_signed_v<T> && (bits >> top & 1);
    const std::uint32_t there = position >= kWidth ? 0 : std::min(length, kWidth - position);  // bits that exist
    const U field = position >= kWidth ? U{0} : static_cast<U>(bits >> position) & low_bits<U>(there);
    return static_cast<T>(sign ? field | static_cast<U>(~low_bits<U>(there)) : field);
  }
};

void lower_bfe(Lowering& lowering, Inst& inst) {
  const Type type = lowering.take_type({Type::kU32, Type::kS32, Type::kU64, Type::kS64});
  lowering.expect_operands(4);
  inst.dst[0] = lowering.destination(0, size_of(type));
  inst.src[0] = lowering.source(1, size_of(type));
  inst.src[1] = lowering.source(2, 4);
  inst.src[2] = lowering.source(3, 4);
  inst.execute = with_integer_type(
      lowering, type, []<class T>(T) -> Execute { return ternary<T, T, std::uint32_t, std::uint32_t, Extract>; });
}

template <class U>
Flow execute_bfi(Warp& warp, const Inst& inst, std::uint32_t mask) {
  U* d = warp.lanes<U>(inst.dst[0]);
  const U* from = warp.lanes<U>(inst.src[0]);
  const U* into = warp.lanes<U>(inst.src[1]);
  const std::uint32_t* positions = warp.lanes<std::uint32_t>(inst.src[2]);
  const std::uint32_t* lengths = warp.lanes<std::uint32_t>(inst.src[3]);
  for_lanes(mask, [=](int i) {
    const std::uint32_t position = positions[i] & 255, length = lengths[i] & 255;
    if (position >= 8 * sizeof(U)) {
      d[i] = into[i];
      return;
    }
    const U field = static_cast<U>(low_bits<U>(length) << position);
    d[i] = (into[i] & ~field) | (static_cast<U>(from[i] << position) & field);
  });
  return Flow::kNext;
}

void lower_bfi(Lowering& lowering, Inst& inst) {
  const Type type = lowering.take_type({Type::kB32, Type::kB64});
  lowering.expect_operands(5);
  inst.dst[0] = lowering.destination(0, size_of(type));
  inst.src[0] = lowering.source(1, size_of(type));
  inst.src[1] = lowering.source(2, size_of(type));
  inst.src[2] = lowering.source(3, 4);
  inst.src[3] = lowering.source(4, 4);
  inst.execute = size_of(type) == 4 ? execute_bfi<std::uint32_t> : execute_bfi<std::uint64_t>;
}

struct MaskClamp {
  std::uint32_t operator()(std::uint32_t position, std::uint32_t length) const {
    position = std::min(position, 32u);
    length = std::min(length, 32u);
    return static_cast<std::uint32_t>(((std::uint64_t{1} << length) - 1) << position);
  }
};
struct MaskWrap {
  std::uint32_t operator()(std::uint32_t position, std::uint32_t length) const {
    return MaskClamp{}(position & 31, length & 31);
  }
};

void lower_bmsk(Lowering& lowering, Inst& inst) {
  const int beyond = lowering.take_any({"clamp", "wrap"});
  if (beyond < 0) lowering.fail("bmsk needs .clamp or .wrap");
  lowering.take_type({Type::kB32});
  inst.execute = beyond == 0 ? binary_of<std::uint32_t, MaskClamp> : binary_of<std::uint32_t, MaskWrap>;
  same_width_operands(lowering, inst, 2, 4);
}

// Sign- or zero-extends the low n bits; n beyond 32 is clamped or wrapped.
template <bool kClamp>
struct Extend {
  template <class T>
  T operator()(T value, std::uint32_t bits) const {
    if constexpr (!kClamp) bits &= 31;
    if (bits >= 32) return value;
    if (bits == 0) return 0;
    const auto up = static_cast<T>(static_cast<std::uint32_t>(value) << (32 - bits));
    return static_cast<T>(up >> (32 - bits));
  }
};

void lower_szext(Lowering& lowering, Inst& inst) {
  const int beyond = lowering.take_any({"clamp", "wrap"});
  if (beyond < 0) lowering.fail("szext needs .clamp or .wrap");
  const Type type = lowering.take_type({Type::kU32, Type::kS32});
  if (type == Type::kU32) {
    inst.execute = beyond == 0 ? binary<std::uint32_t, std::uint32_t, std::uint32_t, Extend<true>>
                               : binary<std::uint32_t, std::uint32_t, std::uint32_t, Extend<false>>;
  } else {
    inst.execute = beyond == 0 ? binary<std::int32_t, std::int32_t, std::uint32_t, Extend<true>>
                               : binary<std::int32_t, std::int32_t, std::uint32_t, Extend<false>>;
  }
  same_width_operands(lowering, inst, 2, 4);
}

// ---- lop3: one function per truth table, so that each is a handful of vector operations

template <std::uint32_t kTable>
struct Lop3 {
  std::uint32_t operator()(std::uint32_t a, std::uint32_t b, std::uint32_t c) const {
    std::uint32_t result = 0;
    if constexpr (kTable & 0x01) result |= ~a & ~b & ~c;
    if constexpr (kTable & 0x02) result |= ~a & ~b & c;
    if constexpr (kTable & 0x04) result |= ~a & b & ~c;
    if constexpr (kTable & 0x08) result |= ~a & b & c;
    if constexpr (kTable & 0x10) result |= a & ~b & ~c;
    if constexpr (kTable & 0x20) result |= a & ~b & c;
    if constexpr (kTable & 0x40) result |= a & b & ~c;
    if constexpr (kTable & 0x80) result |= a & b & c;
    return result;
  }
};

template <std::size_t... kTables>
constexpr std::array<Execute, sizeof...(kTables)> lop3_table(std::index_sequence<kTables...>) {
  return {ternary_of<std::uint32_t, Lop3<static_cast<std::uint32_t>(kTables)>>...};
}

constexpr std::array<Execute, 256> kLop3 = lop3_table(std::make_index_sequence<256>());

// With a predicate: p = (result != 0) op q.
template <bool kAnd>
Flow lop3_with_predicate(Warp& warp, const Inst& inst, std::uint32_t mask) {
  kLop3[static_cast<std::size_t>(inst.imm)](warp, inst, mask);
  const std::uint32_t* d = warp.lanes<std::uint32_t>(inst.dst[0]);
  std::uint32_t nonzero = 0;
  for_each_lane(mask, [&](int i) { nonzero |= std::uint32_t{d[i] != 0} << i; });
  const std::uint32_t q = warp.predicate(inst.src[3]);
  set_predicate(warp, inst.dst[1], mask, kAnd ? nonzero & q : nonzero | q);
  return Flow::kNext;
}

void lower_lop3(Lowering& lowering, Inst& inst) {
  const int with = lowering.take_any({"and", "or"});
  lowering.take_type({Type::kB32});
  std::size_t first = 1;
  inst.dst[0] = lowering.destination(0, 4);
  if (with >= 0) {
    if (!lowering.has_second_destination()) lowering.fail("lop3 with .and or .or needs a predicate");
    lowering.expect_operands(7);
    inst.dst[1] = lowering.destination_predicate(1);
    first = 2;
    inst.src[3] = lowering.source_predicate(6);
  } else {
    lowering.expect_operands(5);
  }
  for (std::size_t i = 0; i < 3; ++i) inst.src[i] = lowering.source(first + i, 4);
  inst.imm = static_cast<std::int64_t>(lowering.number(first + 3) & 255);
  inst.execute = with < 0    ? kLop3[static_cast<std::size_t>(inst.imm)]
                 : with == 0 ? lop3_with_predicate<true>
                             : lop3_with_predicate<false>;
}

// ---- prmt: selects four of the eight bytes b:a

std::uint32_t select_bytes(std::uint32_t a, std::uint32_t b, const std::array<std::uint32_t, 4>& selectors) {
  const std::uint64_t bytes = std::uint64_t{b} << 32 | a;
  std::uint32_t result = 0;
  for (unsigned k = 0; k < 4; ++k) result |= static_cast<std::uint32_t>(bytes >> (8 * selectors[k]) & 255) << (8 * k);
  return result;
}

struct Permute {  // the default mode: bit 3 of a selector spreads the byte's sign
  std::uint32_t operator()(std::uint32_t a, std::uint32_t b, std::uint32_t selector) const {
    const std::uint64_t bytes = std::uint64_t{b} << 32 | a;
    std::uint32_t result = 0;
    for (unsigned k = 0; k < 4; ++k) {
      const std::uint32_t select = selector >> (4 * k) & 15;
      std::uint32_t byte = static_cast<std::uint32_t>(bytes >> (8 * (select & 7)) & 255);
      if (select & 8) byte = (byte & 0x80) ? 0xff : 0;
      result |= byte << (8 * k);
    }
    return result;
  }
};
struct Forward4 {
  std::uint32_t operator()(std::uint32_t a, std::uint32_t b, std::uint32_t s) const {
    s &= 3;
    return select_bytes(a, b, {s, s + 1, s + 2, s + 3});
  }
};
struct Backward4 {
  std::uint32_t operator()(std::uint32_t a, std::uint32_t b, std::uint32_t s) const {
    s &= 3;
    return select_bytes(a, b, {s, (s + 7) & 7, (s + 6) & 7, (s + 5) & 7});
  }
};
struct Replicate8 {
  std::uint32_t operator()(std::uint32_t a, std::uint32_t b, std::uint32_t s) const {
    s &= 3;
    return select_bytes(a, b, {s, s, s, s});
  }
};
struct EdgeLeft {
  std::uint32_t operator()(std::uint32_t a, std::uint32_t b, std::uint32_t s) const {
    s &= 3;
    return select_bytes(a, b, {s, std::max(s, 1u), std::max(s, 2u), 3});
  }
};
struct EdgeRight {
  std::uint32_t operator()(std::uint32_t a, std::uint32_t b, std::uint32_t s) const {
    s &= 3;
    return select_bytes(a, b, {0, std::min(s, 1u), std::min(s, 2u), s});
  }
};
struct Replicate16 {
  std::uint32_t operator()(std::uint32_t a, std::uint32_t b, std::uint32_t s) const {
    const std::uint32_t low = (s & 1) * 2;
    return select_bytes(a, b, {low, low + 1, low, low + 1});
  }
};

void lower_prmt(Lowering& lowering, Inst& inst) {
  lowering.take_type({Type::kB32});
  using U = std::uint32_t;
  switch (lowering.take_any({"f4e", "b4e", "rc8", "ecl", "ecr", "rc16"})) {
    case 0:
      inst.execute = ternary_of<U, Forward4>;
      break;
    case 1:
      inst.execute = ternary_of<U, Backward4>;
      break;
    case 2:
      inst.execute = ternary_of<U, Replicate8>;
      break;
    case 3:
      inst.execute = ternary_of<U, EdgeLeft>;
      break;
    case 4:
      inst.execute = ternary_of<U, EdgeRight>;
      break;
    case 5:
      inst.execute = ternary_of<U, Replicate16>;
      break;
    default:
      inst.execute = ternary_of<U, Permute>;
  }
  same_width_operands(lowering, inst, 3, 4);
}

}  // namespace

void add_bits(InstructionSet& set) {
  auto& all = set.general;
  all["and"] = lower_logic<And>;
  all["or"] = lower_logic<Or>;
  all["xor"] = lower_logic<Xor>;
  all["not"] = lower_not;
  all["cnot"] = lower_cnot;
  all["shl"] = lower_shift<ShiftLeft>;
  all["shr"] = lower_shift<ShiftRight>;
  all["shf"] = lower_funnel;
  all["popc"] = lower_count<Popc>;
  all["clz"] = lower_count<Clz>;
  all["bfind"] = lower_bfind;
  all["fns"] = lower_fns;
  all["brev"] = lower_brev;
  all["bfe"] = lower_bfe;
  all["bfi"] = lower_bfi;
  all["bmsk"] = lower_bmsk;
  all["szext"] = lower_szext;
  all["lop3"] = lower_lop3;
  all["prmt"] = lower_prmt;
}

}  // namespace ptx
