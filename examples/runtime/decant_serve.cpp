// decant-serve: several requests at once on the example checkpoint, scheduled by the policies of decant::scheduling over
// one pool of KV pages. Prints what was measured beside what the simulator says of the same policy, its step cost being
// fitted to the measured steps, and checks that every text is the one that the first policy gave (exit status 3: not).
//   decant-serve --model examples/model --text examples/model/evaluation.txt --groups 4 --requests 48
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <decant/scheduling/fair_share.hpp>
#include <decant/scheduling/memory_safe.hpp>
#include <decant/scheduling/metrics.hpp>
#include <decant/scheduling/prefill_first.hpp>
#include <decant/scheduling/prefix_orders.hpp>
#include <decant/scheduling/simulator.hpp>
#include <decant/scheduling/stop_rules.hpp>

#include "model.hpp"
#include "options.hpp"
#include "output.hpp"
#include "serve.hpp"

namespace {

using decant::index_t;
using decant::require;
using namespace decant::scheduling;
using runtime::fixed;

constexpr const char* where = "serve";

struct Options : runtime::ModelOptions {
  std::string text;
  std::uint32_t requests = 48, groups = 4, prefix = 300, own = 40, count = 40;
  double rate = 0;
  std::uint64_t seed = 1;
  std::uint32_t pages = 512, page_size = 16, budget = 256, max_running = 16;
  int repeats = 3;
  bool no_reuse = false;
  std::vector<std::string> policies = {"fcfs", "mc-sf", "lpm", "feather-rule"};
};

/// Prompts of `groups` kinds that begin alike, in random order; lengths vary by a factor of four.
std::vector<runtime::ServedRequest> load(const Options& o, const runtime::Config& config) {
  const std::string text = runtime::read_text_file(o.text);
  const std::size_t needed = std::size_t{o.groups} * o.prefix + 4096 + o.own;
  require(o.groups >= 1 && o.requests >= 1 && o.own >= 1 && o.count >= 1, where, "--requests",
          "requests, groups, own and count of at least 1", o.requests);
  require(text.size() >= needed, where, "--text", "at least " + std::to_string(needed) + " bytes", text.size());
  SplitMix64 next{o.seed};
  std::vector<runtime::ServedRequest> out(o.requests);
  double seconds = 0;
  for (runtime::ServedRequest& r : out) {
    const std::size_t group = next() % o.groups;
    const std::string own = text.substr(o.groups * o.prefix + next() % 4096, o.own / 2 + next() % o.own);
    r.prompt = runtime::prompt_tokens(config, text.substr(group * o.prefix, o.prefix) + own);
    r.count = static_cast<index_t>(o.count / 2 + next() % (o.count + o.count / 2) + 1);
    if (o.rate > 0) seconds += -std::log(1 - static_cast<double>(next() >> 11) * 0x1p-53) / o.rate;
    r.arrival = static_cast<Nanoseconds>(seconds * 1e9);
  }
  return out;
}

/// The same requests for the simulator.
Workload workload_of(const std::vector<runtime::ServedRequest>& requests, const Options& o,
                     std::vector<std::vector<std::uint64_t>>& chains) {
  Workload out(requests.size());
  chains.resize(requests.size());
  for (std::size_t i = 0; i < requests.size(); ++i) {
    SimulatedRequest& r = out[i];
    const std::vector<std::uint32_t> words(requests[i].prompt.begin(), requests[i].prompt.end());
    chains[i] = chain_keys(words, o.page_size);
    r.info.tag = i;
    r.info.arrival = requests[i].arrival;
    r.info.prompt = static_cast<std::uint32_t>(requests[i].prompt.size());
    r.generates(static_cast<std::uint32_t>(requests[i].count));
    r.info.chain = chains[i];
  }
  return out;
}

/// One policy, run with the model, and in simulation.
struct Scheduled {
  const char* name;
  std::function<runtime::ServingRun(const runtime::ServingOptions&)> serve;
  std::function<SimulationReport(const runtime::ServingOptions&, const Workload&, const CalibratedCost&)> simulate;
};

template <class Policy>
Scheduled scheduled(const char* name, decant::Cpu& cpu, const runtime::Model& model,
                    const std::vector<runtime::ServedRequest>& requests, const Policy& policy = {}) {
  return {name,
          [&, policy](const runtime::ServingOptions& s) {
            return runtime::serve(cpu, model.config, model.weights, requests, policy, s);
          },
          [policy](const runtime::ServingOptions& s, const Workload& w, const CalibratedCost& cost) {
            return simulate(w, policy, cost, BlockMemory(s.memory), {.limits = s.limits});
          }};
}

int run(const Options& o) {
  const runtime::Model model(o.model);
  runtime::require_byte_vocabulary(model.config);
  decant::Cpu cpu{runtime::parallel_for_threads(o.threads)};
  const auto requests = load(o, model.config);
  std::vector<std::vector<std::uint64_t>> chains;
  const Workload workload = workload_of(requests, o, chains);
  const runtime::ServingOptions serving{
      {o.budget, o.max_running}, {.blocks = o.pages, .block_tokens = o.page_size, .reuse = !o.no_reuse}};
  const Scheduled all[] = {scheduled<Fcfs>("fcfs", cpu, model, requests), scheduled<Sjf>("sjf", cpu, model, requests),
                           scheduled<McFcfs>("mc-fcfs", cpu, model, requests),
                           scheduled<McSf>("mc-sf", cpu, model, requests),
                           scheduled<PrefillFirst>("prefill-first", cpu, model, requests),
                           scheduled<FairShare>("fair-share", cpu, model, requests),
                           scheduled("lpm", cpu, model, requests, Lpm({}, LongestPrefixMatch({.chunk = o.page_size}))),
                           scheduled("feather-rule", cpu, model, requests,
                                     PrefixHomogeneous<ChunkLossRule>({}, {.chunk = o.page_size}))};
  struct Result {
    const Scheduled* policy;
    std::vector<runtime::ServingRun> runs;
  };
  require(o.repeats >= 1 && o.repeats <= 1000, where, "--repeats", "1 to 1000", o.repeats);
  std::vector<Result> results;
  for (const std::string& name : o.policies) {
    const Scheduled* found = nullptr;
    std::string known;
    for (const Scheduled& s : all) {
      if (name == s.name) found = &s;
      known += (known.empty() ? "" : ", ") + std::string(s.name);
    }
    require(found != nullptr, where, "--policy", known, name);
    results.push_back({found, {}});
  }
  // In turns, so that noise hits all policies; of each the run of median length counts.
  std::vector<MeasuredStep> steps;
  for (int repeat = 0; repeat < o.repeats; ++repeat) {
    for (Result& r : results) {
      r.runs.push_back(r.policy->serve(serving));
      steps.insert(steps.end(), r.runs.back().steps.begin(), r.runs.back().steps.end());
    }
  }
  const auto middle = [](Result& r) -> const runtime::ServingRun& {
    std::sort(r.runs.begin(), r.runs.end(), [](const auto& a, const auto& b) { return a.seconds < b.seconds; });
    return r.runs[r.runs.size() / 2];
  };
  const CalibratedCost cost = calibrate(runtime::model_shape(model.config), steps);

  std::vector<std::vector<std::string>> table = {{"policy", "tok/s", "simulated", "mean e2e s", "simulated", "mean TTFT s",
                                                  "found", "preempted", "same text"}};
  runtime::Json json = runtime::Json::array();
  bool same = true;
  const std::vector<runtime::Tokens> texts = results[0].runs[0].texts;
  for (Result& r : results) {
    const runtime::ServingRun& run = middle(r);
    const SimulationReport simulated = r.policy->simulate(serving, workload, cost);
    const ServingSummary m = summarise(run.records), s = summarise(simulated.requests);
    const bool equal =
        std::all_of(r.runs.begin(), r.runs.end(), [&](const auto& each) { return each.texts == texts; });
    same = same && equal;
    table.push_back({r.policy->name, fixed(m.tokens_per_second(), 1), fixed(s.tokens_per_second(), 1),
                     fixed(m.e2e.mean() * 1e-9, 3), fixed(s.e2e.mean() * 1e-9, 3), fixed(m.ttft.mean() * 1e-9, 3),
                     std::to_string(run.hit_tokens), std::to_string(run.preemptions), equal ? "yes" : "NO"});
    json.push_back({{"policy", r.policy->name},
                    {"tokens_per_second", m.tokens_per_second()},
                    {"simulated_tokens_per_second", s.tokens_per_second()},
                    {"mean_e2e_s", m.e2e.mean() * 1e-9},
                    {"simulated_mean_e2e_s", s.e2e.mean() * 1e-9},
                    {"mean_ttft_s", m.ttft.mean() * 1e-9},
                    {"prefix_hit_tokens", run.hit_tokens},
                    {"preemptions", run.preemptions},
                    {"same_text", equal}});
  }
  std::fputs(runtime::markdown_table(table).c_str(), stdout);
  if (!o.json.empty()) runtime::write_json(o.json, json);
  return same ? 0 : 3;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Serves several requests at once under different schedulers, measured and simulated");
  Options o;
  o.add_to(app);
  app.add_option("--text", o.text, "Prompts are cut from this file")->required();
  app.add_option("--requests", o.requests)->capture_default_str();
  app.add_option("--groups", o.groups, "Kinds of prompts, which begin alike")->capture_default_str();
  app.add_option("--prefix", o.prefix, "Tokens that prompts of a group have in common")->capture_default_str();
  app.add_option("--own", o.own, "Tokens of a prompt's own, on average")->capture_default_str();
  app.add_option("--count", o.count, "Generated tokens, about, on average")->capture_default_str();
  app.add_option("--rate", o.rate, "Arrivals per second; 0: all at once")->capture_default_str();
  app.add_option("--seed", o.seed, "Of the load")->capture_default_str();
  app.add_option("--pages", o.pages, "Of the pool")->capture_default_str();
  app.add_option("--page-size", o.page_size, "Tokens of a page")->capture_default_str();
  app.add_option("--budget", o.budget, "Tokens of a step")->capture_default_str();
  app.add_option("--maxseq", o.max_running, "Requests that may run at once")->capture_default_str();
  app.add_option("--repeats", o.repeats, "Runs of each policy, in turns")->capture_default_str();
  app.add_flag("--no-reuse", o.no_reuse, "Compute every prefix anew");
  app.add_option("--policy", o.policies, "fcfs, sjf, mc-fcfs, mc-sf, prefill-first, fair-share, lpm, feather-rule, separated by commas")
      ->delimiter(',')
      ->capture_default_str();
  int status = 0;
  const int failed = runtime::run_program(app, argc, argv, [&] {
    if (!o.json.empty()) runtime::require_writable(o.json, "--json");
    status = run(o);
  });
  return failed != 0 ? failed : status;
}
