// Sampling on several threads: rows are the same however they are shared out.

#include <vector>

#include "catch_compat.hpp"
#include "decant/sampling/process.hpp"
#include "decant/sampling/rejection.hpp"
#include "rows.hpp"
#include "threads.hpp"

namespace {

using namespace decant::sampling;
using decant::Cpu;
using decant::index_t;
using decant::View;

constexpr index_t rows = 9, n = 1300;

struct Result {
  std::vector<float> probabilities = std::vector<float>(rows * n, -1.0f);
  std::vector<std::int32_t> drawn = std::vector<std::int32_t>(rows, -1);
  std::vector<std::int32_t> raced = drawn, rejected = drawn;
  bool operator==(const Result&) const = default;
};

Result sample(Cpu& cpu, const std::vector<float>& logits) {
  Result result;
  std::vector<LogitRow> filtered(rows);
  std::vector<RowStatus> status(rows);
  const View<const float, 2> x(logits.data(), rows, n);
  const View<float, 2> p(result.probabilities.data(), rows, n);
  const Processing filters{.top_k = 200, .top_p = 0.9f, .order = Order::k_then_p};
  process(cpu, filters, x, {}, p, status);
  filter(cpu, filters, x, filtered, status);
  draw(cpu, {x, filtered}, {.random = {1}}, {result.drawn, status});
  race(cpu, {x, filtered}, {.random = {1}}, {result.raced, status});
  draw_by_rejection(cpu, {.top_p = 0.7f}, p, {.random = {1}}, {result.rejected, status});
  for (const RowStatus s : status) CHECK(s == RowStatus::ok);
  return result;
}

TEST_CASE("sampling does not depend on threads", "[sampling][threads]") {
  const std::vector<float> logits = sampling_test::gaussian(rows * n, 3.0f, 31);
  Cpu serial;
  const Result expected = sample(serial, logits);
  Cpu real(real_threads(3));
  CHECK(sample(real, logits) == expected);
  Cpu reversed(reversed_threads(4));
  CHECK(sample(reversed, logits) == expected);
}

}  // namespace
