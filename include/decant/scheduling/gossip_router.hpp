// decant: GossipRouter, prefix-aware routing without a router in the middle (arXiv 2606.17059): every node tells the
// others now and then what it has cached; a request goes from where it came in to the node that probably has the longest
// prefix. What is stale costs a miss and never a wrong answer; keys and values never move. Rules of the paper; encodings,
// staggering, ties and the choice by cost are ours [recon]: `parity` gives the paper's.
// Messages go through the caller: snapshot() makes one, receive() takes it, in any order, twice or never. What they hold
// is a parameter (prefix_summary.hpp), by default a Bloom filter; a view left behind can be mended (merkle_repair.hpp).
#ifndef DECANT_SCHEDULING_GOSSIP_ROUTER_HPP
#define DECANT_SCHEDULING_GOSSIP_ROUTER_HPP

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "block_index.hpp"
#include "cluster.hpp"
#include "prefix_summary.hpp"

namespace decant::scheduling {

struct GossipOptions {
  Nanoseconds period = 500'000'000;      ///< Delta, between snapshots of a node
  Nanoseconds link = 2'000'000;          ///< one way between two nodes
  std::uint32_t legs = 2;                ///< one-way delays that a forwarded request pays in all
  std::uint32_t chunk = 16;              ///< tokens per digest of a chain
  std::size_t cached_tokens = 65536;     ///< what a node keeps of prefixes
  std::uint32_t bits_per_key = 10;       ///< of BloomSummary
  std::uint32_t full_every = 8;          ///< of DeltaSummary: of so many snapshots one is full
  std::uint32_t missed_periods = 3;      ///< a node that has been silent so long is suspected
  std::uint32_t overload_above = 8, overload_below = 4;  ///< queue depths
  bool parity = false;                   ///< the paper's choice: the longest match whatever it costs
  double prefill_ns_per_token = 80'000;  ///< what a missed token costs
  double service_ns = 20'000'000;        ///< what a queued request costs
};

/// One node's view of the others.
template <SummaryEncoding Summary = BloomSummary>
class BasicGossipNode {
 public:
  BasicGossipNode(NodeId self, std::uint32_t nodes, const GossipOptions& options, std::uint32_t incarnation = 0)
      : self_(self),
        o_(options),
        index_(options.chunk),
        writer_(SummaryOptions{options.bits_per_key, options.full_every}),
        version_(std::uint64_t{incarnation} << 32),
        peers_(nodes) {
    require(self < nodes, "scheduling::GossipNode", "self", "a node of the cluster", self);
  }

  const BlockIndex& index() const { return index_; }

  /// A prompt has been computed here.
  void cached(View<const std::uint64_t, 1> chain) {
    index_.insert_chain(chain);
    if (index_.size() > o_.cached_tokens) index_.evict(index_.size() - o_.cached_tokens);
  }

  /// Of all chunks that are cached here, in no order that means anything.
  std::vector<std::uint64_t> digests() const {
    std::vector<std::uint64_t> keys;
    keys.reserve(index_.size() / o_.chunk);
    index_.for_each_key([&](std::uint64_t key) { keys.push_back(key); });
    return keys;
  }

  /// What this node tells the others.
  Summary snapshot(std::uint32_t queue) {
    overloaded_ = overloaded_ ? queue >= o_.overload_below : queue > o_.overload_above;
    return writer_.write(SummaryHead{++version_, self_, queue, overloaded_}, digests());
  }

  /// Old ones and those that came already change nothing; changes to what was missed, only that the node lives and how
  /// busy it is. Whether the digests are news. ArgumentError: a node that does not exist.
  bool receive(const Summary& summary, Nanoseconds now) {
    require(summary.node < peers_.size(), "scheduling::GossipNode::receive", "summary", "a node of the cluster",
            summary.node);
    if (summary.node == self_) return false;
    Peer& peer = peers_[summary.node];
    if (summary.version > peer.head.version) {
      peer.head = static_cast<const SummaryHead&>(summary);
      peer.heard = now;
    }
    return peer.summary.take(summary);
  }

  /// Whether a peer may be asked: heard of lately, and not overloaded.
  bool usable(NodeId node, Nanoseconds now) const {
    const Peer& peer = peers_[node];
    return peer.head.version > 0 && !peer.head.overloaded && now - peer.heard <= o_.missed_periods * o_.period;
  }
  /// The newest digests, and what was said with them.
  const Summary& summary(NodeId node) const { return peers_[node].summary; }
  /// The newest word of a node, whether its digests were of use or not.
  const SummaryHead& head(NodeId node) const { return peers_[node].head; }

  /// Chunks that a node seems to have of a chain; of this one, has.
  std::uint32_t match(NodeId node, View<const std::uint64_t, 1> chain) const {
    return node == self_ ? index_.peek_chain(chain) : match_chain(peers_[node].summary, chain);
  }

