// Trees that drafters grow: EAGLE's against a literal reference, rank tables against their definition.
#include <decant/core/random.hpp>
#include <decant/speculative/eagle_tree.hpp>
#include <decant/speculative/rank_tree.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "catch_compat.hpp"

namespace grown_tree_tests {

using namespace decant;
using namespace decant::speculative;
using Tokens = std::vector<std::int32_t>;

/// Logits after a path, from a hash of it. flat: few different values, so that there are ties.
std::vector<float> logits_after(const Tokens& path, index_t vocab, bool flat) {
  std::uint32_t hash = 17;
  for (const std::int32_t t : path) hash = (hash ^ static_cast<std::uint32_t>(t)) * 16777619u;
  std::vector<float> row;
  for (index_t y = 0; y < vocab; ++y) {
    const float u = Philox{hash}.uniform(static_cast<std::uint32_t>(y));
    row.push_back(flat ? std::floor(3 * u) : 6 * u);
  }
  return row;
}

/// The text of the algorithm, one path at a time.
std::map<Tokens, float> reference_tree(index_t vocab, const EagleOptions& o, bool flat) {
  struct Node {
    Tokens path;
    float score;
  };
  std::vector<Node> all;
  std::vector<Node> frontier = {{{}, 0}};
  for (std::int32_t level = 0; level <= o.depth; ++level) {
    std::vector<Node> found;
    for (const Node& n : frontier) {
      const auto logits = logits_after(n.path, vocab, flat);
      const float total = log_sum_exp(best_isa(), logits.data(), vocab);
      std::vector<std::int32_t> order(static_cast<std::size_t>(vocab));
      for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int32_t>(i);
      std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
        return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
      });
      for (std::int32_t j = 0; j < std::min<std::int32_t>(o.top_k, static_cast<std::int32_t>(vocab)); ++j) {
        const std::int32_t token = order[static_cast<std::size_t>(j)];
        Tokens path = n.path;
        path.push_back(token);
        found.push_back({path, n.score + (logits[static_cast<std::size_t>(token)] - total)});
      }
    }
    all.insert(all.end(), found.begin(), found.end());
    std::stable_sort(found.begin(), found.end(), [](const Node& a, const Node& b) { return a.score > b.score; });
    if (static_cast<std::int32_t>(found.size()) > o.top_k) found.resize(static_cast<std::size_t>(o.top_k));
    frontier = found;
  }
  std::stable_sort(all.begin(), all.end(), [](const Node& a, const Node& b) { return a.score > b.score; });
  std::map<Tokens, float> kept;
  for (std::size_t i = 0; i < all.size() && static_cast<std::int32_t>(i) + 1 < o.total_tokens; ++i) {
    kept[all[i].path] = all[i].score;
  }
  return kept;
}

TEST_CASE("EagleTree: grows what the algorithm's text says, ties included", "[speculative]") {
  for (const bool flat : {false, true}) {
    for (const EagleOptions& o : {EagleOptions{}, EagleOptions{20, 3, 4}, EagleOptions{8, 0, 10}, EagleOptions{2, 5, 1}}) {
      const index_t vocab = 23;
      std::vector<Tokens> forwarded;  // paths
      const auto forward = [&](View<const std::int32_t, 1> tokens, View<const std::int32_t, 1> parents,
                               View<float, 2> logits) {
        for (index_t i = 0; i < tokens.extent(0); ++i) {
          Tokens path;
          if (parents[i] >= 0) {
            path = forwarded.at(static_cast<std::size_t>(parents[i]));
            path.push_back(tokens[i]);
          }
          const auto row = logits_after(path, vocab, flat);
          std::copy(row.begin(), row.end(), &logits(i, 0));
          forwarded.push_back(path);
        }
        return true;
      };
      EagleTree<decltype(forward)> drafter(vocab, forward, o);
      DraftTree tree;
      Proposals none;
      drafter.draft({}, DraftBudget{100, 1000}, tree, none, DrawKey{});
      tree.finalize();
      CHECK(well_formed(tree.view(), 23, 0));
      std::map<Tokens, float> got;
      for (std::int32_t i = 1; i < tree.nodes(); ++i) {
        Tokens path;
        for (std::int32_t a = i; a > 0; a = tree.parent(a)) path.insert(path.begin(), tree.token(a));
        got[path] = tree.score(i);
        CHECK(tree.score(i) <= tree.score(tree.parent(i)));
      }
      CHECK(got == reference_tree(vocab, o, flat));
    }
  }
}

