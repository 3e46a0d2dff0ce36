// EAR against its definition in double on every instruction set, for all supports and storage types; its laws; rows
// that are no distributions; and what does not change the result: threads.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <decant/core/random.hpp>
#include <decant/quant/ear.hpp>

#include "catch_compat.hpp"
#include "oracle/ear.hpp"
#include "threads.hpp"

namespace quant_ear_test {

using decant::index_t;
using decant::Isa;
using decant::View;
using decant::quant::ear;
using decant::quant::ear_summary;
using decant::quant::EarOptions;
using decant::quant::EarPosition;
using decant::quant::EarResult;
using decant::quant::EarState;
using decant::quant::EarSupport;

constexpr float inf = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr EarSupport supports[] = {EarSupport::full, EarSupport::topk, EarSupport::topk_conditioned};

std::vector<Isa> isas() {
  std::vector<Isa> all{Isa::portable};
  if (decant::best_isa() >= Isa::avx2) all.push_back(Isa::avx2);
  if (decant::best_isa() >= Isa::avx512) all.push_back(Isa::avx512);
  return all;
}

/// Logits of two models: rows of p, and q = p plus noise. Some logits are -inf, of p, of q and of both.
template <class T>
struct Models {
  index_t positions, vocab;
  std::vector<T> p, q;

