#pragma once
// A batch to attend over, and caches of every kind that hold it. Keys and values are logical rows first and are laid
// out afterwards, so that two layouts hold the same numbers and what surrounds them can be poison.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "decant/attention/dense.hpp"
#include "decant/kv/dense_kv.hpp"
#include "decant/kv/paged_kv.hpp"
#include "decant/kv/ragged_kv.hpp"
#include "oracle/attention.hpp"
#include "threads.hpp"

namespace attention_test {

using decant::index_t;

inline std::size_t at(index_t i) { return static_cast<std::size_t>(i); }

inline const float quiet_nan = std::numeric_limits<float>::quiet_NaN();
inline const float infinity = std::numeric_limits<float>::infinity();

inline std::vector<float> normal(index_t count, unsigned seed, float deviation = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> draw(0.0f, deviation);
  std::vector<float> x(at(count));
  for (float& v : x) v = draw(random);
  return x;
}

/// Shapes and numbers. Rows of sequence s, head h: keys[row(s, h, t) * key_dim + d].
template <class T>
struct Problem {
  index_t heads, group, key_dim, value_dim;
  std::vector<index_t> lengths;  // of each sequence
  std::vector<index_t> queries;  // of each sequence
  std::vector<T> keys, values;
  std::vector<float> q;
  std::vector<std::int32_t> indptr;

  Problem(index_t heads_, index_t group_, index_t key_dim_, index_t value_dim_, std::vector<index_t> lengths_,
          std::vector<index_t> queries_ = {}, unsigned seed = 1)
      : heads(heads_),
        group(group_),
        key_dim(key_dim_),
        value_dim(value_dim_),
        lengths(std::move(lengths_)),
        queries(std::move(queries_)) {
    if (queries.empty()) queries.assign(lengths.size(), 1);
    indptr.push_back(0);
    for (const index_t m : queries) indptr.push_back(indptr.back() + static_cast<std::int32_t>(m));
    for (const float x : normal(rows() * key_dim, seed)) keys.push_back(T(x));
    for (const float x : normal(rows() * value_dim, seed + 1)) values.push_back(T(x));
    q = normal(total() * query_heads() * key_dim, seed + 2);
  }

  index_t sequences() const { return static_cast<index_t>(lengths.size()); }
  index_t query_heads() const { return heads * group; }
  index_t total() const { return indptr.back(); }
  index_t rows() const { return heads * std::accumulate(lengths.begin(), lengths.end(), index_t{0}); }
  index_t row(index_t s, index_t h, index_t t) const {
    const index_t before = std::accumulate(lengths.begin(), lengths.begin() + s, index_t{0});
    return before * heads + h * lengths[at(s)] + t;
  }
  T* key(index_t s, index_t h, index_t t) { return keys.data() + row(s, h, t) * key_dim; }
  T* value(index_t s, index_t h, index_t t) { return values.data() + row(s, h, t) * value_dim; }
  const T* key(index_t s, index_t h, index_t t) const { return keys.data() + row(s, h, t) * key_dim; }
  const T* value(index_t s, index_t h, index_t t) const { return values.data() + row(s, h, t) * value_dim; }
  float* query(index_t i, index_t head) { return q.data() + (i * query_heads() + head) * key_dim; }

  decant::attention::Queries<float> views() const {
    return {decant::View<const float, 3>(q.data(), total(), query_heads(), key_dim),
            decant::View<const std::int32_t, 1>(indptr)};
  }
};

enum class Layout { hnd, nhd };

/// What unused slots hold: NaN for everything that has one.
template <class T>
std::vector<T> poison(index_t count) {
  return std::vector<T>(at(count), T(quiet_nan));
}

template <class T>
struct DenseCache {
  std::vector<T> keys, values;
  std::vector<std::int32_t> lengths;
  decant::kv::DenseKV<const T> view;

