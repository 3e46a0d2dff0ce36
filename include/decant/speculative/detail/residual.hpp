// decant: what is left of a node's target while its children are offered, as two numbers and a short list. Rejecting
// a sampled child takes its law Q off the target mass W: W(y) becomes max(W(y) - Q(y), 0), rescaled. All siblings have
// the same q up to tokens that are no longer drawn, and max(max(w - a, 0) - b, 0) = max(w - (a + b), 0): so after any
// number of rejections W(y) is A(y) / norm, A(y) = max(scale p(y) - cut q(y), 0), but for the listed tokens. One kernel
// over a row of p and a row of q is behind all verifiers. [ours]
#ifndef DECANT_SPECULATIVE_DETAIL_RESIDUAL_HPP
#define DECANT_SPECULATIVE_DETAIL_RESIDUAL_HPP

#include <cstdint>

#include "../../config.hpp"
#include "../../core/detail/rounded.hpp"

namespace decant::speculative::detail {

/// A token that is no longer drawn at this node, and keeps numbers of its own.
template <class Real>
struct Exception {
  std::int64_t token;  // as wide as the others: without padding, which copies would read
  Real scale;
  Real cut;
};

/// A at one node. Exceptions: in the caller's scratch, ascending by token, no token twice. With `floor`, which K-SEQ
/// needs, A(y) = max(scale p(y) - cut q(y), floor p(y)).
template <class Real>
struct Residual {
  std::int32_t node = 0;    ///< whose row p is
  std::int32_t q_row = -1;  ///< -1: cut is 0 everywhere
  Real scale{};
  Real cut{};
  Real floor{};
  const Exception<Real>* exceptions = nullptr;
  std::int32_t count = 0;
};

/// Of the pass that takes step * q off: with A' = max(scale p - (cut + step) q, 0) at tokens that are not listed,
/// A unchanged at listed ones,
template <class Real>
struct PassSums {
  Real left{};   ///< sum of A'
  Real over{};   ///< over tokens not listed: sum of step q - A where that is positive, as min(step q, (cut + step) q -
                 ///< scale p): no difference of sums
  Real drawn{};  ///< over tokens not listed, without the one that the pass was told to skip: sum of q
};

/// On a device one thread of the block writes scratch, and barriers stand between it and the readers: rows.pass() and
/// a draw begin and end with one.
DECANT_HD inline bool writes_scratch() {
#if defined(__CUDA_ARCH__)
  return threadIdx.x == 0;
#else
  return true;
#endif
}
DECANT_HD inline void scratch_barrier() {
#if defined(__CUDA_ARCH__)
  __syncthreads();
#endif
}

/// A at one token, without a floor.
template <class Real>
DECANT_HD constexpr Real left_of(const Real& scale, const Real& p, const Real& cut, const Real& q) {
  const Real d = scale * p - cut * q;
  return d < Real{} ? Real{} : d;  // NaN stays
}

/// The numbers of a pass over rows of fp32, as its terms use them.
struct PassScalars {
  float scale;
  float cut;   // after the pass
  float step;

  DECANT_HD static PassScalars of(const Residual<double>& residual, double step) {
    return {static_cast<float>(residual.scale), static_cast<float>(residual.cut + step), static_cast<float>(step)};
  }
};

/// The pass that was made last. Its totals of `left` are still there for a draw from the same A.
struct LastPass {
  std::int32_t node = 0;
  std::int32_t q_row = 0;
  float scale = 0;
  float cut = 0;
  bool valid = false;

  DECANT_HD static LastPass of(const Residual<double>& residual, const PassScalars& s) {
    return {residual.node, residual.q_row, s.scale, s.cut, true};
  }
  /// Whether they are A's, but for tiles with listed tokens.
  DECANT_HD bool serves(const Residual<double>& residual) const {
    return valid && residual.floor == 0 && node == residual.node && q_row == residual.q_row &&
           scale == static_cast<float>(residual.scale) && cut == static_cast<float>(residual.cut);
  }
};

/// What a token that is not listed adds to left and over. Every product is rounded by itself, so that all instruction
/// sets and devices agree to the bit; a NaN in p or q reaches `left`.
struct PassTerms {
  float left;
  float over;
};
DECANT_HD inline PassTerms pass_terms(const PassScalars& s, float p, float q) {
  using ::decant::detail::rounded_product;
  const float d = rounded_product(s.scale, p) - rounded_product(s.cut, q);
  const float whole = rounded_product(s.step, q);
  const float lost = d < 0 ? -d : 0.0f;
  return {d < 0 ? 0.0f : d, whole < lost ? whole : lost};
}

/// A chance as a race takes it: NaN where it is none.
DECANT_HD inline float weight_of(float p) { return p >= 0 && p < __builtin_huge_valf() ? p : __builtin_nanf(""); }

/// A, as a draw adds it up. Without a floor the same bits as pass_terms().left.
DECANT_HD inline float draw_term(float scale, float cut, float floor, float p, float q) {
  using ::decant::detail::rounded_product;
  const float d = rounded_product(scale, p) - rounded_product(cut, q);
  const float least = rounded_product(floor, p);
  return d < least ? least : d;
}

}  // namespace decant::speculative::detail

#endif