TEST_CASE("EagleTree: budgets, rows without numbers, wrong options", "[speculative]") {
  const auto forward = [](View<const std::int32_t, 1> tokens, View<const std::int32_t, 1>, View<float, 2> logits) {
    for (index_t i = 0; i < tokens.extent(0); ++i) {
      for (index_t y = 0; y < 5; ++y) logits(i, y) = tokens[i] == 4 ? std::nanf("") : static_cast<float>(y);
    }
    return true;
  };
  EagleTree<decltype(forward)> drafter(5, forward);
  const auto drafted = [&](DraftBudget budget) {
    DraftTree tree;
    Proposals none;
    drafter.draft({}, budget, tree, none, DrawKey{});
    tree.finalize();
    return tree;
  };
  CHECK(drafted({}).nodes() == 1);
  CHECK(drafted({2, 6}).nodes() == 7);
  CHECK(drafted({2, 100}).depth() == 2);
  const DraftTree tree = drafted({2, 100});
  for (std::int32_t i = 1; i < tree.nodes(); ++i) CHECK(tree.token(tree.parent(i)) != 4);  // NaN: no children
  CHECK_THROWS_AS((EagleTree<decltype(forward)>(5, forward, {0, 1, 1})), ArgumentError);
  CHECK_THROWS_AS((EagleTree<decltype(forward)>(5, forward, {10, 1, 0})), ArgumentError);
}

TEST_CASE("RankTree: a node for every path, its token the head's by rank", "[speculative]") {
  const index_t vocab = 9;
  const auto softmax_after = [&](const Tokens& path) {
    std::vector<float> row = logits_after(path, vocab, false);
    softmax(best_isa(), row.data(), vocab, row.data());
    return row;
  };
  const auto forward = [&](const DraftTree& tree, std::int32_t first, std::int32_t last, View<float, 2> q) {
    for (std::int32_t i = first; i < last; ++i) {
      Tokens path;
      for (std::int32_t a = i; a > 0; a = tree.parent(a)) path.insert(path.begin(), tree.token(a));
      const auto row = softmax_after(path);
      std::copy(row.begin(), row.end(), &q(i - first, 0));
    }
    return true;
  };
  const std::vector<Tokens> table = {{0}, {1}, {3}, {0, 0}, {0, 2}, {1, 0}, {0, 0, 1}, {3, 8}};
  RankTree<decltype(forward)> drafter(vocab, table, forward);
  DraftTree tree;
  Proposals none;
  drafter.draft({}, DraftBudget{5, 100}, tree, none, DrawKey{});
  tree.finalize();
  CHECK(well_formed(tree.view(), 9, 0));
  REQUIRE(tree.nodes() == 1 + static_cast<std::int32_t>(table.size()));
  std::map<Tokens, float> expected, got;
  for (const Tokens& ranks : table) {
    Tokens path;
    float score = 0;
    for (const std::int32_t rank : ranks) {
      auto row = softmax_after(path);
      std::vector<std::int32_t> order = {0, 1, 2, 3, 4, 5, 6, 7, 8};
      std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
        return row[static_cast<std::size_t>(a)] > row[static_cast<std::size_t>(b)];
      });
      path.push_back(order[static_cast<std::size_t>(rank)]);
      score += std::log(row[static_cast<std::size_t>(path.back())]);
    }
    expected[path] = score;
  }
  for (std::int32_t i = 1; i < tree.nodes(); ++i) {
    Tokens path;
    for (std::int32_t a = i; a > 0; a = tree.parent(a)) path.insert(path.begin(), tree.token(a));
    got[path] = tree.score(i);
  }
  REQUIRE(got.size() == expected.size());
  for (const auto& [path, score] : expected) CHECK(got.at(path) == Approx(score).margin(1e-5));
  DraftTree small;
  drafter.draft({}, DraftBudget{2, 4}, small, none, DrawKey{});
  small.finalize();
  CHECK(small.nodes() == 5);
  CHECK(small.depth() == 2);
  CHECK_THROWS_AS((RankTree<decltype(forward)>(vocab, {{0}, {1, 0}}, forward)), ArgumentError);
  CHECK_THROWS_AS((RankTree<decltype(forward)>(vocab, {{0}, {0}}, forward)), ArgumentError);
  CHECK_THROWS_AS((RankTree<decltype(forward)>(vocab, {{9}}, forward)), ArgumentError);
}

}  // namespace grown_tree_tests
