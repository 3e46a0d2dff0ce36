// decant: what the kernels of dense attention on Cuda share: the arguments of a call, which rows and keys a task has,
// online softmax over a block of keys, and how rows are finished.
#ifndef DECANT_ATTENTION_DETAIL_DENSE_WORK_CUH
#define DECANT_ATTENTION_DETAIL_DENSE_WORK_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include <cmath>
#include <cstdint>

#include "../state.hpp"
#include "dense_plan.cuh"

namespace decant::attention::detail {

using ::decant::detail::Larger;
using ::decant::detail::Plus;
using ::decant::detail::warp_reduce;
using ::decant::detail::widen;

/// Everything that a kernel is given.
template <class Q, class C, class O, class M>
struct DenseDeviceCall {
  using Query = Q;
  using Cache = C;
  using Out = O;
  using Sees = M;
  /// Whether every task leaves a state behind, to be merged.
  static constexpr bool only_states = false;

  DenseDeviceShape x;
  View<const Q, 3> q;
  View<const std::int32_t, 1> indptr;
  C cache;
  View<O, 3> out;
  View<float, 2> lse;
  M mask;
  View<const float, 1> sinks;
  DensePlan plan;
  DenseStates states;
  FaultWord* fault;
};

/// A task in numbers. Row r of the tile is row first_row + r of the sequence's rows: query row / group, and head
/// row % group of those that share the KV head.
struct DenseWork {
  DenseTask task;
  index_t first_query;  // of the query tensor
  index_t queries;      // of the sequence
  index_t keys;         // of the sequence
  index_t first_row;
  int rows;
  index_t begin;  // of the keys of the task
  index_t end;
};

/// The work of this block; false: there is none. All threads are answered alike: without a plan, where other blocks may
/// be reporting now, faults are not asked for, since only scratch will be written.
template <class Call>
__device__ bool find_work(const Call& a, DenseWork& w) {
  if (a.plan.tasks != nullptr) {
    if (faulted(a.fault)) return false;
    if (blockIdx.x >= static_cast<unsigned>(*a.plan.count)) return false;
    w.task = a.plan.tasks[blockIdx.x];
    w.keys = a.cache.length(w.task.sequence, w.task.head);
  } else {
    const index_t tiles = (a.x.group + a.x.tile_rows - 1) / a.x.tile_rows;
    const index_t tile = blockIdx.x / a.x.most_chunks;
    const index_t item = tile / tiles;
    w.task = {static_cast<std::int32_t>(item / a.x.heads), static_cast<std::int32_t>(item % a.x.heads),
              static_cast<std::int32_t>(tile % tiles), static_cast<std::int32_t>(blockIdx.x % a.x.most_chunks),
              static_cast<std::int32_t>(blockIdx.x)};
    w.keys = sound_length(a.x, a.cache, a.mask, w.task.sequence, w.task.head, 1, a.fault);
    if (w.keys < 0) return false;
    const ChunkRange chunks = chunks_of(a.mask, w.task.sequence, 1, w.keys, a.x.chunk);
    if (w.task.chunk < chunks.first || w.task.chunk >= chunks.first + chunks.count) return false;
  }
  const QueryRange queries = queries_of(a.indptr, w.task.sequence);
  w.first_query = queries.first;
  w.queries = queries.count;
  w.first_row = w.task.tile * a.x.tile_rows;
  const index_t left = w.queries * a.x.group - w.first_row;
  w.rows = static_cast<int>(left < a.x.tile_rows ? left : a.x.tile_rows);
  w.begin = w.task.chunk < 0 ? 0 : w.task.chunk * a.x.chunk;
  w.end = w.task.chunk < 0 || w.begin + a.x.chunk > w.keys ? w.keys : w.begin + a.x.chunk;
  return true;
}

/// Whom a row of a tile belongs to: query `query` of the `queries` of a sequence of `keys` keys, of which the cache's
/// token t is number t + shift. at: the query's row of the query tensor.
struct RowAsks {
  index_t sequence;
  index_t query;
  index_t queries;
  index_t keys;
  index_t shift;
  index_t at;
};

template <class Q, class C, class O, class M>
__device__ RowAsks asks_of_row(const DenseDeviceCall<Q, C, O, M>& a, const DenseWork& w, int r) {
  const index_t query = (w.first_row + r) / a.x.group;
  return {w.task.sequence, query, w.queries, w.keys, 0, w.first_query + query};
}

/// The row's query head.
template <class Call, class Work>
__device__ index_t head_of_row(const Call& a, const Work& w, int r) {
  return w.task.head * a.x.group + (w.first_row + r) % a.x.group;
}

/// Where row r's state goes.
template <class Q, class C, class O, class M>
__device__ index_t state_of_row(const DenseDeviceCall<Q, C, O, M>&, const DenseWork& w, int tile_rows, int r) {
  return w.task.slot * index_t{tile_rows} + r;
}

/// The keys of the task that row r may see at most: none for rows behind the tile's last.
template <class Call, class Work>
__device__ KeyRange keys_of_row(const Call& a, const Work& w, int r) {
  if (r >= w.rows) return {w.end, w.begin};
  const RowAsks asks = asks_of_row(a, w, r);
  KeyRange range = a.mask.range(asks.sequence, asks.query, asks.queries, asks.keys);
  if (range.last <= range.first) return {w.end, w.begin};
  range.first -= asks.shift;
  range.last -= asks.shift;
  range.first = range.first < w.begin ? w.begin : range.first;
  range.last = range.last > w.end ? w.end : range.last;
  return range;
}

/// What is asked of a mask whose range() may hold keys that it hides: by which row, and the tokens that it surely sees.
struct RowHoles {
  RowAsks asks{};
  KeyRange whole{0, index_t{1} << 62};

