#pragma once
// Data races by happens-before. Every 4-byte cell remembers its last writer and three readers; a later access races
// with one of them unless something ordered the two.
//
// What orders is kept in layers, the cheap ones first:
//   - barriers of the whole block advance the block's epoch: everything of an earlier epoch is ordered;
//   - __syncwarp joins the clocks of a warp's lanes (WarpClocks::known);
//   - release/acquire pairs, fences around strong accesses, and barriers of a part of the block hand over Knowledge:
//     which epochs of which blocks, and which clocks of which warps, the thread has seen.

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>

#include "program.hpp"

namespace ptx {

struct Block;
struct Warp;

struct Record {
  static constexpr std::uint8_t kPresent = 1, kStrong = 2;
  std::uint32_t block;  // serial number over all launches
  std::uint32_t epoch;
  std::uint32_t clock;   // the thread's own
  std::uint16_t thread;  // in its block
  std::uint8_t bytes;    // which of the cell's four
  std::uint8_t flags;
};

struct Cell {
  Record write;
  Record reads[3];
};

using LaneClocks = std::array<std::uint32_t, kLanes>;

class Knowledge {
 public:
  // Everything that the block did before the epoch.
  void add_block(std::uint32_t block, std::uint32_t epoch);
  // What the lanes of a warp did before these clocks.
  void add_warp(std::uint32_t block, int warp, const LaneClocks& clocks);
  void add_lane(std::uint32_t block, int warp, int lane, std::uint32_t clock);
  void join(const Knowledge& other);
  bool covers(const Record& record) const;

 private:
  std::map<std::uint32_t, std::uint32_t> blocks_;
  std::map<std::uint64_t, LaneClocks> warps_;
};

using KnowledgePtr = std::shared_ptr<const Knowledge>;

struct Fence {
  bool made = false;
  Scope scope = Scope::kCta;
  std::uint32_t clock = 0, epoch = 0;
};

// What one lane learned through acquires, and what it may publish: rarely used, so it exists only where it is.
struct LaneSync {
  KnowledgePtr knows;          // acquired
  KnowledgePtr pending;        // read by a relaxed access; a fence makes it known
  KnowledgePtr last_acquired;  // kept, so that a poll can tell by its address that nothing is new
  Fence fence;
};

struct WarpClocks {
  LaneClocks own{};
  std::array<LaneClocks, kLanes> known{};  // [lane][other]
  std::unique_ptr<std::array<LaneSync, kLanes>> sync;

  void reset();
  LaneSync& sync_of(int lane);
  const Knowledge* knowledge(int lane) const {
    return sync ? (*sync)[static_cast<std::size_t>(lane)].knows.get() : nullptr;
  }
};

// What has been released at each address of a launch.
class SyncLocations {
 public:
  KnowledgePtr find(std::uint64_t key) const;
  // A write starts anew; a read-modify-write continues what was released there.
  void release(std::uint64_t key, KnowledgePtr released, bool continues);
  void forget(std::uint64_t key);
  void clear() { locations_.clear(); }

 private:
  std::unordered_map<std::uint64_t, KnowledgePtr> locations_;
};

struct Access {
  bool read = false, write = false, strong = false;
};

struct CellRange {
  Cell* cells;                // of the allocation, or of the block's shared memory
  std::uint8_t* initialised;  // likewise, one per byte; nullptr: always initialised
  std::size_t at, bytes;
  bool shared;
};

// Checks one lane's access for initialisation and races, and remembers it.
void check_cells(Warp& warp, int lane, const Inst& inst, const CellRange& range, Access access);

// Whether the record happened before what the lane does now.
bool happened_before(const Record& record, const Warp& warp, int lane);

// The lanes of the mask have met at a warp barrier.
void sync_lanes(Warp& warp, std::uint32_t mask);

// A barrier of every living thread of the block, and one of some of its warps' lanes.
void sync_block(Block& block);
// The lanes that wait, by warp; `published` is what those have left that did not wait.
void sync_some(Block& block, const std::array<std::uint32_t, kLanes>& lanes_of_warp, const Knowledge* published);
// What lanes that arrive without waiting publish: all that they have done so far.
void publish(Warp& warp, std::uint32_t lanes, Knowledge& published);

void make_fence(Warp& warp, int lane, Scope scope);

// What the ordering of an access publishes before it and learns after it. `key` names the location.
void release_at(Warp& warp, int lane, std::uint64_t key, const Inst& inst, bool read_modify_write);
void acquire_at(Warp& warp, int lane, std::uint64_t key, const Inst& inst);

}  // namespace ptx
