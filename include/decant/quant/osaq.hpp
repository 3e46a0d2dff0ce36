// decant: Osaq, outlier self-absorption (arXiv 2605.04738): every row w of a layer's weights becomes w + V0 b, V0 the
// eigenvectors of the Hessian with the smallest eigenvalues, so that outputs hardly change while the largest weights
// shrink; then any quantizer. Needs Eigen 3.4 or newer (the parameters, in osaq_types.hpp, do not).
// Mode `paper` minimises 1/2 sum_j s_j (w_j + b.n_j)^2 + mu1/2 |b|^2 + mu2/2 (b.v)^2 over b, s the softmax of |w| / tau
// over the row, n_j the rows of V0 and v their sum (equations 7 to 13). Mode `guarded` [ours], the default, weighs per
// group, needs no ridge but one for rounding, and steps, several times, only as far as the groups' ranges shrink.
#ifndef DECANT_QUANT_OSAQ_HPP
#define DECANT_QUANT_OSAQ_HPP

#include <Eigen/Core>
#include <Eigen/Eigenvalues>
#include <cmath>
#include <limits>

#include "../core/cpu.hpp"
#include "detail/magnitude.hpp"
#include "detail/factor_f64.hpp"
#include "detail/row_losses.hpp"
#include "osaq_types.hpp"
#include "rtn.hpp"

namespace decant::quant {

namespace detail {

/// The eigenvectors of the smallest eigenvalues, v0 [cols, count] in the workspace, n_j its row j.
struct OsaqDirections {
  const double* v0 = nullptr;
  index_t count = 0;
};

inline OsaqDirections osaq_directions(Cpu& cpu, const OsaqTransform& t, const View<const double, 2>& h) {
  const index_t n = h.extent(0);
  Eigen::MatrixXd matrix(n, n);
  double mean = 0;
  for (index_t i = 0; i < n; ++i) mean += h(i, i) / static_cast<double>(n);
  for (index_t j = 0; j < n; ++j) {
    for (index_t i = 0; i < n; ++i) matrix(i, j) = h(i, j) + (i == j ? t.shrink * mean : 0);
  }
  Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver;
  solver.compute(matrix);
  require(solver.info() == Eigen::Success, "quant::osaq_transform", "hessian", "a finite symmetric matrix",
          "one without eigenvalues");
  const Eigen::VectorXd& values = solver.eigenvalues();  // rising
  // What is 0 but for rounding is 0, on either side of it.
  const double noise = values[n - 1] * static_cast<double>(n) * std::numeric_limits<double>::epsilon();
  double trace = 0;
  for (index_t i = 0; i < n; ++i) trace += values[i] > noise ? values[i] : 0;
  index_t count = 0;
  double sum = 0;
  for (; count < n; ++count) {
    const double next = sum + (values[count] > noise ? values[count] : 0);
    if (t.mode == OsaqMode::guarded && next > t.gamma * trace) break;
    if (t.mode == OsaqMode::paper && count > 0 && sum >= t.gamma * trace) break;
    sum = next;
  }
  double* const v0 = cpu.workspace().take<double>(n * count);
  for (index_t j = 0; j < n; ++j) {
    for (index_t i = 0; i < count; ++i) v0[j * count + i] = solver.eigenvectors()(j, i);
  }
  return {v0, count};
}

/// The sum over groups of largest - smallest.
inline double osaq_range(const float* w, index_t cols, index_t group) {
  double sum = 0;
  for (index_t begin = 0; begin < cols; begin += group) {
    const auto [low, high] = range_of(w + begin, cols - begin < group ? cols - begin : group);
    sum += static_cast<double>(high) - static_cast<double>(low);
  }
  return sum;
}

/// How much each of a row's weights counts: p[cols].
inline void osaq_weights(const OsaqTransform& t, const float* w, index_t cols, index_t group, double* p) {
  const index_t size = t.mode == OsaqMode::paper ? cols : group;
  for (index_t begin = 0; begin < cols; begin += size) {
    const index_t end = begin + size < cols ? begin + size : cols;
    double largest = 0;
    for (index_t k = begin; k < end; ++k) {
      const double magnitude = std::abs(static_cast<double>(w[k]));
      largest = magnitude > largest ? magnitude : largest;
    }
    const double unit = largest == 0                 ? 1
                        : t.mode == OsaqMode::guarded ? largest / (t.beta > 0 ? t.beta : 1)
                        : t.tau_rel > 0               ? largest * t.tau_rel
                                                      : t.tau;
    const bool flat = t.mode == OsaqMode::guarded && t.beta == 0;
    double sum = 0;
    for (index_t k = begin; k < end; ++k) {
      p[k] = flat ? 1 : std::exp((std::abs(static_cast<double>(w[k])) - largest) / unit);
      sum += p[k];
    }
    const double floor = t.mode == OsaqMode::guarded ? t.eta : 0;
    for (index_t k = begin; k < end; ++k) p[k] = (1 - floor) * p[k] / sum + floor / static_cast<double>(end - begin);
  }
}

/// What the solution for a set of weights needs. A is in the lower triangle.
struct OsaqSystem {
  Isa isa;
  const OsaqTransform& t;
  OsaqDirections directions;
  const double* sum;  // v [count]
  index_t cols;

