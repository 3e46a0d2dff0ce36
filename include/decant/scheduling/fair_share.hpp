// decant: FairShare, fairness between tenants by virtual token counters (Sheng et al., Fairness in serving large language
// models, OSDI 2024, arXiv 2401.00588): the next request comes from the tenant that was served least, and a tenant that
// comes back is lifted to the least of those that wait, so that nobody saves up service by staying away. Counters are
// whole numbers. Service is what was computed: tokens of prompts, and twice as much for each generated one, the paper's
// weights; a generated token is charged when it is stored, so the last one of a request is not [ours].
#ifndef DECANT_SCHEDULING_FAIR_SHARE_HPP
#define DECANT_SCHEDULING_FAIR_SHARE_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "continuous.hpp"

namespace decant::scheduling {

struct FairShareOptions {
  std::uint32_t prompt_weight = 1, output_weight = 2;
  bool operator==(const FairShareOptions&) const = default;
};

/// The waiting list by what its tenants were given so far, the least first; within a tenant as it waits.
class ByTenant {
 public:
  ByTenant() = default;
  explicit ByTenant(const FairShareOptions& options) : options_(options) {}

  /// Weighted tokens that a tenant was given, and what it was lifted by.
  std::uint64_t served(std::uint32_t tenant) const {
    const std::size_t index = place(tenant);
    return known(index, tenant) ? tenants_[index].served : 0;
  }

  /// A request has joined the waiting list. O(waiting).
  template <class Memory>
  void arrive(const Batch<Memory>& batch, RequestId arrived) {
    const std::uint32_t name = batch[arrived].info.tenant;
    // Nobody else waits: the tenant that was served last sets the level.
    std::uint64_t floor = last_;
    bool others = false;
    for (RequestId id = batch.first_waiting(); id != no_request; id = batch.next_waiting(id)) {
      if (id == arrived) continue;
      const std::uint32_t other = batch[id].info.tenant;
      if (other == name) return;
      floor = others ? (std::min)(floor, served(other)) : served(other);
      others = true;
    }
    Tenant& tenant = at(name);
    tenant.served = (std::max)(tenant.served, floor);
  }

  /// A step has run: charges it; slots of requests that ended in it are not used again yet. O(requests of the step * log tenants).
  template <class Memory>
  void charge(const Batch<Memory>& batch) {
    const auto items = batch.items();
    for (index_t i = 0; i < items.extent(0); ++i) {
      const RequestState& r = batch[items[i].id];
      const std::uint32_t prompt = prompt_part(r, items[i]);
      Tenant& tenant = at(r.info.tenant);
      tenant.served += weighted(prompt, items[i].tokens - prompt);
      last_ = tenant.served;
    }
  }

  // ---- an order of Continuous. O(waiting * log waiting) once, then O(tenants) per candidate.

  template <class Memory>
  void begin(const Batch<Memory>& batch) {
    waiting_.clear();
    queues_.clear();
    std::uint32_t place = 0;
    for (RequestId id = batch.first_waiting(); id != no_request; id = batch.next_waiting(id)) {
      waiting_.push_back({batch[id].info.tenant, place++, id});
    }
    std::sort(waiting_.begin(), waiting_.end(), [](const Waiting& a, const Waiting& b) {
      return a.tenant != b.tenant ? a.tenant < b.tenant : a.place < b.place;
    });
    for (std::uint32_t i = 0; i < waiting_.size(); ++i) {
      if (i == 0 || waiting_[i].tenant != waiting_[i - 1].tenant) queues_.push_back({served(waiting_[i].tenant), i, i});
      queues_.back().end = i + 1;
    }
  }
  template <class Memory>
  RequestId peek(const Batch<Memory>&) const {
    const std::size_t least = next();
    return least == queues_.size() ? no_request : waiting_[queues_[least].first].id;
  }
  /// Charges the prompt within this pass alone, so that tenants take turns in it.
  template <class Memory>
  void pop(const Batch<Memory>& batch) {
    Queue& least = queues_[next()];
    least.served += weighted(batch[waiting_[least.first].id].info.prompt, 0);
    ++least.first;
  }

 private:
  struct Tenant {
    std::uint32_t name;
    std::uint64_t served;
  };
  struct Waiting {
    std::uint32_t tenant, place;
    RequestId id;
  };
  struct Queue {
    std::uint64_t served;
    std::uint32_t first, end;  // in waiting_
  };

  std::uint64_t weighted(std::uint32_t prompt, std::uint32_t output) const {
    return std::uint64_t{prompt} * options_.prompt_weight + std::uint64_t{output} * options_.output_weight;
  }

  // Where a tenant is, or would be.
  std::size_t place(std::uint32_t name) const {
    const auto at = std::lower_bound(tenants_.begin(), tenants_.end(), name,
                                     [](const Tenant& t, std::uint32_t n) { return t.name < n; });
    return static_cast<std::size_t>(at - tenants_.begin());
  }
  bool known(std::size_t at, std::uint32_t name) const { return at < tenants_.size() && tenants_[at].name == name; }
  Tenant& at(std::uint32_t name) {
    const std::size_t index = place(name);
    if (!known(index, name)) tenants_.insert(tenants_.begin() + static_cast<std::ptrdiff_t>(index), Tenant{name, 0});
    return tenants_[index];
  }

  // Of equal tenants the one of the smallest name; queues_.size(): nobody waits.
  std::size_t next() const {
    std::size_t least = queues_.size();
    for (std::size_t i = 0; i < queues_.size(); ++i) {
      if (queues_[i].first == queues_[i].end) continue;
      if (least == queues_.size() || queues_[i].served < queues_[least].served) least = i;
    }
    return least;
  }

  FairShareOptions options_{};
  std::vector<Tenant> tenants_;  // by name
  std::uint64_t last_ = 0;       // of the tenant charged last
  std::vector<Waiting> waiting_;
  std::vector<Queue> queues_;
};

/// Continuous batching, fair between tenants.
class FairShare : public DeafScheduler {
 public:
  FairShare() = default;
  explicit FairShare(const FairShareOptions& options, const ContinuousOptions& batching = {})
      : batching_(batching, ByTenant(options)) {}

  std::uint64_t served(std::uint32_t tenant) const { return batching_.order().served(tenant); }

  template <class Memory>
  void on_arrival(const Batch<Memory>& batch, RequestId id) {
    batching_.order().arrive(batch, id);
  }
  template <class Memory>
  void on_step_done(const Batch<Memory>& batch, const StepResult&) {
    batching_.order().charge(batch);
  }
  template <class Memory>
  void schedule(Batch<Memory>& batch) {
    batching_.schedule(batch);
  }

 private:
  Continuous<ByTenant> batching_;
};

static_assert(Scheduler<FairShare>);

}  // namespace decant::scheduling

#endif
