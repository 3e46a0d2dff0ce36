// Orders that look at the cache: who goes first, on small caches whose content is known.
#include "decant/scheduling/prefix_orders.hpp"

#include <deque>
#include <vector>

#include "catch_compat.hpp"
#include "decant/scheduling/block_memory.hpp"
#include "decant/scheduling/generators.hpp"
#include "decant/scheduling/orders.hpp"
#include "decant/scheduling/roofline.hpp"
#include "decant/scheduling/simulator.hpp"

namespace prefix_orders_test {

using namespace decant;
using namespace decant::scheduling;

using Memory = BlockMemory;
constexpr std::uint32_t block = 16;

/// A batch in which requests wait, over a cache that holds some chains.
struct Scene {
  Batch<Memory> batch{Memory({.blocks = 4096, .block_tokens = block}), {1u << 20, 1000}};
  std::deque<std::vector<std::uint64_t>> chains;
  std::uint64_t tag = 0;

  RequestId add(std::vector<std::uint64_t> chain, Nanoseconds arrival = 0) {
    RequestInfo info;
    info.tag = tag++;
    info.arrival = arrival;
    chains.push_back(std::move(chain));
    info.chain = chains.back();
    info.prompt = static_cast<std::uint32_t>(chains.back().size()) * block + 1;
    return batch.arrive(info);
  }
  /// A request with these blocks has run.
  void cache(std::vector<std::uint64_t> chain) {
    const RequestId id = add(std::move(chain));
    batch.begin_step(0);
    REQUIRE(batch.plan(id, batch.need(id)));
    batch.complete_step(1);
    batch.finish(id);
  }
};

template <class Order>
std::vector<RequestId> order_of(const Scene& scene, Order order) {
  std::vector<RequestId> out;
  order.begin(scene.batch);
  for (RequestId id = order.peek(scene.batch); id != no_request; id = order.peek(scene.batch)) {
    out.push_back(id);
    order.pop(scene.batch);
  }
  return out;
}

using Ids = std::vector<RequestId>;

TEST_CASE("LongestPrefixMatch: longest hit first, repeats of what nobody has cached last") {
  Scene scene;
  scene.cache({1, 2, 3, 4});
  scene.cache({8, 9, 10});
  const RequestId a = scene.add({50, 51, 52}), b = scene.add({1, 2, 3, 4, 5}), c = scene.add({8, 9, 10, 11}),
                  d = scene.add({50, 51, 60}), e = scene.add({1, 2, 77}), f = scene.add({50}), g = scene.add({50, 51});
  // b 4 blocks, c 3, e 2 (32 tokens: it may be deferred, but shares with none), then a, f; d and g repeat a.
  CHECK((order_of(scene, LongestPrefixMatch{}) == Ids{b, c, e, a, f, d, g}));
  CHECK((order_of(scene, LongestPrefixMatch({.most_waiting = 6})) == Ids{a, b, c, d, e, f, g}));
  CHECK((order_of(scene, LongestPrefixMatch({.defer_tokens = 0})) == Ids{b, c, e, a, d, f, g}));
  CHECK_THROWS_AS(LongestPrefixMatch({.chunk = 0}), ArgumentError);
}

TEST_CASE("DfsWeight: the heavier subtree first, a node's own requests after them") {
  Scene scene;
  scene.cache({1, 2, 3});
  scene.cache({1, 4});
  scene.cache({7, 8});
  const RequestId a = scene.add({7, 8, 100}), b = scene.add({1, 4, 101}), c = scene.add({1, 102}),
                  d = scene.add({1, 4, 103}), e = scene.add({1, 2, 3, 104}), f = scene.add({105}),
                  g = scene.add({7, 8, 106});
  // Below the root: 1 (4 requests), 7 (2), then f. Below 1: 4 (b, d), 2-3 (e), then c.
  CHECK((order_of(scene, DfsWeight{}) == Ids{b, d, e, c, a, g, f}));
}

TEST_CASE("Cache-aware orders: nothing cached is first come, first served") {
  Scene scene;
  Ids ids;
  for (std::uint64_t i = 0; i < 9; ++i) ids.push_back(scene.add({1000 + i, 2000 + i}, 100 + i));
  CHECK(order_of(scene, LongestPrefixMatch{}) == ids);
  CHECK(order_of(scene, DfsWeight{}) == ids);
  CHECK(order_of(Scene{}, LongestPrefixMatch{}).empty());
  CHECK(order_of(Scene{}, DfsWeight{}).empty());
}

TEST_CASE("ShortestPrefill: what is left to compute, repeats of what nobody has cached last") {
  Scene scene;
  scene.cache({1, 2, 3, 4});
  const RequestId a = scene.add({50, 51, 52}), b = scene.add({1, 2, 3, 4, 5, 6}), c = scene.add({60}),
                  d = scene.add({50, 51}), e = scene.add({1, 2, 3, 70}), f = scene.add({60});
  // To compute: a 49, b 33, c 17, d 33 (but its beginning is a's), e 17, f 17 (too short to be deferred).
  CHECK((order_of(scene, ShortestPrefill{}) == Ids{c, e, f, b, a, d}));
  CHECK((order_of(scene, ShortestPrefill({.defer_tokens = 0})) == Ids{c, e, f, b, d, a}));
  CHECK((order_of(scene, ByKey<PrefillLength>{}) == Ids{c, e, f, b, d, a}));
  CHECK(order_of(Scene{}, ShortestPrefill{}).empty());
  CHECK_THROWS_AS(ShortestPrefill({.chunk = 0}), ArgumentError);
}

TEST_CASE("Cache-aware orders: equal hits are first come, first served; of equal prompts the first represents them") {
  Scene scene;
  scene.cache({1, 2, 3, 4});
  // The same four blocks found for all; arrivals against the order of the slots.
  Ids late_first;
  for (std::uint64_t i = 0; i < 6; ++i) late_first.insert(late_first.begin(), scene.add({1, 2, 3, 4, 80 + i}, 100 - i));
  CHECK(order_of(scene, LongestPrefixMatch{}) == late_first);
  CHECK(order_of(scene, ShortestPrefill{}) == late_first);
  CHECK(order_of(scene, DfsWeight{}) == late_first);

  Scene twins;
  const RequestId a = twins.add({9, 8, 7}), b = twins.add({9, 8, 7}), c = twins.add({5, 6, 4}), d = twins.add({9, 8, 7});
  CHECK((order_of(twins, LongestPrefixMatch{}) == Ids{a, c, b, d}));
  CHECK((order_of(twins, ShortestPrefill{}) == Ids{a, c, b, d}));
  twins.cache({9, 8, 7});  // now nobody waits for anybody
  CHECK((order_of(twins, LongestPrefixMatch{}) == Ids{a, b, d, c}));
  CHECK((order_of(twins, ShortestPrefill{}) == Ids{a, b, d, c}));
}

TEST_CASE("HighestResponseRatio: tokens waited over tokens needed, and nothing needed first") {
  Scene scene;
  HighestResponseRatio order;
  scene.cache({1, 2});
  const RequestId a = scene.add(std::vector<std::uint64_t>{10, 11, 12, 13});  // needs 64
  order.arrive(scene.batch, a);
  order.charge(320);  // a has waited 5 of its lengths
  const RequestId b = scene.add({20});
  order.arrive(scene.batch, b);
  order.charge(64);  // b 4 of its, a 6
  const RequestId c = scene.add({1, 2});  // cached
  order.arrive(scene.batch, c);
  CHECK((order_of(scene, order) == Ids{c, a, b}));
  order.charge(320);  // a 11, b 24
  CHECK((order_of(scene, order) == Ids{c, b, a}));
}

TEST_CASE("Cache-aware schedulers: all requests end, and longest prefix finds more than first come, first served") {
  Workload w = session_workload(8, {.sessions = 40, .turns = 4, .pause = 1'000'000'000}, {.rate = 20},
                                LengthLaw::uniform(50, 300), LengthLaw::uniform(10, 60));
  std::deque<std::vector<std::uint64_t>> chains;
  for (SimulatedRequest& r : w) {
    auto& chain = chains.emplace_back(r.info.prompt / block);
    for (std::size_t i = 0; i < chain.size(); ++i) chain[i] = std::uint64_t{r.info.group} << 32 | i;
    r.info.chain = chain;
  }
  const SimulationOptions options{.limits = {512, 16}};
  const BlockMemory memory({.blocks = 500});
  const auto fcfs = simulate(w, Fcfs{}, Roofline{}, memory, options);
  const auto lpm = simulate(w, Lpm{}, Roofline{}, memory, options);
  const auto dfs = simulate(w, DfsWeighted{}, Roofline{}, memory, options);
  const auto hrrn = simulate(w, Hrrn{}, Roofline{}, memory, options);
  const auto shortest = simulate(w, SharedPrefillFirst{}, Roofline{}, memory, options);
  for (const auto* report : {&fcfs, &lpm, &dfs, &hrrn, &shortest}) {
    for (const RequestRecord& r : report->requests) CHECK(r.end > 0);
  }
  CHECK(lpm.totals.hit_tokens > fcfs.totals.hit_tokens);
  CHECK(dfs.totals.hit_tokens > fcfs.totals.hit_tokens);
}

}  // namespace prefix_orders_test
