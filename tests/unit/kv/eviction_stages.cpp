// The stages one by one, the transform, the triggers, and what select() refuses: by the argument's name, nothing
// written.
#include <algorithm>
#include <limits>

#include "catch_compat.hpp"
#include "decant/kv/policies.hpp"
#include "decant/kv/rerotate.hpp"
#include "decant/kv/trigger.hpp"
#include "oracle/kv_scores.hpp"

namespace {

using namespace oracle;
using catch_compat::contains;
using decant::ArgumentError;
using decant::Cpu;
namespace kv = decant::kv;

const float infinity = std::numeric_limits<float>::infinity();

/// One head of scores on its way through the stages.
struct Head {
  std::vector<float> s;
  std::vector<std::uint8_t> keep;
  std::int32_t length;
  explicit Head(std::vector<float> scores)
      : s(std::move(scores)), keep(s.size(), 0), length(static_cast<std::int32_t>(s.size())) {}
  kv::ScoredLayer view() {
    kv::ScoredLayer v;
    v.scores = View<float, 2>(s.data(), 1, static_cast<index_t>(s.size()));
    v.keep = View<std::uint8_t, 2>(keep.data(), 1, static_cast<index_t>(s.size()));
    v.lengths = View<std::int32_t, 1>(&length, 1);
    return v;
  }
};

template <class S>
std::vector<float> smoothed(const S& stage, std::vector<float> scores) {
  Head h(std::move(scores));
  Cpu cpu;
  smooth(cpu, stage, h.view());
  return h.s;
}

TEST_CASE("pooling: zero padding divides by the size, replicate and reflect fill the ends") {
  using V = std::vector<float>;
  const V s{4, 0, 8, 2};
  REQUIRE(smoothed(kv::NoSmoothing{}, s) == s);
  REQUIRE(smoothed(kv::AvgPool{1}, s) == s);
  const float third = 1.0f / 3;
  REQUIRE(smoothed(kv::AvgPool{3}, s) == V{4 * third, 12 * third, 10 * third, 10 * third});
  REQUIRE(smoothed(kv::AvgPool{3, kv::Padding::replicate}, s) == V{8 * third, 12 * third, 10 * third, 12 * third});
  REQUIRE(smoothed(kv::AvgPool{3, kv::Padding::reflect}, s) == V{4 * third, 12 * third, 10 * third, 18 * third});
  REQUIRE(smoothed(kv::MaxPool{3}, s) == V{4, 8, 8, 8});
  REQUIRE(smoothed(kv::MaxPool{3}, V{-3, -1, -2}) == V{-1, -1, -1});  // nothing beyond the ends, not zero
  REQUIRE(smoothed(kv::MaxPool{3, kv::Padding::reflect}, s) == V{4, 8, 8, 8});
  // A pool wider than the row.
  REQUIRE(smoothed(kv::AvgPool{5}, V{5, 10}) == V{3, 3});
  REQUIRE(smoothed(kv::AvgPool{5, kv::Padding::replicate}, V{5}) == V{5});
  REQUIRE(smoothed(kv::AvgPool{7, kv::Padding::reflect}, V{1, 2}) == V{11 * (1.0f / 7), 10 * (1.0f / 7)});
  REQUIRE(smoothed(kv::MaxPool{31}, V{}) == V{});
  REQUIRE_THROWS_WITH(smoothed(kv::AvgPool{4}, s), contains("`size`: expected an odd number from 1 to 31, got 4"));
  REQUIRE_THROWS_WITH(smoothed(kv::MaxPool{33}, s), contains("got 33"));
}

TEST_CASE("protectors") {
  Cpu cpu;
  const auto marked = [&](const auto& stage, std::size_t n) {
    Head h(std::vector<float>(n, 0.0f));
    protect(cpu, stage, h.view());
    return std::vector<int>(h.keep.begin(), h.keep.end());
  };
  REQUIRE(marked(kv::NoProtection{}, 3) == std::vector<int>{0, 0, 0});
  REQUIRE(marked(kv::SinkRecent{1, 2}, 5) == std::vector<int>{1, 0, 0, 1, 1});
  REQUIRE(marked(kv::SinkRecent{4, 0}, 5) == std::vector<int>{1, 1, 1, 1, 0});
  REQUIRE(marked(kv::SinkRecent{9, 9}, 2) == std::vector<int>{1, 1});
  const std::vector<std::int32_t> list{7, 2, 2};
  REQUIRE(marked(kv::Anchors{list}, 4) == std::vector<int>{0, 0, 1, 0});
  const std::vector<std::int32_t> bad{-1};
  REQUIRE_THROWS_WITH(marked(kv::Anchors{bad}, 4), contains("`tokens`"));
  REQUIRE_THROWS_AS(marked(kv::SinkRecent{-1, 0}, 4), ArgumentError);
}

TEST_CASE("normalisers leave protected tokens out of the statistics") {
  Cpu cpu;
  Head h({1, 3, 100, 4});
  h.keep[2] = 1;
  normalise(cpu, kv::LayerSum{}, h.view());
  REQUIRE(h.s == std::vector<float>{0.125f, 0.375f, 12.5f, 0.5f});
  Head c({1, 3, 100, 4});
  c.keep[2] = 1;
  normalise(cpu, kv::HeadConcentration{.tokens = 1}, c.view());  // 4 of 8
  REQUIRE(c.s == std::vector<float>{0.5f, 1.5f, 50, 2});
  Head zero({0, 0});
  normalise(cpu, kv::LayerSum{}, zero.view());
  normalise(cpu, kv::HeadConcentration{.tokens = 1}, zero.view());
  REQUIRE(zero.s == std::vector<float>{0, 0});
  Head all({1, 2});
  normalise(cpu, kv::HeadConcentration{.tokens = 9}, all.view());
  REQUIRE(all.s == std::vector<float>{1, 2});
}

/// A scorer that gives whatever it is told.
struct Told {
  std::vector<float> s;
};
template <class X>
void score(Cpu&, const Told& t, const X& x, View<float, 2> scores) {
  for (index_t h = 0; h < x.kv_heads(); ++h) {
    for (index_t i = 0; i < x.length(h); ++i) scores(h, i) = t.s[static_cast<std::size_t>(i)];
  }
}

TEST_CASE("infinite scores are legal; a stage counts NaN as -inf, select() refuses it") {
  Cpu cpu;
  Layer<> data({6, 1, 1, 2, 2, 1});
  const auto kept = [&](const std::vector<float>& s, index_t b) {
    const kv::Kept k = select(cpu, Told{s}, data.view(), kv::Budget::tokens(b));
    std::vector<index_t> t;
    for (index_t i = 0; i < k.count(0); ++i) t.push_back(k.token(0, i));
    return t;
  };
  REQUIRE(kept({1, infinity, 2, -infinity, infinity, 3}, 3) == std::vector<index_t>{1, 4, 5});
  REQUIRE(kept({-infinity, -infinity, -infinity, -infinity, -infinity, -infinity}, 2) == std::vector<index_t>{0, 1});
  REQUIRE_THROWS_WITH(kept({1, 2, std::nanf(""), 4, 5, 6}, 2), contains("NaN at layer 0, head 0, token 2"));
  REQUIRE_THROWS_AS(kept({1, 2, std::nanf(""), 4, 5, 6}, 2), ArgumentError);

  Head h({1, std::nanf(""), -infinity, 0});
  std::vector<std::int32_t> out(4), counts{3}, written(1);
  const kv::KeptView view{View<std::int32_t, 2>(out.data(), 1, 4), View<std::int32_t, 1>(written)};
  choose(cpu, kv::TopTokens{}, data.view(), h.view(), View<const std::int32_t, 1>(counts), view);
  REQUIRE(std::vector<std::int32_t>(out.begin(), out.begin() + 3) == std::vector<std::int32_t>{0, 1, 3});
}

TEST_CASE("NaN in keys, values or queries is named before anything is written") {
  Cpu cpu;
  const auto refused = [&](Layer<>& data, const auto& policy, const char* text) {
    std::vector<std::int32_t> indices(80, -5), counts(2, -5);
    const kv::KeptView kept{View<std::int32_t, 2>(indices.data(), 2, 40), View<std::int32_t, 1>(counts)};
    REQUIRE_THROWS_WITH(select(cpu, policy, data.view(), kv::Budget::tokens(20), kept), contains(text));
    REQUIRE(std::count(indices.begin(), indices.end(), -5) == 80);
    REQUIRE(std::count(counts.begin(), counts.end(), -5) == 2);
    REQUIRE(cpu.workspace().used() == 0);
  };
  Layer<> key({40, 2, 3, 12, 10, 16}), value = key, query = key;
  key.key(1, 13, 4) = std::nanf("");
  refused(key, kv::SnapKV{.window = 8},
          "argument `x`: expected keys, values and queries that give every token a score, got NaN at layer 0, head 1, "
          "token 13");
  refused(key, kv::KNorm{}, "head 1, token 13");
  refused(key, kv::KeyDiff{}, "head 1, token 13");
  refused(key, kv::CapKV{}, "head 1, token 13");
  refused(key, kv::BackwardLOO{.window = 8}, "head 1, token 13");
  value.value(0, 9, 1) = std::nanf("");
  refused(value, kv::CapKV{}, "head 0, token 9");
  refused(value, kv::ExpectedAttention{}, "head 0, token 9");
  query.queries[3 * 12 * 16 + 12 * 15] = query.pre_rope[3 * 12 * 16 + 12 * 15] =
      std::nanf("");  // head 3: group of head 1
  refused(query, kv::SnapKV{.window = 8}, "NaN at layer 0, head 1");
  refused(query, kv::TOVA{}, "NaN at layer 0, head 0");  // TOVA's score is the same for all heads
  refused(query, kv::CapKV{}, "NaN at layer 0, head 1");
  refused(query, kv::ExpectedAttention{}, "NaN at layer 0, head 1");
}

TEST_CASE("select refuses by name what it cannot work with") {
  Cpu cpu;
  Layer<> data({40, 2, 3, 12, 10, 16});
  const kv::SnapKV snap{.window = 8};
  const kv::Budget b = kv::Budget::tokens(20);
  auto x = data.view();
  x.queries = {};
  REQUIRE_THROWS_WITH(select(cpu, snap, x, b),
                      contains("argument `x.queries`: expected queries of the last 8 tokens, got 0"));
  x.queries = View<const float, 3>(data.queries.data(), 6, 4, 12);
  REQUIRE_THROWS_WITH(select(cpu, snap, x, b), contains("queries of the last 8 tokens, got 4"));
  REQUIRE_THROWS_WITH(select(cpu, kv::H2O{}, data.view(), b), contains("queries of the last 40 tokens, got 16"));
  x.queries = View<const float, 3>(data.queries.data(), 5, 16, 12);
  REQUIRE_THROWS_WITH(select(cpu, snap, x, b), contains("a multiple of kv_heads = 2, got 5"));
  x = data.view();
  x.sequence = 1;
  REQUIRE_THROWS_WITH(select(cpu, snap, x, b), contains("argument `sequence`"));
  // Budgets below protection, in tokens and as a share, and no budget at all.
  REQUIRE_THROWS_WITH(
      select(cpu, snap, data.view(), kv::Budget::tokens(7)),
      contains("argument `budget`: expected at least the 8 protected tokens of layer 0, head 0, got 7"));
  REQUIRE_THROWS_WITH(select(cpu, snap, data.view(), kv::Budget::keep(0.1)),
                      contains("at least the 8 protected tokens of layer 0, head 0, got 4"));
  REQUIRE_THROWS_WITH(select(cpu, snap, data.view(), kv::Budget::tokens(-1)), contains("a token count of at least 0"));
  REQUIRE_THROWS_WITH(select(cpu, snap, data.view(), kv::Budget::keep(1.5)), contains("a share between 0 and 1"));
  REQUIRE_THROWS_WITH(select(cpu, kv::SnapKV{.window = 0}, data.view(), b),
                      contains("`window`: expected at least 1, got 0"));
  REQUIRE_THROWS_WITH(select(cpu, kv::SnapKV{.pool = 2}, data.view(), b), contains("`size`"));
  // Room in the result.
  std::vector<std::int32_t> indices(40, -5), counts(2, -5);
  kv::KeptView kept{View<std::int32_t, 2>(indices.data(), 2, 19), View<std::int32_t, 1>(counts)};
  REQUIRE_THROWS_WITH(select(cpu, snap, data.view(), b, kept), contains("room for 20 tokens of head 0, got 19"));
  kept.indices = View<std::int32_t, 2>(indices.data(), 1, 40);
  REQUIRE_THROWS_WITH(select(cpu, snap, data.view(), b, kept), contains("`kept.indices`: expected 2, got 1"));
  REQUIRE(std::count(indices.begin(), indices.end(), -5) == 40);
  kept.indices = View<std::int32_t, 2>(indices.data(), 2, 20);
  select(cpu, snap, data.view(), b, kept);
  REQUIRE(counts == std::vector<std::int32_t>{20, 20});
}

TEST_CASE("empty sequences and single tokens") {
  Cpu cpu;
  Layer<> none({0, 2, 1, 4, 4, 0});
  REQUIRE(select(cpu, kv::SnapKV{}, none.view(), kv::Budget::tokens(0)).total() == 0);
  REQUIRE(select(cpu, kv::CapKV{}, none.view(), kv::Budget::keep(0.5)).total() == 0);
  Layer<> one({1, 2, 1, 4, 4, 1});
  REQUIRE(select(cpu, kv::TOVA{}, one.view(), kv::Budget::tokens(1)).total() == 2);
  REQUIRE(select(cpu, kv::KNorm{}, one.view(), kv::Budget::tokens(0)).total() == 0);
}

TEST_CASE("rerotate: by 0 nothing, there and back, only differences count, and as recomputed from before RoPE") {
  const index_t dim = 16;
  Layer<> data({30, 2, 1, dim, 4, 1}, 3);
  Cpu cpu;
  for (const bool interleaved : {false, true}) {
    kv::Rope rope;
    rope.interleaved = interleaved;
    // From before RoPE: key t at position p[t], then moved to position t.
    std::vector<std::int32_t> positions;
    for (std::int32_t h = 0; h < 2; ++h) {
      for (std::int32_t t = 0; t < 30; ++t) positions.push_back(100000 + 3 * t + h);
    }
    Layer<> turned = data;
    for (index_t h = 0; h < 2; ++h) {
      for (index_t t = 0; t < 30; ++t)
        rotate_key(&turned.key(h, t, 0), dim, rope, positions[static_cast<std::size_t>(h * 30 + t)]);
    }
    const auto pairs = [&](Layer<>& l, index_t h, index_t t, index_t steps) {
      Row out(static_cast<std::size_t>(dim));
      for (index_t f = 0; f < dim / 2; ++f) {
        const index_t a = interleaved ? 2 * f : f, b = interleaved ? 2 * f + 1 : f + dim / 2;
        const double angle = static_cast<double>(steps) * std::pow(10000.0, -2.0 * static_cast<double>(f) / dim);
        out[static_cast<std::size_t>(a)] = l.k(h, t, a) * std::cos(angle) - l.k(h, t, b) * std::sin(angle);
        out[static_cast<std::size_t>(b)] = l.k(h, t, a) * std::sin(angle) + l.k(h, t, b) * std::cos(angle);
      }
      return out;
    };
    const Row there = pairs(data, 1, 7, positions[37]);
    for (index_t d = 0; d < dim; ++d)
      REQUIRE(turned.k(1, 7, d) == Approx(there[static_cast<std::size_t>(d)]).margin(1e-6));

    Layer<> moved = turned;
    rerotate(cpu, moved.cache(), 0, View<const std::int32_t, 2>(positions.data(), 2, 30), rope);
    for (index_t h = 0; h < 2; ++h) {
      for (index_t t = 0; t < 30; ++t) {
        const Row expected = pairs(data, h, t, t);
        for (index_t d = 0; d < dim; ++d)
          REQUIRE(moved.k(h, t, d) == Approx(expected[static_cast<std::size_t>(d)]).margin(1e-6));
      }
    }
    // q.k depends on the difference of positions alone.
    std::vector<float> q(data.keys.begin(), data.keys.begin() + dim),
        k(data.keys.begin() + dim, data.keys.begin() + 2 * dim);
    std::vector<double> dots;
    for (const index_t base : {0, 1, 5000, 131072}) {
      auto a = q, b = k;
      rotate_key(a.data(), dim, rope, base + 17);
      rotate_key(b.data(), dim, rope, base);
      double dot = 0;
      for (std::size_t d = 0; d < a.size(); ++d) dot += static_cast<double>(a[d]) * static_cast<double>(b[d]);
      dots.push_back(dot);
    }
    for (const double dot : dots) REQUIRE(dot == Approx(dots[0]).epsilon(1e-5).margin(1e-5));
    // There and back: within 2 ulp of the largest element, times sqrt(dim).
    auto back = q;
    rotate_key(back.data(), dim, rope, 99999);
    rotate_key(back.data(), dim, rope, -99999);
    float high = 0;
    for (const float v : q) high = std::max(high, std::abs(v));
    for (std::size_t d = 0; d < q.size(); ++d) REQUIRE(std::abs(back[d] - q[d]) <= 2 * 6e-8f * high * 4);
    auto same = q;
    rotate_key(same.data(), dim, rope, 0);
    REQUIRE(same == q);
  }
  const std::vector<std::int32_t> few(20, 0);
  REQUIRE_THROWS_WITH(rerotate(cpu, data.cache(), 0, View<const std::int32_t, 2>(few.data(), 2, 10), kv::Rope{}),
                      contains("one per cached token, 30, got 10"));
  REQUIRE_THROWS_WITH(rerotate(cpu, data.cache(), 1, View<const std::int32_t, 2>(few.data(), 2, 10), kv::Rope{}),
                      contains("`sequence`"));
}

TEST_CASE("triggers") {
  using kv::Step;
  REQUIRE(fires(kv::OncePerPrefill{}, Step{0, 9}));
  REQUIRE_FALSE(fires(kv::OncePerPrefill{}, Step{1, 9}));
  REQUIRE((fires(kv::EverySteps{3}, Step{0, 1}) && !fires(kv::EverySteps{3}, Step{2, 1}) &&
           fires(kv::EverySteps{3}, Step{6, 1})));
  REQUIRE((!fires(kv::AboveCapacity{8}, Step{1, 8}) && fires(kv::AboveCapacity{8}, Step{1, 9})));
  REQUIRE_THROWS_AS(validate(kv::EverySteps{0}), ArgumentError);
  REQUIRE_THROWS_AS(validate(kv::AboveCapacity{0}), ArgumentError);
}

}  // namespace
