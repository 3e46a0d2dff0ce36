// decant: attention::TreeMask, which query of a draft tree sees which of its tokens, as ancestor bitmasks (SpecInfer,
// arXiv 2305.09781; EAGLE, Medusa), and conversions from and to the other ways to say it: parents, the packed bits
// over all keys that FlashInfer takes (BitMask), and packed prefixes, several ends of one draft with a probe behind
// each (PARSE, arXiv 2605.04263). All of them become one mask. Exact, on integers; the layout of packed prefixes is our
// reading, for the paper does not fix one [ours].
#ifndef DECANT_ATTENTION_TREE_MASK_HPP
#define DECANT_ATTENTION_TREE_MASK_HPP

#include <cstdint>

#include "mask.hpp"

namespace decant::attention {

/// The number of words of an ancestor mask: a row of ceil(tokens / 64) for each token.
DECANT_HD constexpr index_t tree_words(index_t tokens) { return tokens * ((tokens + 63) / 64); }

/// The queries of a sequence are the m tokens of a forest, parents before children, and their keys are the sequence's
/// last m. Each sees every key before those (the context), itself and its ancestors: bit j % 64 of word
/// i * ceil(m / 64) + j / 64 is 1 where token i sees token j. Bits of later tokens (j > i) are not read.
struct TreeMask {
  View<const std::uint64_t, 1> words;
  /// The word at which each sequence's rows begin, and the end. [sequences + 1]; may be empty for one sequence.
  View<const index_t, 1> offsets{};

  DECANT_HD bool allowed(index_t sequence, index_t query, index_t key, index_t queries, index_t keys) const {
    const index_t token = key - (keys - queries);
    return token < 0 || ((row(sequence, query, queries, token / 64) >> (token % 64)) & 1) != 0;
  }
  DECANT_HD std::uint64_t word(index_t sequence, index_t query, index_t first, index_t count, index_t queries,
                               index_t keys) const {
    const index_t token = first - (keys - queries);  // of bit 0
    const index_t context = token >= 0 ? 0 : -token < count ? -token : count;
    std::uint64_t found = below(context);
    if (context < count) {
      const index_t begin = token + context;
      const index_t shift = begin % 64;
      std::uint64_t seen = row(sequence, query, queries, begin / 64) >> shift;
      if (shift + count - context > 64) seen |= row(sequence, query, queries, begin / 64 + 1) << (64 - shift);
      found |= (seen & below(count - context)) << context;
    }
    return found;
  }
  DECANT_HD KeyRange range(index_t, index_t query, index_t queries, index_t keys) const {
    return {0, keys - queries + query + 1};
  }
  /// The context.
  DECANT_HD KeyRange whole(index_t, index_t, index_t queries, index_t keys) const { return {0, keys - queries}; }
  /// Whether there is a row for each query of the sequence: what validate() asks, where it cannot throw.
  DECANT_HD bool holds(index_t sequences, index_t sequence, index_t queries, index_t) const {
    if (offsets.empty() ? sequences != 1 : offsets.extent(0) != sequences + 1) return false;
    const index_t first = offsets.empty() ? 0 : offsets[sequence];
    const index_t last = offsets.empty() ? words.extent(0) : offsets[sequence + 1];
    return first >= 0 && last <= words.extent(0) && tree_words(queries) <= last - first;
  }

 private:
  DECANT_HD static constexpr std::uint64_t below(index_t n) {
    return n >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << n) - 1;
  }
  DECANT_HD std::uint64_t row(index_t sequence, index_t query, index_t queries, index_t at) const {
    return words[(offsets.empty() ? 0 : offsets[sequence]) + query * ((queries + 63) / 64) + at];
  }
};

/// The mask must hold a row for each query of the sequence. O(1) per sequence.
inline void validate(const TreeMask& mask, index_t sequences, index_t sequence, index_t queries, index_t) {
  constexpr const char* where = "attention::TreeMask";
  const index_t room = detail::mask_room(where, mask.offsets, mask.words.extent(0), "words", sequences, sequence);
  require(room >= tree_words(queries), where, "words",
          [&] {
            return "at least " + std::to_string(tree_words(queries)) + " for the " + std::to_string(queries) +
                   " queries of sequence " + std::to_string(sequence);
          },
          room);
}

