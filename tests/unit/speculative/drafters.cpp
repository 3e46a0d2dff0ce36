// Drafters without a network: n-grams and suffix tries against brute force; drafts from a model against their law.
#include <decant/speculative/model_drafter.hpp>
#include <decant/speculative/ngram.hpp>
#include <decant/speculative/suffix.hpp>
#include <decant/speculative/verify.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "catch_compat.hpp"

namespace drafter_tests {

using namespace decant;
using namespace decant::speculative;
using Tokens = std::vector<std::int32_t>;

Tokens drafted(auto& drafter, const Tokens& context, DraftBudget budget) {
  DraftTree tree;
  Proposals none;
  tree.clear(context.empty() ? 0 : context.back());
  drafter.draft(DraftContext{View<const std::int32_t, 1>(context)}, budget, tree, none, DrawKey{});
  tree.finalize();
  CHECK(well_formed(tree.view(), 1000, 0));
  Tokens tokens;
  for (std::int32_t i = 1; i < tree.nodes(); ++i) tokens.push_back(tree.token(i));
  return tokens;
}

Tokens brute_force(const Tokens& c, std::int32_t n_min, std::int32_t n_max, bool recent, std::int32_t k) {
  const auto size = static_cast<std::int32_t>(c.size());
  for (std::int32_t n = std::min(n_max, size - 1); n >= n_min; --n) {
    std::int32_t found = -1;
    for (std::int32_t at = 0; at + n < size; ++at) {
      if (!std::equal(c.begin() + at, c.begin() + at + n, c.end() - n)) continue;
      found = at;
      if (!recent) break;
    }
    if (found < 0) continue;
    const std::int32_t first = found + n;
    return Tokens(c.begin() + first, c.begin() + std::min(first + k, size));
  }
  return {};
}

TEST_CASE("Ngram: equals brute force on random texts", "[speculative]") {
  const Philox random{3};
  for (std::uint32_t trial = 0; trial < 10000; ++trial) {
    const auto word = [&](std::uint32_t i) { return random(i, trial).word[0]; };
    const std::uint32_t alphabet = 2 + word(0) % 4;
    Tokens context;
    for (std::uint32_t i = 0; i < word(1) % 40; ++i) context.push_back(static_cast<std::int32_t>(word(100 + i) % alphabet));
    const auto n_min = static_cast<std::int32_t>(1 + word(2) % 3);
    const auto n_max = n_min + static_cast<std::int32_t>(word(3) % 4);
    const bool recent = word(4) % 2 == 0;
    const auto k = static_cast<std::int32_t>(word(5) % 6);
    Ngram drafter({n_min, n_max, recent});
    INFO("trial " << trial);
    CHECK(drafted(drafter, context, DraftBudget::chain(k)) == brute_force(context, n_min, n_max, recent, k));
  }
}

TEST_CASE("Ngram: long texts whose last token is rare, in memory order and strided", "[speculative]") {
  const Philox random{7};
  for (std::uint32_t trial = 0; trial < 300; ++trial) {
    const auto word = [&](std::uint32_t i) { return random(i, trial).word[0]; };
    const std::uint32_t alphabet = 20 + word(0) % 200;
    Tokens context, apart;
    for (std::uint32_t i = 0; i < 60 + word(1) % 400; ++i) {
      const std::uint32_t from = word(2000 + i) % (i + 1);
      // One token in three repeats the one behind an earlier token's like.
      const bool repeats = i > 0 && word(1000 + i) % 3 == 0;
      const auto fresh = static_cast<std::int32_t>(word(100 + i) % alphabet);
      context.push_back(repeats ? context[from == 0 ? 0 : from - 1] : fresh);
      apart.insert(apart.end(), {context.back(), -1});
    }
    const std::int32_t n_min = 1 + static_cast<std::int32_t>(word(3) % 2);
    const std::int32_t n_max = n_min + static_cast<std::int32_t>(word(4) % 70);
    const bool recent = word(5) % 2 == 0;
    INFO("trial " << trial);
    Ngram drafter({n_min, n_max, recent});
    CHECK(drafted(drafter, context, DraftBudget::chain(5)) == brute_force(context, n_min, n_max, recent, 5));
    Tokens failures(static_cast<std::size_t>(n_max)), used(failures.size(), 1);  // what another text has left
    const auto size = static_cast<index_t>(context.size());
    CHECK(match_ngram(View<const std::int32_t, 1>(context), n_min, n_max, recent, View<std::int32_t, 1>(used)) ==
          match_ngram(View<const std::int32_t, 1>(apart.data(), {size}, {2}), n_min, n_max, recent,
                      View<std::int32_t, 1>(failures)));
  }
  // The table is written before anything is passed over: "2 2 1" must not pass for a match of "2 1" one token earlier.
  Tokens text = {2, 2, 1}, left = {0, 1, 2};
  text.insert(text.end(), 20, 9);
  text.insert(text.end(), {3, 2, 1});
  CHECK(match_ngram(View<const std::int32_t, 1>(text), 1, 3, false, View<std::int32_t, 1>(left)) == NgramMatch{3, 2});
  Tokens failures(2);
  CHECK_THROWS_AS(match_ngram({}, 1, 3, false, View<std::int32_t, 1>(failures)), ArgumentError);
  CHECK_THROWS_AS(match_ngram({}, 0, 2, false, View<std::int32_t, 1>(failures)), ArgumentError);
  CHECK_THROWS_AS(match_ngram({}, 2, 1, false, View<std::int32_t, 1>(failures)), ArgumentError);
}

TEST_CASE("Ngram: the published example, and nothing to say", "[speculative]") {
  Ngram two_or_three({2, 3});
  CHECK(drafted(two_or_three, {1, 2, 3, 4, 2, 3}, DraftBudget::chain(4)) == Tokens{4, 2, 3});
  CHECK(drafted(two_or_three, {1, 2}, DraftBudget::chain(4)).empty());
  CHECK(drafted(two_or_three, {}, DraftBudget::chain(4)).empty());
  CHECK(drafted(two_or_three, {1, 2, 3, 4, 2, 3}, DraftBudget{}).empty());
  CHECK_THROWS_AS(Ngram({0, 3}), ArgumentError);
  CHECK_THROWS_AS(Ngram({3, 2}), ArgumentError);
}

std::int64_t occurrences(const Tokens& text, const Tokens& part) {
  std::int64_t count = 0;
  for (std::size_t i = 0; i + part.size() <= text.size(); ++i) {
    count += std::equal(part.begin(), part.end(), text.begin() + static_cast<std::ptrdiff_t>(i)) ? 1 : 0;
  }
  return count;
}

TEST_CASE("SuffixTrie: counts are those of substrings; frequencies of children sum up to at most 1", "[speculative]") {
  const Philox random{5};
  for (std::uint32_t trial = 0; trial < 30; ++trial) {
    Tokens text;
    SuffixTrie trie(5);
    for (std::uint32_t i = 0; i < 60; ++i) {
      text.push_back(static_cast<std::int32_t>(random(i, trial).word[0] % 3));
      trie.append(text.back());
    }
    CHECK(trie.nodes() <= 1 + 60 * 5);
    std::vector<std::pair<std::int32_t, Tokens>> open = {{0, {}}};
    std::int64_t visited = 0;
    while (!open.empty()) {
      const auto [node, part] = open.back();
      open.pop_back();
      ++visited;
      if (!part.empty()) CHECK(trie.count(node) == occurrences(text, part));
      std::int64_t sum = 0;
      for (std::int32_t c = trie.first_child(node); c >= 0; c = trie.sibling(c)) {
        CHECK(trie.child(node, trie.token(c)) == c);
        sum += trie.count(c);
        Tokens longer = part;
        longer.push_back(trie.token(c));
        open.push_back({c, longer});
      }
      CHECK(sum <= trie.count(node));
    }
    CHECK(visited == trie.nodes());
  }
}

/// The node's sequence, count and children are the same, whatever their order.
void check_same(const SuffixTrie& a, std::int32_t of_a, const SuffixTrie& b, std::int32_t of_b) {
  CHECK(a.count(of_a) == b.count(of_b));
  for (std::int32_t c = a.first_child(of_a); c >= 0; c = a.sibling(c)) {
    const std::int32_t same = b.child(of_b, a.token(c));
    REQUIRE(same >= 0);
    check_same(a, c, b, same);
  }
}

TEST_CASE("SuffixTrie: counts do not depend on which sequence comes first", "[speculative]") {
  std::vector<Tokens> texts(6);
  for (std::uint32_t i = 0; i < 120; ++i) texts[i % 6].push_back(static_cast<std::int32_t>(Philox{11}(i).word[0] % 3));
  SuffixTrie forwards(4), backwards(4);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    for (const std::int32_t t : texts[i]) forwards.append(t);
    for (const std::int32_t t : texts[texts.size() - 1 - i]) backwards.append(t);
    forwards.end_sequence();
    backwards.end_sequence();
  }
  REQUIRE(forwards.nodes() == backwards.nodes());
  check_same(forwards, 0, backwards, 0);
}

