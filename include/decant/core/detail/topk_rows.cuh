// decant: top-k on the device, the kernels. The same radix select as topk.hpp: three histograms (digits of 11, 11 and
// 10 bits) give each group's threshold, then one pass in index order places what is above it and the first equal ones
// by ballots and a block scan. Counts are added by integer atomics, which commute; nothing is placed by atomics.
// A group is one row, or all rows of all matrices together. Short rows: one block each, keys in shared memory (4 bytes
// per score, 1 per mask entry, read twice). Long rows: chunks over the grid, scores and mask read five times, of which
// all but the first come from L2 at the sizes of a layer.
#ifndef DECANT_CORE_DETAIL_TOPK_ROWS_CUH
#define DECANT_CORE_DETAIL_TOPK_ROWS_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "../cuda.cuh"
#include "../topk.hpp"
#include "device.cuh"

namespace decant::detail {

inline constexpr int topk_threads = 512;
inline constexpr int topk_items = 4;  // elements that a thread has in flight
inline constexpr index_t topk_tile = index_t{topk_threads} * topk_items;
inline constexpr std::uint32_t topk_buckets = radix_buckets;

/// Rows of scores in device memory, each `columns` long or as long as `lengths` says.
struct TopKMatrix {
  const float* scores = nullptr;
  index_t row_stride = 0;
  index_t stride = 1;
  const std::uint8_t* keep = nullptr;  // null: nothing is protected
  index_t keep_row_stride = 0;
  index_t keep_stride = 1;
  const std::int32_t* lengths = nullptr;
  index_t length_stride = 1;
  index_t columns = 0;
};

inline TopKMatrix topk_matrix(const View<const float, 2>& scores, const View<const std::uint8_t, 2>& keep,
                              const View<const std::int32_t, 1>& lengths) {
  return {scores.data(),   scores.stride(0), scores.stride(1),  keep.data(),     keep.stride(0),
          keep.stride(1), lengths.data(),   lengths.stride(0), scores.extent(1)};
}

struct TopKRow {
  const float* scores;
  const std::uint8_t* keep;
  index_t stride;
  index_t keep_stride;
  index_t n;       // within [0, columns]
  bool bad_length;

  __device__ std::uint32_t key(index_t i) const {
    const std::uint32_t own = score_key(scores[i * stride]);
    return keep && keep[i * keep_stride] != 0 ? protected_key : own;
  }
};

/// `each` rows of up to N matrices; row r is row r % each of matrix r / each.
template <int N>
struct TopKRows {
  TopKMatrix at[N];
  index_t each = 0;
  index_t rows = 0;
  index_t first = 0;  // the number of row 0 among all rows of the call

  __device__ TopKRow operator[](index_t r) const {
    const TopKMatrix& m = at[N == 1 ? 0 : r / each];
    const index_t row = N == 1 ? r : r % each;
    const index_t told = m.lengths ? m.lengths[row * m.length_stride] : m.columns;
    const bool bad = told < 0 || told > m.columns;
    return {m.scores + row * m.row_stride,
            m.keep ? m.keep + row * m.keep_row_stride : nullptr,
            m.stride,
            m.keep_stride,
            bad ? 0 : told,
            bad};
  }
};

/// How many elements to take: of each row, or of all together (`total`, else `value`).
struct TopKWanted {
  const std::int32_t* counts = nullptr;
  index_t stride = 1;
  const index_t* total = nullptr;
  index_t value = 0;

