// decant: PrefillFirst, the batching of the first vLLM and of Orca's kind: a step is either whole prompts, as many as
// fit, or one token of everything that runs. New requests stop all others, so it is not work-conserving in the sense of
// stability.hpp; it is here to be compared with.
#ifndef DECANT_SCHEDULING_PREFILL_FIRST_HPP
#define DECANT_SCHEDULING_PREFILL_FIRST_HPP

#include <algorithm>
#include <cstdint>

#include "scheduler.hpp"

namespace decant::scheduling {

/// A prompt larger than the step's budget is computed alone, in as many steps as it takes.
struct PrefillFirst : DeafScheduler {
  bool operator==(const PrefillFirst&) const = default;

  /// O(running + admitted).
  template <class Memory>
  void schedule(Batch<Memory>& batch) {
    if (continue_prompt(batch) || admit(batch)) return;
    bool preempted = false;
    for (std::uint32_t i = 0; i < batch.running_count() && batch.budget_left() > 0; ++i) {
      const RequestId id = batch.running()[i];
      const std::uint32_t tokens = (std::min)(batch.need(id), batch.budget_left());
      if (!plan_or_preempt(batch, id, tokens, preempted, [](RequestId) {})) return;
    }
  }

 private:
  // Only a prompt beyond the budget, the one admitted last, can be unfinished.
  template <class Memory>
  static bool continue_prompt(Batch<Memory>& batch) {
    if (batch.running_count() == 0) return false;
    const RequestId last = batch.running()[batch.running_count() - 1];
    return batch.need(last) > 1 && batch.plan(last, (std::min)(batch.need(last), batch.budget_left()));
  }

  template <class Memory>
  static bool admit(Batch<Memory>& batch) {
    bool any = false;
    for (RequestId id = batch.first_waiting(), next; id != no_request && !batch.full(); id = next, any = true) {
      next = batch.next_waiting(id);
      const std::uint32_t need = batch.need(id);
      if (any && need > batch.budget_left()) return true;
      if (!batch.plan(id, (std::min)(need, batch.budget_left()))) return any;
    }
    return any;
  }
};

static_assert(Scheduler<PrefillFirst>);

}  // namespace decant::scheduling

#endif
