// decant: proofs of verifiers by enumeration. The recursion that production runs (detail/walk.hpp) is run on every draft
// and every decision in turn, with exact fractions or doubles, so that what comes out is the law of the output, not a
// sample of it: whether it is the target's, how many tokens are accepted on average, and with what chance every node
// passes. For vocabularies of a few tokens and trees of a few nodes: the number of outcomes is exponential.
#ifndef DECANT_SPECULATIVE_EXACT_HPP
#define DECANT_SPECULATIVE_EXACT_HPP

#include <cstdint>
#include <map>
#include <type_traits>
#include <utility>
#include <vector>

#include "../core/error.hpp"
#include "detail/verifier_walks.hpp"
#include "detail/walk.hpp"
#include "draft_tree.hpp"
#include "law.hpp"
#include "rational.hpp"

namespace decant::speculative {

/// Takes every branch of a computation that draws, one per run: run until next() is false. A draw with one possible
/// outcome is no branch.
template <class Real>
class Enumerator {
 public:
  /// The chance of this run's branches.
  const Real& weight() const { return weight_; }

  void begin() {
    at_ = 0;
    weight_ = Real(1);
  }
  /// Moves to the branches of the next run.
  bool next() {
    while (!branches_.empty() && branches_.back().taken + 1 == branches_.back().count) branches_.pop_back();
    if (branches_.empty()) return false;
    ++branches_.back().taken;
    return true;
  }

  /// An index, with chance chances[index] / their sum; -1: none is positive.
  std::int32_t pick(const std::vector<Real>& chances) {
    std::int32_t possible = 0;
    std::int32_t only = -1;
    Real total{};
    for (std::size_t i = 0; i < chances.size(); ++i) {
      if (!(Real{} < chances[i])) continue;
      only = static_cast<std::int32_t>(i);
      ++possible;
      total = total + chances[i];
    }
    if (possible <= 1) return only;
    if (at_ == branches_.size()) branches_.push_back({0, possible});
    std::int32_t skip = branches_[at_++].taken;
    for (std::size_t i = 0; i < chances.size(); ++i) {
      if (!(Real{} < chances[i]) || skip-- > 0) continue;
      weight_ = weight_ * (chances[i] / total);
      return static_cast<std::int32_t>(i);
    }
    return -1;
  }
  bool bernoulli(const Real& chance) {
    if (!(chance < Real(1))) return true;
    return pick({chance, Real(1) - chance}) == 0;
  }

 private:
  struct Branch {
    std::int32_t taken;
    std::int32_t count;
  };
  std::vector<Branch> branches_;
  std::size_t at_ = 0;
  Real weight_ = Real(1);
};

namespace detail {

/// Literal rows: p and q of each node, by the sums that residual.hpp states.
template <class Real>
class ExactRows {
 public:
  std::vector<std::vector<Real>> p, q;  // by node

  Real target(std::int32_t node, std::int32_t token) const { return at(p, node, token); }
  Real draft(std::int32_t row, std::int32_t token) const { return at(q, row, token); }
  bool bad() const { return false; }

