// AHASD's two controls: the published traces of the drafting control, its defect and our correction, properties under
// random results; and pre-verification, which must never be late.
#include <cmath>
#include <deque>
#include <vector>

#include "catch_compat.hpp"
#include "decant/core/random.hpp"
#include "decant/speculative/pre_verify.hpp"

namespace {

using namespace decant::speculative;
using decant::ArgumentError;
using decant::Philox;
using decant::View;

const float entropies[8] = {1, 2, 8, 8, 8, 1, 9.5f, 9.5f};
const bool results[8] = {true, true, false, false, false, true, false, false};

/// Which counter changed since `before`; -1: none.
template <Mode M>
int trained(const EntropyHistory<M>& h, const std::vector<int>& before) {
  for (int i = 0; i < 512; ++i) {
    if (h.counter(i) != before[static_cast<std::size_t>(i)]) return i;
  }
  return -1;
}

template <Mode M>
std::vector<int> counters(const EntropyHistory<M>& h) {
  std::vector<int> all(512);
  for (int i = 0; i < 512; ++i) all[static_cast<std::size_t>(i)] = h.counter(i);
  return all;
}

TEST_CASE("the published trace: what is trained is not what was consulted, and nothing is ever suppressed") {
  EntropyHistory<Mode::published> h;
  const int consulted[8] = {1, 1, 9, 9, 65, 1, 65, 65};
  const int counter0[8] = {3, 3, 2, 1, 0, 1, 0, 0};  // training at index 0 throughout
  for (int i = 0; i < 8; ++i) {
    REQUIRE(h.draft(entropies[i]));
    REQUIRE(h.index() == consulted[i]);
    h.verified(results[i]);
    REQUIRE(h.index() == 0);
    REQUIRE(h.counter(0) == counter0[i]);
    for (int k = 1; k < 512; ++k) REQUIRE(h.counter(k) == 2);
  }
}

TEST_CASE("the corrected trace trains what it consulted, and suppresses") {
  EntropyHistory<> h;
  const int consulted[8] = {1, 1, 9, 9, 9, 1, 17, 17};
  const bool decisions[8] = {true, true, true, false, false, true, true, false};
  for (int i = 0; i < 8; ++i) {
    const auto before = counters(h);
    REQUIRE(h.draft(entropies[i]) == decisions[i]);
    REQUIRE(h.index() == consulted[i]);
    h.verified(results[i]);
    const int changed = trained(h, before);
    const int now = h.counter(consulted[i]);
    if (changed < 0) REQUIRE((results[i] ? now == 3 : now == 0));  // saturated
    else REQUIRE(changed == consulted[i]);
  }
  REQUIRE_THROWS_AS(h.verified(true), ArgumentError);
}

TEST_CASE("counters saturate, and outlive a reset") {
  EntropyHistory<> h;
  for (int i = 0; i < 12; ++i) {
    h.draft(0);
    h.verified(true);
  }
  REQUIRE(h.counter(1) == 3);
  for (const int left : {2, 1, 0, 0, 0}) {
    h.draft(0);
    h.verified(false);
    REQUIRE(h.counter(1) == left);
  }
  h.draft(9);
  h.reset();
  REQUIRE(h.in_flight() == 0);
  REQUIRE(h.index() == 0);
  REQUIRE(h.counter(1) == 0);
}

TEST_CASE("entropies out of range count as the nearest, NaN as the most") {
  const float values[] = {-3, 0, 1.25f, 1.26f, 10, 1e30f, NAN, INFINITY};
  const int buckets[] = {0, 0, 0, 1, 7, 7, 7, 7};
  for (int i = 0; i < 8; ++i) {
    EntropyHistory<> h;
    for (int k = 0; k < 4; ++k) h.draft(values[i]);
    REQUIRE(h.index() == (buckets[i] << 3 | 4));
  }
  REQUIRE_THROWS_AS(EntropyHistory<>(0), ArgumentError);
  REQUIRE_THROWS_AS(EntropyHistory<>(10, 0), ArgumentError);
}

TEST_CASE("a rejection restores exactly what was committed") {
  const Philox random{11};
  EntropyHistory<> h;
  std::deque<int> flying;                 // buckets
  std::vector<int> slots(8), live_slots;  // what is committed, naively: every bucket ever accepted, in a ring of eight
  std::size_t at = 0;
  int rejections = 0;
  const auto expect = [&](std::size_t in_flight) {
    live_slots = slots;
    std::size_t p = at;
    for (const int b : flying) {
      live_slots[p] = b;
      p = (p + 1) % 8;
    }
    int low = 0, high = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      low += live_slots[i];
      high += live_slots[4 + i];
    }
    return (high / 4) << 6 | (low / 4) << 3 | static_cast<int>(in_flight < 7 ? in_flight : 7);
  };
  for (std::uint32_t i = 0; i < 20000; ++i) {
    if (flying.size() < 7 && (flying.empty() || random.uniform(0, i) < 0.6f)) {
      const int bucket = static_cast<int>(random.uniform(1, i) * 8);
      h.draft((static_cast<float>(bucket) + 0.5f) / 7.99f * 10);
      flying.push_back(bucket);
    } else {
      const bool accepted = random.uniform(2, i) < 0.7f;
      h.verified(accepted);
      if (accepted) {
        slots[at] = flying.front();
        at = (at + 1) % 8;
        flying.pop_front();
      } else {
        flying.clear();
        ++rejections;
      }
    }
    REQUIRE(h.in_flight() == static_cast<int>(flying.size()));
    REQUIRE(h.index() == expect(flying.size()));
  }
  REQUIRE(rejections > 1000);
}

