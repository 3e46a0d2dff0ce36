// decant: UpdateBandit, which decides when a drafter that learns from its rejections should be updated, and how much of
// it (SpecBlock, arXiv 2605.07243). The actions and the free feedback, the target's row at the first rejected node, are
// the paper's as others describe it; the rule is ours: an update is worth the time that the steps still to come save, by
// an optimistic estimate of what such updates have gained so far, less the time that it takes.
#ifndef DECANT_SPECULATIVE_UPDATE_BANDIT_HPP
#define DECANT_SPECULATIVE_UPDATE_BANDIT_HPP

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "../core/error.hpp"
#include "control.hpp"

namespace decant::speculative {

enum class DraftUpdate : std::uint8_t { none, output_head, whole, rank_head };

struct UpdateBanditOptions {
  double output_head_seconds = 0;  ///< first guesses of what updates take; 0: that update is not offered
  double whole_seconds = 0;
  double rank_head_seconds = 0;
  double exploration = 0.1;
  double weight = 0.2;       ///< of a new measurement in the running mean of an update's gain and of its time
  double least_signal = 0.1; ///< least share of rejections that an update could have helped
  std::int32_t window = 64;  ///< steps before and after an update whose accepted lengths are compared
  bool operator==(const UpdateBanditOptions&) const = default;
};

class UpdateBandit {
 public:
  static constexpr int rejections = 64;

  explicit UpdateBandit(const UpdateBanditOptions& options) : options_(options) {
    constexpr const char* where = "speculative::UpdateBandit";
    require(options.window >= 1, where, "options.window", "at least 1", options.window);
    require(options.weight > 0 && options.weight <= 1, where, "options.weight", "a number in (0, 1]", options.weight);
    require(options.exploration >= 0, where, "options.exploration", "at least 0", options.exploration);
    arms_[1].seconds = options.output_head_seconds;
    arms_[2].seconds = options.whole_seconds;
    arms_[3].seconds = options.rank_head_seconds;
    recent_.resize(static_cast<std::size_t>(options.window));
  }

  /// After every step; seconds of 0 leave the running time alone.
  void observe(const StepOutcome& outcome) {
    const double tau = outcome.accepted;
    tau_ = steps_ == 0 ? tau : tau_ + smooth * (tau - tau_);
    if (outcome.seconds > 0) seconds_ = seconds_ > 0 ? seconds_ + smooth * (outcome.seconds - seconds_) : outcome.seconds;
    double& slot = recent_[static_cast<std::size_t>(steps_ % options_.window)];
    recent_sum_ += tau - slot;
    slot = tau;
    ++steps_;
    if (pending_ != DraftUpdate::none && ++since_ == options_.window) {
      Arm& arm = arms_[static_cast<int>(pending_)];
      const double gain = recent_sum_ / options_.window - before_;
      arm.gain += options_.weight * (gain - arm.gain);
      ++arm.uses;
      pending_ = DraftUpdate::none;
    }
  }

  /// After a step whose draft was rejected somewhere. fixable: the target's token at the first rejected node was among
  /// the drafter's ten likeliest, but not drafted; an update may put that right.
  void rejected(bool fixable) {
    const std::uint64_t bit = std::uint64_t{1} << (seen_ % rejections);
    signals_ = fixable ? signals_ | bit : signals_ & ~bit;
    ++seen_;
  }

  /// The share of fixable ones among the last 64 rejections; 0 where there were none.
  double signal() const {
    if (seen_ == 0) return 0;
    return static_cast<double>(__builtin_popcountll(signals_)) / static_cast<double>(seen_ < rejections ? seen_ : rejections);
  }

  /// What to do now, with so many tokens expected yet of all requests together. Nothing while the last update is still
  /// being measured.
  DraftUpdate choose(double tokens_to_come) {
    if (pending_ != DraftUpdate::none || steps_ < options_.window) return DraftUpdate::none;
    ++decisions_;
    if (signal() < options_.least_signal) return DraftUpdate::none;
    DraftUpdate best = DraftUpdate::none;
    double most = 0;
    for (int a = 1; a < 4; ++a) {
      if (!(arms_[a].seconds > 0)) continue;
      const double worth = saving(static_cast<DraftUpdate>(a), tokens_to_come) - arms_[a].seconds;
      if (worth > most) {
        most = worth;
        best = static_cast<DraftUpdate>(a);
      }
    }
    return best;
  }

  /// An update was made and took so long; 0: not measured.
  void updated(DraftUpdate update, double seconds) {
    require(update != DraftUpdate::none, "speculative::UpdateBandit::updated", "update", "an update", "none");
    require(pending_ == DraftUpdate::none, "speculative::UpdateBandit::updated", "update",
            "none while the last one is being measured", static_cast<int>(update));
    Arm& arm = arms_[static_cast<int>(update)];
    if (seconds > 0) {
      arm.seconds = arm.measured ? arm.seconds + options_.weight * (seconds - arm.seconds) : seconds;
      arm.measured = true;
    }
    const auto known = static_cast<double>(steps_ < options_.window ? steps_ : options_.window);
    before_ = known > 0 ? recent_sum_ / known : 0;
    pending_ = update;
    since_ = 0;
  }

  /// Seconds that an update is hoped to save: H T (1 / (tau + 1) - 1 / (tau + 1 + gain + bonus)). Less than what is left
  /// to do, whatever the gain.
  double saving(DraftUpdate update, double tokens_to_come) const {
    const Arm& arm = arms_[static_cast<int>(update)];
    const double bonus = options_.exploration * std::sqrt(std::log(1 + static_cast<double>(decisions_)) /
                                                          static_cast<double>(arm.uses > 0 ? arm.uses : 1));
    const double now = tau_ + 1;
    const double then = now + arm.gain + bonus;
    return tokens_to_come * seconds_ * (1 / now - 1 / (then > 1e-3 ? then : 1e-3));
  }
  double gain(DraftUpdate update) const { return arms_[static_cast<int>(update)].gain; }
  std::int64_t uses(DraftUpdate update) const { return arms_[static_cast<int>(update)].uses; }

 private:
  struct Arm {
    double seconds = 0;
    double gain = 0;  // of tau, per use
    std::int64_t uses = 0;
    bool measured = false;
  };
  static constexpr double smooth = 0.05;  // of the running length and time of a step

  UpdateBanditOptions options_;
  Arm arms_[4];
  double tau_ = 0;
  double seconds_ = 0;
  std::vector<double> recent_;
  double recent_sum_ = 0;
  std::int64_t steps_ = 0;
  std::uint64_t signals_ = 0;
  std::int64_t seen_ = 0;
  std::int64_t decisions_ = 0;
  DraftUpdate pending_ = DraftUpdate::none;
  std::int32_t since_ = 0;
  double before_ = 0;
};

}  // namespace decant::speculative

#endif
