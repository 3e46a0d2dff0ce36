// What conditioned drafters are fed and read: PARD-2's mask layout, KVShot's segments and gate, PAD-Rec's gates.
#include <decant/core/random.hpp>
#include <decant/speculative/parallel_mask.hpp>
#include <decant/speculative/position_gate.hpp>
#include <decant/speculative/target_kv.hpp>

#include <algorithm>
#include <cmath>
#include <vector>

#include "catch_compat.hpp"

namespace conditioned_tests {

using namespace decant;
using namespace decant::speculative;

std::vector<float> numbers(index_t n, std::uint64_t seed) {
  std::vector<float> v;
  for (index_t i = 0; i < n; ++i) v.push_back(2 * Philox{seed}.uniform(static_cast<std::uint32_t>(i)) - 1);
  return v;
}

TEST_CASE("ParallelMaskLayout: three new tokens, four drafts", "[speculative]") {
  constexpr ParallelMaskLayout layout{3, 4};
  static_assert(layout.ids() == 6 && layout.first_read() == 2 && layout.kept() == 3);
  const std::int32_t sources[] = {0, 1, 2, -1, -1, -1};
  const std::int32_t features[] = {-1, 0, 1, 1, 1, 1};
  for (std::int32_t i = 0; i < 6; ++i) {
    CHECK(layout.source(i) == sources[i]);
    CHECK(layout.feature(i) == features[i]);
  }
  static_assert(ParallelMaskLayout{5, 1}.ids() == 5);
}

TEST_CASE("ParallelMaskDrafter: ids, positions, rows; only what is new is fed; features only where wanted",
          "[speculative]") {
  struct Call {
    std::vector<std::int32_t> ids;
    index_t position;
    bool features;
    std::int32_t read;
  };
  std::vector<Call> calls;
  const auto forward = [&](View<const std::int32_t, 1> ids, index_t position, const ParallelMaskLayout* features,
                           std::int32_t read, View<float, 2> q) {
    calls.push_back({{ids.data(), ids.data() + ids.extent(0)}, position, features != nullptr, read});
    for (index_t i = 0; i < q.extent(0); ++i) {
      for (index_t y = 0; y < 10; ++y) q(i, y) = y == 3 + i ? 1.0f : 0.0f;
    }
    return true;
  };
  ParallelMaskOptions options{.k = 4, .mask_token = 9};
  ParallelMaskDrafter<Law::deterministic, decltype(forward)> greedy(10, options, forward);
  ParallelMaskDrafter<Law::chain, decltype(forward)> sampled(10, options, forward);
  static_assert(Drafter<decltype(greedy)> && Drafter<decltype(sampled)>);
  const std::vector<std::int32_t> first = {5, 6, 7};
  const std::vector<std::int32_t> second = {5, 6, 7, 3, 1};
  DraftTree tree;
  Proposals proposals(10);
  greedy.draft({View<const std::int32_t, 1>(first)}, DraftBudget::chain(8), tree, proposals, DrawKey{});
  REQUIRE(calls.size() == 1);
  CHECK(calls[0].ids == std::vector<std::int32_t>{5, 6, 7, 9, 9, 9});
  CHECK(calls[0].position == 0);
  CHECK(calls[0].read == 2);
  CHECK_FALSE(calls[0].features);
  REQUIRE(tree.nodes() == 5);
  for (std::int32_t i = 1; i < 5; ++i) CHECK(tree.token(i) == 2 + i);
  CHECK(proposals.rows() == 0);
  tree.clear(1);
  greedy.draft({View<const std::int32_t, 1>(second)}, DraftBudget::chain(2), tree, proposals, DrawKey{});
  CHECK(calls[1].ids == std::vector<std::int32_t>{3, 1, 9});
  CHECK(calls[1].position == 3);
  tree.clear(7);
  sampled.draft({View<const std::int32_t, 1>(first)}, DraftBudget::chain(8), tree, proposals, DrawKey{});
  tree.finalize();
  CHECK(proposals.rows() == 4);
  CHECK(well_formed(tree.view(), 10, 4));
  CHECK(tree.view().law[0] == Law::chain);

  options.with_features = true;
  options.source = {77, 128, {-1, -8}};
  CHECK_THROWS_AS((ParallelMaskDrafter<Law::chain, decltype(forward)>(10, options, forward)), ArgumentError);
  CHECK_THROWS_AS((ParallelMaskDrafter<Law::chain, decltype(forward)>(10, options, forward, {77, 256, {-1, -8}})),
                  ArgumentError);
  ParallelMaskDrafter<Law::chain, decltype(forward)> fed(10, options, forward, {77, 128, {-1, -8}});
  tree.clear(7);
  fed.draft({View<const std::int32_t, 1>(first)}, DraftBudget::chain(8), tree, proposals, DrawKey{});
  CHECK(calls.back().features);
}

TEST_CASE("ParallelMaskDrafter: a network that keeps no rows is given the last token of whatever text",
          "[speculative]") {
  std::vector<std::vector<std::int32_t>> ids;
  std::vector<index_t> positions;
  const auto forward = [&](View<const std::int32_t, 1> x, index_t position, const ParallelMaskLayout*,
                           std::int32_t read, View<float, 2> q) {
    ids.emplace_back(x.data(), x.data() + x.extent(0));
    positions.push_back(position);
    CHECK(read == 0);
    for (index_t y = 0; y < 4; ++y) {
      q(0, y) = .25f;
      if (q.extent(0) > 1) q(1, y) = y == 2 ? 1.0f : 0.0f;
    }
    return true;
  };
  ParallelMaskDrafter<Law::deterministic, decltype(forward)> drafter(4, {.k = 2, .mask_token = 9, .keeps_rows = false},
                                                                     forward);
  DraftTree tree;
  Proposals proposals(4);
  for (const std::vector<std::int32_t>& text : {std::vector<std::int32_t>{1, 2, 3}, {1, 2, 3, 0, 1}, {3, 2}, {3, 2}}) {
    tree.clear(text.back());
    drafter.draft({View<const std::int32_t, 1>(text)}, DraftBudget::chain(5), tree, proposals, DrawKey{});
    CHECK(ids.back() == std::vector<std::int32_t>{text.back(), 9});
    CHECK(positions.back() == static_cast<index_t>(text.size()) - 1);
    CHECK(tree.nodes() == 3);
  }
  REQUIRE((drafter.entropy().extent(0) == 2 && drafter.confidence().extent(0) == 2));
  CHECK(drafter.entropy()[0] == Approx(2));
  CHECK(drafter.confidence()[0] == .25f);
  CHECK(drafter.entropy()[1] == Approx(0).margin(1e-6));
  CHECK(drafter.confidence()[1] == 1.0f);
  drafter.draft({View<const std::int32_t, 1>{}}, DraftBudget::chain(5), tree, proposals, DrawKey{});
  CHECK(ids.size() == 4);
  CHECK(drafter.entropy().empty());
}

TEST_CASE("cat_weights: the published example, and the expected accepted length", "[speculative]") {
  const std::vector<float> gold = {1, .9f, .8f, .5f, .7f};
  std::vector<float> memory(3 * 5);
  const View<float, 2> weight(memory.data(), 3, 5);
  cat_weights(View<const float, 1>(gold), weight);
  CHECK(weight(2, 4) == Approx(.4));
  CHECK(weight(2, 2) == Approx(.9));
  CHECK(weight(2, 1) == 1.0f);
  for (index_t t = 0; t < 5; ++t) CHECK(weight(0, t) == 1.0f);
  // From a fixed start: block i reaches token start + i with the product of what lies between.
  double expected = 0;
  double product = 1;
  for (std::size_t j = 1; j < 3; ++j) {
    product *= static_cast<double>(gold[j]);
    expected += product;
  }
  CHECK(weight(1, 2) + weight(2, 3) == Approx(expected));
}

TEST_CASE("cat_weights: deeper blocks weigh less, and from any start they sum up to the expected length",
          "[speculative]") {
  constexpr index_t n = 12, k = 6;
  std::vector<float> gold, memory(static_cast<std::size_t>(k * n));
  for (std::uint32_t i = 0; i < n; ++i) gold.push_back(Philox{12}.uniform(i));
  const View<float, 2> weight(memory.data(), k, n);
  cat_weights(View<const float, 1>(gold), weight);
  for (index_t start = 0; start + k <= n; ++start) {
    std::vector<double> acceptance;
    double sum = 1;
    for (index_t i = 1; i < k; ++i) {
      CHECK(weight(i, start + i) <= weight(i - 1, start + i - 1));
      // Block i at token start + i: gold of start ... start + i - 1 were right.
      acceptance.push_back(static_cast<double>(gold[static_cast<std::size_t>(start + i - 1)]));
      sum += static_cast<double>(weight(i, start + i));
    }
    double expected = 0;  // P(exactly j accepted) (j + 1)
    double all = 1;
    for (std::size_t j = 0; j <= acceptance.size(); ++j) {
      expected += all * (j < acceptance.size() ? 1 - acceptance[j] : 1) * static_cast<double>(j + 1);
      if (j < acceptance.size()) all *= acceptance[j];
    }
    CHECK(sum == Approx(expected).margin(1e-5));
  }
}

TEST_CASE("merge_segments: attention over two segments is attention over all their keys", "[speculative]") {
  const index_t d = 8;
  for (const index_t first : {0, 1, 5, 9}) {
    const index_t keys = 9;
    const auto k = numbers(keys * d, 1), v = numbers(keys * d, 2), q = numbers(d, 3);
    const auto attend = [&](index_t from, index_t to, std::vector<float>& out) {
      double sum = 0;
      std::vector<double> o(static_cast<std::size_t>(d));
      for (index_t t = from; t < to; ++t) {
        double s = 0;
        for (index_t i = 0; i < d; ++i) s += static_cast<double>(q[static_cast<std::size_t>(i)]) * static_cast<double>(k[static_cast<std::size_t>(t * d + i)]);
        const double w = std::exp(s);
        sum += w;
        for (index_t i = 0; i < d; ++i) o[static_cast<std::size_t>(i)] += w * static_cast<double>(v[static_cast<std::size_t>(t * d + i)]);
      }
      out.resize(static_cast<std::size_t>(d), NAN);
      for (std::size_t i = 0; i < o.size() && sum > 0; ++i) out[i] = static_cast<float>(o[i] / sum);
      return static_cast<float>(std::log(sum));
    };
    std::vector<float> a, b, all, merged(static_cast<std::size_t>(d));
    const float la = attend(0, first, a), lb = attend(first, keys, b), l = attend(0, keys, all);
    const float lse = merge_segments(View<const float, 1>(a), la, View<const float, 1>(b), lb, View<float, 1>(merged));
    CHECK(lse == Approx(l).margin(1e-6));
    for (std::size_t i = 0; i < merged.size(); ++i) CHECK(merged[i] == Approx(all[i]).margin(1e-6));
  }
}

TEST_CASE("KvSegments: the target has rows of all committed tokens but the last", "[speculative]") {
  KvSegments rows{10, 1};
  index_t committed = 11;
  for (std::uint32_t step = 0; step < 50; ++step) {
    const auto drafted = static_cast<index_t>(Philox{4}(step).word[0] % 6);
    rows.own += drafted;
    const auto tau = static_cast<index_t>(Philox{5}(step).word[0]) % (drafted + 1);
    rows = rows.after(tau);
    committed += tau + 1;
    CHECK(rows.target == committed - 1);
    CHECK(rows.own == 1);
  }
}

TEST_CASE("gated_delta: the gate's ends", "[speculative]") {
  const index_t d = 5;
  const auto n = numbers(d, 6), o = numbers(d, 7), w_g = numbers(3 * d * d, 8);
  std::vector<float> identity(static_cast<std::size_t>(d * d)), zero(identity.size());
  for (index_t i = 0; i < d; ++i) identity[static_cast<std::size_t>(i * d + i)] = 1;
  const auto run = [&](float bias, const std::vector<float>& w_d) {
    const std::vector<float> b(static_cast<std::size_t>(d), bias);
    std::vector<float> h(static_cast<std::size_t>(d));
    gated_delta({View<const float, 2>(w_g.data(), d, 3 * d), View<const float, 1>(b),
                 View<const float, 2>(w_d.data(), d, d)},
                View<const float, 1>(n), View<const float, 1>(o), View<float, 1>(h));
    return h;
  };
  CHECK(run(-1e4f, identity) == n);
  CHECK(run(0, zero) == n);
  const auto open = run(1e4f, identity);
  for (std::size_t i = 0; i < open.size(); ++i) CHECK(open[i] == Approx(o[i]).margin(1e-6));
  // In between, by hand for d = 1: n = 1, o = 3, gate weights (1, -1, .5), bias .25, delta weight 2.
  const float one = 1, three = 3, bias = .25f, two = 2;
  const float gate[] = {1, -1, .5f};
  float h = 0;
  gated_delta({View<const float, 2>(gate, 1, 3), View<const float, 1>(&bias, 1), View<const float, 2>(&two, 1, 1)},
              View<const float, 1>(&one, 1), View<const float, 1>(&three, 1), View<float, 1>(&h, 1));
  CHECK(h == Approx(1 + 4 / (1 + std::exp(.75))));
}

TEST_CASE("mean_accepted_tokens: the published acceptance curves give the published means", "[speculative]") {
  const auto mean = [](std::vector<double> a) { return mean_accepted_tokens(View<const double, 1>(a)); };
  CHECK(mean({.638, .566, .533, .511, .495, .481, .469}) == Approx(2.37).margin(.006));
  CHECK(mean({.665, .603, .573, .553, .537, .525, .514}) == Approx(2.54).margin(.006));
  CHECK(mean({.494, .427, .397, .381, .369, .360, .353}) == Approx(1.84).margin(.006));
  CHECK(mean({.638, .566, .533, .511, .495, .481, .469}) == Approx(2.3730).margin(5e-5));
  CHECK(mean({.665, .603, .573, .553, .537, .525, .514}) == Approx(2.5453).margin(5e-5));
  CHECK(mean({.494, .427, .397, .381, .369, .360, .353}) == Approx(1.8381).margin(5e-5));
  CHECK(mean({}) == 1.0);
}

TEST_CASE("inject_key: one layer and W = I are the key; unrotated projections keep relative positions", "[speculative]") {
  const index_t head_dim = 4, d = 8, position = 37;
  const kv::Rope rope{};
  const auto plain = numbers(2 * d, 9);
  std::vector<float> rotated = plain;
  for (index_t h = 0; h < 2 * d; h += head_dim) kv::rotate_key(rotated.data() + h, head_dim, rope, position);
  std::vector<float> identity(static_cast<std::size_t>(d * d));
  for (index_t i = 0; i < d; ++i) identity[static_cast<std::size_t>(i * d + i)] = 1;
  const auto run = [&](KeyRotation rotation, const std::vector<float>& keys, index_t layers, index_t at,
                       const std::vector<float>& w) {
    std::vector<float> scratch(static_cast<std::size_t>(layers * d)), out(static_cast<std::size_t>(d));
    inject_key(rotation, rope, head_dim, at, View<const float, 2>(w.data(), d, layers * d),
               View<const float, 2>(keys.data(), layers, d), View<float, 1>(scratch), View<float, 1>(out));
    return out;
  };
  const std::vector<float> key(rotated.begin(), rotated.begin() + d);
  CHECK(run(KeyRotation::none, key, 1, position, identity) == key);
  const auto back = run(KeyRotation::unrotate, key, 1, position, identity);
  for (std::size_t i = 0; i < back.size(); ++i) CHECK(back[i] == Approx(key[i]).margin(1e-6));
  // Two layers and any W: unrotate gives what the projected unrotated keys are at that position.
  const auto w = numbers(d * 2 * d, 10);
  std::vector<float> expected = run(KeyRotation::none, plain, 2, 0, w);
  for (index_t h = 0; h < d; h += head_dim) kv::rotate_key(expected.data() + h, head_dim, rope, position);
  const auto got = run(KeyRotation::unrotate, rotated, 2, position, w);
  for (std::size_t i = 0; i < got.size(); ++i) CHECK(got[i] == Approx(expected[i]).margin(1e-5));
  const auto twice = run(KeyRotation::rope_after, rotated, 2, position, w);
  float apart = 0;
  for (std::size_t i = 0; i < got.size(); ++i) apart = std::max(apart, std::abs(twice[i] - got[i]));
  CHECK(apart > 0.01f);
}

TEST_CASE("embed_slots: PARD-2's inputs, by hand and for a batch", "[speculative]") {
  Cpu cpu;
  constexpr index_t vocab = 5, h = 3;
  std::vector<float> table, features;
  for (int i = 0; i < vocab * h; ++i) table.push_back(static_cast<float>(10 * (i / h) + i % h));
  for (int i = 0; i < 4 * h; ++i) features.push_back(static_cast<float>(i + 1));
  const View<const float, 2> rows(table.data(), vocab, h);
  const View<const float, 2> projected(features.data(), 4, h);
  ParallelMaskOptions o;
  o.k = 3;
  o.mask_token = 4;
  o.feature_scale = 0.5f;
  // Three tokens of one request, one of another.
  const std::vector<std::int32_t> tokens = {2, 0, 1, 3}, offsets = {0, 3, 4};
  const FreshTokens fresh{View<const std::int32_t, 1>(tokens), View<const std::int32_t, 1>(offsets)};
  REQUIRE(fresh.slots(3) == 8);
  std::vector<float> out(8 * h, -1);
  embed_slots(cpu, o, fresh, rows, projected, View<float, 2>(out.data(), 8, h));
  const int ids[] = {2, 0, 1, 4, 4, 3, 4, 4}, feature[] = {0, 1, 2, 2, 2, 3, 3, 3};
  for (int s = 0; s < 8; ++s) {
    for (int i = 0; i < h; ++i) {
      CHECK(out[static_cast<std::size_t>(s * h + i)] ==
            static_cast<float>(10 * ids[s] + i) + 0.5f * static_cast<float>(feature[s] * h + i + 1));
    }
  }
  embed_slots(cpu, o, fresh, rows, {}, View<float, 2>(out.data(), 8, h));
  for (int s = 0; s < 8; ++s) CHECK(out[static_cast<std::size_t>(s * h + 1)] == static_cast<float>(10 * ids[s] + 1));
  const auto refused = [&](const std::vector<std::int32_t>& t, const std::vector<std::int32_t>& at, index_t slots) {
    std::vector<float> room(static_cast<std::size_t>(slots * h), -1);
    CHECK_THROWS_AS(embed_slots(cpu, o, {View<const std::int32_t, 1>(t), View<const std::int32_t, 1>(at)}, rows, {},
                                View<float, 2>(room.data(), slots, h)),
                    ArgumentError);
    CHECK(room == std::vector<float>(room.size(), -1));
  };
  refused({2, 0, 5, 3}, {0, 3, 4}, 8);
  refused({2, 0, 1, 3}, {0, 4, 4}, 8);
  refused({2, 0, 1, 3}, {1, 3, 4}, 8);
  refused({2, 0, 1, 3}, {0, 3, 5}, 8);
  refused({2, 0, 1, 3}, {0, 3, 4}, 7);
}

TEST_CASE("PositionGate: the example by hand, and nothing added where the tables are 0", "[speculative]") {
  const float item[] = {0, 1, 0, 0, 0, 0}, step[] = {2, 2}, w[] = {1, -1};
  const PositionGate gate{View<const float, 2>(item, 3, 2), View<const float, 2>(step, 1, 2),
                          View<const float, 1>(w, 2), .5f};
  const float e[] = {1, 0}, f[] = {1, 1};
  std::vector<float> in(4);
  gated_input(gate, 1, View<const float, 1>(e, 2), View<const float, 1>(f, 2), View<float, 1>(in));
  CHECK(in == std::vector<float>{1, .5f, 1, 1});
  std::vector<float> z = {in[0] + in[2], in[1] + in[3]};  // FC = [I | I]
  gate_step(gate, 1, View<float, 1>(z));
  CHECK(z[0] == Approx(3.244919));
  CHECK(z[1] == Approx(2.744919));
  std::vector<float> late = {2, 1.5f};
  gate_step(gate, 9, View<float, 1>(late));  // beyond the table: its last row
  CHECK(late == z);
  const float zeros[6] = {};
  const PositionGate plain{View<const float, 2>(zeros, 3, 2), View<const float, 2>(zeros, 1, 2),
                           View<const float, 1>(w, 2), 1};
  gated_input(plain, 2, View<const float, 1>(e, 2), View<const float, 1>(f, 2), View<float, 1>(in));
  CHECK(in == std::vector<float>{1, 0, 1, 1});
  std::vector<float> same = {2, 1.5f};
  gate_step(plain, 1, View<float, 1>(same));
  CHECK(same == std::vector<float>{2, 1.5f});
  CHECK_THROWS_AS(gated_input(gate, 4, View<const float, 1>(e, 2), View<const float, 1>(f, 2), View<float, 1>(in)),
                  ArgumentError);
}

TEST_CASE("PositionGate: a batch of rows is each row", "[speculative]") {
  constexpr index_t rows = 3, h = 1100;  // more than a tile
  std::vector<float> item(6 * h), step(2 * h), w(h), embeddings(rows * h), features(rows * h), z(rows * h);
  std::uint32_t counter = 0;
  for (std::vector<float>* v : {&item, &step, &w, &embeddings, &features, &z}) {
    for (float& x : *v) x = Philox{2}.uniform(counter++) - 0.5f;
  }
  const PositionGate gate{View<const float, 2>(item.data(), 6, h), View<const float, 2>(step.data(), 2, h),
                          View<const float, 1>(w), .3f};
  const std::vector<std::int32_t> slots = {6, 1, 3}, steps = {1, 7, 2}, wrong = {1, 0, 2};
  std::vector<float> in(rows * 2 * h), all = z;
  gated_input(gate, slots, View<const float, 2>(embeddings.data(), rows, h),
              View<const float, 2>(features.data(), rows, h), View<float, 2>(in.data(), rows, 2 * h));
  gate_step(gate, steps, View<float, 2>(all.data(), rows, h));
  for (index_t r = 0; r < rows; ++r) {
    const auto part = [&](auto& v, index_t width) { return View(v.data() + r * width, width); };
    std::vector<float> one(2 * h), behind(z.begin() + r * h, z.begin() + (r + 1) * h);
    gated_input(gate, slots[static_cast<std::size_t>(r)], part(embeddings, h), part(features, h), View<float, 1>(one));
    gate_step(gate, steps[static_cast<std::size_t>(r)], View<float, 1>(behind));
    CHECK(std::equal(one.begin(), one.end(), in.begin() + r * 2 * h));
    CHECK(std::equal(behind.begin(), behind.end(), all.begin() + r * h));
    const auto at = [](const std::vector<float>& v, index_t i) {
      return static_cast<double>(v[static_cast<std::size_t>(i)]);
    };
    double dot = 0;
    for (index_t i = 0; i < h; ++i) dot += at(w, i) * at(z, r * h + i);
    const index_t row = r == 0 ? 0 : 1;
    for (index_t i = 0; i < h; ++i) {
      const double expected = at(z, r * h + i) + at(step, row * h + i) / (1 + std::exp(-dot));
      if (!(std::abs(at(behind, i) - expected) < 1e-6)) FAIL("row " << r << ", " << i);
    }
  }
  const std::vector<float> before = all;
  CHECK_THROWS_AS(gate_step(gate, wrong, View<float, 2>(all.data(), rows, h)), ArgumentError);
  CHECK(all == before);
}

TEST_CASE("PositionGate: tables that do not fit are refused by each call", "[speculative]") {
  const float numbers[8] = {};
  PositionGate gate{View<const float, 2>(numbers, 3, 2), View<const float, 2>(numbers, 0, 2),
                    View<const float, 1>(numbers, 2), 1};
  std::vector<float> z = {1, 2};
  CHECK_THROWS_AS(gate_step(gate, 1, View<float, 1>(z)), ArgumentError);
  gate.step = View<const float, 2>(numbers, 1, 1);
  CHECK_THROWS_AS(gate_step(gate, 1, View<float, 1>(z)), ArgumentError);
  CHECK(z == std::vector<float>{1, 2});
}

TEST_CASE("ItemSlotTable: slots by token id are those of the automaton where items are whole", "[speculative]") {
  // Codes 0-3 of level 1, 4-7 of level 2, 8-11 of level 3; a comma, a space, other text.
  std::vector<std::int32_t> by_token;
  for (std::int32_t t = 0; t < 12; ++t) by_token.push_back(1 + t / 4);
  by_token.insert(by_token.end(), {4, 4, 5});
  const ItemSlotTable table(ItemSlots{3}, by_token);
  ItemSlotFsm fsm(ItemSlots{3});
  for (const std::int32_t token : {14, 14, 2, 5, 9, 12, 13, 0, 7, 11, 12, 13, 3, 4}) {  // the last item is cut off
    const ItemToken kind = token < 12 ? ItemToken::code : token < 14 ? ItemToken::separator : ItemToken::other;
    CHECK(table.slot(token) == fsm.push(kind));
  }
  CHECK(fsm.labels() == std::vector<std::int32_t>{5, 5, 1, 2, 3, 4, 4, 1, 2, 3, 4, 4, 1, 2});
  CHECK_THROWS_AS(table.slot(15), ArgumentError);
  CHECK_THROWS_AS(table.slot(-1), ArgumentError);
  CHECK_THROWS_AS(ItemSlotTable(ItemSlots{3}, {6}), ArgumentError);
  CHECK_THROWS_AS(ItemSlotTable(ItemSlots{3}, {0}), ArgumentError);
}

TEST_CASE("ItemSlotFsm: slots by position, the same after a rollback", "[speculative]") {
  ItemSlotFsm fsm(ItemSlots{3});
  const auto c = ItemToken::code, s = ItemToken::separator, o = ItemToken::other;
  for (const ItemToken t : {o, o, c, c, c, c, s, s, c, c, o, c}) fsm.push(t);
  const std::vector<std::int32_t> expected = {5, 5, 1, 2, 3, 3, 4, 4, 1, 2, 5, 1};
  CHECK(fsm.labels() == expected);
  for (index_t cut = 0; cut <= 12; ++cut) {
    ItemSlotFsm again(ItemSlots{3});
    const ItemToken all[] = {o, o, c, c, c, c, s, s, c, c, o, c};
    for (const ItemToken t : all) again.push(t);
    again.truncate(cut);
    for (index_t i = cut; i < 12; ++i) again.push(all[i]);
    CHECK(again.labels() == expected);
  }
  CHECK_THROWS_AS(fsm.truncate(13), ArgumentError);
}

}  // namespace conditioned_tests
