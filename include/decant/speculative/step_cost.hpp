// decant: what a step costs, as a function of the draft's length, the batch and the cached tokens: the other half of a
// choice of length. CostTable holds measured times; Roofline is the model for where nothing was measured; CostMeter
// makes a table out of a running engine's steps. Ours. Times are in any unit, the same throughout.
#ifndef DECANT_SPECULATIVE_STEP_COST_HPP
#define DECANT_SPECULATIVE_STEP_COST_HPP

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "../core/error.hpp"
#include "../core/view.hpp"
#include "control.hpp"

namespace decant::speculative {

/// seconds(): of a whole step, draft and verification, of `batch` requests that draft gamma tokens each behind
/// `context` cached ones. empty(): nothing is known, seconds() must not be called.
template <class C>
concept StepCost = requires(const C& c, std::int32_t gamma, std::int32_t batch, index_t context) {
  { c.seconds(gamma, batch, context) } -> std::convertible_to<double>;
  { c.empty() } -> std::convertible_to<bool>;
};

/// Measured times per batch and length, linear in between. Beyond the longest length and the largest batch the last
/// segment goes on (never falling), below the shortest length the first one does, below the smallest batch that counts.
class CostTable {
 public:
  /// Knows nothing.
  CostTable() = default;

  /// One batch size, or any: seconds[i] with lengths[i], ascending.
  CostTable(std::vector<std::int32_t> lengths, std::vector<double> seconds)
      : CostTable({1}, std::move(lengths), std::move(seconds)) {}

  /// seconds: [batches][lengths], both ascending.
  CostTable(std::vector<std::int32_t> batches, std::vector<std::int32_t> lengths, std::vector<double> seconds)
      : batches_(std::move(batches)), lengths_(std::move(lengths)), seconds_(std::move(seconds)) {
    constexpr const char* where = "speculative::CostTable";
    ascending(batches_, 1, "batches");
    ascending(lengths_, 0, "lengths");
    require_equal(static_cast<index_t>(seconds_.size()), static_cast<index_t>(batches_.size() * lengths_.size()), where,
                  "seconds");
    for (const double t : seconds_) require(t > 0 && t < 1e300, where, "seconds", "positive, finite times", t);
    for (std::size_t b = 0; b < batches_.size(); ++b) {
      require(row(b, 0) > 0, where, "seconds", "times that stay positive down to no draft", row(b, 0));
    }
  }

  /// verify + draft * g.
  static CostTable affine(double verify, double draft) { return {{0, 1}, {verify, verify + draft}}; }

  /// From a run that was measured against decoding without a draft: a length k that emitted tokens[k] per step and was
  /// speedup[k] times as fast costs tokens / speedup plain steps. No draft costs 1 and is added.
  static CostTable relative(const std::vector<std::int32_t>& lengths, const std::vector<double>& tokens,
                            const std::vector<double>& speedup) {
    constexpr const char* where = "speculative::CostTable::relative";
    require_equal(static_cast<index_t>(tokens.size()), static_cast<index_t>(lengths.size()), where, "tokens");
    require_equal(static_cast<index_t>(speedup.size()), static_cast<index_t>(lengths.size()), where, "speedup");
    std::vector<std::int32_t> all{0};
    std::vector<double> seconds{1.0};
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      all.push_back(lengths[i]);
      seconds.push_back(tokens[i] / speedup[i]);
    }
    return {std::move(all), std::move(seconds)};
  }

  bool empty() const { return seconds_.empty(); }

  double seconds(std::int32_t gamma, std::int32_t batch = 1, index_t /*context*/ = 0) const {
    require(!empty(), "speculative::CostTable::seconds", "this", "a table", "an empty one");
    if (batches_.size() == 1 || batch <= batches_[0]) return row(0, gamma);
    const std::size_t b = segment(batches_, batch);
    return along(batches_[b], row(b, gamma), batches_[b + 1], row(b + 1, gamma), batch);
  }

