// decant: EagleTree, the dynamic draft tree of EAGLE-2 and EAGLE-3 (Li et al., arXiv 2406.16858, 2503.01840; growth and
// defaults as in the published code): every level forwards the most probable nodes found so far and takes the likeliest
// children of each, and of all that was seen the most probable nodes become the tree. Deterministic. Equal scores go by
// the order of creation, which keeps a parent before its children. To sample instead (ranking what was drawn would
// spoil its law), see SampledEagle.
#ifndef DECANT_SPECULATIVE_EAGLE_TREE_HPP
#define DECANT_SPECULATIVE_EAGLE_TREE_HPP

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <utility>
#include <vector>

#include "../sampling/detail/row_filter.hpp"
#include "detail/keep_best.hpp"
#include "detail/row_top.hpp"
#include "drafter.hpp"

namespace decant::speculative {

/// forward(tokens, parents, logits): what the drafter says after each of these tokens, [k]; parents [k]: which of all
/// tokens that were forwarded in this draft each one follows, in the order in which they were (the root is 0, and is
/// forwarded first, with parent -1). To logits [k, vocab]. False: no draft from here on.
template <class F>
concept EagleForward = requires(F& f, View<const std::int32_t, 1> tokens, View<const std::int32_t, 1> parents,
                                View<float, 2> logits) {
  { f(tokens, parents, logits) } -> std::convertible_to<bool>;
};

struct EagleOptions {
  std::int32_t total_tokens = 60;  ///< of the tree, the root included
  std::int32_t depth = 7;          ///< levels after the first
  std::int32_t top_k = 10;         ///< children of a node, and nodes that a level forwards
  bool operator==(const EagleOptions&) const = default;
};

template <EagleForward Forward>
class EagleTree {
 public:
  static constexpr Law law = Law::deterministic;

  EagleTree(index_t vocab, Forward forward, const EagleOptions& options = {})
      : vocab_(vocab), forward_(std::move(forward)), o_(options) {
    constexpr const char* where = "speculative::EagleTree";
    require(vocab >= 1 && vocab <= 1 << 22, where, "vocab", "1 to 2^22", vocab);
    require(o_.total_tokens >= 1 && o_.total_tokens <= max_tree_nodes, where, "total_tokens", "1 to 1024",
            o_.total_tokens);
    require(o_.depth >= 0 && o_.depth < max_tree_nodes, where, "depth", "0 to 1023", o_.depth);
    require(o_.top_k >= 1 && o_.top_k <= 1024, where, "top_k", "1 to 1024", o_.top_k);
  }

  void draft(const DraftContext&, const DraftBudget& budget, DraftTree& tree, Proposals&, const DrawKey&) {
    const std::int32_t levels = (std::min)(budget.depth, o_.depth + 1);
    const std::int32_t most = (std::min)(budget.nodes, o_.total_tokens - 1);
    if (levels < 1 || most < 1) return;
    candidates_.clear();
    forwarded_ = 0;
    frontier_.assign(1, -1);
    tokens_.assign(1, tree.token(0));
    parents_.assign(1, -1);
    for (std::int32_t level = 0; level < levels && !frontier_.empty(); ++level) {
      if (!expand()) break;
      if (level + 1 < levels) choose_frontier();
    }
    rank(most, tree);
  }
  void commit(View<const std::int32_t, 1>) {}

 private:
  struct Candidate {
    float score;
    std::int32_t parent;     // a candidate, or -1: the root
    std::int32_t token;
    std::int32_t forwarded;  // its place among forwarded tokens; -1: it was not
  };

  Candidate& at(std::int32_t i) { return candidates_[static_cast<std::size_t>(i)]; }

