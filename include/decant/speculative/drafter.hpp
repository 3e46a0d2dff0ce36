// decant: what drafters have in common. A drafter guesses the tokens that follow a context, as a tree; it says by which
// law it drew them, and leaves the draft distributions that it drew from in a matrix of proposals. Drafters are host
// objects with a state of their own; those that need a network are given callbacks by the engine that has it.
#ifndef DECANT_SPECULATIVE_DRAFTER_HPP
#define DECANT_SPECULATIVE_DRAFTER_HPP

#include <concepts>
#include <cstdint>
#include <vector>

#include "../core/error.hpp"
#include "control.hpp"
#include "draft_tree.hpp"
#include "keys.hpp"
#include "law.hpp"

namespace decant::speculative {

/// The draft distributions of one step: q rows, dense, in the order in which they were added.
class Proposals {
 public:
  explicit Proposals(index_t vocab = 0) : vocab_(vocab) {}

  index_t vocab() const { return vocab_; }
  index_t rows() const { return vocab_ == 0 ? 0 : static_cast<index_t>(values_.size()) / vocab_; }
  void clear() { values_.clear(); }

  /// A new row, zeros, and its number: row(n) is where to write it until the next call.
  std::int32_t add() {
    const index_t n = rows();
    values_.resize(static_cast<std::size_t>((n + 1) * vocab_));
    return static_cast<std::int32_t>(n);
  }
  View<float, 1> row(std::int32_t n) { return View<float, 1>(values_.data() + n * vocab_, vocab_); }
  View<const float, 2> view() const { return View<const float, 2>(values_.data(), rows(), vocab_); }

 private:
  index_t vocab_;
  std::vector<float> values_;
};

/// What is drafted from: all committed tokens, prompt included; the last one is the tree's root.
struct DraftContext {
  View<const std::int32_t, 1> tokens{};
};

/// D::law: the law of every node that has children (deterministic nodes may stand among them).
/// draft(): fills `tree`, which comes cleared with the root in it, with at most `budget`; finalize() is the caller's.
/// Nothing to say: adds nothing. commit(): the tokens that the step emitted, after verification. A drafter that knows how
/// sure it was has entropy() and confidence() too, as ModelDrafter, of the last draft: what StepSignals are made of.
template <class D>
concept Drafter = requires(D& d, const DraftContext& context, const DraftBudget& budget, DraftTree& tree,
                           Proposals& proposals, const DrawKey& key, View<const std::int32_t, 1> tokens) {
  { D::law } -> std::convertible_to<Law>;
  d.draft(context, budget, tree, proposals, key);
  d.commit(tokens);
};

namespace detail {

/// Tokens are 32-bit.
inline void require_vocab(index_t vocab, const char* where) {
  require(vocab >= 1 && vocab <= 0x7fffffff, where, "vocab", "1 to 2^31 - 1", vocab);
}

}  // namespace detail

}  // namespace decant::speculative

#endif