 private:
  static void ascending(const std::vector<std::int32_t>& knots, std::int32_t least, const char* argument) {
    constexpr const char* where = "speculative::CostTable";
    require(!knots.empty(), where, argument, "at least one", 0);
    require(knots[0] >= least, where, argument, least, knots[0]);
    for (std::size_t i = 1; i < knots.size(); ++i) {
      require(knots[i] > knots[i - 1], where, argument, "ascending numbers", knots[i]);
    }
  }
  static std::size_t segment(const std::vector<std::int32_t>& knots, std::int32_t x) {
    std::size_t i = 0;
    while (i + 2 < knots.size() && x >= knots[i + 1]) ++i;
    return i;
  }
  static double along(std::int32_t x0, double y0, std::int32_t x1, double y1, std::int32_t x) {
    if (x > x1 && y1 < y0) return y1;
    return y0 + (y1 - y0) * (static_cast<double>(x) - x0) / (static_cast<double>(x1) - x0);
  }
  double row(std::size_t batch, std::int32_t gamma) const {
    const double* const t = seconds_.data() + batch * lengths_.size();
    if (lengths_.size() == 1) return t[0];
    const std::size_t i = segment(lengths_, gamma);
    return along(lengths_[i], t[i], lengths_[i + 1], t[i + 1], gamma);
  }

  std::vector<std::int32_t> batches_, lengths_;
  std::vector<double> seconds_;
};

/// A step that is bound by reading weights and cache, or by arithmetic, whichever takes longer.
struct Roofline {
  double weight_bytes = 0;
  double cache_bytes_per_token = 0;
  double parameters = 0;
  double bytes_per_second = 0;
  double flops = 0;
  double overhead_seconds = 0;  ///< of a step, whatever it does
  double draft_seconds = 0;     ///< per drafted token
  bool operator==(const Roofline&) const = default;

  bool empty() const { return !(weight_bytes > 0 && bytes_per_second > 0 && flops > 0); }
  double seconds(std::int32_t gamma, std::int32_t batch = 1, index_t context = 0) const {
    const double b = batch;
    const double read = (weight_bytes + b * static_cast<double>(context) * cache_bytes_per_token) / bytes_per_second;
    const double compute = 2 * parameters * b * (gamma + 1.0) / flops;
    return (read > compute ? read : compute) + overhead_seconds + draft_seconds * gamma;
  }
};

/// Least squares of base + slope * g over the steps that it was shown, the older ones counting less and less.
class CostMeter {
 public:
  explicit CostMeter(double decay = 0.99) : decay_(decay) {
    require(decay > 0 && decay <= 1, "speculative::CostMeter", "decay", "a number in (0, 1]", decay);
  }

  /// Steps that were not measured (seconds of 0) are left out.
  void observe(const StepOutcome& outcome) {
    if (!(outcome.seconds > 0 && outcome.seconds < 1e300)) return;
    const double g = outcome.drafted;
    const double t = outcome.seconds;
    const double now[5] = {1, g, g * g, t, g * t};
    for (int i = 0; i < 5; ++i) sums_[i] = decay_ * sums_[i] + now[i];
  }

  /// Empty until steps of two different lengths were seen.
  CostTable table() const {
    const double n = sums_[0];
    const double spread = n * sums_[2] - sums_[1] * sums_[1];
    if (!(spread > 1e-9 * n * n)) return {};
    double slope = (n * sums_[4] - sums_[1] * sums_[3]) / spread;
    double base = (sums_[3] - slope * sums_[1]) / n;
    if (slope < 0) {
      slope = 0;
      base = sums_[3] / n;
    }
    if (!(base > 0)) {  // through the origin: as little as a draft-free step can be told to take
      slope = sums_[4] / sums_[2];
      base = 1e-3 * slope;
    }
    return CostTable::affine(base, slope);
  }

 private:
  double decay_;
  double sums_[5] = {};  // of 1, g, g^2, t, g t
};

static_assert(StepCost<CostTable> && StepCost<Roofline>);

}  // namespace decant::speculative

#endif
