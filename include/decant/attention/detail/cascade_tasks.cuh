// decant: how shared-prefix attention on Cuda is cut into tasks. A piece of a CascadePlan and a KV head is attended by
// the queries of all requests that share it: rows (queries times group) make tiles, tokens make chunks, and a task is a
// tile and a chunk, whose state goes to scratch. One small kernel writes the list, the longest pieces first and the
// tiles of a chunk next to each other, so that all but the first find its keys in the cache, and checks the call.
#ifndef DECANT_ATTENTION_DETAIL_CASCADE_TASKS_CUH
#define DECANT_ATTENTION_DETAIL_CASCADE_TASKS_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include <cstdint>

#include "../cascade_plan.cuh"
#include "dense_work.cuh"

namespace decant::attention::detail {

/// A plan's lists, on the device.
struct CascadeLists {
  CascadeRoom room;
  CascadeLayout at;
  const std::int32_t* words;

  __device__ index_t read(index_t i) const { return words[i]; }
  __device__ index_t count(index_t i, index_t most) const {
    const index_t n = words[i];
    return n < 0 ? 0 : n > most ? most : n;
  }
  __device__ index_t segments() const { return count(0, room.segments); }
  __device__ index_t pieces() const { return count(1, room.pieces); }
  __device__ Segment segment(index_t s) const {
    const int4 x = reinterpret_cast<const int4*>(words + at.segments)[s];
    return {x.x, x.y, x.z, x.w};
  }
  __device__ CascadePiece piece(index_t p) const {
    const int4 x = reinterpret_cast<const int4*>(words + at.pieces)[p];
    return {x.x, x.y, x.z, x.w};
  }
  __device__ index_t leaf(index_t r) const { return read(at.leaves + r); }
  __device__ index_t first_pair(index_t p) const { return read(at.piece_indptr + p); }
  __device__ index_t ordered(index_t i) const { return read(at.order + i); }
  __device__ index_t request_of(index_t pair) const { return read(at.requests_of + pair); }
  __device__ index_t piece_of(index_t pair) const { return read(at.piece_of + pair); }
  __device__ index_t first_part(index_t r) const { return read(at.request_indptr + r); }
  __device__ index_t pair_of(index_t part) const { return read(at.parts_of + part); }
};

/// A piece's share of the work, the same for each KV head.
struct CascadeItem {
  std::int32_t rows;       // queries times group
  std::int32_t tile_rows;
  std::int32_t chunk;      // tokens
  std::int32_t chunks;
  std::int32_t first_task;
  std::int32_t tasks;
  index_t first_state;  // of row r of chunk c of head h: first_state + (h * chunks + c) * rows + r
};

struct CascadeTask {
  std::int32_t piece;
  std::int32_t head;
  std::int32_t tile;
  std::int32_t chunk;
};

/// What the first kernel writes. Scratch.
struct CascadeTasks {
  CascadeTask* tasks;
  CascadeItem* items;      // [pieces]
  std::int32_t* query_of;  // [pairs], of a pair's first query, in its piece; null with one query per request
  std::int32_t* before;    // [pieces * heads], keys on the path before the piece
  std::int32_t* keys;      // [requests * heads], keys of a request
  std::int32_t* count;     // tasks
  index_t room;            // for tasks; blocks
  index_t states;          // room
};

/// Tiles of few rows and of many, and how many tokens a chunk of each has.
struct CascadeShapes {
  index_t few_rows;
  index_t many_rows;
  index_t few_chunk;
  index_t many_chunk;
};

/// Everything that a kernel is given. x.sequences are the cache's, requests the plan's.
template <class Q, class C, class O, class M>
struct CascadeDeviceCall {
  using Query = Q;
  using Cache = C;
  using Out = O;
  using Sees = M;
  static constexpr bool only_states = true;

