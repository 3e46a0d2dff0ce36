// decant: simulate_cluster(), several engines in simulated time behind a Dispatcher, or marching in step behind a
// barrier as data-parallel ranks do. One heap of events, ties by kind (arrival, message, end of a step), then node, then
// sequence: a run is the same on every machine. A cluster of one node is simulate().
#ifndef DECANT_SCHEDULING_CLUSTER_HPP
#define DECANT_SCHEDULING_CLUSTER_HPP

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "router.hpp"
#include "simulator.hpp"

namespace decant::scheduling {

inline constexpr Nanoseconds never = ~Nanoseconds{0};

/// Where a request goes, and how long it is on its way.
struct Dispatch {
  NodeId node = 0;
  Nanoseconds delay = 0;
};

template <class D>
concept Dispatcher = requires(D& d, Nanoseconds now, const RequestInfo& request, View<const NodeView, 1> nodes, NodeId node) {
  { d.dispatch(now, request, nodes) } -> std::same_as<Dispatch>;
  /// When it wants to be called next (timers, messages on their way); `never`: not at all.
  { d.next_event() } -> std::same_as<Nanoseconds>;
  d.on_event(now, nodes);
  /// A node has admitted a request and computed its prompt: its prefix is cached there.
  d.on_cached(node, request);
};
/// A dispatcher that also has on_end(node, record) is told of every request that has ended or was refused.
template <class D>
concept HearsOfEnds = requires(D& d, NodeId node, const RequestRecord& record) { d.on_end(node, record); };

/// A plain router at the cluster's door.
template <Router R>
class AtTheDoor {
 public:
  AtTheDoor() = default;
  explicit AtTheDoor(R router) : router_(std::move(router)) {}

  Dispatch dispatch(Nanoseconds, const RequestInfo& request, View<const NodeView, 1> nodes) {
    return {router_.route(request, nodes), 0};
  }
  Nanoseconds next_event() const { return never; }
  void on_event(Nanoseconds, View<const NodeView, 1>) {}
  void on_cached(NodeId, const RequestInfo&) {}

