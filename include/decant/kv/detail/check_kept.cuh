// decant: what compaction and gathering check on the device before the first byte moves: tables and lengths of the
// caches, and that kept tokens are strictly ascending tokens of their heads.
#ifndef DECANT_KV_DETAIL_CHECK_KEPT_CUH
#define DECANT_KV_DETAIL_CHECK_KEPT_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "device_layer.cuh"
#include "scored_layer.cuh"

namespace decant::kv::detail {

/// Reports what validate(cache) would raise, for all sequences; false for the threads that found something. For a
/// block; a cache of a type unknown here is trusted.
template <class C>
__device__ bool check_cache(const C&, FaultWord*) {
  return true;
}
template <class T>
__device__ bool check_cache(const DenseKV<T>& c, FaultWord* fault) {
  bool good = true;
  for (index_t s = threadIdx.x; s < c.sequences(); s += blockDim.x) {
    if (c.lengths[s] >= 0 && c.lengths[s] <= c.capacity()) continue;
    report(fault, Fault::length, 0, 0, c.lengths[s]);
    good = false;
  }
  return good;
}
template <class T>
__device__ bool check_cache(const RaggedKV<T>& c, FaultWord* fault) {
  bool good = true;
  for (index_t i = threadIdx.x; i < c.lengths.extent(0); i += blockDim.x) {
    const index_t begin = c.offsets[i];
    const index_t end = c.offsets[i + 1];
    const index_t n = c.lengths[i];
    if (begin >= 0 && end >= begin && end <= c.keys.extent(0) && n >= 0 && n <= end - begin) continue;
    report(fault, Fault::length, 0, i % c.heads, n);
    good = false;
  }
  return good;
}
template <class T>
__device__ bool check_cache(const PagedKV<T>& c, FaultWord* fault) {
  bool good = c.indptr[0] == 0;
  for (index_t s = threadIdx.x; s < c.sequences(); s += blockDim.x) {
    const index_t begin = c.indptr[s];
    const index_t end = c.indptr[s + 1];
    const index_t last = end > begin ? c.last_page_len[s] : 1;
    good = good && begin >= 0 && end >= begin && end <= c.indices.extent(0) && last >= 1 && last <= c.page_size();
  }
  if (!good) report(fault, Fault::page_table, 0, 0, 0);
  if (__syncthreads_or(!good) != 0) return false;
  for (index_t i = threadIdx.x; i < c.indptr[c.sequences()]; i += blockDim.x) {
    if (c.indices[i] >= 0 && c.indices[i] < c.pages()) continue;
    report(fault, Fault::page_table, 0, 0, i);
    good = false;
  }
  return good;
}

/// A head's kept tokens, as far as they can be read without harm: bounds [0, length) and how many.
struct KeptHead {
  std::int32_t length;
  std::int32_t count;
  std::int32_t first_moved;  // the first i whose token is not i; large: none
};

/// Checks the cache and the counts; writes heads [kv_heads]. equal: every head must keep as many. One block.
template <class C>
__global__ void __launch_bounds__(stage_threads)
    check_kept_counts(const C cache, KeptView kept, index_t sequence, bool equal, KeptHead* heads, FaultWord* fault) {
  const bool bad = __syncthreads_or(!check_cache(cache, fault)) != 0;
  for (index_t h = threadIdx.x; h < kept.kv_heads(); h += blockDim.x) {
    const index_t length = bad ? 0 : cache.length(sequence, h);
    const index_t count = kept.count(h);
    const bool good = count >= 0 && count <= length && count <= kept.indices.extent(1);
    if (!bad && !good) report(fault, Fault::kept, 0, h, count);
    if (equal && count != kept.count(0)) report(fault, Fault::counts, 0, h, count);
    heads[h] = {static_cast<std::int32_t>(length), good ? static_cast<std::int32_t>(count) : 0, 0x7fffffff};
  }
}

/// Checks the tokens, and finds the first that moves.
template <int Threads>
__global__ void __launch_bounds__(Threads) check_kept_tokens(KeptView kept, KeptHead* heads, FaultWord* fault) {
  const index_t h = blockIdx.y;
  const index_t i = grid_token();
  const bool present = i < heads[h].count;
  const index_t token = present ? kept.token(h, i) : 0;
  if (present) {
    const index_t before = i == 0 ? -1 : kept.token(h, i - 1);
    if (token <= before || token < 0 || token >= heads[h].length) report(fault, Fault::kept, 0, h, i);
  }
  // Tokens ascend, so those that stay come first: one lane of a warp knows its first that moves.
  const unsigned moved = __ballot_sync(::decant::detail::whole_warp, present && token != i);
  if (moved != 0 && static_cast<int>(threadIdx.x % 32) == __ffs(static_cast<int>(moved)) - 1) {
    atomicMin(&heads[h].first_moved, static_cast<std::int32_t>(i));
  }
}

inline void require_kept(const KeptView& kept, index_t kv_heads) {
  constexpr const char* where = "kv::KeptView";
  require_equal(kept.kv_heads(), kv_heads, where, "counts");
  require_equal(kept.indices.extent(0), kv_heads, where, "indices");
}

/// Both checks, with what the host sees first. The heads live in the workspace of an open scope.
template <class C>
KeptHead* check_kept(Cuda& cuda, const C& cache, const KeptView& kept, index_t sequence, bool equal,
                     const char* where) {
  require_cache(cache);
  require(sequence >= 0 && sequence < cache.sequences(), "kv::KeptView", "sequence",
          [&] { return "an index below " + std::to_string(cache.sequences()); }, sequence);
  require_kept(kept, cache.kv_heads());
  KeptHead* const heads = cuda.workspace().template take<KeptHead>(kept.kv_heads());
  launch(cuda, where, check_kept_counts<C>, CudaGrid{dim3(1), dim3(stage_threads)}, cache, kept, sequence, equal, heads,
         cuda.fault());
  launch(cuda, where, check_kept_tokens<stage_threads>, token_grid(kept.indices.extent(1), kept.kv_heads()), kept,
         heads, cuda.fault());
  return heads;
}

}  // namespace decant::kv::detail

#endif
