// Draft trees without their network: an EAGLE tree of 60 nodes (beam of 10, 8 levels) from logits that are there, its
// masks and positions, and the KV rows of an accepted path. `grow` reads the logits of 71 forwarded nodes, which lie in
// the cache, as they do when a network has just written them. Peer of `grow`: the growth as it is written down, with
// partial sorts of each row and of the candidates; of `build`: dense boolean masks from parents.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "decant/speculative/eagle_tree.hpp"
#include "decant/speculative/keep_path.hpp"
#include "decant/speculative/tree_masks.hpp"
#include "harness.hpp"

namespace {

using namespace decant::speculative;
using decant::index_t;
using decant::View;

constexpr index_t beam = 10;

/// The i-th node of every level is followed by the same row, which stays where it was written.
struct Logits {
  index_t vocab;
  bench::Buffer<float> rows;
  index_t written = 0;
  const float* there = nullptr;

  explicit Logits(index_t v, std::uint64_t seed = 3) : vocab(v), rows(static_cast<std::size_t>(beam * v)) {
    bench::fill(rows, seed);
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] *= 3;
  }
  bool operator()(View<const std::int32_t, 1> tokens, View<const std::int32_t, 1>, View<float, 2> out) {
    if (out.data() != there) written = 0;
    there = out.data();
    for (; written < tokens.extent(0); ++written) {
      std::memcpy(&out(written, 0), row(written), static_cast<std::size_t>(vocab) * sizeof(float));
    }
    return true;
  }
  const float* row(index_t i) const { return rows.data() + i * vocab; }
};

/// The text of the algorithm, with the standard library.
struct Plainly {
  Logits& logits;
  std::vector<float> score;
  std::vector<std::int32_t> order, token, parent, frontier, ids;

  explicit Plainly(Logits& l) : logits(l), order(static_cast<std::size_t>(l.vocab)) {}

  std::size_t operator()() {
    score.clear();
    token.clear();
    parent.clear();
    frontier.assign(1, -1);
    for (int level = 0; level < 8; ++level) {
      const std::size_t begin = score.size();
      for (std::size_t i = 0; i < frontier.size(); ++i) {
        const std::int32_t above = frontier[i];
        const float* const row = logits.row(static_cast<index_t>(i));
        const float most = *std::max_element(row, row + logits.vocab);
        double sum = 0;
        for (index_t y = 0; y < logits.vocab; ++y) sum += std::exp(static_cast<double>(row[y] - most));
        const float total = most + static_cast<float>(std::log(sum));
        std::iota(order.begin(), order.end(), 0);
        std::partial_sort(order.begin(), order.begin() + 10, order.end(), [&](std::int32_t a, std::int32_t b) {
          return row[a] > row[b];
        });
        for (int j = 0; j < 10; ++j) {
          token.push_back(order[static_cast<std::size_t>(j)]);
          parent.push_back(above);
          score.push_back((above < 0 ? 0 : score[static_cast<std::size_t>(above)]) +
                          row[token.back()] - total);
        }
      }
      ids.resize(score.size() - begin);
      std::iota(ids.begin(), ids.end(), static_cast<std::int32_t>(begin));
      best(10);
      frontier = ids;
    }
    ids.resize(score.size());
    std::iota(ids.begin(), ids.end(), 0);
    best(59);
    std::sort(ids.begin(), ids.end());
    return ids.size();
  }
  void best(std::size_t count) {
    const auto end = ids.begin() + static_cast<std::ptrdiff_t>(std::min(count, ids.size()));
    std::partial_sort(ids.begin(), end, ids.end(), [&](std::int32_t a, std::int32_t b) {
      return score[static_cast<std::size_t>(a)] > score[static_cast<std::size_t>(b)];
    });
    ids.erase(end, ids.end());
  }
};

template <class Drafter>
DraftTree drafted(Drafter& drafter) {
  DraftTree tree;
  Proposals none;
  drafter.draft({}, DraftBudget{100, 1000}, tree, none, DrawKey{});
  tree.finalize();
  return tree;
}

void grow(bench::Row& row, index_t vocab) {
  Logits logits(vocab);
  const auto forward = [&](View<const std::int32_t, 1> tokens, View<const std::int32_t, 1> parents,
                           View<float, 2> out) { return logits(tokens, parents, out); };
  EagleTree<decltype(forward)> drafter(vocab, forward);
  DraftTree tree;
  Proposals none;
  Plainly plainly(logits);
  tree = drafted(drafter);
  plainly();
  // The tree must be the one that the text describes.
  double error = tree.nodes() == 60 ? 0 : 1;
  std::vector<std::int32_t> ours, theirs;
  for (std::int32_t i = 1; i < tree.nodes(); ++i) ours.push_back(tree.token(i));
  for (const std::int32_t id : plainly.ids) theirs.push_back(plainly.token[static_cast<std::size_t>(id)]);
  std::sort(ours.begin(), ours.end());
  std::sort(theirs.begin(), theirs.end());
  if (ours != theirs) error = 1;
  row.measure({.ours =
                   [&] {
                     tree.clear(0);
                     drafter.draft({}, DraftBudget{100, 1000}, tree, none, DrawKey{});
                     tree.finalize();
                     benchmark::DoNotOptimize(tree.view().token);
                   },
               .peers = {{"std", [&] { benchmark::DoNotOptimize(plainly()); }}},
               .error = error});
}

