// Calibration of a model's weights: the model reads a text, and what enters each matrix is summed up. The matrices do
// it themselves: one that observes stands in the weights in place of the stored one, so that Llama knows nothing of it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <decant/quant/calibration_sums.hpp>

#include "engine.hpp"
#include "packed_matrix.hpp"
#include "weights.hpp"

namespace runtime {

using CalibrationList = std::vector<std::shared_ptr<quant::CalibrationSums>>;

/// A matrix that adds its inputs to sums before it multiplies.
class ObservingWeights final : public PackedWeights {
 public:
  ObservingWeights(Matrix inner, std::shared_ptr<quant::CalibrationSums> sums)
      : inner_(std::move(inner)), sums_(std::move(sums)) {}

  index_t rows() const override { return shape().first; }
  index_t cols() const override { return shape().second; }
  View<const std::byte, 1> data() const override { return {}; }
  std::string format() const override { return "observing"; }
  void multiply(decant::Cpu& cpu, View<const float, 2> x, View<float, 2> y) const override {
    sums_->add(cpu, x);
    linear(cpu, inner_, x, y);
  }
  void row(decant::Cpu& cpu, index_t r, View<float, 1> out) const override {
    std::visit([&](const auto& w) { dequantize_row(cpu, w, r, out); }, inner_);
  }

 private:
  std::pair<index_t, index_t> shape() const {
    return std::visit([](const auto& w) { return std::pair{w.rows(), w.cols()}; }, inner_);
  }

  Matrix inner_;
  std::shared_ptr<quant::CalibrationSums> sums_;
};

/// A text cut into windows of at most `window` tokens, each after the beginning-of-sequence token.
inline std::vector<Tokens> windows_of(const Config& config, const std::string& text, index_t window) {
  decant::require(window >= 2 && window <= config.context, "runtime", "--window",
                  "2 to the model's context of " + std::to_string(config.context) + " tokens", window);
  decant::require(!text.empty(), "runtime", "the text", "at least 1 byte", "an empty one");
  std::vector<Tokens> windows;
  const auto step = static_cast<std::size_t>(window - 1);
  for (std::size_t at = 0; at < text.size(); at += step)
    windows.push_back(prompt_tokens(config, std::string_view(text).substr(at, step)));
  return windows;
}

/// Sums of the inputs of each matrix that for_each_matrix() visits, by its input (matrices that read the same rows
/// share them). progress(done, total) is called after each window.
template <class Progress>
CalibrationList calibrate(decant::Cpu& cpu, const Config& config, const Weights& weights,
                          const std::vector<Tokens>& text, Progress&& progress) {
  Weights observed = weights;
  CalibrationList sums(static_cast<std::size_t>(observed.inputs()));
  for_each_matrix(observed, [&](const std::string&, index_t input, Matrix& w) {
    auto& own = sums[static_cast<std::size_t>(input)];
    if (own) return;  // the first matrix of an input observes for all
    own = std::make_shared<quant::CalibrationSums>(columns_of(w));
    w = PackedMatrix(std::make_shared<ObservingWeights>(w, own));
  });
  const auto engine = make_engine(cpu, config, observed, AnyStack{}, CacheChoice{});
  for (std::size_t i = 0; i < text.size(); ++i) {
    engine->prefill(text[i], 0, Logits::all);
    progress(i + 1, text.size());
  }
  return sums;
}

}  // namespace runtime