static_assert(Mask<TreeMask>);

/// Several prefixes of one draft in one forward: draft tokens 0 ... draft - 1, a chain, then for each end a probe of
/// `probe` tokens, a chain that hangs below the first ends[s] draft tokens. Probes see neither each other nor later
/// draft tokens, and draft tokens see no probe. Token draft + s * probe + r is the r-th of probe s.
struct PackedPrefixes {
  index_t draft = 0;
  View<const std::int32_t, 1> ends{};  // ascending, 0 ... draft; 0: below the context
  index_t probe = 0;

  constexpr index_t tokens() const { return draft + ends.extent(0) * probe; }
};

inline void validate(const PackedPrefixes& p) {
  constexpr const char* where = "attention::PackedPrefixes";
  constexpr index_t most = 0x7fffffff;
  require(p.draft >= 0 && p.draft <= most, where, "draft", "0 to 2^31 - 1", p.draft);
  require(p.probe >= 0 && p.probe <= most, where, "probe", "0 to 2^31 - 1", p.probe);
  require(p.ends.extent(0) <= p.draft + 1, where, "ends", "at most one for each length of the draft",
          p.ends.extent(0));
  for (index_t s = 0; s < p.ends.extent(0); ++s) {
    require(p.ends[s] >= 0 && p.ends[s] <= p.draft, where, "ends",
            [&] { return "lengths of at most the draft's " + std::to_string(p.draft); }, p.ends[s]);
    require(s == 0 || p.ends[s] > p.ends[s - 1], where, "ends", "ascending lengths", p.ends[s]);
  }
  require(p.tokens() <= most, where, "probe", "at most 2^31 - 1 tokens in all", p.tokens());
}

namespace detail {

/// parents[i]: -1 (the context) or an earlier token.
inline void validate_parents(View<const std::int32_t, 1> parents, const char* where) {
  for (index_t i = 0; i < parents.extent(0); ++i) {
    require(parents[i] >= -1 && parents[i] < i, where, "parents",
            [&] { return "-1 or a token before token " + std::to_string(i); }, parents[i]);
  }
}

/// Token i's parent where sees(i, j), asked for j <= i, are ancestors: i itself, and what its parent sees.
template <class Sees>
index_t tree_parent(index_t i, const Sees& sees, const char* where, const char* argument) {
  require(sees(i, i), where, argument, "tokens that see themselves",
          [&] { return "token " + std::to_string(i) + ", which does not"; });
  index_t parent = i - 1;
  while (parent >= 0 && !sees(i, parent)) --parent;
  for (index_t j = 0; j < parent; ++j) {
    require(sees(i, j) == sees(parent, j), where, argument, "tokens that see exactly what their parent sees",
            [&] { return "token " + std::to_string(i) + " below token " + std::to_string(parent); });
  }
  return parent;
}

}  // namespace detail

/// Ancestor masks from parents: parents [tokens], -1 for a root, else an earlier token; words [tree_words(tokens)].
/// ArgumentError, and nothing written, where a parent does not come before its child. O(tokens^2 / 64).
inline void tree_mask_from_parents(View<const std::int32_t, 1> parents, View<std::uint64_t, 1> words) {
  constexpr const char* where = "attention::tree_mask_from_parents";
  const index_t tokens = parents.extent(0);
  require_equal(words.extent(0), tree_words(tokens), where, "words");
  detail::validate_parents(parents, where);
  const index_t stride = (tokens + 63) / 64;
  for (index_t i = 0; i < tokens; ++i) {
    for (index_t w = 0; w < stride; ++w) {
      words[i * stride + w] = parents[i] < 0 ? 0 : words[parents[i] * stride + w];
    }
    words[i * stride + i / 64] |= std::uint64_t{1} << (i % 64);
  }
}

