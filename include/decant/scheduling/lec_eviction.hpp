// decant: LecEviction, which cached object goes when objects differ in size and in what it costs to make them again:
// embeddings of images, prefixes, adapters. Least expected cost: the lowest (share of requests) * cost / size, as the
// position paper on optimising inference (arXiv 2605.01280) prints it; the estimate of the share (requests so far and a
// half) and `bypass` are ours. Beside it LRU, LFU and GDSF (Cherkasova, HPL-98-69), all as policies of one ObjectCache,
// which remembers the requests for objects that it does not hold.
#ifndef DECANT_SCHEDULING_LEC_EVICTION_HPP
#define DECANT_SCHEDULING_LEC_EVICTION_HPP

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "../core/error.hpp"
#include "../core/view.hpp"

namespace decant::scheduling {

/// The caller's number of an object: small, dense, the same object for ever.
using ObjectId = std::uint32_t;

struct CachedObject {
  std::uint64_t size = 1;  ///< in the unit of the cache's capacity, at least 1
  double cost = 1;         ///< of making it again, its parents being there; above 0
  bool operator==(const CachedObject&) const = default;
};

/// What a policy sees of an object at the moment of a request for it.
struct ObjectUse {
  CachedObject object{};
  std::uint64_t requests = 0;  ///< so far, this one and those of its absence included
  std::uint64_t now = 0;       ///< number of this request among all
};

/// Scores the objects of an ObjectCache; the lowest goes first.
template <class P>
concept ObjectEviction = requires(P& policy, const P& still, const ObjectUse& use, double score) {
  /// The score of an object, which it keeps until it is requested again.
  { policy.score(use) } -> std::same_as<double>;
  /// An object of this score was evicted.
  policy.on_evict(score);
  /// Whether a new object stays outside unless every object that would have to go scores below it.
  { still.bypasses() } -> std::same_as<bool>;
};

/// Least expected cost. With equal cost / size it is LFU that remembers.
struct LecEviction {
  bool bypass = true;
  bool operator==(const LecEviction&) const = default;

  double score(const ObjectUse& use) const {
    return (static_cast<double>(use.requests) + 0.5) * use.object.cost / static_cast<double>(use.object.size);
  }
  void on_evict(double) {}
  bool bypasses() const { return bypass; }
};

/// Least recently used.
struct LruEviction {
  bool operator==(const LruEviction&) const = default;

  double score(const ObjectUse& use) const { return static_cast<double>(use.now); }
  void on_evict(double) {}
  bool bypasses() const { return false; }
};

/// Least frequently used, over all requests so far.
struct LfuEviction {
  bool operator==(const LfuEviction&) const = default;

  double score(const ObjectUse& use) const { return static_cast<double>(use.requests); }
  void on_evict(double) {}
  bool bypasses() const { return false; }
};

/// Greedy dual, size and frequency: L + requests * cost / size, L the score of what was evicted last.
struct GdsfEviction {
  double inflation = 0;  ///< L
  bool operator==(const GdsfEviction&) const = default;

  double score(const ObjectUse& use) const {
    return inflation + static_cast<double>(use.requests) * use.object.cost / static_cast<double>(use.object.size);
  }
  void on_evict(double score) { inflation = score; }
  bool bypasses() const { return false; }
};

static_assert(ObjectEviction<LecEviction> && ObjectEviction<LruEviction> && ObjectEviction<LfuEviction> &&
              ObjectEviction<GdsfEviction>);

/// Which objects of a cache of bounded size are there; it holds no objects, the caller makes and drops them.
template <ObjectEviction Policy = LecEviction>
class ObjectCache {
 public:
  /// ArgumentError: a capacity of 0.
  explicit ObjectCache(std::uint64_t capacity, Policy policy = {}) : capacity_(capacity), policy_(policy) {
    require(capacity > 0, "scheduling::ObjectCache", "capacity", "at least 1", capacity);
  }

