// CapKV's identities, in double for the same template that scores in float, its numerics where others fail, and how it
// relates to the exact greedy choice. Numbers of the published implementation are not needed: these are laws.
#include <algorithm>
#include <numeric>

#include "catch_compat.hpp"
#include "decant/kv/capacity.hpp"
#include "decant/kv/policies.hpp"
#include "oracle/kv_scores.hpp"

namespace {

using namespace oracle;
using decant::Cpu;
namespace kv = decant::kv;

/// n rows of dim standard normals, and positive weights.
struct Rows {
  index_t n, dim;
  std::vector<double> u, w;

  Rows(index_t rows, index_t d, std::uint64_t seed, double low = 0.5, double high = 1.6) : n(rows), dim(d) {
    for (index_t i = 0; i < n * dim; ++i) u.push_back(normal(seed, i, 7));
    for (index_t i = 0; i < n; ++i) {
      const double t = 0.5 + 0.5 * std::tanh(normal(seed, i, 8));
      w.push_back(low + t * (high - low));
    }
  }
  View<const double, 2> rows() const { return View<const double, 2>(u.data(), n, dim); }
  Table table() const {
    Table t;
    for (index_t i = 0; i < n; ++i) t.emplace_back(u.begin() + i * dim, u.begin() + (i + 1) * dim);
    return t;
  }
};

template <class Real = double>
std::vector<Real> leverage(const Rows& r, double ridge = 1) {
  Cpu cpu;
  const std::vector<Real> u(r.u.begin(), r.u.end()), w(r.w.begin(), r.w.end());
  std::vector<Real> s(w.size());
  kv::ridge_leverage<Real>(cpu, View<const Real, 2>(u.data(), r.n, r.dim), View<const Real, 1>(w), ridge,
                           View<Real, 1>(s));
  return s;
}

double log_det_of(const Rows& r, const std::vector<index_t>& subset, double ridge = 1) {
  Table u;
  Row w;
  for (const index_t i : subset) {
    u.push_back(r.table()[static_cast<std::size_t>(i)]);
    w.push_back(r.w[static_cast<std::size_t>(i)]);
  }
  if (u.empty()) return static_cast<double>(r.dim) * std::log(ridge);
  return log_det(gram(u, w, ridge), static_cast<std::size_t>(r.dim));
}

std::vector<index_t> all_but(index_t n, index_t gone) {
  std::vector<index_t> v;
  for (index_t i = 0; i < n; ++i) {
    if (i != gone) v.push_back(i);
  }
  return v;
}

std::vector<index_t> largest(const std::vector<double>& s, std::size_t k) {
  std::vector<index_t> order(s.size());
  std::iota(order.begin(), order.end(), index_t{0});
  std::stable_sort(order.begin(), order.end(), [&](index_t a, index_t b) {
    return s[static_cast<std::size_t>(a)] > s[static_cast<std::size_t>(b)];
  });
  order.resize(k);
  return order;
}

TEST_CASE("leverage: the sum and every removal are exact to 1e-10 in double") {
  for (const auto& [n, dim] : {std::pair<index_t, index_t>{5, 3}, {40, 7}, {300, 32}, {517, 16}, {60, 70}}) {
    const Rows r(n, dim, 21);
    const std::vector<double> s = leverage(r);
    const Row a = gram(r.table(), r.w, 1), inv = inverse(a, static_cast<std::size_t>(dim));
    double trace = 0;
    for (index_t i = 0; i < dim; ++i) trace += inv[static_cast<std::size_t>(i * dim + i)];
    REQUIRE(std::accumulate(s.begin(), s.end(), 0.0) == Approx(static_cast<double>(dim) - trace).epsilon(1e-10));
    const double whole = log_det(a, static_cast<std::size_t>(dim));
    for (index_t i = 0; i < n; i += 1 + n / 9) {
      const double si = s[static_cast<std::size_t>(i)];
      REQUIRE((si >= 0 && si < 1));
      REQUIRE(-std::log(1 - si) == Approx(whole - log_det_of(r, all_but(n, i))).epsilon(0).margin(1e-10));
    }
  }
}

TEST_CASE("leverage: ranking by s is ranking by what one removal loses") {
  const Rows r(30, 6, 22);
  const std::vector<double> s = leverage(r);
  std::vector<double> loss;
  for (index_t i = 0; i < 30; ++i) loss.push_back(-log_det_of(r, all_but(30, i)));
  REQUIRE(largest(s, 30) == largest(loss, 30));
}

TEST_CASE("leverage: orthonormal rows with one weight, monotone in the weight, invariant to rotations") {
  Rows r(6, 6, 23);
  for (index_t i = 0; i < 36; ++i) r.u[static_cast<std::size_t>(i)] = i % 7 == 0 ? 1.0 : 0.0;
  r.w.assign(6, 0.8);
  for (const double s : leverage(r)) REQUIRE(s == Approx(0.8 / 1.8).epsilon(1e-12));

  Rows grow(20, 5, 24);
  double before = 0;
  for (const double w : {0.1, 0.5, 2.0, 10.0, 1000.0}) {
    grow.w[3] = w;
    const double s = leverage(grow)[3];
    REQUIRE(s > before);
    before = s;
  }

  const Rows plain(50, 4, 25);
  Rows turned = plain;  // by two plane rotations
  for (index_t i = 0; i < 50; ++i) {
    double* const u = turned.u.data() + i * 4;
    for (const auto& [a, b, angle] : {std::tuple<int, int, double>{0, 2, 0.7}, {1, 3, -1.9}, {0, 1, 2.2}}) {
      const double x = u[a], y = u[b];
      u[a] = x * std::cos(angle) - y * std::sin(angle);
      u[b] = x * std::sin(angle) + y * std::cos(angle);
    }
  }
  const std::vector<double> s = leverage(plain), t = leverage(turned);
  for (std::size_t i = 0; i < 50; ++i) REQUIRE(s[i] == Approx(t[i]).epsilon(1e-11));
}

TEST_CASE("adding a token gains log(1 + w u'A^-1 u), never more than its first order") {
  const Rows r(21, 5, 26);
  const Table all = r.table();
  const Row before = gram(Table(all.begin(), all.begin() + 20), Row(r.w.begin(), r.w.begin() + 20), 1);
  const double first_order = r.w[20] * form(inverse(before, 5), r.table()[20]);
  const double gain = log_det(gram(r.table(), r.w, 1), 5) - log_det(before, 5);
  REQUIRE(gain == Approx(std::log(1 + first_order)).epsilon(1e-12));
  REQUIRE(first_order >= gain);
}

TEST_CASE("log det(I + t M) = t sum w |u|^2 - t^2/2 sum w w (u.u)^2 + O(t^3)") {
  const Rows r(12, 9, 27);
  double first = 0, second = 0;
  const Table u = r.table();
  for (std::size_t i = 0; i < 12; ++i) {
    for (std::size_t j = 0; j < 12; ++j) {
      double dot = 0;
      for (std::size_t d = 0; d < 9; ++d) dot += u[i][d] * u[j][d];
      if (i == j) first += r.w[i] * dot;
      second += r.w[i] * r.w[j] * dot * dot;
    }
  }
  double constant = 0;
  for (const double t : {1e-2, 1e-3, 1e-4}) {
    // I + t M = t (I/t + M): the ridge does it.
    const double exact = log_det(gram(u, r.w, 1 / t), 9) + 9 * std::log(t);
    const double error = (exact - (t * first - t * t / 2 * second)) / (t * t * t);
    if (t == 1e-3) constant = error;
    if (t == 1e-4) REQUIRE(error == Approx(constant).epsilon(0.25));
    REQUIRE(std::isfinite(error));
  }
}

struct Surrogate {
  index_t n = 9, d = 4, c = 6;
  std::vector<double> k, u, lambda;
  std::vector<std::int32_t> all;
  Surrogate() {
    for (index_t i = 0; i < n * d; ++i) k.push_back(normal(31, i));
    for (index_t i = 0; i < n * c; ++i) u.push_back(normal(32, i));
    std::vector<double> root;
    for (index_t i = 0; i < d * d; ++i) root.push_back(normal(33, i));
    for (index_t a = 0; a < d; ++a) {
      for (index_t b = 0; b < d; ++b) {
        double sum = a == b ? 0.1 : 0;
        for (index_t e = 0; e < d; ++e)
          sum += root[static_cast<std::size_t>(a * d + e)] * root[static_cast<std::size_t>(b * d + e)];
        lambda.push_back(sum);
      }
    }
    for (std::int32_t i = 0; i < n; ++i) all.push_back(i);
  }
  View<const double, 2> keys() const { return View<const double, 2>(k.data(), n, d); }
  View<const double, 2> outputs() const { return View<const double, 2>(u.data(), n, c); }
  View<const double, 2> covariance() const { return View<const double, 2>(lambda.data(), d, d); }
};

/// M = sum of u_i k_i^T, [c][d].
Row cross(const Surrogate& s) {
  Row m(static_cast<std::size_t>(s.c * s.d), 0.0);
  for (index_t i = 0; i < s.n; ++i) {
    for (index_t a = 0; a < s.c; ++a) {
      for (index_t b = 0; b < s.d; ++b) {
        m[static_cast<std::size_t>(a * s.d + b)] +=
            s.u[static_cast<std::size_t>(i * s.c + a)] * s.k[static_cast<std::size_t>(i * s.d + b)];
      }
    }
  }
  return m;
}

/// C x C: shift I + M Lambda M^T / sigma2 * factor.
Row output_covariance(const Surrogate& s, double diagonal, double factor) {
  const Row m = cross(s);
  Row a(static_cast<std::size_t>(s.c * s.c), 0.0);
  for (index_t i = 0; i < s.c; ++i) {
    for (index_t j = 0; j < s.c; ++j) {
      double sum = i == j ? diagonal : 0;
      for (index_t x = 0; x < s.d; ++x) {
        for (index_t y = 0; y < s.d; ++y) {
          sum += factor * m[static_cast<std::size_t>(i * s.d + x)] * s.lambda[static_cast<std::size_t>(x * s.d + y)] *
                 m[static_cast<std::size_t>(j * s.d + y)];
        }
      }
      a[static_cast<std::size_t>(i * s.c + j)] = sum;
    }
  }
  return a;
}

TEST_CASE("the surrogate's capacity: d x d, C x C and the difference of entropies agree to 1e-12") {
  const Surrogate s;
  Cpu cpu;
  const double sigma2 = 0.7;
  const double got = kv::surrogate_capacity(cpu, s.keys(), s.outputs(), s.covariance(), sigma2, s.all);
  const auto c = static_cast<std::size_t>(s.c);
  REQUIRE(got == Approx(0.5 * log_det(output_covariance(s, 1, 1 / sigma2), c)).epsilon(1e-12));
  // h(Y) - h(Y | q) of Gaussians; the mean of q appears nowhere.
  const double two_pi_e = 17.079468445347132;
  const double entropy =
      0.5 * (static_cast<double>(s.c) * std::log(two_pi_e) + log_det(output_covariance(s, sigma2, 1), c));
  const double noise = 0.5 * static_cast<double>(s.c) * std::log(two_pi_e * sigma2);
  REQUIRE(got == Approx(entropy - noise).epsilon(1e-12));
  REQUIRE_THROWS_WITH(kv::surrogate_capacity(cpu, s.keys(), s.outputs(), s.covariance(), 0, s.all),
                      catch_compat::contains("sigma2"));
  const std::vector<std::int32_t> outside{9};
  REQUIRE_THROWS_WITH(kv::surrogate_capacity(cpu, s.keys(), s.outputs(), s.covariance(), 1, outside),
                      catch_compat::contains("indices below 9, got 9"));
}

TEST_CASE("for Lambda-orthogonal keys the surrogate is the sum that CapKV's A is made of") {
  // Keys = multiples of unit vectors, Lambda diagonal: k_i Lambda k_j = 0, w_i = k_i Lambda k_i / sigma^2.
  const index_t d = 5;
  Cpu cpu;
  std::vector<double> k(25, 0.0), lambda(25, 0.0);
  Rows r(d, 4, 34);
  const double sigma2 = 1.3;
  for (index_t i = 0; i < d; ++i) {
    k[static_cast<std::size_t>(i * 6)] = 0.5 + 0.3 * static_cast<double>(i);
    lambda[static_cast<std::size_t>(i * 6)] = 2.0 - 0.2 * static_cast<double>(i);
    r.w[static_cast<std::size_t>(i)] = k[static_cast<std::size_t>(i * 6)] * k[static_cast<std::size_t>(i * 6)] *
                                       lambda[static_cast<std::size_t>(i * 6)] / sigma2;
  }
  const std::vector<std::int32_t> subset{0, 2, 3};
  const double got = kv::surrogate_capacity(cpu, View<const double, 2>(k.data(), d, d), r.rows(),
                                            View<const double, 2>(lambda.data(), d, d), sigma2, subset);
  REQUIRE(got == Approx(0.5 * log_det_of(r, {0, 2, 3})).epsilon(1e-12));
}

TEST_CASE("the three diagnostics: n x n and d x d forms agree to 1e-12") {
  const Surrogate s;
  Cpu cpu;
  const kv::CapacityProxies p = kv::capacity_proxies(cpu, s.keys(), s.outputs(), s.all);
  const auto n = static_cast<std::size_t>(s.n);
  const auto outer = [&](const std::vector<double>& rows, std::size_t dim) {
    Row a(n * n, 0.0);
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < n; ++j) {
        a[i * n + j] = i == j ? 1 : 0;
        for (std::size_t x = 0; x < dim; ++x) a[i * n + j] += rows[i * dim + x] * rows[j * dim + x];
      }
    }
    return a;
  };
  const Row kk = outer(s.k, static_cast<std::size_t>(s.d)), uu = outer(s.u, static_cast<std::size_t>(s.c));
  REQUIRE(p.k == Approx(log_det(kk, n)).epsilon(1e-12));
  REQUIRE(p.u == Approx(log_det(uu, n)).epsilon(1e-12));
  // log det(I + U^T U K K^T), n x n, not symmetric.
  Row product(n * n, 0.0);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      product[i * n + j] = i == j ? 1 : 0;
      for (std::size_t x = 0; x < n; ++x) {
        product[i * n + j] += (uu[i * n + x] - (i == x ? 1 : 0)) * (kk[x * n + j] - (x == j ? 1 : 0));
      }
    }
  }
  REQUIRE(p.ku == Approx(log_det(product, n)).epsilon(1e-12));
}

