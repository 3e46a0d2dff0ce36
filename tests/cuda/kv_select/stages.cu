// The stages one by one, against the CPU's on the same scores: bit for bit.
#include "catch_compat.hpp"
#include "decant/kv/adakv.cuh"
#include "decant/kv/global_top_k.cuh"
#include "decant/kv/h2o.cuh"
#include "decant/kv/pyramidkv.cuh"
#include "fixtures.cuh"

namespace {

using cuda_test::DeviceBuffer;
using cuda_test::DeviceKept;
using cuda_test::DeviceScored;
using cuda_test::Layers;
using cuda_test::Scored;
using cuda_test::Stream;
using decant::Cpu;
using decant::Cuda;
using decant::index_t;
using decant::View;
namespace kv = decant::kv;

/// Bits, so that -0 and +0 differ, but one NaN is as good as another (devices make other ones than hosts); only what
/// lies within a head's length.
std::vector<std::uint32_t> bits(const std::vector<float>& scores, const Scored& s) {
  std::vector<std::uint32_t> all;
  for (index_t h = 0; h < s.heads; ++h) {
    for (index_t t = 0; t < s.lengths[static_cast<std::size_t>(h)]; ++t) {
      const float score = scores[static_cast<std::size_t>(h * s.n + t)];
      all.push_back(score == score ? decant::bit_cast<std::uint32_t>(score) : 0xffffffffu);
    }
  }
  return all;
}

/// stage(context, layer) rewrites scores; both contexts must write the same.
template <class Stage>
void check_rewrite(Scored s, const Stage& stage) {
  Stream stream;
  Cuda cuda(stream);
  Cpu cpu;
  const DeviceScored device(s);
  stage(cuda, device.view());
  cuda.check();
  stage(cpu, s.view());
  REQUIRE(bits(device.scores.download(), s) == bits(s.scores, s));
}

TEST_CASE("smoothing") {
  const auto check = [](const auto& smoother) {
    for (const index_t n : {1, 2, 5, 300}) {
      for (int kind = 0; kind < 4; ++kind) {
        CAPTURE(n, kind, smoother.size);
        check_rewrite(Scored(3, n, 21, kind, true), [&](auto& context, const kv::ScoredLayer& layer) {
          smooth(context, smoother, layer);
        });
      }
    }
  };
  for (const kv::Padding padding : {kv::Padding::zero, kv::Padding::replicate, kv::Padding::reflect}) {
    check(kv::AvgPool{5, padding});
    check(kv::MaxPool{31, padding});
  }
  check(kv::AvgPool{1});
  Stream stream;
  Cuda cuda(stream);
  REQUIRE_THROWS_WITH(smooth(cuda, kv::AvgPool{4}, kv::ScoredLayer{}), catch_compat::contains("kv::AvgPool"));
}

TEST_CASE("normalisation: double sums in one order") {
  for (const index_t n : {1, 37, 1024, 2600}) {
    for (int kind = 0; kind < 4; ++kind) {
      CAPTURE(n, kind);
      Scored s(3, n, 22, kind, true);
      s.protect_some(5, 6);
      check_rewrite(s, [](auto& context, const kv::ScoredLayer& layer) { normalise(context, kv::LayerSum{}, layer); });
      for (const index_t tokens : {0, 1, 40, 5000}) {
        check_rewrite(s, [&](auto& context, const kv::ScoredLayer& layer) {
          normalise(context, kv::HeadConcentration{tokens}, layer);
        });
      }
    }
  }
}

const kv::Budget budgets[] = {kv::Budget::tokens(0),  kv::Budget::tokens(7),  kv::Budget::tokens(33),
                              kv::Budget::tokens(90), kv::Budget::keep(0.25), kv::Budget::keep(0.7)};

/// Counts of both sides for a few layers, or that both refuse.
template <class A>
void check_counts(const A& allocator, std::vector<Scored>& layers, const kv::Budget& budget) {
  Stream stream;
  Cuda cuda(stream);
  Cpu cpu;
  const auto count = static_cast<index_t>(layers.size());
  const index_t heads = layers[0].heads;
  std::vector<DeviceScored> device;
  std::vector<kv::ScoredLayer> views, device_views;
  for (Scored& s : layers) {
    device.emplace_back(s);
    views.push_back(s.view());
  }
  for (const DeviceScored& s : device) device_views.push_back(s.view());
  std::vector<std::int32_t> expected(static_cast<std::size_t>(count * heads), -7);
  DeviceBuffer<std::int32_t> counts(expected);
  allocate(cuda, allocator, View<const kv::ScoredLayer, 1>(device_views), budget, counts.view(count, heads));
  try {
    allocate(cpu, allocator, View<const kv::ScoredLayer, 1>(views), budget,
             View<std::int32_t, 2>(expected.data(), count, heads));
  } catch (const decant::ArgumentError&) {
    REQUIRE_THROWS_AS(cuda.check(), decant::ArgumentError);
    return;
  }
  cuda.check();
  REQUIRE(counts.download() == expected);
}

/// Layers that protect nothing, or up to a tenth of each head.
std::vector<Scored> draw_layers(index_t count, index_t heads, index_t n, int kind, bool ragged, bool protect) {
  std::vector<Scored> layers;
  for (index_t l = 0; l < count; ++l) {
    layers.emplace_back(heads, n, static_cast<std::uint64_t>(100 + l), kind, ragged);
    layers.back().layer = l;
    layers.back().layers = count;
    if (protect) layers.back().protect_some(static_cast<std::uint64_t>(l), 14);
  }
  return layers;
}

TEST_CASE("allocation by lengths alone") {
  for (const bool ragged : {false, true}) {
    auto layers = draw_layers(3, 5, 90, 0, ragged, false);
    for (const kv::Budget& budget : budgets) {
      check_counts(kv::Uniform{}, layers, budget);
      check_counts(kv::KeepAll{}, layers, budget);
    }
  }
}

TEST_CASE("PyramidKV's line, ours and kvpress's") {
  for (const index_t count : {1, 7, 32}) {
    auto layers = draw_layers(count, 2, 90, 0, count == 7, true);
    for (const kv::Budget& budget : budgets) {
      CAPTURE(count, budget.value());
      check_counts(kv::PyramidAllocation{}, layers, budget);
      check_counts(kv::PyramidAllocation{.beta = 7.3f}, layers, budget);
      check_counts(kv::PyramidAllocation{.rounding = kv::PyramidAllocation::Rounding::kvpress, .window = 8}, layers,
                   budget);
    }
  }
}

TEST_CASE("Ada-KV's split, official and kvpress's") {
  for (int kind = 0; kind < 4; ++kind) {
    auto layers = draw_layers(2, 5, 90, kind, kind == 1, kind < 2);
    for (const kv::Budget& budget : budgets) {
      for (const float alpha : {0.0f, 0.2f, 1.0f}) {
        CAPTURE(kind, budget.value(), alpha);
        check_counts(kv::AdaAllocation{alpha}, layers, budget);
        check_counts(kv::AdaAllocation{alpha, kv::AdaAllocation::Rule::kvpress}, layers, budget);
      }
    }
  }
}

TEST_CASE("GlobalTopK over more layers than one launch takes") {
  for (int kind = 0; kind < 3; ++kind) {
    auto layers = draw_layers(35, 2, 40, kind, true, kind == 0);
    for (const kv::Budget& budget : budgets) {
      CAPTURE(kind, budget.value());
      check_counts(kv::GlobalTopK{}, layers, budget);
    }
  }
}

/// What a selector chooses for given counts.
template <class S>
void check_choice(const S& selector, Scored& s, const std::vector<std::int32_t>& counts) {
  Stream stream;
  Cuda cuda(stream);
  Cpu cpu;
  Layers layers(s);
  const DeviceScored device(s);
  kv::Kept expected(s.heads, s.n);
  choose(cpu, selector, layers.ragged(), s.view(), View<const std::int32_t, 1>(counts), expected.view());
  DeviceKept kept(s.heads, s.n);
  DeviceBuffer<std::int32_t> d_counts(counts);
  choose(cuda, selector, layers.device_ragged(), device.view(), d_counts.view(s.heads), kept.view());
  cuda.check();
  REQUIRE(kept.tokens() == cuda_test::tokens(expected));
}

TEST_CASE("choosing: the top, and H2O's recent and top") {
  for (int kind = 0; kind < 3; ++kind) {
    for (const std::uint32_t one_in : {2u, 9u, 1000000u}) {
      Scored s(3, 700, 31, kind);
      s.lengths = {700, 260, 5};
      s.protect_some(4, one_in);
      for (const double part : {0.0, 0.3, 0.8, 1.0}) {
        std::vector<std::int32_t> counts;
        for (index_t h = 0; h < 3; ++h) {
          std::int32_t kept = 0;
          const std::int32_t length = s.lengths[static_cast<std::size_t>(h)];
          for (index_t t = 0; t < length; ++t) kept += s.keep[static_cast<std::size_t>(h * 700 + t)];
          const std::int32_t free = length - kept;
          counts.push_back(kept + static_cast<std::int32_t>(part * free));
        }
        CAPTURE(kind, one_in, part);
        check_choice(kv::TopTokens{}, s, counts);
        for (const float recent : {0.0f, 0.5f, 1.0f}) check_choice(kv::RecentAndTop{recent}, s, counts);
      }
    }
  }
}

TEST_CASE("whole pipelines with these allocators and selectors") {
  using Ada = kv::Eviction<users_engine::Given, kv::MaxPool, kv::SinkRecent, kv::HeadConcentration, kv::AdaAllocation>;
  using Recent = kv::Eviction<users_engine::Given, kv::NoSmoothing, kv::NoProtection, kv::NoNormalisation, kv::Uniform,
                              kv::RecentAndTop>;
  Stream stream;
  Cuda cuda(stream);
  Cpu cpu;
  for (int kind = 0; kind < 3; kind += 2) {
    Scored s(3, 60, 41, kind);
    s.lengths = {60, 31, 44};
    Layers layers(s);
    const auto check = [&](const auto& on_host, const auto& on_device, const kv::Budget& budget) {
      DeviceKept kept(3, 60);
      select(cuda, on_device, layers.device_ragged(), budget, kept.view());
      cuda.check();
      REQUIRE(kept.tokens() == cuda_test::tokens(select(cpu, on_host, layers.ragged(), budget)));
    };
    for (const kv::Budget& budget : {kv::Budget::tokens(12), kv::Budget::tokens(40), kv::Budget::keep(0.5)}) {
      check(Ada{layers.given(), {5}, {2, 6}, {12}, {}, {}}, Ada{layers.device_given(), {5}, {2, 6}, {12}, {}, {}},
            budget);
      check(Recent{layers.given(), {}, {}, {}, {}, {}}, Recent{layers.device_given(), {}, {}, {}, {}, {}}, budget);
    }
  }
  // A fault ends all of them, and the next call is sound again.
  Scored bad(2, 20, 1);
  bad.scores[5] = cuda_test::nan;
  Layers layers(bad);
  DeviceKept kept(2, 20);
  const auto told = [&](const auto& policy) {
    select(cuda, policy, layers.device_dense(), kv::Budget::tokens(9), kept.view());
    REQUIRE_THROWS_WITH(cuda.check(), catch_compat::contains("layer 0, head 0, index 5"));
    REQUIRE(kept.untouched());
  };
  told(Ada{layers.device_given(), {5}, {2, 2}, {12}, {}, {}});
  told(Ada{layers.device_given(), {5}, {2, 2}, {12}, {0.5f, kv::AdaAllocation::Rule::kvpress}, {}});
  told(Recent{layers.device_given(), {}, {}, {}, {}, {}});
  told(kv::Eviction<users_engine::Given, kv::NoSmoothing, kv::NoProtection, kv::LayerSum, kv::GlobalTopK>{
      layers.device_given(), {}, {}, {}, {}, {}});
  told(kv::Eviction<users_engine::Given, kv::NoSmoothing, kv::NoProtection, kv::LayerSum, kv::PyramidAllocation>{
      layers.device_given(), {}, {}, {}, {}, {}});
}

}  // namespace
