// attention::Dense against the memory it must read: decode over dense and paged caches in every type, on one core and
// on all, every instruction set path, and causal prefill. Peers do the same step, on the same threads, on a copy in the
// layout and type that they are best with (baselines/decode.hpp); each is checked to give the same result.

#include <numeric>
#include <random>

#include "baselines/decode.hpp"
#include "decant/attention/dense.hpp"
#include "decant/interop/openmp.hpp"
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
  int threads = 1;
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
baselines::Type type_of() {
  if (std::is_same_v<T, float>) return baselines::Type::f32;
  if (std::is_same_v<T, decant::fp16>) return baselines::Type::f16;
  return std::is_same_v<T, decant::bf16> ? baselines::Type::bf16 : baselines::Type::other;
}

/// A cache as libraries without pages want it: [head][token][dim], in its type and in fp32. Memory of the cache itself
/// where it is that already.
template <class T>
struct Copies {
  const T* keys;
  const T* values;
  const float* wide_keys;
  const float* wide_values;
  bench::Buffer<T> rows[2];
  bench::Buffer<float> wide_rows[2];

  explicit Copies(const Cache<T>& cache)
      : rows{bench::Buffer<T>(cache.c.page_size ? elements(cache.c) : 0),
             bench::Buffer<T>(cache.c.page_size ? elements(cache.c) : 0)},
        wide_rows{bench::Buffer<float>(std::is_same_v<T, float> ? 0 : elements(cache.c)),
                  bench::Buffer<float>(std::is_same_v<T, float> ? 0 : elements(cache.c))} {
    place(cache, cache.keys, 0, keys, wide_keys);
    place(cache, cache.values, 1, values, wide_values);
  }

 private:
  static std::size_t elements(const Case& c) { return size(c.tokens * c.heads * c.dim); }

  void place(const Cache<T>& cache, const bench::Buffer<T>& from, int which, const T*& stored, const float*& wide) {
    stored = from.data();
    if (cache.c.page_size) {
      stored = rows[which].data();
      T* to = rows[which].data();
      for (index_t h = 0; h < cache.c.heads; ++h)
        for (index_t t = 0; t < cache.c.tokens; ++t, to += cache.c.dim)
          std::copy_n(cache.row(from, h, t), cache.c.dim, to);
    }
    if constexpr (std::is_same_v<T, float>) {
      wide = stored;
    } else {
      wide = wide_rows[which].data();
      for (std::size_t i = 0; i < elements(cache.c); ++i) wide_rows[which][i] = static_cast<float>(stored[i]);
    }
  }
};

/// The peers' calls; throws if one computes something else. A wide bound: some add the values up in fp16, and are several
/// per cent off.
template <class T>
std::vector<std::pair<std::string, bench::Call>> peers_of(const Case& c, const Copies<T>& copies,
                                                          const bench::Buffer<float>& q,
                                                          const bench::Buffer<float>& ours,
                                                          bench::Buffer<float>& theirs) {
  const std::vector<double> expected(ours.data(), ours.data() + ours.size());
  auto peers = baselines::decode_peers({c.tokens, c.heads, c.group, c.dim, c.threads, type_of<T>(), copies.keys,
                                        copies.values, copies.wide_keys, copies.wide_values, q.data(), theirs.data()});
  for (const auto& [name, call] : peers) {
    std::fill_n(theirs.data(), theirs.size(), 0.0f);
    call();
    const double distance =
        oracle::relative_error(std::vector<double>(theirs.data(), theirs.data() + theirs.size()), expected);
    if (!(distance < 0.3)) throw std::runtime_error(name + " differs by " + std::to_string(distance));
  }
  return peers;
}

