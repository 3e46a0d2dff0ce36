// decant: masks, small values that say which keys a query may see. Queries of a sequence are its last ones: query i of
// m sees n keys, and stands at key n - m + i (bottom-right aligned, as in FlashInfer and FlashAttention).
// Full, Causal, Window, BitMask, and any type of the user's own with allowed() and range().
#ifndef DECANT_ATTENTION_MASK_HPP
#define DECANT_ATTENTION_MASK_HPP

#include <concepts>
#include <cstdint>

#include "../core/view.hpp"

namespace decant::attention {

/// Keys first <= k < last; none if last <= first.
struct KeyRange {
  index_t first = 0;
  index_t last = 0;
};

/// What a mask must be able to do. It is copied and asked from any thread. The answer must be the same for all heads.
template <class M>
concept Mask = std::copyable<M> &&
               requires(const M& m, index_t sequence, index_t query, index_t key, index_t queries, index_t keys) {
  // Whether the query (0 <= query < queries) of a sequence may see the key (0 <= key < keys); asked in range() only.
  { m.allowed(sequence, query, key, queries, keys) } -> std::convertible_to<bool>;
  // A hint: no key outside is allowed. Anything may be returned that is not too narrow; it is cut to [0, keys).
  { m.range(sequence, query, queries, keys) } -> std::same_as<KeyRange>;
};
// Options: `static constexpr bool whole_range = true` says that everything inside range() is allowed, so that allowed()
// need not be asked; whole(sequence, query, queries, keys) is a KeyRange within range() of which that is true;
// word(sequence, query, first, count, queries, keys) answers for the keys first + j, j < count <= 64, at once, as the
// bits j of a std::uint64_t, others 0; a free function validate(mask, sequences, sequence, queries, keys), found by
// argument-dependent lookup and called for each sequence before anything is written, may throw; and
// holds(sequences, sequence, queries, keys) says the same where it cannot, on a device.

namespace detail {

template <class M>
DECANT_HD constexpr bool whole_range() {
  if constexpr (requires { M::whole_range; }) return M::whole_range;
  else return false;
}

/// Keys that the query surely sees, without asking for each.
template <class M>
DECANT_HD KeyRange whole_keys(const M& mask, index_t sequence, index_t query, index_t queries, index_t keys) {
  if constexpr (whole_range<M>()) return mask.range(sequence, query, queries, keys);
  else if constexpr (requires { mask.whole(sequence, query, queries, keys); })
    return mask.whole(sequence, query, queries, keys);
  else return {};
}

/// Bit j: the query may see key first + j, for j < count <= 64. All of these keys must lie in range().
template <class M>
DECANT_HD std::uint64_t allowed_word(const M& mask, index_t sequence, index_t query, index_t first, index_t count,
                           index_t queries, index_t keys) {
  if constexpr (whole_range<M>()) {
    return count >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1;
  } else if constexpr (requires { mask.word(sequence, query, first, count, queries, keys); }) {
    return mask.word(sequence, query, first, count, queries, keys);
  } else {
    std::uint64_t bits = 0;
    for (index_t j = 0; j < count; ++j) {
      const bool allowed = mask.allowed(sequence, query, first + j, queries, keys);
      bits |= std::uint64_t{allowed} << j;
    }
    return bits;
  }
}

}  // namespace detail

/// Every query sees every key.
struct Full {
  static constexpr bool whole_range = true;
  DECANT_HD bool allowed(index_t, index_t, index_t, index_t, index_t) const { return true; }
  DECANT_HD KeyRange range(index_t, index_t, index_t, index_t keys) const { return {0, keys}; }
  bool operator==(const Full&) const = default;
};

/// Query i sees the keys j <= n - m + i: itself and what came before it. With more queries than keys, the first m - n
/// queries see nothing.
struct Causal {
  static constexpr bool whole_range = true;
  DECANT_HD bool allowed(index_t, index_t query, index_t key, index_t queries, index_t keys) const {
    return key <= keys - queries + query;
  }
  DECANT_HD KeyRange range(index_t, index_t query, index_t queries, index_t keys) const {
    return {0, keys - queries + query + 1};
  }
  bool operator==(const Causal&) const = default;
};

/// Causal, and at most `left` keys back: n - m + i - left <= j <= n - m + i. left = 0: itself only; negative: Causal.
struct Window {
  static constexpr bool whole_range = true;
  index_t left = -1;

