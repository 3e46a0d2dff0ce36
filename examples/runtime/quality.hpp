// Judge: what a model with other weights is worth on a text, beside the model as stored.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include <decant/quant/ear.hpp>

#include "generate.hpp"

namespace runtime {

struct Quality {
  double bits_per_byte = 0;  // of the text; a token is a byte
  decant::quant::EarResult distance;
};

class Judge {
 public:
  /// `text`: windows of at least 2 tokens, each on its own. All of this must outlive the judge.
  Judge(decant::Cpu& cpu, const Config& config, const Weights& reference, const std::vector<Tokens>& text)
      : cpu_(cpu), config_(config), text_(text), reference_(logits(reference)) {}

  index_t positions() const { return static_cast<index_t>(reference_.size()) / config_.vocab; }

  Quality operator()(const Weights& weights) const {
    const std::vector<float> own = logits(weights);
    const auto rows = [&](const std::vector<float>& l) {
      return View<const float, 2>(l.data(), positions(), config_.vocab);
    };
    Quality q;
    q.distance = decant::quant::ear(cpu_, rows(reference_), rows(own));
    double nats = 0;
    index_t row = 0;
    for (const Tokens& window : text_) {
      for (std::size_t i = 1; i < window.size(); ++i, ++row)
        nats -= log_softmax(own.data() + row * config_.vocab, config_.vocab)[static_cast<std::size_t>(window[i])];
    }
    q.bits_per_byte = nats / static_cast<double>(row) / std::log(2.0);
    return q;
  }

 private:
  /// Logits before every token of every window but its first. [positions, vocab]
  std::vector<float> logits(const Weights& weights) const {
    const auto engine = make_engine(cpu_, config_, weights, AnyStack{}, CacheChoice{});
    std::vector<float> all;
    for (const Tokens& window : text_) {
      const Tokens inputs(window.begin(), window.end() - 1);
      const View<const float, 2> some = engine->prefill(inputs, 0, Logits::all);
      all.insert(all.end(), some.data(), some.data() + some.size());
    }
    return all;
  }

  decant::Cpu& cpu_;
  const Config& config_;
  const std::vector<Tokens>& text_;
  std::vector<float> reference_;
};

}  // namespace runtime
