// The kernels of drafters, for the table of what they take. Never run.
#include "decant/speculative/block_drafter.cuh"
#include "decant/speculative/parallel_mask.cuh"
#include "decant/speculative/position_gate.cuh"
#include "decant/speculative/top_logits.cuh"

using namespace decant;
using namespace decant::speculative;

template void speculative::embed_slots<bf16>(Cuda&, const ParallelMaskOptions&, const FreshTokens&,
                                             const View<const bf16, 2>&, const View<const bf16, 2>&,
                                             const View<bf16, 2>&);
template void speculative::top_logits(Cuda&, View<const float, 2>, const TopLogits&);
template void speculative::top_logits(Cuda&, View<const bf16, 2>, const TopLogits&);
void features(Cuda& cuda) { rank_head_features(cuda, {}, {}); }
void gates(Cuda& cuda) {
  gated_input(cuda, {}, {}, {}, {}, {});
  gate_step(cuda, {}, {}, {});
}
