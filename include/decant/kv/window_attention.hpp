// decant: WindowAttention, the attention that each token receives from the last queries: the scorer of SnapKV (Li et
// al., arXiv 2404.14469), PyramidKV and Ada-KV. Softmax over all keys, causal inside the window; a key's score is the
// mean over the window's queries and over the query heads of its group. The window's own tokens score 0: protect them.
#ifndef DECANT_KV_WINDOW_ATTENTION_HPP
#define DECANT_KV_WINDOW_ATTENTION_HPP

#include "detail/attention_columns.hpp"
#include "eviction.hpp"

namespace decant::kv {

/// How several values become one.
enum class Reduce : std::uint8_t { mean, sum, max };

/// window: how many queries look. queries: how their weights are joined (mean or sum). group: how the query heads of a
/// group are joined. Reads x.queries: post-RoPE, of at least the last min(window, n) tokens; x.lse saves work.
struct WindowAttention {
  index_t window = 64;
  Reduce queries = Reduce::mean;
  Reduce group = Reduce::mean;
  bool operator==(const WindowAttention&) const = default;
};

inline void validate(const WindowAttention& s) {
  require(s.window >= 1, "kv::WindowAttention", "window", "at least 1", s.window);
  require(s.queries != Reduce::max, "kv::WindowAttention", "queries", "mean or sum", "max");
}

namespace detail {

/// Queries of the last `needed` tokens must have come with the layer.
template <class X>
void require_queries(const X& x, index_t needed, const char* where) {
  const index_t have = x.queries.data() == nullptr ? 0 : x.queries.extent(1);
  require(
      have >= needed, where, "x.queries", [&] { return "queries of the last " + std::to_string(needed) + " tokens"; },
      [&] { return std::to_string(have); });
}

/// scores(h, t) = the group's reduction of the summed weights of `window` queries.
template <class X>
void grouped_columns(Cpu& cpu, const X& x, index_t window, Reduce reduce, View<float, 2> scores) {
  const index_t group = x.queries.extent(0) / x.kv_heads();
  if (reduce != Reduce::max) {
    attention_columns<Weight>(cpu, x, ColumnQueries{window, 0, group}, scores);
    if (reduce == Reduce::sum) return;
    const float inverse = 1.0f / static_cast<float>(group);
    for (index_t h = 0; h < x.kv_heads(); ++h) {
      for (index_t t = 0; t < x.length(h); ++t) scores(h, t) *= inverse;
    }
    return;
  }
  attention_columns<Weight>(cpu, x, ColumnQueries{window, 0, 1}, scores);
  Workspace::Scope scope(cpu.workspace());
  const auto other = cpu.workspace().template take_view<float>(x.kv_heads(), x.max_length());
  for (index_t member = 1; member < group; ++member) {
    attention_columns<Weight>(cpu, x, ColumnQueries{window, member, 1}, other);
    for (index_t h = 0; h < x.kv_heads(); ++h) {
      for (index_t t = 0; t < x.length(h); ++t) {
        scores(h, t) = other(h, t) > scores(h, t) ? other(h, t) : scores(h, t);
      }
    }
  }
}

}  // namespace detail

/// O(window * query_heads * n * key_dim).
template <class X>
void score(Cpu& cpu, const WindowAttention& s, const X& x, View<float, 2> scores) {
  validate(s);
  const index_t n = x.max_length();
  if (n == 0) return;
  detail::require_queries(x, s.window < n ? s.window : n, "kv::WindowAttention");
  detail::grouped_columns(cpu, x, s.window, s.group, scores);
  for (index_t h = 0; h < x.kv_heads(); ++h) {
    const index_t length = x.length(h);
    const index_t window = s.window < length ? s.window : length;
    const float factor = s.queries == Reduce::mean ? 1.0f / static_cast<float>(window > 0 ? window : 1) : 1.0f;
    for (index_t t = 0; t < length - window; ++t) scores(h, t) *= factor;
    for (index_t t = length - window; t < length; ++t) scores(h, t) = 0;
  }
}

static_assert(Scorer<WindowAttention, Cpu, LayerView<DenseKV<float>>>);

}  // namespace decant::kv

#endif
