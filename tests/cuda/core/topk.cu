// top-k on the device against the CPU's, bit for bit, on data full of ties, NaN, infinities and protected elements.
#include "decant/core/topk.cuh"

#include <cmath>
#include <limits>
#include <vector>

#include "catch_compat.hpp"
#include "decant/core/random.hpp"
#include "device_memory.cuh"
#include "graph.cuh"

namespace {

using cuda_test::DeviceBuffer;
using cuda_test::Stream;
using decant::Cpu;
using decant::Cuda;
using decant::index_t;
using decant::Threshold;
using decant::TopKTuning;
using decant::View;

constexpr float inf = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

/// kind 0: few distinct values and every special one; 1: continuous; 2: any bit pattern; 3: all equal.
float draw(std::uint32_t word, int kind) {
  constexpr float special[] = {0.0f, -0.0f, nan, -nan, inf, -inf, 1.0f, -1.0f, 1e-42f, -1e-42f, 2.0f, 2.0000002f};
  switch (kind) {
    case 0: return special[word % 12];
    case 1: return 8.0f * decant::Philox::to_unit(word) - 4.0f;
    case 2: return decant::bit_cast<float>(word);
    default: return -3.5f;
  }
}

/// Rows of scores with protected elements, on both sides.
struct Rows {
  index_t rows, columns;
  std::vector<float> scores;
  std::vector<std::uint8_t> keep;
  std::vector<std::int32_t> lengths, counts;
  DeviceBuffer<float> d_scores;
  DeviceBuffer<std::uint8_t> d_keep;
  DeviceBuffer<std::int32_t> d_lengths, d_counts;

