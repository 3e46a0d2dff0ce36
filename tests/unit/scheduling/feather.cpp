// Feather in simulation: step costs of the published experiments, golden waves, what must equal first come, first
// served, and that nobody waits for ever.
#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "catch_compat.hpp"
#include "decant/scheduling/continuous.hpp"
#include "decant/scheduling/group_memory.hpp"
#include "decant/scheduling/simulator.hpp"
#include "decant/scheduling/stop_rules.hpp"

namespace decant::scheduling::feather_test {

using Rule = PrefixHomogeneous<ChunkLossRule>;
using Bandit = PrefixHomogeneous<UcbStop>;

/// A workload whose chains stay where they are.
struct Load {
  Workload requests;
  std::deque<std::vector<std::uint64_t>> chains;

  void add(Nanoseconds arrival, std::uint32_t group, std::uint32_t prefix, std::uint32_t own, std::uint32_t output,
           std::uint32_t chunk) {
    SimulatedRequest r;
    r.info.tag = requests.size();
    r.info.arrival = arrival;
    r.info.prompt = prefix + own;
    r.output = r.info.max_output = output;
    r.info.output = LengthEstimate::exactly(output);
    r.info.group = group;
    r.info.group_tokens = prefix;
    auto& chain = chains.emplace_back();
    for (std::uint64_t l = 1; l * chunk <= prefix; ++l) chain.push_back(std::uint64_t{group} << 32 | l);
    for (std::uint64_t l = chain.size() * chunk; l < prefix + own; l += chunk) chain.push_back(~(r.info.tag << 32 | l));
    r.info.chain = chain;
    requests.push_back(r);
  }
};

/// Tokens per second of 40 waves, each of which begins when the one before has ended, and of the first two.
struct Waves {
  double all, first, second;
};
template <class P>
Waves waves(std::uint32_t groups, std::uint32_t requests, P policy, std::uint64_t l2 = 96u << 20) {
  DeviceRates device = DeviceRates::rtx_6000_ada();
  device.l2_bytes = l2;
  SimulatedEngine<P, Roofline, GroupMemory> engine(std::move(policy), Roofline({}, device),
                                                   GroupMemory({.capacity = 1u << 30, .warm = true}), {32768, 500});
  Nanoseconds now = 0;
  Waves out{};
  for (int wave = 0; wave < 40; ++wave) {
    Load load;
    std::vector<RequestRecord> records(requests);
    const Nanoseconds start = now;
    for (std::uint32_t i = 0; i < requests; ++i) load.add(now, 1 + i % groups, 10000, 20, 50, 500);
    for (std::uint32_t i = 0; i < requests; ++i) engine.arrive(load.requests[i], records[i]);
    while (!engine.idle()) {
      REQUIRE(engine.begin_step(now));
      now += engine.duration();
      engine.end_step(now, [](const RequestRecord&) {});
    }
    const double rate = requests * 50 / (static_cast<double>(now - start) * 1e-9);
    if (wave == 0) out.first = rate;
    if (wave == 1) out.second = rate;
  }
  out.all = 40.0 * requests * 50 / (static_cast<double>(now) * 1e-9);
  return out;
}

const FeatherOptions k500{.chunk = 500};

TEST_CASE("Feather: golden waves, and where homogeneous batches lose") {
  const auto fcfs = [](std::uint32_t groups, std::uint32_t n, std::uint64_t l2) {
    return std::lround(waves(groups, n, Fcfs{}, l2).all);
  };
  const auto rule = [](std::uint32_t groups, std::uint32_t n, std::uint64_t l2) {
    return std::lround(waves(groups, n, Rule({}, k500), l2).all);
  };
  constexpr std::uint64_t large = 96u << 20, small = 48u << 20;
  CHECK(fcfs(1, 80, large) == 3029);
  CHECK(rule(1, 80, large) == 3029);
  CHECK(fcfs(4, 80, large) == 504);
  CHECK(rule(4, 80, large) == 843);
  CHECK(fcfs(8, 80, large) == 504);
  CHECK(std::abs(rule(8, 80, large) - 428) <= 1);  // ten requests of a kind are too few
  CHECK(fcfs(2, 400, large) == 7514);              // both prefixes fit in the second-level cache
  CHECK(rule(2, 400, large) == 6292);
  CHECK(fcfs(4, 400, large) == 565);
  CHECK(rule(4, 400, large) == 3662);
  CHECK(fcfs(8, 400, large) == 565);
  CHECK(rule(8, 400, large) == 1995);
  CHECK(fcfs(2, 400, small) == 565);
  CHECK(rule(2, 400, small) == 6292);
  CHECK(fcfs(2, 80, small) == 504);
  CHECK(rule(2, 80, small) == 1625);
}

TEST_CASE("Feather: the bandit learns within a wave what the rule knows") {
  const Waves one = waves(1, 80, Bandit({}, k500)), four = waves(4, 80, Bandit({}, k500)),
              eight = waves(8, 80, Bandit({}, k500));
  CHECK(std::abs(one.all / 3028 - 1) < 0.001);
  CHECK(std::lround(four.first) == 504);  // it knows nothing yet
  CHECK(four.second > 1.5 * 504);
  CHECK(std::abs(four.all / 810 - 1) < 0.05);
  CHECK(std::abs(eight.all / 483 - 1) < 0.05);
}

TEST_CASE("Feather: the published experiments as step costs") {
  RooflineOptions o;
  o.l2_rule = L2Rule::tip;
  o.gain_numerator = 47;
  o.gain_denominator = 20;
  const Roofline cost({}, DeviceRates::rtx_6000_ada(), o);
  const auto step = [&](std::uint32_t n, std::uint32_t tokens, std::uint32_t context, std::uint64_t shared) {
    const std::vector<StepShape> shapes(n, StepShape{tokens, context});
    PrefixSharing sharing;
    sharing.tip = shared;
    return static_cast<double>(cost.step_ns(shapes, sharing));
  };
  CHECK(std::abs(step(500, 1, 10045, 0) / step(500, 1, 10045, 499 * 10000) - 2.26) < 0.01);
  const double want[] = {1.00, 1.09, 1.21, 1.35, 1.53};
  for (std::uint64_t quarter = 0; quarter <= 4; ++quarter) {
    CHECK(std::abs(step(100, 1, 2025, 0) / step(100, 1, 2025, 99 * 500 * quarter) - want[quarter]) < 0.01);
  }
  const auto rate = [&](std::uint32_t batches, std::uint32_t n) {
    const std::uint64_t shared = n <= 100 ? (n - 1) * std::uint64_t{10000} : 0;
    double time = step(n, 20, 10000, 0);
    for (std::uint32_t j = 0; j < 99; ++j) time += step(n, 1, 10020 + j, shared);
    return batches * n * 100 / (batches * time);
  };
  const double whole = rate(1, 800);
  CHECK(std::abs(rate(8, 100) / whole - 1.79) < 0.01);
  CHECK(std::abs(rate(16, 50) / whole - 1.46) < 0.01);
  CHECK(std::abs(rate(32, 25) / whole - 1.06) < 0.01);
  CHECK(std::abs(rate(2, 400) / whole - 0.98) < 0.01);
  CHECK(std::abs(rate(4, 200) / whole - 0.96) < 0.01);
}

Roofline tip_cost() {
  RooflineOptions o;
  o.l2_rule = L2Rule::tip;
  o.gain_numerator = 43;
  o.gain_denominator = 10;
  return Roofline({}, DeviceRates::rtx_6000_ada(), o);
}

TEST_CASE("Feather: where nothing is shared, or everything, the plans are those of first come, first served") {
  Load apart, together;
  SplitMix64 next{6};
  Nanoseconds time = 0;
  for (std::uint32_t i = 0; i < 300; ++i) {
    time += next() % 60'000'000;
    const auto output = static_cast<std::uint32_t>(1 + next() % 80);
    apart.add(time, 0, 0, 1000, output, 500);
    together.add(time, 1, 5000, 20, output, 500);
  }
  const SimulationOptions options{.limits = {8192, 64}};
  for (const bool shared : {false, true}) {
    const Workload& w = shared ? together.requests : apart.requests;
    const GroupMemory memory({.capacity = 60000});
    const auto fcfs = simulate(w, Fcfs{}, tip_cost(), memory, options);
    CHECK((simulate(w, Rule({}, k500), tip_cost(), memory, options) == fcfs));
    CHECK((simulate(w, PrefixHomogeneous<ModelStop<>>(ModelStop<>(tip_cost()), k500), tip_cost(), memory, options) == fcfs));
  }
  const GroupMemory memory({.capacity = 60000});
  const auto fcfs = simulate(together.requests, Fcfs{}, tip_cost(), memory, options);
  const auto bandit = simulate(together.requests, Bandit({}, k500), tip_cost(), memory, options);
  CHECK(std::abs(static_cast<double>(bandit.makespan) / static_cast<double>(fcfs.makespan) - 1) < 0.01);
}

TEST_CASE("Feather: max_wait bounds the wait under a stream that favours one prefix") {
  Load load;
  load.add(1, 2, 5000, 20, 10, 500);  // the only one of its kind
  for (std::uint32_t i = 0; i < 600; ++i) load.add(i * Nanoseconds{60'000'000}, 1, 5000, 20, 60, 500);
  const SimulationOptions options{.limits = {8192, 32}};
  const GroupMemory memory({.capacity = 40000});
  const auto wait = [&](Nanoseconds max_wait) {
    const auto report = simulate(load.requests, Rule({}, {.chunk = 500, .max_wait = max_wait}), tip_cost(), memory, options);
    const auto& r = *std::find_if(report.requests.begin(), report.requests.end(), [](const auto& x) { return x.tag == 0; });
    return r.first_token - r.arrival;
  };
  CHECK(wait(0) > 20'000'000'000);
  CHECK(wait(2'000'000'000) < 4'000'000'000);
}

TEST_CASE("Feather: preempted requests come back, and bad options are named") {
  Load load;
  for (std::uint32_t i = 0; i < 60; ++i) load.add(0, 1 + i % 3, 400, 100, 200, 50);
  const auto report = simulate(load.requests, Rule({}, {.chunk = 50}), Roofline{}, TokenMemory(5000));
  CHECK(report.totals.preemptions > 0);
  for (const RequestRecord& r : report.requests) CHECK(r.end > 0);
  CHECK_THROWS_AS(Rule({}, {.chunk = 0}), ArgumentError);
}

TEST_CASE("GroupMemory: prefixes are held once, kept, dropped the oldest first, and computed anew") {
  GroupMemory memory({.capacity = 100});
  const auto info = [](std::uint32_t group, std::uint32_t own) {
    RequestInfo i;
    i.group = group;
    i.group_tokens = 30;
    i.prompt = 30 + own;
    i.max_output = 10;
    return i;
  };
  CHECK(memory.hit(info(1, 5), 34) == 0);
  REQUIRE(memory.open(0, info(1, 5), 0, 35));
  CHECK(memory.used() == 35);
  CHECK(memory.hit(info(1, 8), 37) == 30);
  REQUIRE(memory.open(1, info(1, 8), 30, 38));
  CHECK(memory.used() == 43);
  REQUIRE(memory.open(2, info(2, 5), 0, 35));
  CHECK(memory.used() == 78);
  CHECK_FALSE(memory.open(3, info(3, 5), 0, 35));
  CHECK(memory.used() == 78);
  memory.close(0, info(1, 5), 35);
  memory.close(1, info(1, 8), 38);
  CHECK(memory.used() == 35);
  CHECK(memory.kept() == 30);
  memory.close(2, info(2, 5), 35);
  REQUIRE(memory.open(3, info(3, 15), 0, 45));  // the prefix of 1 goes, that of 2 stays
  CHECK(memory.hit(info(1, 5), 34) == 0);
  CHECK(memory.hit(info(2, 5), 34) == 30);
  REQUIRE(memory.grow(3, 70));
  CHECK_FALSE(memory.grow(3, 101));
  REQUIRE(memory.grow(3, 71));  // and now that of 2
  CHECK(memory.hit(info(2, 5), 34) == 0);
}

}  // namespace decant::scheduling::feather_test
