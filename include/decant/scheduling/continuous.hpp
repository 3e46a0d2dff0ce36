// decant: Continuous<Order, Admission>, continuous batching with chunked prefill as vLLM's V1 scheduler does it: first
// the running requests in their order, then waiting ones while budget, slots and memory last. When a running request
// has no room the one admitted last is preempted. The order of the waiting list and a further condition for admission
// are parts of it: orders.hpp and memory_safe.hpp have them, and fcfs, sjf, mc-fcfs and mc-sf are aliases there.
// Exact with respect to a reference of the published algorithm (golden runs in the tests).
#ifndef DECANT_SCHEDULING_CONTINUOUS_HPP
#define DECANT_SCHEDULING_CONTINUOUS_HPP

#include <algorithm>
#include <cstdint>
#include <utility>

#include "scheduler.hpp"

namespace decant::scheduling {

/// First come, first served: the waiting list as it is, preempted requests first.
struct ByArrival {
  bool operator==(const ByArrival&) const = default;

  template <class Memory>
  void begin(const Batch<Memory>& batch) {
    next_ = batch.first_waiting();
  }
  /// The next candidate, without taking it; no_request: none is left.
  template <class Memory>
  RequestId peek(const Batch<Memory>&) const {
    return next_;
  }
  /// Leaves the candidate behind; called before it is admitted.
  template <class Memory>
  void pop(const Batch<Memory>& batch) {
    next_ = batch.next_waiting(next_);
  }

 private:
  RequestId next_ = no_request;
};

/// Admits whatever has room now.
struct WhileItFits {
  bool operator==(const WhileItFits&) const = default;

  template <class Memory>
  void begin(const Batch<Memory>&) {}
  template <class Memory>
  bool admits(const Batch<Memory>&, RequestId) {
    return true;
  }
};

/// Which running request gives way.
enum class Victim : std::uint8_t {
  last_admitted,
  lowest_priority,
  shortest,  ///< the least output that is known of: max(output.low, generated + 1)
};

struct ContinuousOptions {
  bool chunked_prefill = true;             ///< false: a prompt that exceeds what is left of the budget waits
  std::uint32_t long_prefill_threshold = 0;  ///< a running request gets at most so many tokens a step; 0: no bound
  Victim victim = Victim::last_admitted;
  bool skip = false;  ///< a request that Admission refuses is passed over; false: it holds up all behind it
  bool operator==(const ContinuousOptions&) const = default;
};

template <class Order = ByArrival, class Admission = WhileItFits>
class Continuous : public DeafScheduler {
 public:
  Continuous() = default;
  explicit Continuous(const ContinuousOptions& options, Order order = {}, Admission admission = {})
      : options_(options), order_(std::move(order)), admission_(std::move(admission)) {}

  Order& order() { return order_; }
  const Order& order() const { return order_; }

  /// O(running + admitted), and what the order costs.
  template <class Memory>
  void schedule(Batch<Memory>& batch) {
    if (continue_running(batch)) admit(batch);
  }

 private:
  /// False: somebody was preempted, and nobody is admitted in this step.
  template <class Memory>
  bool continue_running(Batch<Memory>& batch) {
    bool undisturbed = true;
    // A victim may stand before the request that needs room, so the position is found anew after a preemption.
    for (std::uint32_t i = 0; i < batch.running_count() && batch.budget_left() > 0;) {
      const RequestId id = batch.running()[i];
      bool gone = false;
      std::uint32_t tokens = (std::min)(batch.need(id), batch.budget_left());
      const std::uint32_t bound = options_.long_prefill_threshold;
      if (bound > 0) tokens = (std::min)(tokens, bound);
      while (!batch.plan(id, tokens)) {
        undisturbed = false;
        const RequestId out = victim(batch);
        const std::uint32_t next = position_after(batch, id, i);
        batch.preempt(out);
        gone = out == id;
        if (gone) {
          // The published scan ends here; where the shortest gives way, others behind it may well have room. And a step
          // is not left empty while others run.
          if (options_.victim != Victim::shortest && !batch.items().empty()) return false;
          i = next - 1;
          break;
        }
      }
      if (!gone) i = position_after(batch, id, i);
    }
    return undisturbed;
  }

  template <class Memory>
  static std::uint32_t position_after(const Batch<Memory>& batch, RequestId id, std::uint32_t at) {
    while (at >= batch.running_count() || batch.running()[at] != id) --at;
    return at + 1;
  }

  template <class Memory>
  RequestId victim(const Batch<Memory>& batch) const {
    const auto running = batch.running();
    RequestId out = running[running.extent(0) - 1];
    if (options_.victim == Victim::last_admitted) return out;
    for (index_t i = 0; i < running.extent(0); ++i) {
      const RequestState& a = batch[running[i]];
      const RequestState& b = batch[out];
      const std::int64_t urgent_a = urgency(a), urgent_b = urgency(b);
      if (urgent_a != urgent_b ? urgent_a < urgent_b : earlier(b.info, a.info)) out = running[i];
    }
    return out;
  }

  std::int64_t urgency(const RequestState& r) const {
    if (options_.victim == Victim::lowest_priority) return -std::int64_t{r.info.priority};
    return r.least();
  }

  template <class Memory>
  void admit(Batch<Memory>& batch) {
    if (batch.full() || batch.budget_left() == 0 || batch.waiting_count() == 0) return;
    order_.begin(batch);
    admission_.begin(batch);
    while (batch.budget_left() > 0 && !batch.full()) {
      const RequestId id = order_.peek(batch);
      if (id == no_request) return;
      const std::uint32_t need = batch.need(id);
      if (need > batch.budget_left() && !options_.chunked_prefill) return;
      const bool admitted = admission_.admits(batch, id);
      if (!admitted && !options_.skip) return;
      order_.pop(batch);
      if (!admitted) continue;
      if (!batch.plan(id, (std::min)(need, batch.budget_left()))) return;
    }
  }

  ContinuousOptions options_{};
  Order order_{};
  Admission admission_{};
};

using Fcfs = Continuous<>;
static_assert(Scheduler<Fcfs>);

}  // namespace decant::scheduling

#endif
