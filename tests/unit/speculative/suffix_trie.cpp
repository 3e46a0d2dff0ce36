// Bounded suffix tries against a list of windows: what is forgotten when, and that the rest is counted exactly.
#include <decant/core/random.hpp>
#include <decant/speculative/suffix.hpp>

#include <map>
#include <vector>

#include "catch_compat.hpp"
#include "watched_heap.hpp"

namespace {
thread_local std::size_t allocations = 0;
}

void watched_heap::on_allocation(std::size_t) { ++allocations; }

namespace suffix_trie_tests {

using namespace decant;
using namespace decant::speculative;
using Tokens = std::vector<std::int32_t>;

/// The windows that are remembered, the oldest first, each written out.
struct Windows {
  std::size_t depth, most;
  std::vector<Tokens> all{};
  std::size_t growing = 0;  // the last ones

  std::map<Tokens, std::int64_t> counts() const {
    std::map<Tokens, std::int64_t> found;
    for (const Tokens& w : all) {
      for (std::size_t n = 1; n <= w.size(); ++n) ++found[Tokens(w.begin(), w.begin() + static_cast<std::ptrdiff_t>(n))];
    }
    return found;
  }
  void append(std::int32_t token) {
    if (growing == depth) --growing;
    while (1 + counts().size() + growing + 1 > most || all.size() >= most) {
      all.erase(all.begin());
      growing = std::min(growing, all.size());
    }
    all.emplace_back();
    ++growing;
    for (std::size_t i = all.size() - growing; i < all.size(); ++i) all[i].push_back(token);
  }
};

void check_equal(const SuffixTrie& trie, const Windows& windows) {
  const auto counts = windows.counts();
  REQUIRE(trie.nodes() == 1 + static_cast<std::int32_t>(counts.size()));
  REQUIRE(trie.nodes() <= static_cast<std::int32_t>(windows.most));
  REQUIRE(trie.count(0) == static_cast<std::int64_t>(windows.all.size()));
  std::map<Tokens, std::int32_t> nodes = {{{}, 0}};
  for (const auto& [part, count] : counts) {
    const std::int32_t node = trie.child(nodes.at(Tokens(part.begin(), part.end() - 1)), part.back());
    REQUIRE(node > 0);
    REQUIRE(trie.count(node) == count);
    nodes[part] = node;
  }
  std::int32_t children = 0;
  for (const auto& [part, node] : nodes) {
    for (std::int32_t c = trie.first_child(node); c >= 0; c = trie.sibling(c)) {
      REQUIRE(trie.child(node, trie.token(c)) == c);
      ++children;
    }
    if (!part.empty()) REQUIRE(trie.shorter(node) == nodes.at(Tokens(part.begin() + 1, part.end())));
    REQUIRE(trie.child(node, 99) == -1);
  }
  REQUIRE(children == trie.nodes() - 1);
}

TEST_CASE("SuffixTrie: a bounded one is that of the windows that it remembers", "[speculative]") {
  std::size_t forgotten = 0, while_growing = 0;
  for (std::uint32_t trial = 0; trial < 24; ++trial) {
    const Philox random{21};
    const auto word = [&](std::uint32_t i) { return random(i, trial).word[0]; };
    const std::size_t depth = 1 + word(0) % 6;
    const std::size_t most = depth + 1 + (trial % 3 == 0 ? word(1) % 4 : word(1) % 120);
    const std::uint32_t alphabet = 1 + word(2) % 5;  // of one token: few nodes, many windows
    SuffixTrie trie(static_cast<std::int32_t>(depth), static_cast<index_t>(most));
    Windows windows{depth, most};
    INFO("trial " << trial);
    for (std::uint32_t i = 0; i < 200; ++i) {
      if (word(1000 + i) % 25 == 0) {
        trie.end_sequence();
        windows.growing = 0;
      }
      const auto token = static_cast<std::int32_t>(word(2000 + i) % alphabet);
      const std::size_t before = windows.all.size();
      trie.append(token);
      windows.append(token);
      forgotten += before + 1 - windows.all.size();
      while_growing += windows.all.size() < depth && windows.all.size() <= before ? 1 : 0;
      if (i % 3 == 0) check_equal(trie, windows);
    }
    trie.clear();
    CHECK(trie.nodes() == 1);
    trie.append(3);
    CHECK(trie.count(trie.child(0, 3)) == 1);
  }
  CHECK(forgotten > 1000);
  CHECK(while_growing > 10);
  // Full of tokens of which none recurs, then of one alone: more windows in as many nodes.
  SuffixTrie trie(6, 100);
  Windows windows{6, 100};
  for (std::int32_t i = 0; i < 250; ++i) {
    trie.append(i < 60 ? i : 77);
    windows.append(i < 60 ? i : 77);
    if (i % 10 == 0) check_equal(trie, windows);
  }
  CHECK_THROWS_AS(SuffixTrie(8, 8), ArgumentError);
  CHECK_THROWS_AS(SuffixTrie(8, -1), ArgumentError);
}

TEST_CASE("Suffix: what recurs in finished requests outlives what does not, and a full trie allocates nothing",
          "[speculative]") {
  Suffix drafter(Suffix::Options{.max_depth = 6, .max_global_nodes = 2000});
  const Tokens phrase = {901, 902, 903, 904};
  const auto finish = [&](std::int32_t request) {
    Tokens output;
    for (std::uint32_t i = 0; i < 60; ++i) {
      output.push_back(static_cast<std::int32_t>(Philox{4}(i, static_cast<std::uint32_t>(request)).word[0] % 800));
    }
    output.insert(output.end(), phrase.begin(), phrase.end());
    const std::size_t before = allocations;
    drafter.finish(View<const std::int32_t, 1>(output));
    const std::size_t made = allocations - before;
    CHECK(drafter.global().nodes() <= 2000);
    if (request > 20) CHECK(made == 0);
    return output;
  };
  const auto drafts = [&](const Tokens& context) {
    DraftTree tree;
    Proposals none;
    tree.clear(context.back());
    drafter.draft({View<const std::int32_t, 1>(context)}, DraftBudget::chain(3), tree, none, DrawKey{});
    Tokens tokens;
    for (std::int32_t i = 1; i < tree.nodes(); ++i) tokens.push_back(tree.token(i));
    drafter.finish({});
    return tokens;
  };
  const Tokens first = finish(0);
  CHECK(drafts({first[30], first[31], first[32]}) == Tokens(first.begin() + 33, first.begin() + 36));
  for (std::int32_t request = 1; request < 200; ++request) finish(request);
  CHECK(drafter.global().nodes() > 1900);
  CHECK(drafts({first[30], first[31], first[32]}) != Tokens(first.begin() + 33, first.begin() + 36));
  CHECK(drafts({901}) == Tokens{902});
  CHECK(drafts({901, 902}) == Tokens{903, 904});
}

}  // namespace suffix_trie_tests
