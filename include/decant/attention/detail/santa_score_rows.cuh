// decant: the scores of SANTA on Cuda: a block takes a piece of 256 keys of one query and KV head, brings their rows to
// shared memory (16 bytes at a time, one block of keys ahead), multiplies them with all query heads of the group, and
// writes exp(logit - the largest of 64 keys) for each. It must read key_dim * sizeof(T) bytes per token and KV head
// once and write 4 + 5 / 64 bytes per token and query head; 2 * key_dim FLOPs for those, and an exponential.
#ifndef DECANT_ATTENTION_DETAIL_SANTA_SCORE_ROWS_CUH
#define DECANT_ATTENTION_DETAIL_SANTA_SCORE_ROWS_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "dense_copy.cuh"
#include "dense_work.cuh"
#include "santa_plan.cuh"

namespace decant::attention::detail {

/// Query heads that are multiplied with a key at once.
inline constexpr int santa_score_rows = 4;

/// Where things lie in shared memory, in bytes from its beginning.
struct SantaScoreLayout {
  int keys;    // rows that are brought at once: 64, 32 or 16
  int stages;  // such loads in flight or at work
  int vectors;
  int stride;  // elements
  int stage;   // bytes
  int q, s, tops, pointers;
  int bytes;
};

/// For `heads` query heads, a multiple of santa_score_rows.
template <class T>
SantaScoreLayout santa_score_layout(index_t key_dim, index_t heads, index_t preferred, index_t most) {
  constexpr int width = per_access<T>;
  SantaScoreLayout w;
  w.vectors = static_cast<int>(ceil_div(key_dim, width));
  const int h = static_cast<int>(heads);
  const auto lay = [&](int keys, int stages) {
    w.keys = keys;
    w.stages = stages;
    // With 64 keys, 4 lanes share a key and 8 lanes read at once: rows that begin 64 bytes apart, modulo 128, do not
    // meet.
    const int pad = keys == 64 ? (12 - w.vectors % 8) % 8 : 0;
    w.stride = (w.vectors + pad) * width;
    int used = 0;
    const auto take = [&](index_t bytes) {
      const int at = used;
      used += static_cast<int>((bytes + 31) / 32 * 32);
      return at;
    };
    take(index_t{keys} * w.stride * static_cast<int>(sizeof(T)));
    w.stage = used;
    used *= stages;
    w.q = take(h * w.vectors * width * 4);
    w.s = take(h * santa_piece * 4);
    w.tops = take(h * santa_piece / santa_block * 4);
    w.pointers = take(2 * keys * 8);
    w.bytes = used;
  };
  for (const int keys : {64, 32, 16}) {
    lay(keys, 2);
    if (w.bytes <= preferred) return w;
  }
  if (w.bytes > most) lay(16, 1);
  return w;
}

template <class Q, class C, class M>
class SantaScoreKernel {
 public:
  using Call = SantaScoreCall<Q, C, M>;
  using T = shared_row_t<C>;
  static constexpr int width = per_access<T>;
  static constexpr int rows = santa_score_rows;

  __device__ SantaScoreKernel(const Call& call, const SantaScoreLayout& layout, unsigned char* shared)
      : c_(call), s_(call.s), w_(layout), shared_(shared) {}

