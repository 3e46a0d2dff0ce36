// decant: dense attention on tensor cores, for 8- and 16-bit caches: 16 or 64 rows (queries times group) against each
// row of K and V, which a block brings to shared memory once, a block of keys ahead. Scores: each warp has a share of
// the keys; weights: a few lanes per row; sums: each warp has a share of the value columns. It must move
// (key_dim + value_dim) * sizeof(T) bytes per token and tile, and does 2 * rows * (terms of q * key_dim + terms of p *
// value_dim) FLOPs with them.
//
// Products take 16-bit numbers. To lose nothing to speak of, q and the weights p enter as sums of such numbers: a q of
// the cache's own type is one; else q is two (fp16) or three (bf16); p is two. With Dense::rounded each is one, as in
// FlashAttention. Sums are in float: within a block by the tensor core, which may truncate, and then by rounded
// additions, so that long sequences do not drift. fp16 lacks range: rows of q are scaled by a power of two, and so is
// p.
#ifndef DECANT_ATTENTION_DETAIL_DENSE_MMA_CUH
#define DECANT_ATTENTION_DETAIL_DENSE_MMA_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include <type_traits>

#include "dense_copy.cuh"
#include "dense_work.cuh"
#include "../../core/detail/mma.cuh"

namespace decant::attention::detail {

/// The shape of a block's work. Tiles: of 16 rows. Keys: 8-key columns per warp in the scores. Columns: most 8-column
/// pieces per warp in the sums, an even number.
template <int Tiles_, int Warps_, int Keys_, int Columns_>
struct MmaShape {
  static constexpr int tiles = Tiles_;
  static constexpr int warps = Warps_;
  static constexpr int keys = Keys_;
  static constexpr int columns = Columns_;
  static constexpr int threads = warps * 32;
  static constexpr int rows = tiles * 16;
  static constexpr int block = warps * keys * 8;
  static constexpr int most_value_dim = warps * columns * 8;
  static constexpr int softmax_lanes = threads / rows < 32 ? threads / rows : 32;
  /// For how many blocks on a multiprocessor registers must suffice.
  static constexpr int least_blocks = tiles > 1 || columns > 4 ? 1 : threads > 128 ? 2 : 3;
};

/// Where things lie in shared memory, in bytes from its beginning. Rows are an odd number of 16-byte vectors apart, so
/// that ldmatrix never meets itself.
struct MmaLayout {
  int stages;
  int key_vectors;  // 16-byte vectors of a row, an even number
  int value_vectors;
  int key_stride;  // elements
  int value_stride;
  int q_terms;
  bool values_in_keys;  // values are read from the keys' rows
  int keys, values, stage;
  int q, s, alpha, ranges, states, factors, pointers;
  int bytes;
};

/// Floats from a row of scores to the next; a row's weights take the place of its scores.
template <class Shape>
inline constexpr int score_stride = Shape::block + 4;

template <class Shape>
MmaLayout mma_layout(index_t key_dim, index_t value_dim, bool values_in_keys, int q_terms, index_t preferred,
                     index_t most) {
  MmaLayout w;
  w.q_terms = q_terms;
  w.values_in_keys = values_in_keys;
  w.key_vectors = static_cast<int>(ceil_div(key_dim, 16)) * 2;
  w.value_vectors = static_cast<int>(ceil_div(value_dim, 16)) * 2;
  w.key_stride = (w.key_vectors + 1) * 8;
  w.value_stride = values_in_keys ? w.key_stride : (w.value_vectors + 1) * 8;
  const auto lay = [&](int stages) {
    w.stages = stages;
    int used = 0;
    const auto take = [&](int bytes) {
      const int at = used;
      used += (bytes + 31) / 32 * 32;
      return at;
    };
    w.keys = take(Shape::block * w.key_stride * 2);
    w.values = values_in_keys ? w.keys : take(Shape::block * w.value_stride * 2);
    w.stage = used;
    used *= stages;
    w.q = take(q_terms * Shape::rows * w.key_stride * 2);
    w.s = take(Shape::rows * score_stride<Shape> * 4);
    w.alpha = take(Shape::rows * 4);
    w.ranges = take(Shape::rows * static_cast<int>(sizeof(KeyRange)));
    w.states = take(Shape::rows * static_cast<int>(sizeof(RowState)));
    w.factors = take(Shape::rows * 4);
    w.pointers = take(2 * Shape::block * 8);
    w.bytes = used;
  };
  for (const index_t room : {preferred, most}) {
    for (int stages = 2; stages >= 1; --stages) {
      lay(stages);
      if (w.bytes <= room) return w;
    }
  }
  return w;
}

/// fp16 holds numbers from 2^-24 to 2^16: weights, at most 1, are stored 2^14 times as large.
template <class T>
inline constexpr float weight_scale = std::is_same_v<T, fp16> ? 16384.0f : 1.0f;

template <class Shape, class Call, class Work>
class MmaKernel {
 public:
  using Q = typename Call::Query;
  using C = typename Call::Cache;
  using O = typename Call::Out;
  using M = typename Call::Sees;
  using Stored = shared_row_t<C>;
  using T = mma_element_t<Stored>;
  static_assert(sizeof(T) == 2 && (std::is_same_v<T, fp16> || std::is_same_v<T, bf16>));
  static constexpr int tiles = Shape::tiles;
  static constexpr int columns = Shape::columns;
  static constexpr int block = Shape::block;
  static constexpr int lanes = Shape::softmax_lanes;
  static constexpr int each = block / lanes;
  static_assert(each % 4 == 0);

