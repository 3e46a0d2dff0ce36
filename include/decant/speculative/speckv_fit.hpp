// decant: fit(), the weights of SpecKv from a log of steps, as SpecKV (arXiv 2605.02888) trains them [paper]: squared
// error of accepted / drafted, Adam, batches of 200, a little weight decay, an end when the loss stands still. Start
// values and the order of batches come from Philox: the same log and seed give the same weights on one machine. Ours:
// rows may be paired with the signals of the step before (Signals::previous), as a controller will see them.
#ifndef DECANT_SPECULATIVE_SPECKV_FIT_HPP
#define DECANT_SPECULATIVE_SPECKV_FIT_HPP

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "../core/random.hpp"
#include "speckv.hpp"

namespace decant::speculative {

struct SpecKvFit {
  Signals signals = Signals::previous;
  double rate = 1e-3;
  std::int32_t batch = 200;
  double decay = 1e-4;
  std::int32_t epochs = 500;     ///< at most
  std::int32_t patience = 10;    ///< so many epochs without a gain end it
  /// The least fall of the epoch's loss, half the squared error, that counts. 1e-4, as published, ends too early on a log
  /// of few thousand steps, of which an epoch is few batches: 1e-6 there.
  double gain = 1e-4;
  std::uint64_t seed = 0;
  bool operator==(const SpecKvFit&) const = default;
};

/// The log must hold steps of every length that is to be chosen from: the length is an input like the others. Steps that
/// drafted nothing are left out, and so are those without signals: first steps of a text with Signals::previous,
/// features that are not finite. ArgumentError: nothing left. O(epochs * steps), about 0.3 us per step and epoch.
inline SpecKvWeights fit(View<const SpecKvStep, 1> log, const SpecKvFit& options = {}) {
  constexpr const char* where = "speculative::fit";
  constexpr int parameters = 129;
  require(options.batch >= 1, where, "options.batch", "at least 1", options.batch);
  require(options.rate > 0 && options.rate < 1, where, "options.rate", "a number in (0, 1)", options.rate);

  std::vector<double> rows;  // six inputs and the label
  for (index_t i = 0; i < log.size(); ++i) {
    const SpecKvStep& s = log[i];
    require(s.accepted >= 0 && s.accepted <= s.drafted, where, "log", "0 to drafted tokens accepted", s.accepted);
    const bool same = options.signals == Signals::same_step;
    if (s.drafted == 0 || (!same && (i == 0 || log[i - 1].sequence != s.sequence))) continue;
    const SpecKvFeatures& f = same ? s.features : log[i - 1].features;
    if (!f.finite()) continue;
    for (const float x : {f.mean_entropy, f.mean_confidence, f.max_entropy, f.min_confidence, f.compression}) {
      rows.push_back(static_cast<double>(x));
    }
    rows.push_back(s.gamma);
    rows.push_back(static_cast<double>(s.accepted) / s.drafted);
  }
  const std::size_t n = rows.size() / 7;
  require(n > 0, where, "log", "at least one step with a draft and signals", 0);

  // hidden [16][6], hidden_bias [16], output [16], output_bias; uniform within sqrt(6 / (inputs + outputs)).
  double w[parameters], mean[parameters] = {}, square[parameters] = {};
  const Philox random{options.seed};
  for (int k = 0; k < parameters; ++k) {
    const double bound = std::sqrt(6.0 / (k < 112 ? 22 : 17));
    w[k] = bound * (2 * random.uniform_double(static_cast<std::uint32_t>(k)) - 1);
  }

  std::vector<std::size_t> order(n);
  for (std::size_t i = 0; i < n; ++i) order[i] = i;
  double best = 1e300;
  double power1 = 1, power2 = 1;
  std::int32_t still = 0;
  for (std::int32_t epoch = 1; epoch <= options.epochs && still < options.patience; ++epoch) {
    for (std::size_t i = n - 1; i > 0; --i) {
      const double u = random.uniform_double(static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(epoch));
      const auto j = static_cast<std::size_t>(u * static_cast<double>(i + 1));
      const std::size_t held = order[i];
      order[i] = order[j];
      order[j] = held;
    }
    double loss = 0;
    for (std::size_t begin = 0; begin < n; begin += static_cast<std::size_t>(options.batch)) {
      const std::size_t left = n - begin;
      const std::size_t count = left < static_cast<std::size_t>(options.batch) ? left : static_cast<std::size_t>(options.batch);
      double slope[parameters] = {};
      for (std::size_t i = begin; i < begin + count; ++i) {
        const double* const x = rows.data() + 7 * order[i];
        double h[16];
        double y = w[128];
        for (int j = 0; j < 16; ++j) {
          h[j] = w[96 + j];
          for (int k = 0; k < 6; ++k) h[j] += w[6 * j + k] * x[k];
          if (h[j] > 0) y += w[112 + j] * h[j];
        }
        const double error = y - x[6];
        loss += error * error / 2;
        slope[128] += error;
        for (int j = 0; j < 16; ++j) {
          if (!(h[j] > 0)) continue;
          slope[112 + j] += error * h[j];
          slope[96 + j] += error * w[112 + j];
          for (int k = 0; k < 6; ++k) slope[6 * j + k] += error * w[112 + j] * x[k];
        }
      }
      power1 *= 0.9;
      power2 *= 0.999;
      for (int k = 0; k < parameters; ++k) {
        const bool bias = k == 128 || (k >= 96 && k < 112);
        const double g = (slope[k] + (bias ? 0 : options.decay * w[k])) / static_cast<double>(count);
        mean[k] = 0.9 * mean[k] + 0.1 * g;
        square[k] = 0.999 * square[k] + 0.001 * g * g;
        w[k] -= options.rate * (mean[k] / (1 - power1)) / (std::sqrt(square[k] / (1 - power2)) + 1e-8);
      }
    }
    loss /= static_cast<double>(n);
    still = loss < best - options.gain ? 0 : still + 1;
    if (loss < best) best = loss;
  }

  SpecKvWeights result;
  for (int k = 0; k < parameters; ++k) {
    float& to = k < 96 ? result.hidden[k / 6][k % 6]
                       : k < 112 ? result.hidden_bias[k - 96] : k < 128 ? result.output[k - 112] : result.output_bias;
    to = static_cast<float>(w[k]);
  }
  return result;
}

}  // namespace decant::speculative

#endif
