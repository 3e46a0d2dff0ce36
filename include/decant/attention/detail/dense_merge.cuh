// decant: joins the states of a sequence's chunks, in ascending order, and writes the result. It must read
// chunks * (value_dim + 2) * 4 bytes per row and write a row.
#ifndef DECANT_ATTENTION_DETAIL_DENSE_MERGE_CUH
#define DECANT_ATTENTION_DETAIL_DENSE_MERGE_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "dense_work.cuh"

namespace decant::attention::detail {

inline constexpr int merge_threads = 128;

/// A block per row of a split sequence: blockIdx.x = (sequence * split_queries + query) * heads + KV head, blockIdx.y
/// the row of the group. Warp w takes chunks w, w + 4, ... and their sums are joined in warp order.
template <class Call>
__global__ void __launch_bounds__(merge_threads) dense_merge_kernel(const Call a) {
  constexpr int warps = merge_threads / 32;
  __shared__ float shared_m[warps];
  __shared__ float shared_l[warps];
  __shared__ float shared_o[warps][32 * 4];
  if (faulted(a.fault)) return;
  const index_t h = blockIdx.x % a.x.heads;
  const index_t i = blockIdx.x / a.x.heads % a.x.split_queries;
  const index_t s = blockIdx.x / a.x.heads / a.x.split_queries;
  const QueryRange queries = queries_of(a.indptr, s);
  if (i >= queries.count) return;
  const index_t row = i * a.x.group + blockIdx.y;
  const index_t tile = row / a.x.tile_rows;
  const index_t in_tile = row % a.x.tile_rows;
  index_t first_slot;
  int chunks;
  if (a.plan.tasks != nullptr) {
    const DenseItem item = a.plan.items[s * a.x.heads + h];
    if (item.chunks < 0) return;
    chunks = item.chunks;
    first_slot = item.first_slot + tile * chunks;
  } else {
    const index_t n = sound_length(a.x, a.cache, a.mask, s, h, 1, a.fault);
    if (n < 0) return;
    const ChunkRange range = chunks_of(a.mask, s, 1, n, a.x.chunk);
    const index_t tiles = (a.x.group + a.x.tile_rows - 1) / a.x.tile_rows;
    chunks = static_cast<int>(range.count);
    first_slot = ((s * a.x.heads + h) * tiles + tile) * a.x.most_chunks + range.first;
  }
  const auto at = [&](int c) { return (first_slot + c) * a.x.tile_rows + in_tile; };
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;

  float most = empty_lse;
  for (int c = static_cast<int>(threadIdx.x); c < chunks; c += merge_threads)
    most = merge_reference(most, a.states.ml[at(c)].x);
  most = warp_reduce(most, Larger{});
  if (lane == 0) shared_m[warp] = most;
  __syncthreads();
  for (int w = 0; w < warps; ++w) most = merge_reference(most, shared_m[w]);
  const float base = most == empty_lse ? 0.0f : most;

  float l = 0;
  for (int c = warp; c < chunks; c += warps) {
    const float2 ml = a.states.ml[at(c)];
    l += ml.y * exp2f(ml.x - base);
  }
  if (lane == 0) shared_l[warp] = l;
  __syncthreads();
  RowState state{most, 0};
  for (int w = 0; w < warps; ++w) state.l += shared_l[w];
  const index_t query = queries.first + i;
  const index_t head = h * a.x.group + blockIdx.y;
  const RowFinish finish = finish_row(state, sink_of(a, head));
  if (threadIdx.x == 0 && a.lse.data() != nullptr) a.lse(query, head) = finish.lse;

  for (index_t strip = 0; strip < a.x.o_stride; strip += 32 * 4) {
    const index_t d = strip + lane * 4;
    float4 sum = {-0.0f, -0.0f, -0.0f, -0.0f};
    if (d < a.x.o_stride) {
#pragma unroll 4
      for (int c = warp; c < chunks; c += warps) {
        const float4 o = *reinterpret_cast<const float4*>(a.states.o + at(c) * a.x.o_stride + d);
        const float weight = exp2f(a.states.ml[at(c)].x - base);
        sum.x += weight * o.x;
        sum.y += weight * o.y;
        sum.z += weight * o.z;
        sum.w += weight * o.w;
      }
    }
    __syncthreads();
    *reinterpret_cast<float4*>(&shared_o[warp][lane * 4]) = sum;
    __syncthreads();
    const index_t own = strip + threadIdx.x;
    if (own >= a.x.value_dim) continue;
    float total = -0.0f;
    for (int w = 0; w < warps; ++w) total += shared_o[w][threadIdx.x];
    a.out(query, head, own) =
        finished<std::remove_reference_t<decltype(a.out(query, head, own))>>(total, finish.factor);
  }
}

}  // namespace decant::attention::detail

#endif