  __device__ index_t of(index_t group) const {
    return counts ? static_cast<index_t>(counts[group * stride]) : total ? *total : value;
  }
};

/// What is an error of the caller's, and how it is reported.
struct TopKChecks {
  Fault kind = Fault::count;
  index_t layer = 0;
  index_t room = 0x7fffffff;  // of a row of the output
};

/// f(valid, key, i) for i in [begin, end), `valid` or not with all lanes of a warp together.
template <class F>
__device__ void for_each_key(const TopKRow& row, index_t begin, index_t end, F f) {
  for (index_t tile = begin; tile < end; tile += topk_tile) {
    std::uint32_t key[topk_items];
#pragma unroll
    for (int j = 0; j < topk_items; ++j) {
      const index_t i = tile + j * topk_threads + threadIdx.x;
      key[j] = i < end ? row.key(i) : 0u;
    }
#pragma unroll
    for (int j = 0; j < topk_items; ++j) {
      const index_t i = tile + j * topk_threads + threadIdx.x;
      f(i < end, key[j], i);
    }
  }
}

/// Adds 1 to histogram[digit] for every lane that is `valid`. Scores share few first digits, so the first lane's is
/// added once for all that have it.
__device__ inline void count_digit(std::uint32_t* histogram, bool valid, std::uint32_t digit) {
  const unsigned active = __ballot_sync(whole_warp, valid);
  if (active == 0) return;
  const int leader = __ffs(static_cast<int>(active)) - 1;
  const std::uint32_t first = __shfl_sync(whole_warp, digit, leader);
  const unsigned same = __ballot_sync(whole_warp, valid && digit == first);
  if (static_cast<int>(threadIdx.x % 32) == leader) atomicAdd(&histogram[first], static_cast<unsigned>(__popc(same)));
  if (valid && digit != first) atomicAdd(&histogram[digit], 1u);
}

/// Whether a key has the digits found so far, and its next digit. Level 0: bits 31 ... 21, 1: 20 ... 10, 2: 9 ... 0.
__device__ inline bool topk_matches(std::uint32_t key, int level, std::uint32_t prefix) {
  return level == 0 || (level == 1 ? key >> 21 : key >> 10) == prefix;
}
__device__ inline std::uint32_t topk_digit(std::uint32_t key, int level) {
  return level == 0 ? key >> 21 : level == 1 ? key >> 10 & (topk_buckets - 1) : key & 1023u;
}

/// A threshold in the making: the digits found so far, and the rank among the elements that share them.
struct TopKState {
  std::uint32_t prefix;
  index_t rank;
};

struct TopKShared {
  index_t scan[32];
  TopKState state;
};

/// The digit in which the state's rank falls, given how many elements have each; for rank 0 the highest, so that the
/// threshold becomes Threshold{}. Also the sum of the histogram. For the whole block.
__device__ inline TopKState pick_digit(const std::uint32_t* histogram, int level, TopKState state, index_t& total,
                                       TopKShared& shared) {
  const int buckets = level == 2 ? 1024 : static_cast<int>(topk_buckets);
  const int own = buckets / topk_threads;
  const int top = buckets - 1 - static_cast<int>(threadIdx.x) * own;
  index_t sum = 0;
  for (int j = 0; j < own; ++j) sum += histogram[top - j];
  if (threadIdx.x == 0) shared.state = {static_cast<std::uint32_t>(buckets - 1), 0};
  index_t before = block_scan_before(sum, total, shared.scan);
  if (before < state.rank && state.rank <= before + sum) {
    int digit = top;
    while (state.rank > before + histogram[digit]) before += histogram[digit--];
    shared.state = {static_cast<std::uint32_t>(digit), state.rank - before};
  }
  __syncthreads();
  const TopKState found = shared.state;
  __syncthreads();
  return {state.prefix << (level == 2 ? 10 : 11) | found.prefix, found.rank};
}

__device__ inline void clear_histogram(std::uint32_t* histogram) {
  for (unsigned b = threadIdx.x; b < topk_buckets; b += topk_threads) histogram[b] = 0;
}

/// Reports, from one thread, a count that the protected or the present elements rule out.
__device__ inline void check_count(const TopKChecks& checks, index_t row, index_t wanted, index_t kept, index_t present,
                                   FaultWord* fault) {
  if (wanted < kept || wanted > present) report(fault, checks.kind, checks.layer, row, wanted);
  if (wanted > checks.room) report(fault, Fault::capacity, checks.layer, row, wanted);
}

/// Short rows: the threshold of row blockIdx.x. Cached: keys stay in dynamic shared memory, columns words.
template <bool Cached>
__global__ void __launch_bounds__(topk_threads)
    row_thresholds(TopKRows<1> rows, TopKWanted wanted, TopKChecks checks, Threshold* thresholds, FaultWord* fault) {
  extern __shared__ std::uint32_t cached_keys[];
  __shared__ std::uint32_t histogram[topk_buckets];
  __shared__ TopKShared shared;
  const index_t r = blockIdx.x;
  const TopKRow row = rows[r];
  const index_t k = wanted.of(r);
  TopKState state{0, k < 0 ? 0 : k < row.n ? k : row.n};
  for (int level = 0; level < 3; ++level) {
    clear_histogram(histogram);
    __syncthreads();
    const auto count = [&](bool valid, std::uint32_t key, index_t i) {
      if (Cached && level == 0 && valid) cached_keys[i] = key;
      count_digit(histogram, valid && topk_matches(key, level, state.prefix), topk_digit(key, level));
    };
    if (Cached && level > 0) {
      for (index_t base = 0; base < row.n; base += topk_threads) {
        const index_t i = base + threadIdx.x;  // the thread that stored this key
        count(i < row.n, i < row.n ? cached_keys[i] : 0u, i);
      }
    } else {
      for_each_key(row, 0, row.n, count);
    }
    __syncthreads();
    if (level == 0 && threadIdx.x == 0) {
      if (row.bad_length) report(fault, Fault::length, checks.layer, r, 0);
      check_count(checks, r, k, histogram[topk_buckets - 1], row.n, fault);  // only protected keys have this digit
    }
    index_t total = 0;
    state = pick_digit(histogram, level, state, total, shared);
  }
  if (threadIdx.x == 0) thresholds[r] = {state.prefix, state.rank};
}

/// Where the kernels for long rows meet: per group three histograms and two states.
struct TopKGroups {
  std::uint32_t* histograms;  // [3][groups][topk_buckets], zero at first
  TopKState* states;          // [2][groups]
  index_t groups;
  bool joint;                 // one group, of all rows

