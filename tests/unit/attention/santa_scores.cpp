// BernoulliQuery: moments of the scores against their formulas, the features that are read, and layouts.

#include "decant/attention/santa_scores.hpp"
#include "catch_compat.hpp"
#include "problem.hpp"

using namespace decant;
using namespace decant::attention;

namespace attention_test {
namespace {

/// Sequences of given lengths over shuffled pages; unused slots are NaN. logical[(row of s, h, t)][d] as in Problem.
template <class T>
struct FeatureMajor {
  std::vector<T> keys;
  std::vector<std::int32_t> indptr{0}, indices, last;
  FeatureMajorKeys<T> view;

  FeatureMajor(const Problem<T>& p, index_t page_size) {
    for (const index_t n : p.lengths) {
      const index_t used = (n + page_size - 1) / page_size;
      indptr.push_back(indptr.back() + static_cast<std::int32_t>(used));
      last.push_back(used == 0 ? -7 : static_cast<std::int32_t>(n - (used - 1) * page_size));
    }
    const index_t pages = indptr.back() + 2;
    indices.resize(at(pages));
    std::iota(indices.begin(), indices.end(), 0);
    std::shuffle(indices.begin(), indices.end(), std::mt19937(5));
    keys = poison<T>(pages * p.heads * page_size * p.key_dim);
    for (index_t s = 0; s < p.sequences(); ++s)
      for (index_t h = 0; h < p.heads; ++h)
        for (index_t t = 0; t < p.lengths[at(s)]; ++t)
          for (index_t d = 0; d < p.key_dim; ++d) {
            const index_t page = indices[at(indptr[at(s)] + t / page_size)];
            keys[at(((page * p.heads + h) * p.key_dim + d) * page_size + t % page_size)] = p.key(s, h, t)[d];
          }
    view = {View<const T, 4>(keys.data(), pages, p.heads, p.key_dim, page_size), View<const std::int32_t, 1>(indptr),
            View<const std::int32_t, 1>(indices), View<const std::int32_t, 1>(last)};
  }
};

template <class T>
std::vector<float> scores(Cpu& cpu, const Problem<T>& p, const FeatureMajorKeys<T>& keys, const BernoulliQuery& a,
                          const std::vector<std::uint32_t>& requests = {},
                          std::vector<std::int32_t>* features = nullptr) {
  const index_t room = *std::max_element(p.lengths.begin(), p.lengths.end()) + 2;
  std::vector<float> out(at(p.sequences() * p.query_heads() * room), -7.0f);
  if (features) features->assign(at(p.sequences() * p.heads), -1);
  bernoulli_scores(
      cpu, a, p.views().rows, keys, View<float, 3>(out.data(), p.sequences(), p.query_heads(), room),
      requests.empty() ? View<const std::uint32_t, 1>{} : View<const std::uint32_t, 1>(requests),
      features ? View<std::int32_t, 2>(features->data(), p.sequences(), p.heads) : View<std::int32_t, 2>{});
  return out;
}

double exact_score(const Problem<float>& p, index_t s, index_t head, index_t t) {
  double sum = 0;
  for (index_t d = 0; d < p.key_dim; ++d)
    sum += static_cast<double>(p.q[at((s * p.query_heads() + head) * p.key_dim + d)]) *
           static_cast<double>(p.key(s, head / p.group, t)[d]);
  return sum / std::sqrt(static_cast<double>(p.key_dim));
}

TEST_CASE("BernoulliQuery: mean and variance of scores are those of the formulas", "[statistics]") {
  // 50000 draws: means within 4.8 standard errors (18 of them: falsely rejected 3 times in 100000 seeds each),
  // variances within 4%, six of their standard errors.
  Problem<float> p(1, 2, 16, 1, {3});
  const FeatureMajor<float> keys(p, 4);
  const auto q = [&](index_t h, index_t d) { return static_cast<double>(p.query(0, h)[d]); };
  const int draws = 3;
  Cpu cpu;
  for (const bool strata : {true, false})
    for (const GroupDraws group : {GroupDraws::mean_group, GroupDraws::independent, GroupDraws::coupled}) {
      INFO("strata " << strata << " group " << static_cast<int>(group));
      std::vector<double> mean(6, 0.0), square(6, 0.0);
      const std::uint32_t repeats = 50000;
      for (std::uint32_t i = 0; i < repeats; ++i) {
        const auto s = scores(cpu, p, keys.view, {.draws = draws, .strata = strata, .group = group, .step = i});
        for (index_t k = 0; k < 6; ++k) {
          const double off = static_cast<double>(s[at(k / 3 * 5 + k % 3)]) - exact_score(p, 0, k / 3, k % 3);
          mean[at(k)] += off / repeats;
          square[at(k)] += off * off / repeats;
        }
      }
      for (index_t k = 0; k < 6; ++k) {
        const index_t h = k / 3, t = k % 3;
        const auto size = [&](index_t d) {
          return group == GroupDraws::mean_group ? (std::abs(q(0, d)) + std::abs(q(1, d))) / 2 : std::abs(q(h, d));
        };
        double norm = 0, variance = 0;
        for (index_t d = 0; d < 16; ++d) norm = std::max(norm, size(d));
        for (index_t d = 0; d < 16; ++d) {
          const double pi = size(d) / norm, f = draws * pi - std::floor(draws * pi);
          const double of_count = strata ? f * (1 - f) : draws * pi * (1 - pi);
          const double factor = group == GroupDraws::mean_group ? q(h, d) / (draws * pi) : norm / draws;
          variance += std::pow(static_cast<double>(p.key(0, 0, t)[d]) * factor, 2) * of_count / 16;
        }
        CHECK(std::abs(mean[at(k)]) < 4.8 * std::sqrt(variance / repeats));
        CHECK(square[at(k)] == Approx(variance).epsilon(0.04));
      }
    }
}

TEST_CASE("BernoulliQuery: one rounding is B draws in strata, when the draw that decides shares its random number") {
  const Philox random{3};
  for (std::uint32_t i = 0; i < 2000; ++i) {
    const int draws = 1 + static_cast<int>(i % 9);
    const double pi = i % 50 == 0 ? 1.0 : static_cast<double>(random(i, 1).word[0]) * 0x1p-32;
    const double u = random(i, 2, 3, 4).word[0] * 0x1p-32;
    int count = 0;
    for (int r = 0; r < draws; ++r) count += (r + u) / draws < pi;  // draw r is a number in [r / B, (r + 1) / B)
    CHECK(attention::detail::bernoulli_count(draws, true, pi, random, i, 2, 3, 4) == count);
  }
}

/// Gaussian queries of 128 features, one per sequence, over one page of 64 Gaussian keys that all of them share.
struct GaussianQueries {
  Problem<float> p, keys;
  FeatureMajor<float> cache;
  std::vector<std::int32_t> indptr, indices, last;
  std::vector<std::uint32_t> requests;
  FeatureMajorKeys<float> view;
  std::vector<double> exact;

