// The exponential, softmax, log-sum-exp, prefix sums, dot products and Cholesky against their definitions in double.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "catch_compat.hpp"
#include "decant/core/math.hpp"
#include "decant/core/random.hpp"
#include "decant/core/scan.hpp"
#include "decant/core/softmax.hpp"
#include "threads.hpp"

namespace {

using decant::index_t;
using decant::Isa;
using decant::View;

constexpr float inf = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

std::vector<Isa> isas() {
  std::vector<Isa> all{Isa::portable};
  if (decant::best_isa() >= Isa::avx2) all.push_back(Isa::avx2);
  if (decant::best_isa() >= Isa::avx512) all.push_back(Isa::avx512);
  return all;
}

/// The distance to the exact value in units of the spacing of floats there.
double ulps(float got, double exact) {
  const double spacing = std::ldexp(1.0, std::max(std::ilogb(exact) - 23, -149));
  return std::abs(static_cast<double>(got) - exact) / spacing;
}

TEST_CASE("fast_exp is within its stated bound over its whole range") {
  double worst = 0;
  for (std::int64_t i = -104000000; i <= 88700000; i += 149) {
    const float x = static_cast<float>(static_cast<double>(i) * 1e-6);
    worst = std::max(worst, ulps(decant::fast_exp(x), std::exp(static_cast<double>(x))));
  }
  for (int e = -149; e < 6; ++e) {  // small arguments, both signs
    for (const float m : {1.0f, 1.25f, 1.999f}) {
      const float x = std::ldexp(m, e);
      worst = std::max(worst, ulps(decant::fast_exp(x), std::exp(static_cast<double>(x))));
      worst = std::max(worst, ulps(decant::fast_exp(-x), std::exp(-static_cast<double>(x))));
    }
  }
  INFO("worst " << worst << " ulp");
  REQUIRE(worst <= 1.5);
  REQUIRE(decant::fast_exp(0.0f) == 1.0f);
  REQUIRE(decant::fast_exp(-0.0f) == 1.0f);
  REQUIRE(decant::fast_exp(-inf) == 0.0f);
  REQUIRE(decant::fast_exp(-1e30f) == 0.0f);
  REQUIRE(decant::fast_exp(88.73f) == inf);
  REQUIRE(decant::fast_exp(inf) == inf);
  REQUIRE(std::isnan(decant::fast_exp(nan)));
  static_assert(decant::fast_exp(0.0f) == 1.0f);
}

TEST_CASE("softmax and log_sum_exp against double") {
  const decant::Philox rng{3};
  for (const Isa isa : isas()) {
    for (const index_t n : {1, 2, 15, 16, 17, 100, 1000, 40000}) {
      for (const float spread : {1e-3f, 1.0f, 30.0f, 1000.0f}) {
        for (const float offset : {0.0f, -500.0f, 1e4f}) {
          std::vector<float> x(static_cast<std::size_t>(n));
          for (std::size_t i = 0; i < x.size(); ++i) {
            x[i] = offset + spread * (rng.uniform(static_cast<std::uint32_t>(i)) - 0.5f);
          }
          const double max = *std::max_element(x.begin(), x.end());
          double sum = 0;
          for (const float v : x) sum += std::exp(v - max);
          const double lse = max + std::log(sum);
          std::vector<float> y(x.size());
          const float got = decant::softmax(isa, x.data(), n, y.data());
          INFO("n " << n << ", spread " << spread << ", offset " << offset << ", " << decant::name(isa));
          REQUIRE(std::abs(got - lse) <= 1e-6 + 2e-7 * std::abs(lse));
          REQUIRE(decant::log_sum_exp(isa, x.data(), n) == got);
          double worst = 0;
          for (std::size_t i = 0; i < x.size(); ++i) {
            const double distance = max - static_cast<double>(x[i]);
            const double exact = std::exp(-distance) / sum;
            const double error = std::abs(static_cast<double>(y[i]) - exact);
            worst = std::max(worst, exact < 1e-37 ? error / 1e-43 : error / (exact * (1e-6 + 6e-8 * distance)));
          }
          REQUIRE(worst <= 1);
        }
      }
    }
  }
}

TEST_CASE("softmax is total") {
  for (const Isa isa : isas()) {
    for (const std::size_t n : {std::size_t{3}, std::size_t{40}}) {
      const auto weights = [&](float first, float second, float rest, float& lse) {
        std::vector<float> x(n, rest);
        x[0] = first;
        x[1] = second;
        lse = decant::softmax(isa, x.data(), static_cast<index_t>(n), x.data());
        REQUIRE((decant::log_sum_exp(isa, x.data(), 0) == -inf));
        return x;
      };
      float lse = 0;
      REQUIRE(weights(-inf, -inf, -inf, lse) == std::vector<float>(n, 0.0f));
      REQUIRE(lse == -inf);
      auto w = weights(inf, inf, 5.0f, lse);
      REQUIRE((w[0] == 0.5f && w[1] == 0.5f && w[2] == 0.0f && lse == inf));
      w = weights(7.0f, -inf, -inf, lse);
      REQUIRE((w[0] == 1.0f && w[1] == 0.0f && lse == 7.0f));
      for (const float other : {0.0f, inf, -inf, nan}) {
        w = weights(nan, other, -inf, lse);
        REQUIRE(std::isnan(lse));
        REQUIRE(std::all_of(w.begin(), w.end(), [](float v) { return std::isnan(v); }));
      }
    }
  }
  decant::Cpu cpu;
  std::vector<float> out(2);
  REQUIRE_THROWS_WITH(decant::softmax(cpu, std::vector<float>(3), out),
                      "decant::softmax: argument `out`: expected 3, got 2");
}

TEST_CASE("prefix sums are exact for any number of threads", "[threads]") {
  for (const int threads : {1, 2, 5}) {
    decant::Cpu cpu(reversed_threads(threads));
    for (const index_t n : {0, 1, 2, 1000, 200001}) {
      std::vector<std::int32_t> values(static_cast<std::size_t>(n));
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = 0x7fffffff - static_cast<std::int32_t>(i % 1000);
      std::vector<index_t> exclusive{0}, inclusive;
      for (const std::int32_t v : values) exclusive.push_back(exclusive.back() + v);
      inclusive.assign(exclusive.begin() + 1, exclusive.end());
      std::vector<index_t> out(values.size() + 1, -1);
      const View<const std::int32_t, 1> in(values);
      REQUIRE(decant::exclusive_scan(cpu, in, out) == exclusive.back());
      REQUIRE(out == exclusive);
      out.pop_back();
      REQUIRE(decant::inclusive_scan(cpu, in, out) == exclusive.back());
      REQUIRE(out == inclusive);
      std::vector<index_t> wide(values.begin(), values.end());
      decant::exclusive_scan(cpu, View<index_t, 1>(wide), wide);
      REQUIRE(wide == std::vector<index_t>(exclusive.begin(), exclusive.end() - 1));
    }
  }
  decant::Cpu cpu;
  std::vector<index_t> three(3), five(5);
  REQUIRE_THROWS_WITH(decant::exclusive_scan(cpu, View<index_t, 1>(three), five),
                      "decant::exclusive_scan: argument `out`: expected 3 or one more element, got 5");
  REQUIRE_THROWS_AS(decant::inclusive_scan(cpu, View<index_t, 1>(three), five), decant::ArgumentError);
}

TEST_CASE("dot products") {
  const decant::Philox rng{8};
  std::vector<float> a(600), b(600);
  for (std::uint32_t i = 0; i < 600; ++i) {
    a[i] = rng.uniform(i) - 0.5f;
    b[i] = rng.uniform(i, 1) - 0.5f;
  }
  for (const Isa isa : isas()) {
    for (index_t n = 0; n <= 600; n += n < 70 ? 1 : 53) {
      double exact = 0, size = 0;
      for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
        exact += static_cast<double>(a[i]) * b[i];
        size += std::abs(static_cast<double>(a[i]) * b[i]);
      }
      REQUIRE(std::abs(decant::dot(isa, a.data(), b.data(), n) - exact) <= 1e-6 * size);
    }
  }
}

