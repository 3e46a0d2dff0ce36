#include "access.hpp"

#include <algorithm>

#include "options.hpp"
#include "report.hpp"

namespace ptx {
namespace {

// What refused accesses read and write.
alignas(64) std::byte nowhere[256];

std::byte* refuse(ReportKind kind, Warp& warp, int lane, const Inst& inst, const std::string& why) {
  report(kind, warp, lane, inst, why);
  std::fill(std::begin(nowhere), std::end(nowhere), std::byte{kPoison});
  return nowhere;
}

// Every access has a power of two of bytes.
bool misaligned(std::uint64_t address, std::size_t bytes) {
  return (address & (bytes - 1)) != 0;
}

std::string action(Access access, std::size_t bytes) {
  const char* verb = access.read && access.write ? "updates " : access.write ? "writes " : "reads ";
  return verb + std::to_string(bytes) + " bytes of ";
}

std::string hexadecimal(std::uint64_t address) {
  char text[32];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(address));
  return text;
}

// Ordering of strong accesses: a write publishes before it happens, a read learns after.
void order_access(Warp& warp, int lane, const Inst& inst, std::uint64_t key, Access access) {
  if (!access.strong) return;
  if (access.write) release_at(warp, lane, key, inst, access.read);
  if (access.read) acquire_at(warp, lane, key, inst);
}

std::byte* check_shared(Warp& warp, int lane, const Inst& inst, std::uint64_t offset, std::size_t bytes,
                        Access access) {
  Block& block = *warp.block;
  if (offset + bytes > block.shared_bytes || offset + bytes < offset)
    return refuse(ReportKind::kBounds, warp, lane, inst,
                  action(access, bytes) + "shared memory at offset " + std::to_string(offset) + " of " +
                      std::to_string(block.shared_bytes));
  if (misaligned(offset, bytes))
    return refuse(
        ReportKind::kAlignment, warp, lane, inst,
        action(access, bytes) + "shared memory at offset " + std::to_string(offset) + ", which is not aligned");
  if (block.pending_copies) {
    for (std::size_t cell = offset / 4; cell <= (offset + bytes - 1) / 4; ++cell) {
      if (!block.shared_pending[cell]) continue;
      report(ReportKind::kAsyncCopy, warp, lane, inst,
             action(access, bytes) + "shared memory at offset " + std::to_string(offset) +
                 ", where a cp.async is under way that has not been waited for");
      break;
    }
  }
  order_access(warp, lane, inst, std::uint64_t{1} << 63 | std::uint64_t{block.serial} << 32 | offset, access);
  check_cells(
      warp, lane, inst,
      {block.shared_cells.data(), block.shared_initialised.data(), static_cast<std::size_t>(offset), bytes, true},
      access);
  return block.shared.get() + offset;
}

std::byte* check_local(Warp& warp, int lane, const Inst& inst, std::uint64_t address, std::size_t bytes,
                       Access access) {
  const auto base = reinterpret_cast<std::uint64_t>(warp.local(lane));
  if (address - base + bytes > warp.block->local_stride)
    return refuse(ReportKind::kBounds, warp, lane, inst,
                  action(access, bytes) + "local memory outside of the thread's own");
  if (misaligned(address, bytes))
    return refuse(ReportKind::kAlignment, warp, lane, inst, action(access, bytes) + "local memory, not aligned");
  return reinterpret_cast<std::byte*>(address);
}

std::byte* check_global(Warp& warp, int lane, const Inst& inst, std::uint64_t address, std::size_t bytes,
                        Access access) {
  Allocation* allocation = memory().find(address);
  if (!allocation)
    return refuse(
        ReportKind::kBounds, warp, lane, inst,
        action(access, bytes) + "global memory at " + hexadecimal(address) + ": " + memory().describe_unknown(address));
  const std::size_t offset = address - reinterpret_cast<std::uint64_t>(allocation->address);
  if (offset + bytes > allocation->bytes)
    return refuse(ReportKind::kBounds, warp, lane, inst,
                  action(access, bytes) + "global memory at offset " + std::to_string(offset) +
                      " of an allocation of " + std::to_string(allocation->bytes) + " bytes");
  if (misaligned(address, bytes))
    return refuse(ReportKind::kAlignment, warp, lane, inst,
                  action(access, bytes) + "global memory at " + hexadecimal(address) + ", which is not aligned");
  if (!allocation->cells) allocation->cells.resize((allocation->bytes + 3) / 4);
  order_access(warp, lane, inst, address, access);
  check_cells(warp, lane, inst, {allocation->cells.data(), allocation->initialised.data(), offset, bytes, false},
              access);
  return reinterpret_cast<std::byte*>(address);
}

bool inside(std::uint64_t address, const void* base, std::size_t bytes) {
  return address - reinterpret_cast<std::uint64_t>(base) < bytes;
}

std::byte* check_parameter(Warp& warp, int lane, const Inst& inst, std::uint64_t address, std::size_t bytes,
                           Access access) {
  const std::vector<std::byte>& parameters = warp.block->launch->parameters;
  if (access.write || address + bytes > reinterpret_cast<std::uint64_t>(parameters.data()) + parameters.size())
    return refuse(ReportKind::kBounds, warp, lane, inst, action(access, bytes) + "the kernel's parameters");
  return reinterpret_cast<std::byte*>(address);
}

std::byte* check(Warp& warp, int lane, const Inst& inst, Space space, std::uint64_t address, std::size_t bytes,
                 Access access) {
  const Block& block = *warp.block;
  const std::vector<std::byte>& parameters = block.launch->parameters;
  if (space == Space::kShared) return check_shared(warp, lane, inst, address, bytes, access);
  if (space == Space::kGeneric && address - kSharedWindow < kSharedWindowSize)
    return check_shared(warp, lane, inst, address - kSharedWindow, bytes, access);
  if (space == Space::kLocal || (space == Space::kGeneric && inside(address, block.local.get(), block.local_bytes)))
    return check_local(warp, lane, inst, address, bytes, access);
  if (space == Space::kParam || inside(address, parameters.data(), parameters.size()))
    return check_parameter(warp, lane, inst, address, bytes, access);
  return check_global(warp, lane, inst, address, bytes, access);
}

// ---- counters

struct Touched {
  std::uint64_t bytes = 0, sectors = 0;
};

// Distinct bytes and 32-byte sectors that the lanes touch: what several lanes ask for counts once.
Touched count_touched(std::uint32_t mask, const LaneAddresses& addresses, std::size_t bytes) {
  LaneAddresses sorted;
  std::size_t count = 0;
  for_each_lane(mask, [&](int lane) { sorted[count++] = addresses[static_cast<std::size_t>(lane)]; });
  std::sort(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(count));
  Touched touched;
  std::uint64_t next_byte = 0, next_sector = 0;  // the first that has not been counted
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t end = sorted[i] + bytes;
    touched.bytes += end - std::min(end, std::max(next_byte, sorted[i]));
    next_byte = std::max(next_byte, end);
    const std::uint64_t last = (end - 1) / 32 + 1;
    touched.sectors += last - std::min(last, std::max(next_sector, sorted[i] / 32));
    next_sector = std::max(next_sector, last);
  }
  return touched;
}

