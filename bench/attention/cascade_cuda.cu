// attention::Cascade on a GPU: one decoding step of requests that share a prefix in a page table. The figure is the
// bytes of cascade_bytes() per second; the limit a copy that moves as many bytes; the peer dense attention over the
// same table, which reads the prefix for each request. The error is the relative L2 distance from the CPU
// implementation of the same plan, on the first request.

#include <algorithm>
#include <numeric>
#include <random>

#include "cuda_harness.cuh"
#include "decant/attention/cascade.cuh"
#include "decant/kv/paged_kv.hpp"

namespace {

using decant::bf16;
using decant::index_t;
using decant::View;
using decant::attention::Cascade;
using decant::attention::CascadePlan;
using decant::attention::CascadeRoom;
using decant::attention::Dense;

constexpr index_t heads = 8, group = 4, dim = 128, page_size = 64;

std::size_t size(index_t n) { return static_cast<std::size_t>(n); }

/// Pages in a shuffled order: the prefix's once, then each request's own.
struct Table {
  index_t pages;
  std::vector<std::int32_t> indptr{0}, indices, last;

  Table(index_t prefix, index_t requests, index_t own) : pages((prefix + requests * own) / page_size) {
    std::vector<std::int32_t> order(size(pages));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(3));
    const auto shared = static_cast<std::ptrdiff_t>(prefix / page_size);
    const auto each = static_cast<std::ptrdiff_t>(own / page_size);
    for (std::ptrdiff_t r = 0; r < requests; ++r) {
      indices.insert(indices.end(), order.begin(), order.begin() + shared);
      indices.insert(indices.end(), order.begin() + shared + r * each, order.begin() + shared + (r + 1) * each);
      indptr.push_back(static_cast<std::int32_t>(indices.size()));
      last.push_back(static_cast<std::int32_t>(page_size));
    }
  }
  decant::kv::PagedKV<const bf16> view(const bf16* keys, const bf16* values, const std::int32_t* offsets,
                                       const std::int32_t* ids, const std::int32_t* last_page) const {
    return {View<const bf16, 4>(keys, pages, heads, page_size, dim),
            View<const bf16, 4>(values, pages, heads, page_size, dim),
            View<const std::int32_t, 1>(offsets, static_cast<index_t>(indptr.size())),
            View<const std::int32_t, 1>(ids, static_cast<index_t>(indices.size())),
            View<const std::int32_t, 1>(last_page, static_cast<index_t>(last.size()))};
  }
};

void step(bench::Row& row, bench::Gpu& gpu, index_t prefix, index_t requests, index_t own) {
  const Table table(prefix, requests, own);
  bench::Buffer<bf16> keys(size(table.pages * heads * page_size * dim)), values(keys.size());
  bench::Buffer<float> q(size(requests * heads * group * dim));
  bench::fill(keys, 1);
  bench::fill(values, 2);
  bench::fill(q, 3);
  const bench::DeviceBuffer<bf16> device_keys(keys), device_values(values);
  const bench::DeviceBuffer<float> device_q(q), out(q.size()), flat(q.size());
  const bench::DeviceBuffer<std::int32_t> indptr(table.indptr), indices(table.indices), last(table.last);
  decant::Cuda& cuda = gpu.context();
  const auto host =
      table.view(keys.data(), values.data(), table.indptr.data(), table.indices.data(), table.last.data());
  const auto cache =
      table.view(device_keys.data(), device_values.data(), indptr.data(), indices.data(), last.data());

  // Pieces of 2048 tokens: enough of them for every multiprocessor.
  const CascadePlan plan = decant::attention::plan(Cascade{.piece = 2048}, host);
  const CascadeRoom room = cascade_room(plan);
  std::vector<std::int32_t> staging(size(cascade_words(room)));
  const bench::DeviceBuffer<std::int32_t> words(staging);
  const auto device_plan =
      upload(cuda, plan, room, staging, View<std::int32_t, 1>(words.data(), static_cast<index_t>(staging.size())));
  const View<const float, 3> queries(device_q.data(), requests, heads * group, dim);
  const auto ours = [&] {
    attend(cuda, Dense{}, device_plan, queries, cache, View<float, 3>(out.data(), requests, heads * group, dim));
  };
  const auto dense = [&] {
    attend(cuda, Dense{}, queries, cache, View<float, 3>(flat.data(), requests, heads * group, dim));
  };
  ours();
  dense();
  cuda.check();

  decant::Cpu cpu;
  std::vector<float> expected(size(requests * heads * group * dim));
  attend(cpu, Dense{}, plan, View<const float, 3>(q.data(), requests, heads * group, dim), host,
         View<float, 3>(expected.data(), requests, heads * group, dim));
  expected.resize(size(heads * group * dim));
  const index_t bytes = cascade_bytes(plan, heads, heads * group, dim, dim, index_t{sizeof(bf16)});
  row.measure({.ours = ours,
               .limit = gpu.copy(size(bytes)),
               .peers = {{"dense", dense}},
               .clock = [&gpu](const bench::Call& call) { return gpu(call); },
               .bytes = static_cast<double>(bytes),
               .error = bench::relative_l2(out.download(), expected)});
}

}  // namespace

int main(int argc, char** argv) {
  bench::Suite suite("attention", argc, argv);
  bench::Gpu gpu;
  for (const long prefix : suite.sizes({8192, 32768})) {
    for (const index_t requests : {8, 32}) {
      for (const index_t own : {128, 1024}) {
        suite.add({.primitive = "attend",
                   .policy = "Cascade",
                   .shape = bench::shape("prefix", prefix, "own", own, "requests", requests, "hkv", heads, "g", group,
                                         "d", dim, "page", page_size, "dtype", "bf16"),
                   .context = "cuda",
                   .isa = gpu.architecture()},
                  [=, &gpu](bench::Row& row) { step(row, gpu, prefix, requests, own); });
      }
    }
  }
  return suite.run();
}
