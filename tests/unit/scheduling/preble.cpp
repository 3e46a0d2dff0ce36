// PrebleRouter: where prompts go and why, what a GPU's load is, what the window forgets, what moves, and what all this
// is worth on a load with shared prefixes.
#include <deque>
#include <initializer_list>
#include <utility>
#include <vector>

#include "catch_compat.hpp"
#include "decant/scheduling/block_memory.hpp"
#include "decant/scheduling/continuous.hpp"
#include "decant/scheduling/preble_router.hpp"
#include "decant/scheduling/roofline.hpp"

namespace preble_test {

using namespace decant;
using namespace decant::scheduling;

constexpr Nanoseconds ms = 1'000'000, second = 1000 * ms;
using Chain = std::vector<std::uint64_t>;

/// Prompts by hand: runs of (topic, chunks); a digest tells of all before it.
Chain prompt(std::initializer_list<std::pair<std::uint64_t, int>> runs) {
  Chain chain;
  std::uint64_t before = 0;
  for (const auto& [topic, chunks] : runs) {
    for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(chunks); ++i) {
      chain.push_back(before = SplitMix64{before ^ (topic << 20 | i)}());
    }
  }
  return chain;
}

/// A router and its requests: each is sent at a time, and ends when told.
struct Door {
  explicit Door(std::uint32_t gpus, const PrebleOptions& options = {.chunk = 1, .rebalance = false})
      : router(gpus, options), views(gpus) {}

  NodeId send(const Chain& chain, Nanoseconds now = 0, std::uint32_t output = 1) {
    RequestInfo r;
    r.tag = next++;
    r.arrival = now;
    r.prompt = static_cast<std::uint32_t>(chain.size()) + 1;
    r.output = LengthEstimate::exactly(output);
    r.chain = chain;
    const NodeId to = router.dispatch(now, r, views).node;
    sent.push_back(to);
    return to;
  }
  void end(std::uint64_t tag, Nanoseconds arrival = 0, Nanoseconds first = 0, Nanoseconds last = 0,
           std::uint32_t output = 1) {
    RequestRecord r;
    r.tag = tag;
    r.arrival = arrival;
    r.first_token = first;
    r.end = last;
    r.output = output;
    router.on_end(sent[tag], r);
  }

  PrebleRouter<LinearPrefill> router;
  std::vector<NodeView> views;
  std::vector<NodeId> sent;
  std::uint64_t next = 0;
};

TEST_CASE("preble: a prompt that is mostly known goes where that part is, any other to the least load") {
  Door d(3);
  CHECK(d.send(prompt({{1, 100}})) == 0);  // ties to the lower
  CHECK(d.send(prompt({{2, 100}})) == 1);
  CHECK(d.send(prompt({{3, 50}})) == 2);
  CHECK(d.router.totals() == PrebleTotals{3, 0, 0, 0});
  CHECK(d.send(prompt({{2, 100}, {20, 99}})) == 1);
  CHECK(d.send(prompt({{2, 51}, {21, 50}})) == 1);
  CHECK(d.send(prompt({{2, 100}})) == 1);  // wholly known
  CHECK(d.router.totals().exploited == 3);
  CHECK(d.send(prompt({{2, 50}, {22, 50}})) == 2);  // half is not most
  CHECK(d.send(prompt({{4, 10}})) != 1);
  CHECK(d.router.totals().explored == 5);
  CHECK(d.send({}) < 3);  // nothing known of it
  CHECK(d.router.totals().explored == 6);

  RequestInfo again;
  again.tag = 0;
  CHECK_THROWS_AS(d.router.dispatch(0, again, d.views), ArgumentError);
  again.tag = 99;
  d.views.pop_back();
  CHECK_THROWS_AS(d.router.dispatch(0, again, d.views), ArgumentError);
  CHECK_THROWS_AS(PrebleRouter<>(0), ArgumentError);
  CHECK_THROWS_AS(PrebleRouter<>(65), ArgumentError);
  CHECK_THROWS_AS(PrebleRouter<>(2, {.chunk = 0}), ArgumentError);
  CHECK_THROWS_AS(PrebleRouter<>(2, {.recent = 0}), ArgumentError);
}

