// decant: kv::LatentKV of narrow elements under the kernels of dense attention. Rows of c and k_pe are joined, as they
// are, in a worker's scratch when their block comes up, and the kernels read them there as rows of a plain cache: the
// same bits as over a cache of one row per token, and nothing is widened twice.
#ifndef DECANT_ATTENTION_DETAIL_LATENT_ROWS_HPP
#define DECANT_ATTENTION_DETAIL_LATENT_ROWS_HPP

#include <cstring>

#include "dense_tile.hpp"

namespace decant::kv {

template <class Pools>
struct LatentKV;

}  // namespace decant::kv

namespace decant::attention::detail {

/// A LatentKV as a plain cache. A key row stays until 128 tokens later: two blocks.
template <class Pools>
struct JoinedKV {
  using T = typename Pools::value_type;
  static constexpr index_t slots = 2 * dense_block;

  kv::LatentKV<Pools> cache;
  T* rows;  // [slots, key_dim]

  index_t sequences() const { return cache.sequences(); }
  index_t kv_heads() const { return cache.kv_heads(); }
  index_t key_dim() const { return cache.key_dim(); }
  index_t value_dim() const { return cache.value_dim(); }
  index_t length(index_t s, index_t h) const { return cache.length(s, h); }
  const T* key(index_t s, index_t h, index_t t) const {
    T* const row = rows + t % slots * key_dim();
    std::memcpy(row, cache.pools.value(s, h, t), static_cast<std::size_t>(cache.latent_dim()) * sizeof(T));
    std::memcpy(row + cache.latent_dim(), cache.pools.key(s, h, t),
                static_cast<std::size_t>(cache.rope_dim()) * sizeof(T));
    return row;
  }
  const T* value(index_t s, index_t h, index_t t) const { return cache.pools.value(s, h, t); }
  index_t run(index_t, index_t, index_t) const { return 1; }
  index_t key_stride() const { return key_dim(); }
  index_t value_stride() const { return cache.pools.value_stride(); }
};
template <class Pools>
void validate(const JoinedKV<Pools>& c) {
  validate(c.cache);
}

/// Over floats, load_row does as well.
template <class Pools, class M, class Q>
  requires(sizeof(typename Pools::value_type) < sizeof(float))
class DenseTileWorker<kv::LatentKV<Pools>, M, Q> {
 public:
  DenseTileWorker(const DenseShape& shape, const kv::LatentKV<Pools>& cache, const M& mask, Isa isa)
      : shape_(shape), cache_(cache), mask_(mask), isa_(isa) {}

  template <class From>
  void load_queries(const DenseTile& tile, const View<const From, 3>& rows, const DenseScratch& w) const {
    over(w, [&](const auto& worker) { worker.load_queries(tile, rows, w); });
  }
  void run_chunk(const DenseTile& tile, index_t c, const DenseScratch& w, const DenseRows& state) const {
    over(w, [&](const auto& worker) { worker.run_chunk(tile, c, w, state); });
  }

 private:
  using T = typename Pools::value_type;

  /// The worker over rows joined in w.keys: 64 rows of floats, 128 of T, which a plain cache leaves unused.
  template <class Body>
  void over(const DenseScratch& w, Body body) const {
    const JoinedKV<Pools> joined{cache_, reinterpret_cast<T*>(w.keys)};
    body(DenseTileWorker<JoinedKV<Pools>, M, Q>(shape_, joined, mask_, isa_));
  }

  const DenseShape& shape_;
  const kv::LatentKV<Pools>& cache_;
  const M& mask_;
  Isa isa_;
};

}  // namespace decant::attention::detail

#endif
