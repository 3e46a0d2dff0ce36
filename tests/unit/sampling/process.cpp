// Filters against their definition by sorting, on rows that are hard on thresholds; instruction sets bit by bit; what
// is not a distribution; penalties.

#include "decant/sampling/process.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include "catch_compat.hpp"
#include "oracle/sampling.hpp"
#include "rows.hpp"

namespace {

using namespace decant::sampling;
using decant::Cpu;
using decant::index_t;
using decant::View;
using oracle::Kept;

constexpr float infinity = std::numeric_limits<float>::infinity();

std::vector<Processing> settings() {
  return {
      {},
      {.top_k = 1},
      {.top_k = 40},
      {.temperature = 0.3f, .top_k = 2000},
      {.top_p = 0.9f},
      {.top_p = 0},
      {.temperature = 2.5f, .top_p = 0.999999f},
      {.top_p = 0.25f},
      {.min_p = 0.05f},
      {.temperature = 0.7f, .min_p = 1},
      {.temperature = 0.8f, .top_k = 50, .top_p = 0.9f},
      {.temperature = 0.8f, .top_k = 50, .top_p = 0.5f, .order = Order::k_then_p},
      {.top_k = 300, .top_p = 0.95f, .min_p = 0.001f},
  };
}

bool same(const LogitRow& a, const LogitRow& b) {
  return a.inverse_temperature == b.inverse_temperature && a.log_sum_exp == b.log_sum_exp && a.cutoff == b.cutoff &&
         a.top == b.top;
}

LogitRow filtered(Cpu& cpu, const Processing& p, const std::vector<float>& x) {
  LogitRow row;
  RowStatus status = RowStatus::bad_row;
  filter(cpu, p, View<const float, 2>(x.data(), 1, x.size()), View<LogitRow, 1>(&row, 1),
         View<RowStatus, 1>(&status, 1));
  REQUIRE(status == RowStatus::ok);
  return row;
}

/// How far the tokens kept and their probabilities are from the definition.
void compare(const Processing& p, const std::vector<float>& x, const std::vector<float>& probabilities,
             const LogitRow& row) {
  const std::vector<Kept> expected = oracle::kept_tokens(p, x);
  std::vector<bool> keep;
  long wrong = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    keep.push_back(x[i] >= row.cutoff);
    wrong += expected[i] != Kept::either && keep[i] != (expected[i] == Kept::yes);
  }
  CHECK(wrong == 0);
  const std::vector<double> law = oracle::restricted(p, x, keep);
  double sum = 0;
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    sum += static_cast<double>(probabilities[i]);
    // The exponent is rounded to fp32: the error grows with its size.
    const double bound = 1e-36 + law[i] * (1e-6 + (law[i] > 0 ? -1.5e-7 * std::log(law[i]) : 0));
    worst = std::fmax(worst, std::fabs(static_cast<double>(probabilities[i]) - law[i]) / bound);
  }
  CHECK(std::fabs(sum - 1) < 1e-5);
  CHECK(worst < 1);
}

TEST_CASE("filters keep what their definition keeps, on every instruction set to the same bits", "[sampling]") {
  Cpu cpu;
  for (const auto& x : sampling_test::hard_rows()) {
    for (const Processing& p : settings()) {
      CAPTURE(x.size(), p.temperature, p.top_k, p.top_p, p.min_p);
      cpu.set_isa(decant::best_isa());
      const LogitRow row = filtered(cpu, p, x);
      std::vector<float> first;
      for (const decant::Isa isa : sampling_test::paths()) {
        cpu.set_isa(isa);
        CHECK(same(filtered(cpu, p, x), row));
        std::vector<float> probabilities(x.size(), -1.0f);
        RowStatus status = RowStatus::bad_row;
        process(cpu, p, View<const float, 2>(x.data(), 1, x.size()), {},
                View<float, 2>(probabilities.data(), 1, x.size()), View<RowStatus, 1>(&status, 1));
        REQUIRE(status == RowStatus::ok);
        if (first.empty()) {
          first = probabilities;
          compare(p, x, probabilities, row);
        }
        CHECK(probabilities == first);
      }
    }
  }
}