TEST_CASE("preble: the whole path is allocated, and requests count at the deepest large node") {
  Door d(2);
  d.send(prompt({{1, 100}, {10, 20}}));                  // on 0
  d.send(prompt({{1, 100}, {11, 20}}));                  // cuts at 100
  const Chain shared = prompt({{1, 100}});
  CHECK(d.router.look(shared) == PreblePrefix{100, 1, 100, 0, 2});
  CHECK(d.router.look(prompt({{1, 100}, {10, 20}})) == PreblePrefix{120, 1, 100, 0, 2});
  CHECK(d.router.tree_nodes() == 3);
  // 150 new tokens after 100: large itself, explored, and all above is on the other GPU too.
  const Chain deep = prompt({{1, 100}, {12, 150}});
  CHECK(d.send(deep) == 1);
  CHECK(d.router.look(deep) == PreblePrefix{250, 2, 150, 100, 1});
  CHECK(d.router.look(shared) == PreblePrefix{100, 3, 100, 0, 2});
  // Below the deep node, its GPU; beside it, the cheaper of the two that have the shared part.
  CHECK(d.send(prompt({{1, 100}, {12, 150}, {5, 30}})) == 1);
  CHECK(d.router.look(deep).requests == 2);
  const NodeId cheaper = d.router.load(0) <= d.router.load(1) ? 0 : 1;
  CHECK(d.send(prompt({{1, 100}, {13, 20}})) == cheaper);
  // A part of an edge is found, but is no node.
  CHECK(d.router.look(prompt({{1, 30}})) == PreblePrefix{30, 0, 0, 0, 0});
  // Where both parts of a cut are large, what was counted stays below.
  Door both(2);
  both.send(prompt({{1, 100}, {2, 300}}));
  both.send(prompt({{1, 100}, {3, 20}}));
  CHECK(both.router.look(prompt({{1, 100}, {2, 300}})) == PreblePrefix{400, 1, 300, 100, 1});
  CHECK(both.router.look(shared) == PreblePrefix{100, 1, 100, 0, 1});
}

TEST_CASE("preble: what a load is") {
  Door d(2, {.chunk = 1, .first_tpot = 100 * ms, .rebalance = false});
  const LinearPrefill prefill{};
  d.send(prompt({{1, 1000}}), 0, 7);
  CHECK(d.router.load(0) == prefill(1000, 0) + 7 * 100 * ms);
  CHECK(d.router.load(1) == 0);
  // One of two prompts of 1000 and 1100 is missed, 1100 of 2100 tokens; both run.
  CHECK(d.send(prompt({{1, 1000}, {2, 100}}), 0, 9) == 0);
  CHECK(d.router.load(0) == prefill(1000, 0) * 1100 * 2 / 2100 + 2 * 9 * 100 * ms);
  // Ends teach: 5 tokens with 20 ms between two (the lower median of 20 and 100), and one request less runs.
  d.end(0, 0, 50 * ms, 130 * ms, 5);
  CHECK(d.router.load(0) == prefill(1000, 0) * 1100 * 2 / 2100 + 1 * 5 * 20 * ms);
  d.end(1, 0, 50 * ms, 50 * ms, 1);  // of one token: nothing to learn
  CHECK(d.router.load(0) == prefill(1000, 0) * 1100 * 2 / 2100);
  d.end(1);  // not known any more
  d.end(0);
  CHECK(d.router.load(0) == prefill(1000, 0) * 1100 * 2 / 2100);
  // A GPU with a longer prompt is left alone until the others have as much.
  Door order(3);
  CHECK(order.send(prompt({{1, 1000}})) == 0);
  CHECK(order.send(prompt({{2, 400}})) == 1);
  CHECK(order.send(prompt({{3, 300}})) == 2);
  CHECK(order.send(prompt({{4, 300}})) == 2);
  CHECK(order.send(prompt({{5, 10}})) == 1);
  // Copies share what is missed.
  Door copies(2);
  copies.send(prompt({{1, 100}}));
  copies.send(prompt({{2, 500}}));
  copies.send(prompt({{1, 100}, {3, 40}}));
  copies.end(0);
  copies.end(1);
  copies.end(2);
  const Nanoseconds before = copies.router.load(0);
  copies.send(prompt({{1, 100}, {4, 101}}));  // explored: 0 has less
  copies.end(3);
  CHECK(copies.sent[3] == 0);
  CHECK(copies.router.load(0) == before + prefill(101, 100) * 101 / 201);
  // A step's cost is a prefill time too.
  const StepPrefill<Roofline> measured{};
  CHECK(measured(2048, 0) == 172'080'820);
}

