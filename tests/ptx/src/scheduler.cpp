// Who runs next. Within a warp, the lanes at the lowest pc; within a block, the warps in turn until each waits or ends;
// blocks one after another. A block that spins (its warps use up their time without waiting for anything) makes place
// for the others, so that waiting for another block works in any order.
//
// With a seed: blocks start in a random order within a small window and run interleaved in short random slices; warps
// take random turns; now and then the lanes of another pc go first.

#include <algorithm>

#include "barrier.hpp"
#include "machine.hpp"
#include "options.hpp"
#include "report.hpp"

namespace ptx {

Flow execute_branch(Warp&, const Inst&, std::uint32_t);

namespace {

// Warp instructions that a warp may execute before its block counts as spinning.
constexpr std::uint64_t kSlice = 500000;
constexpr std::uint64_t kShortSlice = 200;  // the average of seeded runs
constexpr std::size_t kSeededWindow = 4;
// Slices per resident block without an end, after which a seeded run starts another block.
constexpr std::size_t kSeededPatience = 500;
// What resident blocks may take of the host's memory, as far as there is a choice.
constexpr std::size_t kResidentBytes = std::size_t{1} << 29;

class Scheduler {
 public:
  explicit Scheduler(Launch& launch) : launch_(launch), seeded_(options().seed != 0) {}
  void run();

 private:
  void run_warp(Warp& warp);
  std::uint32_t choose_lanes(Warp& warp, std::uint32_t ready, std::uint32_t& next_pc);
  void run_block(Block& block);
  bool anybody_ready(const Block& block) const;
  void report_deadlock(Block& block);
  bool start_block();
  Block& pick();

