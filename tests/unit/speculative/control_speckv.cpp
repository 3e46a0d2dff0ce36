// SpecKV: the network by hand, features, both objectives on the published tables of time, logs, and the fit.
#include <cmath>
#include <limits>
#include <vector>

#include "catch_compat.hpp"
#include "decant/core/random.hpp"
#include "decant/speculative/speckv_fit.hpp"

namespace {

using namespace decant::speculative;
using decant::ArgumentError;
using decant::Philox;
using decant::View;

/// Weights that foretell a given acceptance at lengths 2, 4, 6, 8, whatever the features: a broken line.
SpecKvWeights line_through(const double (&a)[4]) {
  SpecKvWeights w;
  const double slope[3] = {(a[1] - a[0]) / 2, (a[2] - a[1]) / 2, (a[3] - a[2]) / 2};
  for (int j = 0; j < 3; ++j) {
    w.hidden[j][5] = 1;
    w.hidden_bias[j] = static_cast<float>(-2 - 2 * j);
    w.output[j] = static_cast<float>(slope[j] - (j > 0 ? slope[j - 1] : 0));
  }
  w.output_bias = static_cast<float>(a[0]);
  return w;
}

SpecKvWeights constant(float a) {
  SpecKvWeights w;
  w.output_bias = a;
  return w;
}

struct Regime {
  double tokens[4], ms[4], rate[4];
  int fastest;
};
const Regime regimes[] = {
    {{2.615, 3.809, 4.675, 5.281}, {40.81, 62.54, 83.61, 103.57}, {64.08, 60.90, 55.92, 50.99}, 2},
    {{2.620, 3.696, 4.601, 5.203}, {111.12, 132.59, 152.43, 173.93}, {23.58, 27.87, 30.19, 29.91}, 6},
    {{2.597, 3.787, 4.614, 5.223}, {57.34, 78.92, 100.04, 120.73}, {45.29, 47.99, 46.12, 43.26}, 4},
};

TEST_CASE("the network is 6-16-1 as computed by hand") {
  const Philox random{3};
  SpecKvWeights w;
  float* const all = &w.hidden[0][0];
  for (std::uint32_t i = 0; i < 129; ++i) all[i] = 0.3f * (random.uniform(i) - 0.5f);
  w.output_bias = 0.4f;
  const SpecKvFeatures f{1.5f, 0.7f, 3.25f, 0.2f, 2};
  int clipped = 0;
  for (const int g : {1, 2, 4, 6, 8, 30}) {
    const double x[6] = {1.5, static_cast<double>(0.7f), 3.25, static_cast<double>(0.2f), 2, static_cast<double>(g)};
    double y = static_cast<double>(w.output_bias);
    for (int j = 0; j < 16; ++j) {
      double h = static_cast<double>(w.hidden_bias[j]);
      for (int i = 0; i < 6; ++i) h += static_cast<double>(all[j * 6 + i]) * x[i];
      y += std::fmax(h, 0) * static_cast<double>(w.output[j]);
    }
    clipped += y <= 0 || y >= 1;
    REQUIRE(static_cast<double>(w.acceptance(f, g)) == Approx(std::fmin(std::fmax(y, 0), 1)).margin(1e-6));
  }
  REQUIRE(clipped < 6);
  REQUIRE(constant(7).acceptance(f, 4) == 1);
  REQUIRE(constant(-7).acceptance(f, 4) == 0);
}

TEST_CASE("rows say how sure they are, in bits") {
  const std::vector<float> uniform(8, 0.125f);
  REQUIRE(static_cast<double>(row_signals(View<const float, 1>(uniform)).entropy) == Approx(3).margin(1e-6));
  REQUIRE(row_signals(View<const float, 1>(uniform)).confidence == 0.125f);
  const std::vector<float> certain{0, 0, 1, 0};
  REQUIRE(static_cast<double>(row_signals(View<const float, 1>(certain)).entropy) == Approx(0).margin(1e-9));
  REQUIRE(row_signals(View<const float, 1>(certain)).confidence == 1);

  const std::vector<float> entropy{1, 4, 2.5f};
  const std::vector<float> confidence{0.9f, 0.25f, 0.35f};
  const auto f = SpecKvFeatures::of(View<const float, 1>(entropy), View<const float, 1>(confidence),
                                    SpecKvCompression::nf4);
  REQUIRE(f == SpecKvFeatures{2.5f, 0.5f, 4, 0.25f, 2});
  REQUIRE_THROWS_AS(SpecKvFeatures::of(View<const float, 1>(entropy), View<const float, 1>(uniform)), ArgumentError);
}

TEST_CASE("throughput picks the fastest length of each published regime, tokens the longest") {
  for (const Regime& r : regimes) {
    double a[4];
    for (int i = 0; i < 4; ++i) a[i] = (r.tokens[i] - 1) / (2 + 2 * i);
    const SpecKvWeights w = line_through(a);
    for (int i = 0; i < 4; ++i) {
      REQUIRE(static_cast<double>(w.acceptance({}, 2 + 2 * i)) == Approx(a[i]).margin(1e-6));
      REQUIRE(1000 * r.tokens[i] / r.ms[i] == Approx(r.rate[i]).margin(0.02));
    }
    const std::vector<double> ms(r.ms, r.ms + 4);
    const SpecKv fast(w, CostTable({2, 4, 6, 8}, ms));
    REQUIRE(fast.choose({}) == r.fastest);
    std::vector<double> minutes(ms);
    for (double& t : minutes) t /= 60000;
    REQUIRE(SpecKv(w, CostTable({2, 4, 6, 8}, minutes)).choose({}) == r.fastest);
    REQUIRE(SpecKv(w, CostTable{}, SpecKvOptions{.objective = Objective::tokens}).choose({}) == 8);
    // A dearer verification never shortens the draft.
    int last = 0;
    for (double verify = 1; verify < 1000; verify *= 1.3) {
      const int g = SpecKv(w, CostTable::affine(verify, 10.5)).choose({});
      REQUIRE(g >= last);
      last = g;
    }
    REQUIRE(last == 8);
  }
}

TEST_CASE("the published objective takes the longest draft for any hope, the shortest for none") {
  const SpecKvOptions tokens{.objective = Objective::tokens};
  for (const float a : {0.01f, 0.3f, 1.0f}) REQUIRE(SpecKv(constant(a), CostTable{}, tokens).choose({}) == 8);
  REQUIRE(SpecKv(constant(0), CostTable{}, tokens).choose({}) == 2);
  REQUIRE(SpecKv(constant(0), CostTable::affine(1, 0.1)).choose({}) == 2);
}

TEST_CASE("without a cost, with bad weights, or before the draft exists there is no answer") {
  REQUIRE_THROWS_WITH(SpecKv(constant(0.5f), CostTable{}), catch_compat::contains("the cost of a step"));
  REQUIRE_THROWS_WITH(SpecKv(constant(NAN), CostTable::affine(1, 1)), catch_compat::contains("finite weights"));
  REQUIRE_THROWS_WITH(SpecKv(constant(0.5f), CostTable::affine(1, 1), SpecKvOptions{.gammas = {4, 2}}),
                      catch_compat::contains("options.gammas"));
  REQUIRE_THROWS_WITH(SpecKv(constant(0.5f), CostTable::affine(1, 1), SpecKvOptions{.gammas = {}}),
                      catch_compat::contains("options.gammas"));
  const SpecKv replayer(constant(0.5f), CostTable::affine(1, 1), SpecKvOptions{.signals = Signals::same_step});
  REQUIRE_THROWS_WITH(replayer.next({}), catch_compat::contains("known only in a log"));
}

TEST_CASE("the first step and broken signals fall back to four, the end of the text cuts") {
  SpecKv c(constant(1), CostTable::affine(1, 0.01));
  REQUIRE(c.next({}) == DraftBudget::chain(4));
  std::vector<float> entropy{1, 2};
  const std::vector<float> confidence{0.5f, 0.6f};
  StepSignals s{View<const float, 1>(entropy), View<const float, 1>(confidence)};
  REQUIRE(c.next(s) == DraftBudget::chain(8));
  s.tokens_left = 6;
  REQUIRE(c.next(s) == DraftBudget::chain(5));
  entropy[1] = std::numeric_limits<float>::infinity();
  REQUIRE(c.next(s) == DraftBudget::chain(4));
  entropy[1] = NAN;
  REQUIRE(c.next(s) == DraftBudget::chain(4));
  c.observe({4, 4, 1});
}

TEST_CASE("a replay looks at the step before, or at the step itself") {
  // Acceptance 1 where confidence is 1, 0 where it is 0.
  SpecKvWeights w;
  w.hidden[0][1] = 1;
  w.output[0] = 1;
  std::vector<SpecKvStep> log(5);
  const float sure[5] = {1, 0, 1, 1, 0};
  const int text[5] = {0, 0, 0, 1, 1};
  for (std::size_t i = 0; i < 5; ++i) log[i] = {{0, sure[i], 0, 0, 0}, 4, 4, 2, text[i]};
  std::vector<std::int32_t> chosen(5);
  const View<const SpecKvStep, 1> view(log);
  SpecKv(w, CostTable::affine(1, 0.1)).replay(view, View<std::int32_t, 1>(chosen));
  REQUIRE(chosen == std::vector<std::int32_t>{4, 8, 2, 4, 8});
  SpecKv(w, CostTable::affine(1, 0.1), SpecKvOptions{.signals = Signals::same_step})
      .replay(view, View<std::int32_t, 1>(chosen));
  REQUIRE(chosen == std::vector<std::int32_t>{8, 2, 8, 8, 2});
}

/// Texts whose steps are sure or unsure in turns of five; a sure drafter's tokens are accepted with 0.95, the others
/// with 0.4. All four lengths occur.
std::vector<SpecKvStep> log_of(std::uint32_t texts) {
  const Philox random{31};
  std::vector<SpecKvStep> log;
  for (std::uint32_t t = 0; t < texts; ++t) {
    for (std::uint32_t i = 0; i < 20; ++i) {
      const bool sure = (i / 5 + t) % 2 == 0;
      const double noise = 0.2 * random.uniform_double(0, i, t);
      SpecKvStep s;
      s.features = {static_cast<float>((sure ? 0.6 : 3.0) + noise), static_cast<float>((sure ? 0.75 : 0.3) + noise),
                    static_cast<float>((sure ? 1.0 : 4.0) + noise), static_cast<float>((sure ? 0.6 : 0.1) + noise), 0};
      s.gamma = 2 + 2 * static_cast<std::int32_t>(random.uniform_double(1, i, t) * 4);
      s.drafted = i == 19 ? 1 : s.gamma;
      s.sequence = static_cast<std::int32_t>(t);
      while (s.accepted < s.drafted &&
             random.uniform_double(2 + static_cast<std::uint32_t>(s.accepted), i, t) < (sure ? 0.95 : 0.4)) {
        ++s.accepted;
      }
      log.push_back(s);
    }
  }
  return log;
}

/// The share of a draft of g that is accepted on average.
double share(double rate, int g) {
  double sum = 0;
  for (int i = 1; i <= g; ++i) sum += std::pow(rate, i);
  return sum / g;
}

TEST_CASE("a fit learns what a draft's signals say, and the same log gives the same weights", "[statistics]") {
  const std::vector<SpecKvStep> log = log_of(100);
  const View<const SpecKvStep, 1> view(log);
  SpecKvFit same{.signals = Signals::same_step, .gain = 1e-6};  // 2,000 steps
  const SpecKvWeights w = fit(view, same);
  validate(w);
  REQUIRE(w == fit(view, same));
  same.seed = 1;
  REQUIRE(w != fit(view, same));
  const SpecKvFeatures sure{0.7f, 0.85f, 1.1f, 0.7f, 0}, unsure{3.1f, 0.4f, 4.1f, 0.2f, 0};
  for (const int g : {2, 4, 6, 8}) {
    REQUIRE(static_cast<double>(w.acceptance(sure, g)) == Approx(share(0.95, g)).margin(0.08));
    REQUIRE(static_cast<double>(w.acceptance(unsure, g)) == Approx(share(0.4, g)).margin(0.08));
  }
  const SpecKv c(w, CostTable::affine(1, 0.25));
  REQUIRE(c.choose(sure) >= 6);
  REQUIRE(c.choose(unsure) == 2);

  // The step before says the same four times out of five.
  const SpecKvWeights causal = fit(view, SpecKvFit{.gain = 1e-6});
  REQUIRE(causal.acceptance(sure, 4) > causal.acceptance(unsure, 4) + 0.2f);
  REQUIRE(causal.acceptance(sure, 4) < w.acceptance(sure, 4));
}

TEST_CASE("there is no fit without steps") {
  std::vector<SpecKvStep> log(1);
  log[0] = {{1, 0.5f, 1, 0.5f, 0}, 4, 4, 2, 0};
  const View<const SpecKvStep, 1> view(log);
  REQUIRE_THROWS_WITH(fit(view), catch_compat::contains("at least one step"));  // no step before the first
  validate(fit(view, SpecKvFit{.signals = Signals::same_step}));
  log[0].features.max_entropy = NAN;
  REQUIRE_THROWS_AS(fit(view, SpecKvFit{.signals = Signals::same_step}), ArgumentError);
  log[0].accepted = 5;
  REQUIRE_THROWS_WITH(fit(view), catch_compat::contains("argument `log`"));
}

}  // namespace