TEST_CASE("preble: what the window has left is forgotten") {
  Door d(2);
  d.send(prompt({{1, 500}}));
  const Chain b = prompt({{2, 100}});
  CHECK(d.send(b) == 1);
  d.end(0);
  CHECK(d.send(prompt({{2, 100}, {3, 10}}), 100 * second) == 1);
  d.end(2);
  CHECK(d.router.tree_nodes() == 3);
  // At 180 s all is there still; a nanosecond later what came at 0 is gone, but for a running prompt's nodes.
  d.send({}, 180 * second);
  CHECK(d.router.tree_nodes() == 3);
  CHECK(d.router.look(b).requests == 2);
  d.send({}, 180 * second + 1);
  CHECK(d.router.tree_nodes() == 2);
  CHECK(d.router.load(0) == 0);
  CHECK(d.router.look(b) == PreblePrefix{100, 2, 100, 0, 1});
  d.end(1);
  d.send({}, 281 * second);
  CHECK(d.router.tree_nodes() == 0);
  CHECK(d.router.load(1) == 0);
  CHECK(d.send(b, 281 * second) == 0);  // explored anew
  // One that runs for longer than the window stays in the tree, unallocated.
  d.send({}, 500 * second);
  CHECK(d.router.tree_nodes() == 1);
  CHECK(d.router.look(b) == PreblePrefix{100, 0, 100, 0, 0});
  const std::uint64_t explored = d.router.totals().explored;
  d.send(b, 500 * second);
  CHECK(d.router.totals().explored == explored + 1);
}

TEST_CASE("preble: hot nodes move to the GPU that has least") {
  PrebleOptions o{.chunk = 1, .rebalance = true, .rebalance_after = 4};
  Door d(2, o);
  const Chain a = prompt({{1, 10}}), c = prompt({{3, 20}});
  CHECK(d.send(a) == 0);
  CHECK(d.send(prompt({{2, 10000}})) == 1);
  d.end(1);
  CHECK(d.send(c) == 0);
  for (int i = 0; i < 4; ++i) CHECK(d.send(i % 2 == 0 ? a : c) == 0);
  CHECK(d.router.totals().moved == 0);
  // The eighth: both nodes of GPU 0 have requests, GPU 1 has nothing that counts twice. The cheaper node goes.
  CHECK(d.send(c) == 0);
  CHECK(d.router.totals().moved == 1);
  CHECK(d.router.look(a).allocation == 2);
  CHECK(d.router.look(c).allocation == 1);
  CHECK(d.send(a) == 1);
  CHECK(d.send(prompt({{1, 10}, {9, 3}})) == 1);
  CHECK(d.send(c) == 0);
  // Not if it would have more there than it leaves.
  Door near(2, {.chunk = 1, .rebalance_after = 3});
  const Chain b = prompt({{2, 10}}), e = prompt({{3, 10}});
  for (const Chain* chain : {&a, &b, &b}) near.send(*chain);
  near.end(2);
  for (const Chain* chain : {&e, &a, &e}) near.send(*chain);
  CHECK(near.sent == std::vector<NodeId>{0, 1, 1, 0, 0, 0});
  CHECK(near.router.load(0) > 3 * near.router.load(1));
  CHECK(near.router.totals().moved == 0);
  // Without: all stay.
  o.rebalance = false;
  Door still(2, o);
  still.send(a);
  still.send(prompt({{2, 10000}}));
  still.send(c);
  for (int i = 0; i < 20; ++i) CHECK(still.send(i % 2 == 0 ? a : c) == 0);
}

