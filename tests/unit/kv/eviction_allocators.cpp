// Budgets: totals to the token, the published numbers, the flat ranking against brute force, and both modes of
// select().
#include <algorithm>
#include <numeric>

#include "catch_compat.hpp"
#include "decant/kv/policies.hpp"
#include "decant/kv/ragged_kv.hpp"
#include "oracle/kv_layer.hpp"

namespace {

using decant::Cpu;
using decant::index_t;
using decant::View;
using oracle::Layer;
namespace kv = decant::kv;

/// Scored layers with memory of their own.
struct Scored {
  index_t heads, n;
  std::vector<float> scores;
  std::vector<std::uint8_t> keep;
  std::vector<std::int32_t> lengths;
  index_t layer = 0, layers = 1;

  Scored(index_t h, index_t length, std::uint64_t seed)
      : heads(h),
        n(length),
        keep(static_cast<std::size_t>(h * length), 0),
        lengths(static_cast<std::size_t>(h), static_cast<std::int32_t>(length)) {
    for (index_t i = 0; i < h * length; ++i) scores.push_back(std::abs(static_cast<float>(oracle::normal(seed, i))));
  }
  kv::ScoredLayer view() {
    kv::ScoredLayer v;
    v.scores = View<float, 2>(scores.data(), heads, n);
    v.keep = View<std::uint8_t, 2>(keep.data(), heads, n);
    v.lengths = lengths;
    v.layer = layer;
    v.layers = layers;
    return v;
  }
};

template <class A>
std::vector<std::int32_t> allocated(const A& allocator, std::vector<Scored>& layers, const kv::Budget& budget) {
  Cpu cpu;
  std::vector<kv::ScoredLayer> views;
  for (Scored& s : layers) views.push_back(s.view());
  std::vector<std::int32_t> counts(views.size() * static_cast<std::size_t>(layers[0].heads), -1);
  allocate(cpu, allocator, View<const kv::ScoredLayer, 1>(views), budget,
           View<std::int32_t, 2>(counts.data(), static_cast<index_t>(views.size()), layers[0].heads));
  return counts;
}

index_t sum(const std::vector<std::int32_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), index_t{0});
}

TEST_CASE("largest remainder: exact totals, ties to the lower index") {
  std::vector<double> shares{1.5, 2.5, 0.25, 0.75};
  std::vector<std::int32_t> counts(4);
  kv::detail::largest_remainder(shares.data(), 4, 5, counts.data());
  REQUIRE(counts == std::vector<std::int32_t>{2, 2, 0, 1});
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    const index_t n = 1 + seed % 9, total = seed % 37;
    std::vector<double> parts;
    double whole = 0;
    for (index_t i = 0; i < n; ++i)
      parts.push_back(decant::Philox{seed}.uniform(static_cast<std::uint32_t>(i))), whole += parts.back();
    for (double& p : parts) p *= static_cast<double>(total) / whole;
    const std::vector<double> before = parts;
    std::vector<std::int32_t> got(static_cast<std::size_t>(n));
    kv::detail::largest_remainder(parts.data(), n, total, got.data());
    REQUIRE(sum(got) == total);
    for (std::size_t i = 0; i < got.size(); ++i) REQUIRE(std::abs(got[i] - before[i]) < 1 + 1e-6);
  }
}

TEST_CASE("the even split fills short parts and gives their rest to the others") {
  const index_t bounds[] = {3, 100, 0, 10};
  index_t counts[4];
  kv::detail::even_split(bounds, 4, 30, counts);
  REQUIRE(std::vector<index_t>(counts, counts + 4) == std::vector<index_t>{3, 17, 0, 10});
  kv::detail::even_split(bounds, 4, 113, counts);
  REQUIRE(std::vector<index_t>(counts, counts + 4) == std::vector<index_t>{3, 100, 0, 10});
  kv::detail::even_split(bounds, 4, 2, counts);
  REQUIRE(std::vector<index_t>(counts, counts + 4) == std::vector<index_t>{1, 1, 0, 0});
  kv::detail::even_split(bounds, 4, 0, counts);
  REQUIRE(std::vector<index_t>(counts, counts + 4) == std::vector<index_t>{0, 0, 0, 0});
}

TEST_CASE("Uniform on ragged heads keeps the layer's total") {
  std::vector<Scored> layer{Scored(3, 50, 1)};
  layer[0].lengths = {50, 5, 30};
  REQUIRE(allocated(kv::Uniform{}, layer, kv::Budget::tokens(20)) == std::vector<std::int32_t>{28, 5, 27});
  REQUIRE(allocated(kv::Uniform{}, layer, kv::Budget::keep(0.5)) == std::vector<std::int32_t>{25, 2, 15});
  REQUIRE(allocated(kv::Uniform{}, layer, kv::Budget::tokens(0)) == std::vector<std::int32_t>{0, 0, 0});
}

