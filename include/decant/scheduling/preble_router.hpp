// decant: PrebleRouter, one router that knows where every prefix was sent (Preble, Srivatsa et al., arXiv 2407.00023):
// a tree of prompts whose nodes are allocated to GPUs. A prompt most of which is in the tree goes where that part is
// (exploit), any other to the GPU with the least load (explore); loads are what the last three minutes cost.
// From the authors' public source: the rule, large and important nodes, the two parts of a cost, allocation of the
// path, the window and its constants, moving and copying of hot nodes. Ours: digests of chunks in place of tokens; a
// prompt that is wholly in the tree counts as found; a running request counts at its important node alone; integers,
// lower medians; nodes that the window has left are dropped; the least load decides among the allocated GPUs only;
// rebalancing begins with so many requests per GPU, not in all.
#ifndef DECANT_SCHEDULING_PREBLE_ROUTER_HPP
#define DECANT_SCHEDULING_PREBLE_ROUTER_HPP

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "cluster.hpp"
#include "detail/prefix_window.hpp"

namespace decant::scheduling {

/// How long a GPU takes for so many tokens of a prompt after so many others.
template <class P>
concept PrefillTime = requires(const P& prefill, std::uint64_t tokens, std::uint64_t context) {
  { prefill(tokens, context) } -> std::same_as<Nanoseconds>;
};

/// Good enough where nothing was measured: an 8B model on an A100.
struct LinearPrefill {
  Nanoseconds base = 10'000'000, per_token = 80'000, per_context = 200;
  bool operator==(const LinearPrefill&) const = default;

  constexpr Nanoseconds operator()(std::uint64_t tokens, std::uint64_t context) const {
    return base + tokens * per_token + context * per_context;
  }
};

/// As a step with nothing else in it.
template <StepCost Cost>
struct StepPrefill {
  Cost cost{};
  Nanoseconds operator()(std::uint64_t tokens, std::uint64_t context) const {
    const StepShape shape{static_cast<std::uint32_t>(tokens), static_cast<std::uint32_t>(context)};
    return cost.step_ns({&shape, 1}, PrefixSharing{});
  }
};

struct PrebleOptions {
  std::uint32_t chunk = 16;                 ///< tokens per digest of a chain
  Nanoseconds window = 180'000'000'000;
  Nanoseconds first_tpot = 150'000'000;     ///< of a GPU of which nothing is known
  std::uint32_t recent = 200;               ///< medians are of so many
  bool rebalance = true;                    ///< costs hits: on loads that do not change, false did better here
  std::uint32_t rebalance_after = 50;       ///< requests per GPU
  std::uint32_t imbalance_percent = 150;    ///< the largest load, of the smallest, from which nodes move
  std::uint32_t overload_factor = 2;        ///< TTFT of the second half of the window, of that of the first
  bool eviction_cost = false;               ///< explore counts what it would evict, as if memory were always full
  bool operator==(const PrebleOptions&) const = default;
};

/// What the router believes of a prompt.
struct PreblePrefix {
  std::uint64_t found = 0;                     ///< tokens in the tree
  std::uint64_t allocation = 0;                ///< of the last node wholly found: bit g is GPU g
  std::uint64_t important = 0, context = 0;    ///< tokens of its important node, and before it
  std::uint32_t requests = 0;                  ///< of the important node, within the window
  bool operator==(const PreblePrefix&) const = default;
};

struct PrebleTotals {
  std::uint64_t explored = 0, exploited = 0, moved = 0, copied = 0;
  bool operator==(const PrebleTotals&) const = default;
};

/// A Dispatcher, and a Router that takes a request's arrival for the time, which must not go back. It must be told of
/// every end (on_end): what it was not told of runs for ever. Requests without a chain go to the least load and leave
/// no trace. O(chain + important nodes x GPUs) per request.
template <PrefillTime Prefill = LinearPrefill>
class PrebleRouter {
 public:
  /// ArgumentError: no GPUs or more than 64, chunks of no tokens, medians of nothing.
  explicit PrebleRouter(std::uint32_t gpus, const PrebleOptions& options = {}, Prefill prefill = {})
      : o_(checked(options, gpus)), prefill_(std::move(prefill)),
        books_(gpus, options.chunk, options.window, options.recent, options.first_tpot), loads_(gpus) {}