  __device__ std::uint32_t* histogram(int level, index_t group) const {
    return histograms + (level * groups + group) * topk_buckets;
  }
};

/// The state of a group before digit `level`, from what the kernel before it counted.
__device__ inline TopKState state_before(const TopKGroups& groups, int level, index_t group, const TopKWanted& wanted,
                                         index_t& total, TopKShared& shared) {
  const index_t k = wanted.of(group);
  TopKState state{0, k < 0 ? 0 : k};
  if (level == 0) return state;
  if (level > 1) state = groups.states[(level - 2) * groups.groups + group];
  return pick_digit(groups.histogram(level - 1, group), level - 1, state, total, shared);
}

/// Long rows: adds the digits of chunk blockIdx.x % chunks of row blockIdx.x / chunks to its group's histogram.
template <int N>
__global__ void __launch_bounds__(topk_threads)
    count_digits(const __grid_constant__ TopKRows<N> rows, TopKWanted wanted, TopKChecks checks, TopKGroups groups,
                 int level, index_t chunk, index_t chunks, FaultWord* fault) {
  __shared__ std::uint32_t histogram[topk_buckets];
  __shared__ TopKShared shared;
  const index_t r = blockIdx.x / chunks;
  const index_t c = blockIdx.x % chunks;
  const TopKRow row = rows[r];
  const index_t group = groups.joint ? 0 : rows.first + r;
  const bool first = c == 0 && (!groups.joint || rows.first + r == 0);  // the block that speaks for its group
  const index_t begin = c * chunk;
  const index_t end = begin + chunk < row.n ? begin + chunk : row.n;
  if (level == 0 && c == 0 && threadIdx.x == 0 && row.bad_length) report(fault, Fault::length, checks.layer, r, 0);
  if (begin >= end && !first) return;
  index_t total = 0;
  const TopKState state = state_before(groups, level, group, wanted, total, shared);
  if (first && threadIdx.x == 0 && level > 0) {
    groups.states[(level - 1) * groups.groups + group] = state;
    if (level == 1) {
      const index_t kept = groups.histogram(0, group)[topk_buckets - 1];
      check_count(checks, group, wanted.of(group), kept, total, fault);
    }
  }
  clear_histogram(histogram);
  __syncthreads();
  for_each_key(row, begin, end, [&](bool valid, std::uint32_t key, index_t) {
    count_digit(histogram, valid && topk_matches(key, level, state.prefix), topk_digit(key, level));
  });
  __syncthreads();
  std::uint32_t* const all = groups.histogram(level, group);
  for (unsigned b = threadIdx.x; b < topk_buckets; b += topk_threads) {
    if (histogram[b] != 0) atomicAdd(&all[b], histogram[b]);
  }
}

/// How many elements of a chunk are above its group's threshold, and how many equal to it.
struct TopKCounts {
  std::uint32_t above;
  std::uint32_t equal;
};

/// Writes every group's threshold and every chunk's counts [rows of the call][chunks].
template <int N>
__global__ void __launch_bounds__(topk_threads)
    count_chunks(const __grid_constant__ TopKRows<N> rows, TopKWanted wanted, TopKGroups groups, index_t chunk,
                 index_t chunks, Threshold* thresholds, TopKCounts* counts) {
  __shared__ TopKShared shared;
  const index_t r = blockIdx.x / chunks;
  const index_t c = blockIdx.x % chunks;
  const TopKRow row = rows[r];
  const index_t group = groups.joint ? 0 : rows.first + r;
  const index_t begin = c * chunk;
  const index_t end = begin + chunk < row.n ? begin + chunk : row.n;
  const bool first = c == 0 && (!groups.joint || rows.first + r == 0);
  std::uint32_t above = 0;
  std::uint32_t equal = 0;
  if (begin < end || first) {
    index_t total = 0;
    const TopKState state = state_before(groups, 3, group, wanted, total, shared);
    if (first && threadIdx.x == 0) thresholds[group] = {state.prefix, state.rank};
    for_each_key(row, begin, end, [&](bool valid, std::uint32_t key, index_t) {
      above += valid && key > state.prefix ? 1u : 0u;
      equal += valid && key == state.prefix ? 1u : 0u;
    });
  }
  __shared__ std::uint32_t sums[32];
  above = block_reduce(above, Plus{}, 0u, sums);
  equal = block_reduce(equal, Plus{}, 0u, sums);
  if (threadIdx.x == 0) counts[(rows.first + r) * chunks + c] = {above, equal};
}

/// Where taken elements go: their indices, ascending, or a mask over all.
struct EmitIndices {
  std::int32_t* out;
  index_t row_stride;

