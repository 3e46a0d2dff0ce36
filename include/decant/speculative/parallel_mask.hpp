// decant: drafting K tokens in one forward with mask tokens: the layout of PARD-2 (arXiv 2605.08632; layout, defaults and
// training weights as in its published code), and a drafter over it. Input: the newly committed tokens, then K - 1
// masks; the rows of the last token and of the masks are the K drafts. Each position's law depends on the context
// alone, so drawing is as lossless as taking the likeliest: a chain with q_i = softmax(row i). The network, its
// embedding and projection are the engine's; embed_slots() makes the inputs of its first layer from them.
#ifndef DECANT_SPECULATIVE_PARALLEL_MASK_HPP
#define DECANT_SPECULATIVE_PARALLEL_MASK_HPP

#include <concepts>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "../core/cpu.hpp"
#include "../core/detail/rounded.hpp"
#include "../core/row_sum.hpp"
#include "detail/remaining_mass.hpp"
#include "drafter.hpp"
#include "row_signals.hpp"

namespace decant::speculative {

/// One draft forward after c newly committed tokens (the whole prompt the first time).
struct ParallelMaskLayout {
  std::int32_t fresh = 0;  ///< c, at least 1
  std::int32_t k = 1;      ///< drafted tokens

  DECANT_HD constexpr std::int32_t ids() const { return fresh + k - 1; }
  /// The first of the k rows that are read.
  constexpr std::int32_t first_read() const { return fresh - 1; }
  /// Rows by which the draft cache has grown once those of the masks are dropped.
  constexpr std::int32_t kept() const { return fresh; }
  /// The token of slot i, or -1: the mask.
  DECANT_HD constexpr std::int32_t source(std::int32_t i) const { return i < fresh ? i : -1; }
  /// Whose target feature slot i is given: the position before it, counted in the new tokens (-1: the last one before
  /// them, or zeros at the beginning of a sequence); masks repeat that of the last real token.
  DECANT_HD constexpr std::int32_t feature(std::int32_t i) const { return (i < fresh ? i : fresh - 1) - 1; }
  bool operator==(const ParallelMaskLayout&) const = default;
};

/// Which target a drafter that reads target features was made for: features of another one are noise, of which nothing
/// would be accepted.
struct FeatureSource {
  std::uint64_t model_hash = 0;
  std::int32_t hidden = 0;
  std::vector<std::int32_t> layers = {-1, -8, -16, -24};
  bool operator==(const FeatureSource&) const = default;
};

struct ParallelMaskOptions {
  std::int32_t k = 12;            ///< drafted tokens, at least 1
  std::int32_t mask_token = -1;   ///< id of the mask
  float feature_scale = 0.02f;    ///< of the projected features, added to the embeddings
  bool with_features = false;     ///< false: independent of the target, the projection is not called
  FeatureSource source{};         ///< what it was trained on; checked when with_features
  /// false: the network has no KV rows of its own but reads the target's (it is the target's lowest layers, say), so
  /// that of the text it is given the last token alone, whatever the text.
  bool keeps_rows = true;
};

/// forward(ids, first_position, features, read, logits): the draft network over ids [n], which may hold mask_token, at
/// positions first_position ...; features: the layout to take them by, or null; rows read ... read + k - 1 of its output
/// to logits [k, vocab]. It drops the KV rows of the masks. False: no draft.
template <class F>
concept ParallelForward =
    requires(F& f, View<const std::int32_t, 1> ids, index_t position, const ParallelMaskLayout* features,
             std::int32_t read, View<float, 2> q) {
      { f(ids, position, features, read, q) } -> std::convertible_to<bool>;
    };

/// L: Law::deterministic takes the likeliest token of each row, Law::chain draws (forward then gives the processed
/// probabilities; else any increasing function of them will do).
template <Law L, ParallelForward Forward>
  requires(L == Law::chain || L == Law::deterministic)
class ParallelMaskDrafter {
 public:
  static constexpr Law law = L;

  /// target: what this engine's features are. ArgumentError when the drafter reads features of another target.
  ParallelMaskDrafter(index_t vocab, const ParallelMaskOptions& options, Forward forward,
                      const FeatureSource& target = {})
      : vocab_(vocab), o_(options), forward_(std::move(forward)) {
    constexpr const char* where = "speculative::ParallelMaskDrafter";
    detail::require_vocab(vocab, where);
    require(o_.k >= 1 && o_.k < max_tree_nodes, where, "k", "1 to 1023", o_.k);
    require(o_.k == 1 || o_.mask_token >= 0, where, "mask_token", "an id", o_.mask_token);
    require(!o_.with_features || o_.source == target, where, "target", "the target that the drafter was trained on",
            "another one");
  }

