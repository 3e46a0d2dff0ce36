// decant: BackwardLOO, the quality ceiling for short sequences [ours]: starting from all tokens, evict the one without
// which the attention outputs of the last queries stay closest to those over the whole cache, renormalise, and repeat.
// Removing token j moves an output o by exactly a_j / (1 - a_j) (o - v_j), so every step is exact; the sequence of
// steps is greedy. In double; at most 4096 tokens. Measuring from the whole cache's outputs matters: measured from the
// step before, many small moves in one direction add up unseen. Sums are of one order, no product is fused with them,
// and the exponential is our own, so that the device has the same costs, to the bit (backward_loo.cuh).
#ifndef DECANT_KV_BACKWARD_LOO_HPP
#define DECANT_KV_BACKWARD_LOO_HPP

#include <cmath>

#include "../core/bits.hpp"
#include "../core/detail/rounded.hpp"
#include "eviction.hpp"
#include "window_attention.hpp"

namespace decant::kv {

/// window: how many queries look; their tokens are protected. Reads x.queries. As a scorer: the squared change of the
/// outputs, summed over queries and the group, when the token alone is evicted.
struct BackwardLOO {
  static constexpr index_t max_tokens = 4096;
  index_t window = 32;
  bool operator==(const BackwardLOO&) const = default;
};

inline void validate(const BackwardLOO& p) {
  require(p.window >= 1, "kv::BackwardLOO", "window", "at least 1", p.window);
}

namespace detail {

/// e^x for x <= 0 within 2 ulp, the same bits everywhere; 0 below -700; NaN stays NaN.
DECANT_HD inline double loo_exp(double x) {
  if (!(x >= -700)) return x < -700 ? 0.0 : x;
  // x = n ln 2 + r with |r| <= ln 2 / 2, and the series of e^r.
  constexpr double shift = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer
  const double n = ::decant::detail::add_product(shift, x, 1.4426950408889634) - shift;
  const double high = x - ::decant::detail::rounded_product(n, 6.93147180369123816490e-01);  // exact: 33 bits of ln 2
  const double r = high - ::decant::detail::rounded_product(n, 1.90821492927058770002e-10);
  double term = 1;
  for (int k = 13; k >= 1; --k) term = ::decant::detail::add_product(1, r / k, term);
  return term * bit_cast<double>((static_cast<std::int64_t>(n) + 1023) << 52);
}

/// What is known of one query's output o and of o*, its output over the whole cache.
struct LooQuery {
  double output;   // |o|^2
  double overlap;  // o . o*
  double length;   // |o*|^2
};

/// |o without t - o*|^2, of a token t with weight a below 1, product o . v, target o* . v, square |v|^2.
DECANT_HD inline double loo_change(const LooQuery& q, double a, double product, double target, double square) {
  const double f = a / (1 - a);
  const double drift = q.output - 2 * q.overlap + q.length;      // |o - o*|^2
  const double along = q.output - q.overlap - product + target;  // (o - o*).(o - v)
  const double distance = q.output - 2 * product + square;       // |o - v|^2
  const double moved = ::decant::detail::add_product(drift, 2 * f, along);
  return ::decant::detail::add_product(moved, f * f, distance);
}

/// The query without that token, f = a / (1 - a).
DECANT_HD inline LooQuery loo_without(const LooQuery& q, double f, double product, double target, double square) {
  const double own = ::decant::detail::rounded_product((1 + f) * (1 + f), q.output);
  const double less = own - ::decant::detail::rounded_product(2 * f * (1 + f), product);
  return {::decant::detail::add_product(less, f * f, square),
          ::decant::detail::add_product(q.overlap, f, q.overlap - target), q.length};
}

/// A cost as evictions are ranked by it: NaN, a score that is NaN, is the first to go.
DECANT_HD inline double loo_rank(double cost) {
  return cost == cost ? cost : -__builtin_huge_val();
}

/// Attention of the group's queries over one head's remaining tokens, and what each token's eviction would cost.
struct LooHead {
  index_t n;
  index_t dim;
  index_t rows;       // queries times heads of the group
  double* values;     // [n][dim]
  double* squares;    // [n] |v|^2
  double* weights;    // [rows][n]
  double* products;   // [rows][n] o_q . v_j
  double* targets;    // [rows][n] o*_q . v_j
  LooQuery* queries;  // [rows]
  double* with_gone;  // [n] v_gone . v_j

