#pragma once
// A batch for MLA, and latent caches of every kind that hold it: one row per token or two pools, in one block or in
// pages. What surrounds the numbers is NaN.

#include "decant/attention/mla.hpp"
#include "decant/kv/latent_kv.hpp"
#include "oracle/mla.hpp"
#include "problem.hpp"

namespace attention_test {

/// T: the cache's elements, W: the weights'.
template <class T, class W>
struct MlaProblem {
  index_t heads;
  oracle::MlaDims dims;
  std::vector<index_t> lengths;
  std::vector<index_t> queries;
  std::vector<std::int32_t> indptr{0};
  std::vector<T> c, k_pe;       // [tokens of all sequences, latent or rope]
  std::vector<W> kv_b;          // [heads * (nope + value), latent], as in a checkpoint
  std::vector<float> q_nope, q_pe;

  MlaProblem(index_t heads_, oracle::MlaDims dims_, std::vector<index_t> lengths_, std::vector<index_t> queries_ = {},
             unsigned seed = 1)
      : heads(heads_), dims(dims_), lengths(std::move(lengths_)), queries(std::move(queries_)) {
    if (queries.empty()) queries.assign(lengths.size(), 1);
    for (const index_t m : queries) indptr.push_back(indptr.back() + static_cast<std::int32_t>(m));
    for (const float x : normal(tokens() * dims.latent, seed)) c.push_back(T(x));
    for (const float x : normal(tokens() * dims.rope, seed + 1)) k_pe.push_back(T(x));
    // So that projected keys and values are of the size 1.
    const float deviation = 1 / std::sqrt(static_cast<float>(dims.latent));
    for (const float x : normal(heads * (dims.nope + dims.value) * dims.latent, seed + 2, deviation))
      kv_b.push_back(W(x));
    q_nope = normal(total() * heads * dims.nope, seed + 3);
    q_pe = normal(total() * heads * dims.rope, seed + 4);
  }

  index_t sequences() const { return static_cast<index_t>(lengths.size()); }
  index_t total() const { return indptr.back(); }
  index_t tokens() const { return std::accumulate(lengths.begin(), lengths.end(), index_t{0}); }
  index_t token(index_t s, index_t t) const {
    return std::accumulate(lengths.begin(), lengths.begin() + s, index_t{0}) + t;
  }
  decant::View<const float, 3> nope() const { return {q_nope.data(), total(), heads, index_t{dims.nope}}; }
  decant::View<const float, 3> pe() const { return {q_pe.data(), total(), heads, index_t{dims.rope}}; }
  decant::attention::MlaQueries<float> views() const { return {nope(), pe(), indptr}; }
  decant::attention::MlaWeights<W> weights() const {
    return decant::attention::mla_weights(
        decant::View<const W, 2>(kv_b.data(), heads * (dims.nope + dims.value), index_t{dims.latent}), heads,
        dims.nope);
  }
};

/// Rows [blocks, slots, dim] at `pitch` elements, all poison.
template <class T>
struct LatentPool {
  std::vector<T> memory;
  decant::View<T, 3> rows;

  LatentPool(index_t blocks, index_t slots, index_t dim, index_t pitch)
      : memory(poison<T>(blocks * slots * pitch)),
        rows(memory.data(), {blocks, slots, dim}, {slots * pitch, pitch, 1}) {}
};

/// Where token t of sequence s lies: one block per sequence, or shuffled pages.
struct LatentPlaces {
  index_t blocks, slots;
  std::vector<std::int32_t> lengths, indptr{0}, indices, last;

  template <class P>
  LatentPlaces(const P& p, index_t page_size) {
    for (const index_t n : p.lengths) {
      const index_t used = page_size == 0 ? 0 : (n + page_size - 1) / page_size;
      lengths.push_back(static_cast<std::int32_t>(n));
      indptr.push_back(indptr.back() + static_cast<std::int32_t>(used));
      last.push_back(used == 0 ? -7 : static_cast<std::int32_t>(n - (used - 1) * page_size));
    }
    const index_t longest = p.lengths.empty() ? 0 : *std::max_element(p.lengths.begin(), p.lengths.end());
    blocks = page_size == 0 ? p.sequences() : indptr.back() + 3;
    slots = page_size == 0 ? longest + 3 : page_size;
    indices.resize(at(blocks));
    std::iota(indices.begin(), indices.end(), 0);
    std::shuffle(indices.begin(), indices.end(), std::mt19937(5));
    indices.resize(at(indptr.back()));
  }
  template <class T, class Copy>
  void each(const T& p, Copy copy) const {
    for (index_t s = 0; s < p.sequences(); ++s)
      for (index_t t = 0; t < p.lengths[at(s)]; ++t) {
        const bool paged = !indices.empty();
        copy(paged ? index_t{indices[at(indptr[at(s)] + t / slots)]} : s, paged ? t % slots : t, p.token(s, t));
      }
  }
};

/// [c | k_pe] in one row, `pad` elements apart. page_size 0: one block per sequence.
template <class T>
struct OneRowCache : LatentPlaces {
  LatentPool<T> pool;
  index_t latent;

