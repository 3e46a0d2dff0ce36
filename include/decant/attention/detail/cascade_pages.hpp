// decant: finds the prefixes that sequences share in a page table: a trie over the rows that they name.
#ifndef DECANT_ATTENTION_DETAIL_CASCADE_PAGES_HPP
#define DECANT_ATTENTION_DETAIL_CASCADE_PAGES_HPP

#include <cstddef>
#include <vector>

#include "../../kv/paged_kv.hpp"

namespace decant::attention::detail {

/// Tokens [first, last) of some sequence, `sequence` being one of those that share them.
struct PageNode {
  index_t parent;
  index_t sequence;
  index_t first;
  index_t last;
  index_t child = -1;    // the youngest
  index_t sibling = -1;  // the next older
  bool ends = false;     // a sequence ends here
};

/// The trie of all sequences that are not empty. Two sequences share a token when it is the same slot of the same page
/// and all tokens before it are shared, so a page that only one of them has filled is shared as far as the other goes.
template <class T>
class PageTrie {
 public:
  explicit PageTrie(const kv::PagedKV<T>& cache) : cache_(cache), end_(size(cache.sequences()), -1) {
    for (index_t s = 0; s < cache.sequences(); ++s)
      if (cache.length(s, 0) > 0) insert(s);
  }

  const std::vector<PageNode>& nodes() const { return nodes_; }
  /// The first root, of which further ones are siblings; -1 if there is none.
  index_t root() const { return root_; }
  /// The node at whose end a sequence ends; -1 for an empty one.
  index_t end(index_t sequence) const { return end_[size(sequence)]; }

 private:
  static std::size_t size(index_t i) { return static_cast<std::size_t>(i); }
  PageNode& node(index_t i) { return nodes_[size(i)]; }

  /// Up to which token, from `first` on, two sequences that agree before it name the same rows.
  index_t agree(index_t a, index_t b, index_t first, index_t last) const {
    const index_t page_size = cache_.page_size();
    index_t t = first;
    while (t < last) {
      if (cache_.indices[cache_.indptr[a] + t / page_size] != cache_.indices[cache_.indptr[b] + t / page_size]) break;
      t = (t / page_size + 1) * page_size;
    }
    return t < last ? t : last;
  }

  void insert(index_t s) {
    const index_t length = cache_.length(s, 0);
    index_t parent = -1;
    index_t done = 0;
    for (;;) {
      index_t* link = parent < 0 ? &root_ : &node(parent).child;
      index_t found = -1;
      index_t until = done;
      for (; *link >= 0; link = &node(*link).sibling) {
        const PageNode& n = node(*link);
        until = agree(s, n.sequence, done, n.last < length ? n.last : length);
        if (until > done) {
          found = *link;
          break;
        }
      }
      if (found < 0) {
        add_leaf(s, parent, done, length);
        return;
      }
      if (until < node(found).last) {  // the upper part becomes a node of its own, in this one's place
        const auto upper = static_cast<index_t>(nodes_.size());
        PageNode split = node(found);
        split.last = until;
        split.child = found;
        split.ends = false;
        *link = upper;
        node(found).parent = upper;
        node(found).first = until;
        node(found).sibling = -1;
        nodes_.push_back(split);
        found = upper;
      }
      if (until == length) {
        node(found).ends = true;
        end_[size(s)] = found;
        return;
      }
      parent = found;
      done = until;
    }
  }

  void add_leaf(index_t s, index_t parent, index_t first, index_t last) {
    index_t* const link = parent < 0 ? &root_ : &node(parent).child;
    PageNode leaf{parent, s, first, last};
    leaf.sibling = *link;
    leaf.ends = true;
    *link = static_cast<index_t>(nodes_.size());
    end_[size(s)] = *link;
    nodes_.push_back(leaf);
  }

  const kv::PagedKV<T>& cache_;
  std::vector<PageNode> nodes_;
  std::vector<index_t> end_;
  index_t root_ = -1;
};

}  // namespace decant::attention::detail

#endif
