// decant: caches of multi-head latent attention (MLA; DeepSeek-V2, arXiv 2405.04434). A token has one latent vector c,
// which serves all heads as key and as value, and one rotated key part k_pe: its key row is [c | k_pe], its value row
// is c. Where both lie in one row per token (vLLM), kv::latent() gives a plain DenseKV or PagedKV whose value rows are
// the beginnings of its key rows. Where they lie in two pools (FlashInfer's ckv and kpe), it gives a kv::LatentKV,
// whose rows are handles. Either holds the same numbers to every attention policy.
#ifndef DECANT_KV_LATENT_KV_HPP
#define DECANT_KV_LATENT_KV_HPP

#include <type_traits>

#include "dense_kv.hpp"
#include "paged_kv.hpp"

namespace decant::kv {

/// A token of a cache in two pools. As a value row, only the first `latent` numbers are asked for.
template <class T>
struct LatentRow {
  const T* c;
  const T* k_pe;
  index_t latent;
};

template <class T>
DECANT_HD inline void load_row(const LatentRow<T>& row, index_t count, float* out) {
  const index_t first = count < row.latent ? count : row.latent;
  for (index_t i = 0; i < first; ++i) out[i] = static_cast<float>(row.c[i]);
  for (index_t i = first; i < count; ++i) out[i] = static_cast<float>(row.k_pe[i - first]);
}

/// A latent cache in two pools: a DenseKV<T> or PagedKV<T> whose `keys` are k_pe and whose `values` are c. New tokens
/// are written as to that cache: append(cpu, cache.pools, sequence, k_pe, c).
template <class Pools>
struct LatentKV {
  using value_type = typename Pools::value_type;
  using Row = LatentRow<value_type>;

  Pools pools;

  DECANT_HD index_t sequences() const { return pools.sequences(); }
  DECANT_HD index_t kv_heads() const { return pools.kv_heads(); }
  DECANT_HD index_t latent_dim() const { return pools.value_dim(); }
  DECANT_HD index_t rope_dim() const { return pools.key_dim(); }
  DECANT_HD index_t key_dim() const { return latent_dim() + rope_dim(); }
  DECANT_HD index_t value_dim() const { return latent_dim(); }
  DECANT_HD index_t length(index_t s, index_t h) const { return pools.length(s, h); }
  DECANT_HD Row key(index_t s, index_t h, index_t t) const {
    return {pools.value(s, h, t), pools.key(s, h, t), latent_dim()};
  }
  DECANT_HD Row value(index_t s, index_t h, index_t t) const { return key(s, h, t); }
  DECANT_HD index_t run(index_t, index_t, index_t) const { return 1; }
  DECANT_HD index_t key_stride() const { return pools.value_stride(); }
  DECANT_HD index_t value_stride() const { return pools.value_stride(); }
  /// A bound of the lengths that needs no look at them.
  DECANT_HD index_t capacity() const {
    if constexpr (requires { pools.capacity(); })
      return pools.capacity();
    else
      return pools.indices.extent(0) * pools.page_size();
  }
};

template <class Pools>
void validate(const LatentKV<Pools>& c) {
  validate(c.pools);
}

namespace detail {

/// [a, b, dim] as [a, one head, b, dim].
template <class T>
View<T, 4> with_one_head(const View<T, 3>& x, index_t dim) {
  return View<T, 4>(x.data(), {x.extent(0), 1, x.extent(1), dim},
                    {x.stride(0), x.stride(0), x.stride(1), x.stride(2)});
}

template <class T>
void require_latent_rows(const View<T, 3>& rows, index_t latent_dim) {
  require(latent_dim >= 1 && latent_dim <= rows.extent(2), "kv::latent", "latent_dim",
          [&] { return "1 to the " + std::to_string(rows.extent(2)) + " numbers of a row"; }, latent_dim);
}

template <class T>
void require_latent_pools(const View<T, 3>& c, const View<T, 3>& k_pe) {
  require_equal(k_pe.extent(0), c.extent(0), "kv::latent", "k_pe");
  require_equal(k_pe.extent(1), c.extent(1), "kv::latent", "k_pe");
}

}  // namespace detail

/// rows [sequences, capacity, latent_dim + rope_dim]: a token's c and k_pe in one row. lengths [sequences].
/// To write: append(cpu, cache, sequence, rows, values) with values the beginnings of the rows.
template <class T>
DenseKV<T> latent(View<T, 3> rows, std::type_identity_t<View<detail::length_of<T>, 1>> lengths, index_t latent_dim) {
  detail::require_latent_rows(rows, latent_dim);
  return {detail::with_one_head(rows, rows.extent(2)), detail::with_one_head(rows, latent_dim), lengths};
}

/// rows [pages, page_size, latent_dim + rope_dim], with the page table of a PagedKV.
template <class T>
PagedKV<T> latent(View<T, 3> rows, std::type_identity_t<View<detail::length_of<T>, 1>> indptr,
                  std::type_identity_t<View<detail::length_of<T>, 1>> indices,
                  std::type_identity_t<View<detail::length_of<T>, 1>> last_page_len, index_t latent_dim) {
  detail::require_latent_rows(rows, latent_dim);
  return {detail::with_one_head(rows, rows.extent(2)), detail::with_one_head(rows, latent_dim), indptr, indices,
          last_page_len};
}

/// c [sequences, capacity, latent_dim] and k_pe [sequences, capacity, rope_dim]. lengths [sequences].
template <class T>
LatentKV<DenseKV<T>> latent(View<T, 3> c, View<T, 3> k_pe,
                            std::type_identity_t<View<detail::length_of<T>, 1>> lengths) {
  detail::require_latent_pools(c, k_pe);
  return {{detail::with_one_head(k_pe, k_pe.extent(2)), detail::with_one_head(c, c.extent(2)), lengths}};
}

/// c [pages, page_size, latent_dim] and k_pe [pages, page_size, rope_dim], with the page table of a PagedKV.
template <class T>
LatentKV<PagedKV<T>> latent(View<T, 3> c, View<T, 3> k_pe,
                            std::type_identity_t<View<detail::length_of<T>, 1>> indptr,
                            std::type_identity_t<View<detail::length_of<T>, 1>> indices,
                            std::type_identity_t<View<detail::length_of<T>, 1>> last_page_len) {
  detail::require_latent_pools(c, k_pe);
  return {{detail::with_one_head(k_pe, k_pe.extent(2)), detail::with_one_head(c, c.extent(2)), indptr, indices,
           last_page_len}};
}

static_assert(CacheView<LatentKV<DenseKV<float>>> && CacheView<LatentKV<PagedKV<const bf16>>>);
static_assert(!PlainCacheView<LatentKV<DenseKV<float>>>);

}  // namespace decant::kv

#endif
