// decant: tree_masks.hpp on the device, for a batch of trees that lie there (eagle_trees(), or copied): where each
// tree's mask begins, the masks as attention::TreeMask reads them, and positions. The host need not know how large trees
// are.
#ifndef DECANT_SPECULATIVE_TREE_MASKS_CUH
#define DECANT_SPECULATIVE_TREE_MASKS_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "../attention/tree_mask.cuh"
#include "../core/detail/device.cuh"
#include "tree_masks.hpp"

namespace decant::speculative {

namespace detail {

inline constexpr int tree_threads = 128;

/// Node counts within [0, all.nodes], whatever the offsets say.
__device__ inline index_t nodes_of(const ForestView& trees, index_t b) {
  const index_t nodes = index_t{trees.offsets[b + 1]} - trees.offsets[b];
  return nodes < 0 ? 0 : nodes < trees.all.nodes ? nodes : index_t{trees.all.nodes};
}

/// One block.
template <int Threads>
__global__ void __launch_bounds__(Threads) mask_offsets_kernel(ForestView trees, View<index_t, 1> offsets) {
  __shared__ index_t sums[32];
  index_t before = 0;
  for (index_t tile = 0; tile < trees.trees(); tile += tree_threads) {
    const index_t b = tile + threadIdx.x;
    const index_t own = b < trees.trees() ? attention::tree_words(nodes_of(trees, b)) : 0;
    index_t total = 0;
    const index_t at = before + ::decant::detail::block_scan_before(own, total, sums);
    if (b < trees.trees()) offsets[b] = at;
    before += total;
  }
  if (threadIdx.x == 0) offsets[trees.trees()] = before;
}

/// Block b.
template <int Threads>
__global__ void __launch_bounds__(Threads)
    position_ids_kernel(ForestView trees, View<const std::int32_t, 1> contexts, View<std::int32_t, 1> positions) {
  const index_t b = blockIdx.x;
  const index_t first = trees.offsets[b];
  if (first < 0) return;
  for (index_t i = threadIdx.x; i < nodes_of(trees, b) && first + i < trees.all.nodes; i += tree_threads) {
    positions[first + i] = contexts[b] + trees.all.depth[first + i];
  }
}

}  // namespace detail

/// offsets [trees + 1], as on the host; the last one is how many words the masks take.
inline void mask_offsets(Cuda& cuda, const ForestView& trees, View<index_t, 1> offsets) {
  constexpr const char* where = "speculative::mask_offsets";
  require_equal(offsets.extent(0), trees.trees() + 1, where, "offsets");
  launch(cuda, where, detail::mask_offsets_kernel<detail::tree_threads>,
         CudaGrid{dim3(1), dim3(detail::tree_threads)}, trees, offsets);
}

/// words: room for them all. A parent that does not come before its child is told by cuda.check(); nothing is written
/// then.
inline attention::TreeMask tree_masks(Cuda& cuda, const ForestView& trees, View<const index_t, 1> offsets,
                                      View<std::uint64_t, 1> words) {
  require_equal(offsets.extent(0), trees.trees() + 1, "speculative::tree_masks", "offsets");
  attention::tree_mask_from_parents(cuda, parents(trees.all), trees.offsets, offsets, words);
  return {View<const std::uint64_t, 1>(words), offsets};
}

/// positions [all.nodes]: of each node of tree b, contexts[b] + depth.
inline void position_ids(Cuda& cuda, const ForestView& trees, View<const std::int32_t, 1> contexts,
                         View<std::int32_t, 1> positions) {
  constexpr const char* where = "speculative::position_ids";
  require_equal(contexts.extent(0), trees.trees(), where, "contexts");
  require_equal(positions.extent(0), trees.all.nodes, where, "positions");
  const CudaGrid grid{dim3(static_cast<unsigned>(trees.trees())), dim3(detail::tree_threads)};
  launch(cuda, where, detail::position_ids_kernel<detail::tree_threads>, grid, trees, contexts, positions);
}

}  // namespace decant::speculative

#endif
