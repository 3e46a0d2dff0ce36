// The likeliest tokens of a row and its log-sum-exp: against sorting and sums in double, the same bits by every
// instruction set, and SpecBlock's tree from them.
#include <decant/core/random.hpp>
#include <decant/speculative/block_drafter.hpp>
#include <decant/speculative/top_logits.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "catch_compat.hpp"

namespace top_logits_tests {

using namespace decant;
using namespace decant::speculative;

constexpr float inf = std::numeric_limits<float>::infinity();

struct Rows {
  std::vector<float> value;
  std::vector<std::int32_t> token, count;
  std::vector<double> log_sum_exp;

  Rows(index_t rows, index_t k)
      : value(static_cast<std::size_t>(rows * k), 7.0f), token(value.size(), 7),
        count(static_cast<std::size_t>(rows), 7), log_sum_exp(count.size(), 7.0) {}
  TopLogits view() {
    const auto rows = static_cast<index_t>(count.size());
    const auto k = static_cast<index_t>(value.size()) / rows;
    return {View<float, 2>(value.data(), rows, k), View<std::int32_t, 2>(token.data(), rows, k),
            View<std::int32_t, 1>(count), View<double, 1>(log_sum_exp)};
  }
};

template <class T>
Rows found(const std::vector<T>& logits, index_t rows, index_t k, Isa isa = best_isa()) {
  Cpu cpu;
  cpu.set_isa(isa);
  Rows result(rows, k);
  top_logits(cpu, View<const T, 2>(logits.data(), rows, static_cast<index_t>(logits.size()) / rows), result.view());
  return result;
}

TEST_CASE("top_logits: the order by sorting, the log-sum-exp in double", "[speculative]") {
  Philox draw{5};
  for (const index_t n : {1, 2, 63, 64, 65, 1023, 1024, 1025, 5000}) {
    for (const float spread : {0.02f, 8.0f, 300.0f}) {
      std::vector<float> x;
      for (index_t i = 0; i < n; ++i) {
        const float u = draw.uniform(static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(n));
        x.push_back(std::floor(spread * 40 * (u - 0.5f)) / 40);  // many ties at the narrowest
      }
      const index_t k = n < 10 ? n : 10;
      const Rows rows = found(x, 1, k);
      std::vector<std::int32_t> order;
      for (index_t i = 0; i < n; ++i) order.push_back(static_cast<std::int32_t>(i));
      std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
        return x[static_cast<std::size_t>(a)] > x[static_cast<std::size_t>(b)];
      });
      order.resize(static_cast<std::size_t>(k));
      CHECK(rows.token == order);
      CHECK(rows.count[0] == k);
      double sum = 0;
      for (const float v : x) sum += std::exp(static_cast<double>(v - rows.value[0]));
      CHECK(std::abs(rows.log_sum_exp[0] - (static_cast<double>(rows.value[0]) + std::log(sum))) < 3e-7);
    }
  }
}

TEST_CASE("top_logits: NaN, infinities and rows of nothing", "[speculative]") {
  std::vector<float> x(4 * 1100, -inf);
  x[70] = 1;                        // row 0: one number
  x[1100 + 3] = NAN;                // row 1: a NaN among numbers
  x[1100 + 1050] = 2;
  x[2200 + 5] = inf;                // row 2: two of +inf, and a number in another tile
  x[2200 + 1060] = inf;
  x[2200 + 1070] = 9;
  const Rows rows = found(x, 4, 3);
  CHECK(rows.count == std::vector<std::int32_t>{1, 1, 3, 0});
  CHECK(rows.token == std::vector<std::int32_t>{70, -1, -1, 1050, -1, -1, 5, 1060, 1070, -1, -1, -1});
  CHECK(rows.value == std::vector<float>{1, -inf, -inf, 2, -inf, -inf, inf, inf, 9, -inf, -inf, -inf});
  CHECK(rows.log_sum_exp[0] == 1.0);
  CHECK(std::isnan(rows.log_sum_exp[1]));
  CHECK(rows.log_sum_exp[2] == static_cast<double>(inf));
  CHECK(rows.log_sum_exp[3] == static_cast<double>(-inf));
}