  DenseCache(const Problem<T>& p, Layout layout = Layout::hnd, index_t spare = 3) {
    const index_t capacity = p.lengths.empty() ? 0 : *std::max_element(p.lengths.begin(), p.lengths.end()) + spare;
    keys = poison<T>(p.sequences() * p.heads * capacity * p.key_dim);
    values = poison<T>(p.sequences() * p.heads * capacity * p.value_dim);
    for (const index_t n : p.lengths) lengths.push_back(static_cast<std::int32_t>(n));
    const auto shaped = [&](T* data, index_t dim) {
      const index_t extents[] = {p.sequences(), p.heads, capacity, dim};
      const index_t hnd[] = {p.heads * capacity * dim, capacity * dim, dim, 1};
      const index_t nhd[] = {p.heads * capacity * dim, dim, p.heads * dim, 1};
      return decant::View<T, 4>(data, extents, layout == Layout::hnd ? hnd : nhd);
    };
    const decant::View<T, 4> k = shaped(keys.data(), p.key_dim);
    const decant::View<T, 4> v = shaped(values.data(), p.value_dim);
    for (index_t s = 0; s < p.sequences(); ++s)
      for (index_t h = 0; h < p.heads; ++h)
        for (index_t t = 0; t < p.lengths[at(s)]; ++t) {
          std::copy_n(p.key(s, h, t), p.key_dim, &k(s, h, t, 0));
          std::copy_n(p.value(s, h, t), p.value_dim, &v(s, h, t, 0));
        }
    view = {k, v, decant::View<const std::int32_t, 1>(lengths)};
  }
};

/// Pages in a shuffled order, with pages that nobody owns, keys and values in one pool [pages, 2, ...] when the dims
/// agree and the layout is HND.
template <class T>
struct PagedCache {
  std::vector<T> keys, values;
  std::vector<std::int32_t> indptr{0}, indices, last;
  decant::kv::PagedKV<const T> view;

  PagedCache(const Problem<T>& p, index_t page_size, Layout layout = Layout::hnd, unsigned seed = 5) {
    for (const index_t n : p.lengths) {
      const index_t used = (n + page_size - 1) / page_size;
      indptr.push_back(indptr.back() + static_cast<std::int32_t>(used));
      last.push_back(used == 0 ? -7 : static_cast<std::int32_t>(n - (used - 1) * page_size));
    }
    const index_t pages = indptr.back() + 3;
    indices.resize(at(pages));
    std::iota(indices.begin(), indices.end(), 0);
    std::shuffle(indices.begin(), indices.end(), std::mt19937(seed));
    indices.resize(at(indptr.back()));
    const bool pool = p.key_dim == p.value_dim && layout == Layout::hnd;
    keys = poison<T>(pages * p.heads * page_size * p.key_dim * (pool ? 2 : 1));
    if (!pool) values = poison<T>(pages * p.heads * page_size * p.value_dim);
    const auto shaped = [&](T* data, index_t dim) {
      const index_t extents[] = {pages, p.heads, page_size, dim};
      const index_t page = p.heads * page_size * dim;
      const index_t hnd[] = {pool ? 2 * page : page, page_size * dim, dim, 1};
      const index_t nhd[] = {page, dim, p.heads * dim, 1};
      return decant::View<T, 4>(data, extents, layout == Layout::hnd ? hnd : nhd);
    };
    const decant::View<T, 4> k = shaped(keys.data(), p.key_dim);
    const decant::View<T, 4> v =
        shaped(pool ? keys.data() + p.heads * page_size * p.key_dim : values.data(), p.value_dim);
    for (index_t s = 0; s < p.sequences(); ++s)
      for (index_t h = 0; h < p.heads; ++h)
        for (index_t t = 0; t < p.lengths[at(s)]; ++t) {
          const index_t page = indices[at(indptr[at(s)] + t / page_size)];
          std::copy_n(p.key(s, h, t), p.key_dim, &k(page, h, t % page_size, 0));
          std::copy_n(p.value(s, h, t), p.value_dim, &v(page, h, t % page_size, 0));
        }
    view = {k, v, decant::View<const std::int32_t, 1>(indptr), decant::View<const std::int32_t, 1>(indices),
            decant::View<const std::int32_t, 1>(last)};
  }
};

template <class T>
struct RaggedCache {
  std::vector<T> keys, values;
  std::vector<index_t> offsets{0};
  std::vector<std::int32_t> lengths;
  decant::kv::RaggedKV<const T> view;

  explicit RaggedCache(const Problem<T>& p) {
    for (index_t s = 0; s < p.sequences(); ++s)
      for (index_t h = 0; h < p.heads; ++h) {
        lengths.push_back(static_cast<std::int32_t>(p.lengths[at(s)]));
        offsets.push_back(offsets.back() + p.lengths[at(s)] + h % 3);  // some segments have room left
      }
    keys = poison<T>(offsets.back() * p.key_dim);
    values = poison<T>(offsets.back() * p.value_dim);
    for (index_t s = 0; s < p.sequences(); ++s)
      for (index_t h = 0; h < p.heads; ++h)
        for (index_t t = 0; t < p.lengths[at(s)]; ++t) {
          const index_t to = offsets[at(s * p.heads + h)] + t;
          std::copy_n(p.key(s, h, t), p.key_dim, keys.data() + to * p.key_dim);
          std::copy_n(p.value(s, h, t), p.value_dim, values.data() + to * p.value_dim);
        }
    view = {decant::View<const T, 2>(keys.data(), offsets.back(), p.key_dim),
            decant::View<const T, 2>(values.data(), offsets.back(), p.value_dim),
            decant::View<const index_t, 1>(offsets), decant::View<const std::int32_t, 1>(lengths), p.heads};
  }
};

/// o [total, query_heads, value_dim] and lse [total, query_heads].
struct Result {
  std::vector<float> o, lse;

