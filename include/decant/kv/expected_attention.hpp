// decant: ExpectedAttention (Devoto, Jeblick, Jegou, arXiv 2510.00636, and kvpress's press of that name): the attention
// that Gaussian queries like the prompt's would pay at the coming positions, times the value's norm.
//   z_j = mu'.k_j / sqrt d + k_j^T Sigma' k_j / (2 d), p = softmax(z), s_j = (mean of p over the group + eps) |v_j|
// with mu, Sigma (divided by N) of the pre-RoPE queries, turned by the average rotation of the coming positions: mu' =
// Rbar mu, Sigma' = Rbar Sigma Rbar^T, an approximation of the mean of R Sigma R^T that is the code's own.
#ifndef DECANT_KV_EXPECTED_ATTENTION_HPP
#define DECANT_KV_EXPECTED_ATTENTION_HPP

#include "../core/softmax.hpp"
#include "detail/future_query.hpp"
#include "detail/row_dots.hpp"
#include "detail/rows.hpp"
#include "eviction.hpp"
#include "ridge_leverage.hpp"

namespace decant::kv {

/// Reads x.queries_pre_rope and x.rope.
struct ExpectedAttention {
  index_t sinks = 4;       // first tokens: protected, and left out of the statistics and the softmax
  index_t future = 512;    // coming positions; 0: no rotation at all
  bool covariance = true;  // false: the mean alone
  bool value_norm = true;  // times |v_j|
  float eps = 0.0f;
  bool operator==(const ExpectedAttention&) const = default;
};

inline void validate(const ExpectedAttention& p) {
  require(p.sinks >= 0, "kv::ExpectedAttention", "sinks", "at least 0", p.sinks);
  require(p.future >= 0, "kv::ExpectedAttention", "future", "at least 0", p.future);
  require(p.eps >= 0, "kv::ExpectedAttention", "eps", "at least 0", p.eps);
}

namespace detail {

/// One query head: mu' / sqrt d and Sigma' / (2 d), ready for keys.
struct ExpectedQuery {
  float* mean;        // [key_dim]
  float* covariance;  // [key_dim][ld]
  double* moments;    // [key_dim + key_dim^2] scratch
  float* centred;     // [gram_tile][ld] scratch
  GramScratch<float> scratch;

  template <class X>
  void prepare(Isa isa, const ExpectedAttention& p, const X& x, index_t query_head,
               const MeanRotation* rotations) const {
    const View<const std::remove_cvref_t<decltype(x.queries_pre_rope(0, 0, 0))>, 2> q = x.queries_pre_rope[query_head];
    const index_t dim = q.extent(1);
    const index_t ld = padded(dim);
    const index_t first = first_query(x, q.extent(0), p.sinks);
    double* const sigma = moments + dim;
    mean_query(q, first, moments);
    for (index_t i = 0; i < dim * dim; ++i) sigma[i] = 0;
    if (p.covariance) {
      float ones[gram_tile];
      for (float& one : ones) one = 1;
      for (index_t at = first; at < q.extent(0); at += gram_tile) {
        const index_t count = at + gram_tile < q.extent(0) ? gram_tile : q.extent(0) - at;
        for (index_t i = 0; i < count; ++i) {
          const auto* const row = &q(at + i, index_t{0});
          for (index_t d = 0; d < ld; ++d) {
            centred[i * ld + d] =
                d < dim ? static_cast<float>(static_cast<double>(static_cast<float>(row[d])) - moments[d]) : 0.0f;
          }
        }
        add_gram<float>(isa, centred, count, dim, ones, scratch, sigma);
      }
      const double inverse = 1.0 / static_cast<double>(q.extent(0) - first);
      for (index_t a = 0; a < dim; ++a) {
        for (index_t b = 0; b <= a; ++b) {
          sigma[a * dim + b] *= inverse;
          sigma[b * dim + a] = sigma[a * dim + b];
        }
      }
      for (index_t i = 0; i < dim; ++i) rotate_mean(x.rope, dim, rotations, sigma + i, dim);      // Rbar Sigma
      for (index_t i = 0; i < dim; ++i) rotate_mean(x.rope, dim, rotations, sigma + i * dim, 1);  // ... Rbar^T
    }
    rotate_mean(x.rope, dim, rotations, moments, 1);
    const double d = static_cast<double>(dim);
    for (index_t a = 0; a < dim; ++a) {
      mean[a] = static_cast<float>(moments[a] / std::sqrt(d));
      for (index_t b = 0; b < ld; ++b) {
        covariance[a * ld + b] = b < dim ? static_cast<float>(sigma[a * dim + b] / (2 * d)) : 0.0f;
      }
    }
  }

