// Texts for simulated speculation: for every position, with what probability the drafter is right there, whether it
// is, and what it would say of its own sureness. All of it is a function of seed, request and position, whatever is
// drafted: every controller meets the same luck, so differences between them are paired.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "decant/core/random.hpp"

namespace simulated {

/// stationary: one probability (a draft's accepted length is geometric); drifting: it swings by 0.3 about 0.65 every
/// 400 tokens; requests: every request has its own, 0.3 to 0.95; entropy: it follows a hidden state of some ten
/// tokens' memory. Entropy and confidence always tell the probability, with noise: where it does not change they say
/// nothing.
enum class Process : std::uint8_t { stationary, drifting, requests, entropy };

struct Text {
  std::vector<double> probability;  ///< of being right here, given that the drafter is on the target's path
  std::vector<std::uint8_t> right;
  std::vector<float> entropy;       ///< bits
  std::vector<float> confidence;

  std::int32_t size() const { return static_cast<std::int32_t>(right.size()); }

  /// How many tokens of a draft of `gamma` at position `at` are accepted.
  std::int32_t accepted(std::int32_t at, std::int32_t gamma) const {
    std::int32_t n = 0;
    while (n < gamma && at + n < size() && right[static_cast<std::size_t>(at + n)] != 0) ++n;
    return n;
  }
};

/// level: the probability of Process::stationary, the median of Process::entropy.
inline Text make_text(Process process, std::int32_t length, std::uint32_t request, std::uint64_t seed,
                      double level = 0.8) {
  const decant::Philox random{seed};
  const double own = random.uniform_double(0, 0, request, 1);
  Text text;
  double state = 2 * own - 1;
  for (std::int32_t t = 0; t < length; ++t) {
    const decant::Philox4 bits = random(static_cast<std::uint32_t>(t), 0, request);
    const auto normal = [&](int word) {  // uniform, of variance 1
      return 3.4641016151377544 * (static_cast<double>(decant::Philox::to_unit(bits.word[word])) - 0.5);
    };
    state = 0.9 * state + std::sqrt(1 - 0.9 * 0.9) * normal(3);
    double a = level;
    if (process == Process::drifting) a = 0.65 + 0.3 * std::sin(6.283185307179586 * (t / 400.0 + own));
    if (process == Process::requests) a = 0.3 + 0.65 * own;
    if (process == Process::entropy) a = 1 / (1 + std::exp(-1.8 * state) * (1 - level) / level);
    text.probability.push_back(a);
    text.right.push_back(static_cast<double>(decant::Philox::to_unit(bits.word[0])) < a);
    text.entropy.push_back(static_cast<float>((std::max)(0.0, 5 * (1 - a) + 0.4 * normal(1))));
    text.confidence.push_back(static_cast<float>((std::min)(1.0, (std::max)(0.01, a + 0.1 * normal(2)))));
  }
  return text;
}

inline std::vector<Text> make_texts(Process process, std::int32_t count, std::int32_t length, std::uint64_t seed,
                                    double level = 0.8) {
  std::vector<Text> texts;
  for (std::int32_t r = 0; r < count; ++r) {
    texts.push_back(make_text(process, length, static_cast<std::uint32_t>(r), seed, level));
  }
  return texts;
}

}  // namespace simulated
