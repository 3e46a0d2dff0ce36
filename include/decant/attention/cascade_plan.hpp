// decant: attention::CascadePlan, which keys the requests of a batch have in common, and so which runs of keys are
// attended once for several of them (Hydragen, arXiv 2402.05099; FlashInfer's cascade, arXiv 2501.01005). Any forest of
// prefixes, found in a page table or given. Exact, on integers; runs may end within a page, short ones are left to each
// request, and long ones are cut into pieces so that workers share them [ours]. cascade.hpp does the attention.
#ifndef DECANT_ATTENTION_CASCADE_PLAN_HPP
#define DECANT_ATTENTION_CASCADE_PLAN_HPP

#include <cstddef>
#include <cstdint>
#include <vector>

#include "detail/cascade_pages.hpp"
#include "detail/cascade_segments.hpp"

namespace decant::attention {

/// How a batch is cut into segments.
struct Cascade {
  /// Fewest tokens that are worth a segment of their own, when plan() looks for shared ones in a page table: a segment
  /// costs a state of every query that shares it, as much as reading some 2 * group tokens.
  index_t least = 64;
  /// Tokens after which a segment is cut, so that several workers can take it. Results depend on it in last bits.
  index_t piece = 8192;

  bool operator==(const Cascade&) const = default;
};

inline void validate(const Cascade& a) {
  constexpr const char* where = "attention::Cascade";
  require(a.least >= 1, where, "least", "at least 1 token", a.least);
  require(a.piece >= 64, where, "piece", "at least 64 tokens", a.piece);
}

/// Which keys each request sees and which of them it shares: what plan() makes, once for all layers of a step. A value;
/// good for every cache whose sequences hold the tokens that it names.
class CascadePlan {
 public:
  CascadePlan() = default;

  /// From any forest: segments, parents before children, and for each request the segment at whose end it ends (-1: no
  /// keys). A request's keys are those of the segments from its root to that one, in this order. Requests may share a
  /// leaf. ArgumentError names `segments` or `leaves`. O(segments + requests * depth * pieces); allocates.
  CascadePlan(View<const Segment, 1> segments, View<const index_t, 1> leaves, index_t piece) {
    constexpr const char* where = "attention::plan";
    constexpr index_t most = 0x7fffffff;
    const index_t count = segments.extent(0);
    require(piece >= 64, where, "piece", "at least 64 tokens", piece);
    for (index_t s = 0; s < count; ++s) {
      const Segment& x = segments[s];
      require(x.parent >= -1 && x.parent < s, where, "segments",
              [&] { return "parents before their children, for segment " + std::to_string(s); }, x.parent);
      require(x.sequence >= 0 && x.sequence <= most, where, "segments", "sequences of at least 0", x.sequence);
      require(x.first >= 0 && x.first <= x.last, where, "segments",
              [&] { return "first tokens from 0 to last, for segment " + std::to_string(s); }, x.first);
      require(x.last <= most, where, "segments", "tokens below 2^31", x.last);
    }
    for (index_t r = 0; r < leaves.extent(0); ++r) {
      require(leaves[r] >= -1 && leaves[r] < count, where, "leaves",
              [&] { return "-1 or one of the " + std::to_string(count) + " segments"; }, leaves[r]);
    }
    for (index_t s = 0; s < count; ++s) segments_.push_back(segments[s]);
    for (index_t r = 0; r < leaves.extent(0); ++r) leaves_.push_back(leaves[r]);

    std::vector<index_t> sharers(size(count), 0);
    for (const index_t leaf : leaves_)
      for (index_t s = leaf; s >= 0; s = segments[s].parent) ++sharers[size(s)];
    std::vector<index_t> first_piece(size(count) + 1, 0);
    piece_indptr_.assign(1, 0);
    for (index_t s = 0; s < count; ++s) {
      first_piece[size(s)] = pieces();
      if (sharers[size(s)] == 0) continue;
      for (index_t t = segments[s].first; t < segments[s].last; t += piece) {
        const index_t end = segments[s].last - t < piece ? segments[s].last : t + piece;
        pieces_.push_back({s, segments[s].sequence, t, end});
        piece_indptr_.push_back(piece_indptr_.back() + sharers[size(s)]);
      }
    }
    first_piece[size(count)] = pieces();

    // Parents come first, so pieces in ascending order are a request's keys in order.
    requests_of_.resize(size(piece_indptr_.back()));
    std::vector<index_t> next(piece_indptr_.begin(), piece_indptr_.end() - 1);
    for (index_t r = 0; r < requests(); ++r)
      for (index_t s = leaves_[size(r)]; s >= 0; s = segments[s].parent)
        for (index_t p = first_piece[size(s)]; p < first_piece[size(s) + 1]; ++p)
          requests_of_[size(next[size(p)]++)] = r;
    request_indptr_.assign(size(requests()) + 1, 0);
    for (const index_t r : requests_of_) ++request_indptr_[size(r) + 1];
    for (std::size_t r = 1; r < request_indptr_.size(); ++r) request_indptr_[r] += request_indptr_[r - 1];
    next.assign(request_indptr_.begin(), request_indptr_.end() - 1);
    parts_of_.resize(requests_of_.size());
    for (std::size_t i = 0; i < requests_of_.size(); ++i)
      parts_of_[size(next[size(requests_of_[i])]++)] = static_cast<index_t>(i);
  }