  bool same_bits(const Result& other) const {
    const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
      return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
    };
    return same(o, other.o) && same(lse, other.lse);
  }
};

template <class T, class C, class M = decant::attention::Causal>
Result run(decant::Cpu& cpu, const Problem<T>& p, const C& cache, const decant::attention::Dense& a = {},
           const M& mask = {}, const std::vector<float>& sinks = {}) {
  Result r{std::vector<float>(at(p.total() * p.query_heads() * p.value_dim), quiet_nan),
           std::vector<float>(at(p.total() * p.query_heads()), quiet_nan)};
  attend(cpu, a, p.views(), cache, decant::View<float, 3>(r.o.data(), p.total(), p.query_heads(), p.value_dim),
         decant::View<float, 2>(r.lse.data(), p.total(), p.query_heads()), mask,
         sinks.empty() ? decant::View<const float, 1>{} : decant::View<const float, 1>(sinks));
  return r;
}

struct Exact {
  std::vector<double> o, lse;
};

template <class T>
std::vector<double> doubles(const T* x, index_t count) {
  std::vector<double> numbers;
  for (index_t i = 0; i < count; ++i) numbers.push_back(static_cast<double>(static_cast<float>(x[i])));
  return numbers;
}

/// The oracle over the whole batch.
template <class T, class M = decant::attention::Causal>
Exact exact(const Problem<T>& p, const decant::attention::Dense& a = {}, const M& mask = {},
            const std::vector<float>& sinks = {}) {
  Exact e;
  e.o.resize(at(p.total() * p.query_heads() * p.value_dim));
  e.lse.resize(at(p.total() * p.query_heads()));
  const double scale = a.scale > 0 ? static_cast<double>(a.scale) : 1 / std::sqrt(static_cast<double>(p.key_dim));
  for (index_t s = 0; s < p.sequences(); ++s)
    for (index_t h = 0; h < p.heads; ++h) {
      const index_t n = p.lengths[at(s)], m = p.queries[at(s)];
      const std::vector<double> numbers_k = doubles(p.key(s, h, 0), n * p.key_dim);
      const std::vector<double> numbers_v = doubles(p.value(s, h, 0), n * p.value_dim);
      const double* const keys = numbers_k.data();
      const double* const values = numbers_v.data();
      for (index_t i = 0; i < m; ++i) {
        const decant::attention::KeyRange range = mask.range(s, i, m, n);
        for (index_t head = h * p.group; head < (h + 1) * p.group; ++head) {
          const index_t at_row = (p.indptr[at(s)] + i) * p.query_heads() + head;
          const float* q = p.q.data() + at_row * p.key_dim;
          const oracle::AttentionRow row = oracle::attention_row(
              n, p.key_dim, p.value_dim, [q](index_t d) { return static_cast<double>(q[d]); },
              [keys, dim = p.key_dim](index_t t, index_t d) { return keys[t * dim + d]; },
              [values, dim = p.value_dim](index_t t, index_t d) { return values[t * dim + d]; },
              [&](index_t t) { return t >= range.first && t < range.last && mask.allowed(s, i, t, m, n); }, scale,
              static_cast<double>(a.soft_cap),
              sinks.empty() ? -std::numeric_limits<double>::infinity() : static_cast<double>(sinks[at(head)]));
          std::copy(row.o.begin(), row.o.end(), e.o.begin() + at_row * p.value_dim);
          e.lse[at(at_row)] = row.lse;
        }
      }
    }
  return e;
}

inline std::vector<double> doubles(const std::vector<float>& x) { return {x.begin(), x.end()}; }

/// Relative L2 distance of the whole output.
inline double error(const Result& r, const Exact& e) { return oracle::relative_error(doubles(r.o), e.o); }

/// The largest absolute error of lse; infinite values must agree.
inline double lse_error(const Result& r, const Exact& e) {
  double worst = 0;
  for (std::size_t i = 0; i < e.lse.size(); ++i) {
    if (std::isinf(e.lse[i]) && static_cast<double>(r.lse[i]) == e.lse[i]) continue;
    const double difference = std::abs(static_cast<double>(r.lse[i]) - e.lse[i]);
    worst = difference <= worst ? worst : difference;  // NaN counts as the worst
  }
  return worst;
}

inline std::vector<decant::Isa> paths() {
  std::vector<decant::Isa> all{decant::Isa::portable};
  if (decant::best_isa() >= decant::Isa::avx2) all.push_back(decant::Isa::avx2);
  if (decant::best_isa() >= decant::Isa::avx512) all.push_back(decant::Isa::avx512);
  return all;
}

}  // namespace attention_test
