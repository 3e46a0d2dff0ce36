// attention::Dense on a GPU: decode over dense and paged caches of Llama-3.1-8B's shape, batches of one and of 16
// sequences. The figure is KV bytes per second; the limit a copy that moves as many bytes. The error is the relative L2
// distance from the CPU implementation, itself within 5e-6 of double precision, on the first sequence.

#include <numeric>

#include "cuda_harness.cuh"
#include "decant/attention/dense.cuh"
#include "decant/kv/dense_kv.hpp"
#include "decant/kv/paged_kv.hpp"

namespace {

using decant::bf16;
using decant::index_t;
using decant::View;

constexpr index_t heads = 8, group = 4, dim = 128;

std::size_t size(index_t n) { return static_cast<std::size_t>(n); }

/// page_size 0: one block.
void decode(bench::Row& row, bench::Gpu& gpu, index_t sequences, index_t n, index_t page_size) {
  bench::Buffer<bf16> keys(size(sequences * heads * n * dim)), values(keys.size());
  bench::Buffer<float> q(size(sequences * heads * group * dim));
  bench::fill(keys, 1);
  bench::fill(values, 2);
  bench::fill(q, 3);
  const bench::DeviceBuffer<bf16> device_keys(keys), device_values(values);
  const bench::DeviceBuffer<float> device_q(q), out(q.size());
  const View<const float, 3> queries(device_q.data(), sequences, heads * group, dim);
  const View<float, 3> outputs(out.data(), sequences, heads * group, dim);
  decant::Cuda& cuda = gpu.context();

  std::vector<std::int32_t> lengths(size(sequences), static_cast<std::int32_t>(n));
  const bench::DeviceBuffer<std::int32_t> device_lengths(lengths);
  const index_t pages = page_size > 0 ? sequences * n / page_size : 0;
  std::vector<std::int32_t> indptr(size(sequences + 1)), indices(size(pages)), last(size(sequences));
  for (index_t s = 0; s <= sequences; ++s) indptr[size(s)] = static_cast<std::int32_t>(s * pages / sequences);
  std::iota(indices.begin(), indices.end(), 0);
  for (auto& l : last) l = static_cast<std::int32_t>(page_size);
  const bench::DeviceBuffer<std::int32_t> device_indptr(indptr), device_indices(indices), device_last(last);
  const auto ours = [&] {
    if (page_size == 0) {
      const decant::kv::DenseKV<const bf16> cache{
          View<const bf16, 4>(device_keys.data(), sequences, heads, n, dim),
          View<const bf16, 4>(device_values.data(), sequences, heads, n, dim),
          View<const std::int32_t, 1>(device_lengths.data(), sequences)};
      attend(cuda, decant::attention::Dense{}, queries, cache, outputs);
    } else {
      const decant::kv::PagedKV<const bf16> cache{
          View<const bf16, 4>(device_keys.data(), pages, heads, page_size, dim),
          View<const bf16, 4>(device_values.data(), pages, heads, page_size, dim),
          View<const std::int32_t, 1>(device_indptr.data(), sequences + 1),
          View<const std::int32_t, 1>(device_indices.data(), pages),
          View<const std::int32_t, 1>(device_last.data(), sequences)};
      attend(cuda, decant::attention::Dense{}, queries, cache, outputs);
    }
  };
  ours();
  cuda.check();

  std::optional<double> error;
  if (page_size == 0) {
    decant::Cpu cpu;
    std::vector<float> expected(size(heads * group * dim));
    const decant::kv::DenseKV<const bf16> first{View<const bf16, 4>(keys.data(), 1, heads, n, dim),
                                                View<const bf16, 4>(values.data(), 1, heads, n, dim),
                                                View<const std::int32_t, 1>(lengths.data(), 1)};
    attend(cpu, decant::attention::Dense{}, View<const float, 3>(q.data(), 1, heads * group, dim), first,
           View<float, 3>(expected.data(), 1, heads * group, dim));
    error = bench::relative_l2(out.download(), expected);
  }
  const std::size_t bytes = keys.bytes() + values.bytes();
  row.measure({.ours = ours,
               .limit = gpu.copy(bytes),
               .clock = [&gpu](const bench::Call& call) { return gpu(call); },
               .bytes = static_cast<double>(bytes),
               .error = error});
}

}  // namespace

int main(int argc, char** argv) {
  bench::Suite suite("attention", argc, argv);
  bench::Gpu gpu;
  for (const index_t sequences : {1, 16}) {
    for (const long n : suite.sizes({4096, 32768, 131072})) {
      if (sequences * n > 524288) continue;
      for (const index_t page_size : {0, 16, 64}) {
        const std::string shape = bench::shape("b", sequences, "n", n, "hkv", heads, "g", group, "d", dim, "dtype", "bf16");
        suite.add({.primitive = "attend",
                   .policy = "Dense",
                   .shape = page_size > 0 ? shape + "," + bench::shape("page", page_size) : shape,
                   .context = "cuda",
                   .isa = gpu.architecture()},
                  [=, &gpu](bench::Row& row) { decode(row, gpu, sequences, n, page_size); });
      }
    }
  }
  return suite.run();
}
