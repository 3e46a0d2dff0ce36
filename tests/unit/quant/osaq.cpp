// OSAQ: its equations, its laws, and how much it is worth to GPTQ.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include <decant/quant/gptq.hpp>
#include <decant/quant/int_group.hpp>
#include <decant/quant/osaq.hpp>

#include "catch_compat.hpp"
#include "layer_problem.hpp"

namespace quant_osaq_test {

using namespace decant::quant;
using namespace quant_layer;
using decant::Cpu;

static_assert(Quantizer<Osaq<Gptq<Int<2>>>, Cpu>);

enum class Tails { outliers, student };

/// Weights of standard deviation 0.02, one in 200 set to ten times that; or Student's t with 4 degrees of freedom.
std::vector<float> heavy(index_t count, Tails tails) {
  std::vector<double> w = normal(count, 3);
  if (tails == Tails::outliers) {
    const decant::Philox random{77};
    for (std::size_t i = 0; i < w.size(); ++i) {
      if (random.uniform(static_cast<std::uint32_t>(i)) < 0.005f) w[i] = w[i] < 0 ? -10 : 10;
    }
  } else {
    const std::vector<double> z = normal(4 * count, 30);
    for (std::size_t i = 0; i < w.size(); ++i) {
      double square = 0;
      for (std::size_t j = 0; j < 4; ++j) square += z[4 * i + j] * z[4 * i + j];
      w[i] /= std::sqrt(square / 4);
    }
  }
  return narrow(w, 0.02);
}

LayerProblem problem(index_t n, index_t tokens, index_t rank, Tails tails = Tails::outliers, double decay = 0.05) {
  return layer_problem(n, n, tokens, decay, rank, heavy(n * n, tails));
}

std::vector<float> transform(const LayerProblem& p, const OsaqTransform& t, index_t group,
                             OsaqReport* report = nullptr) {
  std::vector<float> out(p.weights.size(), NAN);
  Cpu cpu;
  const OsaqReport found =
      osaq_transform(cpu, t, p.w(), p.calibration().hessian, group, View<float, 2>(out.data(), p.rows, p.cols));
  if (report) *report = found;
  return out;
}

double range(const float* w, index_t cols, index_t group) {
  double sum = 0;
  for (index_t begin = 0; begin < cols; begin += group) {
    float low = w[begin];
    float high = w[begin];
    for (index_t k = begin; k < std::min(cols, begin + group); ++k) {
      low = std::min(low, w[k]);
      high = std::max(high, w[k]);
    }
    sum += static_cast<double>(high) - static_cast<double>(low);
  }
  return sum;
}

/// ||X (a - b)^T|| / ||X b^T||
double output_change(const LayerProblem& p, const std::vector<float>& a) {
  double change = 0;
  double norm = 0;
  for (index_t t = 0; t < static_cast<index_t>(p.inputs.size()) / p.cols; ++t) {
    for (index_t r = 0; r < p.rows; ++r) {
      double d = 0;
      double y = 0;
      for (index_t k = 0; k < p.cols; ++k) {
        const double x = static_cast<double>(p.inputs[at(t * p.cols + k)]);
        y += x * static_cast<double>(p.weights[at(r * p.cols + k)]);
        d += x * (static_cast<double>(a[at(r * p.cols + k)]) - static_cast<double>(p.weights[at(r * p.cols + k)]));
      }
      change += d * d;
      norm += y * y;
    }
  }
  return std::sqrt(change / norm);
}

/// Of the change, relative to the outputs.
double held_out(const LayerProblem& p, const std::vector<float>& a) {
  const std::vector<float> nothing(p.weights.size(), 0.0f);
  return loss(a, p.w(), p.exact_hessian()) / loss(nothing, p.w(), p.exact_hessian());
}

TEST_CASE("inputs that leave directions out: outputs stay and ranges shrink", "[quant][osaq]") {
  const LayerProblem p = problem(64, 100, 40);
  for (const bool shared : {false, true}) {
    for (const index_t group : {0, 16, 24}) {
      OsaqReport report;
      const std::vector<float> out = transform(p, {.gamma = 0, .shared_p = shared}, group, &report);
      CHECK(report.directions == 24);
      CHECK(report.range_after < 0.95 * report.range_before);
      CHECK(output_change(p, out) <= 1e-5);
    }
    // The paper's mode with the null space and nothing else.
    OsaqReport report;
    const std::vector<float> out =
        transform(p, {.mode = OsaqMode::paper, .gamma = 1e-15, .shared_p = shared}, 0, &report);
    CHECK(report.directions == 25);  // the first that reaches gamma, which the null space does not
    CHECK(out != p.weights);
  }
}

TEST_CASE("nothing moves without a null space", "[quant][osaq]") {
  const LayerProblem p = problem(48, 400, 48);
  OsaqReport report;
  CHECK(transform(p, {.gamma = 0}, 16, &report) == p.weights);
  CHECK(report.directions == 0);
  CHECK(report.range_after == report.range_before);
  CHECK(transform(p, {.mode = OsaqMode::paper, .gamma = 0}, 16, &report) != p.weights);
  CHECK(report.directions == 1);
}

TEST_CASE("a guarded row's range never grows, others may", "[quant][osaq]") {
  int grown_without = 0;
  for (const Tails tails : {Tails::outliers, Tails::student}) {
    const LayerProblem p = problem(64, 300, 64, tails);
    for (const index_t group : {64, 16}) {
      for (const double gamma : {1e-4, 1e-3, 1e-2}) {
        for (const bool shared : {false, true}) {
          const OsaqTransform all[] = {
              {.gamma = gamma, .shared_p = shared},
              {.gamma = gamma, .eta = 0.02, .iters = 5, .shared_p = shared},
              {.mode = OsaqMode::paper, .gamma = gamma, .tau = 0.02, .iters = 3, .guard = OsaqGuard::on,
               .shared_p = shared},
              {.mode = OsaqMode::paper, .gamma = gamma, .tau = 0.02, .shared_p = shared}};
          for (const OsaqTransform& t : all) {
            OsaqReport report;
            const std::vector<float> out = transform(p, t, group, &report);
            double before = 0;
            double after = 0;
            for (index_t r = 0; r < p.rows; ++r) {
              const double was = range(p.weights.data() + r * p.cols, p.cols, group);
              const double is = range(out.data() + r * p.cols, p.cols, group);
              before += was;
              after += is;
              if (t.guards()) {
                CHECK(is <= was);
              } else {
                grown_without += is > was ? 1 : 0;
              }
            }
            CHECK(report.range_before == Approx(before).epsilon(1e-12));
            CHECK(report.range_after == Approx(after).epsilon(1e-12));
          }
        }
      }
    }
  }
  CHECK(grown_without > 0);
}

TEST_CASE("outputs of inputs that were not seen hardly change", "[quant][osaq]") {
  const LayerProblem p = problem(96, 2000, 96, Tails::outliers, 0.12);
  for (const double gamma : {1e-5, 1e-4, 1e-3, 1e-2}) {
    for (const bool shared : {false, true}) {
      OsaqReport report;
      CHECK(held_out(p, transform(p, {.gamma = gamma, .shared_p = shared}, 32, &report)) <= 3 * gamma + 1e-3);
      CHECK(report.directions > 0);
      CHECK(held_out(p, transform(p, {.mode = OsaqMode::paper, .gamma = gamma, .shared_p = shared}, 32)) <=
            4 * gamma + 1e-3);
    }
  }
}

TEST_CASE("OSAQ as published solves its equations", "[quant][osaq]") {
  const index_t n = 60;
  const LayerProblem p = problem(n, 400, n);
  Cpu cpu;
  const OsaqTransform t{.mode = OsaqMode::paper, .gamma = 0.05, .tau = 0.05};
  const decant::Workspace::Scope scope(cpu.workspace());
  const detail::OsaqDirections directions = detail::osaq_directions(cpu, t, p.calibration().hessian);
  const index_t m = directions.count;
  REQUIRE(m > 10);
  std::vector<double> v(at(m));
  for (index_t k = 0; k < n; ++k) {
    for (index_t i = 0; i < m; ++i) v[at(i)] += directions.v0[k * m + i];
  }
  const detail::OsaqSystem system{cpu.isa(), t, directions, v.data(), n};
  const std::vector<float> out = transform(p, t, 16);
  for (index_t r = 0; r < 5; ++r) {
    const float* const w = p.weights.data() + r * n;
    std::vector<double> s(at(n)), a(at(m * m)), scaled(at(64 * m)), scratch(at(detail::factor_scratch(m))), b(at(m)),
        d(at(n));
    detail::osaq_weights(t, w, n, 16, s.data());
    double total = 0;
    for (index_t k = 0; k < n; ++k) total += std::exp(std::abs(static_cast<double>(w[k])) / t.tau);
    for (index_t k = 0; k < n; ++k) {
      CHECK(s[at(k)] == Approx(std::exp(std::abs(static_cast<double>(w[k])) / t.tau) / total).epsilon(1e-12));
    }
    detail::OneByOne run;
    REQUIRE(system.factor(run, s.data(), a.data(), scaled.data(), scratch.data()));
    system.solve(s.data(), w, a.data(), b.data(), d.data());
    const auto objective = [&](const std::vector<double>& x, double* gradient) {
      double value = 0;
      double sum = 0;
      for (index_t i = 0; i < m; ++i) sum += x[at(i)] * v[at(i)];
      for (index_t i = 0; i < m; ++i) {
        value += t.mu1 / 2 * x[at(i)] * x[at(i)];
        if (gradient) gradient[i] = t.mu1 * x[at(i)] + t.mu2 * sum * v[at(i)];
      }
      value += t.mu2 / 2 * sum * sum;
      for (index_t k = 0; k < n; ++k) {
        double moved = static_cast<double>(w[k]);
        for (index_t i = 0; i < m; ++i) moved += x[at(i)] * directions.v0[k * m + i];
        value += s[at(k)] / 2 * moved * moved;
        for (index_t i = 0; i < m && gradient; ++i) gradient[i] += s[at(k)] * moved * directions.v0[k * m + i];
      }
      return value;
    };
    std::vector<double> gradient(at(m));
    const double least = objective(b, gradient.data());
    for (const double g : gradient) CHECK(std::abs(g) <= 1e-10);
    for (index_t i = 0; i < m; ++i) {
      std::vector<double> other = b;
      other[at(i)] += 1e-4;
      CHECK(objective(other, nullptr) > least);
    }
    for (index_t k = 0; k < n; ++k) {
      CHECK(out[at(r * n + k)] == static_cast<float>(static_cast<double>(w[k]) + d[at(k)]));
    }
  }
}

TEST_CASE("guarded weights are a softmax and a floor, group by group", "[quant][osaq]") {
  const std::vector<float> w = heavy(40, Tails::student);
  const OsaqTransform t{.beta = 5, .eta = 0.2};
  std::vector<double> p(40);
  detail::osaq_weights(t, w.data(), 40, 16, p.data());
  for (index_t begin = 0; begin < 40; begin += 16) {
    const index_t end = std::min<index_t>(40, begin + 16);
    double largest = 0;
    for (index_t k = begin; k < end; ++k) largest = std::max(largest, std::abs(static_cast<double>(w[at(k)])));
    double total = 0;
    for (index_t k = begin; k < end; ++k) total += std::exp(5 * std::abs(static_cast<double>(w[at(k)])) / largest);
    for (index_t k = begin; k < end; ++k) {
      const double softmax = std::exp(5 * std::abs(static_cast<double>(w[at(k)])) / largest) / total;
      CHECK(p[at(k)] == Approx(0.8 * softmax + 0.2 / static_cast<double>(end - begin)).epsilon(1e-12));
    }
  }
}

TEST_CASE("OSAQ as published in its limits", "[quant][osaq]") {
  const index_t n = 60;
  LayerProblem p = problem(n, 400, n);
  const OsaqTransform t{.mode = OsaqMode::paper, .gamma = 0.02, .tau = 0.05};
  const std::vector<float> out = transform(p, t, 0);

  // Equal weights, in closed form: V0^T V0 is the identity.
  OsaqTransform flat = t;
  flat.tau = 1e12;
  const std::vector<float> even = transform(p, flat, 0);
  Cpu cpu;
  {
    const decant::Workspace::Scope scope(cpu.workspace());
    const detail::OsaqDirections directions = detail::osaq_directions(cpu, t, p.calibration().hessian);
    const index_t m = directions.count;
    const double c = 1.0 / n + t.mu1;
    std::vector<double> v(at(m));
    double vv = 0;
    for (index_t i = 0; i < m; ++i) {
      for (index_t k = 0; k < n; ++k) v[at(i)] += directions.v0[k * m + i];
      vv += v[at(i)] * v[at(i)];
    }
    for (index_t r = 0; r < 4; ++r) {
      std::vector<double> u(at(m));
      double vu = 0;
      for (index_t i = 0; i < m; ++i) {
        for (index_t k = 0; k < n; ++k) u[at(i)] -= directions.v0[k * m + i] * p.weights[at(r * n + k)] / n;
        vu += v[at(i)] * u[at(i)];
      }
      for (index_t k = 0; k < n; ++k) {
        double d = 0;
        for (index_t i = 0; i < m; ++i) {
          const double b = (u[at(i)] - t.mu2 * vu / (c + t.mu2 * vv) * v[at(i)]) / c;
          d += directions.v0[k * m + i] * b;
        }
        CHECK(std::abs(p.weights[at(r * n + k)] + d - static_cast<double>(even[at(r * n + k)])) <= 1e-7);
      }
    }
  }

  OsaqTransform stiff = t;
  stiff.mu1 = 1e30;
  CHECK(transform(p, stiff, 0) == p.weights);

  OsaqTransform level = t;
  level.mu2 = 1e9;
  const std::vector<float> balanced = transform(p, level, 0);
  double shifted = 0;
  for (index_t r = 0; r < n; ++r) {
    double sum = 0;
    double free = 0;
    for (index_t k = 0; k < n; ++k) {
      sum += static_cast<double>(balanced[at(r * n + k)]) - static_cast<double>(p.weights[at(r * n + k)]);
      free += static_cast<double>(out[at(r * n + k)]) - static_cast<double>(p.weights[at(r * n + k)]);
    }
    CHECK(std::abs(sum) <= 1e-6);
    shifted += std::abs(free);
  }
  CHECK(shifted / n > 1e-4);

  // tau relative to a row's largest weight is tau in its units.
  OsaqTransform relative = t;
  relative.tau_rel = 0.25;
  for (float& x : p.weights) x *= 2;
  OsaqTransform twice = t;
  twice.tau *= 2;
  std::vector<float> doubled = transform(p, twice, 0);
  for (std::size_t i = 0; i < out.size(); ++i) REQUIRE(doubled[i] == 2 * out[i]);
  doubled = transform(p, relative, 0);
  for (float& x : p.weights) x /= 2;
  const std::vector<float> single = transform(p, relative, 0);
  for (std::size_t i = 0; i < out.size(); ++i) REQUIRE(doubled[i] == 2 * single[i]);
}

TEST_CASE("shared weights are every row's where rows are alike", "[quant][osaq]") {
  const index_t n = 64;
  LayerProblem p = problem(n, 400, n);
  for (index_t r = 1; r < n; ++r) std::memcpy(p.weights.data() + r * n, p.weights.data(), at(n) * sizeof(float));
  for (const OsaqMode mode : {OsaqMode::paper, OsaqMode::guarded}) {
    const std::vector<float> alone = transform(p, {.mode = mode, .gamma = 0.01}, 16);
    const std::vector<float> shared = transform(p, {.mode = mode, .gamma = 0.01, .shared_p = true}, 16);
    CHECK(alone != p.weights);
    for (std::size_t i = 0; i < alone.size(); ++i)
      REQUIRE(std::abs(static_cast<double>(alone[i]) - static_cast<double>(shared[i])) <= 1e-7);
  }
}

TEST_CASE("OSAQ that asks for every row's loss is never worse than what stands inside", "[quant][osaq]") {
  const LayerProblem p = problem(64, 300, 64, Tails::student, 0.15);
  const View<const double, 2> h = p.calibration().hessian;
  Cpu cpu;
  const Osaq<Rtn<Int<2>>> q{.inner = {{.group = 32}}, .transform = {.gamma = 1e-3}, .accept = true};
  Osaq<Rtn<Int<2>>> always = q;
  always.accept = false;
  const std::vector<float> accepted = pack(cpu, q, p.w(), p.calibration()).values();
  const std::vector<float> moved = pack(cpu, always, p.w(), p.calibration()).values();
  const std::vector<float> plain = pack(cpu, q.inner, p.w(), p.calibration()).values();
  int better = 0;
  int kept = 0;
  for (index_t r = 0; r < p.rows; ++r) {
    const auto of = [&](const std::vector<float>& v) {
      return row_loss(v.data() + r * p.cols, p.weights.data() + r * p.cols, p.cols, h);
    };
    CHECK(of(accepted) <= std::min(of(plain), of(moved)) * (1 + 1e-9));
    better += of(accepted) < of(plain) ? 1 : 0;
    kept += of(plain) <= of(moved) ? 1 : 0;
  }
  CHECK(better > 0);
  CHECK(kept > 0);
}

TEST_CASE("OSAQ before GPTQ is worth what was measured", "[quant][osaq][statistics]") {
  // 256 x 256, 4,096 calibration tokens, errors against the original weights and the exact moments.
  const index_t n = 256;
  const OsaqTransform paper{.mode = OsaqMode::paper};
  OsaqTransform l2 = paper;
  l2.tau = 1e12;
  for (const Tails tails : {Tails::outliers, Tails::student}) {
    const LayerProblem p = problem(n, 4096, n, tails);
    const std::vector<float> nothing(p.weights.size(), 0.0f);
    const double all = loss(nothing, p.w(), p.exact_hessian());
    Cpu cpu;
    for (const index_t group : {128, 0}) {
      const auto error = [&](auto format, const std::vector<float>& weights) {
        const Gptq<decltype(format)> inner{.grid = format};
        const auto values = pack(cpu, inner, View<const float, 2>(weights.data(), n, n), p.calibration()).values();
        return loss(values, p.w(), p.exact_hessian()) / all;
      };
      const Int<2> two{.group = group};
      const Int<3> three{.group = group};
      const double none2 = error(two, p.weights), none3 = error(three, p.weights);
      const std::vector<float> even = transform(p, l2, group);
      const double l22 = error(two, even), l23 = error(three, even);
      const std::vector<float> published = transform(p, paper, group);
      const double paper2 = error(two, published), paper3 = error(three, published);
      const std::vector<float> ours = transform(p, {}, group);
      const double guarded2 = error(two, ours), guarded3 = error(three, ours);
      INFO((tails == Tails::outliers ? "outliers" : "Student")
           << ", group " << group << ": none " << none2 << "/" << none3 << ", l2 " << l22 << "/" << l23 << ", paper "
           << paper2 << "/" << paper3 << ", guarded " << guarded2 << "/" << guarded3);
      CHECK(none2 > l22);
      CHECK(l22 > paper2);
      CHECK(none3 > l23);
      CHECK(l23 > paper3);
      CHECK(paper2 <= (tails == Tails::outliers ? 0.45 : 0.55) * none2);
      CHECK(guarded2 <= 0.85 * paper2);
      CHECK(guarded2 <= 0.5 * none2);
      CHECK(guarded3 < paper3);
    }
  }
}

TEST_CASE("OSAQ names parameters and arguments that make no sense", "[quant][osaq]") {
  CHECK_THROWS_WITH(validate(OsaqTransform{.gamma = -1e-9}), catch_compat::contains("gamma"));
  CHECK_THROWS_WITH(validate(OsaqTransform{.gamma = 1}), catch_compat::contains("gamma"));
  CHECK_THROWS_WITH(validate(OsaqTransform{.shrink = -1}), catch_compat::contains("shrink"));
  CHECK_THROWS_WITH(validate(OsaqTransform{.tau = 0}), catch_compat::contains("tau"));
  CHECK_THROWS_WITH(validate(OsaqTransform{.tau_rel = -1}), catch_compat::contains("tau_rel"));
  CHECK_THROWS_WITH(validate(OsaqTransform{.mu1 = 0}), catch_compat::contains("mu1"));
  CHECK_THROWS_WITH(validate(OsaqTransform{.mu2 = -1}), catch_compat::contains("mu2"));
  CHECK_THROWS_WITH(validate(OsaqTransform{.beta = -1}), catch_compat::contains("beta"));
  CHECK_THROWS_WITH(validate(OsaqTransform{.eta = 1.5}), catch_compat::contains("eta"));
  CHECK_THROWS_WITH(validate(OsaqTransform{.iters = -1}), catch_compat::contains("iters"));
  LayerProblem p = problem(16, 40, 16);
  std::vector<float> out(p.weights.size(), 7.0f);
  const std::vector<float> untouched = out;
  const View<float, 2> to(out.data(), 16, 16);
  Cpu cpu;
  CHECK_THROWS_WITH(osaq_transform(cpu, {}, p.w(), p.exact_hessian().slice(0, 0, 8), 0, to),
                    catch_compat::contains("hessian"));
  CHECK_THROWS_WITH(osaq_transform(cpu, {}, p.w(), p.exact_hessian(), -1, to), catch_compat::contains("group"));
  CHECK_THROWS_WITH(osaq_transform(cpu, {}, p.w(), p.exact_hessian(), 0, to.slice(0, 0, 3)),
                    catch_compat::contains("out"));
  p.exact[5] = NAN;
  CHECK_THROWS_WITH(osaq_transform(cpu, {}, p.w(), p.exact_hessian(), 0, to), catch_compat::contains("hessian"));
  p.exact[5] = 0;
  p.weights[7] = INFINITY;
  CHECK_THROWS_WITH(osaq_transform(cpu, {}, p.w(), p.exact_hessian(), 0, to), catch_compat::contains("w"));
  CHECK(out == untouched);

  // In place, and with few tokens shrunk.
  LayerProblem few = problem(32, 20, 32);
  OsaqTransform t{.gamma = 0.01, .shrink = 0.01};
  const std::vector<float> apart = transform(few, t, 16);
  const View<float, 2> same(few.weights.data(), 32, 32);
  const View<const double, 2> h = few.calibration().hessian;
  OsaqReport shrunk = osaq_transform(cpu, t, few.w(), h, 16, same);
  CHECK(few.weights == apart);
  t.shrink = 0;
  CHECK(shrunk.directions > 0);
  CHECK(shrunk.directions < osaq_transform(cpu, t, few.w(), h, 16, same).directions);
}

}  // namespace quant_osaq_test
