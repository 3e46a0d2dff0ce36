// decant: FixedLength, the same draft in every step: what every other controller has to beat, and the right choice where
// acceptance and cost do not change. Ours, nothing to cite. Near the end of a text the draft shrinks (see clipped()).
#ifndef DECANT_SPECULATIVE_FIXED_LENGTH_HPP
#define DECANT_SPECULATIVE_FIXED_LENGTH_HPP

#include "control.hpp"
#include "draft_length.hpp"

namespace decant::speculative {

struct FixedLength {
  DraftBudget budget = DraftBudget::chain(4);
  bool operator==(const FixedLength&) const = default;

  DraftBudget next(const StepSignals& signals) const { return clipped(budget, signals.tokens_left); }
  void observe(const StepOutcome&) const {}
};

inline void validate(const FixedLength& p) {
  require(p.budget.depth >= 0, "speculative::FixedLength", "budget.depth", "at least 0", p.budget.depth);
  require(p.budget.nodes >= p.budget.depth, "speculative::FixedLength", "budget.nodes", "at least budget.depth",
          p.budget.nodes);
}

static_assert(DraftLengthController<FixedLength>);

}  // namespace decant::speculative

#endif
