// attention::Santa at the decode step: its time against the bytes that it reads and against Dense, its error against
// Dense's result, and the error of exact top-k attention that reads as many value rows. Logits have a standard
// deviation of 2 and are similar within a group; values have means that change every 64 tokens, as neighbours' are
// alike.
#include <cmath>

#include "decant/attention/dense.hpp"
#include "decant/attention/santa.hpp"
#include "decant/attention/sparse_gather.hpp"
#include "decant/core/math.hpp"
#include "decant/core/softmax.hpp"
#include "decant/core/topk.hpp"
#include "decant/kv/dense_kv.hpp"
#include "harness.hpp"

namespace {

using decant::bf16;
using decant::index_t;
using decant::View;
using decant::attention::Dense;
using decant::attention::Santa;
using decant::attention::SantaScheme;

constexpr index_t heads = 8, group = 4, query_heads = heads * group, dim = 128;
constexpr std::uint32_t error_draws = 16;

std::size_t size(index_t n) {
  return static_cast<std::size_t>(n);
}

struct Problem {
  index_t n;
  bench::Buffer<bf16> keys, values;
  bench::Buffer<float> q;
  std::vector<std::int32_t> length;

  explicit Problem(index_t n_)
      : n(n_),
        keys(size(heads * n * dim)),
        values(keys.size()),
        q(size(query_heads * dim)),
        length{static_cast<std::int32_t>(n)} {
    bench::fill(keys, 1);
    bench::fill(values, 2);
    bench::fill(q, 3);
    bench::Buffer<float> shared(size(heads * dim)), means(size(heads * (n / 64 + 1) * dim));
    bench::fill(shared, 4);
    bench::fill(means, 5);
    for (index_t h = 0; h < query_heads; ++h)
      for (index_t d = 0; d < dim; ++d) {
        float& x = q[size(h * dim + d)];
        x = 2 * (0.9f * shared[size(h / group * dim + d)] + std::sqrt(0.19f) * x);
      }
    for (index_t h = 0; h < heads; ++h)
      for (index_t t = 0; t < n; ++t)
        for (index_t d = 0; d < dim; ++d) {
          bf16& x = values[size((h * n + t) * dim + d)];
          x = bf16(static_cast<float>(x) + means[size((h * (n / 64 + 1) + t / 64) * dim + d)]);
        }
  }
  decant::kv::DenseKV<const bf16> cache() const {
    return {View<const bf16, 4>(keys.data(), 1, heads, n, dim), View<const bf16, 4>(values.data(), 1, heads, n, dim),
            View<const std::int32_t, 1>(length)};
  }
  View<const float, 3> queries() const { return {q.data(), 1, query_heads, dim}; }
};

/// A cache that counts which value rows are asked for.
struct CountingCache {
  decant::kv::DenseKV<const bf16> inner;
  std::vector<char>* seen;  // [heads * n]
  index_t* asked;

