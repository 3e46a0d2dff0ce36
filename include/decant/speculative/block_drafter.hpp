// decant: BlockDrafter, SpecBlock's tree (arXiv 2605.07243; growth and constants as in its published code): a forward
// gives K dependent positions, a rank head says how far down the list the right token is to be expected, hence how wide
// to branch; further blocks begin at any slot's node. Deterministic. The network is the engine's; what surrounds it
// (features of the rank head, the shift between slots) is here too. Where two blocks propose the same child, the node
// and its score stay, and unless a block has begun there, the later forward is the one it comes from: our reading.
#ifndef DECANT_SPECULATIVE_BLOCK_DRAFTER_HPP
#define DECANT_SPECULATIVE_BLOCK_DRAFTER_HPP

#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <utility>
#include <vector>

#include "detail/keep_best.hpp"
#include "detail/row_top.hpp"
#include "drafter.hpp"
#include "top_logits.hpp"

namespace decant::speculative {

/// Classes of the rank head: the right token is first, among the next three, among the first ten, further down.
enum class RankClass : std::uint8_t { first, second_to_fourth, fifth_to_tenth, beyond };

/// How many children a slot gets, its likeliest token included.
struct RankWidths {
  std::array<std::int32_t, 4> by_class = {2, 4, 10, 0};  ///< {2, 4, 6, 4} is the paper's tuned setting
  std::int32_t beam = 10;                                ///< of slot 0, whatever its class
  bool operator==(const RankWidths&) const = default;

  /// p: the probability of the slot's likeliest token; a confident slot branches less.
  constexpr std::int32_t width(std::int32_t slot, RankClass rank, float p) const {
    if (slot == 0) return p >= 0.9f ? least(3, beam) : p >= 0.8f ? least(5, beam) : p >= 0.6f ? least(8, beam) : beam;
    const std::int32_t w = by_class[static_cast<std::size_t>(rank)];
    return p >= 0.95f ? least(2, w) : p >= 0.85f ? least(3, w) : w;
  }

 private:
  static constexpr std::int32_t least(std::int32_t a, std::int32_t b) { return a < b ? a : b; }
};

struct BlockOptions {
  RankWidths widths{};
  std::int32_t slots = 4;       ///< K, positions of a forward
  std::int32_t max_blocks = 2;  ///< forwards of a draft
  std::int32_t budget = 90;     ///< drafted nodes
  bool operator==(const BlockOptions&) const = default;
};

/// Where a block begins.
struct BlockLeaf {
  std::int32_t token;   ///< of the node
  std::int32_t block;   ///< the leaf of the forward before whose slot the node came from; -1: the root
  std::int32_t slot;    ///< that slot, whose hidden state is inherited; its first slot + 1 KV rows are seen
  std::int32_t depth;   ///< of the node: its slots stand at positions depth + 1 ...
};

/// forward(leaves, logits, ranks): a block for each leaf: logits [leaves * K, vocab], slot by slot, and ranks
/// [leaves * K]. False: no draft from here on.
template <class F>
concept BlockForward = requires(F& f, View<const BlockLeaf, 1> leaves, View<float, 2> logits, View<RankClass, 1> ranks) {
  { f(leaves, logits, ranks) } -> std::convertible_to<bool>;
};

/// The same of an engine whose logits stay where they are: rows [leaves * K] of as many columns as the widest branching,
/// which top_logits() fills.
template <class F>
concept BlockTopForward =
    requires(F& f, View<const BlockLeaf, 1> leaves, const TopLogits& rows, View<RankClass, 1> ranks) {
      { f(leaves, rows, ranks) } -> std::convertible_to<bool>;
    };

template <class Forward>
  requires BlockForward<Forward> || BlockTopForward<Forward>
class BlockDrafter {
 public:
  static constexpr Law law = Law::deterministic;

  BlockDrafter(index_t vocab, Forward forward, const BlockOptions& options = {})
      : vocab_(vocab), forward_(std::move(forward)), o_(options) {
    constexpr const char* where = "speculative::BlockDrafter";
    require(vocab >= 1 && vocab <= detail::most_logits, where, "vocab", "1 to 2^22", vocab);
    require(o_.slots >= 1 && o_.slots <= 64, where, "slots", "1 to 64", o_.slots);
    require(o_.max_blocks >= 1, where, "max_blocks", "at least 1", o_.max_blocks);
    require(o_.widths.beam >= 1 && o_.widths.beam <= 64, where, "widths.beam", "1 to 64", o_.widths.beam);
    for (const std::int32_t w : o_.widths.by_class) {
      require(w >= 0 && w <= 64, where, "widths.by_class", "0 to 64", w);
    }
    require(o_.budget >= 0 && o_.budget < max_tree_nodes, where, "budget", "0 to 1023", o_.budget);
  }

