#include "race.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "machine.hpp"
#include "report.hpp"

namespace ptx {
namespace {

std::uint64_t warp_key(std::uint32_t block, int warp) {
  return std::uint64_t{block} << 8 | static_cast<unsigned>(warp);
}

std::size_t index(int i) {
  return static_cast<std::size_t>(i);
}

}  // namespace

// ---- Knowledge

void Knowledge::add_block(std::uint32_t block, std::uint32_t epoch) {
  std::uint32_t& known = blocks_[block];
  known = std::max(known, epoch);
}

void Knowledge::add_warp(std::uint32_t block, int warp, const LaneClocks& clocks) {
  LaneClocks& known = warps_[warp_key(block, warp)];
  for (std::size_t i = 0; i < clocks.size(); ++i) known[i] = std::max(known[i], clocks[i]);
}

void Knowledge::add_lane(std::uint32_t block, int warp, int lane, std::uint32_t clock) {
  std::uint32_t& known = warps_[warp_key(block, warp)][index(lane)];
  known = std::max(known, clock);
}

void Knowledge::join(const Knowledge& other) {
  for (const auto& [block, epoch] : other.blocks_) add_block(block, epoch);
  for (const auto& [key, clocks] : other.warps_)
    add_warp(static_cast<std::uint32_t>(key >> 8), static_cast<int>(key & 255), clocks);
}

bool Knowledge::covers(const Record& record) const {
  const auto block = blocks_.find(record.block);
  if (block != blocks_.end() && record.epoch < block->second) return true;
  const auto warp = warps_.find(warp_key(record.block, record.thread / kLanes));
  return warp != warps_.end() && record.clock < warp->second[record.thread % kLanes];
}

// ---- clocks

void WarpClocks::reset() {
  own.fill(0);
  for (LaneClocks& clocks : known) clocks.fill(0);
  sync.reset();
}

LaneSync& WarpClocks::sync_of(int lane) {
  if (!sync) sync = std::make_unique<std::array<LaneSync, kLanes>>();
  return (*sync)[index(lane)];
}

bool happened_before(const Record& record, const Warp& warp, int lane) {
  const Block& block = *warp.block;
  if (record.block < block.launch->first_serial) return true;  // an earlier kernel
  if (record.block == block.serial) {
    if (record.thread == warp.thread(lane) || record.epoch < block.epoch) return true;
    if (record.thread / kLanes == warp.index && warp.clocks.known[index(lane)][record.thread % kLanes] > record.clock)
      return true;
  }
  const Knowledge* knowledge = warp.clocks.knowledge(lane);
  return knowledge && knowledge->covers(record);
}

void sync_lanes(Warp& warp, std::uint32_t mask) {
  WarpClocks& clocks = warp.clocks;
  LaneClocks joined{};
  KnowledgePtr knowledge;
  for (std::uint32_t rest = mask; rest; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    for (std::size_t other = 0; other < joined.size(); ++other)
      joined[other] = std::max(joined[other], clocks.known[index(lane)][other]);
    joined[index(lane)] = std::max(joined[index(lane)], clocks.own[index(lane)] + 1);
  }
  const bool any_knowledge = clocks.sync != nullptr;
  if (any_knowledge) {
    auto all = std::make_shared<Knowledge>();
    for (std::uint32_t rest = mask; rest; rest &= rest - 1)
      if (const Knowledge* known = clocks.knowledge(std::countr_zero(rest))) all->join(*known);
    knowledge = std::move(all);
  }
  for (std::uint32_t rest = mask; rest; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    clocks.known[index(lane)] = joined;
    ++clocks.own[index(lane)];
    if (any_knowledge) clocks.sync_of(lane).knows = knowledge;
  }
}

void sync_block(Block& block) {
  std::shared_ptr<Knowledge> all;
  for (Warp& warp : block.warps) {
    if (!warp.clocks.sync) continue;
    for (int lane = 0; lane < kLanes; ++lane) {
      if (const Knowledge* known = warp.clocks.knowledge(lane)) {
        if (!all) all = std::make_shared<Knowledge>();
        all->join(*known);
      }
    }
  }
  for (Warp& warp : block.warps) {
    for (std::uint32_t& clock : warp.clocks.own) ++clock;
    if (all)
      for (int lane = 0; lane < kLanes; ++lane) warp.clocks.sync_of(lane).knows = all;
  }
  ++block.epoch;
}

void publish(Warp& warp, std::uint32_t lanes, Knowledge& published) {
  const Block& block = *warp.block;
  for (std::uint32_t rest = lanes; rest; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const std::uint32_t clock = ++warp.clocks.own[index(lane)];
    published.add_warp(block.serial, warp.index, warp.clocks.known[index(lane)]);
    published.add_lane(block.serial, warp.index, lane, clock);
    if (const Knowledge* known = warp.clocks.knowledge(lane)) published.join(*known);
  }
}

void sync_some(Block& block, const std::array<std::uint32_t, kLanes>& lanes_of_warp, const Knowledge* published) {
  auto all = std::make_shared<Knowledge>();
  if (published) all->join(*published);
  for (Warp& warp : block.warps) publish(warp, lanes_of_warp[index(warp.index)], *all);
  for (Warp& warp : block.warps)
    for (std::uint32_t rest = lanes_of_warp[index(warp.index)]; rest; rest &= rest - 1)
      warp.clocks.sync_of(std::countr_zero(rest)).knows = all;
}

// ---- release and acquire

void make_fence(Warp& warp, int lane, Scope scope) {
  LaneSync& sync = warp.clocks.sync_of(lane);
  sync.fence.made = true;
  sync.fence.scope = scope;
  sync.fence.clock = ++warp.clocks.own[index(lane)];
  sync.fence.epoch = warp.block->epoch;
  if (scope >= Scope::kGpu) warp.block->any_fence = true;
  if (!sync.pending) return;
  auto joined = std::make_shared<Knowledge>(*sync.pending);
  if (sync.knows) joined->join(*sync.knows);
  sync.knows = std::move(joined);
  sync.pending.reset();
}

namespace {

// Fences of other threads that a barrier of the block has put before this one: "all write, all fence, __syncthreads,
// thread 0 counts" publishes the writes of all.
bool add_fences_of_block(Knowledge& knowledge, const Block& block) {
  if (!block.any_fence) return false;
  bool any = false;
  for (const Warp& warp : block.warps) {
    if (!warp.clocks.sync) continue;
    for (int lane = 0; lane < kLanes; ++lane) {
      const LaneSync& sync = (*warp.clocks.sync)[index(lane)];
      if (!sync.fence.made || sync.fence.scope < Scope::kGpu || sync.fence.epoch >= block.epoch) continue;
      knowledge.add_lane(block.serial, warp.index, lane, sync.fence.clock);
      any = true;
    }
  }
  return any;
}

bool is_release(Order order) {
  return order == Order::kRelease || order == Order::kAcquireRelease;
}
bool is_acquire(Order order) {
  return order == Order::kAcquire || order == Order::kAcquireRelease;
}

}  // namespace

void release_at(Warp& warp, int lane, std::uint64_t key, const Inst& inst, bool read_modify_write) {
  Block& block = *warp.block;
  SyncLocations& locations = block.launch->sync_locations;
  const bool releases = is_release(inst.order);
  const bool fenced = warp.clocks.sync && warp.clocks.sync_of(lane).fence.made;
  auto published = std::make_shared<Knowledge>();
  bool any = false;
  if (releases || fenced) {
    const std::uint32_t epoch = releases ? block.epoch : warp.clocks.sync_of(lane).fence.epoch;
    const std::uint32_t clock = releases ? ++warp.clocks.own[index(lane)] : warp.clocks.sync_of(lane).fence.clock;
    published->add_block(block.serial, epoch);
    published->add_warp(block.serial, warp.index, warp.clocks.known[index(lane)]);
    published->add_lane(block.serial, warp.index, lane, clock);
    if (const Knowledge* known = warp.clocks.knowledge(lane)) published->join(*known);
    any = true;
  }
  any = add_fences_of_block(*published, block) || any;
  if (any) {
    locations.release(key, std::move(published), read_modify_write);
  } else if (!read_modify_write) {
    locations.forget(key);
  }
}

void acquire_at(Warp& warp, int lane, std::uint64_t key, const Inst& inst) {
  KnowledgePtr released = warp.block->launch->sync_locations.find(key);
  if (!released) return;
  LaneSync& sync = warp.clocks.sync_of(lane);
  if (is_acquire(inst.order)) {
    if (sync.last_acquired == released) return;  // a poll that saw nothing new
    sync.last_acquired = released;
    auto joined = std::make_shared<Knowledge>(*released);
    if (sync.knows) joined->join(*sync.knows);
    sync.knows = std::move(joined);
    return;
  }
  if (sync.pending && sync.pending != released) {
    auto joined = std::make_shared<Knowledge>(*released);
    joined->join(*sync.pending);
    released = std::move(joined);
  }
  sync.pending = std::move(released);
}

KnowledgePtr SyncLocations::find(std::uint64_t key) const {
  const auto found = locations_.find(key);
  return found == locations_.end() ? nullptr : found->second;
}

void SyncLocations::release(std::uint64_t key, KnowledgePtr released, bool continues) {
  KnowledgePtr& location = locations_[key];
  if (continues && location) {
    auto joined = std::make_shared<Knowledge>(*location);
    joined->join(*released);
    location = std::move(joined);
  } else {
    location = std::move(released);
  }
}

void SyncLocations::forget(std::uint64_t key) {
  locations_.erase(key);
}

// ---- cells

namespace {

std::string thread_words(const Record& record, const Warp& warp) {
  std::string words = "thread " + std::to_string(record.thread);
  if (record.block != warp.block->serial)
    words +=
        " of another block (" + std::to_string(record.block - warp.block->launch->first_serial) + " in order of start)";
  return words;
}

void report_race(const Warp& warp, int lane, const Inst& inst, const CellRange& range, std::size_t cell,
                 const Record& other, bool other_wrote, bool writes) {
  report(ReportKind::kRace, warp, lane, inst,
         std::string(writes ? "writes " : "reads ") + (range.shared ? "shared" : "global") + " memory at offset " +
             std::to_string(4 * cell) + " without being ordered after the " + (other_wrote ? "write" : "read") +
             " by " + thread_words(other, warp));
}

void report_uninitialised(const Warp& warp, int lane, const Inst& inst, const CellRange& range) {
  std::uint8_t* flags = range.initialised + range.at;
  const void* hole = std::memchr(flags, 0, range.bytes);
  const std::size_t offset = range.at + static_cast<std::size_t>(static_cast<const std::uint8_t*>(hole) - flags);
  report(ReportKind::kUninitialised, warp, lane, inst,
         std::string("reads ") + (range.shared ? "shared" : "global") + " memory at offset " + std::to_string(offset) +
             ", which nothing has written");
  std::memset(flags, 1, range.bytes);
}

// For the sizes that accesses have, without a call.
template <class T>
bool all_set(const std::uint8_t* flags) {
  T value;
  std::memcpy(&value, flags, sizeof value);
  return value == static_cast<T>(0x0101010101010101ull);
}

bool is_initialised(const std::uint8_t* flags, std::size_t bytes) {
  switch (bytes) {
    case 1:
      return *flags == 1;
    case 2:
      return all_set<std::uint16_t>(flags);
    case 4:
      return all_set<std::uint32_t>(flags);
    case 8:
      return all_set<std::uint64_t>(flags);
    case 16:
      return all_set<std::uint64_t>(flags) && all_set<std::uint64_t>(flags + 8);
    default:
      return std::memchr(flags, 0, bytes) == nullptr;
  }
}

void set_initialised(std::uint8_t* flags, std::size_t bytes) {
  switch (bytes) {
    case 4:
      std::memset(flags, 1, 4);
      break;
    case 8:
      std::memset(flags, 1, 8);
      break;
    case 16:
      std::memset(flags, 1, 16);
      break;
    default:
      std::memset(flags, 1, bytes);
  }
}

}  // namespace

void check_cells(Warp& warp, int lane, const Inst& inst, const CellRange& range, Access access) {
  Block& block = *warp.block;
  if (range.initialised) {
    std::uint8_t* flags = range.initialised + range.at;
    if (access.read && !is_initialised(flags, range.bytes)) report_uninitialised(warp, lane, inst, range);
    if (access.write) set_initialised(flags, range.bytes);
  }
  Record now{block.serial,
             block.epoch,
             warp.clocks.own[index(lane)],
             static_cast<std::uint16_t>(warp.thread(lane)),
             15,
             static_cast<std::uint8_t>(Record::kPresent | (access.strong ? Record::kStrong : 0))};
  const std::size_t last = (range.at + range.bytes - 1) / 4;
  if (range.bytes < 4) now.bytes = static_cast<std::uint8_t>(((1u << range.bytes) - 1) << (range.at & 3));

  const auto stale = [&](const Record& record) {
    return !(record.flags & Record::kPresent) || (range.shared && record.block != block.serial);
  };
  const auto races = [&](const Record& record) {
    return !stale(record) && (record.bytes & now.bytes) && !(access.strong && (record.flags & Record::kStrong)) &&
           !happened_before(record, warp, lane);
  };
  for (std::size_t at = range.at / 4; at <= last; ++at) {
    Cell& cell = range.cells[at];
    if (races(cell.write)) {
      report_race(warp, lane, inst, range, at, cell.write, true, access.write);
      cell.write.flags = 0;
    }
    if (!access.write) {
      // Keep the reads that are not ordered before this one; of too many, lose one at random.
      Record* place = nullptr;
      for (Record& record : cell.reads) {
        if (stale(record) || happened_before(record, warp, lane)) {
          place = &record;
          break;
        }
      }
      if (!place) place = &cell.reads[block.launch->random() % 3];
      *place = now;
      continue;
    }
    for (Record& record : cell.reads) {
      if (!races(record)) continue;
      report_race(warp, lane, inst, range, at, record, false, true);
      record.flags = 0;
      break;
    }
    cell.write = now;
  }
}

}  // namespace ptx
