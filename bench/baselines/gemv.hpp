#pragma once
// y = x W^T by other libraries: those that this build found, each with the weights in the type that it is given them in.

#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace baselines {

/// All memory is the caller's and outlives the calls made of it.
struct Gemv {
  std::ptrdiff_t rows;
  std::ptrdiff_t cols;
  std::ptrdiff_t tokens;
  int threads;
  const float* weights;   // [copies][rows][cols], all the same
  std::ptrdiff_t copies;  // each call takes the next, so that together they come from memory
  const float* x;         // [tokens][cols]
  float* y;               // [tokens][rows]
};

/// One product with the next copy. Empty where the library cannot.
using Product = std::function<void()>;

/// The libraries of this build, by name. Conversions and primitives are made here, not in the calls; copies in another
/// type are as many as it takes for as many bytes.
std::vector<std::pair<std::string, Product>> gemv_peers(const Gemv& g);

Product eigen_gemv(const Gemv& g);         // fp32, one thread
Product openblas_gemv(const Gemv& g);      // fp32
Product onednn_bf16_gemv(const Gemv& g);   // weights and activations in bf16
Product onednn_int8_gemv(const Gemv& g);   // weights in int8 with a scale per row, activations in int8 with one
/// Weights in ggml's Q4_0, activations in its Q8_0. Empty where the weights are no dequantized Q4_0.
Product ggml_q4_0_gemv(const Gemv& g);
Product ggml_q4_0_repacked_gemv(const Gemv& g);

}  // namespace baselines
