// decant: the concept Scheduler: what decides, before every step of an engine, which requests run and how many of their
// tokens. A policy is a value with its parameters (and its seed, if it draws); what it learns or sorts it keeps itself,
// without allocation once its arrays have grown. It must not depend on wall time, addresses or the order of a hash table.
#ifndef DECANT_SCHEDULING_SCHEDULER_HPP
#define DECANT_SCHEDULING_SCHEDULER_HPP

#include "batch.hpp"

namespace decant::scheduling {

/// How long a step took, as told to the policy that planned it.
struct StepResult {
  std::uint64_t step = 0;        ///< its number, from 0
  Nanoseconds duration = 0;
  std::uint32_t requests = 0;    ///< in the step
  std::uint32_t tokens = 0;      ///< computed
  std::uint32_t sampled = 0;     ///< emitted
};

/// A base for policies that need not hear of arrivals, ends and steps.
struct DeafScheduler {
  bool operator==(const DeafScheduler&) const = default;

  template <class Memory>
  void on_arrival(const Batch<Memory>&, RequestId) {}
  template <class Memory>
  void on_finish(const Batch<Memory>&, RequestId) {}
  template <class Memory>
  void on_step_done(const Batch<Memory>&, const StepResult&) {}
};

/// Plans `tokens` of a running request; while there is no room the one admitted last gives way, of which on_preempt(id)
/// is told. preempted: set where anybody has. False: the request itself gave way.
template <class Memory, class OnPreempt>
bool plan_or_preempt(Batch<Memory>& batch, RequestId id, std::uint32_t tokens, bool& preempted,
                     const OnPreempt& on_preempt) {
  while (!batch.plan(id, tokens)) {
    preempted = true;
    const RequestId last = batch.running()[batch.running_count() - 1];
    batch.preempt(last);
    on_preempt(last);
    if (last == id) return false;
  }
  return true;
}

template <class P, class Memory = TokenMemory>
concept Scheduler = requires(P& policy, Batch<Memory>& batch, const Batch<Memory>& still, RequestId id,
                             const StepResult& result) {
  /// A request has joined the waiting list.
  policy.on_arrival(still, id);
  /// Fill the step by batch.plan() and batch.preempt(). An empty step while something waits and nothing runs is an error
  /// unless a request arrives later.
  policy.schedule(batch);
  /// A request is about to leave; it can still be looked at.
  policy.on_finish(still, id);
  /// A step has run; engines that plan ahead say so one step late.
  policy.on_step_done(still, result);
};

}  // namespace decant::scheduling

#endif
