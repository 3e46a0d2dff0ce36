// decant: how one node of a draft tree shares its probability of answering "pass" among its children and itself.
// A plan is asked child by child: offer() gives the scale at which the child is to be verified, reject() says that it
// failed; own() is then the node's own chance. Every lossless verifier is a plan and a walk (walk.hpp).
//
// Why it is lossless [ours; Theorem 4 of UniVer, arXiv 2605.04543, says that local losslessness suffices]. Claim: asked
// at scale m, a node passes with probability m, whatever happens outside its subtree, and then emits its target's law.
// By induction: child x ~ Q is offered at a = min(W(x) / Q(x), 1), W = m P. So output begins with y through the child
// with probability Q(y) a = min(W(y), Q(y)); with probability D = 1 - sum min(W, Q) it fails, and the rest of the node
// runs on W' = max(W - Q, 0) / D. The two add up to W(y). At the root m = 1, D = sum W', and m stays 1.
#ifndef DECANT_SPECULATIVE_DETAIL_PLAN_HPP
#define DECANT_SPECULATIVE_DETAIL_PLAN_HPP

#include <cstdint>

#include "../tree.hpp"
#include "residual.hpp"

namespace decant::speculative::detail {

/// The memory that plans share: one element per node of the tree, used by the node's parent.
template <class Real>
struct PlanScratch {
  Real* cuts = nullptr;                  ///< [nodes] of children drawn without replacement: the cut at their rejection
  Exception<Real>* exceptions = nullptr; ///< [nodes], for one residual at a time
};

/// Below this mass nothing is left: rounding alone made it.
template <class Real>
DECANT_HD constexpr bool nothing(const Real& mass) {
  if constexpr (requires { Real::exact; }) {
    return !(Real{} < mass);
  } else {
    return mass < Real(1e-30);  // NaN is something, and is reported where it is drawn from
  }
}

/// Sorts by token; insertion, for a few elements that come nearly sorted.
template <class Real>
DECANT_HD constexpr void sort_exceptions(Exception<Real>* e, std::int32_t n) {
  for (std::int32_t i = 1; i < n; ++i) {
    const Exception<Real> x = e[i];
    std::int32_t j = i;
    for (; j > 0 && x.token < e[j - 1].token; --j) e[j] = e[j - 1];
    e[j] = x;
  }
}

/// a / b, at most 1; 0 where b is 0.
template <class Real>
DECANT_HD constexpr Real share_of(const Real& a, const Real& b) {
  if (!(Real{} < b)) return Real{};
  return b <= a ? Real(1) : a / b;
}

/// The masses of sequential residuals, children in storage order: SpecInfer, RRSw, greedy multi-draft, block and
/// traversal verification, UniVer with the sampled child first.
template <class Real>
class SequentialPlan {
 public:
  SequentialPlan() = default;
  DECANT_HD SequentialPlan(const TreeView&, std::int32_t node, const Real& m) : node_(node), m_(m), scale_(m) {}

  /// The child that is visited i-th, and when a child is visited.
  DECANT_HD static std::int32_t visited(const TreeView& t, std::int32_t node, std::int32_t i) {
    return t.first_child[node] + i;
  }
  DECANT_HD static std::int32_t turn(const TreeView& t, std::int32_t child) {
    return child - t.first_child[t.parent[child]];
  }

  DECANT_HD std::int32_t node() const { return node_; }
  /// The next child to offer, or -1.
  DECANT_HD std::int32_t next(const TreeView& t) const {
    return dead_ || tried_ == t.children[node_] ? -1 : visited(t, node_, tried_);
  }

  /// The scale at which the next child is to be verified.
  DECANT_HD_AS_ARGUMENTS
  template <class Rows>
  DECANT_HD Real offer(const TreeView& t, Rows& rows, const PlanScratch<Real>& scratch) {
    const std::int32_t x = t.token[t.first_child[node_] + tried_];
    const Law law = t.law[node_];
    const Real p = rows.target(node_, x);
    if (!sampled_child(law, tried_)) return share_of<Real>(scale_ * p, norm_);
    const Real q = rows.draft(t.q_row[node_], x);
    if (law == Law::greedy_plus_one) share_ = rest(t, rows, scratch);
    // W / Q; a token that q does not have cannot have been drawn.
    return Real{} < q ? share_of<Real>(left_of(scale_, p, cut_, q) * share_, q * norm_) : Real{};
  }