std::vector<index_t> kvpress_line(index_t n, double keep, index_t window, index_t layers) {
  std::vector<index_t> line;
  for (index_t l = 0; l < layers; ++l) {
    line.push_back(kv::detail::pyramid_kvpress(static_cast<double>(n) * keep, 20, window, n, l, layers));
  }
  return line;
}

TEST_CASE("PyramidKV: kvpress's numbers") {
  auto line = kvpress_line(4096, 0.5, 64, 32);
  REQUIRE(std::vector<index_t>(line.begin(), line.begin() + 2) == std::vector<index_t>{3994, 3868});
  REQUIRE(std::vector<index_t>(line.end() - 2, line.end()) == std::vector<index_t>{228, 102});
  REQUIRE(std::accumulate(line.begin(), line.end(), index_t{0}) == 65536);
  line = kvpress_line(32768, 1 - 0.9, 64, 32);
  REQUIRE(std::vector<index_t>(line.begin(), line.begin() + 2) == std::vector<index_t>{6390, 6189});
  REQUIRE(std::vector<index_t>(line.end() - 2, line.end()) == std::vector<index_t>{365, 164});
  REQUIRE(std::accumulate(line.begin(), line.end(), index_t{0}) == 104859);
  for (const index_t b : kvpress_line(8192, 1 - 0.9, 64, 32)) REQUIRE(b == 819);  // falls back to uniform
  // And through the stage, layer by layer.
  for (index_t l : {0, 1, 31}) {
    std::vector<Scored> one{Scored(2, 4096, 1)};
    one[0].layer = l;
    one[0].layers = 32;
    const kv::PyramidAllocation compat{.rounding = kv::PyramidAllocation::Rounding::kvpress, .window = 64};
    const auto expected = static_cast<std::int32_t>(kvpress_line(4096, 0.5, 64, 32)[static_cast<std::size_t>(l)]);
    REQUIRE(allocated(compat, one, kv::Budget::keep(0.5)) == std::vector<std::int32_t>{expected, expected});
  }
}

TEST_CASE("PyramidKV: ours falls in a line and sums to the token") {
  for (const auto& [n, b, window] : {std::tuple<index_t, index_t, index_t>{4096, 2048, 64},
                                     {32768, 3276, 64},
                                     {8192, 819, 64},
                                     {100, 90, 8},
                                     {100, 8, 8},
                                     {50, 49, 0},
                                     {128, 1, 0}}) {
    for (const index_t layers : {1, 2, 7, 32}) {
      index_t total = 0;
      std::int32_t before = static_cast<std::int32_t>(n);
      for (index_t l = 0; l < layers; ++l) {
        std::vector<Scored> one{Scored(1, n, 1)};
        for (index_t t = n - window; t < n; ++t) one[0].keep[static_cast<std::size_t>(t)] = 1;
        one[0].layer = l;
        one[0].layers = layers;
        const std::int32_t c = allocated(kv::PyramidAllocation{}, one, kv::Budget::tokens(b))[0];
        REQUIRE((c >= window && c <= n && c <= before));
        before = c;
        total += c;
      }
      CAPTURE(n, b, layers);
      REQUIRE(total == b * layers);
    }
  }
  // The published numbers, but for rounding.
  const auto line = kvpress_line(4096, 0.5, 64, 32);
  for (index_t l = 0; l < 32; ++l) {
    std::vector<Scored> one{Scored(1, 4096, 1)};
    one[0].layer = l;
    one[0].layers = 32;
    REQUIRE(std::abs(allocated(kv::PyramidAllocation{}, one, kv::Budget::tokens(2048))[0] -
                     line[static_cast<std::size_t>(l)]) <= 1);
  }
}

