// decant: the small kernels between the stages of the eviction pipeline: lengths, checks, counts.
#ifndef DECANT_KV_DETAIL_EVICTION_KERNELS_CUH
#define DECANT_KV_DETAIL_EVICTION_KERNELS_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "apportion.hpp"
#include "device_layer.cuh"
#include "scored_layer.cuh"

namespace decant::kv::detail {

/// Lengths of a layer, 0 where they (or the tables) are wrong, which is reported; and whether the budget keeps all.
/// One block.
template <class X>
__global__ void __launch_bounds__(stage_threads)
    begin_layer_kernel(const X x, index_t longest, Budget budget, ScoredLayer layer, std::int32_t* whole,
                       FaultWord* fault) {
  const bool bad_tables = __syncthreads_or(!check_tables(x.cache, x.sequence, fault, x.layer)) != 0;
  const index_t positions = x.positions.data() == nullptr ? longest : x.positions.extent(1);
  for (index_t h = threadIdx.x; h < x.kv_heads(); h += blockDim.x) {
    const index_t n = bad_tables ? 0 : x.length(h);
    const bool good = n >= 0 && n <= longest && n <= positions;
    if (!good) report(fault, Fault::length, x.layer, h, n);
    layer.lengths[h] = good ? static_cast<std::int32_t>(n) : 0;
  }
  __syncthreads();
  if (threadIdx.x == 0) *whole = layer_budget(budget, layer) == layer_tokens(layer) ? 1 : 0;
}

/// all = all and one; or one, to begin with.
template <int Threads>
__global__ void and_whole(const std::int32_t* one, bool begin, std::int32_t* all) {
  *all = begin || *all != 0 ? *one : 0;
}

template <int Threads>
__global__ void __launch_bounds__(Threads)
    check_budget(ScoredLayer layer, Budget budget, const std::int32_t* kept, const std::int32_t* whole,
                 FaultWord* fault) {
  const index_t h = grid_token();
  if (h >= layer.kv_heads() || *whole != 0) return;
  const index_t own = budget.resolve(layer.length(h));
  if (own < kept[h]) report(fault, Fault::budget, layer.layer, h, own);
}

/// first_nan[h]: the first token of head h whose score is NaN. Comes in large. After a fault scorers have written
/// nothing: then the layer becomes empty, so that nothing reads what is not there.
template <int Threads>
__global__ void __launch_bounds__(Threads)
    find_nan_scores(ScoredLayer layer, const std::int32_t* whole, std::int32_t* first_nan, const FaultWord* fault) {
  const index_t h = blockIdx.y;
  const index_t t = grid_token();
  if (faulted(fault)) {
    if (t == 0) layer.lengths[h] = 0;
    return;
  }
  if (*whole != 0 || t >= bounded_length(layer, h)) return;
  const float score = layer.scores(h, t);
  if (score != score) atomicMin(&first_nan[h], static_cast<std::int32_t>(t));
}

template <class T>
__device__ bool has_nan(const T* row, index_t dim) {
  bool found = false;
  for (index_t i = 0; i < dim; ++i) {
    const float v = ::decant::detail::widen(row[i]);
    found = found || v != v;
  }
  return found;
}

/// first_nan[kv_heads + h]: the first token whose key or value is NaN, of heads with NaN scores only. A cache whose
/// rows are no plain arrays is not looked at.
template <class X>
__global__ void __launch_bounds__(stage_threads)
    find_nan_rows(const X x, ScoredLayer layer, std::int32_t* first_nan, const FaultWord* fault) {
  if (faulted(fault)) return;
  const index_t h = blockIdx.y;
  const index_t n = bounded_length(layer, h);
  const index_t t = grid_token();
  if (first_nan[h] >= n || t >= n) return;
  if constexpr (PlainCacheView<decltype(X::cache)>) {
    if (has_nan(x.cache.key(x.sequence, h, t), x.cache.key_dim()) ||
        has_nan(x.cache.value(x.sequence, h, t), x.cache.value_dim())) {
      atomicMin(&first_nan[x.kv_heads() + h], static_cast<std::int32_t>(t));
    }
  }
}

template <int Threads>
__global__ void __launch_bounds__(Threads)
    report_nan(ScoredLayer layer, const std::int32_t* first_nan, FaultWord* fault) {
  const index_t h = grid_token();
  if (h >= layer.kv_heads()) return;
  const index_t n = bounded_length(layer, h);
  const index_t row = first_nan[layer.kv_heads() + h];
  if (first_nan[h] < n) report(fault, Fault::nan_score, layer.layer, h, row < n ? row : first_nan[h]);
}

/// `room`: of a row of kept.indices.
template <int Threads>
__global__ void __launch_bounds__(Threads)
    finish_counts_kernel(ScoredLayer layer, const std::int32_t* whole, View<std::int32_t, 1> counts, index_t room,
                         FaultWord* fault) {
  const index_t h = grid_token();
  if (h >= layer.kv_heads()) return;
  if (*whole != 0) counts[h] = layer.lengths[h];
  if (counts[h] > room) report(fault, Fault::capacity, layer.layer, h, counts[h]);
}

template <int Threads>
__global__ void __launch_bounds__(Threads) keep_all_tokens(ScoredLayer layer, KeptView kept, const FaultWord* fault) {
  if (faulted(fault)) return;
  const index_t h = blockIdx.y;
  const index_t t = grid_token();
  const index_t n = bounded_length(layer, h);
  if (t < n) kept.indices(h, t) = static_cast<std::int32_t>(t);
  if (t == 0) kept.counts[h] = static_cast<std::int32_t>(n);
}

}  // namespace decant::kv::detail

#endif
