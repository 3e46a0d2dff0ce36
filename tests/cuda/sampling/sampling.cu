// Sampling on CUDA against the CPU, whose definitions the unit tests check: filtered rows and probabilities to the bit,
// the same tokens by every way to draw, the same statuses; groups; calls in a graph, and no second allocation.
#include <cmath>
#include <limits>
#include <vector>

#include "catch_compat.hpp"
#include "decant/sampling/draw.cuh"
#include "decant/sampling/mixture.cuh"
#include "decant/sampling/process.cuh"
#include "decant/sampling/rejection.cuh"
#include "device_memory.cuh"
#include "graph.cuh"
#include "unit/sampling/rows.hpp"

namespace {

using namespace cuda_test;
using namespace decant::sampling;
using decant::Cpu;
using decant::Cuda;
using decant::View;

struct Settings {
  Processing p;
  bool rejects = false;
};

std::vector<Settings> settings() {
  Processing k1, k40, p90, p0, min, all, ordered, greedy;
  k1.top_k = 1;
  k40.top_k = 40;
  k40.temperature = 0.3f;
  p90.top_p = 0.9f;
  p0.top_p = 0;
  min.min_p = 0.05f;
  all.top_k = 600;
  all.top_p = 0.6f;
  all.min_p = 0.001f;
  ordered = all;
  ordered.order = Order::k_then_p;
  ordered.temperature = 0.8f;
  greedy.temperature = 0;
  return {{{}, true}, {k1, true}, {k40}, {p90, true}, {p0, true}, {min, true}, {all, true}, {ordered}, {greedy}};
}

bool same(const LogitRow& a, const LogitRow& b) {
  return a.inverse_temperature == b.inverse_temperature && a.log_sum_exp == b.log_sum_exp && a.cutoff == b.cutoff &&
         a.top == b.top;
}

/// `count` rows that are one.
template <class T>
View<T, 2> repeat(T* row, index_t n, index_t count) {
  return {row, {count, n}, {0, 1}};
}

constexpr index_t draws = 3;
constexpr DrawKeys keys{{77}, {}, {}};

TEST_CASE("filters, probabilities and draws are the CPU's", "[cuda]") {
  cuda_test::Stream stream;
  Cuda cuda(stream);
  Cpu cpu;
  auto rows = sampling_test::hard_rows();
  rows.push_back(rows[2]);
  rows.back()[3] = std::numeric_limits<float>::quiet_NaN();
  rows.push_back(std::vector<float>(40, -std::numeric_limits<float>::infinity()));
  for (const auto& x : rows) {
    const auto n = static_cast<index_t>(x.size());
    const DeviceBuffer<float> logits(x);
    for (const Settings& s : settings()) {
      CAPTURE(n, s.p.temperature, s.p.top_k, s.p.top_p, s.p.min_p);
      LogitRow row;
      RowStatus status = RowStatus::ok;
      filter(cpu, s.p, View<const float, 2>(x.data(), 1, n), View<LogitRow, 1>(&row, 1),
             View<RowStatus, 1>(&status, 1));
      std::vector<float> p(x.size(), -1.0f);
      materialise(cpu, {View<const float, 2>(x.data(), 1, n), View<const LogitRow, 1>(&row, 1)},
                  View<const RowStatus, 1>(&status, 1), View<float, 2>(p.data(), 1, n));

      const DeviceBuffer<LogitRow> d_row(draws);
      const DeviceBuffer<RowStatus> d_status{std::vector<RowStatus>(draws, RowStatus::empty_support)};
      const DeviceBuffer<float> d_p{std::vector<float>(x.size(), -1.0f)};
      filter(cuda, s.p, repeat<const float>(logits.data(), n, draws), d_row.view(draws), d_status.view(draws));
      CHECK(d_status.download() == std::vector<RowStatus>(draws, status));
      process(cuda, s.p, repeat<const float>(logits.data(), n, 1), {}, d_p.view(1, n),
              View<RowStatus, 1>(d_status.data(), 1));
      CHECK(d_p.download() == p);
      CHECK(d_status.download()[0] == status);
      if (status != RowStatus::ok) continue;
      CHECK(same(d_row.download()[2], row));

      const auto compare = [&](const auto& on_cpu, const auto& on_cuda) {
        std::vector<std::int32_t> tokens(draws, -1);
        std::vector<RowStatus> states(draws);
        on_cpu(Drawn{tokens, states});
        const DeviceBuffer<std::int32_t> d_tokens{std::vector<std::int32_t>(draws, -1)};
        const DeviceBuffer<RowStatus> d_states{std::vector<RowStatus>(draws)};
        on_cuda(Drawn{d_tokens.view(draws), d_states.view(draws)});
        CHECK(d_tokens.download() == tokens);
        CHECK(d_states.download() == states);
      };
      const std::vector<LogitRow> same_rows(draws, row);
      const LogitRows filtered{repeat<const float>(x.data(), n, draws), same_rows};
      const LogitRows d_filtered{repeat<const float>(logits.data(), n, draws), d_row.view(draws)};
      const auto weights = repeat<const float>(p.data(), n, draws);
      const auto d_weights = repeat<const float>(d_p.data(), n, draws);
      compare([&](const Drawn& out) { draw(cpu, filtered, keys, out); },
              [&](const Drawn& out) { draw(cuda, d_filtered, keys, out); });
      compare([&](const Drawn& out) { draw(cpu, weights, keys, out); },
              [&](const Drawn& out) { draw(cuda, d_weights, keys, out); });
      compare([&](const Drawn& out) { race(cpu, filtered, keys, out); },
              [&](const Drawn& out) { race(cuda, d_filtered, keys, out); });
      if (!s.rejects) continue;
      compare([&](const Drawn& out) { race(cpu, weights, keys, out); },
              [&](const Drawn& out) { race(cuda, d_weights, keys, out); });
      compare([&](const Drawn& out) { draw_by_rejection(cpu, s.p, weights, keys, out); },
              [&](const Drawn& out) { draw_by_rejection(cuda, s.p, d_weights, keys, out); });
    }
  }
  cuda.check();
}

TEST_CASE("rows of weights that cannot be drawn from have the CPU's status", "[cuda]") {
  cuda_test::Stream stream;
  Cuda cuda(stream);
  Cpu cpu;
  constexpr float inf = std::numeric_limits<float>::infinity();
  std::vector<float> w(6 * 1100, 0.001f);
  w[0 * 1100 + 1099] = std::numeric_limits<float>::quiet_NaN();
  w[1 * 1100 + 3] = -0.5f;
  w[2 * 1100 + 1030] = inf;
  for (std::size_t i = 0; i < 1100; ++i) w[3 * 1100 + i] = 0;
  const DeviceBuffer<float> d_w(w);
  const std::vector<std::uint32_t> requests = {5, 4, 3, 2, 1, 0}, steps = {9};
  const DeviceBuffer<std::uint32_t> d_requests(requests), d_steps(steps);
  const std::vector<RowStatus> given = {RowStatus::ok, RowStatus::ok, RowStatus::ok,
                                        RowStatus::ok, RowStatus::ok, RowStatus::bad_row};
  for (int way = 0; way < 3; ++way) {
    std::vector<std::int32_t> tokens(6, -1);
    std::vector<RowStatus> status = given;
    const DeviceBuffer<std::int32_t> d_tokens(tokens);
    const DeviceBuffer<RowStatus> d_status(given);
    const View<const float, 2> x(w.data(), 6, 1100);
    const View<const float, 2> d_x = d_w.view(6, 1100);
    const DrawKeys from{{3}, requests, steps};
    const DrawKeys d_from{{3}, d_requests.view(6), d_steps.view(1)};
    const Drawn out{tokens, status};
    const Drawn d_out{d_tokens.view(6), d_status.view(6)};
    Processing p;
    p.top_k = 20;
    if (way == 0) draw(cpu, x, from, out), draw(cuda, d_x, d_from, d_out);
    if (way == 1) race(cpu, x, from, out), race(cuda, d_x, d_from, d_out);
    if (way == 2) draw_by_rejection(cpu, p, x, from, out), draw_by_rejection(cuda, p, d_x, d_from, d_out);
    CHECK(d_tokens.download() == tokens);
    CHECK(d_status.download() == status);
    CHECK(status[3] == RowStatus::empty_support);
    CHECK(tokens[4] >= 0);
    CHECK(tokens[5] == -1);
  }
}

TEST_CASE("penalties are the CPU's; a captured call draws anew with the step on the device", "[cuda]") {
  cuda_test::Stream stream;
  Cuda cuda(stream);
  Cpu cpu;
  constexpr index_t n = 700;
  std::vector<float> x = sampling_test::gaussian(2 * n, 2.0f, 3);
  x[40] = -std::numeric_limits<float>::infinity();
  const std::vector<std::int32_t> offsets = {0, 4, 6}, counts = {1, 3, 0, 2, 1, 1};
  Processing p;
  p.repetition_penalty = 1.4f;
  p.frequency_penalty = 0.3f;
  p.presence_penalty = -0.1f;
  p.top_k = 50;
  for (const std::int32_t last : {5, 700}) {  // within, and outside the vocabulary
    const std::vector<std::int32_t> tokens = {699, 0, 40, 333, 7, last};
    std::vector<float> expected(x.size(), -1.0f);
    std::vector<RowStatus> status(2);
    process(cpu, p, View<const float, 2>(x.data(), 2, n), {offsets, tokens, counts},
            View<float, 2>(expected.data(), 2, n), status);
    CHECK(status[1] == (last < n ? RowStatus::ok : RowStatus::bad_row));
    const DeviceBuffer<float> logits(x);
    const DeviceBuffer<float> probabilities{std::vector<float>(x.size(), -1.0f)};
    const DeviceBuffer<std::int32_t> d_offsets(offsets), d_tokens(tokens), d_counts(counts);
    const DeviceBuffer<RowStatus> d_status(2);
    const TokenCounts seen{d_offsets.view(3), d_tokens.view(6), d_counts.view(6)};
    process(cuda, p, logits.view(2, n), seen, probabilities.view(2, n), d_status.view(2));
    CHECK(probabilities.download() == expected);
    CHECK(d_status.download() == status);
    const std::size_t used = cuda.workspace().high_water();
    process(cuda, p, logits.view(2, n), seen, probabilities.view(2, n), d_status.view(2));
    CHECK(cuda.workspace().high_water() == used);

    penalise(cuda, p, logits.view(2, n), seen, d_status.view(2));
    std::vector<float> penalised = x;
    penalise(cpu, p, View<float, 2>(penalised.data(), 2, n), {offsets, tokens, counts}, status);
    CHECK(logits.download() == penalised);
    CHECK(d_status.download() == status);
    if (last >= n) continue;

    DeviceBuffer<std::uint32_t> d_step{std::vector<std::uint32_t>{0}};
    const DeviceBuffer<std::int32_t> drawn(2);
    const DrawKeys device_keys{{1}, {}, d_step.view(1)};
    const Graph graph(stream, [&] {
      process(cuda, p, logits.view(2, n), seen, probabilities.view(2, n), d_status.view(2));
      draw(cuda, probabilities.view(2, n), device_keys, {drawn.view(2), d_status.view(2)});
    });
    long different = 0;
    std::vector<std::int32_t> before;
    for (std::uint32_t step = 0; step < 4; ++step) {
      d_step.upload({step});
      graph.launch(stream);
      stream.wait();
      const std::vector<std::int32_t> now = drawn.download();
      different += now != before;
      before = now;
      std::vector<float> again = probabilities.download();
      std::vector<std::int32_t> on_cpu(2);
      std::vector<RowStatus> states(2);
      const std::vector<std::uint32_t> steps = {step};
      draw(cpu, View<const float, 2>(again.data(), 2, n), {{1}, {}, steps}, {on_cpu, states});
      CHECK(now == on_cpu);
    }
    CHECK(different > 1);
  }
}

TEST_CASE("requests are grouped as on the CPU; a model that does not exist is told", "[cuda]") {
  cuda_test::Stream stream;
  Cuda cuda(stream);
  Cpu cpu;
  std::vector<std::int32_t> chosen;
  for (std::uint32_t i = 0; i < 1300; ++i)
    chosen.push_back(static_cast<std::int32_t>(decant::Philox{4}(i).word[0] % 5));
  std::vector<std::int32_t> order(chosen.size()), offsets(7);
  group(cpu, chosen, order, offsets);
  DeviceBuffer<std::int32_t> d_chosen(chosen);
  const DeviceBuffer<std::int32_t> d_order(1300), d_offsets(7);
  group(cuda, d_chosen.view(1300), d_order.view(1300), d_offsets.view(7));
  CHECK(d_order.download() == order);
  CHECK(d_offsets.download() == offsets);
  chosen[1299] = 6;
  d_chosen.upload(chosen);
  group(cuda, d_chosen.view(1300), d_order.view(1300), d_offsets.view(7));
  CHECK_THROWS_WITH(cuda.check(), catch_compat::contains("sampling::group"));
  CHECK(d_order.download() == order);
}

}  // namespace
