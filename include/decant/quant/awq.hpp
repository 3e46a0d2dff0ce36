// decant: activation-aware weight quantization (Lin et al., AWQ, arXiv 2306.00978; after the official code), as two
// transforms of what another quantizer gets: AwqScale multiplies columns by powers of their inputs' mean magnitudes,
// AwqClip narrows the range of every group; both keep the candidate whose outputs change least.
// Ours: any quantizer may stand inside, and the search for scales runs it; scales are stored (Scaled<F>) instead of
// folded into the layer before, and each matrix has its own, by its own outputs, where the official code gives one to
// all matrices of an input, by a block's; without inputs, outputs are seen through the Hessian, the same measure over
// all calibration tokens, or without that through the importance of each column. (The official ranges are not forced
// through 0, as IntGrid::zero_point's are; IntGrid::minimum is nearest to them.)
#ifndef DECANT_QUANT_AWQ_HPP
#define DECANT_QUANT_AWQ_HPP

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "../core/cpu.hpp"
#include "detail/row_losses.hpp"
#include "policy.hpp"
#include "rtn.hpp"
#include "scaled.hpp"

namespace decant::quant {

/// Of the scales s_k = magnitude_k^(i / ratios), i = 0 ... ratios - 1, over the geometric mean of their extremes, those
/// that change outputs least, the first of equals. i = 0 is no scale: never worse than Inner by its own measure.
template <class Inner>
struct AwqScale {
  using Format = Scaled<typename Inner::Format>;
  Inner inner{};
  int ratios = 20;
  bool operator==(const AwqScale&) const = default;
  Format format() const { return {inner.format()}; }
};
template <class Inner>
AwqScale(Inner) -> AwqScale<Inner>;
template <class Inner>
AwqScale(Inner, int) -> AwqScale<Inner>;

/// Of the ranges largest magnitude * (1 - i / 20), i = 0 ... steps - 1, of a row's group, the one that changes outputs
/// least when weights beyond it are set to its ends and the group is rounded to nearest; the first of equals. (The
/// official code leaves out query and key projections: so should the caller.)
template <class Inner>
struct AwqClip {
  using Format = typename Inner::Format;
  Inner inner{};
  int steps = 10;
  index_t tokens = 512;  ///< of calibration.inputs that are looked at, at most
  bool operator==(const AwqClip&) const = default;
  Format format() const { return inner.format(); }
};
template <class Inner>
AwqClip(Inner) -> AwqClip<Inner>;
template <class Inner>
AwqClip(Inner, int) -> AwqClip<Inner>;
template <class Inner>
AwqClip(Inner, int, index_t) -> AwqClip<Inner>;

/// What the search for scales found.
struct AwqReport {
  int ratio = 0;        ///< i
  double loss = 0;      ///< of it: the summed mean squared change of outputs
  double unscaled = 0;  ///< of i = 0
};

template <class Inner>
void validate(const AwqScale<Inner>& q, index_t cols) {
  require(q.ratios >= 1, "quant::AwqScale", "ratios", "at least 1", q.ratios);
  validate(q.inner, cols);
}
template <class Inner>
void validate(const AwqClip<Inner>& q, index_t cols) {
  require(q.steps >= 1 && q.steps <= 20, "quant::AwqClip", "steps", "1 to 20", q.steps);
  require(q.tokens >= 1, "quant::AwqClip", "tokens", "at least 1", q.tokens);
  validate(q.inner, cols);
}

/// Besides: inputs, the Hessian or importance, one of the three.
template <class Inner>
Needs needs(const AwqScale<Inner>& q) {
  Needs n = needs(q.inner);
  n.magnitude = true;
  return n;
}
/// Besides: inputs, the Hessian or importance, one of the three.
template <class Inner>
Needs needs(const AwqClip<Inner>& q) {
  return needs(q.inner);
}

namespace detail {

inline void require_outputs(const Calibration& c, const char* where) {
  require(!c.inputs.empty() || !c.hessian.empty() || !c.importance.empty(), where, "calibration.inputs",
          "inputs, or else a Hessian or importance", "nothing");
}

/// s for ratio i, in double; 1 for i = 0.
inline void awq_scales(const View<const float, 1>& magnitude, double ratio, double* s) {
  double least = std::numeric_limits<double>::infinity();
  double most = 0;
  for (index_t k = 0; k < magnitude.extent(0); ++k) {
    const double power = std::pow(static_cast<double>(magnitude[k]), ratio);
    s[k] = power > 1e-4 ? power : 1e-4;
    least = s[k] < least ? s[k] : least;
    most = s[k] > most ? s[k] : most;
  }
  const double middle = std::sqrt(most * least);
  for (index_t k = 0; k < magnitude.extent(0); ++k) s[k] /= middle;
}

/// Memory for a calibration whose inputs are divided by a scale for each column.
struct ScaledCalibration {
  float* importance;
  float* magnitude;
  double* hessian;
  float* inputs;

