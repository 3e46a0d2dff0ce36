#pragma once
// Matrices, importance and losses for the tests of AAAC.
#include <cmath>
#include <vector>

#include "decant/quant/aaac.hpp"
#include "decant/quant/weight_error.hpp"
#include "oracle/aaac.hpp"
#include "unit/quant/quantized.hpp"

namespace aaac_test {

using namespace quant_test;
using decant::fp16;
using decant::fp8_e4m3;
using decant::Isa;
using quant::Aaac;
using quant::AaacMode;
using quant::AaacRefit;
using quant::AaacStarts;
using quant::Codebook2x16;

inline double student(index_t i, std::uint32_t stream) {
  double square = 0;
  for (index_t j = 0; j < 4; ++j) square += std::pow(gaussian(4 * i + j, stream), 2);
  return gaussian(i, stream + 1) / std::sqrt(square / 4);
}

/// A matrix with a log-normal importance.
struct Problem {
  Matrix m;
  std::vector<float> importance;

  explicit Problem(const Matrix& matrix, std::uint32_t stream = 11) : m(matrix) {
    for (index_t k = 0; k < m.cols; ++k) importance.push_back(static_cast<float>(std::exp(gaussian(k, stream))));
  }
  quant::Calibration calibration() const {
    quant::Calibration c;
    c.importance = View<const float, 1>(importance);
    return c;
  }

  template <class Q>
  Quantized<typename Q::Format> quantized(const Q& q, Cpu& cpu) const {
    Quantized<typename Q::Format> out(q.format(), m.rows, m.cols);
    quantize(cpu, q, m.view(), calibration(), out.packed());
    return out;
  }
  /// The weighted error over the weighted energy.
  template <class Q>
  double loss(const Q& q) const {
    Cpu cpu;
    const auto packed = quantized(q, cpu);
    return squared_error(cpu, packed.packed(), m.view(), View<const float, 1>(importance)).relative();
  }
};

template <class Scale>
Aaac<Scale> paper(int outer, int inner, int entries = 0, index_t select = Codebook2x16<Scale>{}.group) {
  Aaac<Scale> q;
  q.mode = AaacMode::paper;
  q.outer = outer;
  q.inner = inner;
  q.entries = entries;
  q.select = select;
  return q;
}

constexpr AaacStarts only(int which) { return {which == 0, which == 1, which == 2, which == 3}; }

}  // namespace aaac_test
