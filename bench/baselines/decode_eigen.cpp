#include <cmath>

#include "decode.hpp"
#include "softmax.hpp"

namespace baselines {

void eigen_decode(const DecodeShape& shape, const float* q, const float* keys, const float* values, float* scores,
                  float* out) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(shape.dim));
  Eigen::Map<Rows> s(scores, shape.group, shape.tokens);
  for (std::ptrdiff_t h = 0; h < shape.kv_heads; ++h) {
    const Eigen::Map<const Rows> query(q + h * shape.group * shape.dim, shape.group, shape.dim);
    const Eigen::Map<const Rows> k(keys + h * shape.tokens * shape.dim, shape.tokens, shape.dim);
    const Eigen::Map<const Rows> v(values + h * shape.tokens * shape.dim, shape.tokens, shape.dim);
    Eigen::Map<Rows> o(out + h * shape.group * shape.dim, shape.group, shape.dim);
    s.noalias() = scale * query * k.transpose();
    softmax_rows(s);
    o.noalias() = s * v;
  }
}

}  // namespace baselines
