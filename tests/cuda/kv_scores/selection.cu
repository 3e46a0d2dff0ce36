// The selectors of H2O and BlockwiseKeyDiff on the device, token for token the CPU's; and policies through select().
#include "catch_compat.hpp"
#include "cuda/kv_scores/device_copy.cuh"
#include "decant/kv/capkv.cuh"
#include "decant/kv/h2o.cuh"
#include "decant/kv/keydiff.cuh"
#include "decant/kv/snapkv.cuh"
#include "decant/kv/streaming_llm.cuh"
#include "oracle/kv_layer.hpp"

namespace {

using namespace cuda_test;
using decant::Cpu;
using decant::Cuda;
using oracle::Layer;

TEST_CASE("selection: RecentAndTop chooses the CPU's tokens") {
  const Stream stream;
  Cuda cuda(stream);
  Cpu cpu;
  for (const auto& [n, seed] : {std::pair<index_t, std::uint64_t>{40, 1}, {1500, 2}, {1, 3}, {2100, 4}}) {
    const decant::Philox random{seed};
    std::vector<float> scores;
    std::vector<std::uint8_t> keep;
    const std::vector<std::int32_t> lengths{static_cast<std::int32_t>(n), static_cast<std::int32_t>(n * 2 / 3), 0};
    std::vector<std::int32_t> counts;
    for (std::uint32_t i = 0; i < static_cast<std::uint32_t>(3 * n); ++i) {
      scores.push_back(static_cast<float>(random(i).word[0] % 50));  // with ties
      keep.push_back(random(i).word[1] % 5 == 0 ? 1 : 0);
    }
    for (std::size_t h = 0; h < 3; ++h) {
      index_t kept = 0;
      for (index_t t = 0; t < lengths[h]; ++t)
        kept += keep[h * static_cast<std::size_t>(n) + static_cast<std::size_t>(t)];
      counts.push_back(static_cast<std::int32_t>(kept + (lengths[h] - kept) * (h == 0 ? 2 : 3) / 5));
    }
    const DeviceBuffer<float> d_scores(scores);
    const DeviceBuffer<std::uint8_t> d_keep(keep);
    const DeviceBuffer<std::int32_t> d_lengths(lengths), d_counts(counts), indices(3 * n), got(3);
    const kv::ScoredLayer host{View<float, 2>(scores.data(), 3, n), View<std::uint8_t, 2>(keep.data(), 3, n),
                               View<std::int32_t, 1>(const_cast<std::int32_t*>(lengths.data()), 3)};
    const kv::ScoredLayer device{d_scores.view(3, n), d_keep.view(3, n), d_lengths.view(3)};
    Layer<> data({n, 3, 1, 2, 2, 1});
    DeviceCopy copy;
    for (const float recent : {0.0f, 0.3f, 0.5f, 1.0f}) {
      kv::Kept expected(3, n);
      choose(cpu, kv::RecentAndTop{recent}, data.view(), host, View<const std::int32_t, 1>(counts), expected);
      choose(cuda, kv::RecentAndTop{recent}, copy(data.view()), device, View<const std::int32_t, 1>(d_counts.view(3)),
             kv::KeptView{indices.view(3, n), got.view(3)});
      cuda.check();
      REQUIRE(got.download() == counts);
      const auto list = indices.download();
      for (index_t h = 0; h < 3; ++h) {
        for (index_t i = 0; i < counts[static_cast<std::size_t>(h)]; ++i) {
          REQUIRE(list[static_cast<std::size_t>(h * n + i)] == expected.token(h, i));
        }
      }
    }
  }
}

template <class P, class X>
void check_policy(const P& policy, const X& x, index_t budget) {
  CAPTURE(x.max_length(), budget);
  const Stream stream;
  Cuda cuda(stream);
  Cpu cpu;
  const kv::Kept expected = select(cpu, policy, x, kv::Budget::tokens(budget));
  const index_t heads = x.kv_heads();
  const index_t n = x.max_length();
  const DeviceBuffer<std::int32_t> indices(heads * n), counts(heads);
  DeviceCopy copy;
  select(cuda, policy, copy(x), kv::Budget::tokens(budget), kv::KeptView{indices.view(heads, n), counts.view(heads)});
  cuda.check();
  const auto list = indices.download();
  const auto sizes = counts.download();
  for (index_t h = 0; h < heads; ++h) {
    REQUIRE(sizes[static_cast<std::size_t>(h)] == expected.count(h));
    for (index_t i = 0; i < expected.count(h); ++i) {
      REQUIRE(list[static_cast<std::size_t>(h * n + i)] == expected.token(h, i));
    }
  }
}

auto with_protected_ends(index_t block) {
  return kv::Eviction{kv::KeyDiff{},         kv::NoSmoothing{}, kv::SinkRecent{.sinks = 3, .recent = 5},
                      kv::NoNormalisation{}, kv::Uniform{},     kv::BlockwiseKeyDiff{.block = block}};
}

TEST_CASE("selection: BlockwiseKeyDiff walks over the blocks as on the CPU") {
  for (const auto& [n, block] : {std::pair<index_t, index_t>{90, 16}, {700, 128}, {40, 1}, {60, 100}}) {
    Layer<> data({n, 2, 1, 40, 12, 1}, 21);
    for (index_t d = 0; d < 40 && block > 1; ++d) data.key(1, 5, d) = 0;   // no direction; two others would be tied
    for (const index_t budget : {index_t{0}, index_t{2}, n / 3, n - 1}) {  // 2: two keys are as near to their sum
      check_policy(kv::BlockwiseKeyDiff{.block = block}, data.view(), budget);
    }
    check_policy(with_protected_ends(block), data.view(), 9);
  }
}

TEST_CASE("selection: keys without direction are tied: BlockwiseKeyDiff keeps the earliest") {
  Layer<> data({90, 1, 1, 8, 8, 1}, 22);
  for (index_t t = 0; t < 90; ++t) {  // every third is a zero; the others point the same way
    for (index_t d = 0; d < 8; ++d) data.key(0, t, d) = t % 3 == 1 ? 0.0f : data.key(0, t, d) + 4;
  }
  check_policy(kv::BlockwiseKeyDiff{.block = 16}, data.view(), 3);
  check_policy(with_protected_ends(16), data.view(), 12);  // protected tokens stand behind the tied ones
}

TEST_CASE("selection: BlockwiseKeyDiff wants room for what it keeps, and writes nothing without") {
  const Stream stream;
  Cuda cuda(stream);
  Layer<> data({40, 2, 1, 8, 8, 1}, 23);
  DeviceCopy copy;
  const DeviceBuffer<float> scores(80);
  const DeviceBuffer<std::uint8_t> keep(std::vector<std::uint8_t>(80, 0));
  const DeviceBuffer<std::int32_t> lengths(std::vector<std::int32_t>{40, 40}), wanted(std::vector<std::int32_t>{5, 6}),
      indices(std::vector<std::int32_t>(10, -7)), counts(std::vector<std::int32_t>(2, -7));
  const kv::ScoredLayer layer{scores.view(2, 40), keep.view(2, 40), lengths.view(2)};
  choose(cuda, kv::BlockwiseKeyDiff{}, copy(data.view()), layer, View<const std::int32_t, 1>(wanted.view(2)),
         kv::KeptView{indices.view(2, 5), counts.view(2)});
  REQUIRE_THROWS_WITH(cuda.check(), catch_compat::contains("head 1, index 6"));
  REQUIRE(indices.download() == std::vector<std::int32_t>(10, -7));
  REQUIRE(counts.download() == std::vector<std::int32_t>(2, -7));
}

TEST_CASE("selection: policies select on the device what they select on the CPU") {
  Layer<> data({90, 2, 2, 16, 12, 90}, 8);
  for (const index_t budget : {index_t{20}, index_t{47}, index_t{90}}) {
    check_policy(kv::H2O{}, data.view(), budget);
    check_policy(kv::SnapKV{.window = 16}, data.view(), budget);
    check_policy(kv::CapKV{}, data.view(), budget);
    check_policy(kv::StreamingLLM{}, data.view(), budget);
  }
}

}  // namespace
