// decant: PyramidKV (Cai, Zhang, Gao, et al., arXiv 2406.02069): SnapKV's scores with a budget that falls linearly from
// the first layer to the last. PyramidAllocation by default keeps the line in real numbers and rounds by largest
// remainder, so that the layers' budgets sum to exactly the total [ours]; Rounding::kvpress rounds each layer by
// itself, with kvpress's clamps, to compare with it.
#ifndef DECANT_KV_PYRAMIDKV_HPP
#define DECANT_KV_PYRAMIDKV_HPP

#include "eviction.hpp"
#include "window_attention.hpp"

namespace decant::kv {

/// Budgets on a line with mean X: the last layer gets X / beta, the first 2 X - X / beta, within what a layer protects
/// and holds. Streaming: a layer assumes that the others are as long as it is.
struct PyramidAllocation {
  enum class Rounding : std::uint8_t { exact, kvpress };

  static constexpr Scope scope = Scope::layer;
  float beta = 20.0f;
  Rounding rounding = Rounding::exact;
  index_t window = 64;  // kvpress's clamps only
  bool operator==(const PyramidAllocation&) const = default;
};

struct PyramidKV {
  index_t window = 64;
  index_t pool = 5;
  float beta = 20.0f;
  bool operator==(const PyramidKV&) const = default;
};

inline void validate(const PyramidAllocation& a) {
  require(a.beta >= 1, "kv::PyramidAllocation", "beta", "at least 1", a.beta);
  require(a.window >= 0, "kv::PyramidAllocation", "window", "at least 0", a.window);
}

namespace detail {

/// kvpress: tokens per head of one layer of n tokens, for a real-valued mean. Rounds halves to even, as Python does.
DECANT_HD inline index_t pyramid_kvpress(double mean, double beta, index_t window, index_t n, index_t layer,
                                         index_t layers) {
  const auto room = static_cast<double>(n - window);
  double low = mean / beta;
  double high = 2 * mean - low;
  if (high >= room) {
    high = room;
    low = 2 * mean - high;
  }
  const bool sane = static_cast<double>(n) >= high && high >= low && low >= static_cast<double>(window);
  if (!sane) return static_cast<index_t>(std::nearbyint(mean));
  const double step = layers > 1 ? (high - low) / static_cast<double>(layers - 1) : 0.0;
  const double down = ::decant::detail::rounded_product(static_cast<double>(layer), step);
  return static_cast<index_t>(std::nearbyint(high - down));
}

/// Ours: tokens per head of every layer, at least `least` and at most n each, layers * mean in all.
DECANT_HD inline void pyramid_exact(index_t mean, double beta, index_t least, index_t n, index_t layers, double* shares,
                                    std::int32_t* counts) {
  const auto x = static_cast<double>(mean);
  double low = x / beta > static_cast<double>(least) ? x / beta : static_cast<double>(least);
  double high = 2 * x - low;
  if (high > static_cast<double>(n)) {
    high = static_cast<double>(n);
    low = 2 * x - high;
  }
  for (index_t l = 0; l < layers; ++l) {
    const double at = layers > 1 ? static_cast<double>(l) / static_cast<double>(layers - 1) : 0.5;
    shares[l] = high - ::decant::detail::rounded_product(at, high - low);
  }
  largest_remainder(shares, layers, mean * layers, counts);
}

/// Tokens per head of one layer, whose longest head holds n tokens and protects at most `least`. Room: `layers` each.
DECANT_HD inline index_t pyramid_budget(const PyramidAllocation& a, const Budget& budget, index_t n, index_t least,
                                        index_t layer, index_t layers, double* shares, std::int32_t* all) {
  if (a.rounding == PyramidAllocation::Rounding::kvpress) {
    const double mean = budget.kind() == Budget::Kind::tokens ? static_cast<double>(budget.resolve(n))
                                                              : budget.value() * static_cast<double>(n);
    return pyramid_kvpress(mean, static_cast<double>(a.beta), a.window, n, layer, layers);
  }
  pyramid_exact(budget.resolve(n), static_cast<double>(a.beta), least, n, layers, shares, all);
  return all[layer];
}

/// What a head of `length` tokens, `kept` of them protected, keeps of its layer's budget.
DECANT_HD inline std::int32_t pyramid_count(index_t own, index_t length, index_t kept) {
  const index_t count = own < length ? own : length;
  return static_cast<std::int32_t>(count > kept ? count : kept);
}

}  // namespace detail

/// Every head of a layer gets the layer's budget; a shorter head of a ragged cache what it has. O(layers^2).
inline void allocate(Cpu& cpu, const PyramidAllocation& a, View<const ScoredLayer, 1> layers, const Budget& budget,
                     View<std::int32_t, 2> counts) {
  validate(a);
  for (index_t l = 0; l < layers.extent(0); ++l) {
    const ScoredLayer& layer = layers[l];
    index_t n = 0;
    index_t least = 0;
    for (index_t h = 0; h < layer.kv_heads(); ++h) {
      const index_t kept = detail::protected_count(layer, h);
      n = layer.length(h) > n ? layer.length(h) : n;
      least = kept > least ? kept : least;
    }
    Workspace::Scope scope(cpu.workspace());
    double* const shares = cpu.workspace().take<double>(layer.layers);
    std::int32_t* const all = cpu.workspace().take<std::int32_t>(layer.layers);
    const index_t own = detail::pyramid_budget(a, budget, n, least, layer.layer, layer.layers, shares, all);
    for (index_t h = 0; h < layer.kv_heads(); ++h) {
      counts(l, h) = detail::pyramid_count(own, layer.length(h), detail::protected_count(layer, h));
    }
  }
}

constexpr auto stages(const PyramidKV& p) {
  return Eviction{WindowAttention{.window = p.window}, AvgPool{.size = p.pool},
                  SinkRecent{.sinks = 0, .recent = p.window}, NoNormalisation{},
                  PyramidAllocation{.beta = p.beta, .window = p.window}};
}

inline void validate(const PyramidKV& p) { validate(stages(p)); }

static_assert(Allocator<PyramidAllocation, Cpu> && KVEvictionPolicy<PyramidKV, Cpu>);

}  // namespace decant::kv

#endif
