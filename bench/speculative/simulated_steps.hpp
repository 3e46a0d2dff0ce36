// Draft, verify, draft: a controller serves texts one after another, and a step takes what a StepCost says. Beside it
// the two bounds that no controller reaches: one knows the probabilities, the other the future.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "decant/speculative/control.hpp"
#include "decant/speculative/draft_length.hpp"
#include "decant/speculative/step_cost.hpp"
#include "served.hpp"
#include "simulated_text.hpp"

namespace simulated {

using namespace decant::speculative;
using decant::View;

/// `seen(text index, position, drafted, accepted)` is called after every step.
template <DraftLengthController C, StepCost Cost, class Seen>
Served serve(C& controller, const std::vector<Text>& texts, const Cost& cost, const Seen& seen) {
  Served served;
  for (std::size_t r = 0; r < texts.size(); ++r) {
    const Text& text = texts[r];
    if constexpr (requires { controller.reset(); }) controller.reset();
    StepSignals signals;
    double seconds = 0;
    for (std::int32_t at = 0; at < text.size();) {
      signals.tokens_left = text.size() - at;
      const std::int32_t gamma = controller.next(signals).depth;
      const std::int32_t accepted = text.accepted(at, gamma);
      const double time = cost.seconds(gamma, 1, at);
      controller.observe({gamma, accepted, time});
      seen(r, at, gamma, accepted);
      signals.entropy = View<const float, 1>(text.entropy.data() + at, gamma);
      signals.confidence = View<const float, 1>(text.confidence.data() + at, gamma);
      seconds += time;
      at += accepted + 1;
      ++served.steps;
      served.drafted += gamma;
      served.accepted += accepted;
    }
    served.add(text.size(), seconds);
  }
  return served;
}

template <DraftLengthController C, StepCost Cost>
Served serve(C& controller, const std::vector<Text>& texts, const Cost& cost) {
  return serve(controller, texts, cost, [](std::size_t, std::int32_t, std::int32_t, std::int32_t) {});
}

/// Every step has the length that is best by the true probabilities of the tokens ahead.
template <StepCost Cost>
Served informed(const std::vector<Text>& texts, const Cost& cost, std::int32_t most) {
  Served served;
  for (const Text& text : texts) {
    double seconds = 0;
    for (std::int32_t at = 0; at < text.size(); ++served.steps) {
      const std::int32_t ahead = (std::min)(most, text.size() - at - 1);
      const View<const double, 1> probability(text.probability.data() + at, ahead);
      const auto time = [&](std::int32_t g) -> double { return cost.seconds(g, 1, at); };
      const std::int32_t gamma = best_length(probability, time);
      seconds += cost.seconds(gamma, 1, at);
      at += text.accepted(at, gamma) + 1;
    }
    served.add(text.size(), seconds);
  }
  return served;
}

/// The least time in which lengths of 0 to `most` can serve the texts: whoever knows which tokens will be accepted.
template <StepCost Cost>
Served clairvoyant(const std::vector<Text>& texts, const Cost& cost, std::int32_t most) {
  Served served;
  for (const Text& text : texts) {
    std::vector<double> rest(static_cast<std::size_t>(text.size()) + 1, 0.0);
    for (std::int32_t at = text.size() - 1; at >= 0; --at) {
      double best = 1e300;
      for (std::int32_t g = 0; g <= (std::min)(most, text.size() - at - 1); ++g) {
        const std::int32_t next = at + text.accepted(at, g) + 1;
        best = (std::min)(best, cost.seconds(g, 1, at) + rest[static_cast<std::size_t>(next)]);
      }
      rest[static_cast<std::size_t>(at)] = best;
    }
    served.add(text.size(), rest[0]);
  }
  return served;
}

}  // namespace simulated