  /// A request for an object; true: it is there. If not it is made now, and kept if contains(id) afterwards; evicted()
  /// had to go for it. One larger than the cache is never kept. Ties: the lowest id goes. O(log objects) for each
  /// evicted object; no allocation once ids are known. ArgumentError: a size of 0, a cost that is not above 0, another
  /// size than before while it is cached.
  bool request(ObjectId id, const CachedObject& object) {
    constexpr auto where = "scheduling::ObjectCache::request";
    require(object.size > 0, where, "object.size", "at least 1", object.size);
    require(object.cost > 0, where, "object.cost", "a number above 0", object.cost);
    if (id >= entries_.size()) entries_.resize(std::size_t{id} + 1);
    Entry& entry = entries_[id];
    const bool hit = entry.place != absent;
    require(!hit || object.size == entry.size, where, "object.size", "the size with which it is cached", object.size);
    ++now_;
    ++entry.requests;
    evicted_.clear();
    if (!hit && object.size > capacity_) return false;
    const double score = policy_.score({object, entry.requests, now_});
    if (hit) {
      remove(entry.place);
    } else {
      if (!make_room(object.size, score)) return false;
      used_ += object.size;
      entry.size = object.size;
    }
    entry.score = policy_.score({object, entry.requests, now_});
    insert(id);
    return hit;
  }

  bool contains(ObjectId id) const { return id < entries_.size() && entries_[id].place != absent; }
  /// What the last request evicted, in order; valid until the next.
  View<const ObjectId, 1> evicted() const { return {evicted_.data(), static_cast<index_t>(evicted_.size())}; }

  std::uint64_t capacity() const { return capacity_; }
  std::uint64_t used() const { return used_; }
  std::size_t count() const { return heap_.size(); }
  const Policy& policy() const { return policy_; }

 private:
  static constexpr std::size_t absent = static_cast<std::size_t>(-1);

  struct Entry {
    std::uint64_t size = 0, requests = 0;
    double score = 0;
    std::size_t place = absent;  // in heap_
  };

  // Victims are taken out one by one, and put back if one of them is worth more than the object that wants in.
  bool make_room(std::uint64_t size, double score) {
    std::uint64_t freed = 0;
    while (capacity_ - used_ + freed < size) {
      const ObjectId victim = heap_.front();
      if (policy_.bypasses() && !(entries_[victim].score < score)) {
        for (const ObjectId id : evicted_) insert(id);
        evicted_.clear();
        return false;
      }
      remove(0);
      freed += entries_[victim].size;
      evicted_.push_back(victim);
    }
    used_ -= freed;
    for (const ObjectId id : evicted_) policy_.on_evict(entries_[id].score);
    return true;
  }

  bool before(ObjectId a, ObjectId b) const {
    return entries_[a].score != entries_[b].score ? entries_[a].score < entries_[b].score : a < b;
  }

  void put(std::size_t place, ObjectId id) {
    heap_[place] = id;
    entries_[id].place = place;
  }

  void insert(ObjectId id) {
    heap_.push_back(id);
    rise(heap_.size() - 1, id);
  }

  void rise(std::size_t place, ObjectId id) {
    for (; place > 0 && before(id, heap_[(place - 1) / 2]); place = (place - 1) / 2) put(place, heap_[(place - 1) / 2]);
    put(place, id);
  }

  void remove(std::size_t place) {
    entries_[heap_[place]].place = absent;
    const ObjectId id = heap_.back();
    heap_.pop_back();
    if (place == heap_.size()) return;
    for (std::size_t child; (child = 2 * place + 1) < heap_.size(); place = child) {
      if (child + 1 < heap_.size() && before(heap_[child + 1], heap_[child])) ++child;
      if (!before(heap_[child], id)) break;
      put(place, heap_[child]);
    }
    rise(place, id);
  }

  std::uint64_t capacity_, used_ = 0, now_ = 0;
  Policy policy_;
  std::vector<Entry> entries_;
  std::vector<ObjectId> heap_;  // of what is cached, the lowest score first
  std::vector<ObjectId> evicted_;
};

}  // namespace decant::scheduling

#endif
