#pragma once
// Dense attention of one decode step by other libraries: those that this build found, each on the layout and in the type
// that suit it best. Where it has no attention of its own, it is what an engineer would write with it: one matrix
// product per KV head for the scores, a softmax, one product for the output.

#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace baselines {

enum class Type { f32, f16, bf16, other };

/// The step: rows in one block per KV head, softmax scale 1 / sqrt(dim). All memory is the caller's and outlives the
/// calls made of it.
struct Decode {
  std::ptrdiff_t tokens;
  std::ptrdiff_t kv_heads;
  std::ptrdiff_t group;  // query heads per KV head
  std::ptrdiff_t dim;
  int threads;
  Type type;
  const void* keys;  // [kv_heads][tokens][dim] of `type`
  const void* values;
  const float* wide_keys;  // the same values as floats, for libraries that cannot take the type
  const float* wide_values;
  const float* q;  // [kv_heads * group][dim]
  float* out;      // [kv_heads * group][dim]
};

/// Does the step once more. Empty where the library cannot: the type, or so many threads.
using Step = std::function<void()>;

/// The libraries of this build that can, by name. Nothing but attention itself is inside a call: converted copies,
/// graphs and primitives are made here.
std::vector<std::pair<std::string, Step>> decode_peers(const Decode& step);

Step eigen_decode(const Decode& step);     // three passes in fp32, one thread
Step openblas_decode(const Decode& step);  // the same with its matrix products
Step onednn_decode(const Decode& step);    // the same with its matrix products and softmax; bf16 as stored
Step ggml_decode(const Decode& step);      // its flash attention over an fp16 cache (fp32: as stored)
Step torch_decode(const Decode& step);     // scaled_dot_product_attention; types as stored

}  // namespace baselines
