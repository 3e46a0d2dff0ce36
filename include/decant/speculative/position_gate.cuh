// decant: the gates of position_gate.hpp on the device, to the same bits: a block per row, one launch each. gated_input
// moves 3 H floats in and 2 H out per row; gate_step 3 H in (z comes a second time from the caches) and H out.
#ifndef DECANT_SPECULATIVE_POSITION_GATE_CUH
#define DECANT_SPECULATIVE_POSITION_GATE_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include <cstdint>

#include "../core/cuda.cuh"
#include "../core/row_sum.cuh"
#include "position_gate.hpp"

namespace decant::speculative {

namespace detail {

inline constexpr int gate_threads = 256;

template <int Threads>
__global__ void __launch_bounds__(Threads)
    gated_input_kernel(const PositionGate g, const View<const std::int32_t, 1> slots,
                       const View<const float, 2> embeddings, const View<const float, 2> features,
                       const View<float, 2> out, FaultWord* fault) {
  const index_t r = blockIdx.x;
  const index_t slot = slots[r];
  if (slot < 1 || slot > g.item.extent(0)) {
    if (threadIdx.x == 0) ::decant::detail::report(fault, ::decant::detail::Fault::gate, 0, 0, r);
    return;
  }
  const float gate = clamped_gate(g.item_gate);
  const index_t h = g.item.extent(1);
#pragma unroll 4
  for (index_t i = threadIdx.x; i < h; i += Threads) {
    out(r, i) = gated(embeddings(r, i), gate, g.item(slot - 1, i));
    out(r, h + i) = features(r, i);
  }
}

/// Dynamic shared memory: 4 bytes for each tile of a row.
template <int Threads>
__global__ void __launch_bounds__(Threads)
    gate_step_kernel(const PositionGate g, const View<const std::int32_t, 1> steps, const View<float, 2> z,
                     FaultWord* fault) {
  extern __shared__ float gate_totals[];
  const index_t r = blockIdx.x;
  const index_t j = steps[r];
  if (j < 1) {
    if (threadIdx.x == 0) ::decant::detail::report(fault, ::decant::detail::Fault::gate, 0, 1, r);
    return;
  }
  const index_t row = j <= g.step.extent(0) ? j - 1 : g.step.extent(0) - 1;
  const index_t h = z.extent(1);
  const float gate = sigmoid_of(block_tile_totals(GateTerm{g.w, z[r]}, h, gate_totals));
#pragma unroll 4
  for (index_t i = threadIdx.x; i < h; i += Threads) z(r, i) = gated(z(r, i), gate, g.step(row, i));
}

}  // namespace detail

/// All views on the device, those of g too. A slot that an item does not have is told by cuda.check(); its row is not
/// written.
inline void gated_input(Cuda& cuda, const PositionGate& g, View<const std::int32_t, 1> slots,
                        View<const float, 2> embeddings, View<const float, 2> features, View<float, 2> out) {
  constexpr const char* where = "speculative::gated_input";
  detail::require_inputs(g, slots, embeddings, features, out, where);
  require(slots.extent(0) <= 0x7fffffff, where, "slots", "fewer than 2^31 rows", slots.extent(0));
  launch(cuda, where, detail::gated_input_kernel<detail::gate_threads>,
         CudaGrid{dim3(static_cast<unsigned>(slots.extent(0))), dim3(detail::gate_threads)}, g, slots, embeddings,
         features, out, cuda.fault());
}

/// All views on the device, those of g too; z rows of at most 2^22. A step below 1 is told by cuda.check(); its row is
/// not written.
inline void gate_step(Cuda& cuda, const PositionGate& g, View<const std::int32_t, 1> steps, View<float, 2> z) {
  constexpr const char* where = "speculative::gate_step";
  detail::require_steps(g, steps, z, where);
  require(steps.extent(0) <= 0x7fffffff, where, "steps", "fewer than 2^31 rows", steps.extent(0));
  require(z.extent(1) <= index_t{1} << 22, where, "z", "at most 2^22 columns", z.extent(1));
  launch(cuda, where, detail::gate_step_kernel<detail::gate_threads>,
         CudaGrid{dim3(static_cast<unsigned>(steps.extent(0))), dim3(detail::gate_threads),
                  sizeof(float) * static_cast<std::size_t>(row_tiles(z.extent(1)))},
         g, steps, z, cuda.fault());
}

}  // namespace decant::speculative

#endif
