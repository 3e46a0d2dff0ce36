// decant: what AAAC's fit works on: a matrix, or every n-th row of one, as normalised weights, with each group's scale
// and each selection group's table; and one pass over it. Rows are handled in fixed chunks whose sums are added in
// order, so that threads do not change the result.
#ifndef DECANT_QUANT_DETAIL_AAAC_DATA_HPP
#define DECANT_QUANT_DETAIL_AAAC_DATA_HPP

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "../../core/cpu.hpp"
#include "../../core/detail/rounded.hpp"
#include "../codebook.hpp"
#include "aaac_sweeps.hpp"
#include "order_statistics.hpp"

namespace decant::quant::detail {

using ::decant::detail::add_product;
using ::decant::detail::rounded_product;

/// How a row is cut: `selects` selection groups, each padded to `pad`, `per_scale` of them to a scale, `scales` scales.
struct AaacShape {
  index_t cols, select, pad, selects, per_scale, scales;

  template <class F>
  DECANT_HD static AaacShape of(const F& format, index_t cols) {
    const index_t select = format.select < cols ? format.select : cols;
    return {cols, select, (select + 15) / 16 * 16, (cols + select - 1) / select, format.group / format.select,
            format.groups(cols)};
  }
  DECANT_HD index_t slots() const { return selects * pad; }
  /// The number of weights in selection group i.
  DECANT_HD index_t count(index_t i) const { return cols - i * select < select ? cols - i * select : select; }
  DECANT_HD index_t first_of(index_t scale) const { return scale * per_scale; }
  DECANT_HD index_t last_of(index_t scale) const { return scale + 1 == scales ? selects : (scale + 1) * per_scale; }
  /// Rows whose sums are one chunk's.
  DECANT_HD index_t chunk_rows() const { return 8192 / slots() > 1 ? 8192 / slots() : 1; }
};

/// Values [cols] into the padded order [slots], padding 0.
inline void pad_row(const AaacShape& s, const float* from, float* to) {
  for (index_t i = 0; i < s.selects; ++i) {
    for (index_t k = 0; k < s.pad; ++k) to[i * s.pad + k] = k < s.count(i) ? from[i * s.select + k] : 0.0f;
  }
}

/// u = w / step of one scale's selection groups, in padded order; step 0 gives 0.
inline void normalise(const AaacShape& s, index_t scale, const float* w, float step, float* u) {
  for (index_t i = s.first_of(scale); i < s.last_of(scale); ++i) {
    const float* const from = w + i * s.select;
    float* const to = u + i * s.pad;
    const index_t n = step > 0 ? s.count(i) : 0;
    index_t k = 0;
    for (; k + 16 <= n; k += 16)
      for (index_t l = 0; l < 16; ++l) to[k + l] = from[k + l] / step;
    for (; k < n; ++k) to[k] = from[k] / step;
    for (; k < s.pad; ++k) to[k] = 0;
  }
}

/// What is known of a row: normalised weights, and per selection group its table, its error and its scale's square.
struct AaacState {
  float* u;              // [slots]
  float* scale;          // [scales], as stored
  float* square;         // [selects]
  float* error;          // [selects]
  std::uint8_t* chosen;  // [selects]

