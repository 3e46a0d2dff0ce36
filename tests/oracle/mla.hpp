#pragma once
// Multi-head latent attention by definition, in double and not absorbed: every cached token is projected up to a key and
// a value of each head, the shared rotated part is put behind the key, and attention is ordinary attention over these.

#include <cmath>
#include <functional>
#include <vector>

#include "oracle/attention.hpp"

namespace oracle {

struct MlaDims {
  index nope, rope, latent, value;
};

/// One query, one head. q(d): [nope | rope]; c(j, l) and k_pe(j, d) are the cache; uk(d, l) and uv(d, l) are this head's
/// weights. scale_factor multiplies 1 / sqrt(nope + rope).
inline AttentionRow mla_row(index keys, const MlaDims& x, const std::function<double(index)>& q,
                            const std::function<double(index, index)>& c,
                            const std::function<double(index, index)>& k_pe,
                            const std::function<double(index, index)>& uk,
                            const std::function<double(index, index)>& uv, const std::function<bool(index)>& allowed,
                            double scale_factor = 1) {
  const auto up = [&](const std::function<double(index, index)>& w, index d, index j) {
    double sum = 0;
    for (index l = 0; l < x.latent; ++l) sum += w(d, l) * c(j, l);
    return sum;
  };
  std::vector<double> k(static_cast<std::size_t>(keys * (x.nope + x.rope)));
  std::vector<double> v(static_cast<std::size_t>(keys * x.value));
  std::size_t at_k = 0, at_v = 0;
  for (index j = 0; j < keys; ++j) {
    for (index d = 0; d < x.nope; ++d) k[at_k++] = up(uk, d, j);
    for (index d = 0; d < x.rope; ++d) k[at_k++] = k_pe(j, d);
    for (index d = 0; d < x.value; ++d) v[at_v++] = up(uv, d, j);
  }
  return attention_row(
      keys, x.nope + x.rope, x.value, q,
      [&](index j, index d) { return k[static_cast<std::size_t>(j * (x.nope + x.rope) + d)]; },
      [&](index j, index d) { return v[static_cast<std::size_t>(j * x.value + d)]; }, allowed,
      scale_factor / std::sqrt(static_cast<double>(x.nope + x.rope)));
}

}  // namespace oracle
