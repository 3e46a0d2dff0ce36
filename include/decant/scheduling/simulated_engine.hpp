// decant: SimulatedEngine, one engine in simulated time: a Batch, the policy that plans its steps and what they cost.
// There is no event within a step: continuous batching admits and retires at its ends only. A simulation drives one of
// them (simulator.hpp) or many (cluster.hpp).
#ifndef DECANT_SCHEDULING_SIMULATED_ENGINE_HPP
#define DECANT_SCHEDULING_SIMULATED_ENGINE_HPP

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "scheduler.hpp"
#include "step_cost.hpp"
#include "workload.hpp"

namespace decant::scheduling {

/// What became of one request; instants since the start of the simulation.
struct RequestRecord {
  std::uint64_t tag = 0;
  std::uint32_t prompt = 0, output = 0, tenant = 0;
  Nanoseconds arrival = 0, first_token = 0, end = 0;
  Nanoseconds longest_gap = 0;  ///< between two of its tokens
  std::uint32_t preemptions = 0;
  std::uint32_t hit_tokens = 0;  ///< of its prompt, found in memory when it was first admitted
  bool rejected = false;        ///< larger than memory: never admitted, no instant is set
  bool operator==(const RequestRecord&) const = default;
};

/// Sums over the steps of an engine.
struct EngineTotals {
  std::uint64_t steps = 0, scheduled_items = 0;
  std::uint64_t computed_tokens = 0, emitted_tokens = 0;
  std::uint64_t preemptions = 0, lost_tokens = 0, hit_tokens = 0;
  std::uint64_t area = 0;             ///< resident tokens, summed over the steps
  std::uint64_t resident_ns = 0;      ///< resident tokens x their time, in tokens x microseconds
  Nanoseconds busy = 0;
  std::uint64_t digest = 0xcbf29ce484222325u;  ///< FNV-1a of (step, tag, tokens) of every item
  bool operator==(const EngineTotals&) const = default;
};

template <class Policy, StepCost Cost, KvMemory Memory = TokenMemory>
  requires Scheduler<Policy, Memory>
class SimulatedEngine {
 public:
  SimulatedEngine(Policy policy, Cost cost, Memory memory, const BatchLimits& limits, bool lag = false)
      : policy_(std::move(policy)), cost_(std::move(cost)), batch_(std::move(memory), limits), lag_(lag) {}

  const Batch<Memory>& batch() const { return batch_; }
  const Policy& policy() const { return policy_; }
  const EngineTotals& totals() const { return totals_; }

  /// `record` is filled as the request goes on and must live as long as it does. False: it is larger than memory.
  bool arrive(const SimulatedRequest& request, RequestRecord& record) {
    record = {};
    record.tag = request.info.tag;
    record.prompt = request.info.prompt;
    record.output = request.output;
    record.tenant = request.info.tenant;
    record.arrival = request.info.arrival;
    record.rejected = !batch_.fits_alone(request.info);
    if (record.rejected) return false;
    const RequestId id = batch_.arrive(request.info);
    if (id >= live_.size()) live_.resize(id + std::size_t{1});
    live_[id] = {&record, request.output, 0, false};
    policy_.on_arrival(batch_, id);
    return true;
  }

  bool idle() const { return batch_.running_count() == 0 && batch_.waiting_count() == 0; }

  /// Plans a step; false: the policy left it empty. Else its duration is duration().
  bool begin_step(Nanoseconds now) {
    batch_.begin_step(now);
    policy_.schedule(batch_);
    const auto items = batch_.items();
    if (items.empty()) return false;
    shapes_.clear();
    for (index_t i = 0; i < items.extent(0); ++i) {
      const RequestState& r = batch_[items[i].id];
      shapes_.push_back({items[i].tokens, r.computed});
      Live& live = live_[items[i].id];
      if (!live.admitted) live.record->hit_tokens = r.computed;
      live.admitted = true;
      count(totals_.steps);
      count(r.info.tag);
      count(items[i].tokens);
      totals_.computed_tokens += items[i].tokens;
    }
    totals_.scheduled_items += shapes_.size();
    duration_ = cost_.step_ns({shapes_.data(), static_cast<index_t>(shapes_.size())}, sharing());
    return true;
  }

