#pragma once
// One decode step of absorbed MLA as an engineer would write it with a linear-algebra library: everything in fp32, a
// product with each head's weights before and after, and for all heads together one matrix product for the scores, a
// softmax, and one product for the output.

#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace baselines {

/// Memory is the caller's and outlives the calls made of it.
struct MlaStep {
  std::ptrdiff_t tokens, heads, nope, rope, latent, value;
  const float* q_nope;  // [heads][nope]
  const float* q_pe;    // [heads][rope]
  const float* kv_b;    // [heads][nope + value][latent]
  const float* rows;    // [tokens][latent + rope]
  float* out;           // [heads][value]
};

/// The libraries of this build, by name, on one thread.
std::vector<std::pair<std::string, std::function<void()>>> mla_peers(const MlaStep& step);

}  // namespace baselines
