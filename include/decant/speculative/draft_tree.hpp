// decant: DraftTree, a draft tree while it grows on the host, and DraftForest, a batch of them. Nodes are pushed in any
// order that has parents before children; finalize() puts them breadth first, as verifiers and masks want them.
#ifndef DECANT_SPECULATIVE_DRAFT_TREE_HPP
#define DECANT_SPECULATIVE_DRAFT_TREE_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "../core/error.hpp"
#include "detail/keep_best.hpp"
#include "law.hpp"
#include "tree.hpp"

namespace decant::speculative {

/// Siblings keep the order in which they were pushed. Once it has been as large, a tree allocates nothing.
class DraftTree {
 public:
  DraftTree() { clear(0); }

  /// The root alone: the last committed token.
  void clear(std::int32_t root_token) {
    nodes_.resize(1);
    nodes_.assign(1, Node{root_token, -1, 0, Law::deterministic, -1, 0, 0});
    finalize();
  }

  std::int32_t nodes() const { return static_cast<std::int32_t>(nodes_.size()); }
  std::int32_t depth() const {
    std::int32_t most = 0;
    for (const Node& n : nodes_) most = n.depth > most ? n.depth : most;
    return most;
  }
  std::int32_t token(std::int32_t node) const { return at(node, "token").token; }
  std::int32_t parent(std::int32_t node) const { return at(node, "parent").parent; }
  std::int32_t depth(std::int32_t node) const { return at(node, "depth").depth; }
  /// The cumulative log-probability of the path to the node; the root's is 0.
  float score(std::int32_t node) const { return at(node, "score").score; }

  /// Adds a node and returns its id, which holds until finalize() or prune().
  std::int32_t push_child(std::int32_t parent, std::int32_t token, float score) {
    const std::int32_t depth = at(parent, "push_child").depth + 1;
    require(nodes() < max_tree_nodes, "speculative::DraftTree::push_child", "this", "at most 1024 nodes", nodes() + 1);
    nodes_.push_back({token, parent, depth, Law::deterministic, -1, 0, score});
    return nodes() - 1;
  }

  /// What the node's children are drawn by, from which row of the proposals, and for greedy_plus_one the mass of that
  /// row outside the top tokens (0: unknown). Nodes are deterministic until told otherwise.
  void set_law(std::int32_t node, Law law, std::int32_t q_row = -1, float rest = 0) {
    Node& n = nodes_[static_cast<std::size_t>(&at(node, "set_law") - nodes_.data())];
    n.law = law;
    n.q_row = q_row;
    n.rest = rest;
  }

  /// Keeps the root and the `budget` nodes of the highest score, of equal ones the shallower, then the earlier, so that
  /// parents stay. ArgumentError, and nothing changed, where a node's children are drawn at random (looking at a drawn
  /// token before dropping it changes its law) or where a score exceeds its parent's. O(n log n).
  void prune(std::int32_t budget) {
    constexpr const char* where = "speculative::DraftTree::prune";
    require(budget >= 0, where, "budget", "at least 0", budget);
    for (const Node& n : nodes_) {
      require(n.law == Law::deterministic, where, "this", "deterministic nodes alone", name(n.law));
      require(n.parent < 0 || n.score <= nodes_[static_cast<std::size_t>(n.parent)].score, where, "this",
              "scores that do not increase downwards", n.score);
    }
    if (budget >= nodes() - 1) return;
    order_.resize(nodes_.size());
    for (std::size_t i = 0; i < order_.size(); ++i) order_[i] = static_cast<std::int32_t>(i);
    // The root is among the best: no score exceeds its own, no depth is as small.
    detail::keep_best(order_, budget + 1, [&](std::int32_t a, std::int32_t b) {
      const Node& x = nodes_[static_cast<std::size_t>(a)];
      const Node& y = nodes_[static_cast<std::size_t>(b)];
      return x.score != y.score ? x.score > y.score : x.depth != y.depth ? x.depth < y.depth : a < b;
    });
    renumber(order_.size());
    finalize();
  }

  /// Breadth first, siblings side by side. Ids change. O(n log n).
  void finalize() {
    order_.resize(nodes_.size());
    for (std::size_t i = 0; i < order_.size(); ++i) order_[i] = static_cast<std::int32_t>(i);
    std::sort(order_.begin(), order_.end(), [&](std::int32_t a, std::int32_t b) {
      const std::int32_t x = nodes_[static_cast<std::size_t>(a)].depth;
      const std::int32_t y = nodes_[static_cast<std::size_t>(b)].depth;
      return x != y ? x < y : a < b;
    });
    // Level by level: children follow the order of their parents, which is known by then.
    place_.resize(nodes_.size());
    for (std::size_t first = 0; first < order_.size();) {
      std::size_t last = first;
      const std::int32_t depth = nodes_[static_cast<std::size_t>(order_[first])].depth;
      while (last < order_.size() && nodes_[static_cast<std::size_t>(order_[last])].depth == depth) ++last;
      std::sort(order_.begin() + static_cast<std::ptrdiff_t>(first),
                order_.begin() + static_cast<std::ptrdiff_t>(last), [&](std::int32_t a, std::int32_t b) {
                  const std::int32_t x = parent_place(a);
                  const std::int32_t y = parent_place(b);
                  return x != y ? x < y : a < b;
                });
      for (std::size_t i = first; i < last; ++i) {
        place_[static_cast<std::size_t>(order_[i])] = static_cast<std::int32_t>(i);
      }
      first = last;
    }
    renumber(nodes_.size());
    write_arrays();
  }

