// mov in all its forms (registers, packing, addresses, clocks), cvta, isspacep.

#include <chrono>
#include <cstring>

#include "alu.hpp"

namespace ptx {
namespace {

template <class U>
Flow execute_copy(Warp& warp, const Inst& inst, std::uint32_t mask) {
  U* d = warp.lanes<U>(inst.dst[0]);
  const U* a = warp.lanes<U>(inst.src[0]);
  if (mask == kFullMask) {
    std::memcpy(d, a, sizeof(U) * kLanes);
  } else {
    for_lanes(mask, [=](int i) { d[i] = a[i]; });
  }
  return Flow::kNext;
}

struct Bits128 {
  std::uint64_t low, high;
};

Flow execute_copy_predicate(Warp& warp, const Inst& inst, std::uint32_t mask) {
  set_predicate(warp, inst.dst[0], mask, warp.predicate(inst.src[0]));
  return Flow::kNext;
}

// mov.b64 {a, b}, c and mov.b64 c, {a, b}: inst.list has the elements, inst.size bytes each.
Flow execute_pack(Warp& warp, const Inst& inst, std::uint32_t mask) {
  const std::size_t size = inst.size, whole = size * inst.count;
  for (std::size_t k = 0; k < inst.count; ++k) {
    const std::byte* from = warp.registers + inst.list[k];
    std::byte* to = warp.registers + inst.dst[0] + k * size;
    for_each_lane(mask, [&](int i) {
      const auto lane = static_cast<std::size_t>(i);
      std::memcpy(to + lane * whole, from + lane * size, size);
    });
  }
  return Flow::kNext;
}

Flow execute_unpack(Warp& warp, const Inst& inst, std::uint32_t mask) {
  const std::size_t size = inst.size, whole = size * inst.count;
  for (std::size_t k = 0; k < inst.count; ++k) {
    const std::byte* from = warp.registers + inst.src[0] + k * size;
    std::byte* to = warp.registers + inst.list[k];
    for_each_lane(mask, [&](int i) {
      const auto lane = static_cast<std::size_t>(i);
      std::memcpy(to + lane * size, from + lane * whole, size);
    });
  }
  return Flow::kNext;
}

struct PackHalves {
  std::uint32_t operator()(std::uint16_t low, std::uint16_t high) const { return low | std::uint32_t{high} << 16; }
};
struct PackWords {
  std::uint64_t operator()(std::uint32_t low, std::uint32_t high) const { return low | std::uint64_t{high} << 32; }
};

template <class Part, class Whole>
Flow execute_unpack_two(Warp& warp, const Inst& inst, std::uint32_t mask) {
  Part* low = warp.lanes<Part>(inst.dst[0]);
  Part* high = warp.lanes<Part>(inst.dst[1]);
  const Whole* whole = warp.lanes<Whole>(inst.src[0]);
  for_lanes(mask, [=](int i) {
    const Whole value = whole[i];
    low[i] = static_cast<Part>(value);
    high[i] = static_cast<Part>(value >> (8 * sizeof(Part)));
  });
  return Flow::kNext;
}

void lower_pack(Lowering& lowering, Inst& inst, std::size_t bytes) {
  const std::vector<Operand> parts = lowering.elements(1);
  if (parts.empty() || bytes % parts.size()) lowering.fail("cannot pack that many parts");
  const std::size_t size = bytes / parts.size();
  inst.dst[0] = lowering.destination(0, bytes);
  std::vector<Reg> regs;
  for (const Operand& part : parts) regs.push_back(lowering.source(part, size));
  inst.src[0] = regs[0];
  inst.src[1] = regs.back();
  if (parts.size() == 2 && size == 2) {
    inst.execute = binary<std::uint32_t, std::uint16_t, std::uint16_t, PackHalves>;
  } else if (parts.size() == 2 && size == 4) {
    inst.execute = binary<std::uint64_t, std::uint32_t, std::uint32_t, PackWords>;
  } else {
    inst.list = lowering.list(regs);
    inst.size = static_cast<std::uint8_t>(size);
    inst.count = static_cast<std::uint8_t>(parts.size());
    inst.execute = execute_pack;
  }
}

void lower_unpack(Lowering& lowering, Inst& inst, std::size_t bytes) {
  const std::vector<Operand> parts = lowering.elements(0);
  if (parts.empty() || bytes % parts.size()) lowering.fail("cannot unpack into that many parts");
  const std::size_t size = bytes / parts.size();
  inst.src[0] = lowering.source(1, bytes);
  std::vector<Reg> regs;
  for (const Operand& part : parts) regs.push_back(lowering.destination(part, size));
  if (parts.size() == 2 && size == 2) {
    inst.dst[0] = regs[0];
    inst.dst[1] = regs[1];
    inst.execute = execute_unpack_two<std::uint16_t, std::uint32_t>;
  } else if (parts.size() == 2 && size == 4) {
    inst.dst[0] = regs[0];
    inst.dst[1] = regs[1];
    inst.execute = execute_unpack_two<std::uint32_t, std::uint64_t>;
  } else {
    inst.list = lowering.list(regs);
    inst.size = static_cast<std::uint8_t>(size);
    inst.count = static_cast<std::uint8_t>(parts.size());
    inst.execute = execute_unpack;
  }
}

// ---- registers that change while a kernel runs

enum class Changing : std::uint32_t { kClock, kClockHigh, kGlobalTimer, kGlobalTimerHigh };

Flow execute_changing(Warp& warp, const Inst& inst, std::uint32_t mask) {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  auto value = static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
  const auto which = static_cast<Changing>(inst.option);
  if (which == Changing::kClockHigh || which == Changing::kGlobalTimerHigh) value >>= 32;
  for_each_lane(mask, [&](int i) {
    if (inst.size == 8) {
      warp.lanes<std::uint64_t>(inst.dst[0])[i] = value;
    } else {
      warp.lanes<std::uint32_t>(inst.dst[0])[i] = static_cast<std::uint32_t>(value);
    }
  });
  return Flow::kNext;
}

bool lower_changing(Lowering& lowering, Inst& inst, std::size_t bytes) {
  static constexpr struct {
    std::string_view name;
    Changing which;
  } kNames[] = {{"%clock", Changing::kClock},
                {"%clock_hi", Changing::kClockHigh},
                {"%clock64", Changing::kClock},
                {"%globaltimer", Changing::kGlobalTimer},
                {"%globaltimer_lo", Changing::kGlobalTimer},
                {"%globaltimer_hi", Changing::kGlobalTimerHigh}};
  for (const auto& row : kNames) {
    if (lowering.operand(1).name != row.name) continue;
    inst.option = static_cast<std::uint32_t>(row.which);
    inst.size = static_cast<std::uint8_t>(bytes);
    inst.dst[0] = lowering.destination(0, bytes);
    inst.execute = execute_changing;
    return true;
  }
  return false;
}

void lower_mov(Lowering& lowering, Inst& inst) {
  const Type type = lowering.take_type();
  lowering.expect_operands(2);
  if (type == Type::kPred) {
    inst.dst[0] = lowering.destination_predicate(0);
    inst.src[0] = lowering.source_predicate(1);
    inst.execute = execute_copy_predicate;
    return;
  }
  const std::size_t bytes = size_of(type);
  if (lowering.operand(0).kind == Operand::Kind::kVector) return lower_unpack(lowering, inst, bytes);
  if (lowering.operand(1).kind == Operand::Kind::kVector) return lower_pack(lowering, inst, bytes);
  if (lower_changing(lowering, inst, bytes)) return;
  inst.dst[0] = lowering.destination(0, bytes);
  inst.src[0] = lowering.source(1, bytes);
  switch (bytes) {
    case 2:
      inst.execute = execute_copy<std::uint16_t>;
      break;
    case 4:
      inst.execute = execute_copy<std::uint32_t>;
      break;
    case 8:
      inst.execute = execute_copy<std::uint64_t>;
      break;
    case 16:
      inst.execute = execute_copy<Bits128>;
      break;
    default:
      lowering.fail("the type is not supported here");
  }
}

// ---- address spaces

struct ToGeneric {
  template <class U>
  std::uint64_t operator()(U a) const {
    return a + kSharedWindow;
  }
};
struct FromGeneric {
  std::uint64_t operator()(std::uint64_t a) const { return a - kSharedWindow; }
};

void lower_cvta(Lowering& lowering, Inst& inst) {
  const bool from_generic = lowering.take("to");
  const Space space = lowering.take_space();
  lowering.take_type({Type::kU64});
  lowering.expect_operands(2);
  inst.dst[0] = lowering.destination(0, 8);
  inst.src[0] = lowering.source(1, 8);
  if (space != Space::kShared) {
    inst.execute = execute_copy<std::uint64_t>;
  } else {
    inst.execute = from_generic ? unary_of<std::uint64_t, FromGeneric> : unary_of<std::uint64_t, ToGeneric>;
  }
}

Flow execute_isspacep(Warp& warp, const Inst& inst, std::uint32_t mask) {
  const std::uint64_t* address = warp.lanes<std::uint64_t>(inst.src[0]);
  const Launch& launch = *warp.block->launch;
  const auto inside = [](std::uint64_t at, const void* base, std::size_t bytes) {
    return at - reinterpret_cast<std::uint64_t>(base) < bytes;
  };
  std::uint32_t result = 0;
  for_each_lane(mask, [&](int i) {
    const bool shared = address[i] - kSharedWindow < kSharedWindowSize;
    const bool local = inside(address[i], warp.block->local.get(), warp.block->local_bytes);
    const bool param = inside(address[i], launch.parameters.data(), launch.parameters.size());
    bool is = false;
    switch (inst.space) {
      case Space::kShared:
        is = shared;
        break;
      case Space::kLocal:
        is = local;
        break;
      case Space::kParam:
        is = param;
        break;
      case Space::kConst: {
        // Constant variables are ordinary allocations of the module; nothing that nvcc emits asks for them.
        is = false;
        break;
      }
      default:
        is = !shared && !local && !param;
    }
    result |= std::uint32_t{is} << i;
  });
  set_predicate(warp, inst.dst[0], mask, result);
  return Flow::kNext;
}

void lower_isspacep(Lowering& lowering, Inst& inst) {
  inst.space = lowering.take_space();
  lowering.expect_operands(2);
  inst.dst[0] = lowering.destination_predicate(0);
  inst.src[0] = lowering.source(1, 8);
  inst.execute = execute_isspacep;
}

}  // namespace

void add_move(InstructionSet& set) {
  auto& all = set.general;
  all["mov"] = lower_mov;
  all["cvta"] = lower_cvta;
  all["isspacep"] = lower_isspacep;
}

}  // namespace ptx
