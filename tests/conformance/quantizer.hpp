#pragma once
// What every Quantizer must do, tested through nothing but the concept: the same bytes on any number of threads and
// over any rubbish, no allocation but the workspace's, refusals that name what is wrong before anything is written,
// finite weights.
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "catch_compat.hpp"
#include "decant/quant/policy.hpp"
#include "threads.hpp"
#include "unit/quant/layer_problem.hpp"

namespace conformance {

using decant::Cpu;
using decant::index_t;
using decant::View;
using decant::quant::Calibration;
using decant::quant::Needs;
using decant::quant::Quantizer;
using decant::quant::WeightFormat;

/// Calls of operator new in the whole test program (quantizer.cpp).
extern std::atomic<long> allocations;

struct QuantizerLaws {
  index_t cols = 96;
  bool allocates = false;  // elsewhere than in the workspace, and says so
};

/// A layer of correlated inputs.
inline quant_layer::LayerProblem quantizer_problem(index_t rows, index_t cols) {
  return quant_layer::layer_problem(rows, cols, 2 * cols, 0.08, cols,
                                    quant_layer::narrow(quant_layer::normal(rows * cols, 3), 0.02), {.inputs = 40});
}

template <class Q>
void quantizer_refuses(const Q& q, const quant_layer::LayerProblem& p) {
  using Format = typename Q::Format;
  Cpu cpu;
  quant_layer::Packing<Q> packing(q, p.rows, p.cols, std::byte{0x5a});
  const std::vector<std::byte> untouched = packing.bytes;
  const Calibration all = p.calibration();

  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    std::vector<float> w = p.weights;
    w[static_cast<std::size_t>(p.cols + 2)] = bad;
    CHECK_THROWS_WITH(quantize(cpu, q, View<const float, 2>(w.data(), p.rows, p.cols), all, packing.out()),
                      catch_compat::contains("at (1, 2)"));
  }
  CHECK_THROWS_WITH(quantize(cpu, q, p.w().slice(0, 0, p.rows - 1), all, packing.out()), catch_compat::contains("`w`"));
  const View<const float, 2> spread(p.weights.data(), {p.rows, p.cols}, {p.cols, 0});
  CHECK_THROWS_WITH(quantize(cpu, q, spread, all, packing.out()), catch_compat::contains("`w`"));

  // Calibration that is missing, or another layer's.
  const Needs n = needs(q);
  const auto without = [&](Calibration c, const char* name) {
    CHECK_THROWS_WITH(quantize(cpu, q, p.w(), c, packing.out()), catch_compat::contains(name));
  };
  Calibration c = all;
  c.importance = {};
  if (n.importance) without(c, "calibration.importance");
  c = all;
  c.magnitude = {};
  if (n.magnitude) without(c, "calibration.magnitude");
  c = all;
  c.hessian = {};
  if (n.hessian) without(c, "calibration.hessian");
  c = all;
  c.inputs = {};
  if (n.inputs) without(c, "calibration.inputs");
  c = all;
  c.importance = all.importance.slice(0, 0, p.cols - 1);
  without(c, "calibration.importance");
  c = all;
  c.hessian = View<const double, 2>(all.hessian.data(), p.cols - 1, p.cols - 1);
  without(c, "calibration.hessian");
  CHECK_THROWS_AS(validate(q, index_t{0}), decant::ArgumentError);
  CHECK(packing.bytes == untouched);
  static_assert(Quantizer<Q, Cpu> && WeightFormat<Format, Cpu>);
}

