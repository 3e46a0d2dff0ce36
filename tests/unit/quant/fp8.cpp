// quant::Fp8: all codes, ties, saturation, the scale of a row.
#include <cmath>

#include <decant/quant/fp8.hpp>

#include "catch_compat.hpp"
#include "unit/quant/quantized.hpp"

namespace quant_fp8_test {

using namespace quant_test;
using quant::Fp8;

template <class T>
void check_codes(int largest_code, int first_normal, double relative) {
  const Fp8<T> format;
  const typename Fp8<T>::Group unit{1.0f};
  float before = -1;
  for (int code = 0; code <= largest_code; ++code) {
    const auto c = static_cast<std::uint8_t>(code);
    const float x = format.value({}, unit, 0, c);
    CHECK(format.nearest({}, unit, 0, x) == c);
    CHECK(format.nearest({}, unit, 0, -x) == (c | 0x80));
    CHECK(x > before);
    if (code > first_normal) {
      const float middle = before + (x - before) / 2;
      CHECK(std::abs(format.value({}, unit, 0, format.nearest({}, unit, 0, middle)) - middle) <= relative * middle);
    }
    before = x;
  }
  CHECK(before == Fp8<T>::largest);
  for (int code = largest_code + 1; code < 128; ++code)
    CHECK_FALSE(std::isfinite(format.value({}, unit, 0, static_cast<std::uint8_t>(code))));
  CHECK(format.nearest({}, unit, 0, 1e30f) == largest_code);  // saturates
  CHECK(format.nearest({}, unit, 0, -1e30f) == (largest_code | 0x80));
}

TEST_CASE("Fp8: every code comes back, codes ascend, errors are within half a step", "[quant][formats]") {
  check_codes<decant::fp8_e4m3>(0x7e, 0x08, 0x1p-4);
  check_codes<decant::fp8_e5m2>(0x7b, 0x04, 0x1p-3);
}

TEST_CASE("Fp8: a row's largest magnitude is the format's", "[quant][formats]") {
  // 448 makes the scale 1. Halves go to the even mantissa.
  CHECK(Quantized<Fp8<decant::fp8_e4m3>>({}, row_of({-448, 1.0625f, 1.1875f, 0.3f, 0})).values() ==
        std::vector<float>{-448, 1.0f, 1.25f, 0.3125f, 0});
  CHECK(Quantized<Fp8<decant::fp8_e5m2>>({}, row_of({57344, 1.125f, 1.375f})).values() ==
        std::vector<float>{57344, 1.0f, 1.5f});
  const Quantized<Fp8<decant::fp8_e4m3>> q({}, row_of({224, 0.5f}));
  std::vector<int> bytes;
  for (const std::byte b : q.bytes) bytes.push_back(static_cast<int>(b));
  CHECK(bytes == std::vector<int>{0x7e, 0x38, 0, 0, 0, 0, 0, 0x3f});
  for (const float x : Quantized<Fp8<decant::fp8_e4m3>>({}, row_of({0.0f, -0.0f, 0.0f})).values())
    CHECK((x == 0 && !std::signbit(x)));
  CHECK(8.0 * static_cast<double>(packed_bytes(Fp8<decant::fp8_e4m3>{}, 10, 14336)) / (10.0 * 14336) < 8.01);
}

TEST_CASE("Fp8: relative error of Gaussian rows", "[quant][formats]") {
  const Matrix m(4, 300);
  const std::vector<float> values = Quantized<Fp8<decant::fp8_e4m3>>({}, m).values();
  for (index_t r = 0; r < m.rows; ++r) {
    const float scale = decant::quant::detail::largest_magnitude(&m.w[at(r * m.cols)], m.cols) / 448;
    for (index_t k = 0; k < m.cols; ++k) {
      const double w = std::abs(m.w[at(r * m.cols + k)]);
      const double d = std::abs(static_cast<double>(values[at(r * m.cols + k)]) - m.w[at(r * m.cols + k)]);
      REQUIRE(d <= std::max(w * 0x1p-4, scale * 0x1p-10) * (1 + 1e-6));
    }
  }
}

}  // namespace quant_fp8_test