  /// ArgumentError: another number of nodes, or the tag of a running request.
  Dispatch dispatch(Nanoseconds now, const RequestInfo& request, View<const NodeView, 1> nodes) {
    constexpr auto where = "scheduling::PrebleRouter";
    require(static_cast<std::size_t>(nodes.extent(0)) == loads_.size(), where, "nodes", "one per GPU", nodes.extent(0));
    require(!books_.running(request.tag), where, "request.tag", "not that of a running request", request.tag);
    const auto arrived = books_.arrive(now, request.chain);
    std::uint64_t candidates = 0;
    if (arrived.missed < arrived.found) {
      for (Index n = arrived.leaf; n != root && candidates == 0; n = books_.tree[n].parent) candidates = allocation(n);
    }
    ++(candidates != 0 ? totals_.exploited : totals_.explored);
    if (candidates == 0) candidates = ~std::uint64_t{0} >> (64 - loads_.size());
    const NodeId gpu = cheapest(candidates, arrived.missed);
    books_.send(now, request, arrived, gpu);
    ++dispatched_;
    if (o_.rebalance && dispatched_ >= std::uint64_t{o_.rebalance_after} * loads_.size()) rebalance(now);
    return {gpu, 0};
  }
  NodeId route(const RequestInfo& request, View<const NodeView, 1> nodes) {
    return dispatch(request.arrival, request, nodes).node;
  }

  Nanoseconds next_event() const { return never; }
  void on_event(Nanoseconds, View<const NodeView, 1>) {}
  void on_cached(NodeId, const RequestInfo&) {}

  /// A request is done, or was refused. One that is not known changes nothing.
  void on_end(NodeId, const RequestRecord& record) { books_.end(record); }

  const PrebleTotals& totals() const { return totals_; }
  /// Nodes of the tree, the root not counted.
  std::size_t tree_nodes() const { return books_.tree.size(); }
  /// The load of a GPU, in nanoseconds of work.
  Nanoseconds load(NodeId gpu) const {
    Nanoseconds sum = 0;
    for (const Popular& p : books_.popular) sum += counted(p, gpu, 1) ? cost(p, gpu) : 0;
    return sum;
  }
  PreblePrefix look(View<const std::uint64_t, 1> chain) const {
    const auto [node, chunks] = books_.tree.look(chain);
    const Index here = books_.important(node), p = books_.tree[here].data.popular;
    return {books_.tokens(chunks), allocation(node), books_.own(here), books_.context(here),
            p == none ? 0 : books_.popular[p].requests};
  }

 private:
  __extension__ typedef unsigned __int128 Wide;
  using Books = detail::PrefixWindow;
  using Index = Books::Index;
  using Popular = Books::Popular;
  static constexpr Index root = Books::root, none = Books::none;
  struct Ranked {
    std::uint64_t first, second;
    Index index;
    bool operator<(const Ranked& b) const {
      return first != b.first ? first < b.first : second != b.second ? second < b.second : index < b.index;
    }
  };

  static const PrebleOptions& checked(const PrebleOptions& options, std::uint32_t gpus) {
    constexpr auto where = "scheduling::PrebleRouter";
    require(gpus >= 1 && gpus <= 64, where, "gpus", "1 to 64", gpus);
    require(options.chunk >= 1, where, "options.chunk", "at least 1 token", options.chunk);
    require(options.recent >= 1, where, "options.recent", "at least 1", options.recent);
    return options;
  }
  std::uint64_t allocation(Index node) const { return books_.tree[node].data.allocation; }

  // ---- costs

