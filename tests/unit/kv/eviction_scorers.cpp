// Every scorer against its definition in double, on every instruction set, for every kind of cache element, with and
// without log-sum-exps, for one and for many threads.
#include <algorithm>

#include "catch_compat.hpp"
#include "decant/kv/policies.hpp"
#include "decant/kv/ragged_kv.hpp"
#include "oracle/kv_scores.hpp"
#include "threads.hpp"

namespace {

using namespace oracle;
using decant::bf16;
using decant::Cpu;
using decant::Isa;
namespace kv = decant::kv;

std::vector<Isa> paths() {
  std::vector<Isa> all;
  for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512}) {
    if (isa <= decant::best_isa()) all.push_back(isa);
  }
  return all;
}

template <class S, class X>
std::vector<float> scored(Cpu& cpu, const S& scorer, const X& x) {
  std::vector<float> out(static_cast<std::size_t>(x.kv_heads() * x.max_length()), -7.0f);
  score(cpu, scorer, x, View<float, 2>(out.data(), x.kv_heads(), x.max_length()));
  return out;
}

/// The largest error, relative to the largest score of the head.
double error(const std::vector<float>& got, const Table& expected) {
  double worst = 0;
  std::size_t i = 0;
  for (const Row& row : expected) {
    double high = 0;
    for (const double v : row) high = std::max(high, std::abs(v));
    for (const double v : row) worst = std::max(worst, std::abs(got[i++] - v) / high);
  }
  return worst;
}

template <class S, class T>
void check(const S& scorer, Layer<T>& data, const Table& expected, double bound) {
  for (const Isa isa : paths()) {
    CAPTURE(name(isa), data.shape.n, data.shape.key_dim);
    Cpu cpu;
    cpu.set_isa(isa);
    const auto serial = scored(cpu, scorer, data.view());
    REQUIRE(error(serial, expected) <= bound);
    Cpu threaded(reversed_threads(3));
    threaded.set_isa(isa);
    REQUIRE(scored(threaded, scorer, data.view()) == serial);
  }
}

// Around the kernels' block sizes: vectors of 16, blocks of 64 keys, tiles of 256, spans of 1024.
const LayerShape shapes[] = {
    {40, 2, 3, 12, 10, 16}, {65, 1, 1, 16, 16, 33}, {257, 2, 4, 24, 40, 9}, {1100, 1, 2, 20, 8, 20}};

TEST_CASE("attention columns: SnapKV's window, every reduction", "[threads]") {
  for (const LayerShape& s : shapes) {
    Layer<> data(s, 3);
    for (const index_t w : {index_t{1}, index_t{5}, s.queries}) {
      check(kv::WindowAttention{.window = w}, data, window_attention(data, w), 2e-6);
    }
    const index_t w = s.queries;
    const Table columns = column_sums(data, w, [](double a) { return a; });
    for (const int how : {0, 1, 2}) {
      Table expected = over_group(columns, s.group, how);
      for (Row& row : expected) {
        for (std::size_t j = row.size() - static_cast<std::size_t>(w); j < row.size(); ++j) row[j] = 0;
      }
      check(kv::WindowAttention{w, kv::Reduce::sum, static_cast<kv::Reduce>(how)}, data, expected, 2e-6);
    }
  }
}

TEST_CASE("attention columns: squares, and long heads whose tasks are spans of keys", "[threads]") {
  Layer<> data({9000, 2, 2, 16, 4, 40}, 4);
  std::vector<float> out(18000), again(18000);
  const Table expected = over_group(column_sums(data, 40, [](double a) { return a * a; }), 2, 1);
  for (const Isa isa : paths()) {
    Cpu cpu, threaded(reversed_threads(4));
    cpu.set_isa(isa);
    threaded.set_isa(isa);
    const kv::detail::ColumnQueries q{40, 0, 2};
    kv::detail::attention_columns<kv::detail::SquaredWeight>(cpu, data.view(), q, View<float, 2>(out.data(), 2, 9000));
    REQUIRE(error(out, expected) < 1e-5);
    kv::detail::attention_columns<kv::detail::SquaredWeight>(threaded, data.view(), q,
                                                             View<float, 2>(again.data(), 2, 9000));
    REQUIRE(out == again);
  }
  check(kv::WindowAttention{.window = 40}, data, window_attention(data, 40), 5e-6);
}

