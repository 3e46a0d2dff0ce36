// decant: Gptq, rounding column by column, each column's error moved onto the columns that are still to come (Frantar,
// Ashkboos, Hoefler, Alistarh: GPTQ, arXiv 2210.17323; after the official code), over any Grid. Optionally followed by
// sweeps of coordinate descent (Behdin et al.: QuantEase, arXiv 2309.01885).
// Ours: groups are fitted to columns that have received all earlier errors, whatever the block, so that `block` only
// sets how sums are ordered; the factor of the inverse comes from one Cholesky factorisation in reverse order.
#ifndef DECANT_QUANT_GPTQ_HPP
#define DECANT_QUANT_GPTQ_HPP

#include <cmath>
#include <cstdint>
#include <string>

#include "../core/cpu.hpp"
#include "detail/factor_f64.hpp"
#include "detail/row_losses.hpp"
#include "policy.hpp"
#include "rtn.hpp"

namespace decant::quant {

template <class G>
struct Gptq {
  using Format = typename G::Format;
  G grid{};
  /// Added to the Hessian's diagonal, times its mean. Where the Hessian is still not positive definite, 10 times as
  /// much, and again, up to 1.
  double damping = 0.01;
  index_t block = 128;  ///< columns whose errors move on together
  /// Columns in the order of falling Hessian diagonal. Implies static_groups, for a group is of neighbouring columns.
  bool act_order = false;
  bool static_groups = false;  ///< each group's parameters from the original weights
  /// Afterwards so often: every column in turn to the code that is best given all others, groups as they are. It never
  /// raises the loss. (30 in published comparisons.)
  int cd_sweeps = 0;

  bool operator==(const Gptq&) const = default;
  Format format() const { return grid.format(); }
};
template <class G>
Gptq(G) -> Gptq<G>;
template <class G>
Gptq(G, double) -> Gptq<G>;
template <class G>
Gptq(G, double, index_t) -> Gptq<G>;
template <class G>
Gptq(G, double, index_t, bool) -> Gptq<G>;
template <class G>
Gptq(G, double, index_t, bool, bool) -> Gptq<G>;
template <class G>
Gptq(G, double, index_t, bool, bool, int) -> Gptq<G>;

/// What a call of quantize found.
struct GptqReport {
  /// tr(D H D^T) / 2 of the change D of the weights, H the damped Hessian: what the layer's outputs lose, estimated.
  double loss = 0;
  double damping = 0;  ///< what was used
  index_t dead = 0;    ///< columns whose input is always 0: their weights become 0
};

template <class G>
void validate(const Gptq<G>& q, index_t cols) {
  constexpr const char* where = "quant::Gptq";
  validate(q.grid, cols);
  require(q.damping >= 0 && q.damping <= 1, where, "damping", "between 0 and 1", q.damping);
  require(q.block >= 1, where, "block", "at least 1", q.block);
  require(q.cd_sweeps >= 0, where, "cd_sweeps", "at least 0", q.cd_sweeps);
}
template <class G>
Needs needs(const Gptq<G>&) {
  return {.hessian = true};
}

namespace detail {

/// The order of columns: as they are, or by falling diagonal, ties to the lower one.
inline void gptq_order(const View<const double, 2>& h, bool by_diagonal, index_t* order, index_t* scratch) {
  const index_t n = h.extent(0);
  for (index_t k = 0; k < n; ++k) order[k] = k;
  if (!by_diagonal) return;
  index_t* from = order;  // merge sort: stable, and without <algorithm>
  index_t* to = scratch;
  for (index_t width = 1; width < n; width *= 2) {
    for (index_t begin = 0; begin < n; begin += 2 * width) {
      const index_t middle = begin + width < n ? begin + width : n;
      const index_t end = middle + width < n ? middle + width : n;
      index_t a = begin;
      index_t b = middle;
      for (index_t i = begin; i < end; ++i) {
        const bool first = b == end || (a < middle && h(from[a], from[a]) >= h(from[b], from[b]));
        to[i] = first ? from[a++] : from[b++];
      }
    }
    index_t* const other = from;
    from = to;
    to = other;
  }
  for (index_t i = 0; i < n && from != order; ++i) order[i] = from[i];
}

/// u [n, n] becomes the upper factor of H^-1 = U^T U, H the damped Hessian with its columns in `order`; below the
/// diagonal anything may lie. False when H is not positive definite. `diagonal` receives H's.
inline bool gptq_factor(Cpu& cpu, const View<const double, 2>& h, double damping, const index_t* order,
                        double* diagonal, double* u, double* scratch) {
  const index_t n = h.extent(0);
  double mean = 0;
  for (index_t i = 0; i < n; ++i) {
    const double d = h(order[i], order[i]);
    diagonal[i] = d == 0 ? 1 : d;
    mean += diagonal[i] / static_cast<double>(n);
  }
  for (index_t i = 0; i < n; ++i) diagonal[i] += damping * mean;
  // In reverse order H = R R^T with R upper, so H^-1 = U^T U with U = R^-1; and reversing a matrix is reversing all its
  // elements.
  cpu.parallel_for(n, [&](index_t i) {
    for (index_t j = 0; j <= i; ++j) u[i * n + j] = h(order[n - 1 - i], order[n - 1 - j]);
    u[i * n + i] = diagonal[n - 1 - i];
  });
  if (!factor_lower(cpu, cpu.isa(), u, n, scratch)) return false;
  invert_lower(cpu, cpu.isa(), u, n, scratch);
  for (index_t a = 0, b = n * n - 1; a < b; ++a, --b) {
    const double x = u[a];
    u[a] = u[b];
    u[b] = x;
  }
  return true;
}

/// The work on 16 rows at once, one per lane. Arrays [cols, 16] are in the order of columns that `order` says.
template <class F>
struct GptqLanes {
  static constexpr index_t lanes = row_lanes;

