// Every scorer on a GPU, on one layer of Llama-3.1-8B's shape (see score.cpp). The figure is key bytes (key and value
// bytes, where both are read) per second, the limit a copy that moves as many bytes. The error is the largest deviation
// from the CPU's scores, over the largest score.

#include <cmath>

#include "cuda_harness.cuh"
#include "decant/kv/capkv.cuh"
#include "decant/kv/expected_attention.cuh"
#include "decant/kv/keydiff.cuh"
#include "decant/kv/knorm.cuh"
#include "decant/kv/leverage.cuh"
#include "decant/kv/tova.cuh"
#include "decant/kv/window_attention.cuh"

namespace {

using decant::bf16;
using decant::index_t;
using decant::View;
namespace kv = decant::kv;

constexpr index_t heads = 8, group = 4, dim = 128, window = 32;

/// One layer, on either side.
template <template <class> class Memory>
struct Layer {
  index_t n;
  Memory<bf16> keys, values;
  Memory<float> queries;
  Memory<std::int32_t> length;

  auto view() {
    kv::LayerView x{kv::DenseKV<const bf16>{View<const bf16, 4>(keys.data(), 1, heads, n, dim),
                                            View<const bf16, 4>(values.data(), 1, heads, n, dim),
                                            View<const std::int32_t, 1>(length.data(), 1)}};
    x.queries = View<const float, 3>(queries.data(), heads * group, window, dim);
    x.queries_pre_rope = x.queries;
    x.next_position = n;
    return x;
  }
};

Layer<bench::Buffer> make_layer(index_t n) {
  const auto size = static_cast<std::size_t>(heads * n * dim);
  Layer<bench::Buffer> layer{n, bench::Buffer<bf16>(size), bench::Buffer<bf16>(size),
                             bench::Buffer<float>(static_cast<std::size_t>(heads * group * window * dim)),
                             bench::Buffer<std::int32_t>(1)};
  bench::fill(layer.keys, 1);
  bench::fill(layer.values, 2);
  bench::fill(layer.queries, 3);
  layer.length[0] = static_cast<std::int32_t>(n);
  return layer;
}

template <class S>
void measure(bench::Row& row, bench::Gpu& gpu, index_t n, const S& scorer, bool reads_values) {
  auto host = make_layer(n);
  Layer<bench::DeviceBuffer> device{n, bench::DeviceBuffer<bf16>(host.keys), bench::DeviceBuffer<bf16>(host.values),
                                    bench::DeviceBuffer<float>(host.queries),
                                    bench::DeviceBuffer<std::int32_t>(host.length)};
  const auto count = static_cast<std::size_t>(heads * n);
  bench::Buffer<float> expected(count);
  const bench::DeviceBuffer<float> scores(count);
  decant::Cpu cpu;
  score(cpu, scorer, host.view(), View<float, 2>(expected.data(), heads, n));
  const auto x = device.view();
  const auto ours = [&] { score(gpu.context(), scorer, x, View<float, 2>(scores.data(), heads, n)); };
  ours();
  gpu.context().check();
  const auto got = scores.download();
  double worst = 0, high = 0;
  for (std::size_t i = 0; i < count; ++i) {
    worst = std::max(worst, std::abs(static_cast<double>(got[i]) - static_cast<double>(expected[i])));
    high = std::max(high, std::abs(static_cast<double>(expected[i])));
  }
  const std::size_t bytes = host.keys.bytes() * (reads_values ? 2 : 1);
  row.measure({.ours = ours,
               .limit = gpu.copy(bytes),
               .clock = [&gpu](const bench::Call& call) { return gpu(call); },
               .bytes = static_cast<double>(bytes),
               .error = worst / high});
}

}  // namespace

int main(int argc, char** argv) {
  bench::Suite suite("kv", argc, argv);
  bench::Gpu gpu;
  const auto add = [&](const char* policy, index_t n, const auto& scorer, bool reads_values) {
    suite.add({.primitive = "score",
               .policy = policy,
               .shape = bench::shape("n", n, "hq", heads * group, "hkv", heads, "d", dim, "w", window, "dtype", "bf16"),
               .context = "cuda",
               .isa = gpu.architecture()},
              [=, &gpu](bench::Row& row) { measure(row, gpu, n, scorer, reads_values); });
  };
  for (const long n : suite.sizes({4096, 32768})) {
    add("WindowAttention", n, kv::WindowAttention{.window = window}, false);
    add("CapKV", n, kv::CapKV{}, true);
    add("ExpectedAttention", n, kv::ExpectedAttention{}, true);
    add("TOVA", n, kv::TOVA{}, false);
    add("KNorm", n, kv::KNorm{}, false);
    add("KeyDiff", n, kv::KeyDiff{}, false);
    add("Leverage", n, kv::Leverage{}, false);
  }
  return suite.run();
}
