// decant: TOVA (Oren, Hassid, Yarden, Adi, Schwartz, arXiv 2401.06104): the attention of the last query, averaged over
// all query heads, the same score for every KV head; the last token stays. Online, the same call after every step with
// a budget of one token less than there are.
#ifndef DECANT_KV_TOVA_HPP
#define DECANT_KV_TOVA_HPP

#include "eviction.hpp"
#include "window_attention.hpp"

namespace decant::kv {

/// Reads x.queries of the last token. All heads must hold equally many tokens.
struct TOVA {
  bool operator==(const TOVA&) const = default;
};

inline void validate(const TOVA&) {}

/// O(query_heads * n * key_dim).
template <class X>
void score(Cpu& cpu, const TOVA&, const X& x, View<float, 2> scores) {
  const index_t n = x.max_length();
  if (n == 0) return;
  const index_t heads = x.kv_heads();
  for (index_t h = 0; h < heads; ++h) {
    require(x.length(h) == n, "kv::TOVA", "x", "heads of one length, as they share their scores", x.length(h));
  }
  detail::require_queries(x, 1, "kv::TOVA");
  detail::attention_columns<detail::Weight>(cpu, x, detail::ColumnQueries{1, 0, x.queries.extent(0) / heads}, scores);
  const float inverse = 1.0f / static_cast<float>(x.queries.extent(0));
  for (index_t t = 0; t < n; ++t) {
    float sum = 0;
    for (index_t h = 0; h < heads; ++h) sum += scores(h, t);
    for (index_t h = 0; h < heads; ++h) scores(h, t) = sum * inverse;
  }
}

constexpr auto stages(const TOVA& p) { return Eviction{p, NoSmoothing{}, SinkRecent{.sinks = 0, .recent = 1}}; }

static_assert(KVEvictionPolicy<TOVA, Cpu>);

}  // namespace decant::kv

#endif
