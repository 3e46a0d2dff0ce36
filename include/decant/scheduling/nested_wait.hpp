// decant: Nested WAIT (arXiv 2504.11320): thresholds where the length of an answer is not known. Levels L_1 < ... < L_m
// cut generation into segments; who has generated L_k tokens and is not done waits, with its keys and values, until
// enough others wait there, and segment k runs only with all segments before it. The queue before a segment stays below
// c_k with probability 1 - delta over a horizon T, which bounds memory. From fragments of the paper: that only a prefix
// of segments runs, and the argument of the logarithm (a union bound), are our reading.
#ifndef DECANT_SCHEDULING_NESTED_WAIT_HPP
#define DECANT_SCHEDULING_NESTED_WAIT_HPP

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "linear_cost.hpp"
#include "scheduler.hpp"

namespace decant::scheduling {

struct WaitSegment {
  double rate = 1;              ///< Lambda_k: requests that reach this segment, per second
  std::uint32_t level = 1;      ///< L_k: it ends when so many tokens are generated
  std::uint32_t threshold = 1;  ///< n_k
  bool operator==(const WaitSegment&) const = default;
};

/// theta > 0 with n_before ln(1 - p + p e^theta) = theta n, where a part p of `n_before` requests comes per step and n
/// leave; infinite where no more than n can come. ArgumentError: p outside (0, 1], or p n_before >= n: the queue drifts.
inline double queue_exponent(double p, std::uint32_t n_before, std::uint32_t n) {
  constexpr auto where = "scheduling::queue_exponent";
  require(p > 0 && p <= 1, where, "p", "a number in (0, 1]", p);
  require(p * n_before < n, where, "n", "more than p * n_before", n);
  if (n_before <= n) return HUGE_VAL;
  const auto excess = [&](double theta) { return n_before * (theta + std::log((1 - p) * std::exp(-theta) + p)) - theta * n; };
  double low = 0, high = 1;
  while (excess(high) < 0) high *= 2;
  for (int i = 0; i < 200 && low < high; ++i) {
    const double middle = (low + high) / 2;
    (excess(middle) < 0 ? low : high) = middle;
  }
  return high;
}

struct NestedWaitBounds {
  std::vector<double> exponents;  ///< theta_k, of segments 2 ..
  std::vector<double> queues;     ///< c_k
  double resident = 0;            ///< M^pi: tokens held within segments, at most
  double memory = 0;              ///< with the queues
};

/// For prompts of at most `prompt` tokens, over `seconds`, with probability 1 - delta. ArgumentError: levels not
/// ascending, thresholds under which a queue drifts, delta outside (0, 1).
inline NestedWaitBounds nested_wait_bounds(View<const WaitSegment, 1> segments, std::uint32_t prompt,
                                           const LinearCost& cost, double seconds, double delta) {
  constexpr auto where = "scheduling::nested_wait_bounds";
  require(delta > 0 && delta < 1, where, "delta", "a number in (0, 1)", delta);
  require(cost.base > 0, where, "cost.base", "at least 1 ns", cost.base);
  NestedWaitBounds out;
  const index_t m = segments.extent(0);
  const double steps = 1 + seconds / (static_cast<double>(cost.base) * 1e-9);
  std::uint32_t before = 0;
  for (index_t k = 0; k < m; ++k) {
    const WaitSegment& s = segments[k];
    require(s.level > before, where, "segments.level", "ascending levels", s.level);
    const double length = s.level - before;
    out.resident += s.threshold * length * (prompt + before + (length - 1) / 2);
    if (k > 0) {
      const double theta = queue_exponent(s.rate / segments[k - 1].rate, segments[k - 1].threshold, s.threshold);
      out.exponents.push_back(theta);
      out.queues.push_back(s.threshold + std::log(static_cast<double>(m - 1) * steps / delta) / theta);
      out.memory += (prompt + static_cast<double>(before)) * out.queues.back();
    }
    before = s.level;
  }
  out.memory += out.resident;
  return out;
}

/// A step may be left empty until more requests arrive. Those that generate more than the last level stay in the last
/// segment.
class NestedWait : public DeafScheduler {
 public:
  /// ArgumentError: no segment, levels not ascending, a threshold of 0.
  explicit NestedWait(std::vector<WaitSegment> segments) : segments_(std::move(segments)), queued_(segments_.size()) {
    constexpr auto where = "scheduling::NestedWait";
    require(!segments_.empty(), where, "segments", "at least one", "none");
    std::uint32_t before = 0;
    for (const WaitSegment& s : segments_) {
      require(s.level > before, where, "segments.level", "ascending levels", s.level);
      require(s.threshold > 0, where, "segments.threshold", "at least 1", s.threshold);
      before = s.level;
    }
  }

  /// Requests at the entry of each segment when the last step was planned.
  const std::vector<std::uint32_t>& queued() const { return queued_; }

  /// O(running segments).
  template <class Memory>
  void schedule(Batch<Memory>& batch) {
    std::fill(queued_.begin(), queued_.end(), 0u);
    queued_[0] = batch.waiting_count();
    const auto running = batch.running();
    for (index_t i = 0; i < running.extent(0); ++i) {
      const Place p = place(batch[running[i]]);
      if (p.entry) ++queued_[p.segment];
    }
    std::size_t segments = 0;
    while (segments < segments_.size() && queued_[segments] >= segments_[segments].threshold) ++segments;
    if (segments == 0) return;
    taken_.assign(segments, 0);
    for (std::uint32_t i = 0; i < batch.running_count() && batch.budget_left() > 0;) {
      const RequestId id = batch.running()[i];
      const Place p = place(batch[id]);
      const bool stays = p.segment >= segments || (p.entry && taken_[p.segment] == segments_[p.segment].threshold);
      if (stays) {
        ++i;
      } else if (batch.plan(id, (std::min)(batch.need(id), batch.budget_left()))) {
        if (p.entry) ++taken_[p.segment];
        ++i;
      } else {  // memory is smaller than the bound
        batch.preempt(batch.running()[batch.running().extent(0) - 1]);
      }
    }
    for (std::uint32_t n = 0; n < segments_[0].threshold && batch.waiting_count() > 0; ++n) {
      if (batch.full() || batch.budget_left() == 0) return;
      const RequestId id = batch.first_waiting();
      if (!batch.plan(id, (std::min)(batch.need(id), batch.budget_left()))) return;
    }
  }

 private:
  struct Place {
    std::size_t segment;
    bool entry;  // waits before it
  };
  Place place(const RequestState& r) const {
    std::size_t k = 0;
    while (k + 1 < segments_.size() && r.generated >= segments_[k].level) ++k;
    return {k, k > 0 && r.generated == segments_[k - 1].level};
  }

  std::vector<WaitSegment> segments_;
  std::vector<std::uint32_t> queued_, taken_;
};

static_assert(Scheduler<NestedWait>);

}  // namespace decant::scheduling

#endif
