// SANTA as a random variable: expectations, variances, tails. Seeds are fixed; what each test would falsely reject
// under a fresh seed is stated.

#include "catch_compat.hpp"
#include "santa_problem.hpp"

namespace attention_test {
namespace {

constexpr std::uint32_t draws = 20000;

struct Moments {
  std::vector<double> mean, deviation;  // of each coordinate of o
  double error;                         // mean of |o - exact|^2
};

Moments moments(const Santa& a, const std::vector<float>& logits, const Values& values, std::uint32_t count = draws) {
  Sampling sampling(a, {logits});
  const std::vector<double> exact = values.sum(softmax_of(logits));
  Moments m{std::vector<double>(exact.size(), 0.0), std::vector<double>(exact.size(), 0.0), 0};
  for (std::uint32_t step = 0; step < count; ++step) {
    const std::vector<double> o = values.sum(sampling.weights(step));
    for (std::size_t d = 0; d < o.size(); ++d) {
      m.mean[d] += (o[d] - exact[d]) / count;
      m.deviation[d] += (o[d] - exact[d]) * (o[d] - exact[d]) / count;
    }
    m.error += square_distance(o, exact) / count;
  }
  for (std::size_t d = 0; d < exact.size(); ++d) {
    m.deviation[d] = std::sqrt(std::max(m.deviation[d] - m.mean[d] * m.mean[d], 0.0));
    m.mean[d] += exact[d];
  }
  return m;
}

/// No coordinate's mean is further than 4.8 of its own standard errors from the exact one. 64 coordinates: falsely
/// rejected once in 10000 seeds.
bool unbiased(const Moments& m, const std::vector<double>& exact, std::uint32_t count = draws) {
  bool all = true;
  for (std::size_t d = 0; d < exact.size(); ++d)
    all = all && std::abs(m.mean[d] - exact[d]) < 4.8 * m.deviation[d] / std::sqrt(static_cast<double>(count)) + 1e-6;
  return all;
}

/// V2 - |o|^2: the error of one draw.
double one_draw(const std::vector<double>& p, const Values& values) {
  double v2 = 0;
  for (index_t i = 0; i < values.n; ++i) v2 += p[at(i)] * values.square(i);
  for (const double x : values.sum(p)) v2 -= x * x;
  return v2;
}

/// The distribution within each of `samples` strata of the cumulative distribution of p.
std::vector<std::vector<double>> strata(const std::vector<double>& p, index_t samples) {
  std::vector<std::vector<double>> all;
  const auto count = static_cast<double>(samples);
  for (index_t s = 0; s < samples; ++s) {
    std::vector<double> inside;
    double end = 0;
    for (const double x : p) {
      const double from = std::max(end, static_cast<double>(s) / count);
      end += x;
      inside.push_back(std::max(std::min(end, static_cast<double>(s + 1) / count) - from, 0.0) * count);
    }
    all.push_back(std::move(inside));
  }
  return all;
}

TEST_CASE("Santa: every scheme but Prop is unbiased", "[statistics]") {
  const Values values(256, 64);
  const std::vector<float> logits = normal(256, 21, 2.0f);
  const std::vector<double> exact = values.sum(softmax_of(logits));
  for (const SantaScheme scheme : all_schemes) {
    if (scheme == SantaScheme::prop) continue;
    INFO(name(scheme));
    CHECK(unbiased(moments({.samples = 24, .scheme = scheme}, logits, values), exact));  // 8 tiles of 32
  }
  // Fewer samples than tiles: Flash draws one from each, PropExact falls back.
  for (const SantaScheme scheme : {SantaScheme::flash, SantaScheme::prop_exact, SantaScheme::threshold_systematic})
    CHECK(unbiased(moments({.samples = 3, .scheme = scheme}, logits, values), exact));
}

TEST_CASE("Santa: Prop is biased, by what its rounded shares say") {
  // Two tiles of mass 0.9 and 0.1; four samples: shares 3.6 and 0.4, rounded to 4 and 0.
  std::vector<float> logits(64, std::log(0.1f / 32));
  for (std::size_t i = 0; i < 32; ++i) logits[i] = std::log(0.9f / 32);
  const Values values(64, 64);
  const std::vector<double> p = softmax_of(logits), exact = values.sum(p);
  const Moments m = moments({.samples = 4, .scheme = SantaScheme::prop, .tile = 32}, logits, values, 5000);
  CHECK(!unbiased(m, exact, 5000));
  std::vector<double> first_tile = p;
  for (std::size_t i = 0; i < 64; ++i) first_tile[i] = i < 32 ? p[i] / 0.9 : 0;
  CHECK(unbiased(m, values.sum(first_tile), 5000));
  CHECK(unbiased(moments({.samples = 4, .scheme = SantaScheme::flash, .tile = 32}, logits, values, 5000), exact, 5000));
}

TEST_CASE("Santa: plain draws have the distribution p") {
  // Chi-square over cells of expectation 5 and more, 100000 draws, rejected below p = 1e-4 (Wilson and Hilferty).
  const std::vector<float> logits = normal(500, 31, 2.0f);
  const std::vector<double> p = softmax_of(logits);
  Sampling sampling({.samples = 100, .scheme = SantaScheme::plain}, {logits});
  std::vector<double> counts(500, 0.0);
  for (std::uint32_t step = 0; step < 1000; ++step) {
    const std::vector<double> w = sampling.weights(step);
    for (std::size_t i = 0; i < 500; ++i) counts[i] += 100 * w[i];
  }
  double chi = 0, cells = -1;
  for (std::size_t i = 0; i < 500; ++i) {
    const double expected = 1e5 * p[i];
    if (expected < 5) continue;
    chi += (counts[i] - expected) * (counts[i] - expected) / expected;
    ++cells;
  }
  REQUIRE(cells > 100);
  const double z = (std::cbrt(chi / cells) - 1 + 2 / (9 * cells)) / std::sqrt(2 / (9 * cells));
  CHECK(z < 3.72);
  CHECK(z > -3.72);  // nor more even than chance
}

TEST_CASE("Santa: mean square errors are those of the formulas, within 4%", "[statistics]") {
  // 20000 draws: the relative standard error of a mean square error is below 0.8% here; 5 of them.
  const Values values(256, 64);
  const std::vector<float> logits = normal(256, 41, 2.0f);
  const std::vector<double> p = softmax_of(logits);
  const index_t samples = 16;
  const double iid = one_draw(p, values) / static_cast<double>(samples);
  CHECK(moments({.samples = samples, .scheme = SantaScheme::plain}, logits, values).error == Approx(iid).epsilon(0.04));

  double stratified = 0;
  for (const std::vector<double>& inside : strata(p, samples))
    stratified += one_draw(inside, values) / static_cast<double>(samples * samples);
  CHECK(stratified < iid);
  const Santa in_strata{.samples = samples, .scheme = SantaScheme::stratified};
  CHECK(moments(in_strata, logits, values).error == Approx(stratified).epsilon(0.04));

  // Systematic: all offsets, as they lie between breakpoints.
  const auto systematic = [&](const std::vector<double>& of, const std::vector<double>& exact, index_t count) {
    const auto s = static_cast<double>(count);
    std::vector<double> breaks{0, 1}, ends{0};
    for (const double x : of) ends.push_back(ends.back() + s * x);
    ends.back() = s;
    for (const double e : ends) breaks.push_back(std::ceil(e) - e);
    std::sort(breaks.begin(), breaks.end());
    double error = 0;
    for (std::size_t k = 0; k + 1 < breaks.size(); ++k) {
      const double u = (breaks[k] + breaks[k + 1]) / 2;
      std::vector<double> w(of.size());
      for (std::size_t i = 0; i < of.size(); ++i) w[i] = (std::floor(u + ends[i + 1]) - std::floor(u + ends[i])) / s;
      error += (breaks[k + 1] - breaks[k]) * square_distance(values.sum(w), exact);
    }
    return error;
  };
  CHECK(moments({.samples = samples}, logits, values).error ==
        Approx(systematic(p, values.sum(p), samples)).epsilon(0.04));

  // Flash: tiles by themselves, two samples each.
  double flash = 0;
  for (index_t t = 0; t < 8; ++t) {
    std::vector<double> inside(256, 0.0);
    double mass = 0;
    for (index_t i = 32 * t; i < 32 * t + 32; ++i) mass += p[at(i)];
    for (index_t i = 32 * t; i < 32 * t + 32; ++i) inside[at(i)] = p[at(i)] / mass;
    flash += mass * mass * systematic(inside, values.sum(inside), 2);
  }
  const Santa tiles{.samples = samples, .scheme = SantaScheme::flash, .tile = 32};
  CHECK(moments(tiles, logits, values).error == Approx(flash).epsilon(0.04));
}

TEST_CASE("Santa: strata never lose against plain draws, in no direction: 100 random distributions, by the formulas") {
  std::mt19937 random(81);
  double gained = 0;
  for (unsigned instance = 0; instance < 100; ++instance) {
    INFO("instance " << instance);
    const auto n = static_cast<index_t>(1 + random() % 300), samples = static_cast<index_t>(1 + random() % 64);
    const std::vector<double> p = softmax_of(normal(n, 2 * instance, static_cast<float>(random() % 5)));
    const Values values(n, 4, 2 * instance + 1);
    const auto s = static_cast<double>(samples);
    double stratified = 0;
    const std::vector<std::vector<double>> inside = strata(p, samples);
    for (const std::vector<double>& stratum : inside) stratified += one_draw(stratum, values) / (s * s);
    const double iid = one_draw(p, values) / s;
    CHECK(stratified <= iid * (1 + 1e-9) + 1e-12);
    gained += stratified < 0.9 * iid ? 1 : 0;
    // Covariances in the Loewner order: values along one direction at a time.
    for (unsigned k = 0; k < 5; ++k) {
      const std::vector<float> direction = normal(4, 7000 + 5 * instance + k);
      Values along(n, 1);
      for (index_t i = 0; i < n; ++i)
        along.v[at(i)] = std::inner_product(direction.begin(), direction.end(), values.v.begin() + i * 4, 0.0f);
      double of_strata = 0;
      for (const std::vector<double>& stratum : inside) of_strata += one_draw(stratum, along) / (s * s);
      CHECK(of_strata <= one_draw(p, along) / s * (1 + 1e-9) + 1e-12);
    }
  }
  CHECK(gained > 50);
}

TEST_CASE("Santa: the error of plain draws falls as 1 / S, of systematic ones faster", "[statistics]") {
  const Values values(1024, 16);
  const std::vector<float> logits = normal(1024, 51, 2.0f);
  const auto slope = [&](SantaScheme scheme) {
    const double few = moments({.samples = 32, .scheme = scheme}, logits, values, 4000).error;
    return std::log(moments({.samples = 256, .scheme = scheme}, logits, values, 4000).error / few) / std::log(8.0);
  };
  CHECK(slope(SantaScheme::plain) == Approx(-1.0).margin(0.05));
  CHECK(slope(SantaScheme::stratified) < -1.1);
  CHECK(slope(SantaScheme::systematic) < -1.1);
}

TEST_CASE("Santa: Bernstein's bound on the tail holds", "[statistics]") {
  const Values values(256, 16);
  const std::vector<float> logits = normal(256, 61, 1.0f);
  const std::vector<double> p = softmax_of(logits), exact = values.sum(p);
  double far = 0;
  for (index_t i = 0; i < 256; ++i) {
    std::vector<double> one(256, 0.0);
    one[at(i)] = 1;
    far = std::max(far, std::sqrt(square_distance(values.sum(one), exact)));
  }
  const double variance = one_draw(p, values), s = 64;
  Sampling sampling({.samples = 64, .scheme = SantaScheme::plain}, {logits});
  std::vector<double> distances;
  for (std::uint32_t step = 0; step < draws; ++step)
    distances.push_back(std::sqrt(square_distance(values.sum(sampling.weights(step)), exact)));
  for (const double t : {1.2, 1.5, 2.0}) {
    const double r = t * std::sqrt(2 * variance / s);
    const double bound = 2 * std::exp(-s * r * r / (2 * (variance + far * r / 3)));
    const auto beyond = std::count_if(distances.begin(), distances.end(), [&](double x) { return x >= r; });
    CHECK(static_cast<double>(beyond) <= bound * draws);
  }
}

TEST_CASE("Santa: a sink, a window and a needle at 32768 keys: systematic holds, Flash fails, Prop leaves mass out") {
  const index_t n = 32768;
  std::vector<double> p(at(n));
  double rest = 0;
  const std::vector<float> spread = normal(n, 71, 2.0f);
  for (std::size_t i = 0; i < p.size(); ++i) rest += p[i] = std::exp(static_cast<double>(spread[i]));
  for (double& x : p) x *= 0.25 / rest;  // 45% on key 0, 20% on the last 64, 10% on one, 25% on the rest
  p[0] = 0.45;
  for (std::size_t i = p.size() - 64; i < p.size(); ++i) p[i] = 0.2 / 64;
  p[12345] = 0.1;
  std::vector<float> logits;
  for (const double x : p) logits.push_back(static_cast<float>(std::log(x)));
  p = softmax_of(logits);
  const Values values(n, 8);
  const double iid = one_draw(p, values) / 128;
  // 200 draws: relative standard errors of 5 to 10%.
  const auto ratio = [&](SantaScheme scheme) {
    return moments({.samples = 128, .scheme = scheme}, logits, values, 200).error / iid;
  };
  CHECK(ratio(SantaScheme::global_systematic) <= 0.5);
  CHECK(ratio(SantaScheme::flash) >= 2);
  CHECK(ratio(SantaScheme::prop_exact) >= 2);
  std::vector<double> mass(128, 0.0), drawn(128, 0.0);
  Sampling sampling({.samples = 128, .scheme = SantaScheme::prop}, {logits});
  const std::vector<double> w = sampling.weights(1);
  for (index_t i = 0; i < n; ++i) {
    mass[at(i / 256)] += p[at(i)];
    drawn[at(i / 256)] += w[at(i)];
  }
  double left_out = 0;
  for (std::size_t t = 0; t < 128; ++t) left_out += drawn[t] == 0 ? mass[t] : 0;
  CHECK(left_out > 0.05);
  CHECK(left_out < 0.20);
}

}  // namespace
}  // namespace attention_test
