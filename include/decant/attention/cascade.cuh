// decant: shared-prefix attention on Cuda: each run of keys of a CascadePlan is read once for up to 64 rows (queries
// times group) of the requests that share it, on tensor cores for 8- and 16-bit caches (float: for 8 rows, on CUDA
// cores), and what comes out is joined per request (Hydragen, arXiv 2402.05099; FlashInfer's cascade, arXiv
// 2501.01005). Three launches: one plans and checks, one does all pieces, shared and private, from one list of tasks,
// the longest first, and one joins. No sum depends on the order in which blocks run.
#ifndef DECANT_ATTENTION_CASCADE_CUH
#define DECANT_ATTENTION_CASCADE_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "cascade.hpp"
#include "cascade_plan.cuh"
#include "dense.cuh"
#include "detail/cascade_kernels.cuh"

namespace decant::attention {

namespace detail {

/// The kernels of one call type, and their layouts.
template <class Q, class C, class O, class M>
struct CascadeLaunch {
  using Call = CascadeDeviceCall<Q, C, O, M>;
  using T = shared_row_t<C>;
  static constexpr const char* where = "attention::attend";

  const Cuda& cuda;
  Call& call;
  const DenseTuning& tuning;
  DenseRoute route;

  CudaGrid grid(int threads, int shared) const {
    return {dim3(static_cast<unsigned>(call.tasks.room)), dim3(static_cast<unsigned>(threads)),
            static_cast<std::size_t>(shared)};
  }
  template <class Shape>
  MmaLayout layout() const {
    return mma_layout<Shape>(call.x.key_dim, call.x.value_dim, call.x.values_in_keys, route.q_terms,
                             tuning.shared_bytes, cuda.device().shared_bytes);
  }

  /// Rows of a tile of few and of many.
  void choose_tiles() {
    call.shapes.few_rows = call.shapes.many_rows = route.tile_rows;
    if constexpr (has_mma<T>) {
      if (!route.mma) return;
      with_mma_shapes(call.x.value_dim, [&](auto few, auto many) {
        call.shapes.few_rows = few.rows;
        const bool fits = layout<decltype(many)>().bytes <= cuda.device().shared_bytes;
        call.shapes.many_rows = fits ? many.rows : few.rows;
      });
    }
  }

  template <int Rows>
  void rows() const {
    const index_t most = cuda.device().shared_bytes;
    const RowsLayout w =
        rows_layout<T>(call.x.key_dim, call.x.value_dim, call.x.values_in_keys, Rows, tuning.shared_bytes, most);
    require(w.bytes <= most && w.value_vectors <= RowsKernel<Rows, Call, CascadeWork>::most_vectors, where, "cache",
            "head dims that fit in shared memory", w.bytes);
    launch(cuda, where, cascade_rows_kernel<Rows, Q, C, O, M>, grid(rows_threads, w.bytes), call, w);
  }

