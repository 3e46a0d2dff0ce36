// decant: Suffix, drafts from counted suffix tries (after SuffixDecoding, Oliaro et al., arXiv 2411.04975; option names
// follow vLLM's): what has followed the last tokens most often, in this request and in finished ones. Data structure,
// growth and ties are our reading: a path that ends in a trie goes on from its longest suffix that does not, so that a
// long match drafts as far as a short one. Deterministic: a chain, or the likeliest continuations as a tree.
#ifndef DECANT_SPECULATIVE_SUFFIX_HPP
#define DECANT_SPECULATIVE_SUFFIX_HPP

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "drafter.hpp"
#include "suffix_trie.hpp"

namespace decant::speculative {

class Suffix {
 public:
  static constexpr Law law = Law::deterministic;

  struct Options {
    std::int32_t max_depth = 24;
    float max_spec_factor = 1;       ///< a match of n tokens drafts at most factor * n + offset
    std::int32_t max_spec_offset = 0;
    float min_token_prob = 0.1f;     ///< a path stops where the product of its estimates falls below
    bool tree = false;               ///< the likeliest paths first, up to the budget; else the likeliest chain
    /// Of the trie of finished requests, which forgets the oldest text when it is full; 0: none, else above max_depth.
    index_t max_global_nodes = 1 << 22;
    bool operator==(const Options&) const = default;
  };

  Suffix() : Suffix(Options{}) {}
  explicit Suffix(const Options& options)
      : o_(options), own_(options.max_depth), global_(options.max_depth, options.max_global_nodes) {
    constexpr const char* where = "speculative::Suffix";
    require(options.max_spec_factor >= 0, where, "max_spec_factor", "at least 0", options.max_spec_factor);
    require(options.max_spec_offset >= 0, where, "max_spec_offset", "at least 0", options.max_spec_offset);
    require(options.min_token_prob >= 0 && options.min_token_prob <= 1, where, "min_token_prob", "0 to 1",
            options.min_token_prob);
  }

  const SuffixTrie& own() const { return own_; }
  const SuffixTrie& global() const { return global_; }

  /// Reads what is new in the context, then drafts from the trie with the longer match, of equal ones the request's own.
  void draft(const DraftContext& context, const DraftBudget& budget, DraftTree& tree, Proposals&, const DrawKey&) {
    for (; read_ < context.tokens.extent(0); ++read_) own_.append(context.tokens[read_]);
    const auto in_own = own_.match(context.tokens);
    const auto in_global = global_.match(context.tokens);
    const bool mine = in_own.second >= in_global.second;
    const std::int32_t n = mine ? in_own.second : in_global.second;
    if (n == 0) return;
    const auto cap = static_cast<std::int32_t>(std::floor(o_.max_spec_factor * static_cast<float>(n))) +
                     o_.max_spec_offset;
    const std::int32_t depth = cap < budget.depth ? cap : budget.depth;
    grow(mine ? own_ : global_, mine ? in_own.first : in_global.first, depth, budget.nodes, tree);
  }
  void commit(View<const std::int32_t, 1>) {}

  /// The request has ended: its output (any tokens) joins the global trie, and the next context is another request's.
  void finish(View<const std::int32_t, 1> output) {
    if (o_.max_global_nodes > 0) {
      for (index_t i = 0; i < output.extent(0); ++i) global_.append(output[i]);
      global_.end_sequence();
    }
    own_.clear();
    read_ = 0;
  }

 private:
  /// A path that could be added: its trie node, the draft node above it, and the product of estimates.
  struct Candidate {
    std::int32_t trie_node;
    std::int32_t parent;
    std::int32_t depth;
    double chance;
  };

  void grow(const SuffixTrie& trie, std::int32_t from, std::int32_t depth, std::int32_t nodes, DraftTree& tree) {
    candidates_.clear();
    if (depth > 0) offer(trie, from, 0, 1, 1);
    for (std::int32_t added = 0; added < nodes && !candidates_.empty(); ++added) {
      std::size_t best = 0;
      for (std::size_t i = 1; i < candidates_.size(); ++i) {
        if (before(trie, candidates_[i], candidates_[best])) best = i;
      }
      const Candidate c = candidates_[best];
      if (o_.tree) {
        candidates_.erase(candidates_.begin() + static_cast<std::ptrdiff_t>(best));
      } else {
        candidates_.clear();
      }
      const std::int32_t node = tree.push_child(c.parent, trie.token(c.trie_node),
                                                static_cast<float>(std::log(c.chance)));
      if (c.depth < depth) offer(trie, c.trie_node, node, c.depth + 1, c.chance);
    }
  }
  /// The likelier path, of equal ones the lower token.
  static bool before(const SuffixTrie& trie, const Candidate& a, const Candidate& b) {
    return a.chance != b.chance ? a.chance > b.chance : trie.token(a.trie_node) < trie.token(b.trie_node);
  }
  void offer(const SuffixTrie& trie, std::int32_t node, std::int32_t parent, std::int32_t depth, double chance) {
    while (node > 0 && trie.first_child(node) < 0) node = trie.shorter(node);
    if (node == 0) return;
    const auto total = static_cast<double>(trie.count(node));
    for (std::int32_t c = trie.first_child(node); c >= 0; c = trie.sibling(c)) {
      const double product = chance * static_cast<double>(trie.count(c)) / total;
      if (product >= static_cast<double>(o_.min_token_prob)) candidates_.push_back({c, parent, depth, product});
    }
  }

  Options o_;
  SuffixTrie own_, global_;
  index_t read_ = 0;  // tokens of the context that own_ has seen
  std::vector<Candidate> candidates_;
};

static_assert(Drafter<Suffix>);

}  // namespace decant::speculative

#endif