  DECANT_HD_AS_ARGUMENTS
  template <class Rows>
  DECANT_HD void reject(const TreeView& t, Rows& rows, const PlanScratch<Real>& scratch) {
    const std::int32_t child = t.first_child[node_] + tried_;
    const Law law = t.law[node_];
    if (!sampled_child(law, tried_)) {
      // A point mass at x: W(x) becomes 0, and D = 1 - W(x). No pass over the row.
      const Real mass = scale_ * rows.target(node_, t.token[child]);
      const Real left = (whole() ? norm_ : m_ * norm_) - mass;
      ++tried_;
      rescale(left, norm_ - mass);
    } else if (Real{} < share_) {
      const Real step = norm_ / share_;
      const PassSums<Real> sums = rows.pass(residual(t, scratch), step, t.token[child]);
      cut_ = cut_ + step;
      if (law == Law::without_replacement) {
        if (writes_scratch()) scratch.cuts[child] = cut_;
        share_ = sums.drawn;
      }
      ++tried_;
      rescale(sums.left, sums.over);
    } else {  // q has nothing left to draw from: this child was not drawn
      ++tried_;
    }
  }

  /// The chance of the node itself, after all its children.
  DECANT_HD Real own() const { return m_; }

  /// The mass of q outside the top tokens of a greedy_plus_one node, as the drafter says or as its row sums up.
  DECANT_HD_AS_ARGUMENTS
  template <class Rows>
  DECANT_HD Real rest(const TreeView& t, Rows& rows, const PlanScratch<Real>& scratch) const {
    if constexpr (!requires { Real::exact; }) {
      if (t.rest[node_] > 0) return Real(t.rest[node_]);
    }
    return rows.pass(residual(t, scratch), Real{}, -1).drawn;
  }

  /// What the node itself emits from, up to a factor: A after the children that were rejected.
  DECANT_HD Residual<Real> residual(const TreeView& t, const PlanScratch<Real>& scratch) const {
    const Law law = t.law[node_];
    const std::int32_t first = t.first_child[node_];
    const bool top = law == Law::greedy_plus_one;  // whose point masses are never drawn, tried or not
    const std::int32_t from = top ? 1 : 0;
    const std::int32_t to = law == Law::chain || law == Law::iid ? from : top ? t.children[node_] : tried_;
    const std::int32_t count = to > from ? to - from : 0;
    if (writes_scratch()) {
      for (std::int32_t i = from; i < from + count; ++i) {
        const bool drawn = law == Law::without_replacement;
        const bool gone = !drawn && i < tried_;
        scratch.exceptions[i - from] = {t.token[first + i], gone ? Real{} : scale_,
                                        drawn ? scratch.cuts[first + i] : Real{}};
      }
      sort_exceptions(scratch.exceptions, count);
    }
    return {node_, t.q_row[node_], scale_, cut_, Real{}, scratch.exceptions, count};
  }

 private:
  DECANT_HD bool whole() const { return !(m_ < Real(1)); }

  /// W becomes A / norm with sum of A = left. At scale 1 the two are the same but for rounding; it stays 1.
  DECANT_HD void rescale(const Real& left, const Real& norm) {
    dead_ = nothing(left);
    norm_ = whole() ? left : norm;
    if (!whole()) m_ = dead_ ? Real{} : share_of(left, norm);
  }

  std::int32_t node_ = 0;
  std::int32_t tried_ = 0;
  bool dead_ = false;  // nothing is left: no child can pass any more
  Real m_{};           // the chance that is still to be given
  Real scale_{};       // of p in A
  Real cut_{};         // of q in A
  Real norm_ = Real(1);   // W = A / norm
  Real share_ = Real(1);  // the next drawn child's Q is q / share
};

/// The masses that UniVer's paper states for greedy_plus_one: the top tokens in storage order, the sampled child last.
/// The masses are those of SequentialPlan, and only the order, so the scales, differ. Other laws: SequentialPlan.
template <class Real>
class JointPlan {
 public:
  JointPlan() = default;
  DECANT_HD JointPlan(const TreeView& t, std::int32_t node, const Real& m)
      : sequential_(t, node, m), m_(m), joint_(t.law[node] == Law::greedy_plus_one && t.children[node] > 0) {}

