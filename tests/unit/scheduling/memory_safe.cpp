// Admission that foresees memory: against the hindsight optimum, sums of a reference that was written apart from this
// library, and what happens when predictions are exceeded.
#include <algorithm>
#include <cmath>
#include <vector>

#include "catch_compat.hpp"
#include "decant/scheduling/alpha_protection.hpp"
#include "decant/scheduling/memory_safe.hpp"
#include "decant/scheduling/roofline.hpp"
#include "decant/scheduling/simulator.hpp"
#include "oracle/hindsight.hpp"

namespace memory_safe_test {

using namespace decant;
using namespace decant::scheduling;

using Instance = std::vector<oracle::HindsightRequest>;

// A request whose prompt is one token longer than in the papers' convention, in which the last token is stored too.
Workload workload(const Instance& instance, std::int64_t more = 1) {
  Workload w;
  for (const auto& r : instance) {
    SimulatedRequest q;
    q.info.tag = w.size();
    q.info.arrival = static_cast<Nanoseconds>(r.arrival);
    q.info.prompt = static_cast<std::uint32_t>(r.prompt + more);
    q.generates(static_cast<std::uint32_t>(r.output));
    w.push_back(q);
  }
  return w;
}

constexpr SimulationOptions unbounded{.limits = {0xffffffffu, 0xffffffffu}};

template <class Policy>
std::int64_t latency(const Workload& w, std::int64_t memory, Policy policy = {}, std::uint64_t* preemptions = nullptr) {
  const auto report =
      simulate(w, std::move(policy), UnitCost{}, TokenMemory(static_cast<std::uint64_t>(memory)), unbounded);
  std::int64_t sum = 0;
  for (const RequestRecord& r : report.requests) sum += static_cast<std::int64_t>(r.end - r.arrival);
  if (preemptions) *preemptions = report.totals.preemptions;
  return sum;
}

TEST_CASE("Hindsight: small instances by hand") {
  struct Check {
    std::int64_t memory;
    Instance requests;  // the last sampled token is not stored
    std::int64_t optimum, mc_sf, mc_fcfs;
  };
  const Check checks[] = {
      {8, {{0, 2, 1}, {0, 2, 2}, {0, 2, 3}, {0, 2, 3}}, 10, 10, 10},
      {6, {{0, 1, 4}, {0, 1, 1}, {0, 3, 2}, {0, 1, 1}}, 8, 0, 0},
      {6, {{0, 5, 1}, {0, 1, 3}, {0, 1, 3}, {0, 1, 2}}, 11, 11, 12},
  };
  for (const Check& c : checks) {
    const Workload w = workload(c.requests, 0);
    Instance stored = c.requests;
    for (auto& r : stored) --r.prompt;
    const std::int64_t sf = latency<McSf>(w, c.memory), fcfs = latency<McFcfs>(w, c.memory);
    CHECK(oracle::Hindsight(stored, c.memory).latency(std::min(sf, fcfs) + 1) == c.optimum);
    CHECK(sf >= c.optimum);
    if (c.mc_sf > 0) CHECK(sf == c.mc_sf);
    if (c.mc_fcfs > 0) CHECK(fcfs == c.mc_fcfs);
  }
  std::uint64_t preemptions = 0;
  CHECK(latency<Fcfs>(workload(checks[0].requests, 0), 8, {}, &preemptions) == 10);
  CHECK(preemptions == 1);
}

struct Sums {
  std::int64_t mc_sf = 0, mc_fcfs = 0, skip = 0, optimum = 0;
  int optimal = 0;
  double mean = 0, worst = 0, fcfs_mean = 0;
};

Sums trials(bool online) {
  Sums sums;
  SplitMix64 next{7};
  const auto uniform = [&](std::int64_t a, std::int64_t b) {
    return a + static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(b - a + 1));
  };
  for (int trial = 0; trial < 200; ++trial) {
    const std::int64_t memory = uniform(30, 50);
    Instance requests(6);
    for (auto& r : requests) {
      r.prompt = uniform(1, 5);
      r.output = uniform(1, memory - r.prompt);
      if (online) r.arrival = uniform(0, 40);
    }
    std::stable_sort(requests.begin(), requests.end(), [](const auto& a, const auto& b) { return a.arrival < b.arrival; });
    const Workload w = workload(requests);
    const std::int64_t sf = latency<McSf>(w, memory), fcfs = latency<McFcfs>(w, memory);
    const std::int64_t best = oracle::Hindsight(requests, memory).latency(std::min(sf, fcfs));
    CHECK(best <= sf);
    sums.mc_sf += sf;
    sums.optimum += best;
    sums.optimal += sf == best;
    const double ratio = static_cast<double>(sf) / static_cast<double>(best);
    sums.mean += ratio / 200;
    sums.worst = std::max(sums.worst, ratio);
    sums.fcfs_mean += static_cast<double>(fcfs) / static_cast<double>(best) / 200;
  }
  return sums;
}

TEST_CASE("McSf against the hindsight optimum, all at once: the sums of 200 instances", "[statistics]") {
  const Sums s = trials(false);
  CHECK(s.mc_sf == 37302);
  CHECK(s.optimum == 36677);
  CHECK(s.optimal == 86);
  CHECK(std::abs(s.mean - 1.0158) < 5e-5);
  CHECK(std::abs(s.worst - 1.1111) < 5e-5);
  CHECK(std::abs(s.fcfs_mean - 1.3803) < 5e-5);
}

