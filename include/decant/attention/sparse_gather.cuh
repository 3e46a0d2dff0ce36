// decant: attention::sparse_gather on Cuda: weighted sums of listed value rows. Lists are cut into pieces of 256 rows
// whose sums are joined in order, so a list's result depends on nothing beside it. Three launches: checks, pieces, end.
// It must read 4 bytes of row number and 4 of each weight per listed row (row numbers twice, for the checks), the row
// once for every 4 or 8 query heads, and write and read 4 * value_dim bytes per piece and query head.
#ifndef DECANT_ATTENTION_SPARSE_GATHER_CUH
#define DECANT_ATTENTION_SPARSE_GATHER_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "../core/cuda.cuh"
#include "detail/sparse_gather_rows.cuh"
#include "sparse_gather.hpp"

namespace decant::attention {

namespace detail {

/// Rows of a list that a block sums at once.
inline constexpr int gather_piece = 256;

struct GatherShape {
  index_t lists;
  index_t width;     // lists of a sequence
  index_t at_once;   // query heads of a list
  index_t per_head;  // lists of a KV head
  index_t splits;    // blocks of a list
  index_t longest;
  index_t o_stride;
  bool aligned;
  float* sums;  // [pieces][at_once][o_stride]

  DECANT_HD index_t sequence(index_t list) const { return list / width; }
  DECANT_HD index_t head(index_t list) const { return list % width / per_head; }
};

/// Pieces of all lists stand one after another, with gaps: a piece's number is at most rows / 256 + lists.
__device__ inline index_t first_piece_of(const RowLists& lists, index_t list) {
  return lists.indptr[list] / gather_piece + list;
}
__device__ inline index_t pieces_of(const RowLists& lists, index_t list) {
  return (index_t{lists.indptr[list + 1]} - lists.indptr[list] + gather_piece - 1) / gather_piece;
}

template <class C>
__global__ void __launch_bounds__(gather_threads)
    gather_check_kernel(const GatherShape x, const C cache, const RowLists lists, FaultWord* fault) {
  for (index_t list = blockIdx.x; list < x.lists; list += gridDim.x) {
    const index_t s = x.sequence(list);
    const index_t h = x.head(list);
    const index_t begin = lists.indptr[list];
    const index_t end = lists.indptr[list + 1];
    const bool tables = sound_tables(cache, s, h);
    const index_t n = tables ? cache.length(s, h) : 0;
    const bool offsets = begin >= 0 && end >= begin && end <= lists.rows.extent(0) && (list > 0 || begin == 0);
    if (threadIdx.x == 0) {
      if (!tables) report(fault, Fault::page_table, 0, h, s);
      if (n < 0 || n > x.longest) report(fault, Fault::length, 0, h, n);
      if (!offsets) report(fault, Fault::row_lists, 0, h, list);
    }
    if (!offsets) continue;
    for (index_t k = begin + threadIdx.x; k < end; k += gather_threads) {
      const index_t row = lists.rows[k];
      if (row < 0 || row >= n) report(fault, Fault::row_lists, 0, h, row);
    }
  }
}

template <int Rows>
struct GatherPieceLayout {
  int weights;  // [gather_piece][Rows]
  int gather;
  GatherLayout rows;
  int bytes;
};

template <int Rows, class C>
GatherPieceLayout<Rows> gather_piece_layout(index_t value_dim) {
  const GatherLayout rows = gather_layout<C>(value_dim, Rows, gather_piece);
  constexpr int weights = gather_piece * Rows * 4;
  return {0, weights, rows, weights + rows.bytes};
}

/// A block has every splits-th piece of a list.
template <int Rows, class C>
__global__ void __launch_bounds__(gather_threads, 3)
    gather_pieces_kernel(const GatherShape x, const C cache, const RowLists lists, const GatherPieceLayout<Rows> layout,
                         FaultWord* fault) {
  extern __shared__ __align__(128) unsigned char gather_shared[];
  if (faulted(fault)) return;
  const index_t list = blockIdx.x / x.splits;
  const index_t pieces = pieces_of(lists, list);
  const index_t s = x.sequence(list);
  const index_t h = x.head(list);
  auto* const weights = reinterpret_cast<Pack<float, Rows>*>(gather_shared + layout.weights);
  const GatherRows<Rows, C> rows(cache, layout.rows, gather_shared + layout.gather, x.aligned, fault);
  for (index_t piece = blockIdx.x % x.splits; piece < pieces; piece += x.splits) {
    const index_t begin = lists.indptr[list] + piece * gather_piece;
    const index_t left = lists.indptr[list + 1] - begin;
    const int count = static_cast<int>(left < gather_piece ? left : gather_piece);
    for (int j = static_cast<int>(threadIdx.x); j < count; j += gather_threads)
      rows.name(j, s, h, lists.rows[begin + j]);
    for (index_t first = 0; first < x.at_once; first += Rows) {
      const int heads = static_cast<int>(x.at_once - first < Rows ? x.at_once - first : Rows);
      for (int i = static_cast<int>(threadIdx.x); i < count * Rows; i += gather_threads) {
        const int r = i % Rows;
        weights[i / Rows].at[r] = r < heads ? lists.weights(begin + i / Rows, first + r) : 0.0f;
      }
      __syncthreads();
      float* const to = x.sums + ((first_piece_of(lists, list) + piece) * x.at_once + first) * x.o_stride;
      rows.template sum<true>(
          count, s, h, [&](int j) { return index_t{lists.rows[begin + j]}; },
          [&](int j) -> const Pack<float, Rows>& { return weights[j]; },
          [&](int r, int d, float sum) {
            if (r < heads) to[r * x.o_stride + d] = sum;
          });
    }
  }
}

/// A block per list and query head.
template <class O>
__global__ void __launch_bounds__(gather_threads)
    gather_finish_kernel(const GatherShape x, const RowLists lists, const View<O, 3> out, const FaultWord* fault) {
  if (faulted(fault)) return;
  const index_t list = blockIdx.x / x.at_once;
  const index_t r = blockIdx.x % x.at_once;
  const index_t pieces = pieces_of(lists, list);
  const float* const from = x.sums + (first_piece_of(lists, list) * x.at_once + r) * x.o_stride;
  for (index_t d = threadIdx.x; d < out.extent(2); d += gather_threads) {
    float sum = -0.0f;
#pragma unroll 4
    for (index_t p = 0; p < pieces; ++p) sum += from[p * x.at_once * x.o_stride + d];
    out(x.sequence(list), list % x.width * x.at_once + r, d) = static_cast<O>(pieces == 0 ? 0.0f : sum);
  }
}

template <int Rows, class C>
void gather_pieces(const Cuda& cuda, const GatherShape& x, const C& cache, const RowLists& lists) {
  constexpr const char* where = "attention::sparse_gather";
  const auto layout = gather_piece_layout<Rows, C>(cache.value_dim());
  require(layout.bytes <= cuda.device().shared_bytes, where, "cache", "a value dim that fits in shared memory",
          cache.value_dim());
  launch(cuda, where, gather_pieces_kernel<Rows, C>,
         CudaGrid{dim3(static_cast<unsigned>(x.lists * x.splits)), dim3(gather_threads),
                  static_cast<std::size_t>(layout.bytes)},
         x, cache, lists, layout, cuda.fault());
}

}  // namespace detail

/// The same as sparse_gather(Cpu&, ...), with everything in device memory. Sums are formed in float, in an order that
/// depends on the list's length and the value dim alone: within 1e-6 of the CPU's, relative to the sum of |weight * v|.
/// Shapes raise ArgumentError at once; offsets, rows and tables are checked by the kernels, which then write nothing,
/// and cuda.check() raises the error. A cache view of the user's own must have capacity().
/// Scratch: 4 * value_dim bytes per query head, for every 256 listed rows and every list.
template <kv::CacheView C, Storage O>
void sparse_gather(Cuda& cuda, const C& cache, const RowLists& lists, View<O, 3> out) {
  using namespace detail;
  constexpr const char* where = "attention::sparse_gather";
  kv::detail::require_cache(cache);
  const index_t heads = cache.kv_heads();
  const index_t query_heads = out.extent(1);
  require(
      heads >= 1 && query_heads >= heads && query_heads % heads == 0, where, "out",
      [&] { return "a number of query heads that is a multiple of kv_heads = " + std::to_string(heads); }, query_heads);
  const index_t group = query_heads / heads;
  const bool shared = lists.weights.extent(1) == group;
  GatherShape x{};
  x.per_head = shared ? 1 : group;
  x.width = heads * x.per_head;
  x.lists = cache.sequences() * x.width;
  x.at_once = shared ? group : 1;
  validate_gather_shapes(cache, lists, out, group, x.lists);
  if (x.lists == 0) return;
  x.longest = longest_of(cache);
  x.aligned = aligned_cache(cache);
  x.o_stride = ceil_div(cache.value_dim(), 4) * 4;
  const index_t most_pieces = ceil_div(lists.rows.extent(0), gather_piece);
  const index_t wanted = ceil_div(4 * index_t{cuda.device().multiprocessors}, x.lists);
  x.splits = most_pieces < 1 ? 1 : wanted < most_pieces ? wanted : most_pieces;
  require(x.lists * x.splits < index_t{1} << 31 && x.lists * x.at_once < index_t{1} << 31, where, "lists",
          "fewer lists", x.lists);
  Workspace::Scope scope(cuda.workspace());
  x.sums = cuda.workspace().take<float>((most_pieces + x.lists) * x.at_once * x.o_stride);
  launch(cuda, where, gather_check_kernel<C>,
         CudaGrid{dim3(cuda_blocks(x.lists, 1, 8 * index_t{cuda.device().multiprocessors})), dim3(gather_threads)}, x,
         cache, lists, cuda.fault());
  if (x.at_once <= 4)
    gather_pieces<4>(cuda, x, cache, lists);
  else
    gather_pieces<8>(cuda, x, cache, lists);
  launch(cuda, where, gather_finish_kernel<O>,
         CudaGrid{dim3(static_cast<unsigned>(x.lists * x.at_once)), dim3(gather_threads)}, x, lists, out, cuda.fault());
}

}  // namespace decant::attention

#endif
