// decant: ChunkedHashIndex, Feather's Chunked Hash Tree (arXiv 2605.06046): which waiting request shares most with what
// runs, without a tree. A request is the chain of digests of its prefixes, one per chunk of tokens (chain_hash.hpp); the
// index counts, for every digest, the active requests that have it and lists the waiting ones, so that admitting or
// ending a request updates how many digests each waiting one lacks. The paper's structure; three slips of its printed
// pseudo-code are not copied (the first admission updates everything; the shared prefix can shrink; the last end cleans
// up), keys have all 64 bits, ties go by (arrival, tag). Digests that contradict each other (one after two different
// prefixes: a collision) cut a chain short, so a collision misjudges a batch, no more.
#ifndef DECANT_SCHEDULING_CHUNKED_HASH_INDEX_HPP
#define DECANT_SCHEDULING_CHUNKED_HASH_INDEX_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "../core/error.hpp"
#include "detail/key_table.hpp"
#include "request.hpp"

namespace decant::scheduling {

/// The waiting request that lacks the fewest digests of those that active requests have.
struct PrefixCandidate {
  RequestId id = no_request;
  std::uint32_t before = 0;   ///< chunks that all active requests share
  std::uint32_t after = 0;    ///< and with this one among them; 0 where nothing is active
  std::uint32_t sharing = 0;  ///< waiting requests, this one included, that have its chunks up to `after`; 0 if that is 0
  bool operator==(const PrefixCandidate&) const = default;
};

class ChunkedHashIndex {
 public:
  /// A request waits. `chain`: its digests, read now. ArgumentError: it is there already. O(chunks + log waiting).
  void insert(RequestId id, const RequestInfo& info, View<const std::uint64_t, 1> chain) {
    if (id >= requests_.size()) requests_.resize(id + std::size_t{1});
    Request& r = requests_[id];
    require(r.place == Place::absent, "scheduling::ChunkedHashIndex::insert", "id", "a request that is not there yet",
            info.tag);
    r.arrival = info.arrival;
    r.tag = info.tag;
    r.place = Place::waiting;
    r.missing = 0;
    r.links.clear();
    std::uint32_t parent = none;
    for (index_t level = 0; level < chain.extent(0); ++level) {
      const std::uint32_t e = entry_of(chain[level], parent, static_cast<std::uint32_t>(level));
      if (entries_[e].parent != parent) break;
      r.links.push_back({e, none, none});
      push_waiting(e, id);
      r.missing += entries_[e].active == 0;
      parent = e;
    }
    ++waiting_;
    push_heap(id);
  }

  /// A waiting request becomes active. O(chunks) and, where it brings digests that no active one had, O(log) for each
  /// waiting request that has the first of them.
  void activate(RequestId id) {
    check(id, Place::waiting, "activate");
    Request& r = requests_[id];
    leave_lists(id);
    r.place = Place::active;
    tip_ = active_.empty() ? static_cast<std::uint32_t>(r.links.size()) : common(id);
    r.at = active_.size();
    active_.push_back(id);
    std::size_t known = 0;
    for (const Link& link : r.links) known += entries_[link.entry].active++ > 0;
    change_missing(r, known, -1);
  }

  /// An active request ends or is preempted. The same cost.
  void finish(RequestId id) {
    check(id, Place::active, "finish");
    Request& r = requests_[id];
    active_[r.at] = active_.back();
    requests_[active_[r.at]].at = r.at;
    active_.pop_back();
    std::size_t known = 0;
    for (const Link& link : r.links) known += --entries_[link.entry].active > 0;
    change_missing(r, known, 1);
    for (const Link& link : r.links) release(link.entry);
    r.place = Place::absent;
    if (active_.empty()) {
      tip_ = 0;
      return;
    }
    const auto& chain = requests_[active_[0]].links;
    while (tip_ < chain.size() && entries_[chain[tip_].entry].active == active_.size()) ++tip_;
  }

  /// A waiting request is gone.
  void remove(RequestId id) {
    check(id, Place::waiting, "remove");
    leave_lists(id);
    for (const Link& link : requests_[id].links) release(link.entry);
    requests_[id].place = Place::absent;
  }

  std::size_t waiting() const { return waiting_; }
  std::size_t active() const { return active_.size(); }
  /// Items of the heap behind best(), of which some no longer hold: at most 65 and four for each that waits.
  std::size_t heap_size() const { return heap_.size(); }
  /// Chunks that all active requests share.
  std::uint32_t tip() const { return tip_; }
  bool waits(RequestId id) const { return id < requests_.size() && requests_[id].place == Place::waiting; }
  /// Digests of a waiting request that no active one has.
  std::uint32_t missing(RequestId id) const { return requests_[id].missing; }

  /// id is no_request where nothing waits. O(log waiting), amortised.
  PrefixCandidate best() {
    while (!heap_.empty() && !valid(heap_.front())) {
      std::pop_heap(heap_.begin(), heap_.end(), later);
      heap_.pop_back();
    }
    return heap_.empty() ? PrefixCandidate{} : candidate(heap_.front().id);
  }
  /// The same of any waiting request. O(its chunks).
  PrefixCandidate candidate(RequestId id) const {
    PrefixCandidate c;
    c.id = id;
    if (active_.empty()) return c;
    c.before = tip_;
    c.after = common(id);
    if (c.after > 0) c.sharing = entries_[requests_[id].links[c.after - 1].entry].waiting;
    return c;
  }
  /// The deepest chunk of a waiting request that another waiting one has too, counted from 1, and how many have it; 0, 0
  /// if none does. O(log chunks): who shares a prefix shares all before it.
  std::uint32_t deepest_shared(RequestId id, std::uint32_t& requests) const {
    const auto& chain = requests_[id].links;
    std::size_t low = 0, high = chain.size();
    while (low < high) {
      const std::size_t middle = (low + high) / 2;
      if (entries_[chain[middle].entry].waiting >= 2) low = middle + 1;
      else high = middle;
    }
    requests = low == 0 ? 0 : entries_[chain[low - 1].entry].waiting;
    return static_cast<std::uint32_t>(low);
  }

