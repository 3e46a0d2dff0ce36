// decant: rejection.hpp on the device, token for token: a block per row, three passes of 4 bytes per token a round.
#ifndef DECANT_SAMPLING_REJECTION_CUH
#define DECANT_SAMPLING_REJECTION_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "draw.cuh"
#include "rejection.hpp"

namespace decant::sampling {

namespace detail {

struct RejectShared {
  unsigned long long words[32];
  float floats[32];
  std::int32_t ints[32];
  index_t found;
};

__device__ inline Above block_above(const float* w, index_t n, float pivot, RejectShared& shared) {
  unsigned long long mass = 0;
  unsigned long long count = 0;
#pragma unroll 4
  for (index_t i = threadIdx.x; i < n; i += draw_threads) {
    const float x = w[i];
    if (x > pivot) {
      mass += mass_of(x);
      ++count;
    }
  }
  mass = ::decant::detail::block_reduce(mass, ::decant::detail::Plus{}, 0ull, shared.words);
  count = ::decant::detail::block_reduce(count, ::decant::detail::Plus{}, 0ull, shared.words);
  return {mass, count};
}

/// Dynamic shared memory: a float for each tile.
template <class T>
__global__ void __launch_bounds__(draw_threads)
    reject_rows(Processing p, View<const T, 2> probabilities, DrawKeys keys, Drawn out, Stream stream) {
  extern __shared__ float totals[];
  __shared__ RejectShared shared;
  const index_t r = blockIdx.x;
  if (out.status[r] != RowStatus::ok) return;
  const index_t n = probabilities.extent(1);
  const float* const w = probabilities.data() + r * probabilities.stride(0);
  const DrawKey key = keys.at(r);
  float largest = 0;
  std::int32_t bad = 0;
  for (index_t i = threadIdx.x; i < n; i += draw_threads) {
    bad |= w[i] >= 0 && w[i] < 2 ? 0 : 1;
    largest = w[i] > largest ? w[i] : largest;
  }
  bad = ::decant::detail::block_reduce(bad, ::decant::detail::Larger{}, std::int32_t{0}, shared.ints);
  largest = ::decant::detail::block_reduce(largest, ::decant::detail::Larger{}, 0.0f, shared.floats);
  if (bad != 0 || !(largest > 0)) {
    if (threadIdx.x == 0) out.status[r] = bad != 0 ? RowStatus::bad_row : RowStatus::empty_support;
    return;
  }
  const RejectLimits limits = reject_limits(p, n, p.top_p < 1 ? block_above(w, n, 0.0f, shared).mass : 0);
  RejectState state{min_p_floor(p.min_p, largest), largest};
  for (std::uint32_t round = 0;; ++round) {
    const AboveTerm term{w, state.low};
    const double sum = block_tile_totals(term, n, totals);
    if (threadIdx.x < 32) {
      const index_t found = warp_draw_index(term, n, totals, sum, key.uniform(round, stream));
      if (threadIdx.x == 0) shared.found = found;
    }
    __syncthreads();
    const index_t found = shared.found;
    const float drawn = w[found];
    if (limits.hold(block_above(w, n, drawn, shared))) {
      if (threadIdx.x == 0) out.tokens[r] = static_cast<std::int32_t>(found);
      return;
    }
    const float middle = state.middle(drawn);
    state.narrow(drawn, middle, limits.hold(block_above(w, n, middle, shared)));
  }
}

}  // namespace detail

/// draw_by_rejection() of rejection.hpp.
inline void draw_by_rejection(Cuda& cuda, const Processing& p, View<const float, 2> probabilities, const DrawKeys& keys,
                              const Drawn& out, Stream stream = Stream::emit) {
  detail::require_rejection(p, probabilities, keys, out);
  const CudaGrid grid{dim3(static_cast<unsigned>(probabilities.extent(0))), dim3(detail::draw_threads),
                      sizeof(float) * static_cast<std::size_t>(row_tiles(probabilities.extent(1)))};
  launch(cuda, "sampling::draw_by_rejection", detail::reject_rows<float>, grid, p, probabilities, keys, out, stream);
}

}  // namespace decant::sampling

#endif
