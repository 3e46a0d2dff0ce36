// decant: PrefixWindow, which prompts a group of GPUs was sent lately, counted at the nodes of their tree that matter:
// the books of PrebleRouter, which decides. A node is large if it has more tokens than all above it, and the important
// node of a prompt is the deepest large one. What the window has left and nobody runs is dropped from the tree.
#ifndef DECANT_SCHEDULING_DETAIL_PREFIX_WINDOW_HPP
#define DECANT_SCHEDULING_DETAIL_PREFIX_WINDOW_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "../cluster.hpp"
#include "chunk_tree.hpp"
#include "key_table.hpp"

namespace decant::scheduling::detail {

/// The last so many of something, and the lower median of them.
class RecentMedian {
 public:
  bool empty() const { return values_.empty(); }
  std::uint64_t value() const { return median_; }
  void push(std::uint64_t value, std::uint32_t most) {
    if (values_.size() < most) values_.push_back(value);
    else values_[at_++ % most] = value;
    sorted_ = values_;
    const auto middle = sorted_.begin() + static_cast<std::ptrdiff_t>((sorted_.size() - 1) / 2);
    std::nth_element(sorted_.begin(), middle, sorted_.end());
    median_ = *middle;
  }

 private:
  std::vector<std::uint64_t> values_, sorted_;
  std::size_t at_ = 0;
  std::uint64_t median_ = 0;
};

class PrefixWindow {
 public:
  struct Known {
    std::uint32_t popular = KeyTable::none;  // what is counted here
    std::uint32_t uses = 0;                  // prompts that end here, in the window or running
    std::uint64_t allocation = 0;            // bit g: GPU g
  };
  using Tree = ChunkTree<Known>;
  using Index = Tree::Index;
  static constexpr Index root = Tree::root, none = Tree::none;

  struct Ttft {
    Nanoseconds time, value;
    NodeId gpu;
  };
  /// Requests by their important node. Where an edge is cut, what was counted below may be counted above from then on.
  struct Popular {
    Index node = none;
    std::uint32_t requests = 0;         // in the window
    std::uint64_t hit = 0, prompt = 0;  // tokens of these
    std::uint64_t expected = 1;         // output of the last one
    RecentMedian outputs{};
    std::vector<std::uint32_t> active{};  // running, per GPU
    std::deque<Ttft> ttfts{};
  };
  struct Arrived {
    Index leaf = root;
    std::uint64_t found = 0, missed = 0;  // tokens
  };

  PrefixWindow(std::uint32_t gpus, std::uint32_t chunk, Nanoseconds window, std::uint32_t recent,
               Nanoseconds first_tpot)
      : chunk_(chunk), recent_(recent), window_(window), tpot_(gpus) {
    for (RecentMedian& r : tpot_) r.push(first_tpot, recent);
  }

  Tree tree;
  std::vector<Popular> popular;  // those of no node are free

  Nanoseconds tpot(NodeId gpu) const { return tpot_[gpu].value(); }
  bool running(std::uint64_t tag) const { return running_table_.find(SplitMix64{tag}()) != none; }

  std::uint64_t tokens(index_t chunks) const { return static_cast<std::uint64_t>(chunks) * chunk_; }
  std::uint64_t own(Index node) const { return tokens(tree[node].length()); }
  std::uint64_t context(Index node) const { return tokens(tree[node].above); }
  bool large(Index node) const { return own(node) > context(node); }
  Index important(Index node) const {
    while (node != root && !large(node)) node = tree[node].parent;
    return node;
  }

