// shfl, vote, match, redux, activemask, elect, bar.warp.sync.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "alu.hpp"
#include "numbers.hpp"
#include "warp_sync.hpp"

namespace ptx {

namespace {

std::string hexadecimal(std::uint32_t mask) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%08x", mask);
  return text;
}

}  // namespace

void report_foreign_lanes(const Warp& warp, const Inst& inst, std::uint32_t lanes, std::uint32_t members) {
  report(ReportKind::kMask, warp, std::countr_zero(lanes), inst,
         "lanes " + hexadecimal(lanes) + " execute a warp-wide instruction whose mask " + hexadecimal(members) +
             " leaves them out");
}

void report_exited_members(const Warp& warp, const Inst& inst, std::uint32_t lanes, std::uint32_t members) {
  report(ReportKind::kMask, warp, std::countr_zero(lanes), inst,
         "the mask " + hexadecimal(members) + " names lanes that have exited: " + hexadecimal(lanes));
}

void report_meeting_elsewhere(const Warp& warp, const Inst& inst, std::uint32_t lanes, const Meeting& meeting) {
  const InstInfo& other = warp.program->info[warp.pc_of(*meeting.inst)];
  report(ReportKind::kMask, warp, std::countr_zero(lanes), inst,
         "lanes " + hexadecimal(lanes) + " wait for lanes " + hexadecimal(meeting.arrived) +
             ", which wait for them at another instruction (PTX line " + std::to_string(other.line) + ")");
}