  static constexpr index_t chunk = factor_block;

  /// a [count, count] = V0^T P V0 and the ridges, factored. False when that is not positive definite. `scaled` has
  /// chunk * count doubles for each of `run`'s tasks in turn, `scratch` factor_scratch(count).
  template <class Run>
  bool factor(Run& run, const double* p, double* a, double* scaled, double* scratch) const {
    const index_t m = directions.count;
    for (index_t begin = 0; begin < cols; begin += chunk) {
      const index_t size = cols - begin < chunk ? cols - begin : chunk;
      const double* const v0 = directions.v0 + begin * m;
      for (index_t k = 0; k < size; ++k) {
        for (index_t i = 0; i < m; ++i) scaled[k * m + i] = p[begin + k] * v0[k * m + i];
      }
      run.parallel_for((m + chunk - 1) / chunk, [&](index_t i) {
        const index_t first = i * chunk;
        const index_t last = first + chunk < m ? first + chunk : m;
        product_f64(isa, {last - first, last, size, scaled + first, 1, m, v0, m, a + first * m, m,
                          begin == 0 ? 0.0 : 1.0, 1});
      });
    }
    double trace = 0;
    for (index_t i = 0; i < m; ++i) trace += a[i * m + i];
    const bool paper = t.mode == OsaqMode::paper;
    for (index_t i = 0; i < m; ++i) {
      for (index_t j = 0; j <= i && paper; ++j) a[i * m + j] += t.mu2 * sum[i] * sum[j];
      a[i * m + i] += paper ? t.mu1 : 1e-8 * trace / static_cast<double>(m);
    }
    return factor_lower(run, isa, a, m, scratch);
  }

  /// b [count] = -A^-1 V0^T P w, d [cols] = V0 b.
  void solve(const double* p, const float* w, const double* a, double* b, double* d) const {
    const index_t m = directions.count;
    for (index_t i = 0; i < m; ++i) b[i] = 0;
    for (index_t k = 0; k < cols; ++k) {
      const double x = -p[k] * static_cast<double>(w[k]);
      for (index_t i = 0; i < m; ++i) b[i] += x * directions.v0[k * m + i];
    }
    solve_lower(View<const double, 2>(a, m, m), View<double, 1>(b, m));
    solve_lower_transposed(View<const double, 2>(a, m, m), View<double, 1>(b, m));
    for (index_t k = 0; k < cols; ++k) {
      double x = 0;
      for (index_t i = 0; i < m; ++i) x += directions.v0[k * m + i] * b[i];
      d[k] = x;
    }
  }

  /// w moves along d, whole or, guarded, by the eighths of it that leave the least range, if less than there is. False
  /// when it stays. `moved` [cols]. d's elements are `stride` apart.
  bool step(float* w, const double* d, index_t stride, index_t group, float* moved) const {
    if (!t.guards()) {
      for (index_t k = 0; k < cols; ++k) w[k] = static_cast<float>(static_cast<double>(w[k]) + d[k * stride]);
      return true;
    }
    double least = osaq_range(w, cols, group);
    int best = 0;
    for (int eighths = 1; eighths <= 8; ++eighths) {
      move(w, d, stride, eighths, moved);
      const double range = osaq_range(moved, cols, group);
      if (!(range < least)) continue;
      least = range;
      best = eighths;
    }
    if (best == 0) return false;
    move(w, d, stride, best, moved);
    for (index_t k = 0; k < cols; ++k) w[k] = moved[k];
    return true;
  }

