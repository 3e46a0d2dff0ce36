// What a simulated run served, request by request, and the ratio of two runs' throughput with a paired bootstrap.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "decant/core/random.hpp"

namespace simulated {

struct Served {
  std::vector<double> tokens, seconds;  ///< per request
  std::int64_t steps = 0;
  std::int64_t drafted = 0;
  std::int64_t accepted = 0;

  void add(double t, double s) {
    tokens.push_back(t);
    seconds.push_back(s);
  }
  double all_tokens() const { return sum(tokens); }
  double rate() const { return sum(tokens) / sum(seconds); }

 private:
  static double sum(const std::vector<double>& v) {
    double s = 0;
    for (const double x : v) s += x;
    return s;
  }
};

struct Interval {
  double low = 0, high = 0;
};

/// 95 % of a.rate() / b.rate(), both over the same requests: percentiles over `resamples` draws of the requests.
inline Interval ratio_interval(const Served& a, const Served& b, std::int32_t resamples, std::uint64_t seed = 7) {
  const std::size_t n = a.tokens.size();
  const decant::Philox random{seed};
  std::vector<double> ratios;
  for (std::int32_t k = 0; k < resamples; ++k) {
    double at = 0, as = 0, bt = 0, bs = 0;
    for (std::size_t i = 0; i < n; i += 4) {
      const decant::Philox4 bits = random(static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(k));
      for (std::size_t j = 0; j < 4 && i + j < n; ++j) {
        const auto r = static_cast<std::size_t>(std::uint64_t{bits.word[j]} * n >> 32);
        at += a.tokens[r];
        as += a.seconds[r];
        bt += b.tokens[r];
        bs += b.seconds[r];
      }
    }
    ratios.push_back(at / as / (bt / bs));
  }
  std::sort(ratios.begin(), ratios.end());
  const auto at = [&](double share) { return ratios[static_cast<std::size_t>(share * (resamples - 1) + 0.5)]; };
  return {at(0.025), at(0.975)};
}

}  // namespace simulated