  /// Where a request that came in here is to run: here, or one hop away. queue: of this node.
  NodeId route(const RequestInfo& request, std::uint32_t queue, Nanoseconds now) const {
    NodeId best = self_;
    std::uint32_t best_match = match(self_, request.chain), best_queue = queue;
    double best_cost = cost(best_match, queue, false, request);
    for (NodeId n = 0; n < peers_.size(); ++n) {
      if (n == self_ || !usable(n, now)) continue;
      const std::uint32_t found = match(n, request.chain), waiting = peers_[n].head.queue;
      // Ties stay here, then go to the shorter queue, then to the lower node.
      bool better = false;
      if (o_.parity) {
        better = found > best_match || (found == best_match && best != self_ && waiting < best_queue);
      } else {
        better = cost(found, waiting, true, request) < best_cost;
      }
      if (!better) continue;
      best = n;
      best_match = found;
      best_queue = waiting;
      best_cost = cost(found, waiting, true, request);
    }
    return best;
  }

 private:
  struct Peer {
    Summary summary{};
    SummaryHead head{};
    Nanoseconds heard = 0;
  };

  double cost(std::uint32_t found, std::uint32_t queue, bool forwarded, const RequestInfo& request) const {
    const auto tokens = static_cast<double>((std::min)(found * o_.chunk, request.prompt));
    return (forwarded ? static_cast<double>(o_.legs * o_.link) : 0) + queue * o_.service_ns +
           (request.prompt - tokens) * o_.prefill_ns_per_token;
  }

  NodeId self_;
  GossipOptions o_;
  BlockIndex index_;
  typename Summary::Writer writer_;
  std::uint64_t version_;
  bool overloaded_ = false;
  std::vector<Peer> peers_;
};

using GossipNode = BasicGossipNode<>;

/// All nodes of a simulated cluster: requests come in round robin, snapshots travel with the link's delay, and
/// `loss_per_mille` of them are lost.
template <SummaryEncoding Summary = BloomSummary>
class BasicGossipRouter {
 public:
  BasicGossipRouter(std::uint32_t nodes, const GossipOptions& options, std::uint32_t loss_per_mille = 0,
                    std::uint64_t seed = 0)
      : o_(options), loss_(loss_per_mille), next_{seed} {
    constexpr auto where = "scheduling::GossipRouter";
    require(nodes >= 1, where, "nodes", "at least 1", nodes);
    require(options.period > 0, where, "options.period", "at least 1 ns", options.period);
    for (NodeId n = 0; n < nodes; ++n) {
      nodes_.emplace_back(n, nodes, options);
      timers_.push_back(options.period * n / nodes);  // staggered
    }
  }

  const BasicGossipNode<Summary>& node(NodeId n) const { return nodes_[n]; }
  std::uint64_t forwarded() const { return forwarded_; }
  /// Snapshots made, and their bytes, each counted once however many nodes it was sent to.
  std::uint64_t snapshots() const { return snapshots_; }
  std::uint64_t snapshot_bytes() const { return snapshot_bytes_; }

  Dispatch dispatch(Nanoseconds now, const RequestInfo& request, View<const NodeView, 1> views) {
    const auto entry = static_cast<NodeId>(entries_++ % nodes_.size());
    const NodeId to = nodes_[entry].route(request, views[entry].queue(), now);
    forwarded_ += to != entry;
    return {to, to == entry ? 0 : o_.legs * o_.link};
  }

  Nanoseconds next_event() const {
    Nanoseconds next = *std::min_element(timers_.begin(), timers_.end());
    for (const Flying& f : flying_) next = (std::min)(next, f.arrives);
    return next;
  }

  void on_event(Nanoseconds now, View<const NodeView, 1> views) {
    for (NodeId n = 0; n < nodes_.size(); ++n) {
      if (timers_[n] > now) continue;
      timers_[n] = now + o_.period;
      const Summary summary = nodes_[n].snapshot(views[n].queue());
      ++snapshots_;
      snapshot_bytes_ += summary.bytes();
      for (NodeId to = 0; to < nodes_.size(); ++to) {
        if (to == n || next_() % 1000 < loss_) continue;
        flying_.push_back({now + o_.link, to, summary});
      }
    }
    for (std::size_t i = 0; i < flying_.size();) {
      if (flying_[i].arrives > now) {
        ++i;
        continue;
      }
      nodes_[flying_[i].to].receive(flying_[i].summary, now);
      flying_.erase(flying_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  void on_cached(NodeId node, const RequestInfo& request) { nodes_[node].cached(request.chain); }

 private:
  struct Flying {
    Nanoseconds arrives;
    NodeId to;
    Summary summary;
  };

  GossipOptions o_;
  std::uint32_t loss_;
  SplitMix64 next_;
  std::vector<BasicGossipNode<Summary>> nodes_;
  std::vector<Nanoseconds> timers_;
  std::vector<Flying> flying_;
  std::uint64_t entries_ = 0, forwarded_ = 0, snapshots_ = 0, snapshot_bytes_ = 0;
};

using GossipRouter = BasicGossipRouter<>;

static_assert(Dispatcher<GossipRouter>);

}  // namespace decant::scheduling

#endif