TEST_CASE("greedy >= leverage >= weights alone >= random in log det") {
  // The figures vary with the sample; on this one they are as below. b = 60 of n = 300, d = 32.
  const Rows r(300, 32, 41, 0.02, 3.0);
  Cpu cpu;
  std::vector<std::uint8_t> chosen(300, 0);
  kv::greedy_log_det(cpu, r.rows(), r.w, 1.0, 60, View<std::uint8_t, 1>(chosen));
  std::vector<index_t> greedy;
  for (index_t i = 0; i < 300; ++i) {
    if (chosen[static_cast<std::size_t>(i)]) greedy.push_back(i);
  }
  REQUIRE(greedy.size() == 60);
  std::vector<double> noise;
  for (std::uint32_t i = 0; i < 300; ++i) noise.push_back(static_cast<double>(decant::Philox{42}.uniform(i)));
  const double full = log_det_of(r, all_but(300, -1)), by_greedy = log_det_of(r, greedy),
               by_leverage = log_det_of(r, largest(leverage(r), 60)), by_weight = log_det_of(r, largest(r.w, 60)),
               by_chance = log_det_of(r, largest(noise, 60));
  CAPTURE(full, by_greedy, by_leverage, by_weight, by_chance);
  REQUIRE(full > by_greedy);
  REQUIRE(by_greedy >= by_leverage);
  REQUIRE(by_leverage >= by_weight);
  REQUIRE(by_weight >= by_chance);
  REQUIRE(by_greedy >= (1 - 1 / 2.718281828) * full);
}