/// The likeliest token behind the longest suffix of `last`, at most `depth` tokens, that something follows in `text`.
std::pair<std::int32_t, double> likeliest(const Tokens& text, const Tokens& last, std::size_t depth) {
  for (std::size_t n = std::min(depth, last.size()); n >= 1; --n) {
    Tokens part(last.end() - static_cast<std::ptrdiff_t>(n), last.end());
    const auto all = static_cast<double>(occurrences(text, part));
    std::pair<std::int32_t, double> best{-1, 0};
    part.push_back(0);
    for (; part.back() < 4; ++part.back()) {
      const double share = static_cast<double>(occurrences(text, part)) / all;
      if (share > best.second) best = {part.back(), share};
    }
    if (best.first >= 0) return best;
  }
  return {-1, 0};
}

TEST_CASE("Suffix: a chain is what brute force predicts token by token, however long the match", "[speculative]") {
  const Philox random{13};
  std::size_t longest = 0;
  for (std::uint32_t trial = 0; trial < 60; ++trial) {
    const auto word = [&](std::uint32_t i) { return random(i, trial).word[0]; };
    const std::uint32_t period = 3 + word(0) % 20;
    Tokens context;
    for (std::uint32_t i = 0; i < 50; ++i) {  // a period with mistakes
      const bool mistake = word(100 + i) % 12 == 0;
      context.push_back(static_cast<std::int32_t>(word(mistake ? 200 + i : 10 + i % period) % 4));
    }
    Suffix drafter(Suffix::Options{.max_depth = 6, .max_spec_offset = 20, .min_token_prob = 0.2f});
    Tokens expected, last = context;
    double chance = 1;
    while (expected.size() < 12) {
      // Of a match of at most 5 tokens; nodes of 6 have no children.
      const auto [token, share] = likeliest(context, last, 5);
      chance *= share;
      if (token < 0 || chance < 0.2) break;
      expected.push_back(token);
      last.push_back(token);
    }
    longest = std::max(longest, expected.size());
    INFO("trial " << trial);
    CHECK(drafted(drafter, context, DraftBudget::chain(12)) == expected);
  }
  CHECK(longest == 12);
  Tokens cycle;
  for (std::int32_t i = 0; i < 100; ++i) cycle.push_back(i % 50);
  Suffix standard;
  Tokens next;
  for (std::int32_t i = 0; i < 16; ++i) next.push_back(i);
  CHECK(drafted(standard, cycle, DraftBudget::chain(16)) == next);
}

