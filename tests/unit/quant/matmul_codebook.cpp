// Products with formats of two tables, chosen by a scale's sign or by selectors: Codebook2x16 and If4.
#include <decant/quant/codebook.hpp>
#include <decant/quant/if4.hpp>

#include "matmul_problem.hpp"

namespace quant_matmul_codebook_test {

using namespace quant_test;
using decant::fp16;
using decant::fp8_e4m3;
using quant::Codebook2x16;

/// Any tables, any codes, any scales, and a choice of table that changes from group to group without a pattern.
template <class F>
Quantized<F> any_codebook(const F& f, index_t rows, index_t cols) {
  Quantized<F> q(f, rows, cols);
  float tables[2][16];
  for (int t = 0; t < 2; ++t) {
    for (int i = 0; i < 16; ++i) tables[t][i] = static_cast<float>(gaussian(16 * t + i, 3));
    std::sort(tables[t], tables[t] + 16);
  }
  const auto layer = F::of_tables(tables, F::two_scales ? 0.0371f : 1.0f);
  const auto packed = q.packed();
  f.store_layer(layer, packed.data());
  for (index_t r = 0; r < rows; ++r) {
    for (index_t j = 0; j < packed.groups(); ++j) {
      const auto scale = static_cast<float>(j % 11 == 4 ? 0.0 : std::exp(gaussian(r * 1000 + j, 4)));
      const auto bits = static_cast<std::uint32_t>(4294967295.0 * uniform(r * 1000 + j, 5));
      f.store_group(layer, {F::stored(scale), f.selects_by_sign() ? bits >> 31 : bits}, packed.row(r), cols, j);
    }
    for (index_t k = 0; k < cols; ++k)
      f.store_code(static_cast<std::uint8_t>(16 * uniform(r * cols + k, 6)), packed.row(r), cols, k);
  }
  return q;
}

template <class F>
void check(const F& f, const Width& width) {
  const Quantized<F> q = any_codebook(f, 6, width.cols);
  const auto layer = q.packed().layer();
  double top = 0;
  for (const auto& table : layer.table)
    for (const float v : table) top = std::max(top, std::abs(static_cast<double>(v)));
  check_product(q, width.tokens, [](const auto&, double w) { return std::abs(w); },
                [&](const auto& g) { return static_cast<double>(F::step(layer.scale, g.scale)) * top; }, true);
}

TEST_CASE("products with two codebooks stay within their bounds", "[quant][matmul]") {
  for (const Width& width : widths) check(Codebook2x16<fp16>{}, width);
  for (const Width& width : {Width{64, 1}, Width{129, 3}, Width{1061, 5}}) {
    check(Codebook2x16<fp16>{.group = 128, .select = 16}, width);
    check(Codebook2x16<fp16>{.group = 256, .select = 16}, width);
    check(Codebook2x16<fp16>{.group = 64, .select = 64}, width);
    check(Codebook2x16<fp8_e4m3>{}, width);
    check(Codebook2x16<fp8_e4m3>{.group = 32, .select = 8}, width);  // decoded first
  }
}

TEST_CASE("products with IF4 stay within their bound", "[quant][matmul]") {
  for (const Width& width : widths)
    if (width.tokens != 1)
      check_product(Quantized<quant::If4>({}, Matrix(6, width.cols)), width.tokens,
                    [](const auto&, double w) { return std::abs(w); }, [](const auto&) { return 0.0; }, false);
}

TEST_CASE("another table for one group changes what its columns give and nothing else", "[quant][matmul]") {
  using F = Codebook2x16<fp16>;
  constexpr index_t cols = 640;
  const Quantized<F> before = any_codebook(F{}, 4, cols);
  Quantized<F> after = before;
  const auto packed = after.packed();
  auto group = after.group(2, 3);
  group.second ^= 1;
  after.format.store_group(packed.layer(), group, packed.row(2), cols, 3);
  for (int isa = 0; isa <= static_cast<int>(decant::best_isa()); ++isa) {
    for (const Activations a : {Activations::bf16, Activations::fp32, Activations::int8}) {
      Cpu cpu;
      cpu.set_isa(static_cast<Isa>(isa));
      std::vector<float> x = activations_of(1, cols);
      const auto y = product(cpu, before, x, 1, a), z = product(cpu, after, x, 1, a);
      for (std::size_t r = 0; r < 4; ++r) CHECK((y[r] == z[r]) == (r != 2));
      std::fill_n(x.begin() + 384, 128, 0.0f);
      CHECK(product(cpu, before, x, 1, a) == product(cpu, after, x, 1, a));
    }
  }
}

}  // namespace quant_matmul_codebook_test