/// Parents from ancestor masks: words [tree_words(tokens)], parents [tokens]. ArgumentError, and nothing written, where
/// the bits are not those of a forest: a later token is seen, or not itself, or not what the parent sees. O(tokens^2).
inline void parents_from_tree_mask(View<const std::uint64_t, 1> words, View<std::int32_t, 1> parents) {
  constexpr const char* where = "attention::parents_from_tree_mask";
  const index_t tokens = parents.extent(0);
  require_equal(words.extent(0), tree_words(tokens), where, "words");
  const index_t stride = (tokens + 63) / 64;
  const auto sees = [&](index_t i, index_t j) { return ((words[i * stride + j / 64] >> (j % 64)) & 1) != 0; };
  for (index_t i = 0; i < tokens; ++i) {
    for (index_t j = i + 1; j < 64 * stride; ++j) {
      require(!sees(i, j), where, "words", "no bit after a token's own",
              [&] { return "bit " + std::to_string(j) + " of token " + std::to_string(i); });
    }
    detail::tree_parent(i, sees, where, "words");
  }
  for (index_t i = 0; i < tokens; ++i) {
    index_t parent = i - 1;
    while (parent >= 0 && !sees(i, parent)) --parent;
    parents[i] = static_cast<std::int32_t>(parent);
  }
}

/// The positions of tokens for rotary embeddings: `context` for roots, one more than its parent for each other token.
inline void tree_positions(View<const std::int32_t, 1> parents, index_t context, View<std::int32_t, 1> positions) {
  constexpr const char* where = "attention::tree_positions";
  require_equal(positions.extent(0), parents.extent(0), where, "positions");
  require(context >= 0 && context <= 0x7fffffff - parents.extent(0), where, "context",
          "a position from which the tree stays below 2^31", context);
  detail::validate_parents(parents, where);
  for (index_t i = 0; i < parents.extent(0); ++i) {
    positions[i] = parents[i] < 0 ? static_cast<std::int32_t>(context) : positions[parents[i]] + 1;
  }
}

/// The same mask of one sequence over all its keys, as BitMask holds it: words [tree_words(queries)], the last
/// `queries` of `keys` keys being the tree's; bits [ceil(queries * keys / 8)], the bits past the last row's end 0.
inline void bit_mask_from_tree_mask(View<const std::uint64_t, 1> words, index_t queries, index_t keys,
                                    View<std::uint8_t, 1> bits) {
  constexpr const char* where = "attention::bit_mask_from_tree_mask";
  require(queries >= 0 && queries <= 0x7fffffff, where, "queries", "0 to 2^31 - 1", queries);
  require(keys >= queries && keys <= 0x7fffffff, where, "keys",
          [&] { return "at least the " + std::to_string(queries) + " of the tree, below 2^31"; }, keys);
  require_equal(words.extent(0), tree_words(queries), where, "words");
  require_equal(bits.extent(0), (queries * keys + 7) / 8, where, "bits");
  const TreeMask mask{words};
  for (index_t i = 0; i < bits.extent(0); ++i) bits[i] = 0;
  for (index_t i = 0; i < queries; ++i) {
    const index_t last = mask.range(0, i, queries, keys).last;
    for (index_t j = 0; j < last; ++j) {
      const index_t bit = i * keys + j;
      const int seen = mask.allowed(0, i, j, queries, keys) ? 1 : 0;
      bits[bit / 8] = static_cast<std::uint8_t>(bits[bit / 8] | (seen << (bit % 8)));
    }
  }
}

