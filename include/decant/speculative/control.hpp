// decant: how much to draft. A DraftLengthController looks at what a step's draft looked like and what became of it,
// and says how large the next one should be. Host code: a decision is a few hundred operations at most.
#ifndef DECANT_SPECULATIVE_CONTROL_HPP
#define DECANT_SPECULATIVE_CONTROL_HPP

#include <concepts>
#include <cstdint>

#include "../core/view.hpp"

namespace decant::speculative {

/// The most a drafter may add below the root.
struct DraftBudget {
  std::int32_t depth = 0;      ///< levels: gamma of a chain; 0: do not draft
  std::int32_t nodes = 0;      ///< drafted nodes in all
  bool operator==(const DraftBudget&) const = default;

  static constexpr DraftBudget chain(std::int32_t gamma) { return {gamma, gamma}; }
};

/// What is known when a length is chosen. Empty views: not known.
struct StepSignals {
  View<const float, 1> entropy{};     ///< of each row that the last draft was taken from, in bits
  View<const float, 1> confidence{};  ///< the largest probability of each of those rows
  std::int32_t tokens_left = 0x7fffffff;
  std::int32_t batch = 1;             ///< requests that share the step
  index_t context = 0;                ///< cached tokens
};

/// What became of a step.
struct StepOutcome {
  std::int32_t drafted = 0;   ///< nodes on the deepest path offered; of a chain: its length
  std::int32_t accepted = 0;  ///< tau; the step emitted one token more
  double seconds = 0;         ///< of the whole step; 0: not measured
};

template <class C>
concept DraftLengthController = requires(C& c, const StepSignals& signals, const StepOutcome& outcome) {
  { c.next(signals) } -> std::same_as<DraftBudget>;
  c.observe(outcome);
};

}  // namespace decant::speculative

#endif