  void draft(const DraftContext&, const DraftBudget& budget, DraftTree& tree, Proposals&, const DrawKey&) {
    nodes_.clear();
    nodes_.push_back({-1, tree.token(0), 0, 0, -1, 0, 0, false});
    pending_.assign(1, 0);
    const std::int32_t most = (std::min)(budget.nodes, o_.budget);
    if (most < 1 || budget.depth < 1) return;
    for (std::int32_t block = 0; block < o_.max_blocks && !pending_.empty(); ++block) {
      if (!run_block(block, budget.depth)) break;
    }
    keep(most, tree);
  }
  void commit(View<const std::int32_t, 1>) {}

 private:
  /// Nodes may be many more than a DraftTree has room for until the best are kept.
  struct Node {
    std::int32_t parent;
    std::int32_t token;
    std::int32_t depth;
    float score;
    std::int32_t block;
    std::int32_t slot;
    std::int32_t forward;  // that `block` and `slot` are of
    bool expanded;         // a block has begun here
  };

  /// Which leaf of which forward of this draft.
  struct Origin {
    std::int32_t leaf;
    std::int32_t forward;
  };

  std::int32_t most_width() const {
    return (std::max)(o_.widths.beam, *std::max_element(o_.widths.by_class.begin(), o_.widths.by_class.end()));
  }

  Node& at(std::int32_t i) { return nodes_[static_cast<std::size_t>(i)]; }
  bool better(std::int32_t a, std::int32_t b) { return at(a).score != at(b).score ? at(a).score > at(b).score : a < b; }

  /// One forward over the best pending nodes; what it finds becomes pending.
  bool run_block(std::int32_t number, std::int32_t most_depth) {
    detail::best_first(pending_, o_.widths.beam, [&](std::int32_t a, std::int32_t b) { return better(a, b); });
    std::vector<std::int32_t> roots;
    roots.swap(pending_);
    leaves_.clear();
    for (const std::int32_t n : roots) {
      leaves_.push_back({at(n).token, at(n).block, at(n).slot, at(n).depth});
      at(n).expanded = true;
    }
    const auto rows = static_cast<index_t>(roots.size()) * o_.slots;
    ranks_.assign(static_cast<std::size_t>(rows), RankClass::beyond);
    const View<const BlockLeaf, 1> leaves(leaves_);
    const View<RankClass, 1> ranks(ranks_);
    const auto k = std::min<index_t>(most_width(), vocab_);
    top_.resize(static_cast<std::size_t>(k));
    if constexpr (BlockTopForward<Forward>) {
      value_.resize(static_cast<std::size_t>(rows * k));
      token_.resize(static_cast<std::size_t>(rows * k));
      count_.assign(static_cast<std::size_t>(rows), 0);
      log_sum_exp_.resize(static_cast<std::size_t>(rows));
      const TopLogits found{View<float, 2>(value_.data(), rows, k), View<std::int32_t, 2>(token_.data(), rows, k),
                            View<std::int32_t, 1>(count_), View<double, 1>(log_sum_exp_)};
      if (!forward_(leaves, found, ranks)) return false;
      grow_all(roots, number, most_depth, [&](index_t row, std::int32_t& count) {
        count = (std::max)((std::min)(found.count[row], static_cast<std::int32_t>(k)), 0);
        for (std::int32_t j = 0; j < count; ++j) {
          top_[static_cast<std::size_t>(j)] = {found.value(row, j), found.token(row, j)};
        }
        return found.log_sum_exp[row];
      });
    } else {
      logits_.resize(static_cast<std::size_t>(rows * vocab_));
      const View<float, 2> logits(logits_.data(), rows, vocab_);
      if (!forward_(leaves, logits, ranks)) return false;
      grow_all(roots, number, most_depth, [&](index_t row, std::int32_t& count) {
        return detail::top_logits_row(best_isa(), &logits(row, 0), vocab_, View<detail::RowTop, 1>(top_), count);
      });
    }
    return true;
  }

