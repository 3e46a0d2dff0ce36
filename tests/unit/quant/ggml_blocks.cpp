// quant::ggml: sizes, ggml's bytes, what each element means, errors of the encoders, shapes that do not fit.
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <decant/quant/ggml_blocks.hpp>
#include <decant/quant/ggml_fp4_blocks.hpp>
#include <decant/quant/ggml_k_blocks.hpp>

#include "catch_compat.hpp"
#include "unit/quant/ggml_goldens.hpp"
#include "unit/quant/quantized.hpp"

namespace quant_ggml_test {

using namespace quant_test;
namespace ggml = quant::ggml;

static_assert(quant::Codes<ggml::Q8_0> && quant::Codes<ggml::Q4_0> && quant::Codes<ggml::Q4_1>);
static_assert(quant::Codes<ggml::IQ4_NL> && quant::Codes<ggml::MXFP4> && quant::Codes<ggml::NVFP4>);
static_assert(quant::Codes<ggml::Q4_K> && quant::Codes<ggml::Q6_K>);

template <class F>
std::string hex(const Quantized<F>& q) {
  std::string text;
  for (const std::byte b : q.bytes) {
    text += "0123456789abcdef"[static_cast<unsigned>(b) >> 4];
    text += "0123456789abcdef"[static_cast<unsigned>(b) & 15u];
  }
  return text;
}

/// All blocks that `goldens` has, alone and then as the rows of one matrix with each block three times in a row of it.
template <class F, std::size_t N>
void check_goldens(const F& format, const Golden (&goldens)[N], std::uint64_t hash) {
  const int n = static_cast<int>(format.block_size);
  std::string all;
  for (const Golden& golden : goldens) {
    INFO("weights " << static_cast<int>(golden.weights));
    const Matrix m(1, n, [&](index_t i) { return weight(golden.weights, static_cast<int>(i), n); });
    CHECK(hex(Quantized<F>(format, m)) == golden.bytes);
    for (int i = 0; i < 3; ++i) all += golden.bytes;
  }
  const Matrix rows(static_cast<index_t>(N), 3 * n,
                    [&](index_t i) { return weight(goldens[at(i / (3 * n))].weights, static_cast<int>(i % n), n); });
  const Quantized<F> packed(format, rows);
  CHECK(hex(packed) == all);
  CHECK(packed.packed().bytes() == static_cast<index_t>(N) * 3 * format.block_bytes);

  std::uint64_t sum = 14695981039346656037u;
  for (const std::byte b : Quantized<F>(format, row_of(many_weights(300, n))).bytes)
    sum = (sum ^ static_cast<std::uint64_t>(b)) * 1099511628211u;
  CHECK(sum == hash);
}

TEST_CASE("ggml blocks: the bytes of ggml's own encoders", "[quant][ggml]") {
  check_goldens(ggml::Q8_0{}, q8_0, q8_0_hash);
  check_goldens(ggml::Q4_0{}, q4_0, q4_0_hash);
  check_goldens(ggml::Q4_1{}, q4_1, q4_1_hash);
  check_goldens(ggml::IQ4_NL{}, iq4_nl, iq4_nl_hash);
  ggml::IQ4_NL plain;
  plain.search = false;
  check_goldens(plain, iq4_nl_ref, iq4_nl_ref_hash);
  check_goldens(ggml::MXFP4{}, mxfp4, mxfp4_hash);
  check_goldens(ggml::NVFP4{}, nvfp4, nvfp4_hash);
  check_goldens(ggml::Q4_K{}, q4_k, q4_k_hash);
  check_goldens(ggml::Q6_K{}, q6_k, q6_k_hash);
}

TEST_CASE("ggml blocks: bits per weight", "[quant][ggml]") {
  const auto bits = [](const auto& format) { return 8.0 * static_cast<double>(format.row_bytes(512)) / 512.0; };
  CHECK(bits(ggml::Q8_0{}) == 8.5);
  CHECK(bits(ggml::Q4_0{}) == 4.5);
  CHECK(bits(ggml::Q4_1{}) == 5.0);
  CHECK(bits(ggml::IQ4_NL{}) == 4.5);
  CHECK(bits(ggml::MXFP4{}) == 4.25);
  CHECK(bits(ggml::NVFP4{}) == 4.5);
  CHECK(bits(ggml::Q4_K{}) == 4.5);
  CHECK(bits(ggml::Q6_K{}) == 6.5625);
}

/// Rows of all bytes, against `expected(block, i)`: the format's definition, written down anew.
template <class F, class Expected>
void check_meaning(const F& format, const Expected& expected) {
  const index_t rows = 40;
  Quantized<F> q(format, rows, 2 * format.block_size);
  for (std::size_t i = 0; i < q.bytes.size(); ++i)
    q.bytes[i] = static_cast<std::byte>(static_cast<int>(256 * uniform(static_cast<index_t>(i), 3)) & 255);
  const std::vector<float> values = q.values();
  int finite = 0;
  for (index_t b = 0; b < 2 * rows; ++b) {
    const auto* const block = reinterpret_cast<const std::uint8_t*>(q.bytes.data() + b * format.block_bytes);
    for (index_t i = 0; i < format.block_size; ++i) {
      const float want = static_cast<float>(expected(block, i));
      const float got = values[at(b * format.block_size + i)];
      REQUIRE((got == want || (std::isnan(got) && std::isnan(want))));
      finite += std::isfinite(want);
    }
  }
  CHECK(finite > rows * format.block_size);
  // Storing what was loaded changes no byte.
  std::vector<std::byte> before = q.bytes;
  const auto packed = q.packed();
  for (index_t r = 0; r < rows; ++r) {
    for (index_t j = 0; j < 2; ++j)
      format.store_group({}, format.load_group({}, packed.row(r), packed.cols(), j), packed.row(r), packed.cols(), j);
    for (index_t k = 0; k < packed.cols(); ++k) {
      const std::uint8_t code = format.load_code(packed.row(r), packed.cols(), k);
      format.store_code(static_cast<std::uint8_t>(~code), packed.row(r), packed.cols(), k);
      format.store_code(code, packed.row(r), packed.cols(), k);
    }
  }
  // A NaN among the scales of random bytes may come back as another NaN.
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (before[i] != q.bytes[i]) REQUIRE(std::isnan(values[i / at(format.block_bytes) * at(format.block_size)]));
  }
}