  /// The largest probability and the entropy, in bits, of each row of the last draft; numbers of no meaning where
  /// forward gives others than probabilities.
  View<const float, 1> confidence() const { return View<const float, 1>(confidence_); }
  View<const float, 1> entropy() const { return View<const float, 1>(entropy_); }

  /// Reads what is new in the context; budget.depth below k drafts fewer.
  void draft(const DraftContext& context, const DraftBudget& budget, DraftTree& tree, Proposals& proposals,
             const DrawKey& key) {
    entropy_.clear();
    confidence_.clear();
    const index_t size = context.tokens.extent(0);
    if (!o_.keeps_rows && size > 0) read_ = size - 1;
    const std::int32_t most = budget.depth < budget.nodes ? budget.depth : budget.nodes;
    const ParallelMaskLayout layout{static_cast<std::int32_t>(size - read_), most < o_.k ? most : o_.k};
    if (layout.k < 1 || layout.fresh < 1) return;
    ids_.assign(static_cast<std::size_t>(layout.ids()), o_.mask_token);
    for (std::int32_t i = 0; i < layout.fresh; ++i) ids_[static_cast<std::size_t>(i)] = context.tokens[read_ + i];
    q_.resize(static_cast<std::size_t>(layout.k * vocab_));
    const View<float, 2> q(q_.data(), layout.k, vocab_);
    if (!forward_(View<const std::int32_t, 1>(ids_), read_, o_.with_features ? &layout : nullptr, layout.first_read(),
                  q)) {
      return;
    }
    read_ = size;
    std::int32_t node = 0;
    for (std::int32_t i = 0; i < layout.k; ++i) {
      const std::int32_t token = pick(q[i], node, key);
      if (token < 0) return;
      const RowSignals signals = row_signals(q[i]);
      entropy_.push_back(signals.entropy);
      confidence_.push_back(signals.confidence);
      if constexpr (L == Law::chain) {
        const std::int32_t row = proposals.add();
        for (index_t y = 0; y < vocab_; ++y) proposals.row(row)[y] = q(i, y);
        tree.set_law(node, L, row);
      }
      node = tree.push_child(node, token, 0);
    }
  }
  /// The tokens themselves come with the next context.
  void commit(View<const std::int32_t, 1>) {}
  /// Another sequence, or the first tokens of this one from the beginning.
  void reset() { read_ = 0; }

 private:
  std::int32_t pick(View<const float, 1> row, std::int32_t node, const DrawKey& key) {
    if constexpr (L == Law::chain) {
      left_.load(row);
      const double total = left_.total();
      if (!(total > 0) || !(total < 1e30)) return -1;
      return left_.draw(key.uniform(static_cast<std::uint32_t>(node), Stream::draft));
    } else {
      index_t best = 0;
      for (index_t y = 1; y < vocab_; ++y) best = row[y] > row[best] ? y : best;
      return row[best] == row[best] ? static_cast<std::int32_t>(best) : -1;
    }
  }

  index_t vocab_;
  ParallelMaskOptions o_;
  Forward forward_;
  index_t read_ = 0;  // tokens of the context that the draft network has seen
  std::vector<std::int32_t> ids_;
  std::vector<float> q_, entropy_, confidence_;
  detail::RemainingMass left_;
};

/// What is new in a batch of requests.
struct FreshTokens {
  View<const std::int32_t, 1> tokens{};   ///< request by request
  View<const std::int32_t, 1> offsets{};  ///< [requests + 1], rising from 0: request b has those from offsets[b] on

