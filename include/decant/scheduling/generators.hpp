// decant: workloads drawn from distributions: arrivals (Poisson, or Gamma gaps where they come in bursts), lengths
// (uniform, lognormal, or the quantiles of what was measured), and sessions of several turns, whose prompts repeat what
// was said before. They use libm, so runs are the same on one machine only; integer_workload (workload.hpp) is the
// same everywhere.
#ifndef DECANT_SCHEDULING_GENERATORS_HPP
#define DECANT_SCHEDULING_GENERATORS_HPP

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "workload.hpp"

namespace decant::scheduling {

/// Uniform on the open interval (0, 1), 53 bits.
constexpr double unit(SplitMix64& next) { return (static_cast<double>(next() >> 11) + 0.5) * 0x1p-53; }

/// Standard normal (Box and Muller; the second value is not kept).
inline double normal(SplitMix64& next) {
  const double radius = std::sqrt(-2 * std::log(unit(next)));
  return radius * std::cos(6.283185307179586 * unit(next));
}

/// Gamma of mean shape * scale (Marsaglia, Tsang: A simple method for generating gamma variables, 2000).
inline double gamma(SplitMix64& next, double shape, double scale) {
  if (shape < 1) return gamma(next, shape + 1, scale) * std::pow(unit(next), 1 / shape);
  const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = normal(next), t = 1 + c * x;
    if (t <= 0) continue;
    const double v = t * t * t;
    if (std::log(unit(next)) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v * scale;
  }
}

/// When requests come: gaps of mean 1 / rate, Gamma with this shape. 1: a Poisson process; below: bursts, the gaps'
/// coefficient of variation is 1 / sqrt(shape).
struct Arrivals {
  double rate = 1;  ///< per second
  double shape = 1;
  bool operator==(const Arrivals&) const = default;
};

/// A law of lengths: the inverse of its distribution function, cut to [least, most].
class LengthLaw {
 public:
  static LengthLaw uniform(std::uint32_t least, std::uint32_t most) {
    return {{static_cast<double>(least), static_cast<double>(most) + 1}, 0, 0, least, most};
  }
  static LengthLaw lognormal(double mu, double sigma, std::uint32_t most) { return {{}, mu, sigma, 1, most}; }
  /// Values at equal steps of probability, from the smallest to the largest, linear in between: 33 of them hold a
  /// measured law closely. ArgumentError: fewer than 2, not ascending, or below 1.
  static LengthLaw quantiles(std::vector<double> values) {
    constexpr auto where = "scheduling::LengthLaw::quantiles";
    require(values.size() >= 2, where, "values", "at least 2", values.size());
    require(std::is_sorted(values.begin(), values.end()), where, "values", "an ascending list", "another");
    require(values.front() >= 1 && values.back() < 4e9, where, "values", "lengths from 1 to 4e9", values.front());
    const auto most = static_cast<std::uint32_t>(values.back());
    return {std::move(values), 0, 0, 1, most};
  }

  std::uint32_t operator()(SplitMix64& next) const {
    double x;
    if (quantiles_.empty()) {
      x = std::exp(mu_ + sigma_ * normal(next));
    } else {
      const double at = unit(next) * static_cast<double>(quantiles_.size() - 1);
      const auto i = static_cast<std::size_t>(at);
      x = quantiles_[i] + (at - static_cast<double>(i)) * (quantiles_[i + 1] - quantiles_[i]);
    }
    const double cut = (std::min)((std::max)(x, static_cast<double>(least_)), static_cast<double>(most_));
    return static_cast<std::uint32_t>(cut);
  }

 private:
  LengthLaw(std::vector<double> quantiles, double mu, double sigma, std::uint32_t least, std::uint32_t most)
      : quantiles_(std::move(quantiles)), mu_(mu), sigma_(sigma), least_(least), most_(most) {
    require(least >= 1 && least <= most, "scheduling::LengthLaw", "least", "1 to the largest length", least);
  }

  std::vector<double> quantiles_;
  double mu_, sigma_;
  std::uint32_t least_, most_;
};

/// Quantiles at `count` equal steps of probability of what was measured, by linear interpolation. O(n log n).
inline std::vector<double> equal_quantiles(std::vector<std::uint32_t> values, std::uint32_t count = 33) {
  require(!values.empty(), "scheduling::equal_quantiles", "values", "at least one", "none");
  require(count >= 2, "scheduling::equal_quantiles", "count", "at least 2", count);
  std::sort(values.begin(), values.end());
  std::vector<double> out(count);
  for (std::uint32_t q = 0; q < count; ++q) {
    const double at = static_cast<double>(values.size() - 1) * q / (count - 1);
    const auto i = static_cast<std::size_t>(at);
    const double above = values[(std::min)(i + 1, values.size() - 1)];
    out[q] = values[i] + (at - static_cast<double>(i)) * (above - values[i]);
  }
  return out;
}

/// `requests` independent requests. Lengths are predicted exactly. ArgumentError: a rate or shape that is not positive.
inline Workload random_workload(std::uint64_t seed, std::uint32_t requests, const Arrivals& arrivals,
                                const LengthLaw& prompt, const LengthLaw& output) {
  constexpr auto where = "scheduling::random_workload";
  require(arrivals.rate > 0 && arrivals.rate < 1e9, where, "arrivals.rate", "a positive number", arrivals.rate);
  require(arrivals.shape > 0 && arrivals.shape < 1e9, where, "arrivals.shape", "a positive number", arrivals.shape);
  SplitMix64 next{seed};
  Workload workload(requests);
  double seconds = 0;
  for (std::uint32_t i = 0; i < requests; ++i) {
    SimulatedRequest& r = workload[i];
    seconds += gamma(next, arrivals.shape, 1 / (arrivals.rate * arrivals.shape));
    r.info.tag = i;
    r.info.arrival = static_cast<Nanoseconds>(seconds * 1e9);
    r.info.prompt = prompt(next);
    r.generates(output(next));
  }
  return workload;
}

/// Conversations: turn j + 1 asks what turn j asked, its answer, and a new message; it comes `pause` after the time at
/// which turn j came. Each conversation is a group, whose shared prefix is what its turns before have seen.
struct Sessions {
  std::uint32_t sessions = 100, turns = 4;
  Nanoseconds pause = 20'000'000'000;
  bool operator==(const Sessions&) const = default;
};

/// Requests are tagged in the order of sessions and turns. Errors as above.
inline Workload session_workload(std::uint64_t seed, const Sessions& sessions, const Arrivals& arrivals,
                                 const LengthLaw& message, const LengthLaw& output) {
  require(sessions.turns >= 1, "scheduling::session_workload", "sessions.turns", "at least 1", sessions.turns);
  const Workload first = random_workload(seed, sessions.sessions, arrivals, message, output);
  SplitMix64 next{seed ^ 0x5e5510f5u};
  Workload workload;
  for (std::uint32_t s = 0; s < first.size(); ++s) {
    SimulatedRequest r = first[s];
    r.info.group = s + 1;
    for (std::uint32_t turn = 0; turn < sessions.turns; ++turn) {
      r.info.tag = workload.size();
      workload.push_back(r);
      r.info.group_tokens = r.info.prompt + r.output - 1;
      r.info.arrival += sessions.pause;
      r.info.prompt += r.output + message(next);
      r.generates(output(next));
    }
  }
  return workload;
}

}  // namespace decant::scheduling

#endif
