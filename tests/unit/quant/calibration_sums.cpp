// CalibrationSums against the definitions, and the double-precision kernels below it.
#include <cmath>
#include <vector>

#include <decant/quant/calibration_sums.hpp>
#include <decant/quant/detail/factor_f64.hpp>

#include "catch_compat.hpp"
#include "layer_problem.hpp"
#include "threads.hpp"

namespace quant_calibration_test {

using namespace decant::quant;
using namespace quant_layer;
using decant::Cpu;
using decant::Isa;

std::vector<float> inputs(index_t tokens, index_t cols) { return narrow(normal(tokens * cols, 9), 3); }

void add(Cpu& cpu, CalibrationSums& sums, const std::vector<float>& x, index_t first, index_t count) {
  sums.add(cpu, View<const float, 2>(x.data() + first * sums.cols(), count, sums.cols()));
}

/// How far sums over `tokens` terms may be from one another.
double bound(index_t tokens) { return static_cast<double>(2 * tokens + 8) * 0x1p-53; }

TEST_CASE("calibration sums are the means that they say", "[quant][calibration]") {
  for (const index_t cols : {1, 15, 64, 70, 130}) {
    const index_t tokens = 300;
    const std::vector<float> x = inputs(tokens, cols);
    for (int isa = 0; isa <= static_cast<int>(decant::best_isa()); ++isa) {
      Cpu cpu;
      cpu.set_isa(static_cast<Isa>(isa));
      CalibrationSums sums(cols, {.inputs = 1000});
      CHECK(sums.view().hessian.empty());
      add(cpu, sums, x, 0, tokens);
      CHECK(sums.tokens() == tokens);
      const Calibration c = sums.view();
      require_calibration(c, {true, true, true, true}, cols, "test");
      for (index_t i = 0; i < cols; ++i) {
        double square = 0;
        double magnitude = 0;
        for (index_t t = 0; t < tokens; ++t) {
          const double v = static_cast<double>(x[at(t * cols + i)]);
          square += v * v / static_cast<double>(tokens);
          magnitude += std::abs(v) / static_cast<double>(tokens);
        }
        CHECK(static_cast<double>(c.importance[i]) == Approx(square).epsilon(1e-7));
        CHECK(static_cast<double>(c.magnitude[i]) == Approx(magnitude).epsilon(1e-7));
        for (index_t j = 0; j < cols; ++j) {
          double product = 0;
          double scale = 0;
          for (index_t t = 0; t < tokens; ++t) {
            const double term = static_cast<double>(x[at(t * cols + i)]) * static_cast<double>(x[at(t * cols + j)]);
            product += 2 * term / static_cast<double>(tokens);
            scale += 2 * std::abs(term) / static_cast<double>(tokens);
          }
          REQUIRE(std::abs(c.hessian(i, j) - product) <= bound(tokens) * scale);
          REQUIRE(c.hessian(i, j) == c.hessian(j, i));
        }
      }
      CHECK(c.inputs.extent(0) == tokens);
      for (index_t t = 0; t < tokens; ++t) REQUIRE(c.inputs(t, cols - 1) == x[at(t * cols + cols - 1)]);
    }
  }
}

TEST_CASE("calibration sums do not depend on batches or threads", "[quant][calibration][threads]") {
  const index_t cols = 90;
  const index_t tokens = 700;
  const std::vector<float> x = inputs(tokens, cols);
  const CalibrationOptions options{.inputs = 50, .seed = 4};
  Cpu cpu;
  CalibrationSums one(cols, options);
  add(cpu, one, x, 0, tokens);
  CalibrationSums many(cols, options);
  Cpu threads{reversed_threads(3)};
  index_t at_token = 0;
  for (index_t step = 0; at_token < tokens; ++step) {
    const index_t count = step * step < tokens - at_token ? step * step : tokens - at_token;
    add(threads, many, x, at_token, count);
    at_token += count;
  }
  const Calibration a = one.view();
  const Calibration b = many.view();
  for (index_t i = 0; i < cols; ++i) {
    REQUIRE(a.importance[i] == b.importance[i]);
    REQUIRE(a.magnitude[i] == b.magnitude[i]);
    for (index_t j = 0; j < cols; ++j) {
      const double scale = std::sqrt(a.hessian(i, i) * a.hessian(j, j));
      REQUIRE(std::abs(a.hessian(i, j) - b.hessian(i, j)) <= bound(tokens) * scale);
    }
  }
  CHECK(a.inputs.extent(0) == 50);
  CHECK(b.inputs.extent(0) == 50);
  for (index_t t = 0; t < 50; ++t) {
    for (index_t k = 0; k < cols; ++k) REQUIRE(a.inputs(t, k) == b.inputs(t, k));
  }

  CalibrationSums alone(cols, options);
  add(threads, alone, x, 0, tokens);  // in one batch: to the bit
  for (index_t i = 0; i < cols; ++i) {
    for (index_t j = 0; j < cols; ++j) REQUIRE(alone.view().hessian(i, j) == a.hessian(i, j));
  }
}

TEST_CASE("every input has the same chance to be kept", "[quant][calibration]") {
  // 400 samples of 10 of 100 inputs: each is kept 40 times in the mean, with a standard deviation of 6; the bound is 5
  // of those, with 100 inputs a false alarm in 17,000 seeds.
  std::vector<int> kept(100);
  std::vector<float> x(100);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
  Cpu cpu;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    CalibrationSums sums(1, {.hessian = false, .inputs = 10, .seed = seed});
    add(cpu, sums, x, 0, 100);
    const Calibration c = sums.view();
    CHECK(c.hessian.empty());
    REQUIRE(c.inputs.extent(0) == 10);
    for (index_t t = 0; t < 10; ++t) ++kept[static_cast<std::size_t>(c.inputs(t, 0))];
  }
  for (const int count : kept) CHECK(std::abs(count - 40) <= 30);
}