  __device__ MmaKernel(const Call& call, const MmaLayout& layout, int p_terms, unsigned char* shared)
      : a_(call),
        w_(layout),
        p_terms_(p_terms),
        shared_(shared),
        lane_(static_cast<int>(threadIdx.x) % 32),
        warp_(static_cast<int>(threadIdx.x) / 32) {}

  __device__ void run(const Work& work) {
    KeyRange* const ranges = at<KeyRange>(w_.ranges);
    for (int r = static_cast<int>(threadIdx.x); r < Shape::rows; r += Shape::threads)
      ranges[r] = keys_of_row(a_, work, r);
    load_queries(work);
    __syncthreads();
    const TileKeys keys = keys_of_tile(work, ranges);

    const int softmax_row = static_cast<int>(threadIdx.x) / lanes;
    const KeyRange own_range = softmax_row < Shape::rows ? ranges[softmax_row] : KeyRange{};
    RowHoles holes;
    if constexpr (!whole_range<M>()) holes = holes_of_row(a_, work, softmax_row);
    RowState state;
    float sum[tiles][columns][4];
#pragma unroll
    for (int i = 0; i < tiles; ++i)
#pragma unroll
      for (int c = 0; c < columns; ++c)
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[i][c][e] = 0;

    if (keys.any.first < keys.any.last) {
      // Blocks begin at multiples of their length from the chunk's beginning, whatever the mask hides.
      const index_t first = work.begin + (keys.any.first - work.begin) / block * block;
      const index_t blocks = (keys.any.last - first + block - 1) / block;
      const auto count_of = [&](index_t b) {
        const index_t left = keys.any.last - first - b * block;
        return static_cast<int>(left < block ? left : block);
      };
      RowLoader<C, Shape::threads> loader(a_.cache, work.task.sequence, work.task.head, at<const Stored*>(w_.pointers),
                                          block, a_.x.aligned, a_.fault);
      for (int b = 0; b < w_.stages; ++b) {
        if (b < blocks) loader.locate(first + b * block, count_of(b));
        __syncthreads();
        if (b < blocks) copy(loader, b, count_of(b));
        commit_copies();
        __syncthreads();
      }
      for (index_t b = 0; b < blocks; ++b) {
        const int stage = w_.stages == 2 ? static_cast<int>(b % 2) : 0;
        const index_t next = b + w_.stages;
        const index_t token = first + b * block;
        const int count = count_of(b);
        if (w_.stages == 2)
          wait_copies<1>();
        else
          wait_copies<0>();
        __syncthreads();
        scores(stage);
        __syncthreads();
        if (softmax_row < Shape::rows) softmax(softmax_row, own_range, holes, token, count, state);
        if (next < blocks) loader.locate(first + next * block, count_of(next));
        bool full;
        if constexpr (whole_range<M>()) {
          __syncthreads();
          full = keys.all.first <= token && token + count <= keys.all.last;
        } else {
          full = __syncthreads_and(holes.sees_all(token, count));
        }
        rescale(sum);
        if (!full) guard_values(stage, count, sum);
        values(stage, (count + 15) / 16, sum);
        __syncthreads();
        if (next < blocks) copy(loader, stage, count_of(next));
        commit_copies();
      }
      wait_copies<0>();
    }
    if (softmax_row < Shape::rows && threadIdx.x % lanes == 0) at<RowState>(w_.states)[softmax_row] = state;
    __syncthreads();
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
  __device__ float* scores_of(int row) const {
    return at<float>(w_.s) + row * score_stride<Shape>;
  }
  /// A row's weights, term by term.
  __device__ T* weights_of(int row, int term) const {
    return reinterpret_cast<T*>(scores_of(row)) + term * block;
  }

  /// A warp per row: its numbers as sums of w_.q_terms numbers of T, scaled for fp16, whose scale goes to factors.
  __device__ void load_queries(const Work& work) const {
    const int stride = w_.key_stride;
    for (int r = warp_; r < Shape::rows; r += Shape::warps) {
      const bool inside = r < work.rows;
      const Q* const from =
          inside ? &a_.q(asks_of_row(a_, work, r).at, head_of_row(a_, work, r), index_t{0}) : nullptr;
      float up = 1;
      if constexpr (std::is_same_v<T, fp16> && !std::is_same_v<Q, fp16>) {
        float most = 0;
        if (inside)
          for (int d = lane_; d < a_.x.key_dim; d += 32) most = fmaxf(most, fabsf(widen(from[d])));
        most = warp_reduce(most, Larger{});
        // The power of two that brings the largest number to [2^13, 2^14); none for 0, infinity and the smallest.
        const int exponent = static_cast<int>(__float_as_uint(most) >> 23);
        if (exponent > 20 && exponent < 255)
          up = __uint_as_float(static_cast<unsigned>(127 + 13 + 127 - exponent) << 23);
      }
      if (lane_ == 0) at<float>(w_.factors)[r] = a_.x.scale / up;
      T* const to = at<T>(w_.q) + r * stride;
      for (int d = lane_ * 2; d < w_.key_vectors * 8; d += 64) {
        float low = inside && d < a_.x.key_dim ? widen(from[d]) * up : 0.0f;
        float high = inside && d + 1 < a_.x.key_dim ? widen(from[d + 1]) * up : 0.0f;
        for (int term = 0; term < w_.q_terms; ++term) {
          const std::uint32_t pair = ::decant::detail::narrow_pair(T{}, low, high);
          *reinterpret_cast<std::uint32_t*>(to + term * Shape::rows * stride + d) = pair;
          low = rest_of(low, ::decant::detail::low_of_pair(T{}, pair));
          high = rest_of(high, ::decant::detail::high_of_pair(T{}, pair));
        }
      }
    }
  }

  __device__ static float rest_of(float x, float taken) {
    return isinf(taken) ? 0.0f : x - taken;
  }

  /// Keys and values behind the last are zero: 0 times whatever lay there might be NaN.
  template <class Loader>
  __device__ void copy(const Loader& loader, int stage, int count) const {
    loader.copy_keys(count, keys_at(stage), w_.key_stride, w_.key_vectors);
    if (count < block) zero_rows(keys_at(stage), count, w_.key_stride);
    if (w_.values_in_keys) return;
    loader.copy_values(count, values_at(stage), w_.value_stride, w_.value_vectors);
    if (count < block) zero_rows(values_at(stage), count, w_.value_stride);
  }
  __device__ void zero_rows(T* rows, int first, int stride) const {
    std::uint32_t* const words = reinterpret_cast<std::uint32_t*>(rows);
    for (int i = first * stride / 2 + static_cast<int>(threadIdx.x); i < block * stride / 2; i += Shape::threads)
      words[i] = 0;
  }

  /// s = q k for all rows and this warp's keys.
  __device__ void scores(int stage) const {
    constexpr int n = Shape::keys;
    float s[tiles][n][4] = {};
    const int key = warp_ * n * 8 + (n == 2 ? lane_ % 8 + lane_ / 16 * 8 : lane_ % 8);
    std::uint32_t k_at = shared_address(keys_at(stage) + key * w_.key_stride + lane_ / 8 % 2 * 8);
    std::uint32_t q_at = shared_address(at<T>(w_.q) + lane_ % 16 * w_.key_stride + lane_ / 16 * 8);
    const int tile_bytes = 16 * w_.key_stride * 2;
    for (int v = 0; v < w_.key_vectors; v += 2, k_at += 32, q_at += 32) {
      std::uint32_t k[2 * n];
      ::decant::detail::load_matrices(k, k_at);
      for (int term = 0; term < w_.q_terms; ++term) {
#pragma unroll
        for (int i = 0; i < tiles; ++i) {
          std::uint32_t q[4];
          ::decant::detail::load_matrices(q, q_at + (term * tiles + i) * tile_bytes);
#pragma unroll
          for (int j = 0; j < n; ++j) ::decant::detail::mma_16x8x16(T{}, s[i][j], q, k[2 * j], k[2 * j + 1]);
        }
      }
    }
    const int column = warp_ * n * 8 + lane_ % 4 * 2;
#pragma unroll
    for (int i = 0; i < tiles; ++i) {
#pragma unroll
      for (int j = 0; j < n; ++j) {
        const int row = i * 16 + lane_ / 4;
        *reinterpret_cast<float2*>(scores_of(row) + column + j * 8) = {s[i][j][0], s[i][j][1]};
        *reinterpret_cast<float2*>(scores_of(row + 8) + column + j * 8) = {s[i][j][2], s[i][j][3]};
      }
    }
  }

  __device__ void softmax(int row, const KeyRange& range, const RowHoles& holes, index_t token, int count,
                          RowState& state) const {
    const int first = static_cast<int>(threadIdx.x) % lanes * each;
    const float scale = at<float>(w_.factors)[row];
    const BlockRange seen = in_block<block>(range, token);
    std::uint32_t mask = 0xffffffffu;  // of this lane's keys
    if constexpr (!whole_range<M>()) {
      const int from = first < seen.first ? seen.first - first : 0;
      const int to = seen.last - first < each ? seen.last - first : each;
      if (!holes.sees_all(token, count)) mask = holes.seen(a_.mask, token + first, from, to);
    }
    float x[each];
#pragma unroll
    for (int k = 0; k < each; k += 4) {
      const float4 s = *reinterpret_cast<const float4*>(scores_of(row) + first + k);
      x[k] = s.x;
      x[k + 1] = s.y;
      x[k + 2] = s.z;
      x[k + 3] = s.w;
    }
#pragma unroll
    for (int k = 0; k < each; ++k) {
      const int j = first + k;
      bool sees = j >= seen.first && j < seen.last;
      if constexpr (!whole_range<M>()) sees = sees && (mask >> k & 1) != 0;
      x[k] = sees ? logit_2(x[k], scale, a_.x.soft_cap) : empty_lse;
    }
    const float alpha = take_block<lanes>(state, x);
    if (first == 0) at<float>(w_.alpha)[row] = alpha;
    __syncwarp();  // the row's scores have been read by all of its lanes
#pragma unroll
    for (int k = 0; k < each; k += 4) {
      float rest[4];
      std::uint32_t pairs[2];
#pragma unroll
      for (int e = 0; e < 4; ++e) rest[e] = x[k + e] * weight_scale<T>;
      for (int term = 0; term < p_terms_; ++term) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          pairs[e] = ::decant::detail::narrow_pair(T{}, rest[2 * e], rest[2 * e + 1]);
          rest[2 * e] -= ::decant::detail::low_of_pair(T{}, pairs[e]);
          rest[2 * e + 1] -= ::decant::detail::high_of_pair(T{}, pairs[e]);
        }
        *reinterpret_cast<uint2*>(weights_of(row, term) + first + k) = {pairs[0], pairs[1]};
      }
    }
  }