  /// look(row, count): puts the first tokens of a row of the forward into top_; returns the row's log-sum-exp.
  template <class Look>
  void grow_all(const std::vector<std::int32_t>& roots, std::int32_t number, std::int32_t most_depth, const Look& look) {
    for (std::size_t leaf = 0; leaf < roots.size(); ++leaf) {
      grow(roots[leaf], {static_cast<std::int32_t>(leaf), number}, most_depth, look);
    }
  }

  /// The chain of a block's likeliest tokens, and beside it each slot's alternatives.
  template <class Look>
  void grow(std::int32_t root, Origin from, std::int32_t most_depth, const Look& look) {
    std::int32_t chain = root;
    bool chain_pending = true;  // the root was just expanded, and a branching slot's node is pending already
    for (std::int32_t slot = 0; slot < o_.slots && at(chain).depth < most_depth; ++slot) {
      const index_t row = index_t{from.leaf} * o_.slots + slot;
      std::int32_t found = 0;
      const double log_sum = look(row, found);
      if (!(log_sum - log_sum == 0) || found == 0) break;
      const float p = std::exp(detail::log_softmax(top_[0].value, log_sum));
      const std::int32_t width = (std::min)(
          o_.widths.width(slot, ranks_[static_cast<std::size_t>(row)], p), found);
      if (width == 0) break;
      const std::int32_t parent = chain;
      for (std::int32_t j = 0; j < width; ++j) {
        const detail::RowTop& child = top_[static_cast<std::size_t>(j)];
        const std::int32_t node = child_of(parent, child.token, detail::log_softmax(child.value, log_sum), from, slot);
        if (j == 0) chain = node;
        if (j > 0 || width > 1) pend(node, most_depth);
      }
      chain_pending = width > 1;
    }
    if (!chain_pending) pend(chain, most_depth);
  }

  std::int32_t child_of(std::int32_t parent, std::int32_t token, float step, Origin from, std::int32_t slot) {
    for (auto i = static_cast<std::int32_t>(nodes_.size()) - 1; i > parent; --i) {
      Node& n = at(i);
      if (n.parent != parent || n.token != token) continue;
      if (n.forward != from.forward) {  // the engine has the hidden states of the last forward alone
        n.block = from.leaf;
        n.slot = slot;
        n.forward = from.forward;
      }
      return i;
    }
    const Node& above = at(parent);
    nodes_.push_back({parent, token, above.depth + 1, above.score + step, from.leaf, slot, from.forward, false});
    return static_cast<std::int32_t>(nodes_.size()) - 1;
  }
  void pend(std::int32_t node, std::int32_t most_depth) {
    if (at(node).expanded || at(node).depth >= most_depth) return;
    if (std::find(pending_.begin(), pending_.end(), node) == pending_.end()) pending_.push_back(node);
  }

  /// The best nodes; scores do not rise downwards, so that parents are among them.
  void keep(std::int32_t most, DraftTree& tree) {
    order_.clear();
    for (std::int32_t i = 1; i < static_cast<std::int32_t>(nodes_.size()); ++i) order_.push_back(i);
    detail::keep_best(order_, most, [&](std::int32_t a, std::int32_t b) { return better(a, b); });
    place_.assign(nodes_.size(), 0);
    for (const std::int32_t n : order_) {
      place_[static_cast<std::size_t>(n)] =
          tree.push_child(place_[static_cast<std::size_t>(at(n).parent)], at(n).token, at(n).score);
    }
  }

