// decant: ridge leverage scores of weighted rows, s_i = w_i u_i^T A^-1 u_i with A = ridge I + sum of w_i u_i u_i^T: how
// much log det A, the information capacity of a linear-Gaussian channel, rests on row i; dropping it costs exactly
// -log(1 - s_i). The core of CapKV (arXiv 2604.25975), a template over the real type, so that the identities hold to
// 1e-10 in double for the code that scores in float.
// Gram matrix: tiles of 256 rows in Real, tiles added in double; Cholesky and inverse in double [ours: the reference
// code forms A in bf16, and then it is indefinite].
#ifndef DECANT_KV_RIDGE_LEVERAGE_HPP
#define DECANT_KV_RIDGE_LEVERAGE_HPP

#include "../core/cpu.hpp"
#include "../core/math.hpp"
#include "detail/columns_kernel.hpp"
#include "detail/product.hpp"

namespace decant::kv {

namespace detail {

inline constexpr index_t gram_tile = 256;             // rows summed in Real
inline constexpr index_t gram_span = 16 * gram_tile;  // rows of one task

/// What one task needs besides the result: a weighted tile and the tile's sum.
template <class Real>
struct GramScratch {
  Real* weighted;  // [gram_tile][ld]
  Real* sum;       // [dim][ld]
};

template <class Real>
GramScratch<Real> take_gram_scratch(Cpu& cpu, index_t dim) {
  return {cpu.workspace().take<Real>(gram_tile * padded(dim)), cpu.workspace().take<Real>(dim * padded(dim))};
}

/// gram += sum of weights[i] rows[i] rows[i]^T, lower triangle, for up to gram_tile rows of length ld = padded(dim),
/// zero from dim on. gram [dim][dim]. O(count dim^2).
template <class Real>
void add_gram(Isa isa, const Real* rows, index_t count, index_t dim, const Real* weights, const GramScratch<Real>& w,
              double* gram) {
  const index_t ld = padded(dim);
  for (index_t i = 0; i < count; ++i) {
    const Real weight = weights[i];
    const Real* DECANT_RESTRICT const from = rows + i * ld;
    Real* DECANT_RESTRICT const to = w.weighted + i * ld;
    for (index_t d = 0; d < ld; d += 16) {  // in sixteens, so that -O2 vectorises it
      for (int l = 0; l < 16; ++l) to[d + l] = weight * from[d + l];
    }
  }
  for (index_t first = 0; first < dim; first += 32) {  // these rows of the triangle reach up to column first + 31
    const index_t height = first + 32 < dim ? 32 : dim - first;
    const index_t width = padded(first + height);
    product<Real>(
        isa, Product<Real>{height, width, count, w.weighted + first, 1, ld, rows, ld, w.sum + first * ld, ld, false});
  }
  for (index_t a = 0; a < dim; ++a) {
    for (index_t b = 0; b <= a; ++b) gram[a * dim + b] += static_cast<double>(w.sum[a * ld + b]);
  }
}

/// Gram matrix -> what turns a row u into y = L^-1 u, as the columns of a product: out [dim][ld], out(k, r) =
/// (L^-1)(r, k), zero for r < k and from dim on. Adds the ridge. False when the matrix is not positive definite, which
/// takes NaN or infinity. Spoils gram. inverse: scratch [dim]. O(dim^3).
template <class Real>
[[nodiscard]] bool invert_factor(double* gram, index_t dim, double ridge, double* inverse, Real* out) {
  const index_t ld = padded(dim);
  for (index_t i = 0; i < dim; ++i) gram[i * dim + i] += ridge;
  if (!cholesky(View<double, 2>(gram, dim, dim))) return false;
  for (index_t k = 0; k < dim; ++k) {  // column k of L^-1 solves L x = e_k
    for (index_t r = 0; r < ld; ++r) out[k * ld + r] = 0;
    for (index_t r = k; r < dim; ++r) {
      const double* const row = gram + r * dim;
      double sum = r == k ? 1.0 : 0.0;
      for (index_t j = k; j < r; ++j) sum -= row[j] * inverse[j];
      inverse[r] = sum / row[r];
      out[k * ld + r] = static_cast<Real>(inverse[r]);
    }
  }
  return true;
}

/// out[i] = |L^-1 u_i|^2 = u_i^T A^-1 u_i for up to gram_tile rows. y: scratch [gram_tile][ld]; ones: ld ones.
/// O(count dim^2 / 2).
template <class Real>
void leverage_tile(Isa isa, const Real* rows, index_t count, index_t dim, const Real* inverse, const Real* ones,
                   Real* y, Real* out) {
  const index_t ld = padded(dim);
  for (index_t first = 0; first < ld;
       first += 32) {  // L^-1 is lower triangular: these need the first columns of u only
    const index_t width = first + 32 < ld ? 32 : ld - first;
    const index_t reach = first + width < dim ? first + width : dim;
    product<Real>(isa, Product<Real>{count, width, reach, rows, ld, 1, inverse + first, ld, y + first, ld, false});
  }
  for (index_t i = 0; i < count; ++i) out[i] = 0;
  add_columns<SquaredWeight>(isa, y, count, ld, ones, out);
}

}  // namespace detail

/// scores[i] = weights[i] u_i^T A^-1 u_i, A = ridge I + sum of weights[i] u_i u_i^T. rows [n, dim], weights [n] of at
/// least 0, ridge > 0. ArgumentError when A is not positive definite: the rows hold NaN or infinity, or overflow.
/// O(n dim^2 + dim^3).
template <class Real>
requires(std::is_same_v<Real, float> || std::is_same_v<Real, double>) void ridge_leverage(
    Cpu& cpu, View<const Real, 2> rows, View<const Real, 1> weights, double ridge, View<Real, 1> scores) {
  constexpr const char* where = "kv::ridge_leverage";
  require_equal(weights.extent(0), rows.extent(0), where, "weights");
  require_equal(scores.extent(0), rows.extent(0), where, "scores");
  require(ridge > 0, where, "ridge", "a positive number", ridge);
  const index_t n = rows.extent(0);
  const index_t dim = rows.extent(1);
  const index_t ld = detail::padded(dim);
  Workspace::Scope scope(cpu.workspace());
  const auto scratch = detail::take_gram_scratch<Real>(cpu, dim);
  Real* const tile = cpu.workspace().take<Real>(detail::gram_tile * ld);
  Real* const part = cpu.workspace().take<Real>(detail::gram_tile);
  Real* const inverse = cpu.workspace().take<Real>(dim * ld);
  Real* const ones = cpu.workspace().take<Real>(ld);
  double* const gram = cpu.workspace().take<double>(dim * dim);
  double* const column = cpu.workspace().take<double>(dim);
  for (index_t i = 0; i < ld; ++i) ones[i] = 1;
  for (index_t i = 0; i < dim * dim; ++i) gram[i] = 0;
  const auto load = [&](index_t first) {
    const index_t count = first + detail::gram_tile < n ? detail::gram_tile : n - first;
    for (index_t i = 0; i < count; ++i) {
      for (index_t d = 0; d < ld; ++d) tile[i * ld + d] = d < dim ? rows(first + i, d) : Real(0);
    }
    return count;
  };
  for (index_t first = 0; first < n; first += detail::gram_tile) {
    const index_t count = load(first);
    for (index_t i = 0; i < count; ++i) part[i] = weights[first + i];
    detail::add_gram(cpu.isa(), tile, count, dim, part, scratch, gram);
  }
  require(detail::invert_factor(gram, dim, ridge, column, inverse), where, "rows", "finite rows and weights",
          "a matrix that is not positive definite");
  for (index_t first = 0; first < n; first += detail::gram_tile) {
    const index_t count = load(first);
    detail::leverage_tile(cpu.isa(), tile, count, dim, inverse, ones, scratch.weighted, part);
    for (index_t i = 0; i < count; ++i) scores[first + i] = weights[first + i] * part[i];
  }
}

}  // namespace decant::kv

#endif