  bool counted(const Popular& p, NodeId gpu, std::uint32_t least) const {
    return p.requests >= least && (allocation(p.node) >> gpu & 1) != 0;
  }
  /// Of computing again what is missed of a node, over the window.
  Nanoseconds prefill_cost(const Popular& p, std::uint64_t sharers) const {
    const Wide once = prefill_(books_.own(p.node), books_.context(p.node));
    return static_cast<Nanoseconds>(once * (p.prompt - p.hit) * p.requests / (Wide{p.prompt} * sharers));
  }
  Nanoseconds cost(const Popular& p, NodeId gpu) const {
    const std::uint64_t output = p.outputs.empty() ? p.expected : p.outputs.value();
    const auto sharers = static_cast<std::uint64_t>(std::popcount(allocation(p.node)));
    return prefill_cost(p, sharers) + p.active[gpu] * output * books_.tpot(gpu);
  }
  void weigh(std::uint32_t least) {
    std::fill(loads_.begin(), loads_.end(), Nanoseconds{0});
    for (const Popular& p : books_.popular) {
      for (NodeId g = 0; g < loads_.size(); ++g) loads_[g] += counted(p, g, least) ? cost(p, g) : 0;
    }
  }
  /// Of what goes from a GPU's memory for so many tokens: leaves, the one unused for longest first.
  Nanoseconds eviction(NodeId gpu, std::uint64_t wanted) {
    ranked_.clear();
    for (Index n = root + 1; n < books_.tree.end(); ++n) {
      const auto& e = books_.tree[n];
      if (!e.live || e.last_use == books_.tree.clock() || (e.data.allocation >> gpu & 1) == 0) continue;
      ranked_.push_back({e.last_use, ~books_.context(n), n});
    }
    const auto later = [](const Ranked& a, const Ranked& b) { return b < a; };
    std::make_heap(ranked_.begin(), ranked_.end(), later);
    Nanoseconds sum = 0;
    for (std::uint64_t gone = 0; gone < wanted && !ranked_.empty(); ranked_.pop_back()) {
      std::pop_heap(ranked_.begin(), ranked_.end(), later);
      const Index n = ranked_.back().index;
      gone += books_.own(n);
      const Index p = books_.tree[n].data.popular;
      if (p != none && books_.large(n) && books_.popular[p].requests > 0) sum += prefill_cost(books_.popular[p], 1);
    }
    return sum;
  }
  NodeId cheapest(std::uint64_t candidates, std::uint64_t missed) {
    if (std::has_single_bit(candidates)) return static_cast<NodeId>(std::countr_zero(candidates));
    weigh(1);
    NodeId best = 0;
    Nanoseconds least = never;
    for (NodeId g = 0; g < loads_.size(); ++g) {
      if ((candidates >> g & 1) == 0) continue;
      const Nanoseconds here = loads_[g] + (o_.eviction_cost ? eviction(g, missed) : 0);
      if (here >= least) continue;
      least = here;
      best = g;
    }
    return best;
  }

  // ---- hot nodes

  /// Whether prompts of a node wait longer and longer on a GPU.
  bool overloaded(const Popular& p, NodeId gpu, Nanoseconds now) const {
    Wide sum[2] = {}, count[2] = {};
    for (const auto& t : p.ttfts) {
      if (t.gpu != gpu || t.time + o_.window < now) continue;
      const bool second = t.time + o_.window / 2 >= now;
      sum[second] += t.value;
      ++count[second];
    }
    return count[0] > 0 && count[1] > 0 && sum[1] * count[0] >= o_.overload_factor * sum[0] * count[1];
  }
  void rebalance(Nanoseconds now) {
    weigh(2);
    order_.resize(loads_.size());
    for (NodeId g = 0; g < loads_.size(); ++g) order_[g] = g;
    std::sort(order_.begin(), order_.end(),
              [&](NodeId a, NodeId b) { return loads_[a] != loads_[b] ? loads_[a] > loads_[b] : a < b; });
    const NodeId to = order_.back();
    for (std::size_t i = 0; i + 1 < order_.size(); ++i) {
      const NodeId from = order_[i];
      if (loads_[from] == 0 || Wide{loads_[from]} * 100 < Wide{loads_[to]} * o_.imbalance_percent) return;
      ranked_.clear();
      for (Index at = 0; at < books_.popular.size(); ++at) {
        const Popular& p = books_.popular[at];
        if (counted(p, from, 2) && books_.large(p.node)) ranked_.push_back({cost(p, from), 0, at});
      }
      if (ranked_.size() == 1) {
        Popular& p = books_.popular[ranked_[0].index];
        if ((allocation(p.node) >> to & 1) != 0 || !overloaded(p, from, now)) continue;
        books_.tree[p.node].data.allocation |= std::uint64_t{1} << to;
        loads_[from] -= ranked_[0].first / 2;
        loads_[to] += ranked_[0].first / 2;
        p.ttfts.erase(std::remove_if(p.ttfts.begin(), p.ttfts.end(), [&](const auto& t) { return t.gpu == from; }),
                      p.ttfts.end());
        ++totals_.copied;
        continue;
      }
      std::sort(ranked_.begin(), ranked_.end());
      for (const Ranked& hot : ranked_) {
        if (loads_[from] < loads_[to] + 2 * hot.first) break;
        loads_[from] -= hot.first;
        loads_[to] += hot.first;
        books_.tree.for_each_below(books_.popular[hot.index].node,
                             [&](Index n) { books_.tree[n].data.allocation = std::uint64_t{1} << to; });
        ++totals_.moved;
      }
    }
  }

  PrebleOptions o_;
  Prefill prefill_;
  Books books_;
  std::vector<Nanoseconds> loads_;
  std::vector<NodeId> order_;
  std::vector<Ranked> ranked_;
  std::uint64_t dispatched_ = 0;
  PrebleTotals totals_;
};

static_assert(Dispatcher<PrebleRouter<>> && Router<PrebleRouter<>>);

}  // namespace decant::scheduling

#endif
