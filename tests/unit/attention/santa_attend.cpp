// attend() with Santa over caches. With as many rows as there are keys, ThresholdSystematic takes every key with its
// own weight: then o is exact attention, and everything around the draws can be held against the definition.

#include "catch_compat.hpp"
#include "conformance/cache_fixtures.hpp"
#include "santa_problem.hpp"

using namespace decant;
using namespace decant::attention;

namespace their_engine {

/// A cache whose rows are handles, and which counts how often each is asked for.
struct CountedRow {
  const float* data;
};
inline void load_row(const CountedRow& row, index_t count, float* out) { std::copy_n(row.data, count, out); }
struct CountedCache {
  kv::DenseKV<const float> rows;
  std::vector<int>*keys, *values;  // [sequence][kv head][token], `capacity` tokens each
  index_t capacity;

  index_t sequences() const { return rows.sequences(); }
  index_t kv_heads() const { return rows.kv_heads(); }
  index_t key_dim() const { return rows.key_dim(); }
  index_t value_dim() const { return rows.value_dim(); }
  index_t length(index_t s, index_t h) const { return rows.length(s, h); }
  CountedRow key(index_t s, index_t h, index_t t) const { return {count(*keys, s, h, t, rows.key(s, h, t))}; }
  CountedRow value(index_t s, index_t h, index_t t) const { return {count(*values, s, h, t, rows.value(s, h, t))}; }
  index_t run(index_t, index_t, index_t) const { return 1; }
  index_t key_stride() const { return 0; }
  index_t value_stride() const { return 0; }

  const float* count(std::vector<int>& of, index_t s, index_t h, index_t t, const float* row) const {
    ++of[static_cast<std::size_t>((s * kv_heads() + h) * capacity + t)];
    return row;
  }
};
inline void validate(const CountedCache&) {}

}  // namespace their_engine