TEST_CASE("preble: one hot node is copied where its prompts wait twice as long as they did") {
  for (const Nanoseconds late : {199 * ms, 200 * ms}) {
    Door d(2, {.chunk = 1, .rebalance_after = 3});
    const Chain a = prompt({{1, 10}});
    CHECK(d.send(a) == 0);
    d.send(prompt({{2, 10}}));
    d.end(1);
    d.send(a, 10 * second);
    d.end(0, 0, 100 * ms, 100 * ms);
    d.end(2, 10 * second, 10 * second + 100 * ms, 10 * second + 100 * ms);
    for (std::uint64_t tag = 3; tag < 9; ++tag) {
      const Nanoseconds now = (97 + tag) * second;
      CHECK(d.send(a, now) == 0);
      if (tag < 8) d.end(tag, now, now + late, now + late);
    }
    CHECK(d.router.look(a).allocation == (late < 200 * ms ? 1u : 3u));
    CHECK(d.router.totals().copied == (late < 200 * ms ? 0u : 1u));
    // One of them runs on GPU 0, so the copy is the cheaper.
    CHECK(d.send(a, 106 * second) == (late < 200 * ms ? 0u : 1u));
  }
}

TEST_CASE("preble: exploring may count what it would evict") {
  // GPU 0 has the smaller load, but would lose a dear node; GPU 1 has a cheap one that is older.
  for (const bool eviction : {false, true}) {
    Door d(2, {.chunk = 1, .rebalance = false, .eviction_cost = eviction});
    CHECK(d.send(prompt({{1, 1000}})) == 0);
    CHECK(d.send(prompt({{2, 10}})) == 1);
    CHECK(d.send(prompt({{3, 1050}})) == 1);
    for (std::uint64_t tag = 0; tag < 3; ++tag) d.end(tag);
    CHECK(d.router.load(0) < d.router.load(1));
    CHECK(d.send(prompt({{4, 10}})) == (eviction ? 1u : 0u));
  }
  // Of nodes used together the deeper goes first, and small ones are worth nothing.
  Door d(2, {.chunk = 1, .rebalance = false, .eviction_cost = true});
  CHECK(d.send(prompt({{1, 100}})) == 0);
  CHECK(d.send(prompt({{2, 50}})) == 1);
  CHECK(d.send(prompt({{1, 100}, {3, 20}})) == 0);
  for (std::uint64_t tag = 0; tag < 3; ++tag) d.end(tag);
  CHECK(d.router.load(0) > d.router.load(1));
  CHECK(d.send(prompt({{4, 10}})) == 0);
}

TEST_CASE("preble: the tree knows the prefixes of the window and of what runs, no others") {
  // Chains over two digests, so that edges are cut everywhere; against all prompts, each looked at.
  PrebleRouter<> router(3, {.chunk = 1, .window = 40, .rebalance_after = 2});
  const std::vector<NodeView> views(3);
  struct Sent {
    Chain chain;
    Nanoseconds time;
    bool running;
  };
  std::vector<Sent> sent;
  SplitMix64 next{3};
  const auto draw = [&] {
    std::uint64_t before = 0;
    Chain chain(next() % 12);
    for (std::uint64_t& digest : chain) digest = before = SplitMix64{before ^ next() % 2}();
    return chain;
  };
  for (Nanoseconds now = 0; now < 800; ++now) {
    sent.push_back({draw(), now, true});
    RequestInfo request;
    request.tag = now;
    request.chain = sent.back().chain;
    router.dispatch(now, request, views);
    while (next() % 3 != 0) {
      const std::uint64_t tag = next() % sent.size();
      sent[tag].running = false;
      RequestRecord record;
      record.tag = tag;
      record.output = 1;
      router.on_end(0, record);
    }
    const Chain asked = draw();
    std::size_t known = 0;
    for (const Sent& s : sent) {
      if (!s.running && s.time + 40 < now) continue;
      std::size_t same = 0;
      while (same < asked.size() && same < s.chain.size() && asked[same] == s.chain[same]) ++same;
      known = same > known ? same : known;
    }
    CHECK(router.look(asked).found == known);
  }
  for (std::uint64_t tag = 0; tag < sent.size(); ++tag) {
    RequestRecord record;
    record.tag = tag;
    router.on_end(0, record);
  }
  RequestInfo last;
  last.tag = 5000;
  router.dispatch(5000, last, views);
  CHECK(router.tree_nodes() == 0);
  for (NodeId g = 0; g < 3; ++g) CHECK(router.load(g) == 0);
}

