// decant: Sarathi, chunked prefill under a bound on the time between tokens (Agrawal et al., Taming throughput-latency
// tradeoff in LLM inference with Sarathi-Serve, arXiv 2403.02310): all decodes run in every step, and prompts get what
// remains of the largest budget with which the step still meets the bound. The budget is searched anew for each step,
// for decodes grow more expensive with their contexts; how it is searched is ours.
#ifndef DECANT_SCHEDULING_SARATHI_HPP
#define DECANT_SCHEDULING_SARATHI_HPP

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "continuous.hpp"
#include "roofline.hpp"

namespace decant::scheduling {

template <StepCost Cost = Roofline>
class Sarathi : public DeafScheduler {
 public:
  /// `bound`: the longest that a step should take. ArgumentError: a bound of 0.
  explicit Sarathi(Nanoseconds bound, Cost cost = {}) : bound_(bound), cost_(std::move(cost)) {
    require(bound > 0, "scheduling::Sarathi", "bound", "at least 1 ns", bound);
  }

  /// O(running * log budget + admitted). A step without decodes has the whole budget; one whose decodes alone exceed the
  /// bound gets one token of a prompt, so that prompts never starve.
  template <class Memory>
  void schedule(Batch<Memory>& batch) {
    if (!run(batch, true)) return;
    if (batch.budget_left() == 0) return;
    batch.limit_budget(chunk(batch));
    if (run(batch, false)) admit(batch);
  }

 private:
  // Decodes, or the prompts that are under way. False: somebody was preempted.
  template <class Memory>
  static bool run(Batch<Memory>& batch, bool decodes) {
    bool preempted = false;
    for (std::uint32_t i = 0; i < batch.running_count() && batch.budget_left() > 0; ++i) {
      const RequestId id = batch.running()[i];
      const std::uint32_t need = batch.need(id);
      if ((need == 1) != decodes || batch[id].planned > 0) continue;
      const std::uint32_t tokens = (std::min)(need, batch.budget_left());
      if (!plan_or_preempt(batch, id, tokens, preempted, [](RequestId) {})) return false;
    }
    return !preempted;
  }

  template <class Memory>
  static void admit(Batch<Memory>& batch) {
    for (RequestId id = batch.first_waiting(), next; id != no_request; id = next) {
      next = batch.next_waiting(id);
      if (batch.full() || batch.budget_left() == 0) return;
      if (!batch.plan(id, (std::min)(batch.need(id), batch.budget_left()))) return;
    }
  }

  // The most prompt tokens that leave the step within its bound, at the context of the prompt that comes next.
  template <class Memory>
  std::uint32_t chunk(const Batch<Memory>& batch) {
    shapes_.clear();
    const auto items = batch.items();
    for (index_t i = 0; i < items.extent(0); ++i) shapes_.push_back({items[i].tokens, batch[items[i].id].computed});
    if (shapes_.empty()) return batch.budget_left();
    std::uint32_t context = 0;
    const auto running = batch.running();
    for (index_t i = running.extent(0); i-- > 0;) {
      if (batch.need(running[i]) > 1) context = batch[running[i]].computed;
    }
    shapes_.push_back({0, context});
    std::uint32_t within = 1, beyond = batch.budget_left() + 1;
    while (beyond - within > 1) {
      const std::uint32_t middle = within + (beyond - within) / 2;
      shapes_.back().tokens = middle;
      (cost_.step_ns({shapes_.data(), static_cast<index_t>(shapes_.size())}, PrefixSharing{}) <= bound_ ? within
                                                                                                       : beyond) = middle;
    }
    return within;
  }

  Nanoseconds bound_;
  Cost cost_;
  std::vector<StepShape> shapes_;
};

static_assert(Scheduler<Sarathi<>>);

}  // namespace decant::scheduling

#endif
