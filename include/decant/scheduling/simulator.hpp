// decant: simulate(), a deterministic discrete-event simulation of continuous batching on one engine, in integers alone:
// the same bytes on every machine, compiler and order of the input. Every scheduler here is compared on it. It checks
// what must hold of every policy (Batch refuses a wrong plan; conservation of tokens and completion are checked at the
// end) and says which rule was broken.
#ifndef DECANT_SCHEDULING_SIMULATOR_HPP
#define DECANT_SCHEDULING_SIMULATOR_HPP

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "simulated_engine.hpp"

namespace decant::scheduling {

/// A simulation cannot go on, or a rule of it was broken: a policy that plans nothing while requests wait, or too many
/// steps.
class SimulationError : public Error {
 public:
  using Error::Error;
};

struct SimulationOptions {
  BatchLimits limits{};
  bool lag = false;                          ///< policies hear of a step one step late: asynchronous scheduling
  std::uint64_t max_steps = 1'000'000'000;   ///< SimulationError beyond: a livelock
  bool operator==(const SimulationOptions&) const = default;
};

struct SimulationReport {
  std::vector<RequestRecord> requests;  ///< by (arrival, tag)
  EngineTotals totals{};
  Nanoseconds makespan = 0;             ///< the instant at which the last step ended
  bool operator==(const SimulationReport&) const = default;
};

/// Every step takes one unit of time.
struct UnitCost {
  Nanoseconds step_ns(View<const StepShape, 1>, const PrefixSharing& = {}) const { return 1; }
};

namespace detail {

/// Throws unless all requests have ended exactly once and every token is accounted for.
inline void audit(const SimulationReport& report) {
  std::uint64_t outputs = 0, stored = 0;
  for (const RequestRecord& r : report.requests) {
    if (r.rejected) continue;
    outputs += r.output;
    stored += std::uint64_t{r.prompt} + r.output - 1;
    if (r.end < r.first_token || r.first_token <= r.arrival) {
      DECANT_THROW(SimulationError("decant::scheduling::simulate: request " + decant::detail::to_text(r.tag) +
                                   " ended before its first token or began before its arrival"));
    }
  }
  const EngineTotals& t = report.totals;
  if (t.emitted_tokens != outputs) {
    DECANT_THROW(SimulationError("decant::scheduling::simulate: " + decant::detail::to_text(t.emitted_tokens) + " tokens emitted of " +
                                 decant::detail::to_text(outputs)));
  }
  if (t.computed_tokens + t.hit_tokens != stored + t.lost_tokens) {
    DECANT_THROW(SimulationError("decant::scheduling::simulate: " + decant::detail::to_text(t.computed_tokens) + " tokens computed and " +
                                 decant::detail::to_text(t.hit_tokens) + " found, but " + decant::detail::to_text(stored) + " stored and " +
                                 decant::detail::to_text(t.lost_tokens) + " lost"));
  }
}

}  // namespace detail

/// Sees nothing of a simulation.
struct NoObserver {
  template <class Memory>
  void operator()(Nanoseconds, const Batch<Memory>&) const {}
};

/// Runs `workload` to its end under `policy`. Requests larger than memory are rejected and marked so. `observe(now,
/// batch)` is called after every step. Complexity: that of the policy's steps. SimulationError: see there;
/// ArgumentError: a plan against the rules of Batch.
template <class Policy, StepCost Cost, KvMemory Memory = TokenMemory, class Observer = NoObserver>
SimulationReport simulate(Workload workload, Policy policy, Cost cost, Memory memory,
                          const SimulationOptions& options = {}, const Observer& observe = {}) {
  std::sort(workload.begin(), workload.end(),
            [](const SimulatedRequest& a, const SimulatedRequest& b) { return earlier(a.info, b.info); });
  SimulationReport report;
  report.requests.resize(workload.size());
  SimulatedEngine<Policy, Cost, Memory> engine(std::move(policy), std::move(cost), std::move(memory), options.limits,
                                               options.lag);
  Nanoseconds now = 0;
  for (std::size_t next = 0;;) {
    for (; next < workload.size() && workload[next].info.arrival <= now; ++next) {
      engine.arrive(workload[next], report.requests[next]);
    }
    const bool more = next < workload.size();
    if (!engine.idle() && engine.begin_step(now)) {
      now += engine.duration();
      report.makespan = now;
      engine.end_step(now, [](const RequestRecord&) {});
      observe(now, engine.batch());
      if (engine.totals().steps < options.max_steps) continue;
      DECANT_THROW(SimulationError("decant::scheduling::simulate: not done after " +
                                   decant::detail::to_text(options.max_steps) + " steps"));
    }
    if (more) {
      now = workload[next].info.arrival;
    } else if (engine.idle()) {
      break;
    } else {
      DECANT_THROW(SimulationError("decant::scheduling::simulate: the policy plans nothing, but " +
                                   decant::detail::to_text(engine.batch().waiting_count()) + " requests wait and " +
                                   decant::detail::to_text(engine.batch().running_count()) + " run"));
    }
  }
  report.totals = engine.totals();
  detail::audit(report);
  return report;
}

}  // namespace decant::scheduling

#endif
