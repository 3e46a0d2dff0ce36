// decant: WAIT, batching by thresholds for requests whose lengths are known (arXiv 2504.11320): a type of request takes
// part in a step only if enough of it waits for prefill, so that every step is as full as the fluid optimum asks and
// memory has a bound that no arrivals can break: sum_j n_j o_j (s_j + (o_j - 1) / 2). Nothing is evicted. Steps cost
// d0 + d1 times the tokens held by the requests in them. The formulas are re-derived from summaries of the paper, which
// counts one step more per request (its o is our o - 1); the choice of thresholds is ours.
#ifndef DECANT_SCHEDULING_WAIT_HPP
#define DECANT_SCHEDULING_WAIT_HPP

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "linear_cost.hpp"
#include "scheduler.hpp"

namespace decant::scheduling {

/// Requests of one kind.
struct WaitType {
  double rate = 1;           ///< lambda: per second
  std::uint32_t prompt = 1;  ///< s
  std::uint32_t output = 1;  ///< o: steps that it takes part in
  std::uint32_t threshold = 1;  ///< n
  bool operator==(const WaitType&) const = default;

  /// Tokens held, summed over its steps.
  constexpr double area() const { return output * (prompt + (output - 1) / 2.0); }
};

/// The state in which as much of each type ends as arrives, were requests divisible.
struct FluidEquilibrium {
  bool stable = false;
  double step_seconds = 0;  ///< Delta*
  double memory = 0;        ///< M*: tokens
  bool operator==(const FluidEquilibrium&) const = default;
};

inline FluidEquilibrium fluid_equilibrium(View<const WaitType, 1> types, const LinearCost& cost) {
  double load = 0;
  for (index_t j = 0; j < types.extent(0); ++j) load += types[j].rate * types[j].area();
  const double left = 1 - static_cast<double>(cost.picoseconds_per_token) * 1e-12 * load;
  if (left <= 0) return {};
  const double step = static_cast<double>(cost.base) * 1e-9 / left;
  return {true, step, step * load};
}

/// M^pi: the most tokens that WAIT ever holds.
inline double wait_memory(View<const WaitType, 1> types) {
  double memory = 0;
  for (index_t j = 0; j < types.extent(0); ++j) memory += types[j].threshold * types[j].area();
  return memory;
}

namespace detail {

/// Seconds of a step that holds wait_memory().
inline double full_step(View<const WaitType, 1> types, const LinearCost& cost) {
  return static_cast<double>(cost.base) * 1e-9 +
         static_cast<double>(cost.picoseconds_per_token) * 1e-12 * wait_memory(types);
}

}  // namespace detail

/// n_j >= lambda_j (d0 + d1 M^pi) for all types: sufficient for stability.
inline bool wait_stable(View<const WaitType, 1> types, const LinearCost& cost) {
  const double step = detail::full_step(types, cost);
  for (index_t j = 0; j < types.extent(0); ++j) {
    if (types[j].threshold < types[j].rate * step) return false;
  }
  return true;
}

/// The smallest thresholds that are sufficient for stability, rising from the fluid optimum. ArgumentError: the load
/// exceeds what any thresholds could serve.
inline std::vector<WaitType> with_thresholds(std::vector<WaitType> types, const LinearCost& cost) {
  const FluidEquilibrium fluid = fluid_equilibrium({types.data(), static_cast<index_t>(types.size())}, cost);
  require(fluid.stable, "scheduling::with_thresholds", "types", "a load below 1", "more");
  for (WaitType& t : types) t.threshold = static_cast<std::uint32_t>(std::ceil(t.rate * fluid.step_seconds));
  for (bool raised = true; raised;) {
    raised = false;
    const double step = detail::full_step({types.data(), static_cast<index_t>(types.size())}, cost);
    for (WaitType& t : types) {
      const auto n = static_cast<std::uint32_t>(std::ceil(t.rate * step));
      raised = raised || n > t.threshold;
      t.threshold = (std::max)(n, t.threshold);
    }
  }
  return types;
}

struct WaitOptions {
  /// A type of which somebody has waited so long takes part however few there are (ours); the default: never.
  Nanoseconds patience = ~Nanoseconds{0};
  bool operator==(const WaitOptions&) const = default;
};

/// A step may be left empty until more requests arrive; an engine asks again at every arrival (and, with a patience,
/// when it runs out). A request counts as the first type that is at least as long in both lengths, or as the last type.
class Wait : public DeafScheduler {
 public:
  /// ArgumentError: no type, or a threshold of 0.
  explicit Wait(std::vector<WaitType> types, const WaitOptions& options = {})
      : types_(std::move(types)), options_(options), present_(types_.size()), admitted_(types_.size()) {
    require(!types_.empty(), "scheduling::Wait", "types", "at least one", "none");
    for (const WaitType& t : types_) {
      require(t.threshold > 0, "scheduling::Wait", "types.threshold", "at least 1", t.threshold);
    }
  }

  const std::vector<WaitType>& types() const { return types_; }

  /// O((running + waiting) types).
  template <class Memory>
  void schedule(Batch<Memory>& batch) {
    std::fill(present_.begin(), present_.end(), 0u);
    for (RequestId id = batch.first_waiting(); id != no_request; id = batch.next_waiting(id)) {
      const RequestInfo& info = batch[id].info;
      const std::size_t j = type(info);
      ++present_[j];
      if (batch.now() - (std::min)(batch.now(), info.arrival) >= options_.patience) {
        present_[j] = (std::max)(present_[j], types_[j].threshold);
      }
    }
    const auto eligible = [&](std::size_t j) { return present_[j] >= types_[j].threshold; };
    for (std::uint32_t i = 0; i < batch.running_count() && batch.budget_left() > 0;) {
      const RequestId id = batch.running()[i];
      if (!eligible(type(batch[id].info)) ||
          batch.plan(id, (std::min)(batch.need(id), batch.budget_left()))) {
        ++i;
      } else {  // memory is smaller than wait_memory()
        batch.preempt(batch.running()[batch.running().extent(0) - 1]);
      }
    }
    std::fill(admitted_.begin(), admitted_.end(), 0u);
    for (RequestId id = batch.first_waiting(), next; id != no_request; id = next) {
      next = batch.next_waiting(id);
      const std::size_t j = type(batch[id].info);
      if (!eligible(j) || admitted_[j] == types_[j].threshold) continue;
      if (batch.full() || batch.budget_left() == 0) return;
      if (!batch.plan(id, (std::min)(batch.need(id), batch.budget_left()))) return;
      ++admitted_[j];
    }
  }

 private:
  std::size_t type(const RequestInfo& info) const {
    std::size_t j = 0;
    while (j + 1 < types_.size() && (types_[j].prompt < info.prompt || types_[j].output < info.output.expected)) ++j;
    return j;
  }

  std::vector<WaitType> types_;
  WaitOptions options_;
  std::vector<std::uint32_t> present_, admitted_;  // per type: waiting, admitted in this step
};

static_assert(Scheduler<Wait>);

}  // namespace decant::scheduling

#endif
