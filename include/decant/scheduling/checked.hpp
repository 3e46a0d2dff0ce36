// decant: Checked<Policy>, a scheduler under watch: what Batch cannot see in a single call it checks after each step, and
// says which rule was broken. For tests of policies, ours and a user's; the plan is the policy's own.
#ifndef DECANT_SCHEDULING_CHECKED_HPP
#define DECANT_SCHEDULING_CHECKED_HPP

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "continuous.hpp"
#include "simulator.hpp"

namespace decant::scheduling {

template <class Policy>
class Checked {
 public:
  /// `work_conserving`: the policy promises to admit the request at the head of the waiting list whenever nothing was
  /// preempted and slots, budget and memory have room for it; one that orders otherwise, or saves memory, does not.
  explicit Checked(Policy policy, bool work_conserving = false)
      : policy_(std::move(policy)), work_conserving_(work_conserving) {}

  const Policy& policy() const { return policy_; }

  template <class Memory>
  void on_arrival(const Batch<Memory>& batch, RequestId id) {
    policy_.on_arrival(batch, id);
  }
  template <class Memory>
  void on_finish(const Batch<Memory>& batch, RequestId id) {
    policy_.on_finish(batch, id);
  }
  template <class Memory>
  void on_step_done(const Batch<Memory>& batch, const StepResult& result) {
    policy_.on_step_done(batch, result);
  }

  /// SimulationError: a running request without a token while budget is left, more tokens in memory than it holds,
  /// tokens stored beyond prompt and output, or work that was not conserved. O(running).
  template <class Memory>
  void schedule(Batch<Memory>& batch) {
    const std::uint64_t preempted = batch.preemptions();
    policy_.schedule(batch);
    const bool undisturbed = batch.preemptions() == preempted;
    const auto running = batch.running();
    for (index_t i = 0; i < running.extent(0); ++i) {
      const RequestState& r = batch[running[i]];
      if (undisturbed && r.planned == 0 && batch.budget_left() > 0) fail("a running request is left out", r.info);
      if (r.computed + std::uint64_t{r.planned} > Batch<Memory>::peak(r.info)) fail("more is stored than it has", r.info);
    }
    const std::uint64_t used = batch.memory().used(), capacity = batch.memory().capacity();
    const RequestId first = batch.first_waiting();
    if (used > capacity) fail("memory holds too much", running.empty() ? RequestInfo{} : batch[running[0]].info);
    if (!work_conserving_ || !undisturbed || first == no_request || batch.full() || batch.budget_left() == 0) return;
    const std::uint64_t tokens = (std::min)(batch.need(first), batch.budget_left());
    if (tokens <= capacity - used) fail("the first that waits has room and is not admitted", batch[first].info);
  }

 private:
  [[noreturn]] static void fail(const char* what, const RequestInfo& info) {
    DECANT_THROW(SimulationError("decant::scheduling::Checked: " + std::string(what) + ": request " +
                                 ::decant::detail::to_text(info.tag)));
  }

  Policy policy_;
  bool work_conserving_;
};

static_assert(Scheduler<Checked<Fcfs>>);

}  // namespace decant::scheduling

#endif