template <class Real>
void check_cholesky(double bound) {
  for (const index_t n : {0, 1, 2, 17, 128}) {
    const decant::Philox rng{static_cast<std::uint64_t>(n)};
    const auto size = static_cast<std::size_t>(n);
    std::vector<double> a(size * size, 0);
    for (std::size_t k = 0; k < size; ++k) {  // A = sum of outer products + I
      std::vector<double> u(size);
      for (std::size_t i = 0; i < size; ++i) {
        u[i] = rng.uniform(static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(k)) - 0.5;
      }
      for (std::size_t i = 0; i < size; ++i) {
        for (std::size_t j = 0; j < size; ++j) a[i * size + j] += u[i] * u[j] + (k == 0 && i == j ? 1 : 0);
      }
    }
    const index_t pitch = n + 3;  // a padded row stride
    std::vector<Real> l(static_cast<std::size_t>(n * pitch), Real{99});
    for (std::size_t i = 0; i < size; ++i) {
      for (std::size_t j = 0; j <= i; ++j)
        l[i * static_cast<std::size_t>(pitch) + j] = static_cast<Real>(a[i * size + j]);
    }
    const View<Real, 2> factor(l.data(), {n, n}, {pitch, 1});
    REQUIRE(decant::cholesky(factor));
    std::vector<Real> b(size), x(size);
    for (std::size_t i = 0; i < size; ++i)
      x[i] = b[i] = static_cast<Real>(rng.uniform(static_cast<std::uint32_t>(i), 999));
    decant::solve_lower(factor, x);
    decant::solve_lower_transposed(factor, x);
    double worst = 0;
    for (index_t i = 0; i < n; ++i) {
      double ax = 0;
      for (index_t j = 0; j < n; ++j) {
        double product = 0;
        for (index_t k = 0; k <= std::min(i, j); ++k) {
          product += static_cast<double>(factor(i, k)) * static_cast<double>(factor(j, k));
        }
        worst = std::max(worst, std::abs(product - a[static_cast<std::size_t>(i * n + j)]));
        ax += a[static_cast<std::size_t>(i * n + j)] * static_cast<double>(x[static_cast<std::size_t>(j)]);
        if (j > i) REQUIRE(factor(i, j) == Real{99});
      }
      worst = std::max(worst, std::abs(ax - static_cast<double>(b[static_cast<std::size_t>(i)])));
    }
    REQUIRE(worst <= bound);
    if (n == 2) {
      REQUIRE(decant::log_det(factor) == Approx(std::log(a[0] * a[3] - a[1] * a[2])).epsilon(1e-5));
    }
  }
}

TEST_CASE("Cholesky factors and solves") {
  check_cholesky<double>(1e-13);
  check_cholesky<float>(5e-5);
  double indefinite[] = {1, 0, 2, 1};
  REQUIRE_FALSE(decant::cholesky(View<double, 2>(indefinite, 2, 2)));
  double not_a_number[] = {std::numeric_limits<double>::quiet_NaN()};
  REQUIRE_FALSE(decant::cholesky(View<double, 2>(not_a_number, 1, 1)));
  double any[6] = {};
  REQUIRE_THROWS_WITH(decant::cholesky(View<double, 2>(any, 2, 3)),
                      "decant::cholesky: argument `matrix`: expected 2, got 3");
}

}  // namespace