  void move(const float* w, const double* d, index_t stride, int eighths, float* to) const {
    for (index_t k = 0; k < cols; ++k)
      to[k] = static_cast<float>(static_cast<double>(w[k]) + 0.125 * eighths * d[k * stride]);
  }
};

/// Every row with weights of its own.
inline void osaq_rows(Cpu& cpu, const OsaqSystem& system, index_t group, View<float, 2> w) {
  const index_t m = system.directions.count;
  const index_t cols = system.cols;
  const index_t rows = w.extent(0);
  const index_t parts = cpu.parts(rows, 1);
  Workspace& memory = cpu.workspace();
  const View<double, 2> matrices = memory.take_view<double>(parts, m * m);
  const View<double, 2> scaled = memory.take_view<double>(parts, OsaqSystem::chunk * m);
  const View<double, 2> scratch = memory.take_view<double>(parts, factor_scratch(m));
  const View<double, 2> weights = memory.take_view<double>(parts, cols);
  const View<double, 2> solutions = memory.take_view<double>(parts, m);
  const View<double, 2> changes = memory.take_view<double>(parts, cols);
  const View<float, 2> moved = memory.take_view<float>(parts, cols);
  cpu.parallel_ranges(rows, 1, [&](index_t first, index_t last, index_t part) {
    OneByOne run;
    double* const a = matrices[part].data();
    double* const p = weights[part].data();
    double* const d = changes[part].data();
    for (index_t r = first; r < last; ++r) {
      float* const row = &w(r, index_t{0});
      for (int round = 0; round < system.t.rounds(); ++round) {
        osaq_weights(system.t, row, cols, group, p);
        if (!system.factor(run, p, a, scaled[part].data(), scratch[part].data())) break;
        system.solve(p, row, a, solutions[part].data(), d);
        if (!system.step(row, d, 1, group, moved[part].data())) break;
      }
    }
  });
}

/// Every row with the rows' mean weights.
inline void osaq_shared(Cpu& cpu, const OsaqSystem& system, index_t group, View<float, 2> w) {
  constexpr index_t lanes = row_lanes;
  const index_t m = system.directions.count;
  const index_t cols = system.cols;
  const index_t rows = w.extent(0);
  const index_t blocks = lane_blocks(rows);
  const index_t parts = cpu.parts(blocks, 1);
  Workspace& memory = cpu.workspace();
  double* const a = memory.take<double>(m * m);
  double* const scaled = memory.take<double>(OsaqSystem::chunk * m);
  double* const scratch = memory.take<double>(factor_scratch(m));
  const View<double, 2> weights = memory.take_view<double>(lanes, cols);
  double* const mean = memory.take<double>(cols);
  const View<double, 2> given = memory.take_view<double>(parts, cols * lanes);
  const View<double, 2> solutions = memory.take_view<double>(parts, m * lanes);
  const View<float, 2> moved = memory.take_view<float>(parts, cols);
  for (int round = 0; round < system.t.rounds(); ++round) {
    for (index_t k = 0; k < cols; ++k) mean[k] = 0;
    for (index_t begin = 0; begin < rows; begin += lanes) {
      const index_t count = rows - begin < lanes ? rows - begin : lanes;
      cpu.parallel_for(count, [&](index_t i) {
        osaq_weights(system.t, &w(begin + i, index_t{0}), cols, group, weights[i].data());
      });
      for (index_t i = 0; i < count; ++i) {
        for (index_t k = 0; k < cols; ++k) mean[k] += weights(i, k) / static_cast<double>(rows);
      }
    }
    if (!system.factor(cpu, mean, a, scaled, scratch)) return;
    cpu.parallel_ranges(blocks, 1, [&](index_t first, index_t last, index_t part) {
      double* const x = given[part].data();
      double* const b = solutions[part].data();
      for (index_t block = first; block < last; ++block) {
        const index_t begin = block * lanes;
        const index_t count = rows - begin < lanes ? rows - begin : lanes;
        for (index_t k = 0; k < cols; ++k) {
          for (index_t lane = 0; lane < lanes; ++lane)
            x[k * lanes + lane] = lane < count ? mean[k] * static_cast<double>(w(begin + lane, k)) : 0;
        }
        product_f64(system.isa, {m, lanes, cols, system.directions.v0, 1, m, x, lanes, b, lanes, 0, -1});
        solve_factored(system.isa, a, m, b);
        product_f64(system.isa, {cols, lanes, m, system.directions.v0, m, 1, b, lanes, x, lanes, 0, 1});
        for (index_t lane = 0; lane < count; ++lane)
          system.step(&w(begin + lane, index_t{0}), x + lane, lanes, group, moved[part].data());
      }
    });
  }
}

}  // namespace detail

/// out = w moved: w, out [rows, cols], rows contiguous; they may be the same memory. hessian [cols, cols] as in
/// Calibration; group: how many weights share a scale later, 0 for all of a row's. Where nothing may be moved (mode
/// guarded, gamma = 0 and a Hessian of full rank) out is w. ArgumentError when shapes differ or a weight is not finite,
/// before anything is written. Allocates what Eigen does: some 3 cols^2 doubles. About 9 cols^3 operations for the
/// eigenvectors, on one thread; then rows * rounds * (cols m^2 / 2 + m^3 / 3) with m directions, or with shared_p rows
/// * rounds * 2 cols m.
inline OsaqReport osaq_transform(Cpu& cpu, const OsaqTransform& t, View<const float, 2> w,
                                 View<const double, 2> hessian, index_t group, View<float, 2> out) {
  constexpr const char* where = "quant::osaq_transform";
  const index_t rows = w.extent(0);
  const index_t cols = w.extent(1);
  validate(t);
  require_equal(hessian.extent(0), cols, where, "hessian");
  require_equal(hessian.extent(1), cols, where, "hessian");
  require_equal(out.extent(0), rows, where, "out");
  require_equal(out.extent(1), cols, where, "out");
  require(group >= 0, where, "group", "at least 0", group);
  require(out.stride(1) == 1 || cols <= 1, where, "out", "contiguous rows", out.stride(1));
  for (index_t i = 0; i < cols; ++i) {
    for (index_t j = 0; j < cols; ++j)
      require(std::isfinite(hessian(i, j)), where, "hessian", "finite numbers", hessian(i, j));
  }
  for (index_t r = 0; r < rows; ++r) {
    for (index_t k = 0; k < cols; ++k) require(std::isfinite(w(r, k)), where, "w", "finite weights", w(r, k));
  }
  if (rows == 0 || cols == 0) return {};
  const index_t size = group > 0 && group < cols ? group : cols;

  const Workspace::Scope scope(cpu.workspace());
  const detail::OsaqDirections directions = detail::osaq_directions(cpu, t, hessian);
  double* const sum = cpu.workspace().take<double>(directions.count);
  for (index_t i = 0; i < directions.count; ++i) {
    sum[i] = 0;
    for (index_t k = 0; k < cols; ++k) sum[i] += directions.v0[k * directions.count + i];
  }
  OsaqReport report;
  report.directions = directions.count;
  for (index_t r = 0; r < rows; ++r) {
    for (index_t k = 0; k < cols; ++k) out(r, k) = w(r, k);
    report.range_before += detail::osaq_range(&out(r, index_t{0}), cols, size);
  }
  if (directions.count > 0) {
    const detail::OsaqSystem system{cpu.isa(), t, directions, sum, cols};
    t.shared_p ? detail::osaq_shared(cpu, system, size, out) : detail::osaq_rows(cpu, system, size, out);
  }
  for (index_t r = 0; r < rows; ++r) report.range_after += detail::osaq_range(&out(r, index_t{0}), cols, size);
  return report;
}

/// Needs the Hessian besides what Inner needs. See osaq_transform.
template <class Inner>
  requires Quantizer<Inner, Cpu>
void quantize(Cpu& cpu, const Osaq<Inner>& q, View<const float, 2> w, const Calibration& c,
              const Packed<typename Inner::Format, std::byte>& out) {
  detail::require_weights(w, out);
  require_calibration(c, needs(q), out.cols(), "quant::quantize");
  validate(q, out.cols());
  const index_t rows = out.rows();
  const index_t cols = out.cols();
  const Workspace::Scope scope(cpu.workspace());
  const View<float, 2> moved = cpu.workspace().template take_view<float>(rows, cols);
  osaq_transform(cpu, q.transform, w, c.hessian, q.format().group_size(cols), moved);
  if (q.accept) {
    double* const plain = cpu.workspace().template take<double>(rows);
    double* const transformed = cpu.workspace().template take<double>(rows);
    using F = typename Inner::Format;
    quantize(cpu, q.inner, w, c, out);
    detail::row_losses(cpu, Packed<F>(out), w, c, detail::Seen::hessian, plain);
    quantize(cpu, q.inner, View<const float, 2>(moved), c, out);
    detail::row_losses(cpu, Packed<F>(out), w, c, detail::Seen::hessian, transformed);
    bool all = true;
    for (index_t r = 0; r < rows; ++r) {
      if (transformed[r] < plain[r]) continue;
      all = false;
      for (index_t k = 0; k < cols; ++k) moved(r, k) = w(r, k);
    }
    if (all) return;
  }
  quantize(cpu, q.inner, View<const float, 2>(moved), c, out);
}

}  // namespace decant::quant

#endif
