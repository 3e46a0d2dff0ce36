// quant::Int: the grids by their laws (error bounds, equivariance, symmetry) and by hand-made groups.
#include <algorithm>
#include <cstring>

#include <decant/quant/int_group.hpp>

#include "catch_compat.hpp"
#include "unit/quant/quantized.hpp"

namespace quant_int_test {

using namespace quant_test;
using quant::Int;
using quant::IntGrid;

constexpr IntGrid grids[] = {IntGrid::zero_point, IntGrid::minimum, IntGrid::symmetric, IntGrid::signed_max,
                             IntGrid::centred};
constexpr index_t group_sizes[] = {16, 32, 128, 0};

/// Rows of different offsets and scales, so that ranges lie around, above and below zero.
Matrix offset_rows(index_t cols) {
  return Matrix(6, cols, [&](index_t i) {
    const index_t row = i / cols;
    return std::ldexp(gaussian(i, 2) + 2.5 * static_cast<double>(row % 3 - 1), static_cast<int>(row) - 4);
  });
}

template <int Bits>
void check_bounds() {
  const Matrix m = offset_rows(200);
  for (const IntGrid grid : grids)
    for (const index_t group : group_sizes) {
      INFO(Bits << " bits, " << name(grid) << ", group " << group);
      const Quantized<Int<Bits>> q(Int<Bits>{.group = group, .grid = grid}, m);
      const std::vector<float> values = q.values();
      double worst = 0, worst_at_end = 0;
      for (index_t r = 0; r < m.rows; ++r)
        for (index_t k = 0; k < m.cols; ++k) {
          const double step = std::abs(q.group(r, k / q.format.group_size(m.cols)).scale);
          const int code = q.code(r, k);
          const bool end = code == 0 || code == (1 << Bits) - 1;
          double& w = end ? worst_at_end : worst;
          w = std::max(w, std::abs(static_cast<double>(values[at(r * m.cols + k)]) - m.w[at(r * m.cols + k)]) / step);
        }
      CHECK(worst <= 0.5 + 1e-4);
      const bool clips = grid == IntGrid::zero_point || grid == IntGrid::signed_max;
      CHECK(worst_at_end <= (clips ? 1.0 : 0.5) + (1 << Bits) * 0x1p-12 + 1e-4);  // fp16 scales: codes * 2^-11
    }
}

TEST_CASE("Int rounds within half a step, or a step where a grid clips", "[quant][formats]") {
  check_bounds<2>();
  check_bounds<4>();
  check_bounds<8>();
}

/// Stored groups: each value rounds to its own code.
template <int Bits>
void check_idempotent() {
  const Matrix m = offset_rows(64);
  for (const IntGrid grid : grids) {
    INFO(Bits << " bits, " << name(grid));
    const Quantized<Int<Bits>> q(Int<Bits>{.group = 32, .grid = grid}, m);
    int wrong = 0;
    for (index_t r = 0; r < m.rows; ++r)
      for (index_t j = 0; j < 2; ++j)
        for (int code = grid == IntGrid::symmetric ? 1 : 0; code < 1 << Bits; ++code) {
          const auto c = static_cast<std::uint8_t>(code);
          wrong += q.format.nearest({}, q.group(r, j), 0, q.format.value({}, q.group(r, j), 0, c)) != c;
        }
    CHECK(wrong == 0);
  }
}

TEST_CASE("Int leaves its own values alone", "[quant][formats]") {
  check_idempotent<3>();
  check_idempotent<8>();
}

TEST_CASE("Int of weights times a power of two is its values times that, to the bit", "[quant][formats]") {
  const Matrix m = offset_rows(100);
  for (const IntGrid grid : grids)
    for (const bool search : {false, true})
      for (const float a : {8.0f, 0.25f}) {
        INFO(name(grid) << ", search " << search << ", times " << a);
        const Int<4> format{.group = 32, .grid = grid, .search = search};
        std::vector<float> expected = Quantized<Int<4>>(format, m).values();
        for (float& x : expected) x *= a;
        Matrix scaled = m;
        for (float& x : scaled.w) x *= a;
        CHECK(Quantized<Int<4>>(format, scaled).values() == expected);
      }
}

TEST_CASE("Int: the symmetric grid treats both signs alike", "[quant][formats]") {
  const Matrix m = offset_rows(100);
  const Int<4> format{.group = 32, .grid = IntGrid::symmetric};
  std::vector<float> expected = Quantized<Int<4>>(format, m).values();
  for (float& x : expected) x = -x;
  Matrix negative = m;
  for (float& x : negative.w) x = -x;
  CHECK(Quantized<Int<4>>(format, negative).values() == expected);
}

double norm(const Matrix& m, const std::vector<float>& values) {
  double sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i)
    sum += std::pow(std::abs(static_cast<double>(values[i]) - m.w[i]), 2.4);
  return sum;
}

