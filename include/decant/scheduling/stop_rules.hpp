// decant: when Feather stops admitting. ChunkLossRule and UcbStop are the paper's rule and bandit (arXiv 2605.06046) with
// the constants of its authors' code, for the paper prints none; ModelStop is ours: it asks a step cost which batch is
// faster, and should be trusted only where a gain of reading a shared prefix once was measured (a factor of 2 or more).
// None of them is never worse than first come, first served: see the benchmark.
#ifndef DECANT_SCHEDULING_STOP_RULES_HPP
#define DECANT_SCHEDULING_STOP_RULES_HPP

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "feather.hpp"
#include "roofline.hpp"

namespace decant::scheduling {

/// Joins what keeps almost all of the shared prefix; else only while the batch is small. In chunks of 50 tokens.
struct ChunkLossRule {
  std::uint32_t loss = 5;         ///< chunks that may be lost
  std::uint32_t loss_if_many = 7; ///< where `many` waiting requests share with the candidate
  std::uint32_t many = 10;
  std::uint32_t most_floor = 10;  ///< of the batch that grows whatever is lost
  bool operator==(const ChunkLossRule&) const = default;

  void begin_step() { floor_ = 1; }
  bool add(const AdmissionState& s) {
    const std::uint32_t lost = s.candidate.before - s.candidate.after;
    if (lost <= (s.candidate.sharing >= many ? loss_if_many : loss)) {
      floor_ = (std::min)(floor_ + 1, most_floor);
      return true;
    }
    return s.batch < floor_;
  }
  void learn(const StepResult&) {}

 private:
  std::uint32_t floor_ = 1;
};
static_assert(StopRule<ChunkLossRule>);

/// How a bandit's state is told apart. code: batch and sharing in steps of 4 up to 40, chunks lost up to 5; exponential,
/// as the paper says without figures: all three by powers of two.
enum class UcbBins : std::uint8_t { code, exponential };

struct UcbOptions {
  double exploration = 200;  ///< c, in tokens per second; 0.2 with `normalize`
  bool normalize = false;    ///< ours: mean rewards over the largest reward so far
  UcbBins bins = UcbBins::code;
  bool operator==(const UcbOptions&) const = default;
};

/// A bandit over (batch size, chunks lost, requests that share), rewarded with the decode throughput of the step: all
/// decisions of a step get the same. Ties join.
class UcbStop {
 public:
  UcbStop() = default;
  explicit UcbStop(const UcbOptions& options) : o_(options) {}

  void begin_step() { pending_.clear(); }

  bool add(const AdmissionState& s) {
    const PrefixCandidate& c = s.candidate;
    if (c.before == c.after && c.before > 0) return true;
    const std::uint32_t state = (bin(s.batch) * 6 + lost_bin(c.before - c.after)) * 11 + bin(c.sharing);
    const bool join = value(2 * state) >= value(2 * state + 1);
    pending_.push_back(2 * state + (join ? 0 : 1));
    return join;
  }

  void learn(const StepResult& result) {
    if (result.duration == 0) return;
    const double reward = static_cast<double>(result.requests) * 1e9 / static_cast<double>(result.duration);
    largest_ = (std::max)(largest_, reward);
    for (const std::uint32_t arm : pending_) {
      Arm& a = arms_[arm];
      ++a.count;
      a.mean += (reward - a.mean) / static_cast<double>(a.count);
      ++decisions_;
    }
    pending_.clear();
  }

 private:
  struct Arm {
    std::uint64_t count = 0;
    double mean = 0;
  };
  static constexpr std::uint32_t states = 11 * 6 * 11;

  std::uint32_t bin(std::uint32_t n) const {
    return (std::min)(o_.bins == UcbBins::code ? n / 4 : static_cast<std::uint32_t>(std::bit_width(n)), 10u);
  }
  std::uint32_t lost_bin(std::uint32_t chunks) const {
    return (std::min)(o_.bins == UcbBins::code ? chunks : static_cast<std::uint32_t>(std::bit_width(chunks)), 5u);
  }
  double value(std::uint32_t arm) const {
    const Arm& a = arms_[arm];
    if (a.count == 0) return 1e300;
    const double mean = o_.normalize ? a.mean / largest_ : a.mean;
    return mean + o_.exploration * std::sqrt(std::log(static_cast<double>(decisions_)) / static_cast<double>(a.count));
  }

  UcbOptions o_{};
  std::vector<Arm> arms_ = std::vector<Arm>(2 * states);
  std::vector<std::uint32_t> pending_;  // arms pulled in this step
  std::uint64_t decisions_ = 0;
  double largest_ = 0;
};
static_assert(StopRule<UcbStop>);

/// Joins where a step cost says that the batch with all that wait would decode no slower, in tokens per second, than the
/// batch as it is; a batch that shares nothing is drained where the candidate's own group would be faster by itself.
template <StepCost Cost = Roofline>
class ModelStop {
 public:
  ModelStop() = default;
  explicit ModelStop(Cost cost) : cost_(std::move(cost)) {}

  void begin_step() {}
  void learn(const StepResult&) {}

  /// O(requests that may run).
  bool add(const AdmissionState& s) {
    const PrefixCandidate& c = s.candidate;
    if (c.before > 0) {
      if (c.before - c.after <= 1) return true;
      const std::uint32_t all = (std::min)(s.cap, s.batch + s.waiting);
      return rate(all, c.after * std::uint64_t{s.chunk}, s) >= rate(s.batch, c.before * std::uint64_t{s.chunk}, s);
    }
    if (s.shared_level == 0) return true;
    const std::uint32_t all = (std::min)(s.cap, s.batch + s.waiting), group = (std::min)(s.cap, s.shared_requests);
    return rate(all, 0, s) >= rate(group, s.shared_level * std::uint64_t{s.chunk}, s);
  }

 private:
  /// Tokens per nanosecond of n decodes at the batch's mean context whose first `shared` tokens are the same.
  double rate(std::uint32_t n, std::uint64_t shared, const AdmissionState& s) {
    const std::uint64_t context = (std::max)(s.mean_context, shared);
    shapes_.assign(n, StepShape{1, static_cast<std::uint32_t>(context)});
    PrefixSharing sharing;
    if (n > 1 && shared > 0) {
      sharing.repeated = sharing.tip = (n - 1) * shared;
      sharing.groups = 1;
      sharing.longest = static_cast<std::uint32_t>(shared);
    }
    const Nanoseconds time = cost_.step_ns({shapes_.data(), static_cast<index_t>(shapes_.size())}, sharing);
    return static_cast<double>(n) / static_cast<double>(time);
  }

  Cost cost_{};
  std::vector<StepShape> shapes_;
};
static_assert(StopRule<ModelStop<>>);

static_assert(Scheduler<PrefixHomogeneous<ChunkLossRule>>);
static_assert(Scheduler<PrefixHomogeneous<UcbStop>>);
static_assert(Scheduler<PrefixHomogeneous<ModelStop<>>>);

}  // namespace decant::scheduling

#endif