  template <class W>
  OneRowCache(const MlaProblem<T, W>& p, index_t page_size = 0, index_t pad = 0)
      : LatentPlaces(p, page_size),
        pool(blocks, slots, p.dims.latent + p.dims.rope, p.dims.latent + p.dims.rope + pad),
        latent(p.dims.latent) {
    each(p, [&](index_t block, index_t slot, index_t token) {
      T* const row = &pool.rows(block, slot, index_t{0});
      std::copy_n(p.c.data() + token * p.dims.latent, p.dims.latent, row);
      std::copy_n(p.k_pe.data() + token * p.dims.rope, p.dims.rope, row + p.dims.latent);
    });
  }
  auto dense() const { return decant::kv::latent(decant::View<const T, 3>(pool.rows), lengths, latent); }
  auto paged() const {
    return decant::kv::latent(decant::View<const T, 3>(pool.rows), indptr, indices, last, latent);
  }
};

/// ckv and kpe.
template <class T>
struct TwoPoolCache : LatentPlaces {
  LatentPool<T> c, k_pe;

  template <class W>
  TwoPoolCache(const MlaProblem<T, W>& p, index_t page_size = 0, index_t pad = 0)
      : LatentPlaces(p, page_size),
        c(blocks, slots, p.dims.latent, p.dims.latent + pad),
        k_pe(blocks, slots, p.dims.rope, p.dims.rope + 2 * pad) {
    each(p, [&](index_t block, index_t slot, index_t token) {
      std::copy_n(p.c.data() + token * p.dims.latent, p.dims.latent, &c.rows(block, slot, index_t{0}));
      std::copy_n(p.k_pe.data() + token * p.dims.rope, p.dims.rope, &k_pe.rows(block, slot, index_t{0}));
    });
  }
  auto dense() const {
    return decant::kv::latent(decant::View<const T, 3>(c.rows), decant::View<const T, 3>(k_pe.rows), lengths);
  }
  auto paged() const {
    return decant::kv::latent(decant::View<const T, 3>(c.rows), decant::View<const T, 3>(k_pe.rows), indptr, indices,
                              last);
  }
};

/// out [total, heads, value] and lse, everything poison before.
template <class T, class W, class C, class M = decant::attention::Causal>
Result run_mla(decant::Cpu& cpu, const MlaProblem<T, W>& p, const C& cache, const decant::attention::Mla& a = {},
               const M& mask = {}) {
  Result r{std::vector<float>(at(p.total() * p.heads * p.dims.value), quiet_nan),
           std::vector<float>(at(p.total() * p.heads), quiet_nan)};
  attend(cpu, a, p.views(), p.weights(), cache,
         decant::View<float, 3>(r.o.data(), p.total(), p.heads, index_t{p.dims.value}),
         decant::View<float, 2>(r.lse.data(), p.total(), p.heads), mask);
  return r;
}

template <class T, class W, class M = decant::attention::Causal>
Exact exact_mla(const MlaProblem<T, W>& p, double scale_factor = 1, const M& mask = {}) {
  const auto number = [](const auto& x, index_t i) { return static_cast<double>(static_cast<float>(x[at(i)])); };
  const oracle::MlaDims& x = p.dims;
  Exact e;
  e.o.resize(at(p.total() * p.heads * x.value));
  e.lse.resize(at(p.total() * p.heads));
  for (index_t s = 0; s < p.sequences(); ++s)
    for (index_t h = 0; h < p.heads; ++h) {
      const index_t n = p.lengths[at(s)], m = p.queries[at(s)], token = p.token(s, 0);
      const index_t first = h * (x.nope + x.value);  // of this head's weights
      const oracle::MlaHead head = oracle::mla_head(
          n, x, [&](index_t j, index_t l) { return number(p.c, (token + j) * x.latent + l); },
          [&](index_t j, index_t d) { return number(p.k_pe, (token + j) * x.rope + d); },
          [&](index_t d, index_t l) { return number(p.kv_b, (first + d) * x.latent + l); },
          [&](index_t d, index_t l) { return number(p.kv_b, (first + x.nope + d) * x.latent + l); });
      for (index_t i = 0; i < m; ++i) {
        const index_t row = (p.indptr[at(s)] + i) * p.heads + h;
        const decant::attention::KeyRange range = mask.range(s, i, m, n);
        const oracle::AttentionRow r = oracle::mla_row(
            n, x, head,
            [&](index_t d) {
              return d < x.nope ? number(p.q_nope, row * x.nope + d) : number(p.q_pe, row * x.rope + d - x.nope);
            },
            [&](index_t j) { return j >= range.first && j < range.last && mask.allowed(s, i, j, m, n); },
            scale_factor);
        std::copy(r.o.begin(), r.o.end(), e.o.begin() + row * x.value);
        e.lse[at(row)] = r.lse;
      }
    }
  return e;
}

}  // namespace attention_test
