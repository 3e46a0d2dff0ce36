// decant: the parameters of OSAQ, outlier self-absorption (arXiv 2605.04738): before a layer is quantized, every row of
// its weights is moved within the directions that its inputs hardly use, so that its largest weights shrink. osaq.hpp
// says how, and does it; it needs Eigen, this does not.
#ifndef DECANT_QUANT_OSAQ_TYPES_HPP
#define DECANT_QUANT_OSAQ_TYPES_HPP

#include <cstdint>

#include "policy.hpp"

namespace decant::quant {

enum class OsaqMode : std::uint8_t {
  paper,    ///< the paper's equations 7 to 13: one closed-form solution per row
  guarded,  ///< weights per group, a floor instead of the ridge, a search for the step, several rounds [ours]
};
constexpr const char* name(OsaqMode m) { return m == OsaqMode::paper ? "paper" : "guarded"; }

/// Whether a row only moves where the sum of its groups' ranges falls.
enum class OsaqGuard : std::uint8_t {
  by_mode,  ///< on in mode guarded, off in mode paper
  off,
  on,
};
constexpr const char* name(OsaqGuard g) {
  constexpr const char* names[] = {"by_mode", "off", "on"};
  return names[static_cast<int>(g)];
}

struct OsaqTransform {
  OsaqMode mode = OsaqMode::guarded;
  /// How much of the Hessian's trace lies in the directions that rows are moved in.
  double gamma = 1e-4;
  /// Times the mean of the Hessian's diagonal, added to it: with fewer than 4 calibration tokens per column, directions
  /// that were not seen are not safe, and 1e-3 belongs here.
  double shrink = 0;
  // Mode paper: weights e^(|w| / tau) over their sum, tau in units of the weights; where tau_rel > 0, it is that times
  // the row's largest magnitude. Ridges on the solution and on what it adds to a row's sum.
  double tau = 0.1;
  double tau_rel = 0;
  double mu1 = 1e-3;
  double mu2 = 1e-3;
  // Mode guarded: weights (1 - eta) softmax(beta |w| / the group's largest) + eta / group.
  double beta = 6;
  double eta = 0.3;
  int iters = 0;  ///< rounds; 0: 3 in mode guarded, 1 in mode paper
  OsaqGuard guard = OsaqGuard::by_mode;
  /// One set of weights for all rows, their mean: one factorisation for the layer instead of one per row.
  bool shared_p = false;

  bool operator==(const OsaqTransform&) const = default;

  bool guards() const { return guard == OsaqGuard::on || (guard == OsaqGuard::by_mode && mode == OsaqMode::guarded); }
  int rounds() const { return iters > 0 ? iters : mode == OsaqMode::paper ? 1 : 3; }
};

inline void validate(const OsaqTransform& t) {
  constexpr const char* where = "quant::OsaqTransform";
  require(t.mode <= OsaqMode::guarded, where, "mode", "a mode", static_cast<int>(t.mode));
  require(t.guard <= OsaqGuard::on, where, "guard", "by_mode, off or on", static_cast<int>(t.guard));
  require(t.gamma >= 0 && t.gamma < 1, where, "gamma", "at least 0 and below 1", t.gamma);
  require(t.shrink >= 0 && t.shrink <= 1, where, "shrink", "between 0 and 1", t.shrink);
  require(t.tau > 0, where, "tau", "above 0", t.tau);
  require(t.tau_rel >= 0, where, "tau_rel", "at least 0", t.tau_rel);
  require(t.mu1 > 0 && t.mu2 >= 0, where, "mu1, mu2", "above 0, at least 0", t.mu1 > 0 ? t.mu2 : t.mu1);
  require(t.beta >= 0, where, "beta", "at least 0", t.beta);
  require(t.eta >= 0 && t.eta <= 1, where, "eta", "between 0 and 1", t.eta);
  require(t.iters >= 0, where, "iters", "at least 0", t.iters);
}

/// What a transform did.
struct OsaqReport {
  index_t directions = 0;   ///< that rows could be moved in
  double range_before = 0;  ///< the sum over rows and groups of largest - smallest weight
  double range_after = 0;
};

/// Moves the weights, then quantizes them with Inner, any quantizer: Osaq<Gptq<Int<2>>>. Inner gets the calibration as
/// it is, for inputs stay what they are.
template <class Inner>
struct Osaq {
  using Format = typename Inner::Format;
  Inner inner{};
  OsaqTransform transform{};
  /// Quantizes both ways and keeps, row by row, what changes outputs less. Where rows share nothing (formats without a
  /// table or a tensor scale) no row is then worse than with Inner alone. 3 times the work.
  bool accept = false;
  bool operator==(const Osaq&) const = default;
  Format format() const { return inner.format(); }
};
template <class Inner>
Osaq(Inner) -> Osaq<Inner>;
template <class Inner>
Osaq(Inner, OsaqTransform) -> Osaq<Inner>;
template <class Inner>
Osaq(Inner, OsaqTransform, bool) -> Osaq<Inner>;

template <class Inner>
void validate(const Osaq<Inner>& q, index_t cols) {
  validate(q.transform);
  validate(q.inner, cols);
}
template <class Inner>
Needs needs(const Osaq<Inner>& q) {
  Needs n = needs(q.inner);
  n.hessian = true;
  return n;
}

}  // namespace decant::quant

#endif
