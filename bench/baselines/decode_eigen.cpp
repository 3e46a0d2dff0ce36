#include <cmath>

#include "decode.hpp"
#include "softmax.hpp"

namespace baselines {

Step eigen_decode(const Decode& d) {
  if (d.threads != 1) return {};
  return [d, scores = std::vector<float>(static_cast<std::size_t>(d.group * d.tokens))]() mutable {
    const float scale = 1.0f / std::sqrt(static_cast<float>(d.dim));
    Eigen::Map<Rows> s(scores.data(), d.group, d.tokens);
    for (std::ptrdiff_t h = 0; h < d.kv_heads; ++h) {
      const Eigen::Map<const Rows> query(d.q + h * d.group * d.dim, d.group, d.dim);
      const Eigen::Map<const Rows> k(d.wide_keys + h * d.tokens * d.dim, d.tokens, d.dim);
      const Eigen::Map<const Rows> v(d.wide_values + h * d.tokens * d.dim, d.tokens, d.dim);
      Eigen::Map<Rows> o(d.out + h * d.group * d.dim, d.group, d.dim);
      s.noalias() = scale * query * k.transpose();
      softmax_rows(s);
      o.noalias() = s * v;
    }
  };
}

}  // namespace baselines
