// decant: the kernels of shared-prefix attention on Cuda: those of dense attention over the tasks of cascade_tasks.cuh,
// pieces of few rows and of many in one launch, and one that joins the states of each request in the order of its keys.
#ifndef DECANT_ATTENTION_DETAIL_CASCADE_KERNELS_CUH
#define DECANT_ATTENTION_DETAIL_CASCADE_KERNELS_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "cascade_tasks.cuh"
#include "dense_mma.cuh"
#include "dense_rows.cuh"

namespace decant::attention::detail {

/// A block per task. It must move (key_dim + value_dim) * 2 bytes per token and tile, and (value_dim + 2) * 4 per row.
template <class Few, class Many, class Q, class C, class O, class M>
__global__ void __launch_bounds__(Few::threads)
    cascade_mma_kernel(const CascadeDeviceCall<Q, C, O, M> call, const MmaLayout few, const MmaLayout many,
                       const int p_terms) {
  using Call = CascadeDeviceCall<Q, C, O, M>;
  static_assert(Few::threads == Many::threads);
  extern __shared__ __align__(128) unsigned char cascade_shared[];
  CascadeWork work;
  if (!find_work(call, work)) return;
  if constexpr (!std::is_same_v<Few, Many>) {
    if (work.rows > Few::rows) return MmaKernel<Many, Call, CascadeWork>(call, many, p_terms, cascade_shared).run(work);
  }
  MmaKernel<Few, Call, CascadeWork>(call, few, p_terms, cascade_shared).run(work);
}

/// The same on CUDA cores.
template <int Rows, class Q, class C, class O, class M>
__global__ void __launch_bounds__(rows_threads, 2)
    cascade_rows_kernel(const CascadeDeviceCall<Q, C, O, M> call, const RowsLayout layout) {
  extern __shared__ __align__(128) unsigned char cascade_shared[];
  CascadeWork work;
  if (find_work(call, work))
    RowsKernel<Rows, CascadeDeviceCall<Q, C, O, M>, CascadeWork>(call, layout, cascade_shared).run(work);
}

inline constexpr int join_threads = 128;

/// A block per query and query head: blockIdx.x = query * heads + KV head, blockIdx.y the row of the group. The states
/// of the request's pieces and their chunks, numbered in the order of its keys, go to warps in turn, and their sums are
/// joined in warp order. It must read (value_dim + 2) * 4 bytes per state and write a row.
template <class Call>
__global__ void __launch_bounds__(join_threads) cascade_join_kernel(const Call a) {
  constexpr int warps = join_threads / 32;
  constexpr int most_parts = 32;  // at a time
  __shared__ float shared_m[warps];
  __shared__ float shared_l[warps];
  __shared__ float shared_o[warps][32 * 4];
  __shared__ index_t shared_state[most_parts];  // of a part's first chunk
  __shared__ int shared_rows[most_parts];       // between chunks
  __shared__ int shared_chunks[most_parts];
  if (faulted(a.fault)) return;
  const index_t query = blockIdx.x / a.x.heads;
  const index_t h = blockIdx.x % a.x.heads;
  index_t request = query;
  if (a.indptr.data() != nullptr) {  // the last one whose first query is not behind this one
    request = 0;
    for (index_t high = a.plan.room.requests; high - request > 1;) {
      const index_t middle = (request + high) / 2;
      if (a.indptr[middle] <= query)
        request = middle;
      else
        high = middle;
    }
  }
  const index_t first_query = queries_of(a.indptr, request).first;
  const index_t begin = a.plan.first_part(request);
  const index_t end = a.plan.first_part(request + 1);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;

  // Where the states of up to most_parts parts stand; nothing to do where they are all that there are, and known.
  const auto find_parts = [&](index_t first) {
    __syncthreads();
    if (threadIdx.x < most_parts && first + threadIdx.x < end) {
      const index_t pair = a.plan.pair_of(first + threadIdx.x);
      const index_t piece = a.plan.piece_of(pair);
      const CascadeItem item = a.tasks.items[piece];
      const index_t in_piece =
          a.tasks.query_of == nullptr ? pair - a.plan.first_pair(piece) : index_t{a.tasks.query_of[pair]};
      const index_t row = (in_piece + query - first_query) * a.x.group + blockIdx.y;
      shared_state[threadIdx.x] = item.first_state + h * item.chunks * item.rows + row;
      shared_rows[threadIdx.x] = item.rows;
      shared_chunks[threadIdx.x] = item.chunks;
    }
    __syncthreads();
  };
  const bool at_once = end - begin <= most_parts;
  if (at_once) find_parts(begin);
  // body(state) for those of this worker's share, every `workers`-th, in order.
  const auto each_state = [&](int worker, int workers, auto body) {
    int before = 0;  // states of the parts before, modulo workers
    for (index_t first = begin; first < end; first += most_parts) {
      if (!at_once) find_parts(first);
      const int parts = static_cast<int>(end - first < most_parts ? end - first : most_parts);
      for (int i = 0; i < parts; ++i) {
        const int chunks = shared_chunks[i];
        for (int c = (worker - before + workers) % workers; c < chunks; c += workers)
          body(shared_state[i] + index_t{c} * shared_rows[i]);
        before = (before + chunks) % workers;
      }
    }
  };

  float most = empty_lse;
  each_state(static_cast<int>(threadIdx.x), join_threads,
             [&](index_t state) { most = merge_reference(most, a.states.ml[state].x); });
  most = warp_reduce(most, Larger{});
  if (lane == 0) shared_m[warp] = most;
  __syncthreads();
  for (int w = 0; w < warps; ++w) most = merge_reference(most, shared_m[w]);
  const float base = most == empty_lse ? 0.0f : most;

  float l = 0;
  each_state(warp, warps, [&](index_t state) {
    const float2 ml = a.states.ml[state];
    l += ml.y * exp2f(ml.x - base);
  });
  if (lane == 0) shared_l[warp] = l;
  __syncthreads();
  RowState state{most, 0};
  for (int w = 0; w < warps; ++w) state.l += shared_l[w];
  const index_t head = h * a.x.group + blockIdx.y;
  const RowFinish finish = finish_row(state, sink_of(a, head));
  if (threadIdx.x == 0 && a.lse.data() != nullptr) a.lse(query, head) = finish.lse;

  for (index_t strip = 0; strip < a.x.o_stride; strip += 32 * 4) {
    const index_t d = strip + lane * 4;
    const bool inside = d < a.x.o_stride;
    float4 sum = {-0.0f, -0.0f, -0.0f, -0.0f};
    each_state(warp, warps, [&](index_t at) {
      const float weight = exp2f(a.states.ml[at].x - base);
      if (!inside || weight == 0) return;  // what does not count may be infinite
      const float4 o = *reinterpret_cast<const float4*>(a.states.o + at * a.x.o_stride + d);
      sum.x += weight * o.x;
      sum.y += weight * o.y;
      sum.z += weight * o.z;
      sum.w += weight * o.w;
    });
    __syncthreads();
    *reinterpret_cast<float4*>(&shared_o[warp][lane * 4]) = sum;
    __syncthreads();
    const index_t own = strip + threadIdx.x;
    if (own < a.x.value_dim) {
      float total = -0.0f;
      for (int w = 0; w < warps; ++w) total += shared_o[w][threadIdx.x];
      a.out(query, head, own) = finished<typename Call::Out>(total, finish.factor);
    }
  }
}

}  // namespace decant::attention::detail

#endif
