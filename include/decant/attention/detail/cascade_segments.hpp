// decant: what shared-prefix attention shows to the policy below it: each piece of a sequence and each KV head of it as
// a sequence of its own, whose queries are those of all requests that share the piece, and their mask in its terms.
#ifndef DECANT_ATTENTION_DETAIL_CASCADE_SEGMENTS_HPP
#define DECANT_ATTENTION_DETAIL_CASCADE_SEGMENTS_HPP

#include <cstdint>

#include "../../kv/cache_view.hpp"
#include "../mask.hpp"

namespace decant::attention {

/// A node of a prefix forest: tokens [first, last) of a sequence of the cache, behind those of its parent.
struct Segment {
  index_t parent = -1;  // an earlier segment; -1: none
  index_t sequence = 0;
  index_t first = 0;
  index_t last = 0;

  bool operator==(const Segment&) const = default;
};

namespace detail {

/// Tokens [first, last) of a cache's sequence, a part of one segment of a forest, attended at once.
struct CascadePiece {
  index_t segment;
  index_t sequence;
  index_t first;
  index_t last;

  bool operator==(const CascadePiece&) const = default;
};

/// A CascadePlan, not owned. Pair i is of piece p where piece_indptr[p] <= i < piece_indptr[p + 1], and of request
/// requests_of[i]; the pairs of request r are parts_of[request_indptr[r]] ..., in the order of its keys.
struct CascadeView {
  View<const Segment, 1> segments;
  View<const index_t, 1> leaves;
  View<const CascadePiece, 1> pieces;
  View<const index_t, 1> piece_indptr;
  View<const index_t, 1> requests_of;
  View<const index_t, 1> request_indptr;
  View<const index_t, 1> parts_of;

  index_t requests() const { return leaves.extent(0); }
};

/// How many of the tokens [first, last) a head holds; heads differ in ragged caches only.
template <class C>
DECANT_HD index_t tokens_of(const C& cache, index_t sequence, index_t head, index_t first, index_t last) {
  const index_t held = cache.length(sequence, head);
  const index_t end = last < held ? last : held;
  return end > first ? end - first : 0;
}

/// Sequence p * heads + h, with one head, is piece p of head h.
template <kv::CacheView C>
struct PieceKV {
  const C* cache;
  const CascadePiece* pieces;
  index_t count;
  index_t heads;

  index_t sequences() const { return count * heads; }
  index_t kv_heads() const { return 1; }
  index_t key_dim() const { return cache->key_dim(); }
  index_t value_dim() const { return cache->value_dim(); }
  index_t length(index_t s, index_t) const {
    const CascadePiece& p = pieces[s / heads];
    return tokens_of(*cache, p.sequence, s % heads, p.first, p.last);
  }
  auto key(index_t s, index_t, index_t t) const {
    const CascadePiece& p = pieces[s / heads];
    return cache->key(p.sequence, s % heads, p.first + t);
  }
  auto value(index_t s, index_t, index_t t) const {
    const CascadePiece& p = pieces[s / heads];
    return cache->value(p.sequence, s % heads, p.first + t);
  }
  index_t run(index_t s, index_t, index_t t) const {
    const CascadePiece& p = pieces[s / heads];
    const index_t run = cache->run(p.sequence, s % heads, p.first + t);
    const index_t left = p.last - p.first - t;
    return run < left ? run : left;
  }
  index_t key_stride() const { return cache->key_stride(); }
  index_t value_stride() const { return cache->value_stride(); }
};

template <class C>
void validate(const PieceKV<C>&) {}  // the cache and the pieces have been

/// Who asks: query `query` of a request, which has so many queries.
struct CascadeQuery {
  index_t request;
  index_t query;
  index_t queries;
};

/// The requests' mask, asked in the pieces' terms.
template <class M>
struct PieceMask {
  static constexpr bool whole_range = detail::whole_range<M>();

  const M* mask;
  const CascadePiece* pieces;
  const CascadeQuery* rows;    // of all pieces, one after another
  const index_t* first_row;    // [pieces]
  const index_t* piece_begin;  // [pieces * heads], keys of the request before the piece
  const index_t* keys;         // [requests * heads]
  index_t heads;

  const CascadeQuery& asks(index_t s, index_t row) const { return rows[first_row[s / heads] + row]; }
  index_t keys_of(index_t s, const CascadeQuery& q) const { return keys[q.request * heads + s % heads]; }

  bool allowed(index_t s, index_t row, index_t key, index_t, index_t) const {
    const CascadeQuery& q = asks(s, row);
    return mask->allowed(q.request, q.query, piece_begin[s] + key, q.queries, keys_of(s, q));
  }
  std::uint64_t word(index_t s, index_t row, index_t first, index_t count, index_t, index_t) const {
    const CascadeQuery& q = asks(s, row);
    return allowed_word(*mask, q.request, q.query, piece_begin[s] + first, count, q.queries, keys_of(s, q));
  }
  KeyRange range(index_t s, index_t row, index_t, index_t) const {
    const CascadeQuery& q = asks(s, row);
    const index_t all = keys_of(s, q);
    const KeyRange r = mask->range(q.request, q.query, q.queries, all);
    return {(r.first > 0 ? r.first : 0) - piece_begin[s], (r.last < all ? r.last : all) - piece_begin[s]};
  }
};

}  // namespace detail
}  // namespace decant::attention

#endif
