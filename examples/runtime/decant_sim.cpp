// decant-sim: runs a trace or a generated load through the serving simulator under several schedulers and compares them.
//   decant-sim --generator integer --seed 42 --gap 200000000 --requests 400 --kv 16384 --policy fcfs,mc-sf
//   decant-sim --trace AzureLLMInferenceTrace_conv.csv --trace-format azure --policy fcfs,sarathi --plot plot.svg
// Time is simulated: nothing is measured, and the same command prints the same numbers on every machine (generators
// that use libm: on this one).
#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <CLI/CLI.hpp>
#include <decant/scheduling/alpha_protection.hpp>
#include <decant/scheduling/block_memory.hpp>
#include <decant/scheduling/fair_share.hpp>
#include <decant/scheduling/generators.hpp>
#include <decant/scheduling/interval.hpp>
#include <decant/scheduling/memory_safe.hpp>
#include <decant/scheduling/metrics.hpp>
#include <decant/scheduling/prefill_first.hpp>
#include <decant/scheduling/prefix_orders.hpp>
#include <decant/scheduling/roofline.hpp>
#include <decant/scheduling/sarathi.hpp>
#include <decant/scheduling/simulator.hpp>
#include <decant/scheduling/stop_rules.hpp>
#include <decant/scheduling/weighted.hpp>

#include "output.hpp"
#include "svg_plot.hpp"
#include "traces.hpp"

namespace {

using decant::require;
using namespace decant::scheduling;
using runtime::fixed;

constexpr const char* where = "sim";

struct Options {
  std::string generator = "integer", trace, trace_format = "azure";
  std::uint64_t seed = 42;
  std::uint64_t gap = 200'000'000;
  std::uint32_t requests = 400;
  double rate = 5, shape = 1, speed = 1;
  std::string prompt = "lognormal:6.6,1.0,8000", output = "lognormal:5.0,0.9,1000";
  std::uint64_t kv = 131072;
  std::uint32_t max_running = 256, budget = 2048;
  std::string device = "a100", cost = "max", predict = "exact";
  double ttft_ms = 2000, tpot_ms = 100, sarathi_ms = 50;
  bool lag = false, reuse = false;
  std::uint32_t block = 16;
  std::vector<std::string> policies = {"fcfs", "sjf", "mc-fcfs", "mc-sf"};
  std::string json, plot;
};

/// Memory with or without a prefix cache, chosen when the program runs.
class SimMemory {
 public:
  explicit SimMemory(const Options& o) : memory_(TokenMemory(o.kv)) {
    if (!o.reuse) return;
    const std::uint64_t blocks = o.kv / o.block;
    require(blocks >= 1 && blocks < 0x7fffffffu, where, "--kv", "room for 1 to 2^31 - 2 blocks", o.kv);
    memory_ = BlockMemory({.blocks = static_cast<std::uint32_t>(blocks), .block_tokens = o.block});
  }

  std::uint64_t capacity() const { return std::visit([](const auto& m) { return m.capacity(); }, memory_); }
  std::uint64_t used() const { return std::visit([](const auto& m) { return m.used(); }, memory_); }
  std::uint32_t hit(const RequestInfo& info, std::uint32_t tokens) const {
    return std::visit([&](const auto& m) { return m.hit(info, tokens); }, memory_);
  }
  bool open(RequestId id, const RequestInfo& info, std::uint32_t hit, std::uint32_t tokens) {
    return std::visit([&](auto& m) { return m.open(id, info, hit, tokens); }, memory_);
  }
  bool grow(RequestId id, std::uint32_t tokens) {
    return std::visit([&](auto& m) { return m.grow(id, tokens); }, memory_);
  }
  void close(RequestId id, const RequestInfo& info, std::uint32_t tokens) {
    std::visit([&](auto& m) { m.close(id, info, tokens); }, memory_);
  }