void build(bench::Row& row, index_t trees) {
  DraftForest forest;
  for (index_t b = 0; b < trees; ++b) {
    Logits logits(997, static_cast<std::uint64_t>(b));
    const auto forward = [&](View<const std::int32_t, 1> tokens, View<const std::int32_t, 1> parents,
                             View<float, 2> out) { return logits(tokens, parents, out); };
    EagleTree<decltype(forward)> drafter(997, forward);
    forest.add(drafted(drafter).view());
  }
  const ForestView view = forest.view();
  const auto nodes = static_cast<std::size_t>(view.all.nodes);
  std::vector<index_t> offsets(static_cast<std::size_t>(trees) + 1);
  std::vector<std::uint64_t> words(nodes);
  std::vector<std::int32_t> positions(nodes);
  std::vector<std::uint8_t> dense(nodes * 64);
  const auto ours = [&] {
    mask_offsets(view, View<index_t, 1>(offsets));
    tree_masks(view, View<const index_t, 1>(offsets), View<std::uint64_t, 1>(words));
    for (index_t b = 0; b < trees; ++b) {
      const TreeView t = view.tree(b);
      position_ids(t, 1000, View<std::int32_t, 1>(positions.data() + view.offsets[b], t.nodes));
    }
    benchmark::ClobberMemory();
  };
  const auto plainly = [&] {
    for (index_t b = 0; b < trees; ++b) {
      const TreeView t = view.tree(b);
      for (std::int32_t i = 0; i < t.nodes; ++i) {
        std::uint8_t* const seen = dense.data() + (view.offsets[b] + i) * 64;
        std::fill(seen, seen + 64, std::uint8_t{0});
        for (std::int32_t a = i; a >= 0; a = t.parent[a]) seen[a] = 1;
        positions[static_cast<std::size_t>(view.offsets[b] + i)] = 1000 + t.depth[i];
      }
    }
    benchmark::ClobberMemory();
  };
  ours();
  plainly();
  double error = 0;
  for (std::size_t i = 0; i < nodes * 64; ++i) error += ((words[i / 64] >> (i % 64)) & 1) != dense[i] ? 1 : 0;
  row.measure({.ours = ours, .peers = {{"dense", plainly}}, .error = error});
}

/// 8 heads of bf16 rows of 128; the root and 5 of 60 nodes stay.
void keep(bench::Row& row) {
  constexpr index_t context = 1000, heads = 8, dim = 128;
  bench::Buffer<decant::bf16> keys(static_cast<std::size_t>(heads * (context + 60) * dim)), values(keys.size());
  bench::fill(keys, 1);
  bench::fill(values, 2);
  std::int32_t length = context + 60;
  const decant::kv::DenseKV<decant::bf16> cache{
      View<decant::bf16, 4>(keys.data(), 1, heads, context + 60, dim),
      View<decant::bf16, 4>(values.data(), 1, heads, context + 60, dim), View<std::int32_t, 1>(&length, 1)};
  const std::vector<std::int32_t> offsets = {0, 60}, path = {3, 14, 30, 41, 52}, tau = {5};
  const AcceptedPaths paths{View<const std::int32_t, 1>(offsets), View<const std::int32_t, 2>(path.data(), 1, 5),
                            View<const std::int32_t, 1>(tau)};
  decant::Cpu cpu;
  const auto ours = [&] {
    length = context + 60;
    keep_path(cpu, cache, paths);
    benchmark::ClobberMemory();
  };
  // What must come down, read before the first call and compared after it.
  std::vector<float> expected;
  for (const std::int32_t node : path) expected.push_back(static_cast<float>(cache.key(0, 3, context + node)[7]));
  ours();
  double error = length == context + 6 ? 0 : 1;
  for (std::size_t i = 0; i < path.size(); ++i) {
    const auto got = static_cast<float>(cache.key(0, 3, context + 1 + static_cast<index_t>(i))[7]);
    error += got == expected[i] ? 0 : 1;
  }
  row.measure({.ours = ours, .error = error});
}

}  // namespace

int main(int argc, char** argv) {
  bench::Suite suite("speculative", argc, argv);
  for (const long vocab : suite.sizes({32000, 128256})) {
    suite.add({.primitive = "grow", .policy = "EagleTree", .shape = bench::shape("vocab", vocab, "nodes", 60)},
              [vocab](bench::Row& row) { grow(row, vocab); });
  }
  for (const long trees : suite.sizes({1, 64})) {
    suite.add({.primitive = "build", .policy = "masks", .shape = bench::shape("nodes", 60, "trees", trees)},
              [trees](bench::Row& row) { build(row, trees); });
  }
  suite.add({.primitive = "keep_path", .policy = "Dense", .shape = bench::shape("nodes", 60, "kept", 6, "heads", 8)},
            [](bench::Row& row) { keep(row); });
  return suite.run();
}