template <class T, class Q>
void measure(const Case& c, bench::Row& row) {
  const Cache<T> cache(c);
  bench::Buffer<float> q(size(c.queries * c.heads * c.group * c.dim)), out(q.size()), theirs(q.size());
  bench::fill(q, 4);
  bench::Buffer<Q> stored(q.size());
  for (std::size_t i = 0; i < q.size(); ++i) {
    stored[i] = static_cast<Q>(q[i]);
    q[i] = static_cast<float>(stored[i]);  // what peers and the oracle are given
  }
  const std::vector<std::int32_t> indptr{0, static_cast<std::int32_t>(c.queries)};
  const decant::attention::Queries<Q> queries{View<const Q, 3>(stored.data(), c.queries, c.heads * c.group, c.dim),
                                              View<const std::int32_t, 1>(indptr)};
  const View<float, 3> o(out.data(), c.queries, c.heads * c.group, c.dim);
  decant::Cpu cpu(c.threads > 1 ? decant::openmp(c.threads) : decant::ParallelFor{});
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
  if (c.queries > 1) {
    row.measure({.ours = ours, .error = distance});
    return;
  }
  const auto bytes = static_cast<double>(2 * c.tokens * c.heads * c.dim * index_t{sizeof(T)});
  bench::Measurement m{.ours = ours,
                       .limit = bench::stream_read(cpu, static_cast<std::size_t>(bytes)),
                       .bytes = bytes,
                       .error = distance};
  if (c.isa != decant::best_isa()) {  // peers always run on the best path
    row.measure(m);
    return;
  }
  const Copies<T> copies(cache);
  m.peers = peers_of(c, copies, q, out, theirs);
  row.measure(m);
}

/// T: what the cache holds; Q: what the queries are of, named where it is not float.
template <class T, class Q = float>
void add(bench::Suite& suite, const Case& c) {
  std::string shape =
      bench::shape("n", c.tokens, "hkv", c.heads, "g", c.group, "d", c.dim, "dtype", decant::name(decant::dtype_of<T>));
  if (!std::is_same_v<Q, float>) shape += "," + bench::shape("qtype", decant::name(decant::dtype_of<Q>));
  if (c.page_size) shape += "," + bench::shape("page", c.page_size);
  if (c.queries > 1) shape += "," + bench::shape("queries", c.queries);
  suite.add({.primitive = "attend",
             .policy = "Dense",
             .shape = shape,
             .context = c.threads > 1 ? "openmp:" + std::to_string(c.threads) : "cpu",
             .isa = decant::name(c.isa)},
            [c](bench::Row& row) { measure<T, Q>(c, row); });
}

void add_types(bench::Suite& suite, const Case& c) {
  add<decant::bf16>(suite, c);
  add<decant::fp16>(suite, c);
  add<float>(suite, c);
  add<decant::fp8_e4m3>(suite, c);
}

}  // namespace

int main(int argc, char** argv) {
  bench::Suite suite("attention", argc, argv);
  const int cores = omp_get_max_threads();
  const index_t main_length = suite.quick() ? 8192 : 32768;
  for (const long n : {1024, 8192, 32768, 131072}) {
    if (suite.quick() && n != main_length) continue;
    for (const index_t group : {1, 4, 8})
      if (!suite.quick() || group == 4) add_types(suite, {.tokens = n, .group = group});
    if (cores > 1 && !suite.quick()) add_types(suite, {.tokens = n, .threads = cores});
  }
  const Case paged{.tokens = main_length, .page_size = 64};
  if (suite.quick()) {
    add<decant::bf16>(suite, paged);
  } else {
    add_types(suite, paged);
    add<decant::bf16>(suite, {.tokens = main_length, .page_size = 16});
    if (cores > 1) add<decant::bf16>(suite, {.tokens = main_length, .page_size = 64, .threads = cores});
    add<decant::fp16>(suite, {.tokens = 16384});
    if (cores > 1) add<decant::fp16>(suite, {.tokens = 16384, .threads = cores});
  }
  for (const decant::Isa isa : {decant::Isa::portable, decant::Isa::avx2}) {
    if (isa >= decant::best_isa()) continue;
    if (suite.quick())
      add<decant::bf16>(suite, {.tokens = 1024, .isa = isa});
    else
      add_types(suite, {.tokens = main_length, .isa = isa});
  }
  for (const index_t group : {1, 4, 8})
    if (!suite.quick() || group == 4)
      add<decant::bf16, decant::bf16>(suite, {.tokens = main_length, .group = group});
  if (decant::best_isa() > decant::Isa::avx2 && !suite.quick())
    add<decant::bf16, decant::bf16>(suite, {.tokens = main_length, .isa = decant::Isa::avx2});
  add<float>(suite, {.tokens = 1600, .heads = 4, .group = 1, .dim = 32, .queries = 1600});
  if (!suite.quick()) add<decant::bf16>(suite, {.tokens = 2048, .queries = 2048});
  return suite.run();
}