TEST_CASE("Ada-KV: alpha 1 is uniform, alpha 0 the flat ranking, totals exact, protection kept") {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    std::vector<Scored> layer{Scored(4, 30, seed)};
    for (index_t t = 0; t < 30; ++t) layer[0].scores[static_cast<std::size_t>(t)] *= 3;  // head 0 is the greedy one
    for (index_t h = 0; h < 4; ++h) layer[0].keep[static_cast<std::size_t>(h * 30 + 29)] = 1;
    const index_t b = 1 + static_cast<index_t>(seed % 30);
    const kv::Budget budget = kv::Budget::tokens(b);
    REQUIRE(allocated(kv::AdaAllocation{.alpha = 1}, layer, budget) ==
            std::vector<std::int32_t>(4, static_cast<std::int32_t>(b)));
    // Flat: sort all unprotected scores.
    std::vector<std::pair<float, index_t>> all;
    for (index_t i = 0; i < 120; ++i) {
      if (!layer[0].keep[static_cast<std::size_t>(i)])
        all.emplace_back(-layer[0].scores[static_cast<std::size_t>(i)], i);
    }
    std::sort(all.begin(), all.end());
    std::vector<std::int32_t> flat(4, 1);
    for (index_t i = 0; i < 4 * b - 4; ++i)
      ++flat[static_cast<std::size_t>(all[static_cast<std::size_t>(i)].second / 30)];
    REQUIRE(allocated(kv::AdaAllocation{.alpha = 0}, layer, budget) == flat);
    for (const float alpha : {0.1f, 0.2f, 0.5f, 0.9f}) {
      for (const auto rule : {kv::AdaAllocation::Rule::official, kv::AdaAllocation::Rule::kvpress}) {
        const auto counts = allocated(kv::AdaAllocation{.alpha = alpha, .rule = rule}, layer, budget);
        REQUIRE(sum(counts) == 4 * b);
        for (std::size_t h = 0; h < 4; ++h) {
          REQUIRE((counts[h] >= 1 && counts[h] <= 30));
          if (rule == kv::AdaAllocation::Rule::kvpress) {
            REQUIRE(counts[h] >= static_cast<std::int32_t>(static_cast<double>(alpha) * static_cast<double>(b)));
          } else {
            const float share = (1 - alpha) * static_cast<float>(flat[h] - 1) + alpha * static_cast<float>(b - 1);
            REQUIRE(std::abs(static_cast<float>(counts[h] - 1) - share) < 1.001f);
          }
        }
      }
    }
  }
}

TEST_CASE("Ada-KV's kvpress rule against the rule written plainly") {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    std::vector<Scored> layer{Scored(3, 20, seed)};
    const index_t b = 1 + static_cast<index_t>(seed % 19);
    const double alpha = 0.4;
    std::vector<float> s = layer[0].scores;
    for (index_t h = 0; h < 3; ++h) {  // the floor of each head becomes unbeatable
      std::vector<index_t> order(20);
      std::iota(order.begin(), order.end(), h * 20);
      std::stable_sort(order.begin(), order.end(), [&](index_t x, index_t y) {
        return s[static_cast<std::size_t>(x)] > s[static_cast<std::size_t>(y)];
      });
      for (index_t i = 0; i < static_cast<index_t>(alpha * static_cast<double>(b)); ++i)
        s[static_cast<std::size_t>(order[static_cast<std::size_t>(i)])] = 1e9f;
    }
    std::vector<index_t> order(60);
    std::iota(order.begin(), order.end(), index_t{0});
    std::stable_sort(order.begin(), order.end(), [&](index_t x, index_t y) {
      return s[static_cast<std::size_t>(x)] > s[static_cast<std::size_t>(y)];
    });
    std::vector<std::int32_t> expected(3, 0);
    for (index_t i = 0; i < 3 * b; ++i) ++expected[static_cast<std::size_t>(order[static_cast<std::size_t>(i)] / 20)];
    REQUIRE(allocated(kv::AdaAllocation{.alpha = 0.4f, .rule = kv::AdaAllocation::Rule::kvpress}, layer,
                      kv::Budget::tokens(b)) == expected);
  }
}

TEST_CASE("the flat ranking keeps the most mass that any split can: all splits of 6 tokens in 2 heads") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    std::vector<Scored> layer{Scored(2, 6, seed)};
    const auto mass = [&](index_t first, index_t second) {
      double total = 0;
      for (index_t h = 0; h < 2; ++h) {
        std::vector<float> row(layer[0].scores.begin() + h * 6, layer[0].scores.begin() + (h + 1) * 6);
        std::sort(row.begin(), row.end(), std::greater<float>());
        total = std::accumulate(row.begin(), row.begin() + (h == 0 ? first : second), total);
      }
      return total;
    };
    for (index_t b = 0; b <= 6; ++b) {
      const auto counts = allocated(kv::AdaAllocation{.alpha = 0}, layer, kv::Budget::tokens(b));
      for (index_t first = std::max<index_t>(0, 2 * b - 6); first <= std::min<index_t>(6, 2 * b); ++first) {
        REQUIRE(mass(counts[0], counts[1]) >= mass(first, 2 * b - first) - 1e-6);
      }
    }
  }
}

