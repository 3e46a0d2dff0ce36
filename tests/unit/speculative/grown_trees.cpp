// Trees that drafters grow: EAGLE's against a literal reference, rank tables against their definition.
#include <decant/core/random.hpp>
#include <decant/core/softmax.hpp>
#include <decant/sampling/process.hpp>
#include <decant/speculative/eagle_tree.hpp>
#include <decant/speculative/rank_tree.hpp>
#include <decant/speculative/sampled_eagle.hpp>
#include <decant/speculative/verify.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "catch_compat.hpp"
#include "oracle/path_logits.hpp"

namespace grown_tree_tests {

using namespace decant;
using namespace decant::speculative;
using path_logits::logits_after;
using Tokens = std::vector<std::int32_t>;

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
      Cpu cpu;
      sampling::LogitRow row;
      sampling::RowStatus status{};
      sampling::filter(cpu, {}, View<const float, 2>(logits.data(), 1, vocab), View<sampling::LogitRow, 1>(&row, 1),
                       View<sampling::RowStatus, 1>(&status, 1));
      std::vector<std::int32_t> order(static_cast<std::size_t>(vocab));
      for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int32_t>(i);
      std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
        return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
      });
      for (std::int32_t j = 0; j < std::min<std::int32_t>(o.top_k, static_cast<std::int32_t>(vocab)); ++j) {
        const std::int32_t token = order[static_cast<std::size_t>(j)];
        Tokens path = n.path;
        path.push_back(token);
        const double step = static_cast<double>(logits[static_cast<std::size_t>(token)]) - row.log_sum_exp;
        found.push_back({path, n.score + static_cast<float>(step)});
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
    const EagleOptions shapes[] = {{}, {20, 3, 4}, {8, 0, 10}, {2, 5, 1}};
    for (const EagleOptions& o : shapes) {
      const index_t vocab = o.top_k == 4 ? 1500 : 23;  // more than four groups of 64 logits, or fewer
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
      CHECK(well_formed(tree.view(), static_cast<std::int32_t>(vocab), 0));
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

/// A softmax row for what follows a token, or the root.
std::vector<float> row_after(std::int32_t token, std::uint32_t seed, index_t vocab) {
  std::vector<float> row;
  for (index_t y = 0; y < vocab; ++y) {
    row.push_back(3 * Philox{seed}.uniform(static_cast<std::uint32_t>(y), static_cast<std::uint32_t>(token + 1)));
  }
  softmax(best_isa(), row.data(), vocab, row.data());
  return row;
}

/// q after every node of a level: a row for each token, and for the root.
struct RowPerToken {
  index_t vocab;
  bool operator()(const DraftTree& tree, std::int32_t first, std::int32_t last, View<float, 2> q) const {
    for (std::int32_t i = first; i < last; ++i) {
      const auto row = row_after(i == 0 ? -1 : tree.token(i), 1, vocab);
      std::copy(row.begin(), row.end(), &q(i - first, 0));
    }
    return true;
  }
};

TEST_CASE("SampledEagle: widths, rows, laws, and draws where paths are likely", "[speculative]") {
  const auto check = [](auto law) {
    constexpr Law L = decltype(law)::value;
    const index_t vocab = 300;
    const Tokens widths = {4, 6, 5};
    SampledEagle<L, RowPerToken> drafter(vocab, widths, {vocab});
    static_assert(Drafter<decltype(drafter)>);
    for (std::uint32_t step = 0; step < 5; ++step) {
      DraftTree tree;
      Proposals proposals(vocab);
      drafter.draft({}, DraftBudget{3, 13}, tree, proposals, DrawKey{Philox{2}, 0, step});
      tree.finalize();
      const TreeView t = tree.view();
      REQUIRE(t.nodes == 14);  // the budget cuts the last level
      CHECK(well_formed(t, 300, proposals.rows()));
      std::int32_t first = 0, last = 1;
      for (const std::int32_t width : {4, 6, 3}) {
        std::vector<std::int32_t> draws(static_cast<std::size_t>(last - first));
        for (std::int32_t d = 0; d < width; ++d) {
          std::size_t best = 0;
          const auto gain = [&](std::size_t i) {
            return std::exp(static_cast<double>(tree.score(first + static_cast<std::int32_t>(i)))) / (1 + draws[i]);
          };
          for (std::size_t i = 1; i < draws.size(); ++i) best = gain(i) > gain(best) ? i : best;
          ++draws[best];
        }
        for (std::int32_t i = first; i < last; ++i) {
          CHECK(t.children[i] == draws[static_cast<std::size_t>(i - first)]);
          if (t.children[i] == 0) continue;
          CHECK(t.law[i] == L);
          const auto q = row_after(i == 0 ? -1 : tree.token(i), 1, vocab);
          const auto kept = proposals.view();
          CHECK(std::equal(q.begin(), q.end(), &kept(t.q_row[i], 0)));
          auto order = q;
          std::sort(order.rbegin(), order.rend());
          double rest = 1;
          for (std::int32_t j = 0; j < t.children[i]; ++j) {
            const std::int32_t child = t.first_child[i] + j;
            const float own = q[static_cast<std::size_t>(tree.token(child))];
            CHECK(tree.score(child) == Approx(tree.score(i) + std::log(own)));
            if (L != Law::greedy_plus_one || j == 0) continue;
            CHECK(own == order[static_cast<std::size_t>(j - 1)]);
            rest -= static_cast<double>(own);
          }
          CHECK(t.rest[i] == Approx(L == Law::greedy_plus_one ? rest : 0.0).margin(1e-5));
        }
        first = last;
        last += width;
      }
    }
    CHECK_THROWS_AS((SampledEagle<L, RowPerToken>(vocab, {4, 0}, {vocab})), ArgumentError);
    CHECK_THROWS_AS((SampledEagle<L, RowPerToken>(vocab, {1000, 24}, {vocab})), ArgumentError);
  };
  check(std::integral_constant<Law, Law::without_replacement>{});
  check(std::integral_constant<Law, Law::greedy_plus_one>{});
}

TEST_CASE("RemainingMass: draws what is left, and nothing where nothing is", "[speculative]") {
  std::vector<float> weights(700, 0.0f);
  weights[3] = 1;
  weights[300] = 2;
  weights[699] = 1;
  decant::speculative::detail::RemainingMass left;
  left.load(View<const float, 1>(weights));
  CHECK(left.total() == 4);
  CHECK(left.draw(0) == 3);
  CHECK(left.draw(0.2499) == 3);
  CHECK(left.draw(0.25) == 300);
  CHECK(left.draw(0.7499) == 300);
  CHECK(left.draw(0.75) == 699);
  CHECK(left.largest() == 300);
  left.remove(300);
  CHECK(left.largest() == 3);
  CHECK(left.draw(0.499) == 3);
  CHECK(left.draw(0.5) == 699);
  left.remove(3);
  CHECK(left.draw(0) == 699);
  left.remove(699);
  CHECK(left.draw(0.5) == -1);
  CHECK(left.largest() == -1);
}

TEST_CASE("SampledEagle: two tokens of a verified step have the target's law", "[speculative][statistics]") {
  // Fifteen degrees of freedom: above 55 once in 600,000 seeds.
  constexpr index_t vocab = 4;
  constexpr int steps = 20000;
  const auto check = [&](auto law) {
    constexpr Law L = decltype(law)::value;
    SampledEagle<L, RowPerToken> drafter(vocab, {2, 3}, {vocab});
    Cpu cpu;
    std::vector<std::vector<float>> p;  // after the root, then after each token
    for (std::int32_t token = -1; token < vocab; ++token) p.push_back(row_after(token, 9, vocab));
    std::vector<int> counts(16);
    for (std::uint32_t step = 0; step < steps; ++step) {
      const DrawKey key{Philox{4}, 0, step};
      DraftTree tree;
      Proposals proposals(vocab);
      drafter.draft({}, DraftBudget{2, 5}, tree, proposals, key);
      tree.finalize();
      DraftForest forest;
      forest.add(tree.view());
      std::vector<float> target;
      for (std::int32_t i = 0; i < tree.nodes(); ++i) {
        const auto& row = p[static_cast<std::size_t>(i == 0 ? 0 : tree.token(i) + 1)];
        target.insert(target.end(), row.begin(), row.end());
      }
      std::int32_t tokens[3], nodes[2], length = 0;
      Status status{};
      verify(cpu, UniVer{}, forest.view(), ProbabilityRows(target.data(), tree.nodes(), vocab), proposals.view(),
             DrawKeys{Philox{4}, {}, View<const std::uint32_t, 1>(&step, 1)},
             Accepted{View<std::int32_t, 2>(tokens, 1, 3), View<std::int32_t, 2>(nodes, 1, 2),
                      View<std::int32_t, 1>(&length, 1), View<Status, 1>(&status, 1)});
      REQUIRE(status == Status::ok);
      std::int32_t second = tokens[1];
      if (length == 0) {  // the next step's first token
        double u = key.uniform(77, Stream::mixture);
        const float* const row = p[static_cast<std::size_t>(tokens[0] + 1)].data();
        for (second = 0; second + 1 < vocab && u >= static_cast<double>(row[second]); ++second) {
          u -= static_cast<double>(row[second]);
        }
      }
      ++counts[static_cast<std::size_t>(tokens[0] * vocab + second)];
    }
    double chi = 0;
    for (std::size_t i = 0; i < 16; ++i) {
      const double expected = steps * static_cast<double>(p[0][i / 4]) * static_cast<double>(p[1 + i / 4][i % 4]);
      chi += (counts[i] - expected) * (counts[i] - expected) / expected;
    }
    INFO(name(L));
    CHECK(chi < 55);
  };
  check(std::integral_constant<Law, Law::without_replacement>{});
  check(std::integral_constant<Law, Law::greedy_plus_one>{});
}

}  // namespace grown_tree_tests
