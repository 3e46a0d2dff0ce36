// decant: joins what SANTA's chunks have summed, in ascending order, and writes the result. It must read
// 4 * value_dim bytes per query head and chunk in which it has drawn a row, and write a row.
#ifndef DECANT_ATTENTION_DETAIL_SANTA_MERGE_CUH
#define DECANT_ATTENTION_DETAIL_SANTA_MERGE_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "santa_plan.cuh"

namespace decant::attention::detail {

/// A block per row. Warp w takes chunks w, w + 4, ... and their sums are joined in warp order.
template <class O>
__global__ void __launch_bounds__(santa_threads)
    santa_merge_kernel(const SantaCall c, const View<O, 3> out, const View<float, 2> lse,
                       const View<const float, 1> sinks) {
  constexpr int warps = santa_threads / 32;
  __shared__ float shared[warps][32 * 4];
  if (faulted(c.fault)) return;
  const index_t row = blockIdx.x;
  const index_t query = c.first + row / (c.heads * c.group);
  const index_t head = row % (c.heads * c.group);
  const SantaChunks chunks = chunks_of(c.seen(row));
  const SantaRow h = c.w.rows[row];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;

  const SantaEnd end = santa_end(h.mass, h.reference, sinks, head);
  const float nan = __int_as_float(0x7fc00000);
  const bool is_nan = h.nan != 0;
  const bool drawn = c.a.samples > 0 && h.mass > 0;
  if (threadIdx.x == 0 && lse.data() != nullptr) lse(query, head) = is_nan ? nan : end.lse;

  const index_t dim = out.extent(2);
  for (index_t strip = 0; strip < dim; strip += 32 * 4) {
    const index_t d = strip + lane * 4;
    float4 sum = {-0.0f, -0.0f, -0.0f, -0.0f};
    if (d < c.o_stride && drawn && !is_nan) {
      for (index_t i = chunks.first + warp; i < chunks.last; i += warps) {
        if (c.w.drawn[row * c.chunks + i] == 0) continue;
        const float4 x = *reinterpret_cast<const float4*>(c.w.sums_of_values + (row * c.chunks + i) * c.o_stride + d);
        sum.x += x.x;
        sum.y += x.y;
        sum.z += x.z;
        sum.w += x.w;
      }
    }
    __syncthreads();
    *reinterpret_cast<float4*>(&shared[warp][lane * 4]) = sum;
    __syncthreads();
    const index_t own = strip + threadIdx.x;
    if (own >= dim) continue;
    float x = -0.0f;
    for (int w = 0; w < warps; ++w) x += shared[w][threadIdx.x];
    if (end.factor != 1) x = static_cast<float>(static_cast<double>(x) * end.factor);
    if (!drawn) x = 0.0f;
    out(query, head, own) = static_cast<O>(is_nan ? nan : x);
  }
}

}  // namespace decant::attention::detail

#endif
