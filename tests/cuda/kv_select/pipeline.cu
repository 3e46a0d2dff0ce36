// select() on the device keeps the tokens that the CPU keeps, for the same scores; what it finds wrong it says at
// check(), and writes nothing.
#include "catch_compat.hpp"
#include "decant/kv/global_top_k.cuh"
#include "fixtures.cuh"
#include "graph.cuh"

namespace {

using cuda_test::DeviceBuffer;
using cuda_test::DeviceKept;
using cuda_test::Layers;
using cuda_test::Scored;
using cuda_test::Stream;
using decant::Cpu;
using decant::Cuda;
using decant::index_t;
using decant::View;
namespace kv = decant::kv;

const kv::Budget budgets[] = {kv::Budget::tokens(0),     kv::Budget::tokens(9),  kv::Budget::tokens(25),
                              kv::Budget::tokens(1000),  kv::Budget::keep(0.37), kv::Budget::keep(0),
                              kv::Budget::keep(0.999999)};

/// Both sides keep the same, or both refuse.
template <class E, class X, class Y>
void compare(const E& on_host, const E& on_device, const X& x, const Y& y, const kv::Budget& budget) {
  Stream stream;
  Cuda cuda(stream);
  Cpu cpu;
  DeviceKept kept(x.kv_heads(), 60);
  select(cuda, on_device, y, budget, kept.view());
  std::string refused;
  kv::Kept expected;
  try {
    expected = select(cpu, on_host, x, budget);
  } catch (const decant::ArgumentError& e) {
    refused = e.what();
  }
  if (refused.empty()) {
    cuda.check();
    REQUIRE(kept.tokens() == cuda_test::tokens(expected));
  } else {
    INFO(refused);
    REQUIRE_THROWS_WITH(cuda.check(), catch_compat::contains("decant::kv::select: argument `budget`"));
    REQUIRE(refused.find("decant::kv::select: argument `budget`") == 0);
    REQUIRE(kept.untouched());
  }
}

template <class P>
kv::Eviction<users_engine::Given, kv::NoSmoothing, P> with(const users_engine::Given& given, const P& protect) {
  return {given, {}, protect, {}, {}, {}};
}

TEST_CASE("a bare scorer, dense and ragged, for every budget") {
  for (int kind = 0; kind < 3; ++kind) {
    for (const index_t n : {1, 40}) {
      Scored scored(3, n, 5, kind, n > 1);
      Layers layers(scored);
      for (const kv::Budget& budget : budgets) {
        CAPTURE(kind, n, budget.value());
        compare(layers.given(), layers.device_given(), layers.dense(), layers.device_dense(), budget);
        compare(layers.given(), layers.device_given(), layers.ragged(), layers.device_ragged(), budget);
      }
    }
  }
}

TEST_CASE("protected tokens: sinks, recent and anchors") {
  const std::vector<std::int32_t> list{7, 3, 39, 3, 41, 12};
  DeviceBuffer<std::int32_t> d_list(list);
  for (int kind = 0; kind < 2; ++kind) {
    Scored scored(3, 40, 6, kind, true);
    Layers layers(scored);
    for (const kv::Budget& budget : budgets) {
      CAPTURE(kind, budget.value());
      const kv::SinkRecent ends{3, 6};
      compare(with(layers.given(), ends), with(layers.device_given(), ends), layers.ragged(), layers.device_ragged(),
              budget);
      const kv::Anchors anchors{list}, on_device{d_list.view(6)};
      compare(with(layers.given(), anchors), with(layers.device_given(), on_device), layers.dense(),
              layers.device_dense(), budget);
    }
  }
}

TEST_CASE("an empty sequence, and no layers at all") {
  Scored scored(2, 10, 1);
  scored.lengths = {0, 0};
  Layers layers(scored);
  for (const kv::Budget& budget : budgets) {
    compare(layers.given(), layers.device_given(), layers.dense(), layers.device_dense(), budget);
  }
  Stream stream;
  Cuda cuda(stream);
  const View<const kv::LayerView<kv::DenseKV<float>>, 1> none;
  select(cuda, layers.device_given(), none, kv::Budget::tokens(1), View<kv::KeptView, 1>{});
  cuda.check();
}

TEST_CASE("NaN scores are told: the token whose row is NaN, else the first such score") {
  Stream stream;
  Cuda cuda(stream);
  Scored scored(3, 40, 8);
  scored.layer = 2;
  scored.layers = 5;
  scored.scores[1 * 40 + 17] = scored.scores[1 * 40 + 30] = scored.scores[2 * 40 + 3] = cuda_test::nan;
  Layers layers(scored);
  DeviceKept kept(3, 40);
  const auto run = [&](const char* text) {
    select(cuda, layers.device_given(), layers.device_dense(), kv::Budget::tokens(5), kept.view());
    REQUIRE_THROWS_WITH(cuda.check(), catch_compat::contains(text));
    REQUIRE(kept.untouched());
  };
  run("layer 2, head 1, index 17");
  layers.values[static_cast<std::size_t>((1 * 40 + 25) * 2 + 1)] = cuda_test::nan;
  layers.upload();
  run("layer 2, head 1, index 25");
  layers.keys[static_cast<std::size_t>((1 * 40 + 4) * 4 + 2)] = cuda_test::nan;
  layers.upload();
  run("every token a score, got a fault at layer 2, head 1, index 4");
  // A budget that keeps everything asks for no score.
  for (const kv::Budget& all : {kv::Budget::tokens(40), kv::Budget::keep(1)}) {
    select(cuda, layers.device_given(), layers.device_dense(), all, kept.view());
    cuda.check();
    REQUIRE(kept.tokens()[1].size() == 40);
  }
  // Here only the device can tell: 20 of the 40 tokens that there is room for.
  layers.length = {20};
  layers.upload();
  select(cuda, layers.device_given(), layers.device_dense(), kv::Budget::tokens(20), kept.view());
  cuda.check();
  REQUIRE(kept.tokens()[2].size() == 20);
}

TEST_CASE("faults: room, lengths, anchors; and the CPU's errors for what the host sees") {
  Stream stream;
  Cuda cuda(stream);
  Scored scored(2, 40, 9);
  Layers layers(scored);
  DeviceKept kept(2, 40), small(2, 7);
  const auto told = [&](const auto& policy, const DeviceKept& out, const kv::Budget& budget, const char* text) {
    select(cuda, policy, layers.device_dense(), budget, out.view());
    REQUIRE_THROWS_WITH(cuda.check(), catch_compat::contains(text));
    REQUIRE(out.untouched());
  };
  told(layers.device_given(), small, kv::Budget::tokens(8), "room for every head's tokens");
  told(layers.device_given(), small, kv::Budget::keep(1), "room for every head's tokens");
  DeviceBuffer<std::int32_t> list(std::vector<std::int32_t>{3, -1});
  told(with(layers.device_given(), kv::Anchors{list.view(2)}), kept, kv::Budget::tokens(9), "kv::Anchors");
  for (const std::int32_t length : {-1, 41}) {
    layers.length = {length};
    layers.upload();
    told(layers.device_given(), kept, kv::Budget::tokens(8), "lengths from 0 to the capacity");
  }
  const auto x = layers.device_dense();
  REQUIRE_THROWS_WITH(select(cuda, layers.device_given(), x, kv::Budget::tokens(-1), kept.view()),
                      catch_compat::contains("token count"));
  REQUIRE_THROWS_WITH(select(cuda, with(layers.device_given(), kv::SinkRecent{-1, 0}), x, kv::Budget::tokens(1),
                             kept.view()),
                      catch_compat::contains("sinks"));
  REQUIRE_THROWS_WITH(select(cuda, layers.device_given(), x, kv::Budget::tokens(1), DeviceKept(3, 40).view()),
                      catch_compat::contains("kept.counts"));
  cuda.check();
}

TEST_CASE("after a fault nothing is written until check()") {
  Stream stream;
  Cuda cuda(stream);
  Scored scored(2, 30, 9), bad(2, 30, 9);
  bad.scores[3] = cuda_test::nan;
  Layers layers(scored), wrong(bad);
  DeviceKept kept(2, 30), other(2, 30);
  select(cuda, wrong.device_given(), wrong.device_dense(), kv::Budget::tokens(4), other.view());
  select(cuda, layers.device_given(), layers.device_dense(), kv::Budget::tokens(4), kept.view());
  select(cuda, layers.device_given(), layers.device_dense(), kv::Budget::keep(1), kept.view());
  REQUIRE_THROWS_WITH(cuda.check(), catch_compat::contains("index 3"));
  REQUIRE((kept.untouched() && other.untouched()));
}

TEST_CASE("model scope: one ranking for all layers, as on the CPU") {
  using E = kv::Eviction<users_engine::Given, kv::MaxPool, kv::SinkRecent, kv::LayerSum, kv::GlobalTopK>;
  for (int kind = 0; kind < 2; ++kind) {
    Scored scored(3, 40, 11, kind == 0 ? 0 : 2);
    scored.lengths = {40, 21, 33};
    std::vector<Layers> data;
    data.reserve(3);
    std::vector<kv::LayerView<kv::RaggedKV<float>>> host, device;
    std::vector<Scored> each(3, scored);
    for (index_t l = 0; l < 3; ++l) {
      each[static_cast<std::size_t>(l)].layer = l;
      each[static_cast<std::size_t>(l)].layers = 3;
      data.emplace_back(each[static_cast<std::size_t>(l)]);
      host.push_back(data.back().ragged());
      device.push_back(data.back().device_ragged());
    }
    const E on_host{data[0].given(), {3}, {1, 2}, {}, {}, {}};
    const E on_device{data[0].device_given(), {3}, {1, 2}, {}, {}, {}};
    for (const kv::Budget& budget : {kv::Budget::tokens(9), kv::Budget::keep(0.6), kv::Budget::tokens(40)}) {
      Stream stream;
      Cuda cuda(stream);
      Cpu cpu;
      std::vector<kv::Kept> expected(3);
      select(cpu, on_host, View<const kv::LayerView<kv::RaggedKV<float>>, 1>(host), budget,
             View<kv::Kept, 1>(expected));
      std::vector<DeviceKept> kept;
      std::vector<kv::KeptView> views;
      for (int l = 0; l < 3; ++l) kept.emplace_back(3, 40);
      for (const DeviceKept& k : kept) views.push_back(k.view());
      select(cuda, on_device, View<const kv::LayerView<kv::RaggedKV<float>>, 1>(device), budget,
             View<kv::KeptView, 1>(views));
      cuda.check();
      for (std::size_t l = 0; l < 3; ++l) REQUIRE(kept[l].tokens() == cuda_test::tokens(expected[l]));
    }
  }
}

TEST_CASE("model scope: a layer that the budget would keep whole is scored all the same, unless all are") {
  using E = kv::Eviction<users_engine::Given, kv::NoSmoothing, kv::NoProtection, kv::NoNormalisation, kv::GlobalTopK>;
  Scored scored(2, 40, 13);
  scored.scores[5] = cuda_test::nan;  // of both layers: the policy's scores are the same
  Layers layers(scored), longer(scored);
  layers.length = {10};
  layers.upload();
  std::vector<kv::LayerView<kv::DenseKV<float>>> xs{layers.device_dense(), longer.device_dense()};
  xs[0].layers = xs[1].layers = 2;
  xs[1].layer = 1;
  std::vector<DeviceKept> kept;
  for (int l = 0; l < 2; ++l) kept.emplace_back(2, 40);
  std::vector<kv::KeptView> views{kept[0].view(), kept[1].view()};
  const E policy{layers.device_given(), {}, {}, {}, {}, {}};
  Stream stream;
  Cuda cuda(stream);
  const auto run = [&] {
    select(cuda, policy, View<const kv::LayerView<kv::DenseKV<float>>, 1>(xs), kv::Budget::tokens(20),
           View<kv::KeptView, 1>(views));
  };
  run();
  REQUIRE_THROWS_WITH(cuda.check(), catch_compat::contains("layer 0, head 0, index 5"));
  REQUIRE((kept[0].untouched() && kept[1].untouched()));
  longer.length = {20};
  longer.upload();
  const std::size_t high_water = cuda.workspace().high_water();
  const std::size_t on_host = cuda.host_workspace().high_water();
  run();
  cuda.check();
  REQUIRE((kept[0].tokens()[1].size() == 10 && kept[1].tokens()[0].size() == 20));
  REQUIRE((cuda.workspace().high_water() == high_water && cuda.host_workspace().high_water() == on_host));
}

TEST_CASE("a captured selection follows a growing sequence and allocates nothing") {
  Stream stream;
  Cuda cuda(stream);
  Cpu cpu;
  Scored scored(2, 60, 12);
  Layers layers(scored);
  const kv::Eviction<users_engine::Given, kv::AvgPool, kv::SinkRecent> on_host{layers.given(), {3}, {2, 4}},
      on_device{layers.device_given(), {3}, {2, 4}};
  DeviceKept kept(2, 60);
  const auto run = [&] { select(cuda, on_device, layers.device_dense(), kv::Budget::tokens(10), kept.view()); };
  run();
  cuda.check();
  const std::size_t high_water = cuda.workspace().high_water();
  cuda_test::Graph graph(stream, run);
  for (const std::int32_t length : {60, 37, 10, 0}) {
    layers.length = {length};
    layers.upload();
    graph.launch(stream);
    cuda.check();
    REQUIRE(kept.tokens() == cuda_test::tokens(select(cpu, on_host, layers.dense(), kv::Budget::tokens(10))));
  }
  REQUIRE(cuda.workspace().high_water() == high_water);
}

}  // namespace
