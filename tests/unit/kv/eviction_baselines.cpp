// The baselines by hand: examples of eight tokens that can be followed on paper, and what the papers say their methods
// do.
#include <algorithm>

#include "catch_compat.hpp"
#include "decant/kv/policies.hpp"
#include "oracle/kv_scores.hpp"

namespace {

using namespace oracle;
using decant::Cpu;
using Tokens = std::vector<index_t>;
namespace kv = decant::kv;

Tokens head(const kv::Kept& kept, index_t h = 0) {
  Tokens t;
  for (index_t i = 0; i < kept.count(h); ++i) t.push_back(kept.token(h, i));
  return t;
}

template <class P>
Tokens kept(const P& policy, Layer<>& data, index_t budget, index_t h = 0) {
  Cpu cpu;
  return head(select(cpu, policy, data.view(), kv::Budget::tokens(budget)), h);
}

/// Eight tokens, one head: every query gives token t weights[t] before normalisation.
Layer<> by_hand(const std::vector<double>& weights, index_t queries) {
  Layer<> data({static_cast<index_t>(weights.size()), 1, 1, 4, 1, queries});
  for (std::size_t t = 0; t < weights.size(); ++t) {
    // A dot product over four equal entries, divided by sqrt(4).
    for (std::size_t d = 0; d < 4; ++d) data.keys[4 * t + d] = static_cast<float>(std::log(weights[t]) / 2);
    data.values[t] = 1;
  }
  for (float& q : data.queries) q = 1;
  return data;
}

TEST_CASE("by hand: SnapKV, with and without pooling") {
  // The last query spends 1, 2, 8, 1, 1, 4, 1, 1 nineteenths.
  Layer<> data = by_hand({1, 2, 8, 1, 1, 4, 1, 1}, 1);
  REQUIRE(kept(kv::SnapKV{.window = 1, .pool = 1}, data, 3) == Tokens{2, 5, 7});
  REQUIRE(kept(kv::SnapKV{.window = 1, .pool = 1}, data, 4) == Tokens{1, 2, 5, 7});
  // Average over 3: tokens 1 (11/3), 2 (11/3), 3 (10/3) surround the peak.
  REQUIRE(kept(kv::SnapKV{.window = 1, .pool = 3}, data, 4) == Tokens{1, 2, 3, 7});
  REQUIRE(kept(kv::SnapKV{.window = 1, .pool = 1}, data, 1) == Tokens{7});
}

TEST_CASE("by hand: a window of two is causal") {
  // Query 6 does not see token 7, whatever that weighs; both are kept as the window.
  Layer<> heavy = by_hand({3, 1, 2, 1, 1, 1, 1, 1000}, 2);
  Cpu cpu;
  std::vector<float> s(8);
  score(cpu, kv::WindowAttention{.window = 2}, heavy.view(), View<float, 2>(s.data(), 1, 8));
  REQUIRE(s[0] == Approx(0.5 * (3.0 / 10 + 3.0 / 1010)));
  REQUIRE(s[6] == 0);
  REQUIRE(kept(kv::SnapKV{.window = 2, .pool = 1}, heavy, 4) == Tokens{0, 2, 6, 7});
}

TEST_CASE("by hand: TOVA, KNorm, KeyDiff, StreamingLLM, H2O") {
  Layer<> data = by_hand({1, 2, 8, 1, 1, 4, 1, 1}, 8);
  REQUIRE(kept(kv::TOVA{}, data, 3) == Tokens{2, 5, 7});
  REQUIRE(kept(kv::StreamingLLM{.sinks = 2}, data, 5) == Tokens{0, 1, 5, 6, 7});

  Layer<> norms({8, 1, 1, 2, 1, 1});
  const float length[] = {5, 1, 7, 2, 9, 3, 8, 4};
  for (std::size_t t = 0; t < 8; ++t) norms.keys[2 * t] = length[t], norms.keys[2 * t + 1] = 0;
  REQUIRE(kept(kv::KNorm{}, norms, 3) == Tokens{1, 3, 5});

  // Six keys point along x, one along y, one against x: the odd ones out stay.
  for (std::size_t t = 0; t < 8; ++t) norms.keys[2 * t] = 1;
  norms.keys[2 * 3] = 0, norms.keys[2 * 3 + 1] = 2;
  norms.keys[2 * 6] = -1;
  REQUIRE(kept(kv::KeyDiff{}, norms, 2) == Tokens{3, 6});

  // H2O, plain sums: token t gathers from queries t ... 7. Budget 4: the last two, and the two heaviest others.
  Cpu cpu;
  std::vector<float> s(8);
  score(cpu, kv::AccumulatedAttention{.per_query = false}, data.view(), View<float, 2>(s.data(), 1, 8));
  const double prefix[] = {1, 3, 11, 12, 13, 17, 18, 19};
  double expected = 0;
  for (std::size_t i = 2; i < 8; ++i) expected += 8 / prefix[i];
  REQUIRE(s[2] == Approx(expected));
  REQUIRE(kept(kv::H2O{.per_query = false}, data, 4) == Tokens{0, 2, 6, 7});
  REQUIRE(kept(kv::H2O{.recent = 0, .per_query = false}, data, 2) == Tokens{0, 2});
  REQUIRE(kept(kv::H2O{.recent = 1, .per_query = false}, data, 2) == Tokens{6, 7});
}

TEST_CASE("by hand: H2O's recent share counts tokens that are protected already") {
  Layer<> data = by_hand({9, 1, 1, 1, 1, 1, 1, 1}, 8);
  const auto policy = kv::Eviction{kv::AccumulatedAttention{}, kv::NoSmoothing{}, kv::SinkRecent{0, 3},
                                   kv::NoNormalisation{},      kv::Uniform{},     kv::RecentAndTop{1.0f}};
  REQUIRE(kept(policy, data, 4) == Tokens{4, 5, 6, 7});
  // Sinks come before the recent share: one place is left.
  const auto sinks = kv::Eviction{kv::AccumulatedAttention{}, kv::NoSmoothing{}, kv::SinkRecent{4, 0},
                                  kv::NoNormalisation{},      kv::Uniform{},     kv::RecentAndTop{0.5f}};
  REQUIRE(kept(sinks, data, 5) == Tokens{0, 1, 2, 3, 7});
}

TEST_CASE("ties go to the lower token") {
  Layer<> data = by_hand({1, 1, 1, 1, 1, 1, 1, 1}, 1);
  for (float& k : data.keys) k = 1;
  REQUIRE(kept(kv::KNorm{}, data, 3) == Tokens{0, 1, 2});
  REQUIRE(kept(kv::KeyDiff{}, data, 3) == Tokens{0, 1, 2});
  REQUIRE(kept(kv::SnapKV{.window = 1, .pool = 1}, data, 3) == Tokens{0, 1, 7});
}

TEST_CASE("StreamingLLM keeps min(sinks, b) first and b - sinks last tokens") {
  for (index_t n = 0; n <= 12; ++n) {
    Layer<> data({n, 2, 1, 2, 2, 1});
    for (index_t sinks = 0; sinks <= 6; ++sinks) {
      for (index_t b = 0; b <= n; ++b) {
        Tokens expected;
        for (index_t t = 0; t < n; ++t) {
          if (t < std::min(sinks, b) || t >= n - std::max<index_t>(0, b - sinks)) expected.push_back(t);
        }
        REQUIRE(kept(kv::StreamingLLM{.sinks = sinks}, data, b) == expected);
        REQUIRE(kept(kv::StreamingLLM{.sinks = sinks}, data, b, 1) == expected);
      }
    }
  }
}

TEST_CASE("SnapKV's scores and the window's own mass sum to 1 per head") {
  Layer<> data({60, 2, 3, 12, 10, 16}, 5);
  Cpu cpu;
  std::vector<float> s(120);
  score(cpu, kv::WindowAttention{.window = 16}, data.view(), View<float, 2>(s.data(), 2, 60));
  const Table columns = over_group(column_sums(data, 16, [](double a) { return a; }), 3, 0);
  for (std::size_t h = 0; h < 2; ++h) {
    double outside = 0, window = 0;
    for (std::size_t t = 0; t < 60; ++t) outside += static_cast<double>(s[h * 60 + t]);
    for (std::size_t t = 44; t < 60; ++t) window += columns[h][t] / 16;
    REQUIRE(outside <= 1);
    REQUIRE(outside == Approx(1 - window).epsilon(1e-5));
  }
}

TEST_CASE("H2O online: the sums are the (step, head) pairs seen less the evicted mass") {
  const index_t kv_heads = 2, group = 2, capacity = 10;
  kv::AttentionAccumulator sums(kv_heads, capacity);
  Cpu cpu;
  double observed = 0, evicted = 0;
  index_t n = 4;
  for (std::uint32_t step = 0; step < 40; ++step) {
    std::vector<float> weights;
    for (index_t hq = 0; hq < kv_heads * group; ++hq) {
      double total = 0;
      std::vector<double> e;
      for (index_t t = 0; t < n; ++t) e.push_back(std::exp(normal(6, hq * 100 + t, step))), total += e.back();
      for (const double v : e) weights.push_back(static_cast<float>(v / total));
    }
    sums.add(View<const float, 2>(weights.data(), kv_heads * group, n));
    observed += static_cast<double>(kv_heads);
    if (n == capacity) {
      std::vector<float> k(static_cast<std::size_t>(kv_heads * n * 2), 1.0f);
      std::int32_t length = static_cast<std::int32_t>(n);
      const kv::DenseKV<float> cache{View<float, 4>(k.data(), 1, kv_heads, n, 2),
                                     View<float, 4>(k.data(), 1, kv_heads, n, 2), View<std::int32_t, 1>(&length, 1)};
      const auto policy = kv::Eviction{kv::GivenScores{sums.scores()}, kv::NoSmoothing{}, kv::NoProtection{},
                                       kv::NoNormalisation{},          kv::Uniform{},     kv::RecentAndTop{}};
      kv::Kept kept = select(cpu, policy, kv::LayerView{cache}, kv::Budget::tokens(n - 1));
      for (index_t h = 0; h < kv_heads; ++h) {
        const Tokens t = head(kept, h);
        // The evicted is the least of the non-recent: the first n - floor((n - 1) / 2).
        for (index_t i = 0; i < n; ++i) {
          if (std::binary_search(t.begin(), t.end(), i)) continue;
          evicted += static_cast<double>(sums.scores()(h, i));
          REQUIRE(i < n - (n - 1) / 2);
          for (index_t j = 0; j < n - (n - 1) / 2; ++j) REQUIRE(sums.scores()(h, i) <= sums.scores()(h, j));
        }
      }
      sums.compact(kept.view());
      n = n - 1;
    }
    ++n;
  }
  double held = 0;
  for (index_t h = 0; h < kv_heads; ++h) {
    for (index_t t = 0; t < capacity; ++t) held += static_cast<double>(sums.scores()(h, t));
  }
  REQUIRE(held == Approx(observed - evicted).epsilon(1e-5));
}

TEST_CASE("BlockwiseKeyDiff: the budget and one block at a time") {
  // Against the same rule written plainly over the scores of subsets.
  Layer<> data({70, 2, 1, 6, 2, 1}, 7);
  for (const index_t block : {1, 9, 128}) {
    for (const index_t budget : {5, 20}) {
      for (index_t h = 0; h < 2; ++h) {
        Tokens list;
        index_t next = 0;
        while (next < 70) {
          const index_t take = list.empty() ? budget + block : block;
          for (index_t i = 0; i < take && next < 70; ++i) list.push_back(next++);
          Layer<> part({static_cast<index_t>(list.size()), 1, 1, 6, 2, 1});
          for (std::size_t i = 0; i < list.size(); ++i) {
            for (index_t d = 0; d < 6; ++d) part.key(0, static_cast<index_t>(i), d) = data.key(h, list[i], d);
          }
          Tokens chosen;
          for (const index_t i : kept(kv::KeyDiff{}, part, budget)) chosen.push_back(list[static_cast<std::size_t>(i)]);
          list = chosen;
        }
        REQUIRE(kept(kv::BlockwiseKeyDiff{.block = block}, data, budget, h) == list);
      }
    }
  }
  REQUIRE(kept(kv::BlockwiseKeyDiff{.block = 128}, data, 20) == kept(kv::KeyDiff{}, data, 20));
}

TEST_CASE("Random keeps every token equally often: 10,000 seeds, below the 99.9 % point (false alarm 1e-3)") {
  const index_t n = 16, k = 5, seeds = 10000;
  Layer<> data({n, 1, 1, 2, 1, 1});
  std::vector<double> count(static_cast<std::size_t>(n), 0.0);
  Cpu cpu;
  for (std::uint64_t seed = 0; seed < static_cast<std::uint64_t>(seeds); ++seed) {
    const kv::Kept kept = select(cpu, kv::Random{.seed = seed}, data.view(), kv::Budget::tokens(k));
    for (index_t i = 0; i < k; ++i) ++count[static_cast<std::size_t>(kept.token(0, i))];
  }
  const double p = static_cast<double>(k) / static_cast<double>(n), expected = static_cast<double>(seeds) * p;
  double x = 0;
  for (const double c : count) x += (c - expected) * (c - expected) / (expected * (1 - p));
  x *= static_cast<double>(n - 1) / static_cast<double>(n);
  CAPTURE(x);
  REQUIRE(x < 37.697);  // chi-square, 15 degrees of freedom
  REQUIRE(x > 3.0);     // nor suspiciously even (0.05 %)
}

TEST_CASE("Random differs by seed, layer and head, and by nothing else") {
  Layer<> data({200, 2, 1, 2, 1, 1});
  Cpu cpu;
  auto x = data.view();
  x.layers = 2;
  const kv::Budget b = kv::Budget::tokens(50);
  const kv::Kept first = select(cpu, kv::Random{.seed = 1}, x, b);
  REQUIRE(head(first) == head(select(cpu, kv::Random{.seed = 1}, x, b)));
  REQUIRE(head(first) != head(first, 1));
  REQUIRE(head(first) != head(select(cpu, kv::Random{.seed = 2}, x, b)));
  REQUIRE(head(first) != head(select(cpu, kv::Random{.seed = (std::uint64_t{1} << 32) + 1}, x, b)));
  x.layer = 1;
  REQUIRE(head(first) != head(select(cpu, kv::Random{.seed = 1}, x, b)));
}

TEST_CASE("ExpectedAttention: Gaussian queries pay what z says (2e5 draws, within 3.3 standard errors)") {
  // mu'.k / sqrt d + k' Sigma k / (2 d) = log E[exp(q.k / sqrt d)] for q ~ N(mu, Sigma); no rotation.
  const index_t d = 4;
  const double mu[] = {0.3, -0.8, 0.5, 0.1},
               l[4][4] = {{0.9, 0, 0, 0}, {0.2, 0.7, 0, 0}, {-0.3, 0.1, 0.8, 0}, {0, 0.4, -0.2, 0.6}};
  const double k[] = {0.7, -0.4, 1.1, 0.9};
  double dot = 0, quadratic = 0;
  for (index_t a = 0; a < d; ++a) {
    dot += mu[a] * k[a];
    double lk = 0;  // the Cholesky form |L^T k|^2 of k^T Sigma k
    for (index_t b = 0; b < d; ++b) lk += l[b][a] * k[b];
    quadratic += lk * lk;
  }
  const double z = dot / 2 + quadratic / 8;
  double sum = 0, square = 0;
  const int draws = 200000;
  for (int i = 0; i < draws; ++i) {
    double g[4], q = 0;
    for (index_t a = 0; a < d; ++a) g[a] = normal(9, i, static_cast<std::uint32_t>(a));
    for (index_t a = 0; a < d; ++a) {
      double x = mu[a];
      for (index_t b = 0; b < d; ++b) x += l[a][b] * g[b];
      q += x * k[a];
    }
    const double e = std::exp(q / 2);
    sum += e;
    square += e * e;
  }
  const double mean = sum / draws, deviation = std::sqrt((square / draws - mean * mean) / draws);
  REQUIRE(std::abs(mean - std::exp(z)) < 3.3 * deviation);

  // The scorer says the same z for these moments: eight queries mu +- 2 L e_i have just that mean and covariance.
  Layer<> data({8, 1, 1, d, 2, 8});
  for (index_t i = 0; i < 8; ++i) {
    for (index_t a = 0; a < d; ++a) {
      data.pre_rope[static_cast<std::size_t>(i * d + a)] = static_cast<float>(mu[a] + (i % 2 ? -2 : 2) * l[a][i / 2]);
      data.key(0, i, a) = i == 0 ? static_cast<float>(k[a]) : 0.0f;
    }
  }
  Cpu cpu;
  std::vector<float> s(8);
  score(cpu, kv::ExpectedAttention{.sinks = 0, .future = 0, .value_norm = false}, data.view(),
        View<float, 2>(s.data(), 1, 8));
  REQUIRE(std::log(static_cast<double>(s[0]) / static_cast<double>(s[1])) == Approx(z).epsilon(1e-5));
}

TEST_CASE("ExpectedAttention with no covariance is softmax of mu'.k times the value's norm") {
  Layer<> data({30, 1, 1, 8, 3, 10}, 10), constant = data;
  for (index_t i = 0; i < 10; ++i) {  // equal queries: Sigma = 0
    for (index_t d = 0; d < 8; ++d)
      constant.pre_rope[static_cast<std::size_t>(i * 8 + d)] = constant.pre_rope[static_cast<std::size_t>(d)];
  }
  Cpu cpu;
  std::vector<float> with(30), without(30);
  score(cpu, kv::ExpectedAttention{}, constant.view(), View<float, 2>(with.data(), 1, 30));
  score(cpu, kv::ExpectedAttention{.covariance = false}, constant.view(), View<float, 2>(without.data(), 1, 30));
  for (std::size_t t = 0; t < 30; ++t) REQUIRE(with[t] == Approx(without[t]).epsilon(1e-5));
}

/// The renormalised outputs' error over the window's queries, in double.
double output_error(Layer<>& data, index_t h, const Tokens& kept, index_t w) {
  double error = 0, norm = 0;
  const LayerShape& s = data.shape;
  for (index_t i = s.queries - w; i < s.queries; ++i) {
    const Row a = attention_weights(data, h, i);
    double mass = 0;
    for (const index_t t : kept) mass += a[static_cast<std::size_t>(t)];
    for (index_t d = 0; d < s.value_dim; ++d) {
      double whole = 0, part = 0;
      for (index_t t = 0; t < s.n; ++t) whole += a[static_cast<std::size_t>(t)] * data.v(h / s.group, t, d);
      for (const index_t t : kept) part += a[static_cast<std::size_t>(t)] * data.v(h / s.group, t, d);
      error += (part / mass - whole) * (part / mass - whole);
      norm += whole * whole;
    }
  }
  return std::sqrt(error / norm);
}

/// The squared norm of the window's outputs over the whole cache.
double output_norm(Layer<>& data, index_t hq, index_t w) {
  double norm = 0;
  for (index_t i = data.shape.queries - w; i < data.shape.queries; ++i) {
    const Row a = attention_weights(data, hq, i);
    for (index_t d = 0; d < data.shape.value_dim; ++d) {
      double o = 0;
      for (index_t t = 0; t < data.shape.n; ++t) {
        o += a[static_cast<std::size_t>(t)] * data.v(hq / data.shape.group, t, d);
      }
      norm += o * o;
    }
  }
  return norm;
}

TEST_CASE("BackwardLOO evicts the one token whose loss changes the outputs least: 200 of 200 heads") {
  Layer<> data({24, 200, 1, 6, 5, 4}, 11);
  Cpu cpu;
  const kv::Kept kept = select(cpu, kv::BackwardLOO{.window = 4}, data.view(), kv::Budget::tokens(23));
  std::vector<float> cost(200 * 24);
  score(cpu, kv::BackwardLOO{.window = 4}, data.view(), View<float, 2>(cost.data(), 200, 24));
  for (index_t h = 0; h < 200; ++h) {
    index_t best = -1;
    double lowest = 1e300;
    const double norm = output_norm(data, h, 4);
    for (index_t gone = 0; gone < 24; ++gone) {
      Tokens rest;
      for (index_t t = 0; t < 24; ++t) {
        if (t != gone) rest.push_back(t);
      }
      const double error = output_error(data, h, rest, 4);
      REQUIRE(static_cast<double>(cost[static_cast<std::size_t>(h * 24 + gone)]) ==
              Approx(error * error * norm).epsilon(1e-4));
      if (gone < 20 && error < lowest) lowest = error, best = gone;
    }
    const Tokens t = head(kept, h);
    REQUIRE_FALSE(std::binary_search(t.begin(), t.end(), best));
  }
}

TEST_CASE("BackwardLOO is the exact elimination, step after step") {
  // Each step: the token without which the outputs stay closest to the whole cache's, by brute force.
  Layer<> data({18, 12, 2, 6, 5, 3}, 13);
  Cpu cpu;
  const kv::Kept got = select(cpu, kv::BackwardLOO{.window = 3}, data.view(), kv::Budget::tokens(6));
  for (index_t h = 0; h < 12; ++h) {
    Tokens left;
    for (index_t t = 0; t < 18; ++t) left.push_back(t);
    while (left.size() > 6) {
      double lowest = 1e300;
      Tokens best;
      for (std::size_t i = 0; i + 3 < left.size(); ++i) {  // the window's three stay
        Tokens rest = left;
        rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(i));
        double error = 0;
        for (index_t hq = 2 * h; hq < 2 * h + 2; ++hq) {
          const double relative = output_error(data, hq, rest, 3);
          error += relative * relative * output_norm(data, hq, 3);
        }
        if (error < lowest) lowest = error, best = rest;
      }
      left = best;
    }
    REQUIRE(head(got, h) == left);
  }
}

