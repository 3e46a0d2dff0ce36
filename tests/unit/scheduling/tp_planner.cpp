// Reconfiguration of a rollout: decisions against exhaustive search, the survival model against truth, the split of
// requests against enumeration, and slices that fit together again.
#include <algorithm>
#include <cmath>
#include <vector>

#include "catch_compat.hpp"
#include "decant/scheduling/generators.hpp"
#include "decant/scheduling/kv_moves.hpp"
#include "decant/scheduling/tp_planner.hpp"

namespace tp_planner_test {

using namespace decant;
using namespace decant::scheduling;

/// Wide replicas are faster for few requests, narrow ones for many.
StepProfile profile(std::uint32_t degree) {
  const std::vector<std::uint32_t> batches{1, 2, 4, 8, 16, 32, 64, 128}, contexts{1, 1u << 20};
  std::vector<double> seconds;
  for (const std::uint32_t b : batches) {
    for (std::size_t c = 0; c < 2; ++c) seconds.push_back(0.008 / degree + 0.004 + 0.0004 * b);
  }
  return {batches, contexts, seconds};
}

TpPlanner planner(std::uint32_t output, double margin = 0) {
  return {8, {{1, profile(1)}, {2, profile(2)}, {8, profile(8)}}, SurvivalModel({{output, true}}, 100000), margin};
}

TEST_CASE("StepProfile: bilinear in log2 batch, clamped, and repaired where it falls") {
  const StepProfile p({1, 4}, {10, 30}, {1, 3, 2, 2});
  CHECK(p(1, 10) == 1);
  CHECK(p(1, 20) == 2);
  CHECK(p(0.5, 5) == 1);
  CHECK(p(2, 10) == 1.5);
  CHECK(p(100, 100) == 3);  // 2 was below its neighbour
  CHECK(p(4, 20) == 2.5);
  CHECK(p(0, 20) == 0);
  CHECK_THROWS_AS(StepProfile({4, 1}, {1}, {1, 1}), ArgumentError);
  CHECK_THROWS_AS(StepProfile({1}, {1}, {0}), ArgumentError);
  CHECK_THROWS_AS(StepProfile({1}, {1}, {1, 2}), ArgumentError);
}

TEST_CASE("SurvivalModel: shares, censored outputs, and the tail that nobody has seen") {
  const SurvivalModel m({{10, true}, {20, true}, {20, false}, {40, true}}, 100);
  CHECK(m.beyond(9) == 1);
  CHECK(m.beyond(10) == 0.75);
  CHECK(m.beyond(20) == 0.5);
  CHECK(m.beyond(40) == 0);
  CHECK(m.beyond(100) == 0);
  CHECK(m.goes_on(10, 10) == Approx(2 / 3.));
  CHECK(m.goes_on(50, 10) == 1);
  CHECK(m.goes_on(50, 50) == 0);
  CHECK_THROWS_AS(SurvivalModel({}, 10), ArgumentError);
}

TEST_CASE("SurvivalModel: predicted remaining tokens are unbiased", "[statistics]") {
  // 10,000 requests, half-way through; three standard errors: a false alarm in 370, and the seed is fixed.
  SplitMix64 next{5};
  const LengthLaw law = LengthLaw::lognormal(5, 0.7, 2000);
  std::vector<SurvivalModel::Output> seen(10000);
  for (auto& o : seen) o.tokens = law(next);
  const SurvivalModel model(seen, 2001);
  double predicted = 0, truth = 0, squares = 0;
  int n = 0;
  for (int i = 0; i < 10000; ++i) {
    const std::uint32_t length = law(next), done = 100;
    if (length <= done) continue;
    const double left = length - done;
    truth += left;
    squares += left * left;
    ++n;
  }
  for (std::uint32_t x = 0; x < 2000; ++x) predicted += model.goes_on(100, x);
  const double mean = truth / n, error = std::sqrt((squares / n - mean * mean) / n);
  CHECK(std::abs(predicted - mean) < 3 * std::sqrt(2.0) * error);
}

TEST_CASE("TpPlanner: the rest of a rollout of known lengths is its sum of steps") {
  // All go on for exactly 50 more tokens.
  const std::vector<LiveRequest> live(20, LiveRequest{500, 50});
  for (const std::uint32_t degree : {1u, 2u, 8u}) {
    const double step = profile(degree)(std::ceil(20.0 * degree / 8), 500);
    CHECK(planner(100).rest(live, degree) / (50 * step) == Approx(1).epsilon(0.06));  // the grid meets no edge exactly
  }
  CHECK(planner(100).rest({}, 2) == 0);
  CHECK_THROWS_AS(planner(100).rest(live, 4), ArgumentError);
}

TEST_CASE("TpPlanner: free switches take the fastest, dear ones are never made, and the margin holds") {
  const TpPlanner p = planner(1000);
  const auto none = [](std::uint32_t) { return SwitchCost{}; };
  const auto dear = [](std::uint32_t) { return SwitchCost{.weights = 1e12}; };
  for (const std::size_t n : {std::size_t{1}, std::size_t{4}, std::size_t{16}, std::size_t{64}, std::size_t{512}}) {
    const std::vector<LiveRequest> live(n, LiveRequest{100, 10});
    std::uint32_t fastest = 1;
    for (const std::uint32_t degree : {2u, 8u}) {
      if (p.rest(live, degree) < p.rest(live, fastest)) fastest = degree;
    }
    CHECK(p.decide(live, 1, none).degree == fastest);
    CHECK_FALSE(p.decide(live, 1, dear).change);
    const TpDecision d = planner(1000, 0.05).decide(live, 1, none);
    CHECK(d.change == (d.stay_seconds - d.best_seconds > 0.05 * d.stay_seconds));
  }
  // Wide wins for one request and narrow for many.
  CHECK(p.decide({LiveRequest{100, 10}}, 1, none).degree == 8);
  CHECK(p.decide(std::vector<LiveRequest>(512, LiveRequest{100, 10}), 8, none).degree == 1);
}

TEST_CASE("TpPlanner: the first instant at which it switches is near the best one") {
  // Lengths are known in law: request i ends after 40 i tokens. Time is that of the real rollout, for every instant.
  const std::uint32_t n = 48, unit = 40;
  std::vector<SurvivalModel::Output> law;
  for (std::uint32_t i = 1; i <= n; ++i) law.push_back({i * unit, true});
  const TpPlanner p(8, {{1, profile(1)}, {8, profile(8)}}, SurvivalModel(law, n * unit + 1), 0);
  const double price = 0.5;
  const auto step = [&](std::uint32_t degree, std::uint32_t t) {
    const std::uint32_t live = n - t / unit;
    return profile(degree)(std::ceil(live * degree / 8.0), 100);
  };
  const auto total = [&](std::uint32_t at) {  // switching before step `at`
    double sum = at < n * unit ? price : 0;
    for (std::uint32_t t = 0; t < n * unit; ++t) sum += step(t < at ? 1 : 8, t);
    return sum;
  };
  double best = total(n * unit);
  for (std::uint32_t at = 0; at < n * unit; at += unit) best = std::min(best, total(at));
  const auto chosen = [&](bool look_ahead) {
    for (std::uint32_t t = 0; t < n * unit; t += 8) {
      const std::vector<LiveRequest> live(n - t / unit, LiveRequest{100, t});
      if (p.decide(live, 1, [&](std::uint32_t) { return SwitchCost{.other = price}; }, look_ahead).change) return t;
    }
    return n * unit;
  };
  CHECK(total(chosen(true)) <= 1.01 * best);
  CHECK(total(chosen(false)) <= total(n * unit));   // the paper's rule gains,
  CHECK(total(chosen(false)) > total(chosen(true)));  // but does not wait for the best instant
  CHECK(best < 0.97 * total(n * unit));  // there is something to win
}

TEST_CASE("moved_share: heads that stay, move and are copied") {
  CHECK(moved_share(8, 2, 2) == 0);
  // From 2 ranks of 4 heads to 8 of 1: rank 0 keeps head 0, rank 1 had heads 4 to 7 and needs head 1.
  CHECK(moved_share(8, 2, 8) == 7 / 8.);
  CHECK(moved_share(8, 1, 2) == 4 / 8.);
  CHECK(moved_share(8, 8, 1) == 7 / 8.);
  // Two heads on 8 ranks: four copies each, and ranks 0 and 1 had one each.
  CHECK(moved_share(2, 2, 8) == 7 / 2.);
  CHECK_THROWS_AS(moved_share(6, 4, 2), ArgumentError);
}

TEST_CASE("plan_kv_moves: the best split of all, for up to 12 requests of equal and of many sizes") {
  SplitMix64 next{3};
  for (int trial = 0; trial < 60; ++trial) {
    const std::size_t n = 1 + next() % 12;
    std::vector<double> migrate(n);
    std::vector<std::uint64_t> tokens(n, 1 + next() % 50);
    for (std::size_t i = 0; i < n; ++i) migrate[i] = 0.1 + unit(next) * 8;
    const auto recompute = [](std::uint64_t t) { return t == 0 ? 0.0 : 2 + 0.7 * std::sqrt(static_cast<double>(t)); };
    const auto cost = [&](const auto& moves) {
      double sum = 0;
      std::uint64_t total = 0;
      for (std::size_t i = 0; i < n; ++i) {
        if (moves(i)) sum += migrate[i];
        else total += tokens[i];
      }
      return sum + recompute(total);
    };
    double best = 1e300;
    for (std::uint32_t set = 0; set < 1u << n; ++set) best = std::min(best, cost([&](std::size_t i) { return (set >> i & 1) != 0; }));
    const auto moves = plan_kv_moves(migrate, tokens, recompute);
    CHECK(cost([&](std::size_t i) { return moves[i] != 0; }) <= best + 1e-12);
  }
}

TEST_CASE("migration_waves: what flies stays within spare memory") {
  const std::vector<std::uint64_t> bytes{4, 4, 3, 8, 1, 7};
  CHECK((migration_waves(bytes, 8) == std::vector<std::uint32_t>{0, 0, 1, 2, 3, 3}));
  CHECK_THROWS_AS(migration_waves(bytes, 7), ArgumentError);
}

TEST_CASE("shards: gathering and slicing again is the identity between all degrees, also of uneven dims") {
  for (const Cut cut : {Cut::rows, Cut::columns}) {
    for (const index_t rows : {index_t{8}, index_t{13}}) {
      for (const index_t columns : {index_t{16}, index_t{5}}) {
        for (const std::uint32_t degree : {1u, 2u, 3u, 4u, 8u}) {
          for (index_t r = 0; r < rows; ++r) {
            for (index_t c = 0; c < columns; ++c) {
              const ShardPlace place = shard_place(cut, rows, columns, degree, r, c);
              index_t row = -1, column = -1;
              REQUIRE(place.rank < degree);
              REQUIRE(shard_element(cut, rows, columns, degree, place, row, column));
              REQUIRE((row == r && column == c));
            }
          }
        }
        index_t row, column;
        CHECK_FALSE(shard_element(cut, 5, 5, 2, {1, 2, 2}, row, column));  // padding
      }
    }
  }
}

}  // namespace tp_planner_test
