// Products with 4-bit formats of one table: integers in all grids, NF4, MXFP4, NVFP4.
#include <decant/quant/fp4.hpp>
#include <decant/quant/nf4.hpp>

#include "matmul_problem.hpp"

namespace quant_matmul_nibbles_test {

using namespace quant_test;
using quant::Int;
using quant::IntGrid;

TEST_CASE("products with 4-bit integers stay within their bound", "[quant][matmul]") {
  const Int<4> formats[] = {{},
                            {.group = 16},
                            {.group = 32},
                            {.group = 64, .grid = IntGrid::minimum},
                            {.group = 128, .grid = IntGrid::minimum},
                            {.group = 384, .grid = IntGrid::zero_point},
                            {.group = 256, .grid = IntGrid::signed_max},
                            {.group = 0, .grid = IntGrid::symmetric},
                            {.group = 100}};
  int which = 0;
  for (const Int<4>& f : formats) {
    ++which;
    for (const Width& width : widths) {
      // The first in every width, each other in two of them and the longest.
      if (which > 1 && width.cols != 4227 && width.cols % 10 != which % 10 && width.cols != 352) continue;
      const Quantized<Int<4>> q(f, Matrix(6, width.cols));
      const auto reach = [&](const Int<4>::Group& g, double w) {
        if (f.grid == IntGrid::minimum) return std::abs(static_cast<double>(g.origin)) + std::abs(w - g.origin);
        // Zero points of small groups: q - 8 and 8 - z apart.
        const double s = std::abs(g.scale), shift = std::abs(8 - g.origin) * s;
        return f.grid == IntGrid::zero_point && f.group < 128 ? std::abs(w) + 2 * shift : std::abs(w);
      };
      check_product(q, width.tokens, reach, [](const auto&) { return 0.0; }, false);
    }
  }
}

TEST_CASE("products with 4-bit floats stay within their bounds", "[quant][matmul]") {
  const auto itself = [](const auto&, double w) { return std::abs(w); };
  for (const Width& width : widths) {
    const Matrix m(6, width.cols);
    // Of Nf4 a value has more bits than bf16, and as int8 it is rounded.
    check_product(Quantized<quant::Nf4>({}, m), width.tokens, itself,
                  [](const quant::Nf4::Group& g) { return static_cast<double>(g.maximum); }, true,
                  quant::bf16_table_error_bound);
    if (width.tokens % 2 == 0) continue;
    check_product(Quantized<quant::MxFp4>({}, m), width.tokens, itself, [](const auto&) { return 0.0; }, false);
    check_product(Quantized<quant::NvFp4>({}, m), width.tokens, itself, [](const auto&) { return 0.0; }, false);
  }
  check_product(Quantized<quant::Nf4>({.block = 256}, Matrix(5, 700)), 2, itself,
                [](const quant::Nf4::Group& g) { return static_cast<double>(g.maximum); }, true,
                quant::bf16_table_error_bound);
  // A block of zeros, and scales at the ends of E8M0.
  check_product(Quantized<quant::MxFp4>({}, Matrix(3, 160, [](index_t i) {
                                          return i / 32 % 3 == 0   ? 0.0
                                                 : i / 32 % 3 == 1 ? gaussian(i, 1) * 0x1p-126
                                                                   : gaussian(i, 1) * 0x1p100;
                                        })),
                1, [](const auto& g, double w) { return std::abs(w) + 0x1p-120 * (g.scale < 1); },
                [](const auto&) { return 0.0; }, false);
}

TEST_CASE("with int8 activations that are integers, integer products are exact", "[quant][matmul]") {
  constexpr index_t rows = 5, cols = 1000, tokens = 5;
  Quantized<Int<4>> q({.group = 128, .grid = IntGrid::symmetric}, rows, cols);
  const auto packed = q.packed();
  std::fill(q.bytes.begin(), q.bytes.end(), std::byte{0});
  for (index_t r = 0; r < rows; ++r) {
    for (index_t j = 0; j < 8; ++j) q.format.store_group({}, {2.0f, 8.0f}, packed.row(r), cols, j);
    for (index_t k = 0; k < cols; ++k)
      q.format.store_code(static_cast<std::uint8_t>(k * 7 + r * 3 + k / 16), packed.row(r), cols, k);
  }
  std::vector<float> x(at(tokens * cols));
  for (index_t i = 0; i < tokens * cols; ++i)
    x[at(i)] = i % cols % 128 == 5 ? -127.0f : static_cast<float>((i * 31 + i / 77) % 255 - 127);
  const std::vector<float> w = q.values();
  for (int isa = 0; isa <= static_cast<int>(decant::best_isa()); ++isa) {
    Cpu cpu;
    cpu.set_isa(static_cast<Isa>(isa));
    const std::vector<float> y = product(cpu, q, x, tokens, Activations::int8);
    for (index_t t = 0; t < tokens; ++t) {
      for (index_t r = 0; r < rows; ++r) {
        double sum = 0;
        for (index_t k = 0; k < cols; ++k) sum += static_cast<double>(w[at(r * cols + k)]) * x[at(t * cols + k)];
        REQUIRE(y[at(t * rows + r)] == sum);
      }
    }
  }
}

}  // namespace quant_matmul_nibbles_test
