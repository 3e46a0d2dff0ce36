// Gptq against its definition, and the laws that it must obey.
#include <algorithm>
#include <cmath>
#include <vector>

#include <decant/quant/gptq.hpp>
#include <decant/quant/int_group.hpp>
#include <decant/quant/nf4.hpp>

#include "catch_compat.hpp"
#include "layer_problem.hpp"
#include "oracle/gptq.hpp"

namespace quant_gptq_test {

using namespace decant::quant;
using namespace quant_layer;
using decant::Cpu;

LayerProblem problem(index_t rows, index_t cols, double decay = 0.05) {
  return layer_problem(rows, cols, 4 * cols, decay, cols, narrow(normal(rows * cols, 3), 0.02));
}

template <class F>
void check_oracle(const F& format, index_t rows, index_t cols, bool fixed, bool by_diagonal) {
  const LayerProblem p = problem(rows, cols);
  const Calibration c{.hessian = p.calibration().hessian};
  Cpu cpu;
  for (int isa = 0; isa <= static_cast<int>(decant::best_isa()); ++isa) {
    cpu.set_isa(static_cast<decant::Isa>(isa));
    const Gptq<F> q{.grid = format, .block = 24, .act_order = by_diagonal, .static_groups = fixed};
    Packing<Gptq<F>> packed(q, rows, cols);
    GptqReport report;
    quantize(cpu, q, p.w(), c, packed.out(), report);
    const std::vector<double> h(c.hessian.data(), c.hessian.data() + cols * cols);
    const oracle::GptqResult exact =
        oracle::gptq(format, format.layer(p.w()), p.weights, rows, cols, h, q.damping, fixed, by_diagonal);
    INFO(rows << " x " << cols << ", fixed " << fixed << ", by diagonal " << by_diagonal << ", " << name(cpu.isa()));
    CHECK(packed.values() == exact.values);
    CHECK(report.loss == Approx(exact.loss).epsilon(1e-9));
    CHECK(report.damping == q.damping);
    CHECK(report.dead == 0);
  }
}

TEST_CASE("GPTQ is the optimal brain surgeon in a fixed order", "[quant][gptq]") {
  check_oracle(Int<4>{.group = 16}, 5, 48, false, false);
  check_oracle(Int<2>{.group = 0}, 17, 40, false, false);
  check_oracle(Int<3>{.group = 20, .grid = IntGrid::minimum}, 16, 50, false, false);
  check_oracle(Int<4>{.group = 16}, 5, 48, true, false);
  check_oracle(Int<4>{.group = 16}, 5, 48, false, true);
  check_oracle(Int<3>{.group = 7, .grid = IntGrid::symmetric}, 33, 45, true, true);
  check_oracle(Nf4{}, 3, 130, false, false);
}

template <class F>
void check_identity(const F& format, index_t cols, double unit) {
  const index_t rows = 19;
  const std::vector<float> weights = narrow(normal(rows * cols, 3), 0.02);
  const View<const float, 2> w(weights.data(), rows, cols);
  std::vector<double> h(at(cols * cols));
  for (index_t k = 0; k < cols; ++k) h[at(k * cols + k)] = unit;
  const Calibration c{.hessian = View<const double, 2>(h.data(), cols, cols)};
  Cpu cpu;
  const Packing<Rtn<F>> nearest = pack(cpu, Rtn<F>{format}, w, {});
  CHECK(pack(cpu, Gptq<F>{.grid = format}, w, c).bytes == nearest.bytes);
  CHECK(pack(cpu, Gptq<F>{.grid = format, .block = 5}, w, c).bytes == nearest.bytes);
  CHECK(pack(cpu, Gptq<F>{.grid = format, .act_order = true, .cd_sweeps = 2}, w, c).bytes == nearest.bytes);
}

TEST_CASE("with uncorrelated inputs of one size GPTQ is round to nearest, to the bit", "[quant][gptq]") {
  check_identity(Int<4>{}, 300, 1);
  check_identity(Int<2>{.group = 32, .grid = IntGrid::minimum}, 96, 0.37);
  check_identity(Int<3>{.group = 0, .grid = IntGrid::symmetric}, 65, 2);
  check_identity(Int<5>{.group = 64, .grid = IntGrid::signed_max}, 128, 1);
  check_identity(Int<4>{.group = 64, .search = true}, 128, 1);
  check_identity(Nf4{}, 128, 1);
}

TEST_CASE("the block only orders GPTQ's sums", "[quant][gptq]") {
  const LayerProblem p = problem(20, 96);
  Cpu cpu;
  for (const index_t group : {0, 16, 40, 96}) {
    const auto values = [&](index_t block) {
      return pack(cpu, Gptq<Int<3>>{.grid = {.group = group}, .block = block, .cd_sweeps = 1}, p.w(), p.calibration())
          .values();
    };
    const std::vector<float> one = values(1);
    double norm = 0;
    for (const float v : one) norm += static_cast<double>(v) * v;
    for (const index_t block : {7, 32, 128, 1000}) {
      const std::vector<float> many = values(block);
      double difference = 0;
      for (std::size_t i = 0; i < one.size(); ++i) {
        const double d = static_cast<double>(one[i]) - static_cast<double>(many[i]);
        difference += d * d;
      }
      INFO("group " << group << " block " << block);
      CHECK(difference <= 1e-10 * norm);
    }
  }
}

TEST_CASE("GPTQ's estimate of the loss is the loss under the damped Hessian, sweeps never raise it",
          "[quant][gptq]") {
  const LayerProblem p = problem(24, 128);
  const Calibration c = p.calibration();
  Cpu cpu;
  for (const bool by_diagonal : {false, true}) {
    double last = 0;
    for (const int sweeps : {0, 1, 2, 5, 30}) {
      const Gptq<Int<2>> q{.grid = {.group = 64}, .block = 48, .act_order = by_diagonal, .cd_sweeps = sweeps};
      Packing<Gptq<Int<2>>> packed(q, p.rows, p.cols);
      GptqReport report;
      quantize(cpu, q, p.w(), c, packed.out(), report);
      std::vector<double> h(c.hessian.data(), c.hessian.data() + p.cols * p.cols);
      double mean = 0;
      for (index_t k = 0; k < p.cols; ++k) mean += h[at(k * p.cols + k)] / static_cast<double>(p.cols);
      for (index_t k = 0; k < p.cols; ++k) h[at(k * p.cols + k)] += q.damping * mean;
      const double exact = loss(packed.values(), p.w(), View<const double, 2>(h.data(), p.cols, p.cols));
      INFO("by diagonal " << by_diagonal << ", " << sweeps << " sweeps");
      CHECK(report.loss == Approx(exact).epsilon(1e-9));
      if (sweeps > 0) CHECK(report.loss <= last * (1 + 1e-12));
      if (sweeps == 1) CHECK(report.loss < 0.97 * last);
      last = report.loss;
    }
  }
}

TEST_CASE("GPTQ loses less than round to nearest where inputs are correlated", "[quant][gptq][statistics]") {
  const index_t n = 256;
  const LayerProblem p = layer_problem(n, n, 4096, 0.05, n, narrow(normal(n * n, 3), 0.02));
  Cpu cpu;
  const auto ratio = [&](auto format) {
    using F = decltype(format);
    const double nearest = loss(pack(cpu, Rtn<F>{format}, p.w(), {}).values(), p.w(), p.exact_hessian());
    const std::vector<float> values = pack(cpu, Gptq<F>{.grid = format}, p.w(), p.calibration()).values();
    return loss(values, p.w(), p.exact_hessian()) / nearest;
  };
  const double two = ratio(Int<2>{});
  const double three = ratio(Int<3>{});
  const double four = ratio(Int<4>{});
  INFO("GPTQ / RTN at 2, 3, 4 bits: " << two << " " << three << " " << four);
  CHECK(two <= 0.6);
  CHECK(three <= 0.35);
  CHECK(four <= 0.3);
}

TEST_CASE("weights of inputs that are always zero become zero", "[quant][gptq]") {
  LayerProblem p = problem(6, 32);
  std::vector<double> h(p.calibration().hessian.data(), p.calibration().hessian.data() + 32 * 32);
  for (const index_t dead : {3, 17}) {
    for (index_t k = 0; k < 32; ++k) h[at(dead * 32 + k)] = h[at(k * 32 + dead)] = 0;
    p.weights[at(32 * 2 + dead)] = 100;  // must not spoil the group
  }
  const Calibration c{.hessian = View<const double, 2>(h.data(), 32, 32)};
  Cpu cpu;
  for (const bool fixed : {false, true}) {
    const Gptq<Int<4>> q{.grid = {.group = 16}, .static_groups = fixed, .cd_sweeps = 1};
    Packing<Gptq<Int<4>>> packed(q, 6, 32);
    GptqReport report;
    quantize(cpu, q, p.w(), c, packed.out(), report);
    CHECK(report.dead == 2);
    const std::vector<float> values = packed.values();
    for (index_t r = 0; r < 6; ++r) {
      CHECK(values[at(r * 32 + 3)] == 0);
      CHECK(values[at(r * 32 + 17)] == 0);
      for (index_t k = 0; k < 32; ++k) CHECK(std::abs(values[at(r * 32 + k)]) < 0.2f);
    }
    const oracle::GptqResult exact = oracle::gptq(q.grid, {}, p.weights, 6, 32, h, q.damping, fixed, false);
    if (fixed) continue;
    const Gptq<Int<4>> plain{.grid = {.group = 16}};
    CHECK(pack(cpu, plain, p.w(), c).values() == exact.values);
    // They need no damping.
    const Gptq<Int<4>> undamped{.grid = {.group = 16}, .damping = 0};
    quantize(cpu, undamped, p.w(), c, packed.out(), report);
    CHECK(report.damping == 0);
  }
}

TEST_CASE("GPTQ damps a singular Hessian more and refuses one that is not positive", "[quant][gptq]") {
  const index_t n = 40;
  const LayerProblem p = layer_problem(4, n, 10, 0.01, n, narrow(normal(4 * n, 3), 0.02));  // of rank 10
  Cpu cpu;
  Gptq<Int<4>> q{.grid = {.group = 0}, .damping = 0};
  Packing<Gptq<Int<4>>> packed(q, 4, n, std::byte{0x5a});
  GptqReport report;
  std::vector<double> h(p.calibration().hessian.data(), p.calibration().hessian.data() + n * n);
  const Calibration c{.hessian = View<const double, 2>(h.data(), n, n)};
  h[0] -= 1e-3 * h[0];  // now it has a negative eigenvalue, a small one
  quantize(cpu, q, p.w(), c, packed.out(), report);
  CHECK(report.damping == 0.01);

  h[at(n + 1)] = -10 * h[at(n + 1)];
  std::fill(packed.bytes.begin(), packed.bytes.end(), std::byte{0x5a});
  const std::vector<std::byte> untouched = packed.bytes;
  CHECK_THROWS_WITH(quantize(cpu, q, p.w(), c, packed.out()), catch_compat::contains("calibration.hessian"));
  h[at(n + 1)] = NAN;
  CHECK_THROWS_WITH(quantize(cpu, q, p.w(), c, packed.out()), catch_compat::contains("calibration.hessian"));
  CHECK(packed.bytes == untouched);
}

TEST_CASE("GPTQ names parameters that make no sense", "[quant][gptq]") {
  using Q = Gptq<Int<4>>;
  CHECK_NOTHROW(validate(Q{}, 128));
  CHECK_THROWS_WITH(validate(Q{.damping = -0.1}, 128), catch_compat::contains("damping"));
  CHECK_THROWS_WITH(validate(Q{.damping = NAN}, 128), catch_compat::contains("damping"));
  CHECK_THROWS_WITH(validate(Q{.block = 0}, 128), catch_compat::contains("block"));
  CHECK_THROWS_WITH(validate(Q{.cd_sweeps = -1}, 128), catch_compat::contains("cd_sweeps"));
  CHECK_THROWS_WITH(validate(Q{.grid = {.group = -1}}, 128), catch_compat::contains("group"));
}

}  // namespace quant_gptq_test
