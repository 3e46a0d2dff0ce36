// decant: the information capacity of a linear-Gaussian surrogate of attention, exact, in double (CapKV, arXiv
// 2604.25975): Y = U_C K_C q + e with q ~ N(mu, Lambda), e ~ N(0, sigma^2 I) carries I(q; Y) = 1/2 log det(I + U K
// Lambda K^T U^T / sigma^2) nats, whatever mu. And the paper's three diagnostics. Formed in key_dim x key_dim by
// Sylvester's identity. Diagnostics, not hot calls.
#ifndef DECANT_KV_CAPACITY_HPP
#define DECANT_KV_CAPACITY_HPP

#include "../core/cpu.hpp"
#include "../core/math.hpp"

namespace decant::kv {

/// Natural logarithms. k: log det(I + K^T K), u: log det(I + U^T U), ku: log det(I + U K K^T U^T), over the subset.
struct CapacityProxies {
  double k = 0;
  double u = 0;
  double ku = 0;
};

namespace detail {

inline void validate_capacity(const View<const double, 2>& keys, const View<const double, 2>& outputs,
                              const View<const std::int32_t, 1>& subset, const char* where) {
  require_equal(outputs.extent(0), keys.extent(0), where, "outputs");
  for (index_t i = 0; i < subset.extent(0); ++i) {
    require(
        subset[i] >= 0 && subset[i] < keys.extent(0), where, "subset",
        [&] { return "indices below " + std::to_string(keys.extent(0)); }, subset[i]);
  }
}

/// log det(I + sum over the subset of a_i a_i^T). gram: scratch [dim^2].
inline double log_det_gram(const View<const double, 2>& a, const View<const std::int32_t, 1>& subset, double* gram) {
  const index_t dim = a.extent(1);
  for (index_t i = 0; i < dim * dim; ++i) gram[i] = i % (dim + 1) == 0 ? 1.0 : 0.0;
  for (index_t i = 0; i < subset.extent(0); ++i) {
    for (index_t r = 0; r < dim; ++r) {
      for (index_t c = 0; c <= r; ++c) gram[r * dim + c] += a(subset[i], r) * a(subset[i], c);
    }
  }
  const View<double, 2> m(gram, dim, dim);
  return cholesky(m) ? log_det(m) : __builtin_nan("");
}

/// log det(I + T^T M^T M T / sigma2), M = sum over the subset of u_i k_i^T [C, d], T [d, d] (null: I).
inline double log_det_product(Cpu& cpu, const View<const double, 2>& keys, const View<const double, 2>& outputs,
                              const View<const std::int32_t, 1>& subset, const double* t, double sigma2) {
  const index_t d = keys.extent(1);
  const index_t c = outputs.extent(1);
  Workspace::Scope scope(cpu.workspace());
  const auto m = cpu.workspace().take_view<double>(c, d);
  const auto mt = cpu.workspace().take_view<double>(c, d);
  const auto gram = cpu.workspace().take_view<double>(d, d);
  for (index_t a = 0; a < c; ++a) {
    for (index_t b = 0; b < d; ++b) {
      m(a, b) = 0;
      for (index_t i = 0; i < subset.extent(0); ++i) m(a, b) += outputs(subset[i], a) * keys(subset[i], b);
    }
  }
  for (index_t a = 0; a < c; ++a) {
    for (index_t b = 0; b < d; ++b) {
      mt(a, b) = t ? 0 : m(a, b);
      for (index_t k = 0; t && k < d; ++k) mt(a, b) += m(a, k) * t[k * d + b];
    }
  }
  for (index_t a = 0; a < d; ++a) {
    for (index_t b = 0; b <= a; ++b) {
      gram(a, b) = a == b ? 1.0 : 0.0;
      for (index_t k = 0; k < c; ++k) gram(a, b) += mt(k, a) * mt(k, b) / sigma2;
    }
  }
  return cholesky(gram) ? log_det(gram) : __builtin_nan("");
}

}  // namespace detail

/// keys [n, d], outputs [n, C] (W_o v_i, or the values themselves), subset: the kept tokens. NaN in, NaN out.
/// O(|subset| (d^2 + C^2 + C d) + d^3 + C^3).
inline CapacityProxies capacity_proxies(Cpu& cpu, View<const double, 2> keys, View<const double, 2> outputs,
                                        View<const std::int32_t, 1> subset) {
  detail::validate_capacity(keys, outputs, subset, "kv::capacity_proxies");
  Workspace::Scope scope(cpu.workspace());
  const index_t wide = keys.extent(1) > outputs.extent(1) ? keys.extent(1) : outputs.extent(1);
  double* const gram = cpu.workspace().take<double>(wide * wide);
  CapacityProxies p;
  p.k = detail::log_det_gram(keys, subset, gram);
  p.u = detail::log_det_gram(outputs, subset, gram);
  p.ku = detail::log_det_product(cpu, keys, outputs, subset, nullptr, 1.0);
  return p;
}

/// I(q; Y | subset) in nats. covariance: Lambda [d, d], symmetric positive definite (ArgumentError if not); sigma2 > 0.
inline double surrogate_capacity(Cpu& cpu, View<const double, 2> keys, View<const double, 2> outputs,
                                 View<const double, 2> covariance, double sigma2, View<const std::int32_t, 1> subset) {
  constexpr const char* where = "kv::surrogate_capacity";
  detail::validate_capacity(keys, outputs, subset, where);
  const index_t d = keys.extent(1);
  require_equal(covariance.extent(0), d, where, "covariance");
  require_equal(covariance.extent(1), d, where, "covariance");
  require(sigma2 > 0, where, "sigma2", "a positive number", sigma2);
  Workspace::Scope scope(cpu.workspace());
  const auto root = cpu.workspace().take_view<double>(d, d);
  for (index_t a = 0; a < d; ++a) {
    for (index_t b = 0; b < d; ++b) root(a, b) = covariance(a, b);
  }
  require(cholesky(root), where, "covariance", "a positive definite matrix", "another");
  for (index_t a = 0; a < d; ++a) {
    for (index_t b = a + 1; b < d; ++b) root(a, b) = 0;
  }
  return 0.5 * detail::log_det_product(cpu, keys, outputs, subset, root.data(), sigma2);
}

}  // namespace decant::kv

#endif