  /// Room for `rows` rows.
  static AaacState take(Workspace& workspace, const AaacShape& s, index_t rows) {
    return {workspace.take<float>(rows * s.slots()), workspace.take<float>(rows * s.scales),
            workspace.take<float>(rows * s.selects), workspace.take<float>(rows * s.selects),
            workspace.take<std::uint8_t>(rows * s.selects)};
  }
  AaacState row(const AaacShape& s, index_t r) const {
    return {u + r * s.slots(), scale + r * s.scales, square + r * s.selects, error + r * s.selects,
            chosen + r * s.selects};
  }
};

inline AaacRow row_of(const AaacShape& s, const AaacState& row, const float* importance) {
  return {row.u, importance, s.selects, s.pad};
}

/// Scales from the largest weights, and u. `square` is the scale's or, for errors in units of the scale, 1.
template <class F>
void begin_row(const F& format, const typename F::Layer& layer, const AaacShape& s, const float* w, bool squares,
               const AaacState& row) {
  for (index_t j = 0; j < s.scales; ++j) {
    const index_t k = j * format.group;
    const index_t n = s.cols - k < format.group ? s.cols - k : format.group;
    float scale = F::scale_of(layer.scale, largest_magnitude(w + k, n));
    if (!(F::step(layer.scale, scale) > 0)) scale = 0;
    row.scale[j] = scale;
    normalise(s, j, w, F::step(layer.scale, scale), row.u);
    for (index_t i = s.first_of(j); i < s.last_of(j); ++i)
      row.square[i] = scale > 0 ? squares ? scale * scale : 1.0f : 0.0f;
  }
}

/// The error of one scale's group with its scale, in units of the matrix's.
inline double error_of(const AaacShape& s, const AaacState& row, index_t j) {
  double sum = 0;
  for (index_t i = s.first_of(j); i < s.last_of(j); ++i) sum += static_cast<double>(row.error[i]);
  return rounded_product(sum, static_cast<double>(row.scale[j]) * static_cast<double>(row.scale[j]));
}

/// Fits each scale to its group's codes and keeps it, with tables chosen anew, where the error is less; true if any
/// was. One round of Codebook2x16::fit. `trial` is scratch of the same shape.
template <class F>
bool refit_row(Isa isa, const typename F::Layer& layer, const AaacTables& tables, const AaacShape& s, const float* w,
               const float* importance, const AaacState& row, const AaacState& trial) {
  // Where the trial's errors will be, the sums are first.
  scale_sums(isa, tables, row_of(s, row, importance), row.chosen, trial.error, trial.square);
  bool tried = false;
  for (index_t j = 0; j < s.scales; ++j) {
    double product = 0;
    double square = 0;
    for (index_t i = s.first_of(j); i < s.last_of(j); ++i) {
      product += static_cast<double>(trial.error[i]);
      square += static_cast<double>(trial.square[i]);
    }
    trial.scale[j] = F::refitted(row.scale[j], product, square);
    const bool other = trial.scale[j] != row.scale[j] && F::step(layer.scale, trial.scale[j]) > 0;
    if (!other) trial.scale[j] = row.scale[j];
    tried = tried || other;
    normalise(s, j, w, F::step(layer.scale, trial.scale[j]), trial.u);
  }
  if (!tried) return false;
  choose_tables(isa, tables, row_of(s, trial, importance), trial.chosen, trial.error);
  bool any = false;
  for (index_t j = 0; j < s.scales; ++j) {
    if (trial.scale[j] == row.scale[j] || !(error_of(s, trial, j) < error_of(s, row, j))) continue;
    any = true;
    row.scale[j] = trial.scale[j];
    for (index_t i = s.first_of(j); i < s.last_of(j); ++i) {
      row.square[i] = row.scale[j] * row.scale[j];
      row.error[i] = trial.error[i];
      row.chosen[i] = trial.chosen[i];
      std::memcpy(row.u + i * s.pad, trial.u + i * s.pad, static_cast<std::size_t>(s.pad) * sizeof(float));
    }
  }
  return any;
}

/// About `most` slots of w: every n-th row.
inline View<const float, 2> some_rows(const AaacShape& s, const View<const float, 2>& w, index_t most) {
  const index_t all = w.extent(0) * s.slots();
  const index_t every = all > most ? (all + most - 1) / most : 1;
  return {w.data(), {(w.extent(0) + every - 1) / every, w.extent(1)}, {every * w.stride(0), w.stride(1)}};
}

/// A matrix that is being fitted to. Errors are in units of its scale or, where squares is false, of each group's.
template <class F>
struct AaacData {
  using Layer = typename F::Layer;

  F format;
  Layer layer;  // its scale is that of the matrix, its tables are not looked at
  AaacShape shape;
  View<const float, 2> w;
  index_t rows;
  bool squares;
  const float* importance;  // [slots], padding 0
  AaacState state;
  AaacState trial;  // one row per part
  double* sums;     // [chunks, 64]
  double* errors;   // [chunks]

  static AaacData of(Cpu& cpu, const F& format, const Layer& layer, View<const float, 2> w, const float* importance,
                     bool squares) {
    const AaacShape shape = AaacShape::of(format, w.extent(1));
    const index_t rows = w.extent(0);
    Workspace& workspace = cpu.workspace();
    AaacData data{format, layer, shape, w, rows, squares, importance, AaacState::take(workspace, shape, rows),
                  AaacState::take(workspace, shape, cpu.parts(rows, 1)), nullptr, nullptr};
    data.sums = workspace.take<double>(data.chunks() * 64);
    data.errors = workspace.take<double>(data.chunks());
    data.begin(cpu);
    return data;
  }

  const float* row(index_t r) const { return &w(r, index_t{0}); }
  index_t chunks() const { return (rows + shape.chunk_rows() - 1) / shape.chunk_rows(); }