  index_t sequences() const { return inner.sequences(); }
  index_t kv_heads() const { return inner.kv_heads(); }
  index_t key_dim() const { return inner.key_dim(); }
  index_t value_dim() const { return inner.value_dim(); }
  index_t length(index_t s, index_t h) const { return inner.length(s, h); }
  const bf16* key(index_t s, index_t h, index_t t) const { return inner.key(s, h, t); }
  const bf16* value(index_t s, index_t h, index_t t) const {
    (*seen)[size(h * inner.length(s, h) + t)] = 1;
    ++*asked;
    return inner.value(s, h, t);
  }
  index_t run(index_t s, index_t h, index_t t) const { return inner.run(s, h, t); }
  index_t key_stride() const { return inner.key_stride(); }
  index_t value_stride() const { return inner.value_stride(); }
};
void validate(const CountingCache& cache) {
  validate(cache.inner);
}

struct Reads {
  index_t by_groups = 0;  // different rows of each KV head, all together
  index_t by_heads = 0;   // of each query head
};

Reads count_reads(const Problem& p, const Santa& a) {
  std::vector<char> seen(size(heads * p.n));
  Reads reads;
  decant::Cpu cpu;
  bench::Buffer<float> o(size(query_heads * dim));
  attend(cpu, a, p.queries(), CountingCache{p.cache(), &seen, &reads.by_heads},
         View<float, 3>(o.data(), 1, query_heads, dim));
  for (const char s : seen) reads.by_groups += s;
  return reads;
}

template <class Buffer>
double square_distance(const Buffer& a, const Buffer& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
  return sum;
}

bench::Buffer<float> dense_output(const Problem& p) {
  decant::Cpu cpu;
  bench::Buffer<float> o(size(query_heads * dim));
  attend(cpu, Dense{}, p.queries(), p.cache(), View<float, 3>(o.data(), 1, query_heads, dim));
  return o;
}

/// Root mean square of the relative distance over some draws.
double error(const Problem& p, Santa a) {
  decant::Cpu cpu;
  const bench::Buffer<float> exact = dense_output(p);
  bench::Buffer<float> o(exact.size()), zero(exact.size());
  double sum = 0;
  for (a.step = 0; a.step < error_draws; ++a.step) {
    attend(cpu, a, p.queries(), p.cache(), View<float, 3>(o.data(), 1, query_heads, dim));
    sum += square_distance(o, exact) / error_draws;
  }
  return std::sqrt(sum / square_distance(zero, exact));
}

/// Of attention over the k keys of the largest logits of each query head, normalised over them.
double top_k_error(const Problem& p, index_t k) {
  decant::Cpu cpu;
  std::vector<float> logits(size(p.n)), row(size(dim)), weights;
  std::vector<std::int32_t> indptr{0}, rows(size(query_heads * k));
  for (index_t h = 0; h < query_heads; ++h) {
    for (index_t t = 0; t < p.n; ++t) {
      decant::kv::load_row(p.cache().key(0, h / group, t), dim, row.data());
      logits[size(t)] = decant::dot(cpu.isa(), row.data(), p.q.data() + h * dim, dim) / std::sqrt(float{dim});
    }
    std::int32_t* const list = rows.data() + h * k;
    decant::top_k(cpu, View<const float, 1>(logits), k, list);
    std::vector<float> of_list;
    for (index_t i = 0; i < k; ++i) of_list.push_back(logits[size(list[i])]);
    decant::softmax(cpu.isa(), of_list.data(), k, of_list.data());
    weights.insert(weights.end(), of_list.begin(), of_list.end());
    indptr.push_back(static_cast<std::int32_t>((h + 1) * k));
  }
  const bench::Buffer<float> exact = dense_output(p);
  bench::Buffer<float> o(exact.size()), zero(exact.size());
  decant::attention::sparse_gather(
      cpu, p.cache(),
      decant::attention::RowLists{View<const std::int32_t, 1>(indptr), View<const std::int32_t, 1>(rows),
                                  View<const float, 2>(weights.data(), query_heads * k, 1)},
      View<float, 3>(o.data(), 1, query_heads, dim));
  return std::sqrt(square_distance(o, exact) / square_distance(zero, exact));
}

std::string shape_of(index_t n, const Santa& a) {
  return bench::shape("n", n, "hkv", heads, "g", group, "d", dim, "dtype", "bf16", "scheme", name(a.scheme), "s",
                      a.samples, "coupled", a.couple_group ? 1 : 0);
}

void add(bench::Suite& suite, index_t n, const Santa& a, decant::Isa isa = decant::best_isa()) {
  suite.add({.primitive = "attend", .policy = "Santa", .shape = shape_of(n, a), .isa = name(isa)},
            [n, a, isa](bench::Row& row) {
              const Problem p(n);
              decant::Cpu cpu;
              cpu.set_isa(isa);
              bench::Buffer<float> o(size(query_heads * dim));
              const View<float, 3> out(o.data(), 1, query_heads, dim);
              const auto bytes = static_cast<double>((heads * n + count_reads(p, a).by_groups) * dim * 2);
              row.measure({.ours = [&] { attend(cpu, a, p.queries(), p.cache(), out); },
                           .limit = bench::stream_read(cpu, static_cast<std::size_t>(bytes)),
                           .peers = {{"dense", [&] { attend(cpu, Dense{}, p.queries(), p.cache(), out); }}},
                           .bytes = bytes,
                           .error = error(p, a)});
            });
}

/// The error alone, against that of top-k attention over as many rows of each query head.
void add_error(bench::Suite& suite, index_t n, const Santa& a) {
  suite.add({.primitive = "attend", .policy = "Santa", .shape = shape_of(n, a) + ",metric=error"},
            [n, a](bench::Row& row) {
              const Problem p(n);
              const double ours = error(p, a);
              row.figure({.metric = "relative_error",
                          .unit = "1",
                          .value = ours,
                          .peers = {{"top_k", top_k_error(p, count_reads(p, a).by_heads / query_heads)}},
                          .higher_is_better = false,
                          .error = ours});
            });
}

}  // namespace

int main(int argc, char** argv) {
  bench::Suite suite("attention", argc, argv);
  for (const index_t n : suite.sizes({4096, 32768, 131072})) {
    for (const index_t samples : {index_t{128}, n / 64, n / 16}) {
      if (samples == 128 && n <= 8192) continue;  // n / 64 or n / 16 is as small
      add(suite, n, {.samples = samples});
      add_error(suite, n, {.samples = samples});
    }
    add(suite, n, {.samples = n / 16, .couple_group = true});
    for (const SantaScheme scheme : {SantaScheme::plain, SantaScheme::stratified, SantaScheme::flash, SantaScheme::prop,
                                     SantaScheme::prop_exact, SantaScheme::threshold_systematic})
      if (n <= 32768) add(suite, n, {.samples = n / 16, .scheme = scheme});
  }
  for (const decant::Isa isa : {decant::Isa::portable, decant::Isa::avx2})
    if (isa < decant::best_isa()) add(suite, 4096, {.samples = 256}, isa);
  return suite.run();
}
