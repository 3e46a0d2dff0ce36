// decant: TpPlanner, when to change the tensor parallelism of a synchronous rollout whose batch shrinks to a long tail
// (PAT, arXiv 2605.23945): from many narrow replicas to few wide ones, once, when what the tail saves exceeds what the
// switch costs. What becomes of each request's keys and values then is in kv_moves.hpp. The decision and its parts are the
// paper's; every formula here is our reading [recon].
#ifndef DECANT_SCHEDULING_TP_PLANNER_HPP
#define DECANT_SCHEDULING_TP_PLANNER_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "../core/error.hpp"
#include "request.hpp"

namespace decant::scheduling {

/// Decode step times that were measured: one grid of (batch per replica, mean context) for each degree. Between points
/// bilinear in (log2 batch, context), beyond them as at the border; a measurement that falls where it should not is
/// raised to its neighbour's.
class StepProfile {
 public:
  /// batches and contexts ascending, at least 1 each; seconds [batches][contexts] row by row.
  StepProfile(std::vector<std::uint32_t> batches, std::vector<std::uint32_t> contexts, std::vector<double> seconds)
      : batches_(std::move(batches)), contexts_(std::move(contexts)), seconds_(std::move(seconds)) {
    constexpr auto where = "scheduling::StepProfile";
    require(ascending(batches_), where, "batches", "at least one, ascending from 1", batches_.size());
    require(ascending(contexts_), where, "contexts", "at least one, ascending from 1", contexts_.size());
    require(seconds_.size() == batches_.size() * contexts_.size(), where, "seconds", "a time for each pair",
            seconds_.size());
    for (std::size_t i = 0; i < seconds_.size(); ++i) {
      require(seconds_[i] > 0 && seconds_[i] < 1e9, where, "seconds", "positive, finite times", seconds_[i]);
      const std::size_t row = i / contexts_.size(), column = i % contexts_.size();
      if (row > 0) seconds_[i] = (std::max)(seconds_[i], seconds_[i - contexts_.size()]);
      if (column > 0) seconds_[i] = (std::max)(seconds_[i], seconds_[i - 1]);
    }
  }

  /// O(log of the grid). A batch of 0: 0.
  double operator()(double batch, double context) const {
    if (!(batch > 0)) return 0;
    const auto [row, down] = place(batches_, batch, [](double x) { return std::log2(x); });
    const auto [column, right] = place(contexts_, context, [](double x) { return x; });
    const auto at = [&](std::size_t r, std::size_t c) {
      return seconds_[(std::min)(r, batches_.size() - 1) * contexts_.size() + (std::min)(c, contexts_.size() - 1)];
    };
    const double upper = at(row, column) + right * (at(row, column + 1) - at(row, column));
    const double lower = at(row + 1, column) + right * (at(row + 1, column + 1) - at(row + 1, column));
    return upper + down * (lower - upper);
  }

 private:
  static bool ascending(const std::vector<std::uint32_t>& grid) {
    for (std::size_t i = 0; i < grid.size(); ++i) {
      if (grid[i] <= (i == 0 ? 0 : grid[i - 1])) return false;
    }
    return !grid.empty();
  }
  template <class Scale>
  static std::pair<std::size_t, double> place(const std::vector<std::uint32_t>& grid, double x, const Scale& scale) {
    if (x <= grid.front()) return {0, 0};
    if (x >= grid.back()) return {grid.size() - 1, 0};
    const auto above = std::upper_bound(grid.begin(), grid.end(), x);
    const double low = scale(*(above - 1)), high = scale(*above);
    return {static_cast<std::size_t>(above - grid.begin()) - 1, (scale(x) - low) / (high - low)};
  }

  std::vector<std::uint32_t> batches_, contexts_;
  std::vector<double> seconds_;
};

/// How many tokens outputs have, from those that were seen: S(x), the share longer than x tokens (Kaplan, Meier; outputs
/// that were cut off at the limit count as at risk until there).
class SurvivalModel {
 public:
  struct Output {
    std::uint32_t tokens = 0;
    bool ended = true;  ///< false: cut off
  };

  /// ArgumentError: no outputs.
  explicit SurvivalModel(std::vector<Output> outputs, std::uint32_t limit) : limit_(limit) {
    require(!outputs.empty(), "scheduling::SurvivalModel", "outputs", "at least one", "none");
    std::sort(outputs.begin(), outputs.end(), [](const Output& a, const Output& b) { return a.tokens < b.tokens; });
    double share = 1;
    for (std::size_t i = 0; i < outputs.size();) {
      const double at_risk = static_cast<double>(outputs.size() - i);
      const std::uint32_t tokens = outputs[i].tokens;
      double ended = 0;
      for (; i < outputs.size() && outputs[i].tokens == tokens; ++i) ended += outputs[i].ended;
      share *= 1 - ended / at_risk;
      steps_.push_back({tokens, share});
    }
  }

  /// S(x): the share of outputs of more than x tokens; 0 from the limit on. O(log n).
  double beyond(std::uint32_t x) const {
    if (x >= limit_) return 0;
    const auto above =
        std::upper_bound(steps_.begin(), steps_.end(), x, [](std::uint32_t t, const Step& s) { return t < s.tokens; });
    return above == steps_.begin() ? 1 : (above - 1)->share;
  }
  /// That an output which has `tokens` goes on for `more`; 1 where nothing so long was seen, up to the limit.
  double goes_on(std::uint32_t tokens, std::uint32_t more) const {
    if (tokens >= limit_ || more >= limit_ - tokens) return 0;
    const double now = beyond(tokens);
    return now > 0 ? beyond(tokens + more) / now : 1;
  }
  std::uint32_t limit() const { return limit_; }