  /// A at one token; `listed`: whether it is an exception.
  Real left(const Residual<Real>& r, std::int32_t y, const Real& step, bool& listed) const {
    const Real q_y = r.q_row < 0 ? Real{} : draft(r.q_row, y);
    for (std::int32_t i = 0; i < r.count; ++i) {
      if (r.exceptions[i].token != y) continue;
      listed = true;
      return left_of<Real>(r.exceptions[i].scale, target(r.node, y), r.exceptions[i].cut, q_y);
    }
    listed = false;
    const Real d = left_of<Real>(r.scale, target(r.node, y), r.cut + step, q_y);
    const Real least = r.floor * target(r.node, y);
    return d < least ? least : d;
  }
  PassSums<Real> pass(const Residual<Real>& r, const Real& step, std::int32_t skip) const {
    PassSums<Real> sums;
    for (std::int32_t y = 0; y < vocab(); ++y) {
      bool listed = false;
      sums.left = sums.left + left(r, y, step, listed);
      if (listed) continue;
      const Real lost = left_of<Real>(r.cut + step, draft(r.q_row, y), r.scale, target(r.node, y));
      const Real whole = step * draft(r.q_row, y);
      sums.over = sums.over + (whole < lost ? whole : lost);
      if (y != skip) sums.drawn = sums.drawn + draft(r.q_row, y);
    }
    return sums;
  }
  Real overlap(std::int32_t node, std::int32_t row, const Real& rho) const {
    Real sum{};
    for (std::int32_t y = 0; y < vocab(); ++y) {
      const Real scaled = target(node, y) / rho;
      sum = sum + (draft(row, y) < scaled ? draft(row, y) : scaled);
    }
    return sum;
  }
  std::int32_t vocab() const { return static_cast<std::int32_t>(p[0].size()); }

 private:
  static const Real& at(const std::vector<std::vector<Real>>& rows, std::int32_t row, std::int32_t token) {
    return rows[static_cast<std::size_t>(row)][static_cast<std::size_t>(token)];
  }
};

/// The choices of a walk, all of them in turn.
template <class Real>
struct EnumeratedChoices {
  Enumerator<Real>& enumerator;

