// decant: GreedyLogDet, the exact reference of CapKV (arXiv 2604.25975) [ours]: one token after another, always the one
// that adds most to log det(ridge I + sum of w_i u_i u_i^T) over the chosen, by Sherman-Morrison updates: at least
// 1 - 1/e of the best subset's gain. Unlike one shot of leverage, it sees duplicates. In double throughout; every sum
// is of one order and no product is fused with it, so that the device chooses the same rows (greedy_log_det.cuh).
#ifndef DECANT_KV_GREEDY_LOG_DET_HPP
#define DECANT_KV_GREEDY_LOG_DET_HPP

#include "../core/detail/rounded.hpp"
#include "capkv.hpp"
#include "eviction.hpp"

namespace decant::kv {

/// The selector: scores are the weights w_i, u_i the values. Tokens that are protected are chosen first.
struct GreedyLogDet {
  float ridge = 1.0f;
  bool operator==(const GreedyLogDet&) const = default;
};

/// CapKV with its subset chosen greedily; weights are the mean of CapKV's (Mode::code) over the group.
struct GreedyCapKV {
  CapKV weights{};
  bool operator==(const GreedyCapKV&) const = default;
};

inline void validate(const GreedyLogDet& s) {
  require(s.ridge > 0, "kv::GreedyLogDet", "ridge", "a positive number", s.ridge);
}
inline void validate(const GreedyCapKV& p) {
  validate(p.weights);
  require(p.weights.mode == CapKV::Mode::code, "kv::GreedyCapKV", "weights.mode", "code", "paper");
}

namespace detail {

/// What a row adds to the determinant, as it is ranked: NaN is last, as -inf.
DECANT_HD inline double greedy_value(double weight, double gain) {
  const double value = weight * gain;
  return value == value ? value : -__builtin_huge_val();
}

/// What stands before z z^T in the update by a row.
DECANT_HD inline double greedy_factor(double weight, double gain) {
  return weight / ::decant::detail::add_product(1, weight, gain);
}

/// x - factor a b, as gains and the inverse are updated.
DECANT_HD inline double greedy_update(double x, double factor, double a, double b) {
  return x - ::decant::detail::rounded_product(factor * a, b);
}

}  // namespace detail

/// Marks `count` of the rows as chosen, those that come in marked included (at most count of them). rows [n, dim],
/// weights [n] of at least 0 (negative or NaN: as 0), ridge > 0. Ties go to the lower row; a row that adds NaN comes
/// last. O(count * n * dim).
inline void greedy_log_det(Cpu& cpu, View<const double, 2> rows, View<const double, 1> weights, double ridge,
                           index_t count, View<std::uint8_t, 1> chosen) {
  constexpr const char* where = "kv::greedy_log_det";
  const index_t n = rows.extent(0);
  const index_t dim = rows.extent(1);
  require_equal(weights.extent(0), n, where, "weights");
  require_equal(chosen.extent(0), n, where, "chosen");
  require(ridge > 0, where, "ridge", "a positive number", ridge);
  index_t marked = 0;
  for (index_t i = 0; i < n; ++i) marked += chosen[i] != 0;
  require(
      count >= marked && count <= n, where, "count",
      [&] { return std::to_string(marked) + " to " + std::to_string(n); }, count);
  Workspace::Scope scope(cpu.workspace());
  double* const inverse = cpu.workspace().take<double>(dim * dim);  // of the chosen rows' matrix
  double* const gain = cpu.workspace().take<double>(n);             // u_i^T inverse u_i
  double* const z = cpu.workspace().take<double>(dim);
  for (index_t i = 0; i < dim * dim; ++i) inverse[i] = i % (dim + 1) == 0 ? 1.0 / ridge : 0.0;
  for (index_t i = 0; i < n; ++i) {
    gain[i] = 0;
    for (index_t d = 0; d < dim; ++d) gain[i] += rows(i, d) * rows(i, d) / ridge;
  }
  const auto weight = [&](index_t i) { return weights[i] > 0 ? weights[i] : 0.0; };
  const auto add = [&](index_t j) {
    for (index_t a = 0; a < dim; ++a) {
      z[a] = 0;
      for (index_t b = 0; b < dim; ++b) z[a] = ::decant::detail::add_product(z[a], inverse[a * dim + b], rows(j, b));
    }
    const double factor = detail::greedy_factor(weight(j), gain[j]);
    for (index_t i = 0; i < n; ++i) {
      double product = 0;
      for (index_t d = 0; d < dim; ++d) product = ::decant::detail::add_product(product, rows(i, d), z[d]);
      gain[i] = detail::greedy_update(gain[i], factor, product, product);
    }
    for (index_t a = 0; a < dim; ++a) {
      for (index_t b = 0; b < dim; ++b) {
        inverse[a * dim + b] = detail::greedy_update(inverse[a * dim + b], factor, z[a], z[b]);
      }
    }
  };
  for (index_t i = 0; i < n; ++i) {
    if (chosen[i]) add(i);
  }
  for (; marked < count; ++marked) {
    index_t best = -1;
    double highest = 0;
    for (index_t i = 0; i < n; ++i) {
      if (chosen[i]) continue;
      const double value = detail::greedy_value(weight(i), gain[i]);
      if (best >= 0 && !(value > highest)) continue;
      best = i;
      highest = value;
    }
    chosen[best] = 1;
    add(best);
  }
}

/// O(kv_heads * count * n * value_dim); scratch 8 bytes per token and value dim.
template <class X>
void choose(Cpu& cpu, const GreedyLogDet& s, const X& x, const ScoredLayer& layer, View<const std::int32_t, 1> counts,
            KeptView kept) {
  validate(s);
  const index_t dim = x.cache.value_dim();
  for (index_t h = 0; h < layer.kv_heads(); ++h) {
    Workspace::Scope scope(cpu.workspace());
    const index_t n = layer.length(h);
    const auto rows = cpu.workspace().template take_view<double>(n, dim);
    const auto weights = cpu.workspace().template take_view<double>(n);
    const auto chosen = cpu.workspace().template take_view<std::uint8_t>(n);
    float* const row = cpu.workspace().template take<float>(dim);
    for (index_t t = 0; t < n; ++t) {
      load_row(x.cache.value(x.sequence, h, t), dim, row);
      for (index_t d = 0; d < dim; ++d) rows(t, d) = static_cast<double>(row[d]);
      weights[t] = static_cast<double>(layer.scores(h, t));
      chosen[t] = layer.keep(h, t);
    }
    greedy_log_det(cpu, rows, weights, static_cast<double>(s.ridge), counts[h], chosen);
    index_t at = 0;
    for (index_t t = 0; t < n; ++t) {
      if (chosen[t]) kept.indices(h, at++) = static_cast<std::int32_t>(t);
    }
    kept.counts[h] = counts[h];
  }
}

/// The mean weight over the group.
template <class X>
void score(Cpu& cpu, const GreedyCapKV& p, const X& x, View<float, 2> scores) {
  validate(p);
  Workspace::Scope scope(cpu.workspace());
  detail::each_cap_head(cpu, p.weights, x, scores, 0.0f, [&](const detail::CapHead<X>& head) {
    for (index_t tile = 0; tile < head.tiles(); ++tile) {
      for (index_t a = 0; a < head.group; ++a) {
        float weights[detail::gram_tile];
        head.weights(tile, a, weights);
        for (index_t i = 0; i < head.count(tile); ++i) {
          scores(head.head, head.first(tile) + i) += weights[i] / static_cast<float>(head.group);
        }
      }
    }
  });
}

constexpr auto stages(const GreedyCapKV& p) {
  return Eviction{p,
                  NoSmoothing{},
                  SinkRecent{.sinks = p.weights.sinks, .recent = 0},
                  NoNormalisation{},
                  Uniform{},
                  GreedyLogDet{.ridge = p.weights.ridge}};
}

static_assert(KVEvictionPolicy<GreedyCapKV, Cpu>);

}  // namespace decant::kv

#endif
