// decant: how dense attention on Cuda is cut into tasks. Rows (queries times group) of one sequence and KV head make
// tiles, tokens make chunks. Sequences of few rows are split: a task is a tile and a chunk, whose state goes to scratch
// and is merged afterwards. Others are not: a task is a tile over all of its keys. Both follow from the sequence alone,
// never from the batch. The host knows bounds of all this. With one query per sequence and bounds that are not far too
// wide, a block finds its task by its number; else one small kernel writes the true list before.
#ifndef DECANT_ATTENTION_DETAIL_DENSE_PLAN_CUH
#define DECANT_ATTENTION_DETAIL_DENSE_PLAN_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include <cmath>
#include <cstdint>

#include "../../core/cuda.cuh"
#include "../../core/detail/device.cuh"
#include "../../kv/detail/device_layer.cuh"
#include "../../kv/detail/values_within_keys.hpp"
#include "../mask.hpp"

namespace decant::attention {

/// What the kernels of dense attention are tuned by.
struct DenseTuning {
  /// Tokens per chunk where Dense::chunk is 0.
  index_t chunk = 512;
  /// Sequences of at most so many rows (queries times group) are split into chunks, and those of one query.
  index_t split_rows = 128;
  /// Query heads per KV head from which decode over 8- and 16-bit caches uses tensor cores. Calls with q.indptr always
  /// do.
  index_t mma_rows = 5;
  /// Decode does without a plan while that means at most so many blocks too many, or twice as many as can be needed.
  index_t spare_blocks = 1024;
  /// Shared memory that one block may use. Half of what a multiprocessor has lets a second block load meanwhile.
  index_t shared_bytes = 80 * 1024;
};

/// The constants for a device: only how much shared memory there is differs.
constexpr DenseTuning dense_tuning(int compute_capability) {
  DenseTuning tuning;
  const int minor = compute_capability % 10;
  if (compute_capability < 90 && minor != 0 && minor != 7) tuning.shared_bytes = 48 * 1024;
  if (compute_capability >= 90 && compute_capability < 120) tuning.shared_bytes = 112 * 1024;
  if (compute_capability >= 120) tuning.shared_bytes = 48 * 1024;
  return tuning;
}

namespace detail {

using ::decant::detail::Fault;
using ::decant::detail::faulted;
using ::decant::detail::report;

/// The numbers of a call that all kernels share.
struct DenseDeviceShape {
  index_t sequences;
  index_t heads;
  index_t group;
  index_t total;  // queries
  index_t key_dim;
  index_t value_dim;
  index_t o_stride;  // value_dim, rounded up to 4
  index_t chunk;
  index_t longest;        // a bound of the lengths
  index_t most_chunks;    // of a sequence
  index_t split_queries;  // a bound of the queries of a sequence that is split
  index_t tile_rows;
  bool values_in_keys;
  bool aligned;  // rows of K and V for 16-byte accesses
  float scale;
  float soft_cap;
};

struct DenseTask {
  std::int32_t sequence;
  std::int32_t head;
  std::int32_t tile;
  std::int32_t chunk;  // -1: all keys
  std::int32_t slot;   // where the state of a chunk goes
};

/// One sequence and KV head: where its tasks and states stand. States of tile t and chunk c: first_slot + t * chunks +
/// c - first_chunk.
struct DenseItem {
  std::int32_t first_task;
  std::int32_t tasks;
  std::int32_t first_slot;
  std::int32_t first_chunk;
  std::int32_t chunks;  // -1: not split
};

/// What the plan kernel writes. Scratch. Without a list of tasks, block b has chunk b % most_chunks of tile
/// b / most_chunks % tiles of item b / most_chunks / tiles, and its state goes to slot b.
struct DensePlan {
  DenseTask* tasks;     // null: no list
  DenseItem* items;     // [sequences * heads]
  std::int32_t* count;  // tasks
  index_t room;         // for tasks; blocks
  index_t slots;        // for states
};

/// States of chunks: logits in base 2 counted from m, o not yet divided by l. Scratch.
struct DenseStates {
  float* o;    // [slots, tile_rows, o_stride]
  float2* ml;  // [slots, tile_rows]
};

inline index_t ceil_div(index_t a, index_t b) {
  return (a + b - 1) / b;
}

/// The most tokens that a head can hold, as far as the host sees. A view of the user's own says it as capacity().
template <class C>
index_t longest_of(const C& c) {
  if constexpr (requires { c.capacity(); })
    return c.capacity();
  else
    return kv::detail::host_capacity(c);
}

/// Whether every row begins and ends at a multiple of 16 bytes, as far as the host sees.
template <class C>
bool aligned_cache(const C&) {
  return false;
}
template <kv::PlainCacheView C>
requires requires(const C& c) {
  c.keys.stride(0) == c.values.stride(0);
}
bool aligned_cache(const C& c) {
  constexpr int last = decltype(c.keys)::rank - 1;
  const auto aligned = [](const auto& rows) {
    bool good = true;
    for (int r = 0; r < last; ++r)
      good = good && ::decant::detail::aligned_rows(rows.data(), rows.stride(r), rows.extent(last));
    return good;
  };
  return aligned(c.keys) && aligned(c.values);
}

/// Whether each value row is the beginning of its key row, as in MLA, where one latent vector serves as both.
template <class C>
bool values_in_keys(const C& c) {
  return kv::detail::values_within_keys(c) == 0;
}

/// What the host sees of a call, in numbers; how it is split and tiled is the caller's to say. scale: 0 for the default.
/// ArgumentError, in the name of `where`, for a view whose capacity() the host cannot ask.
template <class Q, class C>
DenseDeviceShape dense_device_shape(const View<const Q, 3>& rows, const C& cache, float scale, float soft_cap,
                                    const char* where) {
  DenseDeviceShape x = {};
  x.sequences = cache.sequences();
  x.heads = cache.kv_heads();
  x.group = rows.extent(1) / x.heads;
  x.total = rows.extent(0);
  x.key_dim = cache.key_dim();
  x.value_dim = cache.value_dim();
  x.o_stride = ceil_div(x.value_dim, 4) * 4;
  x.longest = longest_of(cache);
  require(x.longest < kv::detail::unknown_capacity, where, "cache", "a view whose capacity() the host can ask",
          x.longest);
  x.values_in_keys = values_in_keys(cache);
  x.aligned = aligned_cache(cache);
  x.scale = scale > 0 ? scale : 1.0f / std::sqrt(static_cast<float>(x.key_dim));
  x.soft_cap = soft_cap;
  return x;
}

/// A bound of the sum of ceil(length / chunk) over all sequences and heads.
template <class C>
index_t most_chunks(const C&, const DenseDeviceShape& x) {
  return x.sequences * x.heads * x.most_chunks;
}
template <class T>
index_t most_chunks(const kv::PagedKV<T>&, const DenseDeviceShape& x) {
  const index_t each = x.sequences * x.heads * x.most_chunks;
  const index_t all = x.heads * (x.longest / x.chunk + x.sequences);  // every sequence's pages stand in one table
  return all < each ? all : each;
}
template <class T>
index_t most_chunks(const kv::RaggedKV<T>& cache, const DenseDeviceShape& x) {
  const index_t each = x.sequences * x.heads * x.most_chunks;
  const index_t all = cache.keys.extent(0) / x.chunk + x.sequences * x.heads;
  return all < each ? all : each;
}

/// Bounds of tasks and states, from what the host sees. True when no list is needed.
template <class C>
bool bound_plan(const C& cache, const DenseDeviceShape& x, bool one_query_each, index_t spare_blocks, DensePlan& plan) {
  const index_t chunks = most_chunks(cache, x);
  if (one_query_each) {
    const index_t tiles = ceil_div(x.group, x.tile_rows);
    const index_t direct = x.sequences * x.heads * tiles * x.most_chunks;
    plan.room = chunks * tiles;
    const bool narrow = direct > 0 && direct <= 2 * plan.room + spare_blocks;
    if (narrow) plan.room = direct;
    plan.slots = plan.room;
    return narrow;
  }
  const index_t busy = x.total < x.sequences ? x.total : x.sequences;
  const index_t tiles = x.total * x.group / x.tile_rows + busy;
  const index_t split_tiles = ceil_div(x.split_queries * x.group, x.tile_rows);
  const index_t by_cache = chunks * split_tiles;
  const index_t by_queries = x.most_chunks * x.heads * (tiles < busy * split_tiles ? tiles : busy * split_tiles);
  plan.slots = by_cache < by_queries ? by_cache : by_queries;
  plan.room = plan.slots + x.heads * tiles;
  return false;
}

/// A sequence's queries: rows first ... first + count - 1 of the query tensor.
struct QueryRange {
  index_t first;
  index_t count;
};

__device__ inline QueryRange queries_of(const View<const std::int32_t, 1>& indptr, index_t s) {
  if (indptr.data() == nullptr) return {s, 1};
  return {indptr[s], index_t{indptr[s + 1]} - indptr[s]};
}

/// The chunks that m queries over n keys may see.
struct ChunkRange {
  index_t first;
  index_t count;
};

template <class M>
__device__ ChunkRange chunks_of(const M& mask, index_t sequence, index_t m, index_t n, index_t chunk) {
  index_t first = n;
  index_t last = 0;
  for (index_t k = 0; k < m; ++k) {
    const KeyRange range = mask.range(sequence, k, m, n);
    if (range.last <= range.first) continue;
    first = range.first < first ? range.first : first;
    last = range.last > last ? range.last : last;
  }
  first = first < 0 ? 0 : first;
  last = last > n ? n : last;
  if (first >= last) return {0, 0};
  return {first / chunk, (last + chunk - 1) / chunk - first / chunk};
}

/// Whether a sequence's and head's entries in the cache's tables make sense; its page ids are looked at one by one,
/// when they are used.
template <class C>
__device__ bool sound_tables(const C&, index_t, index_t) {
  return true;
}
template <class T>
__device__ bool sound_tables(const kv::PagedKV<T>& c, index_t s, index_t) {
  const index_t begin = c.indptr[s];
  const index_t end = c.indptr[s + 1];
  return begin >= 0 && end >= begin && end <= c.indices.extent(0) &&
         (end == begin || (c.pages() > 0 && c.last_page_len[s] >= 1 && c.last_page_len[s] <= c.page_size()));
}
template <class T>
__device__ bool sound_tables(const kv::RaggedKV<T>& c, index_t s, index_t h) {
  const index_t begin = c.offsets[s * c.heads + h];
  const index_t end = c.offsets[s * c.heads + h + 1];
  return begin >= 0 && end >= begin && end <= c.keys.extent(0) && c.length(s, h) <= end - begin;
}

/// The length of a head, -1 if what tables and the mask say of it makes no sense, which is reported.
template <class C, class M>
__device__ index_t sound_length(const DenseDeviceShape& x, const C& cache, const M& mask, index_t s, index_t h,
                                index_t queries, FaultWord* fault) {
  if (!sound_tables(cache, s, h)) {
    if (threadIdx.x == 0) report(fault, Fault::page_table, 0, h, s);
    return -1;
  }
  const index_t n = cache.length(s, h);
  if (n < 0 || n > x.longest) {
    if (threadIdx.x == 0) report(fault, Fault::length, 0, h, n);
    return -1;
  }
  if constexpr (requires { mask.holds(index_t{}, index_t{}, index_t{}, index_t{}); }) {
    if (!mask.holds(x.sequences, s, queries, n)) {
      if (threadIdx.x == 0) report(fault, Fault::mask, 0, h, s);
      return -1;
    }
  }
  return n;
}

/// Reports what validate(cache), validate(mask) and attend() on Cpu would refuse. Blocks 1, 2, ... of the plan kernel.
template <class C, class M>
__device__ void check_call(const DenseDeviceShape& x, const View<const std::int32_t, 1>& indptr, const C& cache,
                           const M& mask, FaultWord* fault) {
  using kv::detail::check_tables;
  for (index_t s = blockIdx.x - 1; s < x.sequences; s += gridDim.x - 1) {
    bool good = check_tables(cache, s, fault, 0);
    if (indptr.data() != nullptr && threadIdx.x == 0) {
      const index_t before = s == 0 ? 0 : indptr[s];
      const bool ends = s + 1 < x.sequences || indptr[x.sequences] == x.total;
      if (indptr[0] != 0 || indptr[s + 1] < before || indptr[s + 1] > x.total || !ends) {
        report(fault, Fault::indptr, 0, 0, s);
        good = false;
      }
    }
    if (__syncthreads_or(!good)) continue;
    for (index_t h = threadIdx.x; h < x.heads; h += blockDim.x) {
      const index_t n = cache.length(s, h);
      if (n < 0 || n > x.longest) {
        report(fault, Fault::length, 0, h, n);
      } else if constexpr (requires { mask.holds(index_t{}, index_t{}, index_t{}, index_t{}); }) {
        if (!mask.holds(x.sequences, s, queries_of(indptr, s).count, n)) report(fault, Fault::mask, 0, h, s);
      }
    }
  }
}

inline constexpr int plan_threads = 1024;

/// Block 0 writes the plan, the others check. O(sequences * heads + tasks) and the page table, once.
template <class C, class M>
__global__ void __launch_bounds__(plan_threads)
    dense_plan_kernel(const DenseDeviceShape x, const View<const std::int32_t, 1> indptr, const C cache, const M mask,
                      const DensePlan plan, FaultWord* fault) {
  if (blockIdx.x > 0) {
    check_call(x, indptr, cache, mask, fault);
    return;
  }
  __shared__ index_t scratch[32];
  index_t first_task = 0;
  index_t first_slot = 0;
  const index_t items = x.sequences * x.heads;
  for (index_t strip = 0; strip < items; strip += plan_threads) {
    const index_t i = strip + threadIdx.x;
    index_t tiles = 0;
    index_t chunks = -1;
    index_t first_chunk = 0;
    if (i < items) {
      const index_t s = i / x.heads;
      // Clamped: the check above runs at the same time.
      const index_t length = cache.length(s, i % x.heads);
      const index_t n = length < 0 ? 0 : length > x.longest ? x.longest : length;
      const index_t count = queries_of(indptr, s).count;
      const index_t m = count < 0 ? 0 : count > x.total ? x.total : count;
      tiles = (m * x.group + x.tile_rows - 1) / x.tile_rows;
      if (m <= x.split_queries) {
        const ChunkRange range = chunks_of(mask, s, m, n, x.chunk);
        first_chunk = range.first;
        chunks = range.count;
      }
    }
    const index_t slots = chunks > 0 ? tiles * chunks : 0;
    const index_t tasks = chunks < 0 ? tiles : slots;
    index_t strip_tasks = 0;
    index_t strip_slots = 0;
    const index_t task = first_task + ::decant::detail::block_scan_before(tasks, strip_tasks, scratch);
    const index_t slot = first_slot + ::decant::detail::block_scan_before(slots, strip_slots, scratch);
    if (i < items) {
      plan.items[i] = {static_cast<std::int32_t>(task), static_cast<std::int32_t>(tasks),
                       static_cast<std::int32_t>(slot), static_cast<std::int32_t>(first_chunk),
                       static_cast<std::int32_t>(chunks)};
    }
    __syncthreads();
    // A warp per item writes its tasks: one item may have most of them.
    const index_t end = strip + plan_threads < items ? strip + plan_threads : items;
    for (index_t item = strip + threadIdx.x / 32; item < end; item += plan_threads / 32) {
      const DenseItem w = plan.items[item];
      for (index_t k = threadIdx.x % 32; k < w.tasks; k += 32) {
        if (w.first_task + k >= plan.room) break;
        DenseTask& t = plan.tasks[w.first_task + k];
        t.sequence = static_cast<std::int32_t>(item / x.heads);
        t.head = static_cast<std::int32_t>(item % x.heads);
        if (w.chunks < 0) {
          t.tile = static_cast<std::int32_t>(w.tasks - 1 - k);  // the last queries see the most keys: they come first
          t.chunk = -1;
          t.slot = 0;
        } else {
          t.tile = static_cast<std::int32_t>(k / w.chunks);
          t.chunk = static_cast<std::int32_t>(w.first_chunk + k % w.chunks);
          t.slot = static_cast<std::int32_t>(w.first_slot + k);
        }
      }
    }
    first_task += strip_tasks;
    first_slot += strip_slots;
  }
  if (threadIdx.x == 0) *plan.count = static_cast<std::int32_t>(first_task < plan.room ? first_task : plan.room);
}

}  // namespace detail
}  // namespace decant::attention

#endif