  __device__ void run() {
    if (c_.checked && faulted(s_.fault)) return;
    const index_t parts = (s_.group + c_.at_once - 1) / c_.at_once;
    piece_ = blockIdx.x % s_.pieces;
    const index_t part = blockIdx.x / s_.pieces % parts;
    task_ = blockIdx.x / s_.pieces / parts;
    head_ = task_ % s_.heads;
    query_ = s_.first + task_ / s_.heads;
    first_row_ = part * c_.at_once;
    const index_t left = s_.group - first_row_;
    heads_ = static_cast<int>(left < c_.at_once ? left : c_.at_once);

    sequence_ = sequence_of(c_.indptr, c_.x.sequences, query_);
    const QueryRange queries = queries_of(c_.indptr, sequence_);
    queries_ = queries.count;
    in_sequence_ = query_ - queries.first;
    n_ = sound_length(c_.x, c_.cache, c_.mask, sequence_, head_, queries_, s_.fault);
    if (n_ < 0) return;
    KeyRange range = c_.mask.range(sequence_, in_sequence_, queries_, n_);
    range.first = range.first < 0 ? 0 : range.first;
    range.last = range.last > n_ ? n_ : range.last;
    if (range.last <= range.first) range = {0, 0};
    const index_t first_piece = range.first / santa_piece;
    const index_t last_piece = (range.last + santa_piece - 1) / santa_piece;
    if (piece_ == 0 && part == 0 && threadIdx.x == 0) {
      const index_t position = n_ - queries_ + in_sequence_ + 1;  // keys up to the query itself
      s_.w.seen[task_] = {static_cast<std::int32_t>(sequence_),
                          static_cast<std::int32_t>(first_piece),
                          static_cast<std::int32_t>(last_piece),
                          static_cast<std::int32_t>(santa_tile(s_.a, position)),
                          static_cast<std::uint32_t>(position) + s_.a.step,
                          c_.requests.data() == nullptr ? 0 : c_.requests[sequence_]};
    }
    if (piece_ < first_piece || piece_ >= last_piece) return;
    token_ = piece_ * santa_piece;
    low_ = static_cast<int>(range.first > token_ ? range.first - token_ : 0);
    high_ = static_cast<int>(range.last < token_ + santa_piece ? range.last - token_ : santa_piece);
    load_queries();
    score();
    exponentials();
  }

 private:
  template <class P>
  __device__ P* at(int offset) const {
    return reinterpret_cast<P*>(shared_ + offset);
  }

  /// Rows behind the last head are 0.
  __device__ void load_queries() const {
    float* const q = at<float>(w_.q);
    const int stride = w_.vectors * width;
    const int all = (heads_ + rows - 1) / rows * rows;
    for (int i = static_cast<int>(threadIdx.x); i < all * stride; i += santa_threads) {
      const int r = i / stride;
      const int d = i % stride;
      const bool inside = r < heads_ && d < c_.x.key_dim;
      q[i] = inside ? widen(c_.q(query_, head_ * s_.group + first_row_ + r, d)) : 0.0f;
    }
  }

  /// All keys of the piece that may be seen.
  __device__ void score() const {
    const int first = low_ / w_.keys;
    const int last = (high_ + w_.keys - 1) / w_.keys;
    const auto count_of = [&](int i) {
      const int left = high_ - i * w_.keys;
      return left < w_.keys ? left : w_.keys;
    };
    RowLoader<C, santa_threads> loader(c_.cache, sequence_, head_, at<const T*>(w_.pointers), w_.keys, c_.x.aligned,
                                       s_.fault);
    const auto copy = [&](int i) {
      loader.copy_keys(count_of(i), at<T>((i - first) % w_.stages * w_.stage), w_.stride, w_.vectors);
    };
    for (int i = first; i < first + w_.stages; ++i) {
      if (i < last) loader.locate(token_ + i * w_.keys, count_of(i));
      __syncthreads();
      if (i < last) copy(i);
      commit_copies();
      __syncthreads();
    }
    for (int i = first; i < last; ++i) {
      const int next = i + w_.stages;
      if (w_.stages == 2)
        wait_copies<1>();
      else
        wait_copies<0>();
      __syncthreads();
      for (int r = 0; r < heads_; r += rows) products(r, i * w_.keys, (i - first) % w_.stages, count_of(i));
      if (next < last) loader.locate(token_ + next * w_.keys, count_of(next));
      __syncthreads();
      if (next < last) copy(next);
      commit_copies();
    }
    wait_copies<0>();
  }

