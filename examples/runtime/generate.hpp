// Generation: the loop of an engine, with its clock, and what a policy costs in quality: the distance of its
// distributions from those of the uncompressed model on the same tokens.
#pragma once

#include <chrono>
#include <cmath>
#include <vector>

#include <decant/core/random.hpp>

#include "engine.hpp"

namespace runtime {

/// Greedy at temperature 0 (ties to the lower token), else softmax(logits / temperature), drawn with Philox: the token
/// at a step is a function of the seed, the step and the logits.
class Sampler {
 public:
  explicit Sampler(double temperature = 0, std::uint64_t seed = 0) : temperature_(temperature), random_{seed} {}

  Token operator()(View<const float, 1> logits, index_t step) {
    index_t best = 0;
    for (index_t i = 1; i < logits.size(); ++i) best = logits[i] > logits[best] ? i : best;
    if (temperature_ <= 0) return static_cast<Token>(best);
    weights_.clear();
    double total = 0;
    for (index_t i = 0; i < logits.size(); ++i) {
      total += std::exp(static_cast<double>(logits[i] - logits[best]) / temperature_);
      weights_.push_back(total);
    }
    const double wanted = static_cast<double>(random_.uniform(0, static_cast<std::uint32_t>(step))) * total;
    index_t token = 0;
    while (token + 1 < logits.size() && weights_[static_cast<std::size_t>(token)] <= wanted) ++token;
    return static_cast<Token>(token);
  }

 private:
  double temperature_;
  decant::Philox random_;
  std::vector<double> weights_;  // cumulated
};

struct Generation {
  Tokens tokens;
  double ttft_ms = 0;    // prompt to first token, eviction included
  double tpot_ms = 0;    // per further token, on average; 0 when there is none
  index_t kv_bytes = 0;  // of the rows in use at the end
  double acceptance_length = 0;  // tokens per step of speculative decoding, on average; 0: none was done
};

/// `count` tokens after the prompt. The last one is not fed back, so count - 1 decoded tokens are in the cache at the
/// end. on_token(tokens so far) is called after each.
template <class OnToken>
Generation generate(Engine& engine, const Tokens& prompt, index_t count, Sampler sampler, OnToken&& on_token) {
  using Clock = std::chrono::steady_clock;
  const auto milliseconds = [](Clock::duration d) { return std::chrono::duration<double, std::milli>(d).count(); };
  Generation g;
  const auto start = Clock::now();
  g.tokens.push_back(sampler(engine.prefill(prompt, count - 1)[0], 0));
  const auto first = Clock::now();
  on_token(g.tokens);
  for (index_t step = 1; step < count; ++step) {
    g.tokens.push_back(sampler(engine.decode({g.tokens.back()})[0], step));
    on_token(g.tokens);
  }
  g.ttft_ms = milliseconds(first - start);
  if (count > 1) g.tpot_ms = milliseconds(Clock::now() - first) / static_cast<double>(count - 1);
  g.kv_bytes = engine.kv_bytes();
  return g;
}

/// Logits before each of `tokens`, when the model is fed those tokens one by one, as generate() feeds its own.
/// [tokens, vocab], row-major
inline std::vector<float> forced_logits(Engine& engine, const Tokens& prompt, const Tokens& tokens) {
  std::vector<float> all;
  const auto keep = [&](View<const float, 2> rows) { all.insert(all.end(), rows.data(), rows.data() + rows.size()); };
  keep(engine.prefill(prompt, static_cast<index_t>(tokens.size())));
  for (std::size_t i = 0; i + 1 < tokens.size(); ++i) keep(engine.decode({tokens[i]}));
  return all;
}

/// How far distributions are from reference ones.
struct Distance {
  double kl = 0;              // mean of KL(reference || other) over positions, in nats
  double kl_stderr = 0;       // its standard error, positions taken for a sample
  double top1_agreement = 0;  // share of positions with the same most likely token
};

/// The logarithms of softmax(logits [vocab]).
inline std::vector<double> log_softmax(const float* logits, index_t vocab) {
  std::vector<double> p(logits, logits + vocab);
  double most = p[0];
  for (const double x : p) most = x > most ? x : most;
  double total = 0;
  for (const double x : p) total += std::exp(x - most);
  for (double& x : p) x -= most + std::log(total);
  return p;
}

inline Distance compare_logits(const std::vector<float>& reference, const std::vector<float>& other, index_t vocab) {
  const auto argmax = [](const std::vector<double>& p) {
    std::size_t best = 0;
    for (std::size_t i = 1; i < p.size(); ++i) best = p[i] > p[best] ? i : best;
    return best;
  };
  Distance d;
  double squares = 0;
  const auto width = static_cast<std::size_t>(vocab);
  const std::size_t rows = reference.size() / width;
  for (std::size_t r = 0; r < rows; ++r) {
    const auto p = log_softmax(reference.data() + r * width, vocab);
    const auto q = log_softmax(other.data() + r * width, vocab);
    double kl = 0;
    for (std::size_t i = 0; i < width; ++i) kl += std::exp(p[i]) * (p[i] - q[i]);
    d.kl += kl;
    squares += kl * kl;
    d.top1_agreement += argmax(p) == argmax(q) ? 1 : 0;
  }
  const auto n = static_cast<double>(rows);
  d.kl = std::fmax(0.0, d.kl / n);  // rounding can leave -1e-17
  if (rows > 1) d.kl_stderr = std::sqrt(std::fmax(0.0, squares / n - d.kl * d.kl) / (n - 1));
  d.top1_agreement /= n;
  return d;
}

}  // namespace runtime