TEST_CASE("log-sum-exps at hand give the same scores") {
  for (const LayerShape& s : shapes) {
    Layer<> data(s, 5);
    auto x = data.view();
    std::vector<float> lse;
    for (index_t hq = 0; hq < s.kv_heads * s.group; ++hq) {
      for (index_t i = 0; i < s.queries; ++i) {
        double sum = 0;
        for (index_t j = 0; j <= s.n - s.queries + i; ++j) {
          double dot = 0;
          for (index_t d = 0; d < s.key_dim; ++d) dot += data.q(hq, i, d) * data.k(hq / s.group, j, d);
          sum += std::exp(dot / std::sqrt(static_cast<double>(s.key_dim)));
        }
        lse.push_back(static_cast<float>(std::log(sum)));
      }
    }
    x.lse = View<const float, 2>(lse.data(), s.kv_heads * s.group, s.queries);
    for (const Isa isa : paths()) {
      Cpu cpu;
      cpu.set_isa(isa);
      REQUIRE(error(scored(cpu, kv::WindowAttention{.window = 7}, x), window_attention(data, 7)) < 2e-6);
    }
  }
}

TEST_CASE("H2O: column sums over all causal queries, by age and plain", "[threads]") {
  Layer<> data({150, 2, 3, 12, 10, 150}, 6);
  const Table sums = over_group(column_sums(data, 150, [](double a) { return a; }), 3, 0);
  check(kv::AccumulatedAttention{.per_query = false}, data, sums, 2e-6);
  Table by_age = sums;
  double total = 0;
  for (Row& row : by_age) {
    for (std::size_t j = 0; j < row.size(); ++j) {
      total += row[j];
      row[j] /= 150.0 - static_cast<double>(j);
    }
  }
  REQUIRE(total == Approx(2 * 150.0).epsilon(1e-12));  // every query spends 1 per head
  check(kv::AccumulatedAttention{}, data, by_age, 2e-6);
  Cpu cpu;
  double mass = 0;
  for (const float v : scored(cpu, kv::AccumulatedAttention{.per_query = false}, data.view()))
    mass += static_cast<double>(v);
  REQUIRE(mass == Approx(2 * 150.0).epsilon(1e-5));
}

TEST_CASE("TOVA: the last query, the same for every head", "[threads]") {
  for (const LayerShape& s : shapes) {
    Layer<> data(s, 7);
    const Table last = column_sums(data, 1, [](double a) { return a; });
    const Table mean = over_group(last, static_cast<index_t>(last.size()), 0);
    Table expected(static_cast<std::size_t>(s.kv_heads), mean[0]);
    check(kv::TOVA{}, data, expected, 2e-6);
  }
}

TEST_CASE("KNorm and KeyDiff", "[threads]") {
  for (const LayerShape& s : shapes) {
    Layer<> data(s, 8);
    Table negative = key_norms(data);
    for (Row& row : negative) {
      for (double& v : row) v = -v;
    }
    check(kv::KNorm{}, data, negative, 1e-6);
    check(kv::KeyDiff{}, data, key_diff(data), 2e-6);
    Cpu cpu;
    for (const float v : scored(cpu, kv::KeyDiff{}, data.view())) REQUIRE((v >= -1 && v <= 1));
  }
}

TEST_CASE("CapKV in both modes", "[threads]") {
  for (const LayerShape& s : shapes) {
    Layer<> data(s, 9);
    check(kv::CapKV{}, data, cap_kv(data, 5, 1, 4, 512), 5e-5);
    check(kv::CapKV{.tau = 2, .ridge = 0.5f, .sinks = 0, .future = 0}, data, cap_kv(data, 2, 0.5, 0, 0), 5e-5);
    check(kv::CapKV{.compat_eps = true}, data, cap_kv(data, 5, 1, 4, 512, true), 5e-5);
    check(kv::CapKV{.tau = 0.25f, .mode = kv::CapKV::Mode::paper}, data, cap_kv_paper(data, 0.25), 5e-5);
  }
}

