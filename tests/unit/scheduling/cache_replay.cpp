// Hit ratios of a block cache: against a naive one on generated traces, and those of the public traces where they lie in
// the folder that DECANT_TRACES names.
#include "decant/scheduling/cache_replay.hpp"

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <string>
#include <vector>

#include "catch_compat.hpp"
#include "decant/scheduling/block_index.hpp"
#include "decant/scheduling/workload.hpp"

namespace cache_replay_test {

using namespace decant;
using namespace decant::scheduling;

using Chain = std::vector<std::uint64_t>;

/// Conversations that grow and begin as older ones do: every block has an id of its own.
std::vector<Chain> conversations(std::uint64_t seed, int count) {
  SplitMix64 next{seed};
  std::vector<Chain> out;
  std::uint64_t fresh = 1;
  for (int i = 0; i < count; ++i) {
    Chain chain{0};  // the system's prompt
    if (!out.empty() && next() % 2 == 0) {
      const Chain& old = out[out.size() - 1 - next() % std::min<std::size_t>(out.size(), 20)];
      chain.assign(old.begin(), old.begin() + static_cast<std::ptrdiff_t>(1 + next() % old.size()));
    }
    for (std::uint64_t more = next() % 8; more > 0; --more) chain.push_back(fresh++);
    out.push_back(std::move(chain));
  }
  return out;
}

/// The definition: a list by use.
std::size_t naive(std::deque<std::uint64_t>& cache, std::size_t capacity, const Chain& chain) {
  const auto there = [&](std::uint64_t id) { return std::find(cache.begin(), cache.end(), id); };
  std::size_t found = 0;
  while (found < chain.size() && there(chain[found]) != cache.end()) ++found;
  for (const std::uint64_t id : chain) {
    if (const auto at = there(id); at != cache.end()) cache.erase(at);
    cache.push_back(id);
    if (cache.size() > capacity) cache.pop_front();
  }
  return found;
}

TEST_CASE("CacheReplay: generated conversations, block by block as a list does it") {
  const auto trace = conversations(11, 1500);
  for (const std::size_t capacity : {1u, 2u, 7u, 40u, 200u, 100000u}) {
    CacheReplay replay(capacity);
    std::deque<std::uint64_t> cache;
    std::uint64_t asked = 0, hits = 0;
    for (const Chain& chain : trace) {
      const std::size_t found = naive(cache, capacity, chain);
      REQUIRE(replay.serve(chain) == found);
      REQUIRE(replay.cached() == cache.size());
      asked += chain.size();
      hits += found;
    }
    CHECK(replay.asked() == asked);
    CHECK(replay.hits() == hits);
    CHECK(replay.hit_ratio() == static_cast<double>(hits) / static_cast<double>(asked));
  }
  CHECK(CacheReplay(3).hit_ratio() == 0.0);
  CHECK(CacheReplay(3).serve({}) == 0);
  CHECK_THROWS_AS(CacheReplay(0), ArgumentError);
}

TEST_CASE("CacheReplay: without an end to memory every cache finds the same") {
  const auto trace = conversations(12, 800);
  CacheReplay replay(1u << 20);
  BlockIndex index(1);
  for (const Chain& chain : trace) {
    const std::size_t found = replay.serve(chain);
    REQUIRE(index.match_chain(chain) == found);
    index.insert_chain(chain);
  }
  CHECK(replay.cached() == index.size());
}

/// The ids of a trace of the Mooncake release, one request a line. No JSON reader: only the array is looked at.
std::vector<Chain> hash_ids(const std::string& path) {
  std::ifstream file(path);
  std::vector<Chain> out;
  for (std::string line; std::getline(file, line);) {
    const std::size_t key = line.find("\"hash_ids\"");
    if (key == std::string::npos) continue;
    Chain& chain = out.emplace_back();
    const char* at = line.c_str() + line.find('[', key) + 1;
    for (char* end = nullptr;; at = end + (*end == ',')) {
      const std::uint64_t id = std::strtoull(at, &end, 10);
      if (end == at) break;
      chain.push_back(id);
    }
  }
  return out;
}

struct Published {
  const char* file;
  std::size_t requests;
  std::uint64_t blocks, distinct;
  double hit_ratios[6];    // to four decimals
  double chain_ratios[6];  // of a cache that uses a prompt's blocks from last to first
};

TEST_CASE("CacheReplay: the hit ratios of the public traces") {
  const char* const folder = std::getenv("DECANT_TRACES");
  if (folder == nullptr || *folder == 0) {
    return decant_skip("DECANT_TRACES names no folder with conversation_trace.jsonl and synthetic_trace.jsonl");
  }
  const Published traces[] = {
      {"conversation_trace.jsonl", 12031, 288500, 182790,
       {.0445, .0650, .2112, .3257, .3546, .3637}, {.0445, .0653, .2116, .3257, .3546, .3637}},
      {"synthetic_trace.jsonl", 3993, 121877, 43924,
       {.0825, .1878, .4235, .6242, .6396, .6396}, {.0841, .1906, .4239, .6242, .6396, .6396}}};
  constexpr std::size_t capacities[] = {1000, 3000, 10000, 30000, 50000, 100000};
  for (const Published& p : traces) {
    INFO(p.file);
    const auto trace = hash_ids(std::string(folder) + "/" + p.file);
    REQUIRE(trace.size() == p.requests);
    for (std::size_t c = 0; c < 6; ++c) {
      INFO(capacities[c] << " blocks");
      CacheReplay replay(capacities[c]);
      BlockIndex index(1);
      std::uint64_t found = 0;
      for (const Chain& chain : trace) {
        replay.serve(chain);
        found += index.match_chain(chain);
        index.insert_chain(chain);
        if (index.size() > capacities[c]) index.evict(index.size() - capacities[c]);
      }
      REQUIRE(replay.asked() == p.blocks);
      CHECK(replay.hit_ratio() == Approx(p.hit_ratios[c]).margin(5e-5).epsilon(0));
      CHECK(static_cast<double>(found) / static_cast<double>(p.blocks) == Approx(p.chain_ratios[c]).margin(5e-5).epsilon(0));
    }
    CacheReplay all(1u << 20);
    for (const Chain& chain : trace) all.serve(chain);
    CHECK(all.cached() == p.distinct);
  }
}

}  // namespace cache_replay_test
