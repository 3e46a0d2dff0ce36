// decant: RankTree, a static draft tree from a table of ranks, as Medusa (Cai et al., arXiv 2401.10774) and Hydra
// (Ankner et al., 2402.05109) use: path r_1 ... r_d takes the token of rank r_i (0: the likeliest) of head i. Medusa's
// heads see the last state alone, so that one row serves all nodes of a level; Hydra's see the path: both are the
// callback's business. Deterministic.
#ifndef DECANT_SPECULATIVE_RANK_TREE_HPP
#define DECANT_SPECULATIVE_RANK_TREE_HPP

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "detail/row_top.hpp"
#include "drafter.hpp"
#include "model_drafter.hpp"

namespace decant::speculative {

/// Forward: as ModelDrafter's, probabilities after nodes of one level.
template <DraftForward Forward>
class RankTree {
 public:
  static constexpr Law law = Law::deterministic;
  using Path = std::vector<std::int32_t>;

  /// table: every path's prefixes must be in it; no path twice.
  RankTree(index_t vocab, std::vector<Path> table, Forward forward)
      : vocab_(vocab), table_(std::move(table)), forward_(std::move(forward)) {
    constexpr const char* where = "speculative::RankTree";
    detail::require_vocab(vocab, where);
    require(static_cast<index_t>(table_.size()) < max_tree_nodes, where, "table", "at most 1023 paths", table_.size());
    std::sort(table_.begin(), table_.end(), [](const Path& a, const Path& b) {
      return a.size() != b.size() ? a.size() < b.size() : a < b;
    });
    for (std::size_t i = 0; i < table_.size(); ++i) {
      const Path& path = table_[i];
      require(!path.empty(), where, "table", "paths of at least one rank", "an empty one");
      for (const std::int32_t rank : path) {
        require(rank >= 0 && rank < vocab && rank < 1024, where, "table", "ranks below 1024 and the vocabulary", rank);
      }
      require(i == 0 || path != table_[i - 1], where, "table", "every path once", "one twice");
      parents_.push_back(-1);
      if (path.size() == 1) continue;
      const Path above(path.begin(), path.end() - 1);
      for (std::size_t j = 0; j < i; ++j) {
        if (table_[j] == above) parents_[i] = static_cast<std::int32_t>(j);
      }
      require(parents_[i] >= 0, where, "table", "the prefixes of every path", "a path without its prefix");
    }
  }

  /// Paths within the budget, the first of the table where it has more.
  void draft(const DraftContext&, const DraftBudget& budget, DraftTree& tree, Proposals&, const DrawKey&) {
    node_.assign(table_.size(), -1);
    std::int32_t room = budget.nodes;
    std::int32_t first = 0;
    std::int32_t last = 1;
    std::size_t next = 0;
    for (std::size_t level = 1; level <= static_cast<std::size_t>((std::max)(budget.depth, 0)) && room > 0; ++level) {
      std::size_t end = next;
      std::int32_t ranks = 0;
      for (; end < table_.size() && table_[end].size() == level; ++end) ranks = (std::max)(ranks, table_[end].back() + 1);
      if (end == next) break;
      if (level > 1) tree.finalize();  // paths are in order, so that ids stay
      q_.resize(static_cast<std::size_t>((last - first) * vocab_));
      const View<float, 2> q(q_.data(), last - first, vocab_);
      if (!forward_(std::as_const(tree), first, last, q)) break;
      top_.resize(static_cast<std::size_t>(ranks));
      std::int32_t of = -1;  // the node whose top is there
      std::int32_t count = 0;
      for (; next < end; ++next) {
        const std::int32_t parent = level == 1 ? 0 : node_[static_cast<std::size_t>(parents_[next])];
        if (parent < 0 || room == 0) continue;
        if (parent != of) count = detail::row_top(q[parent - first], 0, View<detail::RowTop, 1>(top_));
        of = parent;
        const std::int32_t rank = table_[next].back();
        if (rank >= count) continue;  // fewer tokens have any probability
        const detail::RowTop& child = top_[static_cast<std::size_t>(rank)];
        node_[next] = tree.push_child(parent, child.token, tree.score(parent) + std::log(child.value));
        --room;
      }
      first = last;
      last = tree.nodes();
      if (first == last) break;
    }
  }
  void commit(View<const std::int32_t, 1>) {}

 private:
  index_t vocab_;
  std::vector<Path> table_;
  std::vector<std::int32_t> parents_;  // of paths in the table
  Forward forward_;
  std::vector<std::int32_t> node_;  // of paths, in this draft
  std::vector<float> q_;
  std::vector<detail::RowTop> top_;
};

}  // namespace decant::speculative

#endif
