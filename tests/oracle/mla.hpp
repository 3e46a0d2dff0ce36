#pragma once
// Multi-head latent attention by definition, in double and not absorbed: every cached token is projected up to a key and
// a value of each head, the shared rotated part is put behind the key, and attention is ordinary attention over these.

#include <cmath>
#include <cstddef>
#include <vector>

#include "oracle/attention.hpp"

namespace oracle {

struct MlaDims {
  index nope, rope, latent, value;
};

/// The keys [nope | rope] and values of one head over one sequence.
struct MlaHead {
  std::vector<double> k, v;
};

/// c(j, l) and k_pe(j, d) are the cache; uk(d, l) and uv(d, l) are this head's weights.
template <class C, class KPe, class Uk, class Uv>
MlaHead mla_head(index keys, const MlaDims& x, const C& c, const KPe& k_pe, const Uk& uk, const Uv& uv) {
  const auto matrix = [&](index rows, const auto& w) {
    std::vector<double> numbers;
    for (index d = 0; d < rows; ++d)
      for (index l = 0; l < x.latent; ++l) numbers.push_back(w(d, l));
    return numbers;
  };
  const std::vector<double> weights_k = matrix(x.nope, uk), weights_v = matrix(x.value, uv), rows = matrix(keys, c);
  const index latent = x.latent;
  const auto up = [latent](const double* weights, const double* row, index d) {
    const double* const w = weights + d * latent;
    double sum = 0;
    for (index l = 0; l < latent; ++l) sum += w[l] * row[l];
    return sum;
  };
  MlaHead head;
  for (index j = 0; j < keys; ++j) {
    const double* const row = rows.data() + j * latent;
    for (index d = 0; d < x.nope; ++d) head.k.push_back(up(weights_k.data(), row, d));
    for (index d = 0; d < x.rope; ++d) head.k.push_back(k_pe(j, d));
    for (index d = 0; d < x.value; ++d) head.v.push_back(up(weights_v.data(), row, d));
  }
  return head;
}

/// One query: q(d) is [nope | rope]. scale_factor multiplies 1 / sqrt(nope + rope).
template <class Q, class Allowed>
AttentionRow mla_row(index keys, const MlaDims& x, const MlaHead& head, const Q& q, const Allowed& allowed,
                     double scale_factor = 1) {
  const index dim = x.nope + x.rope;
  const double* const k = head.k.data();
  const double* const v = head.v.data();
  return attention_row(
      keys, dim, x.value, q, [k, dim](index j, index d) { return k[j * dim + d]; },
      [v, value = x.value](index j, index d) { return v[j * value + d]; }, allowed,
      scale_factor / std::sqrt(static_cast<double>(dim)));
}

}  // namespace oracle
