// Digests of prefixes, and memory in blocks that are found again: against a naive cache, and through the simulator.
#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <vector>

#include "catch_compat.hpp"
#include "decant/scheduling/block_memory.hpp"
#include "decant/scheduling/generators.hpp"
#include "decant/scheduling/memory_safe.hpp"
#include "decant/scheduling/roofline.hpp"
#include "decant/scheduling/simulator.hpp"

namespace block_memory_test {

using namespace decant;
using namespace decant::scheduling;

using Words = std::vector<std::uint32_t>;

Words random_tokens(SplitMix64& next, std::size_t n, std::uint32_t vocab = 100000) {
  Words out(n);
  for (auto& t : out) t = static_cast<std::uint32_t>(next() % vocab);
  return out;
}

TEST_CASE("ChainHasher: independent of how tokens are cut, equal exactly for equal prefixes") {
  SplitMix64 next{1};
  const Words tokens = random_tokens(next, 1000);
  for (const std::uint32_t chunk : {1u, 2u, 3u, 4u, 5u, 7u, 16u, 64u, 999u, 1000u, 2000u}) {
    const auto keys = chain_keys(tokens, chunk);
    REQUIRE(keys.size() == 1000 / chunk);
    ChainHasher hasher(chunk);
    for (std::size_t at = 0; at < tokens.size();) {
      const std::size_t n = std::min<std::size_t>(next() % 40, tokens.size() - at);
      hasher.append(View<const std::uint32_t, 1>(tokens.data() + at, static_cast<index_t>(n)));
      at += n;
    }
    CHECK(hasher.keys() == keys);
    CHECK(hasher.between_chunks() == (1000 % chunk == 0));
    CHECK(chain_keys(tokens, chunk, true).size() == (1000 + chunk - 1) / chunk);
    CHECK((keys.empty() || chain_keys(tokens, chunk, false, 5) != keys));
    // Every token counts, from its chunk on.
    for (std::size_t i = 0; i < tokens.size(); i += 37) {
      Words other = tokens;
      other[i] ^= 1;
      const auto changed = chain_keys(other, chunk, true);
      const auto whole = chain_keys(tokens, chunk, true);
      for (std::size_t j = 0; j < whole.size(); ++j) {
        if ((changed[j] == whole[j]) != (j < i / chunk)) FAIL("token " << i << ", chunk " << j << " of " << chunk);
      }
    }
  }
  // A begun chunk is not the same as one that goes on with zeros, nor as fewer of them.
  std::set<std::uint64_t> keys;
  for (std::size_t n = 0; n < 64; ++n) {
    ChainHasher hasher(64);
    hasher.append(Words(n, 0));
    keys.insert(hasher.whole().key);
  }
  CHECK(keys.size() == 64);
  CHECK_THROWS_AS(ChainHasher(0), ArgumentError);
}

TEST_CASE("ChainHasher: no collision among structured prompts, in either lane or half of one") {
  // Tokens of two values in all orders: 2^16 sequences of 16 tokens. Expected collisions of 64 bits: 1e-10; of 32: 0.5,
  // of which more than 8 have probability 1e-9.
  std::set<std::uint64_t> keys, checks, low;
  for (std::uint32_t bits = 0; bits < 1u << 16; ++bits) {
    Words tokens(16);
    for (std::uint32_t i = 0; i < 16; ++i) tokens[i] = bits >> i & 1;
    ChainHasher hasher(16);
    hasher.append(tokens);
    keys.insert(hasher.last().key);
    checks.insert(hasher.last().check);
    low.insert(hasher.last().key & 0xffffffffu);
  }
  CHECK(keys.size() == 1u << 16);
  CHECK(checks.size() == 1u << 16);
  CHECK(low.size() >= (1u << 16) - 8);
}

RequestInfo info_of(const Words& prompt) {
  RequestInfo info;
  info.prompt = static_cast<std::uint32_t>(prompt.size());
  info.tokens = prompt;
  return info;
}

TEST_CASE("BlockMemory: random requests against a naive cache") {
  for (const bool verify : {false, true}) {
    SplitMix64 next{verify ? 3u : 2u};
    constexpr std::uint32_t block = 4, blocks = 24;
    BlockMemory memory({.blocks = blocks, .block_tokens = block, .verify_tokens = verify});
    std::set<Words> cached;
    std::deque<Words> unused;          // cached prefixes that nobody holds, next to go first
    std::map<Words, int> holders;
    struct Running {
      Words prompt;
      std::uint32_t tokens = 0, published = 0, private_blocks = 0;
      std::vector<Words> held;         // prefixes of its cached blocks
    };
    std::map<RequestId, Running> running;
    std::deque<Words> prompts;
    std::uint32_t empty_free = blocks;  // free blocks without content
    const auto prefix = [&](const Words& prompt, std::uint32_t i) {
      return Words(prompt.begin(), prompt.begin() + (i + 1) * block);
    };
    const auto free_blocks = [&] { return empty_free + static_cast<std::uint32_t>(unused.size()); };
    const auto take = [&](std::uint32_t count) {
      for (; count > 0; --count) {
        if (empty_free > 0) {
          --empty_free;
        } else {
          cached.erase(unused.front());
          unused.pop_front();
        }
      }
    };
    const auto publish = [&](Running& r, std::uint32_t tokens) {
      const std::uint32_t whole = std::min(tokens, static_cast<std::uint32_t>(r.prompt.size())) / block;
      for (; r.published < whole; ++r.published) {
        const Words p = prefix(r.prompt, r.published);
        if (!cached.insert(p).second) continue;
        r.held.push_back(p);
        holders[p] = 1;
        --r.private_blocks;
      }
    };
    for (int step = 0; step < 20000; ++step) {
      const auto what = next() % 4;
      if (what < 2 && running.size() < 8) {
        // Two tokens only, so that prefixes are shared.
        prompts.push_back(random_tokens(next, 1 + next() % 30, 2));
        const Words& prompt = prompts.back();
        const RequestInfo info = info_of(prompt);
        std::uint32_t expected = 0;
        while ((expected + 1) * block <= prompt.size() - 1 && cached.count(prefix(prompt, expected)) > 0) ++expected;
        REQUIRE(memory.hit(info, info.prompt - 1) == expected * block);
        const std::uint32_t tokens = expected * block + 1 + static_cast<std::uint32_t>(next() % (prompt.size() - expected * block));
        RequestId id = 0;
        while (running.count(id) > 0) ++id;
        std::uint32_t revived = 0;
        for (std::uint32_t i = 0; i < expected; ++i) revived += holders[prefix(prompt, i)] == 0;
        const std::uint32_t wanted = (tokens + block - 1) / block - expected;
        const bool fits = wanted + revived <= free_blocks();
        REQUIRE(memory.open(id, info, expected * block, tokens) == fits);
        if (!fits) continue;
        Running r{prompt, tokens, expected, wanted, {}};
        for (std::uint32_t i = 0; i < expected; ++i) {
          const Words p = prefix(prompt, i);
          if (holders[p]++ == 0) unused.erase(std::find(unused.begin(), unused.end(), p));
          r.held.push_back(p);
        }
        take(wanted);
        running[id] = r;
      } else if (what == 2 && !running.empty()) {
        auto at = running.begin();
        std::advance(at, static_cast<std::ptrdiff_t>(next() % running.size()));
        Running& r = at->second;
        const std::uint32_t tokens = r.tokens + 1 + static_cast<std::uint32_t>(next() % 6);
        const std::uint32_t wanted = (tokens + block - 1) / block - (r.tokens + block - 1) / block;
        const bool fits = wanted <= free_blocks();
        REQUIRE(memory.grow(at->first, tokens) == fits);
        if (!fits) continue;
        take(wanted);
        r.private_blocks += wanted;
        publish(r, r.tokens);
        r.tokens = tokens;
      } else if (!running.empty()) {
        auto at = running.begin();
        std::advance(at, static_cast<std::ptrdiff_t>(next() % running.size()));
        Running& r = at->second;
        memory.close(at->first, info_of(r.prompt), r.tokens);
        publish(r, r.tokens);
        std::sort(r.held.begin(), r.held.end(), [](const Words& a, const Words& b) { return a.size() > b.size(); });
        for (const Words& p : r.held) {
          if (--holders[p] == 0) unused.push_back(p);
        }
        empty_free += r.private_blocks;
        running.erase(at);
      }
      REQUIRE(memory.used() == (blocks - free_blocks()) * block);
      REQUIRE(memory.cached() == cached.size());
    }
  }
}

TEST_CASE("BlockMemory: pages of requests are their own but for shared prefixes") {
  BlockMemory memory({.blocks = 8, .block_tokens = 2});
  const Words prompt{1, 2, 3, 4, 5};
  const RequestInfo info = info_of(prompt);
  REQUIRE(memory.open(0, info, 0, 5));
  CHECK(memory.hit(info, 4) == 0);  // not computed yet
  REQUIRE(memory.grow(0, 6));
  CHECK(memory.hit(info, 4) == 4);
  CHECK(memory.hit(info, 3) == 2);
  REQUIRE(memory.open(1, info, 4, 5));
  const auto a = memory.blocks(0), b = memory.blocks(1);
  REQUIRE(a.extent(0) == 3);
  REQUIRE(b.extent(0) == 3);
  CHECK((a[0] == b[0] && a[1] == b[1] && a[2] != b[2]));
  CHECK(memory.holders(a[0]) == 2);
  CHECK(memory.used() == 8);
  memory.close(0, info, 6);
  CHECK(memory.used() == 6);
  memory.close(1, info, 5);
  CHECK(memory.used() == 0);
  CHECK(memory.hit(info, 4) == 4);
  CHECK_THROWS_AS(BlockMemory({.blocks = 0}), ArgumentError);
  CHECK_THROWS_AS(BlockMemory({.block_tokens = 0}), ArgumentError);
}

TEST_CASE("BlockMemory: verification refuses what only looks alike") {
  for (const bool verify : {false, true}) {
    BlockMemory memory({.blocks = 8, .block_tokens = 2, .verify_tokens = verify});
    const Words first{1, 2, 3}, second{7, 8, 9};
    const std::vector<std::uint64_t> same{42};
    RequestInfo a = info_of(first), b = info_of(second);
    a.chain = same;
    b.chain = same;
    REQUIRE(memory.open(0, a, 0, 3));
    REQUIRE(memory.grow(0, 4));
    CHECK(memory.hit(a, 2) == 2);
    CHECK(memory.hit(b, 2) == (verify ? 0u : 2u));
  }
}

TEST_CASE("BlockMemory: sessions find what they said before, and no token is lost in the count") {
  Workload w = session_workload(5, {.sessions = 30, .turns = 4}, {.rate = 2}, LengthLaw::uniform(50, 200),
                                LengthLaw::uniform(10, 60));
  // The chains of a session's turns are prefixes of each other.
  std::deque<std::vector<std::uint64_t>> chains;
  for (SimulatedRequest& r : w) {
    auto& chain = chains.emplace_back(r.info.prompt / 16);
    for (std::size_t i = 0; i < chain.size(); ++i) chain[i] = std::uint64_t{r.info.group} << 32 | i;
    r.info.chain = chain;
  }
  const Roofline cost;
  const SimulationOptions options{.limits = {512, 64}};
  const auto without = simulate(w, Fcfs{}, cost, BlockMemory({.blocks = 600, .reuse = false}), options);
  const auto with = simulate(w, Fcfs{}, cost, BlockMemory({.blocks = 600}), options);
  const auto again = simulate(w, Fcfs{}, cost, BlockMemory({.blocks = 600}), options);
  CHECK(without.totals.hit_tokens == 0);
  CHECK(with.totals.hit_tokens > 4000);
  CHECK(with.totals.computed_tokens < without.totals.computed_tokens);
  CHECK((with == again));
  for (const auto& r : with.requests) CHECK(r.end > 0);
  CHECK((simulate(w, McSf{}, cost, BlockMemory({.blocks = 600}), options).totals.hit_tokens > 4000));
}

}  // namespace block_memory_test
