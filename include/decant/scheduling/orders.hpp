// decant: orders of the waiting list for Continuous: shortest first by predicted length, with ageing if wanted, and by
// priority. An order ranks all that wait once per step, on a heap: O(waiting) and O(log waiting) per candidate.
#ifndef DECANT_SCHEDULING_ORDERS_HPP
#define DECANT_SCHEDULING_ORDERS_HPP

#include <algorithm>
#include <cstdint>
#include <vector>

#include "continuous.hpp"

namespace decant::scheduling {

/// The waiting list by a key, the smallest first; ties by (arrival, tag). `Key` is a value with
/// `std::int64_t operator()(const Batch<Memory>&, RequestId)`.
template <class Key>
class ByKey {
 public:
  ByKey() = default;
  explicit ByKey(Key key) : key_(key) {}

  template <class Memory>
  void begin(const Batch<Memory>& batch) {
    heap_.clear();
    for (RequestId id = batch.first_waiting(); id != no_request; id = batch.next_waiting(id)) {
      const RequestInfo& info = batch[id].info;
      heap_.push_back({key_(batch, id), info.arrival, info.tag, id});
    }
    std::make_heap(heap_.begin(), heap_.end(), later);
  }
  template <class Memory>
  RequestId peek(const Batch<Memory>&) const {
    return heap_.empty() ? no_request : heap_.front().id;
  }
  template <class Memory>
  void pop(const Batch<Memory>&) {
    std::pop_heap(heap_.begin(), heap_.end(), later);
    heap_.pop_back();
  }

 private:
  struct Entry {
    std::int64_t key;
    Nanoseconds arrival;
    std::uint64_t tag;
    RequestId id;
  };
  static bool later(const Entry& a, const Entry& b) {
    if (a.key != b.key) return a.key > b.key;
    return a.arrival != b.arrival ? a.arrival > b.arrival : a.tag > b.tag;
  }

  Key key_{};
  std::vector<Entry> heap_;
};

/// Tokens expected still (shortest job first; of a preempted request shortest remaining), less `age_weight` tokens for
/// each `age_unit` that it waits: the guard against starvation.
struct RemainingLength {
  std::uint32_t age_weight = 0;
  Nanoseconds age_unit = 1'000'000;
  bool operator==(const RemainingLength&) const = default;

  template <class Memory>
  std::int64_t operator()(const Batch<Memory>& batch, RequestId id) const {
    const RequestState& r = batch[id];
    const auto left = static_cast<std::int64_t>(r.remaining());
    if (age_weight == 0) return left;
    const Nanoseconds waited = batch.now() - (std::min)(batch.now(), r.info.arrival);
    return left - static_cast<std::int64_t>(waited / age_unit * age_weight);
  }
};

/// Tokens to compute before the first (next) one is out, without those found in memory.
struct PrefillLength {
  bool operator==(const PrefillLength&) const = default;

  template <class Memory>
  std::int64_t operator()(const Batch<Memory>& batch, RequestId id) const {
    return static_cast<std::int64_t>(batch.need(id));
  }
};

struct Priority {
  bool operator==(const Priority&) const = default;

  template <class Memory>
  std::int64_t operator()(const Batch<Memory>& batch, RequestId id) const {
    return batch[id].info.priority;
  }
};

using Sjf = Continuous<ByKey<RemainingLength>>;
using ShortestPrefillFirst = Continuous<ByKey<PrefillLength>>;
using ByPriority = Continuous<ByKey<Priority>>;
static_assert(Scheduler<Sjf>);

}  // namespace decant::scheduling

#endif
