#pragma once
// One layer's tensors with memory of their own, filled from a counter-based generator: what the tests of scorers and
// eviction policies are given.
#include <cmath>
#include <vector>

#include "decant/core/random.hpp"
#include "decant/kv/dense_kv.hpp"
#include "decant/kv/layer.hpp"

namespace oracle {

using decant::index_t;
using decant::View;

/// A standard normal number, a function of its arguments alone.
inline double normal(std::uint64_t seed, index_t i, std::uint32_t stream = 0) {
  const decant::Philox4 w = decant::Philox{seed}(static_cast<std::uint32_t>(i), stream);
  const double u = (w.word[0] + 0.5) / 4294967296.0, v = (w.word[1] + 0.5) / 4294967296.0;
  return std::sqrt(-2 * std::log(u)) * std::cos(6.283185307179586 * v);
}

struct LayerShape {
  index_t n = 40;
  index_t kv_heads = 2;
  index_t group = 3;
  index_t key_dim = 12;
  index_t value_dim = 10;
  index_t queries = 16;  // of the last so many tokens
};

template <class T = float>
struct Layer {
  LayerShape shape;
  std::vector<T> keys, values;           // [kv_heads, n, dim]
  std::vector<float> queries, pre_rope;  // [kv_heads * group, queries, key_dim]
  std::int32_t length;

  explicit Layer(const LayerShape& s, std::uint64_t seed = 1) : shape(s), length(static_cast<std::int32_t>(s.n)) {
    const auto fill = [&](auto& to, index_t count, std::uint32_t stream) {
      using E = typename std::remove_reference_t<decltype(to)>::value_type;
      for (index_t i = 0; i < count; ++i) to.push_back(E(static_cast<float>(normal(seed, i, stream))));
    };
    fill(keys, s.kv_heads * s.n * s.key_dim, 1);
    fill(values, s.kv_heads * s.n * s.value_dim, 2);
    fill(queries, s.kv_heads * s.group * s.queries * s.key_dim, 3);
    fill(pre_rope, s.kv_heads * s.group * s.queries * s.key_dim, 4);
  }

  T& key(index_t h, index_t t, index_t d) {
    return keys[static_cast<std::size_t>((h * shape.n + t) * shape.key_dim + d)];
  }
  T& value(index_t h, index_t t, index_t d) {
    return values[static_cast<std::size_t>((h * shape.n + t) * shape.value_dim + d)];
  }
  double k(index_t h, index_t t, index_t d) { return static_cast<double>(static_cast<float>(key(h, t, d))); }
  double v(index_t h, index_t t, index_t d) { return static_cast<double>(static_cast<float>(value(h, t, d))); }
  double q(index_t hq, index_t i, index_t d) const {
    return queries[static_cast<std::size_t>((hq * shape.queries + i) * shape.key_dim + d)];
  }
  double q_pre(index_t hq, index_t i, index_t d) const {
    return pre_rope[static_cast<std::size_t>((hq * shape.queries + i) * shape.key_dim + d)];
  }

  decant::kv::DenseKV<T> cache() {
    const LayerShape& s = shape;
    return {View<T, 4>(keys.data(), 1, s.kv_heads, s.n, s.key_dim),
            View<T, 4>(values.data(), 1, s.kv_heads, s.n, s.value_dim), View<std::int32_t, 1>(&length, 1)};
  }
  decant::kv::LayerView<decant::kv::DenseKV<T>> view() { return with(cache()); }

  /// The same queries over another cache.
  template <class C>
  decant::kv::LayerView<C> with(const C& c) {
    decant::kv::LayerView<C> x{c};
    x.queries = View<const float, 3>(queries.data(), shape.kv_heads * shape.group, shape.queries, shape.key_dim);
    x.queries_pre_rope =
        View<const float, 3>(pre_rope.data(), shape.kv_heads * shape.group, shape.queries, shape.key_dim);
    return x;
  }
};

}  // namespace oracle
