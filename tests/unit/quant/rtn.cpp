// quant::Rtn: what it refuses, what it writes, and Packed's own checks.
#include <limits>

#include <decant/quant/if4.hpp>
#include <decant/quant/int_group.hpp>

#include "catch_compat.hpp"
#include "unit/quant/quantized.hpp"

namespace quant_rtn_test {

using namespace quant_test;
using quant::Int;
using quant::Packed;

static_assert(quant::Quantizer<quant::Rtn<Int<4>>, Cpu> && quant::Quantizer<quant::Rtn<quant::If4>, Cpu>);
static_assert(quant::Grid<Int<4>, Cpu>);

TEST_CASE("Rtn names the first weight that is not finite, and writes nothing", "[quant][formats]") {
  Cpu cpu;
  Quantized<Int<4>> q({.group = 16}, 3, 40);
  const std::vector<std::byte> before = q.bytes;
  for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    Matrix m(3, 40);
    m.w[40 + 7] = bad;
    m.w[80] = bad;
    CHECK_THROWS_WITH(quantize(cpu, quant::Rtn<Int<4>>{q.format}, m.view(), {}, q.packed()),
                      catch_compat::contains("finite weights") && catch_compat::contains("at (1, 7)"));
  }
  CHECK(q.bytes == before);
}

TEST_CASE("Rtn refuses shapes that do not fit, and writes nothing", "[quant][formats]") {
  Cpu cpu;
  const quant::Rtn<Int<4>> rtn{{.group = 16}};
  Quantized<Int<4>> q(rtn.grid, 3, 40);
  const std::vector<std::byte> before = q.bytes;
  const Matrix m(4, 41);
  CHECK_THROWS_WITH(quantize(cpu, rtn, m.view().slice(1, 0, 40), {}, q.packed()),
                    catch_compat::contains("`w`: expected 3, got 4"));
  CHECK_THROWS_WITH(quantize(cpu, rtn, m.view().slice(0, 0, 3), {}, q.packed()),
                    catch_compat::contains("`w`: expected 40, got 41"));
  const std::vector<float> importance(39, 1.0f);
  CHECK_THROWS_WITH(
      quantize(cpu, rtn, Matrix(3, 40).view(), {.importance = View<const float, 1>(importance)}, q.packed()),
      catch_compat::contains("`calibration.importance`: expected 40, got 39"));
  CHECK_THROWS_AS(quantize(cpu, rtn, View<const float, 2>(m.w.data(), {3, 40}, {1, 3}), {}, q.packed()),
                  decant::ArgumentError);
  CHECK_THROWS_WITH(
      quantize(cpu, quant::Rtn<Int<4>>{{.group = 16, .search = true}}, Matrix(3, 40).view(), {}, q.packed()),
      catch_compat::contains("the format that q writes"));
  CHECK(q.bytes == before);
}

TEST_CASE("Packed refuses what its format cannot have", "[quant][formats]") {
  const auto make = [](Int<4> format, index_t rows, index_t cols, index_t bytes) {
    static const std::vector<std::byte> memory(4096);
    (void)Packed<Int<4>>(format, rows, cols, View<const std::byte, 1>(memory.data(), bytes));
  };
  make({}, 2, 128, 2 * 68);
  make({}, 0, 128, 0);
  CHECK_THROWS_WITH(make({}, 2, 128, 135), catch_compat::contains("`data`: expected 136 bytes, got 135"));
  CHECK_THROWS_WITH(make({}, 2, 0, 0), catch_compat::contains("`cols`: expected at least 1, got 0"));
  CHECK_THROWS_WITH(make({.group = 0}, 2, 0, 0), catch_compat::contains("`cols`"));
  CHECK_THROWS_WITH(make({.group = -1}, 2, 128, 136), catch_compat::contains("`group`: expected at least 0, got -1"));
  CHECK_THROWS_WITH(make({.grid = static_cast<quant::IntGrid>(5)}, 2, 128, 136), catch_compat::contains("`grid`"));
  CHECK_THROWS_WITH(make({}, -1, 128, 0), catch_compat::contains("`rows`"));
  CHECK_THROWS_WITH(make({}, index_t{1} << 60, 128, 0), catch_compat::contains("`rows`"));
  CHECK_THROWS_WITH(make({}, 16, index_t{1} << 60, 0), catch_compat::contains("`cols`"));

  const Quantized<Int<4>> q({.group = 16}, Matrix(3, 40));
  CHECK(q.packed().groups() == 3);
  CHECK(q.packed().row(2) - q.packed().row(0) == 2 * q.packed().row_bytes());
  CHECK(q.packed().bits_per_weight() == 8.0 * 32 / 40);
  std::vector<float> row(40);
  Cpu cpu;
  CHECK_THROWS_AS(dequantize_row(cpu, q.packed(), 3, View<float, 1>(row)), decant::ArgumentError);
  CHECK_THROWS_AS(dequantize_row(cpu, q.packed(), -1, View<float, 1>(row)), decant::ArgumentError);
  CHECK_THROWS_AS(dequantize_row(cpu, q.packed(), 0, View<float, 1>(row.data(), 39)), decant::ArgumentError);
}

}  // namespace quant_rtn_test
