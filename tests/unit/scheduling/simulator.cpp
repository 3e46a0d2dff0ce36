// The simulator and its plain policies: golden integers of a reference that was written apart from this library, and
// what must not depend on the order of the input.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "catch_compat.hpp"
#include "decant/scheduling/checked.hpp"
#include "decant/scheduling/memory_safe.hpp"
#include "decant/scheduling/roofline.hpp"
#include "decant/scheduling/simulator.hpp"

namespace simulator_test {

using namespace decant;
using namespace decant::scheduling;

struct Golden {
  Nanoseconds gap;
  std::uint32_t budget;
  const char* policy;
  std::uint64_t makespan, steps, preemptions, ttft, e2e;
  std::uint64_t digest;  // ours: of every plan, the same with all compilers and optimisations
};

constexpr std::uint32_t no_bound = 0xffffffffu;
constexpr Golden golden[] = {
    {200'000'000, 512, "fcfs", 103613683673, 3717, 727, 12128537468640, 13531688666343, 0xb62161ac6c9ffa08u},
    {200'000'000, 512, "sjf", 98295760871, 3693, 631, 6600478766591, 7947407712820, 0xcd726c072476cba7u},
    {200'000'000, 512, "mc-fcfs", 71544502525, 3757, 0, 5713677100712, 6646633888566, 0x0e386a55f6f620d5u},
    {200'000'000, 512, "mc-sf", 71942793757, 3795, 0, 3525559123434, 4466506163767, 0x96ed9f70dd3bea91u},
    {200'000'000, 2048, "fcfs", 82551710500, 3656, 132, 7935821834841, 9039164057799, 0x2e6d49995847a79cu},
    {200'000'000, 2048, "sjf", 80991913236, 3651, 114, 4872118807314, 5975532476630, 0xbbc5478c5a5e6f04u},
    {200'000'000, 2048, "mc-fcfs", 75986613492, 3671, 0, 6615536743645, 7623413974289, 0x120f4087791c1c7eu},
    {200'000'000, 2048, "mc-sf", 76465938412, 3718, 0, 4221875702088, 5235805954684, 0x5d6f0256b79bb848u},
    {200'000'000, no_bound, "fcfs", 80079921224, 3647, 45, 7447525864719, 8521540309090, 0x218a4930114edb05u},
    {200'000'000, no_bound, "mc-sf", 76160236768, 3660, 0, 4251037562204, 5266849717590, 0x9d8abe5d3ccd7a13u},
    {100'000'000, 2048, "fcfs", 82086046480, 3637, 126, 12072865480629, 13174492410851, 0xa8f34b693517eb9au},
    {100'000'000, 2048, "mc-sf", 76156353708, 3696, 0, 7741605965060, 8750380244056, 0xc4526549eb873fa7u},
};

template <class Policy>
SimulationReport run(Workload workload, std::uint32_t budget, Policy policy = {}) {
  return simulate(std::move(workload), std::move(policy), Roofline{}, TokenMemory(16384), {.limits = {budget, 256}});
}

SimulationReport run_named(Workload workload, std::uint32_t budget, const std::string& policy) {
  if (policy == "fcfs") return run<Fcfs>(std::move(workload), budget);
  if (policy == "sjf") return run<Sjf>(std::move(workload), budget);
  if (policy == "mc-fcfs") return run<McFcfs>(std::move(workload), budget);
  return run<McSf>(std::move(workload), budget);
}

TEST_CASE("simulate: the golden runs, integer for integer, in any order of the input") {
  for (const Golden& g : golden) {
    INFO(g.policy << ", gap " << g.gap << ", budget " << g.budget);
    Workload workload = integer_workload(42, 400, g.gap);
    const SimulationReport report = run_named(workload, g.budget, g.policy);
    std::uint64_t ttft = 0, e2e = 0;
    for (const RequestRecord& r : report.requests) {
      ttft += r.first_token - r.arrival;
      e2e += r.end - r.arrival;
    }
    CHECK(report.makespan == g.makespan);
    CHECK(report.totals.steps == g.steps);
    CHECK(report.totals.preemptions == g.preemptions);
    CHECK(ttft == g.ttft);
    CHECK(e2e == g.e2e);
    CHECK(report.totals.digest == g.digest);

    std::reverse(workload.begin(), workload.end());
    SplitMix64 next{7};
    for (std::size_t i = workload.size(); i > 1; --i) std::swap(workload[i - 1], workload[next() % i]);
    CHECK((run_named(workload, g.budget, g.policy) == report));
  }
}

TEST_CASE("SplitMix64 and the integer workload: first and last rows") {
  SplitMix64 next{42};
  CHECK(next() == 13679457532755275413u);
  CHECK(next() == 2949826092126892291u);
  CHECK(next() == 5139283748462763858u);
  const Workload w = integer_workload(42, 400, 200'000'000);
  const auto row = [&](std::size_t i, Nanoseconds arrival, std::uint32_t prompt, std::uint32_t output) {
    CHECK(w[i].info.tag == i);
    CHECK(w[i].info.arrival == arrival);
    CHECK(w[i].info.prompt == prompt);
    CHECK(w[i].output == output);
  };
  row(0, 155275413, 1893, 83);
  row(1, 213531177, 316, 7);
  row(2, 391156102, 1438, 214);
  row(3, 441825076, 171, 191);
  row(399, 41287045482, 1020, 178);
}

TEST_CASE("Roofline: check values of Llama-3-8B on A100 rates") {
  const Roofline cost;
  CHECK(cost.model().parameters() == 7'504'658'432u);
  CHECK(cost.model().kv_bytes_per_token() == 131'072u);
  const auto time = [&](std::vector<StepShape> shapes) { return cost.step_ns(shapes); };
  CHECK(time({{1, 0}}) == 11'202'685u);
  CHECK(time(std::vector<StepShape>(64, StepShape{1, 1024})) == 16'479'479u);
  CHECK(time({{2048, 0}}) == 172'080'820u);
  std::vector<StepShape> mixed(63, StepShape{1, 1024});
  mixed.push_back({1985, 0});
  CHECK(time(mixed) == 171'905'789u);
  CHECK(time({{512, 7680}}) == 54'431'668u);
  CHECK(time({}) == 0u);
}

/// The first of those that run, or else of those that wait.
struct OneAtATime : DeafScheduler {
  template <class B>
  void schedule(B& batch) {
    if (batch.first_waiting() != no_request) {
      batch.plan(batch.first_waiting(), batch.need(batch.first_waiting()));
    } else if (batch.running_count() > 0) {
      batch.plan(batch.running()[0], batch.need(batch.running()[0]));
    }
  }
};

TEST_CASE("Roofline: experts cost what a token takes, and what a step asks for") {
  ModelShape moe{.ffn = 1024, .experts = 8, .active_experts = 2};
  const ModelShape two{.ffn = 2048}, all{.ffn = 8192};
  CHECK(moe.parameters() == all.parameters());
  CHECK(moe.active_parameters() == two.parameters());
  // One token reads its two experts, many read all; in between E (1 - (1 - k / E)^T).
  CHECK(std::abs(static_cast<double>(moe.weight_bytes_read(1)) / static_cast<double>(two.weight_bytes()) - 1) < 1e-6);
  CHECK(std::abs(static_cast<double>(moe.weight_bytes_read(1000)) / static_cast<double>(all.weight_bytes()) - 1) < 1e-6);
  const double experts = 3.0 * 32 * 4096 * 1024 * 2 * 8;
  for (const std::uint64_t tokens : {2u, 3u, 7u, 20u}) {
    const double read = static_cast<double>(all.weight_bytes()) - experts * std::pow(0.75, static_cast<double>(tokens));
    CHECK(std::abs(static_cast<double>(moe.weight_bytes_read(tokens)) / read - 1) < 1e-6);
  }
  const std::vector<StepShape> step(5, StepShape{1, 100});
  CHECK(step_work(moe, step).flops == step_work(two, step).flops);
  moe.active_experts = 8;
  CHECK(step_work(moe, step).bytes == step_work(all, step).bytes);
  moe.active_experts = 9;
  CHECK_THROWS_AS(Roofline(moe), ArgumentError);
}

TEST_CASE("Checked: work that could be done is done, by policies that say so") {
  const Workload w = integer_workload(42, 200, 50'000'000);
  const auto checked = [&](auto policy, bool conserving) {
    return simulate(w, Checked(policy, conserving), Roofline{}, TokenMemory(16384));
  };
  CHECK((checked(Fcfs{}, true).requests == simulate(w, Fcfs{}, Roofline{}, TokenMemory(16384)).requests));
  CHECK_NOTHROW(checked(McFcfs{}, false));
  CHECK_THROWS_WITH(checked(McFcfs{}, true), catch_compat::contains("has room"));  // it leaves memory for later
  // One that plans a single request a step leaves the others standing.
  CHECK_THROWS_WITH(checked(OneAtATime{}, false), catch_compat::contains("left out"));
}

TEST_CASE("simulate: hard loads end, or say why not") {
  const auto same = [](std::uint32_t n, std::uint32_t prompt, std::uint32_t output) {
    Workload w(n);
    for (std::uint32_t i = 0; i < n; ++i) {
      w[i].info.tag = i;
      w[i].info.prompt = prompt;
      w[i].generates(output);
    }
    return w;
  };
  const auto done = [](const SimulationReport& report) {
    return std::all_of(report.requests.begin(), report.requests.end(),
                       [](const RequestRecord& r) { return r.rejected ? r.end == 0 : r.end > 0; });
  };
  SECTION("one token a step") {
    for (const char* policy : {"fcfs", "sjf", "mc-fcfs", "mc-sf"}) CHECK(done(run_named(same(5, 9, 4), 1, policy)));
  }
  SECTION("all of equal length, each alone fills memory") {
    for (const char* policy : {"fcfs", "sjf", "mc-fcfs", "mc-sf"}) {
      const auto report = run_named(same(3, 16000, 385), 2048, policy);
      CHECK(done(report));
      // The safe ones never admit a second; the others do, and lose it.
      if (policy[0] == 'm') CHECK(report.totals.preemptions == 0);
    }
  }
  SECTION("larger than memory: rejected, and nobody else is") {
    Workload w = same(4, 100, 10);
    w[2].info.prompt = 16384;
    w[2].info.max_output = 2;
    const auto report = run<Fcfs>(w, 2048);
    CHECK(done(report));
    for (std::size_t i = 0; i < 4; ++i) CHECK(report.requests[i].rejected == (i == 2));
  }
  SECTION("a prediction that is exceeded") {
    Workload w = same(60, 200, 200);
    for (auto& r : w) r.info.output = {1, 3, 200};
    const auto report = run<McSf>(w, 2048);
    CHECK(done(report));
    CHECK(report.totals.preemptions > 0);
  }
}

struct Idle {
  template <class B>
  void on_arrival(const B&, RequestId) {}
  template <class B>
  void schedule(B&) {}
  template <class B>
  void on_finish(const B&, RequestId) {}
  template <class B>
  void on_step_done(const B&, const StepResult&) {}
};
static_assert(Scheduler<Idle>);

struct Reckless : Idle {
  std::uint32_t tokens = 1;
  template <class B>
  void schedule(B& batch) {
    while (batch.first_waiting() != no_request) batch.plan(batch.first_waiting(), tokens);
  }
};

TEST_CASE("simulate: a policy that breaks a rule is named") {
  CHECK_THROWS_AS(run(integer_workload(1, 3, 1000), 2048, Idle{}), SimulationError);
  CHECK_THROWS_AS(run(integer_workload(1, 3, 1000), 2048, Reckless{{}, 2049}), ArgumentError);  // more than it needs
  CHECK_THROWS_AS(run(integer_workload(1, 3, 1000), 2048, Reckless{{}, 0}), ArgumentError);
  CHECK_THROWS_AS(simulate(integer_workload(1, 3, 1), Fcfs{}, UnitCost{}, TokenMemory(16384), {.max_steps = 5}),
                  SimulationError);
}

TEST_CASE("Batch: slots are used again, and wrong calls change nothing") {
  Batch<> batch(TokenMemory(100), {10, 2});
  RequestInfo info;
  info.prompt = 12;
  info.max_output = 5;
  const RequestId a = batch.arrive(info);
  batch.begin_step(0);
  CHECK_THROWS_AS(batch.plan(a, 11), ArgumentError);  // budget
  CHECK_THROWS_AS(batch.plan(a + 1, 1), ArgumentError);
  CHECK_THROWS_AS(batch.preempt(a), ArgumentError);  // waits
  CHECK(batch.plan(a, 10));
  CHECK_THROWS_AS(batch.plan(a, 1), ArgumentError);  // twice
  CHECK(batch.complete_step(1).empty());
  CHECK(batch.need(a) == 2);
  batch.begin_step(1);
  CHECK(batch.plan(a, 2));
  batch.preempt(a);
  CHECK(batch.budget_left() == 10);
  CHECK(batch.items().empty());
  CHECK(batch.memory().used() == 0);
  CHECK(batch.need(a) == 12);
  CHECK(batch.lost_tokens() == 10);
  batch.finish(a);
  CHECK_THROWS_AS(batch.finish(a), ArgumentError);
  CHECK(batch.arrive(info) == a);
  info.prompt = 97;
  CHECK_THROWS_AS(batch.arrive(info), ArgumentError);
  info.prompt = 96;
  CHECK(batch.arrive(info) == a + 1);
}

}  // namespace simulator_test
