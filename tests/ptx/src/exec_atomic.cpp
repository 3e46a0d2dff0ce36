// atom and red. Lanes take their turn in order.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "access.hpp"
#include "alu.hpp"
#include "numbers.hpp"

namespace ptx {
namespace {

enum class Operation : std::uint8_t {
  kAdd,
  kMin,
  kMax,
  kAnd,
  kOr,
  kXor,
  kExchange,
  kCompareAndSwap,
  kIncrement,
  kDecrement
};

template <class T>
T apply_integer(Operation operation, T old, T a, T b) {
  using U = std::make_unsigned_t<T>;
  switch (operation) {
    case Operation::kAdd:
      return static_cast<T>(static_cast<U>(old) + static_cast<U>(a));
    case Operation::kMin:
      return std::min(old, a);
    case Operation::kMax:
      return std::max(old, a);
    case Operation::kAnd:
      return static_cast<T>(old & a);
    case Operation::kOr:
      return static_cast<T>(old | a);
    case Operation::kXor:
      return static_cast<T>(old ^ a);
    case Operation::kExchange:
      return a;
    case Operation::kCompareAndSwap:
      return old == a ? b : old;
    case Operation::kIncrement:
      return old >= a ? T{0} : static_cast<T>(old + 1);
    case Operation::kDecrement:
      return old == 0 || old > a ? a : static_cast<T>(old - 1);
  }
  return old;
}

// Floating-point types only add; f32 in global memory flushes subnormal numbers.
struct AddF32 {
  using Word = float;
  static float apply(float old, float a, bool global) { return global ? flush(flush(old) + flush(a)) : old + a; }
};
struct AddF64 {
  using Word = double;
  static double apply(double old, double a, bool) { return old + a; }
};
template <bool kBF16>
std::uint16_t add_half(std::uint16_t old, std::uint16_t a) {
  if constexpr (kBF16)
    return static_cast<std::uint16_t>(
        encode(double{bf16_to_float(old)} + bf16_to_float(a), kFormatBF16, Rounding::kNearest));
  return static_cast<std::uint16_t>(
      encode(double{f16_to_float(old)} + f16_to_float(a), kFormatF16, Rounding::kNearest));
}
template <bool kBF16>
struct AddHalf {
  using Word = std::uint16_t;
  static Word apply(Word old, Word a, bool) { return add_half<kBF16>(old, a); }
};
template <bool kBF16>
struct AddHalves {
  using Word = std::uint32_t;
  static Word apply(Word old, Word a, bool) {
    const auto part = [](Word x, int shift) { return static_cast<std::uint16_t>(x >> shift); };
    return add_half<kBF16>(part(old, 0), part(a, 0)) | Word{add_half<kBF16>(part(old, 16), part(a, 16))} << 16;
  }
};

// One lane's pointer: checks and release order belong to its turn.
void resolve_atomic(Warp& warp, const Inst& inst, int lane, const LaneAddresses& addresses, std::size_t bytes,
                    LanePointers& pointers) {
  resolve(warp, inst, 1u << lane, inst.space, addresses, bytes, {true, true, true}, pointers);
}

template <class T>
Flow execute_integer(Warp& warp, const Inst& inst, std::uint32_t mask) {
  LaneAddresses addresses;
  LanePointers pointers;
  lane_addresses(warp, inst, addresses);
  const auto operation = static_cast<Operation>(inst.option);
  const T* a = warp.lanes<T>(inst.src[1]);
  const T* b = inst.src[2] == kNoReg ? a : warp.lanes<T>(inst.src[2]);
  for_each_lane(mask, [&](int i) {
    resolve_atomic(warp, inst, i, addresses, sizeof(T), pointers);
    std::byte* at = pointers[static_cast<std::size_t>(i)];
    T old;
    std::memcpy(&old, at, sizeof old);
    const T result = apply_integer(operation, old, a[i], b[i]);
    std::memcpy(at, &result, sizeof result);
    if (inst.dst[0] != kNoReg) warp.lanes<T>(inst.dst[0])[i] = old;
  });
  return Flow::kNext;
}

// Sixteen bytes: exchange and compare-and-swap only.
Flow execute_128(Warp& warp, const Inst& inst, std::uint32_t mask) {
  struct Wide {
    std::uint64_t low, high;
  };
  LaneAddresses addresses;
  LanePointers pointers;
  lane_addresses(warp, inst, addresses);
  const bool swap_always = static_cast<Operation>(inst.option) == Operation::kExchange;
  for_each_lane(mask, [&](int i) {
    resolve_atomic(warp, inst, i, addresses, 16, pointers);
    std::byte* at = pointers[static_cast<std::size_t>(i)];
    Wide old;
    std::memcpy(&old, at, sizeof old);
    const Wide a = warp.lanes<Wide>(inst.src[1])[i];
    if (swap_always) {
      std::memcpy(at, &a, sizeof a);
    } else if (old.low == a.low && old.high == a.high) {
      const Wide b = warp.lanes<Wide>(inst.src[2])[i];
      std::memcpy(at, &b, sizeof b);
    }
    if (inst.dst[0] != kNoReg) warp.lanes<Wide>(inst.dst[0])[i] = old;
  });
  return Flow::kNext;
}

template <class F>
Flow execute_float(Warp& warp, const Inst& inst, std::uint32_t mask) {
  using Word = typename F::Word;
  LaneAddresses addresses;
  LanePointers pointers;
  lane_addresses(warp, inst, addresses);
  for_each_lane(mask, [&](int i) {
    const auto lane = static_cast<std::size_t>(i);
    const bool shared = inst.space == Space::kShared ||
                        (inst.space == Space::kGeneric && addresses[lane] - kSharedWindow < kSharedWindowSize);
    // Every element of a vector is an atomic operation of its own.
    for (std::size_t k = 0; k < inst.count; ++k) {
      LaneAddresses element;
      element[lane] = addresses[lane] + k * sizeof(Word);
      resolve_atomic(warp, inst, i, element, sizeof(Word), pointers);
      Word old;
      std::memcpy(&old, pointers[lane], sizeof old);
      const Word result = F::apply(old, warp.lanes<Word>(inst.list[k])[i], !shared);
      std::memcpy(pointers[lane], &result, sizeof result);
      if (inst.dst[0] != kNoReg) warp.lanes<Word>(inst.list[inst.count + k])[i] = old;
    }
  });
  return Flow::kNext;
}

Execute choose_float(Lowering& lowering, Type type) {
  switch (type) {
    case Type::kF32:
      return execute_float<AddF32>;
    case Type::kF64:
      return execute_float<AddF64>;
    case Type::kF16:
      return execute_float<AddHalf<false>>;
    case Type::kBF16:
      return execute_float<AddHalf<true>>;
    case Type::kF16x2:
      return execute_float<AddHalves<false>>;
    case Type::kBF16x2:
      return execute_float<AddHalves<true>>;
    default:
      lowering.fail("the type is not supported here");
  }
}

void lower(Lowering& lowering, Inst& inst, bool has_result) {
  inst.order = Order::kRelaxed;
  lowering.take_order(inst);
  lowering.take_scope(inst);
  inst.space = lowering.take_space();
  lowering.take_cache_hints();
  inst.count = static_cast<std::uint8_t>(lowering.take_vector());
  const int operation = lowering.take_any({"add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec"});
  if (operation < 0) lowering.fail("the operation is missing");
  inst.option = static_cast<std::uint32_t>(operation);
  const bool swaps = static_cast<Operation>(operation) == Operation::kCompareAndSwap;
  const bool noftz = lowering.take("noftz");
  const Type type = lowering.take_type();
  const std::size_t bytes = size_of(type), first = has_result ? 1 : 0;
  lowering.expect_operands(first + 2 + swaps);
  lowering.address(first, inst);
  if (is_float(type)) {
    if (static_cast<Operation>(operation) != Operation::kAdd) lowering.fail("floating-point values can only be added");
    if (noftz != (bytes == 2 || type == Type::kF16x2 || type == Type::kBF16x2))
      lowering.fail(".noftz goes with half precision");
    std::vector<Reg> registers;
    for (const Operand& element : lowering.elements(first + 1)) registers.push_back(lowering.source(element, bytes));
    if (registers.size() != inst.count) lowering.fail("expected as many registers as elements");
    if (has_result) {
      for (const Operand& element : lowering.elements(0)) registers.push_back(lowering.destination(element, bytes));
      if (registers.size() != 2u * inst.count) lowering.fail("expected as many registers as elements");
      inst.dst[0] = registers.back();
    }
    inst.list = lowering.list(std::move(registers));
    inst.execute = choose_float(lowering, type);
    return;
  }
  if (inst.count != 1) lowering.fail("vectors of integers are not supported");
  if (has_result && lowering.operand(0).kind != Operand::Kind::kSink) inst.dst[0] = lowering.destination(0, bytes);
  inst.src[1] = lowering.source(first + 1, bytes);
  if (swaps) inst.src[2] = lowering.source(first + 2, bytes);
  if (type == Type::kB128) {
    if (static_cast<Operation>(operation) < Operation::kExchange) lowering.fail("the operation is not for 128 bits");
    inst.execute = execute_128;
  } else {
    inst.execute = with_integer_type(lowering, type, []<class T>(T) -> Execute { return execute_integer<T>; });
  }
}

}  // namespace

void add_atomic(InstructionSet& set) {
  set.general["atom"] = [](Lowering& lowering, Inst& inst) { lower(lowering, inst, true); };
  set.general["red"] = [](Lowering& lowering, Inst& inst) { lower(lowering, inst, false); };
}

}  // namespace ptx