TEST_CASE("all accepted: never suppressed; a pattern rejected again and again: suppressed within two, and tried again") {
  const Philox random{12};
  EntropyHistory<> h;
  for (std::uint32_t i = 0; i < 3000; ++i) {
    REQUIRE(h.draft(12 * random.uniform(0, i)));
    if (random.uniform(1, i) < 0.5f || h.in_flight() > 5) h.verified(true);
  }
  EntropyHistory<> bad;
  bool go = true;
  int allowed = 0;
  for (int i = 0; i < 2; ++i) {
    go = bad.draft(9);
    allowed += go;
    bad.verified(false);
  }
  REQUIRE(allowed == 1);
  int stops = 0;
  for (int i = 0; i < 170; ++i) {
    if (!bad.draft(9)) ++stops;
    bad.verified(false);
  }
  REQUIRE(stops == 160);  // one probe behind every sixteen stops: 15 of the first, then 16
}

TEST_CASE("the queue of batches has an end") {
  EntropyHistory<> h;
  for (int i = 0; i < 64; ++i) h.draft(1);
  REQUIRE_THROWS_AS(h.draft(1), ArgumentError);
  REQUIRE(h.in_flight() == 64);
  for (int i = 0; i < 64; ++i) h.verified(true);
  REQUIRE(h.in_flight() == 0);
}

TEST_CASE("as a controller it answers for batches, ahead of the verifier or not") {
  const std::vector<float> nine(3, 9 / 0.6931472f);  // bits
  const StepSignals unsure{View<const float, 1>(nine)};
  // Draft, verify, draft: the outcome comes before the signals are shown.
  EntropyHistoryController<> c(3);
  REQUIRE(c.next({}) == DraftBudget::chain(3));
  c.observe({3, 0, 0});
  REQUIRE(c.history().counter(8 | 1) == 2);
  c.next(unsure);
  REQUIRE(c.history().counter(8 | 1) == 1);  // 7 / 4 = 1 in one of four slots
  REQUIRE(c.history().in_flight() == 0);
  // Two ahead.
  EntropyHistoryController<> ahead(2);
  REQUIRE(ahead.next({}).depth == 2);
  REQUIRE(ahead.next(unsure).depth == 2);
  REQUIRE(ahead.next(unsure).depth == 2);
  REQUIRE(ahead.history().in_flight() == 2);
  ahead.observe({2, 2, 0});
  REQUIRE(ahead.history().in_flight() == 1);
  ahead.observe({2, 1, 0});
  REQUIRE(ahead.history().in_flight() == 0);
  REQUIRE(ahead.history().counter(8 | 1) == 3);
  REQUIRE(ahead.next({.tokens_left = 2}) == DraftBudget::chain(1));
  REQUIRE_THROWS_AS(EntropyHistoryController<>(0), ArgumentError);
}

