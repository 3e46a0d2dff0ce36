// What the tree promises beyond a PrefixIndex: locks, edges that are cut, and how many nodes there are.
#include "decant/scheduling/radix_cache.hpp"

#include <vector>

#include "catch_compat.hpp"
#include "decant/scheduling/block_index.hpp"

namespace radix_cache_test {

using namespace decant;
using namespace decant::scheduling;

using Words = std::vector<std::uint32_t>;

TEST_CASE("RadixCache: locked paths stay, whatever is asked for") {
  RadixCache cache;
  const Words a{1, 2, 3, 4, 5, 6}, b{1, 2, 3, 9}, c{7, 7};
  CHECK(cache.insert(a) == 0);
  CHECK(cache.insert(b) == 3);  // cuts the edge of a
  CHECK(cache.nodes() == 4);
  CHECK(cache.insert(c) == 0);
  RadixCache::Node node = RadixCache::none;
  CHECK(cache.match(Words{1, 2, 3, 4, 8}, node) == 4);  // cuts again
  cache.lock(node);
  CHECK(cache.evictable() == cache.size() - 4);
  CHECK(cache.evict(100) == 5);
  CHECK(cache.match(a) == 4);
  CHECK(cache.match(b) == 3);
  CHECK(cache.match(c) == 0);
  cache.lock(node);
  cache.unlock(node);
  CHECK(cache.evict(100) == 0);
  cache.unlock(node);
  CHECK_THROWS_AS(cache.unlock(node), ArgumentError);
  CHECK(cache.evict(100) == 4);
  CHECK(cache.size() == 0);
  CHECK(cache.nodes() == 1);
  CHECK_THROWS_AS(RadixCache(0), ArgumentError);
}

TEST_CASE("RadixCache: a lock on an edge that is cut later holds both parts") {
  RadixCache cache;
  const Words a{1, 2, 3, 4};
  cache.insert(a);
  RadixCache::Node node = RadixCache::none;
  cache.match(a, node);
  cache.lock(node);
  cache.insert(Words{1, 2, 9});
  CHECK(cache.evict(100) == 1);
  CHECK(cache.match(a) == 4);
  cache.unlock(node);
  CHECK(cache.evict(100) == 4);
}

TEST_CASE("RadixCache: of leaves the one unused for longest goes first") {
  RadixCache cache(2);
  cache.insert(Words{1, 1, 2, 2});
  cache.insert(Words{1, 1, 3, 3});
  cache.insert(Words{4, 4});
  cache.match(Words{1, 1, 2, 2});
  CHECK(cache.evict(1) == 2);
  CHECK(cache.match(Words{1, 1, 3, 3}) == 2);
  CHECK(cache.evict(1) == 2);
  CHECK(cache.match(Words{4, 4}) == 0);
  CHECK(cache.match(Words{1, 1, 2, 2}) == 4);
}

TEST_CASE("BlockIndex: chains given as digests, and the least recently used blocks exactly") {
  // Requests touch all blocks of a chain; with capacity for three blocks the oldest go.
  BlockIndex index(1);
  const auto serve = [&](std::vector<std::uint64_t> chain) {
    const std::size_t hits = index.match_chain(chain);
    index.insert_chain(chain);
    if (index.size() > 3) index.evict(index.size() - 3);
    return hits;
  };
  CHECK(serve({1, 2, 3}) == 0);
  CHECK(serve({1, 2}) == 2);
  CHECK(serve({1, 4}) == 1);     // 3 goes
  CHECK(serve({1, 2, 3}) == 2);  // 4 goes
  CHECK(serve({5}) == 0);        // 3 goes again
  CHECK(serve({1, 2}) == 2);
  CHECK(index.size() == 3);
}

}  // namespace radix_cache_test