  index_t requests() const { return offsets.extent(0) - 1; }
  /// Rows that a forward for k drafts each has room for.
  index_t slots(std::int32_t k) const { return tokens.extent(0) + requests() * (k - 1); }
};

namespace detail {

template <class T>
void require_slots(const ParallelMaskOptions& o, const FreshTokens& fresh, const View<const T, 2>& table,
                   const View<const T, 2>& features, const View<T, 2>& out, const char* where) {
  require(o.k >= 1 && o.k < max_tree_nodes, where, "options.k", "1 to 1023", o.k);
  require(fresh.offsets.extent(0) >= 1, where, "fresh.offsets", "an offset for each request and the end",
          fresh.offsets.extent(0));
  require(o.k == 1 || (o.mask_token >= 0 && o.mask_token < table.extent(0)), where, "options.mask_token",
          "a row of the table", o.mask_token);
  require_equal(out.extent(0), fresh.slots(o.k), where, "out");
  require_equal(out.extent(1), table.extent(1), where, "out");
  if (features.data() == nullptr) return;
  require_equal(features.extent(0), fresh.tokens.extent(0), where, "features");
  require_equal(features.extent(1), table.extent(1), where, "features");
}

/// One element of an input.
template <class T>
DECANT_HD DECANT_INLINE T embedded(float embedding, float scale, float feature) {
  return static_cast<T>(embedding + ::decant::detail::rounded_product(scale, feature));
}

template <class T>
DECANT_UNFUSED void embed_row(const T* embedding, index_t embedding_stride, float scale, const T* feature,
                              index_t feature_stride, T* out, index_t out_stride, index_t n) {
  for (index_t i = 0; i < n; ++i) {
    out[i * out_stride] = embedded<T>(static_cast<float>(embedding[i * embedding_stride]), scale,
                                      static_cast<float>(feature[i * feature_stride]));
  }
}

}  // namespace detail

/// The inputs of a draft forward for a batch, request by request in the order of ParallelMaskLayout: out [slots(k), H],
/// the new tokens' rows of table [vocab, H], then k - 1 times the mask's, each with feature_scale times the projected
/// feature of the position before it. features [tokens, H]: row t for the position before new token t (zeros at the
/// beginning of a sequence); no data: independent of the target. T: float, bf16, fp16. Of `options`, k, mask_token and
/// feature_scale count. Sums are rounded once to T, the same bits on every context. O(slots H).
template <class T>
void embed_slots(Cpu& cpu, const ParallelMaskOptions& options, const FreshTokens& fresh,
                 const View<const std::type_identity_t<T>, 2>& table,
                 const View<const std::type_identity_t<T>, 2>& features, const View<T, 2>& out) {
  constexpr const char* where = "speculative::embed_slots";
  detail::require_slots<T>(options, fresh, table, features, out, where);
  require(fresh.offsets[0] == 0, where, "fresh.offsets", "0 first", fresh.offsets[0]);
  for (index_t b = 0; b < fresh.requests(); ++b) {
    require(fresh.offsets[b] < fresh.offsets[b + 1] && fresh.offsets[b + 1] <= fresh.tokens.extent(0), where,
            "fresh.offsets", "at least one token for each request", fresh.offsets[b + 1]);
  }
  for (index_t t = 0; t < fresh.offsets[fresh.requests()]; ++t) {
    require(fresh.tokens[t] >= 0 && fresh.tokens[t] < table.extent(0), where, "fresh.tokens", "rows of the table",
            fresh.tokens[t]);
  }
  cpu.parallel_for(fresh.requests(), [&](index_t b) {
    const index_t first = fresh.offsets[b];
    const ParallelMaskLayout layout{static_cast<std::int32_t>(fresh.offsets[b + 1] - first), options.k};
    for (std::int32_t i = 0; i < layout.ids(); ++i) {
      const std::int32_t source = layout.source(i);
      const T* const embedding = &table(source < 0 ? options.mask_token : fresh.tokens[first + source], 0);
      T* const row = &out(first + b * (options.k - 1) + i, 0);
      if (features.data() == nullptr) {
        for (index_t j = 0; j < out.extent(1); ++j) row[j * out.stride(1)] = embedding[j * table.stride(1)];
      } else {
        detail::embed_row(embedding, table.stride(1), options.feature_scale, &features(first + layout.feature(i) + 1, 0),
                          features.stride(1), row, out.stride(1), out.extent(1));
      }
    }
  });
}

/// PARD-2's training weights: gold [n], the target's probability of each gold token; weight(i, t) [k, n] of block i, i
/// masks deep, at token t: the product of gold[t - 1] ... gold[t - i], factors before the beginning being 1.
/// The expected accepted length of a chain with these acceptances is the sum of weight(1, t + 1), weight(2, t + 2) ...
inline void cat_weights(View<const float, 1> gold, View<float, 2> weight) {
  require_equal(weight.extent(1), gold.extent(0), "speculative::cat_weights", "weight");
  for (index_t t = 0; t < gold.extent(0); ++t) {
    float product = 1;
    for (index_t i = 0; i < weight.extent(0); ++i) {
      if (i > 0 && t >= i) product *= gold[t - i];
      weight(i, t) = product;
    }
  }
}

}  // namespace decant::speculative

#endif
