// bar, barrier, bar.warp.sync, membar, fence.

#include "barrier.hpp"

#include "alu.hpp"
#include "options.hpp"
#include "report.hpp"
#include "warp_sync.hpp"

namespace ptx {
namespace {

enum class Reduction : std::uint32_t { kNone, kPopc, kAnd, kOr };

// Inst::option of bar: the reduction, and whether the lanes wait.
constexpr std::uint32_t kReductionMask = 3, kArriveOnly = 4;

Reduction reduction_of(const Inst& inst) {
  return static_cast<Reduction>(inst.option & kReductionMask);
}

int line_of(const Warp& warp, const Inst& inst) {
  return warp.program->info[warp.pc_of(inst)].line;
}

// Two barrier instructions that come from one line of the source are one: the compiler may have copied it.
bool same_place(const Warp& warp, const Inst& a, const Inst& b) {
  if (&a == &b) return true;
  const SourcePlace p = warp.program->info[warp.pc_of(a)].place, q = warp.program->info[warp.pc_of(b)].place;
  return p.file != 0 && p.file == q.file && p.line == q.line;
}

void reduce(Block& block, Barrier& barrier) {
  std::uint32_t yes = 0;
  for (const Warp& warp : block.warps) {
    const std::uint32_t lanes = barrier.waiting[static_cast<std::size_t>(warp.index)];
    if (lanes) yes += static_cast<std::uint32_t>(std::popcount(warp.predicate(barrier.inst->src[2]) & lanes));
  }
  const Reduction reduction = reduction_of(*barrier.inst);
  for (Warp& warp : block.warps) {
    const std::uint32_t lanes = barrier.waiting[static_cast<std::size_t>(warp.index)];
    if (!lanes) continue;
    if (reduction == Reduction::kPopc) {
      std::uint32_t* d = warp.lanes<std::uint32_t>(barrier.inst->dst[0]);
      for_each_lane(lanes, [&](int lane) { d[lane] = yes; });
    } else {
      const bool holds = reduction == Reduction::kAnd ? yes == barrier.arrived : yes != 0;
      set_predicate(warp, barrier.inst->dst[0], lanes, holds ? kFullMask : 0);
    }
  }
}

void complete(Block& block, Barrier& barrier) {
  if (reduction_of(*barrier.inst) != Reduction::kNone) reduce(block, barrier);
  if (options().checks) {
    if (static_cast<int>(barrier.arrived) == block.living() && !barrier.published) {
      sync_block(block);
    } else {
      sync_some(block, barrier.waiting, barrier.published.get());
    }
  }
  for (Warp& warp : block.warps) {
    const std::uint32_t lanes = barrier.waiting[static_cast<std::size_t>(warp.index)];
    warp.blocked &= ~lanes;
    warp.at_barrier &= ~lanes;
    for_each_lane(lanes, [&](int lane) { ++warp.pc[static_cast<std::size_t>(lane)]; });
  }
  barrier = Barrier{};
}

Flow execute_bar(Warp& warp, const Inst& inst, std::uint32_t mask) {
  const std::uint32_t pc = warp.pc_of(inst);
  const std::uint32_t* ids = warp.lanes<std::uint32_t>(inst.src[0]);
  const std::uint32_t* counts = inst.src[1] == kNoReg ? nullptr : warp.lanes<std::uint32_t>(inst.src[1]);
  const bool waits = !(inst.option & kArriveOnly);
  go_to(warp, mask, waits ? pc : pc + 1);
  while (mask) {
    const int first = std::countr_zero(mask);
    std::uint32_t same = 0;
    for_each_lane(mask, [&](int lane) {
      same |= std::uint32_t{ids[lane] == ids[first] && (!counts || counts[lane] == counts[first])} << lane;
    });
    mask &= ~same;
    const std::uint32_t id = ids[first], expected = counts ? counts[first] : 0;
    if (id > 15 || expected % kLanes) {
      report(ReportKind::kBarrier, warp, first, inst,
             "barrier " + std::to_string(id) + " with " + std::to_string(expected) + " threads does not exist");
      continue;
    }
    arrive(warp, inst, same, id, expected, waits);
  }
  return Flow::kRescan;
}

Flow execute_syncwarp(Warp& warp, const Inst& inst, std::uint32_t mask) {
  return meet(warp, inst, mask, inst.src[0], [&](std::uint32_t members) {
    if (options().checks) sync_lanes(warp, members);
  });
}

void lower_bar(Lowering& lowering, Inst& inst) {
  if (lowering.take("warp")) {
    if (!lowering.take("sync")) lowering.fail("bar.warp needs .sync");
    lowering.expect_operands(1);
    inst.src[0] = lowering.source(0, 4);
    inst.execute = execute_syncwarp;
    return;
  }
  if (lowering.take("cluster")) lowering.fail("clusters are not supported");
  lowering.take("cta");
  const int what = lowering.take_any({"sync", "arrive", "red"});
  if (what < 0) lowering.fail("bar needs .sync, .arrive or .red");
  lowering.take("aligned");
  inst.execute = execute_bar;
  std::size_t first = 0, last = lowering.operand_count();
  if (what == 2) {
    const int reduction = lowering.take_any({"popc", "and", "or"});
    if (reduction < 0) lowering.fail("bar.red needs .popc, .and or .or");
    inst.option = static_cast<std::uint32_t>(reduction) + 1;
    lowering.take_type({Type::kU32, Type::kPred});
    inst.dst[0] = reduction == 0 ? lowering.destination(0, 4) : lowering.destination_predicate(0);
    first = 1;
    --last;
    inst.src[2] = lowering.source_predicate(last);
  }
  if (what == 1) inst.option = kArriveOnly;
  if (last - first < 1 || last - first > 2 || (what == 1 && last - first != 2)) lowering.fail("unexpected operands");
  inst.src[0] = lowering.source(first, 4);
  if (last - first == 2) inst.src[1] = lowering.source(first + 1, 4);
}

// ---- fences

Flow execute_fence(Warp& warp, const Inst& inst, std::uint32_t mask) {
  if (options().checks) for_each_lane(mask, [&](int lane) { make_fence(warp, lane, inst.scope); });
  return Flow::kNext;
}

Flow execute_nothing(Warp&, const Inst&, std::uint32_t) {
  return Flow::kNext;
}

void lower_membar(Lowering& lowering, Inst& inst) {
  if (!lowering.take_scope(inst)) lowering.fail("the scope is missing");
  inst.execute = execute_fence;
}

void lower_fence(Lowering& lowering, Inst& inst) {
  // fence.proxy orders the memory as seen by other units, of which none is modelled.
  if (lowering.take("proxy")) {
    lowering.take_any({"alias", "async", "async.global"});
    lowering.take_any({"global", "shared::cta", "shared"});
    inst.execute = execute_nothing;
    return;
  }
  lowering.take_any({"sc", "acq_rel", "acquire", "release"});
  if (!lowering.take_scope(inst)) lowering.fail("the scope is missing");
  inst.execute = execute_fence;
}

}  // namespace

void arrive(Warp& warp, const Inst& inst, std::uint32_t lanes, std::uint32_t number, std::uint32_t expected,
            bool waits) {
  Block& block = *warp.block;
  Barrier& barrier = block.barriers[number];
  const auto index = static_cast<std::size_t>(warp.index);
  if (!barrier.inst) {
    barrier.inst = &inst;
    barrier.expected = expected;
  } else if (expected == 0 && waits && !same_place(warp, *barrier.inst, inst)) {
    report(ReportKind::kBarrier, warp, std::countr_zero(lanes), inst,
           "threads wait at barrier " + std::to_string(number) + " here, others at PTX line " +
               std::to_string(line_of(warp, *barrier.inst)));
  }
  if (barrier.expected != expected)
    report(ReportKind::kBarrier, warp, std::countr_zero(lanes), inst,
           "barrier " + std::to_string(number) + " is used with two counts of threads");
  barrier.arrived += static_cast<std::uint32_t>(std::popcount(lanes));
  if (waits) {
    barrier.waiting[index] |= lanes;
    warp.blocked |= lanes;
    warp.at_barrier |= lanes;
  } else if (options().checks) {
    if (!barrier.published) barrier.published = std::make_shared<Knowledge>();
    publish(warp, lanes, *barrier.published);
  }
  const bool everybody = expected == 0 && static_cast<int>(barrier.arrived) == block.threads;
  const bool enough = expected != 0 && barrier.arrived >= expected;
  if (everybody || enough) complete(block, barrier);
}

bool complete_idle_barrier(Block& block) {
  for (Barrier& barrier : block.barriers) {
    if (!barrier.inst || barrier.expected != 0 || static_cast<int>(barrier.arrived) != block.living()) continue;
    for (const Warp& warp : block.warps) {
      if (!warp.at_barrier) continue;
      report(ReportKind::kBarrier, warp, std::countr_zero(warp.at_barrier), *barrier.inst,
             "a barrier is reached by " + std::to_string(barrier.arrived) + " of " + std::to_string(block.threads) +
                 " threads, the others have exited");
      break;
    }
    complete(block, barrier);
    return true;
  }
  return false;
}

void add_barrier(InstructionSet& set) {
  auto& all = set.general;
  all["bar"] = lower_bar;
  all["barrier"] = lower_bar;
  all["membar"] = lower_membar;
  all["fence"] = lower_fence;
}

}  // namespace ptx
