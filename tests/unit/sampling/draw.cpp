// Draws: the law (chi-square; each test rejects a right sampler with a chance of about 1e-6), the same tokens on every
// instruction set, the corner cases of the categorical rule, the race, and rejection under filters.

#include "decant/sampling/draw.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "catch_compat.hpp"
#include "decant/sampling/process.hpp"
#include "decant/sampling/rejection.hpp"
#include "oracle/sampling.hpp"
#include "rows.hpp"

namespace {

using namespace decant::sampling;
using decant::Cpu;
using decant::index_t;
using decant::View;

/// One row drawn from `draws` times, as a batch of rows that are the same memory.
struct Repeated {
  std::vector<std::int32_t> tokens;
  std::vector<RowStatus> status;

  explicit Repeated(index_t draws) : tokens(static_cast<std::size_t>(draws), -1), status(tokens.size()) {}
  Drawn out() { return {tokens, status}; }
  std::vector<long> counts(std::size_t n) const {
    std::vector<long> c(n, 0);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      REQUIRE(status[i] == RowStatus::ok);
      ++c[static_cast<std::size_t>(tokens[i])];
    }
    return c;
  }
};

View<const float, 2> repeat(const std::vector<float>& row, index_t times) {
  return {row.data(), {times, static_cast<index_t>(row.size())}, {0, 1}};
}

int support(const std::vector<double>& law) {
  int n = 0;
  for (const double p : law) n += p > 0;
  return n;
}

std::vector<double> law_of(const std::vector<float>& p) {
  double sum = 0;
  for (const float x : p) sum += static_cast<double>(x);
  std::vector<double> law;
  for (const float x : p) law.push_back(static_cast<double>(x) / sum);
  return law;
}

constexpr index_t draws = 20000;

TEST_CASE("draw and race have the row's law, of any scale", "[sampling][statistics]") {
  Cpu cpu;
  std::vector<float> p = {0.5f, 0, 3, 1e-3f, 0.25f, 0, 2, 0.125f, 1};
  p.resize(1060, 0.0f);
  p[1030] = 1.5f;  // in the second tile
  for (const bool racing : {false, true}) {
    Repeated result(draws);
    if (racing) race(cpu, repeat(p, draws), {.random = {11}}, result.out());
    else draw(cpu, repeat(p, draws), {.random = {11}}, result.out());
    const std::vector<double> law = law_of(p);
    CHECK(oracle::chi_square(result.counts(p.size()), law, draws) < oracle::chi_square_limit(support(law) - 1));
  }
}

TEST_CASE("draws from filtered rows are draws from their probabilities", "[sampling]") {
  Cpu cpu;
  for (const auto& x : sampling_test::hard_rows()) {
    for (const Processing& p : {Processing{}, Processing{.temperature = 0.7f, .top_k = 30, .top_p = 0.9f},
                                Processing{.temperature = 0}}) {
      const auto n = static_cast<index_t>(x.size());
      LogitRow row;
      RowStatus status = RowStatus::ok;
      filter(cpu, p, View<const float, 2>(x.data(), 1, n), View<LogitRow, 1>(&row, 1), View<RowStatus, 1>(&status, 1));
      REQUIRE(status == RowStatus::ok);
      std::vector<float> probabilities(x.size());
      process(cpu, p, View<const float, 2>(x.data(), 1, n), {}, View<float, 2>(probabilities.data(), 1, n),
              View<RowStatus, 1>(&status, 1));
      const std::vector<LogitRow> rows(20, row);
      std::vector<std::int32_t> first;
      for (const decant::Isa isa : sampling_test::paths()) {
        cpu.set_isa(isa);
        Repeated a(20), b(20), c(20), d(20);
        draw(cpu, {repeat(x, 20), rows}, {.random = {5}}, a.out());
        draw(cpu, repeat(probabilities, 20), {.random = {5}}, b.out());
        race(cpu, {repeat(x, 20), rows}, {.random = {5}}, c.out());
        race(cpu, repeat(probabilities, 20), {.random = {5}}, d.out());
        CHECK(a.status == std::vector<RowStatus>(20));
        CHECK(a.tokens == b.tokens);
        CHECK(c.tokens == d.tokens);
        a.tokens.insert(a.tokens.end(), c.tokens.begin(), c.tokens.end());
        if (first.empty()) first = a.tokens;
        CHECK(a.tokens == first);
      }
    }
  }
}

/// Keys for which u is as close as possible to 0 or 1 do not exist; the rule itself is tested.
struct Plain {
  const float* w;
  float operator()(index_t i) const { return w[i]; }
};