  DECANT_HD bool allowed(index_t, index_t query, index_t key, index_t queries, index_t keys) const {
    const index_t at = keys - queries + query;
    return key <= at && (left < 0 || key >= at - left);
  }
  DECANT_HD KeyRange range(index_t, index_t query, index_t queries, index_t keys) const {
    const index_t at = keys - queries + query;
    return {left < 0 ? 0 : at - left, at + 1};
  }
  bool operator==(const Window&) const = default;
};

/// Any pattern, as bits: bit query * n + key of a sequence's mask, counted from the lowest bit of its first byte, is 1
/// where the query sees the key. This is FlashInfer's packed custom mask: each sequence's [m, n] bits row-major,
/// starting at a byte of its own.
struct BitMask {
  View<const std::uint8_t, 1> bits;
  /// The byte at which each sequence's mask begins, and the end. [sequences + 1]; may be empty for one sequence.
  View<const index_t, 1> offsets{};

  DECANT_HD bool allowed(index_t sequence, index_t query, index_t key, index_t, index_t keys) const {
    const index_t start = offsets.empty() ? 0 : offsets[sequence];
    const index_t bit = query * keys + key;
    return ((bits[start + bit / 8] >> (bit % 8)) & 1) != 0;
  }
  DECANT_HD std::uint64_t word(index_t sequence, index_t query, index_t first, index_t count, index_t,
                               index_t keys) const {
    const index_t begin = 8 * (offsets.empty() ? 0 : offsets[sequence]) + query * keys + first;
    std::uint64_t found = 0;
    for (index_t have = 0; have < count;) {
      const index_t skip = (begin + have) % 8;
      const index_t take = 8 - skip < count - have ? 8 - skip : count - have;
      const std::uint64_t byte = bits[(begin + have) / 8];
      found |= ((byte >> skip) & ((std::uint64_t{1} << take) - 1)) << have;
      have += take;
    }
    return found;
  }
  DECANT_HD KeyRange range(index_t, index_t, index_t, index_t keys) const { return {0, keys}; }
  /// Whether there is a bit for each query and key of the sequence: what validate() asks, where it cannot throw.
  DECANT_HD bool holds(index_t sequences, index_t sequence, index_t queries, index_t keys) const {
    if (offsets.empty() ? sequences != 1 : offsets.extent(0) != sequences + 1) return false;
    const index_t first = offsets.empty() ? 0 : offsets[sequence];
    const index_t last = offsets.empty() ? bits.extent(0) : offsets[sequence + 1];
    return first >= 0 && last <= bits.extent(0) && (queries * keys + 7) / 8 <= last - first;
  }
};

namespace detail {

/// How many of a packed mask's `size` units (bytes, words) are the sequence's: all for one sequence without offsets.
/// ArgumentError, in the name of `where`, when the offsets do not fit.
inline index_t mask_room(const char* where, const View<const index_t, 1>& offsets, index_t size, const char* units,
                         index_t sequences, index_t sequence) {
  if (offsets.empty()) {
    require(sequences == 1, where, "offsets",
            [&] { return "one per sequence and the end, " + std::to_string(sequences + 1); }, 0);
    return size;
  }
  require_equal(offsets.extent(0), sequences + 1, where, "offsets");
  const index_t first = offsets[sequence];
  const index_t last = offsets[sequence + 1];
  require(first >= 0 && last >= first && last <= size, where, "offsets",
          [&] { return "ascending values up to the mask's " + std::to_string(size) + " " + units; }, last);
  return last - first;
}

}  // namespace detail

/// The mask must hold a bit for each query and key of the sequence. O(1) per sequence.
inline void validate(const BitMask& mask, index_t sequences, index_t sequence, index_t queries, index_t keys) {
  constexpr const char* where = "attention::BitMask";
  const index_t bytes = (queries * keys + 7) / 8;
  const index_t room = detail::mask_room(where, mask.offsets, mask.bits.extent(0), "bytes", sequences, sequence);
  require(bytes <= room, where, "bits",
          [&] { return "at least " + std::to_string(bytes) + " bytes for sequence " + std::to_string(sequence); },
          room);
}

static_assert(Mask<Full> && Mask<Causal> && Mask<Window> && Mask<BitMask>);

}  // namespace decant::attention

#endif
