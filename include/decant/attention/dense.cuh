// decant: attention::Dense on Cuda: decode and prefill over any cache view, capturable. Split-KV with a fixed chunk
// length and a merge in chunk order (flash decoding, Dao et al., 2023), online softmax (Milakov and Gimelshein,
// arXiv 1805.02867), on CUDA cores for decode of few query heads per KV head and for float caches, else on tensor
// cores. Decode is two launches, tasks and merge; other calls are three, the first of which plans and checks. A
// sequence's result depends on nothing but its own queries, keys and values, and on whether q.indptr is given.
#ifndef DECANT_ATTENTION_DENSE_CUH
#define DECANT_ATTENTION_DENSE_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "dense.hpp"
#include "detail/dense_merge.cuh"
#include "detail/dense_mma.cuh"
#include "detail/dense_plan.cuh"
#include "detail/dense_rows.cuh"
#include "detail/latent_rows.cuh"

namespace decant::attention {

namespace detail {

/// Which kernel a call takes, from what does not change with the batch; tile_rows may, but no bit depends on it.
struct DenseRoute {
  bool mma;
  int tile_rows;
  int q_terms;
  int p_terms;
};

/// The shapes of tensor-core kernels by value dim, for tiles of 16 rows and of 64 (or again 16).
template <int Tiles>
using MmaNarrow = MmaShape<Tiles, 4, 2, 4>;
template <int Tiles>
using MmaMiddle = MmaShape<Tiles, 8, 1, 4>;
using MmaWide = MmaShape<1, 4, 1, 18>;

/// body(small, large): the shapes for a value dim.
template <class Body>
auto with_mma_shapes(index_t value_dim, Body body) {
  if (value_dim <= MmaNarrow<1>::most_value_dim) return body(MmaNarrow<1>{}, MmaNarrow<4>{});
  if (value_dim <= MmaMiddle<1>::most_value_dim) return body(MmaMiddle<1>{}, MmaMiddle<4>{});
  return body(MmaWide{}, MmaWide{});
}

template <class Q, class T>
DenseRoute dense_route(const DenseDeviceShape& x, const Dense& a, bool one_query_each, const DenseTuning& tuning,
                       index_t most_shared) {
  constexpr bool wide = sizeof(T) == 4;
  DenseRoute route{false, 4, 1, 1};
  if (one_query_each && x.group == 1)
    route.tile_rows = 1;
  else if (wide && (!one_query_each || x.group > 4))
    route.tile_rows = 8;
  if constexpr (has_mma<T>) {
    using Element = mma_element_t<T>;
    if ((one_query_each && x.group < tuning.mma_rows) || x.value_dim > MmaWide::most_value_dim) return route;
    const int q_terms = a.rounded || std::is_same_v<Q, Element> ? 1 : std::is_same_v<Element, fp16> ? 2 : 3;
    const index_t busy = x.total < x.sequences ? x.total : x.sequences;
    const bool many = x.total * x.group > 16 * busy;
    with_mma_shapes(x.value_dim, [&](auto small, auto large) {
      const auto fits = [&](auto shape) {
        return mma_layout<decltype(shape)>(x.key_dim, x.value_dim, x.values_in_keys, q_terms, tuning.shared_bytes,
                                           most_shared)
                   .bytes <= most_shared;
      };
      if (fits(small)) route = {true, many && fits(large) ? large.rows : small.rows, q_terms, a.rounded ? 1 : 2};
    });
  }
  return route;
}

/// The kernels of one call type.
template <class Call>
struct DenseLaunch;
template <class Q, class C, class O, class M>
struct DenseLaunch<DenseDeviceCall<Q, C, O, M>> {
  using Call = DenseDeviceCall<Q, C, O, M>;
  using T = shared_row_t<C>;

  const Cuda& cuda;
  const Call& call;
  const DenseTuning& tuning;
  const char* where;

  CudaGrid grid(int threads, int shared) const {
    return {dim3(static_cast<unsigned>(call.plan.room)), dim3(static_cast<unsigned>(threads)),
            static_cast<std::size_t>(shared)};
  }

  template <int Rows>
  void rows() const {
    const index_t most = cuda.device().shared_bytes;
    const RowsLayout layout =
        rows_layout<T>(call.x.key_dim, call.x.value_dim, call.x.values_in_keys, Rows, tuning.shared_bytes, most);
    require(layout.bytes <= most && layout.value_vectors <= RowsKernel<Rows, Call, DenseWork>::most_vectors, where,
            "cache", "head dims that fit in shared memory", layout.bytes);
    launch(cuda, where, dense_rows_kernel<Rows, Q, C, O, M>, grid(rows_threads, layout.bytes), call, layout);
  }

  template <class Shape>
  void mma(const DenseRoute& route) const {
    const MmaLayout layout = mma_layout<Shape>(call.x.key_dim, call.x.value_dim, call.x.values_in_keys, route.q_terms,
                                               tuning.shared_bytes, cuda.device().shared_bytes);
    launch(cuda, where, dense_mma_kernel<Shape, Q, C, O, M>, grid(Shape::threads, layout.bytes), call, layout,
           route.p_terms);
  }

