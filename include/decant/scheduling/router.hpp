// decant: which of several engines a request goes to. The concept Router and the plain ones: RoundRobin,
// JoinShortestQueue, PowerOfTwo and ConsistentHash. Routers that know what is cached where: gossip_router.hpp and
// preble_router.hpp.
#ifndef DECANT_SCHEDULING_ROUTER_HPP
#define DECANT_SCHEDULING_ROUTER_HPP

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <vector>

#include "../core/error.hpp"
#include "workload.hpp"

namespace decant::scheduling {

using NodeId = std::uint32_t;

/// An engine as a router sees it.
struct NodeView {
  std::uint32_t waiting = 0, running = 0;
  std::uint64_t resident = 0;  ///< tokens in memory
  std::uint64_t capacity = 0;
  bool operator==(const NodeView&) const = default;

  std::uint32_t queue() const { return waiting + running; }
};

template <class R>
concept Router = requires(R& router, const RequestInfo& request, View<const NodeView, 1> nodes) {
  /// One of the nodes, of which there is at least one.
  { router.route(request, nodes) } -> std::same_as<NodeId>;
};

class RoundRobin {
 public:
  NodeId route(const RequestInfo&, View<const NodeView, 1> nodes) {
    return static_cast<NodeId>(next_++ % static_cast<std::uint64_t>(nodes.extent(0)));
  }

 private:
  std::uint64_t next_ = 0;
};

/// The fewest requests; ties to the lower node.
struct JoinShortestQueue {
  NodeId route(const RequestInfo&, View<const NodeView, 1> nodes) {
    NodeId best = 0;
    for (index_t n = 1; n < nodes.extent(0); ++n) {
      if (nodes[n].queue() < nodes[best].queue()) best = static_cast<NodeId>(n);
    }
    return best;
  }
};

/// The shorter queue of two nodes drawn at random (Mitzenmacher, The power of two choices, 2001).
class PowerOfTwo {
 public:
  explicit PowerOfTwo(std::uint64_t seed = 0) : next_{seed} {}

  NodeId route(const RequestInfo&, View<const NodeView, 1> nodes) {
    const auto n = static_cast<std::uint64_t>(nodes.extent(0));
    if (n == 1) return 0;
    const std::uint64_t a = next_() % n, other = next_() % (n - 1), b = other < a ? other : other + 1;
    const std::uint32_t left = nodes[static_cast<index_t>(a)].queue(), right = nodes[static_cast<index_t>(b)].queue();
    return static_cast<NodeId>(left != right ? (left < right ? a : b) : (std::min)(a, b));
  }

 private:
  SplitMix64 next_;
};

/// Requests that begin alike go to one node, and few move when a node comes or goes (Karger et al., 1997): a ring of
/// `virtual_nodes` points per node, looked up by the digest of the first chunk; without a chain, by the tag.
class ConsistentHash {
 public:
  explicit ConsistentHash(std::uint32_t virtual_nodes = 64) : virtual_nodes_(virtual_nodes) {
    require(virtual_nodes > 0, "scheduling::ConsistentHash", "virtual_nodes", "at least 1", virtual_nodes);
  }

  NodeId route(const RequestInfo& request, View<const NodeView, 1> nodes) {
    const auto n = static_cast<std::uint32_t>(nodes.extent(0));
    while (nodes_ < n) add(nodes_++);
    if (nodes_ > n) {
      ring_.erase(std::remove_if(ring_.begin(), ring_.end(), [&](const Point& p) { return p.node >= n; }), ring_.end());
      nodes_ = n;
    }
    const std::uint64_t key = SplitMix64{request.chain.empty() ? request.tag : request.chain[0]}();
    const auto at = std::lower_bound(ring_.begin(), ring_.end(), key,
                                     [](const Point& p, std::uint64_t k) { return p.at < k; });
    return at == ring_.end() ? ring_.front().node : at->node;
  }

 private:
  struct Point {
    std::uint64_t at;
    NodeId node;
  };
  void add(NodeId node) {
    SplitMix64 next{0x51ed2701u ^ std::uint64_t{node} << 32};
    for (std::uint32_t i = 0; i < virtual_nodes_; ++i) ring_.push_back({next(), node});
    std::sort(ring_.begin(), ring_.end(), [](const Point& a, const Point& b) { return a.at < b.at; });
  }

  std::uint32_t virtual_nodes_;
  std::uint32_t nodes_ = 0;
  std::vector<Point> ring_;
};

static_assert(Router<RoundRobin> && Router<JoinShortestQueue> && Router<PowerOfTwo> && Router<ConsistentHash>);

}  // namespace decant::scheduling

#endif
