// The Chunked Hash Tree against its definition: after any sequence of calls, what each waiting request lacks, what the
// active ones share, and who is nearest.
#include "decant/scheduling/chunked_hash_index.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "catch_compat.hpp"
#include "decant/scheduling/chain_hash.hpp"
#include "decant/scheduling/workload.hpp"

namespace chunked_hash_index_test {

using namespace decant;
using namespace decant::scheduling;

using Words = std::vector<std::uint32_t>;
constexpr std::uint32_t chunk = 2;

struct Naive {
  struct Request {
    RequestInfo info;
    std::vector<std::uint64_t> chain;
  };
  std::map<RequestId, Request> waiting, active;

  std::uint32_t missing(RequestId id) const {
    std::uint32_t count = 0;
    for (const std::uint64_t key : waiting.at(id).chain) {
      count += std::none_of(active.begin(), active.end(), [&](const auto& a) {
        return std::find(a.second.chain.begin(), a.second.chain.end(), key) != a.second.chain.end();
      });
    }
    return count;
  }
  std::size_t common(const std::vector<std::uint64_t>& a, const std::vector<std::uint64_t>& b) const {
    return static_cast<std::size_t>(std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(std::min(a.size(), b.size())), b.begin()).first - a.begin());
  }
  std::size_t tip() const {
    if (active.empty()) return 0;
    std::size_t n = active.begin()->second.chain.size();
    for (const auto& [id, r] : active) n = std::min(n, common(active.begin()->second.chain, r.chain));
    return n;
  }
  PrefixCandidate candidate(RequestId id) const {
    PrefixCandidate c{id, 0, 0, 0};
    if (active.empty()) return c;
    const auto& mine = waiting.at(id).chain;
    c.before = static_cast<std::uint32_t>(tip());
    c.after = static_cast<std::uint32_t>(std::min(tip(), common(mine, active.begin()->second.chain)));
    if (c.after == 0) return c;
    for (const auto& [other, r] : waiting) c.sharing += common(mine, r.chain) >= c.after;
    return c;
  }
  PrefixCandidate best() const {
    PrefixCandidate none;
    if (waiting.empty()) return none;
    RequestId first = no_request;
    auto least = std::make_tuple(0xffffffffu, Nanoseconds{0}, std::uint64_t{0});
    for (const auto& [id, r] : waiting) {
      const auto key = std::make_tuple(missing(id), r.info.arrival, r.info.tag);
      if (first == no_request || key < least) {
        first = id;
        least = key;
      }
    }
    return candidate(first);
  }
  std::pair<std::uint32_t, std::uint32_t> deepest(RequestId id) const {
    const auto& mine = waiting.at(id).chain;
    std::uint32_t level = 0, requests = 0;
    for (const auto& [other, r] : waiting) {
      if (other != id) level = std::max(level, static_cast<std::uint32_t>(common(mine, r.chain)));
    }
    for (const auto& [other, r] : waiting) requests += level > 0 && common(mine, r.chain) >= level;
    return {level, requests};
  }
};

TEST_CASE("ChunkedHashIndex: random calls against the definition") {
  // Few different chunks, so that prompts share; prompts end within chunks too. 10,000 calls in all.
  for (const std::uint32_t alphabet : {1u, 2u, 3u}) {
    SplitMix64 next{alphabet};
    ChunkedHashIndex index;
    Naive naive;
    std::uint64_t tag = 0;
    for (int call = 0; call < 3400; ++call) {
      const auto pick = [&](auto& from) {
        auto at = from.begin();
        std::advance(at, static_cast<std::ptrdiff_t>(next() % from.size()));
        return at->first;
      };
      const std::uint64_t what = next() % 8;
      if (what < 4 && naive.waiting.size() + naive.active.size() < 14) {
        RequestId id = 0;
        while (naive.waiting.count(id) + naive.active.count(id) > 0) ++id;
        Words tokens(1 + next() % 11);
        for (std::size_t i = 0; i < tokens.size(); ++i) {
          tokens[i] = i % chunk == 0 ? static_cast<std::uint32_t>(next() % alphabet) : tokens[i - 1] + 7;
        }
        RequestInfo info;
        info.tag = ++tag;
        info.arrival = next() % 3;
        naive.waiting[id] = {info, chain_keys(tokens, chunk, true)};
        index.insert(id, info, naive.waiting[id].chain);
      } else if (what < 6 && !naive.waiting.empty()) {
        const RequestId id = next() % 2 == 0 ? naive.best().id : pick(naive.waiting);
        index.activate(id);
        naive.active[id] = naive.waiting[id];
        naive.waiting.erase(id);
      } else if (what == 6 && !naive.active.empty()) {
        const RequestId id = pick(naive.active);
        index.finish(id);
        naive.active.erase(id);
      } else if (!naive.waiting.empty()) {
        const RequestId id = pick(naive.waiting);
        index.remove(id);
        naive.waiting.erase(id);
      }
      REQUIRE(index.tip() == naive.tip());
      REQUIRE(index.waiting() == naive.waiting.size());
      REQUIRE(index.active() == naive.active.size());
      REQUIRE((index.best() == naive.best()));
      for (const auto& [id, r] : naive.waiting) {
        REQUIRE(index.missing(id) == naive.missing(id));
        REQUIRE((index.candidate(id) == naive.candidate(id)));
        std::uint32_t requests = 0;
        const std::uint32_t level = index.deepest_shared(id, requests);
        REQUIRE((std::make_pair(level, requests) == naive.deepest(id)));
      }
      // Of candidates of equal length the nearest keeps the most of what all share.
      if (!naive.active.empty() && !naive.waiting.empty()) {
        const PrefixCandidate best = index.best();
        const std::size_t length = naive.waiting.at(best.id).chain.size();
        for (const auto& [id, r] : naive.waiting) {
          if (r.chain.size() == length) REQUIRE(naive.candidate(id).after <= best.after);
        }
      }
    }
  }
}

