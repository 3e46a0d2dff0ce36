#pragma once
// Products with packed weights against the dequantized rows in double precision, within the bounds that matmul.hpp
// declares, on every path and for every kind of activations.
#include "conformance/weight_format.hpp"
#include "decant/quant/codebook.hpp"
#include "decant/quant/matmul.hpp"
#include "decant/quant/nf4.hpp"

namespace conformance {

/// ggml's.
template <class F>
inline constexpr bool has_blocks = requires { F::block_size; };

/// Formats to which matmul.hpp's int8_table_error_bound applies.
template <class F>
inline constexpr bool has_table = false;
template <>
inline constexpr bool has_table<decant::quant::Nf4> = true;
template <class Scale>
inline constexpr bool has_table<decant::quant::Codebook2x16<Scale>> = true;

/// What a product is checked against, free of formats.
struct ProductProblem {
  index_t rows, cols, tokens;
  std::vector<float> x;          // [tokens, cols]
  std::vector<float> weights;    // [rows, cols]
  std::vector<float> magnitude;  // [rows, cols]: |a| + |b| of weights a + b
  std::vector<float> largest;    // [rows, cols]: of the weight's group any code's magnitude; empty: tables are exact
  bool own_blocks = false;       // int8 activations are rounded in blocks of the format's

  /// Products that lie further from the exact ones than they may.
  int wrong(decant::quant::Activations activations, const std::vector<float>& y) const {
    using decant::quant::Activations;
    const bool exact_rounding = activations != Activations::int8 || !own_blocks;
    int count = 0;
    std::vector<float> rounded(at(cols));
    for (index_t t = 0; t < tokens; ++t) {
      const View<const float, 1> token(x.data() + t * cols, cols);
      if (exact_rounding)
        decant::quant::round_activations(activations, token, View<float, 1>(rounded));
      else
        std::copy_n(token.data(), cols, rounded.data());
      float top = 0;
      for (const float v : rounded) top = std::max(top, std::abs(v));
      for (index_t r = 0; r < rows; ++r) {
        double exact = 0, bound = 0, weight = 0, table = 0;
        for (index_t k = 0; k < cols; ++k) {
          exact += static_cast<double>(weights[at(r * cols + k)]) * rounded[at(k)];
          bound += static_cast<double>(magnitude[at(r * cols + k)]) * std::abs(rounded[at(k)]);
          weight += std::abs(weights[at(r * cols + k)]);
          if (!largest.empty()) table += static_cast<double>(largest[at(r * cols + k)]) * std::abs(rounded[at(k)]);
        }
        bound *= decant::quant::matmul_error_bound(cols);
        if (activations == Activations::int8) bound += decant::quant::int8_table_error_bound * table;
        if (!exact_rounding) bound += decant::quant::activation_error_bound(activations) * top * weight;
        count += !(std::abs(y[at(t * rows + r)] - exact) <= bound);
      }
    }
    return count;
  }
};

template <class F>
void weight_format_products_shape(const F& format, index_t cols, index_t tokens) {
  using decant::quant::Activations;
  const index_t rows = 11;
  const Quantized<F> q(format, mixed_weights(rows, cols));
  ProductProblem p{rows, cols, tokens, Matrix(tokens, cols, 61).w, q.values(), {}, {}, has_blocks<F>};
  const index_t size = format.group_size(cols);
  const auto layer = q.packed().layer();
  for (index_t r = 0; r < rows; ++r)
    for (index_t k = 0; k < cols; ++k) {
      const float origin = format.value(layer, q.group(r, k / size), k % size, 0);
      p.magnitude.push_back(std::abs(p.weights[at(r * cols + k)] - origin) + std::abs(origin));
      if (!has_table<F>) continue;
      p.largest.push_back(0);
      for (int code = 0; code < 16; ++code) {
        const float value = format.value(layer, q.group(r, k / size), k % size, static_cast<std::uint8_t>(code));
        p.largest.back() = std::max(p.largest.back(), std::abs(value));
      }
    }
  for (int isa = 0; isa <= static_cast<int>(decant::best_isa()); ++isa)
    for (const Activations a : {Activations::bf16, Activations::fp32, Activations::int8}) {
      INFO("cols " << cols << ", tokens " << tokens << ", " << name(static_cast<decant::Isa>(isa)) << ", " << name(a));
      Cpu cpu;
      cpu.set_isa(static_cast<decant::Isa>(isa));
      std::vector<float> y(at(tokens * rows), std::numeric_limits<float>::quiet_NaN());
      const View<const float, 2> x(p.x.data(), tokens, cols);
      matmul(cpu, q.packed(), x, View<float, 2>(y.data(), tokens, rows), a);
      CHECK(p.wrong(a, y) == 0);
      // The last token by itself: the same bits.
      std::vector<float> alone(at(rows));
      matmul(cpu, q.packed(), x.slice(0, tokens - 1, 1), View<float, 2>(alone.data(), 1, rows), a);
      CHECK(std::equal(alone.begin(), alone.end(), y.end() - rows));
    }
}

template <class F>
void weight_format_products(const F& format) {
  static_assert(quant::WeightFormat<F, Cpu>);
  for (const index_t cols : columns_of(format)) weight_format_products_shape(format, cols, 1 + cols % 5);

  Cpu cpu;
  const index_t cols = columns_of(format).back();
  const Quantized<F> q(format, Matrix(3, cols));
  const std::vector<float> x(at(2 * cols), 1.0f);
  std::vector<float> y(6, 7.0f);
  const View<const float, 2> in(x.data(), 2, cols);
  const View<float, 2> out(y.data(), 2, 3);
  CHECK_THROWS_AS(matmul(cpu, q.packed(), in.slice(1, 0, cols - 1), out), decant::ArgumentError);
  CHECK_THROWS_AS(matmul(cpu, q.packed(), in, out.slice(0, 0, 1)), decant::ArgumentError);
  CHECK_THROWS_AS(matmul(cpu, q.packed(), in, out.slice(1, 0, 2)), decant::ArgumentError);
  CHECK(y == std::vector<float>(6, 7.0f));
  matmul(cpu, q.packed(), in.slice(0, 0, 0), out.slice(0, 0, 0));  // no tokens, no work
}

}  // namespace conformance