  DenseDeviceShape x;
  CascadeShapes shapes;
  CascadeLists plan;
  CascadeTasks tasks;
  View<const Q, 3> q;
  View<const std::int32_t, 1> indptr;
  C cache;
  View<O, 3> out;
  View<float, 2> lse;
  M mask;
  View<const float, 1> sinks;
  DenseStates states;
  FaultWord* fault;
};

struct CascadeWork : DenseWork {
  index_t piece;
  index_t shift;  // from a token to its number among the keys of a request
  index_t first_state;
};

/// The pair of a piece that query k of the piece belongs to: the last one whose first query is not behind it.
template <class Call>
__device__ index_t pair_of_query(const Call& a, index_t piece, index_t k) {
  index_t low = a.plan.first_pair(piece);
  if (a.tasks.query_of == nullptr) return low + k;
  index_t high = a.plan.first_pair(piece + 1);
  while (high - low > 1) {
    const index_t middle = (low + high) / 2;
    (a.tasks.query_of[middle] <= k ? low : high) = middle;
  }
  return low;
}

template <class Q, class C, class O, class M>
__device__ RowAsks asks_of_row(const CascadeDeviceCall<Q, C, O, M>& a, const CascadeWork& w, int r) {
  const index_t k = (w.first_row + r) / a.x.group;
  const index_t pair = pair_of_query(a, w.piece, k);
  const index_t request = a.plan.request_of(pair);
  if (a.tasks.query_of == nullptr)
    return {request, 0, 1, a.tasks.keys[request * a.x.heads + w.task.head], w.shift, request};
  const QueryRange queries = queries_of(a.indptr, request);
  const index_t query = k - a.tasks.query_of[pair];
  return {request, query, queries.count, a.tasks.keys[request * a.x.heads + w.task.head], w.shift,
          queries.first + query};
}

template <class Q, class C, class O, class M>
__device__ index_t state_of_row(const CascadeDeviceCall<Q, C, O, M>&, const CascadeWork& w, int, int r) {
  return w.first_state + r;
}

/// The work of this block; false: there is none.
template <class Q, class C, class O, class M>
__device__ bool find_work(const CascadeDeviceCall<Q, C, O, M>& a, CascadeWork& w) {
  if (faulted(a.fault) || blockIdx.x >= static_cast<unsigned>(*a.tasks.count)) return false;
  const CascadeTask task = a.tasks.tasks[blockIdx.x];
  const CascadeItem item = a.tasks.items[task.piece];
  const CascadePiece piece = a.plan.piece(task.piece);
  w.piece = task.piece;
  w.task = {static_cast<std::int32_t>(piece.sequence), task.head, task.tile, task.chunk, 0};
  w.first_query = w.queries = w.keys = 0;  // they differ by row
  w.first_row = index_t{task.tile} * item.tile_rows;
  w.rows = item.rows - task.tile * item.tile_rows;
  if (w.rows > item.tile_rows) w.rows = item.tile_rows;
  const index_t held = a.cache.length(piece.sequence, task.head);
  w.begin = piece.first + index_t{task.chunk} * item.chunk;
  w.end = w.begin + item.chunk < piece.last ? w.begin + item.chunk : piece.last;
  if (w.end > held) w.end = held;
  if (w.end < w.begin) w.end = w.begin;
  w.shift = a.tasks.before[index_t{task.piece} * a.x.heads + task.head] - piece.first;
  w.first_state = item.first_state + (index_t{task.head} * item.chunks + task.chunk) * item.rows + w.first_row;
  return true;
}

/// How many keys of a head the segment and those above it hold. Segments without keys may name any sequence.
template <class Call>
__device__ index_t keys_up_to(const Call& a, index_t segment, index_t head) {
  index_t keys = 0;
  for (index_t s = segment; s >= 0 && s < a.plan.segments();) {
    const Segment x = a.plan.segment(s);
    if (x.sequence >= 0 && x.sequence < a.x.sequences) keys += tokens_of(a.cache, x.sequence, head, x.first, x.last);
    s = x.parent < s ? x.parent : -1;
  }
  return keys;
}

/// Whether a plan's lists make sense at all, as what upload() writes does, and the cache holds what they name.
template <class Call>
__device__ void check_lists(const Call& a, index_t first, index_t step) {
  const CascadeLists& p = a.plan;
  const index_t pieces = p.pieces();
  const auto ranged = [](index_t i, index_t low, index_t end) { return i >= low && i < end; };
  bool good = p.read(0) == p.segments() && p.read(1) == pieces && p.first_pair(0) == 0 && p.first_part(0) == 0;
  for (index_t s = first; s < p.segments(); s += step) good = good && ranged(p.segment(s).parent, -1, s);
  for (index_t i = first; i < pieces; i += step) {
    const CascadePiece x = p.piece(i);
    good = good && ranged(x.segment, 0, p.segments()) && ranged(p.ordered(i), 0, pieces) &&
           ranged(p.first_pair(i + 1), p.first_pair(i), p.room.states + 1) && ranged(x.sequence, 0, a.x.sequences) &&
           x.first >= 0 && x.first <= x.last;
    good = good && x.last <= kv::max_length(a.cache, x.sequence);
  }
  const index_t pairs = p.count(p.at.piece_indptr + pieces, p.room.states);
  for (index_t r = first; r < p.room.requests; r += step)
    good = good && ranged(p.leaf(r), -1, p.segments()) && ranged(p.first_part(r + 1), p.first_part(r), pairs + 1);
  for (index_t k = first; k < pairs; k += step) {
    good = good && ranged(p.piece_of(k), 0, pieces) && ranged(p.request_of(k), 0, p.room.requests) &&
           ranged(p.pair_of(k), 0, pairs);
    good = good && ranged(k, p.first_pair(p.piece_of(k)), p.first_pair(p.piece_of(k) + 1));
    const index_t request = good ? p.request_of(p.pair_of(k)) : 0;
    good = good && ranged(request, 0, p.room.requests) && ranged(k, p.first_part(request), p.first_part(request + 1));
  }
  if (!good) report(a.fault, Fault::cascade, 0, 0, 0);
}

/// Reports what attend() on Cpu would refuse, and says which keys lie before a piece and how many a request has.
/// Blocks 1, 2, ...
template <class Call>
__device__ void check_cascade(const Call& a) {
  using kv::detail::check_tables;
  const index_t blocks = gridDim.x - 1;
  const index_t block = blockIdx.x - 1;
  for (index_t s = block; s < a.x.sequences; s += blocks) {
    const bool good = check_tables(a.cache, s, a.fault, 0);
    if (__syncthreads_or(!good)) continue;
    for (index_t h = threadIdx.x; h < a.x.heads; h += blockDim.x) {
      const index_t n = a.cache.length(s, h);
      if (n < 0 || n > a.x.longest) report(a.fault, Fault::length, 0, h, n);
    }
  }
  const index_t step = blocks * blockDim.x;
  const index_t first = block * blockDim.x + threadIdx.x;
  const index_t requests = a.plan.room.requests;
  if (a.indptr.data() != nullptr) {
    for (index_t r = first; r < requests; r += step) {
      const bool ends = r + 1 < requests || a.indptr[requests] == a.x.total;
      if (a.indptr[0] != 0 || a.indptr[r + 1] < a.indptr[r] || a.indptr[r + 1] > a.x.total || !ends)
        report(a.fault, Fault::indptr, 0, 0, r);
    }
  }
  check_lists(a, first, step);
  for (index_t i = first; i < requests * a.x.heads; i += step) {
    const index_t r = i / a.x.heads;
    const index_t h = i % a.x.heads;
    const index_t keys = keys_up_to(a, a.plan.leaf(r), h);
    a.tasks.keys[i] = static_cast<std::int32_t>(keys);
    if constexpr (requires { a.mask.holds(index_t{}, index_t{}, index_t{}, index_t{}); }) {
      if (!a.mask.holds(requests, r, queries_of(a.indptr, r).count, keys)) report(a.fault, Fault::mask, 0, h, r);
    }
  }
  for (index_t i = first; i < a.plan.pieces() * a.x.heads; i += step) {
    const CascadePiece x = a.plan.piece(i / a.x.heads);
    const index_t h = i % a.x.heads;
    index_t before = 0;
    if (x.segment >= 0 && x.segment < a.plan.segments() && x.sequence >= 0 && x.sequence < a.x.sequences) {
      const Segment segment = a.plan.segment(x.segment);
      if (segment.parent < x.segment) before = keys_up_to(a, segment.parent, h);
      before += tokens_of(a.cache, x.sequence, h, segment.first, x.first);
    }
    a.tasks.before[i] = static_cast<std::int32_t>(before);
  }
}

inline constexpr int list_threads = 256;

/// A warp counts the queries of a piece, and where those of each pair begin.
template <class Call>
__device__ index_t count_queries(const Call& a, index_t piece) {
  const index_t begin = a.plan.count(a.plan.at.piece_indptr + piece, a.plan.room.states);
  const index_t end = a.plan.count(a.plan.at.piece_indptr + piece + 1, a.plan.room.states);
  if (a.tasks.query_of == nullptr) return end > begin ? end - begin : 0;
  index_t total = 0;
  for (index_t strip = begin; strip < end; strip += 32) {
    const index_t pair = strip + threadIdx.x % 32;
    index_t queries = 0;
    if (pair < end) {
      const index_t r = a.plan.request_of(pair);
      // Clamped: the check runs at the same time.
      if (r >= 0 && r < a.plan.room.requests) queries = queries_of(a.indptr, r).count;
      if (queries < 0 || queries > a.x.total) queries = 0;
    }
    const index_t before = ::decant::detail::warp_scan_before(queries);
    if (pair < end) a.tasks.query_of[pair] = static_cast<std::int32_t>(total + before);
    total += __shfl_sync(::decant::detail::whole_warp, before + queries, 31);
  }
  return total;
}

/// Block 0 writes the list of tasks. O(pieces + states + tasks).
template <class Call>
__device__ void write_tasks(const Call& a) {
  __shared__ index_t scratch[32];
  __shared__ index_t shared_rows[list_threads];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const index_t pieces = a.plan.pieces();
  index_t first_task = 0;
  index_t first_state = 0;
  for (index_t strip = 0; strip < pieces; strip += list_threads) {
    const index_t here = pieces - strip < list_threads ? pieces - strip : list_threads;
    const auto piece_at = [&](index_t i) {
      const index_t p = a.plan.ordered(strip + i);
      return p < 0 || p >= pieces ? index_t{0} : p;
    };
    for (index_t i = warp; i < here; i += list_threads / 32) {
      const index_t queries = count_queries(a, piece_at(i));
      if (lane == 0) shared_rows[i] = queries * a.x.group;
    }
    __syncthreads();
    const bool has = threadIdx.x < here;
    CascadeItem item{};
    index_t tasks = 0;
    index_t states = 0;
    if (has) {
      const CascadePiece x = a.plan.piece(piece_at(threadIdx.x));
      const index_t tokens = x.last > x.first ? x.last - x.first : 0;
      const index_t rows = shared_rows[threadIdx.x];
      const bool many = rows > a.shapes.few_rows;
      const index_t chunk = many ? a.shapes.many_chunk : a.shapes.few_chunk;
      const index_t tile_rows = many ? a.shapes.many_rows : a.shapes.few_rows;
      const index_t chunks = (tokens + chunk - 1) / chunk;
      states = a.x.heads * chunks * rows;
      tasks = a.x.heads * chunks * ((rows + tile_rows - 1) / tile_rows);
      item.rows = static_cast<std::int32_t>(rows);
      item.tile_rows = static_cast<std::int32_t>(tile_rows);
      item.chunk = static_cast<std::int32_t>(chunk);
      item.chunks = static_cast<std::int32_t>(chunks);
    }
    index_t strip_tasks = 0;
    index_t strip_states = 0;
    const index_t task = first_task + ::decant::detail::block_scan_before(tasks, strip_tasks, scratch);
    const index_t state = first_state + ::decant::detail::block_scan_before(states, strip_states, scratch);
    first_task += strip_tasks;
    first_state += strip_states;
    if (first_task > a.tasks.room || first_state > a.tasks.states) break;
    if (has) {
      item.first_task = static_cast<std::int32_t>(task);
      item.tasks = static_cast<std::int32_t>(tasks);
      item.first_state = state;
      a.tasks.items[piece_at(threadIdx.x)] = item;
    }
    __syncthreads();
    for (index_t i = warp; i < here; i += list_threads / 32) {
      const index_t p = piece_at(i);
      const CascadeItem w = a.tasks.items[p];
      const int tiles = w.tasks == 0 ? 1 : (w.rows + w.tile_rows - 1) / w.tile_rows;
      for (int k = lane; k < w.tasks; k += 32) {
        const int group = k / tiles;
        a.tasks.tasks[w.first_task + k] = {static_cast<std::int32_t>(p),
                                           static_cast<std::int32_t>(group % static_cast<int>(a.x.heads)), k % tiles,
                                           group / static_cast<int>(a.x.heads)};
      }
    }
    __syncthreads();
  }
  if (threadIdx.x > 0) return;
  const bool fits = first_task <= a.tasks.room && first_state <= a.tasks.states;
  if (!fits) report(a.fault, Fault::cascade, 0, 0, 0);
  *a.tasks.count = fits ? static_cast<std::int32_t>(first_task) : 0;
}

template <class Call>
__global__ void __launch_bounds__(list_threads) cascade_plan_kernel(const Call call) {
  if (blockIdx.x == 0)
    write_tasks(call);
  else
    check_cascade(call);
}

}  // namespace decant::attention::detail

#endif
