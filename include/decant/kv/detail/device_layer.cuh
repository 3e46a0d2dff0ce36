// decant: what every Cuda scorer does first with its layer: finds how many tokens there can be (the host cannot read
// lengths), checks on the host what it can see and on the device what only that can see, and turns a cache whose rows
// are no plain arrays into floats.
#ifndef DECANT_KV_DETAIL_DEVICE_LAYER_CUH
#define DECANT_KV_DETAIL_DEVICE_LAYER_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "../../core/cuda.cuh"
#include "../../core/detail/device.cuh"
#include "../dense_kv.hpp"
#include "../layer.hpp"
#include "../paged_kv.hpp"
#include "../ragged_kv.hpp"
#include "future_query.hpp"

namespace decant::kv::detail {

using ::decant::detail::Fault;
using ::decant::detail::faulted;
using ::decant::detail::report;

inline constexpr index_t unknown_capacity = 0x7fffffff;

/// The most tokens that a head can hold, from what the host sees.
template <class C>
index_t host_capacity(const C&) {
  return unknown_capacity;
}
template <class T>
index_t host_capacity(const DenseKV<T>& c) {
  return c.capacity();
}
template <class T>
index_t host_capacity(const PagedKV<T>& c) {
  return c.indices.extent(0) * c.page_size();
}
template <class T>
index_t host_capacity(const RaggedKV<T>& c) {
  return c.keys.extent(0);
}

/// A bound of the layer's lengths: what grids and scratch are sized by.
template <class X>
index_t longest_head(const X& x) {
  const index_t capacity = host_capacity(x.cache);
  return x.longest >= 0 && x.longest < capacity ? x.longest : capacity;
}

template <class C>
void require_cache(const C&) {}
template <class T>
void require_cache(const DenseKV<T>& c) {
  validate_storage(c.keys, c.values, "kv::DenseKV");
  require_equal(c.lengths.extent(0), c.sequences(), "kv::DenseKV", "lengths");
}
template <class T>
void require_cache(const PagedKV<T>& c) {
  validate_storage(c.keys, c.values, "kv::PagedKV");
  require(c.page_size() >= 1, "kv::PagedKV", "keys", "a page size of at least 1", c.page_size());
  require_equal(c.indptr.extent(0), c.sequences() + 1, "kv::PagedKV", "indptr");
}
template <class T>
void require_cache(const RaggedKV<T>& c) {
  constexpr const char* where = "kv::RaggedKV";
  validate_storage(c.keys, c.values, where);
  require(c.heads >= 1, where, "heads", "at least 1", c.heads);
  require(
      c.lengths.extent(0) % c.heads == 0, where, "lengths",
      [&] { return "a multiple of " + std::to_string(c.heads) + " heads"; }, c.lengths.extent(0));
  require_equal(c.offsets.extent(0), c.lengths.extent(0) + 1, where, "offsets");
}

/// What validate(x) checks, as far as the host can see it.
template <class C, class Q>
void require_layer(const LayerView<C, Q>& x) {
  constexpr const char* where = "kv::LayerView";
  require_cache(x.cache);
  require(
      x.sequence >= 0 && x.sequence < x.cache.sequences(), where, "sequence",
      [&] { return "an index below " + std::to_string(x.cache.sequences()); }, x.sequence);
  require(
      x.layers >= 1 && x.layer >= 0 && x.layer < x.layers, where, "layer",
      [&] { return "an index below layers = " + std::to_string(x.layers); }, x.layer);
  const auto check_queries = [&](const View<const Q, 3>& q, const char* argument) {
    if (q.data() == nullptr) return;
    require(
        q.extent(0) > 0 && q.extent(0) % x.kv_heads() == 0, where, argument,
        [&] { return "a number of query heads that is a multiple of kv_heads = " + std::to_string(x.kv_heads()); },
        q.extent(0));
    require_equal(q.extent(2), x.cache.key_dim(), where, argument);
    require(q.stride(2) == 1, where, argument, "stride 1 along the head dim", q.stride(2));
  };
  check_queries(x.queries, "queries");
  check_queries(x.queries_pre_rope, "queries_pre_rope");
  if (x.lse.data() != nullptr) {
    require_equal(x.lse.extent(0), x.queries.extent(0), where, "lse");
    require_equal(x.lse.extent(1), x.queries.extent(1), where, "lse");
  }
  if (x.positions.data() != nullptr) require_equal(x.positions.extent(0), x.kv_heads(), where, "positions");
}

/// For scorers that rotate.
template <class X>
void require_rope(const X& x) {
  const index_t rotated = x.rope.rotary_dim(x.cache.key_dim());
  require(rotated >= 0 && rotated <= x.cache.key_dim() && rotated % 2 == 0, "kv::Rope", "dim",
          "an even number up to the head dim", rotated);
  require(x.rope.theta > 0, "kv::Rope", "theta", "a positive number", x.rope.theta);
  require(x.rope.frequencies.empty() || x.rope.frequencies.extent(0) == rotated / 2, "kv::Rope", "frequencies",
          "one per pair", x.rope.frequencies.extent(0));
}

/// Tables first, so that lengths can be read without harm; false when there is a fault.
template <class C>
__device__ bool check_tables(const C&, index_t, FaultWord*, index_t) {
  return true;
}
template <class T>
__device__ bool check_tables(const PagedKV<T>& c, index_t s, FaultWord* fault, index_t layer) {
  const index_t begin = c.indptr[s];
  const index_t end = c.indptr[s + 1];
  bool good = begin >= 0 && end >= begin && end <= c.indices.extent(0);
  good = good && (end == begin || (c.last_page_len[s] >= 1 && c.last_page_len[s] <= c.page_size()));
  if (!good && threadIdx.x == 0) report(fault, Fault::page_table, layer, 0, 0);
  if (!good) return false;
  for (index_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
    if (c.indices[i] >= 0 && c.indices[i] < c.pages()) continue;
    report(fault, Fault::page_table, layer, 0, i - begin);
    good = false;
  }
  return good;
}
template <class T>
__device__ bool check_tables(const RaggedKV<T>& c, index_t s, FaultWord* fault, index_t layer) {
  bool good = true;
  for (index_t h = threadIdx.x; h < c.heads; h += blockDim.x) {
    const index_t begin = c.offsets[s * c.heads + h];
    const index_t end = c.offsets[s * c.heads + h + 1];
    if (begin >= 0 && end >= begin && end <= c.keys.extent(0) && c.length(s, h) <= end - begin) continue;
    report(fault, Fault::length, layer, h, c.length(s, h));
    good = false;
  }
  return good;
}

/// What a scorer needs of lengths and queries.
struct LayerNeeds {
  index_t longest = 0;       // room for scores
  index_t queries = -1;      // of the last so many tokens, or of all tokens if those are fewer; -1: none
  index_t have = 0;          // queries that came
  index_t sinks = -1;        // -1: none; else one of the pre-RoPE queries must belong to a later token
  bool equal_heads = false;  // heads must be equally long
};

/// Reports what is wrong with a layer. One block.
template <class X>
__global__ void check_layer_kernel(const X x, const LayerNeeds needs, FaultWord* fault) {
  if (__syncthreads_or(!check_tables(x.cache, x.sequence, fault, x.layer))) return;
  const index_t have_positions = x.positions.data() == nullptr ? needs.longest : x.positions.extent(1);
  bool good = true;
  for (index_t h = threadIdx.x; h < x.kv_heads(); h += blockDim.x) {
    const index_t n = x.length(h);
    good = good && n >= 0 && n <= needs.longest && n <= have_positions;
    if (!good) report(fault, Fault::length, x.layer, h, n);
    if (needs.equal_heads && n != x.length(0)) report(fault, Fault::unequal_heads, x.layer, h, n);
    const index_t wanted = needs.queries < n ? needs.queries : n;
    if (wanted > needs.have) report(fault, Fault::queries, x.layer, h, needs.have);
  }
  if (__syncthreads_or(!good) || needs.sinks < 0 || threadIdx.x > 0) return;
  if (x.max_length() > needs.sinks && first_query(x, needs.have, needs.sinks) >= needs.have) {
    report(fault, Fault::queries, x.layer, 0, needs.have);
  }
}

/// A cache of any view, its rows widened: keys and values [kv_heads, n, dim] of the one sequence that is looked at.
template <class C>
struct WidenedKV {
  using value_type = float;

