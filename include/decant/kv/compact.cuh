// decant: compact() and gather() on Cuda: the CPU's bytes, in place, without a copy of the cache. A block owns a slice
// of the channels of one head's keys or values and walks the kept rows in order, tile by tile: it reads a tile whole
// before it writes it, and later tiles lie further on, so no row is overwritten before it is read. Rows that stay are
// skipped. Moves 2 * moved rows * (key_dim + value_dim) * sizeof(T) bytes per head; the checks read `kept` once more.
// `kept` and the cache's lengths and tables are on the device, and are updated there. What is wrong with them is told
// by Cuda::check(); nothing has moved then.
// A table that lives on the host (kv::PageTable) is the host's to cut: after compact_rows() of the last layer, and
// check(), call PageTable::truncate(sequence, count) and upload its arrays again.
#ifndef DECANT_KV_COMPACT_CUH
#define DECANT_KV_COMPACT_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "compact.hpp"
#include "detail/check_kept.cuh"
#include "detail/gather_kernels.cuh"
#include "detail/head_rows.cuh"
#include "detail/row_copy.cuh"
#include "detail/shared_pages.cuh"

namespace decant::kv {

namespace detail {

inline constexpr int move_threads = 512;
inline constexpr int move_items = 8;  // accesses of 16 bytes that a thread has in flight
inline constexpr int move_tile = move_threads * move_items;

/// Units [first, first + width) of every row that moves; `row(t)` is where token t lies. For a block.
template <int Unit, class T, class Row>
__device__ void move_rows_in_order(const KeptView& kept, const KeptHead& head, index_t h, int first, int width,
                                   const Row& row) {
  using Access = word_of<T, Unit>;
  const int rows = move_tile / width;
  for (index_t tile = head.first_moved; tile < head.count; tile += rows) {
    Access held[move_items];
#pragma unroll
    for (int j = 0; j < move_items; ++j) {
      const int e = j * move_threads + static_cast<int>(threadIdx.x);
      const int r = e / width;
      if (r >= rows || tile + r >= head.count) continue;
      held[j] = *reinterpret_cast<const Access*>(row(kept.token(h, tile + r)) + (first + e - r * width) * Unit);
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < move_items; ++j) {
      const int e = j * move_threads + static_cast<int>(threadIdx.x);
      const int r = e / width;
      if (r >= rows || tile + r >= head.count) continue;
      *reinterpret_cast<Access*>(row(tile + r) + (first + e - r * width) * Unit) = held[j];
    }
  }
}

/// Block (slice, head, 0: keys or 1: values); a slice is at most `width` units.
template <int Unit, class C>
__global__ void __launch_bounds__(move_threads)
    move_kernel(const C cache, KeptView kept, const KeptHead* heads, index_t sequence, int width,
                const FaultWord* fault) {
  if (faulted(fault)) return;
  using T = element_of<C>;
  const index_t h = blockIdx.y;
  const bool keys = blockIdx.z == 0;
  const int units = static_cast<int>((keys ? cache.key_dim() : cache.value_dim()) / Unit);
  const int first = static_cast<int>(blockIdx.x) * width;
  if (first >= units) return;
  const int own = units - first < width ? units - first : width;
  move_rows_in_order<Unit, T>(kept, heads[h], h, first, own, head_rows(cache, sequence, h, keys));
}

template <int Unit, class C>
void launch_moves(Cuda& cuda, const C& cache, const KeptView& kept, const KeptHead* heads, index_t sequence,
                  const char* where) {
  const index_t dim = cache.key_dim() > cache.value_dim() ? cache.key_dim() : cache.value_dim();
  const index_t units = dim / Unit;
  // As many slices as keep every multiprocessor busy, but none below a sector of 32 bytes.
  const index_t sector = 32 / static_cast<index_t>(sizeof(Pack<element_of<C>, Unit>));
  const index_t most = (units + sector - 1) / sector;
  const index_t wanted = cuda.device().multiprocessors / (2 * kept.kv_heads());
  const index_t slices = wanted < 1 ? 1 : wanted < most ? wanted : most;
  index_t width = (units + slices - 1) / slices;
  width = width < move_tile ? width : index_t{move_tile};
  const unsigned kinds = values_within_keys(cache) < 0 ? 2 : 1;
  const CudaGrid grid{dim3(cuda_blocks(units, width), static_cast<unsigned>(kept.kv_heads()), kinds),
                      dim3(move_threads)};
  launch(cuda, where, move_kernel<Unit, C>, grid, cache, kept, heads, sequence, static_cast<int>(width), cuda.fault());
}

/// Compacts all rows of a sequence, values within keys with these; lengths and tables stay as they are.
template <class C>
void move_all_rows(Cuda& cuda, const C& cache, const KeptView& kept, const KeptHead* heads, index_t sequence,
                   const char* where) {
  if (kept.kv_heads() == 0) return;
  require(kept.kv_heads() <= 32767, where, "kept", "at most 32767 heads", kept.kv_heads());
  constexpr int unit = row_unit<element_of<C>, element_of<C>>;
  if (cache_aligned(cache, unit)) {
    launch_moves<unit>(cuda, cache, kept, heads, sequence, where);
  } else {
    launch_moves<1>(cuda, cache, kept, heads, sequence, where);
  }
}

template <class T>
__device__ void put_length(const DenseKV<T>& cache, index_t sequence, index_t head, std::int32_t count) {
  if (head == 0) cache.lengths[sequence] = count;
}
template <class T>
__device__ void put_length(const RaggedKV<T>& cache, index_t sequence, index_t head, std::int32_t count) {
  cache.lengths[sequence * cache.heads + head] = count;
}
template <class T>
__device__ void put_length(const PagedKV<T>&, index_t, index_t, std::int32_t) {}  // its table says it already

template <class C>
__global__ void __launch_bounds__(stage_threads)
    put_lengths(const C cache, KeptView kept, index_t sequence, const FaultWord* fault) {
  if (faulted(fault)) return;
  const index_t h = grid_token();
  if (h < kept.kv_heads()) put_length(cache, sequence, h, kept.counts[h]);
}

template <class C>
void launch_lengths(Cuda& cuda, const C& cache, const KeptView& kept, index_t sequence, const char* where) {
  launch(cuda, where, put_lengths<C>, CudaGrid{dim3(cuda_blocks(kept.kv_heads(), stage_threads)), dim3(stage_threads)},
         cache, kept, sequence, cuda.fault());
}

/// Reports pages of the sequence that stand in the table more than once. `seen` holds 0 after a fault. First of all it
/// looks at nothing that a fault rules out: begin and end are clamped.
template <class Page>
__global__ void __launch_bounds__(stage_threads)
    check_unshared(View<Page, 1> indptr, View<Page, 1> indices, index_t pages, index_t sequence,
                   const std::int32_t* seen, FaultWord* fault) {
  const index_t begin = indptr[sequence];
  const index_t i = begin + grid_token();
  if (begin < 0 || i >= indptr[sequence + 1] || i >= indices.extent(0)) return;
  const index_t page = indices[i];
  if (page >= 0 && page < pages && seen[page] > 1) report(fault, Fault::shared_page, 0, 0, page);
}

template <class T>
void check_unshared_pages(Cuda& cuda, const PagedKV<T>& cache, index_t sequence, const char* where) {
  using Page = typename PagedKV<T>::table_type;
  const std::int32_t* const seen = counted_pages(cuda, cache, where);
  if (cache.pages() == 0) return;
  launch(cuda, where, check_unshared<Page>, token_grid(cache.indices.extent(0), 1), cache.indptr, cache.indices,
         cache.pages(), sequence, seen, cuda.fault());
}

/// The pages of a sequence that are needed for its kept tokens.
template <class T>
__device__ index_t pages_needed(const PagedKV<T>& cache, const KeptHead* heads) {
  const index_t count = cache.kv_heads() == 0 ? 0 : heads[0].count;
  return (count + cache.page_size() - 1) / cache.page_size();
}

template <class T>
__global__ void check_freed(const PagedKV<T> cache, const KeptHead* heads, index_t sequence, index_t room,
                            FaultWord* fault) {
  const index_t used = index_t{cache.indptr[sequence + 1]} - cache.indptr[sequence];
  if (used - pages_needed(cache, heads) > room) report(fault, Fault::freed, 0, 0, used - pages_needed(cache, heads));
}

/// Takes the pages that became empty out of the table. One block: pages behind them move down tile by tile.
template <class T>
__global__ void __launch_bounds__(move_threads)
    cut_table(const PagedKV<T> cache, const KeptHead* heads, index_t sequence, View<std::int32_t, 1> freed,
              std::int32_t* freed_count, const FaultWord* fault) {
  if (faulted(fault)) return;
  const index_t begin = cache.indptr[sequence];
  const index_t end = cache.indptr[sequence + 1];
  const index_t all = cache.indptr[cache.sequences()];
  const index_t wanted = pages_needed(cache, heads);
  const index_t cut = end - begin - wanted;
  for (index_t i = threadIdx.x; i < cut; i += blockDim.x) freed[i] = cache.indices[begin + wanted + i];
  __syncthreads();
  for (index_t tile = end; cut > 0 && tile < all; tile += blockDim.x) {
    const index_t i = tile + threadIdx.x;
    const std::int32_t page = i < all ? cache.indices[i] : 0;
    __syncthreads();
    if (i < all) cache.indices[i - cut] = page;
  }
  for (index_t s = sequence + 1 + threadIdx.x; s <= cache.sequences(); s += blockDim.x) {
    cache.indptr[s] -= static_cast<std::int32_t>(cut);
  }
  if (threadIdx.x > 0) return;
  const index_t count = cache.kv_heads() == 0 ? 0 : heads[0].count;
  cache.last_page_len[sequence] =
      static_cast<std::int32_t>(wanted == 0 ? 0 : count - (wanted - 1) * cache.page_size());
  if (freed_count) *freed_count = static_cast<std::int32_t>(cut);
}

/// A matrix of entries, one row per head, as move_rows_in_order sees rows of one unit.
template <class T, int Threads>
__global__ void __launch_bounds__(Threads)
    move_entries(View<T, 2> entries, KeptView kept, const KeptHead* heads, const FaultWord* fault) {
  if (faulted(fault)) return;
  const index_t h = blockIdx.x;
  move_rows_in_order<1, T>(kept, heads[h], h, 0, 1, [&](index_t t) { return &entries(h, t); });
}

/// As check_kept_counts, for rows of `length` entries.
template <int Threads>
__global__ void __launch_bounds__(Threads)
    check_entry_counts(KeptView kept, index_t length, KeptHead* heads, FaultWord* fault) {
  const index_t h = grid_token();
  if (h >= kept.kv_heads()) return;
  const index_t count = kept.count(h);
  const bool good = count >= 0 && count <= length && count <= kept.indices.extent(1);
  if (!good) report(fault, Fault::kept, 0, h, count);
  heads[h] = {static_cast<std::int32_t>(length), good ? static_cast<std::int32_t>(count) : 0, 0x7fffffff};
}

/// Moves entries [kv_heads, n] of any type as compact() moves rows.
template <class T>
void compact_entries(Cuda& cuda, View<T, 2> entries, const KeptView& kept, const char* where) {
  require_equal(kept.kv_heads(), entries.extent(0), where, "kept");
  require(entries.extent(0) <= 1 || entries.stride(0) != 0, where, "entries", "a row of its own for each head",
          "stride 0");
  require_kept(kept, entries.extent(0));
  Workspace::Scope scope(cuda.workspace());
  const index_t rows = kept.kv_heads();
  KeptHead* const heads = cuda.workspace().template take<KeptHead>(rows);
  launch(cuda, where, check_entry_counts<stage_threads>,
         CudaGrid{dim3(cuda_blocks(rows, stage_threads)), dim3(stage_threads)}, kept, entries.extent(1), heads,
         cuda.fault());
  launch(cuda, where, check_kept_tokens<stage_threads>, token_grid(kept.indices.extent(1), rows), kept, heads,
         cuda.fault());
  launch(cuda, where, move_entries<T, move_threads>, CudaGrid{dim3(static_cast<unsigned>(rows)), dim3(move_threads)},
         entries, kept, heads, cuda.fault());
}

/// Compacts a dense or a ragged cache. equal: heads must keep equally many.
template <class C>
void compact_in_place(Cuda& cuda, const C& cache, const KeptView& kept, index_t sequence, bool equal) {
  constexpr const char* where = "kv::compact";
  Workspace::Scope scope(cuda.workspace());
  const KeptHead* const heads = check_kept(cuda, cache, kept, sequence, equal, where);
  move_all_rows(cuda, cache, kept, heads, sequence, where);
  launch_lengths(cuda, cache, kept, sequence, where);
}

}  // namespace detail

/// Keeps rows kept(h, i) of a sequence, at i, and sets its length to their number, which must be the same for every
/// head. In place. O(kept rows).
template <class T>
  requires(!std::is_const_v<T>)
void compact(Cuda& cuda, const DenseKV<T>& cache, KeptView kept, index_t sequence = 0) {
  detail::compact_in_place(cuda, cache, kept, sequence, true);
}

/// The same for a ragged cache, in which heads may keep different numbers.
template <class T>
  requires(!std::is_const_v<T>)
void compact(Cuda& cuda, const RaggedKV<T>& cache, KeptView kept, index_t sequence = 0) {
  detail::compact_in_place(cuda, cache, kept, sequence, false);
}

/// The moves alone, with the page table untouched; see compact.hpp. Shared pages are refused.
template <class T>
  requires(!std::is_const_v<T>)
void compact_rows(Cuda& cuda, const PagedKV<T>& cache, KeptView kept, index_t sequence = 0) {
  constexpr const char* where = "kv::compact";
  Workspace::Scope scope(cuda.workspace());
  const detail::KeptHead* const heads = detail::check_kept(cuda, cache, kept, sequence, true, where);
  detail::check_unshared_pages(cuda, cache, sequence, where);
  detail::move_all_rows(cuda, cache, kept, heads, sequence, where);
}

/// The same, and cuts the table in device memory: pages that become empty are written to `freed`, and their number to
/// *freed_count on the device, unless that is null. A fault when `freed` has no room for them.
template <class T>
  requires(!std::is_const_v<T>)
void compact(Cuda& cuda, const PagedKV<T>& cache, KeptView kept, index_t sequence, View<std::int32_t, 1> freed,
             std::int32_t* freed_count) {
  constexpr const char* where = "kv::compact";
  Workspace::Scope scope(cuda.workspace());
  const detail::KeptHead* const heads = detail::check_kept(cuda, cache, kept, sequence, true, where);
  detail::check_unshared_pages(cuda, cache, sequence, where);
  launch(cuda, where, detail::check_freed<T>, CudaGrid{dim3(1), dim3(1)}, cache, heads, sequence, freed.extent(0),
         cuda.fault());
  detail::move_all_rows(cuda, cache, kept, heads, sequence, where);
  launch(cuda, where, detail::cut_table<T>, CudaGrid{dim3(1), dim3(detail::move_threads)}, cache, heads, sequence,
         freed, freed_count, cuda.fault());
}

/// Compacts what goes along with the tokens: row h of `entries` [kv_heads, n] keeps its entries kept(h, i), at i.
inline void compact(Cuda& cuda, View<std::int32_t, 2> entries, KeptView kept) {
  detail::compact_entries(cuda, entries, kept, "kv::compact");
}

/// Copies rows kept(h, i) of a sequence to position i of sequence `out_sequence` of `out`, elsewhere in memory, and
/// sets its lengths; see compact.hpp. `cache` may be any CacheView that device code can read. Moves, per head and kept
/// token, (key_dim + value_dim) * (sizeof of both types) bytes.
template <CacheView C, PlainCacheView D>
  requires(!std::is_const_v<std::remove_pointer_t<row_t<D>>>)
void gather(Cuda& cuda, const C& cache, index_t sequence, KeptView kept, const D& out, index_t out_sequence = 0) {
  constexpr const char* where = "kv::gather";
  detail::require_cache(out);
  require(out_sequence >= 0 && out_sequence < out.sequences(), where, "out_sequence",
          [&] { return "an index below " + std::to_string(out.sequences()); }, out_sequence);
  require_equal(out.kv_heads(), cache.kv_heads(), where, "out");
  require_equal(out.key_dim(), cache.key_dim(), where, "out");
  require_equal(out.value_dim(), cache.value_dim(), where, "out");
  constexpr bool exact = requires { out.indptr; };
  constexpr bool equal = exact || requires { out.capacity(); };
  Workspace::Scope scope(cuda.workspace());
  const detail::KeptHead* const heads = detail::check_kept(cuda, cache, kept, sequence, equal, where);
  const detail::CacheRows<D> rows{out, out_sequence};
  launch(cuda, where, detail::check_target<D>, CudaGrid{dim3(1), dim3(detail::stage_threads)}, rows, heads, exact,
         cuda.fault());
  detail::launch_gather<detail::element_of<D>>(
      cuda, cache, sequence, kept, heads, rows, [&](int unit) { return detail::cache_aligned(out, unit); }, where);
  detail::launch_lengths(cuda, out, kept, out_sequence, where);
}

/// The same into plain views: keys [kv_heads, capacity, key_dim] and values [kv_heads, capacity, value_dim].
template <CacheView C, Storage T>
  requires(!std::is_const_v<T>)
void gather(Cuda& cuda, const C& cache, index_t sequence, KeptView kept, View<T, 3> keys,
            View<std::type_identity_t<T>, 3> values) {
  constexpr const char* where = "kv::gather";
  require_equal(keys.extent(0), cache.kv_heads(), where, "keys");
  require_equal(keys.extent(2), cache.key_dim(), where, "keys");
  require_equal(values.extent(0), cache.kv_heads(), where, "values");
  require_equal(values.extent(2), cache.value_dim(), where, "values");
  require(keys.stride(2) == 1, where, "keys", "stride 1 along the head dim", keys.stride(2));
  require(values.stride(2) == 1, where, "values", "stride 1 along the head dim", values.stride(2));
  Workspace::Scope scope(cuda.workspace());
  const detail::KeptHead* const heads = detail::check_kept(cuda, cache, kept, sequence, false, where);
  const index_t room = keys.extent(1) < values.extent(1) ? keys.extent(1) : values.extent(1);
  launch(cuda, where, detail::check_room<detail::stage_threads>,
         CudaGrid{dim3(cuda_blocks(cache.kv_heads(), detail::stage_threads)), dim3(detail::stage_threads)},
         cache.kv_heads(), heads, room, cuda.fault());
  const auto aligned = [&](int unit) {
    return detail::rows_aligned(keys, unit) && detail::rows_aligned(values, unit);
  };
  detail::launch_gather<T>(cuda, cache, sequence, kept, heads, detail::ViewRows<T>{keys, values}, aligned, where);
}

}  // namespace decant::kv

#endif
