#pragma once
// Every scorer by its definition, in double, from Layer's numbers: no tiles, no order, no code in common with decant.
#include <algorithm>
#include <cmath>
#include <vector>

#include "oracle/kv_layer.hpp"

namespace oracle {

using Row = std::vector<double>;
using Table = std::vector<Row>;  // [heads][tokens]

/// Causal softmax weights of query i (of the last `queries` tokens) of query head hq, over all n tokens.
template <class T>
Row attention_weights(Layer<T>& x, index_t hq, index_t i) {
  const LayerShape& s = x.shape;
  Row a(static_cast<std::size_t>(s.n), 0.0);
  const index_t seen = s.n - s.queries + i + 1;
  double high = -1e300, total = 0;
  for (index_t j = 0; j < seen; ++j) {
    double dot = 0;
    for (index_t d = 0; d < s.key_dim; ++d) dot += x.q(hq, i, d) * x.k(hq / s.group, j, d);
    a[static_cast<std::size_t>(j)] = dot / std::sqrt(static_cast<double>(s.key_dim));
    high = std::max(high, a[static_cast<std::size_t>(j)]);
  }
  for (index_t j = 0; j < seen; ++j)
    total += a[static_cast<std::size_t>(j)] = std::exp(a[static_cast<std::size_t>(j)] - high);
  for (index_t j = 0; j < seen; ++j) a[static_cast<std::size_t>(j)] /= total;
  return a;
}

/// Per query head: the sum over the last w queries of f(weight).
template <class T, class F>
Table column_sums(Layer<T>& x, index_t w, F f) {
  const LayerShape& s = x.shape;
  Table out;
  for (index_t hq = 0; hq < s.kv_heads * s.group; ++hq) {
    Row sum(static_cast<std::size_t>(s.n), 0.0);
    for (index_t i = s.queries - w; i < s.queries; ++i) {
      const Row a = attention_weights(x, hq, i);
      for (std::size_t j = 0; j < a.size(); ++j) sum[j] += f(a[j]);
    }
    out.push_back(sum);
  }
  return out;
}

/// [query heads] -> [kv heads] by mean (0), sum (1) or max (2).
inline Table over_group(const Table& t, index_t group, int how) {
  Table out;
  for (std::size_t first = 0; first < t.size(); first += static_cast<std::size_t>(group)) {
    Row row = t[first];
    for (std::size_t a = 1; a < static_cast<std::size_t>(group); ++a) {
      for (std::size_t j = 0; j < row.size(); ++j) {
        row[j] = how == 2 ? std::max(row[j], t[first + a][j]) : row[j] + t[first + a][j];
      }
    }
    for (double& v : row) v /= how == 0 ? static_cast<double>(group) : 1.0;
    out.push_back(row);
  }
  return out;
}

/// SnapKV's: mean over the window and the group, the window's own tokens 0.
template <class T>
Table window_attention(Layer<T>& x, index_t w) {
  Table t = over_group(column_sums(x, w, [](double a) { return a; }), x.shape.group, 0);
  for (Row& row : t) {
    for (std::size_t j = 0; j < row.size(); ++j)
      row[j] = j + static_cast<std::size_t>(w) < row.size() ? row[j] / static_cast<double>(w) : 0.0;
  }
  return t;
}

template <class T>
Table key_norms(Layer<T>& x) {
  Table out;
  for (index_t h = 0; h < x.shape.kv_heads; ++h) {
    Row row;
    for (index_t j = 0; j < x.shape.n; ++j) {
      double sum = 0;
      for (index_t d = 0; d < x.shape.key_dim; ++d) sum += x.k(h, j, d) * x.k(h, j, d);
      row.push_back(std::sqrt(sum));
    }
    out.push_back(row);
  }
  return out;
}

template <class T>
Table key_diff(Layer<T>& x) {
  const LayerShape& s = x.shape;
  const Table norms = key_norms(x);
  Table out;
  for (index_t h = 0; h < s.kv_heads; ++h) {
    const Row& norm = norms[static_cast<std::size_t>(h)];
    Row mean(static_cast<std::size_t>(s.key_dim), 0.0), row;
    for (index_t j = 0; j < s.n; ++j) {
      for (index_t d = 0; d < s.key_dim; ++d) {
        mean[static_cast<std::size_t>(d)] +=
            x.k(h, j, d) / norm[static_cast<std::size_t>(j)] / static_cast<double>(s.n);
      }
    }
    double length = 0;
    for (const double m : mean) length += m * m;
    for (index_t j = 0; j < s.n; ++j) {
      double dot = 0;
      for (index_t d = 0; d < s.key_dim; ++d) dot += x.k(h, j, d) * mean[static_cast<std::size_t>(d)];
      row.push_back(-dot / norm[static_cast<std::size_t>(j)] / std::sqrt(length));
    }
    out.push_back(row);
  }
  return out;
}

/// Inverse by Gauss-Jordan with row pivoting; row-major [d][d].
inline Row inverse(Row a, std::size_t d) {
  Row b(d * d, 0.0);
  for (std::size_t i = 0; i < d; ++i) b[i * d + i] = 1;
  for (std::size_t c = 0; c < d; ++c) {
    std::size_t p = c;
    for (std::size_t r = c; r < d; ++r) p = std::abs(a[r * d + c]) > std::abs(a[p * d + c]) ? r : p;
    for (std::size_t j = 0; j < d; ++j) {
      std::swap(a[c * d + j], a[p * d + j]);
      std::swap(b[c * d + j], b[p * d + j]);
    }
    const double pivot = a[c * d + c];
    for (std::size_t j = 0; j < d; ++j) {
      a[c * d + j] /= pivot;
      b[c * d + j] /= pivot;
    }
    for (std::size_t r = 0; r < d; ++r) {
      const double f = a[r * d + c];
      if (r == c || f == 0) continue;
      for (std::size_t j = 0; j < d; ++j) {
        a[r * d + j] -= f * a[c * d + j];
        b[r * d + j] -= f * b[c * d + j];
      }
    }
  }
  return b;
}

/// log |det| by elimination.
inline double log_det(Row a, std::size_t d) {
  double sum = 0;
  for (std::size_t c = 0; c < d; ++c) {
    std::size_t p = c;
    for (std::size_t r = c; r < d; ++r) p = std::abs(a[r * d + c]) > std::abs(a[p * d + c]) ? r : p;
    for (std::size_t j = 0; j < d; ++j) std::swap(a[c * d + j], a[p * d + j]);
    sum += std::log(std::abs(a[c * d + c]));
    for (std::size_t r = c + 1; r < d; ++r) {
      const double f = a[r * d + c] / a[c * d + c];
      for (std::size_t j = c; j < d; ++j) a[r * d + j] -= f * a[c * d + j];
    }
  }
  return sum;
}

/// A = ridge I + sum of w_i u_i u_i^T, row-major.
inline Row gram(const Table& u, const Row& w, double ridge) {
  const std::size_t d = u.empty() ? 0 : u[0].size();
  Row a(d * d, 0.0);
  for (std::size_t i = 0; i < d; ++i) a[i * d + i] = ridge;
  for (std::size_t i = 0; i < u.size(); ++i) {
    for (std::size_t r = 0; r < d; ++r) {
      for (std::size_t c = 0; c < d; ++c) a[r * d + c] += w[i] * u[i][r] * u[i][c];
    }
  }
  return a;
}

inline double form(const Row& matrix, const Row& u) {
  double sum = 0;
  for (std::size_t r = 0; r < u.size(); ++r) {
    for (std::size_t c = 0; c < u.size(); ++c) sum += matrix[r * u.size() + c] * u[r] * u[c];
  }
  return sum;
}

/// The mean over positions first ... first + count - 1 of RoPE (rotate-half) applied to v.
inline Row mean_rotated(const Row& v, double theta, index_t first, index_t count) {
  const std::size_t half = v.size() / 2;
  Row out(v.size(), 0.0);
  for (index_t p = first; p < first + count; ++p) {
    for (std::size_t f = 0; f < half; ++f) {
      const double angle =
          static_cast<double>(p) * std::pow(theta, -2.0 * static_cast<double>(f) / static_cast<double>(v.size()));
      out[f] += (v[f] * std::cos(angle) - v[f + half] * std::sin(angle)) / static_cast<double>(count);
      out[f + half] += (v[f] * std::sin(angle) + v[f + half] * std::cos(angle)) / static_cast<double>(count);
    }
  }
  return out;
}

/// The mean pre-RoPE query of tokens >= sinks.
template <class T>
Row mean_query(Layer<T>& x, index_t hq, index_t sinks) {
  const LayerShape& s = x.shape;
  const index_t first = std::max<index_t>(0, sinks - (s.n - s.queries));
  Row mean(static_cast<std::size_t>(s.key_dim), 0.0);
  for (index_t i = first; i < s.queries; ++i) {
    for (index_t d = 0; d < s.key_dim; ++d)
      mean[static_cast<std::size_t>(d)] += x.q_pre(hq, i, d) / static_cast<double>(s.queries - first);
  }
  return mean;
}

/// CapKV as kvpress codes it, with the 1e-6 in both places (or, compat, inside A only). Tokens below `sinks` score 0.
template <class T>
Table cap_kv(Layer<T>& x, double tau, double ridge, index_t sinks, index_t future, bool compat = false) {
  const LayerShape& s = x.shape;
  Table per_query;
  for (index_t hq = 0; hq < s.kv_heads * s.group; ++hq) {
    const index_t h = hq / s.group;
    Row mu = mean_query(x, hq, sinks);
    if (future > 0) mu = mean_rotated(mu, 10000.0, s.n, future);
    double length = 0;
    for (const double m : mu) length += m * m;
    Table u;
    Row r, w;
    for (index_t j = sinks; j < s.n; ++j) {
      double dot = 0, norm = 0;
      Row value;
      for (index_t d = 0; d < s.key_dim; ++d) {
        dot += x.k(h, j, d) * mu[static_cast<std::size_t>(d)];
        norm += x.k(h, j, d) * x.k(h, j, d);
      }
      for (index_t d = 0; d < s.value_dim; ++d) value.push_back(x.v(h, j, d));
      u.push_back(value);
      r.push_back(dot / std::sqrt(norm * length));
    }
    const double high = *std::max_element(r.begin(), r.end());
    for (const double c : r) w.push_back(std::exp(tau * (c - high)) + 1e-6);
    const Row inv = inverse(gram(u, w, ridge), static_cast<std::size_t>(s.value_dim));
    Row row(static_cast<std::size_t>(sinks), 0.0);
    for (std::size_t i = 0; i < u.size(); ++i) row.push_back((compat ? w[i] - 1e-6 : w[i]) * form(inv, u[i]));
    per_query.push_back(row);
  }
  return over_group(per_query, s.group, 0);
}

/// The printed algorithm: log of the group's mean of exp(tau k.mu) u^T A^-1 u, with the weights in A divided by the
/// largest. mu: the mean of all post-RoPE queries.
template <class T>
Table cap_kv_paper(Layer<T>& x, double tau) {
  const LayerShape& s = x.shape;
  Table logs;
  for (index_t hq = 0; hq < s.kv_heads * s.group; ++hq) {
    Row mu(static_cast<std::size_t>(s.key_dim), 0.0), r, w, row;
    for (index_t i = 0; i < s.queries; ++i) {
      for (index_t d = 0; d < s.key_dim; ++d)
        mu[static_cast<std::size_t>(d)] += x.q(hq, i, d) / static_cast<double>(s.queries);
    }
    Table u;
    for (index_t j = 0; j < s.n; ++j) {
      double dot = 0;
      Row value;
      for (index_t d = 0; d < s.key_dim; ++d) dot += x.k(hq / s.group, j, d) * mu[static_cast<std::size_t>(d)];
      for (index_t d = 0; d < s.value_dim; ++d) value.push_back(x.v(hq / s.group, j, d));
      u.push_back(value);
      r.push_back(dot);
    }
    const double high = *std::max_element(r.begin(), r.end());
    for (const double c : r) w.push_back(std::exp(tau * (c - high)));
    const Row inv = inverse(gram(u, w, 1.0), static_cast<std::size_t>(s.value_dim));
    for (std::size_t j = 0; j < u.size(); ++j) row.push_back(tau * r[j] + std::log(form(inv, u[j])));
    logs.push_back(row);
  }
  Table out;
  for (std::size_t first = 0; first < logs.size(); first += static_cast<std::size_t>(s.group)) {
    Row row;
    for (std::size_t j = 0; j < logs[first].size(); ++j) {
      double high = -1e300, sum = 0;
      for (std::size_t a = 0; a < static_cast<std::size_t>(s.group); ++a) high = std::max(high, logs[first + a][j]);
      for (std::size_t a = 0; a < static_cast<std::size_t>(s.group); ++a) sum += std::exp(logs[first + a][j] - high);
      row.push_back(high + std::log(sum / static_cast<double>(s.group)));
    }
    out.push_back(row);
  }
  return out;
}

/// ExpectedAttention as kvpress codes it.
template <class T>
Table expected_attention(Layer<T>& x, index_t sinks, index_t future, bool covariance, bool value_norm, double eps) {
  const LayerShape& s = x.shape;
  const std::size_t d = static_cast<std::size_t>(s.key_dim);
  Table per_query;
  for (index_t hq = 0; hq < s.kv_heads * s.group; ++hq) {
    const Row mean = mean_query(x, hq, sinks);
    const index_t first = std::max<index_t>(0, sinks - (s.n - s.queries));
    Row sigma(d * d, 0.0);
    for (index_t i = first; covariance && i < s.queries; ++i) {
      for (std::size_t a = 0; a < d; ++a) {
        for (std::size_t b = 0; b < d; ++b) {
          sigma[a * d + b] += (x.q_pre(hq, i, static_cast<index_t>(a)) - mean[a]) *
                              (x.q_pre(hq, i, static_cast<index_t>(b)) - mean[b]) /
                              static_cast<double>(s.queries - first);
        }
      }
    }
    // Rbar as a matrix: its columns are the rotated unit vectors.
    Row rotation(d * d, 0.0);
    for (std::size_t c = 0; c < d; ++c) {
      Row unit(d, 0.0);
      unit[c] = 1;
      if (future > 0) unit = mean_rotated(unit, 10000.0, s.n, future);
      for (std::size_t a = 0; a < d; ++a) rotation[a * d + c] = unit[a];
    }
    Row z;
    for (index_t j = sinks; j < s.n; ++j) {
      Row k, turned(d, 0.0);  // Rbar^T k
      for (std::size_t a = 0; a < d; ++a) k.push_back(x.k(hq / s.group, j, static_cast<index_t>(a)));
      for (std::size_t c = 0; c < d; ++c) {
        for (std::size_t a = 0; a < d; ++a) turned[c] += rotation[a * d + c] * k[a];
      }
      double dot = 0;
      for (std::size_t c = 0; c < d; ++c) dot += mean[c] * turned[c];
      z.push_back(dot / std::sqrt(static_cast<double>(d)) + form(sigma, turned) / (2 * static_cast<double>(d)));
    }
    const double high = *std::max_element(z.begin(), z.end());
    double total = 0;
    for (double& v : z) total += v = std::exp(v - high);
    Row row(static_cast<std::size_t>(sinks), 0.0);
    for (const double v : z) row.push_back(v / total);
    per_query.push_back(row);
  }
  Table out = over_group(per_query, s.group, 0);
  for (index_t h = 0; h < s.kv_heads; ++h) {
    for (index_t j = sinks; j < s.n; ++j) {
      double norm = 0;
      for (index_t c = 0; c < s.value_dim; ++c) norm += x.v(h, j, c) * x.v(h, j, c);
      double& p = out[static_cast<std::size_t>(h)][static_cast<std::size_t>(j)];
      p = (p + eps) * (value_norm ? std::sqrt(norm) : 1.0);
    }
  }
  return out;
}

}  // namespace oracle
