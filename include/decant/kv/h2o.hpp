// decant: H2O, heavy hitters (Zhang, Sheng, Zhou, et al., arXiv 2306.14048): tokens that have gathered the most
// attention, with the recent ones beside them. AccumulatedAttention scores from the queries of the whole prompt,
// causally [ours: a widely copied implementation masks the last window only, so that queries attend to the future].
// The online form adds up each decode step's weights: accumulate() and compact_sums(), over the caller's memory; or
// AttentionAccumulator, which owns its sums.
#ifndef DECANT_KV_H2O_HPP
#define DECANT_KV_H2O_HPP

#include <vector>

#include "detail/attention_columns.hpp"
#include "detail/compact_entries.hpp"
#include "eviction.hpp"
#include "window_attention.hpp"

namespace decant::kv {

/// Attention received from all causal queries. per_query: divided by how many queries could see the token, n - j, which
/// takes the age bias out (kvpress's ObservedAttention); false: the plain sum. Reads x.queries of all n tokens.
struct AccumulatedAttention {
  bool per_query = true;
  Reduce group = Reduce::mean;
  bool operator==(const AccumulatedAttention&) const = default;
};

/// The selector of H2O: of a head's count, floor(recent * count) go to the latest tokens, the rest to the highest
/// scores; tokens that a protector marked come first.
struct RecentAndTop {
  float recent = 0.5f;
  bool operator==(const RecentAndTop&) const = default;
};

/// recent: the share of the budget that goes to the latest tokens; the paper: one half.
struct H2O {
  float recent = 0.5f;
  bool per_query = true;
  bool operator==(const H2O&) const = default;
};

inline void validate(const AccumulatedAttention&) {}
inline void validate(const RecentAndTop& s) {
  require(s.recent >= 0 && s.recent <= 1, "kv::RecentAndTop", "recent", "a share between 0 and 1", s.recent);
}
inline void validate(const H2O& p) {
  require(p.recent >= 0 && p.recent <= 1, "kv::H2O", "recent", "a share between 0 and 1", p.recent);
}

/// O(query_heads * n^2 * key_dim).
template <class X>
void score(Cpu& cpu, const AccumulatedAttention& s, const X& x, View<float, 2> scores) {
  const index_t n = x.max_length();
  if (n == 0) return;
  detail::require_queries(x, n, "kv::AccumulatedAttention");
  detail::grouped_columns(cpu, x, n, s.group, scores);
  if (!s.per_query) return;
  for (index_t h = 0; h < x.kv_heads(); ++h) {
    const index_t length = x.length(h);
    for (index_t t = 0; t < length; ++t) scores(h, t) /= static_cast<float>(length - t);
  }
}

/// O(tokens of the layer).
template <class X>
void choose(Cpu& cpu, const RecentAndTop& s, const X&, const ScoredLayer& layer, View<const std::int32_t, 1> counts,
            KeptView kept) {
  validate(s);
  Workspace::Scope scope(cpu.workspace());
  const auto keep = cpu.workspace().template take_view<std::uint8_t>(layer.kv_heads(), layer.keep.extent(1));
  for (index_t h = 0; h < layer.kv_heads(); ++h) {
    const index_t n = layer.length(h);
    index_t open = counts[h] - detail::protected_count(layer, h);
    const index_t wanted = static_cast<index_t>(s.recent * static_cast<float>(counts[h]));
    for (index_t t = 0; t < n; ++t) keep(h, t) = layer.keep(h, t);
    for (index_t t = n - 1; t >= n - wanted && t >= 0 && open > 0; --t) {
      open -= keep(h, t) ? 0 : 1;
      keep(h, t) = 1;
    }
  }
  top_k_each_row(cpu, layer.scores, layer.lengths, keep, counts, kept.indices);
  for (index_t h = 0; h < layer.kv_heads(); ++h) kept.counts[h] = counts[h];
}

constexpr auto stages(const H2O& p) {
  return Eviction{AccumulatedAttention{.per_query = p.per_query},
                  NoSmoothing{},
                  NoProtection{},
                  NoNormalisation{},
                  Uniform{},
                  RecentAndTop{.recent = p.recent}};
}

/// Scores that came from elsewhere, as from an accumulator: a scorer. [kv_heads, at least n]
struct GivenScores {
  View<const float, 2> scores;
};

inline void validate(const GivenScores&) {}

template <class X>
void score(Cpu&, const GivenScores& s, const X& x, View<float, 2> scores) {
  require_equal(s.scores.extent(0), x.kv_heads(), "kv::GivenScores", "scores");
  require(
      s.scores.extent(1) >= x.max_length(), "kv::GivenScores", "scores",
      [&] { return "one per cached token, " + std::to_string(x.max_length()); }, s.scores.extent(1));
  for (index_t h = 0; h < x.kv_heads(); ++h) {
    for (index_t t = 0; t < x.length(h); ++t) scores(h, t) = s.scores(h, t);
  }
}

namespace detail {

/// What a query's weights give token t of KV head h: the mean over the group of query heads.
DECANT_HD inline float group_mean(const View<const float, 2>& weights, index_t group, index_t h, index_t t) {
  float sum = 0;
  for (index_t a = 0; a < group; ++a) sum += weights(h * group + a, t);
  return sum / static_cast<float>(group);
}

/// The query heads per KV head.
inline index_t weights_group(const View<const float, 2>& weights, index_t kv_heads, const char* where) {
  require(
      kv_heads > 0 && weights.extent(0) > 0 && weights.extent(0) % kv_heads == 0, where, "weights",
      [&] { return "a multiple of " + std::to_string(kv_heads) + " rows"; }, weights.extent(0));
  return weights.extent(0) / kv_heads;
}

/// Moves the sums with the tokens; what is behind them becomes 0.
inline void move_sums(Cpu& cpu, View<float, 2> sums, const KeptView& kept, const char* where) {
  compact_entries(cpu, sums, kept, where);
  for (index_t h = 0; h < sums.extent(0); ++h) {
    for (index_t t = kept.count(h); t < sums.extent(1); ++t) sums(h, t) = 0;
  }
}

}  // namespace detail

/// Adds one query's attention weights to the sums that x's tokens have gathered, mean over the group. weights
/// [query_heads, at least n], sums [kv_heads, capacity]: 0 at first, and for every token that is new. Choose by
/// Eviction{GivenScores{sums}, NoSmoothing{}, NoProtection{}, NoNormalisation{}, Uniform{}, RecentAndTop{}}, then
/// compact() the cache and compact_sums(). O(query_heads * n).
template <class X>
void accumulate(Cpu& cpu, const X& x, View<const float, 2> weights, View<float, 2> sums) {
  constexpr const char* where = "kv::accumulate";
  validate(x);
  const index_t n = x.max_length();
  const index_t group = detail::weights_group(weights, x.kv_heads(), where);
  const auto expected = [&] { return "one per cached token, " + std::to_string(n); };
  require(weights.extent(1) >= n, where, "weights", expected, weights.extent(1));
  require_equal(sums.extent(0), x.kv_heads(), where, "sums");
  require(sums.extent(1) >= n, where, "sums", expected, sums.extent(1));
  cpu.parallel_for(x.kv_heads(), [&](index_t h) {
    const index_t length = x.length(h);
    for (index_t t = 0; t < length; ++t) sums(h, t) += detail::group_mean(weights, group, h, t);
  });
}

/// Moves the sums as compact() moves the rows; what is behind them becomes 0.
inline void compact_sums(Cpu& cpu, View<float, 2> sums, KeptView kept) {
  detail::move_sums(cpu, sums, kept, "kv::compact_sums");
}

/// The same with sums of its own on the host, for one number of tokens in all heads.
class AttentionAccumulator {
 public:
  AttentionAccumulator(index_t kv_heads, index_t capacity)
      : sums_(static_cast<std::size_t>(kv_heads * capacity), 0.0f), kv_heads_(kv_heads), capacity_(capacity) {}

