// decant: Batch, the requests of one engine and the rules of continuous batching that no policy may break. The engine
// says what arrives, what was sampled and what is finished; a Scheduler fills each step through plan() and preempt().
// The progress rule (vLLM's, to which all engines reduce): a step gives a request n of its tokens, 1 <= n <= need();
// when none is left one token is sampled, and the last one sampled is never stored. A preempted request loses its keys
// and values, keeps what it generated, and goes to the front of the waiting list.
#ifndef DECANT_SCHEDULING_BATCH_HPP
#define DECANT_SCHEDULING_BATCH_HPP

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "../core/error.hpp"
#include "kv_memory.hpp"
#include "request.hpp"

namespace decant::scheduling {

/// Tokens that a request gets in a step.
struct StepItem {
  RequestId id = no_request;
  std::uint32_t tokens = 0;
  bool operator==(const StepItem&) const = default;
};

/// How many of an item's tokens, which have been computed, were of the prompt.
constexpr std::uint32_t prompt_part(const RequestState& r, const StepItem& item) {
  const std::uint32_t before = r.computed - item.tokens;
  return before < r.info.prompt ? (std::min)(item.tokens, r.info.prompt - before) : 0;
}

struct BatchLimits {
  std::uint32_t budget = 2048;      ///< B: tokens of one step
  std::uint32_t max_running = 256;  ///< requests that may hold memory
  bool operator==(const BatchLimits&) const = default;
};

template <KvMemory Memory = TokenMemory>
class Batch {
 public:
  /// ArgumentError: a limit of 0.
  explicit Batch(Memory memory, const BatchLimits& limits = {}) : memory_(std::move(memory)), limits_(limits) {
    require(limits.budget > 0, "scheduling::Batch", "limits.budget", "at least 1 token a step", limits.budget);
    require(limits.max_running > 0, "scheduling::Batch", "limits.max_running", "at least 1 request",
            limits.max_running);
    require(memory_.capacity() > 0, "scheduling::Batch", "memory", "room for at least 1 token", memory_.capacity());
  }

  // ---- what everybody may ask

  const Memory& memory() const { return memory_; }
  const BatchLimits& limits() const { return limits_; }
  Nanoseconds now() const { return now_; }
  const RequestState& operator[](RequestId id) const { return states_[id]; }
  /// Slots ever used: every id is below.
  RequestId slots() const { return static_cast<RequestId>(states_.size()); }

  /// In the order of admission.
  View<const RequestId, 1> running() const { return {running_.data(), running_.size()}; }
  std::uint32_t running_count() const { return static_cast<std::uint32_t>(running_.size()); }

  /// The waiting list in its order: `for (id = first_waiting(); id != no_request; id = next_waiting(id))`.
  RequestId first_waiting() const { return first_; }
  RequestId next_waiting(RequestId id) const { return states_[id].next; }
  std::uint32_t waiting_count() const { return waiting_; }

  /// The step so far, in the order of planning, and what is left of its budget.
  View<const StepItem, 1> items() const { return {items_.data(), items_.size()}; }
  std::uint32_t budget_left() const { return budget_; }
  bool full() const { return running_.size() >= limits_.max_running; }

  /// Tokens that a request would have to compute: those of a waiting one without what is found in memory, but at least
  /// 1, for a token is sampled only from a row that was computed.
  std::uint32_t need(RequestId id) const {
    const RequestState& r = states_[id];
    return r.phase == Phase::waiting ? r.need() - hit(id) : r.need();
  }

  /// Tokens of a waiting request that are in memory.
  std::uint32_t hit(RequestId id) const {
    const RequestState& r = states_[id];
    return memory_.hit(r.info, r.need() - 1);
  }

  // ---- what a policy does within a step

  /// Gives a request `tokens` in this step; one that waits is admitted and reuses what is in memory. False: memory has
  /// no room for it, and nothing has changed. ArgumentError: the request is gone or in this step already, more tokens
  /// than it needs or the budget has, or too many requests running.
  bool plan(RequestId id, std::uint32_t tokens) {
    check(id, "plan");
    RequestState& r = states_[id];
    const bool admitted = r.phase == Phase::waiting;
    const std::uint32_t found = admitted ? hit(id) : 0;
    require(r.planned == 0, "scheduling::Batch::plan", "id", "a request that is not in this step yet", r.info.tag);
    require(tokens >= 1 && tokens <= r.need() - found, "scheduling::Batch::plan", "tokens",
            [&] { return "1 to the " + std::to_string(r.need() - found) + " tokens that it needs"; }, tokens);
    require(tokens <= budget_, "scheduling::Batch::plan", "tokens",
            [&] { return "at most the " + std::to_string(budget_) + " tokens left of the budget"; }, tokens);
    if (admitted) {
      require(!full(), "scheduling::Batch::plan", "id", "fewer than limits.max_running requests running",
              running_.size());
      if (!memory_.open(id, r.info, found, found + tokens)) return false;
      unlink(id);
      r.phase = Phase::running;
      r.computed = found;
      hit_tokens_ += found;
      running_.push_back(id);
    } else if (!memory_.grow(id, r.computed + tokens)) {
      return false;
    }
    r.planned = tokens;
    budget_ -= tokens;
    items_.push_back({id, tokens});
    return true;
  }

