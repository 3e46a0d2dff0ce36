// decant: SampledEagle, a dynamic tree in the manner of EAGLE-2 (Li et al., arXiv 2406.16858) whose tokens are drawn,
// for verifiers of sampled trees [ours]. Which node gets how many children depends on the probabilities of the paths
// drawn so far, and is settled before its children are drawn; nothing drawn is dropped or ranked. So the draws keep
// their law, and verification stays lossless.
#ifndef DECANT_SPECULATIVE_SAMPLED_EAGLE_HPP
#define DECANT_SPECULATIVE_SAMPLED_EAGLE_HPP

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "detail/child_draw.hpp"
#include "drafter.hpp"
#include "model_drafter.hpp"

namespace decant::speculative {

/// A sampled tree with widths[l] nodes on level l + 1, fewer where q has fewer tokens: draws go one after another to
/// the node whose path probability, divided by one more than the draws it has, is the largest; of equal ones the first.
/// L: without_replacement, or greedy_plus_one, of which a node's first child is the draw and the others the likeliest.
/// Forward: DraftForward, processed distributions. O(nodes * vocab).
template <Law L, DraftForward Forward>
  requires(L == Law::without_replacement || L == Law::greedy_plus_one)
class SampledEagle {
 public:
  static constexpr Law law = L;

  SampledEagle(index_t vocab, std::vector<std::int32_t> widths, Forward forward)
      : vocab_(vocab), widths_(std::move(widths)), forward_(std::move(forward)) {
    constexpr const char* where = "speculative::SampledEagle";
    detail::require_vocab(vocab, where);
    std::int64_t nodes = 1;
    for (const std::int32_t width : widths_) {
      require(width >= 1 && width < max_tree_nodes, where, "widths", "at least one node on each level", width);
      nodes += width;
    }
    require(nodes <= max_tree_nodes, where, "widths", "at most 1023 nodes in all", nodes - 1);
  }

  void draft(const DraftContext&, const DraftBudget& budget, DraftTree& tree, Proposals& proposals,
             const DrawKey& key) {
    require(proposals.vocab() == vocab_, "speculative::SampledEagle::draft", "proposals",
            "rows of the vocabulary's size", proposals.vocab());
    std::int32_t room = budget.nodes;
    std::int32_t first = 0;
    for (std::size_t level = 0; level < widths_.size() && static_cast<std::int32_t>(level) < budget.depth; ++level) {
      const std::int32_t width = widths_[level] < room ? widths_[level] : room;
      if (width < 1) return;
      if (level > 0) tree.finalize();
      const std::int32_t last = tree.nodes();
      if (first == last) return;
      q_.resize(static_cast<std::size_t>((last - first) * vocab_));
      const View<float, 2> q(q_.data(), last - first, vocab_);
      if (!forward_(std::as_const(tree), first, last, q)) return;
      share(tree, first, last, width, q);
      for (std::int32_t node = first; node < last; ++node) {
        const std::int32_t draws = draws_[static_cast<std::size_t>(node - first)];
        if (draws > 0) children_.grow(node, draws, q[node - first], tree, proposals, key);
      }
      room -= tree.nodes() - last;
      first = last;
    }
  }
  void commit(View<const std::int32_t, 1>) {}

 private:
  /// How many children each node of the level gets. A row that is no distribution gets none.
  void share(const DraftTree& tree, std::int32_t first, std::int32_t last, std::int32_t width,
             const View<float, 2>& q) {
    const auto n = static_cast<std::size_t>(last - first);
    draws_.assign(n, 0);
    support_.assign(n, 0);
    for (std::size_t i = 0; i < n; ++i) {
      const View<const float, 1> row = q[static_cast<index_t>(i)];
      double total = 0;
      bool good = true;
      for (index_t y = 0; y < vocab_; ++y) {
        good = good && row[y] >= 0;
        support_[i] += row[y] > 0 ? 1 : 0;
        total += static_cast<double>(row[y]);
      }
      if (!good || !(total < 1e30)) support_[i] = 0;
    }
    for (std::int32_t d = 0; d < width; ++d) {
      std::size_t best = n;
      double most = 0;
      for (std::size_t i = 0; i < n; ++i) {
        if (draws_[i] >= support_[i]) continue;
        const double gain = static_cast<double>(tree.score(first + static_cast<std::int32_t>(i))) -
                            std::log(1.0 + static_cast<double>(draws_[i]));
        if (best == n || gain > most) {
          best = i;
          most = gain;
        }
      }
      if (best == n) return;
      ++draws_[best];
    }
  }

  index_t vocab_;
  std::vector<std::int32_t> widths_;
  Forward forward_;
  detail::ChildDraw<L> children_;
  std::vector<float> q_;
  std::vector<std::int32_t> draws_;
  std::vector<index_t> support_;
};

}  // namespace decant::speculative

#endif