TEST_CASE("Suffix: the trie of finished requests keeps its bound within one output", "[speculative]") {
  Suffix drafter(Suffix::Options{.max_depth = 8, .max_global_nodes = 500});
  Tokens output;
  for (std::int32_t i = 0; i < 1000; ++i) output.push_back(i * 389 % 1000);
  for (index_t n = 1; n <= 100; ++n) {
    drafter.finish(View<const std::int32_t, 1>(output.data() + 5 * n, n));
    CHECK(drafter.global().nodes() <= 500);
  }
  Suffix another(Suffix::Options{.max_depth = 8, .max_global_nodes = 500});
  another.finish(View<const std::int32_t, 1>(output));
  CHECK(another.global().nodes() <= 500);
  CHECK(drafted(another, {output[990]}, DraftBudget::chain(3)) == Tokens{output[991]});
  CHECK_THROWS_AS(Suffix(Suffix::Options{.max_depth = 8, .max_global_nodes = 8}), ArgumentError);
}

TEST_CASE("Suffix: the longest match, its most frequent continuation, caps, and finished requests", "[speculative]") {
  Suffix chain(Suffix::Options{.min_token_prob = 0.4f});
  // "5 6" was followed by 7 twice and by 8 once; a match of 2 drafts 2 tokens.
  CHECK(drafted(chain, {5, 6, 7, 1, 5, 6, 8, 2, 5, 6, 7, 3, 5, 6}, DraftBudget::chain(9)) == Tokens{7});
  Suffix longer(Suffix::Options{.max_spec_offset = 3, .min_token_prob = 0.1f});
  CHECK(drafted(longer, {5, 6, 7, 1, 9, 5, 6, 7, 1, 9, 5, 6}, DraftBudget::chain(4)) == Tokens{7, 1, 9, 5});
  CHECK(drafted(longer, {5, 6, 7, 1, 9, 5, 6, 7, 1, 9, 5, 6}, DraftBudget{4, 2}) == Tokens{7, 1});
  Suffix tree(Suffix::Options{.min_token_prob = 0.1f, .tree = true});
  const Tokens both = drafted(tree, {5, 6, 7, 1, 5, 6, 8, 2, 5, 6, 7, 3, 5, 6}, DraftBudget{1, 5});
  CHECK(both == Tokens{7, 8});
  // Another request's output helps where the own context does not.
  Suffix shared;
  CHECK(drafted(shared, {1, 2, 3}, DraftBudget::chain(3)).empty());
  const Tokens finished = {4, 4, 7, 8, 9};
  shared.finish(View<const std::int32_t, 1>(finished));
  CHECK(drafted(shared, {2, 7}, DraftBudget::chain(3)) == Tokens{8});
  CHECK(drafted(shared, {2, 7, 8}, DraftBudget::chain(3)) == Tokens{9});  // read on, not anew
}