  static LooHead take(Cpu& cpu, index_t n, index_t dim, index_t rows) {
    Workspace& w = cpu.workspace();
    return {n,
            dim,
            rows,
            w.take<double>(n * dim),
            w.take<double>(n),
            w.take<double>(rows * n),
            w.take<double>(rows * n),
            w.take<double>(rows * n),
            w.take<LooQuery>(rows),
            w.take<double>(n)};
  }

  DECANT_HD static double dot(const double* a, const double* b, index_t n) {
    double sum = 0;
    for (index_t i = 0; i < n; ++i) sum = ::decant::detail::add_product(sum, a[i], b[i]);
    return sum;
  }

  /// Softmax of every query, then the outputs. row: scratch [the wider dim]; output: scratch [dim].
  template <class X>
  void prepare(const X& x, index_t head, index_t window, float* row, double* output) const {
    const index_t key_dim = x.cache.key_dim();
    const index_t group = rows / window;
    for (index_t t = 0; t < n; ++t) {
      load_row(x.cache.value(x.sequence, head, t), dim, row);
      for (index_t d = 0; d < dim; ++d) values[t * dim + d] = static_cast<double>(row[d]);
      squares[t] = dot(values + t * dim, values + t * dim, dim);
      load_row(x.cache.key(x.sequence, head, t), key_dim, row);
      for (index_t r = 0; r < rows; ++r) {
        const index_t i = r / group;
        const index_t column = x.queries.extent(1) - window + i;
        double product = 0;
        for (index_t d = 0; d < key_dim; ++d) {
          const auto q = static_cast<double>(static_cast<float>(x.queries(head * group + r % group, column, d)));
          product = ::decant::detail::add_product(product, q, static_cast<double>(row[d]));
        }
        weights[r * n + t] =
            t <= n - window + i ? product / std::sqrt(static_cast<double>(key_dim)) : -__builtin_huge_val();
      }
    }
    for (index_t r = 0; r < rows; ++r) {
      double* const a = weights + r * n;
      double top = a[0];
      for (index_t t = 1; t < n; ++t) top = a[t] > top ? a[t] : top;
      double total = 0;
      for (index_t t = 0; t < n; ++t) total += a[t] = loo_exp(a[t] - top);
      for (index_t d = 0; d < dim; ++d) output[d] = 0;
      for (index_t t = 0; t < n; ++t) {
        a[t] /= total;
        for (index_t d = 0; d < dim; ++d) {
          output[d] = ::decant::detail::add_product(output[d], a[t], values[t * dim + d]);
        }
      }
      const double square = dot(output, output, dim);
      queries[r] = {square, square, square};
      for (index_t t = 0; t < n; ++t) {
        products[r * n + t] = targets[r * n + t] = dot(output, values + t * dim, dim);
      }
    }
  }

  /// The sum over queries of |o without t - o*|^2; +inf when a query would see nothing. NaN stays NaN.
  double cost(index_t t) const {
    double sum = 0;
    for (index_t r = 0; r < rows; ++r) {
      const double a = weights[r * n + t];
      if (a >= 1) return __builtin_huge_val();
      sum += loo_change(queries[r], a, products[r * n + t], targets[r * n + t], squares[t]);
    }
    return sum;
  }

