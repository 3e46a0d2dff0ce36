// quant::MxFp4 and quant::NvFp4: E2M1's codes and ties, the scale rules, bytes, four over six.
#include <cmath>
#include <limits>

#include <decant/quant/fp4.hpp>

#include "catch_compat.hpp"
#include "unit/quant/quantized.hpp"

namespace quant_fp4_test {

using namespace quant_test;
using quant::MxFp4;
using quant::MxScale;
using quant::NvFp4;
namespace detail = quant::detail;

template <class F>
std::vector<int> bytes_of(const Quantized<F>& q) {
  std::vector<int> bytes;
  for (const std::byte b : q.bytes) bytes.push_back(static_cast<int>(b));
  return bytes;
}

TEST_CASE("E2M1: values, ties to even, saturation", "[quant][formats]") {
  const float magnitudes[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (int code = 0; code < 8; ++code) {
    const auto c = static_cast<std::uint8_t>(code);
    CHECK(detail::e2m1_value(c) == magnitudes[code]);
    CHECK(detail::e2m1_value(c | 8) == -magnitudes[code]);
    CHECK(detail::e2m1_nearest(magnitudes[code]) == c);
    if (code > 0) CHECK(detail::e2m1_nearest(-magnitudes[code]) == (c | 8));
    if (code == 7) break;
    const float middle = (magnitudes[code] + magnitudes[code + 1]) / 2;
    CHECK(detail::e2m1_nearest(middle) == (code % 2 == 0 ? code : code + 1));
    CHECK(detail::e2m1_nearest(std::nextafter(middle, 0.0f)) == code);
    CHECK(detail::e2m1_nearest(std::nextafter(middle, 9.0f)) == code + 1);
    CHECK(detail::e2m1_nearest(-std::nextafter(middle, 9.0f)) == code + 9);
  }
  CHECK(detail::e2m1_nearest(1e30f) == 7);
  CHECK(detail::e2m1_nearest(-std::numeric_limits<float>::infinity()) == 15);
  CHECK(detail::e2m1_nearest(-0.0f) == 0);
  CHECK(detail::e2m1_nearest(-0.1f) == 8);
  CHECK(detail::e2m1_value(8) == 0);
}

float mx_scale(MxScale rule, float largest) {
  return MxFp4{.rule = rule}.fit({}, &largest, nullptr, 1).scale;
}

TEST_CASE("MxFp4: both scale rules", "[quant][formats]") {
  struct Case {
    float largest, ocp, round_up;
  };
  for (const Case& c : {Case{4, 1, 1}, Case{6, 1, 1}, Case{std::nextafter(6.0f, 7.0f), 1, 2}, Case{-7, 1, 2},
                        Case{std::nextafter(8.0f, 0.0f), 1, 2}, Case{8, 2, 2}, Case{1, 0.25f, 0.25f},
                        Case{0x1p-125f, 0x1p-127f, 0x1p-127f}, Case{0x1p-140f, 0x1p-127f, 0x1p-127f},
                        Case{0x1.8p-125f, 0x1p-127f, 0x1p-127f}, Case{0x1.9p-125f, 0x1p-127f, 0x1p-126f},
                        Case{3.4e38f, 0x1p125f, 0x1p126f}, Case{0, 0x1p-127f, 0x1p-127f}}) {
    INFO(c.largest);
    CHECK(mx_scale(MxScale::ocp, c.largest) == c.ocp);
    CHECK(mx_scale(MxScale::round_up, c.largest) == c.round_up);
  }
  // The law behind the second rule: the least power of two of which 6 reaches the largest.
  for (index_t i = 0; i < 200; ++i) {
    const float a = static_cast<float>(std::exp(3 * gaussian(i, 8)));
    const float s = mx_scale(MxScale::round_up, a);
    REQUIRE((6 * s >= a && 3 * s < a));
    const float t = mx_scale(MxScale::ocp, a);
    REQUIRE((4 * t <= a && a < 8 * t));
  }
}

TEST_CASE("MxFp4: bytes, bounds, zeros", "[quant][formats]") {
  // The first element low; scale 2^0 is 127.
  CHECK(bytes_of(Quantized<MxFp4>({}, row_of({0.5f, -1, 6}))) ==
        std::vector<int>{0xa1, 0x07, 127, 0});
  CHECK(bytes_of(Quantized<MxFp4>({}, row_of({0, -0.0f}))) == std::vector<int>(4, 0));
  CHECK(Quantized<MxFp4>({}, row_of({7.9f, 3.6f})).values() == std::vector<float>{6, 4});
  CHECK(Quantized<MxFp4>({.rule = MxScale::round_up}, row_of({7.9f, 3.4f})).values() == std::vector<float>{8, 3});

  const Matrix m(3, 70, [](index_t i) { return i / 32 == 1 ? 0.0 : gaussian(i, 9); });
  const Quantized<MxFp4> q({.rule = MxScale::round_up}, m);
  const std::vector<float> values = q.values();
  for (index_t i = 0; i < 210; ++i) REQUIRE(std::abs(values[at(i)] - m.w[at(i)]) <= q.group(i / 70, i % 70 / 32).scale);
  for (std::size_t i = 32; i < 64; ++i) REQUIRE((values[i] == 0 && !std::signbit(values[i])));
  CHECK(8.0 * static_cast<double>(packed_bytes(MxFp4{}, 10, 4096)) / (10.0 * 4096) == 4.25);

  // A scale of NaN, which only bytes from elsewhere can hold.
  Quantized<MxFp4> bad({}, row_of({1, 2}));
  bad.bytes[1] = std::byte{255};
  CHECK(std::isnan(bad.values()[0]));
}

TEST_CASE("NvFp4: bytes and hand-made groups", "[quant][formats]") {
  // 6 * 448 makes the matrix's scale 1. The groups' largest are 6 * 448, 6, 3.2 (scale 0.5333, E4M3: 0.5625) and 0.
  Matrix m(1, 64, [](index_t) { return 0; });
  m.w[0] = -2688;
  m.w[1] = 448;
  m.w[16] = 6;
  m.w[17] = 2.5f;
  m.w[18] = -3.5f;
  m.w[19] = -0.1f;
  m.w[32] = 3.2f;
  const Quantized<NvFp4> q({}, m);
  CHECK(q.packed().layer().scale == 1);
  std::vector<int> expected(64 + 36, 0);
  expected[2] = 0x80;
  expected[3] = 0x3f;  // 1.0f
  expected[64] = 0x2f;
  expected[64 + 8] = 0x47;
  expected[64 + 9] = 0x8e;
  expected[64 + 16] = 0x07;
  expected[64 + 32] = 0x7e;
  expected[64 + 33] = 0x38;
  expected[64 + 34] = 0x31;
  CHECK(bytes_of(q) == expected);
  const std::vector<float> values = q.values();
  CHECK(values[0] == -2688);
  CHECK(values[17] == 2);
  CHECK(values[18] == -4);
  CHECK(values[19] == 0);
  CHECK(values[32] == 6 * 0.5625f);
  for (std::size_t i = 48; i < 64; ++i) CHECK((values[i] == 0 && !std::signbit(values[i])));
}

TEST_CASE("NvFp4: bounds, scale, zeros", "[quant][formats]") {
  const Matrix m(4, 100);
  const Quantized<NvFp4> q({}, m);
  const std::vector<float> values = q.values();
  for (index_t i = 0; i < 400; ++i)
    REQUIRE(std::abs(values[at(i)] - m.w[at(i)]) <= q.group(i / 100, i % 100 / 16).scale * q.packed().layer().scale);
  Matrix twice = m;
  for (float& x : twice.w) x *= 2;
  std::vector<float> expected = values;
  for (float& x : expected) x *= 2;
  CHECK(Quantized<NvFp4>({}, twice).values() == expected);

  // Nothing at all; a group too small for its scale; weights too small for any.
  const Quantized<NvFp4> zeros({}, Matrix(2, 20, [](index_t) { return -0.0; }));
  CHECK(bytes_of(zeros) == std::vector<int>(zeros.bytes.size(), 0));
  const std::vector<float> mixed =
      Quantized<NvFp4>({}, Matrix(1, 32, [](index_t k) { return k < 16 ? 1.0 : -1e-7; })).values();
  CHECK((mixed[0] == Approx(1) && mixed[20] == 0 && !std::signbit(mixed[20])));
  for (const float x : Quantized<NvFp4>({}, row_of({1e-44f, -1e-44f})).values()) CHECK(std::abs(x) <= 1e-43f);
  CHECK((64 + 8 * 10 * 2304) == packed_bytes(NvFp4{}, 80, 4096));  // 4.5 bits and the shared part
}

TEST_CASE("NvFp4: four over six", "[quant][formats]") {
  const NvFp4 both{.four_over_six = true};
  // A matrix whose scale is 1: 6 * 256.
  Matrix m(1, 64, [](index_t) { return 0; });
  m.w[0] = 1536;
  // With its largest at 6 the step is 2 and 9 falls halfway between 8 and 12 steps of nothing; at 4 all are exact.
  m.w[16] = 12;
  m.w[17] = 9;
  m.w[18] = -6;
  // Both exact: 6 stays.
  m.w[32] = -6;
  const Quantized<NvFp4> q(both, m);
  CHECK(q.packed().layer().scale == 1);
  CHECK(q.group(0, 0).scale == 256);
  CHECK(q.group(0, 1).scale == 3);
  CHECK(q.group(0, 2).scale == 1);
  CHECK(q.values() == m.w);

  // Each group by itself is never worse than with 6, in the chosen measure.
  const Matrix random(1, 16 * 200);
  for (const auto error : {quant::BlockError::mse, quant::BlockError::mae, quant::BlockError::max_abs}) {
    const NvFp4 choosing{.four_over_six = true, .error = error};
    const auto layer = choosing.layer(random.view());
    int better = 0;
    for (index_t j = 0; j < 200; ++j) {
      const float* const w = &random.w[at(16 * j)];
      const auto chosen = choosing.fit(layer, w, nullptr, 16);
      const auto six = NvFp4{}.fit(layer, w, nullptr, 16);
      const double e = detail::group_error(choosing, error, layer, chosen, w, nullptr, 16);
      const double e6 = detail::group_error(choosing, error, layer, six, w, nullptr, 16);
      REQUIRE(e <= e6);
      better += e < e6;
    }
    CHECK(better > 50);
    CHECK(better < 150);
  }
}

}  // namespace quant_fp4_test
