// What memory is worth: weighted shortest first and bid prices.
#include <algorithm>
#include <cmath>
#include <vector>

#include "catch_compat.hpp"
#include "decant/scheduling/simulator.hpp"
#include "decant/scheduling/weighted.hpp"

namespace prices_test {

using namespace decant;
using namespace decant::scheduling;

template <class Policy>
SimulationReport unit_run(const Workload& w, std::uint64_t memory, Policy policy = {}) {
  return simulate(w, policy, UnitCost{}, TokenMemory(memory), {.limits = {0xffffffffu, 0xffffffffu}});
}

Workload random_requests(std::uint64_t seed, bool equal_prompts) {
  SplitMix64 next{seed};
  Workload w(50);
  for (std::uint32_t i = 0; i < w.size(); ++i) {
    w[i].info.tag = i;
    w[i].info.prompt = equal_prompts ? 4 : static_cast<std::uint32_t>(1 + next() % 30);
    w[i].generates(static_cast<std::uint32_t>(1 + next() % 20));
  }
  return w;
}

TEST_CASE("Wsf: with equal prompts and worths it is shortest first; worth brings forward") {
  const Workload same = random_requests(3, true);
  CHECK((unit_run<Wsf>(same, 60) == unit_run<McSf>(same, 60)));
  Workload w = random_requests(4, false);
  SplitMix64 next{8};
  for (auto& r : w) r.info.weight = static_cast<std::uint32_t>(next() % 8);
  const auto cost = [&](const SimulationReport& report) {
    Nanoseconds sum = 0;
    for (const RequestRecord& r : report.requests) sum += r.end * w[r.tag].info.weight;
    return sum;
  };
  CHECK(cost(unit_run<Wsf>(w, 60)) < cost(unit_run<McSf>(w, 60)));
  CHECK(cost(unit_run<Wsf>(w, 60)) < cost(unit_run<McFcfs>(w, 60)));
  // Area: 3 steps of a prompt of 5 hold 5, 6 and 7 tokens.
  RequestState r;
  r.info.prompt = 5;
  r.info.output = LengthEstimate::exactly(3);
  CHECK(remaining_area(r) == 18);
  r.generated = 1;
  CHECK(remaining_area(r) == 13);
  r.generated = 7;  // exceeded: one more step
  CHECK(remaining_area(r) == 12);
}

TEST_CASE("BidPrice: the items above the price fit, and are worth nearly the optimum") {
  SplitMix64 next{6};
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<Offer> offers(1 + next() % 12);
    std::uint64_t all = 0;
    for (Offer& o : offers) {
      o = {1 + next() % 1000, 1 + next() % 500};
      all += o.area;
    }
    const std::uint64_t budget = next() % all;
    const BidPrice price = BidPrice::of(offers, budget);
    CHECK(price.value() > 0);
    // The fractional optimum by duality: budget * pi + sum (w - pi area)+ at any pi is no less, and is least at the price.
    const auto dual = [&](double pi) {
      double sum = static_cast<double>(budget) * pi;
      for (const Offer& o : offers) sum += (std::max)(0.0, static_cast<double>(o.weight) - pi * static_cast<double>(o.area));
      return sum;
    };
    const double optimum = dual(price.value());
    for (const Offer& o : offers) CHECK(dual(static_cast<double>(o.weight) / static_cast<double>(o.area)) >= optimum * (1 - 1e-12));
    CHECK(dual(0) >= optimum);
    std::uint64_t area = 0, weight = 0, critical = 0;
    for (const Offer& o : offers) {
      const double worth = static_cast<double>(o.weight) / static_cast<double>(o.area);
      CHECK(price.accepts(o) == (worth >= price.value() - 1e-12));
      if (worth == price.value()) critical = (std::max)(critical, o.weight);
      if (worth <= price.value()) continue;
      area += o.area;
      weight += o.weight;
    }
    CHECK(area <= budget);
    CHECK(static_cast<double>(weight + critical) >= optimum * (1 - 1e-12));
    CHECK(BidPrice::of(offers, all).value() == 0);
  }
  CHECK(BidPrice{}.accepts(Offer{0, 5}));
  CHECK_THROWS_AS(BidPrice::of({{1, 0}}, 5), ArgumentError);
}

}  // namespace prices_test