  /// This warp's i-th piece of 16 value columns.
  __device__ int column_of(int i) const {
    return (warp_ + Shape::warps * i) * 16;
  }

  /// sum *= alpha.
  __device__ void rescale(float (&sum)[tiles][columns][4]) const {
    const float* const alpha = at<float>(w_.alpha);
#pragma unroll
    for (int i = 0; i < tiles; ++i) {
      const float upper = alpha[i * 16 + lane_ / 4];
      const float lower = alpha[i * 16 + lane_ / 4 + 8];
#pragma unroll
      for (int c = 0; c < columns; ++c) {
        // Rounded apart from the addition that follows: what guard_values does in between must not show.
        sum[i][c][0] = __fmul_rn(sum[i][c][0], upper);
        sum[i][c][1] = __fmul_rn(sum[i][c][1], upper);
        sum[i][c][2] = __fmul_rn(sum[i][c][2], lower);
        sum[i][c][3] = __fmul_rn(sum[i][c][3], lower);
      }
    }
  }

  /// sum += p v for all rows and this warp's columns.
  __device__ void values(int stage, int steps, float (&sum)[tiles][columns][4]) const {
    float part[tiles][columns][4];
#pragma unroll
    for (int i = 0; i < tiles; ++i)
#pragma unroll
      for (int c = 0; c < columns; ++c)
#pragma unroll
        for (int e = 0; e < 4; ++e) part[i][c][e] = 0;
    const std::uint32_t v_at =
        shared_address(values_at(stage) + lane_ % 16 * w_.value_stride + column_of(0) + lane_ / 16 * 8);
    const std::uint32_t p_at = shared_address(weights_of(lane_ % 16, 0) + lane_ / 16 * 8);
    for (int step = 0; step < steps; ++step) {
      for (int term = 0; term < p_terms_; ++term) {
        std::uint32_t p[tiles][4];
#pragma unroll
        for (int i = 0; i < tiles; ++i)
          ::decant::detail::load_matrices(p[i], p_at + i * 16 * score_stride<Shape> * 4 + term * block * 2 + step * 32);
#pragma unroll
        for (int c = 0; c < columns; c += 2) {
          if (column_of(c / 2) >= w_.value_vectors * 8) continue;
          std::uint32_t v[4];
          ::decant::detail::load_transposed(v, v_at + step * 16 * w_.value_stride * 2 + c / 2 * Shape::warps * 32);
#pragma unroll
          for (int i = 0; i < tiles; ++i) {
            ::decant::detail::mma_16x8x16(T{}, part[i][c], p[i], v[0], v[1]);
            ::decant::detail::mma_16x8x16(T{}, part[i][c + 1], p[i], v[2], v[3]);
          }
        }
      }
    }
#pragma unroll
    for (int i = 0; i < tiles; ++i)
#pragma unroll
      for (int c = 0; c < columns; ++c)
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[i][c][e] += part[i][c][e];
  }

