// Policies beside continuous batching, metrics and generators: what each promises, on loads that show it.
#include <algorithm>
#include <cmath>
#include <vector>

#include "catch_compat.hpp"
#include "decant/scheduling/fair_share.hpp"
#include "decant/scheduling/generators.hpp"
#include "decant/scheduling/metrics.hpp"
#include "decant/scheduling/orders.hpp"
#include "decant/scheduling/prefill_first.hpp"
#include "decant/scheduling/sarathi.hpp"
#include "decant/scheduling/simulator.hpp"

namespace policies_test {

using namespace decant;
using namespace decant::scheduling;

SimulatedRequest request(std::uint64_t tag, Nanoseconds arrival, std::uint32_t prompt, std::uint32_t output) {
  SimulatedRequest r;
  r.info.tag = tag;
  r.info.arrival = arrival;
  r.info.prompt = prompt;
  r.generates(output);
  return r;
}

const RequestRecord& by_tag(const SimulationReport& report, std::uint64_t tag) {
  return *std::find_if(report.requests.begin(), report.requests.end(),
                       [&](const RequestRecord& r) { return r.tag == tag; });
}

TEST_CASE("PrefillFirst: prompts whole and apart from decodes, and no budget is exceeded") {
  // Unit steps: the order of the steps can be read off the instants.
  Workload w{request(0, 0, 10, 3), request(1, 0, 20, 2), request(2, 2, 90, 1)};
  const auto report = simulate(w, PrefillFirst{}, UnitCost{}, TokenMemory(1000), {.limits = {64, 8}});
  // Step 1: both prompts. Step 2: a decode of each, 1 ends. Steps 3 and 4: the prompt of 2, alone. Step 5: the last of 0.
  CHECK(by_tag(report, 0).first_token == 1);
  CHECK(by_tag(report, 1).end == 2);
  CHECK(by_tag(report, 2).end == 4);
  CHECK(by_tag(report, 0).end == 5);
  CHECK(by_tag(report, 0).longest_gap == 3);
  // Continuous batching does not make 0 wait for the prompt of 2.
  CHECK(by_tag(simulate(w, Fcfs{}, UnitCost{}, TokenMemory(1000), {.limits = {64, 8}}), 0).end == 3);
  const auto hard = simulate(integer_workload(3, 200, 100'000'000), PrefillFirst{}, Roofline{}, TokenMemory(8192));
  CHECK(hard.totals.preemptions > 0);
}

TEST_CASE("Sarathi: no step exceeds the bound where decodes alone do not, and nobody starves where they do") {
  const Roofline cost;
  const Workload w = integer_workload(5, 120, 50'000'000);
  for (const Nanoseconds bound : {Nanoseconds{30'000'000}, Nanoseconds{60'000'000}, Nanoseconds{1}}) {
    std::vector<Nanoseconds> steps;
    Nanoseconds before = 0;
    std::uint32_t largest = 0;
    const auto report = simulate(
        w, Sarathi<>(bound), cost, TokenMemory(1u << 20), {}, [&](Nanoseconds now, const Batch<>& batch) {
          std::uint32_t tokens = 0, decodes = 0;
          for (index_t i = 0; i < batch.items().extent(0); ++i) {
            tokens += batch.items()[i].tokens;
            decodes += batch.items()[i].tokens == 1;
          }
          largest = (std::max)(largest, tokens);
          // A step without decodes, or the first after a pause, is not bounded.
          if (decodes > 0 && bound > 1) CHECK(now - before <= (std::max)(bound, cost.step_ns(std::vector<StepShape>(decodes, StepShape{1, 3000}))));
          before = now;
        });
    CHECK(std::all_of(report.requests.begin(), report.requests.end(), [](const RequestRecord& r) { return r.end > 0; }));
    CHECK(largest <= 2048);
  }
  CHECK_THROWS_AS(Sarathi<>(0), ArgumentError);
}

TEST_CASE("Ageing: a long request behind an endless stream of short ones is served at last") {
  Workload w{request(0, 0, 8, 400)};
  for (std::uint32_t i = 1; i < 2000; ++i) w.push_back(request(i, i / 2, 8, 8));
  // Two slots, and short requests that alone keep four busy.
  const SimulationOptions options{.limits = {64, 2}};
  w[0].info.arrival = 1;
  const auto starved = simulate(w, Sjf{}, UnitCost{}, TokenMemory(10000), options);
  CHECK(by_tag(starved, 0).first_token > 6000);
  const ByKey<RemainingLength> aged{RemainingLength{.age_weight = 1, .age_unit = 1}};
  const auto served = simulate(w, Continuous<ByKey<RemainingLength>>({}, aged), UnitCost{}, TokenMemory(10000), options);
  // It passes those that came 392 units after it: 786 came before, and two of them end every 8 units.
  CHECK(by_tag(served, 0).first_token < 786 * 4 + 16);
}

TEST_CASE("ByPriority: the urgent first, and with lowest_priority the others give way") {
  Workload w;
  for (std::uint32_t i = 0; i < 40; ++i) {
    w.push_back(request(i, 0, 50, 50));
    w.back().info.priority = i % 2 == 0 ? 5 : 1;
  }
  const auto report =
      simulate(w, ByPriority({.victim = Victim::lowest_priority}), UnitCost{}, TokenMemory(1000), {.limits = {256, 40}});
  Nanoseconds last_urgent = 0, first_other = ~Nanoseconds{0};
  for (const RequestRecord& r : report.requests) {
    if (r.tag % 2 == 1) {
      last_urgent = (std::max)(last_urgent, r.end);
    } else {
      first_other = (std::min)(first_other, r.end);
    }
  }
  CHECK(last_urgent <= first_other);
}

TEST_CASE("FairShare: a tenant that floods the queue does not delay another") {
  Workload w;
  for (std::uint32_t i = 0; i < 200; ++i) w.push_back(request(i, 0, 20, 20));
  for (std::uint32_t i = 0; i < 20; ++i) {
    w.push_back(request(1000 + i, 1, 20, 20));
    w.back().info.tenant = 1;
  }
  const SimulationOptions options{.limits = {64, 4}};
  const auto fcfs = simulate(w, Fcfs{}, UnitCost{}, TokenMemory(10000), options);
  const auto fair = simulate(w, FairShare{}, UnitCost{}, TokenMemory(10000), options);
  const auto last = [](const SimulationReport& report) {
    Nanoseconds end = 0;
    for (const RequestRecord& r : report.requests) end = r.tenant == 1 ? (std::max)(end, r.end) : end;
    return end;
  };
  CHECK(last(fcfs) > 1000);
  CHECK(last(fair) < 260);  // two of four slots: 20 requests of 20 steps
  CHECK(fair.makespan <= fcfs.makespan + 20);
  CHECK(summarise(fair.requests).fairness > summarise(fcfs.requests).fairness);

  // Who was away is lifted to the level of those that wait: no service is saved up.
  FairShare policy;
  Batch<> batch(TokenMemory(1000), {64, 4});
  for (std::uint32_t step = 0; step < 30; ++step) {
    if (step % 3 == 0) policy.on_arrival(batch, batch.arrive(w[step].info));
    batch.begin_step(step);
    policy.schedule(batch);
    batch.complete_step(step + 1);
    policy.on_step_done(batch, {});
  }
  const std::uint64_t level = policy.served(0);
  CHECK(level > 200);
  policy.on_arrival(batch, batch.arrive(w[200].info));
  CHECK(policy.served(1) == level);
  CHECK(policy.served(7) == 0);
}

TEST_CASE("Metrics: percentiles, rates and goodput of a hand-made run") {
  std::vector<std::uint64_t> values{5, 1, 4, 2, 3};
  const Percentiles p = percentiles(values);
  CHECK((p == Percentiles{5, 15, 3, 5, 5, 5}));
  CHECK(percentile(values, 200) == 1);
  CHECK(percentile(values, 201) == 2);
  CHECK_THROWS_AS(percentile({}, 500), ArgumentError);
  CHECK_THROWS_AS(percentile(values, 0), ArgumentError);
  std::vector<std::uint64_t> none;
  CHECK((percentiles(none) == Percentiles{}));

  std::vector<RequestRecord> records(3);
  records[0] = {.tag = 0, .prompt = 7, .output = 3, .arrival = 0, .first_token = 1'000'000'000, .end = 2'000'000'000};
  records[1] = {.tag = 1, .prompt = 7, .output = 1, .tenant = 1, .arrival = 1'000'000'000,
                .first_token = 4'000'000'000, .end = 4'000'000'000};
  records[2].rejected = true;
  const ServingSummary s = summarise(records, {2'000'000'000, 500'000'000});
  CHECK(s.requests == 2);
  CHECK(s.rejected == 1);
  CHECK(s.ttft.max == 3'000'000'000u);
  CHECK(s.tpot.count == 1);
  CHECK(s.tpot.max == 500'000'000u);
  CHECK(s.within_objective == 1);
  CHECK(s.tokens_per_second() == 1.0);
  CHECK(s.goodput() == 0.25);
  // Rates 1.5 and 1/3 tokens a second.
  CHECK(std::abs(s.fairness - (1.5 + 1 / 3.) * (1.5 + 1 / 3.) / (2 * (2.25 + 1 / 9.))) < 1e-12);
}

TEST_CASE("Generators: moments of gaps and lengths", "[statistics]") {
  // 20,000 draws; bounds of five standard errors: a false alarm in a million each, and the seed is fixed.
  const std::uint32_t n = 20000;
  for (const double shape : {0.25, 1.0, 4.0}) {
    const Workload w = random_workload(11, n, {.rate = 50, .shape = shape}, LengthLaw::uniform(3, 10),
                                       LengthLaw::lognormal(5, 0.5, 100000));
    double sum = 0, squares = 0, before = 0, prompt = 0, logs = 0;
    for (const SimulatedRequest& r : w) {
      const double now = static_cast<double>(r.info.arrival) * 1e-9, gap = now - before;
      before = now;
      sum += gap;
      squares += gap * gap;
      prompt += r.info.prompt;
      logs += std::log(static_cast<double>(r.output) + 0.5);
    }
    const double mean = sum / n, cv = std::sqrt(squares / n - mean * mean) / mean;
    CHECK(std::abs(mean * 50 - 1) < 5 / std::sqrt(shape * n));
    CHECK(std::abs(cv * std::sqrt(shape) - 1) < 0.1);
    CHECK(std::abs(prompt / n - 6.5) < 5 * 2.3 / std::sqrt(n));
    CHECK(std::abs(logs / n - 5) < 5 * 0.5 / std::sqrt(n));
  }
}

TEST_CASE("Generators: quantiles give back the law that they were taken from") {
  SplitMix64 next{3};
  std::vector<std::uint32_t> values(4000);
  const LengthLaw law = LengthLaw::lognormal(6, 1, 8000);
  for (auto& v : values) v = law(next);
  const LengthLaw again = LengthLaw::quantiles(equal_quantiles(values));
  std::vector<std::uint32_t> drawn(4000);
  for (auto& v : drawn) v = again(next);
  std::sort(values.begin(), values.end());
  std::sort(drawn.begin(), drawn.end());
  double distance = 0;  // Kolmogorov and Smirnov's
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto rank = std::upper_bound(drawn.begin(), drawn.end(), values[i]) - drawn.begin();
    distance = (std::max)(distance, std::abs(static_cast<double>(rank) - static_cast<double>(i + 1)) / 4000);
  }
  CHECK(distance < 0.045);  // 2.0 sqrt(2 / 4000): false alarm below 1e-3, and the seed is fixed
  CHECK_THROWS_AS(LengthLaw::quantiles({5}), ArgumentError);
  CHECK_THROWS_AS(LengthLaw::quantiles({5, 4}), ArgumentError);
  CHECK_THROWS_AS(LengthLaw::uniform(0, 4), ArgumentError);
}

TEST_CASE("Generators: sessions repeat what was said") {
  const Workload w = session_workload(5, {.sessions = 3, .turns = 3, .pause = 7}, {.rate = 2}, LengthLaw::uniform(5, 9),
                                      LengthLaw::uniform(2, 4));
  REQUIRE(w.size() == 9);
  for (std::size_t i = 0; i < 9; ++i) {
    CHECK(w[i].info.tag == i);
    CHECK(w[i].info.group == i / 3 + 1);
    if (i % 3 == 0) {
      CHECK(w[i].info.group_tokens == 0);
      continue;
    }
    CHECK(w[i].info.group_tokens == w[i - 1].info.prompt + w[i - 1].output - 1);
    CHECK(w[i].info.prompt > w[i - 1].info.prompt + w[i - 1].output);
    CHECK(w[i].info.arrival == w[i - 1].info.arrival + 7);
  }
}

}  // namespace policies_test
