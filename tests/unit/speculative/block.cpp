// SpecBlock's tree: widths, what branches and what is expanded, coverage with an oracle for a rank head; its features.
#include <decant/core/random.hpp>
#include <decant/speculative/block_drafter.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "catch_compat.hpp"

namespace block_tests {

using namespace decant;
using namespace decant::speculative;

TEST_CASE("RankWidths: the published tables", "[speculative]") {
  constexpr RankWidths w;
  const auto width = [&](int slot, RankClass c, float p) { return w.width(slot, c, p); };
  for (const RankClass c : {RankClass::first, RankClass::beyond}) {
    CHECK(width(0, c, .95f) == 3);
    CHECK(width(0, c, .85f) == 5);
    CHECK(width(0, c, .6f) == 8);
    CHECK(width(0, c, .5f) == 10);
  }
  CHECK(width(1, RankClass::first, .5f) == 2);
  CHECK(width(2, RankClass::second_to_fourth, .5f) == 4);
  CHECK(width(3, RankClass::fifth_to_tenth, .5f) == 10);
  CHECK(width(1, RankClass::beyond, .5f) == 0);
  CHECK(width(1, RankClass::fifth_to_tenth, .96f) == 2);
  CHECK(width(1, RankClass::fifth_to_tenth, .86f) == 3);
  CHECK(width(1, RankClass::beyond, .99f) == 0);
}

/// Every slot of every block ranks tokens (slot + j) % vocab, j = 0, 1 ..., half as likely each time.
struct Halving {
  index_t vocab;
  std::vector<RankClass> by_slot;
  std::vector<std::vector<BlockLeaf>>* calls;