TEST_CASE("top_logits: the same bits by every instruction set and type", "[speculative]") {
  std::vector<float> x;
  std::vector<bf16> narrow;
  for (std::uint32_t i = 0; i < 2 * 3001; ++i) {
    narrow.push_back(bf16(9 * Philox{1}.uniform(i) - 4));
    x.push_back(static_cast<float>(narrow.back()));
  }
  const Rows expected = found(x, 2, 32, Isa::portable);
  const auto same = [&](const Rows& rows) {
    return rows.value == expected.value && rows.token == expected.token && rows.count == expected.count &&
           rows.log_sum_exp == expected.log_sum_exp;
  };
  for (const Isa isa : {Isa::avx2, Isa::avx512}) {
    if (isa <= best_isa()) CHECK(same(found(x, 2, 32, isa)));
  }
  CHECK(same(found(narrow, 2, 32)));
  CHECK_THROWS_AS(found(x, 2, 33), ArgumentError);
  Rows few(1, 4);
  Cpu cpu;
  CHECK_THROWS_AS(top_logits(cpu, View<const float, 2>(x.data(), 2, 3001), few.view()), ArgumentError);
}

TEST_CASE("BlockDrafter: the same tree from logits and from what top_logits found of them", "[speculative]") {
  constexpr index_t vocab = 90;
  const auto fill = [&](View<const BlockLeaf, 1> leaves, View<float, 2> logits, View<RankClass, 1> ranks) {
    for (index_t r = 0; r < ranks.extent(0); ++r) {
      const BlockLeaf& leaf = leaves[r / 4];
      const auto seed = static_cast<std::uint32_t>(31 * leaf.token + 7 * leaf.depth + static_cast<std::int32_t>(r) % 4);
      for (index_t y = 0; y < vocab; ++y) logits(r, y) = 5 * Philox{seed}.uniform(static_cast<std::uint32_t>(y));
      ranks[r] = static_cast<RankClass>(seed % 4);
    }
    return true;
  };
  const auto from_logits = [&](View<const BlockLeaf, 1> leaves, View<float, 2> logits, View<RankClass, 1> ranks) {
    return fill(leaves, logits, ranks);
  };
  const auto from_top = [&](View<const BlockLeaf, 1> leaves, const TopLogits& rows, View<RankClass, 1> ranks) {
    std::vector<float> logits(static_cast<std::size_t>(ranks.extent(0) * vocab));
    const View<float, 2> all(logits.data(), ranks.extent(0), vocab);
    fill(leaves, all, ranks);
    Cpu cpu;
    top_logits(cpu, all, rows);
    return true;
  };
  const auto draft = [&](auto& drafter, std::int32_t root) {
    DraftTree tree;
    tree.clear(root);
    Proposals none;
    drafter.draft({}, DraftBudget{100, 1000}, tree, none, DrawKey{});
    tree.finalize();
    return tree;
  };
  BlockDrafter<decltype(from_logits)> by_logits(vocab, from_logits);
  BlockDrafter<decltype(from_top)> by_top(vocab, from_top);
  static_assert(Drafter<decltype(by_top)>);
  for (const std::int32_t root : {3, 4, 77}) {
    const DraftTree a = draft(by_logits, root), b = draft(by_top, root);
    REQUIRE(a.nodes() == b.nodes());
    CHECK(a.nodes() > 20);
    for (std::int32_t i = 1; i < a.nodes(); ++i) {
      if (a.token(i) != b.token(i) || a.parent(i) != b.parent(i) || a.score(i) != b.score(i)) FAIL("node " << i);
    }
  }
}

}  // namespace top_logits_tests
