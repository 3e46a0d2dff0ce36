// EAGLE's trees grown on CUDA: the CPU's trees, scores and all; masks of the beam; and the KV rows of accepted paths.
#include "decant/speculative/eagle_tree.cuh"
#include "decant/speculative/keep_path.cuh"
#include "decant/speculative/tree_masks.cuh"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "catch_compat.hpp"
#include "device_memory.cuh"
#include "graph.cuh"
#include "oracle/path_logits.hpp"

namespace {

using namespace decant;
using namespace decant::speculative;
using cuda_test::DeviceBuffer;
using cuda_test::Graph;
using cuda_test::Stream;
using path_logits::logits_after;
using Tokens = std::vector<std::int32_t>;

DraftTree on_cpu(std::int32_t root, index_t vocab, bool flat, bool holes, const EagleOptions& o, DraftBudget budget) {
  std::vector<Tokens> forwarded;
  const auto forward = [&](View<const std::int32_t, 1> tokens, View<const std::int32_t, 1> parents,
                           View<float, 2> logits) {
    for (index_t i = 0; i < tokens.extent(0); ++i) {
      Tokens path;
      if (parents[i] >= 0) path = forwarded.at(static_cast<std::size_t>(parents[i]));
      path.push_back(tokens[i]);
      const auto row = logits_after(path, vocab, flat, holes);
      std::copy(row.begin(), row.end(), &logits(i, 0));
      forwarded.push_back(path);
    }
    return true;
  };
  EagleTree<decltype(forward)> drafter(vocab, forward, o);
  DraftTree tree;
  tree.clear(root);
  Proposals none;
  drafter.draft({}, budget, tree, none, DrawKey{});
  tree.finalize();
  return tree;
}

/// A batch that grows on the device; the network is on the host.
struct Growing {
  EagleOptions o;
  index_t vocab, requests, candidates, beam, room;
  DeviceBuffer<std::int32_t> root, token, parent, count, beam_token, beam_parent, beam_candidate;
  DeviceBuffer<float> score, logits;
  DeviceBuffer<std::uint64_t> mask;
  DeviceBuffer<std::int32_t> offsets, tree_token, tree_parent, first_child, children, q_row;
  DeviceBuffer<std::uint16_t> depth;
  DeviceBuffer<Law> law;
  DeviceBuffer<float> rest, tree_score;

  Growing(const Tokens& roots, index_t v, const EagleOptions& options)
      : o(options), vocab(v), requests(static_cast<index_t>(roots.size())),
        candidates(eagle_candidates(o, o.depth + 1)), beam(eagle_beam(o)), room(requests * o.total_tokens), root(roots),
        token(requests * candidates), parent(requests * candidates), count(requests * (o.depth + 1)),
        beam_token(requests * beam),
        beam_parent(requests * beam), beam_candidate(requests * beam), score(requests * candidates),
        logits(requests * o.top_k * vocab), mask(requests * beam * ((beam + 63) / 64)), offsets(requests + 1),
        tree_token(room), tree_parent(room), first_child(room), children(room), q_row(room), depth(room), law(room),
        rest(room), tree_score(room) {}

  EagleGrowth growth() const {
    return {View<const std::int32_t, 1>(root.data(), requests),
            token.view(requests, candidates),
            parent.view(requests, candidates),
            score.view(requests, candidates),
            count.view(requests, o.depth + 1),
            beam_token.view(requests, beam),
            beam_parent.view(requests, beam),
            beam_candidate.view(requests, beam),
            mask.view(requests, beam, (beam + 63) / 64)};
  }
  DeviceForest forest() const {
    return {offsets.view(requests + 1), tree_token.view(room), tree_parent.view(room), first_child.view(room),
            children.view(room),        depth.view(room),      law.view(room),         q_row.view(room),
            rest.view(room),            tree_score.view(room)};
  }
  index_t rows(std::int32_t level) const { return level == 0 ? 1 : o.top_k; }

