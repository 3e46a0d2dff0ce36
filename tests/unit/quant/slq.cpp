// SLQ on games whose answers are known: Shapley values (telescoping, additive and pair games), the safety of the two
// estimators, the searches, the evolution, and the arithmetic of sizes and of the gamma-squared law.
#include <algorithm>
#include <cmath>
#include <vector>

#include <decant/quant/slq.hpp>

#include "catch_compat.hpp"

namespace quant_slq_test {

using decant::index_t;
using decant::View;
using namespace decant::quant;

const std::vector<int> all_widths{2, 3, 4, 5, 6, 7, 8};
const std::vector<int> six_widths{2, 3, 4, 5, 6, 8};

float uniform(std::uint32_t draw, std::uint32_t stream) { return decant::Philox{23}.uniform(draw, 0, 0, stream); }

/// KL = sum of s_m 4^-b, plus interactions J_mn sqrt(d_m d_n); 1 - EAR is twice that.
struct Game {
  std::vector<double> scale, pair;
  double base = 0;
  int calls = 0;

  Game(index_t groups, std::uint32_t seed, double most_pair) {
    for (index_t m = 0; m < groups; ++m)
      scale.push_back(std::exp(3.0 * static_cast<double>(uniform(static_cast<std::uint32_t>(m), seed))));
    for (index_t i = 0; i < groups * groups; ++i)
      pair.push_back(most_pair * static_cast<double>(uniform(static_cast<std::uint32_t>(1000 + i), seed)));
  }
  double delta(std::size_t m, int bits) const { return scale[m] * (std::pow(4.0, -bits) - std::pow(4.0, -8)); }
  double j(std::size_t m, std::size_t n) const { return pair[std::min(m, n) * scale.size() + std::max(m, n)]; }
  double loss(View<const int, 1> bits) const {
    double sum = 0;
    for (std::size_t m = 0; m < scale.size(); ++m) {
      sum += delta(m, bits[static_cast<index_t>(m)]);
      for (std::size_t n = 0; n < m; ++n)
        sum += j(m, n) * std::sqrt(delta(m, bits[static_cast<index_t>(m)]) * delta(n, bits[static_cast<index_t>(n)]));
    }
    return sum;
  }
  Fidelity operator()(View<const int, 1> bits) {
    ++calls;
    return {1 - base - 2 * loss(bits), base + loss(bits)};
  }
  index_t groups() const { return static_cast<index_t>(scale.size()); }
};

std::vector<SlqGroup> equal_groups(index_t n) { return std::vector<SlqGroup>(static_cast<std::size_t>(n), {256, 512}); }

TEST_CASE("Shapley values sum to what all groups add") {
  Game game(7, 1, 0.8);
  game.base = 0.01;
  for (const int permutations : {1, 3, 8}) {
    game.calls = 0;
    const SlqTable table = shapley_sensitivities(game, 7, all_widths, permutations, 5);
    CHECK(table.evaluations == game.calls);
    CHECK(game.calls == 1 + 6 * (6 * permutations + 1));
    for (std::size_t o = 0; o < 6; ++o) {
      const std::vector<int> bits(7, all_widths[o]), widest(7, 8);
      const Fidelity low = game(bits), high = game(widest);
      double kl = 0, miss = 0;
      for (index_t m = 0; m < 7; ++m) {
        kl += table.kl[table.at(m, o)];
        miss += table.miss[table.at(m, o)];
      }
      CHECK(kl == Approx(low.kl - high.kl).epsilon(1e-12));
      CHECK(miss == Approx(high.ear - low.ear).epsilon(1e-12));
    }
    for (index_t m = 0; m < 7; ++m) CHECK(table.kl[table.at(m, 6)] == 0);
  }
}

TEST_CASE("all estimators find the values of an additive game") {
  Game game(5, 2, 0);
  const std::vector<double> levels{0.01, 0.05};
  std::vector<double> errors;
  for (index_t m = 0; m < 5; ++m)
    for (const int b : all_widths) errors.push_back(std::pow(4.0, -b) - std::pow(4.0, -8));
  const auto noise = [&](index_t m, double e) {
    const double kl = game.scale[static_cast<std::size_t>(m)] * e;
    return Fidelity{1 - 2 * kl, kl};
  };
  const View<const double, 2> of_groups(errors.data(), 5, 7);
  const SlqTable linear = linear_sensitivities(game, noise, of_groups, levels, all_widths);
  CHECK(linear.evaluations == 11);
  for (const SlqTable& table :
       {shapley_sensitivities(game, 5, all_widths, 1), shapley_sensitivities(game, 5, all_widths, 4),
        one_at_a_time_sensitivities(game, 5, all_widths), linear}) {
    for (index_t m = 0; m < 5; ++m) {
      for (std::size_t o = 0; o < 7; ++o) {
        const double exact = game.delta(static_cast<std::size_t>(m), all_widths[o]);
        CHECK(table.kl[table.at(m, o)] == Approx(exact).margin(1e-12));
        CHECK(table.miss[table.at(m, o)] == Approx(2 * exact).margin(1e-12));
      }
    }
    const std::vector<int> bits{2, 5, 3, 8, 4};
    CHECK(predict(table, bits).kl == Approx(game.loss(bits)));
    CHECK(predict(table, bits).ear == Approx(1 - 2 * game.loss(bits)));
  }
}

TEST_CASE("Shapley values share a pair's interaction in halves", "[statistics]") {
  // 4 sigma of 4,096 orders, 5 groups: one false alarm in 3,000.
  Game game(5, 3, 0.8);
  const std::vector<int> widths{3, 8};
  constexpr int orders = 4096;
  const SlqTable table = shapley_sensitivities(game, 5, widths, orders, 7);
  for (std::size_t m = 0; m < 5; ++m) {
    double exact = game.delta(m, 3), variance = 0;
    for (std::size_t n = 0; n < 5; ++n) {
      if (n == m) continue;
      const double joint = game.j(m, n) * std::sqrt(game.delta(m, 3) * game.delta(n, 3));
      exact += joint / 2;
      variance += joint * joint / 4;
      // In a random order, that n and k both come before m has probability 1/3: covariance 1/12.
      for (std::size_t k = 0; k < n; ++k)
        if (k != m) variance += 2 * joint * game.j(m, k) * std::sqrt(game.delta(m, 3) * game.delta(k, 3)) / 12;
    }
    CHECK(std::abs(table.kl[table.at(static_cast<index_t>(m), 0)] - exact) < 4 * std::sqrt(variance / orders));
  }
}

TEST_CASE("what a group adds falls with its width") {
  SlqTable table;
  table.options = {4, 6, 8};
  table.groups = 2;
  table.kl = {0.5, 0.1, 0, 0.05, 0.2, 0};
  table.miss = {-0.1, -0.2, 0, 0.3, 0.3, 0};
  make_monotone(table);
  CHECK(table.kl == std::vector<double>{0.5, 0.1, 0, 0.2, 0.2, 0});
  CHECK(table.miss == std::vector<double>{0, 0, 0, 0.3, 0.3, 0});
}

TEST_CASE("of interacting errors Shapley values promise what they keep, one at a time does not", "[statistics]") {
  decant::Cpu cpu;
  SlqSearch search;
  search.options = six_widths;
  search.checks = 0;
  constexpr double target = 0.02;
  constexpr int games = 200;
  int shapley = 0, alone = 0;
  const std::vector<SlqGroup> groups = equal_groups(6);
  for (int g = 0; g < games; ++g) {
    Game game(6, 100 + static_cast<std::uint32_t>(g), 0.8);
    search.seed = static_cast<std::uint64_t>(g);
    const SlqResult by_shapley =
        allocate_loss(cpu, search, shapley_sensitivities(search, game, 6), groups, target, SlqMetric::kl);
    SlqTable table = one_at_a_time_sensitivities(game, 6, six_widths);
    make_monotone(table);
    const SlqResult by_one = allocate_loss(cpu, search, table, groups, target, SlqMetric::kl);
    shapley += game.loss(by_shapley.bits) > target;
    alone += game.loss(by_one.bits) > target;
  }
  INFO("violations: Shapley " << shapley << ", one at a time " << alone << " of " << games);
  CHECK(shapley <= 0.15 * games);
  CHECK(alone >= 0.9 * games);
}

TEST_CASE("the allocation is reverse water-filling") {
  decant::Cpu cpu;
  SlqSearch search;
  Game game(12, 4, 0);
  const SlqTable table = shapley_sensitivities(search, game, 12);
  const std::vector<SlqGroup> groups = equal_groups(12);
  for (const int average : {3, 4, 5, 6}) {
    const SlqResult r = allocate_bits(cpu, search, table, groups, average, SlqMetric::kl);
    CHECK(r.average_bits <= average);
    CHECK(r.average_bits > average - 0.1);
    // b_m = c + log2(s_m) / 2 within a notch, for some c.
    double low = -1e9, high = 1e9;
    for (std::size_t m = 0; m < 12; ++m) {
      const double level = 0.5 * std::log2(game.scale[m]);
      if (r.bits[m] < 8) high = std::min(high, r.bits[m] + 1 - level);
      if (r.bits[m] > 2) low = std::max(low, r.bits[m] - 1 - level);
    }
    CHECK(low <= high);
    // The same from the other side.
    const SlqResult back = allocate_loss(cpu, search, table, groups, r.predicted.kl, SlqMetric::kl);
    CHECK(back.met);
    CHECK(back.average_bits == Approx(r.average_bits));
  }
  search.options = {4, 5, 6};
  try {
    allocate_bits(cpu, search, shapley_sensitivities(search, game, 12), groups, 3, SlqMetric::kl);
    FAIL("no error");
  } catch (const InfeasibleError& e) {
    CHECK(e.least() == 12 * stored_bits(groups[0], 4, {}));
  }
}

TEST_CASE("distribution-lossless: the fewest predicted bits, then what is measured") {
  decant::Cpu cpu;
  SlqSearch search;
  const std::vector<SlqGroup> groups = equal_groups(6);
  Game additive(6, 5, 0);
  const SlqTable table = shapley_sensitivities(search, additive, 6);
  SlqResult r = distribution_lossless(cpu, search, table, groups, 0.97, additive);
  CHECK(r.met);
  CHECK(r.measured.ear >= 0.97);
  CHECK(r.predicted.ear == Approx(r.measured.ear));
  CHECK(r.evaluations == 1);
  // No allocation a notch below any group's is good enough and smaller.
  for (std::size_t m = 0; m < 6; ++m) {
    std::vector<int> fewer = r.bits;
    if (fewer[m] > 2) --fewer[m];
    if (fewer != r.bits) CHECK(additive(fewer).ear < 0.97);
  }
  // Amplified errors: the aim rises until the measurement holds.
  Game pairs(6, 6, 1.5);
  SlqTable hopeful = one_at_a_time_sensitivities(pairs, 6, search.options);
  search.checks = 0;
  r = distribution_lossless(cpu, search, hopeful, groups, 0.97, pairs);
  CHECK(r.met);
  CHECK(r.evaluations == 0);
  CHECK(pairs(r.bits).ear < 0.97);
  search.checks = 1;
  CHECK(!distribution_lossless(cpu, search, hopeful, groups, 0.97, pairs).met);
  search.checks = 8;
  r = distribution_lossless(cpu, search, hopeful, groups, 0.97, pairs);
  CHECK(r.met);
  CHECK(r.measured.ear >= 0.97);
  CHECK(r.evaluations > 1);
  // Not far above it: the first aim that holds is not the last that is tried.
  const SlqResult found = r;
  search.checks = 30;
  r = distribution_lossless(cpu, search, hopeful, groups, 0.97, pairs);
  CHECK(r.met);
  CHECK(r.measured.ear >= 0.97);
  CHECK(r.bits_per_weight <= found.bits_per_weight);
  CHECK(r.measured.ear < 0.98);
  search.checks = 8;
  // A standard error asks for more.
  const auto noisy = [&](View<const int, 1> bits) {
    Fidelity f = additive(bits);
    f.standard_error = 0.004;
    return f;
  };
  r = distribution_lossless(cpu, search, table, groups, 0.97, noisy);
  CHECK(r.met);
  CHECK(r.measured.ear >= 0.978);
  CHECK_THROWS_AS(distribution_lossless(cpu, search, table, groups, 1.01, additive), decant::ArgumentError);
}

TEST_CASE("anchored predictions count from what the widest width measures") {
  decant::Cpu cpu;
  Game game(4, 7, 0);
  game.base = 0.008;
  SlqSearch search;
  const SlqTable table = shapley_sensitivities(search, game, 4);
  const std::vector<int> bits{4, 5, 6, 8};
  CHECK(predict(table, bits).ear == Approx(game(bits).ear));
  CHECK(predict(table, bits, false).ear == Approx(game(bits).ear + 0.008));
  CHECK(predict(table, bits, false).kl == Approx(game(bits).kl - 0.008));
  CHECK_THROWS_AS(distribution_lossless(cpu, search, table, equal_groups(4), 0.995, game), decant::ArgumentError);
  search.anchored = false;
  search.checks = 0;
  const SlqResult paper = distribution_lossless(cpu, search, table, equal_groups(4), 0.995, game);
  CHECK(paper.met);
  CHECK(game(paper.bits).ear < 0.995);
}

TEST_CASE("task-lossless: the line through one point") {
  const TaskLine line = task_line(0.96, 0.02, 0.01, 0.99);
  CHECK(line.alpha == Approx(2));
  CHECK(line.most_kl == Approx(0.005));
  CHECK(line.rho == Approx(2));
  CHECK(line.most_kl / line.rho == Approx(0.0025));
  CHECK(task_line(1.01, 0.02, 0.01, 0.99).most_kl > 1e300);
  CHECK(task_line(0.96, 0.02, 0, 0.99).rho == 1);
}

TEST_CASE("task-lossless search") {
  decant::Cpu cpu;
  SlqSearch search;
  Game game(6, 8, 0);
  const std::vector<SlqGroup> groups = equal_groups(6);
  SlqTable table = shapley_sensitivities(search, game, 6);
  double slope = 0.4;
  int runs = 0;
  const auto benchmark = [&](View<const int, 1> bits) {
    ++runs;
    const double share = 1 - slope * game.loss(bits);
    return std::vector<TaskScore>{{0.8 * share, 0.8, 500}, {0.6 * share, 0.6, 500}};
  };
  // Predictions half of what is measured: rho makes up for it.
  for (double& kl : table.kl) kl /= 2;
  TaskResult r = task_lossless(cpu, search, table, groups, {}, game, benchmark);
  CHECK(runs == 2);
  CHECK(r.anchors == 1);
  CHECK(r.line.alpha == Approx(slope));
  CHECK(r.line.rho == Approx(2));
  CHECK(r.recovery >= 0.99 - 1e-12);
  CHECK(r.met);
  CHECK(r.measured.kl <= r.line.most_kl * (1 + 1e-12));
  const SlqResult direct = allocate_loss(cpu, search, table, groups, r.line.most_kl / 2, SlqMetric::kl);
  CHECK(r.bits == direct.bits);
  // An anchor that loses nothing is the answer.
  slope = 0;
  r = task_lossless(cpu, search, table, groups, {}, game, benchmark);
  CHECK(r.bits == allocate_bits(cpu, search, table, groups, 4, SlqMetric::kl).bits);
  CHECK(r.recovery == 1);
  CHECK(r.met);
  // A KL that leaps at the result is measured again from 6 bits.
  slope = 0.4;
  const auto leaping = [&](View<const int, 1> bits) {
    Fidelity f = game(bits);
    f.kl *= f.kl > 0.05 ? 1 : 5;
    return f;
  };
  r = task_lossless(cpu, search, table, groups, {.recovery = 0.999}, leaping, benchmark);
  CHECK(r.anchors == 2);
  // A task below chance is told.
  const auto hopeless = [&](View<const int, 1> bits) {
    std::vector<TaskScore> tasks = benchmark(bits);
    tasks.push_back({0.5, 0.6, 1000});
    return tasks;
  };
  CHECK(!task_lossless(cpu, search, table, groups, {}, game, hopeless).met);
  const std::vector<TaskScore> chance{{0.48, 0.5, 1000}}, below{{0.47, 0.5, 1000}};
  CHECK(within_chance(chance));
  CHECK(!within_chance(below));
  // Percentages, and scores of no questions.
  for (const TaskScore& bad : {TaskScore{48, 50, 1000}, TaskScore{0.48, 0.5, 0}, TaskScore{0.5, 0, 10}}) {
    const std::vector<TaskScore> tasks{bad};
    CHECK_THROWS_AS(within_chance(tasks), decant::ArgumentError);
    CHECK_THROWS_AS(recovery(tasks), decant::ArgumentError);
  }
}

TEST_CASE("evolution comes near the best allocation, deterministically") {
  decant::Cpu cpu;
  Game game(6, 9, 0.3);
  const std::vector<SlqGroup> groups = equal_groups(6);
  SlqEvolve search;
  search.most_kl = 0.02;
  index_t calls = 0;
  const auto evaluate = [&](View<const int, 1> bits, int stage) {
    ++calls;
    Fidelity f = game(bits);
    if (stage == 0) f.kl *= 1 + 0.1 * (bits[0] % 2 == 0 ? 1 : -1);  // fewer tokens, some noise
    return f;
  };
  const SlqResult r = evolve(search, groups, evaluate);
  CHECK(r.met);
  CHECK(r.evaluations == calls);
  CHECK(r.measured.kl == game.loss(r.bits));
  CHECK(r.measured.kl < 0.02);
  // The best by brute force over 7^6 choices, in average bits.
  double best = 8;
  std::vector<int> bits(6, 2);
  for (;;) {
    int sum = 0;
    for (const int b : bits) sum += b;
    if (sum < 6 * best - 1e-9 && game.loss(bits) < 0.02) best = sum / 6.0;
    std::size_t m = 0;
    while (m < 6 && ++bits[m] > 8) bits[m++] = 2;
    if (m == 6) break;
  }
  CHECK(r.average_bits >= best - 1e-9);
  CHECK(r.average_bits <= best + 1.0 / 6 + 1e-9);
  CHECK(evolve(search, groups, evaluate).bits == r.bits);
  search.seed = 1;
  CHECK(evolve(search, groups, evaluate).average_bits <= best + 2.0 / 6 + 1e-9);
  search.most_kl = 1e-9;
  game.base = 0.1;
  const SlqResult none = evolve(search, groups, evaluate);
  CHECK(!none.met);
  CHECK(none.bits == std::vector<int>(6, 8));
  CHECK(evolve_fitness(0.01, 2, 0.02, 1000) == Approx(0.005));
  CHECK(evolve_fitness(0.03, 2, 0.02, 1000) == Approx(0.015 * 11));
  CHECK(std::isinf(evolve_fitness(0, 0, 0.02, 1000)));
}

TEST_CASE("what bits take") {
  const SlqGroup g{512, 1024};
  for (const int b : all_widths) {
    const SlqStorage asymmetric{.accounting = SlqAccounting::paper};
    const SlqStorage symmetric{.grid = IntGrid::symmetric, .accounting = SlqAccounting::paper};
    CHECK(stored_bits(g, b, asymmetric) / g.parameters() == Approx(b + 0.15625));
    CHECK(stored_bits(g, b, symmetric) / g.parameters() == Approx(b + 0.125));
    CHECK(stored_bits(g, b, {}) / g.parameters() >= b + 0.1875);  // a zero point of a byte
    CHECK(stored_bits(g, b, {}) / g.parameters() < b + 0.26);      // and rows of whole 16 bytes
  }
  CHECK(stored_bits(g, 4, {}) == 8.0 * 512 * static_cast<double>(Int<4>{}.row_bytes(1024)));
  CHECK_THROWS_AS(stored_bits(g, 9, {}), decant::ArgumentError);
  CHECK_THROWS_AS(shapley_sensitivities(Game(2, 1, 0), 2, {4, 3}), decant::ArgumentError);
  CHECK_THROWS_AS(shapley_sensitivities(Game(2, 1, 0), 2, {}), decant::ArgumentError);
}

/// Mean squared error of weights on a grid, in one group.
template <int Bits>
double mean_square(const std::vector<float>& w, IntGrid grid) {
  const Int<Bits> format{.group = 0, .grid = grid};
  const auto n = static_cast<index_t>(w.size());
  const auto group = format.fit({}, w.data(), nullptr, n);
  double sum = 0;
  for (const float x : w) {
    const double e = static_cast<double>(format.value({}, group, 0, format.nearest({}, group, 0, x)) - x);
    sum += e * e;
  }
  return sum / static_cast<double>(n);
}

TEST_CASE("the gamma-squared law holds for uniform weights") {
  CHECK(range_gamma(-0.8, 1.2) == Approx(1.2));
  CHECK(range_gamma(-1, 1) == Approx(1));
  CHECK(range_gamma(0, 1) == Approx(2));
  CHECK(range_gamma(-2, -1) == Approx(4));
  CHECK(symmetric_error_ratio(-0.8, 1.2, 4, false) == Approx(1.44));
  CHECK_THROWS_AS(range_gamma(1, 1), decant::ArgumentError);
  for (const float low : {-1.0f, -0.5f, -0.1f}) {
    std::vector<float> w(1 << 20);
    for (std::size_t i = 0; i < w.size(); ++i) w[i] = low + (1 - low) * uniform(static_cast<std::uint32_t>(i), 50);
    const double measured = mean_square<8>(w, IntGrid::symmetric) / mean_square<8>(w, IntGrid::minimum);
    CHECK(measured == Approx(symmetric_error_ratio(static_cast<double>(low), 1, 8)).epsilon(0.01));
  }
}

TEST_CASE("gamma of Gaussian groups", "[statistics]") {
  // Of n weights: E[gamma^2], and the errors' ratio with 2^4 levels each (over gamma^2, as the ends have no error).
  struct Row {
    std::size_t n;
    double squared, ratio;
  };
  for (const auto& [n, squared, ratio] : {Row{16, 1.404, 1.50}, {32, 1.300, 1.335}, {64, 1.232, 1.257},
                                          {128, 1.191, 1.205}, {256, 1.160, 1.172}}) {
    const int groups = 400000 / static_cast<int>(n);
    double gamma = 0, symmetric = 0, minimum = 0;
    std::vector<float> w(n);
    for (int g = 0; g < groups; ++g) {
      float low = 1e9f, high = -1e9f;
      for (std::size_t i = 0; i < n; ++i) {
        const auto words = decant::Philox{31}(static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(g));
        w[i] = std::sqrt(-2 * std::log(decant::Philox::to_unit(words.word[0]))) *
               std::cos(6.2831853f * decant::Philox::to_unit(words.word[1]));
        low = std::min(low, w[i]);
        high = std::max(high, w[i]);
      }
      gamma += std::pow(range_gamma(static_cast<double>(low), static_cast<double>(high)), 2) / groups;
      symmetric += mean_square<4>(w, IntGrid::symmetric);
      minimum += mean_square<4>(w, IntGrid::minimum);
    }
    CAPTURE(n, gamma, symmetric / minimum);
    CHECK(gamma == Approx(squared).epsilon(0.01));
    CHECK(symmetric / minimum == Approx(ratio * std::pow(15.0 / 14, 2)).epsilon(0.015));  // ours has a level less
  }
}

}  // namespace quant_slq_test
