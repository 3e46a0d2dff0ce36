// decant: orders of the waiting list that look at what is cached, as SGLang's policies do: LongestPrefixMatch,
// ShortestPrefill, DfsWeight and HighestResponseRatio, for Continuous. What is cached the memory says (Batch::hit); who
// shares with whom, the digests of prefixes (RequestInfo::chain, one per `chunk` tokens). Read in the public source of
// that engine; that sharing is judged in whole chunks is ours.
#ifndef DECANT_SCHEDULING_PREFIX_ORDERS_HPP
#define DECANT_SCHEDULING_PREFIX_ORDERS_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "continuous.hpp"
#include "detail/key_table.hpp"

namespace decant::scheduling {

namespace detail {

/// A ranked list, handed out from the front.
class RankedList {
 public:
  template <class Memory>
  RequestId peek(const Batch<Memory>&) const {
    return next_ < ids_.size() ? ids_[next_] : no_request;
  }
  template <class Memory>
  void pop(const Batch<Memory>&) {
    ++next_;
  }

 protected:
  template <class Memory>
  void load(const Batch<Memory>& batch) {
    ids_.clear();
    next_ = 0;
    for (RequestId id = batch.first_waiting(); id != no_request; id = batch.next_waiting(id)) ids_.push_back(id);
  }
  template <class Memory>
  void load_by_arrival(const Batch<Memory>& batch) {
    load(batch);
    std::sort(ids_.begin(), ids_.end(),
              [&](RequestId a, RequestId b) { return earlier(batch[a].info, batch[b].info); });
  }

  std::vector<RequestId> ids_;

 private:
  std::size_t next_ = 0;
};

/// A list by a key, ties by (arrival, tag), in which requests that repeat what an earlier one of the same pass is to fill
/// the cache with come last.
class DeferringList : public RankedList {
 protected:
  /// key(hit, tokens to compute): the smaller the sooner. A request whose hit exceeds `defer_tokens` is never deferred.
  /// O(waiting * (chunks + log waiting)).
  template <class Memory, class Key>
  void rank(const Batch<Memory>& batch, std::uint32_t chunk, std::uint32_t defer_tokens, const Key& key) {
    load_by_arrival(batch);
    seen_.reset(ids_.size());
    if (ranks_.size() < batch.slots()) ranks_.resize(batch.slots());
    for (const RequestId id : ids_) {
      const std::uint32_t hit = batch.hit(id);
      ranks_[id] = {hit <= defer_tokens && repeats(batch[id].info, defer_tokens, chunk),
                    key(hit, batch[id].need() - hit)};
    }
    std::sort(ids_.begin(), ids_.end(), [&](RequestId a, RequestId b) {
      const Rank &x = ranks_[a], &y = ranks_[b];
      if (x.deferred != y.deferred) return y.deferred;
      return x.key != y.key ? x.key < y.key : earlier(batch[a].info, batch[b].info);
    });
  }

 private:
  struct Rank {
    bool deferred = false;
    std::int64_t key = 0;
  };

  // Whether an earlier request of this pass has the same first `tokens` tokens, judged in whole chunks; if none has, it
  // is one that later requests may share with.
  bool repeats(const RequestInfo& info, std::uint32_t tokens, std::uint32_t chunk) {
    const auto needed = static_cast<index_t>(tokens / chunk) + (tokens % chunk != 0);
    if (needed == 0 || info.chain.extent(0) < needed) return false;
    std::uint32_t& first = seen_[info.chain[needed - 1]];
    if (first != KeyTable::none) return true;
    first = 0;
    return false;
  }

  std::vector<Rank> ranks_;  // per slot
  KeyTable seen_;
};

}  // namespace detail

struct LongestPrefixOptions {
  std::uint32_t chunk = 16;         ///< tokens per digest of a chain
  std::uint32_t most_waiting = 128; ///< with more, first come, first served: ranking would cost too much. 0: no bound
  std::uint32_t defer_tokens = 32;  ///< a request with no longer hit waits for one of its pass that it shares so much with
  bool operator==(const LongestPrefixOptions&) const = default;
};

/// The longest cached prefix first, ties by (arrival, tag). Of several that would fill the cache with the same prefix
/// only the first goes on; the others are ranked last, and find it cached later.
class LongestPrefixMatch : public detail::DeferringList {
 public:
  LongestPrefixMatch() = default;
  explicit LongestPrefixMatch(const LongestPrefixOptions& options) : o_(options) {
    require(options.chunk > 0, "scheduling::LongestPrefixMatch", "options.chunk", "at least 1 token", options.chunk);
  }

