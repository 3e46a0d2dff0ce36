// H2O's online form over the caller's memory: accumulate() against the plain definition and the class, over caches
// whose heads are of one length or not; compact_sums() and what both refuse.
#include "catch_compat.hpp"
#include "conformance/cache_fixtures.hpp"
#include "decant/kv/h2o.hpp"

namespace {

using catch_compat::contains;
using decant::Cpu;
using decant::index_t;
using decant::View;
namespace kv = decant::kv;

std::vector<float> draw(index_t n, std::uint64_t seed) {
  std::vector<float> values;
  for (std::uint32_t i = 0; i < static_cast<std::uint32_t>(n); ++i) {
    values.push_back(decant::Philox::to_unit(decant::Philox{seed}(i).word[0]));
  }
  return values;
}

TEST_CASE("accumulate adds the mean weight of each group, within the heads' lengths") {
  Cpu cpu;
  const index_t heads = 2, group = 3, room = 90;
  conformance::Ragged<float> ragged({{33, 5}, {70, 0}}, 4, 4, 0);
  conformance::Dense<float> dense({{33, 33}, {70, 70}}, 4, 4, 1);
  const auto check = [&](const auto& cache) {
    for (index_t sequence = 0; sequence < 2; ++sequence) {
      kv::LayerView x{cache};
      x.sequence = sequence;
      std::vector<float> sums = draw(heads * room, 1);
      const std::vector<float> before = sums;
      const std::vector<float> weights = draw(heads * group * 80, 2);
      accumulate(cpu, x, View<const float, 2>(weights.data(), heads * group, 80),
                 View<float, 2>(sums.data(), heads, room));
      for (index_t h = 0; h < heads; ++h) {
        for (index_t t = 0; t < room; ++t) {
          const auto at = static_cast<std::size_t>(h * room + t);
          double mean = 0;
          for (index_t a = 0; a < group && t < x.length(h); ++a) {
            mean += static_cast<double>(weights[static_cast<std::size_t>((h * group + a) * 80 + t)]) / group;
          }
          REQUIRE(static_cast<double>(sums[at]) == Approx(static_cast<double>(before[at]) + mean).epsilon(1e-6));
          if (t >= x.length(h)) REQUIRE(sums[at] == before[at]);
        }
      }
    }
  };
  check(ragged.cache());
  check(dense.cache());
}

TEST_CASE("the free functions and AttentionAccumulator are one") {
  Cpu cpu;
  const index_t heads = 2, capacity = 80;
  conformance::Dense<float> fixture({{50, 50}}, 4, 4, 0);
  std::vector<float> memory(static_cast<std::size_t>(heads * capacity), 0.0f);
  const View<float, 2> sums(memory.data(), heads, capacity);
  kv::AttentionAccumulator owner(heads, capacity);
  const auto same = [&] {
    for (index_t h = 0; h < heads; ++h) {
      for (index_t t = 0; t < capacity; ++t) REQUIRE(sums(h, t) == owner.scores()(h, t));
    }
  };
  for (std::uint64_t step = 0; step < 3; ++step) {
    const std::vector<float> weights = draw(heads * 2 * 50, step);
    const View<const float, 2> w(weights.data(), heads * 2, 50);
    accumulate(cpu, kv::LayerView{fixture.cache()}, w, sums);
    owner.add(w);
  }
  same();
  std::vector<std::int32_t> indices{1, 3, 49, 0, 2, 0}, counts{3, 2};
  const kv::KeptView kept{View<std::int32_t, 2>(indices.data(), 2, 3), counts};
  const float third = sums(0, 49);
  compact_sums(cpu, sums, kept);
  owner.compact(kept);
  same();
  REQUIRE(third > 0);
  REQUIRE(sums(0, 2) == third);
  for (index_t t = 3; t < capacity; ++t) REQUIRE((sums(0, t) == 0 && sums(1, t - 1) == 0));
}

TEST_CASE("the online form refuses what does not fit, and writes nothing") {
  Cpu cpu;
  conformance::Dense<float> fixture({{10, 10}}, 4, 4, 0);
  const kv::LayerView x{fixture.cache()};
  std::vector<float> memory(2 * 12, 1.0f), w(6 * 12, 1.0f);
  const View<float, 2> sums(memory.data(), 2, 12);
  const auto weights = [&](index_t rows, index_t n) { return View<const float, 2>(w.data(), rows, n); };
  REQUIRE_THROWS_WITH(accumulate(cpu, x, weights(5, 12), sums),
                      "decant::kv::accumulate: argument `weights`: expected a multiple of 2 rows, got 5");
  REQUIRE_THROWS_WITH(accumulate(cpu, x, weights(0, 12), sums), contains("a multiple of 2 rows"));
  REQUIRE_THROWS_WITH(accumulate(cpu, x, weights(4, 9), sums),
                      contains("`weights`: expected one per cached token, 10, got 9"));
  REQUIRE_THROWS_WITH(accumulate(cpu, x, weights(4, 12), sums.slice(1, 0, 9)),
                      contains("`sums`: expected one per cached token, 10, got 9"));
  REQUIRE_THROWS_WITH(accumulate(cpu, x, weights(4, 12), sums.slice(0, 0, 1)), contains("`sums`"));
  fixture.lengths = {-1};
  REQUIRE_THROWS_WITH(accumulate(cpu, x, weights(4, 12), sums), contains("lengths"));
  std::vector<std::int32_t> indices{1, 3, 0, 12}, counts{2, 2};
  const kv::KeptView kept{View<std::int32_t, 2>(indices.data(), 2, 2), counts};
  REQUIRE_THROWS_WITH(compact_sums(cpu, sums, kept), contains("decant::kv::compact_sums: argument `kept`"));
  REQUIRE_THROWS_WITH(kv::AttentionAccumulator(2, 12).compact(kept), contains("strictly ascending tokens below 12"));
  REQUIRE_THROWS_WITH(kv::AttentionAccumulator(3, 12).compact(kept), contains("kept"));
  REQUIRE_THROWS_WITH(kv::AttentionAccumulator(2, 12).add(weights(4, 13)), contains("at most 12 tokens"));
  REQUIRE(memory == std::vector<float>(24, 1.0f));
}

}  // namespace
