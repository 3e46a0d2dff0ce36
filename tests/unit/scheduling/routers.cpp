// Several engines: the cluster's clock, the plain routers' rules, and gossip: that views converge whatever is lost, and
// the signs of the published experiment.
#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <vector>

#include "catch_compat.hpp"
#include "decant/scheduling/block_memory.hpp"
#include "decant/scheduling/gossip_router.hpp"
#include "decant/scheduling/memory_safe.hpp"
#include "decant/scheduling/roofline.hpp"

namespace routers_test {

using namespace decant;
using namespace decant::scheduling;

TEST_CASE("simulate_cluster: one node is simulate(), and the order of the input does not matter") {
  Workload w = integer_workload(4, 200, 100'000'000);
  AtTheDoor<RoundRobin> door;
  const auto alone = simulate(w, Fcfs{}, Roofline{}, TokenMemory(16384));
  const auto one = simulate_cluster(w, Fcfs{}, Roofline{}, TokenMemory(16384), door, {.nodes = 1});
  CHECK((one.requests == alone.requests));
  CHECK((one.totals[0] == alone.totals));
  CHECK(one.makespan == alone.makespan);
  const auto run = [](Workload load, auto router) {
    AtTheDoor d(router);
    return simulate_cluster(std::move(load), McSf{}, Roofline{}, TokenMemory(16384), d, {.nodes = 3});
  };
  const auto a = run(w, JoinShortestQueue{});
  std::reverse(w.begin(), w.end());
  const auto b = run(w, JoinShortestQueue{});
  CHECK((a.requests == b.requests));
  CHECK((a.totals == b.totals));
  CHECK(a.makespan < alone.makespan);
  for (const RequestRecord& r : a.requests) CHECK(r.end > 0);
  CHECK((run(w, PowerOfTwo(3)).requests == run(w, PowerOfTwo(3)).requests));
  CHECK_THROWS_AS(simulate_cluster(w, Fcfs{}, Roofline{}, TokenMemory(16384), door, {.nodes = 0}), ArgumentError);
}

TEST_CASE("simulate_cluster: behind a barrier the slowest sets the pace") {
  // Two nodes, unit steps but for one long prompt: its node's steps are the others'.
  Workload w(2);
  for (std::uint32_t i = 0; i < 2; ++i) {
    w[i].info.tag = i;
    w[i].info.prompt = i == 0 ? 4000 : 10;
    w[i].output = w[i].info.max_output = 3;
  }
  AtTheDoor<RoundRobin> door, again;
  const ClusterOptions apart{.nodes = 2, .limits = {8192, 8}};
  ClusterOptions together = apart;
  together.barrier = true;
  together.sync = 1000;
  const auto free = simulate_cluster(w, Fcfs{}, Roofline{}, TokenMemory(16384), door, apart);
  const auto bound = simulate_cluster(w, Fcfs{}, Roofline{}, TokenMemory(16384), again, together);
  CHECK(free.requests[1].end < free.requests[0].first_token);
  CHECK(bound.requests[1].first_token == bound.requests[0].first_token);
  CHECK(bound.requests[0].first_token == free.requests[0].first_token + 1000);
  CHECK(bound.idle > 0.05);
  CHECK(free.idle == 0);
}

TEST_CASE("plain routers: their rules") {
  RequestInfo request;
  std::vector<NodeView> nodes(4);
  RoundRobin robin;
  for (NodeId i = 0; i < 9; ++i) CHECK(robin.route(request, nodes) == i % 4);
  nodes[0].waiting = 3;
  nodes[1].running = 2;
  nodes[2].running = 1;
  nodes[2].waiting = 1;
  nodes[3].waiting = 5;
  CHECK(JoinShortestQueue{}.route(request, nodes) == 1);
  PowerOfTwo two(1);
  std::map<NodeId, int> seen;
  for (int i = 0; i < 6000; ++i) ++seen[two.route(request, nodes)];
  // Of six pairs: 1 wins three (the tie with 2 among them), 2 two, 0 one; 3, the longest, none.
  CHECK(seen.count(3) == 0);
  CHECK(std::abs(seen[1] - 3000) < 200);
  CHECK(std::abs(seen[2] - 2000) < 200);
  CHECK(std::abs(seen[0] - 1000) < 200);

  ConsistentHash hash;
  std::vector<std::vector<std::uint64_t>> chains(2000);
  std::vector<NodeId> before;
  std::map<NodeId, int> load;
  SplitMix64 next{5};
  for (auto& chain : chains) {
    chain = {next(), next()};
    request.chain = chain;
    before.push_back(hash.route(request, nodes));
    ++load[before.back()];
  }
  for (const auto& [node, count] : load) CHECK(std::abs(count - 500) < 250);
  nodes.emplace_back();
  int moved = 0;
  for (std::size_t i = 0; i < chains.size(); ++i) {
    request.chain = chains[i];
    const NodeId now = hash.route(request, nodes);
    if (now == before[i]) continue;
    CHECK(now == 4);  // to the new node alone
    ++moved;
  }
  CHECK(std::abs(moved - 400) < 200);
  nodes.pop_back();
  for (std::size_t i = 0; i < chains.size(); ++i) {
    request.chain = chains[i];
    CHECK(hash.route(request, nodes) == before[i]);
  }
}

/// Chains of topics that share their first chunks.
std::vector<std::uint64_t> chain_of(std::uint64_t topic, std::uint64_t question, std::uint64_t shared = 30,
                                    std::uint64_t own = 3) {
  std::vector<std::uint64_t> chain;
  for (std::uint64_t i = 0; i < shared; ++i) chain.push_back(SplitMix64{topic << 20 | i}());
  for (std::uint64_t i = 0; i < own; ++i) chain.push_back(SplitMix64{~(question << 8 | i)}());
  return chain;
}

TEST_CASE("gossip: after one round without loss every view is what its owner has; order and repetition do not matter") {
  const GossipOptions o;
  std::vector<GossipNode> nodes;
  for (NodeId n = 0; n < 4; ++n) nodes.emplace_back(n, 4, o);
  SplitMix64 next{2};
  for (int i = 0; i < 200; ++i) nodes[next() % 4].cached(chain_of(next() % 20, next()));
  std::vector<PrefixSummary> old, fresh;
  for (auto& node : nodes) old.push_back(node.snapshot(1));
  for (auto& node : nodes) {
    node.cached(chain_of(99, next()));
    fresh.push_back(node.snapshot(2));
  }
  for (NodeId to = 0; to < 4; ++to) {
    for (NodeId from = 0; from < 4; ++from) {
      if (to % 2 == 0) nodes[to].receive(old[from], 5);
      nodes[to].receive(fresh[from], 7);
      nodes[to].receive(fresh[from], 9);
      nodes[to].receive(old[from], 11);  // late: changes nothing
    }
  }
  std::uint64_t over = 0, questions = 0;
  for (NodeId to = 0; to < 4; ++to) {
    for (NodeId from = 0; from < 4; ++from) {
      if (from == to) continue;
      CHECK(nodes[to].summary(from).queue == 2);
      CHECK(nodes[to].usable(from, 7 + 3 * o.period));
      CHECK_FALSE(nodes[to].usable(from, 8 + 3 * o.period));
      for (std::uint64_t topic = 0; topic < 40; ++topic) {
        const auto chain = chain_of(topic, topic);
        const std::uint32_t believed = nodes[to].match(from, chain), there = nodes[from].index().peek_chain(chain);
        CHECK(believed >= there);  // a Bloom filter forgets nothing
        over += believed - there;
        ++questions;
      }
    }
  }
  CHECK(static_cast<double>(over) < 0.03 * static_cast<double>(questions));
  CHECK_THROWS_AS(nodes[0].receive([] { PrefixSummary s; s.node = 9; return s; }(), 0), ArgumentError);
  // A node that starts anew counts from a higher incarnation: its empty cache is believed.
  GossipNode again(1, 4, o, 1);
  nodes[0].receive(again.snapshot(0), 20);
  CHECK(nodes[0].match(1, chain_of(99, 0)) == 0);
}

TEST_CASE("gossip: lost snapshots only delay") {
  // P(a view has heard nothing of k rounds) = p^k; 12 views, 400 runs; five standard errors.
  const double p = 0.5;
  for (int rounds = 1; rounds <= 4; ++rounds) {
    int behind = 0;
    for (std::uint64_t seed = 0; seed < 400; ++seed) {
      GossipRouter router(4, {.period = 1000, .link = 1}, 500, seed);
      std::vector<NodeView> views(4);
      for (Nanoseconds now = 0; now < 1000u * static_cast<Nanoseconds>(rounds); ++now) {
        if (router.next_event() <= now) router.on_event(now, views);
      }
      for (NodeId to = 0; to < 4; ++to) {
        for (NodeId from = 0; from < 4; ++from) behind += to != from && router.node(to).summary(from).version == 0;
      }
    }
    const double share = behind / 4800.0, expected = std::pow(p, rounds);
    CHECK(std::abs(share - expected) < 5 * std::sqrt(expected * (1 - expected) / 4800));
  }
}

/// The published set-up: four nodes, prompts of about 540 tokens, one output token, one request at a time.
struct Outcome {
  double latency_ms = 0, hit_share = 0, hottest = 0;
};
Outcome serve(bool skewed, GossipOptions o, bool alone = false, std::uint64_t seed = 1) {
  constexpr std::uint32_t topics = 57, requests = 1200, tokens = 33 * 16 + 1;
  o.cached_tokens = 20 * 33 * 16;  // of a node: a third of the topics
  SplitMix64 next{seed};
  std::deque<std::vector<std::uint64_t>> chains;
  Workload w(requests);
  for (std::uint32_t i = 0; i < requests; ++i) {
    const bool hot = skewed && next() % 10 < 8;
    const std::uint64_t topic = hot ? next() % (topics / 5) : next() % topics;
    chains.push_back(chain_of(topic, i));
    w[i].info.tag = i;
    w[i].info.arrival = i * Nanoseconds{600'000'000};
    w[i].info.prompt = tokens;
    w[i].info.chain = chains.back();
  }
  if (alone) o.period = never / 2;  // nobody hears of anybody
  GossipRouter router(4, o);
  RooflineOptions additive;
  additive.additive = true;
  const auto report = simulate_cluster(w, Fcfs{}, Roofline({}, {}, additive),
                                       BlockMemory({.blocks = 20 * 33 + 40, .block_tokens = 16}), router, {.nodes = 4});
  Outcome out;
  std::vector<int> counts(4);
  for (std::size_t i = 0; i < requests; ++i) {
    out.latency_ms += static_cast<double>(report.requests[i].end - report.requests[i].arrival) * 1e-6 / requests;
    out.hit_share += static_cast<double>(report.requests[i].hit_tokens) / tokens / requests;
    ++counts[report.nodes[i]];
  }
  out.hottest = static_cast<double>(*std::max_element(counts.begin(), counts.end())) / requests;
  return out;
}

TEST_CASE("gossip: the signs of the published experiment", "[statistics]") {
  const GossipOptions near{.link = 2'000'000, .parity = true}, far{.link = 200'000'000, .parity = true};
  const Outcome skew_alone = serve(true, near, true), skew = serve(true, near), skew_far = serve(true, far),
                flat_alone = serve(false, near, true), flat = serve(false, near);
  INFO("skewed " << skew_alone.latency_ms << " -> " << skew.latency_ms << ", far " << skew_far.latency_ms << "; hits "
                 << skew_alone.hit_share << " -> " << skew.hit_share << "; uniform hits " << flat_alone.hit_share << " -> "
                 << flat.hit_share << "; hottest " << skew_alone.hottest << " -> " << skew.hottest);
  CHECK(skew.latency_ms < skew_alone.latency_ms);      // routing helps where links are short,
  CHECK(skew_far.latency_ms > skew_alone.latency_ms);  // and costs where they are long
  CHECK(skew.hit_share > skew_alone.hit_share);
  CHECK(flat.hit_share > flat_alone.hit_share);
  // (That skew gains more than a uniform load is theirs, with caches that hold all topics; with these, that hold a
  // third, the uniform load gains more.)
  CHECK(skew.hottest > skew_alone.hottest);            // one node attracts requests,
  GossipOptions stale = near;
  stale.period = 300'000'000'000;
  CHECK(serve(true, stale).hottest < skew.hottest);    // less so where views are stale
  // The choice by cost is no worse than staying or than the paper's choice.
  for (const bool skewed : {true, false}) {
    for (const Nanoseconds link : {Nanoseconds{2'000'000}, Nanoseconds{200'000'000}}) {
      GossipOptions parity{.link = link, .parity = true}, cost{.link = link};
      const double best = std::min(serve(skewed, parity, true).latency_ms, serve(skewed, parity).latency_ms);
      CHECK(serve(skewed, cost).latency_ms <= 1.05 * best);
    }
  }
}

TEST_CASE("gossip: the match is never smaller than what this node has, in parity") {
  GossipOptions o{.parity = true};
  std::vector<GossipNode> nodes;
  for (NodeId n = 0; n < 3; ++n) nodes.emplace_back(n, 3, o);
  SplitMix64 next{8};
  for (int i = 0; i < 60; ++i) nodes[next() % 3].cached(chain_of(next() % 6, next(), next() % 30, 2));
  for (auto& from : nodes) {
    const auto summary = from.snapshot(static_cast<std::uint32_t>(next() % 5));
    for (auto& to : nodes) to.receive(summary, 0);
  }
  RequestInfo request;
  for (std::uint64_t topic = 0; topic < 6; ++topic) {
    const auto chain = chain_of(topic, 12345);
    request.chain = chain;
    request.prompt = 600;
    const NodeId to = nodes[0].route(request, 0, 1);
    for (NodeId n = 0; n < 3; ++n) CHECK(nodes[0].match(to, chain) >= nodes[0].match(n, chain));
    if (nodes[0].match(0, chain) == nodes[0].match(to, chain)) CHECK(to == 0);
  }
  // An overloaded node is left alone until it has recovered.
  PrefixSummary busy = nodes[1].snapshot(9);
  CHECK(busy.overloaded);
  CHECK(nodes[1].snapshot(5).overloaded);
  CHECK_FALSE(nodes[1].snapshot(3).overloaded);
  busy.version += 10;
  nodes[0].receive(busy, 1);
  CHECK_FALSE(nodes[0].usable(1, 1));
}

}  // namespace routers_test
