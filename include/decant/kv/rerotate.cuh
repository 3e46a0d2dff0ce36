// decant: rerotate on Cuda: one thread per pair of dims of a key, angles in double. Frequencies and cosines may differ
// from the host's in the last bits of a double, so keys may, rarely, differ from the CPU's by one rounding.
// Moves 2 * key_dim * sizeof(T) bytes per head and token.
#ifndef DECANT_KV_REROTATE_CUH
#define DECANT_KV_REROTATE_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "detail/check_kept.cuh"
#include "rerotate.hpp"

namespace decant::kv {

namespace detail {

/// Checks the cache and that there is a position for every token. One block.
template <class C>
__global__ void __launch_bounds__(stage_threads)
    check_positions(const C cache, index_t sequence, index_t positions, FaultWord* fault) {
  if (__syncthreads_or(!check_cache(cache, fault)) != 0) return;
  for (index_t h = threadIdx.x; h < cache.kv_heads(); h += blockDim.x) {
    if (cache.length(sequence, h) > positions) report(fault, Fault::length, 0, h, cache.length(sequence, h));
  }
}

template <int Threads>
__global__ void __launch_bounds__(Threads) rope_frequencies(Rope rope, index_t dim, double* frequencies) {
  const index_t f = grid_token();
  if (f < rope.rotary_dim(dim) / 2) frequencies[f] = rope.frequency(f, dim);
}

template <class C>
__global__ void __launch_bounds__(stage_threads)
    rerotate_kernel(const C cache, index_t sequence, View<const std::int32_t, 2> old_positions, Rope rope,
                    const double* frequencies, const FaultWord* fault) {
  if (faulted(fault)) return;
  const index_t h = blockIdx.y;
  const index_t dim = cache.key_dim();
  const index_t pairs = rope.rotary_dim(dim) / 2;
  const index_t i = grid_token() / pairs;
  if (i >= cache.length(sequence, h)) return;
  const index_t f = grid_token() - i * pairs;
  const index_t steps = i - old_positions(h, i);
  if (steps == 0) return;
  const double angle = static_cast<double>(steps) * frequencies[f];
  auto* const key = cache.key(sequence, h, i);
  rotate_pair(key[rope.first(f)], key[rope.second(f, dim)], cos(angle), sin(angle));
}

}  // namespace detail

/// For a compacted sequence: token i of head h, which stood at old_positions(h, i), moves to position i; see
/// rerotate.hpp. rope.frequencies, if any, is on the device too. O(kv_heads * n * key_dim).
template <PlainCacheView C>
  requires(!std::is_const_v<std::remove_pointer_t<row_t<C>>>)
void rerotate(Cuda& cuda, const C& cache, index_t sequence, View<const std::int32_t, 2> old_positions,
              const Rope& rope) {
  constexpr const char* where = "kv::rerotate";
  detail::require_cache(cache);
  validate(rope, cache.key_dim());
  require(sequence >= 0 && sequence < cache.sequences(), where, "sequence",
          [&] { return "an index below " + std::to_string(cache.sequences()); }, sequence);
  require_equal(old_positions.extent(0), cache.kv_heads(), where, "old_positions");
  const index_t pairs = rope.rotary_dim(cache.key_dim()) / 2;
  if (pairs == 0) return;
  Workspace::Scope scope(cuda.workspace());
  double* const frequencies = cuda.workspace().template take<double>(pairs);
  const index_t capacity = detail::host_capacity(cache);
  const index_t longest = capacity < old_positions.extent(1) ? capacity : old_positions.extent(1);
  launch(cuda, where, detail::check_positions<C>, CudaGrid{dim3(1), dim3(detail::stage_threads)}, cache, sequence,
         old_positions.extent(1), cuda.fault());
  launch(cuda, where, detail::rope_frequencies<detail::stage_threads>,
         CudaGrid{dim3(cuda_blocks(pairs, detail::stage_threads)), dim3(detail::stage_threads)}, rope, cache.key_dim(),
         frequencies);
  launch(cuda, where, detail::rerotate_kernel<C>, detail::token_grid(longest * pairs, cache.kv_heads()), cache,
         sequence, old_positions, rope, frequencies, cuda.fault());
}

}  // namespace decant::kv

#endif
