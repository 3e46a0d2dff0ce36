// AHASD's arrangement (arXiv 2604.25326) as a discrete-event simulation: one server drafts batches, another verifies
// them in order, and the first need not wait for the second. A batch that was begun is drafted to its end even where it
// is void by then. Ours, as the paper leaves it open: a batch accepted whole emits its own tokens, and the target's one
// more only if nothing was drafted behind it (whatever was rests on another token there); a rejected one emits the
// accepted tokens and the target's. Pre-verification is the target's verdict, on the drafting server, on tokens of the
// batch that waits first; a wrong one found there settles its batch, and drafting resumes behind it at once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>

#include "decant/speculative/entropy_history.hpp"
#include "decant/speculative/pre_verify.hpp"
#include "served.hpp"
#include "simulated_text.hpp"

namespace simulated {

using decant::speculative::EntropyHistory;
using decant::speculative::Mode;
using decant::speculative::PreVerifyPlanner;

struct Servers {
  std::int32_t length = 4;  ///< of a batch
  double draft = 0.25;      ///< seconds per drafted token
  double verify = 1;        ///< of a batch
  double pre_verify = 0.25; ///< per token
  double link = 0;          ///< each way, per verification
  std::int32_t lead = 1;    ///< batches drafted and not verified, at most; 1: draft, verify, draft
};

struct Traffic {
  double tokens = 0, seconds = 0;
  double drafted = 0;   ///< tokens
  double wasted = 0;    ///< drafted tokens that were not emitted
  double idle = 0;      ///< seconds of the verifier
  double pre_verified = 0;
};

template <Mode M>
class TwoServers {
 public:
  /// history, planner: null for a drafter that never waits of itself, and never pre-verifies.
  TwoServers(const Servers& servers, EntropyHistory<M>* history, PreVerifyPlanner<M>* planner)
      : servers_(servers), history_(history), planner_(planner) {}

  Traffic run(const Text& text) {
    Traffic out;
    std::deque<Batch> queue;  // the verifier works on the first one
    std::int32_t next = 0;    // where drafting goes on
    bool go = true;
    double now = 0, drafting_until = never, verifying_until = never, verifying_since = 0;
    std::int32_t job = 0;     // of the drafting server: tokens to draft, or, negative, to pre-verify; 0: none
    bool job_void = false;
    double accepted = 0;
    if (history_) history_->reset();
    const auto report = [&](bool whole) {
      if (!history_) return;
      if (M == Mode::published || history_->in_flight() > 0) history_->verified(whole);
      go = history_->consult();
    };
    // The first batch's fate is known.
    const auto settle = [&](bool drop_behind) {
      const Batch batch = queue.front();
      queue.pop_front();
      const std::int32_t tau = text.accepted(batch.start, batch.length);
      const bool whole = tau == batch.length;
      accepted += tau;
      out.tokens += tau;
      if (!whole && drop_behind) {
        queue.clear();
        next = batch.start + tau + 1;
        job_void = job != 0;
      }
      if (!whole) out.tokens += 1;
      if (whole && queue.empty() && job <= 0 && next == batch.start + batch.length) {
        out.tokens += 1;
        ++next;
      }
      report(whole);
    };
    while (out.tokens < text.size()) {
      if (verifying_until == never && !queue.empty()) {
        if (queue.front().settled) {
          settle(false);
          continue;
        }
        verifying_since = now;
        verifying_until = now + servers_.verify + 2 * servers_.link;
      }
      if (job == 0) {
        job_void = false;
        if (planner_ && verifying_until != never && queue.size() >= 2 && !queue[1].settled) {
          const Batch& waiting = queue[1];
          const std::int32_t n =
              planner_->plan(now - verifying_since, 1000 + waiting.start, waiting.length - waiting.checked);
          if (n > 0) {
            job = -n;
            drafting_until = now + n * servers_.pre_verify;
          }
        }
        const auto ahead = static_cast<std::int32_t>(queue.size());
        if (job == 0 && ahead < servers_.lead && (go || ahead == 0)) {
          job = servers_.length;
          drafting_until = now + job * servers_.draft;
        }
      }
      const double then = (std::min)(drafting_until, verifying_until);
      if (verifying_until == never) out.idle += then - now;
      now = then;
      if (drafting_until <= now) {
        drafting_until = never;
        const std::int32_t done = job;
        job = 0;
        if (done > 0) {
          out.drafted += done;
          if (planner_) planner_->drafted(done * servers_.draft, done);
          if (planner_ && out.pre_verified == 0) planner_->pre_verified(servers_.pre_verify, 1);
          if (!job_void) {
            queue.push_back({next, done, 0, false});
            if (history_) go = history_->draft(mean_entropy(text, next, done));
            next += done;
          }
        } else {
          planner_->pre_verified(-done * servers_.pre_verify, -done);
          out.pre_verified -= done;
          if (!job_void && queue.size() >= 2) check(text, queue, -done, next);
        }
        job_void = false;
      }
      if (verifying_until <= now) {
        verifying_until = never;
        if (planner_) planner_->verified(now - verifying_since, 1000 + queue.front().start);
        settle(true);
      }
    }
    out.seconds = now;
    out.wasted = out.drafted - accepted;
    return out;
  }

 private:
  struct Batch {
    std::int32_t start = 0, length = 0;
    std::int32_t checked = 0;  // pre-verified tokens, all right
    bool settled = false;
  };
  static constexpr double never = 1e300;

  static void check(const Text& text, std::deque<Batch>& queue, std::int32_t count, std::int32_t& next) {
    Batch& batch = queue[1];
    const std::int32_t right = text.accepted(batch.start + batch.checked, count);
    batch.checked += right;
    if (right < count) {
      batch.settled = true;
      next = batch.start + batch.checked + 1;
      queue.resize(2);
    } else if (batch.checked == batch.length) {
      batch.settled = true;
    }
  }
  static float mean_entropy(const Text& text, std::int32_t at, std::int32_t count) {  // nats
    double bits = 0;
    for (std::int32_t i = 0; i < count; ++i) {
      bits += static_cast<double>(text.entropy[static_cast<std::size_t>((at + i) % text.size())]);
    }
    return static_cast<float>(bits / count * 0.693147180559945309);
  }

  Servers servers_;
  EntropyHistory<M>* history_;
  PreVerifyPlanner<M>* planner_;
};

}  // namespace simulated