TEST_CASE("ModelDrafter: drafts by its law, within the budget, and verification finds the target's law",
          "[speculative][statistics]") {
  // One row for all nodes: 6 tokens. 4 laws, deviates below 5: a false alarm once in 400,000 seeds.
  constexpr index_t vocab = 6;
  const float q[vocab] = {0.4f, 0.3f, 0.15f, 0.1f, 0.05f, 0.0f};
  const float p[vocab] = {0.1f, 0.2f, 0.3f, 0.05f, 0.05f, 0.3f};
  const auto forward = [&](const DraftTree&, std::int32_t first, std::int32_t last, View<float, 2> rows) {
    for (std::int32_t i = 0; i < last - first; ++i) std::copy_n(q, vocab, &rows(i, 0));
    return true;
  };
  const auto check = [&]<Law L>(std::integral_constant<Law, L>, const Tokens& branching) {
    ModelDrafter<L, decltype(forward)> drafter(vocab, branching, forward);
    Cpu cpu;
    constexpr int steps = 20000;
    std::vector<int> counts(vocab);
    for (int s = 0; s < steps; ++s) {
      DraftTree tree;
      Proposals proposals(vocab);
      drafter.draft({}, DraftBudget{2, 5}, tree, proposals, DrawKey{Philox{1}, 0, static_cast<std::uint32_t>(s)});
      tree.finalize();
      REQUIRE(tree.nodes() <= 6);
      REQUIRE(tree.depth() <= 2);
      DraftForest forest;
      forest.add(tree.view());
      std::vector<float> target;
      for (std::int32_t i = 0; i < tree.nodes(); ++i) target.insert(target.end(), p, p + vocab);
      std::int32_t tokens[3], nodes[2], length = 0;
      Status status{};
      const auto step = static_cast<std::uint32_t>(s);
      verify(cpu, UniVer{}, forest.view(), ProbabilityRows(target.data(), tree.nodes(), vocab), proposals.view(),
             DrawKeys{Philox{1}, {}, View<const std::uint32_t, 1>(&step, 1)},
             Accepted{View<std::int32_t, 2>(tokens, 1, 3), View<std::int32_t, 2>(nodes, 1, 2),
                      View<std::int32_t, 1>(&length, 1), View<Status, 1>(&status, 1)});
      REQUIRE(status == Status::ok);
      ++counts[static_cast<std::size_t>(tokens[0])];
    }
    double chi = 0;
    for (std::size_t y = 0; y < vocab; ++y) {
      const double expected = steps * static_cast<double>(p[y]);
      chi += (counts[y] - expected) * (counts[y] - expected) / expected;
    }
    INFO(name(L));
    CHECK(chi < 40);  // five degrees of freedom: above 40 once in 6.7 million
  };
  check(std::integral_constant<Law, Law::chain>{}, {});
  check(std::integral_constant<Law, Law::iid>{}, {2, 2});
  check(std::integral_constant<Law, Law::without_replacement>{}, {3, 2});
  check(std::integral_constant<Law, Law::greedy_plus_one>{}, {3, 2});
  check(std::integral_constant<Law, Law::deterministic>{}, {3, 2});
}