TEST_CASE("temperature 0 is all at the lowest of the likeliest tokens", "[sampling]") {
  Cpu cpu;
  std::vector<float> x = sampling_test::gaussian(3000, 1.0f, 9);
  x[2999] = x[1034] = x[1050] = 40;
  const LogitRow row = filtered(cpu, {.temperature = 0, .top_k = 3, .top_p = 0.5f}, x);
  CHECK(row.top == 1034);
  std::vector<float> probabilities(x.size(), -1.0f);
  RowStatus status = RowStatus::ok;
  materialise(cpu, {View<const float, 2>(x.data(), 1, x.size()), View<const LogitRow, 1>(&row, 1)},
              View<const RowStatus, 1>(&status, 1), View<float, 2>(probabilities.data(), 1, x.size()));
  for (std::size_t i = 0; i < x.size(); ++i) CHECK(probabilities[i] == (i == 1034 ? 1.0f : 0.0f));
}

TEST_CASE("a row that is no distribution has a status, and the others are as without it", "[sampling]") {
  Cpu cpu;
  constexpr index_t n = 1100;
  std::vector<float> x;
  for (std::uint64_t r = 0; r < 5; ++r) {
    const auto row = sampling_test::gaussian(n, 2.0f, r);
    x.insert(x.end(), row.begin(), row.end());
  }
  x[1 * n + 1099] = std::numeric_limits<float>::quiet_NaN();
  x[2 * n + 5] = infinity;
  for (std::size_t i = 0; i < n; ++i) x[3 * n + i] = -infinity;
  const std::vector<RowStatus> expected = {RowStatus::ok, RowStatus::bad_row, RowStatus::bad_row,
                                           RowStatus::empty_support, RowStatus::ok};
  for (const decant::Isa isa : sampling_test::paths()) {
    cpu.set_isa(isa);
    for (const Processing& p : settings()) {
      std::vector<float> out(x.size(), -7.0f);
      std::vector<RowStatus> status(5);
      process(cpu, p, View<const float, 2>(x.data(), 5, n), {}, View<float, 2>(out.data(), 5, n), status);
      CHECK(status == expected);
      for (const std::size_t r : {1u, 2u, 3u}) {
        for (std::size_t i = 0; i < n; ++i) REQUIRE(out[r * n + i] == -7.0f);
      }
      std::vector<float> alone(n);
      process(cpu, p, View<const float, 2>(x.data() + 4 * n, 1, n), {}, View<float, 2>(alone.data(), 1, n),
              View<RowStatus, 1>(status.data(), 1));
      CHECK(std::vector<float>(out.begin() + 4 * n, out.end()) == alone);
    }
  }
}

TEST_CASE("penalties touch the seen tokens, each as its count says", "[sampling]") {
  Cpu cpu;
  std::vector<float> x = {2, -2, 1, 0, -infinity, 3, 2, -2, 1, 0, -infinity, 3};
  const std::vector<std::int32_t> offsets = {0, 4, 4};
  const std::vector<std::int32_t> tokens = {0, 1, 4, 5};
  const std::vector<std::int32_t> counts = {3, 1, 2, 0};
  const Processing p{.repetition_penalty = 2, .frequency_penalty = 0.5f, .presence_penalty = 0.25f};
  std::vector<RowStatus> status(2);
  penalise(cpu, p, View<float, 2>(x.data(), 2, 6), {offsets, tokens, counts}, status);
  CHECK(status == std::vector<RowStatus>(2, RowStatus::ok));
  CHECK(x == std::vector<float>{1 - 1.75f, -4 - 0.75f, 1, 0, -infinity, 1.5f, 2, -2, 1, 0, -infinity, 3});

  const std::vector<std::int32_t> outside = {0, 1, 6, 5};
  std::vector<float> before = x;
  penalise(cpu, p, View<float, 2>(x.data(), 2, 6), {offsets, outside, counts}, status);
  CHECK(status[0] == RowStatus::bad_row);
  CHECK(status[1] == RowStatus::ok);
  CHECK(x == before);
  const std::vector<std::int32_t> backwards = {3, 1, 4};
  penalise(cpu, p, View<float, 2>(x.data(), 2, 6), {backwards, tokens, counts}, status);
  CHECK(status[0] == RowStatus::bad_row);
}

TEST_CASE("process with penalties is penalise, then process", "[sampling]") {
  Cpu cpu;
  const std::vector<float> x = sampling_test::gaussian(2000, 2.0f, 5);
  const std::vector<std::int32_t> offsets = {0, 3};
  const std::vector<std::int32_t> tokens = {10, 1999, 700};
  const std::vector<std::int32_t> counts = {1, 4, 0};
  Processing p{.temperature = 0.9f, .repetition_penalty = 1.3f, .frequency_penalty = 0.2f, .top_p = 0.8f};
  std::vector<float> a(2000), b(2000), copy = x;
  RowStatus status = RowStatus::ok;
  const View<RowStatus, 1> one(&status, 1);
  process(cpu, p, View<const float, 2>(x.data(), 1, 2000), {offsets, tokens, counts}, View<float, 2>(a.data(), 1, 2000),
          one);
  penalise(cpu, p, View<float, 2>(copy.data(), 1, 2000), {offsets, tokens, counts}, one);
  p.repetition_penalty = 1;
  p.frequency_penalty = 0;
  process(cpu, p, View<const float, 2>(copy.data(), 1, 2000), {}, View<float, 2>(b.data(), 1, 2000), one);
  CHECK(a == b);
  CHECK(copy[1999] != x[1999]);
}

