// DraftTree's invariants, pruning, masks against the definition, and the KV rows of accepted paths.
#include <decant/core/random.hpp>
#include <decant/speculative/draft_tree.hpp>
#include <decant/speculative/keep_path.hpp>
#include <decant/speculative/tree_masks.hpp>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "catch_compat.hpp"

namespace tree_tests {

using namespace decant;
using namespace decant::speculative;

/// A random tree of n nodes, pushed in a random order that has parents first; scores never rise.
DraftTree random_tree(std::uint32_t seed, std::int32_t n, bool ties = false) {
  const Philox random{seed};
  DraftTree tree;
  tree.clear(7);
  for (std::int32_t i = 1; i < n; ++i) {
    const Philox4 bits = random(static_cast<std::uint32_t>(i));
    const auto parent = static_cast<std::int32_t>(bits.word[0] % static_cast<std::uint32_t>(i));
    const float drop = ties ? static_cast<float>(bits.word[1] % 2) : Philox::to_unit(bits.word[1]);
    tree.push_child(parent, 1000 + i, tree.score(parent) - drop);
  }
  return tree;
}

TEST_CASE("DraftTree: finalize puts nodes breadth first and keeps siblings in order", "[speculative]") {
  for (std::uint32_t seed = 0; seed < 40; ++seed) {
    const std::int32_t n = 1 + static_cast<std::int32_t>(seed) * 5;
    DraftTree tree = random_tree(seed, n);
    std::set<std::pair<std::int32_t, std::int32_t>> edges;  // by token, which is the order of pushing
    for (std::int32_t i = 1; i < n; ++i) edges.insert({tree.token(tree.parent(i)), tree.token(i)});
    tree.finalize();
    const TreeView t = tree.view();
    REQUIRE(t.nodes == n);
    CHECK(well_formed(t, 100000, 0));
    for (std::int32_t i = 1; i < n; ++i) {
      CHECK(t.parent[i] < i);
      CHECK(t.depth[i] == t.depth[t.parent[i]] + 1);
      CHECK(t.depth[i] >= t.depth[i - 1]);
      CHECK(edges.count({t.token[t.parent[i]], t.token[i]}) == 1);
      if (t.parent[i] == t.parent[i - 1]) CHECK(t.token[i] > t.token[i - 1]);
      CHECK(t.children[t.parent[i]] > i - t.first_child[t.parent[i]]);
    }
  }
}

TEST_CASE("DraftTree: pruning keeps the best nodes and their ancestors", "[speculative]") {
  for (std::uint32_t seed = 0; seed < 40; ++seed) {
    const bool ties = seed % 2 == 0;
    const DraftTree whole = random_tree(seed, 40, ties);
    for (const std::int32_t budget : {0, 1, 7, 39, 60}) {
      DraftTree tree = whole;
      tree.prune(budget);
      CHECK(tree.nodes() == 1 + std::min(budget, 39));
      tree.finalize();
      CHECK(well_formed(tree.view(), 100000, 0));
      std::vector<float> kept, all;
      for (std::int32_t i = 1; i < tree.nodes(); ++i) kept.push_back(tree.score(i));
      for (std::int32_t i = 1; i < 40; ++i) all.push_back(whole.score(i));
      std::sort(kept.rbegin(), kept.rend());
      std::sort(all.rbegin(), all.rend());
      CHECK(std::equal(kept.begin(), kept.end(), all.begin()));
    }
  }
  DraftTree sampled = random_tree(1, 5);
  sampled.set_law(0, Law::iid, 0);
  CHECK_THROWS_AS(sampled.prune(2), ArgumentError);
  CHECK(sampled.nodes() == 5);
  DraftTree rising;
  rising.push_child(rising.push_child(0, 1, -1), 2, -0.5f);
  CHECK_THROWS_AS(rising.prune(1), ArgumentError);
  CHECK_THROWS_AS(rising.push_child(9, 1, 0), ArgumentError);
  CHECK_THROWS_AS(rising.set_law(-1, Law::iid), ArgumentError);
}

TEST_CASE("DraftTree: at most 1024 nodes", "[speculative]") {
  DraftTree tree;
  for (std::int32_t i = 1; i < max_tree_nodes; ++i) tree.push_child(i - 1, i, 0);
  CHECK_THROWS_AS(tree.push_child(0, 1, 0), ArgumentError);
  tree.finalize();
  CHECK(tree.depth() == max_tree_nodes - 1);
  CHECK(well_formed(tree.view(), 2000, 0));
}

TEST_CASE("tree masks: a node sees the context, its ancestors and itself", "[speculative]") {
  DraftForest forest;
  std::vector<DraftTree> trees;
  for (const std::int32_t n : {1, 30, 64, 65, 130}) {
    trees.push_back(random_tree(static_cast<std::uint32_t>(n), n));
    trees.back().finalize();
    forest.add(trees.back().view());
  }
  std::vector<index_t> offsets(trees.size() + 1);
  const index_t total = mask_offsets(forest.view(), View<index_t, 1>(offsets));
  std::vector<std::uint64_t> words(static_cast<std::size_t>(total));
  const attention::TreeMask mask =
      tree_masks(forest.view(), View<const index_t, 1>(offsets), View<std::uint64_t, 1>(words));
  for (std::size_t b = 0; b < trees.size(); ++b) {
    const TreeView t = trees[b].view();
    const index_t context = 5;
    std::vector<float> bias(static_cast<std::size_t>(t.nodes * (context + t.nodes)));
    const View<float, 2> rows(bias.data(), t.nodes, context + t.nodes);
    additive_mask(t, context, rows);
    std::vector<std::int32_t> positions(static_cast<std::size_t>(t.nodes));
    position_ids(t, context, View<std::int32_t, 1>(positions));
    for (std::int32_t i = 0; i < t.nodes; ++i) {
      std::set<index_t> seen;
      for (std::int32_t a = i; a >= 0; a = t.parent[a]) seen.insert(context + a);
      CHECK(seen.size() == static_cast<std::size_t>(t.depth[i]) + 1);
      CHECK(positions[static_cast<std::size_t>(i)] == context + t.depth[i]);
      for (index_t k = 0; k < context + t.nodes; ++k) {
        const bool visible = k < context || seen.count(k) == 1;
        if (mask.allowed(static_cast<index_t>(b), i, k, t.nodes, context + t.nodes) != visible) FAIL("mask");
        if ((rows(i, k) == 0.0f) != visible || (!visible && !std::isinf(rows(i, k)))) FAIL("bias");
      }
    }
    std::size_t leaves = 0;
    for (std::int32_t i = 0; i < t.nodes; ++i) leaves += t.children[i] == 0 ? 1 : 0;
    const auto all = paths(t);
    CHECK(all.size() == leaves);
    for (const auto& path : all) {
      CHECK(path[0] == 0);
      for (std::size_t i = 1; i < path.size(); ++i) CHECK(t.parent[path[i]] == path[i - 1]);
    }
  }
}

/// Three sequences, trees of 4, 1 and 5 nodes, accepted paths {1, 3}, {}, and a request that failed.
struct Paths {
  std::vector<std::int32_t> offsets = {0, 4, 5, 10};
  std::vector<std::int32_t> nodes = {1, 3, -1, -1, -1, -1};
  std::vector<std::int32_t> length = {2, 0, -1};
  AcceptedPaths view() const {
    return {View<const std::int32_t, 1>(offsets), View<const std::int32_t, 2>(nodes.data(), 3, 2),
            View<const std::int32_t, 1>(length)};
  }
};

/// Rows that say where they were.
float mark(index_t b, index_t h, index_t t) { return static_cast<float>(100 * b + 1000 * h + t); }

template <class Cache>
void check_kept(const Cache& cache, const std::vector<std::vector<index_t>>& expected) {
  for (index_t b = 0; b < 3; ++b) {
    const auto& rows = expected[static_cast<std::size_t>(b)];
    for (index_t h = 0; h < 2; ++h) {
      REQUIRE(cache.length(b, h) == static_cast<index_t>(rows.size()));
      for (index_t t = 0; t < cache.length(b, h); ++t) {
        const float was = mark(b, h, rows[static_cast<std::size_t>(t)]);
        CHECK(cache.key(b, h, t)[0] == was);
        CHECK(cache.value(b, h, t)[1] == -was);
      }
    }
  }
}

template <class Cache>
void fill(const Cache& cache) {
  for (index_t b = 0; b < 3; ++b) {
    for (index_t h = 0; h < 2; ++h) {
      for (index_t t = 0; t < cache.length(b, h); ++t) {
        for (index_t d = 0; d < 2; ++d) {
          cache.key(b, h, t)[d] = mark(b, h, t);
          cache.value(b, h, t)[d] = -mark(b, h, t);
        }
      }
    }
  }
}

// 3 committed tokens and a tree of 4, 6 and 1, 2 and 5.
const std::vector<std::vector<index_t>> kept_rows = {{0, 1, 2, 3, 4, 6}, {0, 1, 2, 3, 4, 5, 6}, {0, 1}};

TEST_CASE("keep_path: the root and the accepted nodes stay, in dense, ragged and paged caches", "[speculative]") {
  Cpu cpu;
  const Paths paths;
  std::vector<float> keys(3 * 2 * 8 * 2), values(keys.size());
  {
    std::vector<std::int32_t> lengths = {7, 7, 7};
    const kv::DenseKV<float> cache{View<float, 4>(keys.data(), 3, 2, 8, 2), View<float, 4>(values.data(), 3, 2, 8, 2),
                                   View<std::int32_t, 1>(lengths)};
    fill(cache);
    keep_path(cpu, cache, paths.view());
    check_kept(cache, kept_rows);
  }
  {
    std::vector<std::int32_t> lengths(6, 7);
    std::vector<index_t> offsets;
    for (index_t i = 0; i <= 6; ++i) offsets.push_back(8 * i);
    const kv::RaggedKV<float> cache{View<float, 2>(keys.data(), 48, 2), View<float, 2>(values.data(), 48, 2), offsets,
                                    lengths, 2};
    fill(cache);
    keep_path(cpu, cache, paths.view());
    check_kept(cache, kept_rows);
  }
  for (const index_t page : {1, 3, 16}) {
    kv::PageTable table(40, page, 3);
    for (index_t b = 0; b < 3; ++b) table.extend(b, 7);
    std::vector<float> k(static_cast<std::size_t>(40 * 2 * page * 2)), v(k.size());
    const View<float, 4> pool_k(k.data(), 40, 2, page, 2), pool_v(v.data(), 40, 2, page, 2);
    fill(table.attach(pool_k, pool_v));
    keep_path(cpu, table, pool_k, pool_v, paths.view());
    check_kept(table.attach(pool_k, pool_v), kept_rows);
  }
}

TEST_CASE("keep_path_rows: pages that rows move to stand in the table once", "[speculative]") {
  Cpu cpu;
  const Paths paths;  // row 5 of the first sequence is written, in its second page
  std::vector<std::int32_t> begins = {0, 3, 6, 9}, pages = {0, 1, 2, 0, 3, 4, 0, 5, 2}, last = {1, 1, 1};
  std::vector<float> k(8 * 2 * 3 * 2), v(k.size());
  const kv::PagedKV<float> cache{View<float, 4>(k.data(), 8, 2, 3, 2), View<float, 4>(v.data(), 8, 2, 3, 2),
                                 View<std::int32_t, 1>(begins), View<std::int32_t, 1>(pages),
                                 View<std::int32_t, 1>(last)};
  const auto at = [&](index_t t) { return cache.key(0, 1, t)[0]; };
  for (std::size_t i = 0; i < k.size(); ++i) k[i] = static_cast<float>(i);
  const float row = at(6);
  keep_path_rows(cpu, cache, paths.view());  // shared: a prefix, and a page that is only read
  CHECK(at(5) == row);
  CHECK(at(6) == row);
  pages[4] = 1;
  const auto before = k;
  CHECK_THROWS_WITH(keep_path_rows(cpu, cache, paths.view()),
                    catch_compat::contains("keep_path: argument `cache`: expected pages that stand in the table"
                                           " once"));
  CHECK(k == before);
}

TEST_CASE("keep_path: a path that does not fit changes nothing", "[speculative]") {
  Cpu cpu;
  std::vector<float> keys(3 * 2 * 8 * 2), values(keys.size());
  std::vector<std::int32_t> lengths = {7, 7, 7};
  const kv::DenseKV<float> cache{View<float, 4>(keys.data(), 3, 2, 8, 2), View<float, 4>(values.data(), 3, 2, 8, 2),
                                 View<std::int32_t, 1>(lengths)};
  fill(cache);
  const auto before = keys;
  const auto fails = [&](const Paths& p) {
    CHECK_THROWS_AS(keep_path(cpu, cache, p.view()), ArgumentError);
    CHECK(keys == before);
    CHECK(lengths == std::vector<std::int32_t>{7, 7, 7});
  };
  Paths p;
  p.nodes[1] = 1;  // not ascending
  fails(p);
  p = Paths{};
  p.nodes[1] = 4;  // another tree's
  fails(p);
  p = Paths{};
  p.length[1] = 1;  // longer than the tree
  fails(p);
  p = Paths{};
  p.length[0] = 3;
  fails(p);
  p = Paths{};
  p.offsets = {0, 4, 5, 13};  // more rows than there are
  fails(p);
}

}  // namespace tree_tests
