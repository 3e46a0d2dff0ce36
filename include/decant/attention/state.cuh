// decant: merge() of attention states on Cuda: see state.hpp for the algebra, which is shared with the CPU. A warp per
// (query, head). It must read parts * (value_dim + 1) * 4 bytes per row and write one row.
#ifndef DECANT_ATTENTION_STATE_CUH
#define DECANT_ATTENTION_STATE_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "../core/cuda.cuh"
#include "../core/detail/device.cuh"
#include "state.hpp"

namespace decant::attention {

namespace detail {

/// As many parts as one launch can be told of: they travel by value.
inline constexpr index_t most_merged = 32;

struct MergedParts {
  State<const float> part[most_merged];
  int count;
};

/// Width: floats per access.
template <int Width>
__global__ void __launch_bounds__(128) merge_states_kernel(const MergedParts parts, const State<float> out) {
  using ::decant::detail::Pack;
  using ::decant::detail::whole_warp;
  const index_t heads = out.o.extent(1);
  const index_t rows = out.o.extent(0) * heads;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const index_t warps = gridDim.x * index_t{blockDim.x / 32};
  for (index_t row = blockIdx.x * index_t{blockDim.x / 32} + threadIdx.x / 32; row < rows; row += warps) {
    const index_t q = row / heads;
    const index_t h = row % heads;
    const float own = lane < parts.count ? parts.part[lane].lse(q, h) : empty_lse;
    float reference = empty_lse;
    for (int p = 0; p < parts.count; ++p) reference = merge_reference(reference, __shfl_sync(whole_warp, own, p));
    const double own_weight = merge_weight(own, reference);
    double total = 0;
    for (int p = 0; p < parts.count; ++p) total += __shfl_sync(whole_warp, own_weight, p);
    for (index_t strip = 0; strip < out.o.extent(2); strip += 32 * Width) {
      const index_t d = strip + lane * Width;
      const bool inside = d < out.o.extent(2);
      double sum[Width];
#pragma unroll
      for (int e = 0; e < Width; ++e) sum[e] = -0.0;  // the true identity of addition: -0 + x has the bits of x
#pragma unroll 4
      for (int p = 0; p < parts.count; ++p) {
        const double w = __shfl_sync(whole_warp, own_weight, p);
        if (w == 0 || !inside) continue;
        const auto x = *reinterpret_cast<const Pack<float, Width>*>(&parts.part[p].o(q, h, d));
#pragma unroll
        for (int e = 0; e < Width; ++e) sum[e] += w * static_cast<double>(x.at[e]);
      }
      if (!inside) continue;
      Pack<float, Width> result;
#pragma unroll
      for (int e = 0; e < Width; ++e) result.at[e] = total == 0 ? 0.0f : static_cast<float>(sum[e] / total);
      *reinterpret_cast<Pack<float, Width>*>(&out.o(q, h, d)) = result;
    }
    __syncwarp();  // out may be a part: all lanes have read its lse
    if (lane == 0) out.lse(q, h) = merge_lse(total, reference);
  }
}

inline bool merges_by_four(const View<const float, 3>& o) {
  return o.stride(2) == 1 && o.stride(0) % 4 == 0 && ::decant::detail::aligned_rows(o.data(), o.stride(1), o.extent(2));
}

}  // namespace detail

/// The same as merge(Cpu&, ...). The list of parts is host memory, what its views point to is the device's, and `out`
/// may be one of the parts. Up to 32 parts go in one launch; more are joined 32 and then 31 at a time, in order.
inline void merge(Cuda& cuda, View<const State<const float>, 1> parts, const State<float>& out) {
  using namespace detail;
  constexpr const char* where = "attention::merge";
  validate_merge(parts, out);
  const index_t rows = out.o.extent(0) * out.o.extent(1);
  if (rows == 0) return;
  Workspace::Scope scope(cuda.workspace());
  const index_t count = parts.extent(0);
  State<float> between;
  if (count > most_merged) {
    between.o = cuda.workspace().take_view<float>(out.o.extent(0), out.o.extent(1), out.o.extent(2));
    between.lse = cuda.workspace().take_view<float>(out.o.extent(0), out.o.extent(1));
  }
  index_t done = 0;
  do {
    MergedParts some{};
    if (done > 0) some.part[some.count++] = {between.o, between.lse};
    while (done < count && some.count < most_merged) some.part[some.count++] = parts[done++];
    const State<float>& to = done == count ? out : between;
    bool wide = merges_by_four(to.o);
    for (int p = 0; p < some.count; ++p) wide = wide && merges_by_four(some.part[p].o);
    launch(cuda, where, wide ? merge_states_kernel<4> : merge_states_kernel<1>,
           CudaGrid{dim3(cuda_blocks(rows, 4, index_t{1} << 20)), dim3(128)}, some, to);
  } while (done < count);
}

/// Joins two states.
inline void merge(Cuda& cuda, const State<const float>& a, const State<const float>& b, const State<float>& out) {
  const State<const float> parts[] = {a, b};
  merge(cuda, View<const State<const float>, 1>(parts, 2), out);
}

}  // namespace decant::attention

#endif
