// decant: MemorySafe, admission that foresees memory: a request starts only if, with the lengths that are predicted,
// everything that runs can run to its end without preemption. With the order of arrival this is MC-FCFS, with the
// shortest first MC-SF (Jaillet, Jiang, Podimata, Zhou, arXiv 2502.07115). The check is the paper's in this library's
// convention (the token sampled last is never stored). A prompt is charged whole although its prefill may take several
// steps: conservative now, but a late prefill also ends late, so Continuous keeps preemption for what remains.
#ifndef DECANT_SCHEDULING_MEMORY_SAFE_HPP
#define DECANT_SCHEDULING_MEMORY_SAFE_HPP

#include <algorithm>
#include <cstdint>
#include <vector>

#include "orders.hpp"

namespace decant::scheduling {

/// Tokens still to come, by the point prediction.
struct ExpectedSteps {
  constexpr std::uint32_t operator()(const RequestState& r) const { return r.remaining(); }
};

/// `Steps` says how many steps a request will stay.
template <class Steps>
class MemorySafeBy {
 public:
  MemorySafeBy() = default;
  /// `spare`: alpha, tokens of memory that admission leaves alone, against lengths that are exceeded.
  explicit MemorySafeBy(std::uint64_t spare) : spare_(spare) {}

  template <class Memory>
  void begin(const Batch<Memory>& batch) {
    stays_.clear();
    const auto running = batch.running();
    for (index_t i = 0; i < running.extent(0); ++i) stays_.push_back(stay(batch[running[i]]));
    std::sort(stays_.begin(), stays_.end(), longest_first);
    capacity_ = batch.memory().capacity() - (std::min)(spare_, batch.memory().capacity());
  }

  /// O(running).
  template <class Memory>
  bool admits(const Batch<Memory>& batch, RequestId id) {
    const Stay candidate = stay(batch[id]);
    const auto at = std::upper_bound(stays_.begin(), stays_.end(), candidate, longest_first);
    const auto place = stays_.insert(at, candidate);
    if (peak() <= capacity_) return true;
    stays_.erase(place);
    return false;
  }

 private:
  struct Stay {
    std::uint32_t steps;   // until its last token is sampled
    std::uint64_t tokens;  // that it holds one step before it stores another
  };
  static bool longest_first(const Stay& a, const Stay& b) { return a.steps > b.steps; }
  static Stay stay(const RequestState& r) { return {Steps{}(r), std::uint64_t{r.info.prompt} + r.generated}; }

  // Memory only grows between completions, so its largest value is at one of them: when e steps are to go for the
  // request that ends, all that stay as long hold their tokens and e - 1 more.
  std::uint64_t peak() const {
    std::uint64_t tokens = 0, largest = 0;
    for (std::size_t i = 0; i < stays_.size(); ++i) {
      tokens += stays_[i].tokens;
      largest = (std::max)(largest, tokens + (i + 1) * (std::uint64_t{stays_[i].steps} - 1));
    }
    return largest;
  }

  std::uint64_t spare_ = 0;
  std::uint64_t capacity_ = 0;
  std::vector<Stay> stays_;  // running and admitted, longest first
};

using MemorySafe = MemorySafeBy<ExpectedSteps>;
using McFcfs = Continuous<ByArrival, MemorySafe>;
using McSf = Continuous<ByKey<RemainingLength>, MemorySafe>;
static_assert(Scheduler<McFcfs> && Scheduler<McSf>);

}  // namespace decant::scheduling

#endif
