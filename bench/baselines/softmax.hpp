#pragma once
// The softmax of the baselines: Eigen's vectorised exp over the rows of a row-major matrix, in place.

#include <Eigen/Core>

namespace baselines {

using Rows = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

inline void softmax_rows(Eigen::Ref<Rows> scores) {
  for (Eigen::Index r = 0; r < scores.rows(); ++r) {
    auto row = scores.row(r).array();
    row = (row - row.maxCoeff()).exp();
    row /= row.sum();
  }
}

}  // namespace baselines
