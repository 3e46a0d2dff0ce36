// decant: Ngram, prompt lookup (Saxena 2023; the matching rule is that of vLLM's n-gram proposer): the longest suffix of
// the context, of n_min to n_max tokens, that occurs earlier in it; what followed there is the draft. No model, no
// state. The option `recent` is ours.
#ifndef DECANT_SPECULATIVE_NGRAM_HPP
#define DECANT_SPECULATIVE_NGRAM_HPP

#include <cstdint>
#include <vector>

#include "drafter.hpp"

namespace decant::speculative {

namespace detail {

/// Whether one of N tokens is this one. Reads all N: a loop without a way out is a vector loop.
template <index_t N>
bool holds(const std::int32_t* tokens, std::int32_t token) {
  std::int32_t found = 0;
  for (index_t i = 0; i < N; ++i) found |= tokens[i] == token ? 1 : 0;
  return found != 0;
}

}  // namespace detail

/// Where the draft begins in the context; its length is what is left behind it. start = length: no match.
struct NgramMatch {
  index_t start = 0;
  std::int32_t length = 0;  ///< of the matched suffix; 0: none
  bool operator==(const NgramMatch&) const = default;
};

/// The longest suffix of n_min to n_max tokens with an earlier occurrence, which may overlap it; of several occurrences
/// the first, or with `recent` the last. failures [at least n_max]: scratch. O(length), one read of the tokens.
inline NgramMatch match_ngram(View<const std::int32_t, 1> tokens, std::int32_t n_min, std::int32_t n_max, bool recent,
                              View<std::int32_t, 1> failures) {
  constexpr const char* where = "speculative::match_ngram";
  require(n_min >= 1, where, "n_min", "at least 1", n_min);
  require(n_max >= n_min, where, "n_max", "at least n_min", n_max);
  require(failures.extent(0) >= n_max, where, "failures", "at least n_max", failures.extent(0));
  const index_t size = tokens.extent(0);
  NgramMatch best{size, 0};
  // Backwards the suffix is a prefix, and the prefix function gives, at each position, the longest one that ends there;
  // no more than n_max are wanted, so that a full match goes on as its longest proper border.
  const auto at = [&](index_t i) { return tokens[size - 1 - i]; };
  std::int32_t matched = 0;
  if (size > 0) failures[0] = 0;
  const bool contiguous = tokens.contiguous();
  constexpr index_t block = 16;
  for (index_t i = 1; i < size;) {
    const index_t end = i + block < size ? i + block : size;
    // Where nothing matches, a block without the last token is passed over; the table is complete by then.
    if (matched == 0 && i >= n_max && contiguous && end - i == block &&
        !detail::holds<block>(tokens.data() + (size - end), at(0))) {
      i = end;
      continue;
    }
    for (; i < end; ++i) {
      while (matched > 0 && (matched == n_max || at(i) != at(matched))) matched = failures[matched - 1];
      if (at(i) == at(matched)) ++matched;
      if (i < n_max) failures[i] = matched;
      const bool better = matched > best.length || (!recent && matched == best.length);
      // The occurrence, forwards: the tokens from size - 1 - i on.
      if (matched >= n_min && better) best = {size - 1 - i + matched, matched};
    }
  }
  return best;
}

class Ngram {
 public:
  static constexpr Law law = Law::deterministic;

  struct Options {
    std::int32_t n_min = 1;
    std::int32_t n_max = 4;
    bool recent = false;
    bool operator==(const Options&) const = default;
  };

  Ngram() : Ngram(Options{}) {}
  explicit Ngram(const Options& options) : options_(options) {
    constexpr const char* where = "speculative::Ngram";
    require(options.n_min >= 1, where, "n_min", "at least 1", options.n_min);
    require(options.n_max >= options.n_min && options.n_max <= 4096, where, "n_max", "n_min to 4096", options.n_max);
    failures_.resize(static_cast<std::size_t>(options.n_max));
  }

  /// A chain of at most budget.depth tokens.
  void draft(const DraftContext& context, const DraftBudget& budget, DraftTree& tree, Proposals&, const DrawKey&) {
    const NgramMatch match = match_ngram(context.tokens, options_.n_min, options_.n_max, options_.recent,
                                         View<std::int32_t, 1>(failures_));
    if (match.length == 0) return;
    std::int32_t node = 0;
    const std::int32_t most = budget.depth < budget.nodes ? budget.depth : budget.nodes;
    for (std::int32_t i = 0; i < most && match.start + i < context.tokens.extent(0); ++i) {
      node = tree.push_child(node, context.tokens[match.start + i], 0);
    }
  }
  void commit(View<const std::int32_t, 1>) {}

 private:
  Options options_;
  std::vector<std::int32_t> failures_;
};

static_assert(Drafter<Ngram>);

}  // namespace decant::speculative

#endif
