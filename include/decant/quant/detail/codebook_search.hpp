// decant: what fitting and reading codebooks share: a table of 16 ascending entries, the entry nearest to a value, and
// weighted errors. Errors are sums in 16 lanes, element i in lane i mod 16, folded as a tree; each term is one product
// and one fused multiply-add, so that no compiler has anything left to fuse: every instruction set and every device
// gets the same bits.
#ifndef DECANT_QUANT_DETAIL_CODEBOOK_SEARCH_HPP
#define DECANT_QUANT_DETAIL_CODEBOOK_SEARCH_HPP

#include <cmath>
#include <limits>

#include "../../core/error.hpp"

namespace decant::quant::detail {

inline constexpr float never = std::numeric_limits<float>::infinity();

/// limit[c], c < 15, is where entry c ends: half way to the next. Entries that repeat the last one are never nearest.
/// limit[15] is never.
DECANT_HD inline void set_limits(const float* table, float* limit) {
  for (int c = 0; c < 15; ++c) limit[c] = table[c] == table[15] ? never : 0.5f * (table[c] + table[c + 1]);
  limit[15] = never;
}

/// The entry nearest to u: how many limits lie below it. Of two at one distance the lower.
DECANT_HD inline int nearest_entry(const float* limit, float u) {
  int c = u > limit[7] ? 8 : 0;
  c += u > limit[c + 3] ? 4 : 0;
  c += u > limit[c + 1] ? 2 : 0;
  c += u > limit[c] ? 1 : 0;
  return c;
}

/// The 16 lanes' sum.
DECANT_HD inline float fold16(float* lane) {
  for (int width = 8; width > 0; width /= 2)
    for (int l = 0; l < width; ++l) lane[l] += lane[l + width];
  return lane[0];
}

/// sum_i importance_i (u_i - table[nearest])^2 with u_i = w_i / step, over n weights; importance null is 1.
DECANT_HD inline float weighted_error(const float* table, const float* limit, const float* w, const float* importance,
                                      index_t n, float step) {
  float lane[16] = {};
  for (index_t i = 0; i < n; ++i) {
    const float u = w[i] / step;
    const float d = u - table[nearest_entry(limit, u)];
    const float each = importance ? importance[i] : 1.0f;
    lane[i % 16] = std::fma(each * d, d, lane[i % 16]);
  }
  return fold16(lane);
}

/// sum_i importance_i u_i c_i and sum_i importance_i c_i^2, c_i the entry nearest to u_i: their ratio is the factor on
/// step that fits these codes best.
DECANT_HD inline void scale_sums(const float* table, const float* limit, const float* w, const float* importance,
                                 index_t n, float step, double& product, double& square) {
  float with_u[16] = {};
  float with_c[16] = {};
  for (index_t i = 0; i < n; ++i) {
    const float u = w[i] / step;
    const float c = table[nearest_entry(limit, u)];
    const float each = (importance ? importance[i] : 1.0f) * c;
    with_u[i % 16] = std::fma(each, u, with_u[i % 16]);
    with_c[i % 16] = std::fma(each, c, with_c[i % 16]);
  }
  product += static_cast<double>(fold16(with_u));
  square += static_cast<double>(fold16(with_c));
}

}  // namespace decant::quant::detail

#endif
