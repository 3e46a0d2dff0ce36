// Prefix sums against the CPU's, and softmax against the f64 definition within softmax.hpp's bounds.
#include <cmath>
#include <limits>
#include <vector>

#include "catch_compat.hpp"
#include "decant/core/random.hpp"
#include "decant/core/scan.cuh"
#include "decant/core/softmax.cuh"
#include "device_memory.cuh"

namespace {

using cuda_test::DeviceBuffer;
using cuda_test::Stream;
using decant::Cpu;
using decant::Cuda;
using decant::index_t;
using decant::View;

constexpr float inf = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

TEST_CASE("scans of int32 and in place") {
  Stream stream;
  Cuda cuda(stream);
  Cpu cpu;
  for (const index_t n : {0, 1, 31, 257, 2048, 5000}) {
    std::vector<std::int32_t> values;
    for (index_t i = 0; i < n; ++i) {
      values.push_back(static_cast<std::int32_t>(decant::Philox{7}(static_cast<std::uint32_t>(i)).word[0]));
    }
    const std::vector<index_t> wide(values.begin(), values.end());
    DeviceBuffer<std::int32_t> d_values(values);
    for (const index_t extra : {0, 1}) {
      std::vector<index_t> expected(static_cast<std::size_t>(n + extra));
      DeviceBuffer<index_t> out(n + extra);
      exclusive_scan(cpu, View<std::int32_t, 1>(values), View<index_t, 1>(expected));
      exclusive_scan(cuda, d_values.view(n), out.view(n + extra));
      REQUIRE(out.download() == expected);
    }
    std::vector<index_t> expected(static_cast<std::size_t>(n));
    inclusive_scan(cpu, View<std::int32_t, 1>(values), View<index_t, 1>(expected));
    DeviceBuffer<index_t> in_place(wide);
    inclusive_scan(cuda, in_place.view(n), in_place.view(n));
    REQUIRE(in_place.download() == expected);
  }
  DeviceBuffer<index_t> out(3);
  REQUIRE_THROWS_WITH(exclusive_scan(cuda, out.view(3), out.view(2)), catch_compat::contains("or one more"));
  cuda.check();
}

/// Softmax and log-sum-exp of both kinds of call.
std::pair<std::vector<float>, float> run(const std::vector<float>& x, index_t stride = 1) {
  Stream stream;
  Cuda cuda(stream);
  const auto n = static_cast<index_t>(x.size()) / stride;
  DeviceBuffer<float> in(x), out(n), lse(2);
  const View<const float, 1> view(in.data(), {n}, {stride});
  softmax(cuda, view, out.view(n), lse.data());
  log_sum_exp(cuda, view, lse.data() + 1);
  cuda.check();
  const auto sums = lse.download();
  REQUIRE(decant::bit_cast<std::uint32_t>(sums[0]) == decant::bit_cast<std::uint32_t>(sums[1]));
  return {out.download(), sums[0]};
}

TEST_CASE("softmax of finite rows") {
  for (const index_t n : {1, 2, 300, 4096, 9001}) {
    for (const float spread : {0.01f, 5.0f, 300.0f}) {
      std::vector<float> x;
      for (index_t i = 0; i < n; ++i) {
        x.push_back(spread * (decant::Philox{3}.uniform(static_cast<std::uint32_t>(i)) - 0.3f));
      }
      double max = -1e300, sum = 0;
      for (const float v : x) max = std::max(max, static_cast<double>(v));
      for (const float v : x) sum += std::exp(static_cast<double>(v) - max);
      const double expected = max + std::log(sum);
      const auto [weights, lse] = run(x);
      CAPTURE(n, spread);
      REQUIRE(std::abs(static_cast<double>(lse) - expected) <= 1e-6 + 2e-7 * std::abs(expected));
      for (index_t i = 0; i < n; ++i) {
        const auto at = static_cast<std::size_t>(i);
        const double weight = std::exp(static_cast<double>(x[at]) - expected);
        const double bound = (1e-6 + 6e-8 * std::abs(static_cast<double>(x[at]) - max)) * weight + 1e-43;
        REQUIRE(std::abs(static_cast<double>(weights[at]) - weight) <= bound);
      }
    }
  }
}

TEST_CASE("softmax is total") {
  REQUIRE(run({}).second == -inf);
  REQUIRE(run({-inf, -inf}) == std::pair(std::vector<float>{0, 0}, -inf));
  REQUIRE(run({1, inf, -inf, inf}) == std::pair(std::vector<float>{0, 0.5f, 0, 0.5f}, inf));
  REQUIRE(run({1, 9, 2, 9}, 2).first.size() == 2);
  for (const auto& x : {std::vector<float>{1, nan}, {nan}, {inf, nan}, {-inf, nan}}) {
    const auto [weights, lse] = run(x);
    REQUIRE(std::isnan(lse));
    for (const float w : weights) REQUIRE(std::isnan(w));
  }
}

}  // namespace