  Isa isa;
  const F& format;
  typename F::Layer layer;
  const index_t* order;
  const double* diagonal;  // of the damped Hessian
  const double* u;
  const double* damped;  // [cols, cols], for sweeps only
  const float* importance;
  index_t block, cols, size;

  double* w;                  // [cols, 16] what is to be rounded
  double* errors;             // [block, 16]
  double* change;             // [cols, 16] values - target, for sweeps only
  double* slope;              // [cols, 16] H change, for sweeps only
  typename F::Group* groups;  // [groups, 16]
  std::uint8_t* codes;        // [cols, 16]
  float* row;                 // [size]
  const bool* dead;           // [cols], by column

  /// The parameters of a group: from the weights as they are now, or the original ones if given.
  void fit(index_t group, const View<const float, 2>* original, index_t row_begin, index_t row_count) const {
    const index_t begin = group * size;
    const index_t count = cols - begin < size ? cols - begin : size;
    for (index_t lane = 0; lane < row_count; ++lane) {
      for (index_t i = 0; i < count; ++i) {
        row[i] = original ? (dead[begin + i] ? 0.0f : (*original)(row_begin + lane, begin + i))
                          : static_cast<float>(w[(begin + i) * lanes + lane]);
      }
      groups[group * lanes + lane] = format.fit(layer, row, importance ? importance + begin : nullptr, count);
    }
  }

  /// Rounds all columns; loss[lane] grows by every e^2 / 2.
  void run(bool groups_are_fitted, index_t row_begin, index_t row_count, double* loss) const {
    for (index_t begin = 0, end = 0; begin < cols; begin = end) {
      end = begin + block < cols ? begin + block : cols;
      // A group that goes on behind the block begins one of its own, where all errors have arrived.
      const index_t next = (begin / size + 1) * size;
      if (!groups_are_fitted) {
        for (index_t start = next; start < end; start += size) {
          if (start + size > end && end < cols) end = start;
        }
      }
      for (index_t p = begin; p < end; ++p) {
        const index_t column = order[p];
        const index_t group = column / size;
        if (!groups_are_fitted && column % size == 0) fit(group, nullptr, row_begin, row_count);
        double* const error = errors + (p - begin) * lanes;
        for (index_t lane = 0; lane < lanes; ++lane) error[lane] = 0;
        for (index_t lane = 0; lane < row_count; ++lane) {
          const double now = w[p * lanes + lane];
          const typename F::Group& g = groups[group * lanes + lane];
          const std::uint8_t code = format.nearest(layer, g, column % size, static_cast<float>(now));
          codes[p * lanes + lane] = code;
          const double value = static_cast<double>(format.value(layer, g, column % size, code));
          error[lane] = (now - value) / u[p * cols + p];
          loss[lane] += error[lane] * error[lane] / 2;
        }
        product_f64(isa, {end - p - 1, lanes, 1, u + p * cols + p + 1, 1, cols, error, lanes, w + (p + 1) * lanes,
                          lanes, 1, -1});
      }
      product_f64(isa, {cols - end, lanes, end - begin, u + begin * cols + end, 1, cols, errors, lanes, w + end * lanes,
                        lanes, 1, -1});
    }
  }

