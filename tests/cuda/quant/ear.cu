// EAR on CUDA against the CPU's, whose definition the unit tests check: positions within its bounds, the same tokens
// and states, the same summary; rows that are no distributions, unaligned rows, and calls in a graph.
#include "decant/quant/ear.cuh"

#include <cmath>
#include <limits>
#include <vector>

#include "catch_compat.hpp"
#include "decant/core/random.hpp"
#include "decant/quant/ear.hpp"
#include "device_memory.cuh"
#include "graph.cuh"

namespace {

using namespace cuda_test;
using decant::View;
using decant::quant::ear;
using decant::quant::ear_summary;
using decant::quant::EarOptions;
using decant::quant::EarPosition;
using decant::quant::EarResult;
using decant::quant::EarState;
using decant::quant::EarSupport;

constexpr float inf = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr EarSupport supports[] = {EarSupport::full, EarSupport::topk, EarSupport::topk_conditioned};

/// Rows of p, and of q = p plus noise, `stride` apart. Some positions have a NaN, an inf, only -inf; the last is left
/// out.
template <class P, class Q>
struct Problem {
  index_t positions, vocab, stride;
  std::vector<P> p;
  std::vector<Q> q;
  std::vector<std::uint8_t> keep;

  Problem(index_t n, index_t v, index_t s, bool broken)
      : positions(n), vocab(v), stride(s), keep(static_cast<std::size_t>(n), 1) {
    const decant::Philox random{41};
    for (index_t i = 0; i < n * s; ++i) {
      const auto words = random(static_cast<std::uint32_t>(i));
      const float x = decant::Philox::to_unit(words.word[0]);
      const bool none = words.word[2] % 9 == 0, none_q = words.word[2] % 11 == 0;
      p.push_back(static_cast<P>(none ? -inf : 11 * x * x * x - 40));
      q.push_back(static_cast<Q>(none_q ? -inf : 11 * x * x * x + 2 * decant::Philox::to_unit(words.word[1])));
    }
    if (!broken) return;
    p[static_cast<std::size_t>(stride + vocab / 2)] = static_cast<P>(nan);
    q[static_cast<std::size_t>(2 * stride + vocab - 1)] = static_cast<Q>(inf);
    for (index_t i = 0; i < vocab; ++i) p[static_cast<std::size_t>(3 * stride + i)] = static_cast<P>(-inf);
    keep[static_cast<std::size_t>(n - 1)] = 0;
  }
};

bool near(double got, double exact, double bound) {
  return got == exact || (std::isnan(got) && std::isnan(exact)) || std::abs(got - exact) <= bound;
}

template <class P, class Q = P>
void check(index_t n, index_t vocab, index_t stride, const EarOptions& options, bool broken = false) {
  const Problem<P, Q> x(n, vocab, stride, broken);
  decant::Cpu cpu;
  std::vector<EarPosition> exact(static_cast<std::size_t>(n));
  const View<const P, 2> host_p(x.p.data(), {n, vocab}, {stride, 1});
  const View<const Q, 2> host_q(x.q.data(), {n, vocab}, {stride, 1});
  const EarResult summary = ear(cpu, host_p, host_q, options, x.keep, exact);

  const Stream stream;
  decant::Cuda cuda(stream);
  const DeviceBuffer<P> p(x.p);
  const DeviceBuffer<Q> q(x.q);
  const DeviceBuffer<std::uint8_t> keep(x.keep);
  const DeviceBuffer<EarPosition> each(n);
  const DeviceBuffer<EarResult> result(1);
  ear(cuda, View<const P, 2>(p.data(), {n, vocab}, {stride, 1}), View<const Q, 2>(q.data(), {n, vocab}, {stride, 1}),
      result.data(), options, keep.view(n), each.view(n));
  cuda.check();
  const auto got = each.download();
  for (index_t i = 0; i < n; ++i) {
    const EarPosition& a = got[static_cast<std::size_t>(i)];
    const EarPosition& b = exact[static_cast<std::size_t>(i)];
    CAPTURE(n, vocab, stride, name(options.support), options.top_k, i, a.ear, b.ear, a.kl, b.kl);
    REQUIRE(a.state == b.state);
    REQUIRE(a.agrees == b.agrees);
    REQUIRE(near(a.ear, b.ear, 4e-6));
    REQUIRE(near(a.kl, b.kl, 4e-6 * (1 + std::abs(b.kl))));
    REQUIRE(near(static_cast<double>(a.margin), static_cast<double>(b.margin), 2e-6));
  }
  const EarResult r = result.download()[0];
  const EarResult of_positions = ear_summary(cpu, got);
  CHECK(r.positions == summary.positions);
  CHECK(r.excluded == summary.excluded);
  CHECK(near(r.ear, of_positions.ear, 1e-12));
  CHECK(near(r.kl, of_positions.kl, 1e-12 * (1 + std::abs(r.kl))));
  CHECK(near(r.standard_error, of_positions.standard_error, 1e-12));
  CHECK(near(r.percentile_1, of_positions.percentile_1, 0));
  CHECK(near(r.top1_agreement, of_positions.top1_agreement, 1e-12));
  CHECK(near(r.margin, of_positions.margin, 1e-12));
}

TEST_CASE("ear is the CPU's") {
  for (const EarSupport support : supports) {
    for (const index_t vocab : {1, 7, 33, 1030}) check<float>(3, vocab, vocab, {.support = support});
    check<decant::bf16>(3, 4800, 4800, {.support = support});
    check<decant::bf16>(2, 4095, 4100, {.support = support, .top_k = 40, .temperature = 0.7f});  // unaligned
    check<decant::bf16>(6, 520, 528, {.support = support, .temperature = 1.5f}, true);
  }
}

TEST_CASE("ear of other storage types, and of two of them") {
  check<decant::fp16>(2, 600, 600, {});
  check<decant::bf16, float>(2, 600, 600, {});
  check<decant::fp8_e4m3>(2, 600, 608, {.support = EarSupport::topk, .top_k = 700});
}

TEST_CASE("identical rows on CUDA") {
  const Problem<float, float> x(2, 300, 300, false);
  const Stream stream;
  decant::Cuda cuda(stream);
  const DeviceBuffer<float> p(x.p);
  const DeviceBuffer<EarPosition> each(2);
  ear(cuda, p.view(2, 300), p.view(2, 300), nullptr, {.temperature = 0.9f}, {}, each.view(2));
  for (const EarPosition& at : each.download()) {
    CHECK(at.ear == 1);
    CHECK(at.kl == 0);
    CHECK(at.agrees);
  }
}

TEST_CASE("a summary of many positions on CUDA") {
  std::vector<EarPosition> each(1503);
  for (std::size_t i = 0; i < each.size(); ++i) {
    each[i].state = i % 7 == 3 ? EarState::excluded : i % 7 == 4 ? EarState::skipped : EarState::counted;
    each[i].ear = static_cast<double>(decant::Philox{43}.uniform(static_cast<std::uint32_t>(i)));
    each[i].kl = each[i].ear / 3;
    each[i].agrees = i % 3 != 0;
    each[i].margin = each[i].agrees ? 0.0f : 0.5f;
  }
  decant::Cpu cpu;
  const EarResult exact = ear_summary(cpu, each);
  const Stream stream;
  decant::Cuda cuda(stream);
  const DeviceBuffer<EarPosition> device(each);
  const DeviceBuffer<EarResult> result(1);
  ear_summary(cuda, View<const EarPosition, 1>(device.view(1503)), result.data());
  const EarResult r = result.download()[0];
  CHECK(r.positions == exact.positions);
  CHECK(r.excluded == exact.excluded);
  CHECK(r.percentile_1 == exact.percentile_1);
  CHECK(near(r.ear, exact.ear, 1e-14));
  CHECK(near(r.standard_error, exact.standard_error, 1e-14));
  CHECK(near(r.margin, exact.margin, 1e-14));
}

TEST_CASE("ear on CUDA: errors, empty input, a graph, and no allocation the second time") {
  const Problem<float, float> x(3, 90, 90, false);
  const Stream stream;
  decant::Cuda cuda(stream);
  const DeviceBuffer<float> p(x.p), q(x.q);
  DeviceBuffer<EarResult> result(1);
  using decant::ArgumentError;
  CHECK_THROWS_AS(ear(cuda, p.view(3, 90), q.view(3, 90), result.data(), {.top_p = 0.9f}), ArgumentError);
  CHECK_THROWS_AS(ear(cuda, p.view(3, 90), q.view(2, 90), result.data()), ArgumentError);
  CHECK_THROWS_AS(ear(cuda, p.view(3, 90), q.view(3, 90), result.data(), {.top_k = 2000}), ArgumentError);
  ear(cuda, View<const float, 2>(), View<const float, 2>(), result.data());
  CHECK(std::isnan(result.download()[0].ear));
  ear(cuda, p.view(3, 90), q.view(3, 90), result.data());
  const EarResult first = result.download()[0];
  const std::size_t high = cuda.workspace().high_water();
  result.upload({EarResult{}});
  const Graph graph(stream, [&] { ear(cuda, p.view(3, 90), q.view(3, 90), result.data()); });
  graph.launch(stream);
  const EarResult again = result.download()[0];
  CHECK(again.ear == first.ear);
  CHECK(again.kl == first.kl);
  CHECK(again.positions == 3);
  CHECK(cuda.workspace().high_water() == high);
  cuda.check();
}

}  // namespace