/// 60 topics of 1,024 tokens, half of the requests of ten of them, on four GPUs that hold twelve topics each.
template <class D>
ClusterReport serve(D& dispatcher, std::uint32_t requests, std::uint32_t gpus) {
  SplitMix64 next{11};
  std::deque<Chain> chains;
  Workload w(requests);
  Nanoseconds time = 0;
  for (std::uint32_t i = 0; i < requests; ++i) {
    const std::uint64_t topic = next() % 2 == 0 ? next() % 10 : next() % 60;
    chains.push_back(prompt({{topic + 1, 64}, {1000 + i, 4}}));
    w[i].info.tag = i;
    w[i].info.arrival = time += next() % (60 * ms);
    w[i].info.prompt = 68 * 16 + 1;
    w[i].generates(static_cast<std::uint32_t>(8 + next() % 25));
    w[i].info.chain = chains.back();
  }
  return simulate_cluster(w, Fcfs{}, Roofline{}, BlockMemory({.blocks = 800, .block_tokens = 16}), dispatcher,
                          {.nodes = gpus});
}
double mean_latency(const ClusterReport& report) {
  double sum = 0;
  for (const RequestRecord& r : report.requests) sum += static_cast<double>(r.end - r.arrival);
  return sum / static_cast<double>(report.requests.size());
}
std::uint64_t hit_tokens(const ClusterReport& report) {
  std::uint64_t sum = 0;
  for (const RequestRecord& r : report.requests) sum += r.hit_tokens;
  return sum;
}

TEST_CASE("preble: shared prefixes, against round robin; and a run repeats") {
  AtTheDoor<RoundRobin> robin;
  PrebleRouter<> preble(4), again(4), evicting(4, {.eviction_cost = true}), still(4, {.rebalance = false});
  const auto blind = serve(robin, 600, 4), seeing = serve(preble, 600, 4), twice = serve(again, 600, 4),
             dear = serve(evicting, 600, 4), fixed = serve(still, 600, 4);
  INFO("latency " << mean_latency(blind) * 1e-6 << " -> " << mean_latency(seeing) * 1e-6 << ", evicting "
                  << mean_latency(dear) * 1e-6 << ", still " << mean_latency(fixed) * 1e-6 << " ms; hits "
                  << hit_tokens(blind) << " -> " << hit_tokens(seeing) << ", still " << hit_tokens(fixed) << "; moved "
                  << preble.totals().moved << ", copied " << preble.totals().copied);
  CHECK(mean_latency(seeing) < 0.8 * mean_latency(blind));
  CHECK(mean_latency(dear) < 0.8 * mean_latency(blind));
  CHECK(hit_tokens(seeing) > hit_tokens(blind) * 3 / 2);
  // Moving nodes costs hits, and on a load that does not change nothing makes up for it.
  CHECK(preble.totals().moved > 0);
  CHECK(still.totals().moved == 0);
  CHECK(hit_tokens(fixed) > hit_tokens(seeing));
  CHECK(mean_latency(fixed) < mean_latency(seeing));
  CHECK((seeing.requests == twice.requests));
  CHECK((seeing.totals == twice.totals));
  CHECK(seeing.nodes == twice.nodes);
  CHECK(preble.totals() == again.totals());
  CHECK(preble.totals().explored + preble.totals().exploited == 600);
  // All have ended, so nothing runs; an hour later nothing is known.
  RequestInfo last;
  last.tag = 1000;
  const std::vector<NodeView> views(4);
  preble.dispatch(4000 * second, last, views);
  CHECK(preble.tree_nodes() == 0);
}

TEST_CASE("preble: a refused request does not run for ever") {
  PrebleRouter<> router(1, {.chunk = 1});
  const Chain chain = prompt({{1, 40}});
  Workload w(1);
  w[0].info.prompt = 40;
  w[0].info.chain = chain;
  simulate_cluster(w, Fcfs{}, Roofline{}, TokenMemory(16), router, {.nodes = 1});
  CHECK(router.load(0) == LinearPrefill{}(40, 0));
}

}  // namespace preble_test
