// decant: ridge leverage scores on Cuda, of rows of floats (detail/gram.cuh: order of sums, bytes and FLOPs). Against
// the f64 definition within 5e-5 of the largest score, as on the CPU.
#ifndef DECANT_KV_RIDGE_LEVERAGE_CUH
#define DECANT_KV_RIDGE_LEVERAGE_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "detail/gram.cuh"
#include "ridge_leverage.hpp"

namespace decant::kv {

namespace detail {

/// One matrix of weighted rows: a source of detail/gram.cuh, and what becomes of its forms.
struct WeightedRows {
  using element = float;
  View<const float, 2> matrix;
  View<const float, 1> weights;
  View<float, 1> scores;

  __device__ index_t rows(index_t) const { return matrix.extent(0); }
  __device__ const float* row(index_t, index_t i) const { return &matrix(i, index_t{0}); }
  __device__ float weight(index_t, index_t i) const { return weights[i]; }
  __device__ SameValue change(index_t) const { return {}; }

  __device__ float start() const { return 0; }
  __device__ float add(float, index_t m, index_t i, float form) const { return weight(m, i) * form; }
  __device__ void write(index_t, index_t i, float state) const { scores[i] = state; }
};

}  // namespace detail

/// scores[i] = weights[i] u_i^T A^-1 u_i, A = ridge I + sum of weights[i] u_i u_i^T. rows [n, dim] with stride 1 along
/// dim, weights [n] of at least 0, ridge > 0. An A that is not positive definite is told at check(), and nothing is
/// written. O(n dim^2 + dim^3).
template <class Real>
requires std::is_same_v<Real, float>
void ridge_leverage(Cuda& cuda, View<const Real, 2> rows, View<const Real, 1> weights, double ridge,
                    View<Real, 1> scores) {
  constexpr const char* where = "kv::ridge_leverage";
  require_equal(weights.extent(0), rows.extent(0), where, "weights");
  require_equal(scores.extent(0), rows.extent(0), where, "scores");
  require(ridge > 0, where, "ridge", "a positive number", ridge);
  require(rows.stride(1) == 1 || rows.extent(1) <= 1, where, "rows", "stride 1 along rows", rows.stride(1));
  if (rows.empty()) return;
  Workspace::Scope scope(cuda.workspace());
  const index_t n = rows.extent(0);
  const detail::WeightedRows source{rows, weights, scores};
  const auto g = detail::take_gram_matrices(cuda, 1, rows.extent(1), n, true);
  detail::grams(cuda, where, source, g, n);
  detail::factorise(cuda, where, source, g, ridge);
  detail::require_positive(cuda, where, g, 0);
  detail::forms(cuda, where, source, source, g, 1, n);
}

}  // namespace decant::kv

#endif
