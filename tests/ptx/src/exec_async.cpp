// cp.async. The source is read when the instruction executes; shared memory changes only once the copy has been waited
// for. Until then every access to the destination is reported, and the write counts as done at the wait.

#include <algorithm>
#include <array>
#include <cstring>

#include "access.hpp"
#include "alu.hpp"
#include "options.hpp"
#include "report.hpp"

namespace ptx {
namespace {

AsyncCopies& copies_of(Warp& warp, int lane) {
  if (!warp.async) warp.async = std::make_unique<std::array<AsyncCopies, kLanes>>();
  return (*warp.async)[static_cast<std::size_t>(lane)];
}

void complete(Warp& warp, int lane, const AsyncCopy& copy) {
  Block& block = *warp.block;
  add_pending_copy(block, copy.to, copy.bytes, -1);
  std::memcpy(block.shared.get() + copy.to, copy.data.data(), copy.bytes);
  if (options().checks)
    check_cells(warp, lane, *copy.inst,
                {block.shared_cells.data(), block.shared_initialised.data(), copy.to, copy.bytes, true},
                {false, true, false});
}

// Inst::size is the copy's size; src[0] the offset in shared memory, src[1] the global address; src[2], if any, the
// register with how much of it is read (the rest is zeros), or the predicate that makes it nothing (option 1).
Flow execute_copy(Warp& warp, const Inst& inst, std::uint32_t mask) {
  Block& block = *warp.block;
  LaneAddresses from, to;
  lane_addresses(warp, inst, from, 1);
  const std::uint64_t* destinations = warp.lanes<std::uint64_t>(inst.src[0]);
  std::copy(destinations, destinations + kLanes, to.begin());

  std::array<std::uint32_t, kLanes> bytes{};  // that a lane reads
  std::uint32_t copying = 0, whole = 0;       // lanes with a destination, and those that read all of the size
  for_each_lane(mask, [&](int lane) {
    const auto i = static_cast<std::size_t>(lane);
    if (to[i] + inst.size > block.shared_bytes || to[i] % inst.size) {
      const bool outside = to[i] + inst.size > block.shared_bytes;
      report(outside ? ReportKind::kBounds : ReportKind::kAlignment, warp, lane, inst,
             "copies " + std::to_string(inst.size) + " bytes to shared memory at offset " + std::to_string(to[i]) +
                 " of " + std::to_string(block.shared_bytes));
      return;
    }
    bytes[i] = inst.size;
    if (inst.option == 1) {
      if (warp.predicate(inst.src[2]) >> lane & 1) bytes[i] = 0;
    } else if (inst.src[2] != kNoReg) {
      bytes[i] = warp.lanes<std::uint32_t>(inst.src[2])[lane];
      if (bytes[i] > inst.size) {
        report(ReportKind::kBounds, warp, lane, inst, "a source size of " + std::to_string(bytes[i]) + " bytes");
        bytes[i] = inst.size;
      }
    }
    copying |= 1u << lane;
    if (bytes[i] == inst.size) whole |= 1u << lane;
  });

  LanePointers pointers;
  constexpr Access reading{true, false, false};
  if (whole) resolve(warp, inst, whole, Space::kGlobal, from, inst.size, reading, pointers);
  for_each_lane(copying, [&](int lane) {
    const auto i = static_cast<std::size_t>(lane);
    AsyncCopy copy{static_cast<std::uint32_t>(to[i]), inst.size, {}, &inst};
    if (bytes[i] == inst.size) {
      std::memcpy(copy.data.data(), pointers[i], inst.size);
    } else if (bytes[i] > 0) {
      // A part of the size is read in pieces that are aligned to themselves.
      std::size_t piece = bytes[i];
      while (piece & (piece - 1) || inst.size % piece) --piece;
      for (std::size_t at = 0; at < bytes[i]; at += piece) {
        LaneAddresses here;
        here[i] = from[i] + at;
        while (at + piece > bytes[i]) piece /= 2;
        LanePointers part;
        resolve(warp, inst, 1u << lane, Space::kGlobal, here, piece, reading, part);
        std::memcpy(copy.data.data() + at, part[i], piece);
      }
    }
    add_pending_copy(block, copy.to, copy.bytes, 1);
    copies_of(warp, lane).open.push_back(copy);
  });
  return Flow::kNext;
}

Flow execute_commit(Warp& warp, const Inst&, std::uint32_t mask) {
  for_each_lane(mask, [&](int lane) {
    AsyncCopies& copies = copies_of(warp, lane);
    copies.groups.push_back(std::move(copies.open));
    copies.open.clear();
  });
  return Flow::kNext;
}

// Waits until at most `imm` of the newest groups are under way.
Flow execute_wait_group(Warp& warp, const Inst& inst, std::uint32_t mask) {
  for_each_lane(mask, [&](int lane) {
    AsyncCopies& copies = copies_of(warp, lane);
    const auto allowed = static_cast<std::size_t>(inst.imm);
    if (copies.groups.size() <= allowed) return;
    const std::size_t finished = copies.groups.size() - allowed;
    for (std::size_t g = 0; g < finished; ++g)
      for (const AsyncCopy& copy : copies.groups[g]) complete(warp, lane, copy);
    copies.groups.erase(copies.groups.begin(), copies.groups.begin() + static_cast<std::ptrdiff_t>(finished));
  });
  return Flow::kNext;
}

Flow execute_wait_all(Warp& warp, const Inst&, std::uint32_t mask) {
  for_each_lane(mask, [&](int lane) {
    AsyncCopies& copies = copies_of(warp, lane);
    copies.groups.push_back(std::move(copies.open));
    copies.open.clear();
    for (const auto& group : copies.groups)
      for (const AsyncCopy& copy : group) complete(warp, lane, copy);
    copies.groups.clear();
  });
  return Flow::kNext;
}

void lower_copy(Lowering& lowering, Inst& inst) {
  const int caching = lowering.take_any({"ca", "cg"});
  if (caching < 0) lowering.fail("only cp.async.ca and .cg are supported");
  if (!lowering.take("shared") && !lowering.take("shared::cta")) lowering.fail("the destination is shared memory");
  if (!lowering.take("global")) lowering.fail("the source is global memory");
  lowering.take_cache_hints();
  const std::size_t size = lowering.number(2);
  if (size != 16 && (caching == 1 || (size != 4 && size != 8))) lowering.fail("the size is 4, 8 or 16, and 16 for .cg");
  inst.size = static_cast<std::uint8_t>(size);
  // The two addresses have offsets and widths of their own: each gets a register of its own, the destination's offset
  // added by an instruction before.
  Inst destination;
  lowering.address(0, destination, 0);
  const std::int64_t offset = destination.imm;
  lowering.address(1, inst, 1);
  if (inst.addr_size != 8) lowering.fail("a 32-bit global address");
  inst.src[0] = destination.src[0];
  if (destination.addr_size == 4 || offset != 0) {
    Inst widen;
    widen.src[0] = destination.src[0];
    widen.dst[0] = lowering.scratch(8);
    widen.imm = offset;
    widen.execute = destination.addr_size == 4 ? [](Warp& warp, const Inst& self, std::uint32_t mask) {
      const std::uint32_t* a = warp.lanes<std::uint32_t>(self.src[0]);
      std::uint64_t* d = warp.lanes<std::uint64_t>(self.dst[0]);
      for_lanes(mask, [=, by = static_cast<std::uint32_t>(self.imm)](int lane) { d[lane] = a[lane] + by; });
      return Flow::kNext;
    } : [](Warp& warp, const Inst& self, std::uint32_t mask) {
      const std::uint64_t* a = warp.lanes<std::uint64_t>(self.src[0]);
      std::uint64_t* d = warp.lanes<std::uint64_t>(self.dst[0]);
      for_lanes(mask, [=, by = static_cast<std::uint64_t>(self.imm)](int lane) { d[lane] = a[lane] + by; });
      return Flow::kNext;
    };
    lowering.emit(widen);
    inst.src[0] = widen.dst[0];
  }
  if (lowering.operand_count() > 3) {
    if (lowering.register_width(lowering.operand(3)) == 0) {
      inst.src[2] = lowering.source_predicate(3);
      inst.option = 1;
    } else if (lowering.operand_count() > 4 || lowering.register_width(lowering.operand(3)) != 8) {
      inst.src[2] = lowering.source(3, 4);
    }
  }
  inst.execute = execute_copy;
}

void lower_cp(Lowering& lowering, Inst& inst) {
  if (!lowering.take("async")) lowering.fail("only cp.async is supported");
  if (lowering.take("commit_group")) {
    inst.execute = execute_commit;
  } else if (lowering.take("wait_group")) {
    inst.imm = static_cast<std::int64_t>(lowering.number(0));
    inst.execute = execute_wait_group;
  } else if (lowering.take("wait_all")) {
    inst.execute = execute_wait_all;
  } else {
    lower_copy(lowering, inst);
  }
}

}  // namespace

void add_async(InstructionSet& set) {
  set.general["cp"] = lower_cp;
}

}  // namespace ptx
