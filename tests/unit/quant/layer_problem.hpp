#pragma once
// A linear layer whose inputs are correlated: x = sum_i sqrt(lambda_i) z_i u_i with orthonormal u_i and normal z_i.
// What quantizers are told comes from a sample of inputs; what they are judged by, from the exact second moments.
#include <cmath>
#include <vector>

#include <decant/core/random.hpp>
#include <decant/quant/calibration_sums.hpp>
#include <decant/quant/packed.hpp>

namespace quant_layer {

using decant::index_t;
using decant::View;

inline std::size_t at(index_t i) { return static_cast<std::size_t>(i); }

/// Standard normal numbers, the same everywhere but for the last bits of log and cos.
inline std::vector<double> normal(index_t count, std::uint32_t stream) {
  const decant::Philox random{2024};
  std::vector<double> x(at(count));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto n = static_cast<std::uint32_t>(i);
    const double u = static_cast<double>(random.uniform(n, 0, 0, stream));
    const double v = static_cast<double>(random.uniform(n, 1, 0, stream));
    x[i] = std::sqrt(-2 * std::log(u)) * std::cos(6.283185307179586 * v);
  }
  return x;
}

inline std::vector<float> narrow(const std::vector<double>& x, double scale = 1) {
  std::vector<float> y;
  for (const double v : x) y.push_back(static_cast<float>(v * scale));
  return y;
}

/// Rows are orthonormal.
inline std::vector<double> orthonormal(index_t n, std::uint32_t stream) {
  std::vector<double> u = normal(n * n, stream);
  for (index_t i = 0; i < n; ++i) {
    for (int twice = 0; twice < 2; ++twice) {
      for (index_t j = 0; j < i; ++j) {
        double dot = 0;
        for (index_t k = 0; k < n; ++k) dot += u[at(i * n + k)] * u[at(j * n + k)];
        for (index_t k = 0; k < n; ++k) u[at(i * n + k)] -= dot * u[at(j * n + k)];
      }
    }
    double square = 0;
    for (index_t k = 0; k < n; ++k) square += u[at(i * n + k)] * u[at(i * n + k)];
    for (index_t k = 0; k < n; ++k) u[at(i * n + k)] /= std::sqrt(square);
  }
  return u;
}

struct LayerProblem {
  index_t rows, cols;
  std::vector<float> weights;  // [rows, cols]
  std::vector<float> inputs;   // [tokens, cols]
  std::vector<double> exact;   // [cols, cols] 2 E x x^T
  decant::quant::CalibrationSums sums;

  View<const float, 2> w() const { return {weights.data(), rows, cols}; }
  View<const double, 2> exact_hessian() const { return {exact.data(), cols, cols}; }
  decant::quant::Calibration calibration() const { return sums.view(); }
};

/// lambda_i = e^(-decay i) for i < rank, else 0.
inline LayerProblem layer_problem(index_t rows, index_t cols, index_t tokens, double decay, index_t rank,
                                  std::vector<float> weights, decant::quant::CalibrationOptions options = {}) {
  LayerProblem p{rows, cols, std::move(weights), {}, {}, decant::quant::CalibrationSums(cols, options)};
  const std::vector<double> u = orthonormal(cols, 1);
  std::vector<double> lambda(at(cols));
  for (index_t i = 0; i < rank; ++i) lambda[at(i)] = std::exp(-decay * static_cast<double>(i));
  p.exact.resize(at(cols * cols));
  for (index_t i = 0; i < rank; ++i) {
    for (index_t a = 0; a < cols; ++a) {
      const double f = 2 * lambda[at(i)] * u[at(i * cols + a)];
      for (index_t b = 0; b < cols; ++b) p.exact[at(a * cols + b)] += f * u[at(i * cols + b)];
    }
  }
  const std::vector<double> z = normal(tokens * cols, 2);
  p.inputs.resize(at(tokens * cols));
  std::vector<double> x(at(cols));
  for (index_t t = 0; t < tokens; ++t) {
    x.assign(at(cols), 0);
    for (index_t i = 0; i < rank; ++i) {
      const double f = std::sqrt(lambda[at(i)]) * z[at(t * cols + i)];
      for (index_t k = 0; k < cols; ++k) x[at(k)] += f * u[at(i * cols + k)];
    }
    for (index_t k = 0; k < cols; ++k) p.inputs[at(t * cols + k)] = static_cast<float>(x[at(k)]);
  }
  decant::Cpu cpu;
  p.sums.add(cpu, View<const float, 2>(p.inputs.data(), tokens, cols));
  return p;
}

/// Bytes for a matrix that q writes, and what they decode to.
template <class Q>
struct Packing {
  using F = typename Q::Format;
  F format;
  index_t rows, cols;
  std::vector<std::byte> bytes;

  Packing(const Q& q, index_t rows_, index_t cols_, std::byte fill = std::byte{0})
      : format(q.format()),
        rows(rows_),
        cols(cols_),
        bytes(at(decant::quant::packed_bytes(q.format(), rows_, cols_)), fill) {}

  decant::quant::Packed<F, std::byte> out() {
    return {format, rows, cols, View<std::byte, 1>(bytes.data(), static_cast<index_t>(bytes.size()))};
  }
  decant::quant::Packed<F> in() const {
    return {format, rows, cols, View<const std::byte, 1>(bytes.data(), static_cast<index_t>(bytes.size()))};
  }
  std::vector<float> values() const {
    decant::Cpu cpu;
    std::vector<float> v(at(rows * cols));
    for (index_t r = 0; r < rows; ++r) dequantize_row(cpu, in(), r, View<float, 1>(v.data() + r * cols, cols));
    return v;
  }
};

template <class Q>
Packing<Q> pack(decant::Cpu& cpu, const Q& q, View<const float, 2> w, const decant::quant::Calibration& c) {
  Packing<Q> p(q, w.extent(0), w.extent(1));
  quantize(cpu, q, w, c, p.out());
  return p;
}

/// tr(D H D^T) / 2, D = values - w, row by row or in all.
inline double row_loss(const float* values, const float* w, index_t cols, View<const double, 2> h) {
  double sum = 0;
  std::vector<double> d(at(cols));
  for (index_t k = 0; k < cols; ++k) d[at(k)] = static_cast<double>(values[k]) - static_cast<double>(w[k]);
  for (index_t i = 0; i < cols; ++i) {
    double g[4] = {};  // four chains of additions take a quarter of the time
    for (index_t j = 0; j < cols; ++j) g[j % 4] += h(i, j) * d[at(j)];
    sum += 0.5 * d[at(i)] * ((g[0] + g[1]) + (g[2] + g[3]));
  }
  return sum;
}
inline double loss(const std::vector<float>& values, View<const float, 2> w, View<const double, 2> h) {
  double sum = 0;
  for (index_t r = 0; r < w.extent(0); ++r)
    sum += row_loss(values.data() + r * w.extent(1), &w(r, index_t{0}), w.extent(1), h);
  return sum;
}

}  // namespace quant_layer
