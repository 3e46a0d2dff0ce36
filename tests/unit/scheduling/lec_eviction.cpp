// ObjectCache and its policies: shares of the cost of misses against a reference that was written apart from this
// library, the rules of entry, and the heap against a linear search.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <utility>
#include <vector>

#include "catch_compat.hpp"
#include "decant/scheduling/lec_eviction.hpp"
#include "decant/scheduling/workload.hpp"

namespace lec_eviction_test {

using namespace decant;
using namespace decant::scheduling;

struct Stream {
  std::vector<CachedObject> objects;
  std::vector<double> share, upto;
  std::uint64_t capacity = 0;

  explicit Stream(double ratio) {
    SplitMix64 next{42};
    double sum = 0;
    for (int i = 0; i < 200; ++i) {
      const std::uint64_t size = 1 + next() % 10;
      objects.push_back({size, next() % 2 ? ratio : 1});
      capacity += size;
      share.push_back(std::pow(i + 1, -0.9));
      sum += share.back();
    }
    for (double& p : share) p /= sum;
    std::partial_sum(share.begin(), share.end(), std::back_inserter(upto));
    capacity /= 4;
  }

  // Costs of the misses in the second half; `cached(id)` is asked for each request.
  template <class Cached>
  double missed(int requests, Cached cached) const {
    SplitMix64 next{7};
    double cost = 0;
    for (int i = 0; i < requests; ++i) {
      const double u = static_cast<double>(next() >> 11) * 0x1p-53;
      const auto at = std::lower_bound(upto.begin(), upto.end(), u) - upto.begin();
      const auto id = static_cast<ObjectId>(std::min<std::ptrdiff_t>(at, 199));
      if (!cached(id) && i >= requests / 2) cost += objects[id].cost;
    }
    return cost;
  }