  bool accept(const Real& chance, std::int32_t) { return enumerator.bernoulli(chance); }
  std::int32_t emit(const ExactRows<Real>& rows, const Residual<Real>& residual, std::int32_t) {
    std::vector<Real> weights;
    Real most{};
    for (std::int32_t y = 0; y < rows.vocab(); ++y) {
      bool listed = false;
      weights.push_back(rows.left(residual, y, Real{}, listed));
      if (most < weights.back()) most = weights.back();
    }
    if constexpr (std::is_floating_point_v<Real>) {  // what rounding leaves of a difference that is 0
      for (Real& w : weights) w = w < most * Real(1e-14) || w < Real(1e-15) ? Real{} : w;
    }
    return enumerator.pick(weights);
  }
  std::int32_t emit_next(const ExactRows<Real>& rows, const Residual<Real>& residual, std::int32_t depth) {
    return emit(rows, residual, depth);
  }
};

/// What verifier v makes of one drafted tree.
template <class V, class Real>
WalkEnd exact_walk(const V& v, const TreeView& t, ExactRows<Real>& rows, EnumeratedChoices<Real>& choices) {
  std::vector<Real> cuts(static_cast<std::size_t>(t.nodes));
  std::vector<Exception<Real>> exceptions(static_cast<std::size_t>(t.nodes));
  const PlanScratch<Real> scratch{cuts.data(), exceptions.data()};
  const auto upwards = [&]<class Plan>(std::vector<Plan> plans) {
    if constexpr (std::same_as<V, UniVer>) {
      if (v.eval == UniVer::Eval::level_parallel) {
        std::vector<Real> scales(static_cast<std::size_t>(t.nodes));
        scales[0] = Real(1);
        for (std::int32_t i = 0; i < t.nodes; ++i) allocate(t, i, scales.data(), plans.data(), rows, scratch);
        return decide(t, plans.data(), rows, choices, scratch);
      }
    }
    return bottom_up<Real>(t, 0, Real(1), plans.data(), rows, choices, scratch);
  };
  const auto n = static_cast<std::size_t>(t.nodes);
  if constexpr (direction_of<V> == Direction::follow_target) {
    return follow_target<Real>(t, rows, choices);
  } else if constexpr (direction_of<V> == Direction::bottom_up) {
    if constexpr (std::same_as<V, UniVer>) {
      if (v.order == UniVer::Order::paper) return upwards(std::vector<JointPlan<Real>>(n));
    }
    return upwards(std::vector<SequentialPlan<Real>>(n));
  } else {
    const auto make = [&](std::int32_t node, const Real& m) {
      if constexpr (std::same_as<V, KSeq>) {
        return KSeqPlan<Real>(t, node, m, Real(static_cast<std::int64_t>(v.rho)));
      } else {
        return SequentialPlan<Real>(t, node, m);
      }
    };
    return top_down<Real>(t, make, rows, choices, scratch);
  }
}

}  // namespace detail

/// Draws a tree of the given branching per level by a law, node after node, every draw a branch of the enumeration.
/// p(path), q(path) -> std::vector<Real>: target and draft distributions after the drafted tokens of a path (std::
/// vector<std::int32_t>, the root's is empty). Fewer children than asked for where q has no more tokens. `rows` gets the
/// distributions of every node.
template <class Real, class P, class Q>
DraftTree enumerate_draft(Enumerator<Real>& enumerator, const std::vector<std::int32_t>& branching, Law law, const P& p,
                          const Q& q, detail::ExactRows<Real>& rows) {
  using Path = std::vector<std::int32_t>;
  DraftTree tree;
  std::vector<Path> paths = {{}};  // by node; nodes are pushed breadth first
  for (std::int32_t node = 0; node < tree.nodes(); ++node) {
    const Path path = paths[static_cast<std::size_t>(node)];
    rows.p.push_back(p(path));
    rows.q.push_back(q(path));
    if (path.size() == branching.size()) continue;
    const std::int32_t k = branching[path.size()];
    std::vector<Real> left = rows.q.back();
    std::vector<std::int32_t> tokens, top;
    if (law == Law::greedy_plus_one || law == Law::deterministic) {
      std::vector<Real> by_rank = left;
      for (std::int32_t i = 0; i < k - (law == Law::greedy_plus_one ? 1 : 0); ++i) {
        std::size_t best = 0;
        for (std::size_t y = 1; y < by_rank.size(); ++y) best = by_rank[best] < by_rank[y] ? y : best;
        if (by_rank[best] < Real{}) break;
        top.push_back(static_cast<std::int32_t>(best));
        by_rank[best] = Real(-1);
        left[best] = Real{};
      }
    }
    Law drawn = law;
    if (law == Law::greedy_plus_one) {
      const std::int32_t token = enumerator.pick(left);
      if (token >= 0) tokens.push_back(token);
      else drawn = Law::deterministic;  // q has nothing outside its top tokens
    }
    for (std::int32_t i = 0; i < k && law != Law::greedy_plus_one && law != Law::deterministic; ++i) {
      const std::int32_t token = enumerator.pick(left);
      if (token < 0) break;
      tokens.push_back(token);
      if (law == Law::without_replacement) left[static_cast<std::size_t>(token)] = Real{};
    }
    tokens.insert(tokens.end(), top.begin(), top.end());
    tree.set_law(node, drawn, node);
    for (const std::int32_t token : tokens) {
      tree.push_child(node, token, 0);
      paths.push_back(path);
      paths.back().push_back(token);
    }
  }
  tree.finalize();
  return tree;
}

/// What an enumeration found.
template <class Real>
struct Proof {
  Real expected_length{};             ///< E[tau], accepted drafted tokens per step
  bool lossless = false;              ///< whether outputs have the target's joint law (Real = double: within 1e-12)
  double largest_difference = 0;      ///< between the two laws, at one sequence
  std::vector<Real> pass_mass;        ///< the chance that node i is accepted; the root's is 1; E[tau] is the others' sum
  index_t outcomes = 0;               ///< runs of the recursion
  std::map<std::vector<std::int32_t>, Real> law;  ///< of depth + 1 tokens, completed by the target where fewer came out
};

namespace detail {

template <class Real, class P>
void complete(std::vector<std::int32_t>& path, std::size_t length, const Real& weight, const P& p,
              std::map<std::vector<std::int32_t>, Real>& law) {
  if (path.size() == length) {
    law[path] = law[path] + weight;
    return;
  }
  const std::vector<Real> next = p(path);
  for (std::size_t y = 0; y < next.size(); ++y) {
    if (!(Real{} < next[y])) continue;
    path.push_back(static_cast<std::int32_t>(y));
    complete(path, length, weight * next[y], p, law);
    path.pop_back();
  }
}

}  // namespace detail

/// Enumerates drafts by draft(enumerator, rows) -> DraftTree and what verify(tree, rows, choices) -> detail::WalkEnd
/// makes of them; `depth`: the deepest that a tree can be.
template <class Real, class Draft, class Verify, class P>
Proof<Real> enumerate(const Draft& draft, const Verify& verify, std::size_t depth, const P& p) {
  Proof<Real> proof;
  Enumerator<Real> enumerator;
  do {
    enumerator.begin();
    detail::ExactRows<Real> rows;
    const DraftTree tree = draft(enumerator, rows);
    const TreeView t = tree.view();
    detail::EnumeratedChoices<Real> choices{enumerator};
    const detail::WalkEnd end = verify(t, rows, choices);
    ++proof.outcomes;
    if (proof.pass_mass.size() < static_cast<std::size_t>(t.nodes)) proof.pass_mass.resize(static_cast<std::size_t>(t.nodes));
    std::vector<std::int32_t> path;
    for (std::int32_t node = end.node; node >= 0; node = t.parent[node]) {
      Real& mass = proof.pass_mass[static_cast<std::size_t>(node)];
      mass = mass + enumerator.weight();
      if (node > 0) path.insert(path.begin(), t.token[node]);
    }
    proof.expected_length = proof.expected_length + enumerator.weight() * Real(static_cast<std::int64_t>(path.size()));
    path.push_back(end.token);
    detail::complete(path, depth + 1, enumerator.weight(), p, proof.law);
  } while (enumerator.next());
  std::map<std::vector<std::int32_t>, Real> target;
  std::vector<std::int32_t> empty;
  detail::complete(empty, depth + 1, Real(1), p, target);
  for (const auto& [path, weight] : proof.law) target[path] = target[path] - weight;
  Real worst{};
  for (const auto& [path, difference] : target) {
    const Real size = difference < Real{} ? Real{} - difference : difference;
    worst = worst < size ? size : worst;
  }
  proof.largest_difference = static_cast<double>(worst);
  proof.lossless = std::is_floating_point_v<Real> ? proof.largest_difference < 1e-12 : !(Real{} < worst);
  return proof;
}

/// Proves or refutes that verifier v is lossless on trees of this branching, drawn by `law` from q, for target p:
/// callables as enumerate_draft() takes them. believed: the law that the verifier is told. KSeq's rho must be a whole
/// number. Exponential in nodes and vocabulary.
template <class Real, class V, class P, class Q>
  requires detail::walks<V>
Proof<Real> prove(const V& v, const std::vector<std::int32_t>& branching, Law law, const P& p, const Q& q,
                  Law believed) {
  return enumerate<Real>(
      [&](Enumerator<Real>& e, detail::ExactRows<Real>& rows) {
        DraftTree tree = enumerate_draft(e, branching, law, p, q, rows);
        if (believed == law) return tree;
        for (std::int32_t i = 0; i < tree.nodes(); ++i) tree.set_law(i, believed, i);
        tree.finalize();
        return tree;
      },
      [&](const TreeView& t, detail::ExactRows<Real>& rows, detail::EnumeratedChoices<Real>& choices) {
        return detail::exact_walk(v, t, rows, choices);
      },
      branching.size(), p);
}

/// The verifier is told the truth.
template <class Real, class V, class P, class Q>
  requires detail::walks<V>
Proof<Real> prove(const V& v, const std::vector<std::int32_t>& branching, Law law, const P& p, const Q& q) {
  return prove<Real>(v, branching, law, p, q, law);
}

}  // namespace decant::speculative

#endif
