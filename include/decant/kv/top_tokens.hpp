// decant: TopTokens, the selector of most papers: of every head the protected tokens and the highest scores, ties to
// the lower token, indices ascending.
#ifndef DECANT_KV_TOP_TOKENS_HPP
#define DECANT_KV_TOP_TOKENS_HPP

#include "../core/topk.hpp"
#include "dense_kv.hpp"
#include "stages.hpp"

namespace decant::kv {

struct TopTokens {
  bool operator==(const TopTokens&) const = default;
};

inline void validate(const TopTokens&) {}

/// O(tokens of the layer).
template <class X>
void choose(Cpu& cpu, const TopTokens&, const X&, const ScoredLayer& layer, View<const std::int32_t, 1> counts,
            KeptView kept) {
  top_k_each_row(cpu, layer.scores, layer.lengths, layer.keep, counts, kept.indices);
  for (index_t h = 0; h < layer.kv_heads(); ++h) kept.counts[h] = counts[h];
}

static_assert(Selector<TopTokens, Cpu, LayerView<DenseKV<float>>>);

}  // namespace decant::kv

#endif
