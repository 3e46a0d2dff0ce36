// decant: what a packed matrix costs, row by row: the mean squared change of an output over the calibration inputs,
// seen through the inputs themselves, the Hessian, or the importance of each column.
#ifndef DECANT_QUANT_DETAIL_ROW_LOSSES_HPP
#define DECANT_QUANT_DETAIL_ROW_LOSSES_HPP

#include "../../core/cpu.hpp"
#include "../calibration.hpp"
#include "product_f64.hpp"

namespace decant::quant::detail {

/// What a loss is measured with.
enum class Seen { inputs, hessian, importance };

/// The best that is there.
inline Seen seen_through(const Calibration& c) {
  return !c.inputs.empty() ? Seen::inputs : !c.hessian.empty() ? Seen::hessian : Seen::importance;
}

/// Rows that are worked on at once, as lanes.
inline constexpr index_t row_lanes = 16;
constexpr index_t lane_blocks(index_t rows) { return (rows + row_lanes - 1) / row_lanes; }

/// losses[r] = mean over t of (x_t . d)^2, or d H d^T / 2, or sum over k of importance_k d_k^2, where d is row r of
/// packed - w. `packed` is any WeightMatrix whose dequantize_row takes no workspace. O(rows * cols * (tokens or cols)).
template <class M>
void row_losses(Cpu& cpu, const M& packed, View<const float, 2> w, const Calibration& c, Seen seen, double* losses) {
  constexpr index_t lanes = row_lanes;
  const index_t rows = w.extent(0);
  const index_t cols = w.extent(1);
  const index_t parts = cpu.parts(lane_blocks(rows), 1);
  const Workspace::Scope scope(cpu.workspace());
  const double* a = seen == Seen::hessian ? c.hessian.data() : nullptr;
  index_t a_row = seen == Seen::hessian ? c.hessian.stride(0) : cols;
  const index_t outputs = seen == Seen::inputs ? c.inputs.extent(0) : seen == Seen::hessian ? cols : 0;
  if (seen == Seen::inputs) {
    double* const x = cpu.workspace().take<double>(outputs * cols);
    for (index_t t = 0; t < outputs; ++t) {
      for (index_t k = 0; k < cols; ++k) x[t * cols + k] = static_cast<double>(c.inputs(t, k));
    }
    a = x;
  }
  double* const changes = cpu.workspace().take<double>(parts * cols * lanes);
  double* const outs = cpu.workspace().take<double>(parts * outputs * lanes);
  float* const values = cpu.workspace().take<float>(parts * cols);
  cpu.parallel_ranges(lane_blocks(rows), 1, [&](index_t first, index_t last, index_t part) {
    double* const d = changes + part * cols * lanes;
    double* const y = outs + part * outputs * lanes;
    float* const row = values + part * cols;
    for (index_t b = first; b < last; ++b) {
      for (index_t lane = 0; lane < lanes; ++lane) {
        const index_t r = b * lanes + lane;
        if (r < rows) dequantize_row(cpu, packed, r, View<float, 1>(row, cols));
        for (index_t k = 0; k < cols; ++k) {
          d[k * lanes + lane] = r < rows ? static_cast<double>(row[k]) - static_cast<double>(w(r, k)) : 0;
        }
      }
      double sum[lanes] = {};
      if (seen == Seen::importance) {
        for (index_t k = 0; k < cols; ++k) {
          const double h = static_cast<double>(c.importance[k]);
          for (index_t lane = 0; lane < lanes; ++lane) sum[lane] += h * d[k * lanes + lane] * d[k * lanes + lane];
        }
      } else {
        product_f64(cpu.isa(), {outputs, lanes, cols, a, a_row, 1, d, lanes, y, lanes, 0, 1});
        const double* const other = seen == Seen::inputs ? y : d;
        const double share = seen == Seen::inputs ? 1.0 / static_cast<double>(outputs) : 0.5;
        for (index_t i = 0; i < outputs * lanes; ++i) sum[i % lanes] += share * y[i] * other[i];
      }
      for (index_t lane = 0; lane < lanes && b * lanes + lane < rows; ++lane) losses[b * lanes + lane] = sum[lane];
    }
  });
}

/// In order, so that it is the same each time.
inline double sum_of(const double* x, index_t n) {
  double sum = 0;
  for (index_t i = 0; i < n; ++i) sum += x[i];
  return sum;
}

}  // namespace decant::quant::detail

#endif
