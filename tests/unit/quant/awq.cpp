// AwqScale and AwqClip against naive searches; Scaled, the format that the first one writes.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <decant/quant/awq.hpp>
#include <decant/quant/gptq.hpp>
#include <decant/quant/int_group.hpp>
#include <decant/quant/matmul.hpp>

#include "catch_compat.hpp"
#include "layer_problem.hpp"

namespace quant_awq_test {

using namespace decant::quant;
using namespace quant_layer;
using decant::Cpu;

static_assert(Quantizer<AwqScale<Rtn<Int<4>>>, Cpu> && Quantizer<AwqClip<Rtn<Int<4>>>, Cpu>);
static_assert(Quantizer<AwqScale<AwqClip<Gptq<Int<4>>>>, Cpu> && Quantizer<AwqScale<AwqScale<Rtn<Int<4>>>>, Cpu>);
static_assert(WeightFormat<Scaled<Int<4>>, Cpu> && WeightFormat<Scaled<Scaled<Int<4>>>, Cpu>);

/// A few inputs are much larger than the others, and one is always 0.
LayerProblem salient(index_t rows, index_t cols, index_t tokens = 64) {
  LayerProblem p = layer_problem(rows, cols, 1, 0.02, cols, narrow(normal(rows * cols, 3), 0.02));
  p.inputs = narrow(normal(tokens * cols, 4));
  for (index_t t = 0; t < tokens; ++t) {
    for (index_t k = 5; k < cols; k += 11) p.inputs[at(t * cols + k)] *= 20;
    p.inputs[at(t * cols + 2)] = 0;
  }
  p.sums = CalibrationSums(cols, {.inputs = tokens});
  Cpu cpu;
  p.sums.add(cpu, View<const float, 2>(p.inputs.data(), tokens, cols));
  return p;
}

/// The mean over inputs of the squared change of outputs, summed over rows.
double output_change(const std::vector<float>& values, View<const float, 2> w, View<const float, 2> x) {
  double sum = 0;
  for (index_t t = 0; t < x.extent(0); ++t) {
    for (index_t r = 0; r < w.extent(0); ++r) {
      double y = 0;
      for (index_t k = 0; k < w.extent(1); ++k) {
        y += static_cast<double>(x(t, k)) *
             (static_cast<double>(values[at(r * w.extent(1) + k)]) - static_cast<double>(w(r, k)));
      }
      sum += y * y / static_cast<double>(x.extent(0));
    }
  }
  return sum;
}
double importance_change(const std::vector<float>& values, View<const float, 2> w, View<const float, 1> h) {
  double sum = 0;
  for (index_t r = 0; r < w.extent(0); ++r) {
    for (index_t k = 0; k < w.extent(1); ++k) {
      const double d = static_cast<double>(values[at(r * w.extent(1) + k)]) - static_cast<double>(w(r, k));
      sum += static_cast<double>(h[k]) * d * d;
    }
  }
  return sum;
}

TEST_CASE("AWQ's scales are those of a naive search", "[quant][awq]") {
  const LayerProblem p = salient(21, 44);
  const Rtn<Int<3>> inner{{.group = 16}};
  const AwqScale<Rtn<Int<3>>> q{inner};
  Cpu cpu;
  const Calibration all = p.calibration();
  const Calibration seen[] = {all,
                              {.magnitude = all.magnitude, .hessian = all.hessian},
                              {.importance = all.importance, .magnitude = all.magnitude}};
  for (int which = 0; which < 3; ++which) {
    const Calibration& c = seen[which];
    double least = std::numeric_limits<double>::infinity();
    double unscaled = 0;
    int best = 0;
    for (int i = 0; i < 20; ++i) {
      std::vector<double> s(44);
      double low = 1e300;
      double high = 0;
      for (index_t k = 0; k < 44; ++k) {
        s[at(k)] = std::max(std::pow(static_cast<double>(all.magnitude[k]), i / 20.0), 1e-4);
        low = std::min(low, s[at(k)]);
        high = std::max(high, s[at(k)]);
      }
      std::vector<float> scaled(p.weights.size());
      for (double& v : s) v /= std::sqrt(low * high);
      for (index_t j = 0; j < 21 * 44; ++j) scaled[at(j)] = static_cast<float>(p.weights[at(j)] * s[at(j % 44)]);
      std::vector<float> values = pack(cpu, inner, View<const float, 2>(scaled.data(), 21, 44), {}).values();
      for (index_t j = 0; j < 21 * 44; ++j) values[at(j)] *= static_cast<float>(1 / s[at(j % 44)]);
      const double change = which == 0   ? output_change(values, p.w(), all.inputs)
                            : which == 1 ? loss(values, p.w(), all.hessian)
                                         : importance_change(values, p.w(), all.importance);
      if (i == 0) unscaled = change;
      if (!(change < least)) continue;
      least = change;
      best = i;
    }
    Packing<AwqScale<Rtn<Int<3>>>> packed(q, 21, 44);
    AwqReport report;
    quantize(cpu, q, p.w(), c, packed.out(), report);
    INFO("seen through " << which);
    CHECK(report.ratio == best);
    CHECK(report.loss == Approx(least).epsilon(1e-6));
    CHECK(report.unscaled == Approx(unscaled).epsilon(1e-6));
    CHECK(best > 0);  // there is something to be found
    CHECK(report.loss < 0.6 * report.unscaled);
    const double got = which == 0   ? output_change(packed.values(), p.w(), all.inputs)
                       : which == 1 ? loss(packed.values(), p.w(), all.hessian)
                                    : importance_change(packed.values(), p.w(), all.importance);
    CHECK(got == Approx(report.loss).epsilon(1e-9));
  }
}

TEST_CASE("AWQ's scales never lose by their own measure, and scale nothing where inputs are alike", "[quant][awq]") {
  Cpu cpu;
  for (const index_t group : {0, 8, 32}) {
    const LayerProblem p = salient(16, 64);
    const AwqScale<Gptq<Int<2>>> q{{.grid = {.group = group}}, 7};
    Packing<AwqScale<Gptq<Int<2>>>> packed(q, 16, 64);
    AwqReport report;
    quantize(cpu, q, p.w(), p.calibration(), packed.out(), report);
    const std::vector<float> alone = pack(cpu, q.inner, p.w(), p.calibration()).values();
    CHECK(report.unscaled == Approx(output_change(alone, p.w(), p.calibration().inputs)).epsilon(1e-9));
    CHECK(report.loss <= report.unscaled);
  }
  LayerProblem p = salient(16, 64);
  const std::vector<float> magnitude(64, 0.7f);
  Calibration c = p.calibration();
  c.magnitude = View<const float, 1>(magnitude);
  const auto packed = pack(cpu, AwqScale<Rtn<Int<4>>>{}, p.w(), c);
  const auto alone = pack(cpu, Rtn<Int<4>>{}, p.w(), c);
  for (index_t k = 0; k < 64; ++k) CHECK(packed.in().inverse_scale(k) == 1.0f);
  CHECK(std::memcmp(packed.in().inner().data(), alone.bytes.data(), alone.bytes.size()) == 0);
  CHECK(packed.values() == alone.values());
}

/// Rtn that checks what it is told: weights times s, inputs over s, whatever s is.
struct Probe {
  using Format = Int<4>;
  const Calibration* given = nullptr;
  const float* weights = nullptr;
  bool operator==(const Probe&) const = default;
  Format format() const { return {}; }
};
void validate(const Probe&, index_t) {}
Needs needs(const Probe&) { return {.importance = true}; }
int probed = 0;
void quantize(Cpu& cpu, const Probe& q, View<const float, 2> w, const Calibration& c,
              const Packed<Int<4>, std::byte>& out) {
  ++probed;
  for (index_t k = 0; k < w.extent(1); ++k) {
    if (q.given->magnitude[k] == 0) continue;
    const double s = static_cast<double>(q.given->magnitude[k]) / static_cast<double>(c.magnitude[k]);
    REQUIRE(static_cast<double>(c.importance[k]) == Approx(q.given->importance[k] / (s * s)).epsilon(1e-5));
    REQUIRE(static_cast<double>(w(1, k)) == Approx(q.weights[w.extent(1) + k] * s).epsilon(1e-5));
    REQUIRE(static_cast<double>(c.inputs(2, k)) == Approx(q.given->inputs(2, k) / s).epsilon(1e-5));
    for (index_t j = 0; j < w.extent(1); ++j) {
      if (q.given->magnitude[j] == 0) continue;
      const double other = static_cast<double>(q.given->magnitude[j]) / static_cast<double>(c.magnitude[j]);
      REQUIRE(c.hessian(k, j) == Approx(q.given->hessian(k, j) / (s * other)).epsilon(1e-5));
    }
  }
  quantize(cpu, Rtn<Int<4>>{}, w, c, out);
}

TEST_CASE("what stands inside AWQ's scales is told of scaled inputs", "[quant][awq]") {
  const LayerProblem p = salient(4, 40);
  const Calibration c = p.calibration();
  Cpu cpu;
  AwqScale<Probe> q{{&c, p.weights.data()}};
  CHECK(needs(q).importance);
  CHECK(needs(q).magnitude);
  probed = 0;
  pack(cpu, q, p.w(), c);
  CHECK(probed >= 20);
}

TEST_CASE("AWQ's ranges are those of a naive search", "[quant][awq]") {
  const index_t rows = 18;
  const index_t cols = 44;
  LayerProblem p = salient(rows, cols);
  for (index_t r = 0; r < rows; ++r) p.weights[at(r * cols + (7 * r) % cols)] *= 6;
  const Int<3> format{.group = 16};
  const AwqClip<Rtn<Int<3>>> q{{format}};
  const Calibration all = p.calibration();
  const Calibration seen[] = {all, {.hessian = all.hessian}, {.importance = all.importance}};
  Cpu cpu;
  for (int which = 0; which < 3; ++which) {
    std::vector<float> clipped = p.weights;
    bool any = false;
    for (index_t r = 0; r < rows; ++r) {
      for (index_t begin = 0; begin < cols; begin += 16) {
        const index_t count = std::min<index_t>(16, cols - begin);
        const View<const float, 2> group(p.weights.data() + r * cols + begin, 1, count);
        float most = 0;
        for (index_t i = 0; i < count; ++i) most = std::max(most, std::abs(group(0, i)));
        double least = std::numeric_limits<double>::infinity();
        for (int i = 0; i < 10; ++i) {
          const float range = most * (1.0f - static_cast<float>(i) / 20.0f);
          std::vector<float> narrowed(at(count));
          for (index_t k = 0; k < count; ++k) narrowed[at(k)] = std::min(std::max(group(0, k), -range), range);
          const std::vector<float> values =
              pack(cpu, Rtn<Int<3>>{format}, View<const float, 2>(narrowed.data(), 1, count), {}).values();
          const double change =
              which == 0   ? output_change(values, group, all.inputs.slice(1, begin, count))
              : which == 1 ? loss(values, group, all.hessian.slice(0, begin, count).slice(1, begin, count))
                           : importance_change(values, group, all.importance.slice(0, begin, count));
          if (!(change < least)) continue;
          least = change;
          any = any || i > 0;
          for (index_t k = 0; k < count; ++k) clipped[at(r * cols + begin + k)] = narrowed[at(k)];
        }
      }
    }
    CHECK(any);
    INFO("seen through " << which);
    CHECK(pack(cpu, q, p.w(), seen[which]).bytes ==
          pack(cpu, q.inner, View<const float, 2>(clipped.data(), rows, cols), {}).bytes);
  }
}

TEST_CASE("a scaled format multiplies and decodes as its weights say", "[quant][awq]") {
  const LayerProblem p = salient(37, 72);
  Cpu cpu;
  const auto packed = pack(cpu, AwqScale<Rtn<Int<4>>>{{{.group = 32}}}, p.w(), p.calibration());
  const Packed<Scaled<Int<4>>> m = packed.in();
  CHECK(m.rows() == 37);
  CHECK(m.cols() == 72);
  CHECK(m.bytes() == 320 + packed_bytes(Int<4>{.group = 32}, 37, 72));
  CHECK(m.bits_per_weight() == Approx(8.0 * static_cast<double>(m.bytes()) / (37 * 72)));
  CHECK(packed.in().format() == Scaled<Int<4>>{{.group = 32}});
  const std::vector<float> values = packed.values();
  const index_t tokens = 3;
  const View<const float, 2> x(p.inputs.data(), tokens, 72);
  std::vector<float> y(at(tokens * 37), NAN);
  matmul(cpu, m, x, View<float, 2>(y.data(), tokens, 37), Activations::fp32);
  for (index_t t = 0; t < tokens; ++t) {
    for (index_t r = 0; r < 37; ++r) {
      double exact = 0;
      double scale = 0;
      for (index_t k = 0; k < 72; ++k) {
        const double term = static_cast<double>(x(t, k)) * static_cast<double>(values[at(r * 72 + k)]);
        exact += term;
        // codes and zero points are up to 15 steps apart from one another
        scale += std::abs(static_cast<double>(x(t, k))) * 0.2;
      }
      CHECK(std::abs(static_cast<double>(y[at(t * 37 + r)]) - exact) <= 4e-6 * scale);
    }
  }
  CHECK_THROWS_AS(matmul(cpu, m, x.slice(1, 0, 71), View<float, 2>(y.data(), tokens, 37)), decant::ArgumentError);
  CHECK_THROWS_AS(matmul(cpu, m, x, View<float, 2>(y.data(), tokens, 36)), decant::ArgumentError);
  using M = Packed<Scaled<Int<4>>>;
  const View<const std::byte, 1> bytes(packed.bytes.data(), m.bytes());
  CHECK_THROWS_WITH(M(m.format(), 37, 72, bytes.slice(0, 0, m.bytes() - 1)), catch_compat::contains("data"));
  CHECK_THROWS_WITH(M(m.format(), -1, 72, bytes), catch_compat::contains("rows"));
  CHECK_THROWS_AS(dequantize_row(cpu, m, 37, View<float, 1>(y.data(), 72)), decant::ArgumentError);
}

TEST_CASE("AWQ names what it lacks and what makes no sense", "[quant][awq]") {
  const LayerProblem p = salient(3, 16);
  const Calibration all = p.calibration();
  Cpu cpu;
  const AwqScale<Rtn<Int<4>>> q;
  Packing<AwqScale<Rtn<Int<4>>>> packed(q, 3, 16, std::byte{0x5a});
  const std::vector<std::byte> untouched = packed.bytes;
  CHECK_THROWS_WITH(quantize(cpu, q, p.w(), {.inputs = all.inputs}, packed.out()),
                    catch_compat::contains("calibration.magnitude"));
  CHECK_THROWS_WITH(quantize(cpu, q, p.w(), {.magnitude = all.magnitude}, packed.out()),
                    catch_compat::contains("calibration.inputs"));
  std::vector<float> magnitude(16, 1.0f);
  magnitude[3] = -1;
  CHECK_THROWS_WITH(quantize(cpu, q, p.w(), {.magnitude = View<const float, 1>(magnitude), .inputs = all.inputs},
                             packed.out()),
                    catch_compat::contains("calibration.magnitude"));
  CHECK(packed.bytes == untouched);
  CHECK_THROWS_WITH(pack(cpu, AwqClip<Rtn<Int<4>>>{}, p.w(), {}), catch_compat::contains("calibration.inputs"));
  CHECK_THROWS_WITH(validate(AwqScale<Rtn<Int<4>>>{{}, 0}, 16), catch_compat::contains("ratios"));
  CHECK_THROWS_WITH(validate(AwqClip<Rtn<Int<4>>>{{}, 21}, 16), catch_compat::contains("steps"));
  CHECK_THROWS_WITH(validate(AwqClip<Rtn<Int<4>>>{{}, 10, 0}, 16), catch_compat::contains("tokens"));
  // Scales that would leave fp32 are passed over.
  std::vector<float> huge(p.weights.size(), 1e38f);
  CHECK_NOTHROW(pack(cpu, q, View<const float, 2>(huge.data(), 3, 16), all));
}

}  // namespace quant_awq_test
