// attention::Cascade: one decoding step of requests that share a prefix in a page table, against reading each row that
// they have together once (the limit), and against dense attention over the same table, which reads the prefix for
// each request (peer dense). Where many query heads share a row a core's arithmetic is the bound and not its memory, so
// a loop of nothing but the step's multiply-adds stands beside them (peer fma). And what it takes to find the prefix,
// once per step for all layers.

#include <algorithm>
#include <numeric>
#include <random>

#include "decant/attention/cascade.hpp"
#include "decant/attention/cascade_plan.hpp"
#include "harness.hpp"
#include "oracle/attention.hpp"

namespace {

using decant::bf16;
using decant::index_t;
using decant::View;
using decant::attention::Cascade;
using decant::attention::CascadePlan;
using decant::attention::Dense;

constexpr index_t kv_heads = 8, dim = 128, page_size = 64;

struct Case {
  index_t prefix;
  index_t requests;
  index_t group;
  index_t own = 128;  // tokens of each request
};

std::size_t size(index_t n) { return static_cast<std::size_t>(n); }

/// Pages in a shuffled order: the prefix's once, then each request's own.
struct Cache {
  index_t pages;
  bench::Buffer<bf16> keys, values;
  std::vector<std::int32_t> indptr{0}, indices, last;

  explicit Cache(const Case& c)
      : pages((c.prefix + c.requests * c.own) / page_size),
        keys(size(pages * kv_heads * page_size * dim)),
        values(keys.size()) {
    bench::fill(keys, 1);
    bench::fill(values, 2);
    std::vector<std::int32_t> order(size(pages));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(3));
    const auto shared = static_cast<std::ptrdiff_t>(c.prefix / page_size);
    const auto own = static_cast<std::ptrdiff_t>(c.own / page_size);
    for (std::ptrdiff_t r = 0; r < c.requests; ++r) {
      indices.insert(indices.end(), order.begin(), order.begin() + shared);
      indices.insert(indices.end(), order.begin() + shared + r * own, order.begin() + shared + (r + 1) * own);
      indptr.push_back(static_cast<std::int32_t>(indices.size()));
      last.push_back(static_cast<std::int32_t>(page_size));
    }
  }
  decant::kv::PagedKV<const bf16> view() const {
    return {View<const bf16, 4>(keys.data(), pages, kv_heads, page_size, dim),
            View<const bf16, 4>(values.data(), pages, kv_heads, page_size, dim), View<const std::int32_t, 1>(indptr),
            View<const std::int32_t, 1>(indices), View<const std::int32_t, 1>(last)};
  }
};

/// Relative L2 distance to the definition in double, over the first head of the first request and the last of the last.
double error(const Case& c, const Cache& cache, const bench::Buffer<float>& q, const bench::Buffer<float>& out) {
  const decant::kv::PagedKV<const bf16> kv = cache.view();
  const index_t heads = kv_heads * c.group;
  std::vector<double> got, expected;
  for (const index_t row : {index_t{0}, c.requests * heads - 1}) {
    const index_t r = row / heads, h = row % heads / c.group;
    const auto exact = oracle::attention_row(
        c.prefix + c.own, dim, dim, [&](long d) { return static_cast<double>(q[size(row * dim + d)]); },
        [&](long t, long d) { return static_cast<double>(static_cast<float>(kv.key(r, h, t)[d])); },
        [&](long t, long d) { return static_cast<double>(static_cast<float>(kv.value(r, h, t)[d])); },
        [](long) { return true; }, 1 / std::sqrt(static_cast<double>(dim)));
    expected.insert(expected.end(), exact.o.begin(), exact.o.end());
    for (index_t d = 0; d < dim; ++d) got.push_back(static_cast<double>(out[size(row * dim + d)]));
  }
  return oracle::relative_error(got, expected);
}

