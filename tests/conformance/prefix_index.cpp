#include "prefix_index.hpp"

#include "decant/scheduling/block_index.hpp"
#include "decant/scheduling/locked_index.hpp"
#include "decant/scheduling/radix_cache.hpp"

namespace {

using namespace decant::scheduling;

TEST_CASE("PrefixIndex: RadixCache", "[conformance]") {
  conformance::prefix_index(RadixCache(1), 1);
  conformance::prefix_index(RadixCache(3), 2);
  conformance::prefix_index(RadixCache(8), 3);
}

TEST_CASE("PrefixIndex: BlockIndex", "[conformance]") {
  conformance::prefix_index(BlockIndex(1), 4);
  conformance::prefix_index(BlockIndex(3), 5);
  conformance::prefix_index(BlockIndex(8, 77), 6);
}

TEST_CASE("PrefixIndex: LockedIndex", "[conformance]") {
  conformance::prefix_index(LockedIndex<RadixCache>(3u), 7);
  conformance::prefix_index(LockedIndex<BlockIndex>(3u), 8);
}

}  // namespace