TEST_CASE("ChunkedHashIndex: who comes and goes again leaves nothing behind") {
  // Preempted requests come back with the same digests; what is kept for them must not grow.
  ChunkedHashIndex index;
  RequestInfo info;
  std::vector<std::vector<std::uint64_t>> chains;
  for (RequestId id = 0; id < 20; ++id) {
    chains.push_back({1, 2, 100 + id});
    info.tag = id;
    index.insert(id, info, chains.back());
  }
  for (int round = 0; round < 2000; ++round) {
    const RequestId id = index.best().id;
    index.activate(id);
    index.finish(id);
    info.tag = id;
    index.insert(id, info, chains[id]);
    REQUIRE(index.heap_size() <= 64 + 4 * 20 + 1);
  }
}

TEST_CASE("ChunkedHashIndex: what all share is the whole chunks of the longest common prefix") {
  SplitMix64 next{9};
  for (int round = 0; round < 200; ++round) {
    const std::size_t k = 1 + next() % 7, n = 20 + next() % 30, same = next() % n;
    Words a(n), b(n + 1 + next() % 5);  // of another length: the digests of the last, begun chunks differ
    for (std::size_t i = 0; i < n; ++i) a[i] = static_cast<std::uint32_t>(next());
    for (std::size_t i = 0; i < b.size(); ++i) b[i] = i < same ? a[i] : static_cast<std::uint32_t>(~a[i % n]);
    ChunkedHashIndex index;
    RequestInfo info;
    index.insert(0, info, chain_keys(a, static_cast<std::uint32_t>(k), true));
    index.insert(1, info, chain_keys(b, static_cast<std::uint32_t>(k), true));
    index.activate(0);
    CHECK(index.candidate(1).after == same / k);
    index.activate(1);
    CHECK(index.tip() == same / k);
    index.finish(1);
    CHECK(index.tip() == (n + k - 1) / k);
  }
}

TEST_CASE("ChunkedHashIndex: colliding digests cut a chain, and harm nothing") {
  // Digests of a handful of values, whatever their level and whatever stands before them.
  SplitMix64 next{4};
  ChunkedHashIndex index;
  std::vector<int> place(24, 0);  // 0 away, 1 waiting, 2 active
  RequestInfo info;
  for (int call = 0; call < 4000; ++call) {
    const auto id = static_cast<RequestId>(next() % place.size());
    if (place[id] == 0) {
      std::vector<std::uint64_t> chain(next() % 12);
      for (auto& key : chain) key = next() % 6;
      info.tag = id;
      index.insert(id, info, chain);
      place[id] = 1;
    } else if (place[id] == 1 && next() % 3 > 0) {
      index.activate(id);
      place[id] = 2;
    } else if (place[id] == 1) {
      index.remove(id);
      place[id] = 0;
    } else {
      index.finish(id);
      place[id] = 0;
    }
    REQUIRE(index.waiting() == static_cast<std::size_t>(std::count(place.begin(), place.end(), 1)));
    if (index.waiting() == 0) continue;
    const PrefixCandidate c = index.best();
    REQUIRE(place[c.id] == 1);
    REQUIRE(c.after <= c.before);
    REQUIRE(index.missing(c.id) <= 6);
  }
}

TEST_CASE("ChunkedHashIndex: nothing waits, nothing shares, wrong calls") {
  ChunkedHashIndex index;
  CHECK(index.best().id == no_request);
  RequestInfo info;
  index.insert(3, info, {});  // no digests: shares nothing, lacks nothing
  CHECK((index.best() == PrefixCandidate{3, 0, 0, 0}));
  CHECK_THROWS_AS(index.insert(3, info, {}), ArgumentError);
  CHECK_THROWS_AS(index.finish(3), ArgumentError);
  CHECK_THROWS_AS(index.activate(9), ArgumentError);
  index.activate(3);
  CHECK_THROWS_AS(index.remove(3), ArgumentError);
  CHECK(index.tip() == 0);
  index.finish(3);
  CHECK(index.active() == 0);
}

}  // namespace chunked_hash_index_test