/// Ancestor masks from one sequence's packed bits over all keys, words [tree_words(queries)]. ArgumentError, and
/// nothing written, where the bits do not say that all see the whole context and that the rest is a forest.
inline void tree_mask_from_bit_mask(View<const std::uint8_t, 1> bits, index_t queries, index_t keys,
                                    View<std::uint64_t, 1> words) {
  constexpr const char* where = "attention::tree_mask_from_bit_mask";
  require(queries >= 0 && queries <= 0x7fffffff, where, "queries", "0 to 2^31 - 1", queries);
  require(keys >= queries && keys <= 0x7fffffff, where, "keys",
          [&] { return "at least the " + std::to_string(queries) + " of the tree, below 2^31"; }, keys);
  require_equal(bits.extent(0), (queries * keys + 7) / 8, where, "bits");
  require_equal(words.extent(0), tree_words(queries), where, "words");
  const BitMask mask{bits};
  const index_t context = keys - queries;
  const auto sees = [&](index_t i, index_t j) { return mask.allowed(0, i, context + j, queries, keys); };
  for (index_t i = 0; i < queries; ++i) {
    for (index_t j = 0; j < context; ++j) {
      require(mask.allowed(0, i, j, queries, keys), where, "bits", "1 for every key of the context",
              [&] { return "0 for key " + std::to_string(j) + " and query " + std::to_string(i); });
    }
    for (index_t j = i + 1; j < queries; ++j) {
      require(!sees(i, j), where, "bits", "0 for keys after a query's own",
              [&] { return "1 for key " + std::to_string(context + j) + " and query " + std::to_string(i); });
    }
    detail::tree_parent(i, sees, where, "bits");
  }
  const index_t stride = (queries + 63) / 64;
  for (index_t i = 0; i < words.extent(0); ++i) words[i] = 0;
  for (index_t i = 0; i < queries; ++i)
    for (index_t j = 0; j <= i; ++j) words[i * stride + j / 64] |= std::uint64_t{sees(i, j)} << (j % 64);
}

/// Parents from packed prefixes: parents [p.tokens()].
inline void parents_from_packed_prefixes(const PackedPrefixes& p, View<std::int32_t, 1> parents) {
  validate(p);
  require_equal(parents.extent(0), p.tokens(), "attention::parents_from_packed_prefixes", "parents");
  for (index_t i = 0; i < p.draft; ++i) parents[i] = static_cast<std::int32_t>(i - 1);
  for (index_t s = 0; s < p.ends.extent(0); ++s) {
    for (index_t r = 0; r < p.probe; ++r) {
      const index_t at = p.draft + s * p.probe + r;
      parents[at] = r == 0 ? p.ends[s] - 1 : static_cast<std::int32_t>(at - 1);
    }
  }
}

/// The ends of packed prefixes from parents: of parents [draft + prefixes * probe], ends [prefixes]. ArgumentError, and
/// nothing written, where the forest is not a draft of that length with probes of that length (at least 1) behind it.
inline void ends_from_parents(View<const std::int32_t, 1> parents, index_t draft, index_t probe,
                              View<std::int32_t, 1> ends) {
  constexpr const char* where = "attention::ends_from_parents";
  const index_t tokens = parents.extent(0);
  require(draft >= 0 && draft <= tokens, where, "draft",
          [&] { return "at most the " + std::to_string(tokens) + " tokens"; }, draft);
  require(probe >= 1 && (tokens - draft) % probe == 0, where, "probe",
          [&] { return "a divisor of the " + std::to_string(tokens - draft) + " tokens behind the draft"; }, probe);
  require_equal(ends.extent(0), (tokens - draft) / probe, where, "ends");
  for (index_t i = 0; i < tokens; ++i) {
    const bool begins = i >= draft && (i - draft) % probe == 0;
    if (begins) {
      const index_t least = i == draft ? -1 : parents[i - probe] + index_t{1};
      require(parents[i] >= least && parents[i] < draft, where, "parents",
              [&] { return "a draft token from " + std::to_string(least) + " on for token " + std::to_string(i); },
              parents[i]);
    } else {
      require(parents[i] == i - 1, where, "parents",
              [&] { return "the token before token " + std::to_string(i); }, parents[i]);
    }
  }
  for (index_t s = 0; s < ends.extent(0); ++s) ends[s] = parents[draft + s * probe] + 1;
}

}  // namespace decant::attention

#endif