  /// z of up to gram_tile keys [count][key_dim]; y: scratch [gram_tile][ld].
  void exponents(Isa isa, bool with_covariance, const float* keys, index_t count, index_t dim, float* y,
                 float* z) const {
    const index_t ld = padded(dim);
    if (with_covariance) {
      product<float>(isa, Product<float>{count, ld, dim, keys, dim, 1, covariance, ld, y, ld, false});
    }
    row_dots(isa, RowDots{keys, dim, mean, 0, count, dim, z});
    if (!with_covariance) return;
    float forms[gram_tile];
    row_dots(isa, RowDots{keys, dim, y, ld, count, dim, forms});
    for (index_t i = 0; i < count; ++i) z[i] += forms[i];
  }
};

}  // namespace detail

/// O(query_heads * n * key_dim^2), O(query_heads * n * key_dim) without the covariance.
template <class X>
void score(Cpu& cpu, const ExpectedAttention& p, const X& x, View<float, 2> scores) {
  constexpr const char* where = "kv::ExpectedAttention";
  validate(p);
  const index_t longest = x.max_length();
  if (longest == 0) return;
  const auto& queries = x.queries_pre_rope;
  require(!queries.empty(), where, "x.queries_pre_rope", "queries of the prompt", "none");
  require(longest <= p.sinks || detail::first_query(x, queries.extent(1), p.sinks) < queries.extent(1), where,
          "x.queries_pre_rope", "a query of a token that is no sink", "none");
  Workspace::Scope scope(cpu.workspace());
  Workspace& w = cpu.workspace();
  const Isa isa = cpu.isa();
  const index_t group = queries.extent(0) / x.kv_heads();
  const index_t key_dim = x.cache.key_dim();
  const index_t value_dim = x.cache.value_dim();
  const index_t ld = detail::padded(key_dim);
  const index_t wide = ld > value_dim ? ld : value_dim;
  const index_t parts = cpu.parts((longest + detail::gram_tile - 1) / detail::gram_tile, 1);
  auto* const rotations = w.template take<detail::MeanRotation>(key_dim / 2 + 1);
  detail::mean_rotations(x, p.future, rotations);
  auto* const heads = w.template take<detail::ExpectedQuery>(group);
  for (index_t a = 0; a < group; ++a) {
    heads[a] = {w.template take<float>(key_dim), w.template take<float>(key_dim * ld),
                w.template take<double>(key_dim + key_dim * key_dim), w.template take<float>(detail::gram_tile * ld),
                detail::take_gram_scratch<float>(cpu, key_dim)};
  }
  float* const z = w.template take<float>(group * longest);
  float* const tiles = w.template take<float>(parts * detail::gram_tile * wide);
  float* const products = w.template take<float>(parts * detail::gram_tile * ld);
  for (index_t h = 0; h < x.kv_heads(); ++h) {
    const index_t n = x.length(h);
    float* const out = &scores(h, index_t{0});
    for (index_t t = 0; t < n && t < p.sinks; ++t) out[t] = 0;
    if (n <= p.sinks) continue;
    const index_t free = n - p.sinks;
    const auto each_tile = [&](auto&& body) {
      cpu.parallel_ranges((free + detail::gram_tile - 1) / detail::gram_tile, 1,
                          [&](index_t begin, index_t end, index_t part) {
                            for (index_t i = begin; i < end; ++i) {
                              const index_t at = i * detail::gram_tile;
                              body(at, at + detail::gram_tile < free ? detail::gram_tile : free - at, part);
                            }
                          });
    };
    cpu.parallel_for(group, [&](index_t a) { heads[a].prepare(isa, p, x, h * group + a, rotations); });
    each_tile([&](index_t at, index_t count, index_t part) {
      float* const keys = tiles + part * detail::gram_tile * wide;
      detail::load_keys(isa, x.cache, x.sequence, h, p.sinks + at, count, keys, key_dim);
      for (index_t a = 0; a < group; ++a) {
        heads[a].exponents(isa, p.covariance, keys, count, key_dim, products + part * detail::gram_tile * ld,
                           z + a * free + at);
      }
    });
    cpu.parallel_for(group, [&](index_t a) { softmax(isa, z + a * free, free, z + a * free); });
    each_tile([&](index_t at, index_t count, index_t part) {
      float* const values = tiles + part * detail::gram_tile * wide;
      float squares[detail::gram_tile];
      for (float& square : squares) square = 1;
      if (p.value_norm) {
        detail::load_values(isa, x.cache, x.sequence, h, p.sinks + at, count, values, value_dim);
        detail::row_dots(isa, detail::RowDots{values, value_dim, values, value_dim, count, value_dim, squares});
      }
      for (index_t i = 0; i < count; ++i) {
        float sum = 0;
        for (index_t a = 0; a < group; ++a) sum += z[a * free + at + i];
        out[p.sinks + at + i] = (sum / static_cast<float>(group) + p.eps) * std::sqrt(squares[i]);
      }
    });
  }
}

constexpr auto stages(const ExpectedAttention& p) {
  return Eviction{p, NoSmoothing{}, SinkRecent{.sinks = p.sinks, .recent = 0}};
}

static_assert(KVEvictionPolicy<ExpectedAttention, Cpu>);

}  // namespace decant::kv

#endif