template <int Bits>
void check_search() {
  int better = 0;
  for (const IntGrid grid : grids)
    for (index_t i = 0; i < 40; ++i) {
      INFO(Bits << " bits, " << name(grid) << ", group " << i);
      const Matrix m(
          1, 32, [&](index_t k) { return gaussian(32 * i + k, 3) * (k == 5 ? 3 : 1) + 0.02 * static_cast<double>(i); });
      const double plain = norm(m, Quantized<Int<Bits>>(Int<Bits>{.group = 32, .grid = grid}, m).values());
      const double found =
          norm(m, Quantized<Int<Bits>>(Int<Bits>{.group = 32, .grid = grid, .search = true}, m).values());
      if (grid == IntGrid::signed_max) {
        REQUIRE(found == plain);
      } else {
        REQUIRE(found <= plain);
        better += found < plain;
      }
    }
  CHECK(better > 80);  // of 160
}

TEST_CASE("Int: the search over ranges never loses by its own norm", "[quant][formats]") {
  check_search<2>();
  check_search<4>();
}

TEST_CASE("Int decodes groups of zeros to +0", "[quant][formats]") {
  for (const IntGrid grid : grids)
    for (const float zero : {0.0f, -0.0f})
      for (const bool search : {false, true}) {
        INFO(name(grid) << ", search " << search);
        const Matrix m(1, 48, [&](index_t k) { return k / 16 == 1 ? zero : gaussian(k, 4); });
        const std::vector<float> values =
            Quantized<Int<4>>(Int<4>{.group = 16, .grid = grid, .search = search}, m).values();
        for (std::size_t k = 16; k < 32; ++k) CHECK((values[k] == 0 && !std::signbit(values[k])));
      }
}

TEST_CASE("Int: a minimum that fp16 cannot hold is rounded down, so that nothing is clipped", "[quant][formats]") {
  for (const float base : {1.0f, -1.0f, 700.0f, -0.001f, 0x1p-20f}) {
    // Steps are far finer than fp16 is at the minimum.
    const Matrix m(1, 16, [&](index_t k) { return base * (1 + 0x1.8p-11f + 0x1p-14f * static_cast<float>(k)); });
    const Quantized<Int<4>> q(Int<4>{.group = 16, .grid = IntGrid::minimum}, m);
    const std::vector<float> values = q.values();
    const auto group = q.group(0, 0);
    CHECK(group.origin <= *std::min_element(m.w.begin(), m.w.end()));
    for (std::size_t k = 0; k < 16; ++k)
      CHECK(std::abs(values[k] - m.w[k]) <= group.scale * 0.5001f + std::abs(base) * 0x1p-24f);
  }
}

TEST_CASE("Int: scales below fp16's normal numbers are rounded up, and never to 0", "[quant][formats]") {
  for (const IntGrid grid : grids)
    for (int exponent = -40; exponent <= -10; ++exponent) {
      INFO(name(grid) << " 2^" << exponent);
      const Matrix m(1, 32, [&](index_t k) { return std::ldexp(gaussian(k, 6), exponent); });
      const Quantized<Int<8>> q(Int<8>{.group = 32, .grid = grid}, m);
      const std::vector<float> values = q.values();
      const float step = std::abs(q.group(0, 0).scale);
      REQUIRE(step >= 0x1p-24f);
      for (std::size_t k = 0; k < 32; ++k) REQUIRE(std::abs(values[k] - m.w[k]) <= step * 1.001f);
    }
}

TEST_CASE("Int of weights beyond fp16 is finite", "[quant][formats]") {
  for (const IntGrid grid : grids) {
    const Matrix m(1, 32, [&](index_t k) { return k == 3 ? 3e38 : k == 4 ? -3e38 : 1e9 * gaussian(k, 7); });
    for (const float x : Quantized<Int<4>>(Int<4>{.group = 32, .grid = grid}, m).values()) CHECK(std::isfinite(x));
  }
}

