// Capacity: closed forms of the paper, identities, the exact identity with the simulator, and the predicted service
// rate against the simulated one.
#include <algorithm>
#include <cmath>
#include <vector>

#include "catch_compat.hpp"
#include "decant/scheduling/generators.hpp"
#include "decant/scheduling/memory_safe.hpp"
#include "decant/scheduling/simulator.hpp"
#include "decant/scheduling/stability.hpp"

namespace stability_test {

using namespace decant;
using namespace decant::scheduling;

// The paper's three loads: E[g], b (s), mu and mu (1 - delta) predicted, and mu of our step without measurement.
struct Load {
  LengthMoments lengths;
  double g, step, mu, guaranteed, delta, unmeasured;
};
const Load loads[] = {
    {LengthMoments::uniform(10, 1600, 10, 1600), 1079151.3, 0.0372, 3.2632, 3.183, 0.02443, 3.213},
    {LengthMoments::uniform(10, 2133, 10, 1066), 770034.1, 0.0430, 3.9563, 3.859, 0.02442, 3.857},
    {LengthMoments::uniform(10, 1066, 10, 2133), 1339675.4, 0.0337, 2.9016, 2.831, 0.02442, 2.816},
};
constexpr StabilityModel paper_engine{131'000, 512};

TEST_CASE("stability: the paper's loads") {
  RooflineOptions additive;
  additive.additive = true;
  const Roofline cost({}, {}, additive);
  for (const Load& load : loads) {
    CHECK(std::abs(load.lengths.memory_time(512) - load.g) < 0.1);
    CHECK(std::abs(paper_engine.slack(load.lengths) - load.delta) < 1e-5);
    const CapacityPlan plan = paper_engine.plan(8, load.lengths, load.step);
    CHECK(std::abs(plan.service_rate - load.mu) < 1e-4);
    CHECK(std::abs(plan.guaranteed_rate - load.guaranteed) < 1e-3);
    CHECK(plan.one_engine == Verdict::unstable);
    const double step = paper_engine.saturated_step(load.lengths, cost);
    CHECK(std::abs(paper_engine.service_rate(load.lengths.memory_time(512), step) - load.unmeasured) < 0.003);
  }
  const std::vector<LoadShare> half{{0.5, loads[1].mu}, {0.5, loads[2].mu}};
  CHECK(std::abs(mixed_service_rate(half) - 3.3479) < 1e-4);
  CHECK(paper_engine.plan(25.8, loads[0].lengths, 0.0376).least_engines == 8);
  CHECK(paper_engine.plan(25.8, loads[0].lengths, 0.0376).engines == 9);
  CHECK(paper_engine.plan(3.0, loads[0].lengths, 0.0372).one_engine == Verdict::within_margin);
  CHECK(paper_engine.plan(2.9, loads[0].lengths, 0.0372).one_engine == Verdict::stable);
}

TEST_CASE("stability: the forms of g") {
  const auto g = [](std::uint32_t s, GForm form, std::uint32_t o = 10, std::uint32_t chunk = 512) {
    return memory_time({s, o}, chunk, form);
  };
  CHECK(g(100, GForm::paper) == 1114.765625);
  CHECK(g(100, GForm::exact) == 1155);
  CHECK(g(512, GForm::paper) == 5687);
  CHECK(g(512, GForm::exact) == 5687);
  CHECK(g(700, GForm::paper) == 7883.515625);
  CHECK(g(700, GForm::exact) == 8267);
  CHECK(g(1500, GForm::paper) == 18002.265625);
  CHECK(g(1500, GForm::exact) == 18091);
  CHECK(g(100, GForm::engine, 10, 100) == 1045);
  CHECK(g(100, GForm::engine, 10, 32) == 1237);
  // exact - paper = (c - r)(K + r / 2c) where s = K c + r, 0 < r < c; all terms are multiples of 1 / 2c.
  for (std::uint32_t s = 1; s <= 4096; ++s) {
    for (const std::uint32_t c : {1u, 2u, 7u, 16u, 100u, 128u, 512u, 1000u, 2048u, 4096u}) {
      const std::uint64_t k = s / c, r = s % c;
      const double scaled = 2.0 * c * (memory_time({s, 3}, c, GForm::exact) - memory_time({s, 3}, c, GForm::paper));
      const std::uint64_t expected = r == 0 ? 0 : (c - r) * (2 * c * k + r);
      if (std::abs(scaled - static_cast<double>(expected)) > 0.25) FAIL("s = " << s << ", chunk " << c);
    }
  }
  const Lengths l{1024, 10};
  CHECK(memory_time_left(l, 512, 0, 0) == 11831);
  CHECK(memory_time_left(l, 512, 1, 0) == 11319);
  CHECK(memory_time_left(l, 512, 2, 0) == 10295);
  CHECK(memory_time_left(l, 512, 2, 3) == 7217);
  CHECK(memory_time_left(l, 512, 2, 10) == 0);
  CHECK(upper_trimmed_mean({1, 2, 3, 100}, 0.25) == 2);
  CHECK(upper_trimmed_mean({4, 2}, 0) == 3);
  CHECK(upper_trimmed_mean({5}, 0.9) == 5);
}

TEST_CASE("stability: bad arguments") {
  CHECK_THROWS_AS(memory_time({1, 1}, 0, GForm::exact), ArgumentError);
  CHECK_THROWS_AS((StabilityModel{100, 512}.slack(loads[0].lengths)), ArgumentError);
  CHECK_THROWS_AS(paper_engine.service_rate(1, 0), ArgumentError);
  CHECK_THROWS_AS(mixed_service_rate(std::vector<LoadShare>{{0.5, 1}}), ArgumentError);
  CHECK_THROWS_AS(LengthMoments::of({}), ArgumentError);
  CHECK_THROWS_AS(upper_trimmed_mean({}, 0.1), ArgumentError);
  CHECK_THROWS_AS(StabilityMonitor(paper_engine, {.raise = 0.5, .clear = 0.6}), ArgumentError);
}

Workload all_at_once(std::uint32_t n, std::uint64_t seed, const LengthLaw& prompt, const LengthLaw& output) {
  Workload w = random_workload(seed, n, {.rate = 1}, prompt, output);
  for (SimulatedRequest& r : w) r.info.arrival = 0;
  return w;
}

std::vector<Lengths> lengths_of(const Workload& w) {
  std::vector<Lengths> out;
  for (const SimulatedRequest& r : w) out.push_back({r.info.prompt, r.output});
  return out;
}

TEST_CASE("stability: without preemption the memory-time of a run is the sum of its requests'") {
  // A budget that no prompt exceeds, so that chunks are whole prompts.
  Workload w = integer_workload(9, 300, 1);
  const auto report = simulate(w, McFcfs{}, UnitCost{}, TokenMemory(16384), {.limits = {1u << 30, 256}});
  CHECK(report.totals.preemptions == 0);
  double sum = 0;
  for (const Lengths& l : lengths_of(w)) sum += memory_time(l, 1u << 30, GForm::engine);
  CHECK(static_cast<double>(report.totals.area) == sum);
  // Throughput x step time x E[g] / M is the mean utilisation.
  const double steps = static_cast<double>(report.totals.steps);
  const double utilisation = static_cast<double>(report.totals.area) / steps / 16384;
  CHECK(std::abs(300 / steps * (sum / 300) / 16384 / utilisation - 1) < 1e-12);
}

TEST_CASE("stability: predicted and simulated service rates are within a tenth on eight loads", "[statistics]") {
  struct Case {
    LengthLaw prompt, output;
    std::uint64_t memory;
  };
  const auto u = [](std::uint32_t a, std::uint32_t b) { return LengthLaw::uniform(a, b); };
  const auto ln = [](double mu, double sigma, std::uint32_t most) { return LengthLaw::lognormal(mu, sigma, most); };
  const Case cases[] = {{u(10, 1600), u(10, 1600), 131000}, {u(10, 2133), u(10, 1066), 131000},
                        {u(10, 1066), u(10, 2133), 131000}, {u(100, 300), u(50, 150), 60000},
                        {ln(6.6, 0.9, 4000), ln(5, 0.9, 1000), 131000}, {ln(6.0, 1.2, 6000), ln(4, 1, 800), 65536},
                        {u(500, 501), u(200, 201), 100000}, {u(1, 50), u(300, 900), 50000}};
  RooflineOptions additive;
  additive.additive = true;
  const Roofline cost({}, {}, additive);
  for (const Case& c : cases) {
    // All wait from the beginning: the rate at which requests end, beginning and end of the run aside, is mu.
    const Workload w = all_at_once(3000, 21, c.prompt, c.output);
    const auto report = simulate(w, McFcfs{}, cost, TokenMemory(c.memory), {.limits = {512, 4096}});
    std::vector<Nanoseconds> ends;
    for (const RequestRecord& r : report.requests) ends.push_back(r.end);
    std::sort(ends.begin(), ends.end());
    const double simulated = 1500 / (static_cast<double>(ends[2249] - ends[749]) * 1e-9);
    const std::vector<Lengths> lengths = lengths_of(w);
    const StabilityModel model{c.memory, 512};
    const LengthMoments m = LengthMoments::of(lengths);
    const double predicted = model.service_rate(m.memory_time(512), model.saturated_step(m, cost));
    INFO("predicted " << predicted << ", simulated " << simulated);
    CHECK(predicted / simulated > 0.9);
    CHECK(predicted / simulated < 1.1);
  }
}

TEST_CASE("stability: mu rises with memory and falls with lengths; the bootstrap covers the mean") {
  const Workload w = all_at_once(500, 3, LengthLaw::lognormal(6, 1, 4000), LengthLaw::lognormal(4, 1, 800));
  std::vector<Lengths> lengths = lengths_of(w);
  const LengthMoments m = LengthMoments::of(lengths);
  const double mu = StabilityModel{50000, 512}.service_rate(m.memory_time(512), 0.03);
  CHECK(StabilityModel{60000, 512}.service_rate(m.memory_time(512), 0.03) > mu);
  const MeanInterval interval = bootstrap_memory_time(lengths, 512, GForm::paper);
  CHECK(std::abs(interval.mean / m.memory_time(512) - 1) < 1e-9);
  CHECK(interval.low < interval.mean);
  CHECK(interval.high > interval.mean);
  CHECK(std::abs(mean_memory_time(lengths, 512, GForm::paper) / m.memory_time(512) - 1) < 1e-9);
  for (Lengths& l : lengths) l.output += 10;
  CHECK(StabilityModel{50000, 512}.service_rate(LengthMoments::of(lengths).memory_time(512), 0.03) < mu);
}

TEST_CASE("StabilityMonitor: raises above, clears below, and holds in between") {
  const StabilityModel model{1000, 512};
  StabilityMonitor monitor(model);
  const Lengths l{10, 10};
  const double g = memory_time(l, 512, GForm::engine);
  for (int i = 0; i < 40; ++i) {
    monitor.on_finish(l);
    CHECK(monitor.service_rate() == 0);  // no full step yet
  }
  for (int i = 0; i < 40; ++i) monitor.on_full_step(1'000'000);
  const double mu = 1000 / (1e-3 * g);
  CHECK(std::abs(monitor.service_rate() / mu - 1) < 1e-9);
  Nanoseconds now = 0;
  const auto arrive_at = [&](double load) {
    for (int i = 0; i < 1000; ++i) monitor.on_arrival(now += static_cast<Nanoseconds>(1e9 / (load * mu)));
    return monitor.overloaded();
  };
  CHECK_FALSE(arrive_at(0.9));
  CHECK(arrive_at(1.1));
  CHECK(arrive_at(0.9));
  CHECK_FALSE(arrive_at(0.8));
  CHECK_FALSE(arrive_at(0.9));
}

}  // namespace stability_test
