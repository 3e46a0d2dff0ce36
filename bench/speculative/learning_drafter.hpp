// A drafter that forgets and can be taught, for UpdateBandit: the text moves to another domain every 2,000 steps, where
// what the drafter had gained is gone; an update restores part of what is left to gain, at a price. Ours: constants are
// SpecBlock's step (1.37 plain steps for about 4.41 tokens) and the shares of time that its updates imply: an update of
// the output head every 64 steps takes 5 % of the time, one of the whole drafter 10 %.
#pragma once

#include <cstdint>

#include "decant/core/random.hpp"
#include "decant/speculative/update_bandit.hpp"

namespace simulated {

using decant::speculative::DraftUpdate;

/// What the drafter is like at one moment.
struct LearningDrafter {
  static constexpr std::int32_t slots = 8;
  static constexpr std::int32_t domain = 2000;  ///< steps
  static constexpr double step = 1.37;          ///< seconds, a plain step being one
  double taught = 0.8145;                       ///< at best: 4.6 tokens a step
  double stale = 0.8035;                        ///< probability of a token's acceptance, untaught: 4.41 tokens a step
  double learnt = 0;                            ///< of the difference, 0 to 1

  static double price(DraftUpdate u) { return (u == DraftUpdate::whole ? 0.10 / 0.90 : 0.05 / 0.95) * 64 * step; }
  double probability() const { return stale + (taught - stale) * learnt; }
  /// Of rejections: what an update may put right.
  double fixable() const { return 0.05 + 0.4 * (1 - learnt); }
  void teach(DraftUpdate u) { learnt += (1 - learnt) * (u == DraftUpdate::whole ? 0.75 : 0.6); }
};

struct Lesson {
  double tokens = 0, seconds = 0, spent = 0;  ///< spent: seconds of updates
  std::int64_t updates = 0;
};

/// seen(accepted, rejected, fixable) is told of every step, and decide(step, tokens to come) says which update follows
/// it.
template <class Decide, class Seen>
Lesson teach(double taught, std::int32_t steps, std::uint32_t request, const Decide& decide, const Seen& seen) {
  const decant::Philox random{11};
  LearningDrafter drafter{.taught = taught};
  Lesson lesson;
  for (std::int32_t s = 0; s < steps; ++s) {
    if (s % LearningDrafter::domain == 0) drafter.learnt = 0;
    std::int32_t accepted = 0;
    while (accepted < LearningDrafter::slots &&
           random.uniform_double(static_cast<std::uint32_t>(accepted), static_cast<std::uint32_t>(s), request) <
               drafter.probability()) {
      ++accepted;
    }
    const bool rejected = accepted < LearningDrafter::slots;
    const bool fixable = random.uniform_double(99, static_cast<std::uint32_t>(s), request) < drafter.fixable();
    lesson.tokens += accepted + 1;
    lesson.seconds += LearningDrafter::step;
    seen(accepted, rejected, fixable);
    const DraftUpdate update = decide(s, (steps - s) * (lesson.tokens / (s + 1)));
    if (update == DraftUpdate::none) continue;
    drafter.teach(update);
    lesson.spent += LearningDrafter::price(update);
    lesson.seconds += LearningDrafter::price(update);
    ++lesson.updates;
  }
  return lesson;
}

}  // namespace simulated
