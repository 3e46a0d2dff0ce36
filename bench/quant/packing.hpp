#pragma once
// Rows of quantizers: a layer to pack, and one measurement of a quantizer beside a plainer one.

#include <cmath>
#include <cstddef>
#include <string>
#include <type_traits>
#include <vector>

#include "decant/quant/calibration_sums.hpp"
#include "decant/quant/rtn.hpp"
#include "decant/quant/weight_error.hpp"
#include "harness.hpp"

namespace bench {

using decant::index_t;
using decant::View;

/// Weights and what calibration found of inputs whose k-th channel has the variance e^(-4 k / cols).
struct Layer {
  index_t size;
  Buffer<float> weights;
  decant::quant::CalibrationSums sums;

  explicit Layer(index_t n)
      : size(n), weights(static_cast<std::size_t>(n * n)), sums(n, {.hessian = true, .inputs = 128, .seed = 0}) {
    fill(weights, 1);
    Buffer<float> x(static_cast<std::size_t>(2 * n * n));
    fill(x, 2);
    for (index_t t = 0; t < 2 * n; ++t) {
      float previous = 0;  // neighbouring channels are correlated, as real ones are
      for (index_t k = 0; k < n; ++k) {
        float& at = x[static_cast<std::size_t>(t * n + k)];
        previous = at = 0.6f * previous + at;
        at *= std::exp(-2.0f * static_cast<float>(k) / static_cast<float>(n));
      }
    }
    decant::Cpu cpu;
    sums.add(cpu, View<const float, 2>(x.data(), 2 * n, n));
  }
  View<const float, 2> w() const { return {weights.data(), size, size}; }
};

/// Packing an n x n layer; beside it, plain rounding of the same one.
template <class Q, class F>
void add_quantizer(Suite& suite, const std::string& name, const Q& quantizer, const decant::quant::Rtn<F>& rounding,
                   index_t n) {
  namespace quant = decant::quant;
  suite.add({.primitive = "quantize", .policy = name, .shape = shape("rows", n, "cols", n)}, [=](Row& row) {
    const Layer layer(n);
    decant::Cpu cpu;
    const auto packing = [&](const auto& q, std::vector<std::byte>& bytes) {
      using Format = typename std::remove_cvref_t<decltype(q)>::Format;
      bytes.resize(static_cast<std::size_t>(quant::packed_bytes(q.format(), n, n)));
      const quant::Packed<Format, std::byte> packed(q.format(), n, n, View<std::byte, 1>(bytes));
      return [&cpu, &layer, q, packed] { quantize(cpu, q, layer.w(), layer.sums.view(), packed); };
    };
    std::vector<std::byte> bytes, peer_bytes;
    const auto ours = packing(quantizer, bytes);
    const auto theirs = packing(rounding, peer_bytes);
    ours();
    const quant::Packed<typename Q::Format> packed(quantizer.format(), n, n, View<const std::byte, 1>(bytes));
    const double error = quant::output_error(cpu, packed, layer.w(), layer.sums.view().hessian).relative();
    row.measure({.ours = ours, .peers = {{"Rtn", theirs}}, .items = static_cast<double>(n * n), .error = error});
  });
}

}  // namespace bench
