// decant: PrefixHomogeneous<Stop>, Feather (arXiv 2605.06046): a batch whose requests share one prefix decodes faster than
// a larger mixed one, so a step may stop admitting although memory is left. Candidates come from the Chunked Hash Tree,
// nearest to the batch first; `Stop` says for each whether it joins. Ours: `max_wait`, after which the oldest request is
// the candidate and joins, for nothing in the paper ages.
#ifndef DECANT_SCHEDULING_FEATHER_HPP
#define DECANT_SCHEDULING_FEATHER_HPP

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "chain_hash.hpp"
#include "chunked_hash_index.hpp"
#include "scheduler.hpp"
#include "step_cost.hpp"

namespace decant::scheduling {

/// What a stop rule sees of a candidate.
struct AdmissionState {
  PrefixCandidate candidate{};
  std::uint32_t batch = 0;           ///< requests running or admitted in this step
  std::uint32_t waiting = 0;         ///< requests, the candidate included
  std::uint32_t cap = 0;             ///< the most that may run
  std::uint64_t mean_context = 0;    ///< tokens of those in the batch
  std::uint32_t chunk = 0;           ///< K
  std::uint32_t shared_level = 0;    ///< deepest chunk of the candidate that other waiting requests have, from 1; 0: none
  std::uint32_t shared_requests = 0; ///< how many waiting requests have it
};

template <class S>
concept StopRule = requires(S& stop, const AdmissionState& state, const StepResult& result) {
  stop.begin_step();                                 ///< a step is planned
  { stop.add(state) } -> std::same_as<bool>;         ///< whether the candidate joins; asked while the batch is not empty
  stop.learn(result);                                ///< how the step went
};

struct FeatherOptions {
  std::uint32_t chunk = 64;     ///< K; used where requests come without a chain
  Nanoseconds max_wait = 0;     ///< 0: none
  bool operator==(const FeatherOptions&) const = default;
};

/// Requests' chains count (RequestInfo::chain, one digest per `chunk` tokens); those without one get theirs of their
/// tokens, and those without tokens share nothing.
template <StopRule Stop>
class PrefixHomogeneous {
 public:
  PrefixHomogeneous() = default;
  /// ArgumentError: a chunk of 0.
  explicit PrefixHomogeneous(Stop stop, const FeatherOptions& options = {}) : stop_(std::move(stop)), o_(options) {
    require(options.chunk > 0, "scheduling::PrefixHomogeneous", "options.chunk", "at least 1 token", options.chunk);
  }

  const ChunkedHashIndex& index() const { return index_; }
  const Stop& stop() const { return stop_; }

  template <class Memory>
  void on_arrival(const Batch<Memory>& batch, RequestId id) {
    insert(batch, id);
  }
  template <class Memory>
  void on_finish(const Batch<Memory>&, RequestId id) {
    if (index_.waits(id)) index_.remove(id);
    else index_.finish(id);
  }
  template <class Memory>
  void on_step_done(const Batch<Memory>&, const StepResult& result) {
    stop_.learn(result);
  }

  /// O(running) and, for each candidate, the index's cost.
  template <class Memory>
  void schedule(Batch<Memory>& batch) {
    stop_.begin_step();
    if (!continue_running(batch)) return;
    while (!batch.full() && batch.budget_left() > 0) {
      bool overdue = false;
      const PrefixCandidate c = next(batch, overdue);
      if (c.id == no_request) return;
      if (batch.running_count() > 0 && !overdue && !stop_.add(state_of(batch, c))) return;
      if (!batch.plan(c.id, (std::min)(batch.need(c.id), batch.budget_left()))) return;
      index_.activate(c.id);
    }
  }

 private:
  template <class Memory>
  void insert(const Batch<Memory>& batch, RequestId id) {
    const RequestInfo& info = batch[id].info;
    if (!info.chain.empty()) {
      index_.insert(id, info, info.chain);
    } else {
      index_.insert(id, info, chain_keys(info.tokens, o_.chunk, true));
    }
  }

  template <class Memory>
  bool continue_running(Batch<Memory>& batch) {
    bool preempted = false;
    for (std::uint32_t i = 0; i < batch.running_count() && batch.budget_left() > 0; ++i) {
      const RequestId id = batch.running()[i];
      const std::uint32_t tokens = (std::min)(batch.need(id), batch.budget_left());
      const bool planned = plan_or_preempt(batch, id, tokens, preempted, [&](RequestId last) {
        index_.finish(last);
        insert(batch, last);
      });
      if (!planned) return false;
    }
    return !preempted;
  }

  template <class Memory>
  PrefixCandidate next(const Batch<Memory>& batch, bool& overdue) {
    RequestId oldest = batch.first_waiting();
    if (o_.max_wait > 0 && oldest != no_request) {
      // Those preempted stand before all others, who stand as they came.
      for (RequestId id = oldest; id != no_request; id = batch.next_waiting(id)) {
        if (earlier(batch[id].info, batch[oldest].info)) oldest = id;
        if (batch[id].preemptions == 0) break;
      }
      const Nanoseconds arrival = batch[oldest].info.arrival;
      overdue = batch.now() >= arrival && batch.now() - arrival >= o_.max_wait;
      if (overdue) return index_.candidate(oldest);
    }
    return index_.best();
  }

  template <class Memory>
  AdmissionState state_of(const Batch<Memory>& batch, const PrefixCandidate& c) const {
    AdmissionState s;
    s.candidate = c;
    s.batch = batch.running_count();
    s.waiting = batch.waiting_count();
    s.cap = batch.limits().max_running;
    s.chunk = o_.chunk;
    const auto running = batch.running();
    for (index_t i = 0; i < running.extent(0); ++i) {
      const RequestState& r = batch[running[i]];
      s.mean_context += std::uint64_t{r.info.prompt} + r.generated;
    }
    s.mean_context /= s.batch;
    s.shared_level = index_.deepest_shared(c.id, s.shared_requests);
    return s;
  }

  Stop stop_{};
  FeatherOptions o_{};
  ChunkedHashIndex index_;
};

}  // namespace decant::scheduling

#endif