  /// O(waiting * (chunks + log waiting)).
  template <class Memory>
  void begin(const Batch<Memory>& batch) {
    if (o_.most_waiting > 0 && batch.waiting_count() > o_.most_waiting) return load(batch);
    rank(batch, o_.chunk, o_.defer_tokens, [](std::uint32_t hit, std::uint32_t) { return -std::int64_t{hit}; });
  }

 private:
  LongestPrefixOptions o_{};
};

struct ShortestPrefillOptions {
  std::uint32_t chunk = 16;         ///< tokens per digest of a chain
  std::uint32_t defer_tokens = 32;  ///< as LongestPrefixOptions has it; 0: nobody is deferred
  bool operator==(const ShortestPrefillOptions&) const = default;
};

/// The fewest tokens to compute first, those in memory left out (PrefillLength of orders.hpp), ties by (arrival, tag);
/// requests that repeat what an earlier one of the pass is to fill the cache with are ranked last.
class ShortestPrefill : public detail::DeferringList {
 public:
  ShortestPrefill() = default;
  explicit ShortestPrefill(const ShortestPrefillOptions& options) : o_(options) {
    require(options.chunk > 0, "scheduling::ShortestPrefill", "options.chunk", "at least 1 token", options.chunk);
  }

  /// O(waiting * (chunks + log waiting)).
  template <class Memory>
  void begin(const Batch<Memory>& batch) {
    rank(batch, o_.chunk, o_.defer_tokens,
         [](std::uint32_t, std::uint32_t tokens) { return std::int64_t{tokens}; });
  }

 private:
  ShortestPrefillOptions o_{};
};

struct DfsWeightOptions {
  std::uint32_t chunk = 16;  ///< tokens per digest of a chain
  bool operator==(const DfsWeightOptions&) const = default;
};

/// Depth first through the tree of cached prefixes, the child first under which most requests wait (ties: the one with
/// the earliest of them); requests that end at a node come after its subtrees.
class DfsWeight : public detail::RankedList {
 public:
  DfsWeight() = default;
  explicit DfsWeight(const DfsWeightOptions& options) : o_(options) {
    require(options.chunk > 0, "scheduling::DfsWeight", "options.chunk", "at least 1 token", options.chunk);
  }

  /// O(waiting * (cached chunks + log waiting)).
  template <class Memory>
  void begin(const Batch<Memory>& batch) {
    load_by_arrival(batch);
    nodes_.assign(1, Node{});
    table_.reset(ids_.size());
    ends_.clear();
    for (const RequestId id : ids_) {
      const auto& chain = batch[id].info.chain;
      const auto cached = (std::min)(static_cast<index_t>(batch.hit(id) / o_.chunk), chain.extent(0));
      std::uint32_t node = 0;
      ++nodes_[0].weight;
      for (index_t level = 0; level < cached; ++level) {
        std::uint32_t& place = table_[chain[level]];
        if (place == detail::KeyTable::none) {
          place = static_cast<std::uint32_t>(nodes_.size());
          nodes_.push_back({0, node, static_cast<std::uint32_t>(nodes_.size())});
        }
        node = place;
        ++nodes_[node].weight;
      }
      ends_.push_back({node, id});
    }
    order_nodes();
    std::sort(ends_.begin(), ends_.end(), [&](const End& a, const End& b) {
      const std::uint32_t x = nodes_[a.node].place, y = nodes_[b.node].place;
      return x != y ? x < y : earlier(batch[a.id].info, batch[b.id].info);
    });
    for (std::size_t i = 0; i < ends_.size(); ++i) ids_[i] = ends_[i].id;
  }

 private:
  struct Node {
    std::uint32_t weight = 0, parent = 0;
    std::uint32_t place = 0;  // first the creation, which is that of its earliest request; then the place in the order
  };
  struct End {
    std::uint32_t node;
    RequestId id;
  };

