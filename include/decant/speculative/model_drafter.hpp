// decant: ModelDrafter, drafts from a model through a callback: a small model, lower layers of the target (early exit),
// a trained head. It draws a tree level by level: a chain, independent siblings, siblings without replacement, the top
// tokens and one draw (for UniVer), or the top tokens alone. What is drawn, by which law, is written down with the
// distributions, so that verification is lossless whatever the callback says.
#ifndef DECANT_SPECULATIVE_MODEL_DRAFTER_HPP
#define DECANT_SPECULATIVE_MODEL_DRAFTER_HPP

#include <concepts>
#include <cstdint>
#include <utility>
#include <vector>

#include "detail/child_draw.hpp"
#include "drafter.hpp"
#include "row_signals.hpp"

namespace decant::speculative {

/// forward(tree, first, last, q): the processed draft distributions after nodes [first, last) of the tree so far, one
/// level, parents before; to q [last - first, vocab]. The tree is finalized. False: no draft from here on.
template <class F>
concept DraftForward = requires(F& f, const DraftTree& tree, std::int32_t first, std::int32_t last, View<float, 2> q) {
  { f(tree, first, last, q) } -> std::convertible_to<bool>;
};

template <Law L, DraftForward Forward>
class ModelDrafter {
 public:
  static constexpr Law law = L;

  /// branching: children per node on each level; empty: one, on as many levels as the budget allows.
  ModelDrafter(index_t vocab, std::vector<std::int32_t> branching, Forward forward)
      : vocab_(vocab), branching_(std::move(branching)), forward_(std::move(forward)) {
    constexpr const char* where = "speculative::ModelDrafter";
    detail::require_vocab(vocab, where);
    for (const std::int32_t k : branching_) {
      require(k >= 1 && k <= vocab && (L != Law::chain || k == 1), where, "branching",
              L == Law::chain ? "one child on each level of a chain" : "1 to the vocabulary's size", k);
    }
  }

  /// The largest probability and the entropy, in bits, of each distribution that the last draft was taken from.
  View<const float, 1> confidence() const { return View<const float, 1>(confidence_); }
  View<const float, 1> entropy() const { return View<const float, 1>(entropy_); }

  void draft(const DraftContext&, const DraftBudget& budget, DraftTree& tree, Proposals& proposals,
             const DrawKey& key) {
    require(proposals.vocab() == vocab_, "speculative::ModelDrafter::draft", "proposals", "rows of the vocabulary's size",
            proposals.vocab());
    confidence_.clear();
    entropy_.clear();
    std::int32_t room = budget.nodes;
    std::int32_t first = 0;
    std::int32_t last = 1;
    for (std::int32_t level = 0; level < budget.depth && room > 0; ++level) {
      if (!branching_.empty() && static_cast<std::size_t>(level) == branching_.size()) break;
      const std::int32_t k = branching_.empty() ? 1 : branching_[static_cast<std::size_t>(level)];
      if (level > 0) tree.finalize();
      q_.resize(static_cast<std::size_t>((last - first) * vocab_));
      const View<float, 2> q(q_.data(), last - first, vocab_);
      if (!forward_(std::as_const(tree), first, last, q)) break;
      for (std::int32_t node = first; node < last && room > 0; ++node) {
        // How many is settled before anything is drawn: what was drawn must not decide what is kept.
        const std::int32_t children = k < room ? k : room;
        const View<const float, 1> row = q[node - first];
        const std::int32_t grown = children_.grow(node, children, row, tree, proposals, key);
        if (grown == 0) continue;
        room -= grown;
        const RowSignals signals = row_signals(row);
        confidence_.push_back(signals.confidence);
        entropy_.push_back(signals.entropy);
      }
      first = last;
      last = tree.nodes();
      if (first == last) break;
    }
  }
  void commit(View<const std::int32_t, 1>) {}

 private:
  index_t vocab_;
  std::vector<std::int32_t> branching_;
  Forward forward_;
  detail::ChildDraw<L> children_;
  std::vector<float> q_, confidence_, entropy_;
};

}  // namespace decant::speculative

#endif
