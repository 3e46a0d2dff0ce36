// decant: which plan and which walk each verifier is, for every context, and what the arguments of verify() must be.
#ifndef DECANT_SPECULATIVE_DETAIL_VERIFIER_WALKS_HPP
#define DECANT_SPECULATIVE_DETAIL_VERIFIER_WALKS_HPP

#include <concepts>

#include "../../core/error.hpp"
#include "../accepted.hpp"
#include "../keys.hpp"
#include "../tree.hpp"
#include "../verifiers.hpp"
#include "plan.hpp"

namespace decant::speculative::detail {

enum class Direction { top_down, bottom_up, follow_target, longest_path };

/// The verifiers that are a walk of walk.hpp or longest_path.hpp; UniVer chooses its plan when it runs.
template <class V>
inline constexpr bool walks = std::same_as<V, ChainRejection> || std::same_as<V, BlockVerification> ||
                              std::same_as<V, MultiRound> || std::same_as<V, KSeq> || std::same_as<V, RRSw> ||
                              std::same_as<V, GreedyMultiDraft> || std::same_as<V, Traversal> ||
                              std::same_as<V, UniVer> || std::same_as<V, Membership> ||
                              std::same_as<V, GumbelCoupled> || std::same_as<V, TypicalAcceptance> ||
                              std::same_as<V, TopKAcceptance>;

/// Whether a verifier rejects by p and q. The others read no draft rows: q may be empty, and q_row any number.
template <class V>
inline constexpr bool needs_draft =
    !(std::same_as<V, GumbelCoupled> || std::same_as<V, TypicalAcceptance> || std::same_as<V, TopKAcceptance>);

/// How many draft rows the trees of a verifier may name.
template <class V>
constexpr index_t draft_rows(const View<const float, 2>& q) {
  return needs_draft<V> ? q.extent(0) : index_t{1} << 31;
}

/// The plan of a verifier, as a type for each Real.
template <class V, class Real>
struct PlanOf {
  using type = SequentialPlan<Real>;
};
template <class Real>
struct PlanOf<KSeq, Real> {
  using type = KSeqPlan<Real>;
};

template <class V>
inline constexpr Direction direction_of = [] {
  if (std::same_as<V, Membership> || std::same_as<V, GumbelCoupled>) return Direction::follow_target;
  if (std::same_as<V, TypicalAcceptance> || std::same_as<V, TopKAcceptance>) return Direction::longest_path;
  const bool up = std::same_as<V, BlockVerification> || std::same_as<V, Traversal> || std::same_as<V, UniVer>;
  return up ? Direction::bottom_up : Direction::top_down;
}();

/// How it is said of each node of a chain whether it would be accepted by itself (Accepted::independent).
enum class ByItself { none, by_chance, by_draw };

template <class V>
inline constexpr ByItself by_itself = !needs_draft<V>                                ? ByItself::none
                                      : direction_of<V> == Direction::follow_target ? ByItself::by_draw
                                                                                     : ByItself::by_chance;

/// Bit l: law l is accepted.
template <class V>
inline constexpr unsigned accepted_laws = [] {
  unsigned bits = 0;
  for (int l = 0; l < laws; ++l) bits |= static_cast<unsigned>(V::accepts(static_cast<Law>(l))) << l;
  return bits;
}();

/// What a plan is made with besides a node and its scale.
template <class V>
constexpr double plan_parameter(const V& v) {
  if constexpr (std::same_as<V, KSeq>) {
    return static_cast<double>(v.rho);
  } else {
    return 0;
  }
}

/// Shapes: see Accepted. rows, vocab: of the target. ArgumentError names what does not fit.
inline void require_verify(const ForestView& trees, index_t rows, index_t vocab, const View<const float, 2>& q,
                           const DrawKeys& keys, const Accepted& out, const char* where) {
  const index_t count = trees.trees();
  require(trees.offsets.extent(0) >= 1, where, "trees.offsets", "one offset for each tree, and the end",
          trees.offsets.extent(0));
  require(trees.offsets.contiguous(), where, "trees.offsets", "contiguous elements", trees.offsets.stride(0));
  require(trees.all.nodes >= 0, where, "trees.all.nodes", "at least 0", trees.all.nodes);
  require(rows >= trees.all.nodes, where, "p", [&] { return "a row for each of " + std::to_string(trees.all.nodes) +
          " nodes"; }, rows);
  require(vocab >= 1 && vocab <= (1 << 22), where, "p", "1 to 2^22 tokens", vocab);
  if (q.extent(0) > 0) {
    require_equal(q.extent(1), vocab, where, "q");
    require(q.stride(1) == 1 || vocab == 1, where, "q", "contiguous rows", q.stride(1));
  }
  if (!keys.requests.empty()) require_equal(keys.requests.extent(0), count, where, "keys.requests");
  if (keys.steps.extent(0) > 1) require_equal(keys.steps.extent(0), count, where, "keys.steps");
  require_equal(out.tokens.extent(0), count, where, "out.tokens");
  require(out.tokens.extent(1) >= 1 && out.tokens.extent(1) <= max_tree_nodes, where, "out.tokens",
          "1 to 1024 columns: one more than the deepest tree has levels", out.tokens.extent(1));
  require_equal(out.nodes.extent(0), count, where, "out.nodes");
  require_equal(out.nodes.extent(1), out.tokens.extent(1) - 1, where, "out.nodes");
  require_equal(out.length.extent(0), count, where, "out.length");
  require_equal(out.status.extent(0), count, where, "out.status");
  if (!out.log_probability.empty()) {
    require_equal(out.log_probability.extent(0), count, where, "out.log_probability");
    require_equal(out.log_probability.extent(1), out.tokens.extent(1), where, "out.log_probability");
  }
  if (!out.independent.empty()) require_equal(out.independent.extent(0), count, where, "out.independent");
}

/// What every context asks of target rows before it looks at them.
inline void require_target(const ProbabilityRows& p, const char* where) {
  require(p.stride(1) == 1 || p.extent(1) <= 1, where, "p", "contiguous rows", p.stride(1));
}
inline void require_target(const LogitRows& p, const char* where) {
  const View<const float, 2>& logits = p.logits;
  require(logits.stride(1) == 1 || logits.extent(1) <= 1, where, "p.logits", "contiguous rows", logits.stride(1));
  require_equal(p.rows.extent(0), logits.extent(0), where, "p.rows");
  require_contiguous(p.rows, where, "p.rows");
}

}  // namespace decant::speculative::detail

#endif
