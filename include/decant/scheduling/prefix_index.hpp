// decant: the concept PrefixIndex: what of a token sequence is cached. An engine asks it before a request starts, tells
// it what was computed, and takes room back from it. RadixCache and BlockIndex are two; they differ in how finely they
// remember (pages or blocks) and in what goes first. tests/conformance holds both to a map of all prefixes.
#ifndef DECANT_SCHEDULING_PREFIX_INDEX_HPP
#define DECANT_SCHEDULING_PREFIX_INDEX_HPP

#include <concepts>
#include <cstddef>
#include <cstdint>

#include "../core/view.hpp"

namespace decant::scheduling {

template <class I>
concept PrefixIndex = requires(I& index, const I& still, View<const std::uint32_t, 1> tokens, std::size_t count) {
  /// How many of the first tokens are cached, in whole units of granularity(); they count as used now.
  { index.match(tokens) } -> std::same_as<std::size_t>;
  /// All whole units of the sequence are cached from now on; how many of its tokens were before.
  { index.insert(tokens) } -> std::same_as<std::size_t>;
  /// Forgets at least `count` tokens, or all that nobody holds; how many. Nothing goes whose continuation stays.
  { index.evict(count) } -> std::same_as<std::size_t>;
  /// Tokens cached: those of different prefixes, each counted once.
  { still.size() } -> std::same_as<std::size_t>;
  /// Tokens of the smallest unit.
  { still.granularity() } -> std::same_as<std::uint32_t>;
};

}  // namespace decant::scheduling

#endif
