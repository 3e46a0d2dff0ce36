// decant: ThroughputOptimal, the draft length that emits most tokens per second by what acceptance was so far and what
// a step costs: the reference for all other controllers. Ours (see draft_length.hpp, acceptance.hpp, step_cost.hpp).
// Without costs there is no such length, and it says so instead of counting tokens alone. Where no draft is best by
// what it knows, it drafts one token now and then: an estimate that keeps it from drafting is never put right
// otherwise.
#ifndef DECANT_SPECULATIVE_THROUGHPUT_OPTIMAL_HPP
#define DECANT_SPECULATIVE_THROUGHPUT_OPTIMAL_HPP

#include <cstdint>
#include <utility>

#include "acceptance.hpp"
#include "control.hpp"
#include "draft_length.hpp"
#include "step_cost.hpp"

namespace decant::speculative {

struct ThroughputOptions {
  std::int32_t max_length = 8;
  double decay = 0.98;  ///< of the counters, per step
  Objective objective = Objective::throughput;
  /// So many steps without a draft in a row, none where nothing was drafted yet, and the next drafts a token, if one
  /// that is accepted for sure would pay; 0: never.
  std::int32_t probe = 32;
  bool operator==(const ThroughputOptions&) const = default;
};

template <StepCost Cost = CostTable>
class ThroughputOptimal {
 public:
  /// ArgumentError: an empty `cost` for Objective::throughput.
  explicit ThroughputOptimal(Cost cost, const ThroughputOptions& options = {})
      : cost_(std::move(cost)), options_(options), estimator_(options.max_length, options.decay) {
    require(options_.objective == Objective::tokens || !cost_.empty(), "speculative::ThroughputOptimal", "cost",
            "the cost of a step: throughput is tokens over time", "nothing");
    require(options_.probe >= 0, "speculative::ThroughputOptimal", "options.probe", "at least 0", options_.probe);
    without_ = options_.probe;
  }

  /// A chain. O(max_length).
  DraftBudget next(const StepSignals& signals) {
    const auto seconds = [&](std::int32_t g) -> double { return cost_.seconds(g, signals.batch, signals.context); };
    std::int32_t best = best_length(estimator_.acceptance(), seconds, options_.objective);
    if (best == 0 && options_.probe > 0 && options_.max_length > 0 && without_ >= options_.probe) {
      if (seconds(1) < 2 * seconds(0)) best = 1;
    }
    return clipped(DraftBudget::chain(best), signals.tokens_left);
  }

  void observe(const StepOutcome& outcome) {
    estimator_.observe(outcome);
    if (outcome.drafted > 0) without_ = 0;
    else if (without_ < options_.probe) ++without_;
  }

  const AcceptanceEstimator& estimator() const { return estimator_; }

 private:
  Cost cost_;
  ThroughputOptions options_;
  AcceptanceEstimator estimator_;
  std::int32_t without_ = 0;  // steps without a draft since the last one with one
};

template <class Cost>
ThroughputOptimal(Cost) -> ThroughputOptimal<Cost>;
template <class Cost>
ThroughputOptimal(Cost, ThroughputOptions) -> ThroughputOptimal<Cost>;

static_assert(DraftLengthController<ThroughputOptimal<CostTable>>);
static_assert(DraftLengthController<ThroughputOptimal<Roofline>>);

}  // namespace decant::speculative

#endif
