// decant: what the next queries will look like, from those of the prompt: their mean, and their covariance, before
// RoPE, turned by the average rotation of the coming positions. Used by ExpectedAttention and CapKV.
#ifndef DECANT_KV_DETAIL_FUTURE_QUERY_HPP
#define DECANT_KV_DETAIL_FUTURE_QUERY_HPP

#include <cmath>

#include "../layer.hpp"

namespace decant::kv::detail {

/// The average over positions first ... first + count - 1 of the rotation of one pair: (mean cos, mean sin), from the
/// closed form of the sum of e^(i p theta). count >= 1.
struct MeanRotation {
  double cosine;
  double sine;
};
DECANT_HD inline MeanRotation mean_rotation(double theta, index_t first, index_t count) {
  const double half = 0.5 * theta;
  const double middle = theta * (static_cast<double>(first) + 0.5 * static_cast<double>(count - 1));
  const double below = std::sin(half) * static_cast<double>(count);
  const double length = below == 0 ? 1.0 : std::sin(half * static_cast<double>(count)) / below;
  return {length * std::cos(middle), length * std::sin(middle)};
}

/// The position of the next token.
template <class X>
DECANT_HD index_t next_position(const X& x) {
  if (x.next_position >= 0) return x.next_position;
  index_t next = 0;
  for (index_t h = 0; h < x.kv_heads(); ++h) {
    const index_t n = x.length(h);
    const index_t after = n > 0 ? x.position(h, n - 1) + 1 : 0;
    next = after > next ? after : next;
  }
  return next;
}

/// The first of `have` queries, those of the last `have` tokens, that belongs to no sink.
template <class X>
DECANT_HD index_t first_query(const X& x, index_t have, index_t sinks) {
  const index_t skip = sinks - (next_position(x) - have);
  return skip > 0 ? skip : 0;
}

/// mean[d] of the queries [first, end) of one head, in double. Queries are contiguous along d.
template <class Q>
void mean_query(const View<const Q, 2>& queries, index_t first, double* mean) {
  const index_t dim = queries.extent(1);
  for (index_t d = 0; d < dim; ++d) mean[d] = 0;
  for (index_t i = first; i < queries.extent(0); ++i) {
    const Q* const q = &queries(i, index_t{0});
    index_t d = 0;
    for (; d + 16 <= dim; d += 16) {  // in sixteens, so that -O2 vectorises it
      for (int l = 0; l < 16; ++l) mean[d + l] += static_cast<double>(static_cast<float>(q[d + l]));
    }
    for (; d < dim; ++d) mean[d] += static_cast<double>(static_cast<float>(q[d]));
  }
  for (index_t d = 0; d < dim; ++d) mean[d] /= static_cast<double>(queries.extent(0) - first);
}

/// v = Rbar v, pair by pair; stride lets it work on rows and columns of a matrix.
inline void rotate_mean(const Rope& rope, index_t dim, const MeanRotation* rotations, double* v, index_t stride) {
  for (index_t f = 0; f < rope.rotary_dim(dim) / 2; ++f) {
    double& x = v[rope.first(f) * stride];
    double& y = v[rope.second(f, dim) * stride];
    const double turned = x * rotations[f].cosine - y * rotations[f].sine;
    y = x * rotations[f].sine + y * rotations[f].cosine;
    x = turned;
  }
}

/// rotations[f] for all pairs; none are turned when count is 0.
template <class X>
void mean_rotations(const X& x, index_t count, MeanRotation* rotations) {
  const index_t dim = x.cache.key_dim();
  const index_t first = next_position(x);
  for (index_t f = 0; f < x.rope.rotary_dim(dim) / 2; ++f) {
    rotations[f] = count > 0 ? mean_rotation(x.rope.frequency(f, dim), first, count) : MeanRotation{1.0, 0.0};
  }
}

}  // namespace decant::kv::detail

#endif
