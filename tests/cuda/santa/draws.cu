// What SANTA draws on the device against the sampler of the CPU, to the bit. Keys have one feature per query head and
// queries are unit vectors, so a key's logit is a number of the test's choosing; values are unit vectors, so o holds
// the weights.

#include "catch_compat.hpp"
#include "device_santa.cuh"

using namespace decant;
using namespace decant::attention;

namespace attention_test {
namespace {

/// Heads with peaks, flat stretches, and keys and blocks of no weight.
Sampling::Logits logits(index_t n, index_t heads, float deviation, unsigned seed) {
  Sampling::Logits all;
  for (index_t g = 0; g < heads; ++g) {
    all.push_back(normal(n, seed + static_cast<unsigned>(g), deviation));
    for (index_t i = 0; i < n; ++i)
      if (n > 11 && (i % 11 == g || (i >= 128 && i < 200) || (i >= 256 && i < 320))) all.back()[at(i)] = -1e4f;
    if (n > 70) all.back()[70] = 4 * deviation;
  }
  return all;
}

constexpr index_t dim = 251;

/// The weight of the keys at every dim, as the CPU draws them.
std::vector<float> expected(const Santa& a, const Sampling::Logits& of, std::uint32_t request) {
  Sampling sampling(a, of, Isa::portable);
  for (index_t b = 0, i = 0; b < sampling.blocks; ++b)
    for (index_t g = 0; g < sampling.group; ++g)
      for (index_t j = b * 64; j < b * 64 + 64; ++j, ++i) {
        const float top = sampling.tops[at(b * sampling.group + g)];
        sampling.exponentials[at(i)] = j < sampling.n ? attention::detail::santa_exp(of[at(g)][at(j)] - top) : 0.0f;
      }
  std::vector<float> o(at(sampling.group * dim), 0.0f);
  for (const Sampling::Row& r : sampling.rows(static_cast<std::uint32_t>(sampling.n) + a.step, request))
    o[at(r.head * dim + r.key % dim)] += r.weight;
  return o;
}

void compare(Cuda& cuda, const std::vector<Santa>& all, index_t group, const std::vector<index_t>& lengths,
             float deviation) {
  Problem<float> p(1, group, group, dim, lengths);
  std::vector<Sampling::Logits> of;
  std::vector<std::uint32_t> requests;
  std::fill(p.values.begin(), p.values.end(), 0.0f);
  std::fill(p.q.begin(), p.q.end(), 0.0f);
  for (index_t s = 0; s < p.sequences(); ++s) {
    requests.push_back(static_cast<std::uint32_t>(5 * s));
    of.push_back(logits(lengths[at(s)], group, deviation, static_cast<unsigned>(3 + 10 * s)));
    for (index_t g = 0; g < group; ++g) p.query(s, g)[g] = 1;
    for (index_t t = 0; t < lengths[at(s)]; ++t) {
      for (index_t g = 0; g < group; ++g) p.key(s, 0, t)[g] = of.back()[at(g)][at(t)];
      p.value(s, 0, t)[t % dim] = 1;
    }
  }
  const DenseCache<float> cache(p);
  for (Santa a : all) {
    a.scale = 1;
    INFO(name(a.scheme) << " samples " << a.samples << " deviation " << deviation << " tile " << a.tile);
    const Result r = draw(cuda, p, cache, a, Causal{}, {}, requests);
    for (index_t s = 0; s < p.sequences(); ++s) {
      if (a.samples == 0) continue;
      const std::vector<float> e = expected(a, of[at(s)], requests[at(s)]);
      double worst = 0;  // several keys share a dim from 252 keys on; then sums may round differently
      bool same = true;
      for (std::size_t i = 0; i < e.size(); ++i) {
        const float x = r.o[at(s) * e.size() + i];
        same = same && x == e[i];
        worst = std::max(worst, static_cast<double>(std::abs(x - e[i])) / std::max(1e-30, static_cast<double>(e[i])));
      }
      INFO("n " << lengths[at(s)]);
      if (lengths[at(s)] <= dim) CHECK(same);
      CHECK(worst < 1e-6);
    }
    if (a.samples == 0) CHECK(r.o == std::vector<float>(r.o.size(), 0.0f));
  }
}

TEST_CASE("Cuda Santa: every scheme draws what the CPU draws") {
  DeviceContext c;
  std::vector<Santa> all;
  for (const SantaScheme scheme : all_schemes)
    for (const index_t samples : {1, 16, 100}) all.push_back({.samples = samples, .scheme = scheme});
  compare(c.cuda, all, 3, {1, 7, 64, 65, 251, 1000, 1100}, 1.0f);
}

TEST_CASE("Cuda Santa: few and many samples, peaks, flat logits, odd tiles, layers and seeds") {
  DeviceContext c;
  std::vector<Santa> many, odd;
  for (const SantaScheme scheme : all_schemes) {
    many.push_back({.samples = 1500, .scheme = scheme});
    odd.push_back({.samples = 60, .scheme = scheme, .tile = 48, .couple_group = true, .seed = 9, .layer = 3});
    odd.push_back({.samples = 7, .scheme = scheme, .tile = 2048, .step = 100});
    odd.push_back({.samples = 0, .scheme = scheme});
  }
  compare(c.cuda, many, 2, {1, 70, 251}, 6.0f);
  compare(c.cuda, odd, 1, {65, 251, 2300}, 0.0f);
  compare(c.cuda, odd, 2, {250, 1500}, 3.0f);
}

TEST_CASE("santa_exp is the exponential of the CPU's portable path") {
  bool same = true;
  for (float x = 0; x > -90; x -= 0.000371f)
    same = same && attention::detail::santa_exp(x) == attention::detail::exp_portable(x);
  CHECK(same);
  CHECK(attention::detail::santa_exp(0) == 1);
  CHECK(std::isnan(attention::detail::santa_exp(quiet_nan)));
}

TEST_CASE("SantaGrid: any threshold at once, and how many lie below a place") {
  using namespace attention::detail;
  std::mt19937_64 random(5);
  for (int repeat = 0; repeat < 200; ++repeat) {
    const auto mass = static_cast<std::int64_t>((random() >> (2 + repeat % 61)) | 1);
    const auto samples = static_cast<index_t>(1 + random() % (repeat % 3 == 0 ? 1 << 20 : 40));
    const std::uint32_t offset = repeat % 5 == 0 ? 0xffffffffu : static_cast<std::uint32_t>(random());
    const SantaGrid first = SantaGrid::first(offset, mass, samples);
    SantaGrid grid = first;
    bool same = true;
    for (index_t s = 0; s < samples; ++s, grid.next()) {
      if (samples > 1000 && s % 977 != 0 && s + 2 < samples) continue;
      same = same && first.nth(s) == grid.at && first.nth_rest(s) == grid.rest;
      // Thresholds 0 ... s - 1 lie below threshold s or at it.
      same = same && santa_thresholds_below(grid.at + 1, offset, mass, samples) >= s + 1;
      same = same && santa_thresholds_below(grid.at, offset, mass, samples) <= s;
      if (s > 0 && first.nth(s - 1) < grid.at)
        same = same && santa_thresholds_below(grid.at, offset, mass, samples) == s;
    }
    CHECK(same);
    CHECK(santa_thresholds_below(0, offset, mass, samples) == 0);
    CHECK(santa_thresholds_below(mass, offset, mass, samples) == samples);
  }
}

}  // namespace
}  // namespace attention_test