 private:
  R router_{};
};
static_assert(Dispatcher<AtTheDoor<RoundRobin>>);

struct ClusterOptions {
  std::uint32_t nodes = 2;
  BatchLimits limits{};
  bool barrier = false;           ///< all nodes step together; a step lasts as long as the longest, and `sync`
  Nanoseconds sync = 0;
  std::uint64_t max_steps = 1'000'000'000;
};

struct ClusterReport {
  std::vector<RequestRecord> requests;  ///< by (arrival, tag)
  std::vector<NodeId> nodes;            ///< where each ran
  std::vector<EngineTotals> totals;     ///< of each node
  Nanoseconds makespan = 0;
  std::uint64_t steps = 0;
  double idle = 0;                      ///< behind a barrier: the mean share of a step that a node waits for others
};

/// Errors as simulate(). `memory(n)` and `policy` are copied to each node.
template <class Policy, StepCost Cost, KvMemory Memory, Dispatcher D>
ClusterReport simulate_cluster(Workload workload, const Policy& policy, const Cost& cost, const Memory& memory,
                               D& dispatcher, const ClusterOptions& options) {
  constexpr auto where = "scheduling::simulate_cluster";
  require(options.nodes >= 1, where, "options.nodes", "at least 1", options.nodes);
  std::sort(workload.begin(), workload.end(),
            [](const SimulatedRequest& a, const SimulatedRequest& b) { return earlier(a.info, b.info); });
  using Engine = SimulatedEngine<Policy, Cost, Memory>;
  std::deque<Engine> engines;  // of which none moves
  for (NodeId n = 0; n < options.nodes; ++n) engines.emplace_back(policy, cost, memory, options.limits);

  enum Kind : std::uint32_t { arrival, message, step_end };
  struct Event {
    Nanoseconds time;
    std::uint32_t kind;
    NodeId node;
    std::uint64_t sequence;
    std::size_t request;
  };
  const auto later = [](const Event& a, const Event& b) {
    if (a.time != b.time) return a.time > b.time;
    if (a.kind != b.kind) return a.kind > b.kind;
    return a.node != b.node ? a.node > b.node : a.sequence > b.sequence;
  };
  std::vector<Event> heap;
  std::uint64_t sequence = 0;
  const auto push = [&](Nanoseconds time, std::uint32_t kind, NodeId node, std::size_t request) {
    heap.push_back({time, kind, node, sequence++, request});
    std::push_heap(heap.begin(), heap.end(), later);
  };

  ClusterReport report;
  report.requests.resize(workload.size());
  report.nodes.assign(workload.size(), 0);
  std::vector<char> stepping(options.nodes, 0);
  std::vector<NodeView> views(options.nodes);
  std::size_t left = 0;
  const auto look = [&] {
    for (NodeId n = 0; n < options.nodes; ++n) {
      const auto& batch = engines[n].batch();
      views[n] = {batch.waiting_count(), batch.running_count(), batch.memory().used(), batch.memory().capacity()};
    }
    return View<const NodeView, 1>(views);
  };
  const auto ended = [&]([[maybe_unused]] NodeId node, [[maybe_unused]] const RequestRecord& record) {
    --left;
    if constexpr (HearsOfEnds<D>) dispatcher.on_end(node, record);
  };
  const auto enter = [&](std::size_t request, NodeId node) {
    report.nodes[request] = node;
    if (!engines[node].arrive(workload[request], report.requests[request])) ended(node, report.requests[request]);
  };
  double waits = 0;
  std::uint64_t rounds = 0;
  // Starts what can start; behind a barrier all nodes together, when none is in a step.
  const auto begin = [&](Nanoseconds now) {
    if (!options.barrier) {
      for (NodeId n = 0; n < options.nodes; ++n) {
        if (stepping[n] || engines[n].idle() || !engines[n].begin_step(now)) continue;
        stepping[n] = 1;
        push(now + engines[n].duration(), step_end, n, 0);
      }
      return;
    }
    if (std::find(stepping.begin(), stepping.end(), 1) != stepping.end()) return;
    Nanoseconds longest = 0;
    for (NodeId n = 0; n < options.nodes; ++n) {
      if (engines[n].idle() || !engines[n].begin_step(now)) continue;
      stepping[n] = 1;
      longest = (std::max)(longest, engines[n].duration());
    }
    if (longest == 0) return;
    double mean = 0;
    for (NodeId n = 0; n < options.nodes; ++n) {
      if (!stepping[n]) continue;
      mean += static_cast<double>(engines[n].duration()) / options.nodes;
      push(now + longest + options.sync, step_end, n, 0);
    }
    waits += 1 - mean / static_cast<double>(longest);
    ++rounds;
  };

  for (std::size_t i = 0; i < workload.size(); ++i) push(workload[i].info.arrival, arrival, 0, i);
  left = workload.size();
  while (left > 0) {
    const Nanoseconds called = dispatcher.next_event();
    if (heap.empty() && called == never) {
      DECANT_THROW(SimulationError("decant::scheduling::simulate_cluster: the policy plans nothing, but " +
                                   ::decant::detail::to_text(left) + " requests are not done"));
    }
    const Nanoseconds now = heap.empty() ? called : (std::min)(called, heap.front().time);
    // Everything of this instant, then the steps that it starts.
    while (!heap.empty() && heap.front().time == now) {
      const Event e = heap.front();
      std::pop_heap(heap.begin(), heap.end(), later);
      heap.pop_back();
      if (e.kind == arrival) {
        const Dispatch d = dispatcher.dispatch(now, workload[e.request].info, look());
        require(d.node < options.nodes, where, "dispatcher", "a node of the cluster", d.node);
        if (d.delay == 0) enter(e.request, d.node);
        else push(now + d.delay, message, d.node, e.request);
      } else if (e.kind == message) {
        enter(e.request, e.node);
      } else {
        Engine& engine = engines[e.node];
        stepping[e.node] = 0;
        report.makespan = now;
        // Prompts that this step completes are cached from now on.
        const auto items = engine.batch().items();
        for (index_t i = 0; i < items.extent(0); ++i) {
          const RequestState& r = engine.batch()[items[i].id];
          if (r.computed < r.info.prompt && r.computed + items[i].tokens >= r.info.prompt) {
            dispatcher.on_cached(e.node, r.info);
          }
        }
        engine.end_step(now, [&](const RequestRecord& record) { ended(e.node, record); });
        if (++report.steps >= options.max_steps) {
          DECANT_THROW(SimulationError("decant::scheduling::simulate_cluster: not done after " +
                                       ::decant::detail::to_text(options.max_steps) + " steps"));
        }
      }
    }
    if (called == now) dispatcher.on_event(now, look());
    begin(now);
  }
  for (const Engine& engine : engines) report.totals.push_back(engine.totals());
  report.idle = rounds == 0 ? 0 : waits / static_cast<double>(rounds);
  return report;
}

}  // namespace decant::scheduling

#endif