template <class Q>
void quantizer(const Q& q, const QuantizerLaws& laws = {}) {
  const index_t rows = 21;
  const index_t cols = laws.cols;
  const quant_layer::LayerProblem p = quantizer_problem(rows, cols);
  const Calibration all = p.calibration();
  validate(q, cols);

  // Twice on one context: the same bytes, from the workspace that it has by then.
  Cpu cpu;
  long before = allocations;
  quant_layer::Packing<Q> first(q, rows, cols);
  CHECK(allocations > before);  // the counter counts
  quant_layer::Packing<Q> second(q, rows, cols, std::byte{0xff});
  const auto out = second.out();
  quantize(cpu, q, p.w(), all, first.out());
  before = allocations;
  quantize(cpu, q, p.w(), all, out);
  if (!laws.allocates) CHECK(allocations == before);
  CHECK(second.bytes == first.bytes);
  CHECK(cpu.workspace().used() == 0);

  // In as much memory as that, and by a copy of the algorithm.
  std::vector<std::byte> memory(cpu.workspace().high_water() + 64);
  Cpu fixed(decant::ParallelFor{}, memory.data(), memory.size());
  const Q copy = q;
  CHECK(copy == q);
  quant_layer::Packing<Q> third(copy, rows, cols, std::byte{0x5a});
  quantize(fixed, copy, p.w(), all, third.out());
  CHECK(third.bytes == first.bytes);

  for (const decant::ParallelFor& threads : {real_threads(3), reversed_threads(2), reversed_threads(40)}) {
    Cpu parallel(threads);
    quant_layer::Packing<Q> threaded(q, rows, cols, std::byte{0x33});
    quantize(parallel, q, p.w(), all, threaded.out());
    CHECK(threaded.bytes == first.bytes);
  }

  // Rows of a larger matrix.
  std::vector<float> apart(static_cast<std::size_t>(rows * (cols + 3)), NAN);
  for (index_t r = 0; r < rows; ++r) {
    std::memcpy(apart.data() + r * (cols + 3), p.weights.data() + r * cols,
                static_cast<std::size_t>(cols) * sizeof(float));
  }
  quant_layer::Packing<Q> strided(q, rows, cols);
  quantize(cpu, q, View<const float, 2>(apart.data(), {rows, cols}, {cols + 3, 1}), all, strided.out());
  CHECK(strided.bytes == first.bytes);

  // What it decodes to resembles the weights, and a product is that of what it decodes to.
  const std::vector<float> values = first.values();
  double change = 0;
  double norm = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    REQUIRE(std::isfinite(values[i]));
    const double d = static_cast<double>(values[i]) - static_cast<double>(p.weights[i]);
    change += d * d;
    norm += static_cast<double>(p.weights[i]) * static_cast<double>(p.weights[i]);
  }
  CHECK(change < norm);
  std::vector<float> y(static_cast<std::size_t>(rows), NAN);
  matmul(cpu, first.in(), View<const float, 2>(p.inputs.data(), 1, cols), View<float, 2>(y.data(), 1, rows));
  for (index_t r = 0; r < rows; ++r) {
    double exact = 0;
    double scale = 0;
    for (index_t k = 0; k < cols; ++k) {
      const double x = static_cast<double>(p.inputs[static_cast<std::size_t>(k)]);
      exact += x * static_cast<double>(values[static_cast<std::size_t>(r * cols + k)]);
      scale += std::abs(x) * 0.1;
    }
    CHECK(std::abs(static_cast<double>(y[static_cast<std::size_t>(r)]) - exact) <= 0.01 * scale);
  }

  // Matrices of nothing, and of no rows.
  const std::vector<float> zeros(static_cast<std::size_t>(3 * cols), 0.0f);
  quant_layer::Packing<Q> nothing(q, 3, cols, std::byte{0x77});
  quantize(cpu, q, View<const float, 2>(zeros.data(), 3, cols), all, nothing.out());
  for (const float v : nothing.values()) REQUIRE(v == 0);
  quant_layer::Packing<Q> none(q, 0, cols);
  CHECK_NOTHROW(quantize(cpu, q, View<const float, 2>(zeros.data(), 0, cols), all, none.out()));

  quantizer_refuses(q, p);
}

}  // namespace conformance