  /// The rows of a level, as a network would make them from what lies on the device.
  void forward(std::int32_t level, bool flat, bool holes) {
    std::vector<float> all(static_cast<std::size_t>(logits.size()), 0.0f);
    const Tokens roots = root.download();
    const Tokens tokens = level == 0 ? Tokens{} : beam_token.download();
    const Tokens parents = level == 0 ? Tokens{} : beam_parent.download();
    for (index_t b = 0; b < requests; ++b) {
      for (index_t r = 0; r < rows(level); ++r) {
        Tokens path;
        if (level > 0) {
          for (index_t n = 1 + (level - 1) * o.top_k + r; n > 0;) {
            path.insert(path.begin(), tokens[static_cast<std::size_t>(b * beam + n)]);
            n = parents[static_cast<std::size_t>(b * beam + n)];
          }
        }
        path.insert(path.begin(), roots[static_cast<std::size_t>(b)]);
        const auto row = logits_after(path, vocab, flat, holes);
        std::copy(row.begin(), row.end(), all.begin() + (b * rows(level) + r) * vocab);
      }
    }
    logits.upload(all);
  }
  void level(Cuda& cuda, std::int32_t l) const {
    eagle_level(cuda, o, l, View<const float, 2>(logits.data(), requests * rows(l), vocab), growth());
  }