TEST_CASE("the categorical rule: first index whose sum exceeds u Z, else the last positive one", "[sampling]") {
  std::vector<float> w(3000, 0.0f);
  w[0] = w[1] = 0;
  w[2] = 1;
  w[700] = 2;
  w[1500] = 1;
  std::vector<float> totals(3);
  for (const decant::Isa isa : sampling_test::paths()) {
    const double sum = decant::tile_totals(isa, Plain{w.data()}, 3000, totals.data());
    CHECK(sum == 4);
    const auto at = [&](double u) { return decant::draw_index(Plain{w.data()}, 3000, totals.data(), sum, u); };
    CHECK(at(0) == 2);
    CHECK(at(0.2499) == 2);
    CHECK(at(0.25) == 700);
    CHECK(at(0.7499) == 700);
    CHECK(at(0.75) == 1500);
    CHECK(at(1 - 0x1p-53) == 1500);
    CHECK(at(1.5) == 1500);  // as if rounding had made the sum too large
  }
  std::fill(w.begin(), w.end(), 0.0f);
  w[1] = w[3] = w[40] = w[70] = 1;  // one tile, three chunks
  for (const decant::Isa isa : sampling_test::paths()) {
    const double sum = decant::tile_totals(isa, Plain{w.data()}, 3000, totals.data());
    const auto at = [&](double u) { return decant::draw_index(Plain{w.data()}, 3000, totals.data(), sum, u); };
    CHECK(at(0) == 1);
    CHECK(at(0.25) == 3);
    CHECK(at(0.5) == 40);
    CHECK(at(0.75) == 70);
    CHECK(at(0.99) == 70);
  }
  const std::vector<float> zeros(3000, 0.0f);
  CHECK(decant::draw_index(Plain{zeros.data()}, 3000, zeros.data(), 0, 0.5) == -1);
}

TEST_CASE("tile totals have one order of additions", "[sampling]") {
  const auto w = sampling_test::gaussian(2500, 1e3f, 8);
  std::vector<float> expected;
  for (std::size_t first = 0; first < w.size(); first += 1024) {
    std::vector<float> lane(64, 0.0f);
    for (std::size_t i = first; i < w.size() && i < first + 1024; ++i) lane[i % 64] += w[i];
    for (std::size_t width = 32; width > 0; width /= 2) {
      for (std::size_t l = 0; l < width; ++l) lane[l] += lane[l + width];
    }
    expected.push_back(lane[0]);
  }
  for (const decant::Isa isa : sampling_test::paths()) {
    std::vector<float> totals(3);
    decant::tile_totals(isa, Plain{w.data()}, 2500, totals.data());
    CHECK(totals == expected);
  }
}

DECANT_UNFUSED float exponential(float x) { return detail::rounded_exp(x); }
DECANT_UNFUSED double logarithm(double x) { return detail::rounded_log(x); }

TEST_CASE("the exponential and the logarithm are accurate, and have the same bits by every compiler", "[sampling]") {
  std::uint64_t hash = 14695981039346656037u;
  const auto mix = [&](std::uint64_t bits) { hash = (hash ^ bits) * 1099511628211u; };
  double worst_exp = 0;
  double worst_log = 0;
  for (int i = 0; i < 4000; ++i) {
    const float x = static_cast<float>(i - 2000) / 23;
    const float e = exponential(x);
    worst_exp = std::fmax(worst_exp, std::fabs(static_cast<double>(e) / std::exp(static_cast<double>(x)) - 1));
    mix(decant::bit_cast<std::uint32_t>(e));
    const double y = i % 2 == 0 ? 1 - std::ldexp(1.0 + i, -53 + i % 40) : std::ldexp(1 + i / 4000.0, -(i % 54));
    const double log = logarithm(y);
    if (y != 1) worst_log = std::fmax(worst_log, std::fabs(log / std::log(y) - 1));
    mix(decant::bit_cast<std::uint64_t>(log));
  }
  CHECK(worst_exp < 2.4e-7);
  CHECK(worst_log < 7e-16);
  CHECK(detail::rounded_exp(0) == 1);
  CHECK(detail::rounded_exp(-200) == 0);
  CHECK(detail::rounded_log(1) == 0);
  CHECK(hash == 0x8f16e3882781bb6au);
}

TEST_CASE("rows that cannot be drawn from have a status, others their token", "[sampling]") {
  Cpu cpu;
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> w(5 * 70, 0.01f);
  w[0 * 70 + 69] = nan;
  w[1 * 70 + 3] = -0.5f;
  w[2 * 70 + 3] = std::numeric_limits<float>::infinity();
  for (std::size_t i = 0; i < 70; ++i) w[3 * 70 + i] = 0;
  const std::vector<RowStatus> expected = {RowStatus::bad_row, RowStatus::bad_row, RowStatus::bad_row,
                                           RowStatus::empty_support, RowStatus::ok};
  const View<const float, 2> rows(w.data(), 5, 70);
  Repeated a(5), b(5), c(5);
  draw(cpu, rows, {}, a.out());
  race(cpu, rows, {}, b.out());
  draw_by_rejection(cpu, {.top_k = 5}, rows, {}, c.out());
  CHECK(a.status == expected);
  CHECK(b.status == expected);
  CHECK(c.status == expected);
  for (std::size_t r = 0; r < 4; ++r) CHECK((a.tokens[r] == -1 && b.tokens[r] == -1 && c.tokens[r] == -1));
  CHECK(a.tokens[4] >= 0);
  a.tokens[4] = -1;
  a.status[4] = RowStatus::empty_support;  // already given up: left alone
  draw(cpu, rows, {}, a.out());
  CHECK(a.tokens[4] == -1);
}