  double value(index_t p, index_t lane) const {
    return static_cast<double>(format.value(layer, groups[order[p] / size * lanes + lane], order[p] % size,
                                            codes[p * lanes + lane]));
  }

  /// Coordinate descent from the codes at hand; loss[lane] becomes that of the last.
  void sweep(int sweeps, const View<const float, 2>& original, index_t row_begin, index_t row_count,
             double* loss) const {
    for (index_t p = 0; p < cols; ++p) {
      for (index_t lane = 0; lane < lanes; ++lane) {
        const float target = lane < row_count && !dead[order[p]] ? original(row_begin + lane, order[p]) : 0.0f;
        change[p * lanes + lane] = lane < row_count ? value(p, lane) - static_cast<double>(target) : 0;
      }
    }
    product_f64(isa, {cols, lanes, cols, damped, cols, 1, change, lanes, slope, lanes, 0, 1});
    for (int s = 0; s < sweeps; ++s) {
      for (index_t begin = 0, end = 0; begin < cols; begin = end) {
        end = begin + block < cols ? begin + block : cols;
        for (index_t p = begin; p < end; ++p) {
          const index_t column = order[p];
          double* const step = errors + (p - begin) * lanes;
          for (index_t lane = 0; lane < lanes; ++lane) step[lane] = 0;
          for (index_t lane = 0; lane < row_count; ++lane) {
            const double now = value(p, lane);
            const double best = now - slope[p * lanes + lane] / diagonal[p];
            const typename F::Group& g = groups[column / size * lanes + lane];
            const std::uint8_t code = format.nearest(layer, g, column % size, static_cast<float>(best));
            const double then = static_cast<double>(format.value(layer, g, column % size, code));
            // Asked here, not left to nearest(): the loss must not grow whatever a format's rounding does.
            if (!(std::abs(then - best) < std::abs(now - best))) continue;
            codes[p * lanes + lane] = code;
            step[lane] = then - now;
            change[p * lanes + lane] += step[lane];
          }
          product_f64(isa, {end - begin, lanes, 1, damped + p * cols + begin, 1, cols, step, lanes,
                            slope + begin * lanes, lanes, 1, 1});
        }
        // The Hessian is symmetric, and rows are faster to read than columns.
        product_f64(isa, {begin, lanes, end - begin, damped + begin, cols, 1, errors, lanes, slope, lanes, 1, 1});
        product_f64(isa, {cols - end, lanes, end - begin, damped + end * cols + begin, cols, 1, errors, lanes,
                          slope + end * lanes, lanes, 1, 1});
      }
    }
    for (index_t lane = 0; lane < row_count; ++lane) {
      loss[lane] = 0;
      for (index_t p = 0; p < cols; ++p) loss[lane] += change[p * lanes + lane] * slope[p * lanes + lane] / 2;
    }
  }