TEST_CASE("McSf against the hindsight optimum, arriving over time: the sums of 200 instances", "[statistics]") {
  const Sums s = trials(true);
  CHECK(s.mc_sf == 37672);
  CHECK(s.optimum == 36011);
  CHECK(s.optimal == 88);
  CHECK(std::abs(s.mean - 1.0441) < 5e-5);
  CHECK(std::abs(s.worst - 1.7034) < 5e-5);
  CHECK(std::abs(s.fcfs_mean - 1.1904) < 5e-5);
}

TEST_CASE("McSf at the paper's size: strict is better than passing over what does not fit", "[statistics]") {
  SplitMix64 next{7};
  const auto uniform = [&](std::uint64_t a, std::uint64_t b) {
    return static_cast<std::int64_t>(a + next() % (b - a + 1));
  };
  std::int64_t sf = 0, fcfs = 0, skip = 0;
  double ratio = 0;
  for (int trial = 0; trial < 200; ++trial) {
    const std::int64_t memory = uniform(30, 50);
    Instance requests(static_cast<std::size_t>(uniform(40, 60)));
    std::vector<std::int64_t> areas;
    for (auto& r : requests) {
      r.prompt = uniform(1, 5);
      r.output = uniform(1, static_cast<std::uint64_t>(memory - r.prompt));
      areas.push_back(r.prompt * r.output + r.output * (r.output + 1) / 2);
    }
    const Workload w = workload(requests);
    const std::int64_t own = latency<McSf>(w, memory);
    sf += own;
    fcfs += latency<McFcfs>(w, memory);
    skip += latency(w, memory, McSf({.skip = true}));
    std::sort(areas.begin(), areas.end());
    double area = 0, bound = 0;
    for (const std::int64_t a : areas) bound += (area += static_cast<double>(a)) / static_cast<double>(memory);
    ratio += static_cast<double>(own) / bound / 200;
  }
  CHECK(sf == 1755542);
  CHECK(fcfs == 3176155);
  CHECK(skip == 1911224);
  CHECK(std::abs(ratio - 1.59) < 0.005);
}

TEST_CASE("MemorySafe: lengths that are exceeded cost preemptions, spare memory fewer") {
  Workload w = integer_workload(5, 200, 100'000'000);
  SplitMix64 next{1};
  for (SimulatedRequest& r : w) {
    // Half to one and a half of the truth.
    r.info.output.expected = static_cast<std::uint32_t>(r.output / 2 + next() % (r.output + 1));
    r.info.max_output = 400;
  }
  const auto run = [&](auto policy) { return simulate(w, policy, Roofline{}, TokenMemory(16384)); };
  const auto plain = run(McSf{}), spared = run(McSf({}, {}, MemorySafe(16384 / 10))), unsafe = run(Sjf{});
  CHECK(plain.totals.preemptions > 0);
  CHECK(spared.totals.preemptions < plain.totals.preemptions);
  CHECK(plain.totals.preemptions < unsafe.totals.preemptions);
  for (const auto* report : {&plain, &spared}) {
    CHECK(std::all_of(report->requests.begin(), report->requests.end(), [](const auto& r) { return r.end > 0; }));
  }
}

TEST_CASE("AlphaProtection: clears all or some when memory overflows, and ends") {
  const Workload w = integer_workload(42, 150, 200'000'000);
  const auto run = [&](auto policy) { return simulate(w, policy, Roofline{}, TokenMemory(16384)); };
  const auto done = [](const SimulationReport& r) {
    return std::all_of(r.requests.begin(), r.requests.end(), [](const auto& q) { return q.end > 0; });
  };
  const auto sum = [](const SimulationReport& r) {
    Nanoseconds out = 0;
    for (const RequestRecord& q : r.requests) out += q.end - q.arrival;
    return out;
  };
  const auto none = run(AlphaProtection(0)), some = run(AlphaProtection(0.2)), drawn = run(AlphaProtection(0.2, 0.1, 3));
  CHECK(done(none));
  CHECK(done(some));
  CHECK(done(drawn));
  CHECK(none.totals.preemptions > some.totals.preemptions);
  CHECK((run(AlphaProtection(0.2, 0.1, 3)) == drawn));
  CHECK(sum(run(McSf{})) < sum(some));
  CHECK(run(AlphaProtection(0.9)).totals.preemptions == 0);

  // Who is cleared waits in the order in which it ran.
  Batch<> batch(TokenMemory(22), {64, 8});
  AlphaProtection policy(0);
  for (std::uint64_t tag = 0; tag < 2; ++tag) {
    RequestInfo info;
    info.tag = tag;
    info.prompt = info.max_output = 10;
    batch.arrive(info);
  }
  for (Nanoseconds t = 0; t < 3; ++t) {
    batch.begin_step(t);
    policy.schedule(batch);
    batch.complete_step(t + 1);
  }
  // 10 + 10, 11 + 11; then there is no room for 12 + 12: both were cleared, and the first alone has room again.
  CHECK(batch.preemptions() == 2);
  REQUIRE(batch.running_count() == 1);
  CHECK(batch[batch.running()[0]].info.tag == 0);
  CHECK_THROWS_AS(AlphaProtection(1), ArgumentError);
  CHECK_THROWS_AS(AlphaProtection(0.1, 0), ArgumentError);
}

}  // namespace memory_safe_test
