// The simulator of bench/speculative: closed forms and bounds that it must keep, and what ThroughputOptimal learns in
// it.
#include <cmath>
#include <vector>

#include "../../../bench/speculative/simulated_steps.hpp"
#include "../../../bench/speculative/two_servers.hpp"
#include "catch_compat.hpp"
#include "decant/speculative/fixed_length.hpp"
#include "decant/speculative/throughput_optimal.hpp"

namespace {

using namespace simulated;

/// Of one value among so many, about the normal's 5: false alarm below 1e-6.
bool near(double measured, double expected, double deviation, double count) {
  return std::abs(measured - expected) < 5 * deviation / std::sqrt(count);
}

TEST_CASE("a fixed length emits (1 - a^(g+1)) / (1 - a) tokens a step") {
  const double a = 0.8;
  const std::vector<Text> texts = make_texts(Process::stationary, 1, 40000, 5, a);
  for (const std::int32_t g : {0, 1, 4, 8}) {
    FixedLength controller{DraftBudget::chain(g)};
    const Served served = serve(controller, texts, CostTable::affine(1, 0.1));
    const auto steps = static_cast<double>(served.steps);
    double mean = 0, square = 0;
    for (std::int32_t k = 0; k <= g; ++k) {
      const double p = std::pow(a, k) * (k < g ? 1 - a : 1);
      mean += p * (k + 1);
      square += p * (k + 1) * (k + 1);
    }
    REQUIRE(std::abs(mean - (1 - std::pow(a, g + 1)) / (1 - a)) < 1e-9);
    REQUIRE(near(served.all_tokens() / steps, mean, std::sqrt(square - mean * mean) + 1e-3, steps));
    REQUIRE(std::abs(served.seconds[0] - (steps + 0.1 * static_cast<double>(served.drafted))) < 1e-6 * steps);
  }
}

TEST_CASE("nobody is faster than the one who knows the future, on any text") {
  const CostTable cost = CostTable::affine(1, 0.3);
  for (const Process process : {Process::drifting, Process::requests, Process::entropy}) {
    const std::vector<Text> texts = make_texts(process, 8, 200, 2);
    const Served bound = clairvoyant(texts, cost, 8);
    const auto below = [&](const Served& served) {
      for (std::size_t r = 0; r < texts.size(); ++r) REQUIRE(bound.seconds[r] <= served.seconds[r] + 1e-9);
    };
    for (const std::int32_t g : {0, 3, 8}) {
      FixedLength controller{DraftBudget::chain(g)};
      below(serve(controller, texts, cost));
    }
    ThroughputOptimal<> learning(cost);
    below(serve(learning, texts, cost));
    below(informed(texts, cost, 8));
  }
}

TEST_CASE("the bootstrap of a run against itself is 1, and of one twice as fast 2") {
  Served a, b;
  for (int i = 0; i < 10; ++i) {
    a.add(10 + i, 1 + i % 3);
    b.add(10 + i, 2 * (1 + i % 3));
  }
  const Interval same = ratio_interval(a, a, 200);
  const Interval twice = ratio_interval(a, b, 200);
  REQUIRE(std::abs(same.low - 1) + std::abs(same.high - 1) < 1e-12);
  REQUIRE(std::abs(twice.low - 2) + std::abs(twice.high - 2) < 1e-12);
}

TEST_CASE("two servers, one batch at a time, are the sum of draft, link and verification") {
  const Text text = make_text(Process::entropy, 600, 0, 9);
  for (const double link : {0.0, 0.125}) {
    const Servers servers{.draft = 0.25, .verify = 1, .link = link, .lead = 1};
    const Traffic t = TwoServers<Mode::corrected>(servers, nullptr, nullptr).run(text);
    // The same steps one by one.
    double steps = 0;
    std::int32_t at = 0;
    for (; at < text.size(); ++steps) at += text.accepted(at, 4) + 1;
    REQUIRE(t.tokens == at);
    REQUIRE(std::abs(t.seconds - steps * (1 + 4 * 0.25 + 2 * link)) < 1e-9 * t.seconds);
    REQUIRE(t.drafted == 4 * steps);
    REQUIRE(std::abs(t.idle - steps * 4 * 0.25) < 1e-9 * t.seconds);
  }
}

TEST_CASE("two servers keep both busy where every token is right, and waste drafts where none is") {
  Text text = make_text(Process::stationary, 4000, 0, 9, 1.0);
  const Servers servers{.draft = 0.25, .verify = 1, .lead = 8};
  const Traffic right = TwoServers<Mode::corrected>(servers, nullptr, nullptr).run(text);
  REQUIRE(std::abs(right.tokens / right.seconds - 4) < 0.02);  // a batch a second, without the target's one more
  REQUIRE(right.wasted < 4 * 8);
  for (auto& r : text.right) r = 0;
  const Traffic wrong = TwoServers<Mode::corrected>(servers, nullptr, nullptr).run(text);
  // Batches of 1.5: the one begun beside a verification ends half a second after its verdict, void.
  const Servers slow{.draft = 0.375, .verify = 1, .lead = 8};
  const Traffic late = TwoServers<Mode::corrected>(slow, nullptr, nullptr).run(text);
  REQUIRE(std::abs(late.tokens / late.seconds - 1.0 / 3) < 1e-3);
  REQUIRE(wrong.wasted == wrong.drafted);
  REQUIRE(wrong.tokens / wrong.seconds < 0.51);  // a draft and a verification per token
}

TEST_CASE("controls of two servers lose no token, and the corrected ones are deterministic") {
  for (std::uint32_t r = 0; r < 20; ++r) {
    const Text text = make_text(Process::entropy, 300, r, 4);
    for (const double draft : {0.05, 0.25, 0.5}) {
      const Servers servers{.draft = draft, .verify = 1, .pre_verify = 0.2, .lead = 32};
      const auto run = [&] {
        EntropyHistory<> history(4);
        PreVerifyPlanner<> planner;
        return TwoServers<Mode::corrected>(servers, &history, &planner).run(text);
      };
      const Traffic t = run();
      REQUIRE(t.tokens >= text.size());
      REQUIRE(t.tokens <= text.size() + servers.length);
      REQUIRE(t.wasted <= t.drafted);
      REQUIRE(t.seconds == run().seconds);
    }
  }
}

TEST_CASE("an estimate that says no draft is put right by drafting one token now and then") {
  // A token costs more than half a step: the prior, 1/2, says no draft, and is wrong.
  const CostTable cost = CostTable::affine(1, 0.52);
  const std::vector<Text> texts = make_texts(Process::stationary, 1, 4000, 3, 0.9);
  ThroughputOptimal<> probing(cost), stubborn(cost, {.probe = 0});
  const Served learnt = serve(probing, texts, cost);
  REQUIRE(serve(stubborn, texts, cost).drafted == 0);
  FixedLength one{DraftBudget::chain(1)}, none{DraftBudget::chain(0)};
  REQUIRE(learnt.rate() > 1.15 * serve(none, texts, cost).rate());
  REQUIRE(learnt.rate() > 0.98 * serve(one, texts, cost).rate());
  // And where no draft is right, looking costs next to nothing: a token in 33 steps.
  const std::vector<Text> hard = make_texts(Process::stationary, 1, 4000, 3, 0.1);
  ThroughputOptimal<> looking(cost);
  const Served looked = serve(looking, hard, cost);
  REQUIRE(looked.drafted > 0);
  REQUIRE(looked.drafted <= looked.steps / 33 + 2);
  // Where a token costs more than a step, not even a sure one pays.
  ThroughputOptimal<> knowing(CostTable::affine(1, 1.01));
  REQUIRE(serve(knowing, texts, CostTable::affine(1, 1.01)).drafted == 0);
  REQUIRE_THROWS_AS(ThroughputOptimal<>(cost, {.probe = -1}), decant::ArgumentError);
}

}  // namespace
