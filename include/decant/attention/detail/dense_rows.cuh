// decant: dense attention on CUDA cores: few rows (queries times group) against each row of K and V, which a block
// brings to shared memory once, 16 bytes at a time, one block of keys ahead. Scores: a few lanes per key; weights: a
// warp per row; sums: a thread per 16 bytes of a value row. It must move (key_dim + value_dim) * sizeof(T) bytes per
// token and tile and does 2 * rows * (key_dim + value_dim) FLOPs with them, both in float.
#ifndef DECANT_ATTENTION_DETAIL_DENSE_ROWS_CUH
#define DECANT_ATTENTION_DETAIL_DENSE_ROWS_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "dense_copy.cuh"
#include "dense_work.cuh"

namespace decant::attention::detail {

inline constexpr int rows_threads = 128;
/// The longest block of keys; shorter ones where rows are long.
inline constexpr int rows_block = 64;

/// Where things lie in shared memory, in bytes from its beginning.
struct RowsLayout {
  int block;        // keys
  int stages;       // blocks in flight or at work
  int key_vectors;  // 16-byte vectors of a row
  int value_vectors;
  int key_stride;  // elements
  int value_stride;
  int keys, values, stage;  // the first stage's keys and values; bytes of a stage
  bool values_in_keys;      // values are read from the keys' rows
  int q, s, p, alpha, ranges, states, pointers;
  int bytes;
};

template <class T>
RowsLayout rows_layout(index_t key_dim, index_t value_dim, bool values_in_keys, int tile_rows, index_t preferred,
                       index_t most) {
  constexpr int width = per_access<T>;
  RowsLayout w;
  w.key_vectors = static_cast<int>(ceil_div(key_dim, width));
  w.value_vectors = static_cast<int>(ceil_div(value_dim, width));
  const auto lay = [&](int block, int stages, bool in_keys) {
    w.values_in_keys = in_keys;
    w.block = block;
    w.stages = stages;
    // With 64 keys, 4 lanes share a key and 8 lanes read at once: rows that begin 64 bytes apart, modulo 128, do not
    // meet.
    const int pad = block == rows_block ? (12 - w.key_vectors % 8) % 8 : 0;
    w.key_stride = (w.key_vectors + pad) * width;
    w.value_stride = in_keys ? w.key_stride : w.value_vectors * width;
    int used = 0;
    const auto take = [&](int bytes) {
      const int at = used;
      used += (bytes + 31) / 32 * 32;
      return at;
    };
    const int element = static_cast<int>(sizeof(T));
    w.keys = take(block * w.key_stride * element);
    w.values = in_keys ? w.keys : take(block * w.value_stride * element);
    w.stage = used;
    // What the threads sum up apart is joined in the same memory at the end.
    const int sums = rows_threads * width * tile_rows * 4 * static_cast<int>(ceil_div(w.value_vectors, rows_threads));
    used = w.stage * stages > sums ? w.stage * stages : (sums + 15) / 16 * 16;
    w.q = take(tile_rows * w.key_vectors * width * 4);
    w.s = take(tile_rows * block * 4);
    w.p = take(tile_rows * block * 4);
    w.alpha = take(tile_rows * 4);
    w.ranges = take(tile_rows * static_cast<int>(sizeof(KeyRange)));
    w.states = take(tile_rows * static_cast<int>(sizeof(RowState)));
    w.pointers = take(2 * block * 8);
    w.bytes = used;
  };
  // The block, on which bits depend, is the same whether values lie in the keys or apart.
  int block = rows_block;
  for (; block > 16; block /= 2) {
    lay(block, 2, false);
    if (w.bytes <= preferred) break;
  }
  lay(block, 2, values_in_keys);
  if (w.bytes > most) lay(block, 1, values_in_keys);
  return w;
}

/// 16 bytes of a row, as floats.
template <class T>
__device__ void widen_vector(const T* from, float (&to)[per_access<T>]) {
  const Pack<T, per_access<T>> pack = *reinterpret_cast<const Pack<T, per_access<T>>*>(from);
#pragma unroll
  for (int e = 0; e < per_access<T>; ++e) to[e] = widen(pack.at[e]);
}

template <int Rows, class Call, class Work>
class RowsKernel {
 public:
  using C = typename Call::Cache;
  using O = typename Call::Out;
  using M = typename Call::Sees;
  using T = shared_row_t<C>;
  static constexpr int width = per_access<T>;
  static constexpr int slots = sizeof(T) == 4 ? 2 : 1;  // value vectors per thread: 576 floats are 144 vectors
  static constexpr int most_vectors = slots * rows_threads;
  static constexpr int softmax_lanes = Rows <= 4 ? 32 : 128 / Rows;