  template <class Policy>
  double missed(Policy policy) const {
    ObjectCache<Policy> cache(capacity, policy);
    return missed(200'000, [&](ObjectId id) { return cache.request(id, objects[id]); });
  }

  // The best set that never changes: by p * cost / size until the next one does not fit.
  double missed_by_static_set() const {
    std::vector<ObjectId> order(200);
    std::iota(order.begin(), order.end(), 0u);
    const auto worth = [&](ObjectId i) { return share[i] * objects[i].cost / static_cast<double>(objects[i].size); };
    std::sort(order.begin(), order.end(), [&](ObjectId a, ObjectId b) { return worth(a) > worth(b); });
    std::vector<char> kept(200, 0);
    std::uint64_t used = 0;
    for (const ObjectId i : order) {
      if (used + objects[i].size > capacity) continue;
      used += objects[i].size;
      kept[i] = 1;
    }
    return missed(200'000, [&](ObjectId id) { return kept[id] != 0; });
  }
};

TEST_CASE("ObjectCache: costs of the misses as shares of LRU's", "[statistics]") {
  struct Row {
    double ratio, lfu, gdsf, lec, bypass, fixed;
  };
  for (const Row& row : {Row{100, .712, .477, .360, .345, .345}, Row{10, .713, .603, .475, .464, .463},
                         Row{1, .715, .750, .633, .620, .622}}) {
    const Stream stream(row.ratio);
    const double lru = stream.missed(LruEviction{}), fixed = stream.missed_by_static_set();
    const double bypass = stream.missed(LecEviction{});
    CHECK(std::abs(stream.missed(LfuEviction{}) / lru - row.lfu) < .01);
    CHECK(std::abs(stream.missed(GdsfEviction{}) / lru - row.gdsf) < .01);
    CHECK(std::abs(stream.missed(LecEviction{.bypass = false}) / lru - row.lec) < .01);
    CHECK(std::abs(bypass / lru - row.bypass) < .01);
    CHECK(std::abs(fixed / lru - row.fixed) < .01);
    CHECK(bypass < 1.02 * fixed);
    if (row.ratio == 100) {
      CHECK(lru == 2'175'416);
      CHECK(fixed == 750'119);
    }
  }
}

TEST_CASE("ObjectCache: who enters and who goes") {
  ObjectCache<> cache(10);
  CHECK_FALSE(cache.request(0, {11, 1}));  // larger than the cache
  CHECK_FALSE(cache.contains(0));
  CHECK_FALSE(cache.request(1, {4, 8}));  // 3
  CHECK_FALSE(cache.request(2, {6, 6}));  // 1.5
  CHECK(cache.used() == 10);
  CHECK_FALSE(cache.request(3, {7, 9}));  // 1.93: above 2, but 1 would have to go too
  CHECK_FALSE(cache.contains(3));
  CHECK(cache.evicted().empty());
  CHECK(cache.contains(1));
  CHECK(cache.contains(2));
  CHECK(cache.used() == 10);
  CHECK_FALSE(cache.request(3, {7, 9}));  // 3.21 by its second request: above both, and absent requests count
  CHECK(cache.contains(3));
  REQUIRE(cache.evicted().extent(0) == 2);
  CHECK(cache.evicted()[0] == 2);
  CHECK(cache.evicted()[1] == 1);
  CHECK(cache.used() == 7);
  CHECK(cache.count() == 1);
  CHECK(cache.request(3, {7, 9}));
  CHECK(cache.evicted().empty());
}

TEST_CASE("ObjectCache: ties go by the lowest id, and an equal score does not displace") {
  ObjectCache<> cache(3);
  for (const ObjectId id : {2u, 0u, 1u}) cache.request(id, {});
  cache.request(5, {});
  CHECK_FALSE(cache.contains(5));
  ObjectCache<LecEviction> open(3, {.bypass = false});
  for (const ObjectId id : {2u, 0u, 1u, 5u}) open.request(id, {});
  CHECK(open.contains(5));
  CHECK_FALSE(open.contains(0));
}

// The same rules by linear search over all objects.
template <class Policy>
void same_as_linear_search(Policy policy) {
  constexpr std::uint64_t capacity = 40;
  SplitMix64 next{11};
  std::vector<CachedObject> objects;
  for (int i = 0; i < 30; ++i) objects.push_back({1 + next() % 15, static_cast<double>(1 + next() % 4)});
  struct Entry {
    bool in = false;
    std::uint64_t requests = 0;
    double score = 0;
  };
  std::vector<Entry> entries(30);
  Policy oracle = policy;
  ObjectCache<Policy> cache(capacity, policy);
  bool same = true;
  for (std::uint64_t t = 1; t <= 2000; ++t) {
    const auto id = static_cast<ObjectId>(std::min(next() % 30, next() % 30));
    Entry& e = entries[id];
    const bool hit = e.in;
    ++e.requests;
    const double score = oracle.score({objects[id], e.requests, t});
    if (!hit) {
      std::vector<ObjectId> in;
      std::uint64_t room = capacity;
      for (ObjectId i = 0; i < 30; ++i) {
        if (entries[i].in) in.push_back(i), room -= objects[i].size;
      }
      std::stable_sort(in.begin(), in.end(),
                       [&](ObjectId a, ObjectId b) { return entries[a].score < entries[b].score; });
      std::size_t victims = 0;
      bool enters = true;
      while (room < objects[id].size) {
        if (oracle.bypasses() && entries[in[victims]].score >= score) enters = false;
        room += objects[in[victims++]].size;
      }
      for (std::size_t v = 0; enters && v < victims; ++v) {
        entries[in[v]].in = false;
        oracle.on_evict(entries[in[v]].score);
      }
      e.in = enters;
    }
    e.score = oracle.score({objects[id], e.requests, t});
    same = same && cache.request(id, objects[id]) == hit && cache.used() <= capacity;
    for (ObjectId i = 0; i < 30; ++i) same = same && cache.contains(i) == entries[i].in;
  }
  CHECK(same);
}

TEST_CASE("ObjectCache: each policy as by linear search") {
  same_as_linear_search(LecEviction{});
  same_as_linear_search(LecEviction{.bypass = false});
  same_as_linear_search(LruEviction{});
  same_as_linear_search(LfuEviction{});
  same_as_linear_search(GdsfEviction{});
}

TEST_CASE("ObjectCache: arguments") {
  CHECK_THROWS_AS(ObjectCache<>(0), ArgumentError);
  ObjectCache<> cache(4);
  CHECK_THROWS_AS(cache.request(0, {0, 1}), ArgumentError);
  CHECK_THROWS_AS(cache.request(0, {1, 0}), ArgumentError);
  cache.request(0, {2, 1});
  CHECK_THROWS_AS(cache.request(0, {3, 1}), ArgumentError);
  CHECK(cache.contains(0));
}

}  // namespace lec_eviction_test
