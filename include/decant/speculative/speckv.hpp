// decant: SpecKv (SpecKV, arXiv 2605.02888; published code): a network of 129 weights reads how sure the drafter was and
// foretells, for each of a few lengths, which share of the draft will be accepted. [paper] network, features,
// candidates, fit and Objective::tokens. Ours: Objective::throughput, the default, which divides by the time of a step,
// because the paper's count of tokens answers the longest draft nearly always, though that is often slower; and
// Signals::previous, because a draft's own signals are not known before it exists.
#ifndef DECANT_SPECULATIVE_SPECKV_HPP
#define DECANT_SPECULATIVE_SPECKV_HPP

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "control.hpp"
#include "draft_length.hpp"
#include "row_signals.hpp"
#include "step_cost.hpp"

namespace decant::speculative {

/// Which draft's signals foretell a step: the one before it, or, as in the paper's evaluation, its own. The latter
/// serves to replay logs alone.
enum class Signals : std::uint8_t { previous, same_step };

/// How the target's weights are stored, as the network is told.
enum class SpecKvCompression : std::uint8_t { fp16, int8, nf4 };

/// What the network sees, without the candidate length, unscaled.
struct SpecKvFeatures {
  float mean_entropy = 0;  ///< bits
  float mean_confidence = 0;
  float max_entropy = 0;
  float min_confidence = 0;
  float compression = 0;  ///< 0 fp16, 1 int8, 2 nf4
  bool operator==(const SpecKvFeatures&) const = default;

  /// Of a draft's rows. ArgumentError: views of different lengths, or empty.
  static SpecKvFeatures of(View<const float, 1> entropy, View<const float, 1> confidence,
                           SpecKvCompression compression = SpecKvCompression::fp16) {
    constexpr const char* where = "speculative::SpecKvFeatures::of";
    require(!entropy.empty(), where, "entropy", "at least one row", 0);
    require_equal(confidence.size(), entropy.size(), where, "confidence");
    SpecKvFeatures f{0, 0, entropy[0], confidence[0], static_cast<float>(compression)};
    double entropies = 0;
    double confidences = 0;
    for (index_t i = 0; i < entropy.size(); ++i) {
      entropies += static_cast<double>(entropy[i]);
      confidences += static_cast<double>(confidence[i]);
      if (entropy[i] > f.max_entropy) f.max_entropy = entropy[i];
      if (confidence[i] < f.min_confidence) f.min_confidence = confidence[i];
    }
    const auto n = static_cast<double>(entropy.size());
    f.mean_entropy = static_cast<float>(entropies / n);
    f.mean_confidence = static_cast<float>(confidences / n);
    return f;
  }

  bool finite() const {
    return std::isfinite(mean_entropy) && std::isfinite(mean_confidence) && std::isfinite(max_entropy) &&
           std::isfinite(min_confidence) && std::isfinite(compression);
  }
};

/// 6 -> 16 -> 1. 129 floats, in this order when written to a file.
struct SpecKvWeights {
  float hidden[16][6] = {};  ///< columns: the five features, then the length
  float hidden_bias[16] = {};
  float output[16] = {};
  float output_bias = 0;
  bool operator==(const SpecKvWeights&) const = default;

