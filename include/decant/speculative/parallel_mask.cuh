// decant: embed_slots() of parallel_mask.hpp on the device, to the same bits, in one launch: a block per slot, which
// looks for its request among the offsets, then streams. Moves H elements of the table, of the features and of the
// output per slot (the mask's row comes from the caches).
#ifndef DECANT_SPECULATIVE_PARALLEL_MASK_CUH
#define DECANT_SPECULATIVE_PARALLEL_MASK_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include <cstdint>
#include <type_traits>

#include "../core/cuda.cuh"
#include "../core/detail/device.cuh"
#include "parallel_mask.hpp"

namespace decant::speculative {

namespace detail {

inline constexpr int embed_threads = 128;

/// Elements i, i + step ... of a row, N at a time.
template <int N, class T>
__device__ void embed_elements(const T* embedding, index_t embedding_stride, float scale, const T* feature,
                               index_t feature_stride, T* out, index_t out_stride, index_t n) {
  using Pack = ::decant::detail::Pack<T, N>;
  using ::decant::detail::widen;
#pragma unroll 2
  for (index_t i = index_t{threadIdx.x} * N; i < n; i += index_t{embed_threads} * N) {
    if constexpr (N == 1) {
      T x = embedding[i * embedding_stride];
      if (feature != nullptr) x = embedded<T>(widen(x), scale, widen(feature[i * feature_stride]));
      out[i * out_stride] = x;
    } else {
      Pack x = *reinterpret_cast<const Pack*>(embedding + i);
      if (feature != nullptr) {
        const Pack f = *reinterpret_cast<const Pack*>(feature + i);
#pragma unroll
        for (int j = 0; j < N; ++j) x.at[j] = embedded<T>(widen(x.at[j]), scale, widen(f.at[j]));
      }
      *reinterpret_cast<Pack*>(out + i) = x;
    }
  }
}

/// Block r: slot r of the batch. wide: all rows can be read and written by 16 bytes. Block 0 also checks the offsets.
template <class T, int Threads>
__global__ void __launch_bounds__(Threads)
    embed_slots_kernel(const std::int32_t k, const std::int32_t mask, const float scale, const FreshTokens fresh,
                       const View<const T, 2> table, const View<const T, 2> features, const View<T, 2> out,
                       const bool wide, FaultWord* fault) {
  using ::decant::detail::Fault;
  using ::decant::detail::report;
  const index_t r = blockIdx.x;
  const index_t requests = fresh.offsets.extent(0) - 1;
  const index_t tokens = fresh.tokens.extent(0);
  if (r == 0) {
    if (threadIdx.x == 0 && fresh.offsets[0] != 0) report(fault, Fault::fresh, 0, 0, 0);
    for (index_t b = threadIdx.x; b < requests; b += Threads) {
      const index_t end = fresh.offsets[b + 1];
      if (fresh.offsets[b] >= end || end > tokens) report(fault, Fault::fresh, 0, 0, b);
    }
  }
  // The last request that begins at this slot or before it.
  index_t low = 0;
  for (index_t high = requests; high - low > 1;) {
    const index_t middle = (low + high) / 2;
    if (fresh.offsets[middle] + middle * (k - 1) <= r) low = middle;
    else high = middle;
  }
  const index_t first = fresh.offsets[low];
  const index_t end = fresh.offsets[low + 1];
  const ParallelMaskLayout layout{static_cast<std::int32_t>(end - first), k};
  const index_t slot = r - first - low * (k - 1);
  // What follows the last request is room; otherwise the offsets are wrong, which block 0 tells.
  if (first < 0 || end > tokens || layout.fresh < 1 || slot < 0 || slot >= layout.ids()) return;
  const auto i = static_cast<std::int32_t>(slot);
  const std::int32_t source = layout.source(i);
  const std::int32_t token = source < 0 ? mask : fresh.tokens[first + source];
  if (token < 0 || token >= table.extent(0)) {
    if (threadIdx.x == 0) report(fault, Fault::fresh, 0, 1, first + source);
    return;
  }
  const T* const embedding = table.data() + token * table.stride(0);
  const T* const feature = features.data() == nullptr
                               ? nullptr
                               : features.data() + (first + layout.feature(i) + 1) * features.stride(0);
  T* const row = out.data() + r * out.stride(0);
  if (wide) {
    embed_elements<::decant::detail::per_access<T>>(embedding, 1, scale, feature, 1, row, 1, out.extent(1));
  } else {
    embed_elements<1>(embedding, table.stride(1), scale, feature, features.stride(1), row, out.stride(1),
                      out.extent(1));
  }
}

}  // namespace detail

/// All views on the device. There may be room in fresh.tokens behind what the offsets tell: its rows are not written.
/// A request without tokens, or a token without a row in the table, is told by cuda.check(); its rows are not written.
template <class T>
void embed_slots(Cuda& cuda, const ParallelMaskOptions& options, const FreshTokens& fresh,
                 const View<const std::type_identity_t<T>, 2>& table,
                 const View<const std::type_identity_t<T>, 2>& features, const View<T, 2>& out) {
  constexpr const char* where = "speculative::embed_slots";
  constexpr int threads = detail::embed_threads;
  detail::require_slots<T>(options, fresh, table, features, out, where);
  require(out.extent(0) <= 0x7fffffff, where, "out", "fewer than 2^31 rows", out.extent(0));
  if (fresh.requests() == 0) return;
  const auto aligned = [&](const auto& view) {
    return view.stride(1) == 1 && ::decant::detail::aligned_rows(view.data(), view.stride(0), view.extent(1));
  };
  const bool wide = aligned(table) && (features.data() == nullptr || aligned(features)) && aligned(out);
  launch(cuda, where, detail::embed_slots_kernel<T, threads>,
         CudaGrid{dim3(static_cast<unsigned>(out.extent(0))), dim3(threads)}, options.k, options.mask_token,
         options.feature_scale, fresh, table, features, out, wide, cuda.fault());
}

}  // namespace decant::speculative

#endif
