// A model folder read as the programs read it, prompts for it, and comparisons of logits.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include <decant/core/random.hpp>

#include "llama.hpp"
#include "model_files.hpp"
#include "naive_llama.hpp"

namespace runtime_test {

struct Loaded {
  explicit Loaded(const std::string& folder)
      : config(runtime::read_config(folder + "/config.json")), checkpoint(folder), weights(config, checkpoint) {}
  explicit Loaded(const TemporaryFolder& folder) : Loaded(folder.path()) {}

  runtime::Config config;
  runtime::Checkpoint checkpoint;
  runtime::Weights weights;
};

/// Token 0, then random ones.
inline runtime::Tokens random_prompt(index_t length, index_t vocab = 256, std::uint64_t seed = 3) {
  runtime::Tokens tokens = {0};
  for (index_t i = 1; i < length; ++i) {
    const std::uint32_t word = decant::Philox{seed}(static_cast<std::uint32_t>(i)).word[0];
    tokens.push_back(static_cast<std::int32_t>(word % static_cast<std::uint32_t>(vocab)));
  }
  return tokens;
}

/// The largest difference of two rows of logits, relative to the largest expected logit. NaN anywhere gives infinity.
inline double distance(decant::View<const float, 1> got, const Row& expected) {
  double worst = 0, scale = 0;
  for (index_t i = 0; i < got.size(); ++i) {
    const double e = expected[static_cast<std::size_t>(i)];
    const double difference = std::abs(static_cast<double>(got[i]) - e);
    if (!(difference >= 0)) return HUGE_VAL;
    worst = std::fmax(worst, difference);
    scale = std::fmax(scale, std::abs(e));
  }
  return worst / scale;
}

inline std::vector<float> copy(decant::View<const float, 2> logits) {
  return {logits.data(), logits.data() + logits.size()};
}

}  // namespace runtime_test