  void enqueue() const {
    if constexpr (has_mma<T>) {
      if (route.mma) {
        return with_mma_shapes(call.x.value_dim, [&](auto few, auto many) {
          const MmaLayout a = layout<decltype(few)>();
          const MmaLayout b = layout<decltype(many)>();
          const bool both = call.shapes.many_rows > call.shapes.few_rows;
          launch(cuda, where, cascade_mma_kernel<decltype(few), decltype(many), Q, C, O, M>,
                 grid(few.threads, both && b.bytes > a.bytes ? b.bytes : a.bytes), call, a, b, route.p_terms);
        });
      }
    }
    if constexpr (sizeof(T) == 4)
      rows<8>();
    else
      rows<4>();
  }
};

}  // namespace detail

/// The same as attend(Cuda&, ...) below, the kernels' constants chosen by the caller.
template <Storage Q, kv::CacheView C, Storage O, Mask M = Causal>
void attend(Cuda& cuda, const DenseTuning& tuning, const Dense& a, const DeviceCascade& plan, const Queries<Q>& q,
            const C& cache, View<O, 3> out, View<float, 2> lse = {}, const M& mask = {},
            View<const float, 1> sinks = {}) {
  using namespace detail;
  constexpr const char* where = "attention::attend";
  validate(a);
  kv::detail::require_cache(cache);
  validate(plan.room);
  const CascadeRoom& room = plan.room;
  validate_query_shapes(
      q, cache, room.requests, [&] { return "the plan's " + std::to_string(room.requests) + " requests"; }, out, lse,
      sinks);
  require(plan.words != nullptr && reinterpret_cast<std::uintptr_t>(plan.words) % 16 == 0, where, "plan",
          "words at a multiple of 16 bytes", "another address");
  if (q.rows.extent(0) == 0) return;
  CascadeDeviceCall<Q, C, O, M> call{
      {}, {}, {room, CascadeLayout(room), plan.words}, {}, q.rows, q.indptr, cache, out, lse, mask, sinks, {},
      cuda.fault()};
  const bool one_query_each = q.indptr.empty();
  if (one_query_each) call.indptr = {};
  DenseDeviceShape& x = call.x;
  x = dense_device_shape(q.rows, cache, a.scale, a.soft_cap, where);
  const DenseRoute route = dense_route<Q, shared_row_t<C>>(x, a, false, tuning, cuda.device().shared_bytes);
  CascadeLaunch<Q, C, O, M> launches{cuda, call, tuning, route};
  launches.choose_tiles();
  CascadeShapes& shapes = call.shapes;
  shapes.few_chunk = a.chunk > 0 ? a.chunk : tuning.chunk;
  shapes.many_chunk = a.chunk > 0 || shapes.many_rows == shapes.few_rows ? shapes.few_chunk : 4 * tuning.chunk;

  // Bounds of the lists, from what the host sees. Queries of a head count once for each piece and chunk.
  const index_t by_depth = room.deepest * x.total;
  const index_t queries = one_query_each && room.states < by_depth ? room.states : by_depth;
  const index_t states = (queries + room.longest / shapes.few_chunk * x.total) * x.group;
  const index_t chunks = room.tokens / shapes.few_chunk + room.pieces;
  CascadeTasks& tasks = call.tasks;
  tasks.states = states * x.heads;
  tasks.room = x.heads * (states / shapes.few_rows + chunks);
  require(tasks.room < index_t{1} << 31, where, "plan", "at most 2^31 tiles and chunks", tasks.room);
  require(queries * x.group < index_t{1} << 31 && x.total * x.heads < index_t{1} << 31 && x.group <= 65535, where, "q",
          "fewer queries and heads", x.total);
  Workspace::Scope scope(cuda.workspace());
  Workspace& memory = cuda.workspace();
  call.states.o = memory.take<float>(tasks.states * x.o_stride);
  call.states.ml = memory.take<float2>(tasks.states);
  tasks.tasks = memory.take<CascadeTask>(tasks.room);
  tasks.items = memory.take<CascadeItem>(room.pieces);
  tasks.query_of = one_query_each ? nullptr : memory.take<std::int32_t>(room.states);
  tasks.before = memory.take<std::int32_t>(room.pieces * x.heads);
  tasks.keys = memory.take<std::int32_t>(room.requests * x.heads);
  tasks.count = memory.take<std::int32_t>(1);

  const index_t most_blocks = 4 * index_t{cuda.device().multiprocessors};
  const index_t entries = (room.pieces + room.requests) * x.heads;
  const unsigned checkers =
      cuda_blocks(x.sequences > ceil_div(entries, list_threads) ? x.sequences : ceil_div(entries, list_threads), 1,
                  most_blocks);
  launch(cuda, where, cascade_plan_kernel<CascadeDeviceCall<Q, C, O, M>>,
         CudaGrid{dim3(1 + (checkers > 0 ? checkers : 1)), dim3(list_threads)}, call);
  launches.enqueue();
  launch(cuda, where, cascade_join_kernel<CascadeDeviceCall<Q, C, O, M>>,
         CudaGrid{dim3(static_cast<unsigned>(x.total * x.heads), static_cast<unsigned>(x.group)), dim3(join_threads)},
         call);
}

/// The same as attend(Cpu&, ...) of cascade.hpp, with everything in device memory, the plan too: see upload().
///
/// Error: as Dense's on Cuda. A request's result does not depend on the order of requests, segments and pages, nor on
/// where tiles and blocks end; on other requests only through how long chunks are. A piece of the plan is cut into
/// chunks of Dense::chunk tokens; by default of DenseTuning::chunk, and of four times as many in 8- and 16-bit caches
/// where more than 16 rows share them, because each row of each chunk leaves a state of 4 * (value_dim + 2) bytes in
/// scratch.
/// Enqueues and returns. What the host sees raises ArgumentError at once; lengths, tables, offsets, masks and whether
/// the plan fits the cache are checked by the first kernel: cuda.check() then raises the error, and nothing is written.
/// plan.room sizes blocks and scratch: a captured call is replayed with whatever plan is in plan.words by then.
template <Storage Q, kv::CacheView C, Storage O, Mask M = Causal>
void attend(Cuda& cuda, const Dense& a, const DeviceCascade& plan, const Queries<Q>& q, const C& cache, View<O, 3> out,
            View<float, 2> lse = {}, const M& mask = {}, View<const float, 1> sinks = {}) {
  attend(cuda, dense_tuning(cuda.device().compute_capability), a, plan, q, cache, out, lse, mask, sinks);
}

/// The same for one query per request: q [requests, query_heads, key_dim].
template <class Q, kv::CacheView C, Storage O, Mask M = Causal>
  requires Storage<std::remove_const_t<Q>>
void attend(Cuda& cuda, const Dense& a, const DeviceCascade& plan, View<Q, 3> q, const C& cache, View<O, 3> out,
            View<float, 2> lse = {}, const M& mask = {}, View<const float, 1> sinks = {}) {
  attend(cuda, a, plan, Queries<std::remove_const_t<Q>>{q}, cache, out, lse, mask, sinks);
}

}  // namespace decant::attention

#endif
