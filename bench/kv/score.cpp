// Every scorer on one layer of Llama-3.1-8B's shape: 32 query heads over 8 KV heads of 128, bf16 keys and values, a
// window of 32 queries. The figure is key bytes (key and value bytes, where both are read) per second and the limit one
// read of them. WindowAttention (128 FLOP a byte), CapKV and ExpectedAttention (a d x d form per query head) and
// AccumulatedAttention (quadratic) are bound by arithmetic, not by that limit. Peers get an fp32 copy. The error is the
// largest deviation from the definition in double, over the largest score of the first KV head.

#include "baselines/scores.hpp"
#include "decant/kv/policies.hpp"
#include "harness.hpp"
#include "oracle/kv_scores.hpp"

namespace {

using decant::bf16;
using decant::index_t;
using decant::View;
namespace kv = decant::kv;

constexpr index_t heads = 8, group = 4, dim = 128;

struct Layer {
  index_t n, w;
  bench::Buffer<bf16> keys, values;
  bench::Buffer<float> queries, scores;
  std::int32_t length;

  Layer(index_t tokens, index_t window)
      : n(tokens),
        w(window),
        keys(static_cast<std::size_t>(heads * n * dim)),
        values(keys.size()),
        queries(static_cast<std::size_t>(heads * group * w * dim)),
        scores(static_cast<std::size_t>(heads * n)),
        length(static_cast<std::int32_t>(n)) {
    bench::fill(keys, 1);
    bench::fill(values, 2);
    bench::fill(queries, 3);
  }
  kv::LayerView<kv::DenseKV<const bf16>> view() {
    kv::LayerView<kv::DenseKV<const bf16>> x{{View<const bf16, 4>(keys.data(), 1, heads, n, dim),
                                              View<const bf16, 4>(values.data(), 1, heads, n, dim),
                                              View<const std::int32_t, 1>(&length, 1)}};
    x.queries = x.queries_pre_rope = View<const float, 3>(queries.data(), heads * group, w, dim);
    return x;
  }
  /// The first KV head, for the oracle.
  oracle::Layer<bf16> first_head() const {
    oracle::Layer<bf16> head({1, 1, group, dim, dim, 1});
    head.shape.n = n;
    head.shape.queries = w;
    head.keys.assign(keys.data(), keys.data() + n * dim);
    head.values.assign(values.data(), values.data() + n * dim);
    head.queries.assign(queries.data(), queries.data() + group * w * dim);
    head.pre_rope = head.queries;
    return head;
  }
};

/// A scorer's row. exact: the first head's scores from the definition, where that takes seconds rather than minutes.
template <class S, class Exact>
void measure(bench::Row& row, Layer& layer, const S& scorer, bool reads_values, bool feasible, Exact exact,
             std::vector<std::pair<std::string, bench::Call>> peers = {}) {
  decant::Cpu cpu;
  const auto x = layer.view();
  const View<float, 2> scores(layer.scores.data(), heads, layer.n);
  const auto ours = [&] {
    score(cpu, scorer, x, scores);
    benchmark::ClobberMemory();
  };
  ours();
  std::optional<double> error;
  if (feasible) {
    auto head = layer.first_head();
    const oracle::Row expected = exact(head)[0];
    double high = 0, worst = 0;
    for (std::size_t t = 0; t < expected.size(); ++t) {
      high = std::max(high, std::abs(expected[t]));
      worst = std::max(worst, std::abs(static_cast<double>(layer.scores[t]) - expected[t]));
    }
    error = worst / high;
  }
  const std::size_t bytes = layer.keys.bytes() * (reads_values ? 2 : 1);
  row.measure({.ours = ours,
               .limit = bench::stream_read(cpu, bytes),
               .peers = std::move(peers),
               .bytes = static_cast<double>(bytes),
               .error = error});
}

#ifdef DECANT_BENCH_EIGEN
std::vector<float> widened(const bench::Buffer<bf16>& from) {
  std::vector<float> to(from.size());
  for (std::size_t i = 0; i < to.size(); ++i) to[i] = static_cast<float>(from[i]);
  return to;
}
#endif

void window_attention(bench::Row& row, index_t n) {
  Layer layer(n, 32);
  std::vector<std::pair<std::string, bench::Call>> peers;
#ifdef DECANT_BENCH_EIGEN
  const std::vector<float> keys = widened(layer.keys);
  std::vector<float> weights(static_cast<std::size_t>(group * 32 * n)), out(static_cast<std::size_t>(heads * n));
  peers.emplace_back("eigen", [&, n] {
    baselines::eigen_window_attention({n, heads, group, 32, dim}, layer.queries.data(), keys.data(), weights.data(),
                                      out.data());
  });
#endif
  measure(
      row, layer, kv::WindowAttention{.window = 32}, false, true,
      [](auto& head) { return oracle::window_attention(head, 32); }, peers);
}

void cap_kv(bench::Row& row, index_t n) {
  Layer layer(n, 32);
  std::vector<std::pair<std::string, bench::Call>> peers;
#ifdef DECANT_BENCH_EIGEN
  const std::vector<float> keys = widened(layer.keys), values = widened(layer.values);
  std::vector<float> scratch(static_cast<std::size_t>(n * dim)), out(static_cast<std::size_t>(heads * n));
  // Any unit vectors cost the same.
  std::vector<float> mean(static_cast<std::size_t>(heads * group * dim), 1.0f / std::sqrt(static_cast<float>(dim)));
  peers.emplace_back("eigen", [&, n] {
    baselines::eigen_cap_kv({n, heads, group, 32, dim}, mean.data(), keys.data(), values.data(), scratch.data(),
                            out.data());
  });
#endif
  measure(
      row, layer, kv::CapKV{}, true, n <= 32768, [](auto& head) { return oracle::cap_kv(head, 5, 1, 4, 512); }, peers);
}

}  // namespace