  /// Leaves at most `tokens` of this step's budget.
  void limit_budget(std::uint32_t tokens) { budget_ = (std::min)(budget_, tokens); }

  /// Takes all memory from a running request, and its part of this step; it waits again, before all others.
  void preempt(RequestId id) {
    check(id, "preempt");
    RequestState& r = states_[id];
    require(r.phase == Phase::running, "scheduling::Batch::preempt", "id", "a running request", r.info.tag);
    if (r.planned > 0) {
      budget_ += r.planned;
      r.planned = 0;
      items_.erase(std::find_if(items_.begin(), items_.end(), [&](const StepItem& item) { return item.id == id; }));
    }
    leave(id);
    lost_tokens_ += r.computed;
    ++preemptions_;
    ++r.preemptions;
    r.computed = 0;
    r.phase = Phase::waiting;
    link_front(id);
  }

  // ---- what the engine does

  /// A request arrives at the end of the waiting list. ArgumentError: lengths of 0, or more tokens than memory could
  /// ever hold: it would wait for ever.
  RequestId arrive(const RequestInfo& info) {
    constexpr auto where = "scheduling::Batch::arrive";
    require(info.prompt >= 1, where, "info.prompt", "at least 1 token", info.prompt);
    require(info.max_output >= 1, where, "info.max_output", "at least 1 token", info.max_output);
    require(fits_alone(info), where, "info",
            [&] { return "at most the " + std::to_string(memory_.capacity()) + " tokens that memory holds"; },
            peak(info));
    RequestId id;
    if (free_.empty()) {
      id = static_cast<RequestId>(states_.size());
      states_.emplace_back();
    } else {
      id = free_.back();
      free_.pop_back();
    }
    states_[id] = {};
    states_[id].info = info;
    states_[id].phase = Phase::waiting;
    link_back(id);
    return id;
  }

  /// The most tokens that a request can ever hold.
  static constexpr std::uint64_t peak(const RequestInfo& info) {
    return std::uint64_t{info.prompt} + info.max_output - 1;
  }
  bool fits_alone(const RequestInfo& info) const { return peak(info) <= memory_.capacity(); }

  void begin_step(Nanoseconds now) {
    now_ = now;
    budget_ = limits_.budget;
    items_.clear();
  }

  /// The step has run: counts its tokens. The view names the requests for which a token was sampled, in the order of
  /// the plan; it is valid until the next call.
  View<const RequestId, 1> complete_step(Nanoseconds now) {
    now_ = now;
    sampled_.clear();
    for (const StepItem& item : items_) {
      RequestState& r = states_[item.id];
      r.computed += item.tokens;
      r.planned = 0;
      if (r.need() == 0) {
        ++r.generated;
        sampled_.push_back(item.id);
      }
    }
    return {sampled_.data(), sampled_.size()};
  }

  /// A request ends, whatever it is doing, outside of a step; its slot is free for the next one.
  void finish(RequestId id) {
    check(id, "finish");
    RequestState& r = states_[id];
    if (r.phase == Phase::running) {
      leave(id);
    } else {
      unlink(id);
    }
    r.phase = Phase::finished;
    free_.push_back(id);
  }

  std::uint64_t preemptions() const { return preemptions_; }
  std::uint64_t lost_tokens() const { return lost_tokens_; }  ///< computed, and lost again by preemption
  std::uint64_t hit_tokens() const { return hit_tokens_; }    ///< not computed, for they were found in memory

 private:
  void check(RequestId id, const char* verb) const {
    if (id < states_.size() && states_[id].phase != Phase::finished) return;
    ::decant::detail::fail_argument((std::string("scheduling::Batch::") + verb).c_str(), "id", "a live request", id);
  }

  void leave(RequestId id) {
    running_.erase(std::find(running_.begin(), running_.end(), id));
    memory_.close(id, states_[id].info, states_[id].computed);
  }

  void link_back(RequestId id) {
    states_[id].previous = last_;
    states_[id].next = no_request;
    (last_ == no_request ? first_ : states_[last_].next) = id;
    last_ = id;
    ++waiting_;
  }

  void link_front(RequestId id) {
    states_[id].next = first_;
    states_[id].previous = no_request;
    (first_ == no_request ? last_ : states_[first_].previous) = id;
    first_ = id;
    ++waiting_;
  }

  void unlink(RequestId id) {
    const RequestState& r = states_[id];
    (r.previous == no_request ? first_ : states_[r.previous].next) = r.next;
    (r.next == no_request ? last_ : states_[r.next].previous) = r.previous;
    --waiting_;
  }

  Memory memory_;
  BatchLimits limits_;
  Nanoseconds now_ = 0;
  std::vector<RequestState> states_;
  std::vector<RequestId> free_, running_, sampled_;
  std::vector<StepItem> items_;
  RequestId first_ = no_request, last_ = no_request;
  std::uint32_t waiting_ = 0;
  std::uint32_t budget_ = 0;
  std::uint64_t preemptions_ = 0, lost_tokens_ = 0, hit_tokens_ = 0;
};

}  // namespace decant::scheduling

#endif