  Nanoseconds duration() const { return duration_; }

  /// The step ends at `now`, which may be later than it would alone (a barrier). Calls on_end(record) for every request
  /// that has ended.
  template <class OnEnd>
  void end_step(Nanoseconds now, const OnEnd& on_end) {
    const std::uint32_t requests = static_cast<std::uint32_t>(shapes_.size());
    const auto sampled = batch_.complete_step(now);
    const std::uint64_t resident = batch_.memory().used();
    totals_.area += resident;
    totals_.resident_ns += resident * (duration_ / 1000);
    totals_.busy += duration_;
    totals_.emitted_tokens += static_cast<std::uint64_t>(sampled.extent(0));
    StepResult result{totals_.steps, duration_, requests, 0, static_cast<std::uint32_t>(sampled.extent(0))};
    for (const StepShape& shape : shapes_) result.tokens += shape.tokens;
    ++totals_.steps;
    for (index_t i = 0; i < sampled.extent(0); ++i) {
      const RequestId id = sampled[i];
      Live& live = live_[id];
      RequestRecord& record = *live.record;
      if (batch_[id].generated == 1) {
        record.first_token = now;
      } else {
        record.longest_gap = (std::max)(record.longest_gap, now - live.last_token);
      }
      live.last_token = now;
      if (batch_[id].generated < live.output) continue;
      record.end = now;
      record.preemptions = batch_[id].preemptions;
      policy_.on_finish(batch_, id);
      batch_.finish(id);
      on_end(record);
    }
    totals_.preemptions = batch_.preemptions();
    totals_.lost_tokens = batch_.lost_tokens();
    totals_.hit_tokens = batch_.hit_tokens();
    tell(result);
  }

 private:
  struct Live {
    RequestRecord* record = nullptr;
    std::uint32_t output = 0;
    Nanoseconds last_token = 0;
    bool admitted = false;
  };

  void count(std::uint64_t word) {
    for (int byte = 0; byte < 8; ++byte) {
      totals_.digest = (totals_.digest ^ (word & 255)) * 0x100000001b3u;
      word >>= 8;
    }
  }

  // An engine that plans ahead hears of a step when the next one has run.
  void tell(const StepResult& result) {
    if (!lag_) {
      policy_.on_step_done(batch_, result);
      return;
    }
    if (result.step > 0) policy_.on_step_done(batch_, late_);
    late_ = result;
  }

  PrefixSharing sharing() {
    PrefixSharing out;
    groups_.clear();
    const auto items = batch_.items();
    for (index_t i = 0; i < items.extent(0); ++i) {
      const RequestState& r = batch_[items[i].id];
      if (r.info.group != 0 && r.computed >= r.info.group_tokens) groups_.push_back({r.info.group, r.info.group_tokens});
    }
    if (groups_.size() < 2) return out;
    std::sort(groups_.begin(), groups_.end(), [](const Group& a, const Group& b) {
      return a.id != b.id ? a.id < b.id : a.tokens < b.tokens;
    });
    for (std::size_t first = 0, last; first < groups_.size(); first = last) {
      for (last = first; last < groups_.size() && groups_[last].id == groups_[first].id;) ++last;
      if (last - first < 2) continue;
      out.repeated += (last - first - 1) * std::uint64_t{groups_[first].tokens};
      out.longest = (std::max)(out.longest, groups_[first].tokens);
      ++out.groups;
    }
    // All of the step in one group: those still in their prefix do not read it yet, and do not disturb it either.
    bool one = true;
    for (index_t i = 0; i < items.extent(0); ++i) one = one && batch_[items[i].id].info.group == groups_[0].id;
    if (one) out.tip = out.repeated;
    return out;
  }

  struct Group {
    std::uint32_t id, tokens;
  };

  Policy policy_;
  Cost cost_;
  Batch<Memory> batch_;
  bool lag_;
  std::vector<Live> live_;  // per slot
  std::vector<StepShape> shapes_;
  std::vector<Group> groups_;
  Nanoseconds duration_ = 0;
  StepResult late_{};
  EngineTotals totals_{};
};

}  // namespace decant::scheduling

#endif