  /// Of a finalized tree, until it changes.
  TreeView view() const {
    return {nodes(),        token_.data(), parent_.data(), first_child_.data(), children_.data(),
            depth_.data(),  law_.data(),   q_row_.data(),  rest_.data()};
  }

 private:
  struct Node {
    std::int32_t token;
    std::int32_t parent;
    std::int32_t depth;
    Law law;
    std::int32_t q_row;
    float rest;
    float score;
  };

  const Node& at(std::int32_t node, const char* function) const {
    require(node >= 0 && node < nodes(), (std::string("speculative::DraftTree::") + function).c_str(), "node",
            [&] { return "a node below " + std::to_string(nodes()); }, node);
    return nodes_[static_cast<std::size_t>(node)];
  }

  std::int32_t parent_place(std::int32_t node) const {
    const std::int32_t parent = nodes_[static_cast<std::size_t>(node)].parent;
    return parent < 0 ? -1 : place_[static_cast<std::size_t>(parent)];
  }

  /// Nodes become those that order_ begins with.
  void renumber(std::size_t count) {
    place_.assign(nodes_.size(), -1);
    moved_.clear();
    for (std::size_t i = 0; i < count; ++i) {
      place_[static_cast<std::size_t>(order_[i])] = static_cast<std::int32_t>(i);
      moved_.push_back(nodes_[static_cast<std::size_t>(order_[i])]);
    }
    for (Node& n : moved_) n.parent = n.parent < 0 ? -1 : place_[static_cast<std::size_t>(n.parent)];
    nodes_.swap(moved_);
  }

  void write_arrays() {
    const std::size_t n = nodes_.size();
    token_.resize(n);
    parent_.resize(n);
    depth_.resize(n);
    law_.resize(n);
    q_row_.resize(n);
    rest_.resize(n);
    first_child_.assign(n, -1);
    children_.assign(n, 0);
    for (std::size_t i = 0; i < n; ++i) {
      const Node& node = nodes_[i];
      token_[i] = node.token;
      parent_[i] = node.parent;
      depth_[i] = static_cast<std::uint16_t>(node.depth);
      law_[i] = node.law;
      q_row_[i] = node.q_row;
      rest_[i] = node.rest;
      if (node.parent < 0) continue;
      const auto parent = static_cast<std::size_t>(node.parent);
      if (children_[parent]++ == 0) first_child_[parent] = static_cast<std::int32_t>(i);
    }
  }

  std::vector<Node> nodes_;
  std::vector<Node> moved_;
  std::vector<std::int32_t> order_, place_;
  std::vector<std::int32_t> token_, parent_, first_child_, children_, q_row_;
  std::vector<std::uint16_t> depth_;
  std::vector<Law> law_;
  std::vector<float> rest_;
};

/// Finalized trees, one after another.
class DraftForest {
 public:
  DraftForest() { clear(); }

  void clear() {
    offsets_.assign(1, 0);
    token_.clear();
    parent_.clear();
    first_child_.clear();
    children_.clear();
    q_row_.clear();
    depth_.clear();
    law_.clear();
    rest_.clear();
  }

  /// q_rows_before: how many rows of the batch's proposals come before the tree's own.
  void add(const TreeView& t, std::int32_t q_rows_before = 0) {
    const auto append = [&](auto& to, const auto* from) { to.insert(to.end(), from, from + t.nodes); };
    append(token_, t.token);
    append(parent_, t.parent);
    append(first_child_, t.first_child);
    append(children_, t.children);
    append(q_row_, t.q_row);
    append(depth_, t.depth);
    append(law_, t.law);
    append(rest_, t.rest);
    for (std::size_t i = q_row_.size() - static_cast<std::size_t>(t.nodes); i < q_row_.size(); ++i) {
      if (q_row_[i] >= 0) q_row_[i] += q_rows_before;
    }
    offsets_.push_back(static_cast<std::int32_t>(token_.size()));
  }

  ForestView view() const {
    return {{static_cast<std::int32_t>(token_.size()), token_.data(), parent_.data(), first_child_.data(),
             children_.data(), depth_.data(), law_.data(), q_row_.data(), rest_.data()},
            View<const std::int32_t, 1>(offsets_)};
  }

 private:
  std::vector<std::int32_t> offsets_, token_, parent_, first_child_, children_, q_row_;
  std::vector<std::uint16_t> depth_;
  std::vector<Law> law_;
  std::vector<float> rest_;
};

}  // namespace decant::speculative

#endif