TEST_CASE("pre-verification is planned from the last four measurements of each kind") {
  PreVerifyPlanner<> p;
  REQUIRE(p.plan(0, 100, 8) == 0);
  p.verified(200, 100);
  p.drafted(12, 4);
  REQUIRE(p.plan(0, 100, 8) == 0);  // a table is empty
  p.pre_verified(20, 2);
  p.pre_verified(99, 0);  // no length: left out
  REQUIRE(p.plan(0, 100, 8) == 8);
  REQUIRE(p.plan(0, 100, 5) == 5);
  REQUIRE(p.plan(0, 100, 0) == 0);
  REQUIRE(p.plan(157, 100, 8) == 4);   // 200 - 157 - 3 = 40
  REQUIRE(p.plan(187, 100, 8) == 1);
  REQUIRE(p.plan(188, 100, 8) == 0);   // nine left, a token takes ten
  REQUIRE(p.plan(200, 100, 8) == 0);
  for (const double t : {300.0, 500.0, 300.0, 500.0}) p.verified(t, 100);
  REQUIRE(p.predicted(50) == 200);  // the first is forgotten
  PreVerifyPlanner<Mode::published> published;
  published.verified(200, 100);
  published.drafted(3, 1);
  published.pre_verified(10, 1);
  REQUIRE(published.plan(188, 100, 8) == 1);  // and will be late
  REQUIRE(published.plan(197, 100, 8) == 0);
  PreVerifyPlanner<> cautious(true);
  cautious.verified(200, 100);
  cautious.drafted(3, 1);
  cautious.pre_verified(10, 1);
  REQUIRE(cautious.plan(174, 100, 8) == 0);  // 23 left: needs more than 23
  REQUIRE(cautious.plan(173, 100, 8) == 2);
}

TEST_CASE("what is pre-verified ends, with one more drafted token, before the verification does") {
  const Philox random{13};
  int planned = 0, late = 0;
  for (std::uint32_t i = 0; i < 20000; ++i) {
    PreVerifyPlanner<> p;
    PreVerifyPlanner<Mode::published> published;
    for (std::uint32_t k = 0; k < 5; ++k) {
      const double v = 100 * random.uniform_double(3 * k, i), d = 9 * random.uniform_double(3 * k + 1, i),
                   t = 40 * random.uniform_double(3 * k + 2, i);
      p.verified(v, 1 + k), p.drafted(d, 1 + k), p.pre_verified(t, 1 + k);
      published.verified(v, 1 + k), published.drafted(d, 1 + k), published.pre_verified(t, 1 + k);
    }
    const double elapsed = 300 * random.uniform_double(20, i);
    const std::int32_t n = p.plan(elapsed, 10, 12);
    REQUIRE(n <= 8);
    planned += n > 0;
    const auto end = [&](std::int32_t length) { return elapsed + length * p.pre_verify_rate() + p.draft_rate(); };
    if (n > 0) REQUIRE(end(n) <= p.predicted(10) * (1 + 1e-12));
    if (n > 0 && n < 8) REQUIRE(end(n + 1) >= p.predicted(10) * (1 - 1e-12));
    late += end(published.plan(elapsed, 10, 12)) > p.predicted(10) && published.plan(elapsed, 10, 12) > 0;
  }
  REQUIRE(planned > 2000);
  REQUIRE(late > 100);
}

}  // namespace