  void enqueue(const DenseRoute& route) const {
    if constexpr (has_mma<T>) {
      if (route.mma) {
        return with_mma_shapes(call.x.value_dim, [&](auto small, auto large) {
          if (route.tile_rows == small.rows)
            mma<decltype(small)>(route);
          else
            mma<decltype(large)>(route);
        });
      }
    }
    if constexpr (sizeof(T) == 4) {
      if (route.tile_rows == 8) return rows<8>();
    }
    if (route.tile_rows == 1)
      rows<1>();
    else
      rows<4>();
  }
};

}  // namespace detail

/// The same as attend(Cpu&, ...), with everything in device memory, the kernels' constants chosen by the caller.
template <Storage Q, kv::CacheView C, Storage O, Mask M = Causal>
void attend(Cuda& cuda, const DenseTuning& tuning, const Dense& a, const Queries<Q>& q, const C& cache, View<O, 3> out,
            View<float, 2> lse = {}, const M& mask = {}, View<const float, 1> sinks = {}) {
  using namespace detail;
  constexpr const char* where = "attention::attend";
  kv::detail::require_cache(cache);
  validate_dense_shapes(a, q, cache, out, lse, sinks);
  if (q.rows.extent(0) == 0) return;
  DenseDeviceCall<Q, C, O, M> call{{}, q.rows, q.indptr, cache, out, lse, mask, sinks, {}, {}, cuda.fault()};
  const bool one_query_each = q.indptr.empty();
  if (one_query_each) call.indptr = {};
  DenseDeviceShape& x = call.x;
  x = dense_device_shape(q.rows, cache, a.scale, a.soft_cap, where);
  x.chunk = a.chunk > 0 ? a.chunk : tuning.chunk;
  x.most_chunks = ceil_div(x.longest, x.chunk);
  x.split_queries = !one_query_each && tuning.split_rows / x.group > 1 ? tuning.split_rows / x.group : 1;
  const DenseRoute route = dense_route<Q, shared_row_t<C>>(x, a, one_query_each, tuning, cuda.device().shared_bytes);
  x.tile_rows = route.tile_rows;

  const bool direct = bound_plan(cache, x, one_query_each, tuning.spare_blocks, call.plan);
  require(call.plan.room < index_t{1} << 31, where, "cache", "at most 2^31 tiles and chunks", call.plan.room);
  Workspace::Scope scope(cuda.workspace());
  call.states.o = cuda.workspace().take<float>(call.plan.slots * x.tile_rows * x.o_stride);
  call.states.ml = cuda.workspace().take<float2>(call.plan.slots * x.tile_rows);
  if (!direct) {
    call.plan.tasks = cuda.workspace().take<DenseTask>(call.plan.room);
    call.plan.items = cuda.workspace().take<DenseItem>(x.sequences * x.heads);
    call.plan.count = cuda.workspace().take<std::int32_t>(1);
    const unsigned checkers = cuda_blocks(x.sequences, 1, 4 * index_t{cuda.device().multiprocessors});
    launch(cuda, where, dense_plan_kernel<C, M>, CudaGrid{dim3(1 + checkers), dim3(plan_threads)}, x, call.indptr,
           cache, mask, call.plan, cuda.fault());
  }
  DenseLaunch<DenseDeviceCall<Q, C, O, M>>{cuda, call, tuning, where}.enqueue(route);
  const index_t rows = x.sequences * x.split_queries * x.heads;
  require(rows < index_t{1} << 31 && x.group <= 65535, where, "q", "fewer sequences and heads", rows);
  launch(cuda, where, dense_merge_kernel<DenseDeviceCall<Q, C, O, M>>,
         CudaGrid{dim3(static_cast<unsigned>(rows), static_cast<unsigned>(x.group)), dim3(merge_threads)}, call);
}

/// The same as attend(Cpu&, ...), see dense.hpp, with everything in device memory.
///
/// Error: Dense::error_bound on all paths, Dense::rounded_error_bound with a.rounded where tensor cores work: caches
/// of 8- and 16-bit floats with q.indptr, or with DenseTuning::mma_rows query heads per KV head and more. Values of up
/// to 576 numbers there, 1024 elsewhere, as far as shared memory holds the rows. Enqueues and returns. What the host
/// sees (shapes, strides, parameters) raises ArgumentError at once; lengths, tables, offsets and packed masks are
/// checked by the kernels, which then write nothing, and cuda.check() raises the error. Without q.indptr only the part
/// of a page table is checked that the mask lets be read. A cache view of the user's own must have capacity(), the most
/// tokens of a head, as blocks and scratch are sized by it on the host. Scratch: 4 * (value_dim + 2) bytes per query
/// head and chunk, plus some bytes per tile.
template <Storage Q, kv::CacheView C, Storage O, Mask M = Causal>
void attend(Cuda& cuda, const Dense& a, const Queries<Q>& q, const C& cache, View<O, 3> out, View<float, 2> lse = {},
            const M& mask = {}, View<const float, 1> sinks = {}) {
  attend(cuda, dense_tuning(cuda.device().compute_capability), a, q, cache, out, lse, mask, sinks);
}

/// The same for one query per sequence: q [sequences, query_heads, key_dim].
template <class Q, kv::CacheView C, Storage O, Mask M = Causal>
  requires Storage<Q>
void attend(Cuda& cuda, const Dense& a, View<Q, 3> q, const C& cache, View<O, 3> out, View<float, 2> lse = {},
            const M& mask = {}, View<const float, 1> sinks = {}) {
  attend(cuda, a, Queries<std::remove_const_t<Q>>{q}, cache, out, lse, mask, sinks);
}

static_assert(AttentionPolicy<Dense, Cuda>);

}  // namespace decant::attention

#endif