  GaussianQueries(index_t queries, index_t group)
      : p(1, group, 128, 1, std::vector<index_t>(at(queries), 0)),
        keys(1, 1, 128, 1, {64}),
        cache(keys, 64),
        indptr(at(queries + 1)),
        indices(at(queries), cache.indices[0]),
        last(at(queries), 64),
        requests(at(queries)),
        view{cache.view.keys, indptr, indices, last} {
    p.lengths.assign(at(queries), 64);
    std::iota(indptr.begin(), indptr.end(), 0);
    std::iota(requests.begin(), requests.end(), 0u);
    for (index_t i = 0; i < queries * group; ++i)
      for (index_t t = 0; t < 64; ++t) {
        float sum[16] = {};
        for (index_t d = 0; d < 128; ++d) sum[d % 16] += p.q[at(i * 128 + d)] * keys.key(0, 0, t)[d];
        exact.push_back(std::accumulate(sum, sum + 16, 0.0) / std::sqrt(128.0));
      }
  }
};

TEST_CASE("BernoulliQuery: features read and errors, as measured for Gaussian queries of 128 features",
          "[statistics]") {
  GaussianQueries one(4000, 1), four(4000, 4);
  Cpu cpu;
  struct Expected {
    GaussianQueries& of;
    GroupDraws group;
    int draws;
    double read, error;
    bool strata = true;
  };
  for (const Expected& e : {Expected{one, GroupDraws::independent, 1, 0.287, 1.12},
                            {one, GroupDraws::independent, 2, 0.518, 0.58},
                            {one, GroupDraws::independent, 4, 0.730, 0.29},
                            {one, GroupDraws::independent, 8, 0.861, 0.145},
                            {one, GroupDraws::independent, 1, 0.287, 1.12, false},
                            {one, GroupDraws::independent, 2, -1, 0.79, false},
                            {one, GroupDraws::independent, 4, -1, 0.56, false},
                            {one, GroupDraws::independent, 8, -1, 0.40, false},
                            {four, GroupDraws::independent, 1, 0.741, 1.12},
                            {four, GroupDraws::independent, 2, 0.946, 0.58},
                            {four, GroupDraws::independent, 4, 0.995, 0.29},
                            {four, GroupDraws::independent, 8, 1.000, 0.145},
                            {four, GroupDraws::coupled, 1, 0.529, 1.12},
                            {four, GroupDraws::coupled, 2, 0.864, 0.58},
                            {four, GroupDraws::coupled, 4, 0.984, 0.29},
                            {four, GroupDraws::coupled, 8, 0.999, 0.145},
                            {four, GroupDraws::mean_group, 1, 0.470, 0.96},
                            {four, GroupDraws::mean_group, 2, 0.822, 0.42},
                            {four, GroupDraws::mean_group, 4, 0.977, 0.21},
                            {four, GroupDraws::mean_group, 8, 0.998, 0.105}}) {
    INFO("heads " << e.of.p.group << " group " << static_cast<int>(e.group) << " draws " << e.draws << " strata "
                  << e.strata);
    std::vector<std::int32_t> features;
    const auto s = scores(cpu, e.of.p, e.of.view, {.draws = e.draws, .strata = e.strata, .group = e.group},
                          e.of.requests, &features);
    double read = 0, error = 0, norm = 0;
    for (const std::int32_t f : features) read += f / 128.0 / static_cast<double>(features.size());
    for (std::size_t i = 0; i < e.of.exact.size(); ++i) {
      error += std::pow(static_cast<double>(s[i / 64 * 66 + i % 64]) - e.of.exact[i], 2);
      norm += e.of.exact[i] * e.of.exact[i];
    }
    if (e.read >= 0) CHECK(read == Approx(e.read).margin(0.01));
    CHECK(std::sqrt(error / norm) == Approx(e.error).margin(0.01));
  }
}

TEST_CASE("BernoulliQuery: for every query, heads that share their random numbers read no more features",
          "[statistics]") {
  // How many features each query reads on average over 100 draws, against the sum over features of the probability that
  // one head reads it or more: within 5 standard errors for 100 queries and both ways, falsely rejected once in 10000
  // seeds. By these sums coupled heads read no more than independent ones.
  GaussianQueries of(100, 4);
  Cpu cpu;
  const int draws = 2;
  const std::uint32_t repeats = 100;
  std::vector<std::vector<double>> expected(2), variance(2), read(2, std::vector<double>(100, 0.0));
  for (index_t i = 0; i < 100; ++i) {
    double norms[4] = {}, sums[2] = {}, variances[2] = {};
    for (index_t h = 0; h < 4; ++h)
      for (index_t d = 0; d < 128; ++d)
        norms[h] = std::max(norms[h], std::abs(static_cast<double>(of.p.query(i, h)[d])));
    for (index_t d = 0; d < 128; ++d) {
      double most = 0, none = 1;
      for (index_t h = 0; h < 4; ++h) {
        const double of_head = std::min(1.0, draws * std::abs(static_cast<double>(of.p.query(i, h)[d])) / norms[h]);
        most = std::max(most, of_head);
        none *= 1 - of_head;
      }
      const double chances[2] = {most, 1 - none};
      for (int k = 0; k < 2; ++k) {
        sums[k] += chances[k];
        variances[k] += chances[k] * (1 - chances[k]) / repeats;
      }
    }
    for (std::size_t k = 0; k < 2; ++k) {
      expected[k].push_back(sums[k]);
      variance[k].push_back(variances[k]);
    }
  }
  const GroupDraws ways[] = {GroupDraws::coupled, GroupDraws::independent};
  for (std::size_t k = 0; k < 2; ++k) {
    std::vector<std::int32_t> features;
    for (std::uint32_t step = 0; step < repeats; ++step) {
      scores(cpu, of.p, of.view, {.draws = draws, .group = ways[k], .step = step}, of.requests, &features);
      for (std::size_t i = 0; i < 100; ++i) read[k][i] += features[i] / static_cast<double>(repeats);
    }
    for (std::size_t i = 0; i < 100; ++i)
      CHECK(std::abs(read[k][i] - expected[k][i]) < 5 * std::sqrt(variance[k][i]));
  }
  for (std::size_t i = 0; i < 100; ++i) CHECK(expected[0][i] <= expected[1][i]);
}

TEST_CASE("BernoulliQuery: many draws give the scores, over every layout, path, type and batch", "[threads]") {
  Problem<float> p(2, 3, 70, 1, {100, 0, 1, 33});
  std::vector<float> first;
  for (const index_t page_size : {1, 7, 16, 64, 128})
    for (const Isa isa : paths()) {
      INFO("page " << page_size << " " << name(isa));
      Cpu cpu, parallel(real_threads(3));
      cpu.set_isa(isa);
      parallel.set_isa(isa);
      const FeatureMajor<float> keys(p, page_size);
      const BernoulliQuery many{.draws = 65536};
      const auto s = scores(cpu, p, keys.view, many);
      double worst = 0;
      for (index_t i = 0; i < 4; ++i)
        for (index_t head = 0; head < 6; ++head)
          for (index_t t = 0; t < 102; ++t) {
            const float x = s[at((i * 6 + head) * 102 + t)];
            if (t >= p.lengths[at(i)])
              CHECK(x == -7.0f);
            else
              worst = std::max(worst, std::abs(static_cast<double>(x) - exact_score(p, i, head, t)));
          }
      CHECK(worst < 1e-3);
      CHECK(scores(parallel, p, keys.view, many) == s);
      if (isa == Isa::portable) {
        if (first.empty()) first = s;
        CHECK(s == first);
      }
      // NaN in one group's query: that group alone.
      Problem<float> q = p;
      q.query(0, 1)[3] = quiet_nan;
      const auto with_nan = scores(cpu, q, keys.view, many);
      for (std::size_t k = 0; k < with_nan.size(); ++k)
        CHECK((k / 102 < 3 && k % 102 < 100 ? std::isnan(with_nan[k]) : with_nan[k] == s[k]));
    }
  const Problem<bf16> b(1, 2, 24, 1, {50});
  Problem<float> same(1, 2, 24, 1, {50});
  for (std::size_t i = 0; i < same.keys.size(); ++i) same.keys[i] = static_cast<float>(b.keys[i]);
  Cpu cpu;
  CHECK(scores(cpu, b, FeatureMajor<bf16>(b, 16).view, {}) ==
        scores(cpu, same, FeatureMajor<float>(same, 16).view, {}));
}

TEST_CASE("BernoulliQuery: the divergence of softmax grows as 0.67 sigma^2 / B^2", "[statistics]") {
  // 300 queries over 4096 Gaussian keys, logits of deviation 1: within 15%.
  Problem<float> p(1, 1, 128, 1, {4096});
  const FeatureMajor<float> keys(p, 256);
  Cpu cpu;
  for (const int draws : {4, 8}) {
    double divergence = 0, deviation = 0;
    for (unsigned i = 0; i < 300; ++i) {
      p.q = normal(128, 100 + i);
      const auto s = scores(cpu, p, keys.view, {.draws = draws, .step = i});
      const auto e = scores(cpu, p, keys.view, {.draws = 65536});
      double z = 0, noisy_z = 0, cross = 0, square = 0;
      for (index_t t = 0; t < 4096; ++t) {
        const auto exact = static_cast<double>(e[at(t)]), noisy = static_cast<double>(s[at(t)]);
        z += std::exp(exact);
        noisy_z += std::exp(noisy);
        cross += std::exp(exact) * (exact - noisy);
        square += exact * exact / 4096;
      }
      divergence += (cross / z + std::log(noisy_z / z)) / 300;
      deviation += square / 300;
    }
    CHECK(divergence * draws * draws / deviation == Approx(0.67).epsilon(0.15));
  }
}

TEST_CASE("BernoulliQuery: arguments that do not fit are refused by name before anything is written") {
  const Problem<float> p(2, 3, 16, 1, {40, 20});
  const FeatureMajor<float> keys(p, 16);
  Cpu cpu;
  std::vector<float> o(2 * 6 * 40, 7.0f);
  const auto refused = [&](const char* argument, const BernoulliQuery& a, const FeatureMajorKeys<float>& view,
                           index_t room = 40, index_t query_heads = 6) {
    INFO(argument);
    const auto call = [&] {
      bernoulli_scores(cpu, a, p.views().rows.slice(1, 0, query_heads), view,
                       View<float, 3>(o.data(), 2, query_heads, room));
    };
    CHECK_THROWS_WITH(call(), catch_compat::contains(argument));
    CHECK_THROWS_AS(call(), ArgumentError);
    CHECK(o == std::vector<float>(o.size(), 7.0f));
  };
  refused("`draws`", {.draws = 0}, keys.view);
  refused("`group`", {.group = static_cast<GroupDraws>(3)}, keys.view);
  refused("`scale`", {.scale = quiet_nan}, keys.view);
  refused("`layer`", {.layer = 65536}, keys.view);
  refused("`out`", {}, keys.view, 39);
  refused("`q`", {}, keys.view, 40, 5);
  FeatureMajorKeys<float> bad = keys.view;
  bad.last_page_len = View<const std::int32_t, 1>(keys.last.data(), 1);
  refused("`indptr`", {}, bad);
  bad = keys.view;
  bad.keys = keys.view.keys.slice(0, 0, 2);
  refused("`indices`", {}, bad);
}

}  // namespace
}  // namespace attention_test