  void expect(std::size_t b, const DraftTree& tree) const {
    const Tokens at = offsets.download();
    REQUIRE(at[b + 1] - at[b] == tree.nodes());
    const auto part = [&](const auto& buffer) {
      const auto all = buffer.download();
      return std::vector(all.begin() + at[b], all.begin() + at[b + 1]);
    };
    const TreeView t = tree.view();
    const auto equal = [&](const auto& buffer, const auto* expected) {
      const auto own = part(buffer);
      return std::equal(own.begin(), own.end(), expected);
    };
    CHECK(equal(tree_token, t.token));
    CHECK(equal(tree_parent, t.parent));
    CHECK(equal(first_child, t.first_child));
    CHECK(equal(children, t.children));
    CHECK(equal(depth, t.depth));
    CHECK(equal(law, t.law));
    CHECK(equal(q_row, t.q_row));
    CHECK(equal(rest, t.rest));
    const auto scores = part(tree_score);
    for (std::int32_t i = 0; i < tree.nodes(); ++i) {
      if (scores[static_cast<std::size_t>(i)] != tree.score(i)) FAIL("score " << i);
    }
  }
};

TEST_CASE("eagle_trees: the trees of the CPU, ties, holes and small vocabularies included", "[speculative]") {
  const Stream stream;
  Cuda cuda(stream);
  const EagleOptions shapes[] = {{}, {20, 3, 4}, {8, 0, 10}, {2, 5, 1}, {60, 2, 12}, {60, 7, 3}};
  for (const EagleOptions& o : shapes) {
    for (const int kind : {0, 1, 2}) {
      const bool flat = kind == 1, holes = kind == 2;
      const index_t vocab = kind == 2 ? 40 : o.top_k == 12 ? 7 : 23;
      const Tokens roots = {5, 4, 12, 3};
      const DraftBudget budget = o.depth == 3 ? DraftBudget{2, 11} : DraftBudget{100, 1000};
      const std::int32_t levels = std::min(budget.depth, o.depth + 1);
      Growing on_device(roots, vocab, o);
      for (std::int32_t l = 0; l < levels; ++l) {
        on_device.forward(l, flat, holes);
        on_device.level(cuda, l);
        cuda.check();
      }
      eagle_trees(cuda, o, budget, on_device.growth(), on_device.forest());
      cuda.check();
      INFO("top_k " << o.top_k << ", kind " << kind);
      for (std::size_t b = 0; b < roots.size(); ++b) {
        on_device.expect(b, on_cpu(roots[b], vocab, flat, holes, o, budget));
      }
    }
  }
}

TEST_CASE("eagle_level: masks of the beam, captured once, no scratch beyond the first call's", "[speculative]") {
  const Stream stream;
  Cuda cuda(stream);
  const EagleOptions o{30, 2, 11};
  Growing on_device({1, 9}, 30, o);
  for (std::int32_t l = 0; l <= o.depth; ++l) {
    on_device.forward(l, false, false);
    on_device.level(cuda, l);
    cuda.check();
  }
  const auto words = on_device.mask.download();
  const auto parents = on_device.beam_parent.download();
  for (index_t b = 0; b < 2; ++b) {
    for (index_t n = 0; n < on_device.beam; ++n) {
      std::uint64_t expected = 0;
      for (index_t a = n; a >= 0; a = parents[static_cast<std::size_t>(b * on_device.beam + a)]) expected |= 1ull << a;
      CHECK(words[static_cast<std::size_t>(b * on_device.beam + n)] == expected);
    }
  }
  const std::size_t room = cuda.workspace().high_water();
  const Graph last(stream, [&] {
    on_device.level(cuda, o.depth);
    eagle_trees(cuda, o, {9, 99}, on_device.growth(), on_device.forest());
  });
  last.launch(stream);
  cuda.check();
  on_device.expect(0, on_cpu(1, 30, false, false, o, {9, 99}));
  on_device.expect(1, on_cpu(9, 30, false, false, o, {9, 99}));
  CHECK(cuda.workspace().high_water() == room);
  CHECK_THROWS_AS(on_device.level(cuda, 3), ArgumentError);
  EagleGrowth wrong = on_device.growth();
  wrong.score = on_device.score.view(2, 5);
  CHECK_THROWS_AS(eagle_trees(cuda, o, {9, 99}, wrong, on_device.forest()), ArgumentError);
}

TEST_CASE("tree_masks: the CPU's words, offsets and positions", "[speculative]") {
  const Stream stream;
  Cuda cuda(stream);
  DraftForest forest;
  Tokens contexts;
  for (index_t b = 0; b < 140; ++b) {  // more trees than a block has threads
    DraftTree tree;
    const auto n = static_cast<std::int32_t>(b % 9 == 4 ? 130 : b % 7);
    for (std::int32_t i = 0; i < n; ++i) {
      tree.push_child(static_cast<std::int32_t>(Philox{3}(static_cast<std::uint32_t>(i)).word[0] % (i + 1u)), i, 0);
    }
    tree.finalize();
    forest.add(tree.view());
    contexts.push_back(static_cast<std::int32_t>(100 * b));
  }
  const ForestView host = forest.view();
  std::vector<index_t> offsets(141);
  std::vector<std::uint64_t> words(static_cast<std::size_t>(mask_offsets(host, View<index_t, 1>(offsets))));
  tree_masks(host, View<const index_t, 1>(offsets), View<std::uint64_t, 1>(words));
  Tokens positions(static_cast<std::size_t>(host.all.nodes));
  for (index_t b = 0; b < 140; ++b) {
    position_ids(host.tree(b), contexts[static_cast<std::size_t>(b)],
                 View<std::int32_t, 1>(positions.data() + host.offsets[b], host.tree(b).nodes));
  }
  const auto n = host.all.nodes;
  const DeviceBuffer<std::int32_t> parent(Tokens(host.all.parent, host.all.parent + n)),
      tree_offsets(Tokens(host.offsets.data(), host.offsets.data() + 141)), device_contexts(contexts);
  const DeviceBuffer<std::uint16_t> depth(std::vector<std::uint16_t>(host.all.depth, host.all.depth + n));
  const DeviceBuffer<index_t> device_offsets(141);
  const DeviceBuffer<std::uint64_t> device_words(static_cast<index_t>(words.size()));
  const DeviceBuffer<std::int32_t> device_positions(n);
  ForestView trees;
  trees.all.nodes = n;
  trees.all.parent = parent.data();
  trees.all.depth = depth.data();
  trees.offsets = View<const std::int32_t, 1>(tree_offsets.data(), 141);
  mask_offsets(cuda, trees, device_offsets.view(141));
  tree_masks(cuda, trees, View<const index_t, 1>(device_offsets.data(), 141), device_words.view(device_words.size()));
  position_ids(cuda, trees, View<const std::int32_t, 1>(device_contexts.data(), 140), device_positions.view(n));
  cuda.check();
  CHECK(device_offsets.download() == offsets);
  CHECK(device_words.download() == words);
  CHECK(device_positions.download() == positions);
}

/// Three requests with trees of 9, 1 and 40 nodes; paths of 3, 0 and 11 drafted ones.
struct HostPaths {
  Tokens offsets = {0, 9, 10, 50}, nodes, length = {3, 0, 11};
  HostPaths() : nodes(3 * 12, -1) {
    for (std::size_t i = 0; i < 3; ++i) nodes[i] = std::array{2, 4, 8}[i];
    for (std::int32_t i = 0; i < 11; ++i) nodes[static_cast<std::size_t>(24 + i)] = i < 2 ? i + 1 : 3 * i + 5;
  }
};
AcceptedPaths paths_of(const std::int32_t* offsets, const std::int32_t* nodes, const std::int32_t* length) {
  return {View<const std::int32_t, 1>(offsets, 4), View<const std::int32_t, 2>(nodes, 3, 12),
          View<const std::int32_t, 1>(length, 3)};
}

/// The same cache on both sides, as make(keys, values, tables, whether on the device) says.
template <class T, class Make, class Keep, class KeepHere>
void check_kept(index_t elements, std::vector<Tokens> tables, const Make& make, const Keep& keep,
                const KeepHere& keep_here) {
  const HostPaths host;
  std::vector<T> keys, values;
  for (index_t i = 0; i < elements; ++i) {
    keys.push_back(T(static_cast<float>(i % 251)));
    values.push_back(T(static_cast<float>(i % 241)));
  }
  const DeviceBuffer<T> device_keys(keys), device_values(values);
  const DeviceBuffer<std::int32_t> offsets(host.offsets), nodes(host.nodes), length(host.length);
  std::vector<DeviceBuffer<std::int32_t>> device_tables;
  for (const Tokens& t : tables) device_tables.emplace_back(t);
  const Stream stream;
  Cuda cuda(stream);
  const auto on_device = make(device_keys.data(), device_values.data(),
                              [&](std::size_t t) { return device_tables[t].view(device_tables[t].size()); }, true);
  keep(cuda, on_device, paths_of(offsets.data(), nodes.data(), length.data()));
  cuda.check();
  Cpu cpu;
  const auto table = [&](std::size_t t) { return View<std::int32_t, 1>(tables[t]); };
  keep_here(cpu, make(keys.data(), values.data(), table, false),
            paths_of(host.offsets.data(), host.nodes.data(), host.length.data()));
  const auto same = [](const std::vector<T>& a, const std::vector<T>& b) {
    return std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
  };
  CHECK(same(device_keys.download(), keys));
  CHECK(same(device_values.download(), values));
  for (std::size_t t = 0; t < tables.size(); ++t) CHECK(device_tables[t].download() == tables[t]);
}

TEST_CASE("keep_path: the CPU's bytes in dense, ragged and paged caches", "[speculative]") {
  const auto keep = [](auto& context, const auto& cache, const AcceptedPaths& paths) {
    keep_path(context, cache, paths);
  };
  const auto rows = [](auto& context, const auto& cache, const AcceptedPaths& paths) {
    keep_path_rows(context, cache, paths);
  };
  check_kept<bf16>(3 * 2 * 50 * 16, {{12, 7, 45}},
                   [](bf16* k, bf16* v, const auto& table, bool) {
                     return kv::DenseKV<bf16>{View<bf16, 4>(k, 3, 2, 50, 16), View<bf16, 4>(v, 3, 2, 50, 16), table(0)};
                   },
                   keep, keep);
  std::vector<index_t> offsets = {0, 12, 24, 30, 36, 80, 124};
  const DeviceBuffer<index_t> device_offsets(offsets);
  check_kept<float>(124 * 3, {{12, 9, 1, 6, 44, 41}},
                    [&](float* k, float* v, const auto& table, bool device) {
                      index_t* const begin = device ? device_offsets.data() : offsets.data();
                      return kv::RaggedKV<float>{View<float, 2>(k, 124, 3), View<float, 2>(v, 124, 3),
                                                 View<index_t, 1>(begin, 7), table(0), 2};
                    },
                    keep, keep);
  check_kept<float>(20 * 2 * 5 * 3,
                    {{0, 3, 4, 14}, {7, 2, 9, 1, 19, 0, 4, 5, 11, 12, 13, 17, 3, 6}, {2, 5, 1}},
                    [](float* k, float* v, const auto& table, bool) {
                      return kv::PagedKV<float>{View<float, 4>(k, 20, 2, 5, 3), View<float, 4>(v, 20, 2, 5, 3),
                                                table(0), table(1), table(2)};
                    },
                    rows, rows);
}

TEST_CASE("keep_path_rows: a page that rows move to and another sequence has stops it", "[speculative]") {
  const Stream stream;
  Cuda cuda(stream);
  const HostPaths host;
  const DeviceBuffer<std::int32_t> offsets(host.offsets), nodes(host.nodes), length(host.length);
  std::vector<float> rows(20 * 5 * 4);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i);
  for (const bool written : {false, true}) {
    // The second sequence's only page is the third's first, whose rows stay, or its third, where rows move to.
    Tokens pages = {1, 2, 9, 7, 19, 0, 4, 5, 11, 12, 13, 17, 3, 6};
    pages[written ? 6 : 4] = 7;
    const DeviceBuffer<float> keys(rows), values(rows);
    const DeviceBuffer<std::int32_t> begins(Tokens{0, 3, 4, 14}), table(pages), last(Tokens{2, 5, 1});
    const kv::PagedKV<float> cache{keys.view(20, 1, 5, 4), values.view(20, 1, 5, 4), begins.view(4), table.view(14),
                                   last.view(3)};
    keep_path_rows(cuda, cache, paths_of(offsets.data(), nodes.data(), length.data()));
    if (written) {
      CHECK_THROWS_WITH(cuda.check(),
                        catch_compat::contains("keep_path: argument `cache`: expected pages that stand in the table"
                                               " once"));
    } else {
      cuda.check();
    }
    CHECK((keys.download() == rows) == written);
  }
}