#if DECANT_X86
/// So many multiply-adds of floats, from registers: what a core can do.
DECANT_TARGET_AVX512 void multiply_adds(double count) {
  __m512 sum[16];
  for (int i = 0; i < 16; ++i) sum[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512 x = _mm512_set1_ps(0.75f);
  for (auto left = static_cast<index_t>(count / (16 * 16)); left > 0; --left) {
    DECANT_UNROLL
    for (int i = 0; i < 16; ++i) sum[i] = _mm512_fmadd_ps(sum[i], x, x);
  }
  for (int i = 0; i < 16; ++i) benchmark::DoNotOptimize(sum[i]);
}
#endif

void measure(const Case& c, bench::Row& row) {
  const Cache cache(c);
  const index_t heads = kv_heads * c.group;
  bench::Buffer<float> q(size(c.requests * heads * dim)), out(q.size());
  bench::fill(q, 4);
  const View<const float, 3> queries(q.data(), c.requests, heads, dim);
  const View<float, 3> o(out.data(), c.requests, heads, dim);
  decant::Cpu cpu;
  const CascadePlan plan = decant::attention::plan(Cascade{}, cache.view());
  const auto ours = [&] {
    attend(cpu, Dense{}, plan, queries, cache.view(), o);
    benchmark::ClobberMemory();
  };
  ours();
  const double distance = error(c, cache, q, out);
  const index_t bytes = plan.tokens() * kv_heads * 2 * dim * index_t{sizeof(bf16)};
  bench::Measurement m{.ours = ours,
                       .limit = bench::stream_read(cpu, size(bytes)),
                       .peers = {{"dense",
                                  [&] {
                                    attend(cpu, Dense{}, queries, cache.view(), o);
                                    benchmark::ClobberMemory();
                                  }}},
                       .bytes = static_cast<double>(bytes),
                       .error = distance};
#if DECANT_X86
  const double products = static_cast<double>(plan.dense_tokens() * heads * 2 * dim);
  if (cpu.isa() == decant::Isa::avx512) m.peers.emplace_back("fma", [products] { multiply_adds(products); });
#endif
  row.measure(m);
}

/// Bytes that a step moves, states included, against dense attention's rows alone.
void count(const Case& c, bench::Row& row) {
  const Cache cache(c);
  const CascadePlan plan = decant::attention::plan(Cascade{}, cache.view());
  const auto moved = static_cast<double>(
      cascade_bytes(plan, kv_heads, kv_heads * c.group, dim, dim, index_t{sizeof(bf16)}));
  const auto element = static_cast<double>(kv_heads * 2 * dim * index_t{sizeof(bf16)});
  row.figure({.metric = "bytes",
              .unit = "MB",
              .value = moved * 1e-6,
              .peers = {{"rows_once", static_cast<double>(plan.tokens()) * element * 1e-6},
                        {"dense", static_cast<double>(plan.dense_tokens()) * element * 1e-6}},
              .higher_is_better = false});
}

void find(const Case& c, bench::Row& row) {
  const Cache cache(c);
  row.measure({.ours = [&] { benchmark::DoNotOptimize(decant::attention::plan(Cascade{}, cache.view())); }});
}

}  // namespace

int main(int argc, char** argv) {
  bench::Suite suite("attention", argc, argv);
  for (const long prefix : suite.sizes({8192, 32768})) {
    for (const index_t requests : {4, 16, 32}) {
      for (const index_t group : {1, 4}) {
        if (suite.quick() && (requests == 16 || group == 1)) continue;
        const Case c{prefix, requests, group};
        const std::string shape =
            bench::shape("prefix", prefix, "own", c.own, "requests", requests, "hkv", kv_heads, "g", group, "d", dim,
                         "page", page_size, "dtype", "bf16");
        suite.add({.primitive = "attend", .policy = "Cascade", .shape = shape},
                  [c](bench::Row& row) { measure(c, row); });
        suite.add({.primitive = "bytes", .policy = "Cascade", .shape = shape}, [c](bench::Row& row) { count(c, row); });
      }
      const std::string shape = bench::shape("prefix", prefix, "own", 128, "requests", requests, "page", page_size);
      suite.add({.primitive = "plan", .policy = "Cascade", .shape = shape},
                [c = Case{prefix, requests, 1}](bench::Row& row) { find(c, row); });
    }
  }
  return suite.run();
}
