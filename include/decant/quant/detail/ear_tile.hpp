// decant: two rows of logits, a tile at a time: exponentials against the tile's own maximum, so that one pass over
// memory is enough, and their sums in double. And the distance of the two distributions once their sums are known, from
// the exponentials kept. Terms are added in fours in float, then in 16 sums in double. This is the portable path.
#ifndef DECANT_QUANT_DETAIL_EAR_TILE_HPP
#define DECANT_QUANT_DETAIL_EAR_TILE_HPP

#include "../../core/math.hpp"
#include "../../core/softmax.hpp"

namespace decant::quant::detail {

inline constexpr index_t ear_tile = 1024;

/// Of a tile of rows p and q, with d = logit - max: the largest logits, the sums of e^(d / temperature), and the sum of
/// e^(d_p / temperature) (d_p - d_q).
struct EarTile {
  float max_p;
  float max_q;
  double sum_p;
  double sum_q;
  double cross;
};

/// |p - q| in double, so that no compiler fuses a product into the difference: equal rows are at distance 0.
constexpr double ear_difference(float p, float q) {
  const double d = static_cast<double>(p) - static_cast<double>(q);
  return d < 0 ? -d : d;
}

/// The last n < 64 elements as floats, filled up with logits of -inf.
struct EarRest {
  float p[64];
  float q[64];
  float a[64];
  float b[64];

  template <class P, class Q>
  EarRest(const P* from_p, const Q* from_q, index_t n) {
    for (index_t i = 0; i < 64; ++i) {
      p[i] = i < n ? static_cast<float>(from_p[i]) : -__builtin_huge_valf();
      q[i] = i < n ? static_cast<float>(from_q[i]) : -__builtin_huge_valf();
    }
  }
  void store(float* to_a, float* to_b, index_t n) const {
    for (index_t i = 0; i < n; ++i) {
      to_a[i] = a[i];
      to_b[i] = b[i];
    }
  }
};

/// 2^f for f in [0, 1], highest power first: within 1.2e-8 before rounding, exact at 0. Of the vector paths.
inline constexpr float ear_exp2[7] = {2.0817914628e-4f, 1.2692166492e-3f, 9.6521954983e-3f, 5.5496022105e-2f,
                                      2.4022720754e-1f, 6.9314718246e-1f, 1.0f};

/// 64 elements. Keep: the exponentials go to a and b, and `cross` is summed.
template <bool Keep>
void ear_block(const float* p, const float* q, float base_p, float base_q, float inverse, float* a, float* b,
               double* sum_p, double* sum_q, double* cross) {
  float part_p[16] = {};
  float part_q[16] = {};
  float part_x[16] = {};
  for (int g = 0; g < 64; g += 16) {
    for (int l = 0; l < 16; ++l) {
      const float dp = p[g + l] - base_p;
      const float dq = q[g + l] - base_q;
      const float ep = fast_exp(dp * inverse);
      const float eq = fast_exp(dq * inverse);
      part_p[l] += ep;
      part_q[l] += eq;
      if constexpr (Keep) {
        a[g + l] = ep;
        b[g + l] = eq;
        part_x[l] += ep > 0 ? ep * (dp - dq) : 0.0f;  // both may be -inf
      }
    }
  }
  for (int l = 0; l < 16; ++l) {
    sum_p[l] += static_cast<double>(part_p[l]);
    sum_q[l] += static_cast<double>(part_q[l]);
    if constexpr (Keep) cross[l] += static_cast<double>(part_x[l]);
  }
}

inline double sum_of_16(double* lane) {
  for (int width = 8; width > 0; width /= 2) {
    for (int l = 0; l < width; ++l) lane[l] += lane[l + width];
  }
  return lane[0];
}

/// n > 0 elements, at most a tile; with Keep, a and b have room for as many.
template <bool Keep>
EarTile ear_tile_portable(const float* p, const float* q, index_t n, float inverse, float* a, float* b) {
  EarTile tile;
  tile.max_p = ::decant::detail::max_lanes(p, n);
  tile.max_q = ::decant::detail::max_lanes(q, n);
  const float base_p = ear_base(tile.max_p);
  const float base_q = ear_base(tile.max_q);
  double sum_p[16] = {};
  double sum_q[16] = {};
  double cross[16] = {};
  index_t i = 0;
  for (; i + 64 <= n; i += 64)
    ear_block<Keep>(p + i, q + i, base_p, base_q, inverse, Keep ? a + i : nullptr, Keep ? b + i : nullptr, sum_p, sum_q,
                    cross);
  if (i < n) {
    EarRest rest(p + i, q + i, n - i);
    ear_block<Keep>(rest.p, rest.q, base_p, base_q, inverse, rest.a, rest.b, sum_p, sum_q, cross);
    if constexpr (Keep) rest.store(a + i, b + i, n - i);
  }
  tile.sum_p = sum_of_16(sum_p);
  tile.sum_q = sum_of_16(sum_q);
  tile.cross = sum_of_16(cross);
  return tile;
}

/// The sum of |scale_p a - scale_q b|.
inline double ear_distance_portable(const float* a, const float* b, index_t n, float scale_p, float scale_q) {
  double sum[16] = {};
  for (index_t i = 0; i < n; ++i) {
    const float p = a[i] * scale_p;
    const float q = b[i] * scale_q;
    sum[i % 16] += ear_difference(p, q);
  }
  return sum_of_16(sum);
}

}  // namespace decant::quant::detail

#endif
