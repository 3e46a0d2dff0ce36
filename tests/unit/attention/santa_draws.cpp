// The integers under SANTA: thresholds against 128-bit arithmetic, expectations by running through all offsets.

#include "catch_compat.hpp"
#include "santa_problem.hpp"

using namespace decant::attention::detail;

namespace attention_test {
namespace {

__extension__ using wide = unsigned __int128;

std::uint64_t random_bits(std::uint32_t i) {
  const decant::Philox4 x = decant::Philox{7}(i);
  return static_cast<std::uint64_t>(x.word[0]) << 32 | x.word[1];
}

TEST_CASE("SantaGrid: every threshold is floor((s + offset / 2^32) mass / samples), and all lie on the axis") {
  std::uint32_t draw = 0;
  for (int repeat = 0; repeat < 400; ++repeat) {
    const auto mass = static_cast<std::int64_t>((random_bits(draw++) >> (2 + repeat % 61)) | 1);
    const auto samples =
        static_cast<index_t>(repeat % 3 == 0 ? 1 + random_bits(draw++) % 40 : 1 + random_bits(draw++) % (1 << 20));
    const std::uint32_t offset = repeat % 7 == 0 ? 0xffffffffu : static_cast<std::uint32_t>(random_bits(draw++));
    SantaGrid grid = SantaGrid::first(offset, mass, samples);
    const index_t stride = samples > 1000 ? 997 : 1;
    bool exact = true;
    for (index_t s = 0; s < samples; ++s, grid.next()) {
      if (s % stride != 0 && s != samples - 1) continue;
      const wide position = (static_cast<wide>(s) << 32) + offset;  // below 2^52, times 2^62: fits
      const wide expected = position * static_cast<wide>(mass) / (static_cast<wide>(samples) << 32);
      exact = exact && static_cast<wide>(grid.at) == expected;
      exact = exact && grid.at >= 0 && grid.at < mass;
    }
    INFO("mass " << mass << " samples " << samples << " offset " << offset);
    CHECK(exact);
  }
}

TEST_CASE("SantaGrid: over all offsets a key is drawn S p times on average, exactly, and errors are as enumerated") {
  // Masses add up to 2^12 and offsets step by 2^-12: counts are constant between them, so the sum over them is the
  // integral over all offsets.
  const std::vector<std::int64_t> mass{1, 700, 0, 33, 1024, 2, 900, 64, 1, 371, 1000};
  const std::vector<double> value{1, -2, 5, 3, 0.5, 7, -1, 4, 2, 0, 1.5};
  for (const index_t samples : {1, 2, 5, 16, 33, 100}) {
    std::vector<std::int64_t> counts(mass.size());
    double error = 0, exact = 0;
    for (std::size_t i = 0; i < mass.size(); ++i) exact += static_cast<double>(mass[i]) / 4096 * value[i];
    bool rounded = true;
    for (std::uint32_t k = 0; k < 4096; ++k) {
      SantaGrid grid = SantaGrid::first(k << 20, 4096, samples);
      index_t s = 0;
      std::int64_t end = 0;
      double estimate = 0;
      for (std::size_t i = 0; i < mass.size(); ++i) {
        end += mass[i];
        std::int64_t count = 0;
        for (; s < samples && grid.at < end; ++s, grid.next()) ++count;
        counts[i] += count;
        rounded = rounded && std::abs(count * 4096 - samples * mass[i]) < 4096;
        estimate += static_cast<double>(count) / static_cast<double>(samples) * value[i];
      }
      REQUIRE(s == samples);
      error += (estimate - exact) * (estimate - exact) / 4096;
    }
    CHECK(rounded);
    for (std::size_t i = 0; i < mass.size(); ++i) CHECK(counts[i] == samples * mass[i]);

    // The same by definition: c_i = floor(u + C_i) - floor(u + C_{i - 1}) between the breakpoints of u.
    std::vector<double> breaks{0, 1};
    double sum = 0;
    std::vector<double> ends{0};
    for (const std::int64_t m : mass) {
      sum += static_cast<double>(samples) * static_cast<double>(m) / 4096;
      ends.push_back(sum);
      breaks.push_back(std::ceil(sum) - sum);
    }
    std::sort(breaks.begin(), breaks.end());
    double expected = 0;
    for (std::size_t k = 0; k + 1 < breaks.size(); ++k) {
      const double u = (breaks[k] + breaks[k + 1]) / 2;
      double estimate = 0;
      for (std::size_t i = 0; i < mass.size(); ++i)
        estimate += (std::floor(u + ends[i + 1]) - std::floor(u + ends[i])) / static_cast<double>(samples) * value[i];
      expected += (breaks[k + 1] - breaks[k]) * (estimate - exact) * (estimate - exact);
    }
    CHECK(error == Approx(expected).epsilon(1e-9).margin(1e-12));
  }
}

TEST_CASE("SantaShare and santa_allot: exact shares, largest remainders, ties to the first") {
  for (std::uint32_t i = 0; i < 300; ++i) {
    const auto mass = static_cast<std::int64_t>((random_bits(i) >> (2 + i % 61)) | 1);
    const auto below = static_cast<std::int64_t>(random_bits(i + 1000) % static_cast<std::uint64_t>(mass));
    const std::int64_t part = i % 5 == 0 ? mass : below;
    const auto samples = static_cast<index_t>(random_bits(i + 2000) % ((1 << 20) + 1));
    const SantaShare share = SantaShare::of(samples, part, mass);
    const wide product = static_cast<wide>(samples) * static_cast<wide>(part);
    CHECK(static_cast<wide>(share.whole) == product / static_cast<wide>(mass));
    CHECK(static_cast<wide>(share.rest) == product % static_cast<wide>(mass));
  }
  const auto allot = [](index_t samples, std::vector<std::int64_t> part) {
    std::vector<std::int32_t> counts(part.size());
    std::vector<std::int64_t> rests(part.size()), sorted(part.size());
    std::int64_t mass = 0;
    for (const std::int64_t p : part) mass += p;
    const auto n = static_cast<index_t>(part.size());
    santa_allot(samples, part.data(), mass, n, counts.data(), rests.data(), sorted.data());
    return counts;
  };
  CHECK(allot(4, {9, 1}) == std::vector<std::int32_t>{4, 0});
  CHECK(allot(10, {3, 3, 3}) == std::vector<std::int32_t>{4, 3, 3});
  CHECK(allot(11, {3, 0, 3, 3}) == std::vector<std::int32_t>{4, 0, 4, 3});
  CHECK(allot(0, {5, 6}) == std::vector<std::int32_t>{0, 0});
  CHECK(allot(7, {1, 2, 4}) == std::vector<std::int32_t>{1, 2, 4});
  CHECK(allot(5, {1, 2, 4}) == std::vector<std::int32_t>{1, 1, 3});  // 0.71, 1.43, 2.86

  for (index_t n = 0; n < 70; ++n) {
    std::vector<std::int64_t> x;
    for (index_t i = 0; i < n; ++i)
      x.push_back(static_cast<std::int64_t>(random_bits(static_cast<std::uint32_t>(i + 100 * n))) % 50);
    std::vector<std::int64_t> sorted = x;
    std::sort(sorted.begin(), sorted.end());
    heap_sort(x.data(), n);
    CHECK(x == sorted);
  }
}

TEST_CASE("float_from: the smallest float that is not below an integer") {
  for (const std::int64_t x : {std::int64_t{1}, std::int64_t{16777217}, (std::int64_t{1} << 36) + 1,
                               (std::int64_t{1} << 36) - 1, std::int64_t{1} << 40}) {
    const float f = float_from(x);
    CHECK(static_cast<double>(f) >= static_cast<double>(x));
    CHECK(static_cast<double>(std::nextafter(f, 0.0f)) < static_cast<double>(x));
  }
}

}  // namespace
}  // namespace attention_test
