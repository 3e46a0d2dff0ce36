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

TEST_CASE("BernoulliQuery: mean and variance of scores are those of the formulas") {
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

TEST_CASE("BernoulliQuery: features read and errors, as measured for Gaussian queries of 128 features") {
  const index_t queries = 1000;
  Problem<float> p(1, 4, 128, 1, std::vector<index_t>(at(queries), 0));
  Problem<float> keys(1, 1, 128, 1, {64});
  FeatureMajor<float> cache(keys, 64);
  p.lengths.assign(at(queries), 64);  // one page for all of them
  const std::vector<std::int32_t> indptr = [&] {
    std::vector<std::int32_t> all(at(queries + 1));
    std::iota(all.begin(), all.end(), 0);
    return all;
  }();
  const std::vector<std::int32_t> indices(at(queries), cache.indices[0]), last(at(queries), 64);
  const FeatureMajorKeys<float> view{cache.view.keys, indptr, indices, last};
  std::vector<std::uint32_t> requests(at(queries));
  std::iota(requests.begin(), requests.end(), 0u);
  Cpu cpu;
  struct Expected {
    GroupDraws group;
    int draws;
    double read, error;
  };
  for (const Expected& e : {Expected{GroupDraws::independent, 1, 0.741, 1.12},
                            {GroupDraws::independent, 2, 0.946, 0.58},
                            {GroupDraws::independent, 4, 0.995, 0.29},
                            {GroupDraws::coupled, 1, 0.529, 1.12},
                            {GroupDraws::coupled, 2, 0.864, 0.58},
                            {GroupDraws::coupled, 8, 0.999, 0.145},
                            {GroupDraws::mean_group, 1, 0.470, 0.96},
                            {GroupDraws::mean_group, 2, 0.822, 0.42},
                            {GroupDraws::mean_group, 4, 0.977, 0.21},
                            {GroupDraws::mean_group, 8, 0.998, 0.105}}) {
    INFO("group " << static_cast<int>(e.group) << " draws " << e.draws);
    std::vector<std::int32_t> features;
    const auto s = scores(cpu, p, view, {.draws = e.draws, .group = e.group}, requests, &features);
    double read = 0, error = 0, norm = 0;
    for (const std::int32_t f : features) read += f / 128.0 / static_cast<double>(queries);
    for (index_t i = 0; i < queries; i += 5)
      for (index_t head = 0; head < 4; ++head)
        for (index_t t = 0; t < 64; ++t) {
          double exact = 0;
          for (index_t d = 0; d < 128; ++d)
            exact += static_cast<double>(p.query(i, head)[d]) * static_cast<double>(keys.key(0, 0, t)[d]);
          exact /= std::sqrt(128.0);
          error += std::pow(static_cast<double>(s[at((i * 4 + head) * 66 + t)]) - exact, 2);
          norm += exact * exact;
        }
    CHECK(read == Approx(e.read).margin(0.01));
    CHECK(std::sqrt(error / norm) == Approx(e.error).margin(0.01 + 0.02 * e.error));
  }
  // Coupled heads read no more than independent ones, on average over their draws.
  std::vector<std::int32_t> coupled, independent;
  double more = 0;
  for (std::uint32_t step = 0; step < 20; ++step) {
    scores(cpu, p, view, {.draws = 2, .group = GroupDraws::coupled, .step = step}, requests, &coupled);
    scores(cpu, p, view, {.draws = 2, .group = GroupDraws::independent, .step = step}, requests, &independent);
    for (std::size_t i = 0; i < coupled.size(); ++i) more += coupled[i] - independent[i];
  }
  CHECK(more < 0);
}

TEST_CASE("BernoulliQuery: many draws give the scores, over every layout, path, type and batch") {
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

TEST_CASE("BernoulliQuery: the divergence of softmax grows as 0.67 sigma^2 / B^2") {
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
