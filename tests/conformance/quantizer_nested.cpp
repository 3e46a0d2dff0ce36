// Algorithms that transform what another one gets through the suite of quantizer.hpp, and where one is never worse than
// what stands inside it.
#include "conformance/quantizer.hpp"

#include "decant/quant/aaac.hpp"
#include "decant/quant/awq.hpp"
#include "decant/quant/gptq.hpp"
#include "decant/quant/int_group.hpp"
#include "decant/quant/matmul.hpp"
#include "decant/quant/osaq.hpp"

namespace {

using namespace decant::quant;
using decant::View;
using conformance::quantizer;
using conformance::quantizer_problem;
using quant_layer::at;
using quant_layer::LayerProblem;
using quant_layer::pack;

TEST_CASE("Quantizer: AwqScale", "[threads]") {
  quantizer(AwqScale<Gptq<Int<4>>>{.inner = {{.group = 32}}, .ratios = 5});
  quantizer(AwqScale<Aaac<>>{.inner = {.group = 32, .passes = 2, .refit = AaacRefit::yes}, .ratios = 2});
}
TEST_CASE("Quantizer: AwqClip", "[threads]") {
  quantizer(AwqClip<Rtn<Int<3>>>{.inner = {{.group = 32}}});
  quantizer(AwqScale<AwqClip<Gptq<Int<2>>>>{.inner = {{{.group = 0}}}, .ratios = 4});
}
TEST_CASE("Quantizer: Osaq", "[threads]") {
  quantizer(Osaq<Gptq<Int<2>>>{.transform = {.gamma = 1e-3}}, {.allocates = true});
  quantizer(Osaq<Rtn<Int<3>>>{.inner = {{.group = 16}},
                              .transform = {.mode = OsaqMode::paper, .gamma = 1e-3, .shared_p = true},
                              .accept = true},
            {.allocates = true});
  quantizer(Osaq<AwqScale<Rtn<Int<4>>>>{.inner = {.ratios = 3}, .transform = {.gamma = 1e-3}}, {.allocates = true});
}

/// Mean squared change of a row's output over inputs.
double output_change(const LayerProblem& p, const std::vector<float>& values, View<const float, 2> x) {
  double sum = 0;
  for (decant::index_t t = 0; t < x.extent(0); ++t) {
    for (decant::index_t r = 0; r < p.rows; ++r) {
      double y = 0;
      for (decant::index_t k = 0; k < p.cols; ++k) {
        const std::size_t i = at(r * p.cols + k);
        y += static_cast<double>(x(t, k)) * (static_cast<double>(values[i]) - static_cast<double>(p.weights[i]));
      }
      sum += y * y;
    }
  }
  return sum;
}

TEST_CASE("Quantizer: never worse than round to nearest where that is a theorem") {
  for (const decant::index_t group : {0, 16, 96}) {
    LayerProblem p = quantizer_problem(20, 96);
    for (std::size_t i = 5; i < p.weights.size(); i += 97) p.weights[i] *= 8;
    const Calibration c = p.calibration();
    decant::Cpu cpu;
    const Rtn<Int<3>> nearest{{.group = group}};
    const std::vector<float> plain = pack(cpu, nearest, p.w(), {}).values();
    const std::vector<float> scaled = pack(cpu, AwqScale<Rtn<Int<3>>>{nearest}, p.w(), c).values();
    CHECK(output_change(p, scaled, c.inputs) <= output_change(p, plain, c.inputs) * (1 + 1e-9));
    const Osaq<Rtn<Int<3>>> absorbed{.inner = nearest, .transform = {.gamma = 1e-3}, .accept = true};
    const std::vector<float> accepted = pack(cpu, absorbed, p.w(), c).values();
    CHECK(quant_layer::loss(accepted, p.w(), c.hessian) <= quant_layer::loss(plain, p.w(), c.hessian) * (1 + 1e-9));
    // Every group by itself.
    const std::vector<float> clipped = pack(cpu, AwqClip<Rtn<Int<3>>>{nearest}, p.w(), c).values();
    const decant::index_t size = nearest.grid.group_size(96);
    for (decant::index_t begin = 0; begin < 96; begin += size) {
      LayerProblem part = p;
      part.weights.assign(p.weights.size(), 0.0f);
      std::vector<float> a = part.weights;
      std::vector<float> b = part.weights;
      for (decant::index_t r = 0; r < p.rows; ++r) {
        for (decant::index_t k = begin; k < begin + size; ++k) {
          const std::size_t i = at(r * 96 + k);
          part.weights[i] = p.weights[i];
          a[i] = clipped[i];
          b[i] = plain[i];
        }
      }
      CHECK(output_change(part, a, c.inputs) <= output_change(part, b, c.inputs) * (1 + 1e-9));
    }
  }
}

}  // namespace