  /// Takes token `gone` out and renormalises.
  void evict(index_t gone) const {
    for (index_t t = 0; t < n; ++t) with_gone[t] = dot(values + gone * dim, values + t * dim, dim);
    for (index_t r = 0; r < rows; ++r) {
      double* const a = weights + r * n;
      double* const p = products + r * n;
      if (a[gone] >= 1) continue;  // the query's last token: it has no output any more
      const double f = a[gone] / (1 - a[gone]);
      const double scale = 1 / (1 - a[gone]);
      queries[r] = loo_without(queries[r], f, p[gone], targets[r * n + gone], squares[gone]);
      for (index_t t = 0; t < n; ++t) {
        p[t] = ::decant::detail::add_product(p[t], f, p[t] - with_gone[t]);
        a[t] *= scale;
      }
      a[gone] = 0;
    }
  }
};

template <class X, class Body>
void each_loo_head(Cpu& cpu, const BackwardLOO& p, const X& x, Body body) {
  const index_t longest = x.max_length();
  require(
      longest <= BackwardLOO::max_tokens, "kv::BackwardLOO", "x",
      [] { return "at most " + std::to_string(BackwardLOO::max_tokens) + " tokens"; }, longest);
  if (longest == 0) return;
  require_queries(x, p.window < longest ? p.window : longest, "kv::BackwardLOO");
  const index_t dim = x.cache.value_dim();
  const index_t key_dim = x.cache.key_dim();
  const index_t group = x.queries.extent(0) / x.kv_heads();
  for (index_t h = 0; h < x.kv_heads(); ++h) {
    const index_t n = x.length(h);
    if (n == 0) continue;
    Workspace::Scope scope(cpu.workspace());
    const index_t window = p.window < n ? p.window : n;
    const LooHead head = LooHead::take(cpu, n, dim, window * group);
    head.prepare(x, h, window, cpu.workspace().template take<float>(dim > key_dim ? dim : key_dim),
                 cpu.workspace().template take<double>(dim));
    body(h, head);
  }
}

}  // namespace detail

/// O(query_heads * window * n * key_dim).
template <class X>
void score(Cpu& cpu, const BackwardLOO& p, const X& x, View<float, 2> scores) {
  validate(p);
  detail::each_loo_head(cpu, p, x, [&](index_t h, const detail::LooHead& head) {
    for (index_t t = 0; t < head.n; ++t) scores(h, t) = static_cast<float>(head.cost(t));
  });
}

/// The selector: ignores the scores that came. O(kv_heads * n * evicted * (window * group + value_dim)).
template <class X>
void choose(Cpu& cpu, const BackwardLOO& p, const X& x, const ScoredLayer& layer, View<const std::int32_t, 1> counts,
            KeptView kept) {
  validate(p);
  detail::each_loo_head(cpu, p, x, [&](index_t h, const detail::LooHead& head) {
    std::uint8_t* const gone = cpu.workspace().template take<std::uint8_t>(head.n);
    for (index_t t = 0; t < head.n; ++t) gone[t] = 0;
    for (index_t left = head.n; left > counts[h]; --left) {
      index_t best = -1;
      double lowest = 0;
      for (index_t t = head.n - 1; t >= 0; --t) {  // of equal ones the last: ties are kept from the front
        if (gone[t] || layer.keep(h, t)) continue;
        const double cost = detail::loo_rank(head.cost(t));
        if (best < 0 || cost < lowest) {
          best = t;
          lowest = cost;
        }
      }
      gone[best] = 1;
      head.evict(best);
    }
    index_t at = 0;
    for (index_t t = 0; t < head.n; ++t) {
      if (!gone[t]) kept.indices(h, at++) = static_cast<std::int32_t>(t);
    }
  });
  for (index_t h = 0; h < layer.kv_heads(); ++h) kept.counts[h] = counts[h];
}

constexpr auto stages(const BackwardLOO& p) {
  return Eviction{p, NoSmoothing{}, SinkRecent{.sinks = 0, .recent = p.window}, NoNormalisation{}, Uniform{}, p};
}

static_assert(KVEvictionPolicy<BackwardLOO, Cpu>);

}  // namespace decant::kv

#endif