DECANT_UNFUSED float probability_of(const LogitRow& row, float logit) { return probability(row, logit); }

TEST_CASE("rows may lie apart", "[sampling]") {
  constexpr index_t rows = 7, n = 1300, stride = 1313;
  const std::vector<float> x = sampling_test::gaussian(rows * stride, 3.0f, 12);
  const View<const float, 2> logits(x.data(), {rows, n}, {stride, 1});
  const Processing p{.temperature = 0.8f, .top_k = 200, .top_p = 0.9f, .order = Order::k_then_p};
  std::vector<LogitRow> filtered_rows(rows);
  std::vector<RowStatus> status(rows);
  Cpu cpu;
  filter(cpu, p, logits, filtered_rows, status);
  std::vector<float> probabilities(rows * stride, -1.0f);
  process(cpu, p, logits, {}, View<float, 2>(probabilities.data(), {rows, n}, {stride, 1}), status);
  for (std::size_t r = 0; r < rows; ++r) {
    const std::vector<float> row(x.begin() + static_cast<index_t>(r) * stride,
                                 x.begin() + static_cast<index_t>(r) * stride + n);
    CHECK(same(filtered_rows[r], filtered(cpu, p, row)));
    for (std::size_t i = n; i < stride; ++i) CHECK(probabilities[r * stride + i] == -1.0f);
    for (std::size_t i = 0; i < n; ++i)
      REQUIRE(probabilities[r * stride + i] == probability_of(filtered_rows[r], row[i]));
  }
}

TEST_CASE("the threshold of min-p is the lowest logit that it keeps", "[sampling]") {
  for (const float temperature : {0.01f, 0.6f, 0.7f, 1.0f, 1.3f, 3.3f, 7.0f, 1e20f}) {
    for (const float min_p : {1e-38f, 1e-30f, 1e-20f, 0.05f, 0.5f, 1.0f}) {
      for (const float largest : {-1e30f, -17.3f, 0.0f, 1e-30f, 44.4f, 3e38f}) {
        const Processing p{.temperature = temperature, .min_p = min_p};
        const auto numbers = detail::FilterNumbers::of(p);
        const auto row = detail::RowScale::of(numbers, largest);
        const auto kept = [&](float x) {
          return static_cast<double>(x) * row.scale - row.top >= numbers.log_min_p;
        };
        const float cutoff = detail::min_p_cutoff(p, row, largest, numbers.log_min_p);
        CHECK(kept(cutoff));
        if (cutoff > -3.4e38f) CHECK(!kept(std::nextafter(cutoff, -infinity)));
      }
    }
  }
}

TEST_CASE("a second call allocates nothing; wrong arguments are told before anything is written", "[sampling]") {
  long allocations = 0;
  const decant::Allocator counting{[](void* count, std::size_t bytes) {
                                     ++*static_cast<long*>(count);
                                     return decant::detail::default_allocate(nullptr, bytes);
                                   },
                                   decant::detail::default_deallocate, &allocations};
  Cpu cpu({}, counting);
  const std::vector<float> x = sampling_test::gaussian(4000, 2.0f, 6);
  filtered(cpu, {.top_k = 20, .top_p = 0.9f}, x);
  const long before = allocations;
  filtered(cpu, {.top_k = 20, .top_p = 0.9f}, x);
  CHECK(allocations == before);

  CHECK_THROWS_AS(filtered(cpu, {.temperature = -1}, x), decant::ArgumentError);
  CHECK_THROWS_AS(filtered(cpu, {.temperature = std::nanf("")}, x), decant::ArgumentError);
  CHECK_THROWS_AS(filtered(cpu, {.min_p = 1.5f}, x), decant::ArgumentError);
  CHECK_THROWS_AS(filtered(cpu, {.presence_penalty = 1}, x), decant::ArgumentError);
  CHECK_THROWS_AS(filtered(cpu, {.top_p = std::nanf("")}, x), decant::ArgumentError);
}

}  // namespace
