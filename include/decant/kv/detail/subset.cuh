// decant: what the selectors share that weigh tokens against each other, one block of threads per head: rows
// transposed, so that a thread has tokens of its own; the best of a block's candidates; checks of counts; and the list
// of the kept.
#ifndef DECANT_KV_DETAIL_SUBSET_CUH
#define DECANT_KV_DETAIL_SUBSET_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "device_layer.cuh"
#include "scored_layer.cuh"

namespace decant::kv::detail {

using ::decant::detail::Larger;

inline constexpr int subset_threads = 1024;
inline constexpr index_t column_padding = 4;

/// How many tokens a row of transposed columns has room for.
inline index_t padded_tokens(index_t n) {
  return (n + column_padding - 1) / column_padding * column_padding;
}

/// The keys or values of a plain layer, for transpose().
template <class X>
struct LayerRows {
  using element = float;
  X x;
  bool keys;

  __device__ index_t length(index_t h) const { return x.length(h); }
  __device__ float operator()(index_t h, index_t t, index_t d) const {
    return ::decant::detail::widen(keys ? x.cache.key(x.sequence, h, t)[d] : x.cache.value(x.sequence, h, t)[d]);
  }
};

/// columns(h, d, t) = rows(h, t, d); zero behind a head's end, up to a multiple of column_padding. Blocks of 32 x 8.
template <class Rows>
__global__ __launch_bounds__(256) void transpose_kernel(const Rows rows, View<typename Rows::element, 3> columns,
                                                        const FaultWord* fault) {
  using E = typename Rows::element;
  __shared__ E tile[32][33];
  if (faulted(fault)) return;
  const index_t h = blockIdx.z;
  const index_t n = rows.length(h) < columns.extent(2) ? rows.length(h) : columns.extent(2);
  const index_t t0 = blockIdx.x * index_t{32};
  const index_t d0 = blockIdx.y * index_t{32};
  if (t0 >= n) return;
#pragma unroll
  for (unsigned i = threadIdx.y; i < 32; i += 8) {
    const bool there = t0 + i < n && d0 + threadIdx.x < columns.extent(1);
    tile[i][threadIdx.x] = there ? rows(h, t0 + i, d0 + threadIdx.x) : E(0);
  }
  __syncthreads();
  const index_t t = t0 + threadIdx.x;
#pragma unroll
  for (unsigned i = threadIdx.y; i < 32; i += 8) {
    if (d0 + i < columns.extent(1) && t < (n + column_padding - 1) / column_padding * column_padding) {
      columns(h, d0 + i, t) = tile[threadIdx.x][i];
    }
  }
}

/// columns [heads][dim][padded_tokens(n)] in the caller's scope.
template <class Rows>
View<const typename Rows::element, 3> transpose(Cuda& cuda, const char* where, const Rows& rows, index_t heads,
                                                index_t dim, index_t n) {
  const auto columns = cuda.workspace().template take_view<typename Rows::element>(heads, dim, padded_tokens(n));
  launch(cuda, where, transpose_kernel<Rows>,
         CudaGrid{dim3(cuda_blocks(n, 32), cuda_blocks(dim, 32), static_cast<unsigned>(heads)), dim3(32, 8)}, rows,
         columns, cuda.fault());
  return columns;
}

/// A candidate: the higher value is better, of equal ones the higher rank. Never NaN.
struct Candidate {
  double value = -__builtin_huge_val();
  int rank = -0x7fffffff - 1;

  __device__ void join(double other, int other_rank) {
    if (other < value || (other == value && other_rank < rank)) return;
    value = other;
    rank = other_rank;
  }
};

/// The rank of the block's best candidate, in all threads.
__device__ inline int best_rank(const Candidate& own) {
  __shared__ double values[32];
  __shared__ int ranks[32];
  const double best = ::decant::detail::block_reduce(own.value, Larger{}, -__builtin_huge_val(), values);
  const int rank = own.value == best ? own.rank : Candidate{}.rank;
  return ::decant::detail::block_reduce(rank, Larger{}, Candidate{}.rank, ranks);
}

/// Reports counts that the protected or the present tokens rule out, or that there is no room for. One block, so that
/// no thread asks for faults after another has told one.
template <int Threads>
__global__ void __launch_bounds__(Threads)
    check_subset_kernel(ScoredLayer layer, View<const std::int32_t, 1> counts, const std::int32_t* is_kept,
                        index_t room, FaultWord* fault) {
  if (__syncthreads_or(faulted(fault))) return;
  for (index_t h = threadIdx.x; h < layer.kv_heads(); h += Threads) {
    if (counts[h] < is_kept[h] || counts[h] > bounded_length(layer, h)) {
      report(fault, Fault::subset, layer.layer, h, counts[h]);
    }
    if (counts[h] > room) report(fault, Fault::capacity, layer.layer, h, counts[h]);
  }
}

/// What a selector checks before it works.
inline void check_subset(Cuda& cuda, const char* where, const ScoredLayer& layer, View<const std::int32_t, 1> counts,
                         const KeptView& kept) {
  require_scored(layer, where);
  require_equal(counts.extent(0), layer.kv_heads(), where, "counts");
  require_equal(kept.counts.extent(0), counts.extent(0), where, "kept.counts");
  require_equal(kept.indices.extent(0), counts.extent(0), where, "kept.indices");
  Workspace::Scope scope(cuda.workspace());
  const std::int32_t* const is_kept = protected_counts(cuda, layer, where);
  launch(cuda, where, check_subset_kernel<stage_threads>, CudaGrid{dim3(1), dim3(stage_threads)}, layer, counts,
         is_kept, kept.indices.extent(1), cuda.fault());
}

/// The tokens of head h whose mark is `wanted`, ascending, and how many they are. For a whole block, after a barrier.
__device__ inline void keep_marked(const std::uint8_t* marks, std::uint8_t wanted, index_t n, const KeptView& kept,
                                   index_t h) {
  __shared__ int sums[32];
  index_t before = 0;
  for (index_t first = 0; first < n; first += blockDim.x) {
    const index_t t = first + threadIdx.x;
    const bool taken = t < n && marks[t] == wanted;
    int total = 0;
    const index_t at = before + ::decant::detail::block_scan_before(taken ? 1 : 0, total, sums);
    if (taken) kept.indices(h, at) = static_cast<std::int32_t>(t);
    before += total;
  }
  if (threadIdx.x == 0) kept.counts[h] = static_cast<std::int32_t>(before);
}

}  // namespace decant::kv::detail

#endif