  // Places in post-order, children by weight.
  void order_nodes() {
    const auto n = static_cast<std::uint32_t>(nodes_.size());
    children_.resize(n);
    for (std::uint32_t i = 0; i < n; ++i) children_[i] = i;
    // By parent, then the heavier, then the earlier. The root, its own parent, is left out.
    std::sort(children_.begin() + 1, children_.end(), [&](std::uint32_t a, std::uint32_t b) {
      const Node &x = nodes_[a], &y = nodes_[b];
      if (x.parent != y.parent) return x.parent < y.parent;
      return x.weight != y.weight ? x.weight > y.weight : a < b;
    });
    first_.assign(n + std::size_t{1}, 0);
    for (std::uint32_t i = 1; i < n; ++i) ++first_[nodes_[i].parent + 1];
    for (std::uint32_t i = 0; i < n; ++i) first_[i + 1] += first_[i];
    stack_.assign(1, {0, 0});
    std::uint32_t place = 0;
    while (!stack_.empty()) {
      auto& [node, child] = stack_.back();
      if (first_[node] + child < first_[node + 1]) {
        const std::uint32_t next = children_[1 + first_[node] + child++];
        stack_.push_back({next, 0});
      } else {
        nodes_[node].place = place++;
        stack_.pop_back();
      }
    }
  }

  struct Visit {
    std::uint32_t node, child;
  };

  DfsWeightOptions o_{};
  detail::KeyTable table_;
  std::vector<Node> nodes_;
  std::vector<End> ends_;
  std::vector<std::uint32_t> children_, first_;
  std::vector<Visit> stack_;
};

/// Who has waited longest for what it needs: the prompt tokens that were computed since it came, over those that it
/// needs itself; requests that need none beyond the one that must be computed come first. A counter of tokens takes the
/// place of time.
class HighestResponseRatio : public detail::RankedList {
 public:
  template <class Memory>
  void arrive(const Batch<Memory>&, RequestId id) {
    if (id >= since_.size()) since_.resize(id + std::size_t{1});
    since_[id] = tokens_;
  }
  void charge(std::uint64_t prompt_tokens) { tokens_ += prompt_tokens; }

  /// O(waiting log waiting), and what Batch::need costs.
  template <class Memory>
  void begin(const Batch<Memory>& batch) {
    load(batch);
    if (needs_.size() < batch.slots()) needs_.resize(batch.slots());
    for (const RequestId id : ids_) needs_[id] = batch.need(id) - 1;
    std::sort(ids_.begin(), ids_.end(), [&](RequestId a, RequestId b) {
      const std::uint64_t x = needs_[a], y = needs_[b];
      if ((x == 0) != (y == 0)) return x == 0;
      // waited(a) / x > waited(b) / y, without a division.
      const std::uint64_t left = (tokens_ - since_[a]) * y, right = (tokens_ - since_[b]) * x;
      return left != right ? left > right : earlier(batch[a].info, batch[b].info);
    });
  }

 private:
  std::uint64_t tokens_ = 0;
  std::vector<std::uint64_t> since_;   // per slot
  std::vector<std::uint32_t> needs_;
};

using Lpm = Continuous<LongestPrefixMatch>;
using DfsWeighted = Continuous<DfsWeight>;
using SharedPrefillFirst = Continuous<ShortestPrefill>;
static_assert(Scheduler<Lpm> && Scheduler<DfsWeighted> && Scheduler<SharedPrefillFirst>);

/// Continuous batching by response ratio.
class Hrrn : public DeafScheduler {
 public:
  template <class Memory>
  void on_arrival(const Batch<Memory>& batch, RequestId id) {
    batching_.order().arrive(batch, id);
  }
  template <class Memory>
  void on_step_done(const Batch<Memory>& batch, const StepResult&) {
    const auto items = batch.items();
    for (index_t i = 0; i < items.extent(0); ++i) batching_.order().charge(prompt_part(batch[items[i].id], items[i]));
  }
  template <class Memory>
  void schedule(Batch<Memory>& batch) {
    batching_.schedule(batch);
  }

 private:
  Continuous<HighestResponseRatio> batching_;
};
static_assert(Scheduler<Hrrn>);

}  // namespace decant::scheduling

#endif
