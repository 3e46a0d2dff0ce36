// decant: how many requests per second an engine can sustain, and how many engines an arrival rate needs, from the law
// of lengths, the memory and the time of a step (arXiv 2605.04595, ICML 2026). A request takes g token-steps of memory;
// an engine gives M of them per step: mu = M / (b E[g]) is the service rate. Above it every policy is unstable; below
// mu (1 - delta), delta = max(s + o) / M, every work-conserving one is stable. The formulas are the paper's; the exact
// sums beside its smooth form, and the step time that needs no measurement, are ours.
// Overflow is assumed to cost nothing: with preemption by recomputation mu is an upper bound, with prefix reuse a lower.
#ifndef DECANT_SCHEDULING_STABILITY_HPP
#define DECANT_SCHEDULING_STABILITY_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "roofline.hpp"
#include "workload.hpp"

namespace decant::scheduling {

/// Tokens of a request's prompt (s) and output (o), both at least 1.
struct Lengths {
  std::uint32_t prompt = 1, output = 1;
  bool operator==(const Lengths&) const = default;
};

/// Which memory-time of a request is meant.
enum class GForm : std::uint8_t {
  paper,   ///< smooth: (1 + s/c) s/2 + s o + (1 + o) o/2, c the chunk
  exact,   ///< step by step, the last chunk short
  engine,  ///< as this simulator counts: the first token comes out of the last chunk, the last is never stored
};

/// g, in token-steps. ArgumentError: a chunk of 0.
inline double memory_time(const Lengths& l, std::uint32_t chunk, GForm form) {
  require(chunk > 0, "scheduling::memory_time", "chunk", "at least 1 token", chunk);
  const double s = l.prompt, o = l.output, c = chunk;
  if (form == GForm::paper) return (1 + s / c) * s / 2 + s * o + (1 + o) * o / 2;
  const double whole = std::floor(s / c);  // chunks
  const double prefill = c * whole * (whole + 1) / 2 + (whole * c < s ? s : 0);
  const double steps = form == GForm::exact ? o : o - 1;
  return prefill + s * steps + steps * (steps + 1) / 2;
}

/// v: memory-time still to come of a request of which `chunks` chunks and `decoded` tokens are done; the paper's form of
/// g when nothing is. The sum over unfinished requests is the load of an engine.
inline double memory_time_left(const Lengths& l, std::uint32_t chunk, std::uint32_t chunks, std::uint32_t decoded) {
  require(chunk > 0, "scheduling::memory_time_left", "chunk", "at least 1 token", chunk);
  const double s = l.prompt, o = l.output, c = chunks, d = decoded, whole = s / chunk;
  if (c < whole) return ((c + 1) * chunk + s) * (whole - c) / 2 + o * s + o * (o + 1) / 2;
  return s * (o - d) + (o - d) * (o + d + 1) / 2;
}

/// Moments of the joint law of lengths, all that the smooth form needs.
struct LengthMoments {
  double prompt = 0, prompt_squared = 0, output = 0, output_squared = 0, product = 0;
  std::uint64_t longest = 0;  ///< of prompt + output

  /// Independent, uniform on the whole numbers of both ranges.
  static LengthMoments uniform(std::uint32_t prompt_low, std::uint32_t prompt_high, std::uint32_t output_low,
                               std::uint32_t output_high) {
    const auto mean = [](double a, double b) { return (a + b) / 2; };
    const auto square = [](double a, double b) {
      const double n = b - a + 1;
      return (b * (b + 1) * (2 * b + 1) - (a - 1) * a * (2 * a - 1)) / (6 * n);
    };
    LengthMoments m;
    m.prompt = mean(prompt_low, prompt_high);
    m.output = mean(output_low, output_high);
    m.prompt_squared = square(prompt_low, prompt_high);
    m.output_squared = square(output_low, output_high);
    m.product = m.prompt * m.output;
    m.longest = std::uint64_t{prompt_high} + output_high;
    return m;
  }

