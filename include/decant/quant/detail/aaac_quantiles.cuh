// decant: quantiles on CUDA for AAAC's fit: detail/order_statistics.hpp's three counting passes, ranks and all on the
// device. Counts are integers, so the order of threads does not matter.
#ifndef DECANT_QUANT_DETAIL_AAAC_QUANTILES_CUH
#define DECANT_QUANT_DETAIL_AAAC_QUANTILES_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include <cstdint>

#include "aaac_kernels.cuh"

namespace decant::quant::detail {

inline constexpr int aaac_ranks = 32;
inline constexpr int aaac_bins = 2048;
inline constexpr std::uint32_t aaac_no_slot = 0xffffffffu;

/// What is being counted, and which values are looked for.
struct AaacQuantiles {
  std::uint32_t* counts;  // [ranks, bins]
  std::uint32_t* first;   // [bins] where values with these 11 bits are counted: a rank's number
  std::uint32_t* second;  // [ranks, bins] and with 11 more
  std::uint32_t* prefix;  // [ranks] the bits found
  index_t* left;          // [ranks] the rank among values with these bits
  double* part;           // [ranks / 2]
  std::uint32_t* state;   // [1] whether there is nothing; and [1] the least error that counts, as bits

  __device__ float least() const { return __uint_as_float(state[1]); }
};

/// Of all weights, of those in the selection groups with the largest errors, or of the errors. The latter two run only
/// when a table is to be seeded.
enum class AaacOf : int { weights, worst, errors };

template <class F>
__device__ bool aaac_skips(const AaacDevice<F>& d, const AaacQuantiles& q, AaacOf of) {
  return of != AaacOf::weights && (d.control->seed < 0 || (of == AaacOf::worst && !(q.least() > 0)));
}

__device__ inline std::uint32_t aaac_slot(const AaacQuantiles& q, int level, std::uint32_t bits) {
  if (level == 0) return 0;
  const std::uint32_t slot = q.first[bits >> 21];
  return level == 1 || slot == aaac_no_slot ? slot : q.second[slot * aaac_bins + (bits >> 10 & 2047u)];
}

__device__ inline void aaac_count_one(const AaacQuantiles& q, int level, float x) {
  const std::uint32_t bits = ordered_bits(x);
  const std::uint32_t slot = aaac_slot(q, level, bits);
  const std::uint32_t bin = level == 0 ? bits >> 21 : level == 1 ? bits >> 10 & 2047u : bits & 1023u;
  if (slot != aaac_no_slot) atomicAdd(q.counts + slot * aaac_bins + bin, 1u);
}

/// A warp per selection group.
template <class F>
__global__ void __launch_bounds__(aaac_threads) aaac_count(AaacDevice<F> d, AaacQuantiles q, AaacOf of, int level) {
  if (aaac_skips(d, q, of)) return;
  const AaacShape& s = d.shape;
  constexpr int warps = aaac_threads / 32;
  const index_t lane = threadIdx.x % 32;
  const index_t all = d.rows() * s.selects;
  for (index_t g = index_t{blockIdx.x} * warps + threadIdx.x / 32; g < all; g += index_t{gridDim.x} * warps) {
    const float error = of == AaacOf::weights ? 0.0f : __fmul_rn(d.error[g], d.square[g]);
    if (of == AaacOf::errors) {
      if (lane == 0) aaac_count_one(q, level, error);
      continue;
    }
    if (!(d.square[g] > 0) || (of == AaacOf::worst && !(error >= q.least()))) continue;
    const index_t r = g / s.selects;
    const index_t i = g % s.selects;
    const float step = F::step(d.control->matrix, d.scale[r * s.scales + i / s.per_scale]);
    for (index_t k = lane; k < s.count(i); k += 32)
      aaac_count_one(q, level, AaacGroup::normalised(d.w(r, i * s.select + k), step));
  }
}

/// A block of 256 per rank: the bin that it falls into. Ranks 2 i and 2 i + 1 surround the i-th of equally spaced
/// shares from `first` to `last`; the one rank of errors is the first of the largest tenth.
template <class F>
__global__ void __launch_bounds__(256)
    aaac_find(AaacDevice<F> d, AaacQuantiles q, AaacOf of, int level, double first, double last, int entries) {
  __shared__ index_t shared[32];
  if (aaac_skips(d, q, of)) return;
  if (level > 0 && q.state[0] != 0) return;
  const int rank = static_cast<int>(blockIdx.x);
  const std::uint32_t prefix = level == 0 ? 0 : q.prefix[rank];
  const std::uint32_t slot = aaac_slot(q, level, prefix);
  constexpr int each = aaac_bins / 256;
  const std::uint32_t* const counts = q.counts + slot * aaac_bins + threadIdx.x * each;
  index_t sum = 0;
  for (int b = 0; b < each; ++b) sum += counts[b];
  index_t left = level == 0 ? 0 : q.left[rank];
  index_t total = 0;
  index_t before = ::decant::detail::block_scan_before(sum, total, shared);
  if (level == 0) {
    if (rank == 0 && threadIdx.x == 0) q.state[0] = total == 0 ? 1 : 0;
    if (total == 0) return;
    if (of == AaacOf::errors) {
      left = total - 1 - total / 10;
    } else {
      const double share = share_of(first, last, rank / 2, entries);
      const double part = between(share, total, left);
      if (rank % 2 == 0 && threadIdx.x == 0) q.part[rank / 2] = part;
      if (rank % 2 == 1 && left + 1 < total) ++left;
    }
  }
  if (left < before || left >= before + sum) return;
  int b = 0;
  for (; left >= before + counts[b]; ++b) before += counts[b];
  const std::uint32_t bin = threadIdx.x * each + static_cast<unsigned>(b);
  q.left[rank] = left - before;
  q.prefix[rank] = prefix | bin << (level == 0 ? 21 : level == 1 ? 10 : 0);
  if (level == 2) return;
  std::uint32_t* const map = level == 0 ? q.first : q.second + slot * aaac_bins;
  atomicMin(map + bin, static_cast<std::uint32_t>(rank));
}

/// The values found as table t, or the one that is to be seeded; or as the least error that counts. One thread.
template <class F>
__global__ void aaac_found(AaacDevice<F> d, AaacQuantiles q, AaacOf of, int t, int entries) {
  if (aaac_skips(d, q, of)) return;
  AaacControl<F>& control = *d.control;
  if (of == AaacOf::errors) {
    q.state[1] = __float_as_uint(from_ordered_bits(q.prefix[0]));
    return;
  }
  if (q.state[0] != 0) {
    control.nothing = true;
    if4_start(16, control.tables);
    return;
  }
  float values[16];
  for (int c = 0; c < entries; ++c)
    values[c] = interpolated(from_ordered_bits(q.prefix[2 * c]), from_ordered_bits(q.prefix[2 * c + 1]), q.part[c]);
  set_table(control.tables, of == AaacOf::worst ? control.seed : t, values, entries);
}

}  // namespace decant::quant::detail

#endif