TEST_CASE("greedy is the exact argmax at every step") {
  const Rows r(14, 4, 43);
  Cpu cpu;
  std::vector<index_t> chosen{3};  // protected
  for (index_t count = 2; count <= 14; ++count) {
    index_t best = -1;
    double high = -1e300;
    for (index_t i = 0; i < 14; ++i) {
      if (std::count(chosen.begin(), chosen.end(), i)) continue;
      auto with = chosen;
      with.push_back(i);
      const double value = log_det_of(r, with);
      if (value > high + 1e-12) {
        high = value;
        best = i;
      }
    }
    chosen.push_back(best);
    std::vector<std::uint8_t> got(14, 0);
    got[3] = 1;
    kv::greedy_log_det(cpu, r.rows(), r.w, 1.0, count, View<std::uint8_t, 1>(got));
    for (index_t i = 0; i < 14; ++i) {
      REQUIRE(static_cast<bool>(got[static_cast<std::size_t>(i)]) == (std::count(chosen.begin(), chosen.end(), i) > 0));
    }
  }
}

TEST_CASE("duplicates: leverage keeps both of two equal tokens, greedy spreads") {
  Rows r(200, 8, 44);
  for (index_t d = 0; d < 8; ++d)
    r.u[static_cast<std::size_t>(5 * 8 + d)] = 3 * r.u[static_cast<std::size_t>(2 * 8 + d)];
  for (index_t d = 0; d < 8; ++d) r.u[static_cast<std::size_t>(2 * 8 + d)] = r.u[static_cast<std::size_t>(5 * 8 + d)];
  r.w[2] = r.w[5] = 1.6;
  const std::vector<double> s = leverage(r);
  REQUIRE(s[2] == s[5]);
  const auto top = largest(s, 4);
  REQUIRE((std::count(top.begin(), top.end(), 2) == 1 && std::count(top.begin(), top.end(), 5) == 1));
  Cpu cpu;
  std::vector<std::uint8_t> chosen(200, 0);
  kv::greedy_log_det(cpu, r.rows(), r.w, 1.0, 4, View<std::uint8_t, 1>(chosen));
  REQUIRE(chosen[2] + chosen[5] == 1);
}

