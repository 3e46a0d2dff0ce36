// quant::Nf4 against its table: levels, thresholds, the order of nibbles.
#include <cmath>

#include <decant/quant/nf4.hpp>

#include "catch_compat.hpp"
#include "unit/quant/quantized.hpp"

namespace quant_nf4_test {

using namespace quant_test;
using quant::Nf4;

TEST_CASE("Nf4: each level is its own nearest, and levels ascend", "[quant][formats]") {
  for (int code = 0; code < 16; ++code) {
    const auto c = static_cast<std::uint8_t>(code);
    CHECK(Nf4{}.nearest({}, {1.0f}, 0, Nf4::level(code)) == c);
    CHECK(Nf4{}.nearest({}, {3.5f}, 0, Nf4{}.value({}, {3.5f}, 0, c)) == c);
    if (code > 0) CHECK(Nf4::level(code) > Nf4::level(code - 1));
  }
  CHECK((Nf4::level(0) == -1 && Nf4::level(7) == 0 && Nf4::level(15) == 1));
}

TEST_CASE("Nf4: a weight halfway between levels takes the lower one", "[quant][formats]") {
  const float thresholds[] = {
      -0.8480964004993439f,  -0.6106329262256622f,   -0.4599952697753906f, -0.33967943489551544f, -0.23460740596055984f,
      -0.13791173323988914f, -0.045525018125772476f, 0.03979014977812767f, 0.1202552504837513f,   0.2035212516784668f,
      0.2920137718319893f,   0.3893125355243683f,    0.5016634166240692f,  0.6427869200706482f,   0.8614784178118011f};
  for (int i = 0; i < 15; ++i) {
    CHECK(thresholds[i] == Approx((Nf4::level(i) + Nf4::level(i + 1)) / 2).margin(1e-7));
    CHECK(Nf4{}.nearest({}, {1.0f}, 0, thresholds[i]) == i);
    CHECK(Nf4{}.nearest({}, {1.0f}, 0, std::nextafter(thresholds[i], 2.0f)) == i + 1);
  }
}

TEST_CASE("Nf4: bytes", "[quant][formats]") {
  // The first element high. Maxima as fp32, 2.0 and 0.5, at a multiple of 4.
  const Quantized<Nf4> q(Nf4{.block = 2}, row_of({-2, 0.0f, 0.5f}));
  std::vector<int> bytes;
  for (const std::byte b : q.bytes) bytes.push_back(static_cast<int>(b));
  CHECK(bytes == std::vector<int>{0x07, 0xf0, 0, 0, 0, 0, 0, 0x40, 0, 0, 0, 0x3f});
  CHECK(q.values() == std::vector<float>{-2, 0, 0.5f});
}

TEST_CASE("Nf4: error, scale and zeros", "[quant][formats]") {
  const Matrix m(4, 200, [](index_t i) { return i / 64 == 1 ? (i % 2 == 0 ? 0.0 : -0.0) : gaussian(i, 1); });
  for (const index_t block : {16, 64, 256}) {
    const Quantized<Nf4> q(Nf4{.block = block}, m);
    const std::vector<float> values = q.values();
    for (index_t i = 0; i < m.rows * m.cols; ++i) {
      // Half of the widest gap, between -1 and -0.696.
      const float bound = 0.15191f * q.group(i / m.cols, i % m.cols / q.format.group_size(m.cols)).maximum;
      REQUIRE(std::abs(values[at(i)] - m.w[at(i)]) <= bound);
    }
    if (block <= 64)
      for (std::size_t i = 64; i < 128; ++i) REQUIRE((values[i] == 0 && !std::signbit(values[i])));
    Matrix half = m;
    for (float& x : half.w) x *= 0.5f;
    std::vector<float> expected = values;
    for (float& x : expected) x *= 0.5f;
    CHECK(Quantized<Nf4>(Nf4{.block = block}, half).values() == expected);
  }
  CHECK(8.0 * static_cast<double>(packed_bytes(Nf4{}, 10, 4096)) / (10.0 * 4096) == 4.5);
}

}  // namespace quant_nf4_test