TEST_CASE("calibration sums refuse what is not finite or has another shape", "[quant][calibration]") {
  Cpu cpu;
  CalibrationSums sums(4);
  std::vector<float> x = inputs(3, 4);
  add(cpu, sums, x, 0, 3);
  const double before = sums.view().hessian(1, 1);
  x[9] = INFINITY;
  CHECK_THROWS_WITH(add(cpu, sums, x, 0, 3), catch_compat::contains("(2, 1)"));
  CHECK_THROWS_AS(sums.add(cpu, View<const float, 2>(x.data(), 3, 3)), decant::ArgumentError);
  CHECK_THROWS_AS(sums.add(cpu, View<const float, 2>(x.data(), {1, 4}, {1, 2})), decant::ArgumentError);
  CHECK(sums.tokens() == 3);
  CHECK(sums.view().hessian(1, 1) == before);
  CHECK_THROWS_WITH(CalibrationSums(0), catch_compat::contains("cols"));
  CHECK_THROWS_WITH(CalibrationSums(2, {.inputs = -1}), catch_compat::contains("inputs"));
}

TEST_CASE("factors and inverses in double precision", "[quant][calibration]") {
  for (int isa = 0; isa <= static_cast<int>(decant::best_isa()); ++isa) {
    for (const index_t n : {1, 5, 63, 64, 65, 143}) {
      Cpu cpu{reversed_threads(2)};
      cpu.set_isa(static_cast<Isa>(isa));
      INFO("n " << n << " " << name(cpu.isa()));
      const std::vector<double> g = normal(n * n, 5);
      std::vector<double> a(at(n * n));
      for (index_t i = 0; i < n; ++i) {
        for (index_t j = 0; j < n; ++j) {
          for (index_t k = 0; k < n; ++k)
            a[at(i * n + j)] += g[at(i * n + k)] * g[at(j * n + k)] / static_cast<double>(n);
          a[at(i * n + j)] += i == j ? 0.5 : 0;
        }
      }
      std::vector<double> scratch(at(decant::quant::detail::factor_scratch(n)));
      std::vector<double> l = a;
      REQUIRE(decant::quant::detail::factor_lower(cpu, cpu.isa(), l.data(), n, scratch.data()));
      for (index_t i = 0; i < n; ++i) {
        for (index_t j = 0; j <= i; ++j) {
          double sum = 0;
          for (index_t k = 0; k <= j; ++k) sum += l[at(i * n + k)] * l[at(j * n + k)];
          REQUIRE(std::abs(sum - a[at(i * n + j)]) <= 1e-12);
        }
      }
      std::vector<double> b(at(16 * n));
      for (index_t i = 0; i < 16 * n; ++i) b[at(i)] = g[at(i % (n * n))];
      std::vector<double> x = b;
      decant::quant::detail::solve_factored(cpu.isa(), l.data(), n, x.data());
      for (index_t i = 0; i < n; ++i) {
        for (index_t lane = 0; lane < 16; ++lane) {
          double sum = -b[at(16 * i + lane)];
          for (index_t k = 0; k < n; ++k) sum += a[at(i * n + k)] * x[at(16 * k + lane)];
          REQUIRE(std::abs(sum) <= 1e-11);
        }
      }
      std::vector<double> inverse = l;
      decant::quant::detail::invert_lower(cpu, cpu.isa(), inverse.data(), n, scratch.data());
      for (index_t i = 0; i < n; ++i) {
        for (index_t j = 0; j <= i; ++j) {
          double sum = i == j ? -1 : 0;
          for (index_t k = j; k <= i; ++k) sum += l[at(i * n + k)] * inverse[at(k * n + j)];
          REQUIRE(std::abs(sum) <= 1e-12);
        }
      }
      a[at(n * n - 1)] = -1;
      CHECK_FALSE(decant::quant::detail::factor_lower(cpu, cpu.isa(), a.data(), n, scratch.data()));
    }
  }
}

}  // namespace quant_calibration_test
