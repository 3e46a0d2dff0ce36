// Batching by thresholds: fluid formulas, exact steps and memory of WAIT, queues and memory of Nested WAIT.
#include <algorithm>
#include <cmath>
#include <vector>

#include "catch_compat.hpp"
#include "decant/scheduling/generators.hpp"
#include "decant/scheduling/nested_wait.hpp"
#include "decant/scheduling/simulated_engine.hpp"
#include "decant/scheduling/wait.hpp"

namespace wait_test {

using namespace decant;
using namespace decant::scheduling;

constexpr LinearCost cost{10'000'000, 2'000'000};  // d0 = 0.01 s, d1 = 2e-6 s per token

struct Kind {
  double rate;
  std::uint32_t prompt, output;
};

// Poisson streams, merged.
Workload poisson(const std::vector<Kind>& kinds, double seconds, std::uint64_t seed) {
  Workload w;
  for (const Kind& k : kinds) {
    const auto n = static_cast<std::uint32_t>(k.rate * seconds);
    for (SimulatedRequest r : random_workload(seed++, n, {.rate = k.rate}, LengthLaw::uniform(k.prompt, k.prompt),
                                              LengthLaw::uniform(k.output, k.output))) {
      r.info.tag = w.size();
      w.push_back(r);
    }
  }
  std::sort(w.begin(), w.end(), [](const auto& a, const auto& b) { return earlier(a.info, b.info); });
  return w;
}

struct Run {
  std::size_t done = 0;
  std::uint64_t preemptions = 0, steps = 0;
};

// Until nothing more can be planned. observe(engine, resident before the finished leave).
template <class Policy, class Observe>
Run serve(const Workload& w, Policy policy, std::uint64_t memory, const Observe& observe) {
  SimulatedEngine<Policy, LinearCost> engine(std::move(policy), cost, TokenMemory(memory), {0xffffffffu, 0xffffffffu});
  std::vector<RequestRecord> records(w.size());
  Run run;
  Nanoseconds now = 0;
  for (std::size_t next = 0;;) {
    for (; next < w.size() && w[next].info.arrival <= now; ++next) engine.arrive(w[next], records[next]);
    if (engine.begin_step(now)) {
      now += engine.duration();
      const std::uint64_t area = engine.totals().area;
      engine.end_step(now, [&](const RequestRecord&) { ++run.done; });
      observe(engine, engine.totals().area - area);
    } else if (next < w.size()) {
      now = w[next].info.arrival;
    } else {
      break;
    }
  }
  run.preemptions = engine.totals().preemptions;
  run.steps = engine.totals().steps;
  return run;
}

TEST_CASE("WAIT: the fluid equilibrium and the choice of thresholds") {
  // The paper's lengths are 40 and 120: a request takes part in one step more.
  const std::vector<WaitType> one{{50, 60, 41, 1}}, two{{30, 60, 41, 3}, {10, 200, 121, 1}};
  const FluidEquilibrium a = fluid_equilibrium(one, cost), b = fluid_equilibrium(two, cost);
  CHECK(std::abs(a.step_seconds - .0149) < 5e-5);
  CHECK(std::abs(a.memory - 2440) < 1);
  CHECK(std::abs(b.step_seconds - .0575) < 5e-5);
  CHECK(std::abs(b.memory - 23736) < 1);
  CHECK(wait_memory(one) == 3280);
  CHECK(wait_memory(two) == 41300);
  CHECK(with_thresholds(one, cost)[0].threshold == 1);
  CHECK(wait_stable(one, cost));
  CHECK(wait_stable(two, cost) == (3 >= 30 * (.01 + 2e-6 * 41300)));
  const std::vector<WaitType> few{{30, 60, 41, 2}, {10, 200, 121, 1}};
  CHECK_FALSE(wait_stable(few, cost));
  const auto chosen = with_thresholds(few, cost);
  CHECK(wait_stable(chosen, cost));
  CHECK(chosen[0].threshold == 3);
  CHECK(chosen[1].threshold == 1);
  CHECK_FALSE(fluid_equilibrium(std::vector<WaitType>{{200, 60, 41, 1}}, cost).stable);
  CHECK_THROWS_AS(with_thresholds({{200, 60, 41, 1}}, cost), ArgumentError);
  CHECK_THROWS_AS(Wait({}), ArgumentError);
  CHECK_THROWS_AS(Wait({{1, 1, 1, 0}}), ArgumentError);
}

TEST_CASE("WAIT: one type: every step and all memory are what the thresholds say") {
  const Workload w = poisson({{50, 60, 41}}, 60, 3);
  for (const std::uint32_t n : {1u, 2u}) {
    std::uint64_t steps = 0, wrong = 0;
    const Run run = serve(w, Wait({{50, 60, 41, n}}), 3280 * n, [&](const auto& engine, std::uint64_t resident) {
      if (++steps <= 41) return;  // it fills
      wrong += engine.duration() != cost.of_tokens(3280 * n) || resident != 3280 * n;
    });
    CHECK(wrong == 0);
    CHECK(run.preemptions == 0);
    CHECK(cost.of_tokens(3280 * n) == (n == 1 ? 16'560'000u : 23'120'000u));
    CHECK(run.done + 41 * n >= w.size());
  }
}

TEST_CASE("WAIT: two types: never above the bound, all served, also with smaller thresholds") {
  const Workload w = poisson({{30, 60, 41}, {10, 200, 121}}, 100, 5);
  std::uint64_t most = 0;
  const auto watch = [&](const auto&, std::uint64_t resident) { most = (std::max)(most, resident); };
  const Run run = serve(w, Wait({{30, 60, 41, 3}, {10, 200, 121, 1}}), 41300, watch);
  CHECK(most <= 41300);
  CHECK(most > 30000);
  CHECK(run.preemptions == 0);
  CHECK(run.done + 3 * 41 + 121 + 60 >= w.size());
  most = 0;
  const Run fewer = serve(w, Wait({{30, 60, 41, 2}, {10, 200, 121, 1}}), 41300, watch);
  CHECK(most <= 2 * 3280 + 31460);
  CHECK(fewer.done + 2 * 41 + 121 + 60 >= w.size());
  // Less memory than the bound: preemption, and still all that can be started ends.
  const Run tight = serve(w, Wait({{30, 60, 41, 3}, {10, 200, 121, 1}}), 20000, watch);
  CHECK(tight.preemptions > 0);
  // Patience lets those through for whom nobody else comes.
  const Workload lone = poisson({{5, 60, 41}}, 4, 7);
  CHECK(serve(lone, Wait({{5, 60, 41, 30}}), 1u << 20, watch).done == 0);
  CHECK(serve(lone, Wait({{5, 60, 41, 30}}, {.patience = 0}), 1u << 20, watch).steps > 0);
}

TEST_CASE("Nested WAIT: exponents and bounds") {
  const std::vector<WaitSegment> wide{{75, 20, 8}, {35, 60, 5}, {10, 150, 2}}, narrow{{75, 20, 6}, {35, 60, 3}, {10, 150, 1}};
  const NestedWaitBounds a = nested_wait_bounds(wide, 60, cost, 2000, .01), b = nested_wait_bounds(narrow, 60, cost, 2000, .01);
  CHECK(std::abs(a.exponents[0] - 1.325) < 5e-4);
  CHECK(std::abs(a.exponents[1] - 1.005) < 5e-4);
  CHECK(std::abs(a.queues[0] - 18.2) < .05);
  CHECK(std::abs(a.queues[1] - 19.4) < .05);
  CHECK(a.resident == 60630);
  CHECK(std::abs(a.memory - 64417) < 1);
  CHECK(std::abs(b.queues[0] - 68.5) < .05);
  CHECK(std::abs(b.queues[1] - 40.7) < .05);
  CHECK(queue_exponent(.2, 3, 3) == HUGE_VAL);
  CHECK_THROWS_AS(queue_exponent(.5, 8, 4), ArgumentError);
  CHECK_THROWS_AS(queue_exponent(0, 8, 4), ArgumentError);
  CHECK_THROWS_AS(nested_wait_bounds(wide, 60, cost, 2000, 0), ArgumentError);
  CHECK_THROWS_AS(NestedWait({}), ArgumentError);
  CHECK_THROWS_AS(NestedWait({{1, 20, 1}, {1, 20, 1}}), ArgumentError);
}

TEST_CASE("Nested WAIT: queues, memory, and one step per n_1 arrivals", "[statistics]") {
  // One seed of 400 s; the bounds hold for 2000 s with probability .99.
  const Workload w = poisson({{40, 60, 20}, {25, 60, 60}, {10, 60, 150}}, 400, 21);
  const std::vector<WaitSegment> settings[] = {{{75, 20, 8}, {35, 60, 5}, {10, 150, 2}},
                                               {{75, 20, 6}, {35, 60, 3}, {10, 150, 1}}};
  for (const auto& segments : settings) {
    const NestedWaitBounds bounds = nested_wait_bounds(segments, 60, cost, 2000, .01);
    std::uint64_t most = 0;
    std::uint32_t second = 0, third = 0;
    const Run run = serve(w, NestedWait(segments), 1u << 20, [&](const auto& engine, std::uint64_t resident) {
      most = (std::max)(most, resident);
      second = (std::max)(second, engine.policy().queued()[1]);
      third = (std::max)(third, engine.policy().queued()[2]);
    });
    CHECK(run.preemptions == 0);
    CHECK(second < bounds.queues[0]);
    CHECK(third < bounds.queues[1]);
    CHECK(second > segments[1].threshold);
    CHECK(static_cast<double>(most) < bounds.memory);
    CHECK(static_cast<double>(most) > .9 * bounds.resident);
    // Arrivals alone limit the steps.
    CHECK(std::abs(static_cast<double>(run.steps * segments[0].threshold) / static_cast<double>(w.size()) - 1) < .002);
    CHECK(static_cast<double>(run.done) >= .97 * static_cast<double>(w.size()));
  }
}

}  // namespace wait_test