  /// Of a sample. ArgumentError: none.
  static LengthMoments of(View<const Lengths, 1> sample) {
    require(!sample.empty(), "scheduling::LengthMoments::of", "sample", "at least one request", "none");
    LengthMoments m;
    const double share = 1 / static_cast<double>(sample.extent(0));
    for (index_t i = 0; i < sample.extent(0); ++i) {
      const double s = sample[i].prompt, o = sample[i].output;
      m.prompt += share * s;
      m.output += share * o;
      m.prompt_squared += share * s * s;
      m.output_squared += share * o * o;
      m.product += share * s * o;
      m.longest = (std::max)(m.longest, std::uint64_t{sample[i].prompt} + sample[i].output);
    }
    return m;
  }

  /// E[g], the paper's form.
  double memory_time(std::uint32_t chunk) const {
    return (prompt + prompt_squared / chunk) / 2 + product + (output + output_squared) / 2;
  }
};

/// E[g] of a sample in any form. ArgumentError: none.
inline double mean_memory_time(View<const Lengths, 1> sample, std::uint32_t chunk, GForm form) {
  require(!sample.empty(), "scheduling::mean_memory_time", "sample", "at least one request", "none");
  double sum = 0;
  for (index_t i = 0; i < sample.extent(0); ++i) sum += memory_time(sample[i], chunk, form);
  return sum / static_cast<double>(sample.extent(0));
}

/// The mean of `values` without the largest `share` of them: the time of a step where a few long ones make a heavy tail.
/// ArgumentError: no values, or a share outside [0, 1).
inline double upper_trimmed_mean(std::vector<double> values, double share) {
  constexpr auto where = "scheduling::upper_trimmed_mean";
  require(!values.empty(), where, "values", "at least one", "none");
  require(share >= 0 && share < 1, where, "share", "0 to below 1", share);
  const double kept = std::ceil(static_cast<double>(values.size()) * (1 - share) - 1e-9);
  const auto n = (std::max)(static_cast<std::size_t>(kept), std::size_t{1});
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(n - 1), values.end());
  double sum = 0;
  for (std::size_t i = 0; i < n; ++i) sum += values[i];
  return sum / static_cast<double>(n);
}

enum class Verdict : std::uint8_t { stable, within_margin, unstable };

/// What an arrival rate asks for.
struct CapacityPlan {
  double service_rate = 0;         ///< mu of one engine, requests per second
  double guaranteed_rate = 0;      ///< mu (1 - delta): stable under any work-conserving policy
  std::uint64_t least_engines = 0;       ///< ceil(lambda / mu): below, the queue grows without bound
  std::uint64_t engines = 0;             ///< ceil(lambda / (utilisation mu)), the paper's choice
  std::uint64_t guaranteed_engines = 0;  ///< ceil(lambda / guaranteed_rate)
  Verdict one_engine = Verdict::stable;  ///< of a single engine; the margin is the larger of delta and a tenth
};

/// An engine, as stability sees it.
struct StabilityModel {
  std::uint64_t memory = 131072;  ///< M, tokens
  std::uint32_t chunk = 512;      ///< prompt tokens of a step

  /// delta. ArgumentError: a request that memory cannot hold.
  double slack(const LengthMoments& m) const {
    require(m.longest <= memory, "scheduling::StabilityModel", "lengths", "requests that fit in memory", m.longest);
    return static_cast<double>(m.longest) / static_cast<double>(memory);
  }

  /// mu, requests per second, from E[g] and the time of a step in seconds. ArgumentError: one that is not positive.
  double service_rate(double mean_g, double step_seconds) const {
    constexpr auto where = "scheduling::StabilityModel::service_rate";
    require(mean_g > 0, where, "mean_g", "a positive number", mean_g);
    require(step_seconds > 0, where, "step_seconds", "a positive time", step_seconds);
    return static_cast<double>(memory) / (step_seconds * mean_g);
  }

