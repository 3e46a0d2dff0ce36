// Packing weights: the figure is millions of weights per second, its inverse the time per million. The error is the
// share of the layer's output that is lost, tr(D H D^T) / tr(W H W^T), on the inputs that the quantizer saw; the peer
// is plain rounding to the same format, which says what an algorithm costs. Groups of 128, inputs with a falling
// spectrum.

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "decant/quant/aaac.hpp"
#include "decant/quant/awq.hpp"
#include "decant/quant/calibration_sums.hpp"
#include "decant/quant/gptq.hpp"
#include "decant/quant/int_group.hpp"
#include "decant/quant/nf4.hpp"
#include "decant/quant/rtn.hpp"
#include "decant/quant/weight_error.hpp"
#include "harness.hpp"

namespace {

using decant::index_t;
using decant::View;
namespace quant = decant::quant;

/// Weights and what calibration found of inputs whose k-th channel has the variance e^(-4 k / cols).
struct Layer {
  index_t size;
  bench::Buffer<float> weights;
  quant::CalibrationSums sums;

  explicit Layer(index_t n)
      : size(n), weights(static_cast<std::size_t>(n * n)), sums(n, {.hessian = true, .inputs = 128, .seed = 0}) {
    bench::fill(weights, 1);
    bench::Buffer<float> x(static_cast<std::size_t>(2 * n * n));
    bench::fill(x, 2);
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

template <class Q, class Peer>
void add(bench::Suite& suite, const std::string& name, const Q& quantizer, const Peer& peer, index_t n) {
  suite.add(
      {.primitive = "quantize", .policy = name, .shape = bench::shape("rows", n, "cols", n)}, [=](bench::Row& row) {
        const Layer layer(n);
        decant::Cpu cpu;
        const auto packing = [&](const auto& q, std::vector<std::byte>& bytes) {
          using F = typename std::remove_cvref_t<decltype(q)>::Format;
          bytes.resize(static_cast<std::size_t>(quant::packed_bytes(q.format(), n, n)));
          const quant::Packed<F, std::byte> packed(q.format(), n, n, View<std::byte, 1>(bytes));
          return [&cpu, &layer, q, packed] { quantize(cpu, q, layer.w(), layer.sums.view(), packed); };
        };
        std::vector<std::byte> bytes, peer_bytes;
        const auto ours = packing(quantizer, bytes);
        const auto theirs = packing(peer, peer_bytes);
        ours();
        using F = typename Q::Format;
        const quant::Packed<F> packed(quantizer.format(), n, n, View<const std::byte, 1>(bytes));
        const double error = quant::output_error(cpu, packed, layer.w(), layer.sums.view().hessian).relative();
        row.measure({.ours = ours, .peers = {{"Rtn", theirs}}, .items = static_cast<double>(n * n), .error = error});
      });
}

}  // namespace

int main(int argc, char** argv) {
  bench::Suite suite("quant", argc, argv);
  using Int4 = quant::Int<4>;
  for (const long n : suite.sizes({512, 1024})) {
    const quant::Rtn<Int4> rtn;
    add(suite, "Rtn<Int<4>>", rtn, rtn, n);
    add(suite, "Gptq<Int<4>>", quant::Gptq<Int4>{}, rtn, n);
    add(suite, "AwqScale<Rtn<Int<4>>>", quant::AwqScale<quant::Rtn<Int4>>{}, rtn, n);
    add(suite, "Rtn<Nf4>", quant::Rtn<quant::Nf4>{}, rtn, n);
    quant::Aaac<> paper;
    paper.mode = quant::AaacMode::paper;
    add(suite, "Aaac<> (paper)", paper, rtn, n);
    add(suite, "Aaac<> (best_of)", quant::Aaac<>{}, rtn, n);
    add(suite, "Gptq<Aaac<>>", quant::Gptq<quant::Aaac<>>{}, rtn, n);
  }
  return suite.run();
}