  /// A prompt comes; send() follows.
  Arrived arrive(Nanoseconds now, View<const std::uint64_t, 1> chain) {
    expire(now);
    const auto [leaf, chunks] = tree.insert(chain, [&](Index upper, Index lower) { part(upper, lower); });
    return {leaf, tokens(chunks), tokens(chain.extent(0) - chunks)};
  }
  void send(Nanoseconds now, const RequestInfo& request, const Arrived& a, NodeId gpu) {
    if (a.leaf == root) return;
    const Index node = important(a.leaf);
    if (tree[node].data.popular == none) {
      const Index fresh = take(popular, free_popular_);
      popular[fresh].node = node;
      popular[fresh].active.assign(tpot_.size(), 0);
      tree[node].data.popular = fresh;
    }
    const Index at = tree[node].data.popular;
    Popular& p = popular[at];
    ++p.requests;
    ++p.active[gpu];
    p.hit += a.found;
    p.prompt += a.found + a.missed;
    p.expected = request.output.expected;
    tree[a.leaf].data.uses += 2;  // seen, and running
    seen_.push_back({now, at, a});
    for (Index n = a.leaf; n != root; n = tree[n].parent) tree[n].data.allocation |= std::uint64_t{1} << gpu;
    const Index slot = take(running_, free_running_);
    running_[slot] = {at, a.leaf, gpu};
    running_table_[SplitMix64{request.tag}()] = slot;
  }
  void end(const RequestRecord& record) {
    const std::uint64_t key = SplitMix64{record.tag}();
    const Index slot = running_table_.find(key);
    if (slot == none) return;
    const Running r = running_[slot];
    running_table_.erase(key);
    free_running_.push_back(slot);
    Popular& p = popular[r.popular];
    if (!record.rejected) {
      while (!p.ttfts.empty() && p.ttfts.front().time + window_ < record.end) p.ttfts.pop_front();
      p.ttfts.push_back({record.end, record.first_token - record.arrival, r.gpu});
      if (record.output > 1) {
        p.outputs.push(record.output, recent_);
        tpot_[r.gpu].push((record.end - record.first_token) / (record.output - 1), recent_);
      }
    }
    --p.active[r.gpu];
    release(r.popular);
    leave(r.leaf);
  }

 private:
  struct Seen {
    Nanoseconds time;
    Index popular;
    Arrived arrived;
  };
  struct Running {
    Index popular, leaf;
    NodeId gpu;
  };

  template <class T>
  static Index take(std::vector<T>& items, std::vector<Index>& free) {
    if (free.empty()) {
      free.push_back(static_cast<Index>(items.size()));
      items.emplace_back();
    }
    const Index at = free.back();
    free.pop_back();
    return at;
  }
  /// An edge was cut: both parts are where the whole was, and what made it important may lie in the upper one.
  void part(Index upper, Index lower) {
    Known& above = tree[upper].data;
    Known& below = tree[lower].data;
    above.allocation = below.allocation;
    if (below.popular == none || !large(upper) || large(lower)) return;
    above.popular = std::exchange(below.popular, none);
    popular[above.popular].node = upper;
  }
  void expire(Nanoseconds now) {
    while (!seen_.empty() && seen_.front().time + window_ < now) {
      const Seen s = seen_.front();
      seen_.pop_front();
      Popular& p = popular[s.popular];
      p.hit -= s.arrived.found;
      p.prompt -= s.arrived.found + s.arrived.missed;
      if (--p.requests == 0) tree[p.node].data.allocation = 0;
      release(s.popular);
      leave(s.arrived.leaf);
    }
  }
  void release(Index at) {
    Popular& p = popular[at];
    if (p.requests > 0 || std::any_of(p.active.begin(), p.active.end(), [](std::uint32_t n) { return n > 0; })) return;
    tree[p.node].data.popular = none;
    p = Popular{};
    free_popular_.push_back(at);
  }
  /// A prompt that ended here is gone; nodes that nothing needs go with it.
  void leave(Index node) {
    --tree[node].data.uses;
    while (node != root && tree[node].child == none && tree[node].data.uses == 0 && tree[node].data.popular == none) {
      const Index parent = tree[node].parent;
      tree.remove(node);
      node = parent;
    }
  }

  std::uint32_t chunk_, recent_;
  Nanoseconds window_;
  std::vector<Index> free_popular_;
  std::deque<Seen> seen_;
  std::vector<Running> running_;
  std::vector<Index> free_running_;
  KeyTable running_table_;  // from tags
  std::vector<RecentMedian> tpot_;
};

}  // namespace decant::scheduling::detail

#endif
