#pragma once
// EAR, KL and the margin of one position from their definitions, in double.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <vector>

#include "decant/quant/ear_types.hpp"

namespace oracle {

struct Ear {
  double ear = 0, kl = 0, margin = 0;
  bool agrees = false;
};

/// Token ids, the largest logit first, of equal ones the lower id.
inline std::vector<std::size_t> by_likelihood(const std::vector<double>& logits) {
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
  return order;
}

/// ln of the probabilities of a row, of the nucleus of top_p.
inline std::vector<double> log_probabilities(const std::vector<double>& logits, double temperature, double top_p) {
  const std::vector<std::size_t> order = by_likelihood(logits);
  const double top = logits[order[0]];
  double all = 0;
  for (const double l : logits) all += std::exp((l - top) / temperature);
  std::vector<double> result(logits.size(), -INFINITY);
  double kept = 0;
  for (const std::size_t v : order) {
    if (kept > 0 && kept >= top_p * all && top_p < 1) break;
    result[v] = (logits[v] - top) / temperature;
    kept += std::exp(result[v]);
  }
  for (double& l : result) l -= std::log(kept);
  return result;
}

inline Ear ear(const std::vector<double>& p, const std::vector<double>& q, const decant::quant::EarOptions& options) {
  using decant::quant::EarSupport;
  const double t = static_cast<double>(options.temperature);
  Ear result;
  const auto order = by_likelihood(p);
  result.agrees = order[0] == by_likelihood(q)[0];
  const auto plain = log_probabilities(p, t, 1);
  if (!result.agrees) result.margin = std::exp(plain[order[0]]) - std::exp(plain[order[1]]);
  auto lp = log_probabilities(p, t, static_cast<double>(options.top_p));
  auto lq = log_probabilities(q, t, static_cast<double>(options.top_p));
  std::vector<std::size_t> tokens;
  for (const std::size_t v : order)
    if (options.top_p == 1 || lp[v] > -INFINITY) tokens.push_back(v);  // the likeliest of those that p keeps
  if (options.support != EarSupport::full)
    tokens.resize(std::min(tokens.size(), static_cast<std::size_t>(options.top_k)));
  if (options.support == EarSupport::topk_conditioned) {
    for (auto* l : {&lp, &lq}) {
      double top = -INFINITY, sum = 0;
      for (const std::size_t v : tokens) top = std::max(top, (*l)[v]);
      if (top == -INFINITY) continue;
      for (const std::size_t v : tokens) sum += std::exp((*l)[v] - top);
      for (const std::size_t v : tokens) (*l)[v] -= top + std::log(sum);
    }
  }
  for (const std::size_t v : tokens) {
    const double a = std::exp(lp[v]), b = std::exp(lq[v]);
    result.ear += std::min(a, b);
    if (a > 0) result.kl += a * (lp[v] - lq[v]);
  }
  return result;
}

}  // namespace oracle
