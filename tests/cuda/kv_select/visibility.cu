// SPEED's rows on the device against visibility.hpp's definition, the gather of rows, and re-rotation.
#include "decant/kv/visibility.cuh"

#include <cmath>

#include "catch_compat.hpp"
#include "decant/kv/compact.cuh"
#include "decant/kv/rerotate.cuh"
#include "twins.cuh"

namespace {

using cuda_test::DeviceBuffer;
using cuda_test::Stream;
using cuda_test::Twin;
using decant::Cpu;
using decant::Cuda;
using decant::index_t;
using decant::View;
namespace kv = decant::kv;

template <class V>
void check_lists(const V& v) {
  Stream stream;
  Cuda cuda(stream);
  for (const index_t n : {0, 1, 5, 1500}) {
    std::vector<std::int32_t> tokens;
    for (index_t t = 0; t < n; ++t) tokens.push_back(static_cast<std::int32_t>(t + t / 7));  // some are not there
    DeviceBuffer<std::int32_t> d_tokens(tokens), rows(n), counts(3);
    for (const index_t layer : {0, 2, 3}) {
      for (const index_t prompt : {n, n / 2}) {
        for (const bool computes : {false, true}) {
          std::vector<std::int32_t> expected;
          for (index_t i = 0; i < n; ++i) {
            const index_t token = tokens[static_cast<std::size_t>(i)];
            if (computes ? computed(v, layer, 4, token, prompt) : visible(v, layer, 4, token, prompt)) {
              expected.push_back(static_cast<std::int32_t>(i));
            }
          }
          if (computes) {
            computed_rows(cuda, v, layer, 4, d_tokens.view(n), prompt, rows.view(n), counts.view(3));
          } else {
            visible_rows(cuda, v, layer, 4, d_tokens.view(n), prompt, rows.view(n), counts.view(3));
          }
          cuda.check();
          REQUIRE(counts.download() == std::vector<std::int32_t>(3, static_cast<std::int32_t>(expected.size())));
          if (expected.empty()) continue;
          auto got = DeviceBuffer<std::int32_t>(rows.download()).download();
          got.resize(expected.size());
          REQUIRE(got == expected);
        }
      }
    }
  }
}

TEST_CASE("the rows that a layer computes and shows") {
  check_lists(kv::FullVisibility{});
  check_lists(kv::Speed{});
  check_lists(kv::Speed{.depth = 0.5f, .anchors = 3, .pivot = kv::Pivot::keep});
  check_lists(kv::Speed{.depth = 0.0f, .anchors = 0});
}

TEST_CASE("gather_rows, wide and odd rows, and lists that are wrong") {
  Stream stream;
  Cuda cuda(stream);
  for (const index_t width : {1, 3, 64}) {
    std::vector<decant::bf16> x;
    for (index_t i = 0; i < 50 * width; ++i) x.push_back(decant::bf16(static_cast<float>(i)));
    const std::vector<std::int32_t> rows{49, 0, 7, 7, 30};
    const std::vector<decant::bf16> before(static_cast<std::size_t>(5 * width), decant::bf16(-1.0f));
    DeviceBuffer<decant::bf16> d_x(x), out(before);
    DeviceBuffer<std::int32_t> d_rows(rows), count(std::vector<std::int32_t>{4});
    const auto run = [&](index_t room) {
      kv::gather_rows(cuda, View<const decant::bf16, 2>(d_x.data(), 50, width), d_rows.view(5), count.view(1),
                  out.view(room, width));
    };
    run(5);
    cuda.check();
    const auto got = out.download();
    for (index_t i = 0; i < 5; ++i) {
      for (index_t c = 0; c < width; ++c) {
        const auto from = static_cast<std::size_t>(rows[static_cast<std::size_t>(i)] * width + c);
        const auto to = static_cast<std::size_t>(i * width + c);
        REQUIRE(got[to].bits == (i == 4 ? before[to] : x[from]).bits);
      }
    }
    run(3);
    REQUIRE_THROWS_WITH(cuda.check(), catch_compat::contains("room"));
    count.upload({6});
    run(5);
    REQUIRE_THROWS_WITH(cuda.check(), catch_compat::contains("room"));
    count.upload({5});
    for (const std::int32_t bad : {-1, 50}) {
      d_rows.upload({49, 0, bad, 7, 30});
      run(5);
      REQUIRE_THROWS_WITH(cuda.check(), catch_compat::contains("index 2"));
    }
  }
}

TEST_CASE("a transient pivot is dropped by a list that all heads share") {
  Stream stream;
  Cuda cuda(stream);
  Cpu cpu;
  using Fixture = conformance::Dense<float>;
  Fixture fixture({{3, 3}}, 4, 4, 0);
  Twin<Fixture> twin(fixture);
  DeviceBuffer<std::int32_t> tokens(std::vector<std::int32_t>{0, 1, 9}), rows(3), counts(2);
  const kv::Speed speed{.depth = 0.5f, .anchors = 2};
  visible_rows(cuda, speed, 3, 4, tokens.view(3), 10, rows.view(3), counts.view(2));
  compact(cuda, twin.cache(), {View<std::int32_t, 2>(rows.data(), {2, 3}, {0, 1}), counts.view(2)});
  cuda.check();
  std::vector<std::int32_t> list{0, 1}, two{2, 2};
  compact(cpu, fixture.cache(), {View<std::int32_t, 2>(list.data(), {2, 2}, {0, 1}), two});
  REQUIRE(twin.equals(fixture));
}

/// How far apart two storage values are, in representable steps.
template <class T>
int steps_between(T a, T b) {
  const int x = a.bits & 0x7fff, y = b.bits & 0x7fff;
  return std::abs((a.bits >> 15 != 0 ? -x : x) - (b.bits >> 15 != 0 ? -y : y));
}

TEST_CASE("rerotate: the CPU's keys, to one rounding") {
  Stream stream;
  Cuda cuda(stream);
  Cpu cpu;
  using Fixture = conformance::Ragged<decant::fp16>;
  std::vector<std::int32_t> positions;
  for (int i = 0; i < 2 * 40; ++i) positions.push_back(i % 40 < 3 ? i % 40 : 1000 * i);
  DeviceBuffer<std::int32_t> d_positions(positions);
  const std::vector<double> frequencies{1.0, 0.3, 0.01};
  DeviceBuffer<double> d_frequencies(frequencies);
  for (int kind = 0; kind < 3; ++kind) {
    kv::Rope rope, device_rope;
    rope.interleaved = kind == 1;
    rope.dim = kind == 0 ? 0 : 6;
    device_rope = rope;
    if (kind == 2) {
      rope.frequencies = View<const double, 1>(frequencies.data(), 3);
      device_rope.frequencies = d_frequencies.view(3);
    }
    Fixture fixture({{40, 17}}, 8, 4, 1);
    Twin<Fixture> twin(fixture);
    rerotate(cpu, fixture.cache(), 0, View<const std::int32_t, 2>(positions.data(), 2, 40), rope);
    rerotate(cuda, twin.cache(), 0, d_positions.view(2, 40), device_rope);
    cuda.check();
    const auto got = twin.keys();
    int different = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (got[i].bits == fixture.keys[i].bits) continue;
      ++different;
      REQUIRE(steps_between(got[i], fixture.keys[i]) <= 1);
    }
    REQUIRE(different * 100 <= static_cast<int>(got.size()));
  }
  Fixture fixture({{40, 17}}, 8, 4, 1);
  Twin<Fixture> twin(fixture);
  rerotate(cuda, twin.cache(), 0, d_positions.view(2, 39), kv::Rope{});
  REQUIRE_THROWS_WITH(cuda.check(), catch_compat::contains("lengths"));
  REQUIRE(twin.equals(fixture));
  REQUIRE_THROWS_WITH(rerotate(cuda, twin.cache(), 0, d_positions.view(1, 80), kv::Rope{}),
                      catch_compat::contains("old_positions"));
}

}  // namespace
