// quant::If4: the sign of a group's scale chooses integers or E2M1.
#include <cmath>

#include <decant/quant/if4.hpp>

#include "catch_compat.hpp"
#include "unit/quant/quantized.hpp"

namespace quant_if4_test {

using namespace quant_test;
using quant::BlockError;
using quant::If4;
using quant::NvFp4;
using quant::detail::group_error;

TEST_CASE("If4: hand-made groups and bytes", "[quant][formats]") {
  Matrix m(1, 80, [](index_t) { return 0; });
  m.w[0] = 2688;                                                                     // the matrix's scale is 1
  for (int i = 0; i < 15; ++i) m.w[at(16 + i)] = static_cast<float>(i - 7) * 6 / 7;  // integers
  const float e2m1[] = {6, 4, 3, 2, 1.5f, 1, 0.5f, 0, -6, -4, -3, -2, -1.5f, -1, -0.5f, 0};
  for (int i = 0; i < 16; ++i) m.w[at(32 + i)] = e2m1[i];
  m.w[48] = -12;  // exact either way
  const Quantized<If4> q({}, m);
  CHECK(q.packed().layer().scale == 1);
  CHECK(q.group(0, 0).scale == 448);
  CHECK(q.group(0, 1).scale == -1);
  CHECK(q.group(0, 2).scale == 1);
  CHECK(q.group(0, 3).scale == 2);
  CHECK((q.group(0, 4).scale == 0 && !std::signbit(q.group(0, 4).scale)));
  CHECK(q.values() == m.w);
  for (std::size_t i = 64; i < 80; ++i) CHECK_FALSE(std::signbit(q.values()[i]));

  // Two's complement, the first element low: -7 is 9. Sign bit and 1.0.
  for (int i = 0; i < 15; ++i) CHECK(q.code(0, 16 + i) == ((i - 7) & 15));
  CHECK(q.bytes[64 + 8] == std::byte{0xa9});
  CHECK(q.bytes[64 + 40 + 1] == std::byte{0xb8});
  CHECK(q.bytes[64 + 40 + 2] == std::byte{0x38});
  CHECK(packed_bytes(If4{}, 80, 4096) == packed_bytes(NvFp4{}, 80, 4096));
}

TEST_CASE("If4: every code of both kinds comes back, halves to even, magnitudes clip", "[quant][formats]") {
  for (const float scale : {1.0f, 0.4375f, -1.0f, -0.4375f, -208.0f})
    for (int code = 0; code < 16; ++code) {
      const auto c = static_cast<std::uint8_t>(code);
      if (code == 8) continue;  // -0, and -8, which encoders do not write
      CHECK(If4{}.nearest({0.37f}, {scale}, 0, If4{}.value({0.37f}, {scale}, 0, c)) == c);
    }
  CHECK(If4::integer_value(8) == Approx(-48.0 / 7));
  const auto integer = [](float u) { return static_cast<int>(If4{}.nearest({1.0f}, {-6.0f}, 0, u * 36)); };
  // u * 36 / 6 * 7 / 6 = 7 u
  CHECK(integer(0.5f / 7 * 0.9999f) == 0);
  CHECK(integer(0.5f / 7 * 1.0001f) == 1);
  CHECK(integer(40) == 7);
  CHECK(integer(-40) == 9);
  // 36 / 7 steps per integer: a scale of 6 * 7 makes it 36, and halves are exact.
  const auto half = [](float w) { return static_cast<int>(If4{}.nearest({7.0f}, {-6.0f}, 0, w)); };
  CHECK(half(18) == 0);
  CHECK(half(54) == 2);
  CHECK(half(90) == 2);
  CHECK(half(-54) == 14);
}

TEST_CASE("If4: never worse than NvFp4 in the measure that it chooses by", "[quant][formats]") {
  const Matrix m(1, 16 * 300);
  std::vector<float> importance;
  for (index_t k = 0; k < m.cols; ++k) importance.push_back(static_cast<float>(std::exp(gaussian(k, 3))));
  const auto layer = NvFp4{}.layer(m.view());
  for (const float* h : {static_cast<const float*>(nullptr), static_cast<const float*>(importance.data())})
    for (const BlockError error : {BlockError::mse, BlockError::mae, BlockError::max_abs}) {
      const If4 format{.error = error};
      int integers = 0, other_than_unweighted = 0;
      for (index_t j = 0; j < 300; ++j) {
        const float* const w = &m.w[at(16 * j)];
        const float* const by = h == nullptr ? h : h + 16 * j;
        const auto group = format.fit(layer, w, by, 16);
        const auto real = NvFp4{}.fit(layer, w, nullptr, 16);
        REQUIRE(std::abs(group.scale) == real.scale);
        const double e = group_error(format, error, layer, group, w, by, 16);
        const double e_real = group_error(NvFp4{}, error, layer, real, w, by, 16);
        REQUIRE((group.scale < 0 ? e < e_real : e == e_real));
        integers += group.scale < 0;
        other_than_unweighted += group.scale != format.fit(layer, w, nullptr, 16).scale;
      }
      CHECK(integers > 100);
      CHECK(integers < 290);
      CHECK((other_than_unweighted > 0) == (h != nullptr));
    }
}

}  // namespace quant_if4_test