// Passes beyond the first of each phase: 32 lanes of up to 4 bytes, 16 of 8, 8 of 16. Lanes that read one word share
// it.
std::uint64_t count_conflicts(std::uint32_t mask, const LaneAddresses& offsets, std::size_t bytes) {
  const std::size_t words = std::max<std::size_t>(bytes / 4, 1);
  const std::size_t lanes_per_phase = std::max<std::size_t>(kLanes / words, 4);
  std::uint64_t conflicts = 0;
  for (std::size_t first = 0; first < kLanes; first += lanes_per_phase) {
    std::array<std::array<std::uint64_t, kLanes>, 32> in_bank;
    std::array<std::size_t, 32> count{};
    std::size_t most = 1;
    for (std::size_t lane = first; lane < first + lanes_per_phase; ++lane) {
      if (!(mask >> lane & 1)) continue;
      for (std::size_t k = 0; k < words; ++k) {
        const std::uint64_t word = offsets[lane] / 4 + k;
        const std::size_t bank = word % 32;
        const auto begin = in_bank[bank].begin(), end = begin + static_cast<std::ptrdiff_t>(count[bank]);
        if (std::find(begin, end, word) != end || count[bank] == kLanes) continue;
        in_bank[bank][count[bank]++] = word;
        most = std::max(most, count[bank]);
      }
    }
    conflicts += most - 1;
  }
  return conflicts;
}