  __device__ void operator()(index_t row, bool taken, index_t position, index_t i) const {
    if (taken) out[row * row_stride + position] = static_cast<std::int32_t>(i);
  }
};
struct EmitMask {
  std::uint8_t* out;
  index_t row_stride;

  __device__ void operator()(index_t row, bool taken, index_t, index_t i) const {
    out[row * row_stride + i] = taken ? 1 : 0;
  }
};

/// Emits the elements of chunk blockIdx.x % chunks of row blockIdx.x / chunks. counts: what lies in the chunks before;
/// null where a row is one chunk. Nothing after a fault.
template <class Emit>
__global__ void __launch_bounds__(topk_threads)
    emit_taken(TopKRows<1> rows, const Threshold* thresholds, index_t chunk, index_t chunks, const TopKCounts* counts,
               Emit emit, const FaultWord* fault) {
  if (faulted(fault)) return;
  __shared__ std::uint32_t warp_counts[2][topk_threads / 32];
  __shared__ index_t sums[32];
  const index_t r = blockIdx.x / chunks;
  const index_t c = blockIdx.x % chunks;
  const TopKRow row = rows[r];
  const index_t begin = c * chunk;
  const index_t end = begin + chunk < row.n ? begin + chunk : row.n;
  if (begin >= end) return;
  const Threshold threshold = thresholds[r];
  index_t above = 0;  // above the threshold and equal to it, before the tile
  index_t equal = 0;
  if (counts) {
    for (index_t b = threadIdx.x; b < c; b += topk_threads) {
      above += counts[r * chunks + b].above;
      equal += counts[r * chunks + b].equal;
    }
    above = block_reduce(above, Plus{}, index_t{0}, sums);
    equal = block_reduce(equal, Plus{}, index_t{0}, sums);
  }
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const unsigned lower = (1u << lane) - 1u;
  int buffer = 0;
  for (index_t tile = begin; tile < end; tile += topk_tile, buffer ^= 1) {
    // A warp owns 32 * topk_items neighbours, so that an element's rank follows from its warp's and lane's.
    const index_t base = tile + warp * 32 * topk_items + lane;
    std::uint32_t key[topk_items];
#pragma unroll
    for (int j = 0; j < topk_items; ++j) key[j] = base + 32 * j < end ? row.key(base + 32 * j) : 0u;
    unsigned above_mask[topk_items];
    unsigned equal_mask[topk_items];
    std::uint32_t packed = 0;  // above: low half, equal: high half; a tile has fewer than 2^16 elements
#pragma unroll
    for (int j = 0; j < topk_items; ++j) {
      const bool valid = base + 32 * j < end;
      above_mask[j] = __ballot_sync(whole_warp, valid && key[j] > threshold.key);
      equal_mask[j] = __ballot_sync(whole_warp, valid && key[j] == threshold.key);
      packed += static_cast<std::uint32_t>(__popc(above_mask[j])) +
                (static_cast<std::uint32_t>(__popc(equal_mask[j])) << 16);
    }
    if (lane == 0) warp_counts[buffer][warp] = packed;
    __syncthreads();
    const std::uint32_t others = lane < topk_threads / 32 ? warp_counts[buffer][lane] : 0u;
    const std::uint32_t before = warp_scan_before(others);
    const std::uint32_t total = __shfl_sync(whole_warp, before + others, 31);
    const std::uint32_t own = __shfl_sync(whole_warp, before, warp);
    index_t above_here = above + (own & 0xffffu);
    index_t equal_here = equal + (own >> 16);
#pragma unroll
    for (int j = 0; j < topk_items; ++j) {
      const index_t above_before = above_here + __popc(above_mask[j] & lower);
      const index_t equal_before = equal_here + __popc(equal_mask[j] & lower);
      const bool is_above = (above_mask[j] >> lane & 1u) != 0;
      const bool is_tie = (equal_mask[j] >> lane & 1u) != 0 && equal_before < threshold.ties;
      const index_t ties_before = equal_before < threshold.ties ? equal_before : threshold.ties;
      if (base + 32 * j < end) emit(r, is_above || is_tie, above_before + ties_before, base + 32 * j);
      above_here += __popc(above_mask[j]);
      equal_here += __popc(equal_mask[j]);
    }
    above += total & 0xffffu;
    equal += total >> 16;
  }
}

/// What a joint selection takes of each row, ties going to the lower row: counts(r / each, r % each). One block.
template <class Count>
__global__ void __launch_bounds__(topk_threads)
    share_counts(index_t rows, index_t each, index_t chunks, const Threshold* threshold, const TopKCounts* chunk_counts,
                 Count* counts, index_t matrix_stride, index_t row_stride, const FaultWord* fault) {
  if (faulted(fault)) return;
  __shared__ index_t sums[32];
  const index_t ties = threshold->ties;
  index_t before = 0;
  for (index_t tile = 0; tile < rows; tile += topk_threads) {
    const index_t r = tile + threadIdx.x;
    index_t above = 0;
    index_t equal = 0;
    for (index_t c = 0; r < rows && c < chunks; ++c) {
      above += chunk_counts[r * chunks + c].above;
      equal += chunk_counts[r * chunks + c].equal;
    }
    index_t total = 0;
    const index_t lower = before + block_scan_before(equal, total, sums);
    const index_t left = lower < ties ? ties - lower : 0;
    if (r < rows) {
      counts[r / each * matrix_stride + r % each * row_stride] =
          static_cast<Count>(above + (equal < left ? equal : left));
    }
    before += total;
  }
}

}  // namespace decant::detail

#endif