  View<const Segment, 1> segments() const { return segments_; }
  View<const index_t, 1> leaves() const { return leaves_; }
  index_t requests() const { return static_cast<index_t>(leaves_.size()); }
  index_t pieces() const { return static_cast<index_t>(pieces_.size()); }
  /// How many (piece, request) pairs there are: the states that one query per request makes.
  index_t states() const { return static_cast<index_t>(requests_of_.size()); }
  /// Tokens that are read, each segment once.
  index_t tokens() const {
    index_t n = 0;
    for (const detail::CascadePiece& p : pieces_) n += p.last - p.first;
    return n;
  }
  /// Tokens that dense attention reads, each request for itself.
  index_t dense_tokens() const {
    index_t n = 0;
    for (index_t p = 0; p < pieces(); ++p)
      n += (pieces_[size(p)].last - pieces_[size(p)].first) * (piece_indptr_[size(p) + 1] - piece_indptr_[size(p)]);
    return n;
  }

  /// What attend() takes; good for as long as the plan lives.
  operator detail::CascadeView() const {
    return {segments_, leaves_, pieces_, piece_indptr_, requests_of_, request_indptr_, parts_of_};
  }

  bool operator==(const CascadePlan&) const = default;

 private:
  static std::size_t size(index_t i) { return static_cast<std::size_t>(i); }

  std::vector<Segment> segments_;
  std::vector<index_t> leaves_;
  std::vector<detail::CascadePiece> pieces_;
  std::vector<index_t> piece_indptr_{0};
  std::vector<index_t> requests_of_;
  std::vector<index_t> request_indptr_{0};
  std::vector<index_t> parts_of_;
};

/// The plan for a forest that the caller knows: see CascadePlan.
inline CascadePlan plan(const Cascade& a, View<const Segment, 1> segments, View<const index_t, 1> leaves) {
  validate(a);
  return {segments, leaves, a.piece};
}

/// The plan for a paged cache, one request per sequence: whatever rows sequences have in common from their first token
/// on, at least a.least of them, are a segment. Sequences in any order. O(pages * sharers of each); allocates.
template <class T>
CascadePlan plan(const Cascade& a, const kv::PagedKV<T>& cache) {
  validate(a);
  validate(cache);
  const detail::PageTrie<T> trie(cache);
  const std::vector<detail::PageNode>& nodes = trie.nodes();
  std::vector<Segment> segments;
  // Nodes that are too short for a segment are handed down: their tokens begin each child's segment instead.
  struct Visit {
    index_t node, parent, first;
  };
  std::vector<Visit> open;
  std::vector<index_t> segment_of(nodes.size(), -1);
  for (index_t n = trie.root(); n >= 0; n = nodes[static_cast<std::size_t>(n)].sibling) open.push_back({n, -1, 0});
  while (!open.empty()) {
    const Visit v = open.back();
    open.pop_back();
    const detail::PageNode& n = nodes[static_cast<std::size_t>(v.node)];
    const bool inner = n.child >= 0;
    const bool kept = !inner || n.last - v.first >= a.least;
    index_t here = -1;
    if (kept || n.ends) {
      here = static_cast<index_t>(segments.size());
      segments.push_back({v.parent, n.sequence, v.first, n.last});
      segment_of[static_cast<std::size_t>(v.node)] = here;
    }
    for (index_t c = n.child; c >= 0; c = nodes[static_cast<std::size_t>(c)].sibling)
      open.push_back(kept ? Visit{c, here, n.last} : Visit{c, v.parent, v.first});
  }
  std::vector<index_t> leaves;
  for (index_t s = 0; s < cache.sequences(); ++s) {
    const index_t end = trie.end(s);
    leaves.push_back(end < 0 ? -1 : segment_of[static_cast<std::size_t>(end)]);
  }
  return {View<const Segment, 1>(segments), View<const index_t, 1>(leaves), a.piece};
}

/// Bytes that one step moves: rows of K and V, each once, and for each state its query, written and read again, and o
/// and lse, written and read again. element: bytes of a cached number; queries are counted as floats.
inline index_t cascade_bytes(const CascadePlan& p, index_t kv_heads, index_t query_heads, index_t key_dim,
                             index_t value_dim, index_t element) {
  return p.tokens() * kv_heads * (key_dim + value_dim) * element +
         p.states() * query_heads * 2 * 4 * (key_dim + value_dim + 1);
}

}  // namespace decant::attention

#endif
