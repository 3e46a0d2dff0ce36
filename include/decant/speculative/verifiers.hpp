// decant: the verifiers, as values: which drafted tokens stand, and which token follows them. Lossless ones emit exactly
// what plain sampling from the target would, for the draft laws that they accept; lossy ones are marked so. Sources:
// ChainRejection (Leviathan et al., arXiv 2211.17192; Chen et al., 2302.01318), BlockVerification (Sun et al., ICLR
// 2025), MultiRound (SpecInfer, 2305.09781), KSeq (SpecTr, 2310.15141), RRSw (recursive rejection without replacement),
// GreedyMultiDraft (Hu et al., 2502.18779), Traversal (Weng et al., 2505.12398), UniVer (2605.04543), TypicalAcceptance
// (Medusa, 2401.10774). All rejections are one recursion, detail/plan.hpp and detail/walk.hpp [ours].
#ifndef DECANT_SPECULATIVE_VERIFIERS_HPP
#define DECANT_SPECULATIVE_VERIFIERS_HPP

#include <concepts>
#include <cstdint>

#include "../core/error.hpp"
#include "law.hpp"

namespace decant::speculative {

/// Speculative sampling along a chain, token by token.
struct ChainRejection {
  static constexpr bool lossless = true;
  DECANT_HD static constexpr bool accepts(Law law) { return law == Law::chain || law == Law::deterministic; }
  bool operator==(const ChainRejection&) const = default;
};

/// A chain as a whole: never shorter on average than ChainRejection.
struct BlockVerification {
  static constexpr bool lossless = true;
  DECANT_HD static constexpr bool accepts(Law law) { return law == Law::chain || law == Law::deterministic; }
  bool operator==(const BlockVerification&) const = default;
};

/// Independent siblings, one after another.
struct MultiRound {
  static constexpr bool lossless = true;
  DECANT_HD static constexpr bool accepts(Law law) {
    return law == Law::chain || law == Law::iid || law == Law::deterministic;
  }
  bool operator==(const MultiRound&) const = default;
};

/// Independent siblings, all against the same scaled target. A baseline: it accepts less than RRSw on its own trees.
struct KSeq {
  float rho = 0;  ///< at most the number of siblings and valid; 0: the smallest valid one
  static constexpr bool lossless = true;
  DECANT_HD static constexpr bool accepts(Law law) { return law == Law::chain || law == Law::iid; }
  bool operator==(const KSeq&) const = default;
};

/// Siblings without replacement, one after another.
struct RRSw {
  static constexpr bool lossless = true;
  DECANT_HD static constexpr bool accepts(Law law) {
    return law == Law::chain || law == Law::without_replacement || law == Law::deterministic;
  }
  bool operator==(const RRSw&) const = default;
};

/// The top tokens and one draw, top down: optimal for one level.
struct GreedyMultiDraft {
  static constexpr bool lossless = true;
  DECANT_HD static constexpr bool accepts(Law law) {
    return law == Law::chain || law == Law::greedy_plus_one || law == Law::deterministic;
  }
  bool operator==(const GreedyMultiDraft&) const = default;
};

/// Siblings without replacement, bottom up.
struct Traversal {
  static constexpr bool lossless = true;
  DECANT_HD static constexpr bool accepts(Law law) {
    return law == Law::chain || law == Law::without_replacement || law == Law::deterministic;
  }
  bool operator==(const Traversal&) const = default;
};

/// Conditional optimal transport: bottom up, made for greedy_plus_one, lossless for every law.
struct UniVer {
  enum class Order : std::uint8_t {
    sampled_first,  ///< [ours] needs no pass over a row before the first rejection
    paper,          ///< the top tokens first, the sampled child last
  };
  enum class Eval : std::uint8_t {
    lazy,            ///< visits what the decision needs
    level_parallel,  ///< all nodes of a level at once, then decides; the same tokens
  };
  Order order = Order::sampled_first;
  Eval eval = Eval::lazy;
  static constexpr bool lossless = true;
  DECANT_HD static constexpr bool accepts(Law) { return true; }
  bool operator==(const UniVer&) const = default;
};

/// Draws the target's own token at every node, and goes on where a child carries it: for deterministic trees, where no
/// lossless verifier can do better. A draw at depth d of step s is that of plain decoding at step s + d, with the same
/// key (draw_next()): so the text is plain decoding's, token for token, whatever is drafted. Reads tau + 1 rows.
struct Membership {
  static constexpr bool lossless = true;
  DECANT_HD static constexpr bool accepts(Law law) { return law == Law::deterministic; }
  bool operator==(const Membership&) const = default;
};

/// Drafter and target race the same exponentials: the target's token is argmax p / E, E a function of seed, position
/// and token alone. Needs no draft probabilities, any law will do whose draws do not depend on E but through the race
/// itself; emits what plain decoding by the same race would.
struct GumbelCoupled {
  static constexpr bool lossless = true;
  DECANT_HD static constexpr bool accepts(Law) { return true; }
  bool operator==(const GumbelCoupled&) const = default;
};

/// Lossy: accepts what the target does not find unlikely, p(x) > min(epsilon, delta exp(-entropy)), and at the first
/// level its likeliest token whatever that says; the longest path wins, of equal ones the first.
struct TypicalAcceptance {
  float epsilon = 0.09f;
  float delta = 0.3f;
  static constexpr bool lossless = false;
  DECANT_HD static constexpr bool accepts(Law) { return true; }
  bool operator==(const TypicalAcceptance&) const = default;
};

/// Lossy: accepts what is among the target's k likeliest tokens (fewer than k are likelier) if it has a chance at all;
/// the longest path wins.
struct TopKAcceptance {
  std::int32_t k = 4;
  static constexpr bool lossless = false;
  DECANT_HD static constexpr bool accepts(Law) { return true; }
  bool operator==(const TopKAcceptance&) const = default;
};

inline void validate(const KSeq& v) {
  require(v.rho >= 0 && v.rho <= 1024, "speculative::KSeq", "rho", "0, or 1 to the number of siblings", v.rho);
}
inline void validate(const TypicalAcceptance& v) {
  require(v.epsilon >= 0 && v.epsilon <= 1, "speculative::TypicalAcceptance", "epsilon", "0 to 1", v.epsilon);
  require(v.delta >= 0, "speculative::TypicalAcceptance", "delta", "at least 0", v.delta);
}
inline void validate(const TopKAcceptance& v) {
  require(v.k >= 1, "speculative::TopKAcceptance", "k", "at least 1", v.k);
}
template <class V>
  requires(V::lossless && std::equality_comparable<V>)
void validate(const V&) {}

}  // namespace decant::speculative

#endif