 private:
  std::variant<TokenMemory, BlockMemory> memory_;
};
static_assert(KvMemory<SimMemory>);

/// "uniform:LEAST,MOST" or "lognormal:MU,SIGMA,MOST".
LengthLaw law(const std::string& text, const char* option) {
  double a = 0, b = 0, c = 0;
  char end = 0;
  if (std::sscanf(text.c_str(), "uniform:%lf,%lf%c", &a, &b, &end) == 2 && a >= 1 && b >= a && b <= 1e6) {
    return LengthLaw::uniform(static_cast<std::uint32_t>(a), static_cast<std::uint32_t>(b));
  }
  const bool lognormal = std::sscanf(text.c_str(), "lognormal:%lf,%lf,%lf%c", &a, &b, &c, &end) == 3;
  require(lognormal && a > -20 && a < 20 && b >= 0 && b < 20 && c >= 1 && c <= 1e6, where, option,
          "uniform:LEAST,MOST or lognormal:MU,SIGMA,MOST, lengths from 1 to 1e6", text);
  return LengthLaw::lognormal(a, b, static_cast<std::uint32_t>(c));
}

runtime::Trace load(const Options& o) {
  runtime::Trace trace;
  if (!o.trace.empty()) {
    trace = runtime::read_trace(o.trace, o.trace_format);
  } else if (o.generator == "integer") {
    trace.requests = integer_workload(o.seed, o.requests, o.gap);
  } else if (o.generator == "poisson" || o.generator == "gamma") {
    const Arrivals arrivals{.rate = o.rate, .shape = o.generator == "gamma" ? o.shape : 1};
    trace.requests =
        random_workload(o.seed, o.requests, arrivals, law(o.prompt, "--prompt"), law(o.output, "--output"));
  } else {
    require(o.generator == "sessions", where, "--generator", "integer, poisson, gamma or sessions", o.generator);
    trace.requests = session_workload(o.seed, {.sessions = (o.requests + 3) / 4, .turns = 4}, {.rate = o.rate},
                                      law(o.prompt, "--prompt"), law(o.output, "--output"));
  }
  // Sessions have no tokens; what a session's turns share is told apart by its number and the place in it.
  for (SimulatedRequest& r : trace.requests) {
    if (r.info.group == 0 || !r.info.chain.empty()) continue;
    std::vector<std::uint64_t>& chain = trace.chains.emplace_back(r.info.prompt / o.block);
    for (std::size_t i = 0; i < chain.size(); ++i) chain[i] = SplitMix64{std::uint64_t{r.info.group} << 32 | i}();
    r.info.chain = chain;
  }
  require(o.speed > 0 && o.speed < 1e6, where, "--speed", "a positive factor", o.speed);
  for (SimulatedRequest& r : trace.requests) {
    if (o.speed != 1) r.info.arrival = static_cast<Nanoseconds>(static_cast<double>(r.info.arrival) / o.speed);
    if (o.predict == "none") r.info.output = LengthEstimate::unknown(r.info.max_output);
  }
  require(o.predict == "exact" || o.predict == "none", where, "--predict", "exact or none", o.predict);
  return trace;
}

Roofline roofline(const Options& o) {
  RooflineOptions options;
  require(o.cost == "max" || o.cost == "additive", where, "--cost", "max or additive", o.cost);
  options.additive = o.cost == "additive";
  if (o.device == "a100") return Roofline(ModelShape::llama3_8b(), DeviceRates::a100(), options);
  if (o.device == "h200") return Roofline(ModelShape::llama3_8b(), DeviceRates::h200(), options);
  require(o.device == "rtx-6000-ada", where, "--device", "a100, h200 or rtx-6000-ada", o.device);
  return Roofline(ModelShape::llama3_8b(), DeviceRates::rtx_6000_ada(), options);
}

/// One policy's run, and how full memory was: at most about a thousand points.
struct Run {
  std::string policy;
  SimulationReport report;
  ServingSummary summary;
  std::vector<std::pair<double, double>> kv;
};

template <class Policy>
Run run(const Options& o, const runtime::Trace& trace, const std::string& name, Policy policy) {
  Run out;
  out.policy = name;
  std::uint64_t steps = 0, every = 1;
  const auto observe = [&](Nanoseconds now, const Batch<SimMemory>& batch) {
    if (steps++ % every != 0) return;
    out.kv.emplace_back(static_cast<double>(now) * 1e-9,
                        100 * static_cast<double>(batch.memory().used()) / static_cast<double>(o.kv));
    if (out.kv.size() < 2000) return;
    for (std::size_t i = 0; i < 1000; ++i) out.kv[i] = out.kv[2 * i];
    out.kv.resize(1000);
    every *= 2;
  };
  out.report = simulate(trace.requests, std::move(policy), roofline(o), SimMemory(o),
                        {.limits = {o.budget, o.max_running}, .lag = o.lag}, observe);
  out.summary = summarise(out.report.requests, {static_cast<Nanoseconds>(o.ttft_ms * 1e6),
                                                static_cast<Nanoseconds>(o.tpot_ms * 1e6)});
  return out;
}

/// A scheduler by its name.
struct Named {
  const char* name;
  std::function<Run(const Options&, const runtime::Trace&, const std::string&)> run;
};

template <class Policy>
Named named(const char* name, const Policy& policy = {}) {
  return {name, [policy](const Options& o, const runtime::Trace& trace, const std::string& word) {
            return run(o, trace, word, policy);
          }};
}

std::vector<Named> schedulers(const Options& o) {
  return {
      named<Fcfs>("fcfs"),
      named<Sjf>("sjf"),
      named("sjf-aged", Continuous<ByKey<RemainingLength>>(
                            {}, ByKey<RemainingLength>({.age_weight = 1, .age_unit = 50'000'000}))),
      named<ShortestPrefillFirst>("shortest-prefill"),
      named<McFcfs>("mc-fcfs"),
      named<McSf>("mc-sf"),
      named<PrefillFirst>("prefill-first"),
      named("sarathi", Sarathi<>(static_cast<Nanoseconds>(o.sarathi_ms * 1e6), roofline(o))),
      named<ByPriority>("priority"),
      named<FairShare>("fair-share"),
      named("lpm", Lpm({}, LongestPrefixMatch({.chunk = o.block}))),
      named("dfs-weight", DfsWeighted({}, DfsWeight({.chunk = o.block}))),
      named<Hrrn>("hrrn"),
      named<Wsf>("wsf"),
      named<AMin>("a-min"),
      named("alpha-protection", AlphaProtection{}),
      named("feather-rule", PrefixHomogeneous<ChunkLossRule>({}, {.chunk = o.block})),
      named("feather-ucb", PrefixHomogeneous<UcbStop>({}, {.chunk = o.block})),
      named("feather-model", PrefixHomogeneous<ModelStop<>>(ModelStop<>(roofline(o)), {.chunk = o.block})),
  };
}

Run run(const Options& o, const runtime::Trace& trace, const std::vector<Named>& all, const std::string& name) {
  std::string known;
  for (const Named& s : all) {
    if (name == s.name) return s.run(o, trace, name);
    known += (known.empty() ? "" : ", ") + std::string(s.name);
  }
  require(false, where, "--policy", known, name);
  return {};
}

runtime::Json json_of(const Percentiles& p) {
  return {{"mean", p.mean()}, {"p50", p.p50}, {"p90", p.p90}, {"p99", p.p99}, {"max", p.max}};
}

runtime::Json json_of(const Run& r) {
  const EngineTotals& t = r.report.totals;
  const ServingSummary& s = r.summary;
  char digest[17];
  std::snprintf(digest, sizeof digest, "%016llx", static_cast<unsigned long long>(t.digest));
  return {{"policy", r.policy},
          {"makespan_ns", r.report.makespan},
          {"steps", t.steps},
          {"preemptions", t.preemptions},
          {"sum_ttft_ns", s.ttft.sum},
          {"sum_e2e_ns", s.e2e.sum},
          {"digest", digest},
          {"requests", s.requests},
          {"rejected", s.rejected},
          {"output_tokens", s.output_tokens},
          {"computed_tokens", t.computed_tokens},
          {"recomputed_tokens", t.lost_tokens},
          {"prefix_hit_tokens", t.hit_tokens},
          {"busy_ns", t.busy},
          {"tokens_per_second", s.tokens_per_second()},
          {"goodput_per_second", s.goodput()},
          {"fairness", s.fairness},
          {"ttft_ns", json_of(s.ttft)},
          {"tpot_ns", json_of(s.tpot)},
          {"e2e_ns", json_of(s.e2e)},
          {"longest_gap_ns", json_of(s.longest_gap)}};
}

void print_table(const std::vector<Run>& runs) {
  const auto s = [](double ns) { return fixed(ns * 1e-9, 2); };
  const auto ms = [](std::uint64_t ns) { return fixed(static_cast<double>(ns) * 1e-6, 1); };
  std::vector<std::vector<std::string>> rows = {{"policy", "makespan s", "tok/s", "goodput /s", "preempted", "TTFT p50 s",
                                                 "TTFT p99 s", "TPOT p50 ms", "TPOT p99 ms", "e2e mean s", "found", "fairness"}};
  for (const Run& r : runs) {
    const ServingSummary& m = r.summary;
    rows.push_back({r.policy, s(static_cast<double>(r.report.makespan)), fixed(m.tokens_per_second(), 1),
                    fixed(m.goodput(), 2), std::to_string(r.report.totals.preemptions),
                    s(static_cast<double>(m.ttft.p50)), s(static_cast<double>(m.ttft.p99)), ms(m.tpot.p50),
                    ms(m.tpot.p99), s(m.e2e.mean()), std::to_string(r.report.totals.hit_tokens), fixed(m.fairness, 3)});
  }
  std::fputs(runtime::markdown_table(rows).c_str(), stdout);
  if (!runs.empty() && runs[0].summary.rejected > 0) {
    std::printf("%llu requests are larger than memory and were rejected\n",
                static_cast<unsigned long long>(runs[0].summary.rejected));
  }
}

std::vector<std::pair<double, double>> curve(const Run& r, Nanoseconds (*value)(const RequestRecord&), double unit) {
  std::vector<std::uint64_t> values;
  for (const RequestRecord& record : r.report.requests) {
    if (!record.rejected) values.push_back(value(record));
  }
  std::vector<std::pair<double, double>> points;
  std::sort(values.begin(), values.end());
  for (std::uint32_t p = 1; p <= 100 && !values.empty(); ++p) {
    points.emplace_back(p, static_cast<double>(percentile(values, 10 * p)) / unit);
  }
  return points;
}

void write_plot(const std::string& path, const std::vector<Run>& runs) {
  std::vector<runtime::PlotPanel> panels = {{"time to first token", "percentile", "s", {}},
                                            {"time per output token", "percentile", "ms", {}},
                                            {"keys and values in memory", "time, s", "% of memory", {}}};
  for (const Run& r : runs) {
    panels[0].lines.push_back({r.policy, curve(r, ttft, 1e9)});
    panels[1].lines.push_back({r.policy, curve(r, tpot, 1e6)});
    panels[2].lines.push_back({r.policy, r.kv});
  }
  const std::string text = runtime::svg_plot(panels);
  runtime::OutputFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Compares schedulers of LLM serving in a deterministic simulation");
  Options o;
  app.add_option("--trace", o.trace, "A trace file instead of a generator");
  app.add_option("--trace-format", o.trace_format, "azure, burstgpt or mooncake")->capture_default_str();
  app.add_option("--generator", o.generator, "integer, poisson, gamma or sessions")->capture_default_str();
  app.add_option("--seed", o.seed, "Of the generator")->capture_default_str();
  app.add_option("--requests", o.requests, "Of the generator")->capture_default_str();
  app.add_option("--gap", o.gap, "integer: gaps are below this, ns")->capture_default_str();
  app.add_option("--rate", o.rate, "poisson, gamma, sessions: arrivals per second")->capture_default_str();
  app.add_option("--shape", o.shape, "gamma: shape of the gaps; below 1 arrivals come in bursts")->capture_default_str();
  app.add_option("--prompt", o.prompt, "Law of prompts: uniform:LEAST,MOST or lognormal:MU,SIGMA,MOST")
      ->capture_default_str();
  app.add_option("--output", o.output, "Law of outputs")->capture_default_str();
  app.add_option("--speed", o.speed, "Arrivals come this many times as fast")->capture_default_str();
  app.add_option("--kv", o.kv, "Tokens that memory holds")->capture_default_str();
  app.add_option("--maxseq", o.max_running, "Requests that may run at once")->capture_default_str();
  app.add_option("--budget", o.budget, "Tokens of a step")->capture_default_str();
  app.add_option("--device", o.device, "a100, h200 or rtx-6000-ada, with Llama-3-8B")->capture_default_str();
  app.add_option("--cost", o.cost, "max or additive: how compute and memory time combine")->capture_default_str();
  app.add_option("--predict", o.predict, "What schedulers know of output lengths: exact or none")
      ->capture_default_str();
  app.add_option("--policy", o.policies, "Schedulers, separated by commas")->delimiter(',')->capture_default_str();
  app.add_option("--sarathi-ms", o.sarathi_ms, "sarathi: the longest step")->capture_default_str();
  app.add_option("--ttft-ms", o.ttft_ms, "Objective that goodput counts")->capture_default_str();
  app.add_option("--tpot-ms", o.tpot_ms, "Objective that goodput counts")->capture_default_str();
  app.add_flag("--reuse", o.reuse, "Prompts find the prefixes that are in memory still: traces with ids, sessions");
  app.add_option("--block", o.block, "Tokens of a block of memory, and of a trace's ids (mooncake: 512)")
      ->capture_default_str();
  app.add_flag("--lag", o.lag, "Schedulers hear of a step one step late");
  app.add_option("--json", o.json, "Results to this file; -: to standard output, instead of the table");
  app.add_option("--plot", o.plot, "Percentiles and memory over time, as SVG");
  try {
    app.parse(argc, argv);
    if (!o.json.empty() && o.json != "-") runtime::require_writable(o.json, "--json");
    if (!o.plot.empty()) runtime::require_writable(o.plot, "--plot");
    require(!o.policies.empty(), where, "--policy", "at least one", "none");
    require(o.sarathi_ms > 0 && o.sarathi_ms < 1e6, where, "--sarathi-ms", "a positive time", o.sarathi_ms);
    require(o.block >= 1, where, "--block", "at least 1 token", o.block);
    const auto all = schedulers(o);
    const runtime::Trace trace = load(o);
    std::vector<Run> runs;
    for (const std::string& name : o.policies) runs.push_back(run(o, trace, all, name));
    // One policy is an object, several are a list of them.
    runtime::Json json;
    for (const Run& r : runs) json.push_back(json_of(r));
    if (runs.size() == 1) json = runtime::Json(json[0]);
    if (o.json == "-") {
      std::printf("%s\n", json.dump(2).c_str());
    } else {
      print_table(runs);
      if (!o.json.empty()) runtime::write_json(o.json, json);
    }
    if (!o.plot.empty()) write_plot(o.plot, runs);
    return 0;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const decant::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
