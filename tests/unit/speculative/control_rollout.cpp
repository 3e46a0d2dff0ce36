// Speculation in rollouts: lengths by batch size, patience, the long tail, what the learner is told, and the bandit that
// decides on updates of the drafter.
#include <cmath>
#include <vector>

#include "catch_compat.hpp"
#include "decant/speculative/rollout.hpp"
#include "decant/speculative/update_bandit.hpp"
#include "decant/speculative/verify.hpp"
#include "oracle/drafted_trees.hpp"

namespace {

using namespace drafted_trees;

/// A model of 8B parameters on a processor with 300 operations per byte.
const Roofline model{16e9, 1e5, 8e9, 1e12, 3e14, 0, 1e-3};

TEST_CASE("no draft for a large batch that is bound by arithmetic, long ones for the last request") {
  REQUIRE_THROWS_AS(RolloutController(CostTable{}), ArgumentError);
  RolloutController c(model);
  for (int i = 0; i < 200; ++i) c.observe({8, i % 5 == 0 ? 2 : 6, 0});
  REQUIRE(c.next({.batch = 1}).depth >= 4);
  RolloutController large(model);
  for (int i = 0; i < 200; ++i) large.observe({8, i % 5 == 0 ? 2 : 6, 0});
  REQUIRE(large.next({.batch = 512}) == DraftBudget{});
  // As a batch drains the length never falls.
  std::int32_t last = 0;
  for (std::int32_t batch = 512; batch > 0; batch /= 2) {
    large.next({.batch = batch});
    const std::int32_t g = large.next({.batch = batch}).depth;
    REQUIRE(g >= last);
    last = g;
  }
  REQUIRE(last == c.next({.batch = 1}).depth);
}

TEST_CASE("a length changes when two steps in a row want it to") {
  RolloutController c(model);
  for (int i = 0; i < 200; ++i) c.observe({8, 6, 0});
  const std::int32_t small = c.next({.batch = 1}).depth;
  REQUIRE(small > 0);
  REQUIRE(c.next({.batch = 512}).depth == small);
  REQUIRE(c.next({.batch = 1}).depth == small);    // it was a single step
  REQUIRE(c.next({.batch = 512}).depth == small);
  REQUIRE(c.next({.batch = 512}).depth == 0);
  RolloutController hasty(model, RolloutOptions{.patience = 1});
  for (int i = 0; i < 200; ++i) hasty.observe({8, 6, 0});
  REQUIRE(hasty.next({.batch = 1}).depth == small);
  REQUIRE(hasty.next({.batch = 512}).depth == 0);
}

TEST_CASE("for the makespan a request counts as much as it has left to say") {
  const std::vector<double> good(8, 0.95), bad(8, 0.05);
  const View<const double, 1> g(good), b(bad);
  const CostTable cost = CostTable::affine(1, 0.3);
  const auto chosen = [&](RolloutObjective objective, double good_left, double bad_left) {
    RolloutController c(cost, RolloutOptions{.objective = objective});
    const RolloutRequest requests[] = {{g, good_left}, {b, bad_left}, {b, bad_left}, {b, bad_left}};
    return c.next({.batch = 4}, View<const RolloutRequest, 1>(requests, 4)).depth;
  };
  REQUIRE(chosen(RolloutObjective::throughput, 1e4, 10) == 0);
  REQUIRE(chosen(RolloutObjective::makespan, 1e4, 10) == 8);
  REQUIRE(chosen(RolloutObjective::makespan, 10, 1e4) == 0);
  // Alone, or with equal weights of equals, it is the rule for one request.
  const std::int32_t affine = stopping_length(g, 1, 0.3);
  RolloutController alone(cost);
  const RolloutRequest one{g, 7};
  REQUIRE(alone.next({}, View<const RolloutRequest, 1>(&one, 1)).depth == affine);
  REQUIRE_THROWS_AS(alone.next({}, View<const RolloutRequest, 1>{}), ArgumentError);
  const RolloutRequest nonsense{g, NAN};
  REQUIRE_THROWS_AS(alone.next({}, View<const RolloutRequest, 1>(&nonsense, 1)), ArgumentError);
}

TEST_CASE("the learner gets the log-probability of the row at which each token was emitted") {
  Cpu cpu;
  const Models models{64, Philox{5}};
  int accepted = 0, after_rejection = 0, bonus = 0;
  for (std::uint32_t step = 0; step < 60; ++step) {
    const Problem x = drafted(models, {3, 2}, Law::without_replacement, step);
    DraftForest forest;
    forest.add(x.tree.view());
    const ForestView trees = forest.view();
    Results r(1, 2);
    verify(cpu, RRSw{}, trees, x.target(), x.q.view(),
           DrawKeys{Philox{1}, {}, View<const std::uint32_t, 1>(&step, 1)}, r.view());
    // Raw logits whose law differs from the processed one: temperature 1 against 2, shifted.
    std::vector<float> raw(x.p.size());
    for (std::size_t i = 0; i < raw.size(); ++i) raw[i] = 2 * std::log(std::fmax(x.p[i], 1e-30f)) + 3;
    const View<const float, 2> logits(raw.data(), x.tree.nodes(), 64);
    RolloutAccounting accounting;
    accounting.on_weights(7, 5);
    std::vector<RolloutToken> out;
    REQUIRE(accounting.record(cpu, accounting.begin(), trees, x.target(), logits, r.view(), out));
    REQUIRE(out.size() == static_cast<std::size_t>(r.length[0] + 1));
    std::int32_t node = 0;
    for (std::size_t k = 0; k < out.size(); ++k) {
      // The node is found again by walking down the tree along the tokens.
      const float* const row = x.p.data() + 64 * node;
      const auto token = static_cast<std::size_t>(r.tokens[k]);
      REQUIRE(out[k].token == r.tokens[k]);
      REQUIRE(out[k].log_probability == std::log(row[token]));
      REQUIRE(out[k].accepted == (k + 1 < out.size()));
      REQUIRE(out[k].policy_version == 7);
      REQUIRE(out[k].draft_version == 5);
      double squares = 0;
      for (std::size_t y = 0; y < 64; ++y) squares += std::pow(std::fmax(static_cast<double>(row[y]), 1e-30), 2);
      REQUIRE(static_cast<double>(out[k].raw_log_probability) ==
              Approx(2 * std::log(static_cast<double>(row[token])) - std::log(squares)).margin(1e-4));
      if (k + 1 < out.size()) {
        ++accepted;
        for (std::int32_t c = 1; c < x.tree.nodes(); ++c) {
          if (x.tree.parent(c) == node && x.tree.token(c) == r.tokens[k]) {
            node = c;
            break;
          }
        }
      } else {
        (x.tree.depth(node) == 2 ? bonus : after_rejection)++;
      }
    }
    out.clear();
    REQUIRE(accounting.record(cpu, accounting.begin(), trees, x.target(), {}, r.view(), out));
    REQUIRE(std::isnan(out[0].raw_log_probability));
  }
  REQUIRE(accepted > 20);
  REQUIRE(after_rejection > 5);
  REQUIRE(bonus > 5);
}

TEST_CASE("weights that change during a step void it, and the drafter's state") {
  Cpu cpu;
  const Problem x = drafted(Models{16, Philox{5}}, {1, 1}, Law::chain, 0);
  DraftForest forest;
  forest.add(x.tree.view());
  Results r(1, 2);
  RolloutAccounting accounting;
  accounting.on_weights(1, 1);
  accounting.draft_state_rebuilt();
  const auto step = accounting.begin();
  verify(cpu, ChainRejection{}, forest.view(), x.target(), x.q.view(), DrawKeys{}, r.view());
  std::vector<RolloutToken> out;
  accounting.on_weights(1, 2);  // a newer drafter: the draft came from the old one, and says so
  REQUIRE(accounting.draft_state_valid());
  REQUIRE(accounting.record(cpu, step, forest.view(), x.target(), {}, r.view(), out));
  REQUIRE(out[0].draft_version == 1);
  out.clear();
  accounting.on_weights(2, 2);
  REQUIRE_FALSE(accounting.draft_state_valid());
  REQUIRE_FALSE(accounting.record(cpu, step, forest.view(), x.target(), {}, r.view(), out));
  REQUIRE(out.empty());
  accounting.draft_state_rebuilt();
  REQUIRE(accounting.draft_state_valid());
  r.length[0] = -1;  // a request that failed
  REQUIRE(accounting.record(cpu, accounting.begin(), forest.view(), x.target(), {}, r.view(), out));
  REQUIRE(out.empty());
  const View<const float, 2> short_rows(x.p.data(), 2, 16);
  REQUIRE_THROWS_AS(accounting.record(cpu, step, forest.view(), short_rows, {}, r.view(), out), ArgumentError);
}

TEST_CASE("a hostile drafter and a controller that reacts to it leave the law alone", "[statistics]") {
  Cpu cpu;
  const std::vector<float> rows{0.5f, 0.3f, 0.15f, 0.05f, 0.05f, 0.05f, 0.2f, 0.7f};  // p, and q that favours the rest
  RolloutController c(CostTable::affine(1, 0.02));
  std::vector<std::int64_t> counts(4);
  const int steps = 6000;
  int drafted_tokens = 0;
  for (std::uint32_t step = 0; step < steps; ++step) {
    const std::int32_t g = c.next({}).depth;
    const Problem x = drafted(Models{4}, std::vector<std::int32_t>(static_cast<std::size_t>(g), 1), Law::chain, step, rows);
    DraftForest forest;
    forest.add(x.tree.view());
    Results r(1, g);
    verify(cpu, ChainRejection{}, forest.view(), x.target(), x.q.view(),
           DrawKeys{Philox{9}, {}, View<const std::uint32_t, 1>(&step, 1)}, r.view());
    REQUIRE(r.status[0] == Status::ok);
    c.observe({g, r.length[0], 0});
    ++counts[static_cast<std::size_t>(r.tokens[0])];
    drafted_tokens += g;
  }
  double chi = 0;
  for (std::size_t y = 0; y < 4; ++y) {
    const double expected = steps * static_cast<double>(rows[y]);
    chi += std::pow(static_cast<double>(counts[y]) - expected, 2) / expected;
  }
  REQUIRE(chi < 27.8);  // three degrees of freedom: false alarm 4e-6
  REQUIRE(drafted_tokens > steps / 2);
}

const UpdateBanditOptions costs{.output_head_seconds = 5, .whole_seconds = 15, .window = 1};

/// One step of tau accepted tokens in one second, rejected where an update might help or not.
void step(UpdateBandit& b, int tau, bool fixable = true) {
  b.observe({8, tau, 1});
  b.rejected(fixable);
}

TEST_CASE("no update costs more than all that is left to do, and none is made without a signal") {
  for (const double left : {1.0, 10.0, 100.0, 1000.0}) {
    UpdateBandit b({.output_head_seconds = left / 4 + 0.001, .exploration = 1e9, .window = 1});
    step(b, 3);
    for (int i = 0; i < 100; ++i) REQUIRE(b.choose(left) == DraftUpdate::none);
    UpdateBandit cheaper({.output_head_seconds = left / 4 - 0.001, .exploration = 1e9, .window = 1});
    step(cheaper, 3);
    REQUIRE(cheaper.choose(left) == DraftUpdate::output_head);
  }
  UpdateBandit deaf(costs);
  for (int i = 0; i < 200; ++i) step(deaf, 3, i % 11 == 0);
  REQUIRE(deaf.signal() < 0.1);
  REQUIRE(deaf.choose(1e9) == DraftUpdate::none);
  for (int i = 0; i < 64; ++i) step(deaf, 3, i % 8 == 0);
  REQUIRE(deaf.signal() == 0.125);
  REQUIRE(deaf.choose(1e9) != DraftUpdate::none);
  UpdateBandit fresh(costs);
  REQUIRE(fresh.choose(1e9) == DraftUpdate::none);  // no step was seen
}

TEST_CASE("updates that gain nothing are given up") {
  const double horizon = 1000;
  for (const int after : {3, 2}) {  // of no effect, or harmful for a step
    UpdateBandit b(costs);
    int pulls = 0;
    step(b, 3);
    for (int i = 0; i < 1000; ++i) {
      const DraftUpdate u = b.choose(horizon);
      if (u != DraftUpdate::none) {
        ++pulls;
        b.updated(u, u == DraftUpdate::whole ? 15 : 5);
        REQUIRE(b.choose(horizon) == DraftUpdate::none);  // it is being measured
        step(b, after);
      }
      step(b, 3);
    }
    REQUIRE(pulls > 0);
    REQUIRE(pulls <= 40);
  }
}

TEST_CASE("gains are measured, and more work left never speaks against an update") {
  UpdateBandit b({.output_head_seconds = 5, .whole_seconds = 15, .window = 4});
  for (int i = 0; i < 4; ++i) step(b, 3);
  b.updated(DraftUpdate::whole, 12);
  REQUIRE_THROWS_AS(b.updated(DraftUpdate::whole, 12), ArgumentError);
  for (int i = 0; i < 4; ++i) step(b, 4);
  REQUIRE(b.gain(DraftUpdate::whole) == Approx(0.2));
  REQUIRE(b.uses(DraftUpdate::whole) == 1);
  REQUIRE(b.gain(DraftUpdate::output_head) == 0);
  REQUIRE_THROWS_AS(b.updated(DraftUpdate::none, 1), ArgumentError);
  bool updates = false;
  for (double left = 1; left < 1e6; left *= 1.5) {
    const bool now = b.choose(left) != DraftUpdate::none;
    REQUIRE((now || !updates));
    updates = now;
  }
  REQUIRE(updates);
  REQUIRE(b.choose(1e9) != DraftUpdate::rank_head);  // it has no cost: not offered
}

/// Texts change their kind every 2,000 steps; the drafter then accepts 3.41 tokens, and once its head has been updated
/// three times 3.54, which a whole update reaches at once, and passes a little. Times are in plain decoding steps, so
/// that tokens per time is the speedup. Steps and update costs are those that the published figures imply.
double simulated(const Philox& random, int policy) {
  const double step_time = 4.41 / 3.21;
  UpdateBandit bandit({.output_head_seconds = 7.2, .whole_seconds = 15.3});
  double adapted = 0, tokens = 0, time = 0;
  for (std::uint32_t i = 0; i < 20000; ++i) {
    if (i % 2000 == 0) adapted = 0;
    const double mean = 3.41 + 0.13 * adapted;
    const int tau = static_cast<int>(mean + random.uniform_double(0, i));
    tokens += tau + 1;
    time += step_time;
    bandit.observe({8, tau, step_time});
    bandit.rejected(random.uniform_double(1, i) < (adapted > 0.9 ? 0.03 : 0.4));
    DraftUpdate u = DraftUpdate::none;
    if (policy == 1 && i % 100 == 99) u = DraftUpdate::output_head;
    if (policy == 2 && i % 100 == 99) u = DraftUpdate::whole;
    if (policy == 3) {
      u = bandit.choose(4000);
      if (u != DraftUpdate::none) bandit.updated(u, 0);
    }
    if (u == DraftUpdate::output_head) {
      adapted = std::fmin(1, adapted + 0.34);
      time += 7.2;
    } else if (u == DraftUpdate::whole) {
      adapted = 1.3;
      time += 15.3;
    }
  }
  return tokens / time;
}

TEST_CASE("updating when it pays beats never, which beats always, which beats the whole drafter always") {
  const Philox random{23};
  const double never = simulated(random, 0);
  const double always = simulated(random, 1);
  const double whole = simulated(random, 2);
  const double selective = simulated(random, 3);
  REQUIRE(never == Approx(3.21).margin(0.01));
  REQUIRE(always == Approx(3.14).margin(0.02));
  REQUIRE(whole == Approx(3.00).margin(0.02));
  REQUIRE(selective > never + 0.01);
  REQUIRE(selective < 3.3);
}

}  // namespace
