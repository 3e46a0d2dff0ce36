#pragma once
// A packed matrix times activations, against the definition in double, for the tests of products.
#include <algorithm>
#include <cmath>
#include <vector>

#include "catch_compat.hpp"
#include "decant/quant/matmul.hpp"
#include "unit/quant/quantized.hpp"

namespace quant_test {

using decant::Isa;
using quant::Activations;

/// Activations of both signs and many sizes, some 0.
inline std::vector<float> activations_of(index_t tokens, index_t cols, std::uint32_t stream = 5) {
  std::vector<float> x(at(tokens * cols));
  for (index_t i = 0; i < tokens * cols; ++i)
    x[at(i)] = i % 29 == 3 ? 0.0f : static_cast<float>(gaussian(i, stream)) * (i % 53 == 7 ? 30.0f : 1.0f);
  return x;
}

template <class F>
std::vector<float> product(Cpu& cpu, const Quantized<F>& q, const std::vector<float>& x, index_t tokens,
                           Activations a) {
  std::vector<float> y(at(tokens * q.rows), NAN);
  matmul(cpu, q.packed(), View<const float, 2>(x.data(), tokens, q.cols), View<float, 2>(y.data(), tokens, q.rows), a);
  return y;
}

/// y within the declared bounds, on every path and for all activations, and a token alone the same to the bit.
/// reach(group, w): the sum of magnitudes of what weight w is made of. table: of what a group's tables may be off with
/// these activations, as a share of `largest(group)`, the largest magnitude of its codes' values.
template <class F, class Reach, class Largest>
void check_product(const Quantized<F>& q, index_t tokens, const Reach& reach, const Largest& largest, bool int8_table,
                   double bf16_table = 0) {
  const std::vector<float> w = q.values();
  const std::vector<float> x = activations_of(tokens, q.cols);
  const index_t size = q.format.group_size(q.cols);
  for (const Activations a : {Activations::bf16, Activations::fp32, Activations::int8}) {
    std::vector<double> exact(at(tokens * q.rows)), bound(exact.size());
    for (index_t t = 0; t < tokens; ++t) {
      std::vector<float> taken(at(q.cols));
      round_activations(a, View<const float, 1>(x.data() + t * q.cols, q.cols), View<float, 1>(taken));
      for (index_t r = 0; r < q.rows; ++r) {
        double sum = 0, parts = 0, off = 0;
        for (index_t j = 0, k = 0; k < q.cols; ++j) {
          const auto group = q.group(r, j);
          const double top = largest(group);
          for (; k < q.cols && k < (j + 1) * size; ++k) {
            const double value = w[at(r * q.cols + k)], act = taken[at(k)];
            sum += value * act;
            parts += reach(group, value) * std::abs(act);
            if (a == Activations::bf16) off += bf16_table * std::abs(value * act);
            if (a == Activations::int8 && int8_table) off += quant::int8_table_error_bound * top * std::abs(act);
          }
        }
        exact[at(t * q.rows + r)] = sum;
        bound[at(t * q.rows + r)] = off + quant::matmul_error_bound(q.cols) * (parts + off);
      }
    }
    for (int isa = 0; isa <= static_cast<int>(decant::best_isa()); ++isa) {
      Cpu cpu;
      cpu.set_isa(static_cast<Isa>(isa));
      const std::vector<float> y = product(cpu, q, x, tokens, a);
      for (std::size_t i = 0; i < y.size(); ++i) {
        INFO(name(static_cast<Isa>(isa)) << " " << name(a) << " cols " << q.cols << " tokens " << tokens << " at "
                                         << i);
        REQUIRE(std::abs(y[i] - exact[i]) <= bound[i]);
      }
      const std::vector<float> last(x.end() - q.cols, x.end());
      const std::vector<float> alone = product(cpu, q, last, 1, a);
      REQUIRE(std::equal(alone.begin(), alone.end(), y.end() - q.rows));
    }
  }
}

/// Widths around lanes, blocks and chunks of blocks, and the tokens that each is tried with.
struct Width {
  index_t cols, tokens;
};
inline constexpr Width widths[] = {{1, 2}, {15, 1}, {16, 3}, {63, 1}, {64, 2}, {127, 1}, {128, 4}, {129, 5}, {352, 17},
                                   {4096, 1}, {4227, 2}};

}  // namespace quant_test
