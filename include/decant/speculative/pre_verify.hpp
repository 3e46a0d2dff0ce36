// decant: PreVerifyPlanner, the time-aware pre-verification control of AHASD (arXiv 2604.25326; its published
// simulator): while the verifier is busy, the drafter's side may verify a few of its waiting tokens itself, with the
// target's weights, if it will be done and has drafted one more token before the verifier comes free. Mode::published
// pre-verifies one token even where the time is too short for it; Mode::corrected, ours and the default, does not.
#ifndef DECANT_SPECULATIVE_PRE_VERIFY_HPP
#define DECANT_SPECULATIVE_PRE_VERIFY_HPP

#include <cstdint>

#include "../core/error.hpp"
#include "../core/view.hpp"
#include "entropy_history.hpp"

namespace decant::speculative {

/// Times are in any unit, one for all.
template <Mode M = Mode::corrected>
class PreVerifyPlanner {
 public:
  static constexpr std::int32_t max_length = 8;

  /// cautious: pre-verifies only where two tokens more would fit.
  explicit PreVerifyPlanner(bool cautious = false) : cautious_(cautious) {}

  /// Measurements: the time of a verification behind so many cached tokens, of a draft of so many tokens, of a
  /// pre-verification of so many. Lengths of 0 are left out, and so are times that are no times.
  void verified(double time, index_t cached) { verify_.add(time, cached); }
  void drafted(double time, index_t tokens) { draft_.add(time, tokens); }
  void pre_verified(double time, index_t tokens) { pre_verify_.add(time, tokens); }

  /// How many of `pending` drafted tokens to pre-verify, when a verification behind `cached` tokens has run for
  /// `elapsed`. 0: none, draft on. O(1).
  std::int32_t plan(double elapsed, index_t cached, std::int32_t pending) const {
    if (pending <= 0 || verify_.empty() || draft_.empty() || pre_verify_.empty()) return 0;
    const double per_token = pre_verify_.rate();
    const double left = predicted(cached) - elapsed - draft_.rate();
    if (!(left > 0)) return 0;
    if (cautious_ && !(2 * per_token + draft_.rate() < left)) return 0;
    const std::int32_t most = pending < max_length ? pending : max_length;
    std::int32_t length = 0;
    while (length < most && (length + 1) * per_token <= left) ++length;
    if constexpr (M == Mode::published) {
      if (length == 0) length = 1;
    }
    return length;
  }

  /// When a verification behind `cached` tokens will have ended, from its start.
  double predicted(index_t cached) const { return verify_.rate() * static_cast<double>(cached); }
  double draft_rate() const { return draft_.rate(); }
  double pre_verify_rate() const { return pre_verify_.rate(); }

 private:
  /// The last four measurements.
  struct Table {
    double per_unit[4] = {};
    std::int32_t count = 0;
    std::int32_t at = 0;

    void add(double time, index_t length) {
      if (length <= 0 || !(time >= 0 && time < 1e300)) return;
      per_unit[at] = time / static_cast<double>(length);
      at = (at + 1) & 3;
      count = count < 4 ? count + 1 : 4;
    }
    bool empty() const { return count == 0; }
    double rate() const {
      double sum = 0;
      for (std::int32_t i = 0; i < count; ++i) sum += per_unit[i];
      return count > 0 ? sum / count : 0;
    }
  };

  bool cautious_;
  Table verify_, draft_, pre_verify_;
};

}  // namespace decant::speculative

#endif
