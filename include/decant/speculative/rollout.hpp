// decant: speculation inside reinforcement learning (NeMo-RL's speculative rollouts, arXiv 2604.26779). The paper is
// known to us by its tables alone; the rules here are ours. RolloutController chooses one length for a batch that drains
// while its longest answers are finished; RolloutAccounting keeps what the learner needs: log-probabilities of the
// emitted tokens under the policy, never the drafter, with the versions of both. A drafter may be stale, since a
// verifier only asks what the draft was drawn from; a step during which the policy changed is refused.
#ifndef DECANT_SPECULATIVE_ROLLOUT_HPP
#define DECANT_SPECULATIVE_ROLLOUT_HPP

#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "../core/softmax.hpp"
#include "accepted.hpp"
#include "throughput_optimal.hpp"
#include "tree.hpp"

namespace decant::speculative {

/// throughput: tokens of the batch per second. makespan: the batch ends when its longest answer does, so a request's
/// tokens count as much as it has left to say.
enum class RolloutObjective : std::uint8_t { throughput, makespan };

/// One request of a batch: how its drafts fared, and how many tokens it is expected to emit yet.
struct RolloutRequest {
  View<const double, 1> acceptance{};  ///< AcceptanceEstimator::acceptance()
  double remaining = 0;
};

struct RolloutOptions {
  std::int32_t max_length = 8;
  double decay = 0.98;
  RolloutObjective objective = RolloutObjective::makespan;
  /// So many steps in a row must want another length before it changes; 1: at once.
  std::int32_t patience = 2;
  bool operator==(const RolloutOptions&) const = default;
};

/// The length by ThroughputOptimal's rule with the step's cost at the batch's present size: no draft where a large batch
/// is bound by arithmetic, long ones for the last few requests. One length for all.
template <StepCost Cost = CostTable>
class RolloutController {
 public:
  /// ArgumentError: an empty cost.
  explicit RolloutController(Cost cost, const RolloutOptions& options = {})
      : cost_(std::move(cost)), options_(options), estimator_(options.max_length, options.decay) {
    constexpr const char* where = "speculative::RolloutController";
    require(!cost_.empty(), where, "cost", "the cost of a step: throughput is tokens over time", "nothing");
    require(options_.patience >= 1, where, "options.patience", "at least 1", options_.patience);
  }

  /// From all outcomes observed so far, of whichever request.
  DraftBudget next(const StepSignals& signals) {
    const RolloutRequest all{estimator_.acceptance(), 1};
    return next(signals, View<const RolloutRequest, 1>(&all, 1));
  }

  /// From each request's own. signals.batch: the requests that share the step. O(requests * max_length^2).
  DraftBudget next(const StepSignals& signals, View<const RolloutRequest, 1> requests) {
    constexpr const char* where = "speculative::RolloutController::next";
    require(!requests.empty(), where, "requests", "at least one", 0);
    for (index_t r = 0; r < requests.size(); ++r) {
      require(requests[r].remaining >= 0 && requests[r].remaining < 1e300, where, "requests", "tokens remaining",
              requests[r].remaining);
    }
    const auto seconds = [&](std::int32_t g) -> double { return cost_.seconds(g, signals.batch, signals.context); };
    double most = -1;
    std::int32_t best = 0;
    for (std::int32_t g = 0; g <= options_.max_length; ++g) {
      double tokens = 0;
      for (index_t r = 0; r < requests.size(); ++r) {
        const double weight = options_.objective == RolloutObjective::makespan ? requests[r].remaining : 1;
        tokens += weight * expected_tokens(requests[r].acceptance, g);
      }
      const double gain = detail::gain(where, g, tokens, seconds, Objective::throughput);
      if (gain > most) {
        most = gain;
        best = g;
      }
    }
    return clipped(DraftBudget::chain(settle(best)), signals.tokens_left);
  }

  void observe(const StepOutcome& outcome) { estimator_.observe(outcome); }

