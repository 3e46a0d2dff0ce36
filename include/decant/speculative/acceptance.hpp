// decant: AcceptanceEstimator, how often the i-th drafted token is accepted given that those before it were: one pair of
// Beta counters per position. Ours: the prior is (1, 1), and every step all counters fade by `decay` towards it, the
// ones that were not tried too, so that a controller which stopped drafting comes back to look.
#ifndef DECANT_SPECULATIVE_ACCEPTANCE_HPP
#define DECANT_SPECULATIVE_ACCEPTANCE_HPP

#include <cstddef>
#include <cstdint>
#include <vector>

#include "../core/error.hpp"
#include "../core/view.hpp"
#include "control.hpp"

namespace decant::speculative {

class AcceptanceEstimator {
 public:
  explicit AcceptanceEstimator(std::int32_t positions = 8, double decay = 0.98)
      : decay_(decay),
        accepted_(static_cast<std::size_t>(positions > 0 ? positions : 0)),
        tried_(accepted_.size()),
        mean_(accepted_.size(), 0.5) {
    constexpr const char* where = "speculative::AcceptanceEstimator";
    require(positions >= 0, where, "positions", "at least 0", positions);
    require(decay > 0 && decay <= 1, where, "decay", "a number in (0, 1]", decay);
  }

  /// Positions behind the first rejection were not tried; positions beyond the estimator's are left out. O(positions).
  void observe(const StepOutcome& outcome) {
    require(outcome.drafted >= 0 && outcome.accepted >= 0 && outcome.accepted <= outcome.drafted,
            "speculative::AcceptanceEstimator::observe", "outcome.accepted", "0 to outcome.drafted", outcome.accepted);
    for (std::size_t i = 0; i < mean_.size(); ++i) {
      const auto position = static_cast<std::int32_t>(i);
      accepted_[i] *= decay_;
      tried_[i] *= decay_;
      if (position < outcome.drafted && position <= outcome.accepted) {
        tried_[i] += 1;
        if (position < outcome.accepted) accepted_[i] += 1;
      }
      mean_[i] = (1 + accepted_[i]) / (2 + tried_[i]);
    }
  }

  /// The means: a_1, a_2 ... as best_length() wants them. Valid until the next observe().
  View<const double, 1> acceptance() const { return View<const double, 1>(mean_); }

 private:
  double decay_;
  std::vector<double> accepted_, tried_, mean_;
};

}  // namespace decant::speculative

#endif
