#include <Eigen/Core>

#include "gemv.hpp"

namespace baselines {

Product eigen_gemv(const Gemv& g) {
  if (g.threads != 1) return {};
  using Rows = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  return [g, next = std::ptrdiff_t{0}]() mutable {
    const Eigen::Map<const Rows> w(g.weights + next * g.rows * g.cols, g.rows, g.cols);
    next = (next + 1) % g.copies;
    if (g.tokens == 1) {
      Eigen::Map<Eigen::VectorXf>(g.y, g.rows).noalias() = w * Eigen::Map<const Eigen::VectorXf>(g.x, g.cols);
    } else {
      Eigen::Map<Rows>(g.y, g.tokens, g.rows).noalias() =
          Eigen::Map<const Rows>(g.x, g.tokens, g.cols) * w.transpose();
    }
  };
}

}  // namespace baselines