TEST_CASE("a large common direction: float stays within 1e-3 of double and never goes negative") {
  // Entry sd 0.3 around one vector of sd 3; formed in bf16 this A is indefinite.
  Rows r(4096, 128, 45);
  std::vector<double> centre;
  for (index_t d = 0; d < 128; ++d) centre.push_back(3 * normal(46, d));
  for (std::size_t i = 0; i < r.u.size(); ++i)
    r.u[i] = static_cast<double>(static_cast<float>(centre[i % 128] + 0.3 * r.u[i]));
  for (double& w : r.w) w = static_cast<double>(static_cast<float>(w));
  const std::vector<double> exact = leverage(r);
  for (const decant::Isa isa : {decant::Isa::portable, decant::Isa::avx2, decant::Isa::avx512}) {
    if (isa > decant::best_isa()) continue;
    Cpu cpu;
    cpu.set_isa(isa);
    const std::vector<float> u(r.u.begin(), r.u.end()), w(r.w.begin(), r.w.end());
    std::vector<float> s(4096);
    kv::ridge_leverage<float>(cpu, View<const float, 2>(u.data(), 4096, 128), View<const float, 1>(w), 1.0,
                              View<float, 1>(s));
    double worst = 0;
    for (std::size_t i = 0; i < 4096; ++i) {
      REQUIRE(s[i] >= 0);
      worst = std::max(worst, std::abs(static_cast<double>(s[i]) / exact[i] - 1));
    }
    CAPTURE(name(isa), worst);
    REQUIRE(worst < 1e-3);
    auto got = largest(std::vector<double>(s.begin(), s.end()), 128), expected = largest(exact, 128);
    std::sort(got.begin(), got.end());
    std::sort(expected.begin(), expected.end());
    REQUIRE((got == expected));
  }
}