TEST_CASE("GlobalTopK ranks the whole model; select() scores all layers before it chooses in any") {
  const index_t n = 40, layers = 3;
  std::vector<Layer<>> data;
  std::vector<kv::LayerView<kv::DenseKV<float>>> xs;
  for (index_t l = 0; l < layers; ++l)
    data.emplace_back(oracle::LayerShape{n, 2, 1, 4, 4, 1}, 60 + static_cast<std::uint64_t>(l));
  for (float& k : data[1].keys) k *= 0.6f;  // smaller norms: KNorm keeps more of layer 1
  for (index_t l = 0; l < layers; ++l) {
    xs.push_back(data[static_cast<std::size_t>(l)].view());
    xs.back().layer = l;
    xs.back().layers = layers;
  }
  const auto policy = kv::Eviction{kv::KNorm{}, kv::NoSmoothing{}, kv::SinkRecent{.sinks = 1, .recent = 1},
                                   kv::NoNormalisation{}, kv::GlobalTopK{}};
  static_assert(kv::scope_of<decltype(policy)> == kv::Scope::model && kv::scope_of<kv::SnapKV> == kv::Scope::layer);
  Cpu cpu;
  std::vector<kv::Kept> kept(3);
  select(cpu, policy, View<const kv::LayerView<kv::DenseKV<float>>, 1>(xs), kv::Budget::tokens(10),
         View<kv::Kept, 1>(kept));
  std::vector<std::pair<double, index_t>> all;
  for (index_t i = 0; i < layers * 2 * n; ++i) {
    const index_t l = i / (2 * n), h = i / n % 2, t = i % n;
    double norm = 0;
    for (index_t d = 0; d < 4; ++d) norm += std::pow(data[static_cast<std::size_t>(l)].k(h, t, d), 2);
    all.emplace_back(t == 0 || t == n - 1 ? -1.0 : norm, i);
  }
  std::sort(all.begin(), all.end());
  std::vector<index_t> expected, got;
  for (index_t i = 0; i < 60; ++i) expected.push_back(all[static_cast<std::size_t>(i)].second);
  std::sort(expected.begin(), expected.end());
  for (index_t l = 0; l < layers; ++l) {
    const kv::Kept& k = kept[static_cast<std::size_t>(l)];
    for (index_t h = 0; h < 2; ++h) {
      for (index_t i = 0; i < k.count(h); ++i) got.push_back((l * 2 + h) * n + k.token(h, i));
    }
  }
  REQUIRE(got == expected);
  REQUIRE(kept[1].total() > kept[0].total());
  // Nothing is written when the last layer turns out bad.
  data[2].key(1, 7, 2) = std::nanf("");
  std::vector<kv::Kept> untouched(3);
  REQUIRE_THROWS_WITH(select(cpu, policy, View<const kv::LayerView<kv::DenseKV<float>>, 1>(xs), kv::Budget::tokens(10),
                             View<kv::Kept, 1>(untouched)),
                      catch_compat::contains("NaN at layer 2, head 1, token 7"));
  REQUIRE(untouched[0].total() == 0);
}

TEST_CASE("many layers in one call are each layer by itself") {
  std::vector<Layer<>> data;
  std::vector<kv::LayerView<kv::DenseKV<float>>> xs;
  for (std::uint64_t l = 0; l < 4; ++l) data.emplace_back(oracle::LayerShape{50, 2, 2, 8, 8, 16}, l);
  for (index_t l = 0; l < 4; ++l) {
    xs.push_back(data[static_cast<std::size_t>(l)].view());
    xs.back().layer = l;
    xs.back().layers = 4;
  }
  Cpu cpu;
  const kv::PyramidKV policy{.window = 8};
  std::vector<kv::Kept> kept(4);
  select(cpu, policy, View<const kv::LayerView<kv::DenseKV<float>>, 1>(xs), kv::Budget::tokens(20),
         View<kv::Kept, 1>(kept));
  index_t total = 0;
  for (index_t l = 0; l < 4; ++l) {
    const kv::Kept one = select(cpu, policy, xs[static_cast<std::size_t>(l)], kv::Budget::tokens(20));
    const kv::Kept& same = kept[static_cast<std::size_t>(l)];
    REQUIRE(one.count(0) == same.count(0));
    for (index_t h = 0; h < 2; ++h) {
      for (index_t i = 0; i < one.count(h); ++i) REQUIRE(one.token(h, i) == same.token(h, i));
    }
    total += one.total();
  }
  REQUIRE(total == 4 * 2 * 20);
}

}  // namespace
