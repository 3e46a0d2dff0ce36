// decant: what a step costs. StepShape is one request's part of it, PrefixSharing what its requests have in common, and
// StepCost anything that turns them into whole nanoseconds: Roofline (roofline.hpp), or a table of what was measured.
#ifndef DECANT_SCHEDULING_STEP_COST_HPP
#define DECANT_SCHEDULING_STEP_COST_HPP

#include <concepts>
#include <cstdint>

#include "request.hpp"

namespace decant::scheduling {

/// `tokens` new tokens of one request on top of `context` tokens that are in memory.
struct StepShape {
  std::uint32_t tokens = 0;
  std::uint32_t context = 0;
  bool operator==(const StepShape&) const = default;
};

/// Tokens that the requests of one step read in common, all counted in tokens of keys and values.
struct PrefixSharing {
  std::uint64_t repeated = 0;   ///< read again by a second, third ... request of a group: the sum of (k_g - 1) l_g
  std::uint32_t groups = 0;     ///< groups of two or more requests
  std::uint32_t longest = 0;    ///< the longest l_g
  std::uint64_t tip = 0;        ///< (n_w - 1) l, where all requests of the step have a prefix of l tokens in common
  bool operator==(const PrefixSharing&) const = default;
};

template <class C>
concept StepCost = requires(const C& cost, View<const StepShape, 1> shapes, const PrefixSharing& sharing) {
  { cost.step_ns(shapes, sharing) } -> std::same_as<Nanoseconds>;
};

}  // namespace decant::scheduling

#endif