void count(Warp& warp, std::uint32_t mask, Space space, const LaneAddresses& addresses, std::size_t bytes,
           Access access) {
  Launch& launch = *warp.block->launch;
  Counters& counters = launch.counters;
  std::uint32_t shared = 0, global = 0;
  for_each_lane(mask, [&](int lane) {
    const std::uint64_t address = addresses[static_cast<std::size_t>(lane)];
    const std::uint32_t bit = 1u << lane;
    if (space == Space::kShared || (space == Space::kGeneric && address - kSharedWindow < kSharedWindowSize)) {
      shared |= bit;
    } else if (space == Space::kGlobal ||
               (space == Space::kGeneric && !inside(address, warp.block->local.get(), warp.block->local_bytes) &&
                !inside(address, launch.parameters.data(), launch.parameters.size()))) {
      global |= bit;
    }
  });
  if (shared) {
    ++counters.shared_accesses;
    counters.shared_conflicts += count_conflicts(shared, addresses, bytes);
  }
  if (!global) return;
  const Touched touched = count_touched(global, addresses, bytes);
  if (access.read && access.write) {
    counters.atomic_operations += static_cast<std::uint64_t>(std::popcount(global));
  } else if (access.write) {
    counters.global_write_bytes += touched.bytes;
    counters.global_write_sectors += touched.sectors;
  } else {
    counters.global_read_bytes += touched.bytes;
    counters.global_read_sectors += touched.sectors;
  }
}

}  // namespace

void resolve(Warp& warp, const Inst& inst, std::uint32_t mask, Space space, const LaneAddresses& addresses,
             std::size_t bytes, Access access, LanePointers& pointers) {
  const Options& how = options();
  if (how.counters) count(warp, mask, space, addresses, bytes, access);
  if (how.checks) {
    for_each_lane(mask, [&](int lane) {
      const auto i = static_cast<std::size_t>(lane);
      pointers[i] = check(warp, lane, inst, space, addresses[i], bytes, access);
    });
    return;
  }
  std::byte* const shared = warp.block->shared.get();
  switch (space) {
    case Space::kShared:
      for (std::size_t i = 0; i < kLanes; ++i) pointers[i] = shared + addresses[i];
      break;
    case Space::kGeneric:
      for (std::size_t i = 0; i < kLanes; ++i) {
        const std::uint64_t offset = addresses[i] - kSharedWindow;
        pointers[i] = offset < kSharedWindowSize ? shared + offset : reinterpret_cast<std::byte*>(addresses[i]);
      }
      break;
    default:
      for (std::size_t i = 0; i < kLanes; ++i) pointers[i] = reinterpret_cast<std::byte*>(addresses[i]);
  }
}

void add_pending_copy(Block& block, std::size_t offset, std::size_t bytes, int change) {
  for (std::size_t cell = offset / 4; cell <= (offset + bytes - 1) / 4; ++cell)
    block.shared_pending[cell] = static_cast<std::uint8_t>(block.shared_pending[cell] + change);
  block.pending_copies = static_cast<std::uint32_t>(static_cast<int>(block.pending_copies) + change);
}

}  // namespace ptx