int main(int argc, char** argv) {
  bench::Suite suite("kv", argc, argv);
  const auto shape = [](index_t n) {
    return bench::shape("n", n, "hq", heads * group, "hkv", heads, "d", dim, "w", 32, "dtype", "bf16");
  };
  const auto add = [&](const char* policy, index_t n, void (*body)(bench::Row&, index_t)) {
    suite.add({.primitive = "score", .policy = policy, .shape = shape(n)}, [=](bench::Row& row) { body(row, n); });
  };
  for (const index_t n : suite.sizes({4096, 32768, 131072})) {
    add("WindowAttention", n, window_attention);
    add("CapKV", n, cap_kv);
    add("ExpectedAttention", n, [](bench::Row& row, index_t tokens) {
      Layer layer(tokens, 32);
      measure(row, layer, kv::ExpectedAttention{}, true, tokens <= 32768,
              [](auto& head) { return oracle::expected_attention(head, 4, 512, true, true, 0); });
    });
    add("TOVA", n, [](bench::Row& row, index_t tokens) {
      Layer layer(tokens, 32);
      measure(row, layer, kv::TOVA{}, false, false, [](auto& head) { return oracle::key_norms(head); });
    });
    add("KNorm", n, [](bench::Row& row, index_t tokens) {
      Layer layer(tokens, 32);
      measure(row, layer, kv::KNorm{}, false, true, [](auto& head) {
        oracle::Table t = oracle::key_norms(head);
        for (double& v : t[0]) v = -v;
        return t;
      });
    });
    add("KeyDiff", n, [](bench::Row& row, index_t tokens) {
      Layer layer(tokens, 32);
      measure(row, layer, kv::KeyDiff{}, false, true, [](auto& head) { return oracle::key_diff(head); });
    });
    add("Leverage", n, [](bench::Row& row, index_t tokens) {
      Layer layer(tokens, 32);
      measure(row, layer, kv::Leverage{}, false, false, [](auto& head) { return oracle::key_norms(head); });
    });
  }
  suite.add({.primitive = "score",
             .policy = "AccumulatedAttention",
             .shape = bench::shape("n", 4096, "hq", heads * group, "hkv", heads, "d", dim, "w", 4096, "dtype", "bf16")},
            [](bench::Row& row) {
              Layer layer(4096, 4096);
              measure(row, layer, kv::AccumulatedAttention{.per_query = false}, false, true, [](auto& head) {
                return oracle::over_group(oracle::column_sums(head, 4096, [](double a) { return a; }), group, 0);
              });
            });
  return suite.run();
}
