// decant: TreeView and ForestView, draft trees as structures of arrays, on host or device, that somebody else owns
// (DraftTree builds one on the host). Breadth first, the root at 0: the root is the last committed token, and its
// target row predicts the first drafted ones. The layout follows the buffers of EAGLE (arXiv 2406.16858) [ours].
#ifndef DECANT_SPECULATIVE_TREE_HPP
#define DECANT_SPECULATIVE_TREE_HPP

#include <cstdint>

#include "../core/view.hpp"
#include "law.hpp"

namespace decant::speculative {

/// The most nodes of one tree, its root included, and so the most levels.
inline constexpr std::int32_t max_tree_nodes = 1024;

/// One tree. Each array has one element per node; ids are local to the tree.
struct TreeView {
  std::int32_t nodes = 0;                     ///< the root included; at least 1
  const std::int32_t* token = nullptr;        ///< token[0]: the last committed one
  const std::int32_t* parent = nullptr;       ///< -1 for the root, else a node before this one
  const std::int32_t* first_child = nullptr;  ///< -1: a leaf
  const std::int32_t* children = nullptr;     ///< how many; they are neighbours, in visiting order
  const std::uint16_t* depth = nullptr;       ///< the root's is 0
  const Law* law = nullptr;                   ///< of the node's children
  const std::int32_t* q_row = nullptr;        ///< the row of draft probabilities of its children; -1: deterministic
  /// Law::greedy_plus_one: the mass of q outside the top tokens, which the drafter knows. 0: unknown, to be summed.
  const float* rest = nullptr;

  DECANT_HD TreeView shifted(index_t by, std::int32_t count) const {
    return {count,      token + by, parent + by, first_child + by, children + by,
            depth + by, law + by,   q_row + by,  rest + by};
  }
};

/// A batch: the trees one after another. Target row offsets[b] + i belongs to node i of tree b; q_row counts rows of
/// the one matrix of all draft probabilities.
struct ForestView {
  TreeView all{};                           ///< all.nodes: of all trees
  View<const std::int32_t, 1> offsets{};    ///< [trees + 1], ascending

  DECANT_HD index_t trees() const { return offsets.extent(0) > 0 ? offsets.extent(0) - 1 : 0; }
  DECANT_HD TreeView tree(index_t b) const { return all.shifted(offsets[b], offsets[b + 1] - offsets[b]); }
};

/// What well_formed() asks of node i alone. Reads nothing outside the arrays, whatever they hold. O(earlier siblings).
DECANT_HD inline bool well_formed_node(const TreeView& t, std::int32_t i, std::int32_t vocab, index_t q_rows) {
  if (t.token[i] < 0 || t.token[i] >= vocab || static_cast<int>(t.law[i]) >= laws) return false;
  const std::int32_t k = t.children[i];
  const std::int32_t first = t.first_child[i];
  if (k == 0) {
    if (first != -1) return false;
  } else {
    if (k < 0 || first <= i || first > t.nodes - k) return false;
    if (t.parent[first] != i || t.parent[first + k - 1] != i) return false;
    if (t.law[i] == Law::chain && k != 1) return false;
    if (t.law[i] != Law::deterministic && (t.q_row[i] < 0 || t.q_row[i] >= q_rows)) return false;
    if (!(t.rest[i] >= 0)) return false;
  }
  const std::int32_t parent = t.parent[i];
  if (i == 0) return parent == -1 && t.depth[0] == 0;
  if (parent < 0 || parent >= i || parent < t.parent[i - 1] || t.depth[i] != t.depth[parent] + 1) return false;
  const std::int32_t eldest = t.first_child[parent];
  if (eldest < 0 || i < eldest || i - eldest >= t.children[parent]) return false;
  if (t.law[parent] != Law::chain && t.law[parent] != Law::iid) {
    for (std::int32_t sibling = eldest; sibling < i; ++sibling) {
      if (t.token[sibling] == t.token[i]) return false;
    }
  }
  return true;
}

/// Whether the arrays are a tree whose tokens lie in [0, vocab) and whose draft rows lie in [0, q_rows): parents before
/// children, depths one more than the parent's, breadth first, children side by side and both ways linked, at most
/// max_tree_nodes nodes, one child where the law is a chain, siblings all different unless they are independent draws.
DECANT_HD inline bool well_formed(const TreeView& t, std::int32_t vocab, index_t q_rows) {
  if (t.nodes < 1 || t.nodes > max_tree_nodes) return false;
  for (std::int32_t i = 0; i < t.nodes; ++i) {
    if (!well_formed_node(t, i, vocab, q_rows)) return false;
  }
  return true;
}

}  // namespace decant::speculative

#endif