namespace attention_test {
namespace {

const Santa every_key{.samples = 1 << 20, .scheme = SantaScheme::threshold_systematic};

template <class T, class C, class M = Causal>
Result draw(Cpu& cpu, const Problem<T>& p, const C& cache, const Santa& a, const M& mask = {},
            const std::vector<float>& sinks = {}, const std::vector<std::uint32_t>& requests = {}) {
  Result r{std::vector<float>(at(p.total() * p.query_heads() * p.value_dim), quiet_nan),
           std::vector<float>(at(p.total() * p.query_heads()), quiet_nan)};
  attend(cpu, a, p.views(), cache, View<float, 3>(r.o.data(), p.total(), p.query_heads(), p.value_dim),
         View<float, 2>(r.lse.data(), p.total(), p.query_heads()), mask,
         sinks.empty() ? View<const float, 1>{} : View<const float, 1>(sinks),
         requests.empty() ? View<const std::uint32_t, 1>{} : View<const std::uint32_t, 1>(requests));
  return r;
}

template <class F>
void on_every_path(const F& body) {
  for (const Isa isa : paths()) {
    INFO(name(isa));
    Cpu cpu;
    cpu.set_isa(isa);
    body(cpu);
  }
}

template <class T>
void exact_over(index_t group, index_t key_dim, index_t value_dim) {
  INFO(name(dtype_of<T>));
  const Problem<T> p(2, group, key_dim, value_dim, {500, 0, 1, 64, 129}, {1, 1, 1, 2, 3});
  const DenseCache<T> cache(p);
  std::vector<float> sinks = normal(p.query_heads(), 5);
  sinks[0] = -infinity;
  on_every_path([&](Cpu& cpu) {
    for (const bool with_sinks : {false, true}) {
      const std::vector<float> s = with_sinks ? sinks : std::vector<float>{};
      Santa a = every_key;
      a.scale = 0.4f;
      a.soft_cap = 3.0f;
      const Dense same{.scale = 0.4f, .soft_cap = 3.0f};
      const Result r = draw(cpu, p, cache.view, a, Causal{}, s);
      const Exact expected = exact(p, same, Causal{}, s);
      CHECK(error(r, expected) < 5e-6);
      CHECK(lse_error(r, expected) < 1e-5);
    }
  });
}

TEST_CASE("Santa: with all keys taken it is exact attention, over rows of every type, groups and odd dims") {
  exact_over<float>(7, 17, 9);
  exact_over<bf16>(4, 64, 100);
  exact_over<fp16>(1, 33, 65);
  exact_over<fp8_e4m3>(3, 32, 16);
  exact_over<fp8_e5m2>(5, 96, 31);
}

TEST_CASE("Santa: lse is exact whatever is drawn, and 0 samples give o = 0") {
  const Problem<float> p(2, 3, 32, 16, {3000, 70, 0});
  const DenseCache<float> cache(p);
  const Exact expected = exact(p);
  on_every_path([&](Cpu& cpu) {
    for (const SantaScheme scheme : all_schemes)
      for (const index_t samples : {0, 1, 100}) {
        const Result r = draw(cpu, p, cache.view, {.samples = samples, .scheme = scheme});
        CHECK(lse_error(r, expected) < 1e-5);
        if (samples == 0) CHECK(r.o == std::vector<float>(r.o.size(), 0.0f));
        if (samples > 0) CHECK(std::count(r.o.begin(), r.o.end(), 0.0f) == 6 * 16);  // the empty sequence's
      }
  });
}

TEST_CASE("Santa: one key gives its value bit by bit, whatever the scheme and the samples") {
  Problem<float> p(2, 3, 8, 21, {1});
  p.value(0, 0, 0)[2] = -0.0f;
  p.value(0, 0, 0)[3] = 1e-42f;
  on_every_path([&](Cpu& cpu) {
    for (const SantaScheme scheme : all_schemes)
      for (const index_t samples : {1, 3, 100, 1000}) {
        INFO(name(scheme) << " samples " << samples);
        const Result r = draw(cpu, p, DenseCache<float>(p).view, {.samples = samples, .scheme = scheme});
        for (index_t head = 0; head < 6; ++head)
          CHECK(std::memcmp(r.o.data() + head * 21, p.value(0, head / 3, 0), 21 * sizeof(float)) == 0);
      }
  });
}

TEST_CASE("Santa: o is the sum of the rows that the sampler names") {
  // Values are unit vectors, so o holds the weights; equal keys, so the logits are known.
  Problem<float> p(1, 2, 4, 200, {200});
  std::fill(p.keys.begin(), p.keys.end(), 0.5f);
  std::fill(p.values.begin(), p.values.end(), 0.0f);
  for (index_t t = 0; t < 200; ++t) p.value(0, 0, t)[t] = 1;
  on_every_path([&](Cpu& cpu) {
    for (const SantaScheme scheme : all_schemes) {
      const Santa a{.samples = 64, .scheme = scheme, .layer = 3};
      const Result r = draw(cpu, p, DenseCache<float>(p).view, a);
      Sampling sampling(a, Sampling::Logits(2, std::vector<float>(200, 0.0f)));
      for (index_t g = 0; g < 2; ++g) {
        const std::vector<double> w = sampling.weights(200, g);  // the step is the number of keys
        for (index_t t = 0; t < 200; ++t) CHECK(static_cast<double>(r.o[at(g * 200 + t)]) == w[at(t)]);
      }
    }
  });
}

TEST_CASE("Santa: every key is read once, and of the values the rows that are named, once for each head") {
  Problem<float> p(1, 3, 4, 4, {700});
  std::fill(p.keys.begin(), p.keys.end(), 0.5f);  // known logits
  const DenseCache<float> cache(p);
  Cpu cpu;
  for (const SantaScheme scheme : all_schemes)
    for (const index_t samples : {1, 40, 5000}) {
      INFO(name(scheme) << " samples " << samples);
      std::vector<int> keys(700), values(700), expected(700);
      const Santa a{.samples = samples, .scheme = scheme};
      draw(cpu, p, their_engine::CountedCache{cache.view, &keys, &values, 700}, a);
      Sampling sampling(a, Sampling::Logits(3, std::vector<float>(700, 0.0f)));
      for (const Sampling::Row& r : sampling.rows(700)) ++expected[at(r.key)];
      CHECK(values == expected);
      CHECK(keys == std::vector<int>(700, 1));
    }
}

TEST_CASE("Santa: the queries of a prompt together read nearly all values, which is why it is for decoding",
          "[statistics]") {
  // Keys that are all alike: with S samples per query a share of S / (S + 1) of the rows is read, up to 1 / 2n. 16
  // sequences of 1024 keys, 5 standard errors of independent rows: falsely rejected once in a million seeds.
  const index_t n = 1024;
  Problem<float> p(1, 1, 4, 4, std::vector<index_t>(16, n), std::vector<index_t>(16, n));
  std::fill(p.keys.begin(), p.keys.end(), 0.5f);
  std::vector<std::uint32_t> requests(16);
  std::iota(requests.begin(), requests.end(), 0u);
  const DenseCache<float> cache(p);
  Cpu cpu;
  for (const Santa& a : {Santa{.samples = 1}, Santa{.samples = 4}, Santa{.samples = 16},
                         Santa{.samples = 4, .scheme = SantaScheme::plain}}) {
    INFO(name(a.scheme) << " samples " << a.samples);
    std::vector<int> keys(at(16 * n)), values(at(16 * n));
    draw(cpu, p, their_engine::CountedCache{cache.view, &keys, &values, n}, a, Causal{}, {}, requests);
    const auto rows = static_cast<double>(16 * n), samples = static_cast<double>(a.samples);
    const double read = 1 - static_cast<double>(std::count(values.begin(), values.end(), 0)) / rows;
    const double expected = samples / (samples + 1);
    CHECK(std::abs(read - expected) < 5 * std::sqrt(expected * (1 - expected) / rows) + 0.5 / static_cast<double>(n));
  }
}

TEST_CASE("Santa: masks, and what unseen keys hold does not matter") {
  Problem<float> p(1, 2, 16, 12, {300, 90}, {1, 4});
  std::vector<std::uint8_t> bits(38 + 45);
  for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<std::uint8_t>(37 * i * i + 11 * i);
  bits[20] = bits[21] = bits[22] = bits[23] = bits[24] = bits[25] = bits[26] = bits[27] = 0;  // a block and more
  const std::vector<index_t> offsets{0, 38, 83};
  const BitMask mask{bits, offsets};
  Problem<float> poisoned = p;
  for (index_t t = 0; t < 300; ++t)
    if (!mask.allowed(0, 0, t, 1, 300)) {
      std::fill_n(poisoned.key(0, 0, t), 16, quiet_nan);
      std::fill_n(poisoned.value(0, 0, t), 12, quiet_nan);
    }
  on_every_path([&](Cpu& cpu) {
    const DenseCache<float> cache(p);
    CHECK(error(draw(cpu, p, cache.view, every_key, mask), exact(p, Dense{}, mask)) < 5e-6);
    CHECK(lse_error(draw(cpu, p, cache.view, every_key, mask), exact(p, Dense{}, mask)) < 1e-5);
    CHECK(error(draw(cpu, p, cache.view, every_key, Window{.left = 70}), exact(p, Dense{}, Window{.left = 70})) < 5e-6);
    CHECK(error(draw(cpu, p, cache.view, every_key, Full{}), exact(p, Dense{}, Full{})) < 5e-6);
    for (const SantaScheme scheme : all_schemes) {
      const Santa a{.samples = 40, .scheme = scheme};
      const Result clean = draw(cpu, p, cache.view, a, mask);
      CHECK(draw(cpu, poisoned, DenseCache<float>(poisoned).view, a, mask).same_bits(clean));
    }
  });
}

TEST_CASE("Santa: NaN stays in the heads that see it or draw it") {
  const Problem<float> p(2, 2, 16, 12, {200, 100});
  const auto nan_heads = [&](Cpu& cpu, const Problem<float>& q, const Santa& a) {
    const Result r = draw(cpu, q, DenseCache<float>(q).view, a);
    const Result clean = draw(cpu, p, DenseCache<float>(p).view, a);
    std::vector<int> heads;
    for (index_t i = 0; i < 8; ++i) {
      const float* o = r.o.data() + i * 12;
      if (std::isnan(o[5]))
        heads.push_back(static_cast<int>(i));
      else
        CHECK(std::memcmp(o, clean.o.data() + i * 12, 12 * sizeof(float)) == 0);
    }
    return heads;
  };
  on_every_path([&](Cpu& cpu) {
    for (const SantaScheme scheme : all_schemes) {
      INFO(name(scheme));
      const Santa a{.samples = 50, .scheme = scheme};
      Problem<float> q = p;
      q.key(0, 1, 77)[3] = quiet_nan;
      CHECK(nan_heads(cpu, q, a) == std::vector<int>{2, 3});
      q = p;
      q.query(1, 2)[3] = quiet_nan;
      CHECK(nan_heads(cpu, q, a) == std::vector<int>{6});
      q = p;
      q.query(1, 0)[0] = infinity;
      CHECK(nan_heads(cpu, q, a) == std::vector<int>{4});
      // Head 0 never draws a key that it gives no weight; head 1 always draws it.
      q = p;
      for (index_t d = 0; d < 16; ++d) q.key(0, 0, 9)[d] = 100 * q.query(0, 1)[d] - 100 * q.query(0, 0)[d];
      const Result clean = draw(cpu, q, DenseCache<float>(q).view, a);
      q.value(0, 0, 9)[5] = quiet_nan;
      const Result r = draw(cpu, q, DenseCache<float>(q).view, a);
      CHECK(std::isnan(r.o[12 + 5]));
      CHECK(r.o[12 + 4] == clean.o[12 + 4]);
      CHECK(std::memcmp(r.o.data(), clean.o.data(), 12 * sizeof(float)) == 0);
    }
  });
}

TEST_CASE("Santa: draws do not depend on the queries beside, nor on threads; requests tell sequences apart", "[threads]") {
  const Problem<float> p(2, 2, 24, 16, {90, 200, 0, 90}, {30, 1, 1, 2});
  for (const SantaScheme scheme : {SantaScheme::global_systematic, SantaScheme::flash}) {
    const Santa a{.samples = 20, .scheme = scheme};
    on_every_path([&](Cpu& cpu) {
      const Result all = draw(cpu, p, DenseCache<float>(p).view, a);
      Cpu parallel(real_threads(3));
      parallel.set_isa(cpu.isa());
      CHECK(draw(parallel, p, DenseCache<float>(p).view, a).same_bits(all));
      // Query 12 of sequence 0 alone: the first 73 tokens and one query.
      Problem<float> one(2, 2, 24, 16, {73});
      for (index_t h = 0; h < 2; ++h) {
        std::copy_n(p.key(0, h, 0), 73 * 24, one.key(0, h, 0));
        std::copy_n(p.value(0, h, 0), 73 * 16, one.value(0, h, 0));
      }
      std::copy_n(p.q.data() + 12 * 4 * 24, one.q.size(), one.q.data());
      const Result alone = draw(cpu, one, DenseCache<float>(one).view, a);
      CHECK(std::memcmp(alone.o.data(), all.o.data() + 12 * 4 * 16, alone.o.size() * sizeof(float)) == 0);
    });
  }
  Problem<float> twins(1, 2, 16, 8, {150, 150});
  std::copy_n(twins.key(0, 0, 0), 150 * 16, twins.key(1, 0, 0));
  std::copy_n(twins.value(0, 0, 0), 150 * 8, twins.value(1, 0, 0));
  std::copy_n(twins.q.data(), 32, twins.q.data() + 32);
  Cpu cpu;
  const DenseCache<float> cache(twins);
  const auto halves_equal = [](const Result& r) { return std::equal(r.o.begin(), r.o.begin() + 16, r.o.begin() + 16); };
  CHECK(halves_equal(draw(cpu, twins, cache.view, {.samples = 30})));
  CHECK(halves_equal(draw(cpu, twins, cache.view, {.samples = 30}, Causal{}, {}, {9, 9})));
  CHECK(!halves_equal(draw(cpu, twins, cache.view, {.samples = 30}, Causal{}, {}, {9, 8})));
}

TEST_CASE("Santa: scores in pieces for many threads change no bit", "[threads]") {
  for (Problem<float>& p : std::vector<Problem<float>>{
           {1, 3, 24, 16, {5000}}, {2, 2, 16, 8, {0, 1025, 0, 3, 0}}, {1, 1, 8, 8, {1024, 2049}, {2, 1}}}) {
    p.key(p.sequences() == 1 ? 0 : 1, 0, 700)[5] = p.sequences() == 2 ? quiet_nan : 0.0f;
    const DenseCache<float> cache(p);
    for (const SantaScheme scheme : {SantaScheme::global_systematic, SantaScheme::prop}) {
      Cpu serial;
      const Santa a{.samples = 100, .scheme = scheme};
      const Result expected = draw(serial, p, cache.view, a);
      for (const int count : {2, 4, 9}) {
        Cpu parallel(real_threads(count));
        CHECK(draw(parallel, p, cache.view, a).same_bits(expected));
      }
    }
  }
}

TEST_CASE("Santa: over a cache with rows of an engine's own, and heads of different lengths") {
  const conformance::Lengths lengths{{40, 0, 65}, {1, 64, 70}};
  conformance::Int8Fixture fixture(lengths, 20, 12, 0);
  const auto cache = fixture.cache();
  const std::vector<float> q = normal(2 * 6 * 20, 5);
  on_every_path([&](Cpu& cpu) {
    std::vector<float> exact_o(2 * 6 * 12), o(exact_o.size()), exact_lse(12), lse(12);
    const View<const float, 3> queries(q.data(), 2, 6, 20);
    const auto attend_to = [&](const auto& policy, std::vector<float>& to, std::vector<float>& to_lse) {
      attend(cpu, policy, queries, cache, View<float, 3>(to.data(), 2, 6, 12), View<float, 2>(to_lse.data(), 2, 6));
    };
    attend_to(Dense{}, exact_o, exact_lse);
    attend_to(every_key, o, lse);
    CHECK(oracle::relative_error(doubles(o), doubles(exact_o)) < 5e-6);
    for (std::size_t i = 0; i < 12; ++i) CHECK((lse[i] == exact_lse[i] || lse[i] == Approx(exact_lse[i]).margin(1e-5)));
  });
}

TEST_CASE("Santa: arguments that do not fit are refused by name before anything is written") {
  const Problem<float> p(2, 3, 16, 8, {40, 20});
  const DenseCache<float> cache(p);
  Cpu cpu;
  const auto refused = [&](const char* argument, const Santa& a, const std::vector<std::uint32_t>& requests = {}) {
    INFO(argument);
    std::vector<float> o(2 * 6 * 8, 7.0f);
    const auto call = [&] {
      attend(cpu, a, p.views(), cache.view, View<float, 3>(o.data(), 2, 6, 8), View<float, 2>{}, Causal{},
             View<const float, 1>{}, View<const std::uint32_t, 1>(requests));
    };
    CHECK_THROWS_WITH(call(), catch_compat::contains(argument));
    CHECK_THROWS_AS(call(), ArgumentError);
    CHECK(o == std::vector<float>(o.size(), 7.0f));
  };
  refused("`samples`", {.samples = -1});
  refused("`samples`", {.samples = (1 << 20) + 1});
  refused("`scheme`", {.scheme = static_cast<SantaScheme>(7)});
  refused("`tile`", {.tile = -16});
  refused("`tile`", {.tile = 40});
  refused("`layer`", {.layer = 65536});
  for (const float bad : {-1.0f, quiet_nan, infinity}) {
    refused("`scale`", {.scale = bad});
    refused("`soft_cap`", {.soft_cap = bad});
  }
  refused("`requests`", {}, {1});
  refused("`requests`", {}, {1, 2, 3});
}

}  // namespace
}  // namespace attention_test
