// Fitted step costs: exact where the steps follow the model, never negative, and named when there is nothing to fit.
#include "decant/scheduling/calibrate.hpp"

#include <cmath>
#include <vector>

#include "catch_compat.hpp"
#include "decant/scheduling/workload.hpp"

namespace calibrate_test {

using namespace decant;
using namespace decant::scheduling;

constexpr ModelShape model{};

std::vector<MeasuredStep> steps(double launch, double per_flop, double per_byte, double noise = 0) {
  SplitMix64 next{4};
  std::vector<MeasuredStep> out;
  for (int i = 0; i < 200; ++i) {
    std::vector<StepShape> shapes(1 + next() % 60, StepShape{1, static_cast<std::uint32_t>(next() % 4000)});
    if (i % 3 == 0) shapes.push_back({static_cast<std::uint32_t>(1 + next() % 2000), 0});
    const StepWork work = step_work(model, shapes);
    const double jitter = 1 + noise * (static_cast<double>(next() >> 11) * 0x1p-53 - 0.5);
    const double ns = (launch + per_flop * static_cast<double>(work.flops) + per_byte * static_cast<double>(work.bytes)) * jitter;
    out.push_back({work, static_cast<Nanoseconds>(ns)});
  }
  return out;
}

TEST_CASE("calibrate: gives back the rates that made the steps") {
  const auto exact = calibrate(model, steps(2e6, 1 / 187200.0, 1 / 1631.0));
  CHECK(std::abs(static_cast<double>(exact.launch) / 2e6 - 1) < 1e-3);
  CHECK(std::abs(static_cast<double>(exact.per_flop) * 187200 * 0x1p-32 - 1) < 1e-3);
  CHECK(std::abs(static_cast<double>(exact.per_byte) * 1631 * 0x1p-32 - 1) < 1e-3);
  RooflineOptions additive;
  additive.additive = true;
  const std::vector<StepShape> shapes{{1, 500}, {1, 900}, {300, 100}};
  const auto want = static_cast<double>(Roofline({}, {}, additive).step_ns(shapes));
  CHECK(std::abs(static_cast<double>(exact.step_ns(shapes)) / want - 1) < 1e-3);
  CHECK(exact.step_ns({}) == 0);
  const auto noisy = calibrate(model, steps(2e6, 1 / 187200.0, 1 / 1631.0, 0.1));
  CHECK(std::abs(static_cast<double>(noisy.step_ns(shapes)) / want - 1) < 0.03);
}

TEST_CASE("calibrate: what does not show is 0, never negative") {
  // A compute-bound engine: time falls with bytes if anything.
  const auto c = calibrate(model, steps(0, 1e-4, -1e-6));
  CHECK(c.per_byte == 0);
  CHECK(c.per_flop > 0);
  // All steps alike: one column is as good as another, and the sum is right.
  std::vector<MeasuredStep> same(5, steps(1e6, 1e-5, 1e-3)[1]);
  const auto s = calibrate(model, same);
  const double predicted = static_cast<double>(s.launch) +
                           (static_cast<double>(same[0].work.flops) * static_cast<double>(s.per_flop) +
                            static_cast<double>(same[0].work.bytes) * static_cast<double>(s.per_byte)) * 0x1p-32;
  CHECK(std::abs(predicted / static_cast<double>(same[0].time) - 1) < 1e-3);
  CHECK_THROWS_AS(calibrate(model, std::vector<MeasuredStep>(2)), ArgumentError);
  CHECK_THROWS_AS(calibrate(model, std::vector<MeasuredStep>(3)), ArgumentError);
}

}  // namespace calibrate_test