TEST_CASE("tau = 0 ignores the queries; zero values score 0 and keep the earliest") {
  Layer<> a({50, 1, 2, 12, 10, 20}, 1), b({50, 1, 2, 12, 10, 20}, 2);
  b.keys = a.keys;
  b.values = a.values;
  Cpu cpu;
  std::vector<float> s(50), t(50);
  score(cpu, kv::CapKV{.tau = 0}, a.view(), View<float, 2>(s.data(), 1, 50));
  score(cpu, kv::CapKV{.tau = 0}, b.view(), View<float, 2>(t.data(), 1, 50));
  REQUIRE(s == t);
  score(cpu, kv::CapKV{}, a.view(), View<float, 2>(s.data(), 1, 50));
  score(cpu, kv::CapKV{}, b.view(), View<float, 2>(t.data(), 1, 50));
  REQUIRE(s != t);
  for (float& v : a.values) v = 0;
  const kv::Kept kept = select(cpu, kv::CapKV{}, a.view(), kv::Budget::tokens(9));
  for (index_t i = 0; i < 9; ++i) REQUIRE(kept.token(0, i) == i);
  // One mean query per head is as good as the queries it is the mean of.
  std::vector<float> mean(2 * 12, 0.0f);
  for (index_t hq = 0; hq < 2; ++hq) {
    for (index_t i = 0; i < 20; ++i) {
      for (index_t d = 0; d < 12; ++d)
        mean[static_cast<std::size_t>(hq * 12 + d)] += static_cast<float>(b.q_pre(hq, i, d) / 20);
    }
  }
  auto x = b.view();
  x.queries_pre_rope = View<const float, 3>(mean.data(), 2, 1, 12);
  std::vector<float> m(50);
  score(cpu, kv::CapKV{}, x, View<float, 2>(m.data(), 1, 50));
  for (std::size_t i = 0; i < 50; ++i) REQUIRE(m[i] == Approx(t[i]).epsilon(1e-5));
}

