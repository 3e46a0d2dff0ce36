#pragma once
// Weights to quantize and the bytes they become, for the tests of formats.
#include <cmath>
#include <cstddef>
#include <vector>

#include "decant/core/random.hpp"
#include "decant/quant/rtn.hpp"

namespace quant_test {

using decant::Cpu;
using decant::index_t;
using decant::View;
namespace quant = decant::quant;

inline std::size_t at(index_t i) {
  return static_cast<std::size_t>(i);
}

inline double uniform(index_t i, std::uint32_t stream) {
  return decant::Philox{29}.uniform(static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(i >> 32), 0, stream);
}
inline double gaussian(index_t i, std::uint32_t stream) {
  return std::sqrt(-2 * std::log(uniform(2 * i, stream))) *
         std::cos(2 * 3.14159265358979323846 * uniform(2 * i + 1, stream));
}

/// A matrix of Gaussian weights, or of what value(i) says.
struct Matrix {
  index_t rows, cols;
  std::vector<float> w;

  Matrix(index_t r, index_t c, std::uint32_t stream = 1)
      : Matrix(r, c, [&](index_t i) { return gaussian(i, stream); }) {}
  template <class Value>
    requires requires(const Value& value) { value(index_t{}); }
  Matrix(index_t r, index_t c, const Value& value) : rows(r), cols(c), w(at(r * c)) {
    for (index_t i = 0; i < r * c; ++i) w[at(i)] = static_cast<float>(value(i));
  }

  View<const float, 2> view() const { return {w.data(), rows, cols}; }
};

/// One row.
inline Matrix row_of(const std::vector<float>& w) {
  return Matrix(1, static_cast<index_t>(w.size()), [&](index_t i) { return w[at(i)]; });
}

/// A packed matrix and its memory, which holds rubbish before.
template <class F>
struct Quantized {
  F format;
  index_t rows, cols;
  std::vector<std::byte> bytes;

  Quantized(const F& f, const Matrix& m, const quant::Calibration& c = {}, Cpu cpu = {})
      : Quantized(f, m.rows, m.cols) {
    quantize(cpu, quant::Rtn<F>{f}, m.view(), c, packed());
  }
  Quantized(const F& f, index_t r, index_t c)
      : format(f), rows(r), cols(c), bytes(at(quant::packed_bytes(f, r, c)), std::byte{0xa5}) {}

  quant::Packed<F, std::byte> packed() { return {format, rows, cols, View<std::byte, 1>(bytes)}; }
  quant::Packed<F> packed() const { return {format, rows, cols, View<const std::byte, 1>(bytes)}; }

  std::vector<float> values() const {
    Cpu cpu;
    std::vector<float> all(at(rows * cols));
    for (index_t r = 0; r < rows; ++r) dequantize_row(cpu, packed(), r, View<float, 1>(all.data() + r * cols, cols));
    return all;
  }
  std::uint8_t code(index_t r, index_t k) const { return format.load_code(packed().row(r), cols, k); }
  typename F::Group group(index_t r, index_t j) const {
    const auto p = packed();
    return format.load_group(p.layer(), p.row(r), cols, j);
  }
};

}  // namespace quant_test
