// Feather beside first come first served, longest prefix first and DFS by weight, in simulation: output tokens per second
// on 2 to 16 groups of requests that share a prefix, strongly (5,000 of 5,020 tokens) and weakly (500 of 1,000), arriving
// faster than they are served. Llama-3-8B on RTX 6000 Ada rates; what all requests of a step have in common is read
// `kappa` times as fast, which is a belief and not a measurement: each row names it. Peers: the same load under the other
// policies, so a value below 1 is a loss. Error 0: all requests ended.
// The rule's thresholds are chunks of 50 tokens: where prompts have more than five of their own, as with weak sharing
// here, it never lets a second request join the first.
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "decant/scheduling/block_memory.hpp"
#include "decant/scheduling/group_memory.hpp"
#include "decant/scheduling/prefix_orders.hpp"
#include "decant/scheduling/simulator.hpp"
#include "decant/scheduling/stop_rules.hpp"
#include "harness.hpp"

namespace {

using namespace decant::scheduling;

constexpr std::uint32_t chunk = 50;  // as in the code of its authors

struct Load {
  Workload requests;
  std::deque<std::vector<std::uint64_t>> chains;
};

Load load(std::uint32_t groups, std::uint32_t prefix, std::uint32_t own, std::uint32_t requests) {
  Load out;
  SplitMix64 next{11};
  Nanoseconds time = 0;
  for (std::uint32_t i = 0; i < requests; ++i) {
    time += next() % 20'000'000;  // a hundred a second
    SimulatedRequest r;
    r.info.tag = i;
    r.info.arrival = time;
    r.info.prompt = prefix + own;
    r.generates(static_cast<std::uint32_t>(100 + next() % 200));
    r.info.group = static_cast<std::uint32_t>(1 + next() % groups);
    r.info.group_tokens = prefix;
    auto& chain = out.chains.emplace_back();
    for (std::uint32_t c = 0; c < (prefix + own + chunk - 1) / chunk; ++c) {
      const bool shared = (c + 1) * chunk <= prefix;
      chain.push_back(shared ? std::uint64_t{r.info.group} << 32 | c : ~(std::uint64_t{i} << 32 | c));
    }
    r.info.chain = chain;
    out.requests.push_back(r);
  }
  return out;
}

struct Result {
  double rate = 0;
  bool done = true;
};

template <class Policy>
Result run(const Load& w, const Policy& policy, const Roofline& cost) {
  const auto report = simulate(w.requests, policy, cost, GroupMemory({.capacity = 213'000, .reserve_output = true}),
                               {.limits = {32768, 500}});
  Result out;
  std::uint64_t tokens = 0;
  for (const RequestRecord& r : report.requests) {
    tokens += r.output;
    out.done = out.done && r.end > 0;
  }
  out.rate = static_cast<double>(tokens) * 1e9 / static_cast<double>(report.makespan);
  return out;
}

Roofline belief(std::uint32_t numerator, std::uint32_t denominator) {
  RooflineOptions o;
  o.l2_rule = L2Rule::tip;
  o.gain_numerator = numerator;
  o.gain_denominator = denominator;
  return Roofline({}, DeviceRates::rtx_6000_ada(), o);
}

}  // namespace

int main(int argc, char** argv) {
  bench::Suite suite("scheduling", argc, argv);
  const FeatherOptions k{.chunk = chunk};
  struct Kappa {
    const char* name;
    std::uint32_t numerator, denominator;
  };
  for (const long groups : suite.sizes({2, 4, 8, 16})) {
    for (const bool strong : {true, false}) {
      for (const Kappa& kappa : {Kappa{"1", 1, 1}, Kappa{"2.35", 47, 20}, Kappa{"4.3", 43, 10}}) {
        const auto requests = static_cast<std::uint32_t>(suite.quick() ? 60 : 1500);
        const std::string shape = bench::shape("groups", groups, "sharing", strong ? "strong" : "weak", "kappa", kappa.name);
        const auto add = [&](const char* name, const auto& policy) {
          suite.add({.primitive = "simulate", .policy = name, .shape = shape}, [=](bench::Row& row) {
            const Load w = load(static_cast<std::uint32_t>(groups), strong ? 5000 : 500, strong ? 20 : 500, requests);
            const Roofline cost = belief(kappa.numerator, kappa.denominator);
            const Result ours = run(w, policy, cost);
            row.figure({.metric = "simulated throughput",
                        .unit = "tok/s",
                        .value = ours.rate,
                        .peers = {{"FCFS", run(w, Fcfs{}, cost).rate},
                                  {"LPM", run(w, Continuous<LongestPrefixMatch>({}, LongestPrefixMatch({.chunk = chunk})), cost).rate},
                                  {"DFS weight", run(w, Continuous<DfsWeight>({}, DfsWeight({.chunk = chunk})), cost).rate}},
                        .error = ours.done ? 0.0 : 1.0});
          });
        };
        add("PrefixHomogeneous<ChunkLossRule> mode=code", PrefixHomogeneous<ChunkLossRule>({}, k));
        add("PrefixHomogeneous<UcbStop> mode=code", PrefixHomogeneous<UcbStop>({}, k));
        add("PrefixHomogeneous<ModelStop> mode=ours",
            PrefixHomogeneous<ModelStop<>>(ModelStop<>(belief(kappa.numerator, kappa.denominator)), k));
      }
    }
  }
  return suite.run();
}