  Models(index_t n, index_t v, float spread, float noise, std::uint32_t seed, bool masked = false, float offset = 0)
      : positions(n), vocab(v) {
    const decant::Philox random{seed};
    for (index_t i = 0; i < n * v; ++i) {
      const auto words = random(static_cast<std::uint32_t>(i));
      const float x = decant::Philox::to_unit(words.word[0]);
      const float logit = spread * x * x * x + offset;  // few likely tokens
      const float other = logit + noise * (2 * decant::Philox::to_unit(words.word[1]) - 1) - offset / 2;
      const bool none_p = masked && words.word[2] % 5 == 0, none_q = masked && words.word[2] % 7 == 0;
      p.push_back(T(none_p ? -inf : logit));
      q.push_back(T(none_q ? -inf : other));
    }
  }
  View<const T, 2> view_p() const { return {p.data(), positions, vocab}; }
  View<const T, 2> view_q() const { return {q.data(), positions, vocab}; }
  std::vector<double> row(const std::vector<T>& of, index_t i) const {
    std::vector<double> x;
    for (index_t v = 0; v < vocab; ++v)
      x.push_back(static_cast<double>(static_cast<float>(of[static_cast<std::size_t>(i * vocab + v)])));
    return x;
  }
};

EarResult ear_of(const std::vector<float>& p, const std::vector<float>& q, const EarOptions& options = {}) {
  decant::Cpu cpu;
  return ear(cpu, View<const float, 2>(p.data(), 1, p.size()), View<const float, 2>(q.data(), 1, q.size()), options);
}

bool near(double got, double exact, double bound) { return got == exact || std::abs(got - exact) <= bound; }

/// Every position within the stated bounds of the definition.
template <class T>
void check(const Models<T>& m, const EarOptions& options) {
  for (const Isa isa : isas()) {
    decant::Cpu cpu;
    cpu.set_isa(isa);
    std::vector<EarPosition> each(static_cast<std::size_t>(m.positions));
    const EarResult r = ear(cpu, m.view_p(), m.view_q(), options, {}, each);
    double sum = 0, sum_kl = 0;
    for (index_t i = 0; i < m.positions; ++i) {
      const EarPosition& got = each[static_cast<std::size_t>(i)];
      const oracle::Ear exact = oracle::ear(m.row(m.p, i), m.row(m.q, i), options);
      CAPTURE(decant::name(isa), m.vocab, i, name(options.support), options.top_k, options.top_p, options.temperature,
              got.ear, exact.ear, got.kl, exact.kl);
      REQUIRE(got.state == EarState::counted);
      REQUIRE(near(got.ear, exact.ear, 2e-6));
      REQUIRE(near(got.kl, exact.kl, 2e-6 * (1 + std::abs(exact.kl))));
      REQUIRE(got.agrees == exact.agrees);
      REQUIRE(near(static_cast<double>(got.margin), exact.margin, 1e-6));
      sum += got.ear;
      sum_kl += got.kl;
    }
    REQUIRE(r.positions == m.positions);
    REQUIRE(r.excluded == 0);
    REQUIRE(r.ear == Approx(sum / static_cast<double>(m.positions)).epsilon(1e-14));
    REQUIRE((std::isinf(sum_kl) ? std::isinf(r.kl) : r.kl == Approx(sum_kl / static_cast<double>(m.positions))));
  }
}

TEST_CASE("ear equals its definition") {
  for (const EarSupport support : supports) {
    for (const index_t vocab : {1, 2, 5, 63, 64, 65, 1023, 1024, 1025, 2500}) {
      check(Models<float>(3, vocab, 12, 1, 1), {.support = support});
      check(Models<float>(2, vocab, 30, 4, 2, true), {.support = support, .top_k = 3});
    }
    check(Models<float>(2, 3000, 200, 40, 3, false, -700), {.support = support, .temperature = 0.7f});
    check(Models<float>(2, 700, 8, 0.01f, 4, false, 90), {.support = support, .top_k = 40, .temperature = 1.6f});
  }
}

TEST_CASE("ear of every storage type") {
  for (const EarSupport support : supports) {
    check(Models<decant::bf16>(2, 1300, 12, 1, 5), {.support = support});
    check(Models<decant::fp16>(2, 1300, 12, 1, 6), {.support = support});
    check(Models<decant::fp8_e4m3>(2, 300, 12, 1, 7), {.support = support});
    check(Models<decant::fp8_e5m2>(2, 300, 12, 1, 8), {.support = support});
  }
  // Different ones, as floats.
  const Models<decant::bf16> m(1, 500, 12, 1, 9);
  std::vector<float> wide(m.q.begin(), m.q.end());
  decant::Cpu cpu;
  CHECK(ear(cpu, m.view_p(), View<const float, 2>(wide.data(), 1, 500)).ear == ear(cpu, m.view_p(), m.view_q()).ear);
}

TEST_CASE("nuclei first, then minima") {
  for (const EarSupport support : supports) {
    for (const float top_p : {0.01f, 0.5f, 0.9f, 0.999f}) {
      for (const index_t vocab : {1, 7, 1500}) {
        check(Models<float>(3, vocab, 12, 1, 10), {.support = support, .top_p = top_p});
        check(Models<decant::bf16>(2, vocab, 9, 1, 11), {.support = support, .temperature = 1.3f, .top_p = top_p});
      }
    }
  }
}

TEST_CASE("laws of ear") {
  decant::Cpu cpu;
  const Models<float> m(40, 900, 10, 2, 12);
  std::vector<EarPosition> forth(40), back(40), moved(40), top(40);
  ear(cpu, m.view_p(), m.view_q(), {}, {}, forth);
  ear(cpu, m.view_q(), m.view_p(), {}, {}, back);
  Models<float> shifted = m;
  for (float& x : shifted.q) x += 13;
  ear(cpu, shifted.view_p(), shifted.view_q(), {}, {}, moved);
  for (std::size_t i = 0; i < 40; ++i) {
    CHECK(forth[i].ear == Approx(back[i].ear).epsilon(1e-12));
    CHECK(near(moved[i].ear, forth[i].ear, 4e-6));
    CHECK(forth[i].ear >= 0);
    CHECK(forth[i].ear < 1);
    CHECK(1 - forth[i].ear <= std::sqrt(forth[i].kl / 2) + 2e-6);   // Pinsker
    CHECK(forth[i].ear >= 0.5 * std::exp(-forth[i].kl) - 2e-6);     // Bretagnolle and Huber
  }
  for (const EarSupport support : supports) {
    ear(cpu, m.view_p(), m.view_p(), {.support = support}, {}, top);
    for (const EarPosition& at : top) {
      CHECK(at.agrees);
      CHECK(at.kl == 0);
      if (support == EarSupport::full) CHECK(at.ear == 1);
      if (support == EarSupport::topk) CHECK(at.ear < 1);
      if (support == EarSupport::topk_conditioned) CHECK(std::abs(at.ear - 1) < 1e-12);
    }
  }
}

TEST_CASE("two tokens, disjoint supports, one token") {
  for (const float a : {0.1f, 0.5f, 0.8f}) {
    for (const float c : {0.2f, 0.5f, 0.99f}) {
      for (const EarSupport support : supports) {
        const std::vector<float> p{std::log(a), std::log(1 - a)}, q{std::log(c), std::log(1 - c)};
        const double got = ear_of(p, q, {.support = support}).ear;
        CHECK(got == Approx(1 - std::abs(static_cast<double>(a) - static_cast<double>(c))).margin(2e-6));
      }
    }
  }
  for (const EarSupport support : supports) {
    const EarResult apart = ear_of({1, 2, -inf, -inf}, {-inf, -inf, 3, 1}, {.support = support, .top_k = 2});
    CHECK(apart.ear == Approx(0).margin(1e-6));
    CHECK(std::isinf(apart.kl));
    CHECK(apart.top1_agreement == 0);
    CHECK(apart.margin == Approx(std::tanh(0.5)));
    CHECK(ear_of({-7}, {4}, {.support = support}).ear == Approx(1).margin(1e-12));
  }
}

TEST_CASE("supports of ear") {
  decant::Cpu cpu;
  const Models<float> m(5, 200, 8, 2, 13);
  std::vector<double> before(5, 0);
  std::vector<EarPosition> each(5), full(5);
  ear(cpu, m.view_p(), m.view_q(), {}, {}, full);
  for (int k = 1; k <= 256; k = k < 8 ? k + 1 : k * 2) {
    ear(cpu, m.view_p(), m.view_q(), {.support = EarSupport::topk, .top_k = k}, {}, each);
    for (std::size_t i = 0; i < 5; ++i) {
      CHECK(each[i].ear >= before[i]);
      CHECK(each[i].ear <= full[i].ear + 2e-6);
      before[i] = each[i].ear;
    }
  }
  for (const EarSupport support : supports) {
    ear(cpu, m.view_p(), m.view_q(), {.support = support, .top_k = 200}, {}, each);
    for (std::size_t i = 0; i < 5; ++i) {
      CHECK(near(each[i].ear, full[i].ear, 2e-6));
      CHECK(near(each[i].kl, full[i].kl, 4e-6));
    }
  }
  // Proportional on T alone: q has more elsewhere.
  const std::vector<float> p{3, 2, 1, 0, 0}, q{3, 2, 1, 2.5f, 2.5f};
  CHECK(ear_of(p, q, {.support = EarSupport::topk_conditioned, .top_k = 3}).ear == Approx(1).margin(1e-12));
  CHECK(ear_of(p, q, {.support = EarSupport::topk, .top_k = 3}).ear < 0.7);
  // A q that is far away on T still has a distribution there; one that is 0 has none.
  const EarOptions two{.support = EarSupport::topk_conditioned, .top_k = 2};
  CHECK(ear_of({3, 2, 1}, {-2000, -2001, 1}, two).ear == Approx(1).margin(1e-12));
  CHECK(ear_of({3, 2, 1}, {-inf, -inf, 1}, two).ear == 0);
}

TEST_CASE("ties go to the lower token") {
  // T of {2, 2, 2} is the first two; the likeliest tokens are 0 and 1.
  const EarResult r = ear_of({2, 2, 2}, {1, 3, 3}, {.support = EarSupport::topk, .top_k = 2});
  const double z = std::exp(-2.0) + 2;
  CHECK(r.ear == Approx(std::exp(-2.0) / z + 1.0 / 3));
  CHECK(r.top1_agreement == 0);
  CHECK(r.margin == 0);
  CHECK(ear_of({0, 2, 2}, {0, 2, 2}).top1_agreement == 1);
}

TEST_CASE("rows that are no distribution are excluded, padding is skipped") {
  const std::vector<float> p{1, 2, 3, nan, 1, 2, -inf, -inf, -inf, 1, 2, 3, inf, 0, 0, 1, 2, 3, 1, 2, 3};
  const std::vector<float> q{1, 2, 3, 3, 1, 2, 1, 2, 3, 1, nan, 3, 3, 1, 2, -inf, inf, 1, nan, nan, nan};
  const std::vector<std::uint8_t> keep{1, 1, 1, 1, 1, 1, 0};
  for (const Isa isa : isas()) {
    decant::Cpu cpu;
    cpu.set_isa(isa);
    for (const EarSupport support : supports) {
      for (const float top_p : {1.0f, 0.9f}) {
        std::vector<EarPosition> each(7);
        const EarResult r = ear(cpu, View<const float, 2>(p.data(), 7, 3), View<const float, 2>(q.data(), 7, 3),
                                {.support = support, .top_p = top_p}, keep, each);
        CHECK(r.positions == 1);
        CHECK(r.excluded == 5);
        CHECK(r.ear == Approx(1).margin(1e-6));
        CHECK(r.standard_error == 0);
        CHECK(r.percentile_1 == r.ear);
        CHECK(each[0].state == EarState::counted);
        CHECK(each[3].state == EarState::excluded);
        CHECK(each[6].state == EarState::skipped);
      }
    }
  }
  decant::Cpu cpu;
  const EarResult none = ear(cpu, View<const float, 2>(p.data() + 3, 1, 3), View<const float, 2>(q.data(), 1, 3));
  CHECK(std::isnan(none.ear));
  CHECK(none.excluded == 1);
  CHECK(ear(cpu, View<const float, 2>(), View<const float, 2>()).positions == 0);
}

TEST_CASE("the summary of positions") {
  std::vector<EarPosition> each(250);
  std::vector<double> values;
  double sum = 0, squares = 0;
  for (std::size_t i = 0; i < 250; ++i) {
    each[i].state = i % 5 == 4 ? EarState::excluded : EarState::counted;
    each[i].ear = 0.5 + 0.4 * static_cast<double>(decant::Philox{14}.uniform(static_cast<std::uint32_t>(i)));
    each[i].agrees = i % 5 != 0;
    each[i].margin = each[i].agrees ? 0.0f : 0.25f;
    if (i % 5 != 4) values.push_back(each[i].ear);
  }
  for (const double v : values) sum += v;
  for (const double v : values) squares += (v - sum / 200) * (v - sum / 200);
  decant::Cpu cpu;
  const EarResult r = ear_summary(cpu, each);
  std::sort(values.begin(), values.end());
  CHECK(r.positions == 200);
  CHECK(r.excluded == 50);
  CHECK(r.ear == Approx(sum / 200));
  CHECK(r.standard_error == Approx(std::sqrt(squares / 199 / 200)));
  CHECK(r.percentile_1 == values[1]);
  CHECK(r.top1_agreement == 0.75);
  CHECK(r.margin == 0.25);
}

TEST_CASE("pieces of a text are summed up together") {
  decant::Cpu cpu;
  const Models<float> m(9, 150, 8, 2, 15);
  std::vector<EarPosition> each(9);
  const EarResult whole = ear(cpu, m.view_p(), m.view_q());
  const View<EarPosition, 1> view(each);
  ear(cpu, m.view_p().slice(0, 0, 4), m.view_q().slice(0, 0, 4), {}, {}, view.slice(0, 0, 4));
  ear(cpu, m.view_p().slice(0, 4, 5), m.view_q().slice(0, 4, 5), {}, {}, view.slice(0, 4, 5));
  const EarResult pieces = ear_summary(cpu, each);
  CHECK(pieces.ear == whole.ear);
  CHECK(pieces.standard_error == whole.standard_error);
}

TEST_CASE("the best coupling agrees at the rate of ear", "[statistics]") {
  // 4 sigma, 32 tokens: one false alarm in 16,000. The marginals: chi-square with 31 degrees, p > 1e-4 each.
  const Models<float> m(1, 32, 4, 2, 16);
  const auto lp = oracle::log_probabilities(m.row(m.p, 0), 1, 1), lq = oracle::log_probabilities(m.row(m.q, 0), 1, 1);
  const double ear = ear_of(m.p, m.q).ear;
  std::vector<double> counts_p(32, 0), counts_q(32, 0);
  const auto pick = [&](double u, auto weight) {
    std::size_t v = 0;
    for (; v < 31 && u >= weight(v); ++v) u -= weight(v);
    return v;
  };
  constexpr int draws = 200000;
  int agree = 0;
  for (int i = 0; i < draws; ++i) {
    const auto words = decant::Philox{17}(static_cast<std::uint32_t>(i));
    const auto unit = [&](int w) { return (static_cast<double>(words.word[w]) + 0.5) * 0x1p-32; };
    const auto p = [&](std::size_t v) { return std::exp(lp[v]); };
    const auto q = [&](std::size_t v) { return std::exp(lq[v]); };
    std::size_t x, y;
    if (unit(0) < ear) {
      x = y = pick(unit(1) * ear, [&](std::size_t v) { return std::min(p(v), q(v)); });
    } else {
      x = pick(unit(1) * (1 - ear), [&](std::size_t v) { return std::max(p(v) - q(v), 0.0); });
      y = pick(unit(2) * (1 - ear), [&](std::size_t v) { return std::max(q(v) - p(v), 0.0); });
    }
    agree += x == y;
    ++counts_p[x];
    ++counts_q[y];
  }
  CHECK(std::abs(agree / static_cast<double>(draws) - ear) < 4 * std::sqrt(ear * (1 - ear) / draws));
  double chi_p = 0, chi_q = 0;
  for (std::size_t v = 0; v < 32; ++v) {
    chi_p += std::pow(counts_p[v] - draws * std::exp(lp[v]), 2) / (draws * std::exp(lp[v]));
    chi_q += std::pow(counts_q[v] - draws * std::exp(lq[v]), 2) / (draws * std::exp(lq[v]));
  }
  CHECK(chi_p < 69.1);
  CHECK(chi_q < 69.1);
}

TEST_CASE("threads change no bit of ear, and its second call allocates nothing", "[threads]") {
  const Models<decant::bf16> m(37, 1100, 10, 2, 18);
  for (const EarOptions& options : {EarOptions{}, EarOptions{.support = EarSupport::topk}, EarOptions{.top_p = 0.9f}}) {
    std::vector<EarPosition> serial(37), threaded(37);
    decant::Cpu one, many(real_threads(3)), backwards(reversed_threads(5));
    const EarResult a = ear(one, m.view_p(), m.view_q(), options, {}, serial);
    for (decant::Cpu* cpu : {&many, &backwards}) {
      const EarResult b = ear(*cpu, m.view_p(), m.view_q(), options, {}, threaded);
      CHECK(a.ear == b.ear);
      CHECK(a.kl == b.kl);
      CHECK(a.standard_error == b.standard_error);
      for (std::size_t i = 0; i < 37; ++i) {
        CHECK(serial[i].ear == threaded[i].ear);
        CHECK(serial[i].kl == threaded[i].kl);
      }
    }
    const std::size_t high = one.workspace().high_water();
    ear(one, m.view_p(), m.view_q(), options, {}, serial);
    CHECK(one.workspace().high_water() == high);
  }
}

TEST_CASE("what ear refuses") {
  decant::Cpu cpu;
  const std::vector<float> x(12, 0.0f);
  const View<const float, 2> two(x.data(), 2, 6), three(x.data(), 3, 4), strided(x.data(), {2, 3}, {6, 2});
  using decant::ArgumentError;
  CHECK_THROWS_AS(ear(cpu, two, three), ArgumentError);
  CHECK_THROWS_AS(ear(cpu, strided, strided), ArgumentError);
  CHECK_THROWS_AS(ear(cpu, View<const float, 2>(x.data(), 2, 0), View<const float, 2>(x.data(), 2, 0)), ArgumentError);
  CHECK_THROWS_AS(ear(cpu, two, two, {.top_k = 0}), ArgumentError);
  CHECK_THROWS_AS(ear(cpu, two, two, {.temperature = 0}), ArgumentError);
  CHECK_THROWS_AS(ear(cpu, two, two, {.temperature = nan}), ArgumentError);
  CHECK_THROWS_AS(ear(cpu, two, two, {.temperature = 1e-35f}), ArgumentError);
  CHECK_THROWS_AS(ear(cpu, two, two, {.top_p = 0}), ArgumentError);
  CHECK_THROWS_AS(ear(cpu, two, two, {.top_p = 1.5f}), ArgumentError);
  const std::vector<std::uint8_t> keep(3, 1);
  CHECK_THROWS_AS(ear(cpu, two, two, {}, keep), ArgumentError);
  std::vector<EarPosition> each(1);
  CHECK_THROWS_AS(ear(cpu, two, two, {}, {}, each), ArgumentError);
}

}  // namespace quant_ear_test
