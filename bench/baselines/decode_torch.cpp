// Left empty where libtorch is not found. The query heads of a KV head go in as so many queries of one head, which is the
// same step: then its flash attention reads a row once for all of them, which it does not with enable_gqa.
#ifdef DECANT_BENCH_TORCH
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include "decode.hpp"

namespace baselines {

Step torch_decode(const Decode& d) {
  if (d.type == Type::other) return {};
  const c10::InferenceMode inference;
  const auto type = d.type == Type::f32 ? at::kFloat : d.type == Type::f16 ? at::kHalf : at::kBFloat16;
  const auto tensor = [&](const void* data, std::ptrdiff_t rows, at::ScalarType element) {
    return at::from_blob(const_cast<void*>(data), {1, d.kv_heads, rows, d.dim}, at::TensorOptions(element));
  };
  return [threads = d.threads, q = tensor(d.q, d.group, at::kFloat).to(type), k = tensor(d.keys, d.tokens, type),
          v = tensor(d.values, d.tokens, type), out = tensor(d.out, d.group, at::kFloat)] {
    const c10::InferenceMode running;
    at::set_num_threads(threads);
    out.copy_(at::scaled_dot_product_attention(q, k, v));
  };
}

}  // namespace baselines
#endif