  bool operator()(View<const BlockLeaf, 1> leaves, View<float, 2> logits, View<RankClass, 1> ranks) const {
    calls->push_back({leaves.data(), leaves.data() + leaves.extent(0)});
    const auto slots = static_cast<index_t>(by_slot.size());
    for (index_t r = 0; r < leaves.extent(0) * slots; ++r) {
      for (index_t j = 0; j < vocab; ++j) logits(r, (r % slots + j) % vocab) = -static_cast<float>(j) * 0.69314718f;
      ranks[r] = by_slot[static_cast<std::size_t>(r % slots)];
    }
    return true;
  }
};

DraftTree drafted(const Halving& forward, const BlockOptions& options, DraftBudget budget = {100, 1000}) {
  BlockDrafter<Halving> drafter(forward.vocab, forward, options);
  static_assert(Drafter<BlockDrafter<Halving>>);
  DraftTree tree;
  Proposals none;
  drafter.draft({}, budget, tree, none, DrawKey{});
  tree.finalize();
  CHECK(well_formed(tree.view(), static_cast<std::int32_t>(forward.vocab), 0));
  for (std::int32_t i = 1; i < tree.nodes(); ++i) CHECK(tree.score(i) <= tree.score(tree.parent(i)));
  return tree;
}

TEST_CASE("BlockDrafter: one block is a chain with alternatives beside it", "[speculative]") {
  std::vector<std::vector<BlockLeaf>> calls;
  const RankClass one = RankClass::first, four = RankClass::second_to_fourth, none = RankClass::beyond;
  BlockOptions options;
  options.max_blocks = 1;
  options.widths.beam = 3;
  // Widths 3, 2, 4, and the last slot gives up.
  const DraftTree tree = drafted({50, {one, one, four, none}, &calls}, options);
  REQUIRE(calls.size() == 1);
  CHECK(tree.nodes() == 1 + 3 + 2 + 4);
  CHECK(tree.depth() == 3);
  std::int32_t chain = 0;
  for (std::int32_t slot = 0; slot < 3; ++slot) {
    std::int32_t next = -1, count = 0;
    for (std::int32_t i = 1; i < tree.nodes(); ++i) {
      if (tree.parent(i) != chain) continue;
      if (tree.token(i) == slot) next = i;
      ++count;
    }
    CHECK(count == (slot == 0 ? 3 : slot == 1 ? 2 : 4));
    REQUIRE(next >= 0);
    chain = next;
  }
}

TEST_CASE("BlockDrafter: the next block begins at the best of what branched, and inherits its slot", "[speculative]") {
  std::vector<std::vector<BlockLeaf>> calls;
  BlockOptions options;
  options.widths.beam = 4;
  const RankClass one = RankClass::first;
  const DraftTree tree = drafted({50, {one, one, one, one}, &calls}, options);
  REQUIRE(calls.size() == 2);
  REQUIRE(calls[1].size() == 4);
  for (const BlockLeaf& leaf : calls[1]) {
    CHECK(leaf.block == 0);
    CHECK(leaf.slot >= 0);
    CHECK(leaf.depth == leaf.slot + 1);
    CHECK(leaf.token >= leaf.slot);  // slot's j-th token
  }
  CHECK(tree.nodes() <= 91);
  // Narrow budgets: depth and nodes.
  calls.clear();
  CHECK(drafted({50, {one, one, one, one}, &calls}, options, {2, 1000}).depth() == 2);
  CHECK(drafted({50, {one, one, one, one}, &calls}, options, {100, 5}).nodes() == 6);
  CHECK(drafted({50, {one, one, one, one}, &calls}, options, {}).nodes() == 1);
}

TEST_CASE("BlockDrafter: leaves name a slot of the forward before, and none is expanded twice", "[speculative]") {
  std::vector<std::vector<BlockLeaf>> calls;
  const RankClass four = RankClass::second_to_fourth;
  BlockOptions options;
  options.max_blocks = 5;
  // All blocks rank tokens alike, so that later ones find nodes of earlier ones.
  drafted({50, {four, four, four, four}, &calls}, options);
  REQUIRE(calls.size() == 5);
  std::vector<std::vector<std::vector<std::int32_t>>> paths(1, {{}});  // of the leaves of each forward
  std::map<std::vector<std::int32_t>, int> expanded;
  for (std::size_t i = 1; i < calls.size(); ++i) {
    paths.emplace_back();
    for (const BlockLeaf& leaf : calls[i]) {
      REQUIRE(leaf.block >= 0);
      REQUIRE(leaf.block < static_cast<std::int32_t>(calls[i - 1].size()));
      CHECK(leaf.depth == calls[i - 1][static_cast<std::size_t>(leaf.block)].depth + leaf.slot + 1);
      CHECK(leaf.token >= leaf.slot);
      std::vector<std::int32_t> path = paths[i - 1][static_cast<std::size_t>(leaf.block)];
      for (std::int32_t slot = 0; slot < leaf.slot; ++slot) path.push_back(slot);
      path.push_back(leaf.token);
      CHECK(++expanded[path] == 1);
      paths[i].push_back(path);
    }
  }
  // One child a slot: each block goes on where the last one ended.
  calls.clear();
  options.widths.beam = 1;
  options.widths.by_class = {1, 1, 1, 0};
  CHECK(drafted({50, {four, four, four, four}, &calls}, options).nodes() == 21);
  for (std::size_t i = 1; i < calls.size(); ++i) {
    REQUIRE(calls[i].size() == 1);
    CHECK(calls[i][0].depth == 4 * static_cast<std::int32_t>(i));
  }
}

TEST_CASE("BlockDrafter: no forward for what the budget has no room for", "[speculative]") {
  std::vector<std::vector<BlockLeaf>> calls;
  const RankClass four = RankClass::second_to_fourth;
  CHECK(drafted({50, {four, four, four, four}, &calls}, {}, {0, 90}).nodes() == 1);
  CHECK(drafted({50, {four, four, four, four}, &calls}, {}, {4, 0}).nodes() == 1);
  CHECK(calls.empty());
  drafted({50, {four, four, four, four}, &calls}, {}, {1, 90});
  CHECK(calls.size() == 1);
  drafted({50, {four, four, four, four}, &calls}, {}, {3, 90});
  REQUIRE(calls.size() == 3);
  for (const BlockLeaf& leaf : calls[2]) CHECK(leaf.depth < 3);
}

TEST_CASE("row_top: the largest of a row, ties to the lower token, in memory order and strided", "[speculative]") {
  using speculative::detail::RowTop;
  using speculative::detail::row_top;
  const Philox random{17};
  for (std::uint32_t trial = 0; trial < 200; ++trial) {
    const auto n = static_cast<std::int32_t>(random(0, trial).word[0] % 400);
    const auto k = static_cast<std::int32_t>(1 + random(1, trial).word[0] % 20);
    std::vector<float> row, apart;
    for (std::int32_t i = 0; i < n; ++i) {
      const std::uint32_t bits = random(static_cast<std::uint32_t>(100 + i), trial).word[0];
      row.push_back(bits % 50 == 0 ? NAN : static_cast<float>(bits / 50 % 300));
      apart.insert(apart.end(), {row.back(), -1.0f});
    }
    std::vector<RowTop> expected;
    for (std::int32_t i = 0; i < n; ++i) {
      const float x = row[static_cast<std::size_t>(i)];
      if (x > 20) expected.push_back({x, i});
    }
    std::stable_sort(expected.begin(), expected.end(),
                     [](const RowTop& a, const RowTop& b) { return a.value > b.value; });
    if (static_cast<std::int32_t>(expected.size()) > k) expected.resize(static_cast<std::size_t>(k));
    const View<const float, 1> views[] = {View<const float, 1>(row), View<const float, 1>(apart.data(), {n}, {2})};
    for (const View<const float, 1>& view : views) {
      std::vector<RowTop> top(static_cast<std::size_t>(k));
      const std::int32_t found = row_top(view, 20, View<RowTop, 1>(top));
      REQUIRE(found == static_cast<std::int32_t>(expected.size()));
      for (std::size_t i = 0; i < expected.size(); ++i) {
        CHECK(top[i].token == expected[i].token);
        CHECK(top[i].value == expected[i].value);
      }
    }
  }
}

TEST_CASE("BlockDrafter: with an oracle for a rank head, coverage is that of the classes", "[speculative]") {
  // The right token of slot 1 has rank r; slot 0 is certain. Covered exactly when its class's width exceeds r.
  for (std::int32_t r = 0; r < 14; ++r) {
    std::vector<std::vector<BlockLeaf>> calls;
    const RankClass c = r == 0   ? RankClass::first
                        : r <= 3 ? RankClass::second_to_fourth
                        : r <= 9 ? RankClass::fifth_to_tenth
                                 : RankClass::beyond;
    BlockOptions options;
    options.max_blocks = 1;
    options.slots = 2;
    const DraftTree tree = drafted({50, {RankClass::first, c}, &calls}, options);
    bool covered = false;
    for (std::int32_t i = 1; i < tree.nodes(); ++i) {
      covered = covered || (tree.depth(i) == 2 && tree.token(i) == 1 + r);
    }
    CHECK(covered == (r <= 9));
  }
}

TEST_CASE("rank_head_features: twenty equal logits, and a literal row", "[speculative]") {
  std::vector<float> logits(30, -50.0f), out(15);
  for (std::size_t i = 0; i < 20; ++i) logits[i] = 1;
  rank_head_features(View<const float, 1>(logits), View<float, 1>(out));
  for (std::size_t i = 0; i < 10; ++i) CHECK(out[i] == Approx(-std::log(20.)));
  CHECK(out[10] == 0.0f);
  CHECK(out[13] == Approx(.05));
  CHECK(out[14] == Approx(std::log(20.)));
  logits[7] = 3;
  logits[9] = 2;
  rank_head_features(View<const float, 1>(logits), View<float, 1>(out));
  CHECK(out[10] == Approx(1));
  CHECK(out[11] == Approx(2));
  CHECK(out[12] == Approx(2));
  CHECK(out[13] == Approx(1 / (1 + std::exp(-1.) + 18 * std::exp(-2.))));
  std::vector<float> few(19);
  CHECK_THROWS_AS(rank_head_features(View<const float, 1>(few), View<float, 1>(out)), ArgumentError);
  // Rows at once, from what top_logits found; the second has too few.
  Cpu cpu;
  std::vector<float> two = logits, value(2 * 20), both(2 * 15);
  two.resize(60, -INFINITY);
  std::vector<std::int32_t> token(2 * 20), count(2);
  std::vector<double> log_sum_exp(2);
  const TopLogits rows{View<float, 2>(value.data(), 2, 20), View<std::int32_t, 2>(token.data(), 2, 20),
                       View<std::int32_t, 1>(count), View<double, 1>(log_sum_exp)};
  top_logits(cpu, View<const float, 2>(two.data(), 2, 30), rows);
  rank_head_features(rows, View<float, 2>(both.data(), 2, 15));
  CHECK(std::equal(out.begin(), out.end(), both.begin()));
  for (std::size_t i = 15; i < 30; ++i) CHECK(std::isnan(both[i]));
  CHECK_THROWS_AS(rank_head_features(rows, View<float, 2>(both.data(), 2, 14)), ArgumentError);
}

TEST_CASE("shift_slots: equals the definition slot by slot", "[speculative]") {
  const index_t hidden = 6, slots = 4;
  const auto number = [](std::uint32_t i, std::uint64_t seed) { return 2 * Philox{seed}.uniform(i) - 1; };
  std::vector<float> ab, h;
  for (std::uint32_t i = 0; i < hidden * 2 * hidden; ++i) ab.push_back(number(i, 1));
  for (std::uint32_t i = 0; i < slots * hidden; ++i) h.push_back(number(i, 2));
  const std::vector<float> old = h;
  std::vector<float> scratch(hidden);
  shift_slots(View<const float, 2>(ab.data(), hidden, 2 * hidden), View<float, 2>(h.data(), slots, hidden),
              View<float, 1>(scratch));
  for (index_t k = 0; k < slots; ++k) {
    for (index_t i = 0; i < hidden; ++i) {
      double sum = 0;
      for (index_t j = 0; j < hidden; ++j) {
        const auto own = static_cast<double>(old[static_cast<std::size_t>(k * hidden + j)]);
        const auto before = static_cast<double>(old[static_cast<std::size_t>((k > 0 ? k - 1 : 0) * hidden + j)]);
        sum += static_cast<double>(ab[static_cast<std::size_t>(i * 2 * hidden + j)]) * own +
               static_cast<double>(ab[static_cast<std::size_t>(i * 2 * hidden + hidden + j)]) * before;
      }
      CHECK(h[static_cast<std::size_t>(k * hidden + i)] == Approx(sum).margin(1e-5));
    }
  }
}

}  // namespace block_tests
