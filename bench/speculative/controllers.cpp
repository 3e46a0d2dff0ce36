// Controllers of draft length against every fixed length, simulated: all meet the same texts and the same luck, and
// time is what the cost of a step says (StepCost), in seconds of the simulation. No row is a measurement of a machine.
// The value is tokens per such second; low and high are the ends of the 95 % paired bootstrap interval (1,000
// resamples over requests) of its ratio to the best fixed length, which is chosen with hindsight on the same texts;
// the peers are throughputs, "informed" with the true probabilities of the tokens ahead, "clairvoyant" with the
// future. mode: paper and code as published, corrected, ours. paper SpecKv counts tokens and not their time: the
// cautionary row. SpecKv's weights are fitted to other texts of the same process. EntropyHistory chooses between 4
// tokens and none; its published form counts entropies up to 10 nats, as its code does, the corrected one up to 4,
// where these texts' lie.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "decant/speculative/fixed_length.hpp"
#include "decant/speculative/speckv.hpp"
#include "decant/speculative/speckv_fit.hpp"
#include "decant/speculative/throughput_optimal.hpp"
#include "draining_batch.hpp"
#include "harness.hpp"
#include "learning_drafter.hpp"
#include "simulated_steps.hpp"
#include "two_servers.hpp"

namespace {

using namespace simulated;

constexpr std::int32_t resamples = 1000;
constexpr std::int32_t longest = 8;

/// Texts with what is common to their rows, made when the first row asks.
struct Setting {
  std::string process, cost_name;
  std::vector<Text> texts;
  CostTable cost;
  SpecKvWeights weights;
  std::vector<Served> fixed;
  std::size_t best = 0;
  Served informed, clairvoyant;
};

/// SpecKV's log: drafts of 2, 4, 6 and 8 tokens in turn by lot, on texts of their own.
SpecKvWeights fit_weights(Process process, double level, bool quick) {
  const std::vector<Text> texts = make_texts(process, quick ? 8 : 40, 256, 1001, level);
  std::vector<SpecKvStep> log;
  const decant::Philox random{5};
  for (std::size_t r = 0; r < texts.size(); ++r) {
    const Text& text = texts[r];
    for (std::int32_t at = 0; at + longest < text.size();) {
      const auto draw = static_cast<std::uint32_t>(log.size());
      const auto gamma = static_cast<std::int32_t>(2 + 2 * (random(draw).word[0] % 4));
      const std::int32_t accepted = text.accepted(at, gamma);
      const auto features = SpecKvFeatures::of(View<const float, 1>(text.entropy.data() + at, gamma),
                                               View<const float, 1>(text.confidence.data() + at, gamma));
      log.push_back({features, gamma, gamma, accepted, static_cast<std::int32_t>(r)});
      at += accepted + 1;
    }
  }
  return fit(View<const SpecKvStep, 1>(log), {.epochs = quick ? 20 : 500, .gain = 1e-6, .seed = 1});
}

std::shared_ptr<Setting> make_setting(Process process, double level, const CostTable& cost, bool quick) {
  auto s = std::make_shared<Setting>();
  s->cost = cost;
  s->texts = make_texts(process, quick ? 20 : 300, quick ? 128 : 512, 1, level);
  s->weights = fit_weights(process, level, quick);
  for (std::int32_t g = 0; g <= longest; ++g) {
    FixedLength controller{DraftBudget::chain(g)};
    s->fixed.push_back(serve(controller, s->texts, cost));
    if (s->fixed.back().rate() > s->fixed[s->best].rate()) s->best = s->fixed.size() - 1;
  }
  s->informed = informed(s->texts, cost, longest);
  s->clairvoyant = clairvoyant(s->texts, cost, longest);
  return s;
}

struct Place {
  const char* process;
  Process law;
  double level;
  const char* cost_name;
  CostTable cost;
};

void figure(bench::Row& row, const Setting& s, const Served& served) {
  const Served& best = s.fixed[s.best];
  const Interval i = ratio_interval(served, best, resamples);
  row.figure({.metric = "throughput",
              .unit = "tokens/s",
              .value = served.rate(),
              .peers = {{"best fixed", best.rate()},
                        {"fixed 4", s.fixed[4].rate()},
                        {"informed", s.informed.rate()},
                        {"clairvoyant", s.clairvoyant.rate()}},
              .derived = {{"low", i.low},
                          {"high", i.high},
                          {"tokens/step", served.all_tokens() / static_cast<double>(served.steps)},
                          {"best fixed length", static_cast<double>(s.best)}}});
}

void steps(bench::Suite& suite) {
  // SpecKV's logs, refitted: verification and a drafted token of two targets. NeMo-RL's tables: lengths 3, 5 and 7, and
  // the constant acceptance that their tokens per step imply.
  const Place places[] = {
      {"stationary", Process::stationary, 0.8, "fp16", CostTable::affine(0.02029, 0.01047)},
      {"stationary", Process::stationary, 0.8, "int8", CostTable::affine(0.09045, 0.01041)},
      {"drifting", Process::drifting, 0, "fp16", CostTable::affine(0.02029, 0.01047)},
      {"drifting", Process::drifting, 0, "int8", CostTable::affine(0.09045, 0.01041)},
      {"requests", Process::requests, 0, "fp16", CostTable::affine(0.02029, 0.01047)},
      {"requests", Process::requests, 0, "int8", CostTable::affine(0.09045, 0.01041)},
      {"entropy", Process::entropy, 0.8, "fp16", CostTable::affine(0.02029, 0.01047)},
      {"entropy", Process::entropy, 0.8, "int8", CostTable::affine(0.09045, 0.01041)},
      {"stationary", Process::stationary, 0.869, "rl-zero",
       CostTable::relative({3, 5, 7}, {3.32, 4.35, 5.06}, {1.77, 1.44, 1.21})},
      {"stationary", Process::stationary, 0.745, "rl-think",
       CostTable::relative({3, 5, 7}, {2.77, 3.23, 3.48}, {1.53, 0.84, 0.71})},
  };
  for (const Place& place : places) {
    if (suite.quick() && place.cost_name != std::string("fp16")) continue;
    auto made = std::make_shared<std::shared_ptr<Setting>>();
    const bool quick = suite.quick();
    const auto setting = [made, place, quick]() -> const Setting& {
      if (!*made) *made = make_setting(place.law, place.level, place.cost, quick);
      return **made;
    };
    const auto add = [&](const char* policy, const char* mode, const auto& make) {
      suite.add({.primitive = "control",
                 .policy = policy,
                 .shape = bench::shape("process", place.process, "cost", place.cost_name, "mode", mode)},
                [setting, make](bench::Row& row) {
                  const Setting& s = setting();
                  auto controller = make(s);
                  figure(row, s, serve(controller, s.texts, s.cost));
                });
    };
    add("ThroughputOptimal", "ours", [](const Setting& s) { return ThroughputOptimal(s.cost); });
    add("SpecKv", "paper", [](const Setting& s) {
      return SpecKv<>(s.weights, CostTable(), {.objective = Objective::tokens});
    });
    add("SpecKv", "ours", [](const Setting& s) { return SpecKv<>(s.weights, s.cost); });
    add("EntropyHistory", "code", [](const Setting&) { return EntropyHistoryController<Mode::published>(); });
    add("EntropyHistory", "corrected", [](const Setting&) {
      return EntropyHistoryController<Mode::corrected>(4, EntropyHistory<Mode::corrected>(4));
    });
  }
}

// -- two servers ---------------------------------------------------------------------------------------------------

enum class Variant { synchronous, lead2, unbounded, edc, edc_tvc };

struct Crossing {
  Served served;
  Traffic all;
};

template <Mode M>
Crossing cross(const std::vector<Text>& texts, Servers servers, Variant variant) {
  if (variant != Variant::synchronous) servers.lead = variant == Variant::lead2 ? 2 : 32;
  EntropyHistory<M> history(M == Mode::published ? 10.0f : 4.0f);
  PreVerifyPlanner<M> planner;
  const bool edc = variant == Variant::edc || variant == Variant::edc_tvc;
  TwoServers<M> two(servers, edc ? &history : nullptr, variant == Variant::edc_tvc ? &planner : nullptr);
  Crossing out;
  for (const Text& text : texts) {
    const Traffic t = two.run(text);
    out.served.add(t.tokens, t.seconds);
    out.all.seconds += t.seconds;
    out.all.drafted += t.drafted;
    out.all.wasted += t.wasted;
    out.all.idle += t.idle;
  }
  return out;
}

void two_servers(bench::Suite& suite, double level) {
  const bool quick = suite.quick();
  auto made = std::make_shared<std::vector<Text>>();
  const auto texts = [made, level, quick]() -> const std::vector<Text>& {
    if (made->empty()) *made = make_texts(Process::entropy, quick ? 10 : 200, quick ? 128 : 512, 1, level);
    return *made;
  };
  // draft: the time of a batch in verifications; level: the median probability of a token's acceptance.
  const auto add = [&](double draft, const char* name, const char* mode, const auto& run) {
    suite.add({.primitive = "two_servers",
               .policy = name,
               .shape = bench::shape("level", level, "draft", 4 * draft, "mode", mode)},
              [texts, draft, run](bench::Row& row) {
                const Crossing c = run(texts(), draft);
                const Crossing base = cross<Mode::corrected>(texts(), {.draft = draft}, Variant::synchronous);
                const Interval i = ratio_interval(c.served, base.served, resamples);
                row.figure({.metric = "throughput",
                            .unit = "tokens/verification",
                            .value = c.served.rate(),
                            .peers = {{"synchronous", base.served.rate()}},
                            .derived = {{"low", i.low},
                                        {"high", i.high},
                                        {"accepted", 1 - c.all.wasted / c.all.drafted},
                                        {"verifier idle", c.all.idle / c.all.seconds}}});
              });
  };
  for (const double draft : quick ? std::vector<double>{0.25} : std::vector<double>{0.0625, 0.1875, 0.25, 0.5}) {
    const auto plain = [](Variant v) {
      return [v](const std::vector<Text>& t, double d) { return cross<Mode::corrected>(t, {.draft = d}, v); };
    };
    const auto published = [](Variant v) {
      return [v](const std::vector<Text>& t, double d) { return cross<Mode::published>(t, {.draft = d}, v); };
    };
    add(draft, "Synchronous", "ours", plain(Variant::synchronous));
    add(draft, "FixedLead2", "ours", plain(Variant::lead2));
    add(draft, "Unbounded", "paper", plain(Variant::unbounded));
    add(draft, "EntropyHistory", "code", published(Variant::edc));
    add(draft, "EntropyHistory", "corrected", plain(Variant::edc));
    add(draft, "EntropyHistory+PreVerify", "code", published(Variant::edc_tvc));
    add(draft, "EntropyHistory+PreVerify", "corrected", plain(Variant::edc_tvc));
  }
}

/// In how many of 96 settings of the servers AHASD's order holds (synchronous below asynchronous below drafting control
/// below pre-verification, corrected forms), and in how many each of its three steps up. Noise is not accounted for.
void order(bench::Suite& suite, double level) {
  suite.add({.primitive = "two_servers_order",
             .policy = "EntropyHistory+PreVerify",
             .shape = bench::shape("level", level, "mode", "corrected")},
            [level, quick = suite.quick()](bench::Row& row) {
              const std::vector<Text> texts = make_texts(Process::entropy, quick ? 2 : 30, quick ? 64 : 512, 21, level);
              double settings = 0, held = 0, steps[3] = {};
              for (const std::int32_t length : {1, 2, 4, 8}) {
                for (const double draft : {0.25, 0.5, 0.75, 1.0, 1.5, 2.0}) {
                  for (const double pre : {0.05, 0.125, 0.25, 0.5}) {
                    const Servers servers{.length = length, .draft = draft / length, .pre_verify = pre};
                    double rates[4];
                    int i = 0;
                    for (const Variant v : {Variant::synchronous, Variant::unbounded, Variant::edc, Variant::edc_tvc}) {
                      rates[i++] = cross<Mode::corrected>(texts, servers, v).served.rate();
                    }
                    bool all = true;
                    for (int k = 0; k < 3; ++k) {
                      const bool up = rates[k + 1] > rates[k];
                      steps[k] += up;
                      all = all && up;
                    }
                    held += all;
                    ++settings;
                  }
                }
              }
              row.figure({.metric = "settings",
                          .unit = "share",
                          .value = held / settings,
                          .derived = {{"async above sync", steps[0] / settings},
                                      {"control above async", steps[1] / settings},
                                      {"pre-verification above control", steps[2] / settings}}});
            });
}

// -- rollouts ------------------------------------------------------------------------------------------------------

void rollouts(bench::Suite& suite) {
  struct Batches {
    std::vector<Text> texts;
    std::vector<double> left;
    std::vector<Served> fixed;
    std::size_t best = 0;
  };
  constexpr std::int32_t most = 1024;
  // An 8B model in bf16 at 3.35 TB/s and 400 TFLOP/s, keys and values of 128 KiB a token.
  const Roofline cost{.weight_bytes = 16e9,
                      .cache_bytes_per_token = 131072,
                      .parameters = 8e9,
                      .bytes_per_second = 3.35e12,
                      .flops = 4e14,
                      .overhead_seconds = 1e-3,
                      .draft_seconds = 5e-4};
  for (const long size : suite.sizes({16, 64, 256})) {
    auto made = std::make_shared<Batches>();
    const bool quick = suite.quick();
    const auto batches = [made, size, quick, cost]() -> const Batches& {
      if (!made->texts.empty()) return *made;
      const std::int32_t count = static_cast<std::int32_t>(size) * (quick ? 2 : size > 64 ? 12 : 24);
      for (std::int32_t r = 0; r < count; ++r) {
        const auto request = static_cast<std::uint32_t>(r);
        made->texts.push_back(make_text(Process::requests, answer_length(request, most, 3), request, 3));
      }
      made->left = mean_left(made->texts, most);
      for (std::int32_t g = 0; g <= longest; ++g) {
        made->fixed.push_back(drain(made->texts, static_cast<std::size_t>(size), cost, made->left,
                                    [g](std::int32_t, decant::index_t, const auto&) { return g; },
                                    [](std::int32_t, std::int32_t) {}));
        if (made->fixed.back().rate() > made->fixed[made->best].rate()) made->best = made->fixed.size() - 1;
      }
      return *made;
    };
    struct Kind {
      const char* name;
      RolloutObjective objective;
      bool each;
    };
    const Kind kinds[] = {{"pooled", RolloutObjective::throughput, false},
                          {"throughput", RolloutObjective::throughput, true},
                          {"makespan", RolloutObjective::makespan, true}};
    for (const Kind& kind : kinds) {
      suite.add({.primitive = "rollout",
                 .policy = "RolloutController",
                 .shape = bench::shape("batch", size, "objective", kind.name, "mode", "ours")},
                [batches, size, kind, cost](bench::Row& row) {
                  const Batches& b = batches();
                  RolloutController<Roofline> controller(cost, {.objective = kind.objective});
                  const Served served = drain(
                      b.texts, static_cast<std::size_t>(size), cost, b.left,
                      [&](std::int32_t running, decant::index_t context, const std::vector<RolloutRequest>& requests) {
                        StepSignals signals;
                        signals.batch = running;
                        signals.context = context;
                        return kind.each ? controller.next(signals, View<const RolloutRequest, 1>(requests)).depth
                                         : controller.next(signals).depth;
                      },
                      [&](std::int32_t drafted, std::int32_t accepted) {
                        if (!kind.each) controller.observe({drafted, accepted, 0});
                      });
                  const Served& best = b.fixed[b.best];
                  const Interval i = ratio_interval(served, best, resamples);
                  row.figure({.metric = "throughput",
                              .unit = "tokens/s",
                              .value = served.rate(),
                              .peers = {{"best fixed", best.rate()}, {"no draft", b.fixed[0].rate()}},
                              .derived = {{"low", i.low},
                                          {"high", i.high},
                                          {"best fixed length", static_cast<double>(b.best)}}});
                });
    }
  }
}

// -- updates of the drafter ----------------------------------------------------------------------------------------

enum class Teacher { never, always, whole, bandit };

std::pair<Served, Lesson> lessons(double taught, Teacher teacher, bool quick) {
  std::pair<Served, Lesson> out;
  const std::int32_t texts = quick ? 2 : 40;
  for (std::int32_t r = 0; r < texts; ++r) {
    UpdateBandit bandit({.output_head_seconds = LearningDrafter::price(DraftUpdate::output_head),
                         .whole_seconds = LearningDrafter::price(DraftUpdate::whole)});
    const Lesson lesson = teach(
        taught, quick ? 1000 : 8000, static_cast<std::uint32_t>(r),
        [&](std::int32_t step, double tokens_to_come) {
          if (teacher == Teacher::never) return DraftUpdate::none;
          if (teacher != Teacher::bandit) {
            if (step % 64 != 63) return DraftUpdate::none;
            return teacher == Teacher::whole ? DraftUpdate::whole : DraftUpdate::output_head;
          }
          const DraftUpdate update = bandit.choose(tokens_to_come);
          if (update != DraftUpdate::none) bandit.updated(update, LearningDrafter::price(update));
          return update;
        },
        [&](std::int32_t accepted, bool rejected, bool fixable) {
          bandit.observe({LearningDrafter::slots, accepted, LearningDrafter::step});
          if (rejected) bandit.rejected(fixable);
        });
    out.first.add(lesson.tokens, lesson.seconds);
    out.first.steps += quick ? 1000 : 8000;
    out.second.seconds += lesson.seconds;
    out.second.spent += lesson.spent;
    out.second.updates += lesson.updates;
  }
  return out;
}

void updates(bench::Suite& suite, double taught) {
  const std::pair<const char*, Teacher> teachers[] = {
      {"Never", Teacher::never},
      {"Always", Teacher::always},
      {"AlwaysWhole", Teacher::whole},
      {"UpdateBandit", Teacher::bandit}};
  for (const auto& [name, teacher] : teachers) {
    suite.add({.primitive = "update", .policy = name, .shape = bench::shape("taught", taught, "mode", "ours")},
              [taught, teacher = teacher, quick = suite.quick()](bench::Row& row) {
                const auto [served, lesson] = lessons(taught, teacher, quick);
                const Served never = lessons(taught, Teacher::never, quick).first;
                const Interval i = ratio_interval(served, never, resamples);
                row.figure({.metric = "speedup",
                            .unit = "x",
                            .value = served.rate(),
                            .peers = {{"never", never.rate()}},
                            .derived = {{"low", i.low},
                                        {"high", i.high},
                                        {"tokens/step", served.all_tokens() / static_cast<double>(served.steps)},
                                        {"share of time", lesson.spent / lesson.seconds}}});
              });
  }
}

}  // namespace

int main(int argc, char** argv) {
  bench::Suite suite("speculative", argc, argv);
  steps(suite);
  for (const double level : {0.8, 0.97}) two_servers(suite, level);
  for (const double level : {0.7, 0.8, 0.9, 0.97}) order(suite, level);
  rollouts(suite);
  for (const double taught : {0.8145, 0.85}) updates(suite, taught);
  return suite.run();
}