  /// Where rows see different keys, a value may be NaN or infinite for those who see it and must be nothing to the
  /// others, but their weight of 0 would make it NaN. Such values, if there are any, are given to those who see them
  /// here, and then count as 0. Rare, so it may be slow.
  __device__ void guard_values(int stage, int count, float (&sum)[tiles][columns][4]) const {
    T* const values = values_at(stage);
    const int pairs = w_.value_vectors * 4;
    bool found = false;
    for (int i = static_cast<int>(threadIdx.x); i < count * pairs; i += Shape::threads)
      found = found || ::decant::detail::unbounded_pair(T{}, pair_at(values, i / pairs, i % pairs * 2));
    if (!__syncthreads_or(found)) return;
#pragma unroll
    for (int c = 0; c < columns; ++c) {
      const int column = column_of(c / 2) + c % 2 * 8 + lane_ % 4 * 2;
      if (column >= w_.value_vectors * 8) continue;
      for (int j = 0; j < count; ++j) {
        const std::uint32_t pair = pair_at(values, j, column);
        if (!::decant::detail::unbounded_pair(T{}, pair)) continue;
#pragma unroll
        for (int i = 0; i < tiles; ++i) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const float v = e % 2 == 0 ? ::decant::detail::low_of_pair(T{}, pair) : ::decant::detail::high_of_pair(T{}, pair);
            const float p = widen(weights_of(i * 16 + lane_ / 4 + e / 2 * 8, 0)[j]);
            if (p != 0 && !isfinite(v)) sum[i][c][e] += p * v;
          }
        }
      }
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < count * pairs; i += Shape::threads) {
      std::uint32_t& pair = pair_at(values, i / pairs, i % pairs * 2);
      if (::decant::detail::unbounded_pair(T{}, pair & 0xffffu)) pair &= 0xffff0000u;
      if (::decant::detail::unbounded_pair(T{}, pair & 0xffff0000u)) pair &= 0xffffu;
    }
    __syncthreads();
  }
  __device__ std::uint32_t& pair_at(T* values, int row, int column) const {
    return *reinterpret_cast<std::uint32_t*>(values + row * w_.value_stride + column);
  }

  __device__ void write(const Work& work, const float (&sum)[tiles][columns][4]) const {
    const RowState* const states = at<RowState>(w_.states);
    const bool whole = !Call::only_states && work.task.chunk < 0;
#pragma unroll
    for (int i = 0; i < tiles; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int r = i * 16 + lane_ / 4 + half * 8;
        if (r >= work.rows) continue;
        const RowState state = states[r];
        const index_t query = asks_of_row(a_, work, r).at;
        const index_t head = head_of_row(a_, work, r);
        const index_t slot = state_of_row(a_, work, Shape::rows, r);
        RowFinish finish{};
        if (whole) finish = finish_row(state, sink_of(a_, head));
        if (warp_ == 0 && lane_ % 4 == 0) {
          if (!whole)
            a_.states.ml[slot] = {state.m, state.l};
          else if (a_.lse.data() != nullptr)
            a_.lse(query, head) = finish.lse;
        }
#pragma unroll
        for (int c = 0; c < columns; ++c) {
          const int column = column_of(c / 2) + c % 2 * 8 + lane_ % 4 * 2;
          const float2 x = {sum[i][c][half * 2] * (1 / weight_scale<T>),
                            sum[i][c][half * 2 + 1] * (1 / weight_scale<T>)};
          if (!whole) {
            if (column < a_.x.o_stride)
              *reinterpret_cast<float2*>(a_.states.o + slot * a_.x.o_stride + column) = x;
            continue;
          }
          if (column < a_.x.value_dim) a_.out(query, head, column) = finished<O>(x.x, finish.factor);
          if (column + 1 < a_.x.value_dim) a_.out(query, head, column + 1) = finished<O>(x.y, finish.factor);
        }
      }
    }
  }

  const Call& a_;
  const MmaLayout& w_;
  int p_terms_;
  unsigned char* shared_;
  int lane_;
  int warp_;
};

/// A block per task.
template <class Shape, class Q, class C, class O, class M>
__global__ void __launch_bounds__(Shape::threads, Shape::least_blocks)
    dense_mma_kernel(const DenseDeviceCall<Q, C, O, M> call, const MmaLayout layout, const int p_terms) {
  extern __shared__ __align__(128) unsigned char dense_shared[];
  DenseWork work;
  if (find_work(call, work))
    MmaKernel<Shape, DenseDeviceCall<Q, C, O, M>, DenseWork>(call, layout, p_terms, dense_shared).run(work);
}

}  // namespace decant::attention::detail

#endif