  /// Row 0 is full, the others shorter; protects a part of each; counts from the protected to all.
  Rows(index_t r, index_t c, int kind, bool protect)
      : rows(r), columns(c), d_scores(r * c), d_keep(r * c), d_lengths(r), d_counts(r) {
    const decant::Philox rng{static_cast<std::uint64_t>(1000 * r + 10 * c + kind)};
    for (index_t i = 0; i < r * c; ++i) {
      const auto words = rng(static_cast<std::uint32_t>(i));
      scores.push_back(draw(words.word[0], kind));
      keep.push_back(protect && words.word[1] % 5 == 0 ? std::uint8_t{255} : std::uint8_t{0});
    }
    for (index_t i = 0; i < r; ++i) {
      const auto words = rng(static_cast<std::uint32_t>(i), 1);
      const index_t length = i == 0 ? c : words.word[0] % (c + 1);
      index_t kept = 0;
      for (index_t t = 0; t < length; ++t) kept += keep[static_cast<std::size_t>(i * c + t)] != 0;
      lengths.push_back(static_cast<std::int32_t>(length));
      counts.push_back(static_cast<std::int32_t>(kept + words.word[1] % (length - kept + 1)));
    }
    upload();
  }
  void upload() {
    d_scores.upload(scores);
    d_keep.upload(keep);
    d_lengths.upload(lengths);
    d_counts.upload(counts);
  }
  View<const float, 2> host_scores() const { return {scores.data(), rows, columns}; }
  View<const std::uint8_t, 2> host_keep() const { return {keep.data(), rows, columns}; }
};

/// Short rows in shared memory; short rows from global memory (many rows would do it); long rows in chunks.
constexpr TopKTuning paths[] = {{1 << 14, 512}, {0, 512}};

TEST_CASE("top_k_each_row takes the CPU's elements") {
  Stream stream;
  Cuda cuda(stream);
  Cpu cpu;
  for (const auto& [r, c] : {std::pair<index_t, index_t>{1, 1}, {3, 31}, {2, 700}, {3, 2500}, {12, 40}}) {
    for (int kind = 0; kind < 4; ++kind) {
      Rows data(r, c, kind, kind != 3);
      std::vector<std::int32_t> expected(static_cast<std::size_t>(r * c), -7);
      decant::top_k_each_row(cpu, data.host_scores(), data.lengths, data.host_keep(), data.counts,
                             View<std::int32_t, 2>(expected.data(), r, c));
      for (const TopKTuning& tuning : paths) {
        CAPTURE(r, c, kind, tuning.cached);
        DeviceBuffer<std::int32_t> out(std::vector<std::int32_t>(static_cast<std::size_t>(r * c), -7));
        decant::top_k_each_row(cuda, data.d_scores.view(r, c), data.d_lengths.view(r), data.d_keep.view(r, c),
                               data.d_counts.view(r), out.view(r, c), tuning);
        cuda.check();
        REQUIRE(out.download() == expected);
      }
    }
  }
}

TEST_CASE("top_k and its threshold, of one row, with and without a mask") {
  Stream stream;
  Cuda cuda(stream);
  Cpu cpu;
  for (const index_t n : {1, 513, 4097}) {
    for (int kind = 0; kind < 3; ++kind) {
      Rows data(1, n, kind, true);
      const View<const float, 1> host(data.scores.data(), n);
      const View<const std::uint8_t, 1> mask(data.keep.data(), n);
      for (const bool masked : {false, true}) {
        const index_t k = masked ? data.counts[0] : n / 2;
        const View<const std::uint8_t, 1> none;
        std::vector<std::int32_t> expected(static_cast<std::size_t>(n), -7);
        decant::top_k(cpu, host, masked ? mask : none, k, expected.data());
        const Threshold threshold = decant::top_k_threshold(cpu, host, masked ? mask : none, k);
        const View<const std::uint8_t, 1> on_device = masked ? data.d_keep.view(n) : View<std::uint8_t, 1>{};
        for (const TopKTuning& tuning : paths) {
          CAPTURE(n, kind, masked, tuning.cached);
          DeviceBuffer<std::int32_t> out(std::vector<std::int32_t>(static_cast<std::size_t>(n), -7));
          DeviceBuffer<Threshold> found(1);
          decant::top_k(cuda, data.d_scores.view(n), on_device, k, out.data(), tuning);
          decant::top_k_threshold(cuda, data.d_scores.view(n), on_device, k, found.data(), tuning);
          cuda.check();
          REQUIRE(out.download() == expected);
          REQUIRE(found.download()[0] == threshold);
        }
      }
    }
  }
}

TEST_CASE("top_k_rows shares a total among rows as the CPU does") {
  Stream stream;
  Cuda cuda(stream);
  Cpu cpu;
  for (const auto& [r, c] : {std::pair<index_t, index_t>{1, 1}, {5, 90}, {2, 1500}, {600, 3}}) {
    for (int kind = 0; kind < 4; ++kind) {
      Rows data(r, c, kind, kind != 1);
      index_t kept = 0, elements = 0;
      for (index_t i = 0; i < r; ++i) {
        for (index_t t = 0; t < data.lengths[static_cast<std::size_t>(i)]; ++t) {
          kept += data.keep[static_cast<std::size_t>(i * c + t)] != 0;
        }
        elements += data.lengths[static_cast<std::size_t>(i)];
      }
      for (const index_t total : {kept, (kept + elements) / 2, elements}) {
        CAPTURE(r, c, kind, total);
        std::vector<std::int32_t> expected(static_cast<std::size_t>(r));
        decant::top_k_rows(cpu, data.host_scores(), data.lengths, data.host_keep(), total, expected);
        DeviceBuffer<std::int32_t> counts(r);
        decant::top_k_rows(cuda, data.d_scores.view(r, c), data.d_lengths.view(r), data.d_keep.view(r, c), total,
                           counts.view(r), TopKTuning{0, 512});
        cuda.check();
        REQUIRE(counts.download() == expected);
      }
    }
  }
}

TEST_CASE("strided scores and masks") {
  Stream stream;
  Cuda cuda(stream);
  Cpu cpu;
  Rows data(40, 6, 0, true);  // read as 6 rows of 40, by columns
  std::vector<std::int32_t> lengths(6, 40), counts(6, 20), expected(6 * 20);
  const View<const float, 2> scores(data.scores.data(), {6, 40}, {1, 6});
  const View<const std::uint8_t, 2> keep(data.keep.data(), {6, 40}, {1, 6});
  decant::top_k_each_row(cpu, scores, lengths, keep, counts, View<std::int32_t, 2>(expected.data(), 6, 20));
  DeviceBuffer<std::int32_t> d_lengths(lengths), d_counts(counts), out(6 * 20);
  for (const TopKTuning& tuning : {TopKTuning{64, 16}, TopKTuning{0, 16}}) {
    decant::top_k_each_row(cuda, View<const float, 2>(data.d_scores.data(), {6, 40}, {1, 6}), d_lengths.view(6),
                           View<const std::uint8_t, 2>(data.d_keep.data(), {6, 40}, {1, 6}), d_counts.view(6),
                           out.view(6, 20), tuning);
    cuda.check();
    REQUIRE(out.download() == expected);
  }
}

TEST_CASE("counts that protection or lengths rule out are told, and nothing is written") {
  Stream stream;
  Cuda cuda(stream);
  Rows data(3, 100, 1, true);
  const std::vector<std::int32_t> untouched(300, -7);
  for (const TopKTuning& tuning : {TopKTuning{128, 16}, TopKTuning{0, 16}}) {
    const auto run = [&](std::int32_t length, std::int32_t count, index_t room, const char* text) {
      DeviceBuffer<std::int32_t> out(untouched);
      std::vector<std::int32_t> counts{data.counts[0], count, data.counts[2]};
      std::vector<std::int32_t> lengths{100, length, data.lengths[2]};
      data.d_counts.upload(counts);
      data.d_lengths.upload(lengths);
      decant::top_k_each_row(cuda, data.d_scores.view(3, 100), data.d_lengths.view(3), data.d_keep.view(3, 100),
                             data.d_counts.view(3), out.view(3, room), tuning);
      REQUIRE_THROWS_WITH(cuda.check(), catch_compat::contains(text));
      REQUIRE(out.download() == untouched);
    };
    run(100, 0, 100, "counts from the protected elements to all");
    run(50, 51, 100, "head 1, index 51");
    run(50, -1, 100, "argument `counts`");
    run(101, 20, 100, "lengths from 0 to the capacity");
    run(-1, 0, 100, "lengths from 0 to the capacity");
    run(100, 90, 80, "room for every head's tokens");
    DeviceBuffer<std::int32_t> out(untouched);
    decant::top_k(cuda, data.d_scores.view(100), data.d_keep.view(100), 2, out.data(), tuning);
    REQUIRE_THROWS_WITH(cuda.check(), catch_compat::contains("index 2"));
    REQUIRE(out.download() == untouched);
    data.d_lengths.upload({100, 100, 100});
    decant::top_k_rows(cuda, data.d_scores.view(3, 100), data.d_lengths.view(3), data.d_keep.view(3, 100), 5,
                       out.view(3), tuning);
    REQUIRE_THROWS_WITH(cuda.check(), catch_compat::contains("index 5"));
    REQUIRE(out.download() == untouched);
  }
  REQUIRE_THROWS_WITH(decant::top_k(cuda, data.d_scores.view(100), 101, nullptr), catch_compat::contains("`k`"));
  REQUIRE_THROWS_WITH(decant::top_k_each_row(cuda, data.d_scores.view(3, 100), data.d_lengths.view(2), {},
                                             data.d_counts.view(3), View<std::int32_t, 2>{}),
                      catch_compat::contains("`lengths`"));
  cuda.check();
}

TEST_CASE("the second call allocates nothing and can be captured") {
  Stream stream;
  Cuda cuda(stream);
  Cpu cpu;
  Rows data(2, 3000, 1, true);
  DeviceBuffer<std::int32_t> out(6000), counts(2);
  const TopKTuning tuning{0, 512};
  const auto run = [&] {
    decant::top_k_each_row(cuda, data.d_scores.view(2, 3000), data.d_lengths.view(2), data.d_keep.view(2, 3000),
                           data.d_counts.view(2), out.view(2, 3000), tuning);
    decant::top_k_rows(cuda, data.d_scores.view(2, 3000), data.d_lengths.view(2), data.d_keep.view(2, 3000), 2800,
                       counts.view(2), tuning);
  };
  run();
  cuda.check();
  cuda_test::Graph graph(stream, run);  // an allocation would fail
  out.upload(std::vector<std::int32_t>(6000, -7));
  for (float& s : data.scores) s = -s;  // a graph reads what is there when it runs
  data.upload();
  graph.launch(stream);
  cuda.check();
  std::vector<std::int32_t> expected(6000, -7), shares(2);
  decant::top_k_each_row(cpu, data.host_scores(), data.lengths, data.host_keep(), data.counts,
                         View<std::int32_t, 2>(expected.data(), 2, 3000));
  decant::top_k_rows(cpu, data.host_scores(), data.lengths, data.host_keep(), 2800, shares);
  REQUIRE(out.download() == expected);
  REQUIRE(counts.download() == shares);
}

}  // namespace
