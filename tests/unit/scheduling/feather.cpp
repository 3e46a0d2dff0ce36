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
#include "decant/scheduling/prefix_workload.hpp"
#include "decant/scheduling/simulator.hpp"
#include "decant/scheduling/stop_rules.hpp"

namespace feather_test {

using namespace decant;
using namespace decant::scheduling;

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
    r.generates(output);
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

TEST_CASE("Feather: golden waves, and where homogeneous batches lose", "[statistics]") {
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
  CHECK(eight.all > 0.94 * 504);  // a loss
  // The reference's bandit ends within 11 % of this one where two prefixes do not fit in the cache: its states are the
  // same, its path through them is not.
  const std::uint64_t small = 48u << 20;
  CHECK(std::abs(waves(1, 80, Bandit({}, k500), small).all / 3028 - 1) < 0.001);
  CHECK(std::abs(waves(2, 80, Bandit({}, k500), small).all / 1402 - 1) < 0.12);
  CHECK(std::abs(waves(4, 80, Bandit({}, k500), small).all / 745 - 1) < 0.12);
  CHECK(std::abs(waves(8, 80, Bandit({}, k500), small).all / 472 - 1) < 0.12);
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

Roofline tip_cost(std::uint32_t numerator = 43, std::uint32_t denominator = 10) {
  RooflineOptions o;
  o.l2_rule = L2Rule::tip;
  o.gain_numerator = numerator;
  o.gain_denominator = denominator;
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

/// Tokens per second on a device that holds 213,000 tokens.
template <class P>
double throughput(const PrefixWorkload& w, const P& policy, const Roofline& cost) {
  const auto report = simulate(w.requests(), policy, cost, GroupMemory({.capacity = 213000, .reserve_output = true}),
                               {.limits = {32768, 500}});
  return static_cast<double>(report.totals.emitted_tokens) * 1e9 / static_cast<double>(report.makespan);
}

TEST_CASE("Feather: fixed loads, within a tenth of a reference written apart", "[statistics]") {
  struct Row {
    double rate;
    std::uint32_t groups, prefix, own, requests;
    double fcfs, rule, model;
  };
  const Row rows[] = {
      {5, 5, 5000, 20, 3000, 977, 917, 977},        {8, 5, 5000, 20, 3000, 1070, 1152, 1476},
      {20, 5, 5000, 20, 3000, 1082, 2012, 2309},    {100, 5, 5000, 20, 3000, 1086, 3207, 3104},
      {100, 100, 5000, 20, 2000, 421, 681, 981},    {20, 1, 0, 1000, 1000, 1498, 1498, 1498},
  };
  for (const Row& row : rows) {
    const auto w = prefix_workload(1, row.requests, {.groups = row.groups, .prefix = row.prefix, .chunk = 500},
                                   {.rate = row.rate}, LengthLaw::uniform(row.own, row.own), LengthLaw::uniform(200, 200));
    INFO(row.rate << " requests/s of " << row.groups << " groups");
    CHECK(std::abs(throughput(w, Fcfs{}, tip_cost()) / row.fcfs - 1) < 0.1);
    CHECK(std::abs(throughput(w, Rule({}, k500), tip_cost()) / row.rule - 1) < 0.1);
    CHECK(std::abs(throughput(w, PrefixHomogeneous<ModelStop<>>(ModelStop<>(tip_cost()), k500), tip_cost()) / row.model - 1) < 0.1);
    // What a bandit makes of a load hangs on the seed: over seven of them 1,620 to 2,660 at 100 requests/s, and at 20
    // from 1,082, having learnt nothing, to 2,410. Where nothing is shared its reward misleads it.
    if (row.prefix == 0) CHECK(throughput(w, Bandit({}, k500), tip_cost()) < 0.1 * row.fcfs);
  }
}

TEST_CASE("Feather: ModelStop on drawn loads, knowing the true gain, and what it loses with few requests of a kind", "[statistics]") {
  const auto ratio = [](const PrefixWorkload& w, const Roofline& cost) {
    return throughput(w, PrefixHomogeneous<ModelStop<>>(ModelStop<>(cost), k500), cost) / throughput(w, Fcfs{}, cost);
  };
  const LengthLaw own = LengthLaw::uniform(20, 400), output = LengthLaw::uniform(1, 399);
  SplitMix64 next{20};
  for (int draw = 0; draw < 4; ++draw) {
    // 150 requests of a kind or more.
    const PrefixGroups shape{.groups = static_cast<std::uint32_t>(3 + next() % 18), .prefix = 5000,
                             .skew = static_cast<double>(next() % 3) / 2, .chunk = 500};
    const auto w = prefix_workload(next(), 3000, shape, {.rate = draw % 2 == 0 ? 100.0 : 6.0}, own, output);
    INFO(shape.groups << " groups, skew " << shape.skew);
    CHECK(ratio(w, tip_cost()) >= 0.98);
    CHECK(ratio(w, tip_cost(47, 20)) >= 0.92);
  }
  // Fifty of a kind: batches of one kind are small, and each ends with a tail.
  const auto few = prefix_workload(1, 1000, {.groups = 20, .prefix = 5000, .chunk = 500}, {.rate = 100}, own, output);
  CHECK(ratio(few, tip_cost()) < 0.9);
  CHECK(ratio(few, tip_cost(47, 20)) < 0.85);
}

TEST_CASE("Feather: plans depend on no order but that of arrival") {
  // Other digests lie elsewhere in hash tables, and requests may be given in any order.
  const auto w = prefix_workload(3, 300, {.groups = 6, .prefix = 2000, .skew = 1, .chunk = 100}, {.rate = 50},
                                 LengthLaw::uniform(20, 400), LengthLaw::uniform(1, 99));
  std::deque<std::vector<std::uint64_t>> keys;
  Workload other = w.requests();
  for (SimulatedRequest& r : other) {
    auto& chain = keys.emplace_back();
    for (index_t i = 0; i < r.info.chain.extent(0); ++i) chain.push_back(r.info.chain[i] * 0x9e3779b97f4a7c15u + 5);
    r.info.chain = chain;
  }
  std::reverse(other.begin(), other.end());
  const GroupMemory memory({.capacity = 20000});
  const auto same = [&](const auto& policy) {
    const SimulationOptions options{.limits = {4096, 64}};
    return simulate(w.requests(), policy, tip_cost(), memory, options) == simulate(other, policy, tip_cost(), memory, options);
  };
  CHECK(same(Rule({}, {.chunk = 100})));
  CHECK(same(Bandit(UcbStop({.exploration = 0.2, .normalize = true, .bins = UcbBins::exponential}), {.chunk = 100})));
  CHECK(same(PrefixHomogeneous<ModelStop<>>(ModelStop<>(tip_cost()), {.chunk = 100, .max_wait = 500'000'000})));
}

TEST_CASE("prefix_workload: groups by Zipf's law, chains that agree on whole chunks of the prefix alone") {
  const PrefixGroups shape{.groups = 3, .prefix = 250, .skew = 1, .chunk = 100};
  const auto w = prefix_workload(8, 11000, shape, {.rate = 10}, LengthLaw::uniform(30, 80), LengthLaw::uniform(1, 9));
  std::map<std::uint32_t, int> count;
  std::map<std::uint32_t, const SimulatedRequest*> first;
  for (const SimulatedRequest& r : w.requests()) {
    ++count[r.info.group];
    REQUIRE(r.info.group_tokens == 250);
    REQUIRE(r.info.chain.extent(0) == (r.info.prompt + 99) / 100);
    const auto& f = *first.try_emplace(r.info.group, &r).first->second;
    for (index_t i = 0; i < 3; ++i) REQUIRE((r.info.chain[i] == f.info.chain[i]) == (i < 2 || &r == &f));
  }
  REQUIRE(count.size() == 3);
  // 6/11, 3/11 and 2/11; 200 are four standard deviations or more.
  CHECK(std::abs(count[1] - 6000) < 210);
  CHECK(std::abs(count[2] - 3000) < 200);
  CHECK(std::abs(count[3] - 2000) < 200);
  CHECK(prefix_workload(8, 1, {.prefix = 0}, {}, LengthLaw::uniform(5, 5), LengthLaw::uniform(1, 1)).requests()[0].info.group == 0);
  CHECK_THROWS_AS(prefix_workload(8, 1, {.groups = 0}, {}, LengthLaw::uniform(5, 5), LengthLaw::uniform(1, 1)), ArgumentError);
  CHECK_THROWS_AS(prefix_workload(8, 1, {.chunk = 0}, {}, LengthLaw::uniform(5, 5), LengthLaw::uniform(1, 1)), ArgumentError);
  CHECK_THROWS_AS(prefix_workload(8, 1, {.skew = -1}, {}, LengthLaw::uniform(5, 5), LengthLaw::uniform(1, 1)), ArgumentError);
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

}  // namespace feather_test
