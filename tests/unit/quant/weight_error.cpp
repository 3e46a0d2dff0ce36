// quant::squared_error and output_error against their definitions, written out.
#include <cmath>

#include <decant/quant/int_group.hpp>
#include <decant/quant/weight_error.hpp>

#include "catch_compat.hpp"
#include "unit/quant/quantized.hpp"

namespace quant_weight_error_test {

using namespace quant_test;
using quant::WeightError;

TEST_CASE("errors of a quantized matrix are the sums that they say", "[quant][formats]") {
  Cpu cpu;
  const index_t rows = 5, cols = 20;
  const Matrix m(rows, cols);
  const Quantized<quant::Int<3>> q({.group = 8}, m);
  const std::vector<float> values = q.values();
  std::vector<float> importance;
  for (index_t k = 0; k < cols; ++k) importance.push_back(static_cast<float>(uniform(k, 5)));

  WeightError plain, weighted;
  for (index_t i = 0; i < rows * cols; ++i) {
    const double w = m.w[at(i)], d = values[at(i)] - w;
    plain.error += d * d;
    plain.energy += w * w;
    weighted.error += importance[at(i % cols)] * d * d;
    weighted.energy += importance[at(i % cols)] * w * w;
  }
  const WeightError a = squared_error(cpu, q.packed(), m.view());
  CHECK(a.error == Approx(plain.error).epsilon(1e-12));
  CHECK(a.energy == Approx(plain.energy).epsilon(1e-12));
  CHECK(a.relative() == Approx(plain.error / plain.energy));
  CHECK(a.sqnr() == Approx(10 * std::log10(plain.energy / plain.error)));
  const WeightError b = squared_error(cpu, q.packed(), m.view(), View<const float, 1>(importance));
  CHECK(b.error == Approx(weighted.error).epsilon(1e-12));
  CHECK(b.energy == Approx(weighted.energy).epsilon(1e-12));

  // Over the inputs of which H is (2/T) sum x x^T, half of tr(D H D^T) is the outputs' mean square error.
  const index_t tokens = 30;
  const Matrix x(tokens, cols, 7);
  std::vector<double> h(at(cols * cols));
  WeightError outputs;
  for (index_t t = 0; t < tokens; ++t) {
    const float* const token = &x.w[at(t * cols)];
    for (index_t k = 0; k < cols; ++k)
      for (index_t l = 0; l < cols; ++l) h[at(k * cols + l)] += 2.0 / static_cast<double>(tokens) * token[k] * token[l];
    for (index_t r = 0; r < rows; ++r) {
      double y = 0, off = 0;
      for (index_t k = 0; k < cols; ++k) {
        y += static_cast<double>(m.w[at(r * cols + k)]) * token[k];
        off += (static_cast<double>(values[at(r * cols + k)]) - m.w[at(r * cols + k)]) * token[k];
      }
      outputs.error += off * off / static_cast<double>(tokens);
      outputs.energy += y * y / static_cast<double>(tokens);
    }
  }
  const View<const double, 2> hessian(h.data(), cols, cols);
  const WeightError c = output_error(cpu, q.packed(), m.view(), hessian);
  CHECK(c.error == Approx(outputs.error).epsilon(1e-10));
  CHECK(c.energy == Approx(outputs.energy).epsilon(1e-10));

  CHECK_THROWS_AS(squared_error(cpu, q.packed(), m.view().slice(0, 0, 4)), decant::ArgumentError);
  CHECK_THROWS_AS(squared_error(cpu, q.packed(), m.view(), View<const float, 1>(importance.data(), 19)),
                  decant::ArgumentError);
  CHECK_THROWS_AS(output_error(cpu, q.packed(), m.view(), hessian.slice(0, 0, 19)), decant::ArgumentError);
}

TEST_CASE("an error of nothing, relative to nothing", "[quant][formats]") {
  CHECK(WeightError{}.relative() == 0);
  CHECK((WeightError{0, 3}.sqnr() > 1e300));
  CHECK((WeightError{1, 0}.relative() > 1e300));
}

}  // namespace quant_weight_error_test