  __device__ RowsKernel(const Call& call, const RowsLayout& layout, unsigned char* shared)
      : a_(call), w_(layout), shared_(shared) {}

  __device__ void run(const Work& work) {
    KeyRange* const ranges = at<KeyRange>(w_.ranges);
    if (threadIdx.x < Rows) ranges[threadIdx.x] = keys_of_row(a_, work, static_cast<int>(threadIdx.x));
    load_queries(work);
    __syncthreads();
    const TileKeys keys = keys_of_tile(work, ranges);

    const int softmax_row = static_cast<int>(threadIdx.x) / softmax_lanes;
    const KeyRange own_range = softmax_row < Rows ? ranges[softmax_row] : KeyRange{};
    RowHoles holes;
    if constexpr (!whole_range<M>()) holes = holes_of_row(a_, work, softmax_row);
    RowState state;
    float sum[slots][Rows][width];
#pragma unroll
    for (int i = 0; i < slots; ++i)
#pragma unroll
      for (int r = 0; r < Rows; ++r)
#pragma unroll
        for (int e = 0; e < width; ++e) sum[i][r][e] = -0.0f;  // -0 + x has the bits of x, 0 + x not always

    if (keys.any.first < keys.any.last) {
      // Blocks begin at multiples of their length from the chunk's beginning, whatever the mask hides.
      const index_t first = work.begin + (keys.any.first - work.begin) / w_.block * w_.block;
      const index_t blocks = (keys.any.last - first + w_.block - 1) / w_.block;
      const auto count_of = [&](index_t b) {
        const index_t left = keys.any.last - first - b * w_.block;
        return static_cast<int>(left < w_.block ? left : w_.block);
      };
      RowLoader<C, rows_threads> loader(a_.cache, work.task.sequence, work.task.head, at<const T*>(w_.pointers),
                                        w_.block, a_.x.aligned, a_.fault);
      for (int b = 0; b < w_.stages; ++b) {
        if (b < blocks) loader.locate(first + b * w_.block, count_of(b));
        __syncthreads();
        if (b < blocks) copy(loader, b, count_of(b));
        commit_copies();
        __syncthreads();
      }
      for (index_t b = 0; b < blocks; ++b) {
        const int stage = w_.stages == 2 ? static_cast<int>(b % 2) : 0;
        const index_t next = b + w_.stages;
        const index_t token = first + b * w_.block;
        const int count = count_of(b);
        if (w_.stages == 2)
          wait_copies<1>();
        else
          wait_copies<0>();
        __syncthreads();
        scores(stage, count);
        __syncthreads();
        if (softmax_row < Rows) softmax(softmax_row, own_range, holes, token, count, state);
        if (next < blocks) loader.locate(first + next * w_.block, count_of(next));
        bool full;
        if constexpr (whole_range<M>()) {
          __syncthreads();
          full = keys.all.first <= token && token + count <= keys.all.last;
        } else {
          full = __syncthreads_and(holes.sees_all(token, count));
        }
        if (full)
          values<true>(stage, count, sum);
        else
          values<false>(stage, count, sum);
        __syncthreads();
        if (next < blocks) copy(loader, stage, count_of(next));
        commit_copies();
      }
      wait_copies<0>();
    }
    if (softmax_row < Rows && threadIdx.x % softmax_lanes == 0) at<RowState>(w_.states)[softmax_row] = state;
    write(work, sum);
  }

 private:
  template <class P>
  __device__ P* at(int offset) const {
    return reinterpret_cast<P*>(shared_ + offset);
  }
  __device__ T* keys_at(int stage) const {
    return at<T>(w_.keys + stage * w_.stage);
  }
  __device__ T* values_at(int stage) const {
    return at<T>(w_.values + stage * w_.stage);
  }

