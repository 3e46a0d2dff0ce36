// decant: what an eviction policy is given, and what it gives back. LayerView: one layer of one sequence, with whatever
// the engine can supply beside the cache. Budget: how much to keep. Kept: which tokens of each head stay.
#ifndef DECANT_KV_LAYER_HPP
#define DECANT_KV_LAYER_HPP

#include <cmath>
#include <cstdint>
#include <vector>

#include "../core/detail/rounded.hpp"
#include "cache_view.hpp"
#include "rope.hpp"

namespace decant::kv {

/// One layer of one sequence. Only `cache` is always needed; a scorer says which of the others it reads and raises
/// ArgumentError when one is missing. Views are the caller's memory.
template <CacheView C, Storage Q = float>
struct LayerView {
  C cache;
  index_t sequence = 0;
  index_t layer = 0;   // this layer's number
  index_t layers = 1;  // of how many

  /// Post-RoPE queries of the last w tokens, in token order. [query_heads, w, key_dim]
  View<const Q, 3> queries{};
  /// Natural log-sum-exp of those queries' causal attention rows, if at hand (saves a pass). [query_heads, w]
  View<const float, 2> lse{};
  /// Queries before RoPE, of the last m tokens. [query_heads, m, key_dim]
  View<const Q, 3> queries_pre_rope{};
  /// Original position of every cached token, ascending; stride 0 along heads when they agree. [kv_heads, n]
  /// Empty: token t stands at position t.
  View<const std::int32_t, 2> positions{};
  /// The position of the next token, from which future rotations count; -1: one after the last cached token's.
  index_t next_position = -1;
  /// The model's rotary embedding.
  Rope rope{};
  /// An upper bound of the lengths, for Cuda, where the host cannot read them; -1: what the cache can hold.
  index_t longest = -1;

  DECANT_HD index_t kv_heads() const { return cache.kv_heads(); }
  DECANT_HD index_t length(index_t head) const { return cache.length(sequence, head); }
  DECANT_HD index_t max_length() const { return kv::max_length(cache, sequence); }
  DECANT_HD index_t position(index_t head, index_t token) const {
    return positions.empty() ? token : positions(head, token);
  }
};

template <class C>
LayerView(C) -> LayerView<C, float>;

/// Checks the cache and everything that was supplied with it. O(kv_heads + pages).
template <class C, class Q>
void validate(const LayerView<C, Q>& x) {
  constexpr const char* where = "kv::LayerView";
  validate(x.cache);
  require(x.sequence >= 0 && x.sequence < x.cache.sequences(), where, "sequence",
          [&] { return "an index below " + std::to_string(x.cache.sequences()); }, x.sequence);
  require(x.layers >= 1 && x.layer >= 0 && x.layer < x.layers, where, "layer",
          [&] { return "an index below layers = " + std::to_string(x.layers); }, x.layer);
  const index_t n = x.max_length();
  const auto check_queries = [&](const View<const Q, 3>& q, const char* argument) {
    if (q.data() == nullptr) return;
    require(q.extent(0) > 0 && q.extent(0) % x.kv_heads() == 0, where, argument,
            [&] { return "a number of query heads that is a multiple of kv_heads = " + std::to_string(x.kv_heads()); },
            q.extent(0));
    require_equal(q.extent(2), x.cache.key_dim(), where, argument);
    require(q.stride(2) == 1, where, argument, "stride 1 along the head dim", q.stride(2));
  };
  check_queries(x.queries, "queries");
  check_queries(x.queries_pre_rope, "queries_pre_rope");
  if (x.lse.data() != nullptr) {
    require_equal(x.lse.extent(0), x.queries.extent(0), where, "lse");
    require_equal(x.lse.extent(1), x.queries.extent(1), where, "lse");
  }
  if (x.positions.data() != nullptr) {
    require_equal(x.positions.extent(0), x.kv_heads(), where, "positions");
    require(x.positions.extent(1) >= n, where, "positions",
            [&] { return "one per cached token, " + std::to_string(n); }, x.positions.extent(1));
  }
  validate(x.rope, x.cache.key_dim());
}

/// How much of a layer to keep, per KV head on average.
class Budget {
 public:
  enum class Kind : std::uint8_t { tokens, fraction };

  /// This many tokens per KV head.
  static constexpr Budget tokens(index_t count) { return Budget(Kind::tokens, static_cast<double>(count)); }
  /// This share of the cached tokens, 0 to 1: floor(n * share) per KV head.
  static constexpr Budget keep(double share) { return Budget(Kind::fraction, share); }

  DECANT_HD constexpr Kind kind() const { return kind_; }
  DECANT_HD constexpr double value() const { return value_; }
  bool operator==(const Budget&) const = default;

  /// Tokens per head for a head of n tokens, in [0, n].
  DECANT_HD index_t resolve(index_t n) const {
    const double share = ::decant::detail::rounded_product(static_cast<double>(n), value_);
    const double wanted = kind_ == Kind::tokens ? value_ : std::floor(share + 1e-9);
    return wanted >= static_cast<double>(n) ? n : static_cast<index_t>(wanted);
  }

 private:
  constexpr Budget(Kind kind, double value) : kind_(kind), value_(value) {}
  Kind kind_;
  double value_;
};

inline void validate(const Budget& b) {
  const bool ok = b.kind() == Budget::Kind::tokens ? b.value() >= 0 : b.value() >= 0 && b.value() <= 1;
  require(ok, "kv::Budget", "value",
          b.kind() == Budget::Kind::tokens ? "a token count of at least 0" : "a share between 0 and 1", b.value());
}

/// Which tokens stay: row h of `indices` starts with counts[h] token indices, strictly ascending. A view, so that the
/// memory can be anyone's; `Kept` below owns some.
struct KeptView {
  View<std::int32_t, 2> indices;  // [kv_heads, capacity]
  View<std::int32_t, 1> counts;   // [kv_heads]

  DECANT_HD index_t kv_heads() const { return counts.extent(0); }
  DECANT_HD index_t count(index_t head) const { return counts[head]; }
  DECANT_HD index_t token(index_t head, index_t i) const { return indices(head, i); }
};

/// A KeptView with host memory of its own, which it keeps for the next call.
class Kept {
 public:
  Kept() = default;
  Kept(index_t kv_heads, index_t capacity) { resize(kv_heads, capacity); }

  void resize(index_t kv_heads, index_t capacity) {
    indices_.resize(static_cast<std::size_t>(kv_heads * capacity));
    counts_.resize(static_cast<std::size_t>(kv_heads));
    capacity_ = capacity;
  }
  KeptView view() {
    return {View<std::int32_t, 2>(indices_.data(), static_cast<index_t>(counts_.size()), capacity_),
            View<std::int32_t, 1>(counts_)};
  }
  operator KeptView() { return view(); }

  index_t kv_heads() const { return static_cast<index_t>(counts_.size()); }
  index_t count(index_t head) const { return counts_[static_cast<std::size_t>(head)]; }
  index_t token(index_t head, index_t i) const { return indices_[static_cast<std::size_t>(head * capacity_ + i)]; }
  /// The kept tokens of one head.
  View<const std::int32_t, 1> tokens(index_t head) const {
    return View<const std::int32_t, 1>(indices_.data() + head * capacity_, count(head));
  }
  index_t total() const {
    index_t sum = 0;
    for (const std::int32_t c : counts_) sum += c;
    return sum;
  }

 private:
  std::vector<std::int32_t> indices_;
  std::vector<std::int32_t> counts_;
  index_t capacity_ = 0;
};

}  // namespace decant::kv

#endif