 private:
  std::int32_t settle(std::int32_t wanted) {
    if (current_ < 0 || wanted == current_) {
      current_ = wanted;
      waited_ = 0;
    } else if (++waited_ >= options_.patience) {
      current_ = wanted;
      waited_ = 0;
    }
    return current_;
  }

  Cost cost_;
  RolloutOptions options_;
  AcceptanceEstimator estimator_;
  std::int32_t current_ = -1;
  std::int32_t waited_ = 0;
};

static_assert(DraftLengthController<RolloutController<CostTable>>);

/// One emitted token, as the learner sees it.
struct RolloutToken {
  std::int32_t request = 0;  ///< its place in the batch
  std::int32_t token = 0;
  float log_probability = 0;      ///< under the processed law that it was verified against
  float raw_log_probability = 0;  ///< under the model's own, temperature 1 and no filter; NaN where not given
  std::uint64_t policy_version = 0;
  std::uint64_t draft_version = 0;
  bool accepted = false;  ///< a drafted token; false: the one that the step added
};

class RolloutAccounting {
 public:
  struct Step {
    std::uint64_t policy_version = 0;
    std::uint64_t draft_version = 0;
  };

  /// New weights. Where the policy's changed, what the drafter cached (its KV, features of the target) is void until
  /// draft_state_rebuilt(); the drafter's own weights may lag behind.
  void on_weights(std::uint64_t policy_version, std::uint64_t draft_version) {
    if (policy_version != now_.policy_version) draft_state_valid_ = false;
    now_ = {policy_version, draft_version};
  }
  bool draft_state_valid() const { return draft_state_valid_; }
  void draft_state_rebuilt() { draft_state_valid_ = true; }

  /// Before a step's target rows are computed.
  Step begin() const { return now_; }

  /// After its verification: appends its tokens to `out`. False, and nothing appended, where the policy changed since
  /// begin(): its rows are another policy's, and the step must be done again. Requests without status ok give nothing.
  /// p: the rows that verify() was given. raw: the model's logits [rows of p, vocab], or empty. A token's probability
  /// is that of the row at the node where it was emitted, for the added token too (p, not the residual).
  /// O(vocab) per token for the raw law.
  bool record(Cpu& cpu, const Step& step, const ForestView& trees, const ProbabilityRows& p, View<const float, 2> raw,
              const Accepted& accepted, std::vector<RolloutToken>& out) const {
    constexpr const char* where = "speculative::RolloutAccounting::record";
    require_equal(accepted.length.size(), trees.trees(), where, "accepted.length");
    require_equal(accepted.tokens.extent(0), trees.trees(), where, "accepted.tokens");
    require_equal(accepted.nodes.extent(0), trees.trees(), where, "accepted.nodes");
    require_equal(p.extent(0), trees.all.nodes, where, "p");
    if (!raw.empty()) {
      require_equal(raw.extent(0), p.extent(0), where, "raw");
      require_equal(raw.extent(1), p.extent(1), where, "raw");
      require(raw.stride(1) == 1, where, "raw", "contiguous rows", raw.stride(1));
    }
    if (step.policy_version != now_.policy_version) return false;
    for (index_t b = 0; b < trees.trees(); ++b) {
      const std::int32_t tau = accepted.length[b];  // -1: no token
      for (std::int32_t k = 0; k <= tau; ++k) {
        const index_t row = trees.offsets[b] + (k == 0 ? 0 : accepted.nodes(b, k - 1));
        const std::int32_t token = accepted.tokens(b, k);
        float raw_log = std::numeric_limits<float>::quiet_NaN();
        if (!raw.empty()) raw_log = raw(row, token) - log_sum_exp(cpu, raw[row]);
        out.push_back({static_cast<std::int32_t>(b), token, std::log(p(row, token)), raw_log, step.policy_version,
                       step.draft_version, k < tau});
      }
    }
    return true;
  }

 private:
  Step now_{};
  bool draft_state_valid_ = true;
};

}  // namespace decant::speculative

#endif