  __device__ void load_queries(const Work& work) const {
    float* const q = at<float>(w_.q);
    const int stride = w_.key_vectors * width;
    for (int i = static_cast<int>(threadIdx.x); i < Rows * stride; i += rows_threads) {
      const int r = i / stride;
      const int d = i % stride;
      float x = 0;
      if (r < work.rows && d < a_.x.key_dim) {
        x = widen(a_.q(asks_of_row(a_, work, r).at, head_of_row(a_, work, r), d));
      }
      q[i] = x;
    }
  }

  template <class Loader>
  __device__ void copy(const Loader& loader, int stage, int count) const {
    loader.copy_keys(count, keys_at(stage), w_.key_stride, w_.key_vectors);
    if (!w_.values_in_keys) loader.copy_values(count, values_at(stage), w_.value_stride, w_.value_vectors);
  }

  /// Two keys per thread, 256 / block lanes per key.
  __device__ void scores(int stage, int count) const {
    const int lanes = 2 * rows_threads / w_.block;
    const int lane = static_cast<int>(threadIdx.x) % lanes;
    const int key = static_cast<int>(threadIdx.x) / lanes;
    const int other = key + w_.block / 2;
    const T* const keys = keys_at(stage);
    // Keys behind the last are read as the last: what they give is never looked at.
    const T* const first = keys + (key < count ? key : count - 1) * w_.key_stride;
    const T* const second = keys + (other < count ? other : count - 1) * w_.key_stride;
    const float* const q = at<float>(w_.q);
    const int stride = w_.key_vectors * width;
    float dot[2][Rows] = {};
    for (int v = lane; v < w_.key_vectors; v += lanes) {
      float k[2][width];
      widen_vector(first + v * width, k[0]);
      widen_vector(second + v * width, k[1]);
#pragma unroll
      for (int r = 0; r < Rows; ++r) {
#pragma unroll
        for (int e = 0; e < width; e += 4) {
          const float4 x = *reinterpret_cast<const float4*>(q + r * stride + v * width + e);
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            dot[i][r] += x.x * k[i][e];
            dot[i][r] += x.y * k[i][e + 1];
            dot[i][r] += x.z * k[i][e + 2];
            dot[i][r] += x.w * k[i][e + 3];
          }
        }
      }
    }
    float* const s = at<float>(w_.s);
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float x = dot[i][r];
        for (int offset = lanes / 2; offset > 0; offset /= 2)
          x += __shfl_xor_sync(::decant::detail::whole_warp, x, offset);
        if (lane == 0) s[r * w_.block + (i == 0 ? key : other)] = x;
      }
    }
  }

  __device__ void softmax(int row, const KeyRange& range, const RowHoles& holes, index_t token, int count,
                          RowState& state) const {
    constexpr int each = rows_block / softmax_lanes;
    const float* const s = at<float>(w_.s) + row * w_.block;
    float* const p = at<float>(w_.p) + row;
    const int lane = static_cast<int>(threadIdx.x) % softmax_lanes;
    const BlockRange seen = in_block<rows_block>(range, token);
    const int last = seen.last < w_.block ? seen.last : w_.block;
    std::uint32_t mask = 0xffffffffu;  // of this lane's keys
    if constexpr (!whole_range<M>()) {
      const int from = lane * each < seen.first ? seen.first - lane * each : 0;
      const int to = last - lane * each < each ? last - lane * each : each;
      if (!holes.sees_all(token, count)) mask = holes.seen(a_.mask, token + lane * each, from, to);
    }
    float x[each];
#pragma unroll
    for (int k = 0; k < each; ++k) {
      const int j = lane * each + k;
      x[k] = empty_lse;
      if (j < seen.first || j >= last) continue;
      if constexpr (!whole_range<M>()) {
        if ((mask >> k & 1) == 0) continue;
      }
      x[k] = logit_2(s[j], a_.x.scale, a_.x.soft_cap);
    }
    const float alpha = take_block<softmax_lanes>(state, x);
#pragma unroll
    for (int k = 0; k < each; ++k) {
      const int j = lane * each + k;
      if (j < w_.block) p[j * Rows] = x[k];
    }
    if (lane == 0) at<float>(w_.alpha)[row] = alpha;
  }

  /// sum = alpha * sum + p v. Unless all rows see all keys, a value with the weight 0 is never touched: it may be NaN.
  template <bool Full>
  __device__ void values(int stage, int count, float (&sum)[slots][Rows][width]) const {
    const float* const p = at<float>(w_.p);
    const float* const alpha = at<float>(w_.alpha);
    const T* const values = values_at(stage);
    const Part part = part_of();
    if (part.group >= part.groups) return;
#pragma unroll
    for (int i = 0; i < slots; ++i) {
      const int vector = part.vector + i * rows_threads;
      if (vector >= w_.value_vectors) continue;
#pragma unroll
      for (int r = 0; r < Rows; ++r)
#pragma unroll
        for (int e = 0; e < width; ++e) sum[i][r][e] *= alpha[r];
#pragma unroll 2
      for (int j = part.group; j < count; j += part.groups) {
        float v[width];
        widen_vector(values + j * w_.value_stride + vector * width, v);
        const Pack<float, Rows> weights = *reinterpret_cast<const Pack<float, Rows>*>(p + j * Rows);
#pragma unroll
        for (int r = 0; r < Rows; ++r) {
          if (!Full && weights.at[r] == 0) continue;
#pragma unroll
          for (int e = 0; e < width; ++e) sum[i][r][e] += weights.at[r] * v[e];
        }
      }
    }
  }

  /// A thread's share of the sums: one vector of the value rows (and that rows_threads further), every groups-th key.
  struct Part {
    int vector;
    int group;
    int groups;
  };
  __device__ Part part_of() const {
    const int thread = static_cast<int>(threadIdx.x);
    if (w_.value_vectors >= rows_threads) return {thread, 0, 1};
    return {thread % w_.value_vectors, thread / w_.value_vectors, rows_threads / w_.value_vectors};
  }

  __device__ void write(const Work& work, const float (&sum)[slots][Rows][width]) const {
    const Part part = part_of();
    float* const sums = reinterpret_cast<float*>(shared_);
    const int stride = w_.value_vectors * width;
    if (part.group < part.groups) {
#pragma unroll
      for (int i = 0; i < slots; ++i) {
        const int vector = part.vector + i * rows_threads;
        if (vector >= w_.value_vectors) continue;
#pragma unroll
        for (int r = 0; r < Rows; ++r)
#pragma unroll
          for (int e = 0; e < width; ++e) sums[(part.group * Rows + r) * stride + vector * width + e] = sum[i][r][e];
      }
    }
    __syncthreads();
    const RowState* const states = at<RowState>(w_.states);
    for (int r = 0; r < work.rows; ++r) {
      const RowState state = states[r];
      const index_t query = asks_of_row(a_, work, r).at;
      const index_t head = head_of_row(a_, work, r);
      const index_t slot = state_of_row(a_, work, Rows, r);
      const bool whole = !Call::only_states && work.task.chunk < 0;
      RowFinish finish{};
      if (whole) finish = finish_row(state, sink_of(a_, head));
      const int dim = static_cast<int>(whole ? a_.x.value_dim : a_.x.o_stride);
      for (int d = static_cast<int>(threadIdx.x); d < dim; d += rows_threads) {
        float total = -0.0f;
        for (int g = 0; g < part.groups; ++g) total += sums[(g * Rows + r) * stride + d];
        if (whole)
          a_.out(query, head, d) = finished<O>(total, finish.factor);
        else
          a_.states.o[slot * a_.x.o_stride + d] = total;
      }
      if (threadIdx.x > 0) continue;
      if (!whole)
        a_.states.ml[slot] = {state.m, state.l};
      else if (a_.lse.data() != nullptr)
        a_.lse(query, head) = finish.lse;
    }
  }

  const Call& a_;
  const RowsLayout& w_;
  unsigned char* shared_;
};

/// A block per task.
template <int Rows, class Q, class C, class O, class M>
__global__ void __launch_bounds__(rows_threads, 2)
    dense_rows_kernel(const DenseDeviceCall<Q, C, O, M> call, const RowsLayout layout) {
  extern __shared__ __align__(128) unsigned char dense_shared[];
  DenseWork work;
  if (find_work(call, work))
    RowsKernel<Rows, DenseDeviceCall<Q, C, O, M>, DenseWork>(call, layout, dense_shared).run(work);
}

}  // namespace decant::attention::detail

#endif