TEST_CASE("CapKV's 1e-6, where it matters: sharp weights and next to no ridge", "[threads]") {
  Layer<> data({200, 1, 2, 12, 10, 16}, 9);
  check(kv::CapKV{.tau = 100, .ridge = 1e-5f}, data, cap_kv(data, 100, 1e-5, 4, 512), 1e-3);
  check(kv::CapKV{.tau = 100, .ridge = 1e-5f, .compat_eps = true}, data, cap_kv(data, 100, 1e-5, 4, 512, true), 1e-3);
}

TEST_CASE("queries of sinks take no part, where the whole prompt's queries came", "[threads]") {
  Layer<> data({40, 1, 2, 12, 10, 40}, 15);
  for (const index_t sinks : {index_t{1}, index_t{4}, index_t{39}}) {
    check(kv::CapKV{.sinks = sinks}, data, cap_kv(data, 5, 1, sinks, 512), 5e-5);
    check(kv::ExpectedAttention{.sinks = sinks}, data, expected_attention(data, sinks, 512, true, true, 0), 2e-5);
  }
}

TEST_CASE("ExpectedAttention and its switches", "[threads]") {
  for (const LayerShape& s : shapes) {
    Layer<> data(s, 10);
    check(kv::ExpectedAttention{}, data, expected_attention(data, 4, 512, true, true, 0), 2e-5);
    check(kv::ExpectedAttention{.sinks = 0, .future = 0, .covariance = false}, data,
          expected_attention(data, 0, 0, false, true, 0), 2e-5);
    check(kv::ExpectedAttention{.value_norm = false, .eps = 1e-2f}, data,
          expected_attention(data, 4, 512, true, false, 0.01), 2e-5);
  }
}

TEST_CASE("bf16 keys and values give the scores of the numbers they hold", "[threads]") {
  Layer<bf16> data({300, 2, 3, 24, 24, 12}, 11);
  check(kv::WindowAttention{.window = 12}, data, window_attention(data, 12), 2e-6);
  check(kv::CapKV{}, data, cap_kv(data, 5, 1, 4, 512), 5e-5);
  check(kv::ExpectedAttention{}, data, expected_attention(data, 4, 512, true, true, 0), 2e-5);
  check(kv::KeyDiff{}, data, key_diff(data), 2e-6);
}

TEST_CASE("exact leverage sums to the ridge-damped rank, lies in [0, 1], and is the oracle's") {
  // Scores of X = K - column mean, ridge 1e-2, RoPE taken off (positions 0: nothing to take off).
  const LayerShape s{120, 1, 1, 12, 4, 4};
  Layer<> data(s, 12);
  const std::vector<std::int32_t> zeros(120, 0);
  auto x = data.view();
  x.positions = View<const std::int32_t, 2>(zeros.data(), 1, 120);
  Table centred;
  for (index_t j = 0; j < s.n; ++j) {
    Row row;
    for (index_t d = 0; d < s.key_dim; ++d) {
      double mean = 0;
      for (index_t t = 0; t < s.n; ++t) mean += data.k(0, t, d) / 120;
      row.push_back(data.k(0, j, d) - mean);
    }
    centred.push_back(row);
  }
  const Row inv = inverse(gram(centred, Row(120, 1.0), 1e-2), 12);
  double damped = 12;  // sum of sigma^2 / (sigma^2 + ridge) = d - ridge trace(A^-1)
  for (std::size_t i = 0; i < 12; ++i) damped -= 1e-2 * inv[i * 12 + i];
  Cpu cpu;
  const auto got = scored(cpu, kv::Leverage{.sketch = 0, .z_score = false}, x);
  double sum = 0;
  for (std::size_t j = 0; j < 120; ++j) {
    REQUIRE(got[j] == Approx(form(inv, centred[j])).epsilon(1e-4));
    REQUIRE((got[j] >= 0 && got[j] <= 1));
    sum += static_cast<double>(got[j]);
  }
  REQUIRE(sum == Approx(damped).epsilon(1e-5));
  // z-scored: mean 0, variance 1, the same order.
  const auto z = scored(cpu, kv::Leverage{.sketch = 0}, x);
  double mean = 0, square = 0;
  for (const float v : z)
    mean += static_cast<double>(v) / 120, square += static_cast<double>(v) * static_cast<double>(v) / 120;
  REQUIRE(std::abs(mean) < 1e-5);
  REQUIRE(square == Approx(1).epsilon(1e-4));
  REQUIRE(std::max_element(z.begin(), z.end()) - z.begin() == std::max_element(got.begin(), got.end()) - got.begin());
  // RoPE comes off: rotated keys with their positions score as the plain ones did.
  std::vector<std::int32_t> at;
  for (std::int32_t t = 0; t < 120; ++t) at.push_back(t * 7);
  for (index_t t = 0; t < 120; ++t) {
    Row k;
    for (index_t d = 0; d < 12; ++d) k.push_back(data.k(0, t, d));
    const Row turned = mean_rotated(k, 10000.0, at[static_cast<std::size_t>(t)], 1);
    for (index_t d = 0; d < 12; ++d) data.key(0, t, d) = static_cast<float>(turned[static_cast<std::size_t>(d)]);
  }
  x.positions = View<const std::int32_t, 2>(at.data(), 1, 120);
  const auto after = scored(cpu, kv::Leverage{.sketch = 0, .z_score = false}, x);
  for (std::size_t j = 0; j < 120; ++j) REQUIRE(after[j] == Approx(got[j]).epsilon(2e-4).margin(1e-5));
}