  ScaledCalibration(Workspace& memory, const Calibration& c)
      : importance(memory.take<float>(c.importance.size())),
        magnitude(memory.take<float>(c.magnitude.size())),
        hessian(memory.take<double>(c.hessian.size())),
        inputs(memory.take<float>(c.inputs.size())) {}

  Calibration divide(Cpu& cpu, const Calibration& c, const double* s) const {
    Calibration to;
    const index_t cols = c.magnitude.extent(0);
    for (index_t k = 0; k < cols; ++k) {
      magnitude[k] = static_cast<float>(static_cast<double>(c.magnitude[k]) / s[k]);
      if (!c.importance.empty())
        importance[k] = static_cast<float>(static_cast<double>(c.importance[k]) / (s[k] * s[k]));
    }
    to.magnitude = View<const float, 1>(magnitude, cols);
    if (!c.importance.empty()) to.importance = View<const float, 1>(importance, cols);
    if (!c.hessian.empty()) {
      cpu.parallel_for(cols, [&](index_t i) {
        for (index_t j = 0; j < cols; ++j) hessian[i * cols + j] = c.hessian(i, j) / (s[i] * s[j]);
      });
      to.hessian = View<const double, 2>(hessian, cols, cols);
    }
    if (!c.inputs.empty()) {
      const index_t tokens = c.inputs.extent(0);
      for (index_t t = 0; t < tokens; ++t) {
        for (index_t k = 0; k < cols; ++k)
          inputs[t * cols + k] = static_cast<float>(static_cast<double>(c.inputs(t, k)) / s[k]);
      }
      to.inputs = View<const float, 2>(inputs, tokens, cols);
    }
    return to;
  }
};

}  // namespace detail

/// Needs magnitudes, and inputs or the Hessian or importance: the first that is there measures the outputs. Runs Inner
/// `ratios` times, with weights times s and inputs over s, and once more where the last was not the best.
/// O(ratios * rows * cols * (tokens or cols)) besides.
template <class Inner>
  requires Quantizer<Inner, Cpu>
void quantize(Cpu& cpu, const AwqScale<Inner>& q, View<const float, 2> w, const Calibration& c,
              const Packed<Scaled<typename Inner::Format>, std::byte>& out, AwqReport& report) {
  constexpr const char* where = "quant::quantize";
  using F = Scaled<typename Inner::Format>;
  detail::require_weights(w, out);
  require_calibration(c, needs(q), out.cols(), where);
  detail::require_outputs(c, where);
  validate(q, out.cols());
  const index_t rows = out.rows();
  const index_t cols = out.cols();
  for (index_t k = 0; k < cols; ++k)
    require(std::isfinite(c.magnitude[k]) && c.magnitude[k] >= 0, where, "calibration.magnitude",
            "finite numbers, at least 0", c.magnitude[k]);

  Workspace& memory = cpu.workspace();
  const Workspace::Scope scope(memory);
  const View<float, 2> scaled = memory.template take_view<float>(rows, cols);
  double* const s = memory.take<double>(cols);
  double* const losses = memory.take<double>(rows);
  float* const largest = memory.take<float>(cols);
  const detail::ScaledCalibration room(memory, c);
  const detail::Seen seen = detail::seen_through(c);
  for (index_t k = 0; k < cols; ++k) {
    largest[k] = 0;
    for (index_t r = 0; r < rows; ++r) largest[k] = std::abs(w(r, k)) > largest[k] ? std::abs(w(r, k)) : largest[k];
  }

  // False where a scaled weight would not be finite.
  constexpr double most = 0x1.fffffep127;
  const auto run = [&](int i) {
    detail::awq_scales(c.magnitude, static_cast<double>(i) / q.ratios, s);
    for (index_t k = 0; k < cols; ++k) {
      if (static_cast<double>(largest[k]) * s[k] > most) return false;
    }
    for (index_t r = 0; r < rows; ++r) {
      for (index_t k = 0; k < cols; ++k) scaled(r, k) = static_cast<float>(static_cast<double>(w(r, k)) * s[k]);
    }
    quantize(cpu, q.inner, View<const float, 2>(scaled), room.divide(cpu, c, s), out.inner());
    for (index_t k = 0; k < cols; ++k) out.set_inverse_scale(k, static_cast<float>(1 / s[k]));
    out.clear_padding();
    return true;
  };

  AwqReport found;
  int last = 0;
  for (int i = 0; i < q.ratios; ++i) {
    if (!run(i)) continue;
    last = i;
    detail::row_losses(cpu, Packed<F>(out), w, c, seen, losses);
    const double loss = detail::sum_of(losses, rows);
    if (i == 0) found.unscaled = loss;
    if (i != 0 && !(loss < found.loss)) continue;
    found.loss = loss;
    found.ratio = i;
  }
  if (last != found.ratio) run(found.ratio);
  report = found;
}

template <class Inner>
  requires Quantizer<Inner, Cpu>
void quantize(Cpu& cpu, const AwqScale<Inner>& q, View<const float, 2> w, const Calibration& c,
              const Packed<Scaled<typename Inner::Format>, std::byte>& out) {
  AwqReport report;
  quantize(cpu, q, w, c, out, report);
}

/// Needs what Inner needs, and inputs or the Hessian or importance: the first that is there measures the outputs, group
/// by group. Formats that are not Codes (Scaled) cannot be looked at so: AwqScale goes outside. Fits groups with the
/// format's own shared part. O(steps * rows * cols * group).
template <class Inner>
  requires Quantizer<Inner, Cpu> && Codes<typename Inner::Format>
void quantize(Cpu& cpu, const AwqClip<Inner>& q, View<const float, 2> w, const Calibration& c,
              const Packed<typename Inner::Format, std::byte>& out) {
  constexpr const char* where = "quant::quantize";
  using F = typename Inner::Format;
  constexpr index_t lanes = detail::row_lanes;
  detail::require_weights(w, out);
  require_calibration(c, needs(q), out.cols(), where);
  detail::require_outputs(c, where);
  validate(q, out.cols());
  const index_t rows = out.rows();
  const index_t cols = out.cols();
  const F format = q.format();
  const index_t size = format.group_size(cols);
  const index_t groups = (cols + size - 1) / size;
  const detail::Seen seen = detail::seen_through(c);

  Workspace& memory = cpu.workspace();
  const Workspace::Scope scope(memory);
  const View<float, 2> clipped = memory.template take_view<float>(rows, cols);
  {
    const Workspace::Scope inner(memory);
    // The second moments of each group's inputs, one matrix [count, count] after another.
    const bool full = seen != detail::Seen::importance;
    double* const moments = memory.take<double>(full ? groups * size * size : 0);
    if (seen == detail::Seen::inputs) {
      const index_t tokens = c.inputs.extent(0) < q.tokens ? c.inputs.extent(0) : q.tokens;
      double* const x = memory.take<double>(tokens * cols);
      for (index_t t = 0; t < tokens; ++t) {
        for (index_t k = 0; k < cols; ++k) x[t * cols + k] = static_cast<double>(c.inputs(t, k));
      }
      cpu.parallel_for(groups, [&](index_t j) {
        const index_t count = cols - j * size < size ? cols - j * size : size;
        detail::product_f64(cpu.isa(), {count, count, tokens, x + j * size, 1, cols, x + j * size, cols,
                                        moments + j * size * size, count, 0, 1.0 / static_cast<double>(tokens)});
      });
    } else if (seen == detail::Seen::hessian) {
      cpu.parallel_for(groups, [&](index_t j) {
        const index_t count = cols - j * size < size ? cols - j * size : size;
        for (index_t a = 0; a < count; ++a) {
          for (index_t b = 0; b < count; ++b)
            moments[j * size * size + a * count + b] = c.hessian(j * size + a, j * size + b) / 2;
        }
      });
    }

    const index_t parts = cpu.parts(detail::lane_blocks(rows), 1);
    double* const changes = memory.take<double>(parts * size * lanes);
    double* const outputs = memory.take<double>(parts * size * lanes);
    float* const narrowed = memory.take<float>(parts * size);
    const typename F::Layer layer = format.layer(w);
    cpu.parallel_ranges(detail::lane_blocks(rows), 1, [&](index_t first, index_t last, index_t part) {
      double* const d = changes + part * size * lanes;
      double* const y = outputs + part * size * lanes;
      float* const now = narrowed + part * size;
      for (index_t b = first; b < last; ++b) {
        const index_t begin = b * lanes;
        const index_t there = rows - begin < lanes ? rows - begin : lanes;
        for (index_t j = 0; j < groups; ++j) {
          const index_t at = j * size;
          const index_t count = cols - at < size ? cols - at : size;
          const float* const importance = c.importance.empty() ? nullptr : c.importance.data() + at;
          float largest[lanes] = {};
          float best[lanes] = {};
          double least[lanes] = {};
          for (index_t lane = 0; lane < there; ++lane) {
            for (index_t i = 0; i < count; ++i) {
              const float magnitude = std::abs(w(begin + lane, at + i));
              largest[lane] = magnitude > largest[lane] ? magnitude : largest[lane];
            }
          }
          for (int step = 0; step < q.steps; ++step) {
            const float share = 1.0f - static_cast<float>(step) / 20.0f;
            for (index_t i = 0; i < count * lanes; ++i) d[i] = 0;
            for (index_t lane = 0; lane < there; ++lane) {
              const float range = largest[lane] * share;
              for (index_t i = 0; i < count; ++i) {
                const float x = w(begin + lane, at + i);
                now[i] = x > range ? range : x < -range ? -range : x;
              }
              const typename F::Group g = format.fit(layer, now, importance, count);
              for (index_t i = 0; i < count; ++i) {
                const float value = format.value(layer, g, i, format.nearest(layer, g, i, now[i]));
                d[i * lanes + lane] = static_cast<double>(value) - static_cast<double>(w(begin + lane, at + i));
              }
            }
            double loss[lanes] = {};
            if (full) {
              detail::product_f64(cpu.isa(), {count, lanes, count, moments + j * size * size, count, 1, d, lanes, y,
                                              lanes, 0, 1});
              for (index_t i = 0; i < count * lanes; ++i) loss[i % lanes] += y[i] * d[i];
            } else {
              for (index_t i = 0; i < count * lanes; ++i)
                loss[i % lanes] += static_cast<double>(importance[i / lanes]) * d[i] * d[i];
            }
            for (index_t lane = 0; lane < there; ++lane) {
              if (step != 0 && !(loss[lane] < least[lane])) continue;
              least[lane] = loss[lane];
              best[lane] = largest[lane] * share;
            }
          }
          for (index_t lane = 0; lane < there; ++lane) {
            for (index_t i = 0; i < count; ++i) {
              const float x = w(begin + lane, at + i);
              clipped(begin + lane, at + i) = x > best[lane] ? best[lane] : x < -best[lane] ? -best[lane] : x;
            }
          }
        }
      }
    });
  }
  quantize(cpu, q.inner, View<const float, 2>(clipped), c, out);
}

}  // namespace decant::quant

#endif