TEST_CASE("a request's token depends on its key alone, not on the batch", "[sampling]") {
  Cpu cpu;
  const auto x = sampling_test::gaussian(3 * 500, 2.0f, 1);
  std::vector<float> w;
  for (const float v : x) w.push_back(std::exp(v));
  const std::vector<std::uint32_t> requests = {7, 3, 9}, steps = {1, 2, 3};
  Repeated all(3);
  draw(cpu, View<const float, 2>(w.data(), 3, 500), {{42}, requests, steps}, all.out());
  const std::vector<std::uint32_t> request = {9}, step = {3};
  Repeated alone(1);
  draw(cpu, View<const float, 2>(w.data() + 1000, 1, 500), {{42}, request, step}, alone.out());
  CHECK(alone.tokens[0] == all.tokens[2]);
}

TEST_CASE("the noise of the race is exponential", "[sampling][statistics]") {
  std::vector<long> bins(20, 0);
  double smallest = 1;
  for (std::int32_t t = 0; t < 40000; ++t) {
    const double e = exponential_noise({{3}, 1, 2}, t);
    const double tail = std::exp(-e);
    smallest = std::fmin(smallest, e);
    ++bins[static_cast<std::size_t>(std::fmin(19.0, std::floor(20 * tail)))];
  }
  CHECK(oracle::chi_square(bins, std::vector<double>(20, 0.05), 40000) < oracle::chi_square_limit(19));
  CHECK(smallest < 1e-3);
}

TEST_CASE("rejection has the law of the filtered probabilities", "[sampling][statistics]") {
  Cpu cpu;
  const auto logits = sampling_test::gaussian(300, 1.5f, 4);
  std::vector<float> p(300);
  RowStatus status = RowStatus::ok;
  process(cpu, {}, View<const float, 2>(logits.data(), 1, 300), {}, View<float, 2>(p.data(), 1, 300),
          View<RowStatus, 1>(&status, 1));
  for (const Processing& filters :
       {Processing{.top_k = 12}, Processing{.top_p = 0.5f}, Processing{.top_k = 40, .top_p = 0.6f, .min_p = 0.1f},
        Processing{.min_p = 0.3f}, Processing{.top_p = 0}}) {
    std::vector<bool> keep;
    for (const oracle::Kept k : oracle::kept_tokens(filters, logits)) keep.push_back(k == oracle::Kept::yes);
    const std::vector<double> law = oracle::restricted(filters, logits, keep);
    Repeated result(draws);
    draw_by_rejection(cpu, filters, repeat(p, draws), {.random = {2}}, result.out());
    const double statistic = oracle::chi_square(result.counts(300), law, draws);
    if (support(law) == 1) CHECK(statistic == 0);
    else CHECK(statistic < oracle::chi_square_limit(support(law) - 1));
    for (const decant::Isa isa : sampling_test::paths()) {
      Cpu other;
      other.set_isa(isa);
      Repeated again(200);
      draw_by_rejection(other, filters, repeat(p, 200), {.random = {2}}, again.out());
      CHECK(again.tokens == std::vector<std::int32_t>(result.tokens.begin(), result.tokens.begin() + 200));
    }
  }
}

TEST_CASE("rejection ends on rows that are hard on pivots", "[sampling]") {
  Cpu cpu;
  std::vector<std::vector<float>> rows;
  rows.push_back(std::vector<float>(100, 0.01f));  // ties: top-k keeps all
  rows.push_back(std::vector<float>(50, 1e-42f));  // subnormal, beside one
  rows.back()[7] = 1;
  rows.push_back(std::vector<float>(40, 1e-42f));  // nothing but subnormal
  rows.push_back({});
  for (int i = 0; i < 140; ++i) rows.back().push_back(std::ldexp(0.5f, -i));
  for (const auto& row : rows) {
    for (const Processing& filters : {Processing{.top_k = 1}, Processing{.top_k = 3, .top_p = 0.7f},
                                      Processing{.top_p = 1e-6f}, Processing{.min_p = 1}}) {
      Repeated result(200);
      draw_by_rejection(cpu, filters, repeat(row, 200), {.random = {6}}, result.out());
      float largest = 0;
      for (const float w : row) largest = std::fmax(largest, w);
      long below = 0;
      for (std::size_t i = 0; i < 200; ++i) {
        REQUIRE(result.status[i] == RowStatus::ok);
        below += row[static_cast<std::size_t>(result.tokens[i])] < largest;
      }
      if (filters.top_k == 1 || filters.min_p == 1) CHECK(below == 0);
    }
  }
  Repeated result(1);
  CHECK_THROWS_AS(draw_by_rejection(cpu, {.top_k = 2, .top_p = 0.5f, .order = Order::k_then_p}, repeat(rows[0], 1), {},
                                    result.out()),
                  decant::ArgumentError);
  CHECK_THROWS_AS(draw_by_rejection(cpu, {.temperature = 2}, repeat(rows[0], 1), {}, result.out()),
                  decant::ArgumentError);
}

}  // namespace
