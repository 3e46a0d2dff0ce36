// Rollouts: a synchronous batch, all of one draft length a step, which takes what the requests still running cost. The
// batch ends with its longest answer. Whoever chooses the length sees each request's outcomes, and of what it has left
// to say only the mean over answers that are as long already.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "decant/core/random.hpp"
#include "decant/speculative/acceptance.hpp"
#include "decant/speculative/rollout.hpp"
#include "served.hpp"
#include "simulated_text.hpp"

namespace simulated {

using decant::speculative::AcceptanceEstimator;
using decant::speculative::RolloutRequest;

/// Lengths of answers: log-normal, median 120, between 16 and `most`.
inline std::int32_t answer_length(std::uint32_t request, std::int32_t most, std::uint64_t seed) {
  const decant::Philox random{seed};
  double normal = -6;
  for (std::uint32_t i = 0; i < 12; ++i) normal += random.uniform_double(i, 0, request, 2);
  const double length = 120 * std::exp(0.8 * normal);
  return static_cast<std::int32_t>((std::min)(static_cast<double>(most), (std::max)(16.0, length)));
}

/// left[n]: the mean of what answers longer than n still have to say behind n tokens.
inline std::vector<double> mean_left(const std::vector<Text>& texts, std::int32_t most) {
  std::vector<double> left(static_cast<std::size_t>(most) + 1, 0.0);
  for (std::int32_t n = 0; n <= most; ++n) {
    double sum = 0, count = 0;
    for (const Text& text : texts) {
      if (text.size() > n) {
        sum += text.size() - n;
        ++count;
      }
    }
    left[static_cast<std::size_t>(n)] = count > 0 ? sum / count : 1;
  }
  return left;
}

/// choose(batch, requests of it) gives a length; observe(drafted, accepted) is called per request and step. Batches are
/// `size` texts each, one after another; an entry of the result is one batch.
template <class Cost, class Choose, class Observe>
Served drain(const std::vector<Text>& texts, std::size_t size, const Cost& cost, const std::vector<double>& left,
             const Choose& choose, const Observe& observe) {
  Served served;
  for (std::size_t first = 0; first + size <= texts.size(); first += size) {
    std::vector<std::int32_t> at(size, 0);
    std::vector<AcceptanceEstimator> estimators(size);
    std::vector<RolloutRequest> requests;
    double seconds = 0, tokens = 0;
    while (true) {
      requests.clear();
      decant::index_t context = 0;
      for (std::size_t i = 0; i < size; ++i) {
        if (at[i] >= texts[first + i].size()) continue;
        requests.push_back({estimators[i].acceptance(), left[static_cast<std::size_t>(at[i])]});
        context += at[i];
      }
      const auto running = static_cast<std::int32_t>(requests.size());
      if (running == 0) break;
      context /= running;
      const std::int32_t gamma = choose(running, context, requests);
      seconds += cost.seconds(gamma, running, context);
      ++served.steps;
      for (std::size_t i = 0; i < size; ++i) {
        const Text& text = texts[first + i];
        if (at[i] >= text.size()) continue;
        const std::int32_t accepted = text.accepted(at[i], gamma);
        estimators[i].observe({gamma, accepted, 0});
        observe(gamma, accepted);
        at[i] += accepted + 1;
        served.drafted += gamma;
        served.accepted += accepted;
      }
    }
    for (std::size_t i = 0; i < size; ++i) tokens += texts[first + i].size();
    served.add(tokens, seconds);
  }
  return served;
}

}  // namespace simulated
