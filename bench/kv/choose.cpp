// From scores to kept lists through the whole pipeline: pool, protect, normalise, allocate, choose, for one layer of 8
// heads at a tenth of its tokens; GlobalTopK for four layers at once. Scores are given, so that this is what select()
// costs beside its scorer. The limit is one read of the scores. Peers do the ranking alone with the standard library:
// nth_element by (score descending, index ascending) per head, or over the layer, and a sort of the kept.

#include <algorithm>
#include <numeric>

#include "decant/kv/policies.hpp"
#include "harness.hpp"

namespace {

using decant::index_t;
using decant::View;
namespace kv = decant::kv;

constexpr index_t heads = 8;

/// A cache that is never read, and scores.
struct Layers {
  index_t n, count;
  bench::Buffer<float> row, scores;
  std::int32_t length;
  std::vector<kv::LayerView<kv::DenseKV<const float>>> views;

  Layers(index_t tokens, index_t layers)
      : n(tokens),
        count(layers),
        row(2),
        scores(static_cast<std::size_t>(layers * heads * n)),
        length(static_cast<std::int32_t>(n)) {
    bench::fill(scores, 7);
    // Stride 0: every token shows the same two numbers.
    const View<const float, 4> rows(row.data(), {1, heads, n, 2}, {0, 0, 0, 1});
    for (index_t l = 0; l < layers; ++l) {
      views.push_back({{rows, rows, View<const std::int32_t, 1>(&length, 1)}});
      views.back().layer = l;
      views.back().layers = layers;
    }
  }
  kv::GivenScores given() const { return {View<const float, 2>(scores.data(), heads, n)}; }
};

/// The ranking of `rows` rows of n scores each, k of a row.
struct Ranking {
  const float* scores;
  index_t rows, n, k;
  std::vector<std::int32_t> order;

  Ranking(const float* s, index_t r, index_t length, index_t kept)
      : scores(s), rows(r), n(length), k(kept), order(static_cast<std::size_t>(length)) {}
  void operator()() {
    for (index_t r = 0; r < rows; ++r) {
      const float* const s = scores + r * n;
      std::iota(order.begin(), order.end(), 0);
      std::nth_element(order.begin(), order.begin() + k, order.end(),
                       [s](std::int32_t a, std::int32_t b) { return s[a] != s[b] ? s[a] > s[b] : a < b; });
      std::sort(order.begin(), order.begin() + k);
      benchmark::DoNotOptimize(order.data());
    }
  }
};

template <class P>
void measure(bench::Row& row, index_t n, index_t count, const P& policy_of, index_t peer_rows) {
  Layers layers(n, count);
  const auto policy = policy_of(layers.given());
  std::vector<kv::Kept> kept(static_cast<std::size_t>(count));
  decant::Cpu cpu;
  const auto ours = [&] {
    select(cpu, policy, View<const kv::LayerView<kv::DenseKV<const float>>, 1>(layers.views),
           kv::Budget::tokens(n / 10), View<kv::Kept, 1>(kept));
    benchmark::ClobberMemory();
  };
  ours();
  // The law that a selection must keep: to the token, what was asked for.
  index_t total = 0;
  for (const kv::Kept& k : kept) total += k.total();
  const index_t elements = count * heads * n;
  Ranking peer(layers.scores.data(), peer_rows, elements / peer_rows, elements / peer_rows / 10);
  row.measure({.ours = ours,
               .limit = bench::stream_read(cpu, layers.scores.bytes()),
               .peers = {{"nth_element", [&peer] { peer(); }}},
               .items = static_cast<double>(elements),
               .error = static_cast<double>(std::abs(total - count * heads * (n / 10)))});
}

}  // namespace

int main(int argc, char** argv) {
  bench::Suite suite("kv", argc, argv);
  for (const index_t n : suite.sizes({4096, 32768, 131072})) {
    const auto add = [&](const char* policy, index_t layers, const auto& policy_of, index_t peer_rows) {
      suite.add({.primitive = "select",
                 .policy = policy,
                 .shape = bench::shape("n", n, "layers", layers, "hkv", heads, "keep", 0.1)},
                [=](bench::Row& row) { measure(row, n, layers, policy_of, peer_rows); });
    };
    add(
        "TopTokens", 1, [](kv::GivenScores s) { return kv::Eviction{s}; }, heads);
    add(
        "SnapKV", 1,
        [](kv::GivenScores s) {
          return kv::Eviction{s, kv::AvgPool{5}, kv::SinkRecent{0, 64}};
        },
        heads);
    add(
        "PyramidKV", 1,
        [](kv::GivenScores s) {
          return kv::Eviction{s, kv::AvgPool{5}, kv::SinkRecent{0, 64}, kv::NoNormalisation{}, kv::PyramidAllocation{}};
        },
        heads);
    add(
        "AdaKV", 1,
        [](kv::GivenScores s) {
          return kv::Eviction{s, kv::MaxPool{7}, kv::SinkRecent{0, 32}, kv::NoNormalisation{}, kv::AdaAllocation{}};
        },
        1);
    add(
        "GlobalTopK", 4,
        [](kv::GivenScores s) {
          return kv::Eviction{s, kv::AvgPool{7}, kv::SinkRecent{0, 32}, kv::LayerSum{}, kv::GlobalTopK{}};
        },
        1);
  }
  return suite.run();
}