  /// Adds one query's weights over the first n tokens, mean over the group. weights [query_heads, n]
  void add(View<const float, 2> weights) {
    constexpr const char* where = "kv::AttentionAccumulator::add";
    const index_t group = detail::weights_group(weights, kv_heads_, where);
    require(
        weights.extent(1) <= capacity_, where, "weights",
        [&] { return "at most " + std::to_string(capacity_) + " tokens"; }, weights.extent(1));
    const View<float, 2> sums = view();
    for (index_t h = 0; h < kv_heads_; ++h) {
      for (index_t t = 0; t < weights.extent(1); ++t) sums(h, t) += detail::group_mean(weights, group, h, t);
    }
  }

  /// Moves the sums as compact() moves the rows; what is behind them becomes 0.
  void compact(const KeptView& kept) {
    Cpu serial;
    detail::move_sums(serial, view(), kept, "kv::AttentionAccumulator::compact");
  }

  /// [kv_heads, capacity]
  View<const float, 2> scores() const { return View<const float, 2>(sums_.data(), kv_heads_, capacity_); }

 private:
  View<float, 2> view() { return View<float, 2>(sums_.data(), kv_heads_, capacity_); }

  std::vector<float> sums_;
  index_t kv_heads_;
  index_t capacity_;
};

static_assert(KVEvictionPolicy<H2O, Cpu> && KVEvictionPolicy<AccumulatedAttention, Cpu> &&
              KVEvictionPolicy<GivenScores, Cpu>);

}  // namespace decant::kv

#endif