double half(const std::uint8_t* p) {
  return decant::fp16::from_bits(static_cast<std::uint16_t>(p[0] | p[1] << 8));
}
int nibble(const std::uint8_t* codes, index_t size, index_t i) {
  return i < size ? codes[i] & 15 : codes[i - size] >> 4;
}
double e2m1(int code) {
  const double magnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return code < 8 ? magnitudes[code] : -magnitudes[code - 8];
}

TEST_CASE("ggml blocks: what the bytes mean", "[quant][ggml]") {
  using Block = const std::uint8_t*;
  check_meaning(ggml::Q8_0{}, [](Block b, index_t i) { return half(b) * static_cast<std::int8_t>(b[2 + i]); });
  check_meaning(ggml::Q4_0{}, [](Block b, index_t i) { return half(b) * (nibble(b + 2, 16, i) - 8); });
  check_meaning(ggml::Q4_1{}, [](Block b, index_t i) { return half(b) * nibble(b + 4, 16, i) + half(b + 2); });
  check_meaning(ggml::IQ4_NL{}, [](Block b, index_t i) {
    const int levels[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    return half(b) * levels[nibble(b + 2, 16, i)];
  });
  check_meaning(ggml::MXFP4{}, [](Block b, index_t i) { return std::ldexp(e2m1(nibble(b + 1, 16, i)), b[0] - 127); });
  check_meaning(ggml::NVFP4{}, [](Block b, index_t i) {
    const int scale = b[i / 16] == 0x7f ? 0 : b[i / 16];
    const int power = scale >> 3 & 15;
    const double s = power == 0 ? std::ldexp(scale & 7, -9) : std::ldexp(8 + (scale & 7), power - 10);
    return s * e2m1(nibble(b + 4 + i / 16 * 8, 8, i % 16));
  });
  check_meaning(ggml::Q4_K{}, [](Block b, index_t i) {
    const index_t j = i / 32;
    const Block s = b + 4;
    const int scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
    const int minimum = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | s[j] >> 6 << 4;
    return half(b) * scale * nibble(b + 16 + i / 64 * 32, 32, i % 64) - half(b + 2) * minimum;
  });
  check_meaning(ggml::Q6_K{}, [](Block b, index_t i) {
    const index_t h = i / 128, quarter = i % 128 / 32, l = i % 32;
    const int low = b[64 * h + 32 * (quarter % 2) + l] >> (quarter < 2 ? 0 : 4) & 15;
    const int high = b[128 + 32 * h + l] >> (2 * quarter) & 3;
    return half(b + 208) * static_cast<std::int8_t>(b[192 + i / 16]) * ((low | high << 4) - 32);
  });
}

TEST_CASE("ggml blocks: scales of NVFP4 and MXFP4", "[quant][ggml]") {
  using ggml::NVFP4;
  for (int byte = 0; byte < 0x78; ++byte) {
    const auto b = static_cast<std::uint8_t>(byte);
    const float scale = 2 * NVFP4::half_scale(b);
    CHECK(NVFP4::encode(scale) == b);
    const float next = 2 * NVFP4::half_scale(static_cast<std::uint8_t>(byte + 1));
    const float middle = (scale + next) / 2;
    // Halves up; 7 * 2^-9 is the last that is subnormal, and what is below 2^-6 does not leave it; 256 becomes 448.
    const int above = byte == 0x77 ? 0x7e : byte == 7 ? 7 : byte + 1;
    CHECK(NVFP4::encode(middle) == above);
    CHECK(NVFP4::encode(middle * 0.9999f) == b);
  }
  CHECK(NVFP4::encode(1e9f) == 0x7e);
  CHECK(NVFP4::encode(-1.0f) == 0);
  const auto exponent = [](float top) { return static_cast<int>(ggml::MXFP4{}.fit({}, &top, nullptr, 1).e); };
  CHECK(exponent(1) == 125);
  CHECK(exponent(1.99f) == 125);
  CHECK(exponent(-2) == 126);
  CHECK(exponent(0) == 0);
  CHECK(exponent(0x1p-125f) == 0);
  CHECK(exponent(0x1p-140f) == 0);
  CHECK(exponent(3.4e38f) == 252);
  CHECK(exponent(std::numeric_limits<float>::max()) == 253);  // its logarithm rounds up to 128
}

template <class F>
void check_errors(const F& format, double part_of_step) {
  // Gaussian rows of very different sizes.
  const index_t size = format.block_size;
  const Matrix m(6, 4 * size,
                 [&](index_t i) { return gaussian(i, 5) * std::pow(10.0, static_cast<double>(i / (4 * size)) - 3); });
  const Quantized<F> q(format, m);
  const std::vector<float> values = q.values();
  for (index_t r = 0; r < m.rows; ++r) {
    for (index_t k = 0; k < m.cols; ++k) {
      const auto group = q.group(r, k / size);
      const double step = std::abs(static_cast<double>(group.d));
      const double off = std::abs(static_cast<double>(values[at(r * m.cols + k)]) - m.w[at(r * m.cols + k)]);
      // The scale's own rounding, 2^-11, counts as often as the largest code, 127 at most; Q4_0 alone cuts off at 7.
      const bool cut = size == 32 && format.block_bytes == 18 && q.code(r, k) == 15;
      REQUIRE(off <= step * ((cut ? 1 : part_of_step) + 128 * 0x1p-11));
    }
  }
}

TEST_CASE("ggml blocks: encoders are within half a step", "[quant][ggml]") {
  check_errors(ggml::Q8_0{}, 0.5);
  check_errors(ggml::Q4_0{}, 0.5);
  check_errors(ggml::Q4_1{}, 0.5);
}

template <class F>
double relative_error(const F& format) {
  const Matrix m(8, 1024, 7);
  const std::vector<float> values = Quantized<F>(format, m).values();
  double error = 0, all = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    error += std::pow(static_cast<double>(values[i]) - m.w[i], 2);
    all += std::pow(m.w[i], 2.0);
  }
  return error / all;
}

