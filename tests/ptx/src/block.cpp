// A block's memory and the registers that its threads start with.

#include <algorithm>
#include <cstring>

#include "machine.hpp"
#include "options.hpp"

namespace ptx {
namespace {

AlignedBytes allocate(std::size_t bytes) {
  return AlignedBytes(
      static_cast<std::byte*>(::operator new[](std::max<std::size_t>(bytes, 64), std::align_val_t{64})));
}

constexpr std::size_t kAllocaBytes = 16384;

std::uint64_t value_of(Special special, const Block& block, std::uint32_t thread) {
  const Launch& launch = *block.launch;
  const Dim3& size = launch.block;
  const std::uint32_t lane = thread % kLanes;
  switch (special) {
    case Special::kTidX:
      return thread % size.x;
    case Special::kTidY:
      return thread / size.x % size.y;
    case Special::kTidZ:
      return thread / (size.x * size.y);
    case Special::kNtidX:
      return size.x;
    case Special::kNtidY:
      return size.y;
    case Special::kNtidZ:
      return size.z;
    case Special::kCtaidX:
      return block.index.x;
    case Special::kCtaidY:
      return block.index.y;
    case Special::kCtaidZ:
      return block.index.z;
    case Special::kNctaidX:
      return launch.grid.x;
    case Special::kNctaidY:
      return launch.grid.y;
    case Special::kNctaidZ:
      return launch.grid.z;
    case Special::kLaneId:
      return lane;
    case Special::kWarpId:
      return thread / kLanes;
    case Special::kNwarpId:
      return block.warps.size();
    case Special::kLaneMaskEq:
      return 1u << lane;
    case Special::kLaneMaskLt:
      return (1u << lane) - 1;
    case Special::kLaneMaskLe:
      return (1u << lane) | ((1u << lane) - 1);
    case Special::kLaneMaskGt:
      return ~((1u << lane) | ((1u << lane) - 1));
    case Special::kLaneMaskGe:
      return ~((1u << lane) - 1);
    case Special::kSmId:
      return 0;
    case Special::kNsmId:
      return 1;
    case Special::kGridId:
      return launch.grid_id;
    case Special::kDynamicShared:
      return launch.dynamic_shared;
    case Special::kTotalShared:
      return block.shared_bytes;
    case Special::kReservedShared:
      return 0;
    case Special::kZero:
      return 0;
    case Special::kOne:
      return 1;
    // The two halves of the address of the workspace of a cooperative launch.
    case Special::kEnvReg1:
      return reinterpret_cast<std::uint64_t>(launch.cooperative_workspace) >> 32;
    case Special::kEnvReg2:
      return reinterpret_cast<std::uint64_t>(launch.cooperative_workspace) & 0xffffffffu;
  }
  return 0;
}

void set_specials(Warp& warp) {
  for (const SpecialUse& use : warp.program->specials) {
    for (std::uint32_t lane = 0; lane < kLanes; ++lane) {
      const std::uint64_t value =
          value_of(use.special, *warp.block, static_cast<std::uint32_t>(warp.index) * kLanes + lane);
      if (use.size == 8) {
        warp.lanes<std::uint64_t>(use.reg)[lane] = value;
      } else {
        warp.lanes<std::uint32_t>(use.reg)[lane] = static_cast<std::uint32_t>(value);
      }
    }
  }
}

void set_addresses(Warp& warp) {
  const Launch& launch = *warp.block->launch;
  for (const AddressUse& use : warp.program->parameter_addresses) {
    const auto address = reinterpret_cast<std::uint64_t>(launch.parameters.data()) + use.offset;
    std::fill_n(warp.lanes<std::uint64_t>(use.reg), kLanes, address);
  }
  for (const AddressUse& use : warp.program->local_addresses)
    for (int lane = 0; lane < kLanes; ++lane)
      warp.lanes<std::uint64_t>(use.reg)[lane] = reinterpret_cast<std::uint64_t>(warp.local(lane)) + use.offset;
}

}  // namespace

void Block::prepare(Launch& of) {
  launch = &of;
  const Program& program = *of.program;
  threads = static_cast<int>(of.block.count());
  const std::size_t warp_count = (static_cast<std::size_t>(threads) + kLanes - 1) / kLanes;
  warps = std::vector<Warp>(warp_count);
  const std::size_t register_bytes = (program.initial_registers.size() + 63) / 64 * 64;
  registers = allocate(register_bytes * warp_count);
  shared_bytes = program.dynamic_shared + of.dynamic_shared;
  if (of.dynamic_shared == 0) shared_bytes = program.static_shared;
  shared = allocate(shared_bytes + 64);
  shared_pending.assign(shared_bytes / 4 + 1, 0);
  if (options().checks) {
    shared_initialised.resize(shared_bytes);
    shared_cells.resize(shared_bytes / 4 + 1);
  }
  local_stride = (program.local + (program.uses_alloca ? kAllocaBytes : 0) + 63) / 64 * 64;
  local_bytes = local_stride * kLanes * warp_count;
  local = allocate(local_bytes);
  std::memset(local.get(), kPoison, local_bytes);
  for (std::size_t i = 0; i < warp_count; ++i) {
    Warp& warp = warps[i];
    warp.registers = registers.get() + register_bytes * i;
    warp.program = &program;
    warp.block = this;
    warp.index = static_cast<int>(i);
    std::memcpy(warp.registers, program.initial_registers.data(), program.initial_registers.size());
    set_addresses(warp);
  }
}

void Block::begin(std::uint64_t its_number) {
  number = its_number;
  const Dim3& grid = launch->grid;
  index = {static_cast<std::uint32_t>(number % grid.x), static_cast<std::uint32_t>(number / grid.x % grid.y),
           static_cast<std::uint32_t>(number / (std::uint64_t{grid.x} * grid.y))};
  epoch = 0;
  any_fence = false;
  spinning = false;
  barriers = {};
  std::fill(shared_pending.begin(), shared_pending.end(), std::uint8_t{0});
  pending_copies = 0;
  if (options().checks) {
    std::memset(shared.get(), kPoison, shared_bytes);
    std::fill(shared_initialised.begin(), shared_initialised.end(), std::uint8_t{0});
  }
  for (Warp& warp : warps) {
    const int left = threads - warp.index * kLanes;
    warp.started = warp.alive = left >= kLanes ? kFullMask : (1u << left) - 1;
    warp.blocked = warp.at_barrier = 0;
    warp.pc.fill(0);
    warp.meetings = {};
    if (options().checks) warp.clocks.reset();
    for (auto& stack : warp.calls) stack.clear();
    warp.local_used.fill(0);
    warp.async.reset();
    warp.turn = 0;
    warp.slice_used_up = false;
    set_specials(warp);
  }
}

bool Block::finished() const {
  return std::all_of(warps.begin(), warps.end(), [](const Warp& warp) { return warp.alive == 0; });
}

int Block::living() const {
  int count = 0;
  for (const Warp& warp : warps) count += std::popcount(warp.alive);
  return count;
}

}  // namespace ptx
