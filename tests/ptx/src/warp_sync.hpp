#pragma once
// Instructions at which the lanes of a warp meet.

#include "machine.hpp"
#include "report.hpp"

namespace ptx {

void report_foreign_lanes(const Warp& warp, const Inst& inst, std::uint32_t lanes, std::uint32_t members);
void report_exited_members(const Warp& warp, const Inst& inst, std::uint32_t lanes, std::uint32_t members);
void report_meeting_elsewhere(const Warp& warp, const Inst& inst, std::uint32_t lanes, const Meeting& meeting);

// The lanes of `mask` arrive; those that name the same members belong together. Once all living members are there,
// `together(members)` runs for them at once and they go on. `member_mask` is a register with the mask, or kNoReg for
// the whole warp.
template <class F>
Flow meet(Warp& warp, const Inst& inst, std::uint32_t mask, Reg member_mask, F&& together) {
  const std::uint32_t* masks = member_mask == kNoReg ? nullptr : warp.lanes<std::uint32_t>(member_mask);
  const auto members_of = [&](int lane) { return masks ? masks[lane] : kFullMask; };

  // Mostly everybody arrives at once.
  if (mask == warp.alive && warp.blocked == 0) {
    const std::uint32_t members = members_of(std::countr_zero(mask)) & warp.started;
    bool same = members == mask;
    for (std::uint32_t rest = mask; masks && same && rest; rest &= rest - 1)
      same = (masks[std::countr_zero(rest)] & warp.started) == members;
    if (same) {
      together(mask);
      return Flow::kNext;
    }
  }

  const std::uint32_t pc = warp.pc_of(inst);
  go_to(warp, mask, pc);
  while (mask) {
    const std::uint32_t members = members_of(std::countr_zero(mask));
    std::uint32_t group = 0;
    for_each_lane(mask, [&](int lane) { group |= std::uint32_t{members_of(lane) == members} << lane; });
    mask &= ~group;
    if (group & ~members) report_foreign_lanes(warp, inst, group & ~members, members);
    const std::uint32_t existing = members & warp.started;
    if (existing & ~warp.alive) report_exited_members(warp, inst, existing & ~warp.alive, members);

    Meeting* meeting = nullptr;
    for (Meeting& other : warp.meetings) {
      if (!other.arrived || !(other.arrived & existing)) continue;
      if (other.inst != &inst) report_meeting_elsewhere(warp, inst, group, other);
      meeting = &other;
    }
    if (!meeting) {
      for (Meeting& unused : warp.meetings) {
        if (unused.arrived) continue;
        unused.members = existing;
        unused.inst = &inst;
        meeting = &unused;
        break;
      }
    }
    if (!meeting) throw Error("too many groups of lanes wait at warp-wide instructions");
    meeting->arrived |= group;
    warp.blocked |= group;
    if (meeting->members & warp.alive & ~meeting->arrived) continue;
    const std::uint32_t all = meeting->arrived;
    meeting->arrived = 0;
    warp.blocked &= ~all;
    together(all);
    // Lanes of a meeting elsewhere (reported) each go on behind their own instruction.
    for_each_lane(all, [&](int lane) { ++warp.pc[static_cast<std::size_t>(lane)]; });
  }
  return Flow::kRescan;
}

}  // namespace ptx