TEST_CASE("ggml blocks: relative squared errors of Gaussian weights", "[quant][ggml]") {
  // As ggml's blocks of these weights have them, and 2 % to spare.
  CHECK(relative_error(ggml::Q8_0{}) < 0.00003);
  CHECK(relative_error(ggml::Q4_0{}) < 0.00763);
  CHECK(relative_error(ggml::Q4_1{}) < 0.00638);
  CHECK(relative_error(ggml::IQ4_NL{}) < 0.00595);
  CHECK(relative_error(ggml::MXFP4{}) < 0.01339);
  CHECK(relative_error(ggml::NVFP4{}) < 0.00906);
  CHECK(relative_error(ggml::Q4_K{}) < 0.00531);
  CHECK(relative_error(ggml::Q6_K{}) < 0.000321);
  // The search of ranges pays.
  ggml::IQ4_NL plain;
  plain.search = false;
  CHECK(relative_error(ggml::IQ4_NL{}) < relative_error(plain));
}

TEST_CASE("ggml blocks: weights beyond the fitted range take the outermost codes", "[quant][ggml]") {
  const std::vector<float> w(256, 1.0f);
  const auto check = [&](const auto& format, int high, int low) {
    const auto group = format.fit({}, w.data(), nullptr, format.block_size);
    CHECK(format.nearest({}, group, 0, 1e6f) == high);
    CHECK(format.nearest({}, group, 0, -1e6f) == low);
  };
  check(ggml::Q8_0{}, 127, 256 - 127);
  check(ggml::Q4_0{}, 0, 15);  // a negative d
  check(ggml::MXFP4{}, 7, 15);
  check(ggml::NVFP4{}, 7, 15);
  check(ggml::Q4_K{}, 15, 0);
  check(ggml::Q6_K{}, 0, 63);  // a negative scale
}

TEST_CASE("ggml blocks: rows are whole blocks", "[quant][ggml]") {
  CHECK_THROWS_WITH(validate(ggml::Q4_0{}, 48),
                    "decant::quant::ggml::Q4_0: argument `cols`: expected a multiple of 32, got 48");
  CHECK_THROWS_AS(validate(ggml::Q8_0{}, 0), decant::ArgumentError);
  CHECK_THROWS_AS(validate(ggml::NVFP4{}, 32), decant::ArgumentError);
  CHECK_THROWS_AS(validate(ggml::Q4_K{}, 128), decant::ArgumentError);
  CHECK_THROWS_AS(validate(ggml::Q6_K{}, 257), decant::ArgumentError);
  CHECK_NOTHROW(validate(ggml::Q6_K{}, 512));
}

}  // namespace quant_ggml_test