  void store(std::byte* to, index_t lane) const {
    for (index_t j = 0; j * size < cols; ++j) format.store_group(layer, groups[j * lanes + lane], to, cols, j);
    for (index_t p = 0; p < cols; ++p) format.store_code(codes[p * lanes + lane], to, cols, order[p]);
  }
};

}  // namespace detail

/// Needs the Hessian; a grid's fit may use importance. ArgumentError, before anything is written, also when the Hessian
/// is not positive definite with damping 1. Bytes do not depend on threads; processors may round differently.
/// O(cols^3 + (1 + cd_sweeps) rows cols^2), 8 cols^2 bytes of workspace, as much again with sweeps.
template <class G>
  requires Grid<G, Cpu>
void quantize(Cpu& cpu, const Gptq<G>& q, View<const float, 2> w, const Calibration& c,
              const Packed<typename G::Format, std::byte>& out, GptqReport& report) {
  using F = typename G::Format;
  constexpr const char* where = "quant::quantize";
  detail::require_weights(w, out);
  require_calibration(c, needs(q), out.cols(), where);
  for (index_t k = 0; k < out.cols(); ++k) {
    const double d = c.hessian(k, k);
    require(d >= 0 && std::isfinite(d), where, "calibration.hessian", "a finite diagonal of at least 0", d);
  }
  validate(q, out.cols());
  const F format = q.format();
  detail::require_format(q, out);
  const index_t rows = out.rows();
  const index_t cols = out.cols();
  const index_t size = format.group_size(cols);
  const index_t groups = out.groups();
  constexpr index_t lanes = detail::row_lanes;
  const index_t blocks = detail::lane_blocks(rows);
  const index_t block = q.block < cols ? q.block : cols;
  const bool sweeps = q.cd_sweeps > 0;

  Workspace& memory = cpu.workspace();
  const Workspace::Scope scope(memory);
  index_t* const order = memory.take<index_t>(cols);
  double* const diagonal = memory.take<double>(cols);
  bool* const dead = memory.take<bool>(cols);
  double* const u = memory.take<double>(cols * cols);
  GptqReport found;
  {
    const Workspace::Scope inner(memory);
    double* const scratch = memory.take<double>(detail::factor_scratch(cols));
    detail::gptq_order(c.hessian, q.act_order, order, memory.take<index_t>(cols));
    found.damping = q.damping;
    while (!detail::gptq_factor(cpu, c.hessian, found.damping, order, diagonal, u, scratch)) {
      require(found.damping < 1, where, "calibration.hessian", "a positive semidefinite matrix",
              "one that is not, with its mean added to the diagonal");
      found.damping = found.damping == 0 ? 0.01 : found.damping < 0.1 ? found.damping * 10 : 1;
    }
  }
  for (index_t k = 0; k < cols; ++k) {
    dead[k] = c.hessian(k, k) == 0;
    found.dead += dead[k] ? 1 : 0;
  }
  double* damped = nullptr;
  if (sweeps) {
    damped = memory.take<double>(cols * cols);
    cpu.parallel_for(cols, [&](index_t i) {
      for (index_t j = 0; j < cols; ++j) damped[i * cols + j] = c.hessian(order[i], order[j]);
      damped[i * cols + i] = diagonal[i];
    });
  }
  const index_t parts = cpu.parts(blocks, 1);
  const index_t wide = cols * lanes;
  double* const current = memory.take<double>(parts * wide);
  double* const errors = memory.take<double>(parts * block * lanes);
  double* const change = memory.take<double>(sweeps ? parts * wide : 0);
  double* const slope = memory.take<double>(sweeps ? parts * wide : 0);
  auto* const fitted = memory.take<typename F::Group>(parts * groups * lanes);
  auto* const codes = memory.take<std::uint8_t>(parts * wide);
  float* const row = memory.take<float>(parts * size);
  double* const losses = memory.take<double>(rows);

  const typename F::Layer layer = fit_layer(cpu, q.grid, w, c);
  detail::begin_packed(out, layer);
  const bool fit_first = q.static_groups || q.act_order;
  cpu.parallel_ranges(blocks, 1, [&](index_t first, index_t last, index_t part) {
    const detail::GptqLanes<F> work{cpu.isa(), format, layer, order, diagonal, u, damped,
                                    c.importance.empty() ? nullptr : c.importance.data(), block, cols, size,
                                    current + part * wide, errors + part * block * lanes,
                                    sweeps ? change + part * wide : nullptr, sweeps ? slope + part * wide : nullptr,
                                    fitted + part * groups * lanes, codes + part * wide, row + part * size, dead};
    for (index_t b = first; b < last; ++b) {
      const index_t begin = b * lanes;
      const index_t count = rows - begin < lanes ? rows - begin : lanes;
      for (index_t p = 0; p < cols; ++p) {
        for (index_t lane = 0; lane < lanes; ++lane) {
          const bool there = lane < count && !dead[order[p]];
          work.w[p * lanes + lane] = there ? static_cast<double>(w(begin + lane, order[p])) : 0;
        }
      }
      for (index_t j = 0; fit_first && j < groups; ++j) work.fit(j, &w, begin, count);
      double loss[lanes] = {};
      work.run(fit_first, begin, count, loss);
      if (sweeps) work.sweep(q.cd_sweeps, w, begin, count, loss);
      for (index_t lane = 0; lane < count; ++lane) {
        work.store(out.row(begin + lane), lane);
        losses[begin + lane] = loss[lane];
      }
    }
  });
  found.loss = detail::sum_of(losses, rows);
  report = found;
}

template <class G>
  requires Grid<G, Cpu>
void quantize(Cpu& cpu, const Gptq<G>& q, View<const float, 2> w, const Calibration& c,
              const Packed<typename G::Format, std::byte>& out) {
  GptqReport report;
  quantize(cpu, q, w, c, out, report);
}

}  // namespace decant::quant

#endif
