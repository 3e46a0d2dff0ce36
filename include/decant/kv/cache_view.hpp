// decant: the concept kv::CacheView, what attention and scoring need to know of a KV cache: how many sequences and
// heads there are, where the row of a token lies, and how far rows go on contiguously. A cache view owns nothing.
// Dense, paged and ragged caches model it (dense_kv.hpp, paged_kv.hpp, ragged_kv.hpp); so may a quantised cache or an
// engine's own type, from outside, without a change here.
#ifndef DECANT_KV_CACHE_VIEW_HPP
#define DECANT_KV_CACHE_VIEW_HPP

#include <concepts>
#include <type_traits>

#include "../core/dtype.hpp"
#include "../core/view.hpp"

namespace decant::kv {

/// Reads the first `count` elements of a stored row as floats. A cache whose rows are not plain arrays returns a row
/// handle of its own type from key() and value(), and overloads load_row for it in its own namespace.
template <Storage T>
DECANT_HD inline void load_row(const T* row, index_t count, float* out) {
  for (index_t i = 0; i < count; ++i) out[i] = static_cast<float>(row[i]);
}

/// A readable KV cache. Indices: sequence s, KV head h, token t in [0, length(s, h)).
template <class C>
concept CacheView = std::copyable<C> && requires(const C& c, index_t s, index_t h, index_t t, float* out) {
  // Shape: the same for all sequences and heads.
  { c.sequences() } -> std::same_as<index_t>;
  { c.kv_heads() } -> std::same_as<index_t>;
  { c.key_dim() } -> std::same_as<index_t>;
  { c.value_dim() } -> std::same_as<index_t>;
  // The number of tokens that head h of sequence s holds now. Heads differ in ragged caches only.
  { c.length(s, h) } -> std::same_as<index_t>;
  // Row handles: a pointer to key_dim() (value_dim()) elements, or a type that load_row accepts.
  load_row(c.key(s, h, t), t, out);
  load_row(c.value(s, h, t), t, out);
  // The number of tokens from t on, t included, whose rows follow each other at key_stride() and value_stride()
  // elements. At least 1; a cache with row handles of its own returns 1.
  { c.run(s, h, t) } -> std::same_as<index_t>;
  { c.key_stride() } -> std::same_as<index_t>;
  { c.value_stride() } -> std::same_as<index_t>;
  // Throws ArgumentError or FormatError when shapes, strides or tables are not consistent. O(sequences * heads + pages).
  validate(c);
};

/// The row handle type of a cache: `const bf16*` for plain ones.
template <CacheView C>
using row_t = decltype(std::declval<const C&>().key(0, 0, 0));

/// True when rows are plain arrays of a storage type, which kernels read directly.
template <class C>
concept PlainCacheView = CacheView<C> && std::is_pointer_v<row_t<C>> &&
                         Storage<std::remove_cv_t<std::remove_pointer_t<row_t<C>>>>;

/// The longest head of a sequence.
template <CacheView C>
DECANT_HD index_t max_length(const C& cache, index_t sequence) {
  index_t n = 0;
  for (index_t h = 0; h < cache.kv_heads(); ++h) {
    const index_t l = cache.length(sequence, h);
    n = l > n ? l : n;
  }
  return n;
}

namespace detail {

/// Keys and values must agree in every dimension but the last, and rows must be contiguous.
template <class T, int Rank>
void validate_storage(const View<T, Rank>& keys, const View<T, Rank>& values, const char* where) {
  for (int r = 0; r + 1 < Rank; ++r) {
    require_equal(values.extent(r), keys.extent(r), where, "values");
    require(keys.extent(r) >= 0, where, "keys", "extents of at least 0", keys.extent(r));
  }
  require(keys.extent(Rank - 1) >= 1, where, "keys", "a head dim of at least 1", keys.extent(Rank - 1));
  require(values.extent(Rank - 1) >= 1, where, "values", "a head dim of at least 1", values.extent(Rank - 1));
  require(keys.stride(Rank - 1) == 1, where, "keys", "stride 1 along the head dim", keys.stride(Rank - 1));
  require(values.stride(Rank - 1) == 1, where, "values", "stride 1 along the head dim", values.stride(Rank - 1));
  require(keys.data() != nullptr || keys.size() == 0, where, "keys", "data", "a null pointer");
  require(values.data() != nullptr || values.size() == 0, where, "values", "data", "a null pointer");
}

/// int32 that the caller may change exactly when the cache's elements may change.
template <class T>
using length_of = std::conditional_t<std::is_const_v<T>, const std::int32_t, std::int32_t>;

}  // namespace detail

}  // namespace decant::kv

#endif
