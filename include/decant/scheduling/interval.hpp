// decant: AMax and AMin, shortest first when of a length only an interval [low, high] is known ("Adaptively Robust LLM
// Inference Optimization under Prediction Uncertainty", arXiv 2508.14544). AMax believes `high`, never overflows memory,
// and is worse than the best by a factor that grows as high / low; AMin believes `low`, raises it when it is exceeded,
// and when memory overflows lets the shortest go: a factor of O(log(high / low)). AMin never reads `high` or `expected`.
// Ours: ties, and that a preempted request keeps what it has generated.
#ifndef DECANT_SCHEDULING_INTERVAL_HPP
#define DECANT_SCHEDULING_INTERVAL_HPP

#include <cstdint>

#include "memory_safe.hpp"

namespace decant::scheduling {

/// Tokens still to come at most (1 where that was exceeded), as a stay and as a key.
struct MostSteps {
  bool operator==(const MostSteps&) const = default;

  constexpr std::uint32_t operator()(const RequestState& r) const {
    return r.info.output.high > r.generated ? r.info.output.high - r.generated : 1;
  }
  template <class Memory>
  std::int64_t operator()(const Batch<Memory>& batch, RequestId id) const {
    return (*this)(batch[id]);
  }
};

/// Tokens still to come at least.
struct LeastSteps {
  constexpr std::uint32_t operator()(const RequestState& r) const { return r.least() - r.generated; }
};

/// The least output, what was generated included: as it is after its estimate was raised.
struct LeastLength {
  bool operator==(const LeastLength&) const = default;

  template <class Memory>
  std::int64_t operator()(const Batch<Memory>& batch, RequestId id) const {
    return batch[id].least();
  }
};

using AMax = Continuous<ByKey<MostSteps>, MemorySafeBy<MostSteps>>;

class AMin : public Continuous<ByKey<LeastLength>, MemorySafeBy<LeastSteps>> {
 public:
  AMin() : Continuous({.victim = Victim::shortest}) {}
};

static_assert(Scheduler<AMax> && Scheduler<AMin>);

}  // namespace decant::scheduling

#endif