  /// The step of an engine whose memory is full: M / E[g] requests end in each, so that many tokens of decodes and of
  /// prompts go on. Seconds; `cost` should add compute and memory time (RooflineOptions::additive): the maximum of both
  /// overestimates published rates by a half and more.
  template <StepCost Cost>
  double saturated_step(const LengthMoments& m, const Cost& cost) const {
    const double per_step = static_cast<double>(memory) / m.memory_time(chunk);
    const double decodes = (std::max)((m.output - 1) * per_step, 1.0), prompt = m.prompt * per_step;
    const double context = (std::max)((static_cast<double>(memory) - prompt) / decodes, 0.0);
    std::vector<StepShape> shapes;
    const auto time = [&](double n, double tokens) {
      shapes.assign(static_cast<std::size_t>(n), StepShape{1, static_cast<std::uint32_t>(context)});
      if (tokens > 0) shapes.push_back({static_cast<std::uint32_t>(tokens), 0});
      return static_cast<double>(cost.step_ns(View<const StepShape, 1>(shapes), PrefixSharing{}));
    };
    // Both numbers are means, so between whole ones the cost goes on linearly.
    const double n = std::floor(decodes), q = std::floor(prompt), base = time(n, q);
    return 1e-9 * (base + (decodes - n) * (time(n + 1, q) - base) + (prompt - q) * (time(n, q + 1) - base));
  }

  /// For `rate` arrivals per second, by the paper's form of g. ArgumentError: a rate below 0 or a utilisation outside
  /// (0, 1].
  CapacityPlan plan(double rate, const LengthMoments& m, double step_seconds, double utilisation = 0.9) const {
    constexpr auto where = "scheduling::StabilityModel::plan";
    require(rate >= 0 && rate < 1e12, where, "rate", "arrivals per second", rate);
    require(utilisation > 0 && utilisation <= 1, where, "utilisation", "above 0, at most 1", utilisation);
    const double delta = slack(m);
    CapacityPlan out;
    out.service_rate = service_rate(m.memory_time(chunk), step_seconds);
    out.guaranteed_rate = out.service_rate * (1 - delta);
    const auto up = [](double x) { return static_cast<std::uint64_t>(std::ceil(x - 1e-9)); };
    out.least_engines = up(rate / out.service_rate);
    out.engines = up(rate / (utilisation * out.service_rate));
    if (delta < 1) out.guaranteed_engines = up(rate / out.guaranteed_rate);
    const double margin = (std::max)(delta, 0.1);
    out.one_engine = rate > out.service_rate                  ? Verdict::unstable
                     : rate > out.service_rate * (1 - margin) ? Verdict::within_margin
                                                              : Verdict::stable;
    return out;
  }
};

/// A share of the requests with its own lengths and steps.
struct LoadShare {
  double share = 1;         ///< of the requests; all shares sum up to 1
  double service_rate = 1;  ///< mu of this load alone
};

/// mu of traffic that changes in time: the harmonic mean by share of requests. ArgumentError: shares that do not sum up
/// to 1.
inline double mixed_service_rate(View<const LoadShare, 1> loads) {
  constexpr auto where = "scheduling::mixed_service_rate";
  double sum = 0, shares = 0;
  for (index_t i = 0; i < loads.extent(0); ++i) {
    require(loads[i].share >= 0 && loads[i].service_rate > 0, where, "loads", "shares and positive rates",
            loads[i].service_rate);
    shares += loads[i].share;
    sum += loads[i].share / loads[i].service_rate;
  }
  require(std::abs(shares - 1) < 1e-9, where, "loads", "shares that sum up to 1", shares);
  return 1 / sum;
}