  Launch& launch_;
  const bool seeded_;
  std::vector<std::uint64_t> order_;
  std::size_t started_ = 0;
  std::vector<std::unique_ptr<Block>> resident_, spare_;
  std::size_t turn_ = 0;
};

// The lanes that run next, all at one pc; next_pc is the lowest pc above where others wait to be joined.
std::uint32_t Scheduler::choose_lanes(Warp& warp, std::uint32_t ready, std::uint32_t& next_pc) {
  std::uint32_t lowest = ~0u;
  const bool another = seeded_ ? (launch_.random() & 7) == 0 : warp.slice_used_up;
  if (another) {
    // A random lane, or (after a slice without an end) each lane in turn: a spinning lane must not keep out the others.
    std::uint32_t rest = ready;
    std::uint32_t skip = (seeded_ ? static_cast<std::uint32_t>(launch_.random()) : warp.turn++) %
                         static_cast<std::uint32_t>(std::popcount(ready));
    while (skip--) rest &= rest - 1;
    lowest = warp.pc[static_cast<std::size_t>(std::countr_zero(rest))];
    warp.slice_used_up = false;
  } else {
    for_each_lane(ready, [&](int lane) { lowest = std::min(lowest, warp.pc[static_cast<std::size_t>(lane)]); });
  }
  std::uint32_t mask = 0;
  next_pc = ~0u;
  for_each_lane(ready, [&](int lane) {
    const std::uint32_t pc = warp.pc[static_cast<std::size_t>(lane)];
    if (pc == lowest) mask |= 1u << lane;
    if (pc > lowest) next_pc = std::min(next_pc, pc);
  });
  return mask;
}

void Scheduler::run_warp(Warp& warp) {
  const Inst* const code = warp.program->code.data();
  const std::uint64_t slice = seeded_ ? 1 + launch_.random() % (2 * kShortSlice) : kSlice;
  std::uint64_t left = slice, threads = 0;
  while (const std::uint32_t ready = warp.alive & ~warp.blocked) {
    std::uint32_t next_pc = 0;
    const std::uint32_t mask = choose_lanes(warp, ready, next_pc);
    std::uint32_t pc = warp.pc[static_cast<std::size_t>(std::countr_zero(mask))];
    bool together = true;
    while (together) {
      const Inst& inst = code[pc];
      std::uint32_t active = mask;
      if (inst.pred != kNoReg) {
        const std::uint32_t predicate = warp.predicate(inst.pred);
        active &= inst.pred_negated ? ~predicate : predicate;
      }
      threads += static_cast<std::uint32_t>(std::popcount(active));
      --left;
      if (!active) {
        ++pc;
      } else {
        const Flow flow = inst.execute(warp, inst, active);
        if (flow == Flow::kNext) {
          ++pc;
        } else if (flow == Flow::kJump && active == mask) {
          // Diverged lanes take turns at backward jumps, or those behind a loop would never run before it ends.
          if (inst.target <= pc && next_pc != ~0u && left % 64 == 0) together = false;
          pc = inst.target;
        } else {
          if (flow == Flow::kJump) go_to(warp, active, inst.target);
          go_to(warp, mask & ~active, pc + 1);
          together = false;
          if (left == 0) break;
          continue;
        }
      }
      if (pc >= next_pc || left == 0 || !together) {
        go_to(warp, mask, pc);
        together = false;
      }
    }
    if (left == 0 || launch_.stop) break;
  }
  if (left == 0 && !seeded_) warp.slice_used_up = true;
  launch_.counters.warp_instructions += slice - left;
  launch_.counters.thread_instructions += threads;
}

bool Scheduler::anybody_ready(const Block& block) const {
  return std::any_of(block.warps.begin(), block.warps.end(),
                     [](const Warp& warp) { return (warp.alive & ~warp.blocked) != 0; });
}

void Scheduler::report_deadlock(Block& block) {
  for (const Warp& warp : block.warps) {
    if (!warp.alive) continue;
    const int lane = std::countr_zero(warp.alive);
    const Inst& inst = block.launch->program->code[warp.pc[static_cast<std::size_t>(lane)]];
    report(ReportKind::kDeadlock, warp, lane, inst,
           "waits for ever: " + std::to_string(block.living()) + " threads of the block are left, none can go on");
    return;
  }
}

// Until the block ends, or until a whole round of its warps only spun.
void Scheduler::run_block(Block& block) {
  block.spinning = false;
  while (!launch_.stop) {
    if (seeded_) {
      Warp& warp = block.warps[launch_.random() % block.warps.size()];
      run_warp(warp);
    } else {
      for (Warp& warp : block.warps) {
        run_warp(warp);
        if (launch_.stop) return;
      }
    }
    if (!anybody_ready(block)) {
      if (block.finished()) return;
      if (complete_idle_barrier(block)) continue;
      report_deadlock(block);
      for (Warp& warp : block.warps) warp.alive = 0;
      return;
    }
    if (seeded_) return;
    const bool only_spun = std::all_of(block.warps.begin(), block.warps.end(), [](const Warp& warp) {
      return warp.slice_used_up || (warp.alive & ~warp.blocked) == 0;
    });
    if (only_spun) {
      block.spinning = true;
      return;
    }
  }
}

bool Scheduler::start_block() {
  if (started_ == order_.size()) return false;
  std::unique_ptr<Block> block;
  if (spare_.empty()) {
    block = std::make_unique<Block>();
    block->prepare(launch_);
  } else {
    block = std::move(spare_.back());
    spare_.pop_back();
  }
  block->serial = launch_.first_serial + static_cast<std::uint32_t>(started_);
  block->begin(order_[started_++]);
  resident_.push_back(std::move(block));
  return true;
}

void Scheduler::run() {
  order_.resize(launch_.grid.count());
  for (std::size_t i = 0; i < order_.size(); ++i) order_[i] = i;
  if (seeded_)
    std::shuffle(order_.begin(), order_.end(), [this] {
      struct Source {
        Launch* launch;
        using result_type = std::uint64_t;
        static constexpr result_type min() { return 0; }
        static constexpr result_type max() { return ~std::uint64_t{0}; }
        result_type operator()() { return launch->random(); }
      };
      return Source{&launch_};
    }());
  const std::size_t warps = (launch_.block.count() + kLanes - 1) / kLanes;
  const std::size_t bytes = warps * (launch_.program->initial_registers.size() + sizeof(Warp)) + launch_.dynamic_shared;
  const std::size_t most = std::min(launch_.max_resident, std::max<std::size_t>(kResidentBytes / bytes, 16));
  const std::size_t first = launch_.cooperative ? order_.size() : seeded_ ? kSeededWindow : 1;
  std::size_t slices = 0;  // since a block began or ended
  while (!launch_.stop) {
    while (resident_.size() < first && start_block()) {
    }
    if (resident_.empty()) return;
    turn_ = seeded_ ? launch_.random() % resident_.size() : turn_ % resident_.size();
    Block& block = *resident_[turn_];
    run_block(block);
    if (block.finished()) {
      spare_.push_back(std::move(resident_[turn_]));
      resident_.erase(resident_.begin() + static_cast<std::ptrdiff_t>(turn_));
      slices = 0;
      continue;
    }
    ++turn_;
    // Those that spin may wait for a block that has not begun.
    const bool all_had_a_turn = seeded_ ? ++slices >= kSeededPatience * resident_.size() : turn_ >= resident_.size();
    if (all_had_a_turn && resident_.size() < most) {
      start_block();
      slices = 0;
    }
  }
}

}  // namespace

void run_launch(Launch& launch) {
  Scheduler(launch).run();
}

}  // namespace ptx
