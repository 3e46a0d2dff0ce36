// decant: ChunkTree, prompts as a tree whose edges are runs of digests, one per chunk (chain_hash.hpp), with Data at
// every node. The root is the empty prompt and stays.
#ifndef DECANT_SCHEDULING_DETAIL_CHUNK_TREE_HPP
#define DECANT_SCHEDULING_DETAIL_CHUNK_TREE_HPP

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "../../core/view.hpp"
#include "../workload.hpp"
#include "key_table.hpp"

namespace decant::scheduling::detail {

template <class Data>
class ChunkTree {
 public:
  using Index = std::uint32_t;
  static constexpr Index root = 0, none = KeyTable::none;

  struct Node {
    std::vector<std::uint64_t> edge;  // digests from the parent
    Index parent = none, child = none, sibling = none, previous = none;
    index_t above = 0;                // chunks from the root to the parent
    std::uint64_t last_use = 0;       // the insert() that passed here last
    bool live = true;
    Data data{};

    index_t length() const { return static_cast<index_t>(edge.size()); }
  };
  struct Place {
    Index node = root;
    index_t found = 0;  // chunks
  };

  ChunkTree() : nodes_(1) {}

  Node& operator[](Index node) { return nodes_[node]; }
  const Node& operator[](Index node) const { return nodes_[node]; }
  /// One more than the largest index.
  Index end() const { return static_cast<Index>(nodes_.size()); }
  /// The root not counted.
  std::size_t size() const { return nodes_.size() - free_.size() - 1; }
  std::uint64_t clock() const { return clock_; }

  /// The last node wholly in the chain; the chunks found may end within an edge below it.
  Place look(View<const std::uint64_t, 1> chain) const {
    Place out;
    while (out.found < chain.extent(0)) {
      const Index child = child_of(out.node, chain[out.found]);
      if (child == none) break;
      const index_t same = common(child, chain, out.found);
      out.found += same;
      if (same < nodes_[child].length()) break;
      out.node = child;
    }
    return out;
  }

  /// The node that ends the chain, and how much of it was there before. Where an edge is cut, on_cut(upper, lower)
  /// fills the data of the new node `upper`. O(chain).
  template <class OnCut>
  Place insert(View<const std::uint64_t, 1> chain, const OnCut& on_cut) {
    ++clock_;
    Index node = root;
    index_t at = 0;
    while (at < chain.extent(0)) {
      const Index child = child_of(node, chain[at]);
      if (child == none) break;
      const index_t same = common(child, chain, at);
      node = child;
      if (same < nodes_[child].length()) on_cut(node = cut(child, same), child);
      nodes_[node].last_use = clock_;
      at += same;
    }
    const index_t found = at;
    if (at < chain.extent(0) && children_.find(key(node, chain[at])) == none) {  // else two of one key: the older stays
      std::vector<std::uint64_t> edge;
      for (; at < chain.extent(0); ++at) edge.push_back(chain[at]);
      node = add(node, std::move(edge));
    }
    return {node, found};
  }

  /// A node without children.
  void remove(Index node) {
    unhang(node);
    nodes_[node] = Node{};
    nodes_[node].live = false;
    free_.push_back(node);
  }

  /// f(node) for a node and all below it.
  template <class F>
  void for_each_below(Index top, const F& f) {
    for (Index n = top;;) {
      f(n);
      if (nodes_[n].child != none) {
        n = nodes_[n].child;
        continue;
      }
      while (n != top && nodes_[n].sibling == none) n = nodes_[n].parent;
      if (n == top) return;
      n = nodes_[n].sibling;
    }
  }

 private:
  // A digest of the parent and the first chunk.
  static constexpr std::uint64_t key(Index node, std::uint64_t digest) {
    return SplitMix64{digest + node * 0x9e3779b97f4a7c15u}();
  }
  Index child_of(Index node, std::uint64_t digest) const {
    const Index child = children_.find(key(node, digest));
    return child != none && nodes_[child].parent == node && nodes_[child].edge[0] == digest ? child : none;
  }
  index_t common(Index node, View<const std::uint64_t, 1> chain, index_t at) const {
    const auto& edge = nodes_[node].edge;
    const index_t left = chain.extent(0) - at, most = nodes_[node].length() < left ? nodes_[node].length() : left;
    index_t n = 0;
    while (n < most && edge[static_cast<std::size_t>(n)] == chain[at + n]) ++n;
    return n;
  }

  Index add(Index parent, std::vector<std::uint64_t> edge) {
    Index node = end();
    if (free_.empty()) {
      nodes_.emplace_back();
    } else {
      node = free_.back();
      free_.pop_back();
      nodes_[node] = Node{};
    }
    nodes_[node].edge = std::move(edge);
    nodes_[node].last_use = clock_;
    hang(parent, node);
    return node;
  }
  void hang(Index parent, Index node) {
    Node& e = nodes_[node];
    e.parent = parent;
    e.above = nodes_[parent].above + nodes_[parent].length();
    e.previous = none;
    e.sibling = nodes_[parent].child;
    if (e.sibling != none) nodes_[e.sibling].previous = node;
    nodes_[parent].child = node;
    children_[key(parent, e.edge[0])] = node;
  }
  void unhang(Index node) {
    const Node& e = nodes_[node];
    children_.erase(key(e.parent, e.edge[0]));
    (e.previous == none ? nodes_[e.parent].child : nodes_[e.previous].sibling) = e.sibling;
    if (e.sibling != none) nodes_[e.sibling].previous = e.previous;
  }
  /// A new node above takes the first `n` digests; returns it.
  Index cut(Index node, index_t n) {
    const Index parent = nodes_[node].parent;
    unhang(node);
    std::vector<std::uint64_t> edge = std::move(nodes_[node].edge);
    const auto middle = edge.begin() + static_cast<std::ptrdiff_t>(n);
    const Index upper = add(parent, {edge.begin(), middle});
    nodes_[node].edge.assign(middle, edge.end());
    hang(upper, node);
    return upper;
  }

  std::vector<Node> nodes_;
  std::vector<Index> free_;
  KeyTable children_;  // from (parent, first digest of the edge)
  std::uint64_t clock_ = 0;
};

}  // namespace decant::scheduling::detail

#endif
