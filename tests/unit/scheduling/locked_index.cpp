// A prefix index that several threads use: nothing is lost, and what is locked stays while others evict.
#include "decant/scheduling/locked_index.hpp"

#include <atomic>
#include <thread>
#include <vector>

#include "catch_compat.hpp"
#include "decant/scheduling/block_index.hpp"
#include "decant/scheduling/radix_cache.hpp"
#include "decant/scheduling/workload.hpp"

namespace locked_index_test {

using namespace decant;
using namespace decant::scheduling;

using Words = std::vector<std::uint32_t>;
constexpr std::uint32_t threads = 4;

/// The i-th sequence of a thread: they share a beginning within a thread, and the first two tokens with all.
Words sequence(std::uint32_t thread, std::uint32_t i) {
  Words out{1, 2, 3 + thread, 9};
  for (std::uint32_t j = 0; j < 12; ++j) out.push_back(j < 4 ? i % 4 : i);
  return out;
}

template <class Work>
void on_threads(const Work& work) {
  std::vector<std::thread> all;
  for (std::uint32_t t = 0; t < threads; ++t) all.emplace_back([&work, t] { work(t); });
  for (std::thread& t : all) t.join();
}

template <class I>
void nothing_is_lost(I& shared, I& alone) {
  constexpr std::uint32_t each = 200;
  std::atomic<int> wrong{0};
  on_threads([&](std::uint32_t t) {
    for (std::uint32_t i = 0; i < each; ++i) {
      const Words mine = sequence(t, i);
      shared.insert(mine);
      wrong += shared.peek(mine) != mine.size();
      wrong += shared.match(sequence(t, i / 2)) != mine.size();
      // Another's is there or not, but never longer than it is.
      wrong += shared.peek(sequence((t + 1) % threads, i)) > mine.size();
    }
  });
  CHECK(wrong == 0);
  for (std::uint32_t t = 0; t < threads; ++t) {
    for (std::uint32_t i = 0; i < each; ++i) alone.insert(sequence(t, i));
  }
  CHECK(shared.size() == alone.size());
  for (std::uint32_t t = 0; t < threads; ++t) {
    for (std::uint32_t i = 0; i < each; ++i) {
      if (shared.peek(sequence(t, i)) != 16) FAIL("thread " << t << ", sequence " << i);
    }
  }
}

TEST_CASE("LockedIndex: what threads insert at once is all there, and once", "[threads]") {
  LockedIndex<RadixCache> radix, radix_alone;
  nothing_is_lost(radix, radix_alone);
  LockedIndex<BlockIndex> blocks(4u), blocks_alone(4u);
  nothing_is_lost(blocks, blocks_alone);
}

TEST_CASE("LockedIndex: a path that is matched and locked as one stays while others evict", "[threads]") {
  LockedIndex<RadixCache> cache;
  std::atomic<int> wrong{0};
  on_threads([&](std::uint32_t t) {
    for (std::uint32_t i = 0; i < 300; ++i) {
      const Words mine = sequence(t, i % 7);
      cache.insert(mine);
      const auto held = cache.exclusively([&](RadixCache& index) {
        RadixCache::Node node = RadixCache::root;
        const std::size_t found = index.match(mine, node);
        index.lock(node);
        return std::pair{found, node};
      });
      cache.evict(20);
      wrong += cache.peek(mine) < held.first;
      cache.exclusively([&](RadixCache& index) {
        index.unlock(held.second);
        return 0;
      });
    }
  });
  CHECK(wrong == 0);
  cache.evict(cache.size());
  CHECK(cache.size() == 0);
}

TEST_CASE("RadixCache, BlockIndex: a peek finds what a match finds and changes nothing") {
  RadixCache radix(2);
  BlockIndex blocks(2);
  SplitMix64 next{4};
  for (int call = 0; call < 3000; ++call) {
    Words tokens(next() % 20);
    for (auto& t : tokens) t = static_cast<std::uint32_t>(next() % 2);
    const std::size_t nodes = radix.nodes();
    const std::size_t in_radix = radix.peek(tokens), in_blocks = blocks.peek(tokens);
    REQUIRE(radix.nodes() == nodes);
    REQUIRE(radix.match(tokens) == in_radix);
    REQUIRE(blocks.match(tokens) == in_blocks);
    if (next() % 4 == 0) {
      radix.insert(tokens);
      blocks.insert(tokens);
    }
    if (next() % 32 == 0) {
      radix.evict(next() % 60);
      blocks.evict(next() % 60);
    }
  }
  // Not a use: the one that was only peeked at goes first.
  radix.evict(radix.size());
  blocks.evict(blocks.size());
  const Words old{5, 5}, young{6, 6};
  for (const Words& w : {old, young}) {
    radix.insert(w);
    blocks.insert(w);
  }
  radix.peek(old);
  blocks.peek(old);
  radix.evict(1);
  blocks.evict(1);
  CHECK((radix.peek(old) == 0 && radix.peek(young) == 2));
  CHECK((blocks.peek(old) == 0 && blocks.peek(young) == 2));
}

}  // namespace locked_index_test