TEST_CASE("printed tau = 5 on raw dot products sorts by them alone; the log domain stays finite") {
  // Documents why Mode::code is the default: overlap of the top 10 % with the plain sort by k.mu.
  for (const double spread : {4.0, 16.0}) {
    Layer<> data({2048, 1, 1, 64, 64, 8}, 51);
    double square = 0;
    std::vector<double> mu(64, 0.0);
    for (index_t d = 0; d < 64; ++d) {
      for (index_t i = 0; i < 8; ++i) mu[static_cast<std::size_t>(d)] += data.q(0, i, d) / 8;
      square += mu[static_cast<std::size_t>(d)] * mu[static_cast<std::size_t>(d)];
    }
    const float scale = static_cast<float>(spread / std::sqrt(square));
    for (float& q : data.queries) q *= scale;  // now sd(k.mu) = spread
    Cpu cpu;
    std::vector<float> s(2048);
    score(cpu, kv::CapKV{.mode = kv::CapKV::Mode::paper}, data.view(), View<float, 2>(s.data(), 1, 2048));
    std::vector<double> dots, scores(s.begin(), s.end());
    for (index_t t = 0; t < 2048; ++t) {
      REQUIRE(std::isfinite(s[static_cast<std::size_t>(t)]));
      double dot = 0;
      for (index_t d = 0; d < 64; ++d) dot += data.k(0, t, d) * mu[static_cast<std::size_t>(d)];
      dots.push_back(dot);
    }
    auto by_score = largest(scores, 204), by_dot = largest(dots, 204);
    std::sort(by_score.begin(), by_score.end());
    std::sort(by_dot.begin(), by_dot.end());
    std::vector<index_t> both;
    std::set_intersection(by_score.begin(), by_score.end(), by_dot.begin(), by_dot.end(), std::back_inserter(both));
    CAPTURE(spread, both.size());
    REQUIRE(both.size() >= 194);
  }
}

TEST_CASE("the closed form of the average rotation") {
  for (const double theta : {1.0, 0.3, 1e-4, 1e-9, 3.141592653589793, 0.0}) {
    for (const auto& [first, count] : {std::pair<index_t, index_t>{0, 1}, {7, 512}, {131072, 512}}) {
      double c = 0, s = 0;
      for (index_t p = first; p < first + count; ++p) {
        c += std::cos(static_cast<double>(p) * theta) / static_cast<double>(count);
        s += std::sin(static_cast<double>(p) * theta) / static_cast<double>(count);
      }
      const auto r = kv::detail::mean_rotation(theta, first, count);
      REQUIRE(r.cosine == Approx(c).margin(1e-9));
      REQUIRE(r.sine == Approx(s).margin(1e-9));
    }
  }
}

TEST_CASE("CapKV says what is missing") {
  Layer<> data({30, 1, 2, 12, 10, 8});
  auto x = data.view();
  x.queries_pre_rope = {};
  Cpu cpu;
  REQUIRE_THROWS_WITH(select(cpu, kv::CapKV{}, x, kv::Budget::tokens(9)), catch_compat::contains("x.queries_pre_rope"));
  REQUIRE_THROWS_WITH(select(cpu, kv::CapKV{.ridge = 0}, data.view(), kv::Budget::tokens(9)),
                      catch_compat::contains("`ridge`: expected a positive number, got 0"));
  REQUIRE_THROWS_WITH(select(cpu, kv::CapKV{.sinks = 30}, data.view(), kv::Budget::tokens(9)),
                      catch_compat::contains("at least the 30 protected tokens"));
}

}  // namespace
