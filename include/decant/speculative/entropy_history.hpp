// decant: EntropyHistory, the entropy-history drafting control of AHASD (arXiv 2604.25326; its published simulator): as
// a branch predictor looks at past branches, it looks at how unsure the drafter was in its last eight batches and how
// many wait for verification, and says whether drafting further ahead is worth it. Mode::published is that code's
// arithmetic, with its defect: it trains other counters than it consulted, so it may never say stop. Mode::corrected,
// ours and the default, trains the counter that was consulted, rolls back completely, and now and then tries again.
#ifndef DECANT_SPECULATIVE_ENTROPY_HISTORY_HPP
#define DECANT_SPECULATIVE_ENTROPY_HISTORY_HPP

#include <cstdint>

#include "../core/error.hpp"
#include "control.hpp"
#include "draft_length.hpp"

namespace decant::speculative {

enum class Mode : std::uint8_t { published, corrected };

/// The predictor. Per drafted batch draft(), per verified batch, in order, verified(); a rejected batch takes those that
/// were drafted behind it with it (corrected: they are forgotten, and no result of theirs is reported).
template <Mode M = Mode::corrected>
class EntropyHistory {
 public:
  static constexpr int max_in_flight = 64;

  /// max_entropy, nats: everything above counts alike. probe: of so many consults of one counter that say stop, in a
  /// row, the next says go (corrected).
  explicit EntropyHistory(float max_entropy = 10, std::int32_t probe = 16) : max_entropy_(max_entropy), probe_(probe) {
    constexpr const char* where = "speculative::EntropyHistory";
    require(max_entropy > 0 && max_entropy < 1e30f, where, "max_entropy", "a positive number", max_entropy);
    require(probe >= 1 && probe <= 255, where, "probe", "1 to 255", probe);
    for (auto& counter : counters_) counter = 2;
  }

  /// A batch was drafted whose rows had this mean entropy in nats (NaN: the most). Whether to draft another.
  bool draft(float mean_entropy) {
    const std::uint8_t bucket = bucket_of(mean_entropy);
    if constexpr (M == Mode::corrected) {
      require(waiting_ < max_in_flight, "speculative::EntropyHistory::draft", "this", "at most 64 batches in flight",
              waiting_ + 1);
    }
    live_.push(bucket);
    in_flight_ = in_flight_ < 7 ? in_flight_ + 1 : 7;
    if constexpr (M == Mode::corrected) {
      queue_[(first_ + waiting_) % max_in_flight] = {static_cast<std::uint16_t>(index()), bucket};
      ++waiting_;
    }
    return consult();
  }

  /// Whether to draft another batch as things stand.
  bool consult() {
    const int i = index();
    if (counters_[i] >= 2) {
      stops_[i] = 0;
      return true;
    }
    if constexpr (M == Mode::corrected) {
      if (stops_[i] >= probe_) {
        stops_[i] = 0;
        return true;
      }
      ++stops_[i];
    }
    return false;
  }

  /// The oldest batch in flight was verified. ArgumentError (corrected): there is none.
  void verified(bool accepted) {
    if constexpr (M == Mode::corrected) {
      require(waiting_ > 0, "speculative::EntropyHistory::verified", "this", "a batch in flight", "none");
      const Batch batch = queue_[first_];
      train(batch.index, accepted);
      if (accepted) {
        first_ = (first_ + 1) % max_in_flight;
        --waiting_;
        in_flight_ = in_flight_ > 0 ? in_flight_ - 1 : 0;
        committed_.push(batch.bucket);
      } else {
        waiting_ = 0;
        in_flight_ = 0;
        live_ = committed_;
      }
    } else {
      in_flight_ = in_flight_ > 0 ? in_flight_ - 1 : 0;
      // The ring's position is not rolled back, and what is committed holds unverified batches.
      for (int i = 0; i < 8; ++i) (accepted ? committed_ : live_).slot[i] = (accepted ? live_ : committed_).slot[i];
      train(index(), accepted);
    }
  }

