// decant: AlphaProtection, the baselines that MC-SF was measured against (Jaillet, Jiang, Podimata, Zhou, arXiv
// 2502.07115): first come, first served while no more than (1 - alpha) of memory is used, and when it overflows all
// running requests are cleared, or each with probability beta until there is room. Known to us from summaries of the
// paper; that all are cleared is our reading. What a request has generated is kept, as everywhere here.
#ifndef DECANT_SCHEDULING_ALPHA_PROTECTION_HPP
#define DECANT_SCHEDULING_ALPHA_PROTECTION_HPP

#include <algorithm>
#include <cstdint>

#include "generators.hpp"
#include "scheduler.hpp"

namespace decant::scheduling {

class AlphaProtection : public DeafScheduler {
 public:
  /// `alpha`: the part of memory that admission leaves alone, in [0, 1). `beta`: the chance of a running request to be
  /// cleared when memory overflows, in (0, 1]; 1: all are. ArgumentError: another number.
  explicit AlphaProtection(double alpha = 0.2, double beta = 1, std::uint64_t seed = 0)
      : alpha_(alpha), beta_(beta), next_{seed} {
    require(alpha >= 0 && alpha < 1, "scheduling::AlphaProtection", "alpha", "a number in [0, 1)", alpha);
    require(beta > 0 && beta <= 1, "scheduling::AlphaProtection", "beta", "a number in (0, 1]", beta);
  }

  /// O(running + admitted) per clearing.
  template <class Memory>
  void schedule(Batch<Memory>& batch) {
    for (std::uint32_t i = 0; i < batch.running_count() && batch.budget_left() > 0;) {
      const RequestId id = batch.running()[i];
      if (batch[id].planned > 0 || batch.plan(id, (std::min)(batch.need(id), batch.budget_left()))) {
        ++i;
      } else {
        clear(batch);
        i = 0;
      }
    }
    const auto bound = static_cast<std::uint64_t>((1 - alpha_) * static_cast<double>(batch.memory().capacity()));
    for (RequestId id; batch.budget_left() > 0 && !batch.full() && (id = batch.first_waiting()) != no_request;) {
      const std::uint32_t need = batch.need(id);
      // With nobody running a request may have all of memory, or it might wait for ever.
      if (batch.running_count() > 0 && batch.memory().used() + need > bound) return;
      if (!batch.plan(id, (std::min)(need, batch.budget_left()))) return;
    }
  }

 private:
  // The last first, so that they wait in the order in which they ran.
  template <class Memory>
  void clear(Batch<Memory>& batch) {
    for (std::uint32_t i = batch.running_count(); i-- > 0;) {
      if (beta_ == 1 || unit(next_) < beta_) batch.preempt(batch.running()[i]);
    }
  }

  double alpha_, beta_;
  SplitMix64 next_;
};

static_assert(Scheduler<AlphaProtection>);

}  // namespace decant::scheduling

#endif
