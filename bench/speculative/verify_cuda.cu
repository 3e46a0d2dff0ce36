// Verification of draft trees on a GPU: microseconds a step of one request in a batch. The limit is a copy that moves
// as many bytes as the steps must read (drafted_rows.hpp); where little is rejected that is a row or two, and the rest
// is launches and the walk of one block. Trees have rows of their own; those of every second are equal. The error is
// the share of requests that emit other tokens than on the CPU: 0. Batches whose rows fill more than half of the memory
// are left out.

#include <algorithm>
#include <string>
#include <vector>

#include "cuda_harness.cuh"
#include "decant/speculative/verify.cuh"
#include "drafted_rows.hpp"

namespace {

using namespace drafted_rows;
using bench::DeviceBuffer;

constexpr index_t different = 2;  // trees: more would take the host longer than the measurement

/// The rows of a batch, tree after tree, from those of the trees that differ.
DeviceBuffer<float> spread(const bench::Buffer<float>& rows, index_t floats_per_tree, index_t batch) {
  DeviceBuffer<float> all(static_cast<std::size_t>(floats_per_tree * batch));
  bench::must(cudaMemcpy(all.data(), rows.data(), rows.bytes(), cudaMemcpyHostToDevice), "cudaMemcpy");
  for (index_t b = different; b < batch; ++b) {
    bench::must(cudaMemcpy(all.data() + b * floats_per_tree, all.data() + b % different * floats_per_tree,
                           static_cast<std::size_t>(floats_per_tree) * sizeof(float), cudaMemcpyDeviceToDevice),
                "cudaMemcpy");
  }
  return all;
}

/// A forest in device memory.
struct DeviceTrees {
  std::int32_t nodes;
  DeviceBuffer<std::int32_t> token, parent, first_child, children, q_row, offsets;
  DeviceBuffer<std::uint16_t> depth;
  DeviceBuffer<Law> law;
  DeviceBuffer<float> rest;

  explicit DeviceTrees(const ForestView& f)
      : nodes(f.all.nodes), token(copy(f.all.token)), parent(copy(f.all.parent)), first_child(copy(f.all.first_child)),
        children(copy(f.all.children)), q_row(copy(f.all.q_row)),
        offsets(std::vector<std::int32_t>(f.offsets.data(), f.offsets.data() + f.offsets.extent(0))),
        depth(copy(f.all.depth)), law(copy(f.all.law)), rest(copy(f.all.rest)) {}
  ForestView view() const {
    return {{nodes, token.data(), parent.data(), first_child.data(), children.data(), depth.data(), law.data(),
             q_row.data(), rest.data()},
            View<const std::int32_t, 1>(offsets.data(), static_cast<index_t>(offsets.size()))};
  }

