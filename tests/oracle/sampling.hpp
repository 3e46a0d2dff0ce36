#pragma once
// Processed distributions by their definition: in double, by sorting. And the statistics of tests on laws.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "decant/sampling/processing.hpp"

namespace oracle {

/// Whether a filter keeps a token: by so small a margin that rounding decides, `either`.
enum class Kept { no, yes, either };

inline std::vector<Kept> kept_tokens(const decant::sampling::Processing& p, const std::vector<float>& logits) {
  using decant::sampling::Order;
  const std::size_t n = logits.size();
  const double largest = *std::max_element(logits.begin(), logits.end());
  std::vector<double> w;
  for (const float x : logits)
    w.push_back(std::exp((static_cast<double>(x) - largest) / static_cast<double>(p.temperature)));
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
  const bool limited = p.top_k > 0 && static_cast<std::size_t>(p.top_k) < n;
  double total = 0;
  for (std::size_t rank = 0; rank < n; ++rank) {
    const bool counts = p.order == Order::joint || !limited || rank < static_cast<std::size_t>(p.top_k) ||
                        logits[order[rank]] == logits[order[static_cast<std::size_t>(p.top_k) - 1]];
    if (counts) total += w[order[rank]];
  }
  std::vector<Kept> kept(n, Kept::yes);
  double above = 0;
  for (std::size_t first = 0; first < n;) {
    std::size_t last = first;
    double tied = 0;
    for (; last < n && logits[order[last]] == logits[order[first]]; ++last) tied += w[order[last]];
    Kept verdict = Kept::yes;
    const double wanted = static_cast<double>(p.top_p) * total;
    const double least = static_cast<double>(p.min_p);
    if (p.top_p < 1 && first > 0) {
      if (above >= wanted * (1 + 1e-6) + 1e-9) verdict = Kept::no;
      else if (above >= wanted * (1 - 1e-6) - 1e-9) verdict = Kept::either;
    }
    if (p.min_p > 0 && first > 0) {
      if (w[order[first]] < least * (1 - 1e-6)) verdict = Kept::no;
      else if (w[order[first]] < least * (1 + 1e-6) && verdict == Kept::yes) verdict = Kept::either;
    }
    if (limited && first >= static_cast<std::size_t>(p.top_k)) verdict = Kept::no;
    for (std::size_t i = first; i < last; ++i) kept[order[i]] = verdict;
    above += tied;
    first = last;
  }
  return kept;
}

/// The law restricted to a set.
inline std::vector<double> restricted(const decant::sampling::Processing& p, const std::vector<float>& logits,
                                      const std::vector<bool>& keep) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  std::vector<double> w(logits.size(), 0.0);
  double sum = 0;
  for (std::size_t i = 0; i < w.size(); ++i) {
    if (keep[i]) w[i] = std::exp((static_cast<double>(logits[i]) - largest) / static_cast<double>(p.temperature));
    sum += w[i];
  }
  for (double& x : w) x /= sum;
  return w;
}

/// Pearson's statistic of counts against a law; outcomes of probability 0 must not occur (then: infinity).
inline double chi_square(const std::vector<long>& counts, const std::vector<double>& law, double draws) {
  double sum = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double expected = law[i] * draws;
    const double seen = static_cast<double>(counts[i]);
    if (expected > 0) sum += (seen - expected) * (seen - expected) / expected;
    else if (seen > 0) return std::numeric_limits<double>::infinity();
  }
  return sum;
}

/// A value that chi-square with so many degrees of freedom exceeds with a chance of about 1e-6 (Wilson, Hilferty).
inline double chi_square_limit(int freedom) {
  const double a = 2.0 / (9.0 * freedom);
  const double b = 1 - a + 4.7534 * std::sqrt(a);
  return freedom * b * b * b;
}

}  // namespace oracle
