// Selection and compaction on a GPU, on one layer of 8 KV heads of 128 in bf16: the top quarter of every head's scores
// (figure: scores per second), and moving these rows together (figure: bytes read and written; limit: a copy of as
// many). The error counts what differs from the CPU's result.

#include <numeric>

#include "cuda_harness.cuh"
#include "decant/core/topk.cuh"
#include "decant/kv/compact.cuh"
#include "decant/kv/dense_kv.hpp"

namespace {

using decant::bf16;
using decant::index_t;
using decant::View;
namespace kv = decant::kv;

constexpr index_t heads = 8, dim = 128;

struct Selection {
  index_t n;
  bench::Buffer<float> scores{static_cast<std::size_t>(heads * n)};
  std::vector<std::int32_t> lengths = std::vector<std::int32_t>(heads, static_cast<std::int32_t>(n));
  std::vector<std::int32_t> counts = std::vector<std::int32_t>(heads, static_cast<std::int32_t>(n / 4));
  std::vector<std::int32_t> tokens = std::vector<std::int32_t>(static_cast<std::size_t>(heads * n / 4));

  explicit Selection(index_t size) : n(size) {
    bench::fill(scores, 1);
    decant::Cpu cpu;
    top_k_each_row(cpu, View<const float, 2>(scores.data(), heads, n), View<const std::int32_t, 1>(lengths), {},
                   View<const std::int32_t, 1>(counts), View<std::int32_t, 2>(tokens.data(), heads, n / 4));
  }
};

void select(bench::Row& row, bench::Gpu& gpu, index_t n) {
  const Selection expected(n);
  const bench::DeviceBuffer<float> scores(expected.scores);
  const bench::DeviceBuffer<std::int32_t> lengths(expected.lengths), counts(expected.counts),
      tokens(expected.tokens.size());
  const auto ours = [&] {
    top_k_each_row(gpu.context(), View<const float, 2>(scores.data(), heads, n),
                   View<const std::int32_t, 1>(lengths.data(), heads), {},
                   View<const std::int32_t, 1>(counts.data(), heads), View<std::int32_t, 2>(tokens.data(), heads, n / 4));
  };
  ours();
  gpu.context().check();
  const auto got = tokens.download();
  double wrong = 0;
  for (std::size_t i = 0; i < got.size(); ++i) wrong += got[i] != expected.tokens[i];
  row.measure({.ours = ours,
               .limit = gpu.copy(scores.bytes()),
               .clock = [&gpu](const bench::Call& call) { return gpu(call); },
               .items = static_cast<double>(heads * n),
               .error = wrong});
}

void compact(bench::Row& row, bench::Gpu& gpu, index_t n) {
  const Selection selection(n);
  bench::Buffer<bf16> keys(static_cast<std::size_t>(heads * n * dim)), values(keys.size());
  bench::fill(keys, 1);
  bench::fill(values, 2);
  const bench::DeviceBuffer<bf16> device_keys(keys), device_values(values);
  const bench::DeviceBuffer<std::int32_t> tokens(selection.tokens), counts(selection.counts);
  const std::vector<std::int32_t> whole = {static_cast<std::int32_t>(n)};
  const bench::DeviceBuffer<std::int32_t> length(whole);
  const kv::DenseKV<bf16> cache{View<bf16, 4>(device_keys.data(), 1, heads, n, dim),
                                View<bf16, 4>(device_values.data(), 1, heads, n, dim),
                                View<std::int32_t, 1>(length.data(), 1)};
  const kv::KeptView kept{View<std::int32_t, 2>(tokens.data(), heads, n / 4), View<std::int32_t, 1>(counts.data(), heads)};
  const auto ours = [&] { kv::compact(gpu.context(), cache, kept); };
  // A second run moves other values at the same cost.
  const auto reset = [&] {
    bench::must(cudaMemcpy(length.data(), whole.data(), 4, cudaMemcpyHostToDevice), "cudaMemcpy");
  };
  ours();
  gpu.context().check();
  const auto got = device_keys.download();
  double wrong = 0;
  for (index_t h = 0; h < heads; ++h) {
    for (index_t i = 0; i < n / 4; ++i) {
      const index_t t = selection.tokens[static_cast<std::size_t>(h * n / 4 + i)];
      for (index_t d = 0; d < dim; ++d) {
        wrong += got[static_cast<std::size_t>((h * n + i) * dim + d)].bits !=
                 keys[static_cast<std::size_t>((h * n + t) * dim + d)].bits;
      }
    }
  }
  const double moved = static_cast<double>(heads * n / 4 * dim * 2) * sizeof(bf16) * 2;
  row.measure({.ours = ours,
               .limit = gpu.copy(static_cast<std::size_t>(moved)),
               .reset = reset,
               .clock = [&gpu](const bench::Call& call) { return gpu(call); },
               .bytes = moved,
               .error = wrong});
}

}  // namespace

int main(int argc, char** argv) {
  bench::Suite suite("kv", argc, argv);
  bench::Gpu gpu;
  for (const long n : suite.sizes({4096, 32768, 131072})) {
    suite.add({.primitive = "select",
               .policy = "top_k_each_row",
               .shape = bench::shape("n", n, "hkv", heads, "keep", 0.25),
               .context = "cuda",
               .isa = gpu.architecture()},
              [=, &gpu](bench::Row& row) { select(row, gpu, n); });
    suite.add({.primitive = "compact",
               .policy = "DenseKV",
               .shape = bench::shape("n", n, "hkv", heads, "d", dim, "keep", 0.25, "run", 1, "dtype", "bf16"),
               .context = "cuda",
               .isa = gpu.architecture()},
              [=, &gpu](bench::Row& row) { compact(row, gpu, n); });
  }
  return suite.run();
}