 private:
  template <class T>
  DeviceBuffer<T> copy(const T* from) const {
    return DeviceBuffer<T>(std::vector<T>(from, from + nodes));
  }
};

template <class V, Law L>
void measure(bench::Row& row, bench::Gpu& gpu, const V& verifier, const Shape& shape, index_t vocab, index_t batch,
             std::int32_t budget) {
  const index_t per_tree = rows_of(shape, budget);
  const auto levels = static_cast<index_t>(shape.size());
  const index_t pool = std::min(batch, different);
  const Rows rows(vocab, pool * per_tree);
  std::vector<DraftTree> trees;
  for (index_t b = 0; b < pool; ++b) {
    trees.push_back(
        draw_tree<L>(rows.q.data() + b * per_tree * vocab, vocab, shape, budget, static_cast<std::uint32_t>(b), 0));
    if (trees.back().nodes() != per_tree) throw std::runtime_error("a tree without all its nodes");
  }

  // On the CPU, request by request.
  DraftForest all;
  std::vector<std::int32_t> expected;
  std::vector<Piece> pieces;
  decant::Cpu cpu;
  const Philox random{1};
  for (index_t b = 0; b < batch; ++b) {
    const auto request = static_cast<std::uint32_t>(b);
    const TreeView tree = trees[static_cast<std::size_t>(b % pool)].view();
    all.add(tree, static_cast<std::int32_t>(b * per_tree));
    DraftForest one;
    one.add(tree, static_cast<std::int32_t>(b % pool * per_tree));
    Results r(1, levels);
    verify(cpu, verifier, one.view(), rows.target().slice(0, b % pool * per_tree, per_tree), rows.draft(),
           DrawKeys{random, View<const std::uint32_t, 1>(&request, 1), {}}, r.view());
    expected.insert(expected.end(), r.tokens.begin(), r.tokens.end());
    note_step(verifier, one.view().tree(0), rows.p.data() + b % pool * per_tree * vocab, rows.draft(),
              DrawKey{random, request, 0}, pieces);
  }
  std::size_t bytes = 0;
  for (const Piece& piece : pieces) bytes += piece.bytes;

  const DeviceBuffer<float> p = spread(rows.p, per_tree * vocab, batch);
  const DeviceBuffer<float> q = spread(rows.q, per_tree * vocab, batch);
  const DeviceTrees forest(all.view());
  const auto count = static_cast<std::size_t>(batch);
  const DeviceBuffer<std::int32_t> tokens(expected.size()), nodes(count * shape.size()), length(count);
  const DeviceBuffer<Status> status(count);
  const Accepted out{View<std::int32_t, 2>(tokens.data(), batch, levels + 1),
                     View<std::int32_t, 2>(nodes.data(), batch, levels), View<std::int32_t, 1>(length.data(), batch),
                     View<Status, 1>(status.data(), batch), {}, {}};
  const auto ours = [&] {
    verify(gpu.context(), verifier, forest.view(), ProbabilityRows(p.data(), batch * per_tree, vocab),
           ProbabilityRows(q.data(), batch * per_tree, vocab), DrawKeys{random, {}, {}}, out);
  };
  ours();
  gpu.context().check();
  const std::vector<std::int32_t> got = tokens.download();
  const auto stride = static_cast<std::ptrdiff_t>(levels + 1);
  double wrong = 0;
  for (std::ptrdiff_t b = 0; b < static_cast<std::ptrdiff_t>(batch); ++b) {
    wrong += !std::equal(got.begin() + b * stride, got.begin() + (b + 1) * stride, expected.begin() + b * stride);
  }
  row.measure({.ours = ours,
               .limit = gpu.copy(bytes),
               .clock = [&gpu, count](const bench::Call& call) { return gpu(call) / static_cast<double>(count); },
               .error = wrong / static_cast<double>(count)});
}

}  // namespace

int main(int argc, char** argv) {
  bench::Suite suite("speculative", argc, argv);
  bench::Gpu gpu;
  std::size_t unused = 0, memory = 0;
  bench::must(cudaMemGetInfo(&unused, &memory), "cudaMemGetInfo");
  const Shape eight(8, 1), tree = {4, 2, 2, 1}, binary(5, 2), eagle = {4, 3, 2, 2};
  for (const long vocab : suite.sizes({32000, 128256})) {
    for (const index_t batch : {1, 8, 64}) {
      const auto add = [&]<class V, Law L>(const V& verifier, const char* policy, const Shape& shape, const char* text,
                                           std::integral_constant<Law, L>, std::int32_t budget = 1000) {
        const auto bytes = static_cast<std::size_t>(8 * vocab * batch * rows_of(shape, budget));
        if (bytes > memory / 2) return;
        suite.add({.primitive = "verify",
                   .policy = policy,
                   .shape = bench::shape("v", vocab, "tree", text, "batch", batch),
                   .context = "cuda",
                   .isa = gpu.architecture()},
                  [=, &gpu](bench::Row& row) { measure<V, L>(row, gpu, verifier, shape, vocab, batch, budget); });
      };
      constexpr std::integral_constant<Law, Law::chain> chain;
      constexpr std::integral_constant<Law, Law::without_replacement> distinct;
      constexpr std::integral_constant<Law, Law::greedy_plus_one> greedy;
      constexpr std::integral_constant<Law, Law::deterministic> fixed;
      const UniVer levels{UniVer::Order::sampled_first, UniVer::Eval::level_parallel};
      add(ChainRejection{}, "ChainRejection", eight, "chain8", chain);
      add(BlockVerification{}, "BlockVerification", eight, "chain8", chain);
      add(RRSw{}, "RRSw", tree, "4x2x2x1", distinct);
      add(Traversal{}, "Traversal", tree, "4x2x2x1", distinct);
      add(UniVer{}, "UniVer sampled_first lazy", tree, "4x2x2x1", greedy);
      add(levels, "UniVer sampled_first level_parallel", tree, "4x2x2x1", greedy);
      add(UniVer{}, "UniVer sampled_first lazy", binary, "2x2x2x2x2", greedy);
      add(levels, "UniVer sampled_first level_parallel", binary, "2x2x2x2x2", greedy);
      add(Membership{}, "Membership", eagle, "eagle60", fixed, 59);
    }
  }
  return suite.run();
}