  DECANT_HD static std::int32_t visited(const TreeView& t, std::int32_t node, std::int32_t i) {
    if (t.law[node] != Law::greedy_plus_one) return SequentialPlan<Real>::visited(t, node, i);
    return t.first_child[node] + (i + 1 == t.children[node] ? 0 : i + 1);
  }
  DECANT_HD static std::int32_t turn(const TreeView& t, std::int32_t child) {
    const std::int32_t parent = t.parent[child];
    const std::int32_t i = SequentialPlan<Real>::turn(t, child);
    return t.law[parent] != Law::greedy_plus_one ? i : i == 0 ? t.children[parent] - 1 : i - 1;
  }

  DECANT_HD std::int32_t node() const { return sequential_.node(); }
  DECANT_HD std::int32_t next(const TreeView& t) const {
    if (!joint_) return sequential_.next(t);
    return tried_ == t.children[node()] ? -1 : visited(t, node(), tried_);
  }

  DECANT_HD_AS_ARGUMENTS
  template <class Rows>
  DECANT_HD Real offer(const TreeView& t, Rows& rows, const PlanScratch<Real>& scratch) {
    if (!joint_) return sequential_.offer(t, rows, scratch);
    if (tried_ == 0) prepare(t, rows, scratch);
    const std::int32_t k = t.children[node()];
    if (tried_ + 1 == k) return share_of<Real>(sampled_, sampled_ + undrafted_ + refused_);
    Real tail = sampled_ + undrafted_ + refused_;
    Real own{};
    for (std::int32_t i = k - 2; i >= tried_; --i) {  // the smallest first, as they come
      own = factor_ * m_ * rows.target(node(), t.token[visited(t, node(), i)]);
      tail = tail + own;
    }
    return share_of<Real>(own, tail);
  }
  DECANT_HD_AS_ARGUMENTS
  template <class Rows>
  DECANT_HD void reject(const TreeView& t, Rows& rows, const PlanScratch<Real>& scratch) {
    if (joint_) {
      ++tried_;
    } else {
      sequential_.reject(t, rows, scratch);
    }
  }

  DECANT_HD Real own() const {
    if (!joint_) return sequential_.own();
    return m_ < Real(1) ? share_of<Real>(undrafted_, undrafted_ + refused_) : Real(1);
  }

  DECANT_HD Residual<Real> residual(const TreeView& t, const PlanScratch<Real>& scratch) const {
    return joint_ ? drafted_left_out(t, scratch, cut_) : sequential_.residual(t, scratch);
  }

 private:
  DECANT_HD_AS_ARGUMENTS
  template <class Rows>
  DECANT_HD void prepare(const TreeView& t, Rows& rows, const PlanScratch<Real>& scratch) {
    const std::int32_t s = t.token[t.first_child[node()]];
    const Real share = sequential_.rest(t, rows, scratch);
    const Real q = Real{} < share ? rows.draft(t.q_row[node()], s) / share : Real{};
    const bool drawn = Real{} < q;
    cut_ = drawn ? Real(1) / share : Real{};
    const PassSums<Real> sums = rows.pass(drafted_left_out(t, scratch, Real{}), cut_, -1);
    const Real p = m_ * rows.target(node(), s);
    const Real lost = p < q ? q - p : Real{};  // of the sampled child's draft mass
    factor_ = drawn ? (Real{} < lost ? lost / q / (sums.over + lost) : Real{}) : Real(1);
    sampled_ = drawn ? share_of<Real>(p, q) : Real{};
    undrafted_ = factor_ * sums.left;
    refused_ = m_ < Real(1) ? factor_ * (Real(1) - m_) : Real{};
  }

