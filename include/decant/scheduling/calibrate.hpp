// decant: CalibratedCost, the time of a step as t0 + flops / F + bytes / W with the three numbers fitted to measured
// steps by least squares: so that a simulation speaks of the engine at hand. Fixed point, so that simulations with it
// are whole numbers too. Ours.
#ifndef DECANT_SCHEDULING_CALIBRATE_HPP
#define DECANT_SCHEDULING_CALIBRATE_HPP

#include <cmath>
#include <cstdint>

#include "roofline.hpp"

namespace decant::scheduling {

struct MeasuredStep {
  StepWork work{};
  Nanoseconds time = 0;
};

/// Coefficients in 2^-32 ns per flop and byte. An empty step costs nothing.
struct CalibratedCost {
  ModelShape model{};
  Nanoseconds launch = 0;       ///< t0
  std::uint64_t per_flop = 0;
  std::uint64_t per_byte = 0;

  Nanoseconds step_ns(View<const StepShape, 1> shapes, const PrefixSharing& = {}) const {
    const StepWork work = step_work(model, shapes);
    if (work.tokens == 0) return 0;
    return launch + static_cast<Nanoseconds>((work.flops * per_flop + work.bytes * per_byte) >> 32);
  }
};
static_assert(StepCost<CalibratedCost>);

/// The least-squares fit of t0, 1/F and 1/W, none of them negative: of the subsets of the three that fit with positive
/// values, the one that fits best. ArgumentError: fewer than 3 steps, or none that takes time. O(steps).
inline CalibratedCost calibrate(const ModelShape& model, View<const MeasuredStep, 1> steps) {
  constexpr auto where = "scheduling::calibrate";
  require(steps.extent(0) >= 3, where, "steps", "at least 3", steps.extent(0));
  // In units of the largest flops, bytes and time, so that the sums are well scaled.
  double scale[3] = {1, 0, 0}, most = 0;
  for (index_t i = 0; i < steps.extent(0); ++i) {
    scale[1] = std::fmax(scale[1], static_cast<double>(steps[i].work.flops));
    scale[2] = std::fmax(scale[2], static_cast<double>(steps[i].work.bytes));
    most = std::fmax(most, static_cast<double>(steps[i].time));
  }
  require(most > 0 && scale[1] > 0 && scale[2] > 0, where, "steps", "steps that take time and do something", most);
  double a[3][3] = {}, b[3] = {}, squares = 0;
  for (index_t i = 0; i < steps.extent(0); ++i) {
    const double x[3] = {1, static_cast<double>(steps[i].work.flops) / scale[1],
                         static_cast<double>(steps[i].work.bytes) / scale[2]};
    const double y = static_cast<double>(steps[i].time) / most;
    squares += y * y;
    for (int r = 0; r < 3; ++r) {
      b[r] += x[r] * y;
      for (int c = 0; c < 3; ++c) a[r][c] += x[r] * x[c];
    }
  }
  double best[3] = {}, least = squares;
  for (int subset = 1; subset < 8; ++subset) {
    int used[3], n = 0;
    for (int r = 0; r < 3; ++r) {
      if ((subset >> r & 1) != 0) used[n++] = r;
    }
    // Cholesky of the normal equations; a pivot of nothing: these columns say the same.
    double l[3][3] = {}, z[3] = {}, x[3] = {};
    bool ok = true;
    for (int r = 0; r < n && ok; ++r) {
      for (int c = 0; c <= r; ++c) {
        double sum = a[used[r]][used[c]];
        for (int k = 0; k < c; ++k) sum -= l[r][k] * l[c][k];
        if (c < r) l[r][c] = sum / l[c][c];
        else ok = sum > 1e-12 * a[used[r]][used[r]];
        if (c == r && ok) l[r][r] = std::sqrt(sum);
      }
      if (!ok) break;
      z[r] = b[used[r]];
      for (int k = 0; k < r; ++k) z[r] -= l[r][k] * z[k];
      z[r] /= l[r][r];
    }
    if (!ok) continue;
    double residual = squares;
    for (int r = n; r-- > 0;) {
      residual -= z[r] * z[r];
      x[r] = z[r];
      for (int k = r + 1; k < n; ++k) x[r] -= l[k][r] * x[k];
      x[r] /= l[r][r];
      ok = ok && x[r] >= 0;
    }
    if (!ok || residual >= least) continue;
    least = residual;
    for (double& v : best) v = 0;
    for (int r = 0; r < n; ++r) best[used[r]] = x[r];
  }
  constexpr double fixed = 4294967296.0;
  CalibratedCost out;
  out.model = model;
  out.launch = static_cast<Nanoseconds>(std::llround(best[0] * most));
  out.per_flop = static_cast<std::uint64_t>(std::llround(best[1] * most / scale[1] * fixed));
  out.per_byte = static_cast<std::uint64_t>(std::llround(best[2] * most / scale[2] * fixed));
  return out;
}

}  // namespace decant::scheduling

#endif
