// decant: what a quantized matrix has lost, in the terms that quantizers minimise. With D = quantized - W: the plain
// sum of D^2, the sum weighted by each column's importance, and 1/2 tr(D H D^T), the mean square error of the layer's
// outputs over the calibration text. Each comes with the same of W itself, which it is relative to. Sums are in double
// precision and the same on any number of threads.
#ifndef DECANT_QUANT_WEIGHT_ERROR_HPP
#define DECANT_QUANT_WEIGHT_ERROR_HPP

#include <cmath>
#include <limits>

#include "../core/cpu.hpp"
#include "policy.hpp"

namespace decant::quant {

struct WeightError {
  double error = 0;   ///< of D
  double energy = 0;  ///< the same of W

  /// 0 for no error, infinite for an error where there was nothing.
  double relative() const {
    return error == 0 ? 0 : energy == 0 ? std::numeric_limits<double>::infinity() : error / energy;
  }
  /// The signal-to-quantization-noise ratio in decibels.
  double sqnr() const { return -10 * std::log10(relative()); }
};

namespace detail {

/// sum_k importance_k d_k^2
struct SquareOf {
  View<const float, 1> importance;  // empty: 1

  double operator()(const double* d, index_t cols) const {
    double sum = 0;
    for (index_t k = 0; k < cols; ++k)
      sum += (importance.empty() ? 1.0 : static_cast<double>(importance[k])) * d[k] * d[k];
    return sum;
  }
};

/// 1/2 d H d^T
struct OutputOf {
  View<const double, 2> hessian;

  double operator()(const double* d, index_t cols) const {
    double sum = 0;
    for (index_t k = 0; k < cols; ++k) {
      const double* const row = &hessian(k, index_t{0});
      double before = 0;
      for (index_t l = 0; l < k; ++l) before += row[l] * d[l];
      sum += d[k] * (0.5 * row[k] * d[k] + before);
    }
    return sum;
  }
};

template <class M, class Of>
WeightError weight_error(Cpu& cpu, const M& quantized, const View<const float, 2>& w, const char* where, const Of& of) {
  require_equal(w.extent(0), quantized.rows(), where, "w");
  require_equal(w.extent(1), quantized.cols(), where, "w");
  const index_t rows = w.extent(0);
  const index_t cols = w.extent(1);
  const index_t parts = cpu.parts(rows, 1);
  Workspace::Scope scope(cpu.workspace());
  const View<WeightError, 1> sums = cpu.workspace().take_view<WeightError>(rows);
  const View<float, 2> rounded = cpu.workspace().take_view<float>(parts, cols);
  const View<double, 2> difference = cpu.workspace().take_view<double>(parts, cols);
  cpu.parallel_ranges(rows, 1, [&](index_t first, index_t last, index_t part) {
    double* const d = difference[part].data();
    for (index_t r = first; r < last; ++r) {
      for (index_t k = 0; k < cols; ++k) d[k] = w(r, k);
      sums[r].energy = of(d, cols);
      dequantize_row(cpu, quantized, r, rounded[part]);
      for (index_t k = 0; k < cols; ++k) d[k] = static_cast<double>(rounded(part, k)) - w(r, k);
      sums[r].error = of(d, cols);
    }
  });
  WeightError total;
  for (index_t r = 0; r < rows; ++r) {
    total.error += sums[r].error;
    total.energy += sums[r].energy;
  }
  return total;
}

}  // namespace detail

/// sum_rk D_rk^2. `quantized` is a Packed matrix or any other with rows, cols and dequantize_row; w is of its shape
/// (ArgumentError otherwise). O(rows * cols).
template <class M>
WeightError squared_error(Cpu& cpu, const M& quantized, View<const float, 2> w) {
  return detail::weight_error(cpu, quantized, w, "quant::squared_error", detail::SquareOf{});
}

/// sum_rk importance_k D_rk^2. importance [cols]
template <class M>
WeightError squared_error(Cpu& cpu, const M& quantized, View<const float, 2> w, View<const float, 1> importance) {
  require_equal(importance.extent(0), w.extent(1), "quant::squared_error", "importance");
  return detail::weight_error(cpu, quantized, w, "quant::squared_error", detail::SquareOf{importance});
}

/// 1/2 tr(D H D^T). hessian [cols, cols], symmetric, contiguous rows. O(rows * cols^2).
template <class M>
WeightError output_error(Cpu& cpu, const M& quantized, View<const float, 2> w, View<const double, 2> hessian) {
  constexpr const char* where = "quant::output_error";
  require_equal(hessian.extent(0), w.extent(1), where, "hessian");
  require_equal(hessian.extent(1), w.extent(1), where, "hessian");
  require(hessian.stride(1) == 1, where, "hessian", "contiguous rows", hessian.stride(1));
  return detail::weight_error(cpu, quantized, w, where, detail::OutputOf{hessian});
}

}  // namespace decant::quant

#endif