  /// Two keys per thread, 256 / keys lanes per key.
  __device__ void products(int first_head, int first_key, int stage, int count) const {
    const int lanes = 2 * santa_threads / w_.keys;
    const int lane = static_cast<int>(threadIdx.x) % lanes;
    const int key = static_cast<int>(threadIdx.x) / lanes;
    const int other = key + w_.keys / 2;
    const T* const keys = at<T>(stage * w_.stage);
    // Keys behind the last are read as the last: what they give is never looked at.
    const T* const one = keys + (key < count ? key : count - 1) * w_.stride;
    const T* const two = keys + (other < count ? other : count - 1) * w_.stride;
    const int stride = w_.vectors * width;
    const float* const q = at<float>(w_.q) + first_head * stride;
    float dot[2][rows] = {};
    for (int v = lane; v < w_.vectors; v += lanes) {
      const Pack<T, width> packs[2] = {*reinterpret_cast<const Pack<T, width>*>(one + v * width),
                                       *reinterpret_cast<const Pack<T, width>*>(two + v * width)};
#pragma unroll
      for (int e = 0; e < width; e += 4) {
        float k[2][4];
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
          for (int j = 0; j < 4; ++j) k[i][j] = widen(packs[i].at[e + j]);
#pragma unroll
        for (int r = 0; r < rows; ++r) {
          const float4 x = *reinterpret_cast<const float4*>(q + r * stride + v * width + e);
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            dot[i][r] += x.x * k[i][0];
            dot[i][r] += x.y * k[i][1];
            dot[i][r] += x.z * k[i][2];
            dot[i][r] += x.w * k[i][3];
          }
        }
      }
    }
    float* const s = at<float>(w_.s) + first_head * santa_piece + first_key;
#pragma unroll
    for (int r = 0; r < rows; ++r) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float x = dot[i][r];
        for (int offset = lanes / 2; offset > 0; offset /= 2)
          x += __shfl_xor_sync(::decant::detail::whole_warp, x, offset);
        if (lane == 0) s[r * santa_piece + (i == 0 ? key : other)] = x;
      }
    }
  }

  __device__ float logit(const float* s, int j) const {
    if (j < low_ || j >= high_) return empty_lse;
    if constexpr (!whole_range<M>()) {
      if (!c_.mask.allowed(sequence_, in_sequence_, token_ + j, queries_, n_)) return empty_lse;
    }
    const float x = santa_product(s[j], c_.x.scale);
    return c_.x.soft_cap > 0 ? c_.x.soft_cap * tanhf(x / c_.x.soft_cap) : x;
  }

  /// A warp per query head and 64 keys.
  __device__ void exponentials() const {
    constexpr int blocks = santa_piece / santa_block;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const index_t row = task_ * s_.group + first_row_;
    float* const tops = at<float>(w_.tops);
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x) / 32; i < heads_ * blocks; i += santa_threads / 32) {
      const int r = i / blocks;
      const int j = i % blocks * santa_block + lane;
      const float* const s = at<float>(w_.s) + r * santa_piece;
      const float x[2] = {logit(s, j), logit(s, j + 32)};
      const auto bad = [](float l) { return l != l || l == -empty_lse; };
      const bool nan = __any_sync(::decant::detail::whole_warp, bad(x[0]) || bad(x[1]));
      const float top = warp_reduce(x[1] > x[0] ? x[1] : x[0], Larger{});
      float* const to = s_.w.exponentials + (row + r) * s_.room + token_ + j;
      to[0] = x[0] == empty_lse ? 0.0f : santa_exp(santa_sum(x[0], -top));
      to[32] = x[1] == empty_lse ? 0.0f : santa_exp(santa_sum(x[1], -top));
      if (lane == 0) {
        tops[i] = nan ? __int_as_float(0x7fc00000) : top;
        s_.w.tops[(row + r) * (s_.room / santa_block) + piece_ * blocks + i % blocks] = tops[i];
      }
    }
    __syncthreads();
    for (int r = static_cast<int>(threadIdx.x); r < heads_; r += santa_threads) {
      float top = tops[r * blocks];
      for (int b = 1; b < blocks; ++b) {
        const float other = tops[r * blocks + b];
        top = other > top || other != other ? other : top;
      }
      s_.w.piece_tops[(row + r) * s_.pieces + piece_] = top;
    }
  }

  const Call& c_;
  const SantaCall& s_;
  const SantaScoreLayout& w_;
  unsigned char* shared_;
  index_t task_, head_, query_, sequence_, queries_, in_sequence_, n_, piece_, first_row_, token_;
  int heads_, low_, high_;
};

/// A block per piece, part of the group, and query and KV head.
template <class Q, class C, class M>
__global__ void __launch_bounds__(santa_threads)
    santa_score_kernel(const SantaScoreCall<Q, C, M> call, const SantaScoreLayout layout) {
  extern __shared__ __align__(128) unsigned char santa_shared[];
  SantaScoreKernel<Q, C, M>(call, layout, santa_shared).run();
}

}  // namespace decant::attention::detail

#endif