namespace {

enum class Shuffle : std::uint32_t { kUp, kDown, kButterfly, kIndex };

// PTX's segment mask and clamp in operand c.
Flow execute_shfl(Warp& warp, const Inst& inst, std::uint32_t mask) {
  return meet(warp, inst, mask, inst.src[3], [&](std::uint32_t members) {
    std::array<std::uint32_t, kLanes> values;
    const std::uint32_t* a = warp.lanes<std::uint32_t>(inst.src[0]);
    std::copy(a, a + kLanes, values.begin());
    const std::uint32_t* b = warp.lanes<std::uint32_t>(inst.src[1]);
    const std::uint32_t* c = warp.lanes<std::uint32_t>(inst.src[2]);
    std::uint32_t* d = warp.lanes<std::uint32_t>(inst.dst[0]);
    std::uint32_t in_range = 0, outside = 0;
    for_each_lane(members, [&](int lane) {
      const int by = static_cast<int>(b[lane] & 31);
      const int segment = static_cast<int>(c[lane] >> 8 & 31), clamp = static_cast<int>(c[lane] & 31);
      const int highest = (lane & segment) | (clamp & ~segment), lowest = lane & segment;
      int from = 0;
      bool valid = false;
      switch (static_cast<Shuffle>(inst.option)) {
        case Shuffle::kUp:
          from = lane - by;
          valid = from >= highest;
          break;
        case Shuffle::kDown:
          from = lane + by;
          valid = from <= highest;
          break;
        case Shuffle::kButterfly:
          from = lane ^ by;
          valid = from <= highest;
          break;
        case Shuffle::kIndex:
          from = lowest | (by & ~segment);
          valid = from <= highest;
          break;
      }
      if (!valid) from = lane;
      in_range |= std::uint32_t{valid} << lane;
      if (members >> from & 1) {
        d[lane] = values[static_cast<std::size_t>(from)];
      } else {
        outside |= 1u << lane;
      }
    });
    if (outside)
      report(ReportKind::kMask, warp, std::countr_zero(outside), inst,
             "lanes " + hexadecimal(outside) + " read from lanes that do not take part (mask " + hexadecimal(members) +
                 ")");
    if (inst.dst[1] != kNoReg) set_predicate(warp, inst.dst[1], members, in_range);
  });
}

void lower_shfl(Lowering& lowering, Inst& inst) {
  if (!lowering.take("sync")) lowering.fail("shfl without .sync");
  const int mode = lowering.take_any({"up", "down", "bfly", "idx"});
  if (mode < 0) lowering.fail("the mode is missing");
  inst.option = static_cast<std::uint32_t>(mode);
  lowering.take_type({Type::kB32, Type::kU32, Type::kS32});
  const std::size_t first = lowering.has_second_destination() ? 2 : 1;
  lowering.expect_operands(first + 4);
  inst.dst[0] = lowering.destination(0, 4);
  if (first == 2) inst.dst[1] = lowering.destination_predicate(1);
  for (std::size_t k = 0; k < 4; ++k) inst.src[k] = lowering.source(first + k, 4);
  inst.execute = execute_shfl;
}

enum class Vote : std::uint32_t { kBallot, kAny, kAll, kUniform };

Flow execute_vote(Warp& warp, const Inst& inst, std::uint32_t mask) {
  return meet(warp, inst, mask, inst.src[1], [&](std::uint32_t members) {
    const std::uint32_t yes = warp.predicate(inst.src[0]) & members;
    bool result = false;
    switch (static_cast<Vote>(inst.option)) {
      case Vote::kBallot: {
        std::uint32_t* d = warp.lanes<std::uint32_t>(inst.dst[0]);
        for_lanes(members, [=](int lane) { d[lane] = yes; });
        return;
      }
      case Vote::kAny:
        result = yes != 0;
        break;
      case Vote::kAll:
        result = yes == members;
        break;
      case Vote::kUniform:
        result = yes == 0 || yes == members;
        break;
    }
    set_predicate(warp, inst.dst[0], members, result ? kFullMask : 0);
  });
}

void lower_vote(Lowering& lowering, Inst& inst) {
  if (!lowering.take("sync")) lowering.fail("vote without .sync");
  const int mode = lowering.take_any({"ballot", "any", "all", "uni"});
  if (mode < 0) lowering.fail("the mode is missing");
  inst.option = static_cast<std::uint32_t>(mode);
  lowering.take_type({Type::kPred, Type::kB32});
  lowering.expect_operands(3);
  inst.dst[0] = mode == 0 ? lowering.destination(0, 4) : lowering.destination_predicate(0);
  inst.src[0] = lowering.source_predicate(1);
  inst.src[1] = lowering.source(2, 4);
  inst.execute = execute_vote;
}

template <class T, bool kAll>
Flow execute_match(Warp& warp, const Inst& inst, std::uint32_t mask) {
  return meet(warp, inst, mask, inst.src[1], [&](std::uint32_t members) {
    const T* a = warp.lanes<T>(inst.src[0]);
    std::array<std::uint32_t, kLanes> equal{};
    bool all = true;
    for_each_lane(members, [&](int lane) {
      std::uint32_t& lanes = equal[static_cast<std::size_t>(lane)];
      for_each_lane(members, [&](int other) { lanes |= std::uint32_t{a[lane] == a[other]} << other; });
      all = all && lanes == members;
    });
    std::uint32_t* d = warp.lanes<std::uint32_t>(inst.dst[0]);
    for_each_lane(members,
                  [&](int lane) { d[lane] = kAll ? (all ? members : 0) : equal[static_cast<std::size_t>(lane)]; });
    if (inst.dst[1] != kNoReg) set_predicate(warp, inst.dst[1], members, all ? kFullMask : 0);
  });
}

void lower_match(Lowering& lowering, Inst& inst) {
  const int mode = lowering.take_any({"any", "all"});
  if (mode < 0 || !lowering.take("sync")) lowering.fail("match needs .any or .all, and .sync");
  const Type type = lowering.take_type({Type::kB32, Type::kB64});
  const std::size_t first = lowering.has_second_destination() ? 2 : 1;
  lowering.expect_operands(first + 2);
  inst.dst[0] = lowering.destination(0, 4);
  if (first == 2) inst.dst[1] = lowering.destination_predicate(1);
  inst.src[0] = lowering.source(first, size_of(type));
  inst.src[1] = lowering.source(first + 1, 4);
  if (size_of(type) == 4) {
    inst.execute = mode == 0 ? execute_match<std::uint32_t, false> : execute_match<std::uint32_t, true>;
  } else {
    inst.execute = mode == 0 ? execute_match<std::uint64_t, false> : execute_match<std::uint64_t, true>;
  }
}

// ---- redux

struct Sum {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(static_cast<std::uint32_t>(a) + static_cast<std::uint32_t>(b));
  }
};
struct Least {
  template <class T>
  T operator()(T a, T b) const {
    return std::min(a, b);
  }
};
struct Greatest {
  template <class T>
  T operator()(T a, T b) const {
    return std::max(a, b);
  }
};

template <class T, class F>
Flow execute_redux(Warp& warp, const Inst& inst, std::uint32_t mask) {
  return meet(warp, inst, mask, inst.src[1], [&](std::uint32_t members) {
    const T* a = warp.lanes<T>(inst.src[0]);
    T result = a[std::countr_zero(members)];
    for_each_lane(members & (members - 1), [&](int lane) { result = F{}(result, a[lane]); });
    T* d = warp.lanes<T>(inst.dst[0]);
    for_each_lane(members, [&](int lane) { d[lane] = result; });
  });
}

// redux.min/max.f32 of compute_100a: NaN loses unless .NaN.
constexpr std::uint32_t kMaximum = 1, kMagnitude = 2, kNanWins = 4;

