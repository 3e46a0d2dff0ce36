// decant: KNorm on Cuda: one pass over the keys. Moves kv_heads * n * (key_dim * sizeof(T) + 4) bytes, 2 key_dim FLOPs
// per token; against the f64 definition within 1e-6 of a head's largest score, as on the CPU.
#ifndef DECANT_KV_KNORM_CUH
#define DECANT_KV_KNORM_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "detail/device_layer.cuh"
#include "detail/key_rows.cuh"
#include "eviction.cuh"
#include "knorm.hpp"

namespace decant::kv {

namespace detail {

/// One tile of one head per block.
template <class T, class X>
__global__ __launch_bounds__(row_threads, 2) void key_norms_kernel(const X x, RowTiling tiling, View<float, 2> scores,
                                                                   const FaultWord* fault) {
  extern __shared__ float4 shared_rows[];
  __shared__ float squares[64];
  if (faulted(fault)) return;
  const KeyTile tile = key_tile(x, tiling, scores.extent(1), shared_rows);
  if (tile.count == 0) return;
  load_key_tile<T>(x, tile);
  tile_squares(tile.keys, tile.stride, tile.rows, tile.dim, squares);
  __syncthreads();
  const int i = static_cast<int>(threadIdx.x);
  if (i < tile.count) scores(tile.head, tile.first + i) = -sqrtf(squares[i]);
}

}  // namespace detail

/// -||k_j||. O(kv_heads * n * key_dim), one read of the keys.
template <class X>
void score(Cuda& cuda, const KNorm&, const X& x, View<float, 2> scores) {
  constexpr const char* where = "kv::KNorm";
  const index_t longest = detail::begin_scores(cuda, where, x, scores);
  Workspace::Scope scope(cuda.workspace());
  detail::with_plain_rows(cuda, x, longest, true, false, [&](const auto& plain) {
    using P = std::remove_cvref_t<decltype(plain)>;
    const auto tiling = detail::row_tiling(cuda, where, x.cache.key_dim(), 0);
    launch(cuda, where, detail::key_norms_kernel<detail::key_of<P>, P>,
           CudaGrid{dim3(cuda_blocks(longest, tiling.rows), static_cast<unsigned>(x.kv_heads())),
                    dim3(detail::row_threads), tiling.shared},
           plain, tiling, scores, cuda.fault());
  });
}

static_assert(KVEvictionPolicy<KNorm, Cuda>);

}  // namespace decant::kv

#endif
