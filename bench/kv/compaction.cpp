// compact() in place on one layer: 8 KV heads of 128 in bf16, a random quarter of the tokens kept. Every kept row is
// read and written once, so the limit is a copy of the kept bytes. Peer: one memcpy per kept row into a second cache.

#include <cstring>
#include <vector>

#include "decant/core/random.hpp"
#include "decant/kv/compact.hpp"
#include "harness.hpp"

namespace {

using decant::bf16;
using decant::index_t;
using decant::View;

constexpr index_t heads = 8, dim = 128;

struct Layer {
  bench::Buffer<bf16> keys, values;
  std::vector<std::int32_t> lengths;
  explicit Layer(index_t n)
      : keys(static_cast<std::size_t>(heads * n * dim)),
        values(static_cast<std::size_t>(heads * n * dim)),
        lengths{static_cast<std::int32_t>(n)} {}
  decant::kv::DenseKV<bf16> cache(index_t n) {
    return {View<bf16, 4>(keys.data(), 1, heads, n, dim), View<bf16, 4>(values.data(), 1, heads, n, dim), lengths};
  }
};

/// A quarter of the tokens of each head: in runs of `run` neighbours, or single ones.
decant::kv::Kept quarter(index_t n, index_t run) {
  decant::kv::Kept kept(heads, n / 4);
  const auto view = kept.view();
  for (index_t h = 0; h < heads; ++h) {
    const decant::Philox rng{static_cast<std::uint64_t>(h)};
    index_t count = 0;
    for (index_t block = 0; block < n; block += run) {
      const index_t left = (n - block) / run, wanted = (n / 4 - count) / run;
      if (rng.uniform(static_cast<std::uint32_t>(block)) * static_cast<float>(left) >= static_cast<float>(wanted))
        continue;
      for (index_t t = block; t < block + run; ++t) view.indices(h, count++) = static_cast<std::int32_t>(t);
    }
    view.counts[h] = static_cast<std::int32_t>(count);
  }
  return kept;
}

}  // namespace

int main(int argc, char** argv) {
  bench::Suite suite("kv", argc, argv);
  for (const long n : suite.sizes({4096, 32768, 131072})) {
    for (const long run : {1L, 16L}) {
      suite.add({.primitive = "compact",
                 .policy = "DenseKV",
                 .shape = bench::shape("n", n, "hkv", 8, "d", 128, "keep", 0.25, "run", run, "dtype", "bf16")},
                [=](bench::Row& row) {
                  Layer layer(n), other(n / 4);
                  bench::fill(layer.keys, 1);
                  bench::fill(layer.values, 2);
                  decant::kv::Kept kept = quarter(n, run);
                  decant::Cpu cpu;
                  const auto cache = layer.cache(n);
                  const auto target = other.cache(n / 4);
                  const auto ours = [&] {
                    layer.lengths[0] = static_cast<std::int32_t>(n);  // the rows behind the kept ones are still there
                    compact(cpu, cache, kept);
                    benchmark::ClobberMemory();
                  };
                  const auto copy_rows = [&] {
                    for (index_t h = 0; h < heads; ++h) {
                      for (index_t i = 0; i < kept.count(h); ++i) {
                        const index_t t = kept.token(h, i);
                        std::memcpy(target.key(0, h, i), cache.key(0, h, t), dim * sizeof(bf16));
                        std::memcpy(target.value(0, h, i), cache.value(0, h, t), dim * sizeof(bf16));
                      }
                    }
                    benchmark::ClobberMemory();
                  };
                  copy_rows();
                  ours();
                  double wrong = 0;
                  for (index_t h = 0; h < heads; ++h) {
                    const auto bytes = static_cast<std::size_t>(kept.count(h) * dim) * sizeof(bf16);
                    wrong += std::memcmp(cache.key(0, h, 0), target.key(0, h, 0), bytes) != 0;
                    wrong += std::memcmp(cache.value(0, h, 0), target.value(0, h, 0), bytes) != 0;
                  }
                  const double moved = static_cast<double>(2 * kept.total() * dim) * sizeof(bf16);
                  row.measure({.ours = ours,
                               .limit = bench::copy(cpu, static_cast<std::size_t>(moved)),
                               .peers = {{"memcpy", copy_rows}},
                               .bytes = 2 * moved,
                               .error = wrong});
                });
    }
  }
  return suite.run();
}
