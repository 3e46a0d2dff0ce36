// decant: KeyDiff on Cuda: a pass that sums the directions of keys per tile, a sum over tiles in double, and a pass for
// the cosines. Moves 2 kv_heads * n * key_dim * sizeof(T) bytes, 4 per token and 12 key_dim per 64 tokens, 8 key_dim
// FLOPs per token; against the f64 definition within 2e-6 of a head's largest score, as on the CPU.
#ifndef DECANT_KV_KEYDIFF_CUH
#define DECANT_KV_KEYDIFF_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "detail/device_layer.cuh"
#include "detail/key_rows.cuh"
#include "detail/keydiff_blocks.cuh"
#include "eviction.cuh"
#include "keydiff.hpp"

namespace decant::kv {

namespace detail {

/// 1 / |k|; 0 for a key of zeros.
__device__ inline float inverse_root(float square) {
  return square == 0 ? 0.0f : 1.0f / sqrtf(square);
}

/// sums [kv_heads][tiles][dim]: the directions of one tile of keys, added up.
template <class T, class X>
__global__ __launch_bounds__(row_threads, 2) void direction_sums_kernel(const X x, RowTiling tiling,
                                                                        View<float, 3> sums, const FaultWord* fault) {
  extern __shared__ float4 shared_rows[];
  __shared__ float inverse[64];
  if (faulted(fault)) return;
  const KeyTile tile = key_tile(x, tiling, sums.extent(1) * tiling.rows, shared_rows);
  if (tile.count == 0) return;
  load_key_tile<T>(x, tile);
  tile_squares(tile.keys, tile.stride, tile.rows, tile.dim, inverse);
  __syncthreads();
  if (threadIdx.x < 64)
    inverse[threadIdx.x] = inverse_root(static_cast<int>(threadIdx.x) < tile.rows ? inverse[threadIdx.x] : 0.0f);
  __syncthreads();
  for (int d = static_cast<int>(threadIdx.x); d < tile.dim; d += row_threads) {
    float sum = 0;
    for (int i = 0; i < tile.rows; ++i) sum = fmaf(inverse[i], tile.keys[i * tile.stride + d], sum);
    sums(tile.head, blockIdx.x, d) = sum;
  }
}

/// anchors [kv_heads][stride]: the tiles' sums, divided by the length; zero behind dim. A block for 32 columns.
template <class X>
__global__ __launch_bounds__(row_threads, 2) void anchor_kernel(const X x, int tile, View<const float, 3> sums,
                                                                View<float, 2> anchors, const FaultWord* fault) {
  __shared__ double parts[8][32];
  if (faulted(fault)) return;
  const index_t h = blockIdx.y;
  const index_t used = (x.length(h) + tile - 1) / tile;
  const index_t d = blockIdx.x * index_t{32} + threadIdx.x % 32;
  double sum = 0;
  if (d < sums.extent(2)) {
    for (index_t i = threadIdx.x / 32; i < used; i += 8) sum += static_cast<double>(sums(h, i, d));
  }
  parts[threadIdx.x / 32][threadIdx.x % 32] = sum;
  __syncthreads();
  if (threadIdx.x >= 32 || d >= anchors.extent(1)) return;
  for (int w = 1; w < 8; ++w) sum += parts[w][threadIdx.x];
  anchors(h, d) = static_cast<float>(sum);  // the sum points where the mean does
}

template <class T, class X>
__global__ __launch_bounds__(row_threads,
                             2) void key_differences_kernel(const X x, RowTiling tiling, View<const float, 2> anchors,
                                                            View<float, 2> scores, const FaultWord* fault) {
  extern __shared__ float4 shared_rows[];
  __shared__ float squares[64];
  __shared__ float products[64];
  __shared__ float anchor_square[8];
  alignas(16) __shared__ float anchor_copy[1024];  // read by every warp
  if (faulted(fault)) return;
  const KeyTile tile = key_tile(x, tiling, scores.extent(1), shared_rows);
  if (tile.count == 0) return;
  load_key_tile<T>(x, tile);
  const float* anchor = &anchors(tile.head, index_t{0});
  if (tile.stride <= 1024) {
    for (int d = static_cast<int>(threadIdx.x); d < tile.stride; d += row_threads) anchor_copy[d] = anchor[d];
    __syncthreads();
    anchor = anchor_copy;
  }
  tile_squares(tile.keys, tile.stride, tile.rows, tile.dim, squares);
  tile_dots(tile.keys, tile.stride, anchor, tile.rows, tile.dim, products);
  if (threadIdx.x < 32) tile_squares(anchor, 0, 4, tile.dim, anchor_square);
  __syncthreads();
  const int i = static_cast<int>(threadIdx.x);
  if (i >= tile.count) return;
  scores(tile.head, tile.first + i) =
      key_difference(products[i], inverse_root(squares[i]), inverse_root(anchor_square[0]));
}

/// directions(h, t): keys of length 1, or 0.
template <class T, class X>
__global__ __launch_bounds__(row_threads, 2) void directions_of_keys_kernel(const X x, RowTiling tiling,
                                                                            View<float, 3> directions,
                                                                            const FaultWord* fault) {
  extern __shared__ float4 shared_rows[];
  __shared__ float squares[64];
  if (faulted(fault)) return;
  const KeyTile tile = key_tile(x, tiling, directions.extent(1), shared_rows);
  if (tile.count == 0) return;
  load_key_tile<T>(x, tile);
  tile_squares(tile.keys, tile.stride, tile.rows, tile.dim, squares);
  __syncthreads();
  for (int at = static_cast<int>(threadIdx.x); at < tile.count * tile.dim; at += row_threads) {
    const int i = at / tile.dim;
    const int d = at % tile.dim;
    directions(tile.head, tile.first + i, d) = tile.keys[i * tile.stride + d] * inverse_root(squares[i]);
  }
}

}  // namespace detail

/// O(kv_heads * n * key_dim), two reads of the keys. Scratch: 4 key_dim bytes per head and 64 tokens.
template <class X>
void score(Cuda& cuda, const KeyDiff&, const X& x, View<float, 2> scores) {
  constexpr const char* where = "kv::KeyDiff";
  const index_t longest = detail::begin_scores(cuda, where, x, scores);
  Workspace::Scope scope(cuda.workspace());
  detail::with_plain_rows(cuda, x, longest, true, false, [&](const auto& plain) {
    using P = std::remove_cvref_t<decltype(plain)>;
    const index_t dim = x.cache.key_dim();
    const auto heads = static_cast<unsigned>(x.kv_heads());
    const auto tiling = detail::row_tiling(cuda, where, dim, 0);
    const unsigned tiles = cuda_blocks(longest, tiling.rows);
    const int stride = detail::row_stride(dim);
    const auto sums = cuda.workspace().template take_view<float>(heads, tiles, dim);
    const auto anchors = cuda.workspace().template take_view<float>(heads, stride);
    const CudaGrid grid{dim3(tiles, heads), dim3(detail::row_threads), tiling.shared};
    launch(cuda, where, detail::direction_sums_kernel<detail::key_of<P>, P>, grid, plain, tiling, sums, cuda.fault());
    launch(cuda, where, detail::anchor_kernel<P>,
           CudaGrid{dim3(cuda_blocks(stride, 32), heads), dim3(detail::row_threads)}, plain, tiling.rows, sums, anchors,
           cuda.fault());
    launch(cuda, where, detail::key_differences_kernel<detail::key_of<P>, P>, grid, plain, tiling, anchors, scores,
           cuda.fault());
  });
}

/// The same scores: what a caller sees who asks for scores alone.
template <class X>
void score(Cuda& cuda, const BlockwiseKeyDiff& p, const X& x, View<float, 2> scores) {
  validate(p);
  score(cuda, KeyDiff{}, x, scores);
}

/// The selector: ignores the scores that came. Scratch: 4 key_dim + 8 bytes per token and head.
/// O(kv_heads * n / block * (count + block) * key_dim).
template <class X>
void choose(Cuda& cuda, const BlockwiseKeyDiff& p, const X& x, const ScoredLayer& layer,
            View<const std::int32_t, 1> counts, KeptView kept) {
  constexpr const char* where = "kv::BlockwiseKeyDiff";
  validate(p);
  detail::require_scored(layer, where);
  require_equal(kept.counts.extent(0), counts.extent(0), where, "kept.counts");
  const index_t n = layer.scores.extent(1);
  const index_t heads = x.kv_heads();
  const index_t dim = x.cache.key_dim();
  Workspace::Scope scope(cuda.workspace());
  Workspace& w = cuda.workspace();
  const auto directions = w.template take_view<float>(heads, n, dim);
  const detail::KeyDiffScratch scratch{
      directions, w.template take_view<float>(heads, dim), w.template take_view<std::int32_t>(heads, n),
      w.template take_view<std::uint32_t>(heads, n), w.template take_view<index_t>(heads)};
  detail::with_plain_rows(cuda, x, n, true, false, [&](const auto& plain) {
    using P = std::remove_cvref_t<decltype(plain)>;
    const auto tiling = detail::row_tiling(cuda, where, dim, 0);
    launch(cuda, where, detail::directions_of_keys_kernel<detail::key_of<P>, P>,
           CudaGrid{dim3(cuda_blocks(n, tiling.rows), static_cast<unsigned>(heads)), dim3(detail::row_threads),
                    tiling.shared},
           plain, tiling, directions, cuda.fault());
  });
  using Scratch = detail::KeyDiffScratch;
  const auto blocks = static_cast<unsigned>(heads);
  launch(cuda, where, detail::keydiff_blocks_kernel<Scratch>, CudaGrid{dim3(blocks), dim3(detail::keydiff_threads)},
         scratch, p.block, layer, counts, cuda.fault());
  launch(cuda, where, detail::check_room_kernel<Scratch>, CudaGrid{dim3(1), dim3(64)}, scratch, layer.layer,
         kept.indices.extent(1), cuda.fault());
  launch(cuda, where, detail::keep_lists_kernel<Scratch>, detail::token_grid(n > 0 ? n : 1, heads), scratch, kept,
         cuda.fault());
}

static_assert(KVEvictionPolicy<KeyDiff, Cuda> && KVEvictionPolicy<BlockwiseKeyDiff, Cuda>);

}  // namespace decant::kv

#endif
