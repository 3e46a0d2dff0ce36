// Orders for prompts of different length (Sorted-F) and for lengths known as intervals (AMin, AMax).
#include <algorithm>
#include <vector>

#include "catch_compat.hpp"
#include "decant/scheduling/interval.hpp"
#include "decant/scheduling/roofline.hpp"
#include "decant/scheduling/simulator.hpp"
#include "decant/scheduling/sorted_f.hpp"

namespace uncertain_lengths_test {

using namespace decant;
using namespace decant::scheduling;

constexpr SimulationOptions unbounded{.limits = {0xffffffffu, 0xffffffffu}};

SimulatedRequest request(std::uint64_t tag, std::uint32_t prompt, std::uint32_t output) {
  SimulatedRequest r;
  r.info.tag = tag;
  r.info.prompt = prompt;
  r.generates(output);
  return r;
}

Nanoseconds latency(const SimulationReport& report) {
  Nanoseconds sum = 0;
  for (const RequestRecord& r : report.requests) sum += r.end - r.arrival;
  return sum;
}

template <class Policy>
SimulationReport unit_run(const Workload& w, std::uint64_t memory, Policy policy = {}) {
  return simulate(w, policy, UnitCost{}, TokenMemory(memory), unbounded);
}

BatchQuality quality(const std::vector<SortedFJob>& jobs, const std::vector<std::uint32_t>& batch) {
  BatchQuality q{0, batch.size()};
  for (const std::uint32_t i : batch) q.outputs += jobs[i].output;
  return q;
}

TEST_CASE("Sorted-F: the exact batch is the best of all subsets, the greedy one close") {
  SplitMix64 next{11};
  int equal = 0;
  for (int trial = 0; trial < 150; ++trial) {
    const std::uint32_t block = trial % 3 == 0 ? 4 : 1;
    const std::uint64_t memory = 4 * (10 + next() % 20);
    std::vector<SortedFJob> jobs(1 + next() % 9);
    for (SortedFJob& job : jobs) {
      job.output = static_cast<std::uint32_t>(1 + next() % 20);
      job.prompt = static_cast<std::uint32_t>(1 + next() % (memory - job.output));
    }
    BatchQuality best;
    for (std::uint32_t set = 1; set < 1u << jobs.size(); ++set) {
      BatchQuality q;
      std::uint64_t size = 0;
      for (std::size_t i = 0; i < jobs.size(); ++i) {
        if (!(set >> i & 1)) continue;
        q.outputs += jobs[i].output;
        ++q.count;
        size += (jobs[i].peak() + block - 1) / block;
      }
      if (size <= memory / block && q.better(best)) best = q;
    }
    const auto exact = best_batch(jobs, memory, {.exact = true, .block = block});
    const BatchQuality found = quality(jobs, exact);
    CHECK(found.value() == Approx(best.value()));
    const auto greedy = best_batch(jobs, memory);
    std::uint64_t used = 0;
    for (const std::uint32_t i : greedy) used += jobs[i].peak();
    CHECK(used <= memory);
    if (block == 1) CHECK(!quality(jobs, greedy).better(found));
    equal += block == 1 && quality(jobs, greedy).value() == found.value();

    for (const bool with : {false, true}) {
      std::vector<std::uint32_t> order = sorted_f(jobs, memory, {.exact = with});
      std::sort(order.begin(), order.end());
      REQUIRE(order.size() == jobs.size());
      for (std::uint32_t i = 0; i < order.size(); ++i) CHECK(order[i] == i);
    }
  }
  CHECK(equal >= 80);  // of 100
  CHECK(sorted_f(std::vector<SortedFJob>{}, 5).empty());
  CHECK_THROWS_AS(best_batch(std::vector<SortedFJob>{{1, 1}}, 0), ArgumentError);
  CHECK_THROWS_AS(best_batch(std::vector<SortedFJob>{{1, 1}}, 5, {.block = 0}), ArgumentError);
}

TEST_CASE("Sorted-F: huge prompts with short answers do not hold up the many") {
  double before = 1;
  for (const std::uint32_t huge : {2u, 4u, 8u, 16u}) {
    const std::uint32_t small = huge * huge, memory = 4 * small;
    Workload w;
    for (std::uint32_t i = 0; i < huge; ++i) w.push_back(request(w.size(), memory - 2, 3));
    for (std::uint32_t i = 0; i < small; ++i) w.push_back(request(w.size(), 1, 4));
    const Nanoseconds shortest = latency(unit_run<McSf>(w, memory)), sorted = latency(unit_run<SortedF>(w, memory));
    CHECK(latency(unit_run(w, memory, SortedF({}, BySortedF({.exact = true, .block = 1})))) == sorted);
    const double ratio = static_cast<double>(shortest) / static_cast<double>(sorted);
    CHECK(ratio > 1.25 * before);
    before = ratio;
  }
  CHECK(before > 6);
}

TEST_CASE("Sorted-F: with prompts of one length it is shortest first, and arrivals are put in order") {
  Workload same;
  SplitMix64 next{2};
  for (std::uint32_t i = 0; i < 40; ++i) same.push_back(request(i, 10, static_cast<std::uint32_t>(1 + next() % 12)));
  CHECK(latency(unit_run<SortedF>(same, 100)) == latency(unit_run<McSf>(same, 100)));
  const Workload w = integer_workload(42, 200, 200'000'000);
  const auto report = simulate(w, SortedF{}, Roofline{}, TokenMemory(16384));
  CHECK(report.totals.preemptions == 0);
  Workload reversed = w;
  std::reverse(reversed.begin(), reversed.end());
  CHECK((simulate(reversed, SortedF{}, Roofline{}, TokenMemory(16384)) == report));
  CHECK(latency(report) < latency(simulate(w, McFcfs{}, Roofline{}, TokenMemory(16384))));
}

TEST_CASE("AMin and AMax: with exact lengths both are MC-SF") {
  SplitMix64 next{5};
  for (int trial = 0; trial < 20; ++trial) {
    Workload w;
    for (std::uint32_t i = 0; i < 40; ++i) {
      w.push_back(request(i, static_cast<std::uint32_t>(1 + next() % 9), static_cast<std::uint32_t>(1 + next() % 30)));
      w.back().info.arrival = next() % 60;
    }
    const auto exact = unit_run<McSf>(w, 60);
    CHECK((unit_run<AMin>(w, 60) == exact));
    CHECK((unit_run<AMax>(w, 60) == exact));
  }
}

TEST_CASE("AMin: never reads the upper bound, learns, and ends") {
  Workload w = integer_workload(9, 150, 50'000'000);
  for (SimulatedRequest& r : w) {
    r.info.output = {1 + r.output / 4, r.output, r.output * 2};
    r.info.max_output = 600;
  }
  const auto run = [&] { return simulate(w, AMin{}, Roofline{}, TokenMemory(8192)); };
  const auto report = run();
  CHECK(report.totals.preemptions > 0);
  CHECK(std::all_of(report.requests.begin(), report.requests.end(), [](const auto& r) { return r.end > 0; }));
  for (const std::uint32_t poison : {0u, 1u, 0xffffffffu}) {
    for (SimulatedRequest& r : w) r.info.output.high = r.info.output.expected = poison;
    CHECK((run() == report));
  }
}

TEST_CASE("AMin and AMax: an upper bound far away costs AMax alone") {
  double before = 1;
  for (const std::uint32_t high : {8u, 32u, 128u}) {
    Workload w;
    for (std::uint32_t i = 0; i < 200; ++i) {
      w.push_back(request(i, 2, 2));
      w.back().info.output = {1, high, high};
      w.back().info.max_output = high;
    }
    const auto cautious = unit_run<AMax>(w, 200), bold = unit_run<AMin>(w, 200);
    CHECK(cautious.totals.preemptions == 0);
    const double ratio = static_cast<double>(latency(cautious)) / static_cast<double>(latency(bold));
    CHECK(ratio > 2 * before);
    before = ratio;
  }
}

TEST_CASE("Continuous: of two requests the one of low priority gives way, also to one behind it") {
  // Two run; memory is full when each wants its fourth token more, and the first to run is the one of low priority.
  Workload w{request(0, 10, 8), request(1, 10, 8)};
  w[0].info.priority = 5;
  const auto report = unit_run(w, 24, ByPriority({.victim = Victim::lowest_priority}));
  CHECK(report.totals.preemptions > 0);
  CHECK(report.requests[1].preemptions == 0);
  CHECK(report.requests[1].end < report.requests[0].end);
  Workload late = w;
  late[1].info.arrival = 1;  // 0 runs first, so it stands first
  const auto other = unit_run(late, 24, ByPriority({.victim = Victim::lowest_priority}));
  CHECK(other.requests[1].preemptions == 0);
  CHECK(other.requests[1].end == 9);
  // Memory is full when the first of the step, itself the least, wants more: the step is not left empty.
  const auto full = unit_run(late, 23, ByPriority({.victim = Victim::lowest_priority}));
  CHECK(full.requests[0].preemptions > 0);
  CHECK(full.requests[1].end == 9);
}

}  // namespace uncertain_lengths_test