  /// Scales from the largest weights.
  void begin(Cpu& cpu) const {
    cpu.parallel_ranges(rows, 1, [&](index_t first, index_t last, index_t) {
      for (index_t r = first; r < last; ++r) begin_row(format, layer, shape, row(r), squares, state.row(shape, r));
    });
  }
};

/// What a pass does, in this order.
struct AaacPass {
  bool choose = false;      // each selection group's table
  bool refit = false;       // each group's scale
  bool accumulate = false;  // the sums over the tables' cells
  AaacTail tail = AaacTail::plain;
};

/// The data's error with the tables that it chooses, before scales are refitted; sums [2, 16, 2] of the cells.
template <class F>
double sweep(Cpu& cpu, const AaacData<F>& data, const AaacTables& tables, const AaacPass& pass, double* sums) {
  const AaacShape& s = data.shape;
  const Isa isa = cpu.isa();
  cpu.parallel_ranges(data.chunks(), 1, [&](index_t first, index_t last, index_t part) {
    AaacSums lanes;
    for (index_t chunk = first; chunk < last; ++chunk) {
      if (pass.accumulate) lanes = {};
      double error = 0;
      const index_t size = s.chunk_rows();
      const index_t end = (chunk + 1) * size < data.rows ? (chunk + 1) * size : data.rows;
      for (index_t r = chunk * size; r < end; ++r) {
        const AaacState row = data.state.row(s, r);
        if (pass.choose) choose_tables(isa, tables, row_of(s, row, data.importance), row.chosen, row.error);
        for (index_t i = 0; pass.choose && i < s.selects; ++i) {
          const double scale = data.squares ? static_cast<double>(row.scale[i / s.per_scale]) : 1.0;
          if (row.square[i] > 0) error = add_product(error, static_cast<double>(row.error[i]), scale * scale);
        }
        if (pass.refit)
          refit_row<F>(isa, data.layer, tables, s, data.row(r), data.importance, row, data.trial.row(s, part));
        if (pass.accumulate)
          accumulate(isa, tables, row_of(s, row, data.importance), row.chosen, row.square, pass.tail, lanes);
      }
      data.errors[chunk] = error;
      if (!pass.accumulate) continue;
      for (int c = 0; c < 32; ++c) {
        for (int of = 0; of < 2; ++of) {
          double sum = 0;
          for (int l = 0; l < 16; ++l) sum += static_cast<double>(lanes.at[c / 16][c % 16][l][of]);
          data.sums[chunk * 64 + c * 2 + of] = sum;
        }
      }
    }
  });
  double error = 0;
  for (index_t chunk = 0; chunk < data.chunks(); ++chunk) error += data.errors[chunk];
  for (int c = 0; pass.accumulate && c < 64; ++c) {
    sums[c] = 0;
    for (index_t chunk = 0; chunk < data.chunks(); ++chunk) sums[c] += data.sums[chunk * 64 + c];
  }
  return error;
}

/// Where a share of `count` sorted values lies: of these two, the first and so much of the way to the second.
DECANT_HD inline double between(double share, index_t count, index_t& first) {
  const double at = rounded_product(share, static_cast<double>(count - 1));
  first = static_cast<index_t>(at);
  return at - static_cast<double>(first);
}
DECANT_HD inline float interpolated(float low, float high, double part) {
  return static_cast<float>(
      add_product(static_cast<double>(low), part, static_cast<double>(high) - static_cast<double>(low)));
}

/// The normalised weights' values at these shares [n <= 32] of their order, linear in between; of all selection groups,
/// or of those whose error is at least `least`. Groups of zeros have none. False when there is nothing.
template <class F>
bool quantiles(Cpu& cpu, const AaacData<F>& data, double least, const double* share, int n, float* out) {
  const AaacShape& s = data.shape;
  const auto counts = [&](const AaacState& row, index_t i) {
    return row.square[i] > 0 && (!(least > 0) || static_cast<double>(row.error[i] * row.square[i]) >= least);
  };
  index_t count = 0;
  for (index_t r = 0; r < data.rows; ++r) {
    const AaacState row = data.state.row(s, r);
    for (index_t i = 0; i < s.selects; ++i) count += counts(row, i) ? s.count(i) : 0;
  }
  if (count == 0) return false;
  index_t rank[most_ranks] = {};
  float at[most_ranks] = {};
  double part[most_ranks / 2] = {};
  for (int q = 0; q < n; ++q) {
    part[q] = between(share[q], count, rank[2 * q]);
    rank[2 * q + 1] = rank[2 * q] + 1 < count ? rank[2 * q] + 1 : rank[2 * q];
  }
  order_statistics(
      cpu, data.rows,
      [&](index_t first, index_t last, auto&& f) {
        for (index_t r = first; r < last; ++r) {
          const AaacState row = data.state.row(s, r);
          for (index_t i = 0; i < s.selects; ++i) {
            if (!counts(row, i)) continue;
            for (index_t k = 0; k < s.count(i); ++k) f(row.u[i * s.pad + k]);
          }
        }
      },
      rank, 2 * n, at);
  for (int q = 0; q < n; ++q) out[q] = interpolated(at[2 * q], at[2 * q + 1], part[q]);
  return true;
}

}  // namespace decant::quant::detail

#endif