/// A node's children by the definition: the top tokens, and draws over all that is left of the row.
Tokens children_by_law(Law law, std::vector<float> row, std::int32_t k, std::int32_t node, const DrawKey& key) {
  const auto best = [&] { return std::max_element(row.begin(), row.end()) - row.begin(); };
  const auto largest = [&] { return *std::max_element(row.begin(), row.end()); };
  Tokens tops, drawn;
  const std::int32_t most = law == Law::deterministic ? k : law == Law::greedy_plus_one ? k - 1 : 0;
  for (std::int32_t i = 0; i < most && largest() > 0; ++i) {
    tops.push_back(static_cast<std::int32_t>(best()));
    row[static_cast<std::size_t>(tops.back())] = 0;
  }
  for (std::int32_t i = 0; i < k - most && largest() > 0; ++i) {
    double total = 0, sum = 0;
    for (const float w : row) total += static_cast<double>(w);
    const double u = key.uniform(static_cast<std::uint32_t>(1024 * node + i), Stream::draft);
    std::size_t token = 0;
    while ((sum += static_cast<double>(row[token])) <= u * total) ++token;
    drawn.push_back(static_cast<std::int32_t>(token));
    if (law == Law::without_replacement) row[token] = 0;
  }
  drawn.insert(drawn.end(), tops.begin(), tops.end());
  return drawn;
}

