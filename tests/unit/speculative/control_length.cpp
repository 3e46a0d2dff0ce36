// Draft lengths from acceptance and cost: the search against a naive one, the stopping rule against the search, tables,
// the counters, and lengths that measured runs of two papers must lead to.
#include <cmath>
#include <vector>

#include "catch_compat.hpp"
#include "decant/core/random.hpp"
#include "decant/speculative/fixed_length.hpp"
#include "decant/speculative/throughput_optimal.hpp"

namespace {

namespace speculative = decant::speculative;
using namespace decant::speculative;
using decant::ArgumentError;
using decant::Philox;
using decant::View;
using Rates = std::vector<double>;

View<const double, 1> view(const Rates& rates) { return View<const double, 1>(rates); }

/// Conditional rates of survival probabilities.
Rates conditional(const Rates& survival) {
  Rates a(survival);
  for (std::size_t i = a.size() - 1; i > 0; --i) a[i] /= a[i - 1];
  return a;
}

double naive_tokens(const Rates& a, int g) {
  double sum = 1;
  for (int j = 1; j <= g; ++j) {
    double product = 1;
    for (int i = 0; i < j; ++i) product *= a[static_cast<std::size_t>(i)];
    sum += product;
  }
  return sum;
}

template <class Seconds>
int naive_best(const Rates& a, const Seconds& seconds) {
  int best = 0;
  for (int g = 1; g <= static_cast<int>(a.size()); ++g) {
    if (naive_tokens(a, g) / seconds(g) > naive_tokens(a, best) / seconds(best)) best = g;
  }
  return best;
}

Rates random_rates(std::uint32_t i, int most) {
  const Philox random{17};
  Rates a(1 + static_cast<std::size_t>(random(0, i).word[0]) % static_cast<std::size_t>(most));
  for (std::uint32_t j = 0; j < a.size(); ++j) a[j] = random.uniform_double(1 + j, i);
  if (i % 3 == 0) {
    for (double& x : a) x = std::sqrt(std::sqrt(x));  // high rates, long drafts
  }
  return a;
}

TEST_CASE("the stopping rule finds what the search over all lengths finds") {
  const Philox random{18};
  int drafted = 0;
  for (std::uint32_t i = 0; i < 10000; ++i) {
    const Rates a = random_rates(i, 16);
    const double base = 0.1 + random.uniform_double(0, i);
    const double slope = 0.3 * random.uniform_double(1, i);
    const auto seconds = [&](int g) { return base + slope * g; };
    const int best = naive_best(a, seconds);
    drafted += best > 0;
    REQUIRE(best_length(view(a), seconds) == best);
    REQUIRE(stopping_length(view(a), base, slope) == best);
    REQUIRE(expected_tokens(view(a), best) == Approx(naive_tokens(a, best)).epsilon(1e-12));
    if (a[0] <= slope / base) REQUIRE(best == 0);
    // The unit of time does not matter; a dearer verification never shortens the draft.
    REQUIRE(stopping_length(view(a), 8 * base, 8 * slope) == best);
    REQUIRE(stopping_length(view(a), base * (1 + random.uniform_double(2, i)), slope) >= best);
  }
  REQUIRE(drafted > 3000);
  REQUIRE(drafted < 9900);
  REQUIRE(stopping_length(view({0.25, 1, 1}), 4, 1) == 0);  // exactly what the token costs: not worth it
  REQUIRE(stopping_length(view({0.9, 0.9}), 1, 0) == 2);
}

TEST_CASE("measured survival and cost give the lengths that the same logs found fastest") {
  struct Regime {
    Rates survival;
    double verify, draft, rate;
    int best;
  };
  const Regime regimes[] = {
      {{.8105, .6928, .5948, .5294, .4771, .4379, .3922, .3464}, 20.29, 10.47, 60.7, 2},
      {{.7942, .6849, .5852, .5241, .4534, .4116, .3923, .3569}, 90.45, 10.41, 29.95, 8},
      {{.7710, .6742, .5935, .5258, .4613, .4355, .3935, .3677}, 36.44, 10.56, 45.3, 4},
  };
  for (const Regime& r : regimes) {
    const Rates a = conditional(r.survival);
    const CostTable cost = CostTable::affine(r.verify, r.draft);
    const auto seconds = [&](int g) { return cost.seconds(g); };
    REQUIRE(best_length(view(a), seconds) == r.best);
    REQUIRE(stopping_length(view(a), r.verify, r.draft) == r.best);
    REQUIRE(1000 * expected_tokens(view(a), r.best) / cost.seconds(r.best) == Approx(r.rate).margin(0.06));
    REQUIRE(best_length(view(a), seconds, Objective::tokens) == 8);
  }
}

TEST_CASE("published rollouts: throughput drafts three tokens, token counting loses, a dear drafter is switched off") {
  struct Run {
    std::vector<double> tokens, speedup, implied;
    double ngram_tokens, ngram_cost;
    std::vector<double> rates;
  };
  const Run runs[] = {{{3.32, 4.35, 5.06}, {1.77, 1.44, 1.21}, {1.876, 3.021, 4.182}, 2.47, 3.46, {.877, .869, .863}},
                      {{2.77, 3.23, 3.48}, {1.53, 0.84, 0.71}, {1.810, 3.845, 4.901}, 2.05, 4.03, {.759, .742, .738}}};
  const std::vector<std::int32_t> lengths{0, 3, 5, 7};
  for (const Run& run : runs) {
    const CostTable cost = CostTable::relative({3, 5, 7}, run.tokens, run.speedup);
    const auto seconds = [&](int g) { return cost.seconds(g); };
    const auto tokens = [&](int g) { return g == 0 ? 1.0 : run.tokens[static_cast<std::size_t>((g - 3) / 2)]; };
    for (int i = 0; i < 3; ++i) {
      const auto at = static_cast<std::size_t>(i);
      REQUIRE(cost.seconds(3 + 2 * i) == Approx(run.implied[at]).margin(6e-4));
      const Rates constant(7, run.rates[at]);
      REQUIRE(expected_tokens(view(constant), 3 + 2 * i) == Approx(run.tokens[at]).margin(0.02));
    }
    const View<const std::int32_t, 1> candidates(lengths);
    REQUIRE(best_candidate(candidates, tokens, seconds, Objective::throughput) == 3);
    REQUIRE(best_candidate(candidates, tokens, seconds, Objective::tokens) == 7);
    const std::vector<std::int32_t> ngram{0, 7};
    REQUIRE(best_candidate(View<const std::int32_t, 1>(ngram), [&](int g) { return g ? run.ngram_tokens : 1.0; },
                           [&](int g) { return g ? run.ngram_cost : 1.0; }, Objective::throughput) == 0);
  }
  REQUIRE(runs[1].tokens[2] / runs[1].implied[2] < 1);  // the longest draft is slower than none
}

TEST_CASE("a table of costs is linear between its numbers") {
  const CostTable t({1, 4}, {0, 2, 4}, {10, 12, 20, 16, 24, 40});
  REQUIRE(t.seconds(1) == 11);
  REQUIRE(t.seconds(3) == 16);
  REQUIRE(t.seconds(4, 4) == 40);
  REQUIRE(t.seconds(6) == 28);       // the last segment goes on
  REQUIRE(t.seconds(2, 2) == 16);    // a third of the way from 12 to 24
  REQUIRE(t.seconds(2, 7) == 36);
  REQUIRE(t.seconds(0, 0) == 10);
  REQUIRE(CostTable({2, 4, 6}, {5, 4, 3}).seconds(9) == 3);  // noise does not go on
  REQUIRE(CostTable({2, 4}, {5, 6}).seconds(0) == 4);
  REQUIRE(CostTable({4}, {5}).seconds(0) == 5);
  REQUIRE(CostTable().empty());
  REQUIRE_THROWS_AS(CostTable().seconds(1), ArgumentError);
  REQUIRE_THROWS_WITH(CostTable({2, 2}, {1, 1}), catch_compat::contains("argument `lengths`"));
  REQUIRE_THROWS_WITH(CostTable({2, 4}, {1, NAN}), catch_compat::contains("argument `seconds`"));
  REQUIRE_THROWS_WITH(CostTable({2, 4}, {1}), catch_compat::contains("argument `seconds`"));
  REQUIRE_THROWS_WITH(CostTable({2, 4}, {1, 5}), catch_compat::contains("positive down to no draft"));
  REQUIRE_THROWS_WITH(CostTable({0, 2}, {1, 2}, {1, 2, 3, 4}), catch_compat::contains("argument `batches`"));

  const Roofline r{16e9, 1e5, 8e9, 2e12, 4e14, 1e-3, 2e-3};
  REQUIRE(r.seconds(0) == Approx(9e-3));
  REQUIRE(r.seconds(4) == Approx(17e-3));                              // still bound by the weights
  REQUIRE(r.seconds(0, 64, 10000) == Approx(8e-3 + 0.032 + 1e-3));     // and by the cache
  REQUIRE(r.seconds(3, 512) == Approx(2 * 8e9 * 512 * 4 / 4e14 + 7e-3));
  REQUIRE(Roofline{}.empty());
}

TEST_CASE("a meter finds base and slope in a running engine's steps") {
  CostMeter meter;
  REQUIRE(meter.table().empty());
  meter.observe({4, 2, 0});  // not measured
  for (int i = 0; i < 20; ++i) meter.observe({4, 2, 3.0});
  REQUIRE(meter.table().empty());  // one length says nothing about another
  for (int i = 0; i < 200; ++i) meter.observe({i % 5, 0, 1.0 + 0.5 * (i % 5)});
  REQUIRE(meter.table().seconds(0) == Approx(1));
  REQUIRE(meter.table().seconds(10) == Approx(6));
  CostMeter falling;
  falling.observe({0, 0, 2.0});
  falling.observe({4, 0, 1.0});
  REQUIRE(falling.table().seconds(0) == falling.table().seconds(4));
}

TEST_CASE("acceptance counters fade to their prior") {
  AcceptanceEstimator e(3, 0.98);
  REQUIRE(e.acceptance()[0] == 0.5);
  e.observe({3, 1, 0});
  REQUIRE(e.acceptance()[0] == Approx(2.0 / 3));
  REQUIRE(e.acceptance()[1] == Approx(1.0 / 3));
  REQUIRE(e.acceptance()[2] == 0.5);  // behind a rejection nothing was tried
  e.observe({1, 1, 0});
  REQUIRE(e.acceptance()[0] == Approx((1 + 0.98 + 1) / (2 + 0.98 + 1)));
  REQUIRE(e.acceptance()[1] == Approx(1 / 2.98));
  for (int i = 0; i < 2000; ++i) e.observe({0, 0, 0});
  for (int i = 0; i < 3; ++i) REQUIRE(e.acceptance()[i] == Approx(0.5));
  REQUIRE_THROWS_AS(e.observe({2, 3, 0}), ArgumentError);
  REQUIRE_THROWS_AS(AcceptanceEstimator(4, 0), ArgumentError);

  // Rates that differ by position are found, within five standard deviations of 50 tries.
  AcceptanceEstimator found(2, 0.99);
  const Philox random{5};
  for (std::uint32_t i = 0; i < 4000; ++i) {
    const int first = random.uniform_double(0, i) < 0.9;
    found.observe({2, first + (first && random.uniform_double(1, i) < 0.4), 0});
  }
  REQUIRE(found.acceptance()[0] == Approx(0.9).margin(0.11));
  REQUIRE(found.acceptance()[1] == Approx(0.4).margin(0.18));
}

TEST_CASE("the throughput controller goes where its counters lead it, and refuses to guess a cost") {
  REQUIRE_THROWS_WITH(ThroughputOptimal(CostTable{}), catch_compat::contains("the cost of a step"));
  REQUIRE_THROWS_AS(ThroughputOptimal(Roofline{}), ArgumentError);
  ThroughputOptimal cheap(CostTable::affine(1, 0.05));
  ThroughputOptimal dear(CostTable::affine(1, 0.7));
  ThroughputOptimal blind(CostTable{}, ThroughputOptions{.objective = Objective::tokens});
  for (int i = 0; i < 300; ++i) {
    const auto g = cheap.next({});
    cheap.observe({g.depth, g.depth, 0});
    const auto h = dear.next({});
    dear.observe({h.depth, 0, 0});
    blind.observe({8, 0, 0});
  }
  REQUIRE(cheap.next({}) == DraftBudget::chain(8));
  REQUIRE(cheap.next({.tokens_left = 4}) == DraftBudget::chain(3));
  REQUIRE(cheap.next({.tokens_left = 1}) == DraftBudget{});
  REQUIRE(dear.next({}) == DraftBudget{});
  REQUIRE(blind.next({}) == DraftBudget::chain(8));
}

TEST_CASE("a controller that gave up comes back when its evidence has faded") {
  ThroughputOptimal c(CostTable::affine(1, 0.2));
  for (int i = 0; i < 100; ++i) c.observe({4, 0, 0});
  REQUIRE(c.next({}).depth == 0);
  int waited = 0;
  while (c.next({}).depth == 0 && waited < 1000) {
    c.observe({0, 0, 0});
    ++waited;
  }
  REQUIRE(waited > 10);
  REQUIRE(waited < 300);
}

TEST_CASE("a fixed length shrinks at the end of the text alone") {
  const FixedLength f;
  REQUIRE(f.next({}) == DraftBudget::chain(4));
  REQUIRE(f.next({.tokens_left = 5}) == DraftBudget::chain(4));
  REQUIRE(f.next({.tokens_left = 3}) == DraftBudget::chain(2));
  REQUIRE(f.next({.tokens_left = 0}) == DraftBudget{});
  const FixedLength tree{{6, 60}};
  REQUIRE(tree.next({.tokens_left = 4}) == DraftBudget{3, 60});
  REQUIRE(tree.next({.tokens_left = 1}) == DraftBudget{});
  validate(tree);
  REQUIRE_THROWS_AS(speculative::validate(FixedLength{{4, 3}}), ArgumentError);
}

}  // namespace
