#pragma once
// SANTA's sampler by itself: logits in, the weight of every key out, without a cache, so that tests choose the
// probabilities. Exponentials are the same on every path here, so the draws must be too.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "decant/attention/santa.hpp"
#include "problem.hpp"

namespace attention_test {

using decant::attention::Santa;
using decant::attention::SantaScheme;

inline const SantaScheme all_schemes[] = {
    SantaScheme::plain, SantaScheme::stratified, SantaScheme::systematic,          SantaScheme::flash,
    SantaScheme::prop,  SantaScheme::prop_exact, SantaScheme::threshold_systematic};

/// Logits [heads][n] of one group.
struct Sampling {
  using Logits = std::vector<std::vector<float>>;

  Santa santa;
  index_t n, group, blocks, tile;
  std::vector<float> exponentials, tops;
  std::vector<std::byte> memory;
  decant::attention::detail::SantaMemory m;
  decant::attention::detail::SantaSampler sampler;

  Sampling(const Santa& a, const Logits& logits, decant::Isa isa = decant::best_isa())
      : santa(a),
        n(static_cast<index_t>(logits[0].size())),
        group(static_cast<index_t>(logits.size())),
        blocks((n + 63) / 64),
        tile(decant::attention::detail::santa_tile(a, n)),
        memory(at(layout(nullptr) + 64)),
        m(placed()),
        sampler(santa, isa, group) {
    for (index_t b = 0; b < blocks; ++b)
      for (index_t g = 0; g < group; ++g) {
        float top = -infinity;
        for (index_t j = b * 64; j < std::min(n, b * 64 + 64); ++j) top = std::max(top, logits[at(g)][at(j)]);
        tops.push_back(top);
        for (index_t j = b * 64; j < b * 64 + 64; ++j) {
          const bool seen = j < n && logits[at(g)][at(j)] != -infinity;
          exponentials.push_back(seen ? std::exp(logits[at(g)][at(j)] - top) : 0.0f);
        }
      }
  }
  Sampling(const Sampling&) = delete;

  index_t layout(decant::attention::detail::SantaMemory* to) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    return decant::attention::detail::SantaMemory::layout(santa, group, blocks, tile,
                                                          memory.data() + (64 - address % 64) % 64, to);
  }
  decant::attention::detail::SantaMemory placed() {
    decant::attention::detail::SantaMemory to{};
    layout(&to);
    return to;
  }

  struct Row {
    index_t head, key;
    float weight;
    bool operator==(const Row&) const = default;
  };
  struct Rows {
    std::vector<Row> rows;
    void add(index_t head, index_t key, float weight) { rows.push_back({head, key, weight}); }
  };

  /// The rows of one draw, in the order in which they are named.
  std::vector<Row> rows(std::uint32_t step, std::uint32_t request = 0) {
    std::copy(exponentials.begin(), exponentials.end(), m.w);
    std::copy(tops.begin(), tops.end(), m.top);
    sampler.begin(m, {0, blocks, tile, step, request, 0});
    Rows r;
    sampler.each(r);
    return r.rows;
  }
  /// The same as a weight for each key of one head; a row named twice is an error that shows as NaN.
  std::vector<double> weights(std::uint32_t step, index_t head = 0) {
    std::vector<double> w(at(n), 0.0);
    for (const Row& r : rows(step))
      if (r.head == head) w[at(r.key)] = w[at(r.key)] == 0 ? static_cast<double>(r.weight) : std::nan("");
    return w;
  }
  /// After a draw: the integer weight of a key.
  std::int64_t weight(index_t key, index_t head = 0) const {
    const index_t at_block = key / 64 * group + head;
    return decant::attention::detail::santa_weight(m.w[at_block * 64 + key % 64], m.top[at_block]);
  }
  double mass(index_t head = 0) const { return static_cast<double>(m.heads[head].mass); }
};

inline std::vector<double> softmax_of(const std::vector<float>& logits) {
  std::vector<double> p;
  double high = -std::numeric_limits<double>::infinity(), total = 0;
  for (const float x : logits) high = std::max(high, static_cast<double>(x));
  for (const float x : logits) p.push_back(std::exp(static_cast<double>(x) - high));
  for (const double x : p) total += x;
  for (double& x : p) x /= total;
  return p;
}

/// Values [n][dim], with means that differ from tile to tile, as neighbouring tokens' do.
struct Values {
  index_t n, dim;
  std::vector<float> v;

  Values(index_t n_, index_t dim_, unsigned seed = 11) : n(n_), dim(dim_), v(normal(n_ * dim_, seed)) {
    const std::vector<float> shared = normal((n / 32 + 1) * dim, seed + 1);
    for (index_t i = 0; i < n; ++i)
      for (index_t d = 0; d < dim; ++d) v[at(i * dim + d)] += shared[at(i / 32 * dim + d)];
  }
  std::vector<double> sum(const std::vector<double>& w) const {
    std::vector<double> o(at(dim), 0.0);
    for (index_t i = 0; i < n; ++i)
      if (w[at(i)] != 0)
        for (index_t d = 0; d < dim; ++d) o[at(d)] += w[at(i)] * static_cast<double>(v[at(i * dim + d)]);
    return o;
  }
  double square(index_t i) const {
    double s = 0;
    for (index_t d = 0; d < dim; ++d) s += std::pow(static_cast<double>(v[at(i * dim + d)]), 2);
    return s;
  }
};

inline double square_distance(const std::vector<double>& a, const std::vector<double>& b) {
  double s = 0;
  for (std::size_t i = 0; i < a.size(); ++i) s += (a[i] - b[i]) * (a[i] - b[i]);
  return s;
}

}  // namespace attention_test