TEST_CASE("keep_path: a path that does not fit moves nothing", "[speculative]") {
  const Stream stream;
  Cuda cuda(stream);
  std::vector<float> rows(3 * 50 * 4);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i);
  const DeviceBuffer<float> keys(rows), values(rows);
  const Tokens lengths = {12, 7, 45};
  const DeviceBuffer<std::int32_t> device_lengths(lengths);
  const kv::DenseKV<float> cache{keys.view(3, 1, 50, 4), values.view(3, 1, 50, 4), device_lengths.view(3)};
  for (const int kind : {0, 1, 2, 3}) {
    HostPaths host;
    if (kind == 0) host.nodes[1] = 1;    // not ascending
    if (kind == 1) host.nodes[2] = 9;    // another tree's
    if (kind == 2) host.length[1] = 1;   // longer than the tree
    if (kind == 3) host.offsets[3] = 90;  // more rows than there are
    const DeviceBuffer<std::int32_t> offsets(host.offsets), nodes(host.nodes), length(host.length);
    keep_path(cuda, cache, paths_of(offsets.data(), nodes.data(), length.data()));
    CHECK_THROWS_AS(cuda.check(), ArgumentError);
    CHECK(keys.download() == rows);
    CHECK(device_lengths.download() == lengths);
  }
}

}  // namespace
