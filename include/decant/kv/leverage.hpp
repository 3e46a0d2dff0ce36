// decant: Leverage, how far a key stands out from the span of the others: ridge leverage of the centred pre-RoPE keys,
// after a Gaussian sketch, z-scored per head; the query-free half of Compactor (arXiv 2507.08143, as in kvpress).
//   X = (K_pre - column mean) Phi, s_j = x_j^T (X^T X + ridge I)^-1 x_j
#ifndef DECANT_KV_LEVERAGE_HPP
#define DECANT_KV_LEVERAGE_HPP

#include <cmath>

#include "../core/random.hpp"
#include "detail/rows.hpp"
#include "eviction.hpp"
#include "ridge_leverage.hpp"

namespace decant::kv {

/// sketch: columns of Phi, entries N(0, 1 / sketch); 0: no sketch, exact. Reads x.positions and x.rope to take RoPE
/// off.
struct Leverage {
  index_t sketch = 48;
  float ridge = 1e-2f;
  bool z_score = true;
  std::uint64_t seed = 0;
  bool operator==(const Leverage&) const = default;
};

inline void validate(const Leverage& p) {
  require(p.sketch >= 0, "kv::Leverage", "sketch", "at least 0", p.sketch);
  require(p.ridge > 0, "kv::Leverage", "ridge", "a positive number", p.ridge);
}

namespace detail {

/// A standard normal number, pure in its arguments (Box and Muller).
DECANT_HD inline double philox_normal(const Philox& philox, index_t row, index_t column) {
  const Philox4 bits = philox(static_cast<std::uint32_t>(row), static_cast<std::uint32_t>(column));
  const auto u = static_cast<double>(Philox::to_unit(bits.word[0]));
  const auto v = static_cast<double>(Philox::to_unit(bits.word[1]));
  return std::sqrt(-2 * std::log(u)) * std::cos(6.283185307179586 * v);
}

/// Rows [n][dim] of floats, turned back by their positions.
template <class X>
void take_rope_off(const X& x, index_t head, index_t n, float* rows) {
  const index_t dim = x.cache.key_dim();
  for (index_t f = 0; f < x.rope.rotary_dim(dim) / 2; ++f) {
    const double theta = x.rope.frequency(f, dim);
    for (index_t t = 0; t < n; ++t) {
      const double angle = -theta * static_cast<double>(x.position(head, t));
      const double c = std::cos(angle);
      const double s = std::sin(angle);
      float& first = rows[t * dim + x.rope.first(f)];
      float& second = rows[t * dim + x.rope.second(f, dim)];
      const auto a = static_cast<double>(first);
      const auto b = static_cast<double>(second);
      first = static_cast<float>(a * c - b * s);
      second = static_cast<float>(a * s + b * c);
    }
  }
}

}  // namespace detail

/// O(kv_heads * n * key_dim * sketch); scratch 4 bytes per token and (key dim + sketch).
template <class X>
void score(Cpu& cpu, const Leverage& p, const X& x, View<float, 2> scores) {
  validate(p);
  Workspace::Scope scope(cpu.workspace());
  const index_t longest = x.max_length();
  const index_t dim = x.cache.key_dim();
  const index_t width = p.sketch == 0 ? dim : p.sketch;
  const index_t lanes = detail::padded(width);
  float* const rows = cpu.workspace().template take<float>(longest * dim);
  float* const sketched = p.sketch == 0 ? rows : cpu.workspace().template take<float>(longest * lanes);
  float* const phi = cpu.workspace().template take<float>(dim * lanes);
  float* const ones = cpu.workspace().template take<float>(longest);
  const Philox philox{p.seed};
  for (index_t d = 0; d < dim; ++d) {
    for (index_t c = 0; c < lanes; ++c) {
      phi[d * lanes + c] =
          p.sketch > 0 && c < width
              ? static_cast<float>(detail::philox_normal(philox, d, c) / std::sqrt(static_cast<double>(width)))
              : 0.0f;
    }
  }
  for (index_t t = 0; t < longest; ++t) ones[t] = 1;
  for (index_t h = 0; h < x.kv_heads(); ++h) {
    const index_t n = x.length(h);
    if (n == 0) continue;
    detail::load_keys(cpu.isa(), x.cache, x.sequence, h, 0, n, rows, dim);
    detail::take_rope_off(x, h, n, rows);
    for (index_t d = 0; d < dim; ++d) {
      double mean = 0;
      for (index_t t = 0; t < n; ++t) mean += static_cast<double>(rows[t * dim + d]);
      mean /= static_cast<double>(n);
      for (index_t t = 0; t < n; ++t) rows[t * dim + d] -= static_cast<float>(mean);
    }
    if (p.sketch > 0) {
      detail::product<float>(cpu.isa(),
                             detail::Product<float>{n, lanes, dim, rows, dim, 1, phi, lanes, sketched, lanes, false});
    }
    const index_t extents[2] = {n, width};
    const index_t strides[2] = {p.sketch > 0 ? lanes : dim, 1};
    const View<float, 1> out(&scores(h, index_t{0}), n);
    ridge_leverage<float>(cpu, View<const float, 2>(sketched, extents, strides), View<const float, 1>(ones, n),
                          static_cast<double>(p.ridge), out);
    double mean = 0;
    double square = 0;
    for (index_t t = 0; t < n; ++t) mean += static_cast<double>(out[t]) / static_cast<double>(n);
    for (index_t t = 0; t < n; ++t) {
      const double centred = static_cast<double>(out[t]) - mean;
      square += centred * centred / static_cast<double>(n);
    }
    const double inverse = square > 0 ? 1 / std::sqrt(square) : 0.0;
    for (index_t t = 0; t < n && p.z_score; ++t) {
      out[t] = static_cast<float>((static_cast<double>(out[t]) - mean) * inverse);
    }
  }
}

constexpr auto stages(const Leverage& p) { return Eviction{p}; }

static_assert(KVEvictionPolicy<Leverage, Cpu>);

}  // namespace decant::kv

#endif
