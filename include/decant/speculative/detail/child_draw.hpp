// decant: ChildDraw, how a node's children are taken from its distribution by each law, in the order in which verifiers
// visit them, and what is written down of it for them.
#ifndef DECANT_SPECULATIVE_DETAIL_CHILD_DRAW_HPP
#define DECANT_SPECULATIVE_DETAIL_CHILD_DRAW_HPP

#include <cmath>
#include <cstdint>
#include <vector>

#include "../drafter.hpp"
#include "remaining_mass.hpp"

namespace decant::speculative::detail {

template <Law L>
class ChildDraw {
 public:
  /// Gives a node up to k children, fewer where q has fewer tokens, none where it has no positive, finite sum. Draw i
  /// takes the random number 1024 node + i. Returns how many. O(vocab).
  std::int32_t grow(std::int32_t node, std::int32_t k, View<const float, 1> q, DraftTree& tree, Proposals& proposals,
                    const DrawKey& key) {
    left_.load(q);
    const double total = left_.total();
    if (!(total > 0) || !(total < 1e30)) return 0;
    tokens_.clear();
    const std::int32_t tops = L == Law::deterministic ? k : L == Law::greedy_plus_one ? k - 1 : 0;
    for (std::int32_t i = 0; i < tops; ++i) {
      const std::int32_t token = left_.largest();
      if (token < 0) break;
      tokens_.push_back(token);
      left_.remove(token);
    }
    const float rest = L == Law::greedy_plus_one ? static_cast<float>(left_.total()) : 0.0f;
    std::int32_t drawn = 0;
    for (; drawn < k - tops; ++drawn) {
      const std::int32_t token =
          left_.draw(key.uniform(static_cast<std::uint32_t>(node * max_tree_nodes + drawn), Stream::draft));
      if (token < 0) break;
      tokens_.insert(tokens_.begin() + drawn, token);  // before the top tokens
      if (L == Law::without_replacement) left_.remove(token);
    }
    if (drawn > 0) {
      const std::int32_t row = proposals.add();
      for (index_t y = 0; y < q.extent(0); ++y) proposals.row(row)[y] = q[y];
      tree.set_law(node, L, row, rest);
    }
    const float score = tree.score(node);
    for (const std::int32_t token : tokens_) tree.push_child(node, token, score + std::log(q[token]));
    return static_cast<std::int32_t>(tokens_.size());
  }

 private:
  RemainingMass left_;
  std::vector<std::int32_t> tokens_;
};

}  // namespace decant::speculative::detail

#endif
