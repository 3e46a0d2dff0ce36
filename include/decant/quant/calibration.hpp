// decant: what weight quantizers may know of a layer's inputs x_t [cols], t = 1 ... T: sums over a calibration text.
// Calibration is views of the caller's memory; a quantizer says which of them it reads (needs), and one that can do
// without takes importance 1.
#ifndef DECANT_QUANT_CALIBRATION_HPP
#define DECANT_QUANT_CALIBRATION_HPP

#include "../core/error.hpp"
#include "../core/view.hpp"

namespace decant::quant {

/// Every member may be left empty. All finite, vectors and rows contiguous.
struct Calibration {
  /// [cols] mean_t x_tk^2, >= 0; only ratios matter. The weight of column k in weighted errors.
  View<const float, 1> importance{};
  /// [cols] mean_t |x_tk|, what AWQ scales by.
  View<const float, 1> magnitude{};
  /// [cols, cols] (2/T) sum_t x_t x_t^T, symmetric, row-major: the Hessian of the layer's squared error, GPTQ's H.
  View<const double, 2> hessian{};
  /// [tokens, cols] some of the inputs themselves, for searches that look at outputs (AWQ).
  View<const float, 2> inputs{};
};

/// Which members a quantizer cannot do without; matrices of other than `cols` columns raise ArgumentError.
struct Needs {
  bool importance = false;
  bool magnitude = false;
  bool hessian = false;
  bool inputs = false;
};

/// Raises ArgumentError when a member that is there has another shape or a stride, or one that is needed is not there.
inline void require_calibration(const Calibration& c, const Needs& needs, index_t cols, const char* where) {
  const auto check = [&](bool there, bool needed, const char* argument, const char* what) {
    if (!there) require(!needed, where, argument, what, "nothing");
  };
  check(!c.importance.empty(), needs.importance, "calibration.importance", "the mean square of each input");
  check(!c.magnitude.empty(), needs.magnitude, "calibration.magnitude", "the mean magnitude of each input");
  check(!c.hessian.empty(), needs.hessian, "calibration.hessian", "the inputs' second moments");
  check(!c.inputs.empty(), needs.inputs, "calibration.inputs", "some of the inputs");
  if (!c.importance.empty()) require_equal(c.importance.extent(0), cols, where, "calibration.importance");
  if (!c.magnitude.empty()) require_equal(c.magnitude.extent(0), cols, where, "calibration.magnitude");
  if (!c.hessian.empty()) {
    require_equal(c.hessian.extent(0), cols, where, "calibration.hessian");
    require_equal(c.hessian.extent(1), cols, where, "calibration.hessian");
  }
  if (!c.inputs.empty()) require_equal(c.inputs.extent(1), cols, where, "calibration.inputs");
  require_contiguous(c.importance, where, "calibration.importance");
  require_contiguous(c.magnitude, where, "calibration.magnitude");
  require(c.hessian.contiguous(), where, "calibration.hessian", "contiguous rows, one after another",
          c.hessian.stride(0));
  require(c.inputs.empty() || cols == 1 || c.inputs.stride(1) == 1, where, "calibration.inputs", "contiguous rows",
          c.inputs.stride(1));
}

}  // namespace decant::quant

#endif
