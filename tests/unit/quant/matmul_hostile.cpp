// Products with packed bytes of any value, as a file may hold, and with activations that are no numbers: on every path
// what dequantize_row says; what is not finite never comes out as a number.
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "catch_compat.hpp"
#include "decant/core/random.hpp"
#include "decant/quant/codebook.hpp"
#include "decant/quant/fp4.hpp"
#include "decant/quant/if4.hpp"
#include "decant/quant/int_group.hpp"
#include "decant/quant/matmul.hpp"

namespace {

using namespace decant;
using namespace decant::quant;

constexpr index_t rows = 24, cols = 384;

/// A matrix of random bytes; `unit`, if not 0, stands where the format has a float for the whole matrix.
template <class F>
std::vector<std::byte> random_matrix(const F& format, float unit, std::uint64_t seed) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(packed_bytes(format, rows, cols)));
  const Philox random{seed};
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(random(static_cast<std::uint32_t>(i)).word[0] & 255);
  if (unit != 0) store_le(bytes.data() + format.layer_bytes() - 4, bit_cast<std::uint32_t>(unit));
  return bytes;
}

template <class F>
void check_any_bytes(const F& format, float unit = 0) {
  Cpu cpu;
  std::vector<float> x(static_cast<std::size_t>(cols)), y(static_cast<std::size_t>(rows)), w(x.size());
  index_t finite_rows = 0;
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    const std::vector<std::byte> bytes = random_matrix(format, unit, seed);
    const Packed<F> packed(format, rows, cols, View<const std::byte, 1>(bytes));
    for (index_t k = 0; k < cols; k += 37) {
      for (float& e : x) e = 0;
      x[static_cast<std::size_t>(k)] = 1;
      for (int isa = 0; isa <= static_cast<int>(best_isa()); ++isa) {
        cpu.set_isa(static_cast<Isa>(isa));
        for (const Activations a : {Activations::fp32, Activations::bf16, Activations::int8}) {
          matvec(cpu, packed, View<const float, 1>(x), View<float, 1>(y), a);
          for (index_t r = 0; r < rows; ++r) {
            dequantize_row(cpu, packed, r, View<float, 1>(w));
            bool numbers = true;
            float largest = 0;
            for (const float v : w) {
              numbers = numbers && v == v;
              largest = std::abs(v) > largest ? std::abs(v) : largest;
            }
            const float got = y[static_cast<std::size_t>(r)];
            const float expected = w[static_cast<std::size_t>(k)];
            INFO("isa " << isa << ", " << name(a) << ", seed " << seed << ", row " << r << ", column " << k);
            if (!numbers) {
              if (std::isfinite(got)) FAIL_CHECK("a number where a weight is none: " << got);
            } else if (largest < 1e30f) {  // beyond it a product may or may not overflow before its scale
              ++finite_rows;
              const float tolerance = a == Activations::int8 ? 0.01f : 1e-4f;
              if (!(std::abs(got - expected) <= tolerance * largest)) FAIL_CHECK(got << " for " << expected);
            }
          }
        }
      }
    }
  }
  CHECK(finite_rows > 100);
}

TEST_CASE("products of any bytes are those of the weights that they decode to", "[quant][matmul]") {
  check_any_bytes(Int<4>{});
  check_any_bytes(Int<4>{.group = 32});
  check_any_bytes(MxFp4{});
  check_any_bytes(ggml::MXFP4{});
  for (const float unit : {0.01f, -0.01f}) {
    check_any_bytes(NvFp4{}, unit);
    check_any_bytes(If4{}, unit);
  }
}

TEST_CASE("products with tables that are no numbers are none", "[quant][matmul]") {
  Cpu cpu;
  const Codebook2x16<> format;
  const std::vector<float> zeros(static_cast<std::size_t>(rows * cols), 0.25f), x(static_cast<std::size_t>(cols), 1.0f);
  std::vector<std::byte> bytes(static_cast<std::size_t>(packed_bytes(format, rows, cols)));
  std::vector<float> y(static_cast<std::size_t>(rows));
  for (const std::uint16_t entry : {std::uint16_t{0x7fc0}, std::uint16_t{0x7f80}}) {  // NaN, infinity
    for (int c = 0; c < 32; ++c) store_le(bytes.data() + 2 * c, entry);
    const Packed<Codebook2x16<>> packed(format, rows, cols, View<const std::byte, 1>(bytes));
    for (index_t r = 0; r < rows; ++r)
      for (index_t j = 0; j < 3; ++j)
        store_le(bytes.data() + (packed.row(r) - packed.data()) + format.scales_at(cols) + 2 * j, fp16(1.0f).bits);
    for (int isa = 0; isa <= static_cast<int>(best_isa()); ++isa) {
      cpu.set_isa(static_cast<Isa>(isa));
      for (const Activations a : {Activations::fp32, Activations::bf16, Activations::int8}) {
        matvec(cpu, packed, View<const float, 1>(x), View<float, 1>(y), a);
        for (const float v : y) CHECK(!std::isfinite(v));
      }
    }
  }
}

TEST_CASE("an activation that is no number makes no number", "[quant][matmul]") {
  Cpu cpu;
  std::vector<float> y(static_cast<std::size_t>(rows));
  const auto check = [&](const auto& format) {
    using F = std::remove_cvref_t<decltype(format)>;
    const std::vector<std::byte> bytes(static_cast<std::size_t>(packed_bytes(format, rows, cols)), std::byte{0x11});
    const Packed<F> packed(format, rows, cols, View<const std::byte, 1>(bytes));
    for (const float odd : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      std::vector<float> x(static_cast<std::size_t>(cols), 0.5f);
      x[200] = odd;
      for (int isa = 0; isa <= static_cast<int>(best_isa()); ++isa) {
        cpu.set_isa(static_cast<Isa>(isa));
        for (const Activations a : {Activations::fp32, Activations::bf16, Activations::int8}) {
          INFO("isa " << isa << ", " << name(a) << ", " << odd);
          matvec(cpu, packed, View<const float, 1>(x), View<float, 1>(y), a);
          for (const float v : y) CHECK(!std::isfinite(v));
        }
      }
    }
  };
  check(Int<4>{});
  check(MxFp4{});
  check(Int<8>{});
  check(ggml::Q4_0{});
  check(ggml::Q8_0{});
}

}  // namespace
