// decant: what attention needs of draft trees: ancestor masks for attention::TreeMask, the same added to scores as
// 0 and -inf, positions, and root-to-leaf paths to look at. Packed bits over all keys, as FlashInfer takes them:
// attention::bit_mask_from_tree_mask. The root is a query like the others: its KV row is appended with theirs.
#ifndef DECANT_SPECULATIVE_TREE_MASKS_HPP
#define DECANT_SPECULATIVE_TREE_MASKS_HPP

#include <cstdint>
#include <vector>

#include "../attention/tree_mask.hpp"
#include "tree.hpp"

namespace decant::speculative {

/// The parents of all nodes of a tree, as attention::tree_mask_from_parents takes them.
inline View<const std::int32_t, 1> parents(const TreeView& t) { return View<const std::int32_t, 1>(t.parent, t.nodes); }

/// The word at which each tree's rows begin, and the end: offsets [trees + 1]. Returns the end.
inline index_t mask_offsets(const ForestView& trees, View<index_t, 1> offsets) {
  require_equal(offsets.extent(0), trees.trees() + 1, "speculative::mask_offsets", "offsets");
  index_t at = 0;
  for (index_t b = 0; b < trees.trees(); ++b) {
    offsets[b] = at;
    at += attention::tree_words(trees.tree(b).nodes);
  }
  offsets[trees.trees()] = at;
  return at;
}

/// The masks of a batch: words [offsets[trees]]. ArgumentError where a parent does not come before its child; trees
/// before that one are written. O(sum of nodes^2 / 64).
inline attention::TreeMask tree_masks(const ForestView& trees, View<const index_t, 1> offsets,
                                      View<std::uint64_t, 1> words) {
  require_equal(offsets.extent(0), trees.trees() + 1, "speculative::tree_masks", "offsets");
  require_equal(words.extent(0), offsets[trees.trees()], "speculative::tree_masks", "words");
  for (index_t b = 0; b < trees.trees(); ++b) {
    attention::tree_mask_from_parents(parents(trees.tree(b)), words.slice(0, offsets[b], offsets[b + 1] - offsets[b]));
  }
  return {View<const std::uint64_t, 1>(words), offsets};
}

/// bias [nodes, context + nodes]: 0 where node i sees a key, else -inf. O(nodes (context + nodes)).
inline void additive_mask(const TreeView& t, index_t context, View<float, 2> bias) {
  constexpr const char* where = "speculative::additive_mask";
  require(context >= 0, where, "context", "at least 0", context);
  require_equal(bias.extent(0), t.nodes, where, "bias");
  require_equal(bias.extent(1), context + t.nodes, where, "bias");
  attention::detail::validate_parents(parents(t), where);
  for (index_t i = 0; i < t.nodes; ++i) {
    for (index_t k = 0; k < context + t.nodes; ++k) bias(i, k) = k < context ? 0.0f : -__builtin_huge_valf();
    for (index_t a = i; a >= 0; a = t.parent[a]) bias(i, context + a) = 0;
  }
}

/// positions [nodes]: context + depth.
inline void position_ids(const TreeView& t, index_t context, View<std::int32_t, 1> positions) {
  attention::tree_positions(parents(t), context, positions);
}

/// The nodes of each path from the root to a leaf.
inline std::vector<std::vector<std::int32_t>> paths(const TreeView& t) {
  std::vector<std::vector<std::int32_t>> all;
  for (std::int32_t leaf = 0; leaf < t.nodes; ++leaf) {
    if (t.children[leaf] > 0) continue;
    std::vector<std::int32_t> path;
    for (std::int32_t a = leaf; a >= 0; a = t.parent[a]) path.insert(path.begin(), a);
    all.push_back(path);
  }
  return all;
}

}  // namespace decant::speculative

#endif
