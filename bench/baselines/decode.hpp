#pragma once
// Dense attention of one decode step as an engineer would write it with a linear-algebra library, on the layout that
// suits the library best: fp32, [kv_head][token][dim], one matrix product per head for the scores, one for the output.

#include <cstddef>

namespace baselines {

struct DecodeShape {
  std::ptrdiff_t tokens;
  std::ptrdiff_t kv_heads;
  std::ptrdiff_t group;  // query heads per KV head
  std::ptrdiff_t dim;
};

// q, out: [kv_heads * group][dim]; keys, values: [kv_heads][tokens][dim]; scores: scratch of group * tokens.
// Softmax scale 1 / sqrt(dim). Each runs on the calling thread.
void eigen_decode(const DecodeShape& shape, const float* q, const float* keys, const float* values, float* scores,
                  float* out);
void openblas_decode(const DecodeShape& shape, const float* q, const float* keys, const float* values, float* scores,
                     float* out);

}  // namespace baselines
