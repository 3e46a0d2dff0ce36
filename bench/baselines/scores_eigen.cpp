#include "scores.hpp"

#include <Eigen/Cholesky>
#include <cmath>
#include <limits>

#include "softmax.hpp"

namespace baselines {

void eigen_window_attention(const ScoreShape& shape, const float* q, const float* keys, float* weights, float* out) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(shape.dim));
  const Eigen::Index rows = shape.group * shape.window;
  Eigen::Map<Rows> s(weights, rows, shape.tokens);
  for (std::ptrdiff_t h = 0; h < shape.kv_heads; ++h) {
    const Eigen::Map<const Rows> query(q + h * rows * shape.dim, rows, shape.dim);
    const Eigen::Map<const Rows> k(keys + h * shape.tokens * shape.dim, shape.tokens, shape.dim);
    s.noalias() = scale * query * k.transpose();
    for (Eigen::Index r = 0; r < rows; ++r) {
      const Eigen::Index hidden = shape.window - 1 - r % shape.window;
      s.row(r).tail(hidden).setConstant(-std::numeric_limits<float>::infinity());
    }
    softmax_rows(s);
    Eigen::Map<Eigen::RowVectorXf>(out + h * shape.tokens, shape.tokens) = s.colwise().sum() / static_cast<float>(rows);
  }
}

void eigen_cap_kv(const ScoreShape& shape, const float* mean, const float* keys, const float* values, float* scratch,
                  float* out) {
  for (std::ptrdiff_t h = 0; h < shape.kv_heads; ++h) {
    const Eigen::Map<const Rows> k(keys + h * shape.tokens * shape.dim, shape.tokens, shape.dim);
    const Eigen::Map<const Rows> v(values + h * shape.tokens * shape.dim, shape.tokens, shape.dim);
    Eigen::Map<Rows> rows(scratch, shape.tokens, shape.dim);
    Eigen::Map<Eigen::ArrayXf> scores(out + h * shape.tokens, shape.tokens);
    scores.setZero();
    const Eigen::ArrayXf norms = k.rowwise().norm().array();
    for (std::ptrdiff_t a = 0; a < shape.group; ++a) {
      const Eigen::Map<const Eigen::VectorXf> mu(mean + (h * shape.group + a) * shape.dim, shape.dim);
      Eigen::ArrayXf weight = (k * mu).array() / norms;
      weight = (5.0f * (weight - weight.maxCoeff())).exp() + 1e-6f;
      rows = weight.sqrt().matrix().asDiagonal() * v;
      Eigen::MatrixXf gram = Eigen::MatrixXf::Identity(shape.dim, shape.dim);
      gram.selfadjointView<Eigen::Lower>().rankUpdate(rows.transpose());
      const Eigen::LLT<Eigen::MatrixXf> factor(gram);
      Eigen::Map<Eigen::MatrixXf> columns(scratch, shape.dim, shape.tokens);  // the rows, as columns
      factor.matrixL().solveInPlace(columns);
      scores += columns.colwise().squaredNorm().transpose().array() / static_cast<float>(shape.group);
    }
  }
}

}  // namespace baselines
