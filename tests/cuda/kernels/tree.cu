// The kernels of draft trees, for the table of what they take. Never run.
#include "decant/speculative/eagle_tree.cuh"
#include "decant/speculative/keep_path.cuh"

using namespace decant;
using namespace decant::speculative;

void grow(Cuda& cuda) {
  eagle_level(cuda, EagleOptions{}, 0, {}, EagleGrowth{});
  eagle_trees(cuda, EagleOptions{}, DraftBudget{}, EagleGrowth{}, DeviceForest{});
}
template void speculative::keep_path(Cuda&, const kv::DenseKV<bf16>&, const AcceptedPaths&);
template void speculative::keep_path(Cuda&, const kv::RaggedKV<bf16>&, const AcceptedPaths&);
template void speculative::keep_path_rows(Cuda&, const kv::PagedKV<bf16>&, const AcceptedPaths&);
