// quant::Plain against a double-precision product, on every instruction set, with shapes around the tile.
#include <cmath>
#include <vector>

#include <decant/core/random.hpp>
#include <decant/quant/plain.hpp>

#include "catch_compat.hpp"

namespace quant_plain_test {

using decant::bf16;
using decant::fp16;
using decant::index_t;
using decant::Isa;
using decant::View;

std::vector<float> uniform(index_t count, std::uint32_t stream) {
  const decant::Philox random{11};
  std::vector<float> x(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = 2 * random.uniform(static_cast<std::uint32_t>(i), 0, 0, stream) - 1;
  return x;
}

template <class T>
void check(Isa isa, index_t tokens, index_t rows, index_t cols) {
  decant::Cpu cpu;
  cpu.set_isa(isa);
  std::vector<T> w;
  for (const float v : uniform(rows * cols, 1)) w.push_back(T(v));
  const std::vector<float> x = uniform(tokens * cols, 2);
  std::vector<float> y(static_cast<std::size_t>(tokens * rows), NAN);
  const decant::quant::Plain<T> plain{View<const T, 2>(w.data(), rows, cols)};
  decant::quant::matmul(cpu, plain, View<const float, 2>(x.data(), tokens, cols),
                        View<float, 2>(y.data(), tokens, rows));
  for (index_t t = 0; t < tokens; ++t) {
    std::vector<float> alone(static_cast<std::size_t>(rows));
    decant::quant::matvec(cpu, plain, View<const float, 1>(x.data() + t * cols, cols), View<float, 1>(alone));
    for (index_t r = 0; r < rows; ++r) {
      double exact = 0, scale = 0;
      for (index_t c = 0; c < cols; ++c) {
        const double term = static_cast<double>(static_cast<float>(w[static_cast<std::size_t>(r * cols + c)])) *
                            x[static_cast<std::size_t>(t * cols + c)];
        exact += term;
        scale += std::abs(term);
      }
      const float got = y[static_cast<std::size_t>(t * rows + r)];
      INFO(name(isa) << " tokens " << tokens << " rows " << rows << " cols " << cols);
      // cols / 8 additions per partial sum, each within half an ulp of the sum of magnitudes.
      REQUIRE(std::abs(got - exact) <= (static_cast<double>(cols) / 8 + 8) * 6e-8 * scale);
      // The other tokens of a batch have no say, to the bit.
      REQUIRE(got == alone[static_cast<std::size_t>(r)]);
    }
  }
}

TEST_CASE("plain matmul matches double precision on every path", "[quant][plain]") {
  for (int isa = 0; isa <= static_cast<int>(decant::best_isa()); ++isa) {
    for (const index_t cols : {1, 7, 16, 33, 128}) {
      for (const index_t tokens : {1, 3, 4, 9}) {
        for (const index_t rows : {1, 5, 8, 66}) {
          check<float>(static_cast<Isa>(isa), tokens, rows, cols);
          check<bf16>(static_cast<Isa>(isa), tokens, rows, cols);
        }
      }
    }
    check<fp16>(static_cast<Isa>(isa), 5, 67, 130);
    check<decant::fp8_e4m3>(static_cast<Isa>(isa), 2, 3, 20);
  }
}

TEST_CASE("plain matmul refuses shapes that do not fit and writes nothing", "[quant][plain]") {
  decant::Cpu cpu;
  const std::vector<float> w(6, 1.0f), x(8, 1.0f);
  std::vector<float> y(4, 7.0f);
  const decant::quant::Plain<float> plain{View<const float, 2>(w.data(), 2, 3)};
  REQUIRE_THROWS_WITH(
      decant::quant::matmul(cpu, plain, View<const float, 2>(x.data(), 2, 4), View<float, 2>(y.data(), 2, 2)),
      "decant::quant::matmul: argument `x`: expected 3, got 4");
  REQUIRE_THROWS_WITH(
      decant::quant::matmul(cpu, plain, View<const float, 2>(x.data(), 2, 3), View<float, 2>(y.data(), 1, 2)),
      "decant::quant::matmul: argument `y`: expected 2, got 1");
  for (const float v : y) REQUIRE(v == 7.0f);
}

TEST_CASE("plain rows come back as they were stored", "[quant][plain]") {
  const bf16 w[] = {bf16(1.5f), bf16(-2.0f), bf16(0.25f), bf16(8.0f)};
  const decant::quant::Plain<bf16> plain{View<const bf16, 2>(w, 2, 2)};
  decant::Cpu cpu;
  float row[2];
  dequantize_row(cpu, plain, 1, View<float, 1>(row, 2));
  REQUIRE(row[0] == 0.25f);
  REQUIRE(row[1] == 8.0f);
  REQUIRE(plain.bytes() == 8);
  REQUIRE_THROWS_AS(dequantize_row(cpu, plain, 2, View<float, 1>(row, 2)), decant::ArgumentError);
}

}  // namespace quant_plain_test