  /// accepted / drafted of a draft of `gamma`, foretold: max(0, x W + b) v + c, clipped to [0, 1].
  float acceptance(const SpecKvFeatures& f, std::int32_t gamma) const {
    const float x[6] = {f.mean_entropy,   f.mean_confidence, f.max_entropy,
                        f.min_confidence, f.compression,     static_cast<float>(gamma)};
    float sum = output_bias;
    for (int j = 0; j < 16; ++j) {
      float h = hidden_bias[j];
      for (int i = 0; i < 6; ++i) h += hidden[j][i] * x[i];
      if (h > 0) sum += output[j] * h;
    }
    return sum > 0 ? (sum < 1 ? sum : 1.0f) : 0.0f;
  }
};

static_assert(sizeof(SpecKvWeights) == 129 * sizeof(float));

/// ArgumentError: a weight that is not finite.
inline void validate(const SpecKvWeights& w) {
  const auto check = [](float x) {
    require(std::isfinite(x), "speculative::SpecKvWeights", "weights", "finite weights", x);
  };
  for (const auto& row : w.hidden) {
    for (const float x : row) check(x);
  }
  for (const float x : w.hidden_bias) check(x);
  for (const float x : w.output) check(x);
  check(w.output_bias);
}

/// One step of a log: the signals of its draft and what became of it.
struct SpecKvStep {
  SpecKvFeatures features{};
  std::int32_t gamma = 0;     ///< the length that was asked for
  std::int32_t drafted = 0;   ///< less at the end of a text
  std::int32_t accepted = 0;
  std::int32_t sequence = 0;  ///< steps of one text stand together, in order
  bool operator==(const SpecKvStep&) const = default;
};

struct SpecKvOptions {
  std::vector<std::int32_t> gammas{2, 4, 6, 8};  ///< ascending
  Objective objective = Objective::throughput;
  Signals signals = Signals::previous;
  SpecKvCompression compression = SpecKvCompression::fp16;
  std::int32_t fallback = 4;  ///< where there are no signals, or ones that are not finite
  bool operator==(const SpecKvOptions&) const = default;
};

template <StepCost Cost = CostTable>
class SpecKv {
 public:
  /// ArgumentError: weights that are not finite, no or unordered gammas, an empty `cost` for Objective::throughput.
  SpecKv(const SpecKvWeights& weights, Cost cost, SpecKvOptions options = {})
      : weights_(weights), cost_(std::move(cost)), options_(std::move(options)) {
    constexpr const char* where = "speculative::SpecKv";
    validate(weights_);
    require(!options_.gammas.empty(), where, "options.gammas", "at least one length", 0);
    for (std::size_t i = 0; i < options_.gammas.size(); ++i) {
      require(options_.gammas[i] > (i > 0 ? options_.gammas[i - 1] : 0), where, "options.gammas",
              "ascending lengths of at least 1", options_.gammas[i]);
    }
    require(options_.fallback >= 0, where, "options.fallback", "at least 0", options_.fallback);
    require(options_.objective == Objective::tokens || !cost_.empty(), where, "cost",
            "the cost of a step: throughput is tokens over time", "nothing");
  }

  /// The best of the gammas; of equal ones the smallest. About 450 multiply-adds.
  std::int32_t choose(const SpecKvFeatures& features, std::int32_t batch = 1, index_t context = 0) const {
    if (!features.finite()) return options_.fallback;
    const auto tokens = [&](std::int32_t g) {
      return static_cast<double>(weights_.acceptance(features, g)) * static_cast<double>(g) + 1;
    };
    const auto seconds = [&](std::int32_t g) -> double { return cost_.seconds(g, batch, context); };
    return best_candidate(View<const std::int32_t, 1>(options_.gammas), tokens, seconds, options_.objective);
  }

  /// signals: of the last draft. ArgumentError: Signals::same_step, since that draft is yet to come.
  DraftBudget next(const StepSignals& signals) const {
    require(options_.signals == Signals::previous, "speculative::SpecKv::next", "options.signals",
            "previous: a draft's own signals are known only in a log", "same_step");
    const bool known = !signals.entropy.empty() && !signals.confidence.empty();
    const std::int32_t g = known ? choose(SpecKvFeatures::of(signals.entropy, signals.confidence, options_.compression),
                                          signals.batch, signals.context)
                                 : options_.fallback;
    return clipped(DraftBudget::chain(g), signals.tokens_left);
  }

  void observe(const StepOutcome&) const {}

  /// What would have been chosen in each step of a log; with Signals::previous the first step of a text has the
  /// fallback. gammas: one per step.
  void replay(View<const SpecKvStep, 1> log, View<std::int32_t, 1> gammas) const {
    require_equal(gammas.size(), log.size(), "speculative::SpecKv::replay", "gammas");
    for (index_t i = 0; i < log.size(); ++i) {
      if (options_.signals == Signals::same_step) {
        gammas[i] = choose(log[i].features);
      } else {
        const bool known = i > 0 && log[i - 1].sequence == log[i].sequence;
        gammas[i] = known ? choose(log[i - 1].features) : options_.fallback;
      }
    }
  }

 private:
  SpecKvWeights weights_;
  Cost cost_;
  SpecKvOptions options_;
};

static_assert(DraftLengthController<SpecKv<CostTable>>);
static_assert(DraftLengthController<SpecKv<Roofline>>);

}  // namespace decant::speculative

#endif
