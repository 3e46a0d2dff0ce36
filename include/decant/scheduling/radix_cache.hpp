// decant: RadixCache, a prefix cache as a tree whose edges are runs of tokens (SGLang's radix cache): every token of a
// prefix is found, not whole blocks alone; running requests lock the path that they read; what goes first is the leaf
// unused for longest. Pages of more than one token make it coarser: then edges are cut between pages only. Time is a
// counter, so that runs repeat.
#ifndef DECANT_SCHEDULING_RADIX_CACHE_HPP
#define DECANT_SCHEDULING_RADIX_CACHE_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "../core/error.hpp"
#include "chain_hash.hpp"
#include "detail/key_table.hpp"
#include "prefix_index.hpp"

namespace decant::scheduling {

class RadixCache {
 public:
  using Node = std::uint32_t;
  static constexpr Node root = 0;
  static constexpr Node none = 0xffffffffu;

  /// ArgumentError: a page of 0.
  explicit RadixCache(std::uint32_t page = 1) : page_(page), nodes_(1) {
    require(page > 0, "scheduling::RadixCache", "page", "at least 1 token", page);
  }

  std::uint32_t granularity() const { return page_; }
  std::size_t size() const { return tokens_; }
  /// Tokens that eviction can reach.
  std::size_t evictable() const { return tokens_ - locked_; }
  std::size_t nodes() const { return nodes_.size() - free_.size(); }
  /// Of memory, the allocator's own not counted. O(nodes).
  std::size_t bytes() const {
    std::size_t sum = nodes_.capacity() * sizeof(Entry) + free_.capacity() * sizeof(Node) + children_.bytes() +
                      heap_.capacity() * sizeof(Leaf);
    for (const Entry& e : nodes_) sum += e.edge.capacity() * sizeof(std::uint32_t);
    return sum;
  }

  std::size_t match(View<const std::uint32_t, 1> tokens) {
    Node node = root;
    return match(tokens, node);
  }
  /// The same, but changes nothing: no edge is cut, and nothing counts as used.
  std::size_t peek(View<const std::uint32_t, 1> tokens) const {
    const std::uint32_t* const at = data_of(tokens);
    const std::size_t n = whole(tokens);
    std::size_t found = 0;
    for (Node node = root; found < n;) {
      node = child_of(node, at + found);
      if (node == none) break;
      const std::size_t same = common(nodes_[node].edge, at + found, n - found);
      found += same;
      if (same < nodes_[node].edge.size()) break;
    }
    return found;
  }
  /// match(), and the node that ends the match: what a request locks. An edge that matches in part is cut there.
  /// O(tokens).
  std::size_t match(View<const std::uint32_t, 1> tokens, Node& node) {
    const std::uint32_t* const at = data_of(tokens);
    const std::size_t n = whole(tokens);
    std::size_t found = 0;
    node = root;
    touch(root);
    while (found < n) {
      const Node child = child_of(node, at + found);
      if (child == none) break;
      const std::size_t same = common(nodes_[child].edge, at + found, n - found);
      if (same == 0) break;  // two pages of one digest
      node = same < nodes_[child].edge.size() ? cut(child, same) : child;
      touch(node);
      found += same;
    }
    return found;
  }

  std::size_t insert(View<const std::uint32_t, 1> tokens) {
    Node node = root;
    const std::size_t found = match(tokens, node);
    const std::size_t n = whole(tokens);
    if (found == n) return found;
    const std::uint32_t* const at = data_of(tokens);
    if (child_of(node, at + found) != none) return found;  // two pages of one digest: the older one stays
    add(node, std::vector<std::uint32_t>(at + found, at + n));
    return found;
  }

  /// A running request reads the path to `node`: it stays until as many calls of unlock().
  void lock(Node node) {
    for (; node != root; node = nodes_[node].parent) {
      if (nodes_[node].locks++ == 0) locked_ += nodes_[node].edge.size();
    }
  }
  void unlock(Node node) {
    for (; node != root; node = nodes_[node].parent) {
      require(nodes_[node].locks > 0, "scheduling::RadixCache::unlock", "node", "a locked node", node);
      if (--nodes_[node].locks == 0) locked_ -= nodes_[node].edge.size();
    }
  }

  /// Whole leaves, the one unused for longest first. O(leaves + evicted log leaves).
  std::size_t evict(std::size_t count) {
    heap_.clear();
    for (Node node = 1; node < nodes_.size(); ++node) {
      if (nodes_[node].live && evictable_leaf(node)) heap_.push_back({nodes_[node].last_use, node});
    }
    const auto later = [](const Leaf& a, const Leaf& b) { return a.last_use > b.last_use; };
    std::make_heap(heap_.begin(), heap_.end(), later);
    std::size_t gone = 0;
    while (gone < count && !heap_.empty()) {
      std::pop_heap(heap_.begin(), heap_.end(), later);
      const Node node = heap_.back().node, parent = nodes_[node].parent;
      heap_.pop_back();
      gone += nodes_[node].edge.size();
      remove(node);
      if (parent == root || !evictable_leaf(parent)) continue;
      heap_.push_back({nodes_[parent].last_use, parent});
      std::push_heap(heap_.begin(), heap_.end(), later);
    }
    return gone;
  }