TEST_CASE("Int: hand-made groups", "[quant][formats]") {
  const auto codes = [](IntGrid grid, const std::vector<float>& w) {
    const Quantized<Int<4>> q(Int<4>{.group = 0, .grid = grid}, row_of(w));
    std::vector<int> all;
    for (index_t k = 0; k < q.cols; ++k) all.push_back(q.code(0, k));
    return all;
  };
  std::vector<float> ramp;
  std::vector<int> ramp_codes;
  for (int i = 0; i < 16; ++i) {
    ramp.push_back(static_cast<float>(i));
    ramp_codes.push_back(i);
  }
  CHECK(codes(IntGrid::zero_point, ramp) == ramp_codes);
  for (float& x : ramp) x -= 8;
  CHECK(codes(IntGrid::signed_max, ramp) == ramp_codes);
  CHECK(codes(IntGrid::minimum, ramp) == ramp_codes);
  CHECK(codes(IntGrid::zero_point, ramp) == ramp_codes);
  ramp[0] = -7;
  ramp_codes[0] = 1;
  CHECK(codes(IntGrid::symmetric, ramp) == ramp_codes);
  // Halves to the even level: the step is 1.
  CHECK(codes(IntGrid::symmetric, {7, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f}) ==
        std::vector<int>{15, 8, 10, 10, 8, 6, 6});
  // The first of two extremes is the one that the grid reaches; the other is clipped.
  CHECK(codes(IntGrid::signed_max, {1, -4, 4}) == std::vector<int>{10, 0, 15});
  CHECK(codes(IntGrid::signed_max, {1, 4, -4}) == std::vector<int>{6, 0, 15});
  // Half a step is lost at both ends, and half goes to the even level, which the positive end does not have.
  CHECK(codes(IntGrid::centred, {7.5f, -7.5f, 3, 0.5f, -0.5f}) == std::vector<int>{15, 0, 11, 8, 8});
  // The range holds 0, and 0 is exact.
  CHECK(codes(IntGrid::zero_point, {30, 15, 0}) == std::vector<int>{15, 8, 0});
  CHECK(codes(IntGrid::zero_point, {-30, -16, 0}) == std::vector<int>{0, 7, 15});
}

template <int Bits>
std::vector<int> packed_bytes_of(IntGrid grid, const std::vector<float>& w) {
  const Quantized<Int<Bits>> q(Int<Bits>{.group = 0, .grid = grid}, row_of(w));
  std::vector<int> bytes;
  for (const std::byte b : q.bytes) bytes.push_back(static_cast<int>(b));
  return bytes;
}

TEST_CASE("Int: bytes", "[quant][formats]") {
  // Nibbles, the first low; to an even address; scale 1 as fp16; zero point; zeros to a multiple of 4.
  CHECK(packed_bytes_of<4>(IntGrid::zero_point, {0, 1, 2, 3, 15}) ==
        std::vector<int>{0x10, 0x32, 0x0f, 0, 0x00, 0x3c, 0, 0});
  CHECK(packed_bytes_of<4>(IntGrid::zero_point, {-2, 13}) ==
        std::vector<int>{0xf0, 0, 0x00, 0x3c, 2, 0, 0, 0});
  CHECK(packed_bytes_of<4>(IntGrid::minimum, {-2, 13}) ==
        std::vector<int>{0xf0, 0, 0x00, 0x3c, 0x00, 0xc0, 0, 0});
  // Three bits: the low two of all, four in a byte; then the high one of all, eight in a byte.
  CHECK(packed_bytes_of<3>(IntGrid::signed_max, {-4, -3, -2, -1, 0, 1, 2, 3}) ==
        std::vector<int>{0xe4, 0xe4, 0xf0, 0, 0x00, 0x3c, 0, 0});
}

TEST_CASE("Int: bits per weight", "[quant][formats]") {
  const auto bits = [](const auto& format) {
    return 8.0 * static_cast<double>(packed_bytes(format, 100, 4096)) / (100.0 * 4096.0);
  };
  CHECK(bits(Int<4>{}) == 4 + 24.0 / 128);
  CHECK(bits(Int<4>{.group = 32, .grid = IntGrid::symmetric}) == 4.5);
  CHECK(bits(Int<4>{.group = 32, .grid = IntGrid::minimum}) == 5.0);
  CHECK(bits(Int<2>{.group = 64, .grid = IntGrid::signed_max}) == 2.25);
  CHECK(bits(Int<3>{.group = 16}) == 4.5);
  CHECK(bits(Int<8>{.group = 128, .grid = IntGrid::symmetric}) == 8.125);
}

}  // namespace quant_int_test
