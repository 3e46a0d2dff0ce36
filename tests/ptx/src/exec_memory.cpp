// ld and st in every space, ldu, prefetch and its kin.

#include <cstring>

#include "access.hpp"
#include "alu.hpp"

namespace ptx {
namespace {

bool is_strong(Order order) {
  return order != Order::kWeak;
}

// The register is as wide as the element.
template <std::size_t kSize>
Flow execute_load(Warp& warp, const Inst& inst, std::uint32_t mask) {
  LaneAddresses addresses;
  LanePointers pointers;
  lane_addresses(warp, inst, addresses);
  resolve(warp, inst, mask, inst.space, addresses, kSize * inst.count, {true, false, is_strong(inst.order)}, pointers);
  for (std::size_t k = 0; k < inst.count; ++k) {
    std::byte* to = warp.registers + inst.list[k];
    for_each_lane(mask, [&](int lane) {
      const auto i = static_cast<std::size_t>(lane);
      std::memcpy(to + i * kSize, pointers[i] + k * kSize, kSize);
    });
  }
  return Flow::kNext;
}

// The register is wider: the value is extended by its sign or by zeros.
Flow execute_load_extended(Warp& warp, const Inst& inst, std::uint32_t mask) {
  LaneAddresses addresses;
  LanePointers pointers;
  lane_addresses(warp, inst, addresses);
  const std::size_t size = inst.size, width = inst.reg_size;
  resolve(warp, inst, mask, inst.space, addresses, size * inst.count, {true, false, is_strong(inst.order)}, pointers);
  const int shift = static_cast<int>(64 - 8 * size);
  for (std::size_t k = 0; k < inst.count; ++k) {
    std::byte* to = warp.registers + inst.list[k];
    for_each_lane(mask, [&](int lane) {
      const auto i = static_cast<std::size_t>(lane);
      std::uint64_t value = 0;
      std::memcpy(&value, pointers[i] + k * size, size);
      if (inst.sign_extend) value = static_cast<std::uint64_t>(static_cast<std::int64_t>(value << shift) >> shift);
      std::memcpy(to + i * width, &value, width);
    });
  }
  return Flow::kNext;
}

// A kernel parameter at a fixed place: one value for all lanes.
Flow execute_load_parameter(Warp& warp, const Inst& inst, std::uint32_t mask) {
  const std::byte* from = warp.block->launch->parameters.data() + inst.imm;
  const std::size_t size = inst.size, width = inst.reg_size;
  for (std::size_t k = 0; k < inst.count; ++k) {
    std::uint64_t value[2] = {0, 0};
    std::memcpy(value, from + k * size, size);
    if (inst.sign_extend) {
      const int shift = static_cast<int>(64 - 8 * size);
      value[0] = static_cast<std::uint64_t>(static_cast<std::int64_t>(value[0] << shift) >> shift);
    }
    std::byte* to = warp.registers + inst.list[k];
    for_each_lane(mask, [&](int lane) { std::memcpy(to + static_cast<std::size_t>(lane) * width, value, width); });
  }
  return Flow::kNext;
}

Flow execute_store(Warp& warp, const Inst& inst, std::uint32_t mask) {
  LaneAddresses addresses;
  LanePointers pointers;
  lane_addresses(warp, inst, addresses);
  const std::size_t size = inst.size, width = inst.reg_size;
  resolve(warp, inst, mask, inst.space, addresses, size * inst.count, {false, true, is_strong(inst.order)}, pointers);
  for (std::size_t k = 0; k < inst.count; ++k) {
    const std::byte* from = warp.registers + inst.list[k];
    const auto copy = [&]<std::size_t kSize>(std::integral_constant<std::size_t, kSize>) {
      for_each_lane(mask, [&](int lane) {
        const auto i = static_cast<std::size_t>(lane);
        std::memcpy(pointers[i] + k * kSize, from + i * width, kSize);
      });
    };
    switch (size) {
      case 1:
        copy(std::integral_constant<std::size_t, 1>{});
        break;
      case 2:
        copy(std::integral_constant<std::size_t, 2>{});
        break;
      case 4:
        copy(std::integral_constant<std::size_t, 4>{});
        break;
      case 8:
        copy(std::integral_constant<std::size_t, 8>{});
        break;
      default:
        copy(std::integral_constant<std::size_t, 16>{});
    }
  }
  return Flow::kNext;
}

void take_memory_modifiers(Lowering& lowering, Inst& inst) {
  lowering.take_order(inst);
  lowering.take_scope(inst);
  inst.space = lowering.take_space();
  lowering.take_cache_hints();
  // .v2 and the like before the type.
  inst.count = static_cast<std::uint8_t>(lowering.take_vector());
}

bool is_kernel_parameter(Lowering& lowering, std::size_t operand) {
  const Operand& address = lowering.operand(operand);
  if (address.name.empty() || lowering.is_register(Operand{Operand::Kind::kName, address.name, 0, 0, false, {}}))
    return false;
  const Lowering::Symbol* symbol = lowering.find_symbol(address.name);
  return symbol && symbol->kernel_parameter;
}

void lower_ld(Lowering& lowering, Inst& inst) {
  lowering.take("nc");
  lowering.take("unified");
  take_memory_modifiers(lowering, inst);
  const Type type = lowering.take_type();
  if (type == Type::kPred || size_of(type) == 0) lowering.fail("the type is not supported here");
  lowering.expect_operands(2);
  const std::vector<Operand> elements = lowering.elements(0);
  if (elements.size() != inst.count) lowering.fail("expected as many registers as elements");
  std::vector<Reg> registers;
  std::uint8_t width = 0;
  for (const Operand& element : elements) {
    // A sink does not say how wide it is; it takes the width of its neighbours.
    std::uint8_t own = 0;
    if (element.kind == Operand::Kind::kSink) {
      registers.push_back(lowering.scratch(8));
      continue;
    }
    registers.push_back(lowering.destination_wide(element, size_of(type), own));
    if (width && width != own) lowering.fail("registers of different widths");
    width = own;
  }
  inst.list = lowering.list(std::move(registers));
  inst.size = static_cast<std::uint8_t>(size_of(type));
  inst.reg_size = width ? width : inst.size;
  inst.sign_extend = is_signed_integer(type) && inst.reg_size > inst.size;
  if (inst.space == Space::kParam && is_kernel_parameter(lowering, 1)) {
    const Operand& address = lowering.operand(1);
    const Lowering::Symbol* symbol = lowering.find_symbol(address.name);
    inst.imm = static_cast<std::int64_t>(symbol->at) + address.offset;
    if (inst.imm < 0 ||
        address.offset + static_cast<std::int64_t>(inst.size) * inst.count > static_cast<std::int64_t>(symbol->bytes))
      lowering.fail("outside of the parameter");
    inst.execute = execute_load_parameter;
    return;
  }
  lowering.address(1, inst);
  if (inst.reg_size != inst.size) {
    inst.execute = execute_load_extended;
    return;
  }
  switch (inst.size) {
    case 1:
      inst.execute = execute_load<1>;
      break;
    case 2:
      inst.execute = execute_load<2>;
      break;
    case 4:
      inst.execute = execute_load<4>;
      break;
    case 8:
      inst.execute = execute_load<8>;
      break;
    default:
      inst.execute = execute_load<16>;
  }
}

void lower_st(Lowering& lowering, Inst& inst) {
  take_memory_modifiers(lowering, inst);
  const Type type = lowering.take_type();
  if (type == Type::kPred || size_of(type) == 0) lowering.fail("the type is not supported here");
  lowering.expect_operands(2);
  const std::vector<Operand> elements = lowering.elements(1);
  if (elements.size() != inst.count) lowering.fail("expected as many registers as elements");
  // Numbers among the elements take the width of the registers.
  std::size_t width = size_of(type);
  for (const Operand& element : elements)
    if (const int own = lowering.register_width(element); own > static_cast<int>(width))
      width = static_cast<std::size_t>(own);
  std::vector<Reg> registers;
  for (const Operand& element : elements) registers.push_back(lowering.source(element, width));
  inst.list = lowering.list(std::move(registers));
  inst.size = static_cast<std::uint8_t>(size_of(type));
  inst.reg_size = static_cast<std::uint8_t>(width);
  lowering.address(0, inst);
  if (inst.space == Space::kParam) lowering.fail("a store to the kernel's parameters");
  inst.execute = execute_store;
}

Flow execute_nothing(Warp&, const Inst&, std::uint32_t) {
  return Flow::kNext;
}

// Hints. discard makes the contents undefined: it must lie within an allocation, as a write does.
void lower_prefetch(Lowering& lowering, Inst& inst) {
  inst.space = lowering.take_space();
  lowering.take_any({"L1", "L2"});
  lowering.take_any({"L2::evict_last", "L2::evict_normal"});
  lowering.take("tensormap");
  inst.execute = execute_nothing;
}

Flow execute_discard(Warp& warp, const Inst& inst, std::uint32_t mask) {
  LaneAddresses addresses;
  LanePointers pointers;
  lane_addresses(warp, inst, addresses);
  resolve(warp, inst, mask, inst.space, addresses, inst.size, {false, true, false}, pointers);
  return Flow::kNext;
}

void lower_discard(Lowering& lowering, Inst& inst) {
  inst.space = lowering.take_space();
  if (!lowering.take("L2")) lowering.fail("discard needs .L2");
  lowering.expect_operands(2);
  if (lowering.number(1) != 128) lowering.fail("discard takes 128 bytes");
  inst.size = 128;
  lowering.address(0, inst);
  inst.execute = execute_discard;
}

void lower_applypriority(Lowering& lowering, Inst& inst) {
  inst.space = lowering.take_space();
  if (!lowering.take("L2::evict_normal")) lowering.fail("applypriority needs .L2::evict_normal");
  inst.execute = execute_nothing;
}

// A cache policy is a number that later accesses carry; it changes no result.
void lower_createpolicy(Lowering& lowering, Inst& inst) {
  while (lowering.take_any({"fractional", "range", "global", "L2::evict_last", "L2::evict_normal", "L2::evict_first",
                            "L2::evict_unchanged", "cvt", "L2"}) >= 0) {
  }
  lowering.take_type({Type::kB64});
  lowering.destination(0, 8);
  inst.execute = execute_nothing;
}

}  // namespace

void add_memory(InstructionSet& set) {
  auto& all = set.general;
  all["ld"] = lower_ld;
  all["ldu"] = lower_ld;
  all["st"] = lower_st;
  all["prefetch"] = lower_prefetch;
  all["prefetchu"] = lower_prefetch;
  all["discard"] = lower_discard;
  all["applypriority"] = lower_applypriority;
  all["createpolicy"] = lower_createpolicy;
}

}  // namespace ptx