  /// Another text: history and batches in flight are forgotten, what was learnt stays.
  void reset() {
    live_ = {};
    committed_ = {};
    in_flight_ = 0;
    first_ = 0;
    waiting_ = 0;
  }

  /// The counter that consult() looks at: two means of four buckets each, and the batches in flight.
  int index() const { return live_.mean(4) << 6 | live_.mean(0) << 3 | in_flight_; }
  int counter(int index) const { return counters_[index & 511]; }
  int in_flight() const { return M == Mode::corrected ? waiting_ : in_flight_; }

 private:
  struct History {
    std::uint8_t slot[8] = {};
    std::uint8_t at = 0;
    void push(std::uint8_t bucket) {
      slot[at] = bucket;
      at = (at + 1) & 7;
    }
    int mean(int first) const { return (slot[first] + slot[first + 1] + slot[first + 2] + slot[first + 3]) / 4; }
  };
  struct Batch {
    std::uint16_t index = 0;
    std::uint8_t bucket = 0;
  };

  std::uint8_t bucket_of(float entropy) const {
    const float h = entropy != entropy || entropy > max_entropy_ ? max_entropy_ : entropy > 0 ? entropy : 0;
    return static_cast<std::uint8_t>(h / max_entropy_ * 7.99f);
  }
  void train(int index, bool accepted) {
    std::uint8_t& c = counters_[index];
    if (accepted && c < 3) ++c;
    if (!accepted && c > 0) --c;
  }

  float max_entropy_;
  std::int32_t probe_;
  History live_, committed_;
  int in_flight_ = 0;  // saturates at 7
  int first_ = 0;
  int waiting_ = 0;
  Batch queue_[max_in_flight];
  std::uint8_t counters_[512];
  std::uint8_t stops_[512] = {};
};

/// The predictor as a controller of batches of one length. next() is asked before every batch, with the signals of the
/// one before it, and answers that length or nothing (wait for a verification; with none to wait for, decode without a
/// draft); observe() gets the batches' outcomes in order, and an accepted batch is one accepted whole [ours]. The drafter
/// may be ahead of the verifier by any number of batches, or by none: draft, verify, draft.
template <Mode M = Mode::corrected>
class EntropyHistoryController {
 public:
  explicit EntropyHistoryController(std::int32_t length = 4, const EntropyHistory<M>& history = EntropyHistory<M>())
      : length_(length), history_(history) {
    require(length >= 1, "speculative::EntropyHistoryController", "length", "at least 1", length);
  }

  DraftBudget next(const StepSignals& signals) {
    bool go = true;
    if (drafting_ && !signals.entropy.empty()) {
      double bits = 0;
      for (index_t i = 0; i < signals.entropy.size(); ++i) bits += static_cast<double>(signals.entropy[i]);
      go = history_.draft(static_cast<float>(bits / static_cast<double>(signals.entropy.size()) * 0.693147180559945309));
      if (held_) {  // it is verified already
        history_.verified(held_accepted_);
        go = history_.consult();
      }
    } else {
      go = history_.consult();
    }
    held_ = false;
    const DraftBudget budget = go ? clipped(DraftBudget::chain(length_), signals.tokens_left) : DraftBudget{};
    drafting_ = budget.depth > 0;
    return budget;
  }

  void observe(const StepOutcome& outcome) {
    if (outcome.drafted <= 0) return;
    const bool accepted = outcome.accepted == outcome.drafted;
    if (history_.in_flight() > 0) {
      history_.verified(accepted);
    } else {
      held_ = true;
      held_accepted_ = accepted;
    }
  }

  void reset() {
    history_.reset();
    drafting_ = false;
    held_ = false;
  }

  const EntropyHistory<M>& history() const { return history_; }

 private:
  std::int32_t length_;
  EntropyHistory<M> history_;
  bool drafting_ = false;  // the last answer was a batch, whose signals come with the next question
  bool held_ = false;      // its outcome came before them
  bool held_accepted_ = false;
};

static_assert(DraftLengthController<EntropyHistoryController<Mode::corrected>>);
static_assert(DraftLengthController<EntropyHistoryController<Mode::published>>);

}  // namespace decant::speculative

#endif