  // ---- the tree, for orders that walk it

  Node first_child(Node node) const { return nodes_[node].child; }
  Node sibling(Node node) const { return nodes_[node].sibling; }
  Node parent(Node node) const { return nodes_[node].parent; }

 private:
  struct Entry {
    std::vector<std::uint32_t> edge;  // tokens from the parent
    Node parent = none, child = none, sibling = none, previous = none;
    std::uint32_t children = 0, locks = 0;
    std::uint64_t last_use = 0;
    bool live = true;
  };
  struct Leaf {
    std::uint64_t last_use;
    Node node;
  };

  static const std::uint32_t* data_of(View<const std::uint32_t, 1> tokens) {
    require(tokens.contiguous(), "scheduling::RadixCache", "tokens", "contiguous tokens", tokens.stride(0));
    return tokens.data();
  }
  std::size_t whole(View<const std::uint32_t, 1> tokens) const {
    return static_cast<std::size_t>(tokens.extent(0)) / page_ * page_;
  }
  void touch(Node node) { nodes_[node].last_use = ++clock_; }

  std::uint64_t key(Node node, const std::uint32_t* page) const {
    return detail::next_digest({node, page_}, page, page_).key;
  }
  Node child_of(Node node, const std::uint32_t* page) const { return children_.find(key(node, page)); }

  std::size_t common(const std::vector<std::uint32_t>& edge, const std::uint32_t* at, std::size_t n) const {
    const std::size_t most = (std::min)(edge.size(), n);
    const auto end = edge.begin() + static_cast<std::ptrdiff_t>(most);
    const auto same = static_cast<std::size_t>(std::mismatch(edge.begin(), end, at).first - edge.begin());
    return same / page_ * page_;
  }

  bool evictable_leaf(Node node) const { return nodes_[node].children == 0 && nodes_[node].locks == 0; }

  Node add(Node parent, std::vector<std::uint32_t> edge) {
    Node node = static_cast<Node>(nodes_.size());
    if (free_.empty()) {
      nodes_.emplace_back();
    } else {
      node = free_.back();
      free_.pop_back();
      nodes_[node] = Entry{};
    }
    tokens_ += edge.size();
    nodes_[node].edge = std::move(edge);
    hang(parent, node);
    touch(node);
    return node;
  }
  void hang(Node parent, Node node) {
    Entry& e = nodes_[node];
    e.parent = parent;
    e.previous = none;
    e.sibling = nodes_[parent].child;
    if (e.sibling != none) nodes_[e.sibling].previous = node;
    nodes_[parent].child = node;
    ++nodes_[parent].children;
    children_[key(parent, e.edge.data())] = node;
  }
  void unhang(Node node) {
    const Entry& e = nodes_[node];
    children_.erase(key(e.parent, e.edge.data()));
    (e.previous == none ? nodes_[e.parent].child : nodes_[e.previous].sibling) = e.sibling;
    if (e.sibling != none) nodes_[e.sibling].previous = e.previous;
    --nodes_[e.parent].children;
  }
  void remove(Node node) {
    unhang(node);
    tokens_ -= nodes_[node].edge.size();
    nodes_[node] = Entry{};
    nodes_[node].live = false;
    free_.push_back(node);
  }

  /// A new node above `node` takes the first `length` tokens of its edge; returns it.
  Node cut(Node node, std::size_t length) {
    const Node parent = nodes_[node].parent;
    const std::uint32_t locks = nodes_[node].locks;
    const std::uint64_t last_use = nodes_[node].last_use;
    unhang(node);
    std::vector<std::uint32_t> edge = std::move(nodes_[node].edge);
    const auto middle = edge.begin() + static_cast<std::ptrdiff_t>(length);
    tokens_ -= length;  // add() counts them again
    const Node upper = add(parent, std::vector<std::uint32_t>(edge.begin(), middle));
    nodes_[upper].locks = locks;
    nodes_[upper].last_use = last_use;
    nodes_[node].edge.assign(middle, edge.end());
    hang(upper, node);
    return upper;
  }

  std::uint32_t page_;
  std::vector<Entry> nodes_;
  std::vector<Node> free_;
  detail::KeyTable children_;  // from (parent, first page of the edge)
  std::vector<Leaf> heap_;
  std::size_t tokens_ = 0, locked_ = 0;
  std::uint64_t clock_ = 0;
};

static_assert(PrefixIndex<RadixCache>);

}  // namespace decant::scheduling

#endif