 private:
  struct Step {
    std::uint32_t tokens;
    double share;
  };
  std::uint32_t limit_;
  std::vector<Step> steps_;
};

/// A request of the rollout.
struct LiveRequest {
  std::uint32_t context = 0;    ///< tokens of keys and values
  std::uint32_t generated = 0;
};

/// A degree that the engine can run at.
struct TpDegree {
  std::uint32_t degree = 1;  ///< p; the replicas are the devices / p
  StepProfile profile;
};

struct SwitchCost {
  double weights = 0, kv = 0, graphs = 0, groups = 0, other = 0;  ///< seconds
  double seconds() const { return weights + kv + graphs + groups + other; }
};

struct TpDecision {
  std::uint32_t degree = 1;  ///< to run at from now on
  bool change = false;
  double stay_seconds = 0;   ///< the rest of the rollout without a change
  double best_seconds = 0;   ///< with the best one, its cost included
};

class TpPlanner {
 public:
  /// margin: the share of stay_seconds that a change must save. ArgumentError: no degree, or one that does not divide
  /// the devices.
  TpPlanner(std::uint32_t devices, std::vector<TpDegree> degrees, SurvivalModel survival, double margin = 0.05)
      : devices_(devices), degrees_(std::move(degrees)), survival_(std::move(survival)), margin_(margin) {
    constexpr auto where = "scheduling::TpPlanner";
    require(!degrees_.empty(), where, "degrees", "at least one", "none");
    require(margin >= 0 && margin < 1, where, "margin", "from 0 to below 1", margin);
    for (const TpDegree& d : degrees_) {
      require(d.degree >= 1 && devices % d.degree == 0, where, "degrees", "divisors of the devices", d.degree);
    }
  }

  /// The expected time until all have ended, at one degree: step times summed over the expected batch, with trapezoids
  /// on a grid of instants that widens by an eighth. O(requests * log of the longest rest).
  double rest(const std::vector<LiveRequest>& live, std::uint32_t degree) const {
    double sum = 0;
    for (const double seconds : segments(live, degree)) sum += seconds;
    return sum;
  }

  /// To be asked now and then (every 64 steps); `cost(q)` is the SwitchCost of going from `degree` to q. A change is
  /// advised when it saves more than the margin and waiting would not save more: the paper compares with staying alone
  /// (`look_ahead` false), which changes too early. Of equal ones the first degree.
  template <class Cost>
  TpDecision decide(const std::vector<LiveRequest>& live, std::uint32_t degree, const Cost& cost,
                    bool look_ahead = true) const {
    const std::vector<double> stay = segments(live, degree);
    TpDecision out;
    out.degree = degree;
    for (const double seconds : stay) out.stay_seconds += seconds;
    out.best_seconds = out.stay_seconds;
    double later = out.stay_seconds;  // the best that can be had by not changing now
    for (const TpDegree& d : degrees_) {
      if (d.degree == degree) continue;
      const std::vector<double> other = segments(live, d.degree);
      double seconds = cost(d.degree).seconds();
      for (const double x : other) seconds += x;
      if (seconds < out.best_seconds) {
        out.best_seconds = seconds;
        out.degree = d.degree;
      }
      for (std::size_t i = 0; look_ahead && i < stay.size(); ++i) {
        seconds += stay[i] - other[i];
        later = (std::min)(later, seconds);
      }
    }
    out.change = out.stay_seconds - out.best_seconds > margin_ * out.stay_seconds && out.best_seconds <= later;
    if (!out.change) out.degree = degree;
    return out;
  }

 private:
  // rest(), interval by interval; the intervals are the same at every degree.
  std::vector<double> segments(const std::vector<LiveRequest>& live, std::uint32_t degree) const {
    const StepProfile& profile = find(degree).profile;
    const double replicas = devices_ / degree;
    std::uint32_t longest = 0;
    double context = 0;
    for (const LiveRequest& r : live) {
      longest = (std::max)(longest, survival_.limit() - (std::min)(survival_.limit(), r.generated));
      context += r.context;
    }
    std::vector<double> out;
    if (longest == 0) return out;
    context /= static_cast<double>(live.size());
    const auto step = [&](std::uint32_t after) {
      double batch = 0, none = 1;
      for (const LiveRequest& r : live) {
        const double p = survival_.goes_on(r.generated, after);
        batch += p;
        none *= 1 - p;
      }
      // A step runs while at least one request does.
      return (1 - none) * profile((std::max)(std::ceil(batch / replicas - 1e-9), 1.0), context + after);
    };
    double left = step(0);
    for (std::uint32_t begin = 0; begin < longest;) {
      const std::uint32_t end = (std::min)(longest, begin + (std::max)(begin / 8, std::uint32_t{1}));
      const double right = end < longest ? step(end) : 0;
      out.push_back(end - begin == 1 ? left : (end - begin) * (left + right) / 2);
      left = right;
      begin = end;
    }
    return out;
  }

  const TpDegree& find(std::uint32_t degree) const {
    for (const TpDegree& d : degrees_) {
      if (d.degree == degree) return d;
    }
    ::decant::detail::fail_argument("scheduling::TpPlanner", "degree", "one that has a profile", degree);
  }

  std::uint32_t devices_;
  std::vector<TpDegree> degrees_;
  SurvivalModel survival_;
  double margin_;
};

}  // namespace decant::scheduling

#endif