  /// Whether the mask need not be asked for these tokens.
  __device__ bool sees_all(index_t first, int count) const {
    return whole.first <= first && first + count <= whole.last;
  }
  /// Bit j: whether the row sees token first + j, for 0 <= low <= j < high <= 32, all in its range.
  template <class M>
  __device__ std::uint32_t seen(const M& mask, index_t first, int low, int high) const {
    if (low >= high) return 0;
    return static_cast<std::uint32_t>(allowed_word(mask, asks.sequence, asks.query, first + low + asks.shift,
                                                   high - low, asks.queries, asks.keys))
           << low;
  }
};

/// Rows behind the tile's last see all that they are asked for, which is nothing.
template <class Call, class Work>
__device__ RowHoles holes_of_row(const Call& a, const Work& w, int r) {
  RowHoles holes;
  if (r >= w.rows) return holes;
  holes.asks = asks_of_row(a, w, r);
  holes.whole = whole_keys(a.mask, holes.asks.sequence, holes.asks.query, holes.asks.queries, holes.asks.keys);
  holes.whole.first -= holes.asks.shift;
  holes.whole.last -= holes.asks.shift;
  return holes;
}

/// The keys that any row of the tile sees, and those that all rows see.
struct TileKeys {
  KeyRange any;
  KeyRange all;
};

__device__ inline TileKeys keys_of_tile(const DenseWork& w, const KeyRange* ranges) {
  TileKeys k{{w.end, w.begin}, {w.begin, w.end}};
  for (int r = 0; r < w.rows; ++r) {
    const KeyRange range = ranges[r];
    if (range.first < range.last) {
      k.any.first = range.first < k.any.first ? range.first : k.any.first;
      k.any.last = range.last > k.any.last ? range.last : k.any.last;
    }
    k.all.first = range.first > k.all.first ? range.first : k.all.first;
    k.all.last = range.last < k.all.last ? range.last : k.all.last;
  }
  return k;
}

inline constexpr float log2_of_e = 1.44269504f;

/// q.k to a logit in base 2.
__device__ inline float logit_2(float dot, float scale, float soft_cap) {
  if (soft_cap > 0) return soft_cap * tanhf(dot * scale / soft_cap) * log2_of_e;
  return dot * (scale * log2_of_e);
}

/// The keys of one block that a row sees at most: first <= j < last.
struct BlockRange {
  int first;
  int last;
};

template <int Block>
__device__ BlockRange in_block(const KeyRange& range, index_t token) {
  const index_t first = range.first - token;
  const index_t last = range.last - token;
  return {static_cast<int>(first < 0       ? 0
                           : first > Block ? Block
                                           : first),
          static_cast<int>(last < 0       ? 0
                           : last > Block ? Block
                                          : last)};
}

/// A row's state on its way: logits in base 2 are counted from m.
struct RowState {
  float m = empty_lse;
  float l = 0;
};

/// Takes a block of keys into a row's state. Lanes neighbouring lanes of a warp share the row; lane i has the keys
/// i * Each ... (i + 1) * Each - 1. x: their logits in base 2, -inf where a key is not seen, and then their weights.
/// Returns what the sums so far are to be multiplied with. The sum is the same tree whatever Lanes is.
template <int Lanes, int Each>
__device__ float take_block(RowState& state, float (&x)[Each]) {
  float most = empty_lse;
#pragma unroll
  for (int k = 0; k < Each; ++k) most = x[k] > most ? x[k] : most;  // NaN is passed over, and comes out as its weight
  most = warp_reduce<Lanes>(most, Larger{});
  const float m = most > state.m ? most : state.m;
  const float base = m == empty_lse ? 0.0f : m;
#pragma unroll
  for (int k = 0; k < Each; ++k) x[k] = exp2f(x[k] - base);
  float sums[Each];
#pragma unroll
  for (int k = 0; k < Each; ++k) sums[k] = x[k];
#pragma unroll
  for (int step = 1; step < Each; step *= 2) {
#pragma unroll
    for (int k = 0; k < Each; k += 2 * step) sums[k] += sums[k + step];
  }
  float sum = sums[0];
#pragma unroll
  for (int offset = 1; offset < Lanes; offset *= 2) sum += __shfl_xor_sync(::decant::detail::whole_warp, sum, offset);
  const float alpha = exp2f(state.m - base);
  state.l = state.l * alpha + sum;
  state.m = m;
  return alpha;
}

/// What a row's sum of weighted values is multiplied with, and its lse.
struct RowFinish {
  float factor;
  float lse;
};

/// sink: the logit of one key more with the value 0; -inf: none.
__device__ inline RowFinish finish_row(const RowState& state, float sink) {
  constexpr double log_of_2 = 0.693147180559945309;
  const float reference = static_cast<float>(static_cast<double>(state.m) * log_of_2);
  if (sink == empty_lse) {
    if (state.l == 0) return {0, empty_lse};
    return {1.0f / state.l,
            static_cast<float>(static_cast<double>(state.m) * log_of_2 + std::log(static_cast<double>(state.l)))};
  }
  const float m = merge_reference(reference, sink);
  // m and sink are taken as they are: a state without keys has the weight 0 * exp2(-inf).
  const float scale = exp2f((reference - m) * log2_of_e);
  const float total = state.l * scale + exp2f((sink - m) * log2_of_e);
  return {scale / total, static_cast<float>(static_cast<double>(m) + std::log(static_cast<double>(total)))};
}

template <class Call>
__device__ float sink_of(const Call& a, index_t head) {
  return a.sinks.data() == nullptr ? empty_lse : a.sinks[head];
}

/// One number of the result. A row without keys gives 0 whatever its sum is.
template <class O>
__device__ O finished(float sum, float factor) {
  return static_cast<O>(factor == 0 ? 0.0f : sum * factor);
}

}  // namespace decant::attention::detail

#endif
