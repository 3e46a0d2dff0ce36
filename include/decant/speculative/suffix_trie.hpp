// decant: SuffixTrie, how often each short sequence of tokens has occurred, for drafts by Suffix. It can be bounded:
// the oldest text is then forgotten, token by token, so that a sequence stays as long as its last occurrence does, and
// counts are exactly those of the text that is left. What is useful as a draft is in the answer that it drafted, which
// comes to the trie as the youngest text: a sequence that serves stays. Reading is not use, and changes nothing.
#ifndef DECANT_SPECULATIVE_SUFFIX_TRIE_HPP
#define DECANT_SPECULATIVE_SUFFIX_TRIE_HPP

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "../core/error.hpp"
#include "../core/view.hpp"

namespace decant::speculative {

/// A node is a sequence of at most max_depth tokens; the root, node 0, is the empty one. Children are found in one
/// open-addressed table keyed by (node, token). Once it has been full, a bounded trie allocates nothing.
class SuffixTrie {
 public:
  /// max_nodes: the root included, and of tokens remembered; 0: no bound, else above max_depth.
  explicit SuffixTrie(std::int32_t max_depth = 24, index_t max_nodes = 0)
      : max_depth_(max_depth), max_nodes_(max_nodes) {
    constexpr const char* where = "speculative::SuffixTrie";
    require(max_depth >= 1 && max_depth <= 1024, where, "max_depth", "1 to 1024", max_depth);
    require(max_nodes == 0 || (max_nodes > max_depth && max_nodes <= 0x7fffffff), where, "max_nodes",
            "0, or more than max_depth and below 2^31", max_nodes);
    clear();
  }

  void clear() {
    nodes_.assign(1, Node{});
    slots_.assign(16, -1);
    active_.clear();
    free_ = -1;
    unused_ = 0;
    first_window_ = 0;
    windows_held_ = 0;
  }

  std::int32_t max_depth() const { return max_depth_; }
  std::int32_t nodes() const { return static_cast<std::int32_t>(nodes_.size()) - unused_; }
  /// How often the sequence has occurred; of the root: how many tokens the text has.
  std::int64_t count(std::int32_t node) const { return at(node).count; }
  std::int32_t token(std::int32_t node) const { return at(node).token; }
  /// The last child that was added, and the one added before a child; -1: none.
  std::int32_t first_child(std::int32_t node) const { return at(node).child; }
  std::int32_t sibling(std::int32_t node) const { return at(node).sibling; }
  /// The node of the same sequence without its first token; not of the root.
  std::int32_t shorter(std::int32_t node) const { return at(node).shorter; }

  /// The node of sequence (node, token), or -1. O(1).
  std::int32_t child(std::int32_t node, std::int32_t token) const { return slots_[find(node, token)]; }

  /// One more token of the sequence: every suffix of at most max_depth tokens that ends in it has occurred once more.
  /// Ids of nodes hold until the next token. O(max_depth), of a bounded trie on average.
  void append(std::int32_t token) {
    if (static_cast<std::int32_t>(active_.size()) == max_depth_) complete_window();
    if (max_nodes_ > 0) {
      // As many nodes can be new as windows grow.
      while (nodes() + static_cast<index_t>(active_.size()) + 1 > max_nodes_ || count(0) >= max_nodes_) forget_window();
    }
    active_.insert(active_.begin(), 0);
    ++nodes_[0].count;
    std::int32_t shorter = 0;
    for (std::int32_t& node : active_) {
      const std::size_t s = find(node, token);
      const std::int32_t longer = slots_[s] >= 0 ? slots_[s] : add(node, token, shorter, s);
      ++nodes_[static_cast<std::size_t>(longer)].count;
      node = shorter = longer;
    }
  }
  /// The sequence ends here; the next token begins another.
  void end_sequence() {
    while (!active_.empty()) complete_window();
  }

  /// The node of the longest suffix of `tokens`, of at most max_depth - 1 tokens, that has occurred and been followed
  /// by something, and its length; {0, 0} where not even the last token has. O(max_depth^2).
  std::pair<std::int32_t, std::int32_t> match(View<const std::int32_t, 1> tokens) const {
    const index_t size = tokens.extent(0);
    const index_t most = size < max_depth_ - 1 ? size : max_depth_ - 1;
    for (index_t n = most; n >= 1; --n) {
      std::int32_t node = 0;
      for (index_t i = size - n; i < size && node >= 0; ++i) node = child(node, tokens[i]);
      if (node > 0 && first_child(node) >= 0) return {node, static_cast<std::int32_t>(n)};
    }
    return {0, 0};
  }

 private:
  // The window of a token is the sequence that begins with it, of max_depth tokens where the text goes on so long. Each
  // counts once in every node on its path. A node's occurrences are the windows whose path it is on; where window i is
  // on the path of a node, window i + 1, which is forgotten later, is on that of the node's `shorter`: links hold.
  struct Node {
    std::int64_t count = 0;
    std::int32_t token = -1;
    std::int32_t parent = -1;    // beside what a search and a count read
    std::int32_t child = -1;
    std::int32_t sibling = -1;   // of one that is free: the next free one
    std::int32_t previous = -1;  // sibling
    std::int32_t shorter = 0;
  };