  /// Forwards the frontier; the likeliest children of each become candidates.
  bool expand() {
    const auto k = static_cast<index_t>(frontier_.size());
    if (static_cast<index_t>(logits_.size()) < k * vocab_) logits_.resize(static_cast<std::size_t>(k * vocab_));
    const View<float, 2> logits(logits_.data(), k, vocab_);
    if (!forward_(View<const std::int32_t, 1>(tokens_), View<const std::int32_t, 1>(parents_), logits)) return false;
    added_ = static_cast<std::int32_t>(candidates_.size());
    top_.resize(static_cast<std::size_t>(std::min<index_t>(o_.top_k, vocab_)));
    maxima_.resize(static_cast<std::size_t>(row_tiles(vocab_) * sampling::detail::tile_groups));
    const auto numbers = sampling::detail::FilterNumbers::of({});
    for (index_t i = 0; i < k; ++i) {
      const std::int32_t parent = frontier_[static_cast<std::size_t>(i)];
      const float above = parent < 0 ? 0 : at(parent).score;
      if (parent >= 0) at(parent).forwarded = forwarded_ + static_cast<std::int32_t>(i);
      sampling::LogitRow row;
      if (sampling::detail::filter_row(best_isa(), {}, numbers, &logits(i, 0), vocab_,
                                       {maxima_.data(), nullptr, nullptr, nullptr}, row) != sampling::RowStatus::ok) {
        continue;  // NaN, or no mass: this node has no children
      }
      for (const detail::RowTop& child : likeliest(&logits(i, 0))) {
        candidates_.push_back({above + detail::log_softmax(child.value, row.log_sum_exp), parent, child.token, -1});
      }
    }
    forwarded_ += static_cast<std::int32_t>(k);
    return true;
  }

  /// The top k of a row, the likeliest first, of equal ones the lower token. At least k elements reach the k-th largest
  /// of the maxima that the filter left, so that only their groups need a look.
  const std::vector<detail::RowTop>& likeliest(const float* row) {
    constexpr float none = -__builtin_huge_valf();
    const auto k = static_cast<std::int32_t>(top_.size());
    const std::int32_t groups = detail::row_top(View<const float, 1>(maxima_), none, View<detail::RowTop, 1>(top_));
    const float low = groups == k ? top_.back().value : none;
    found_.clear();
    sampling::detail::visit_groups(vocab_, maxima_.data(), low, [&](index_t y) {
      if (row[y] >= low && row[y] > none) found_.push_back({row[y], static_cast<std::int32_t>(y)});
    });
    const auto count = (std::min<std::ptrdiff_t>)(k, static_cast<std::ptrdiff_t>(found_.size()));
    std::partial_sort(found_.begin(), found_.begin() + count, found_.end(),
                      [](const detail::RowTop& a, const detail::RowTop& b) {
                        return a.value != b.value ? a.value > b.value : a.token < b.token;
                      });
    found_.resize(static_cast<std::size_t>(count));
    return found_;
  }

  /// The best of the candidates that the last level added.
  void choose_frontier() {
    order_.clear();
    for (auto i = added_; i < static_cast<std::int32_t>(candidates_.size()); ++i) order_.push_back(i);
    detail::best_first(order_, o_.top_k, [&](std::int32_t a, std::int32_t b) { return better(a, b); });
    frontier_ = order_;
    tokens_.clear();
    parents_.clear();
    for (const std::int32_t c : frontier_) {
      tokens_.push_back(at(c).token);
      parents_.push_back(at(c).parent < 0 ? 0 : at(at(c).parent).forwarded);
    }
  }

  bool better(std::int32_t a, std::int32_t b) { return at(a).score != at(b).score ? at(a).score > at(b).score : a < b; }

  /// The best of all, in the order of creation.
  void rank(std::int32_t most, DraftTree& tree) {
    order_.clear();
    for (std::int32_t i = 0; i < static_cast<std::int32_t>(candidates_.size()); ++i) order_.push_back(i);
    detail::keep_best(order_, most, [&](std::int32_t a, std::int32_t b) { return better(a, b); });
    node_.assign(candidates_.size(), -1);
    for (const std::int32_t c : order_) {
      const std::int32_t parent = at(c).parent < 0 ? 0 : node_[static_cast<std::size_t>(at(c).parent)];
      node_[static_cast<std::size_t>(c)] = tree.push_child(parent, at(c).token, at(c).score);
    }
  }

  index_t vocab_;
  Forward forward_;
  EagleOptions o_;
  std::vector<Candidate> candidates_;
  std::vector<std::int32_t> frontier_, tokens_, parents_, order_, node_;
  std::vector<float> logits_, maxima_;
  std::vector<detail::RowTop> top_, found_;
  std::int32_t forwarded_ = 0;
  std::int32_t added_ = 0;  // the first candidate of the last level
};

}  // namespace decant::speculative

#endif
