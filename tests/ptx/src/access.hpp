#pragma once
// From the addresses of a warp's lanes to host memory, with the checks and counters on the way.

#include <array>

#include "machine.hpp"

namespace ptx {

using LanePointers = std::array<std::byte*, kLanes>;
using LaneAddresses = std::array<std::uint64_t, kLanes>;

// The addresses in Inst::src[src] plus Inst::imm.
inline void lane_addresses(const Warp& warp, const Inst& inst, LaneAddresses& addresses, int src = 0) {
  const auto offset = static_cast<std::uint64_t>(inst.imm);
  if (inst.addr_size == 4) {
    const std::uint32_t* base = warp.lanes<std::uint32_t>(inst.src[src]);
    for (std::size_t i = 0; i < kLanes; ++i) addresses[i] = base[i] + static_cast<std::uint32_t>(offset);
  } else {
    const std::uint64_t* base = warp.lanes<std::uint64_t>(inst.src[src]);
    for (std::size_t i = 0; i < kLanes; ++i) addresses[i] = base[i] + offset;
  }
}

// Host memory for `bytes` bytes at each lane's address in the space. A lane whose access a check refuses gets memory
// that belongs to nobody.
void resolve(Warp& warp, const Inst& inst, std::uint32_t mask, Space space, const LaneAddresses& addresses,
             std::size_t bytes, Access access, LanePointers& pointers);

// Writes to shared memory that cp.async has under way, for the offset's range.
void add_pending_copy(Block& block, std::size_t offset, std::size_t bytes, int change);

}  // namespace ptx