  const Node& at(std::int32_t node) const { return nodes_[static_cast<std::size_t>(node)]; }
  Node& at(std::int32_t node) { return nodes_[static_cast<std::size_t>(node)]; }

  std::size_t slot(std::int32_t node, std::int32_t token) const {
    std::uint64_t h = (static_cast<std::uint64_t>(static_cast<std::uint32_t>(node)) << 32 |
                       static_cast<std::uint32_t>(token)) * 0x9E3779B97F4A7C15u;
    h ^= h >> 29;
    return static_cast<std::size_t>(h) & (slots_.size() - 1);
  }
  std::size_t home(std::int32_t node) const { return slot(at(node).parent, at(node).token); }
  std::size_t next(std::size_t s) const { return (s + 1) & (slots_.size() - 1); }

  /// The slot of sequence (node, token), or the free one where it belongs.
  std::size_t find(std::int32_t node, std::int32_t token) const {
    std::size_t s = slot(node, token);
    while (slots_[s] >= 0 && !(at(slots_[s]).parent == node && at(slots_[s]).token == token)) s = next(s);
    return s;
  }
  /// Closes the gap, so that no search ends before what it looks for.
  void displace(std::int32_t node) {
    std::size_t gap = home(node);
    while (slots_[gap] != node) gap = next(gap);
    const std::size_t mask = slots_.size() - 1;
    for (std::size_t s = next(gap); slots_[s] >= 0; s = next(s)) {
      if (((s - home(slots_[s])) & mask) < ((s - gap) & mask)) continue;
      slots_[gap] = slots_[s];
      gap = s;
    }
    slots_[gap] = -1;
  }

  std::int32_t add(std::int32_t parent, std::int32_t token, std::int32_t shorter, std::size_t s) {
    const std::int32_t before = at(parent).child;
    const Node fresh{0, token, parent, -1, before, -1, shorter};
    std::int32_t node = free_;
    if (node >= 0) {
      free_ = at(node).sibling;
      --unused_;
      at(node) = fresh;
    } else {
      require(nodes_.size() < 0x7fffffff, "speculative::SuffixTrie::append", "this", "below 2^31 nodes", nodes());
      node = static_cast<std::int32_t>(nodes_.size());
      nodes_.push_back(fresh);
    }
    if (before >= 0 && max_nodes_ > 0) at(before).previous = node;  // far away: only where nodes leave
    at(parent).child = node;
    slots_[s] = node;
    if (2 * nodes_.size() > slots_.size()) {  // none is free
      slots_.assign(2 * slots_.size(), -1);
      for (std::int32_t i = 1; i <= node; ++i) slots_[find(at(i).parent, at(i).token)] = i;
    }
    return node;
  }
  void remove(std::int32_t node) {
    displace(node);
    Node& n = at(node);
    (n.previous >= 0 ? at(n.previous).sibling : at(n.parent).child) = n.sibling;
    if (n.sibling >= 0) at(n.sibling).previous = n.previous;
    n.sibling = free_;
    free_ = node;
    ++unused_;
  }

  /// The oldest window that still grows is to grow no more.
  void complete_window() {
    const std::int32_t deepest = active_.back();
    active_.pop_back();
    if (max_nodes_ == 0) return;
    if (windows_held_ == windows_.size()) {
      std::vector<std::int32_t> larger(windows_held_ == 0 ? 64 : 2 * windows_held_);
      for (std::size_t i = 0; i < windows_held_; ++i) larger[i] = windows_[(first_window_ + i) & (windows_held_ - 1)];
      windows_.swap(larger);
      first_window_ = 0;
    }
    windows_[(first_window_ + windows_held_++) & (windows_.size() - 1)] = deepest;
  }
  /// The oldest window leaves.
  void forget_window() {
    std::int32_t node = 0;
    if (windows_held_ > 0) {
      node = windows_[first_window_];
      first_window_ = (first_window_ + 1) & (windows_.size() - 1);
      --windows_held_;
    } else {
      node = active_.back();
      active_.pop_back();
    }
    --at(0).count;
    while (node > 0) {
      const std::int32_t parent = at(node).parent;
      if (--at(node).count == 0) remove(node);
      node = parent;
    }
  }

  std::int32_t max_depth_;
  index_t max_nodes_;
  std::vector<Node> nodes_;
  std::int32_t free_ = -1;
  std::int32_t unused_ = 0;
  std::vector<std::int32_t> slots_;
  std::vector<std::int32_t> active_;   // of the windows that still grow, the youngest first: their last nodes
  std::vector<std::int32_t> windows_;  // of the others, in a ring: their last nodes
  std::size_t first_window_ = 0;
  std::size_t windows_held_ = 0;
};

}  // namespace decant::speculative

#endif
