#pragma once
// The state of a running kernel: the launch, its blocks, their warps.

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "counters.hpp"
#include "memory.hpp"
#include "program.hpp"
#include "race.hpp"

namespace ptx {

class Module;

struct Launch {
  Module* module = nullptr;
  const Program* program = nullptr;
  Dim3 grid, block;
  std::size_t dynamic_shared = 0;
  std::vector<std::byte> parameters;
  bool cooperative = false;
  std::size_t max_resident = 1024;  // blocks at a time
  std::uint64_t grid_id = 0;

  std::uint32_t first_serial = 0;
  std::uint64_t random_state = 1;
  SyncLocations sync_locations;
  Counters counters;
  std::byte* cooperative_workspace = nullptr;  // what cg::grid_group finds through %envreg1 and %envreg2
  int reports = 0;
  std::vector<std::uint64_t> reported;  // (kind, pc) pairs already printed
  bool stop = false;                    // a thread trapped, or there are too many reports
  int first_failure = -1;               // the ReportKind of what stopped the kernel, or made its results void

  std::uint64_t random() {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
  }
};

// Lanes that wait for others at a warp-wide instruction.
struct Meeting {
  std::uint32_t members = 0, arrived = 0;
  const Inst* inst = nullptr;
};

struct AsyncCopy {
  std::uint32_t to;  // offset in shared memory
  std::uint32_t bytes;
  std::array<std::byte, 16> data;
  const Inst* inst;
};

// cp.async of one lane: the groups committed and not yet complete, oldest first, and the one being filled.
struct AsyncCopies {
  std::vector<std::vector<AsyncCopy>> groups;
  std::vector<AsyncCopy> open;
};

struct CallSite {
  std::uint32_t pc;  // of the call
  int function;      // that was called
};

struct Warp {
  std::byte* registers = nullptr;
  const Program* program = nullptr;
  Block* block = nullptr;
  int index = 0;
  std::uint32_t started = 0;  // lanes that exist
  std::uint32_t alive = 0;
  std::uint32_t blocked = 0;
  std::uint32_t at_barrier = 0;  // of the blocked lanes
  std::array<std::uint32_t, kLanes> pc{};
  std::array<Meeting, 8> meetings;
  WarpClocks clocks;
  std::array<std::vector<CallSite>, kLanes> calls;
  std::array<std::uint32_t, kLanes> local_used{};  // by alloca
  std::unique_ptr<std::array<AsyncCopies, kLanes>> async;
  std::uint32_t turn = 0;  // rotates the choice among diverged lanes that spin
  bool slice_used_up = false;

  int thread(int lane) const { return index * kLanes + lane; }
  std::uint32_t pc_of(const Inst& inst) const { return static_cast<std::uint32_t>(&inst - program->code.data()); }
  template <class T>
  T* lanes(Reg reg) const {
    return reinterpret_cast<T*>(registers + reg);
  }
  std::uint32_t& predicate(Reg reg) const { return *reinterpret_cast<std::uint32_t*>(registers + reg); }
  std::byte* local(int lane) const;
};

struct Barrier {
  std::uint32_t expected = 0;  // threads; 0: every living one
  std::uint32_t arrived = 0;
  std::array<std::uint32_t, kLanes> waiting{};  // lanes, by warp
  const Inst* inst = nullptr;                   // of the first to arrive
  std::shared_ptr<Knowledge> published;         // by those that arrived without waiting
};

struct FreeAligned {
  void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{64}); }
};
using AlignedBytes = std::unique_ptr<std::byte[], FreeAligned>;

struct Block {
  Launch* launch = nullptr;
  Dim3 index;
  std::uint64_t number = 0;
  std::uint32_t serial = 0;
  std::uint32_t epoch = 0;
  int threads = 0;
  std::vector<Warp> warps;
  AlignedBytes registers;
  AlignedBytes shared;
  std::size_t shared_bytes = 0;
  std::vector<std::uint8_t> shared_initialised;
  ZeroedArray<Cell> shared_cells;
  std::vector<std::uint8_t> shared_pending;  // per cell: cp.async writes under way
  std::uint32_t pending_copies = 0;
  AlignedBytes local;
  std::size_t local_stride = 0, local_bytes = 0;
  std::array<Barrier, 16> barriers;
  bool any_fence = false;
  bool spinning = false;  // its last slice ended before it could finish or wait

  // Allocates what a block of this launch needs; begin() makes it a new block.
  void prepare(Launch& launch);
  void begin(std::uint64_t number);
  bool finished() const;
  int living() const;
};

inline std::byte* Warp::local(int lane) const {
  return block->local.get() + block->local_stride * static_cast<std::size_t>(thread(lane));
}

// ---- loops over lanes

template <class F>
inline void for_lanes(std::uint32_t mask, F&& body) {
  if (mask == kFullMask) {
#ifdef __clang__
#pragma clang loop vectorize(assume_safety)
#else
#pragma GCC ivdep
#endif
    for (int lane = 0; lane < kLanes; ++lane) body(lane);
  } else {
    for (; mask; mask &= mask - 1) body(std::countr_zero(mask));
  }
}

// For bodies that never vectorise.
template <class F>
inline void for_each_lane(std::uint32_t mask, F&& body) {
  for (; mask; mask &= mask - 1) body(std::countr_zero(mask));
}

inline void set_predicate(Warp& warp, Reg reg, std::uint32_t mask, std::uint32_t value) {
  std::uint32_t& predicate = warp.predicate(reg);
  predicate = (predicate & ~mask) | (value & mask);
}

// ---- control, for instructions that wait

// Sets the pc of the lanes.
inline void go_to(Warp& warp, std::uint32_t mask, std::uint32_t pc) {
  for_each_lane(mask, [&](int lane) { warp.pc[static_cast<std::size_t>(lane)] = pc; });
}

void run_launch(Launch& launch);

}  // namespace ptx
