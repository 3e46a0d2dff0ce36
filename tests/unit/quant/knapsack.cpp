// The multiple-choice knapsack against brute force over all choices, its bounds, and the errors.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <decant/core/random.hpp>
#include <decant/quant/knapsack.hpp>

#include "catch_compat.hpp"

namespace quant_knapsack_test {

using decant::index_t;
using decant::View;
using decant::quant::InfeasibleError;
using decant::quant::Knapsack;
using decant::quant::KnapsackMethod;
using decant::quant::KnapsackTotals;

constexpr double inf = std::numeric_limits<double>::infinity();

struct Instance {
  index_t items, options;
  std::vector<double> cost, loss;

  Instance(index_t m, index_t o) : items(m), options(o), cost(size()), loss(size()) {}
  std::size_t size() const { return static_cast<std::size_t>(items * options); }
  Knapsack view() const {
    return {View<const double, 2>(cost.data(), items, options), View<const double, 2>(loss.data(), items, options)};
  }
  double largest_step(const std::vector<double>& of) const {
    double most = 0;
    for (index_t m = 0; m < items; ++m) {
      double low = inf, high = 0;
      for (index_t o = 0; o < options; ++o) {
        const auto i = static_cast<std::size_t>(m * options + o);
        if (cost[i] == inf) continue;
        low = std::min(low, of[i]);
        high = std::max(high, of[i]);
      }
      most = std::max(most, high - low);
    }
    return most;
  }
};

/// Small whole numbers, so that ties are common; now and then an option that does not exist.
Instance random_instance(std::uint32_t seed) {
  const decant::Philox random{71};
  std::uint32_t draw = 0;
  const auto below = [&](std::uint32_t n) { return random(draw++, seed).word[0] % n; };
  Instance x(1 + below(6), 1 + below(4));
  for (std::size_t i = 0; i < x.size(); ++i) {
    x.cost[i] = static_cast<double>(below(20));
    x.loss[i] = static_cast<double>(below(30));
    if (i % static_cast<std::size_t>(x.options) != 0 && below(8) == 0) x.cost[i] = inf;
  }
  return x;
}

template <class Visit>
void each_choice(const Instance& x, Visit visit) {
  std::vector<index_t> at(static_cast<std::size_t>(x.items), 0);
  for (;;) {
    KnapsackTotals t;
    for (index_t m = 0; m < x.items; ++m) {
      const auto i = static_cast<std::size_t>(m * x.options + at[static_cast<std::size_t>(m)]);
      t.cost += x.cost[i];
      t.loss += x.loss[i];
    }
    if (t.cost < inf) visit(t);
    std::size_t m = 0;
    while (m < at.size() && ++at[m] == x.options) at[m++] = 0;
    if (m == at.size()) return;
  }
}

KnapsackTotals totals(const Instance& x, const std::vector<std::int32_t>& choice) {
  KnapsackTotals t;
  for (index_t m = 0; m < x.items; ++m) {
    const auto i = static_cast<std::size_t>(m * x.options + choice[static_cast<std::size_t>(m)]);
    t.cost += x.cost[i];
    t.loss += x.loss[i];
  }
  return t;
}

TEST_CASE("least loss within a budget equals brute force, and the hull is within an edge") {
  decant::Cpu cpu;
  int feasible = 0, hull_optimal = 0;
  for (std::uint32_t seed = 0; seed < 1000; ++seed) {
    const Instance x = random_instance(seed);
    const double budget = static_cast<double>(decant::Philox{5}(seed).word[0] % static_cast<unsigned>(16 * x.items));
    KnapsackTotals best{inf, inf};
    double least = inf;
    each_choice(x, [&](const KnapsackTotals& t) {
      least = std::min(least, t.cost);
      if (t.cost <= budget && (t.loss < best.loss || (t.loss == best.loss && t.cost < best.cost))) best = t;
    });
    std::vector<std::int32_t> choice(static_cast<std::size_t>(x.items));
    CAPTURE(seed, x.items, x.options, budget);
    if (best.loss == inf) {
      for (const auto method : {KnapsackMethod::hull, KnapsackMethod::exact}) {
        try {
          least_loss(cpu, x.view(), budget, choice, method);
          FAIL("no error");
        } catch (const InfeasibleError& e) {
          CHECK(e.least() == least);
          CHECK_NOTHROW(least_loss(cpu, x.view(), e.least(), choice, method));
        }
      }
      continue;
    }
    ++feasible;
    const KnapsackTotals exact = least_loss(cpu, x.view(), budget, choice, KnapsackMethod::exact);
    REQUIRE(exact == best);
    REQUIRE(totals(x, choice) == exact);
    for (const auto method : {KnapsackMethod::hull, KnapsackMethod::filled_hull}) {
      const KnapsackTotals hull = least_loss(cpu, x.view(), budget, choice, method);
      REQUIRE(totals(x, choice) == hull);
      REQUIRE(hull.cost <= budget);
      REQUIRE(hull.loss >= best.loss);
      REQUIRE(hull.loss <= best.loss + x.largest_step(x.loss));
      // Optimal for what it spends.
      const KnapsackTotals same = least_loss(cpu, x.view(), hull.cost, choice, KnapsackMethod::exact);
      if (method == KnapsackMethod::hull) REQUIRE(same.loss == hull.loss);
      hull_optimal += method == KnapsackMethod::filled_hull && hull.loss == best.loss;
    }
  }
  CHECK(feasible > 300);
  CHECK(feasible < 1000);
  CHECK(hull_optimal < feasible);
}

TEST_CASE("least cost within a loss equals brute force, and the hull is within an edge") {
  decant::Cpu cpu;
  int feasible = 0;
  for (std::uint32_t seed = 0; seed < 1000; ++seed) {
    const Instance x = random_instance(seed);
    const double most = static_cast<double>(decant::Philox{6}(seed).word[0] % static_cast<unsigned>(24 * x.items));
    KnapsackTotals best{inf, inf};
    double least = inf;
    each_choice(x, [&](const KnapsackTotals& t) {
      least = std::min(least, t.loss);
      if (t.loss <= most && (t.cost < best.cost || (t.cost == best.cost && t.loss < best.loss))) best = t;
    });
    std::vector<std::int32_t> choice(static_cast<std::size_t>(x.items));
    CAPTURE(seed, x.items, x.options, most);
    if (best.cost == inf) {
      try {
        least_cost(cpu, x.view(), most, choice);
        FAIL("no error");
      } catch (const InfeasibleError& e) {
        CHECK(e.least() == least);
      }
      continue;
    }
    ++feasible;
    REQUIRE(least_cost(cpu, x.view(), most, choice, KnapsackMethod::exact) == best);
    REQUIRE(totals(x, choice) == best);
    const KnapsackTotals hull = least_cost(cpu, x.view(), most, choice, KnapsackMethod::hull);
    REQUIRE(hull.loss <= most);
    REQUIRE(hull.cost >= best.cost);
    REQUIRE(hull.cost <= best.cost + x.largest_step(x.cost));
  }
  CHECK(feasible > 300);
}

TEST_CASE("a larger budget never gives a larger loss") {
  decant::Cpu cpu;
  Instance x(40, 7);
  const decant::Philox random{9};
  for (index_t m = 0; m < x.items; ++m) {
    for (index_t o = 0; o < x.options; ++o) {
      const auto i = static_cast<std::size_t>(m * x.options + o);
      x.cost[i] = static_cast<double>((1 + m % 4) * (2 + o) * 4096);
      x.loss[i] = random.uniform(static_cast<std::uint32_t>(i)) * std::pow(4.0, -static_cast<double>(o));
    }
  }
  std::vector<std::int32_t> choice(static_cast<std::size_t>(x.items));
  for (const auto method : {KnapsackMethod::hull, KnapsackMethod::exact}) {
    double before = inf;
    for (double budget = 820000; budget < 3300000; budget += 40001) {
      const KnapsackTotals t = least_loss(cpu, x.view(), budget, choice, method);
      CHECK(t.cost <= budget);
      CHECK(t.loss <= before);
      before = t.loss;
    }
    before = inf;
    for (double most = 5e-3; most < 4; most *= 1.1) {
      const KnapsackTotals t = least_cost(cpu, x.view(), most, choice, method);
      CHECK(t.loss <= most);
      CHECK(t.cost <= before);
      before = t.cost;
    }
  }
}

TEST_CASE("costs that are not whole are rounded up, so that the budget holds") {
  decant::Cpu cpu;
  Instance x(12, 5);
  const decant::Philox random{10};
  for (std::size_t i = 0; i < x.size(); ++i) {
    x.cost[i] = 0.1 + random.uniform(static_cast<std::uint32_t>(i));
    x.loss[i] = random.uniform(static_cast<std::uint32_t>(i), 1);
  }
  std::vector<std::int32_t> choice(12);
  for (double budget = 4; budget < 10; budget += 0.37) {
    const KnapsackTotals exact = least_loss(cpu, x.view(), budget, choice, KnapsackMethod::exact);
    CHECK(exact.cost <= budget);
    CHECK(exact.loss <= least_loss(cpu, x.view(), budget, choice).loss + 1e-3);
    // A choice that costs a hair too much, far less than a rounded unit, is not taken.
    CHECK(least_loss(cpu, x.view(), exact.cost - 1e-9, choice, KnapsackMethod::exact).cost <= exact.cost - 1e-9);
    const KnapsackTotals back = least_cost(cpu, x.view(), exact.loss, choice, KnapsackMethod::exact);
    CHECK(back.loss <= exact.loss);
    CHECK(back.cost <= exact.cost + 12 * 10.0 / 65536);
  }
}

TEST_CASE("no items, one option, and arguments that are refused") {
  decant::Cpu cpu;
  CHECK(least_loss(cpu, Knapsack{}, 0, View<std::int32_t, 1>()) == KnapsackTotals{});
  CHECK(least_cost(cpu, Knapsack{}, 0, View<std::int32_t, 1>(), KnapsackMethod::exact) == KnapsackTotals{});
  Instance x(2, 1);
  x.cost = {3, 4};
  x.loss = {1, 2};
  std::vector<std::int32_t> choice(2, -1);
  CHECK(least_loss(cpu, x.view(), 7, choice, KnapsackMethod::exact) == KnapsackTotals{7, 3});
  CHECK(least_loss(cpu, x.view(), inf, choice) == KnapsackTotals{7, 3});
  CHECK_THROWS_WITH(least_loss(cpu, x.view(), 6.5, choice), catch_compat::contains("expected at least 7, got 6.5"));
  CHECK_THROWS_AS(least_loss(cpu, x.view(), std::nan(""), choice), decant::ArgumentError);
  x.cost[1] = -1;
  CHECK_THROWS_AS(least_loss(cpu, x.view(), 7, choice), decant::ArgumentError);
  x.cost[1] = inf;
  CHECK_THROWS_WITH(least_loss(cpu, x.view(), 7, choice), catch_compat::contains("none for item 1"));
  x.cost[1] = 4;
  x.loss[0] = std::nan("");
  CHECK_THROWS_AS(least_cost(cpu, x.view(), 7, choice), decant::ArgumentError);
}

TEST_CASE("the second call of the knapsack allocates nothing") {
  decant::Cpu cpu;
  const Instance x = random_instance(3);
  std::vector<std::int32_t> choice(static_cast<std::size_t>(x.items));
  least_cost(cpu, x.view(), 1000, choice, KnapsackMethod::exact);
  const std::size_t high = cpu.workspace().high_water();
  least_cost(cpu, x.view(), 1000, choice, KnapsackMethod::exact);
  CHECK(cpu.workspace().high_water() == high);
  CHECK(cpu.workspace().used() == 0);
}

}  // namespace quant_knapsack_test