/// 48 decoys with the largest attention and no value, 48 signals with less attention and large values, 512 tokens.
Layer<> toy(bool decoys) {
  Layer<> data({512, 40, 1, 32, 32, 16}, 12);
  for (index_t h = 0; h < 40; ++h) {
    for (index_t i = 0; i < 16; ++i) data.queries[static_cast<std::size_t>((h * 16 + i) * 32)] = 5.0f;
    for (index_t t = 0; t < 512; ++t) {
      data.key(h, t, 0) = 0;
      if (!decoys || t % 5 != 0 || t >= 480) continue;
      const bool decoy = t % 10 == 0;
      data.key(h, t, 0) = decoy ? 5.0f : 3.5f;
      for (index_t d = 0; d < 32; ++d) data.value(h, t, d) *= decoy ? 0.0f : 4.0f;
    }
  }
  return data;
}

TEST_CASE("BackwardLOO beats attention in 40 of 40 heads, with decoys and without", "[statistics]") {
  // Attention keeps what weighs most; with renormalised outputs that is hard to beat, and no value-aware score is asked
  // to. The exact backward elimination must.
  for (const bool decoys : {true, false}) {
    Layer<> data = toy(decoys);
    Cpu cpu;
    const kv::Budget b = kv::Budget::tokens(64);
    const kv::Kept best = select(cpu, kv::BackwardLOO{.window = 16}, data.view(), b);
    const kv::Kept attention = select(cpu, kv::SnapKV{.window = 16, .pool = 1}, data.view(), b);
    int wins = 0;
    for (index_t h = 0; h < 40; ++h) {
      wins += output_error(data, h, head(best, h), 16) < output_error(data, h, head(attention, h), 16);
    }
    REQUIRE(wins == 40);
  }
}

TEST_CASE("BackwardLOO refuses long sequences, and never leaves a query without a token") {
  Layer<> data({4097, 1, 1, 2, 1, 2});
  Cpu cpu;
  REQUIRE_THROWS_WITH(select(cpu, kv::BackwardLOO{.window = 2}, data.view(), kv::Budget::tokens(9)),
                      catch_compat::contains("at most 4096 tokens, got 4097"));
  Layer<> single = by_hand({1e-30, 1e-30, 1, 1e-30, 1e-30, 1e-30, 1e-30, 1}, 1);
  for (std::size_t d = 0; d < 4; ++d) single.keys[8 + d] = 45;  // the query spends everything on token 2
  const Tokens t = kept(kv::BackwardLOO{.window = 1}, single, 2);
  REQUIRE(t == Tokens{2, 7});
}

}  // namespace