TEST_CASE("ModelDrafter: the children of a node are those of its law's definition", "[speculative]") {
  constexpr index_t vocab = 700;
  const auto row_of = [](std::int32_t token) {  // one token in four has no chance; behind token 1 mod 5, all but two
    std::vector<float> row(vocab);
    float sum = 0;
    for (std::uint32_t y = 0; y < vocab; ++y) {
      const Philox4 bits = Philox{17}(y, static_cast<std::uint32_t>(token));
      const bool none = token % 5 == 1 ? y != 333 && y != 512 : bits.word[0] % 4 == 0;
      row[y] = none ? 0 : std::exp(static_cast<float>(bits.word[1] % 1024) / 128);
      sum += row[y];
    }
    for (float& w : row) w /= sum;
    return row;
  };
  const auto forward = [&](const DraftTree& tree, std::int32_t first, std::int32_t last, View<float, 2> rows) {
    for (std::int32_t i = first; i < last; ++i) {
      const auto row = row_of(tree.token(i));
      std::copy(row.begin(), row.end(), &rows(i - first, 0));
    }
    return true;
  };
  const auto check = [&]<Law L>(std::integral_constant<Law, L>, const Tokens& branching) {
    ModelDrafter<L, decltype(forward)> drafter(vocab, branching, forward);
    for (std::uint32_t step = 0; step < 20; ++step) {
      DraftTree tree;
      Proposals proposals(vocab);
      tree.clear(static_cast<std::int32_t>(step));
      const DrawKey key{Philox{1}, 0, step};
      drafter.draft({}, DraftBudget{3, 100}, tree, proposals, key);
      tree.finalize();
      const TreeView t = tree.view();
      REQUIRE(well_formed(t, vocab, proposals.rows()));
      for (std::int32_t i = 0; i < t.nodes; ++i) {
        if (t.depth[i] == 3) continue;
        const auto row = row_of(t.token[i]);
        const Tokens got(t.token + t.first_child[i], t.token + t.first_child[i] + t.children[i]);
        INFO(name(L) << ", step " << step << ", node " << i);
        CHECK(got == children_by_law(L, row, branching[static_cast<std::size_t>(t.depth[i])], i, key));
        // Behind token 1 mod 5 there can be two top tokens and nothing to draw.
        const bool drawn = L != Law::deterministic && !(L == Law::greedy_plus_one && t.token[i] % 5 == 1 && t.depth[i] == 0);
        REQUIRE(t.law[i] == (drawn ? L : Law::deterministic));
        if (drawn) CHECK(std::equal(row.begin(), row.end(), &proposals.view()(t.q_row[i], 0)));
      }
    }
  };
  check(std::integral_constant<Law, Law::chain>{}, {1, 1, 1});
  check(std::integral_constant<Law, Law::iid>{}, {4, 2, 1});
  check(std::integral_constant<Law, Law::without_replacement>{}, {4, 2, 2});
  check(std::integral_constant<Law, Law::greedy_plus_one>{}, {4, 2, 2});
  check(std::integral_constant<Law, Law::deterministic>{}, {4, 2, 2});
}

TEST_CASE("ModelDrafter: what it says of its rows, and a callback that gives up", "[speculative]") {
  bool alive = true;
  const auto forward = [&](const DraftTree&, std::int32_t, std::int32_t, View<float, 2> rows) {
    for (index_t y = 0; y < 8; ++y) rows(0, y) = 0.125f;
    return alive;
  };
  ModelDrafter<Law::chain, decltype(forward)> drafter(8, {}, forward);
  DraftTree tree;
  Proposals proposals(8);
  drafter.draft({}, DraftBudget::chain(3), tree, proposals, DrawKey{});
  CHECK(tree.nodes() == 4);
  REQUIRE(drafter.entropy().extent(0) == 3);
  CHECK(drafter.entropy()[0] == 3.0f);  // bits
  CHECK(drafter.confidence()[2] == 0.125f);
  alive = false;
  tree.clear(0);
  drafter.draft({}, DraftBudget::chain(3), tree, proposals, DrawKey{});
  CHECK(tree.nodes() == 1);
  CHECK(drafter.entropy().empty());
  CHECK_THROWS_AS((ModelDrafter<Law::chain, decltype(forward)>(8, {2}, forward)), ArgumentError);
}

}  // namespace drafter_tests
