// H2O's online form on the device: the sums have the CPU's bits, step by step and over evictions, in a captured graph
// while the sequence grows; lengths and kept tokens that are wrong are faults, and nothing is written.
#include <cstring>

#include "catch_compat.hpp"
#include "conformance/cache_fixtures.hpp"
#include "cuda/graph.cuh"
#include "cuda/kv_scores/device_copy.cuh"
#include "cuda/kv_select/twins.cuh"
#include "decant/kv/h2o.cuh"

namespace {

using namespace cuda_test;
using decant::Cpu;
using decant::Cuda;

std::vector<float> draw(index_t n, std::uint64_t seed) {
  std::vector<float> values;
  for (std::uint32_t i = 0; i < static_cast<std::uint32_t>(n); ++i) {
    values.push_back(decant::Philox::to_unit(decant::Philox{seed}(i).word[0]));
  }
  return values;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// Three steps of `group` query heads per KV head, with padded rows of weights and sums; then half of the tokens go.
template <class C>
void check_steps(const C& cache, index_t group) {
  constexpr index_t room = 83, row = 91;
  const Stream stream;
  Cuda cuda(stream);
  Cpu cpu;
  const index_t heads = cache.kv_heads();
  for (index_t sequence = 0; sequence < 2; ++sequence) {
    kv::LayerView x{cache};
    x.sequence = sequence;
    x.longest = 80;
    DeviceCopy copy;
    const auto y = copy(x);
    std::vector<float> sums = draw(heads * row, 7);
    const DeviceBuffer<float> d_sums(sums);
    const View<float, 2> on_host(sums.data(), {heads, room}, {row, 1});
    const View<float, 2> on_device(d_sums.data(), {heads, room}, {row, 1});
    for (std::uint64_t step = 0; step < 3; ++step) {
      CAPTURE(sequence, step, group);
      const std::vector<float> weights = draw(heads * group * row, step);
      const DeviceBuffer<float> d_weights(weights);
      accumulate(cpu, x, View<const float, 2>(weights.data(), {heads * group, 80}, {row, 1}), on_host);
      accumulate(cuda, y, View<const float, 2>(d_weights.data(), {heads * group, 80}, {row, 1}), on_device);
      cuda.check();
      REQUIRE(same_bits(d_sums.download(), sums));
    }
    std::vector<index_t> lengths;
    for (index_t h = 0; h < heads; ++h) lengths.push_back(x.length(h));
    KeptLists kept(draw_lists(lengths, 0.5, 3, false, 5), 80);
    compact_sums(cpu, on_host, kept.host());
    compact_sums(cuda, on_device, kept.device());
    cuda.check();
    REQUIRE(same_bits(d_sums.download(), sums));
  }
}

TEST_CASE("online: sums of dense, paged and ragged caches have the CPU's bits") {
  conformance::Dense<float> dense({{33, 33}, {70, 70}}, 4, 4, 1);
  check_steps(dense.cache(), 1);
  check_steps(dense.cache(), 3);
  conformance::Paged<decant::bf16> paged({{33, 33}, {70, 70}}, 4, 4, 1);
  check_steps(paged.cache(), 2);
  conformance::Ragged<float> ragged({{33, 5}, {70, 0}}, 4, 4, 0);
  check_steps(ragged.cache(), 7);
}

TEST_CASE("online: more sums than a tile, moved and cleared") {
  const Stream stream;
  Cuda cuda(stream);
  Cpu cpu;
  constexpr index_t n = 9000;
  std::vector<float> sums = draw(2 * n, 3);
  const DeviceBuffer<float> d_sums(sums);
  KeptLists kept(draw_lists({n, n - 500}, 0.7, 40, false, 2), n);
  compact_sums(cpu, View<float, 2>(sums.data(), 2, n), kept.host());
  compact_sums(cuda, d_sums.view(2, n), kept.device());
  cuda.check();
  REQUIRE(same_bits(d_sums.download(), sums));
}

/// A decode loop that holds at most `budget` tokens after each step: the step itself is one captured graph.
TEST_CASE("online: a captured step of H2O evicts what the CPU evicts, and allocates nothing") {
  constexpr index_t heads = 2, group = 2, capacity = 12, budget = 8, dim = 4;
  const Stream stream;
  Cuda cuda(stream);
  Cpu cpu;
  std::vector<float> keys = draw(heads * capacity * dim, 1), values = keys, sums(heads * capacity, 0.0f);
  std::vector<std::int32_t> length{3};
  DeviceBuffer<float> d_keys(keys), d_values(values), d_sums(sums), d_weights(draw(heads * group * capacity, 9));
  DeviceBuffer<std::int32_t> d_length(length), indices(heads * capacity), counts(heads);
  const kv::DenseKV<float> cache{View<float, 4>(keys.data(), 1, heads, capacity, dim),
                                 View<float, 4>(values.data(), 1, heads, capacity, dim), length};
  const kv::DenseKV<float> d_cache{d_keys.view(1, heads, capacity, dim), d_values.view(1, heads, capacity, dim),
                                   d_length.view(1)};
  const View<float, 2> on_host(sums.data(), heads, capacity), on_device = d_sums.view(heads, capacity);
  const auto policy = [](View<const float, 2> scores) {
    return kv::Eviction{kv::GivenScores{scores}, kv::NoSmoothing{}, kv::NoProtection{},
                        kv::NoNormalisation{},   kv::Uniform{},     kv::RecentAndTop{}};
  };
  const kv::KeptView d_kept{indices.view(heads, capacity), counts.view(heads)};
  const auto step = [&] {
    const kv::LayerView x{d_cache};
    accumulate(cuda, x, d_weights.view(heads * group, capacity), on_device);
    select(cuda, policy(on_device), x, kv::Budget::tokens(budget), d_kept);
    compact(cuda, d_cache, d_kept);
    compact_sums(cuda, on_device, d_kept);
  };
  step();  // once for the workspace: of three tokens, all stay
  cuda.check();
  d_sums.upload(sums);
  const std::size_t high_water = cuda.workspace().high_water();
  const Graph graph(stream, step);
  for (std::uint64_t i = 0; i < 14; ++i) {
    CAPTURE(i);
    ++length[0];  // as if a token had been appended
    d_length.upload(length);
    const std::vector<float> weights = draw(heads * group * capacity, 20 + i);
    d_weights.upload(weights);
    graph.launch(stream);
    cuda.check();
    const kv::LayerView x{cache};
    accumulate(cpu, x, View<const float, 2>(weights.data(), heads * group, capacity), on_host);
    kv::Kept kept = select(cpu, policy(on_host), x, kv::Budget::tokens(budget));
    compact(cpu, cache, kept);
    compact_sums(cpu, on_host, kept);
    REQUIRE(same_bits(d_sums.download(), sums));
    REQUIRE(same_bits(d_keys.download(), keys));
    REQUIRE(d_length.download() == length);
  }
  REQUIRE(length[0] == budget);
  REQUIRE(cuda.workspace().high_water() == high_water);
}

TEST_CASE("online: faults and errors; nothing is written") {
  const Stream stream;
  Cuda cuda(stream);
  conformance::Dense<float> fixture({{10, 10}}, 4, 4, 0);
  Twin<conformance::Dense<float>> twin(fixture);
  const std::vector<float> before = draw(2 * 12, 1);
  const DeviceBuffer<float> d_sums(before), d_weights(draw(4 * 12, 2));
  const kv::LayerView x{twin.cache()};
  const auto add = [&](index_t rows, index_t n, View<float, 2> sums) {
    accumulate(cuda, x, View<const float, 2>(d_weights.data(), rows, n), sums);
  };
  const auto fault = [&](index_t n, index_t room, const char* text) {
    add(4, n, d_sums.view(2, room));
    REQUIRE_THROWS_WITH(cuda.check(), catch_compat::contains(text));
    REQUIRE(same_bits(d_sums.download(), before));
  };
  fault(9, 12, "head 0, index 10");  // weights for fewer tokens than there are
  fault(12, 9, "head 0, index 10");  // sums
  twin.set_table(0, {-1});
  fault(12, 12, "lengths from 0 to the capacity");
  twin.set_table(0, {81});
  fault(12, 12, "lengths from 0 to the capacity");
  twin.set_table(0, {10});
  REQUIRE_THROWS_WITH(add(5, 12, d_sums.view(2, 12)), catch_compat::contains("a multiple of 2 rows, got 5"));
  REQUIRE_THROWS_WITH(add(0, 12, d_sums.view(2, 12)), catch_compat::contains("a multiple of 2 rows, got 0"));
  REQUIRE_THROWS_WITH(add(4, 12, d_sums.view(3, 8)), catch_compat::contains("sums"));

  using Lists = std::vector<std::vector<std::int32_t>>;
  for (const Lists& lists : {Lists{{1, 1}, {0}}, Lists{{0}, {3, 12}}, Lists{{-1}, {0}}}) {
    const KeptLists kept(lists, 4);
    compact_sums(cuda, d_sums.view(2, 12), kept.device());
    REQUIRE_THROWS_WITH(cuda.check(), catch_compat::contains("strictly ascending tokens"));
    REQUIRE(same_bits(d_sums.download(), before));
  }
  const KeptLists one({{1}}, 4);
  REQUIRE_THROWS_WITH(compact_sums(cuda, d_sums.view(2, 12), one.device()), catch_compat::contains("kept"));
  REQUIRE_THROWS_WITH(
      compact_sums(cuda, View<float, 2>(d_sums.data(), {2, 12}, {0, 1}), KeptLists(Lists(2), 4).device()),
      catch_compat::contains("stride 0"));
  REQUIRE(same_bits(d_sums.download(), before));
}

}  // namespace