TEST_CASE("the sketch keeps squared lengths in the mean: 1000 seeds, within 3.3 standard errors (false alarm 1e-3)") {
  // |x Phi|^2 has mean |x|^2 and variance 2 |x|^4 / sketch.
  const index_t dim = 10, sketch = 48;
  double sum = 0, squared = 0;
  for (index_t d = 0; d < dim; ++d) squared += static_cast<double>((d + 1) * (d + 1));
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    for (index_t c = 0; c < sketch; ++c) {
      double y = 0;
      for (index_t d = 0; d < dim; ++d) {
        y += static_cast<double>(d + 1) * kv::detail::philox_normal(decant::Philox{seed}, d, c) / std::sqrt(48.0);
      }
      sum += y * y;
    }
  }
  REQUIRE(std::abs(sum / 1000 / squared - 1) < 3.3 * std::sqrt(2.0 / 48 / 1000));
}

TEST_CASE("scorers of ragged heads score each head as if it were alone") {
  // Head 1 of the two is shorter; its scores must be those of a one-head layer of its length.
  Layer<> longer({90, 1, 2, 12, 10, 30}, 13), shorter({41, 1, 2, 12, 10, 30}, 14);
  std::vector<float> k(longer.keys), v(longer.values), q(longer.queries), pre(longer.pre_rope);
  for (const float f : shorter.keys) k.push_back(f);
  for (const float f : shorter.values) v.push_back(f);
  for (const float f : shorter.queries) q.push_back(f);
  for (const float f : shorter.pre_rope) pre.push_back(f);
  const std::vector<index_t> offsets{0, 90, 131};
  const std::vector<std::int32_t> lengths{90, 41};
  const kv::RaggedKV<const float> cache{View<const float, 2>(k.data(), 131, 12),
                                        View<const float, 2>(v.data(), 131, 10), offsets, lengths, 2};
  kv::LayerView<kv::RaggedKV<const float>> x{cache};
  x.queries = View<const float, 3>(q.data(), 4, 30, 12);
  x.queries_pre_rope = View<const float, 3>(pre.data(), 4, 30, 12);
  x.next_position = 90;
  auto a = longer.view(), b = shorter.view();
  a.next_position = b.next_position = 90;
  Cpu cpu;
  const auto same = [&](const auto& scorer) {
    const auto both = scored(cpu, scorer, x), first = scored(cpu, scorer, a), second = scored(cpu, scorer, b);
    REQUIRE(std::equal(first.begin(), first.end(), both.begin()));
    REQUIRE(std::equal(second.begin(), second.end(), both.begin() + 90));
  };
  same(kv::WindowAttention{.window = 30});
  same(kv::KNorm{});
  same(kv::KeyDiff{});
  same(kv::CapKV{});
  same(kv::ExpectedAttention{});
  same(kv::StreamingLLM{});
  same(kv::BackwardLOO{.window = 8});
  REQUIRE_THROWS_WITH(scored(cpu, kv::TOVA{}, x), catch_compat::contains("heads of one length"));
}

}  // namespace