Flow execute_redux_float(Warp& warp, const Inst& inst, std::uint32_t mask) {
  return meet(warp, inst, mask, inst.src[1], [&](std::uint32_t members) {
    const float* a = warp.lanes<float>(inst.src[0]);
    const auto value = [&](int lane) { return (inst.option & kMagnitude) ? std::fabs(a[lane]) : a[lane]; };
    float result = value(std::countr_zero(members));
    for_each_lane(members & (members - 1), [&](int lane) {
      const float next = value(lane);
      if (std::isnan(result) || std::isnan(next)) {
        const bool take_nan = inst.option & kNanWins;
        if (std::isnan(result) != take_nan) result = next;
        return;
      }
      const bool less = next < result || (next == result && std::signbit(next));
      if (less != ((inst.option & kMaximum) != 0)) result = next;
    });
    float* d = warp.lanes<float>(inst.dst[0]);
    for_each_lane(members, [&](int lane) { d[lane] = canonical(result); });
  });
}

void lower_redux(Lowering& lowering, Inst& inst) {
  if (!lowering.take("sync")) lowering.fail("redux without .sync");
  const int operation = lowering.take_any({"add", "min", "max", "and", "or", "xor"});
  const bool magnitude = lowering.take("abs"), nan = lowering.take("NaN");
  const Type type = lowering.take_type({Type::kU32, Type::kS32, Type::kB32, Type::kF32});
  lowering.expect_operands(3);
  inst.dst[0] = lowering.destination(0, 4);
  inst.src[0] = lowering.source(1, 4);
  inst.src[1] = lowering.source(2, 4);
  if (type == Type::kF32) {
    if (operation != 1 && operation != 2) lowering.fail("only the minimum and maximum of f32");
    inst.option = (operation == 2 ? kMaximum : 0) | (magnitude ? kMagnitude : 0) | (nan ? kNanWins : 0);
    inst.execute = execute_redux_float;
    return;
  }
  if (magnitude || nan) lowering.fail("not for integers");
  const bool is_signed = type == Type::kS32;
  switch (operation) {
    case 0:
      inst.execute = execute_redux<std::uint32_t, Sum>;
      break;
    case 1:
      inst.execute = is_signed ? execute_redux<std::int32_t, Least> : execute_redux<std::uint32_t, Least>;
      break;
    case 2:
      inst.execute = is_signed ? execute_redux<std::int32_t, Greatest> : execute_redux<std::uint32_t, Greatest>;
      break;
    case 3:
      inst.execute = execute_redux<std::uint32_t, And>;
      break;
    case 4:
      inst.execute = execute_redux<std::uint32_t, Or>;
      break;
    case 5:
      inst.execute = execute_redux<std::uint32_t, Xor>;
      break;
    default:
      lowering.fail("the operation is missing");
  }
}

// ---- activemask, elect

Flow execute_activemask(Warp& warp, const Inst& inst, std::uint32_t mask) {
  std::uint32_t* d = warp.lanes<std::uint32_t>(inst.dst[0]);
  for_each_lane(mask, [&](int lane) { d[lane] = mask; });
  return Flow::kNext;
}

void lower_activemask(Lowering& lowering, Inst& inst) {
  lowering.take_type({Type::kB32});
  lowering.expect_operands(1);
  inst.dst[0] = lowering.destination(0, 4);
  inst.execute = execute_activemask;
}

Flow execute_elect(Warp& warp, const Inst& inst, std::uint32_t mask) {
  return meet(warp, inst, mask, inst.src[0], [&](std::uint32_t members) {
    const int leader = std::countr_zero(members);
    std::uint32_t* d = warp.lanes<std::uint32_t>(inst.dst[0]);
    for_each_lane(members, [&](int lane) { d[lane] = static_cast<std::uint32_t>(leader); });
    set_predicate(warp, inst.dst[1], members, 1u << leader);
  });
}

void lower_elect(Lowering& lowering, Inst& inst) {
  if (!lowering.take("sync") || !lowering.has_second_destination()) lowering.fail("elect.sync d|p, mask is expected");
  lowering.expect_operands(3);
  inst.dst[0] = lowering.destination(0, 4);
  inst.dst[1] = lowering.destination_predicate(1);
  inst.src[0] = lowering.source(2, 4);
  inst.execute = execute_elect;
}

}  // namespace

void add_warp(InstructionSet& set) {
  auto& all = set.general;
  all["shfl"] = lower_shfl;
  all["vote"] = lower_vote;
  all["match"] = lower_match;
  all["redux"] = lower_redux;
  all["activemask"] = lower_activemask;
  all["elect"] = lower_elect;
}

}  // namespace ptx