  C cache;
  View<float, 3> keys;
  View<float, 3> values;

  DECANT_HD index_t sequences() const { return cache.sequences(); }
  DECANT_HD index_t kv_heads() const { return cache.kv_heads(); }
  DECANT_HD index_t key_dim() const { return cache.key_dim(); }
  DECANT_HD index_t value_dim() const { return cache.value_dim(); }
  DECANT_HD index_t length(index_t s, index_t h) const { return cache.length(s, h); }
  DECANT_HD float* key(index_t, index_t h, index_t t) const { return &keys(h, t, index_t{0}); }
  DECANT_HD float* value(index_t, index_t h, index_t t) const { return &values(h, t, index_t{0}); }
  DECANT_HD index_t run(index_t s, index_t h, index_t t) const { return length(s, h) - t; }
  DECANT_HD index_t key_stride() const { return keys.stride(1); }
  DECANT_HD index_t value_stride() const { return values.stride(1); }
};

template <class C>
void validate(const WidenedKV<C>& c) {
  validate(c.cache);
}

/// One row per thread.
template <class C>
__global__ void widen_rows_kernel(const WidenedKV<C> c, index_t sequence, const FaultWord* fault) {
  if (faulted(fault)) return;
  const index_t h = blockIdx.y;
  const index_t n = c.length(sequence, h);
  const index_t t = blockIdx.x * index_t{blockDim.x} + threadIdx.x;
  if (t >= n) return;
  if (c.keys.extent(1) > 0) load_row(c.cache.key(sequence, h, t), c.key_dim(), c.key(sequence, h, t));
  if (c.values.extent(1) > 0) load_row(c.cache.value(sequence, h, t), c.value_dim(), c.value(sequence, h, t));
}

/// Calls body(layer) with a layer whose cache is plain: x itself, or a copy in floats in the caller's scope.
template <class C, class Q, class Body>
void with_plain_rows(Cuda& cuda, const LayerView<C, Q>& x, index_t longest, bool keys, bool values, Body body) {
  if constexpr (PlainCacheView<C>) {
    (void)cuda, (void)longest, (void)keys, (void)values;
    body(x);
  } else {
    const index_t heads = x.kv_heads();
    WidenedKV<C> wide{x.cache, {}, {}};
    if (keys) wide.keys = cuda.workspace().template take_view<float>(heads, longest, x.cache.key_dim());
    if (values) wide.values = cuda.workspace().template take_view<float>(heads, longest, x.cache.value_dim());
    launch(cuda, "kv::score", widen_rows_kernel<C>,
           CudaGrid{dim3(cuda_blocks(longest, 128), static_cast<unsigned>(heads)), dim3(128)}, wide, x.sequence,
           cuda.fault());
    body(LayerView<WidenedKV<C>, Q>{wide, x.sequence, x.layer, x.layers, x.queries, x.lse, x.queries_pre_rope,
                                    x.positions, x.next_position, x.rope, x.longest});
  }
}

/// The element type of a plain layer's rows.
template <class X>
using key_of = std::remove_cv_t<std::remove_pointer_t<row_t<decltype(X::cache)>>>;

/// The element type of its queries.
template <class X>
using query_of = typename decltype(X::queries)::value_type;

/// The beginning of every scorer: host checks, then one small kernel for the rest. Returns a bound of the lengths; 0:
/// nothing to do.
template <class X>
index_t begin_scores(Cuda& cuda, const char* where, const X& x, View<float, 2> scores, LayerNeeds needs = {}) {
  require_layer(x);
  require_equal(scores.extent(0), x.kv_heads(), where, "scores");
  const index_t longest = longest_head(x);
  needs.longest = longest < scores.extent(1) ? longest : scores.extent(1);
  launch(cuda, where, check_layer_kernel<X>, CudaGrid{dim3(1), dim3(128)}, x, needs, cuda.fault());
  return needs.longest;
}

/// The post-RoPE queries of the last `wanted` tokens must have come.
template <class X>
LayerNeeds need_queries(const X& x, index_t wanted, const char* where) {
  require(
      x.queries.data() != nullptr, where, "x.queries",
      [&] { return "queries of the last " + std::to_string(wanted) + " tokens"; }, "none");
  return {0, wanted, x.queries.extent(1)};
}

}  // namespace decant::kv::detail

#endif
