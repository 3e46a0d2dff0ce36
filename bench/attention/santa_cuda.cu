// attention::Santa on a GPU: the decode step at Llama-3.1-8B's shape, batches of one and of 16 sequences, for the
// schemes and sample counts that the paper times and n / 16. The figure is bytes of all keys and of the value rows that
// are drawn, per second; the limit a copy that moves as many bytes. The error is the relative L2 distance from Dense on
// the same device, which is also the peer that time is compared with.


#include "counting_cache.hpp"
#include "cuda_harness.cuh"
#include "decant/attention/dense.cuh"
#include "decant/attention/santa.cuh"
#include "decant/kv/dense_kv.hpp"

namespace {

using decant::bf16;
using decant::index_t;
using decant::View;
using decant::attention::Dense;
using decant::attention::Santa;
using decant::attention::SantaScheme;

constexpr index_t heads = 8, group = 4, query_heads = heads * group, dim = 128;

std::size_t size(index_t n) {
  return static_cast<std::size_t>(n);
}

/// The share of value rows that the first sequence's heads draw: the CPU draws the same, up to rounding.
double share_drawn(const bench::Buffer<bf16>& keys, const bench::Buffer<float>& q, index_t n, const Santa& a) {
  std::vector<char> seen(size(heads * n));
  index_t asked = 0;
  const std::vector<std::int32_t> length{static_cast<std::int32_t>(n)};
  const View<const bf16, 4> rows(keys.data(), 1, heads, n, dim);
  std::vector<float> o(size(query_heads * dim));
  decant::Cpu cpu;
  attend(cpu, a, View<const float, 3>(q.data(), 1, query_heads, dim),
         bench::CountingCache{{rows, rows, View<const std::int32_t, 1>(length)}, &seen, &asked},
         View<float, 3>(o.data(), 1, query_heads, dim));
  double drawn = 0;
  for (const char s : seen) drawn += s;
  return drawn / static_cast<double>(heads * n);
}

void decode(bench::Row& row, bench::Gpu& gpu, index_t sequences, index_t n, const Santa& a) {
  bench::Buffer<bf16> keys(size(sequences * heads * n * dim)), values(keys.size());
  bench::Buffer<float> q(size(sequences * query_heads * dim));
  bench::fill(keys, 1);
  bench::fill(values, 2);
  bench::fill(q, 3);
  for (std::size_t i = 0; i < q.size(); ++i) q[i] *= 2;  // logits of a standard deviation of 2
  const bench::DeviceBuffer<bf16> device_keys(keys), device_values(values);
  const bench::DeviceBuffer<float> device_q(q), out(q.size()), dense(q.size());
  const std::vector<std::int32_t> lengths(size(sequences), static_cast<std::int32_t>(n));
  const bench::DeviceBuffer<std::int32_t> device_lengths(lengths);
  const View<const float, 3> queries(device_q.data(), sequences, query_heads, dim);
  const decant::kv::DenseKV<const bf16> cache{View<const bf16, 4>(device_keys.data(), sequences, heads, n, dim),
                                              View<const bf16, 4>(device_values.data(), sequences, heads, n, dim),
                                              View<const std::int32_t, 1>(device_lengths.data(), sequences)};
  decant::Cuda& cuda = gpu.context();
  const auto attend_with = [&](const auto& policy, const bench::DeviceBuffer<float>& to) {
    attend(cuda, policy, queries, cache, View<float, 3>(to.data(), sequences, query_heads, dim));
  };
  attend_with(a, out);
  attend_with(Dense{}, dense);
  cuda.check();
  const double drawn = share_drawn(keys, q, n, a);
  const double bytes = static_cast<double>(keys.bytes()) + drawn * static_cast<double>(values.bytes());
  row.measure({.ours = [&] { attend_with(a, out); },
               .limit = gpu.copy(static_cast<std::size_t>(bytes)),
               .peers = {{"dense", [&] { attend_with(Dense{}, dense); }}},
               .clock = [&gpu](const bench::Call& call) { return gpu(call); },
               .bytes = bytes,
               .error = bench::relative_l2(out.download(), dense.download())});
}

}  // namespace

int main(int argc, char** argv) {
  bench::Suite suite("attention", argc, argv);
  bench::Gpu gpu;
  for (const index_t sequences : {1, 16}) {
    for (const long n : suite.sizes({8192, 32768, 131072})) {
      if (sequences * n > 524288) continue;
      const Santa all[] = {{.samples = 128},
                           {.samples = 128, .scheme = SantaScheme::prop},
                           {.samples = 2048, .scheme = SantaScheme::flash},
                           {.samples = n / 16},
                           {.samples = n / 16, .couple_group = true},
                           {.samples = n / 16, .scheme = SantaScheme::threshold_systematic}};
      for (const Santa& a : all) {
        const std::string shape = bench::shape("b", sequences, "n", n, "hkv", heads, "g", group, "d", dim, "dtype",
                                               "bf16", "scheme", name(a.scheme), "samples", a.samples);
        suite.add({.primitive = "attend",
                   .policy = "Santa",
                   .shape = a.couple_group ? shape + "," + bench::shape("coupled", 1) : shape,
                   .context = "cuda",
                   .isa = gpu.architecture()},
                  [=, &gpu](bench::Row& row) { decode(row, gpu, sequences, n, a); });
      }
    }
  }
  return suite.run();
}