  index_t vocab_;
  Forward forward_;
  BlockOptions o_;
  std::vector<Node> nodes_;
  std::vector<std::int32_t> pending_, order_, place_;
  std::vector<BlockLeaf> leaves_;
  std::vector<float> logits_;                // of a BlockForward
  std::vector<float> value_;                 // of a BlockTopForward
  std::vector<std::int32_t> token_, count_;
  std::vector<double> log_sum_exp_;
  std::vector<RankClass> ranks_;
  std::vector<detail::RowTop> top_;
};

inline constexpr index_t rank_features = 15;
inline constexpr index_t rank_logits = 20;  // that they are made of

namespace detail {

/// From a row's 20 largest logits, largest first.
DECANT_HD DECANT_UNFUSED inline void rank_features_row(const View<const float, 1>& value, const View<float, 1>& out) {
  using ::decant::detail::add_product;
  double sum = 0;
  double weighted = 0;
  for (index_t i = 0; i < rank_logits; ++i) {
    const float below = value[i] - value[0];
    const auto e = static_cast<double>(sampling::detail::rounded_exp(below));
    sum += e;
    if (e > 0) weighted = add_product(weighted, e, static_cast<double>(below));
  }
  const double log_sum = sampling::detail::rounded_log(sum);
  for (index_t i = 0; i < 10; ++i) {
    out[i] = static_cast<float>(static_cast<double>(value[i] - value[0]) - log_sum);
  }
  out[10] = value[0] - value[1];
  out[11] = value[0] - value[2];
  out[12] = value[0] - value[4];
  out[13] = static_cast<float>(1 / sum);
  out[14] = static_cast<float>(log_sum - weighted / sum);
}

/// A row that has fewer than 20 logits: all NaN.
DECANT_HD inline void rank_features_row(const TopLogits& rows, index_t r, const View<float, 1>& out) {
  if (rows.count[r] >= rank_logits) return rank_features_row(View<const float, 1>(rows.value[r]), out);
  for (index_t i = 0; i < rank_features; ++i) out[i] = __builtin_nanf("");
}

inline void require_rank_features(const TopLogits& rows, const View<float, 2>& out, const char* where) {
  require(rows.value.extent(1) >= rank_logits, where, "rows.value", "at least 20 columns", rows.value.extent(1));
  require_equal(rows.count.extent(0), rows.value.extent(0), where, "rows.count");
  require_equal(out.extent(0), rows.value.extent(0), where, "out");
  require_equal(out.extent(1), rank_features, where, "out");
}

}  // namespace detail

/// What the rank head is given of a slot's logits, behind its hidden state: log-probabilities of the first 10 tokens
/// (among the first 20), the gaps between the first and the second, third and fifth, the first one's probability and the
/// entropy in nats (both among the first 20). vocab at least 20; out [15]. The same bits on every context.
inline void rank_head_features(View<const float, 1> logits, View<float, 1> out) {
  constexpr const char* where = "speculative::rank_head_features";
  require(logits.extent(0) >= rank_logits, where, "logits", "at least 20", logits.extent(0));
  require_equal(out.extent(0), rank_features, where, "out");
  detail::RowTop top[rank_logits];
  const std::int32_t found = detail::row_top(logits, -__builtin_huge_valf(), View<detail::RowTop, 1>(top, rank_logits));
  require(found == rank_logits, where, "logits", "at least 20 numbers above -inf", found);
  float value[rank_logits];
  for (index_t i = 0; i < rank_logits; ++i) value[i] = top[i].value;
  detail::rank_features_row(View<const float, 1>(value, rank_logits), out);
}

/// The same of rows of which top_logits() found 20 or more; out [rows, 15]. A row with fewer numbers gets NaN.
inline void rank_head_features(const TopLogits& rows, View<float, 2> out) {
  detail::require_rank_features(rows, out, "speculative::rank_head_features");
  for (index_t r = 0; r < out.extent(0); ++r) detail::rank_features_row(rows, r, out[r]);
}

/// The shift before each layer but the first: slot k becomes A h_k + B h_(k-1), slot 0 with itself in both places.
/// ab [H, 2 H], A then B; h [K, H], in place; scratch [H].
inline void shift_slots(View<const float, 2> ab, View<float, 2> h, View<float, 1> scratch) {
  constexpr const char* where = "speculative::shift_slots";
  const index_t hidden = h.extent(1);
  require_equal(ab.extent(0), hidden, where, "ab");
  require_equal(ab.extent(1), 2 * hidden, where, "ab");
  require_equal(scratch.extent(0), hidden, where, "scratch");
  for (index_t k = h.extent(0) - 1; k >= 0; --k) {  // downwards, so that the slot before is still the old one
    for (index_t i = 0; i < hidden; ++i) {
      float sum = 0;
      for (index_t j = 0; j < hidden; ++j) sum += ab(i, j) * h(k, j) + ab(i, hidden + j) * h(k > 0 ? k - 1 : 0, j);
      scratch[i] = sum;
    }
    for (index_t i = 0; i < hidden; ++i) h(k, i) = scratch[i];
  }
}

}  // namespace decant::speculative

#endif