  /// m p - cut q without the drafted tokens.
  DECANT_HD Residual<Real> drafted_left_out(const TreeView& t, const PlanScratch<Real>& scratch,
                                            const Real& cut) const {
    const std::int32_t first = t.first_child[node()];
    if (writes_scratch()) {
      for (std::int32_t i = 0; i < t.children[node()]; ++i) {
        scratch.exceptions[i] = {t.token[first + i], Real{}, Real{}};
      }
      sort_exceptions(scratch.exceptions, t.children[node()]);
    }
    return {node(), t.q_row[node()], m_, cut, Real{}, scratch.exceptions, t.children[node()]};
  }

  SequentialPlan<Real> sequential_;
  Real m_{};
  bool joint_ = false;
  std::int32_t tried_ = 0;
  Real cut_{};
  Real factor_{};     // of the masses of all but the sampled child
  Real sampled_{};    // its mass
  Real undrafted_{};  // of all tokens that no child carries
  Real refused_{};    // of answering "fail"
};

/// K-SEQ (SpecTr, arXiv 2310.15141): independent draws, each accepted with min(1, p / (rho q)), whatever was rejected
/// before it. rho: at most K; 0: the smallest that is valid, by bisection.
template <class Real>
class KSeqPlan {
 public:
  KSeqPlan() = default;
  DECANT_HD KSeqPlan(const TreeView&, std::int32_t node, const Real&, const Real& rho = Real{})
      : node_(node), rho_(rho) {}

  DECANT_HD std::int32_t node() const { return node_; }
  DECANT_HD std::int32_t next(const TreeView& t) const {
    return tried_ == t.children[node_] ? -1 : t.first_child[node_] + tried_;
  }
  DECANT_HD_AS_ARGUMENTS
  template <class Rows>
  DECANT_HD Real offer(const TreeView& t, Rows& rows, const PlanScratch<Real>&) {
    if (tried_ == 0) prepare(t, rows);
    const std::int32_t x = t.token[t.first_child[node_] + tried_];
    return share_of<Real>(rows.target(node_, x), rho_ * rows.draft(t.q_row[node_], x));
  }
  DECANT_HD_AS_ARGUMENTS
  template <class Rows>
  DECANT_HD void reject(const TreeView&, Rows&, const PlanScratch<Real>&) {
    ++tried_;
  }
  DECANT_HD Real own() const { return Real(1); }
  /// p - min(q, p / rho) pacc / beta.
  DECANT_HD Residual<Real> residual(const TreeView& t, const PlanScratch<Real>& scratch) const {
    if (tried_ == 0) return {node_, -1, Real(1), Real{}, Real{}, scratch.exceptions, 0};
    return {node_, t.q_row[node_], Real(1), taken_, Real(1) - taken_ / rho_, scratch.exceptions, 0};
  }

 private:
  /// The chance that one of k draws is accepted.
  DECANT_HD static Real any_of(const Real& beta, std::int32_t k) {
    Real none(1);
    for (std::int32_t i = 0; i < k; ++i) none = none * (Real(1) - beta);
    return Real(1) - none;
  }
  DECANT_HD_AS_ARGUMENTS
  template <class Rows>
  DECANT_HD void prepare(const TreeView& t, Rows& rows) {
    const std::int32_t k = t.children[node_];
    const std::int32_t q_row = t.q_row[node_];
    if (!(Real{} < rho_)) {
      Real low(1);
      Real high(k);
      for (int i = 0; i < 40; ++i) {
        const Real middle = (low + high) / Real(2);
        const Real beta = rows.overlap(node_, q_row, middle);
        if (middle * beta < any_of(beta, k)) low = middle;
        else high = middle;
      }
      rho_ = high;
    }
    const Real beta = rows.overlap(node_, q_row, rho_);
    taken_ = Real{} < beta ? any_of(beta, k) / beta : Real{};
    if (rho_ < taken_) taken_ = rho_;  // by rounding
  }

  std::int32_t node_ = 0;
  std::int32_t tried_ = 0;
  Real rho_{};
  Real taken_{};  // pacc / beta
};

}  // namespace decant::speculative::detail

#endif
