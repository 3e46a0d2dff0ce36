// The kernels of draft trees, for the table of what they take. Never run.
#include "decant/speculative/eagle_tree.cuh"
#include "decant/speculative/keep_path.cuh"
#include "decant/speculative/tree_masks.cuh"

using namespace decant;
using namespace decant::speculative;

void grow(Cuda& cuda) {
  eagle_level(cuda, EagleOptions{}, 0, {}, EagleGrowth{});
  eagle_trees(cuda, EagleOptions{}, DraftBudget{}, EagleGrowth{}, DeviceForest{});
}
void masks(Cuda& cuda) {
  mask_offsets(cuda, {}, {});
  position_ids(cuda, {}, {}, {});
}
template void speculative::keep_path(Cuda&, const kv::DenseKV<bf16>&, const AcceptedPaths&);
template void speculative::keep_path(Cuda&, const kv::RaggedKV<bf16>&, const AcceptedPaths&);
template void speculative::keep_path_rows(Cuda&, const kv::PagedKV<bf16>&, const AcceptedPaths&);
