// decant: how many tokens a chain of g drafted tokens emits, and the g that emits most per second. Ours: the numerator
// is the usual expectation of speculative decoding (Leviathan, Kalman, Matias, arXiv 2211.17192) with a rate of its own
// for every position. Its increments never grow, so where a step costs c0 + c1 g the gain rises and then falls, and one
// may stop at the first token that does not pay: stopping_length() equals the search over all lengths.
#ifndef DECANT_SPECULATIVE_DRAFT_LENGTH_HPP
#define DECANT_SPECULATIVE_DRAFT_LENGTH_HPP

#include <cstdint>

#include "../core/error.hpp"
#include "../core/view.hpp"
#include "control.hpp"

namespace decant::speculative {

/// What a length is chosen for. tokens: most tokens per step, whatever they cost. It nearly always takes the longest
/// draft, and can be slower than no draft at all: for comparison only.
enum class Objective : std::uint8_t { throughput, tokens };

/// The budget of a step that may emit no more than `tokens_left`: it emits a token of its own behind the accepted ones,
/// so one drafted token less than that can be of use.
constexpr DraftBudget clipped(DraftBudget budget, std::int32_t tokens_left) {
  const std::int32_t most = tokens_left > 1 ? tokens_left - 1 : 0;
  if (budget.depth <= most) return budget;
  const bool chain = budget.nodes <= budget.depth;
  budget.depth = most;
  if (chain || most == 0) budget.nodes = budget.nodes < most ? budget.nodes : most;
  return budget;
}

/// Expected tokens of a step: 1 + sum over j <= gamma of a_1 ... a_j, where acceptance[i] is the probability that token
/// i + 1 is accepted given that the i before it were. Positions that acceptance does not have count 0.
inline double expected_tokens(View<const double, 1> acceptance, std::int32_t gamma) {
  double sum = 1;
  double survival = 1;
  for (index_t i = 0; i < gamma && i < acceptance.size(); ++i) {
    survival *= acceptance[i];
    sum += survival;
  }
  return sum;
}

namespace detail {

/// What a step that drafts g tokens is worth. ArgumentError, under the name `where`: a time that is none.
template <class Seconds>
double gain(const char* where, std::int32_t g, double tokens, const Seconds& seconds, Objective objective) {
  if (objective == Objective::tokens) return tokens;
  const double time = seconds(g);
  require(time > 0 && time < 1e300, where, "seconds", "a positive, finite time", time);
  return tokens / time;
}

}  // namespace detail

/// Which of `candidates` (ascending) is best; of equal ones the first. tokens(g): expected tokens of a step;
/// seconds(g): its time, in any unit; not called for Objective::tokens. ArgumentError: no candidate, a time that is not
/// positive and finite.
template <class Tokens, class Seconds>
std::int32_t best_candidate(View<const std::int32_t, 1> candidates, const Tokens& tokens, const Seconds& seconds,
                            Objective objective) {
  constexpr const char* where = "speculative::best_candidate";
  require(!candidates.empty(), where, "candidates", "at least one length", 0);
  std::int32_t best = candidates[0];
  double most = -1;
  for (index_t i = 0; i < candidates.size(); ++i) {
    const std::int32_t g = candidates[i];
    const double gain = detail::gain(where, g, tokens(g), seconds, objective);
    if (gain > most) {
      most = gain;
      best = g;
    }
  }
  return best;
}

/// The same over 0 .. acceptance.size(). O(size^2) additions.
template <class Seconds>
std::int32_t best_length(View<const double, 1> acceptance, const Seconds& seconds,
                         Objective objective = Objective::throughput) {
  std::int32_t best = 0;
  double most = -1;
  double survival = 1;
  double tokens = 1;
  for (std::int32_t g = 0; g <= acceptance.size(); ++g) {
    if (g > 0) {
      survival *= acceptance[g - 1];
      tokens += survival;
    }
    const double gain = detail::gain("speculative::best_length", g, tokens, seconds, objective);
    if (gain > most) {
      most = gain;
      best = g;
    }
  }
  return best;
}

/// The best length where a step takes base + slope * g: the first g whose next token is accepted too seldom to pay,
/// a_1 ... a_(g + 1) <= slope * tokens(g) / time(g). So 0 where a_1 <= slope / base. O(result).
inline std::int32_t stopping_length(View<const double, 1> acceptance, double base, double slope) {
  constexpr const char* where = "speculative::stopping_length";
  require(base > 0 && base < 1e300, where, "base", "a positive, finite time", base);
  require(slope >= 0 && slope < 1e300, where, "slope", "a finite time of at least 0", slope);
  std::int32_t g = 0;
  double survival = 1;
  double tokens = 1;
  for (; g < acceptance.size(); ++g) {
    survival *= acceptance[g];
    if (!(survival * (base + slope * g) > slope * tokens)) break;
    tokens += survival;
  }
  return g;
}

}  // namespace decant::speculative

#endif