/// The interval [low, high] that covers E[g] with `confidence`, by the percentile bootstrap: g has a heavy tail, and a
/// normal interval is too narrow. `mean` is that of the sample. O(n resamples).
struct MeanInterval {
  double mean = 0, low = 0, high = 0;
};
inline MeanInterval bootstrap_memory_time(View<const Lengths, 1> sample, std::uint32_t chunk, GForm form,
                                          double confidence = 0.95, std::uint32_t resamples = 1000,
                                          std::uint64_t seed = 0) {
  constexpr auto where = "scheduling::bootstrap_memory_time";
  require(!sample.empty(), where, "sample", "at least one request", "none");
  require(confidence > 0 && confidence < 1, where, "confidence", "between 0 and 1", confidence);
  require(resamples >= 10, where, "resamples", "at least 10", resamples);
  const auto n = static_cast<std::uint64_t>(sample.extent(0));
  std::vector<double> g(n), means(resamples);
  for (std::uint64_t i = 0; i < n; ++i) g[i] = memory_time(sample[static_cast<index_t>(i)], chunk, form);
  SplitMix64 next{seed};
  for (double& mean : means) {
    for (std::uint64_t i = 0; i < n; ++i) mean += g[next() % n];
    mean /= static_cast<double>(n);
  }
  std::sort(means.begin(), means.end());
  const double last = static_cast<double>(resamples - 1);
  const auto at = [&](double p) { return means[static_cast<std::size_t>(std::lround(p * last))]; };
  MeanInterval out;
  for (const double x : g) out.mean += x / static_cast<double>(n);
  out.low = at((1 - confidence) / 2);
  out.high = at((1 + confidence) / 2);
  return out;
}

struct MonitorOptions {
  double rate_decay = 0.98;           ///< of the mean gap between arrivals, per arrival
  double raise = 0.95, clear = 0.85;  ///< of rate / mu: the alarm is raised above, and cleared below
  std::uint32_t least_samples = 30;   ///< of requests and steps, before anything is said
};

/// Watches a running engine: the arrival rate, the memory-time of what ends, the time of full steps, and whether the one
/// exceeds what the others sustain.
class StabilityMonitor {
 public:
  explicit StabilityMonitor(const StabilityModel& model, const MonitorOptions& options = {})
      : model_(model), o_(options) {
    constexpr auto where = "scheduling::StabilityMonitor";
    require(options.rate_decay > 0 && options.rate_decay < 1, where, "options.rate_decay", "between 0 and 1",
            options.rate_decay);
    require(options.clear > 0 && options.clear <= options.raise, where, "options.clear", "above 0, at most raise",
            options.clear);
  }

  void on_arrival(Nanoseconds now) {
    if (arrivals_++ > 0) {
      const double gap = static_cast<double>(now - (std::min)(now, last_)) * 1e-9;
      // The first gaps count alike, later ones fade.
      const double weight = (std::max)(1 - o_.rate_decay, 1 / static_cast<double>(arrivals_ - 1));
      gap_ += weight * (gap - gap_);
    }
    last_ = now;
  }
  void on_finish(const Lengths& l) { mean_g_ += (memory_time(l, model_.chunk, GForm::engine) - mean_g_) / ++requests_; }
  /// Steps that found memory nearly full: others say nothing of its limit.
  void on_full_step(Nanoseconds duration) { mean_step_ += (static_cast<double>(duration) * 1e-9 - mean_step_) / ++steps_; }

  double arrival_rate() const { return gap_ > 0 ? 1 / gap_ : 0; }
  /// mu, or 0 before there are enough samples.
  double service_rate() const {
    if (requests_ < o_.least_samples || steps_ < o_.least_samples) return 0;
    return model_.service_rate(mean_g_, mean_step_);
  }
  /// Whether more arrives than can be served; with hysteresis, so it must be asked now and then.
  bool overloaded() {
    const double mu = service_rate();
    if (mu > 0) alarm_ = arrival_rate() > mu * (alarm_ ? o_.clear : o_.raise);
    return alarm_;
  }

 private:
  StabilityModel model_;
  MonitorOptions o_;
  std::uint64_t arrivals_ = 0;
  Nanoseconds last_ = 0;
  double gap_ = 0, mean_g_ = 0, mean_step_ = 0, requests_ = 0, steps_ = 0;
  bool alarm_ = false;
};

}  // namespace decant::scheduling

#endif
