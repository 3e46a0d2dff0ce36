// The selectors that weigh tokens against each other, on the device: token for token the CPU's, given the same scores.
#include "catch_compat.hpp"
#include "cuda/kv_scores/device_copy.cuh"
#include "decant/kv/backward_loo.cuh"
#include "decant/kv/greedy_log_det.cuh"
#include "fixtures.cuh"
#include "graph.cuh"
#include "oracle/kv_layer.hpp"
#include "twins.cuh"

namespace {

using namespace cuda_test;
using conformance::Lengths;
using decant::Cpu;
using decant::Cuda;
using oracle::Layer;

/// Rows with duplicates and a row of zeros, weights with some that do not count, and marks.
struct WeightedRows {
  index_t n, dim, stride;
  std::vector<double> rows, weights;
  std::vector<std::uint8_t> marks;

  WeightedRows(index_t rows_of, index_t columns, std::uint64_t seed) : n(rows_of), dim(columns), stride(columns + 1) {
    for (index_t i = 0; i < n; ++i) {
      const index_t same = i % 5 == 4 ? i - 3 : i;  // as the row three before
      for (index_t d = 0; d < stride; ++d) rows.push_back(i == 7 ? 0.0 : oracle::normal(seed, same * stride + d));
      const double w = decant::Philox{seed}.uniform(static_cast<std::uint32_t>(same), 1);
      weights.push_back(i % 11 == 10 ? -w : i % 13 == 12 ? std::nan("") : w);
      marks.push_back(i % 9 == 3 ? 1 : 0);
    }
  }
  View<const double, 2> view(const double* data) const { return {data, {n, dim}, {stride, 1}}; }
  index_t marked() const { return std::count(marks.begin(), marks.end(), 1); }
};

TEST_CASE("greedy_log_det chooses the CPU's rows") {
  const Stream stream;
  Cuda cuda(stream);
  Cpu cpu;
  // The inverse of a dim of 180 does not fit into shared memory; 2100 rows of doubles are two for some threads.
  const index_t shapes[][2] = {{1, 1}, {5, 3}, {70, 1}, {33, 3}, {60, 80}, {200, 24}, {24, 180}, {2100, 2}};
  for (const auto& [n, dim] : shapes) {
    const WeightedRows r(n, dim, static_cast<std::uint64_t>(n));
    const DeviceBuffer<double> rows(r.rows), weights(r.weights);
    for (const index_t count : {r.marked(), r.marked() + std::min<index_t>(n / 3, 30), n}) {
      if (count > 100) continue;
      CAPTURE(n, dim, count);
      std::vector<std::uint8_t> expected = r.marks;
      DeviceBuffer<std::uint8_t> chosen(r.marks);
      kv::greedy_log_det(cpu, r.view(r.rows.data()), r.weights, 0.3, count, View<std::uint8_t, 1>(expected));
      kv::greedy_log_det(cuda, r.view(rows.data()), weights.view(n), 0.3, count, chosen.view(n));
      cuda.check();
      REQUIRE(std::count(expected.begin(), expected.end(), 1) == count);
      REQUIRE(chosen.download() == expected);
    }
  }
}

TEST_CASE("greedy_log_det: where gains differ by rounding alone, it rounds as the CPU does") {
  const Stream stream;
  Cuda cuda(stream);
  Cpu cpu;
  const index_t n = 48, dim = 7;
  const std::vector<double> ones(n, 1.0);
  std::vector<double> all;  // the same numbers in other orders
  for (index_t i = 0; i < n; ++i) {
    for (index_t d = 0; d < dim; ++d) all.push_back(oracle::normal(3, (d * (i % 6 + 1) + i / 6) % dim));
  }
  const DeviceBuffer<double> rows(all), weights(ones);
  for (const index_t count : {1, 7, 20, 40}) {
    std::vector<std::uint8_t> expected(n, 0);
    DeviceBuffer<std::uint8_t> chosen(expected);
    kv::greedy_log_det(cpu, View<const double, 2>(all.data(), n, dim), ones, 0.7, count, expected);
    kv::greedy_log_det(cuda, rows.view(n, dim), weights.view(n), 0.7, count, chosen.view(n));
    cuda.check();
    REQUIRE(chosen.download() == expected);
  }
}

TEST_CASE("greedy_log_det refuses what it cannot choose, and writes nothing") {
  const Stream stream;
  Cuda cuda(stream);
  const WeightedRows r(40, 3, 1);
  const DeviceBuffer<double> rows(r.rows), weights(r.weights);
  DeviceBuffer<std::uint8_t> chosen(r.marks);
  const auto choose = [&](index_t n, double ridge, index_t count) {
    kv::greedy_log_det(cuda, r.view(rows.data()), weights.view(n), ridge, count, chosen.view(40));
  };
  REQUIRE_THROWS_WITH(choose(39, 1.0, 20), catch_compat::contains("weights"));
  REQUIRE_THROWS_WITH(choose(40, 0.0, 20), catch_compat::contains("ridge"));
  REQUIRE_THROWS_WITH(choose(40, 1.0, 41), catch_compat::contains("count"));
  choose(40, 1.0, r.marked() - 1);
  REQUIRE_THROWS_WITH(cuda.check(), catch_compat::contains("kv::greedy_log_det: argument `count`"));
  REQUIRE(chosen.download() == r.marks);
  choose(40, 1.0, r.marked());
  cuda.check();
  REQUIRE(chosen.download() == r.marks);
  kv::greedy_log_det(cuda, {}, {}, 1.0, 0, {});
  cuda.check();
}

/// A scored layer over one sequence of a fixture's cache; counts of the tokens that are not protected as `share`.
template <class Fixture>
void check_greedy(index_t dim, int kind, double share) {
  const Lengths lengths = Fixture::ragged ? Lengths{{9, 9, 9}, {57, 0, 38}} : Lengths{{9, 9, 9}, {57, 57, 57}};
  Cpu cpu;
  for (int variant = 0; variant < Fixture::variants; variant += 5) {
    CAPTURE(dim, kind, variant, share);
    const Stream stream;
    Cuda cuda(stream);
    Fixture fixture(lengths, 4, dim, variant);
    const Twin<Fixture> twin(fixture);
    kv::LayerView<decltype(fixture.cache())> host{fixture.cache()}, device{twin.cache()};
    host.sequence = device.sequence = 1;
    device.longest = 57;
    Scored s(3, 57, 5, kind);
    s.protect_some(6, 7);
    std::vector<std::int32_t> counts;
    for (index_t h = 0; h < 3; ++h) {
      const auto n = static_cast<std::int32_t>(lengths[1][static_cast<std::size_t>(h)]);
      s.lengths[static_cast<std::size_t>(h)] = n;
      const auto kept = static_cast<std::int32_t>(std::count(s.keep.begin() + h * 57, s.keep.begin() + h * 57 + n, 1));
      counts.push_back(kept + static_cast<std::int32_t>(share * (n - kept)));
    }
    const DeviceScored d(s);
    const DeviceBuffer<std::int32_t> d_counts(counts);
    const DeviceKept got(3, 57);
    kv::Kept expected(3, 57);
    const kv::GreedyLogDet selector{.ridge = 0.5f};
    choose(cpu, selector, host, s.view(), View<const std::int32_t, 1>(counts), expected);
    choose(cuda, selector, device, d.view(), View<const std::int32_t, 1>(d_counts.view(3)), got.view());
    cuda.check();
    REQUIRE(got.tokens() == tokens(expected));
    // Room for one token less than the longest list: refused, and nothing written.
    const index_t most = *std::max_element(counts.begin(), counts.end());
    if (most == 0) continue;
    const DeviceKept less(3, most - 1);
    choose(cuda, selector, device, d.view(), View<const std::int32_t, 1>(d_counts.view(3)), less.view());
    REQUIRE_THROWS_WITH(cuda.check(), catch_compat::contains("room for every head's tokens"));
    REQUIRE(less.untouched());
  }
}

TEST_CASE("GreedyLogDet chooses the CPU's tokens from every cache, whatever the scores") {
  for (int kind = 0; kind < 4; ++kind) {  // few values, infinities, all equal
    check_greedy<conformance::Dense<float>>(3, kind, 0.4);
  }
  check_greedy<conformance::Paged<decant::bf16>>(80, 0, 0.3);
  check_greedy<conformance::Ragged<decant::fp16>>(1, 0, 0.5);
  check_greedy<conformance::Ragged<float>>(16, 0, 1.0);
  check_greedy<conformance::Paged<float>>(5, 2, 0.0);
}

TEST_CASE("GreedyLogDet sees duplicates, and takes the earlier of equal tokens") {
  const Stream stream;
  Cuda cuda(stream);
  Scored s(1, 6, 1, 2);
  Layers layers(s);
  layers.values = {1, 0, 5, 0, 0, 3, 5, 0, 0, 0, 5, 0};  // tokens 1, 3 and 5 are the same
  layers.upload();
  const DeviceScored d(s);
  for (const auto& [count, expected] :
       {std::pair<std::int32_t, std::vector<index_t>>{1, {1}}, {2, {1, 2}}, {3, {1, 2, 3}}, {4, {1, 2, 3, 5}}}) {
    const DeviceBuffer<std::int32_t> counts(std::vector<std::int32_t>{count});
    const DeviceKept kept(1, 6);
    choose(cuda, kv::GreedyLogDet{}, layers.device_dense(), d.view(), View<const std::int32_t, 1>(counts.view(1)),
           kept.view());
    cuda.check();
    REQUIRE(kept.tokens()[0] == expected);
  }
}

template <class P, class X>
void check_policy(const P& policy, const X& x, index_t budget) {
  CAPTURE(x.max_length(), budget);
  const Stream stream;
  Cuda cuda(stream);
  Cpu cpu;
  DeviceCopy copy;
  const DeviceKept kept(x.kv_heads(), x.max_length());
  select(cuda, policy, copy(x), kv::Budget::tokens(budget), kept.view());
  cuda.check();
  REQUIRE(kept.tokens() == tokens(select(cpu, policy, x, kv::Budget::tokens(budget))));
}

TEST_CASE("GreedyCapKV selects on the device what it selects on the CPU") {
  for (const auto& shape : {oracle::LayerShape{90, 2, 4, 16, 12, 90}, {40, 3, 1, 80, 80, 3}, {20, 1, 2, 2, 1, 20}}) {
    Layer<> data(shape, 31);
    for (const index_t budget : {index_t{6}, shape.n / 2, shape.n - 1}) {
      check_policy(kv::GreedyCapKV{}, data.view(), budget);
    }
  }
  Layer<decant::bf16> coarse({70, 2, 2, 12, 6, 70}, 32);
  check_policy(kv::GreedyCapKV{.weights = {.sinks = 0}}, coarse.view(), 25);
  Layer<> holes({50, 2, 2, 8, 6, 50}, 33);
  holes.value(1, 20, 3) = cuda_test::nan;  // that no weight depends on: the token comes last, on both
  check_policy(kv::GreedyCapKV{}, holes.view(), 30);
}

TEST_CASE("GreedyCapKV: a NaN key is told as everywhere") {
  const Stream stream;
  Cuda cuda(stream);
  DeviceCopy copy;
  Layer<> data({50, 2, 2, 8, 6, 50}, 33);
  data.key(1, 13, 2) = cuda_test::nan;
  const DeviceKept kept(2, 50);
  select(cuda, kv::GreedyCapKV{}, copy(data.view()), kv::Budget::tokens(20), kept.view());
  REQUIRE_THROWS_WITH(cuda.check(), catch_compat::contains("a fault at layer 0, head 1, index 13"));
  REQUIRE(kept.untouched());
}

/// Twice: no new memory; captured: replayed over other rows.
template <class P>
void check_replay(const P& policy) {
  Cpu cpu;
  const Stream stream;
  Cuda cuda(stream);
  Layer<> data({60, 2, 2, 12, 10, 60}, 34), other({60, 2, 2, 12, 10, 60}, 35);
  const DeviceBuffer<float> queries(data.queries), pre_rope(data.pre_rope);
  DeviceBuffer<float> keys(data.keys), values(data.values);
  DeviceBuffer<std::int32_t> length(std::vector<std::int32_t>{60});
  auto x = data.view();
  x.cache = {keys.view(1, 2, 60, 12), values.view(1, 2, 60, 10), length.view(1)};
  x.queries = View<const float, 3>(queries.data(), 4, 60, 12);
  x.queries_pre_rope = View<const float, 3>(pre_rope.data(), 4, 60, 12);
  const DeviceKept kept(2, 60);
  const auto call = [&] { select(cuda, policy, x, kv::Budget::tokens(25), kept.view()); };
  call();
  const std::size_t high_water = cuda.workspace().high_water();
  call();
  REQUIRE(cuda.workspace().high_water() == high_water);
  REQUIRE(cuda.workspace().used() == 0);
  const cuda_test::Graph graph(stream, call);
  for (const std::int32_t n : {60, 47}) {  // a shorter sequence, too
    data.length = n;
    length.upload({n});
    graph.launch(stream);
    cuda.check();
    auto y = data.view();
    y.queries = View<const float, 3>(data.queries.data(), 4, 60, 12);
    REQUIRE(kept.tokens() == tokens(select(cpu, policy, y, kv::Budget::tokens(25))));
    keys.upload(other.keys);
    values.upload(other.values);
    data.keys = other.keys;
    data.values = other.values;
  }
}

TEST_CASE("a second call takes no memory; a graph follows its data") {
  check_replay(kv::GreedyCapKV{});
  check_replay(kv::BackwardLOO{.window = 8});
}

/// The CPU's scores to the bit, and its tokens.
template <class X>
void check_loo(Cuda& cuda, const kv::BackwardLOO& p, const X& host, const X& device, index_t budget) {
  Cpu cpu;
  const index_t heads = host.kv_heads(), n = host.max_length();
  CAPTURE(n, heads, p.window, budget);
  std::vector<float> expected(static_cast<std::size_t>(heads * n), -7.0f);
  score(cpu, p, host, View<float, 2>(expected.data(), heads, n));
  REQUIRE(scored(cuda, p, device, n) == expected);
  const DeviceKept kept(heads, n);
  select(cuda, p, device, kv::Budget::tokens(budget), kept.view());
  cuda.check();
  REQUIRE(kept.tokens() == tokens(select(cpu, p, host, kv::Budget::tokens(budget))));
}

TEST_CASE("BackwardLOO: the CPU's scores to the bit, and its tokens") {
  const Stream stream;
  Cuda cuda(stream);
  const struct {
    oracle::LayerShape shape;
    index_t window, budget;
  } cases[] = {{{1, 1, 1, 2, 1, 1}, 1, 1},      {{9, 2, 1, 3, 1, 9}, 4, 4},       {{40, 3, 4, 12, 3, 16}, 16, 16},
               {{60, 2, 2, 80, 80, 32}, 5, 20}, {{24, 1, 8, 576, 512, 30}, 9, 9}, {{600, 1, 1, 2, 2, 3}, 2, 570}};
  for (const auto& c : cases) {
    Layer<> data(c.shape, 41);
    DeviceCopy copy;
    auto x = data.view();
    x.rope.dim = c.shape.key_dim / 2 * 2;  // for select(), which wants pairs
    check_loo(cuda, {.window = c.window}, x, copy(x), c.budget);
  }
  Layer<> alike({60, 2, 2, 6, 5, 60}, 45);  // where all values are the same, costs are nothing but rounding
  for (std::size_t i = 5; i < alike.values.size(); ++i) alike.values[i] = alike.values[i % 5];
  DeviceCopy copy;
  check_loo(cuda, {.window = 6}, alike.view(), copy(alike.view()), 20);
  Layer<decant::bf16> coarse({50, 2, 3, 16, 12, 20}, 42);
  check_loo(cuda, {.window = 10}, coarse.view(), copy(coarse.view()), 15);
}

TEST_CASE("BackwardLOO: equal tokens are kept from the front; a query keeps its last token") {
  const Stream stream;
  Cuda cuda(stream);
  Layer<> data({40, 2, 2, 4, 3, 40}, 43);
  for (index_t t = 0; t < 40; ++t) {
    for (index_t d = 0; d < 4; ++d) data.key(0, t, d) = data.key(0, t % 6, d), data.key(1, t, d) *= 200;
    for (index_t d = 0; d < 3; ++d) data.value(0, t, d) = data.value(0, t % 6, d);
  }
  DeviceCopy copy;
  for (const index_t budget : {3, 9, 25}) check_loo(cuda, {.window = 3}, data.view(), copy(data.view()), budget);
}

template <class Fixture>
void check_loo_caches() {
  const Lengths lengths = Fixture::ragged ? Lengths{{9, 9}, {57, 33}} : Lengths{{9, 9}, {57, 57}};
  Layer<> data({57, 2, 2, 6, 3, 20}, 44);
  for (int variant = 0; variant < Fixture::variants; variant += 5) {
    CAPTURE(variant);
    const Stream stream;
    Cuda cuda(stream);
    DeviceCopy copy;
    Fixture fixture(lengths, 6, 3, variant);
    const Twin<Fixture> twin(fixture);
    kv::LayerView<decltype(fixture.cache())> host{fixture.cache()}, device{twin.cache()};
    host.sequence = device.sequence = 1;
    device.longest = 57;
    host.queries = data.view().queries;
    device.queries = copy(host.queries);
    check_loo(cuda, {.window = 7}, host, device, 12);
  }
}

TEST_CASE("BackwardLOO over every cache") {
  check_loo_caches<conformance::Dense<float>>();
  check_loo_caches<conformance::Paged<decant::bf16>>();
  check_loo_caches<conformance::Ragged<decant::fp16>>();
}

TEST_CASE("BackwardLOO refuses long sequences, missing queries, NaN and impossible counts, and writes nothing") {
  const Stream stream;
  Cuda cuda(stream);
  DeviceCopy copy;
  const kv::BackwardLOO p{.window = 4};
  const auto refused = [&](auto& data, index_t budget, const char* text) {
    const DeviceKept kept(data.shape.kv_heads, data.shape.n);
    select(cuda, p, copy(data.view()), kv::Budget::tokens(budget), kept.view());
    REQUIRE_THROWS_WITH(cuda.check(), catch_compat::contains(text));
    REQUIRE(kept.untouched());
  };
  Layer<> longer({4097, 2, 1, 1, 1, 4}), few({30, 1, 1, 4, 4, 3}), holes({30, 2, 1, 4, 4, 4});
  refused(longer, 4000, "kv::BackwardLOO: argument `x`: expected at most 4096 tokens, got a fault at layer 0, head 0");
  refused(few, 20, "queries of as many of the last tokens as the scorer reads");
  holes.value(1, 11, 2) = cuda_test::nan;
  refused(holes, 20, "a fault at layer 0, head 1, index 11");
  holes.value(1, 11, 2) = 0;
  refused(holes, 3, "at least the protected tokens of every head");
  auto bare = copy(holes.view());
  bare.queries = {};
  const DeviceKept kept(2, 30);
  REQUIRE_THROWS_WITH(select(cuda, p, bare, kv::Budget::tokens(9), kept.view()), catch_compat::contains("x.queries"));
  const DeviceKept roomy(2, 31);
  Scored s(2, 30, 1);
  s.keep[3] = s.keep[8] = 1;
  const DeviceScored d(s);
  for (const std::int32_t count : {1, 31}) {
    const DeviceBuffer<std::int32_t> counts(std::vector<std::int32_t>{count, 5});
    choose(cuda, p, copy(holes.view()), d.view(), View<const std::int32_t, 1>(counts.view(2)), roomy.view());
    REQUIRE_THROWS_WITH(cuda.check(), catch_compat::contains("counts from the marked rows to all"));
    REQUIRE(roomy.untouched());
  }
}

}  // namespace
