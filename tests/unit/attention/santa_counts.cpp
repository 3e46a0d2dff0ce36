// What SANTA draws, given the logits: the same on every path, for every tile length where tiles do not matter; sums,
// bounds and golden counts.

#include "catch_compat.hpp"
#include "santa_problem.hpp"

#include <set>

namespace attention_test {
namespace {

/// Heads with peaks, flat stretches, masked keys and masked blocks.
Sampling::Logits logits(index_t n, index_t heads, float deviation, unsigned seed = 3) {
  Sampling::Logits all;
  for (index_t g = 0; g < heads; ++g) {
    all.push_back(normal(n, seed + static_cast<unsigned>(g), deviation));
    for (index_t i = 0; i < n; ++i)
      if (i % 11 == g || (i >= 128 && i < 200) || (i >= 256 && i < 320)) all.back()[at(i)] = -infinity;
    if (n > 70) all.back()[70] = 4 * deviation;
  }
  return all;
}

TEST_CASE("Santa: every path draws the same") {
  for (const SantaScheme scheme : all_schemes)
    for (const index_t n : {1, 7, 64, 65, 1000})
      for (const index_t samples : {0, 1, 16, 100, 3000})
        for (const float deviation : {0.0f, 1.0f, 6.0f}) {
          INFO(name(scheme) << " n " << n << " samples " << samples << " deviation " << deviation);
          const Santa a{.samples = samples, .scheme = scheme, .tile = n == 65 ? 48 : 0};
          Sampling portable(a, logits(n, 3, deviation), decant::Isa::portable);
          const auto expected = portable.rows(5);
          for (const decant::Isa isa : paths()) {
            Sampling other(a, logits(n, 3, deviation), isa);
            CHECK(other.rows(5) == expected);
            for (index_t g = 0; g < 3; ++g) CHECK(other.mass(g) == portable.mass(g));
          }
          if (samples == 0) CHECK(expected.empty());
        }
}

TEST_CASE("Santa: counts add up to the samples and stay near their expectations; masked keys are never drawn") {
  const auto all = logits(1000, 1, 2.0f);
  const std::vector<double> p = softmax_of(all[0]);
  for (const SantaScheme scheme : {SantaScheme::plain, SantaScheme::stratified, SantaScheme::systematic}) {
    for (const index_t samples : {1, 5, 128, 1000, 5000}) {
      INFO(name(scheme) << " samples " << samples);
      const auto s = static_cast<double>(samples);
      Sampling sampling({.samples = samples, .scheme = scheme}, all);
      for (std::uint32_t step = 0; step < 20; ++step) {
        const std::vector<double> w = sampling.weights(step);
        double sum = 0;
        bool near = true;
        const double bound = scheme == SantaScheme::systematic ? 1 : scheme == SantaScheme::stratified ? 2 : 1e9;
        for (std::size_t i = 0; i < w.size(); ++i) {
          const double count = w[i] * s;
          near = near && std::abs(count - std::round(count)) < 1e-3 && std::abs(count - s * p[i]) < bound + 1e-3;
          near = near && (p[i] > 0 || count == 0);
          sum += std::round(count);
        }
        CHECK(near);
        CHECK(sum == s);
      }
    }
  }
}

TEST_CASE("Santa: systematic counts are floors that share one offset") {
  // floor(u + S F_i), F the cumulative distribution, is the number of draws up to key i, for one u in [0, 1): each key
  // bounds u from both sides, and the bounds of all keys meet.
  const auto all = logits(3001, 1, 2.0f);
  const std::vector<double> p = softmax_of(all[0]);
  for (const index_t samples : {1, 7, 128, 5000})
    for (const index_t tile : {16, 256}) {
      Sampling sampling({.samples = samples, .tile = tile}, all);
      std::set<long> offsets;
      for (std::uint32_t step = 0; step < 20; ++step) {
        const std::vector<double> w = sampling.weights(step);
        double low = 0, high = 1, end = 0;
        for (std::size_t i = 0, drawn = 0; i < w.size(); ++i) {
          drawn += static_cast<std::size_t>(std::lround(w[i] * static_cast<double>(samples)));
          end += static_cast<double>(samples) * p[i];
          low = std::max(low, static_cast<double>(drawn) - end);
          high = std::min(high, static_cast<double>(drawn) + 1 - end);
        }
        CHECK(low < high + 1e-3);
        offsets.insert(std::lround(low * 100));
      }
      CHECK(offsets.size() > (samples < 100 ? 1 : 10));
    }
}

TEST_CASE("Santa: within tiles counts are shares rounded up or down, and no sample is lost") {
  const index_t n = 1024, tile = 64;
  const auto all = logits(n, 1, 2.0f);
  const std::vector<double> p = softmax_of(all[0]);
  std::vector<double> mass(at(n / tile), 0.0);
  for (index_t i = 0; i < n; ++i) mass[at(i / tile)] += p[at(i)];
  const auto weighty = static_cast<index_t>(std::count_if(mass.begin(), mass.end(), [](double m) { return m > 0; }));
  REQUIRE(weighty == n / tile - 2);
  for (const index_t samples : {14, 15, 64, 200, 3000}) {
    // Samples of each tile: by largest remainders beyond the first one; equal ones.
    std::vector<index_t> exact(mass.size()), flash(mass.size());
    std::vector<std::pair<double, std::size_t>> remainders;
    index_t left = samples - weighty;
    for (std::size_t t = 0; t < mass.size(); ++t) {
      if (mass[t] == 0) continue;
      const double share = static_cast<double>(samples - weighty) * mass[t];
      exact[t] = 1 + static_cast<index_t>(share);
      flash[t] = std::max<index_t>(1, samples / weighty);
      left -= static_cast<index_t>(share);
      remainders.emplace_back(share - std::floor(share), t);
    }
    std::sort(remainders.rbegin(), remainders.rend());
    for (std::size_t k = 0; k < at(left); ++k) ++exact[remainders[k].second];
    for (const SantaScheme scheme : {SantaScheme::prop_exact, SantaScheme::flash}) {
      INFO(name(scheme) << " samples " << samples);
      const std::vector<index_t>& of_tile = scheme == SantaScheme::flash ? flash : exact;
      Sampling sampling({.samples = samples, .scheme = scheme, .tile = tile}, all);
      for (std::uint32_t step = 0; step < 5; ++step) {
        const std::vector<double> w = sampling.weights(step);
        std::vector<index_t> drawn(mass.size());
        bool rounded = true;
        for (index_t i = 0; i < n; ++i) {
          const std::size_t t = at(i / tile);
          if (mass[t] == 0) continue;
          const double count = w[at(i)] * static_cast<double>(of_tile[t]) / mass[t];
          const double share = p[at(i)] * static_cast<double>(of_tile[t]) / mass[t];
          rounded = rounded && std::abs(count - std::round(count)) < 1e-3 && std::abs(count - share) < 1 + 1e-3;
          drawn[t] += std::lround(count);
        }
        CHECK(rounded);
        CHECK(drawn == of_tile);
      }
    }
    CHECK(std::accumulate(exact.begin(), exact.end(), index_t{0}) == samples);
  }
}

TEST_CASE("Santa: no more rows are named than there are samples, or keys") {
  const auto all = logits(1000, 3, 1.0f);
  for (const SantaScheme scheme : all_schemes)
    for (const index_t samples : {1, 16, 100, 3000}) {
      INFO(name(scheme) << " samples " << samples);
      // Flash takes one of each tile whose keys have any weight, even if these are more: 32 tiles, two without.
      const index_t most = scheme == SantaScheme::flash ? std::max<index_t>(samples, 30) : samples;
      for (std::uint32_t step = 0; step < 5; ++step) {
        index_t of_head[3] = {};
        std::set<index_t> together;
        for (const Sampling::Row& r : Sampling({.samples = samples, .scheme = scheme}, all).rows(step)) {
          ++of_head[r.head];
          together.insert(r.key);
        }
        for (const index_t rows : of_head) CHECK(rows <= std::min<index_t>(1000, most));
        CHECK(static_cast<index_t>(together.size()) <= std::min<index_t>(1000, 3 * most));
      }
    }
}

TEST_CASE("Santa: the tile length does not matter to schemes without tiles") {
  const auto all = logits(3001, 2, 2.0f);
  for (const SantaScheme scheme : {SantaScheme::plain, SantaScheme::stratified, SantaScheme::global_systematic,
                                   SantaScheme::threshold_systematic}) {
    Sampling one({.samples = 200, .scheme = scheme, .tile = 32}, all);
    for (const index_t tile : {16, 64, 256, 4096}) {
      Sampling other({.samples = 200, .scheme = scheme, .tile = tile}, all);
      for (std::uint32_t step = 0; step < 5; ++step) CHECK(other.rows(step) == one.rows(step));
    }
  }
}

TEST_CASE("Santa: tiles get the samples that their scheme says") {
  const index_t n = 1024;
  const auto all = logits(n, 1, 2.0f);
  const std::vector<double> p = softmax_of(all[0]);
  for (const index_t tile : {16, 32, 48, 64, 128, 256}) {
    const index_t tiles = (n + tile - 1) / tile;
    std::vector<double> mass(at(tiles), 0.0);
    for (index_t i = 0; i < n; ++i) mass[at(i / tile)] += p[at(i)];
    const auto weighty = static_cast<index_t>(std::count_if(mass.begin(), mass.end(), [](double m) { return m > 0; }));
    for (const index_t samples : {128, 500}) {
      INFO("tile " << tile << " samples " << samples);
      const auto drawn = [&](SantaScheme scheme) {
        std::vector<double> of_tile(at(tiles), 0.0);
        Sampling sampling({.samples = samples, .scheme = scheme, .tile = tile}, all);
        const std::vector<double> w = sampling.weights(1);
        for (index_t i = 0; i < n; ++i) of_tile[at(i / tile)] += w[at(i)];
        return of_tile;
      };
      // Flash and PropExact: each tile's weights add up to its mass.
      for (const SantaScheme scheme : {SantaScheme::flash, SantaScheme::prop_exact}) {
        const std::vector<double> w = drawn(scheme);
        double worst = 0;
        for (index_t t = 0; t < tiles; ++t) worst = std::max(worst, std::abs(w[at(t)] - mass[at(t)]));
        CHECK(worst < 1e-6);
      }
      // Prop: shares rounded up or down, all samples spent.
      const std::vector<double> w = drawn(SantaScheme::prop);
      double sum = 0;
      for (index_t t = 0; t < tiles; ++t) {
        const double count = w[at(t)] * static_cast<double>(samples);
        CHECK(std::abs(count - static_cast<double>(samples) * mass[at(t)]) < 1);
        sum += count;
      }
      CHECK(sum == Approx(static_cast<double>(samples)).epsilon(1e-6));
    }
    // PropExact with fewer samples than tiles is systematic sampling.
    const Santa few{.samples = weighty - 1, .scheme = SantaScheme::prop_exact, .tile = tile};
    if (weighty > 1) CHECK(Sampling(few, all).rows(3) == Sampling({.samples = weighty - 1, .tile = tile}, all).rows(3));
  }
}

TEST_CASE("Santa: ThresholdSystematic takes exactly as many rows as it may, heavy ones with their own weight") {
  for (const float deviation : {0.0f, 1.0f, 3.0f, 8.0f})
    for (const index_t rows : {1, 2, 60, 300, 839, 5000}) {
      INFO("deviation " << deviation << " rows " << rows);
      const auto all = logits(1000, 1, deviation);
      Sampling sampling({.samples = rows, .scheme = SantaScheme::threshold_systematic}, all);
      std::vector<double> always(1000, 1.0);
      std::set<double> light;
      for (std::uint32_t step = 0; step < 30; ++step) {
        const std::vector<double> w = sampling.weights(step);
        index_t weighty = 0;
        for (index_t i = 0; i < 1000; ++i) weighty += sampling.weight(i) > 0;
        const auto taken = 1000 - std::count(w.begin(), w.end(), 0.0);
        CHECK(taken == std::min(rows, weighty));
        double total = 0;
        for (std::size_t i = 0; i < w.size(); ++i) {
          total += w[i];
          if (w[i] == 0) continue;
          const auto share = static_cast<double>(sampling.weight(static_cast<index_t>(i))) / sampling.mass();
          const auto own = static_cast<double>(static_cast<float>(share));
          if (w[i] != own) light.insert(w[i]);
        }
        CHECK(total == Approx(1.0).epsilon(1e-5));
        if (rows >= weighty) CHECK(light.empty());  // everything is taken as it is: exact attention
      }
      CHECK(light.size() <= 1);
    }
}

TEST_CASE("Santa: coupled heads that are alike draw alike, others by themselves; steps, requests and layers differ") {
  Sampling::Logits same = logits(700, 1, 1.0f);
  same.push_back(same[0]);
  for (const SantaScheme scheme : all_schemes) {
    INFO(name(scheme));
    const auto alike = [&](const Santa& a) {
      Sampling sampling(a, same);
      return sampling.weights(4, 0) == sampling.weights(4, 1);
    };
    CHECK(alike({.samples = 60, .scheme = scheme, .couple_group = true}));
    CHECK(!alike({.samples = 60, .scheme = scheme}));
    const auto first = Sampling({.samples = 60, .scheme = scheme}, same).rows(4);
    CHECK(Sampling({.samples = 60, .scheme = scheme}, same).rows(4) == first);
    CHECK(Sampling({.samples = 60, .scheme = scheme}, same).rows(5) != first);
    CHECK(Sampling({.samples = 60, .scheme = scheme}, same).rows(4, 1) != first);
    CHECK(Sampling({.samples = 60, .scheme = scheme, .seed = 1}, same).rows(4) != first);
    CHECK(Sampling({.samples = 60, .scheme = scheme, .layer = 1}, same).rows(4) != first);
  }
}

TEST_CASE("Santa: coupled offsets touch fewer rows when heads are similar") {
  Sampling::Logits similar;
  const std::vector<float> shared = normal(4096, 1, 2.0f);
  for (unsigned g = 0; g < 4; ++g) {
    similar.push_back(normal(4096, 10 + g, 0.3f));
    for (std::size_t i = 0; i < 4096; ++i) similar.back()[i] += shared[i];
  }
  const auto touched = [&](bool couple) {
    Sampling sampling({.samples = 256, .couple_group = couple}, similar);
    std::set<index_t> keys;
    for (const Sampling::Row& r : sampling.rows(1)) keys.insert(r.key);
    return keys.size();
  };
  CHECK(touched(true) <= 4 * 256);
  CHECK(touched(true) < touched(false));
}

TEST_CASE("Santa: golden counts") {
  // Weights 1, 1/2, 1/4 ... of eight keys: with 16 samples 16 p = 8.03, 4.02, 2.01, 1.004, 0.502, 0.251, 0.125, 0.063.
  Sampling::Logits halves(1);
  for (int i = 0; i < 8; ++i) halves[0].push_back(-static_cast<float>(i) * 0.693147181f);
  const auto counts = [&](SantaScheme scheme) {
    std::vector<long> c;
    Sampling sampling({.samples = 16, .scheme = scheme}, halves);
    for (const double w : sampling.weights(8)) c.push_back(std::lround(16 * w));
    return c;
  };
  CHECK(counts(SantaScheme::plain) == std::vector<long>{8, 6, 0, 1, 1, 0, 0, 0});
  CHECK(counts(SantaScheme::stratified) == std::vector<long>{8, 4, 2, 1, 0, 1, 0, 0});
  CHECK(counts(SantaScheme::systematic) == std::vector<long>{8, 4, 2, 1, 1, 0, 0, 0});
  CHECK(counts(SantaScheme::flash) == counts(SantaScheme::systematic));  // one tile: the same offset
  CHECK(counts(SantaScheme::prop) == counts(SantaScheme::systematic));
}

}  // namespace
}  // namespace attention_test
