// decant: ModelDrafter, drafts from a model through a callback: a small model, lower layers of the target (early exit),
// a trained head. It draws a tree level by level: a chain, independent siblings, siblings without replacement, the top
// tokens and one draw (for UniVer), or the top tokens alone. What is drawn, by which law, is written down with the
// distributions, so that verification is lossless whatever the callback says.
#ifndef DECANT_SPECULATIVE_MODEL_DRAFTER_HPP
#define DECANT_SPECULATIVE_MODEL_DRAFTER_HPP

#include <cmath>
#include <concepts>
#include <cstdint>
#include <utility>
#include <vector>

#include "drafter.hpp"

namespace decant::speculative {

/// forward(tree, first, last, q): the processed draft distributions after nodes [first, last) of the tree so far, one
/// level, parents before; to q [last - first, vocab]. The tree is finalized. False: no draft from here on.
template <class F>
concept DraftForward = requires(F& f, const DraftTree& tree, std::int32_t first, std::int32_t last, View<float, 2> q) {
  { f(tree, first, last, q) } -> std::convertible_to<bool>;
};

namespace detail {

/// Draws from `left`, whose sum is `total`; -1: nothing has mass. O(vocab).
inline std::int32_t draw_serial(View<const float, 1> row, const std::vector<bool>& taken, double total, double u) {
  double sum = 0;
  std::int32_t last = -1;
  for (index_t y = 0; y < row.extent(0); ++y) {
    if (taken[static_cast<std::size_t>(y)] || !(row[y] > 0)) continue;
    last = static_cast<std::int32_t>(y);
    sum += static_cast<double>(row[y]);
    if (sum > u * total) break;
  }
  return last;
}

}  // namespace detail

template <Law L, DraftForward Forward>
class ModelDrafter {
 public:
  static constexpr Law law = L;

  /// branching: children per node on each level; empty: one, on as many levels as the budget allows.
  ModelDrafter(index_t vocab, std::vector<std::int32_t> branching, Forward forward)
      : vocab_(vocab), branching_(std::move(branching)), forward_(std::move(forward)) {
    constexpr const char* where = "speculative::ModelDrafter";
    detail::require_vocab(vocab, where);
    for (const std::int32_t k : branching_) {
      require(k >= 1 && k <= vocab && (L != Law::chain || k == 1), where, "branching",
              L == Law::chain ? "one child on each level of a chain" : "1 to the vocabulary's size", k);
    }
  }

  /// The largest probability and the entropy, in bits, of each distribution that the last draft was taken from.
  View<const float, 1> confidence() const { return View<const float, 1>(confidence_); }
  View<const float, 1> entropy() const { return View<const float, 1>(entropy_); }

  void draft(const DraftContext&, const DraftBudget& budget, DraftTree& tree, Proposals& proposals,
             const DrawKey& key) {
    require(proposals.vocab() == vocab_, "speculative::ModelDrafter::draft", "proposals", "rows of the vocabulary's size",
            proposals.vocab());
    confidence_.clear();
    entropy_.clear();
    std::int32_t room = budget.nodes;
    std::int32_t first = 0;
    std::int32_t last = 1;
    for (std::int32_t level = 0; level < budget.depth && room > 0; ++level) {
      if (!branching_.empty() && static_cast<std::size_t>(level) == branching_.size()) break;
      const std::int32_t k = branching_.empty() ? 1 : branching_[static_cast<std::size_t>(level)];
      if (level > 0) tree.finalize();
      q_.resize(static_cast<std::size_t>((last - first) * vocab_));
      const View<float, 2> q(q_.data(), last - first, vocab_);
      if (!forward_(std::as_const(tree), first, last, q)) break;
      for (std::int32_t node = first; node < last && room > 0; ++node) {
        // How many is settled before anything is drawn: what was drawn must not decide what is kept.
        const std::int32_t children = k < room ? k : room;
        room -= grow(node, children, q[node - first], tree, proposals, key);
      }
      first = last;
      last = tree.nodes();
      if (first == last) break;
    }
  }
  void commit(View<const std::int32_t, 1>) {}

 private:
  /// Gives a node up to k children; returns how many.
  std::int32_t grow(std::int32_t node, std::int32_t k, View<const float, 1> q, DraftTree& tree, Proposals& proposals,
                    const DrawKey& key) {
    double total = 0, entropy = 0;
    float most = 0;
    for (index_t y = 0; y < vocab_; ++y) {
      total += static_cast<double>(q[y]);
      most = q[y] > most ? q[y] : most;
      if (q[y] > 0) entropy -= static_cast<double>(q[y]) * std::log2(static_cast<double>(q[y]));
    }
    if (!(total > 0) || !(total < 1e30)) return 0;
    confidence_.push_back(most);
    entropy_.push_back(static_cast<float>(entropy));
    taken_.assign(static_cast<std::size_t>(vocab_), false);
    tokens_.clear();
    top_.clear();
    const std::int32_t tops = L == Law::deterministic ? k : L == Law::greedy_plus_one ? k - 1 : 0;
    for (std::int32_t i = 0; i < tops; ++i) {
      index_t best = -1;
      for (index_t y = 0; y < vocab_; ++y) {
        if (!taken_[static_cast<std::size_t>(y)] && (best < 0 || q[y] > q[best])) best = y;
      }
      if (best < 0 || !(q[best] > 0)) break;
      top_.push_back(static_cast<std::int32_t>(best));
      taken_[static_cast<std::size_t>(best)] = true;
      if (L == Law::greedy_plus_one) total -= static_cast<double>(q[best]);
    }
    double rest = 0;
    if (L == Law::greedy_plus_one) {
      for (index_t y = 0; y < vocab_; ++y) rest += taken_[static_cast<std::size_t>(y)] ? 0 : static_cast<double>(q[y]);
      total = rest;
    }
    for (std::int32_t i = 0; i < k - tops; ++i) {
      const double u = key.uniform(static_cast<std::uint32_t>(node * 1024 + i), Stream::draft);
      const std::int32_t token = detail::draw_serial(q, taken_, total, u);
      if (token < 0) break;
      tokens_.push_back(token);
      if (L != Law::without_replacement) continue;
      taken_[static_cast<std::size_t>(token)] = true;
      total = 0;
      for (index_t y = 0; y < vocab_; ++y) total += taken_[static_cast<std::size_t>(y)] ? 0 : static_cast<double>(q[y]);
    }
    const bool drawn = !tokens_.empty();
    tokens_.insert(tokens_.end(), top_.begin(), top_.end());
    if (drawn) {
      const std::int32_t row = proposals.add();
      for (index_t y = 0; y < vocab_; ++y) proposals.row(row)[y] = q[y];
      tree.set_law(node, L, row, static_cast<float>(rest));
    }
    const float score = tree.score(node);
    for (const std::int32_t token : tokens_) tree.push_child(node, token, score + std::log(q[token]));
    return static_cast<std::int32_t>(tokens_.size());
  }

  index_t vocab_;
  std::vector<std::int32_t> branching_;
  Forward forward_;
  std::vector<float> q_, confidence_, entropy_;
  std::vector<bool> taken_;
  std::vector<std::int32_t> tokens_, top_;
};

}  // namespace decant::speculative

#endif