 private:
  static constexpr std::uint32_t none = 0xffffffffu;
  enum class Place : std::uint8_t { absent, waiting, active };

  struct Link {
    std::uint32_t entry;
    // Neighbours among the entry's waiting requests; their levels are the same, for a digest is one of a whole prefix.
    RequestId previous, next;
  };
  struct Request {
    Nanoseconds arrival = 0;
    std::uint64_t tag = 0;
    std::uint32_t missing = 0;
    std::uint32_t pushed = 0;  // times: the youngest item of the heap is the one that holds
    std::size_t at = 0;  // in active_
    std::vector<Link> links;
    Place place = Place::absent;
  };
  struct Entry {
    std::uint64_t key = 0;
    std::uint32_t parent = none;  // the entry one chunk before, the same for all that have this one
    std::uint32_t level = 0;
    std::uint32_t active = 0, waiting = 0;
    RequestId first = none;       // of those that wait
  };
  struct HeapItem {
    std::uint32_t missing, pushed;
    Nanoseconds arrival;
    std::uint64_t tag;
    RequestId id;
  };

  static bool later(const HeapItem& a, const HeapItem& b) {
    if (a.missing != b.missing) return a.missing > b.missing;
    return a.arrival != b.arrival ? a.arrival > b.arrival : a.tag > b.tag;
  }
  bool valid(const HeapItem& item) const {
    const Request& r = requests_[item.id];
    return r.place == Place::waiting && r.pushed == item.pushed;
  }
  void push_heap(RequestId id) {
    // Items that no longer hold are left in until they are most of it.
    if (heap_.size() > 64 + 4 * waiting_) {
      heap_.erase(std::remove_if(heap_.begin(), heap_.end(), [&](const HeapItem& item) { return !valid(item); }),
                  heap_.end());
      std::make_heap(heap_.begin(), heap_.end(), later);
    }
    Request& r = requests_[id];
    heap_.push_back({r.missing, ++r.pushed, r.arrival, r.tag, id});
    std::push_heap(heap_.begin(), heap_.end(), later);
  }

  void check(RequestId id, Place place, const char* verb) const {
    if (id < requests_.size() && requests_[id].place == place) return;
    ::decant::detail::fail_argument((std::string("scheduling::ChunkedHashIndex::") + verb).c_str(), "id",
                                    place == Place::waiting ? "a waiting request" : "an active request", id);
  }

  std::uint32_t entry_of(std::uint64_t key, std::uint32_t parent, std::uint32_t level) {
    std::uint32_t& place = table_[key];
    if (place != none) return place;
    if (free_.empty()) {
      place = static_cast<std::uint32_t>(entries_.size());
      entries_.emplace_back();
    } else {
      place = free_.back();
      free_.pop_back();
    }
    entries_[place] = Entry{key, parent, level, 0, 0, none};
    return place;
  }
  void release(std::uint32_t e) {
    if (entries_[e].active > 0 || entries_[e].waiting > 0) return;
    table_.erase(entries_[e].key);
    free_.push_back(e);
  }

  void push_waiting(std::uint32_t e, RequestId id) {
    Entry& entry = entries_[e];
    requests_[id].links[entry.level].next = entry.first;
    if (entry.first != none) requests_[entry.first].links[entry.level].previous = id;
    entry.first = id;
    ++entry.waiting;
  }
  void leave_lists(RequestId id) {
    auto& links = requests_[id].links;
    for (std::size_t level = 0; level < links.size(); ++level) {
      const Link& link = links[level];
      (link.previous == none ? entries_[link.entry].first : requests_[link.previous].links[level].next) = link.next;
      if (link.next != none) requests_[link.next].links[level].previous = link.previous;
      --entries_[link.entry].waiting;
    }
    --waiting_;
  }

  // The chunks of r from `known` on have become ones that active requests have (by = -1), or no longer are (1). Those who
  // have any of them have the first.
  void change_missing(const Request& r, std::size_t known, int by) {
    if (known == r.links.size()) return;
    for (RequestId id = entries_[r.links[known].entry].first; id != none;) {
      Request& q = requests_[id];
      std::size_t low = known + 1, high = (std::min)(r.links.size(), q.links.size());
      while (low < high) {
        const std::size_t middle = (low + high) / 2;
        if (q.links[middle].entry == r.links[middle].entry) low = middle + 1;
        else high = middle;
      }
      const auto chunks = static_cast<std::uint32_t>(low - known);
      q.missing = by > 0 ? q.missing + chunks : q.missing - chunks;
      const RequestId next = q.links[known].next;
      push_heap(id);
      id = next;
    }
  }

  // Chunks that a request shares with all active ones.
  std::uint32_t common(RequestId id) const {
    const auto& mine = requests_[id].links;
    const auto& chain = requests_[active_[0]].links;
    const std::size_t most = (std::min)(static_cast<std::size_t>(tip_), mine.size());
    std::uint32_t n = 0;
    while (n < most && mine[n].entry == chain[n].entry) ++n;
    return n;
  }

  detail::KeyTable table_;
  std::vector<Entry> entries_;
  std::vector<std::uint32_t> free_;
  std::vector<Request> requests_;  // by slot
  std::vector<RequestId> active_;
  std::vector<HeapItem> heap_;
  std::size_t waiting_ = 0;
  std::uint32_t tip_ = 0;
};

}  // namespace decant::scheduling

#endif
