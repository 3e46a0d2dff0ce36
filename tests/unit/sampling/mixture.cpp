// ME: the law of two steps by exact enumeration, and that of a choice per sequence, which is another; pending tokens;
// grouping.

#include "decant/sampling/mixture.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include "catch_compat.hpp"
#include "decant/core/row_sum.hpp"
#include "oracle/sampling.hpp"

namespace {

using namespace decant::sampling;
using decant::index_t;

constexpr int vocab = 3;
constexpr int parts = 8;  // probabilities are eighths, weights quarters: uniforms on a grid meet each exactly as often
using Row = std::array<float, vocab>;

/// p of the next token after `context` (-1: the first), by two models that differ in every context.
Row next_row(int model, int context) {
  constexpr Row rows[2][4] = {{{4, 3, 1}, {1, 1, 6}, {2, 5, 1}, {7, 0, 1}},
                              {{1, 1, 6}, {8, 0, 0}, {3, 3, 2}, {0, 4, 4}}};
  return rows[model][context + 1];
}

struct Term {
  const float* w;
  float operator()(index_t i) const { return w[i]; }
};

int draw(const Row& row, int part) {
  float total = 0;
  const double sum = decant::tile_totals(decant::Isa::portable, Term{row.data()}, vocab, &total);
  return static_cast<int>(decant::draw_index(Term{row.data()}, vocab, &total, sum, (part + 0.5) / parts));
}

using Law = std::array<std::array<long, vocab>, vocab>;

/// How many of all combinations of uniforms emit each pair of tokens.
Law two_steps(const MixtureRouter& router, bool per_sequence) {
  Law law{};
  for (int m1 = 0; m1 < 4; ++m1) {
    for (int m2 = 0; m2 < 4; ++m2) {
      for (int u1 = 0; u1 < parts; ++u1) {
        for (int u2 = 0; u2 < parts; ++u2) {
          const std::int32_t first = router.choose((m1 + 0.5) / 4);
          const std::int32_t second = per_sequence ? first : router.choose((m2 + 0.5) / 4);
          const int x = draw(next_row(first, -1), u1);
          const int y = draw(next_row(second, x), u2);
          ++law[static_cast<std::size_t>(x)][static_cast<std::size_t>(y)];
        }
      }
    }
  }
  return law;
}

/// The same from the average of the models, weights 3/4 and 1/4.
Law product_of_mixtures() {
  Law law{};
  for (int x = 0; x < vocab; ++x) {
    for (int y = 0; y < vocab; ++y) {
      const auto mixed = [](int context, int token) {
        const auto t = static_cast<std::size_t>(token);
        return static_cast<long>(3 * next_row(0, context)[t] + next_row(1, context)[t]);
      };
      law[static_cast<std::size_t>(x)][static_cast<std::size_t>(y)] = mixed(-1, x) * mixed(x, y);
    }
  }
  return law;
}

TEST_CASE("a choice per step samples from the mixture, a choice per sequence does not", "[sampling]") {
  const std::vector<double> weights = {3, 1};
  const MixtureRouter router(weights);
  CHECK(two_steps(router, false) == product_of_mixtures());
  CHECK(two_steps(router, true) != product_of_mixtures());
}

TEST_CASE("models are chosen as often as their weights say, those of weight 0 never", "[sampling]") {
  const std::vector<double> weights = {0, 2, 0, 1, 5, 0};
  const MixtureRouter router(weights);
  CHECK(router.choose(0.0) == 1);
  CHECK(router.choose(0.25) == 3);
  CHECK(router.choose(1 - 0x1p-53) == 4);
  std::vector<long> counts(6, 0);
  for (std::uint32_t step = 0; step < 4000; ++step) ++counts[static_cast<std::size_t>(router.choose({1}, step, 3))];
  std::vector<double> law;
  for (std::int32_t j = 0; j < 6; ++j) law.push_back(router.weight(j));
  CHECK(oracle::chi_square(counts, law, 4000) < oracle::chi_square_limit(2));
  CHECK(router.choose({1}, 5, 3) == router.choose({1}, 5, 3));

  const std::vector<double> none = {0, 0}, negative = {1, -1};
  CHECK_THROWS_AS(MixtureRouter(none), decant::ArgumentError);
  CHECK_THROWS_AS(MixtureRouter(negative), decant::ArgumentError);
  CHECK_THROWS_AS(MixtureRouter(std::vector<double>{}), decant::ArgumentError);
}

TEST_CASE("every model processes the emitted sequence, each token once, in one forward per step", "[sampling]") {
  const std::vector<double> weights = {1, 2, 1};
  const MixtureRouter router(weights);
  constexpr std::size_t steps = 500;
  PendingTokens pending(3);
  std::vector<std::int32_t> emitted = {100, 101};
  for (const std::int32_t t : emitted) pending.append(t);
  std::vector<std::vector<std::int32_t>> seen(3);
  std::size_t processed = 0;
  for (std::uint32_t step = 0; step < steps; ++step) {
    const std::int32_t model = router.choose({8}, step, 0);
    const auto chunk = pending.pending(model);
    for (index_t i = 0; i < chunk.extent(0); ++i) seen[static_cast<std::size_t>(model)].push_back(chunk[i]);
    processed += static_cast<std::size_t>(chunk.extent(0));
    CHECK(seen[static_cast<std::size_t>(model)] == emitted);
    pending.taken(model);
    CHECK(pending.pending(model).extent(0) == 0);
    emitted.push_back(static_cast<std::int32_t>(step));
    pending.append(emitted.back());
    const std::int32_t late = pending.overdue(model, 12);
    if (late >= 0) {
      CHECK(late != model);
      CHECK(pending.pending(late).extent(0) == 13);
      const auto rest = pending.pending(late);
      for (index_t i = 0; i < rest.extent(0); ++i) seen[static_cast<std::size_t>(late)].push_back(rest[i]);
      pending.taken(late);
    }
  }
  CHECK(processed <= 3 * emitted.size());
}

TEST_CASE("requests are grouped by model, in order", "[sampling]") {
  decant::Cpu cpu;
  const std::vector<std::int32_t> chosen = {2, 0, 2, 3, 0, 2};
  std::vector<std::int32_t> order(6), offsets(6);
  group(cpu, chosen, order, offsets);
  CHECK(order == std::vector<std::int32_t>{1, 4, 0, 2, 5, 3});
  CHECK(offsets == std::vector<std::int32_t>{0, 2, 2, 5, 6, 6});
  std::vector<std::int32_t> few(3);
  CHECK_THROWS_AS(group(cpu, chosen, order, few), decant::ArgumentError);
  std::vector<std::int32_t> nothing;
  group(cpu, nothing, nothing, offsets);
  CHECK(offsets == std::vector<std::int32_t>(6, 0));
}

}  // namespace
