// What 4-bit formats lose on weights of known distributions, in groups of 16 and weighted by a log-normal importance:
// figures of an independent implementation, with slack for the sample.
#include <cmath>

#include <decant/quant/if4.hpp>
#include <decant/quant/weight_error.hpp>

#include "catch_compat.hpp"
#include "unit/quant/quantized.hpp"

namespace quant_measured_test {

using namespace quant_test;

constexpr index_t rows = 64, cols = 1024;

template <class F>
double loss(const F& format, const Matrix& m, const quant::Calibration& fit, const std::vector<float>& importance) {
  const Quantized<F> q(format, m, fit);
  Cpu cpu;
  return squared_error(cpu, q.packed(), m.view(), View<const float, 1>(importance)).relative();
}

struct Expected {
  double nvfp4, if4, if4_weighted;
};

void check(const Matrix& m, const Expected& expected, double slack) {
  std::vector<float> h;
  for (index_t k = 0; k < cols; ++k) h.push_back(static_cast<float>(std::exp(gaussian(k, 21))));
  CHECK(loss(quant::NvFp4{}, m, {}, h) == Approx(expected.nvfp4).epsilon(slack));
  CHECK(loss(quant::If4{}, m, {}, h) == Approx(expected.if4).epsilon(slack));
  CHECK(loss(quant::If4{}, m, {.importance = View<const float, 1>(h)}, h) ==
        Approx(expected.if4_weighted).epsilon(slack));
}

TEST_CASE("NvFp4 and If4 on Gaussian weights", "[quant][formats][statistics]") {
  check(Matrix(rows, cols), {0.00909, 0.00623, 0.00568}, 0.04);
}

TEST_CASE("NvFp4 and If4 on uniform weights", "[quant][formats][statistics]") {
  check(Matrix(rows, cols, [](index_t i) { return 2 * uniform(i, 22) - 1; }), {0.01017, 0.00432, 0.00412}, 0.04);
}

TEST_CASE("NvFp4 and If4 on Student-t(4) weights", "[quant][formats][statistics]") {
  const auto student = [](index_t i) {
    double square = 0;
    for (index_t j = 0; j < 4; ++j) square += std::pow(gaussian(4 * i + j, 23), 2);
    return gaussian(i, 24) / std::sqrt(square / 4);
  };
  check(Matrix(rows, cols, student), {0.00831, 0.00691, 0.00634}, 0.06);
}

}  // namespace quant_measured_test
