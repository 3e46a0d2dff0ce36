// decant: LinearCost, a step that costs a constant and so much per token held by the requests in it: the model of the
// fluid analyses (wait.hpp) and of the simulator that came with BF-IO (bf_io.hpp).
#ifndef DECANT_SCHEDULING_LINEAR_COST_HPP
#define DECANT_SCHEDULING_LINEAR_COST_HPP

#include <cstdint>

#include "step_cost.hpp"

namespace decant::scheduling {

struct LinearCost {
  Nanoseconds base = 10'000'000;                 ///< d0
  std::uint64_t picoseconds_per_token = 2'000'000;  ///< d1
  bool operator==(const LinearCost&) const = default;

  constexpr Nanoseconds of_tokens(std::uint64_t tokens) const { return base + tokens * picoseconds_per_token / 1000; }
  /// O(requests).
  Nanoseconds step_ns(View<const StepShape, 1> shapes, const PrefixSharing& = {}) const {
    std::uint64_t tokens = 0;
    for (index_t i = 0; i < shapes.extent(0); ++i) tokens += std::uint64_t{shapes[i].tokens} + shapes[i].context;
    return of_tokens(tokens);
  }
};

static_assert(StepCost<LinearCost>);

}  // namespace decant::scheduling

#endif
