#pragma once
// Scores of one layer's cached tokens as an engineer would form them with a linear-algebra library, on the layout that
// suits the library best: fp32, [kv_head][token][dim]. Each runs on the calling thread.

#include <cstddef>

namespace baselines {

struct ScoreShape {
  std::ptrdiff_t tokens;
  std::ptrdiff_t kv_heads;
  std::ptrdiff_t group;   // query heads per KV head
  std::ptrdiff_t window;  // queries per query head, the last tokens' own
  std::ptrdiff_t dim;     // of keys and values
};

// SnapKV's: one matrix product per head, a causal softmax of its rows, the mean of each column.
// q: [kv_heads * group][window][dim]; keys: [kv_heads][tokens][dim]; weights: scratch of group * window * tokens;
// out: [kv_heads][tokens].
void eigen_window_attention(const ScoreShape& shape, const float* q, const float* keys, float* weights, float* out);

// CapKV's ridge leverage, mean over the group: rankUpdate of the weighted values, LLT, one triangular solve.
// mean: [kv_heads * group][dim], of length 1; values: [kv_heads][tokens][dim]; scratch: tokens * dim.
void eigen_cap_kv(const ScoreShape& shape, const float* mean, const float* keys, const float* values, float* scratch,
                  float* out);

}  // namespace baselines
