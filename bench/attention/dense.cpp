// attention::Dense against the memory it must read: decode over dense and paged caches, every instruction set path, and
// causal prefill. Peers compute the same step in fp32 with a linear-algebra library, from a dense fp32 copy of the
// cache.

#include <numeric>
#include <random>

#include "baselines/decode.hpp"
#include "decant/attention/dense.hpp"
#include "decant/kv/dense_kv.hpp"
#include "decant/kv/paged_kv.hpp"
#include "harness.hpp"
#include "oracle/attention.hpp"

namespace {

using decant::index_t;
using decant::View;
using decant::attention::Dense;

struct Case {
  index_t tokens;
  index_t heads = 8;
  index_t group = 4;
  index_t dim = 128;
  index_t page_size = 0;  // 0: one block
  index_t queries = 1;
  decant::Isa isa = decant::best_isa();
};

std::size_t size(index_t n) { return static_cast<std::size_t>(n); }

/// A cache of one sequence in HND, or in HND pages that lie in a shuffled order.
template <class T>
struct Cache {
  Case c;
  index_t pages, page_size;
  bench::Buffer<T> keys, values;
  std::vector<std::int32_t> length, indptr, indices, last;

  explicit Cache(const Case& c_)
      : c(c_),
        pages(c.page_size ? (c.tokens + c.page_size - 1) / c.page_size : 1),
        page_size(c.page_size ? c.page_size : c.tokens),
        keys(size(pages * page_size * c.heads * c.dim)),
        values(keys.size()),
        length{static_cast<std::int32_t>(c.tokens)},
        indptr{0, static_cast<std::int32_t>(pages)},
        indices(size(pages)),
        last{static_cast<std::int32_t>(c.tokens - (pages - 1) * page_size)} {
    bench::fill(keys, 1);
    bench::fill(values, 2);
    std::iota(indices.begin(), indices.end(), 0);
    std::shuffle(indices.begin(), indices.end(), std::mt19937(3));
  }
  View<const T, 4> view(const bench::Buffer<T>& rows) const { return {rows.data(), pages, c.heads, page_size, c.dim}; }
  decant::kv::DenseKV<const T> dense() const { return {view(keys), view(values), View<const std::int32_t, 1>(length)}; }
  decant::kv::PagedKV<const T> paged() const {
    return {view(keys), view(values), View<const std::int32_t, 1>(indptr), View<const std::int32_t, 1>(indices),
            View<const std::int32_t, 1>(last)};
  }
  const T* row(const bench::Buffer<T>& rows, index_t head, index_t token) const {
    const index_t page = indices[size(token / page_size)];
    return rows.data() + ((page * c.heads + head) * page_size + token % page_size) * c.dim;
  }
};

/// Relative L2 distance to the definition in double, over the last query of the first and the last head.
template <class T>
double error(const Cache<T>& cache, const bench::Buffer<float>& q, const bench::Buffer<float>& out) {
  const Case& c = cache.c;
  std::vector<double> got, expected;
  for (const index_t head : {index_t{0}, c.heads * c.group - 1}) {
    const std::size_t at = size(((c.queries - 1) * c.heads * c.group + head) * c.dim);
    const auto row = oracle::attention_row(
        c.tokens, c.dim, c.dim, [&](long d) { return static_cast<double>(q[at + static_cast<std::size_t>(d)]); },
        [&](long t, long d) {
          return static_cast<double>(static_cast<float>(cache.row(cache.keys, head / c.group, t)[d]));
        },
        [&](long t, long d) {
          return static_cast<double>(static_cast<float>(cache.row(cache.values, head / c.group, t)[d]));
        },
        [](long) { return true; }, 1 / std::sqrt(static_cast<double>(c.dim)));
    expected.insert(expected.end(), row.o.begin(), row.o.end());
    for (index_t d = 0; d < c.dim; ++d) got.push_back(static_cast<double>(out[at + size(d)]));
  }
  return oracle::relative_error(got, expected);
}

template <class T>
void measure(const Case& c, bench::Row& row) {
  const Cache<T> cache(c);
  bench::Buffer<float> q(size(c.queries * c.heads * c.group * c.dim)), out(q.size());
  bench::fill(q, 4);
  const std::vector<std::int32_t> indptr{0, static_cast<std::int32_t>(c.queries)};
  const decant::attention::Queries<float> queries{View<const float, 3>(q.data(), c.queries, c.heads * c.group, c.dim),
                                                  View<const std::int32_t, 1>(indptr)};
  const View<float, 3> o(out.data(), c.queries, c.heads * c.group, c.dim);
  decant::Cpu cpu;
  cpu.set_isa(c.isa);
  const auto ours = [&] {
    if (c.page_size)
      attend(cpu, Dense{}, queries, cache.paged(), o);
    else
      attend(cpu, Dense{}, queries, cache.dense(), o);
    benchmark::ClobberMemory();
  };
  ours();
  const double distance = error(cache, q, out);
  const auto bytes = static_cast<double>(2 * c.tokens * c.heads * c.dim * index_t{sizeof(T)});
  if (c.queries > 1) {
    row.measure({.ours = ours, .error = distance});
    return;
  }

  // The libraries get what they do best with: fp32, one block per head. A cache that is that already is read in place.
  bench::Measurement m{.ours = ours,
                       .limit = bench::stream_read(cpu, static_cast<std::size_t>(bytes)),
                       .bytes = bytes,
                       .error = distance};
#if defined(DECANT_BENCH_EIGEN) || defined(DECANT_BENCH_OPENBLAS)
  const bool in_place = std::is_same_v<T, float> && c.page_size == 0;
  const std::size_t copied = in_place ? 0 : size(c.tokens * c.heads * c.dim);
  bench::Buffer<float> keys(copied), values(copied), scores(size(c.group * c.tokens)), theirs(q.size());
  for (index_t h = 0, to = 0; copied && h < c.heads; ++h)
    for (index_t t = 0; t < c.tokens; ++t)
      for (index_t d = 0; d < c.dim; ++d, ++to) {
        keys[size(to)] = static_cast<float>(cache.row(cache.keys, h, t)[d]);
        values[size(to)] = static_cast<float>(cache.row(cache.values, h, t)[d]);
      }
  const float* k = keys.data();
  const float* v = values.data();
  if constexpr (std::is_same_v<T, float>) {
    k = in_place ? cache.keys.data() : k;
    v = in_place ? cache.values.data() : v;
  }
  const baselines::DecodeShape shape{c.tokens, c.heads, c.group, c.dim};
#endif
#ifdef DECANT_BENCH_EIGEN
  m.peers.emplace_back("eigen", [&] { baselines::eigen_decode(shape, q.data(), k, v, scores.data(), theirs.data()); });
#endif
#ifdef DECANT_BENCH_OPENBLAS
  m.peers.emplace_back("openblas",
                       [&] { baselines::openblas_decode(shape, q.data(), k, v, scores.data(), theirs.data()); });
#endif
  row.measure(m);
}

template <class T>
void add(bench::Suite& suite, const Case& c) {
  std::string shape =
      bench::shape("n", c.tokens, "hkv", c.heads, "g", c.group, "d", c.dim, "dtype", decant::name(decant::dtype_of<T>));
  if (c.page_size) shape += "," + bench::shape("page", c.page_size);
  if (c.queries > 1) shape += "," + bench::shape("queries", c.queries);
  suite.add({.primitive = "attend", .policy = "Dense", .shape = shape, .isa = decant::name(c.isa)},
            [c](bench::Row& row) { measure<T>(c, row); });
}

}  // namespace

int main(int argc, char** argv) {
  bench::Suite suite("attention", argc, argv);
  for (const long n : suite.sizes({4096, 32768, 131072})) {
    for (const index_t group : {1, 4, 8}) {
      add<decant::bf16>(suite, {.tokens = n, .group = group});
      add<float>(suite, {.tokens = n, .group = group});
    }
    add<decant::bf16>(suite, {.tokens = n, .page_size = 64});
    add<float>(suite, {.tokens = n, .page_size = 64});
  }
  for (const decant::Isa isa : {decant::Isa::portable, decant::Isa::avx2})
    if (isa < decant::best_isa()) add<decant::bf16>(suite, {.tokens = 4096, .isa = isa});
  add<float>(suite, {.tokens = 1600, .heads = 4, .group = 1, .dim = 32, .queries = 1600});
  if (!suite.quick()) add<decant::bf16>(suite, {.tokens = 2048, .queries = 2048});
  return suite.run();
}
