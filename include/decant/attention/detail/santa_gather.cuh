// decant: SANTA's draws and their rows on Cuda: a block takes a chunk of 1024 keys of one query and KV head, finds the
// thresholds that fall on it and their keys, lists the keys that any query head has drawn, ascending, and adds their
// value rows for all of them at once. It must read half a byte per token and query head, 64 bytes per threshold, each
// drawn row once for every 4 or 8 query heads, and write 4 * value_dim bytes per query head that has drawn one.
#ifndef DECANT_ATTENTION_DETAIL_SANTA_GATHER_CUH
#define DECANT_ATTENTION_DETAIL_SANTA_GATHER_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "santa_deal.cuh"
#include "sparse_gather_rows.cuh"

namespace decant::attention::detail {

inline constexpr int santa_chunk_sums = santa_chunk_keys / santa_sum_keys;

/// Where things lie in shared memory, in bytes from its beginning.
struct SantaGatherLayout {
  int counts;  // [keys][rows]: first how often, then the weight, as a float's bits
  int heads;   // [rows]: the SantaRow of each head
  int before;  // [rows][sums + 1] of the chunk: what lies before every 16 keys
  int words;   // a bit for each key: drawn by anyone
  int places;  // [words]: keys listed before
  int drawn;   // bit r: head r has drawn something; then how many are listed
  int keys;    // those that are listed
  int gather;
  GatherLayout rows;
  int bytes;
};

template <int Rows, class C>
SantaGatherLayout santa_gather_layout(index_t value_dim) {
  SantaGatherLayout w;
  int used = 0;
  const auto take = [&](int bytes) {
    const int at = used;
    used += (bytes + 31) / 32 * 32;
    return at;
  };
  w.counts = take(santa_chunk_keys * Rows * 4);
  w.heads = take(Rows * static_cast<int>(sizeof(SantaRow)));
  w.before = take(Rows * (santa_chunk_sums + 1) * 8);
  w.words = take(santa_chunk_keys / 32 * 4);
  w.places = take(santa_chunk_keys / 32 * 4);
  w.drawn = take(8);
  w.keys = take(santa_chunk_keys * 2);
  w.rows = gather_layout<C>(value_dim, Rows, santa_chunk_keys);
  w.gather = take(w.rows.bytes);
  w.bytes = used;
  return w;
}

template <int Rows, class C>
class SantaGatherKernel {
 public:
  static_assert(santa_threads == gather_threads);

  __device__ SantaGatherKernel(const SantaCall& c, const C& cache, bool aligned, const SantaGatherLayout& layout,
                               unsigned char* shared)
      : c_(c), cache_(cache), aligned_(aligned), w_(layout), shared_(shared) {}

  __device__ void run() {
    if (faulted(c_.fault)) return;
    chunk_ = blockIdx.x % c_.chunks;
    const index_t task = blockIdx.x / c_.chunks;
    seen_ = c_.w.seen[task];
    const SantaChunks chunks = chunks_of(seen_);
    if (chunk_ < chunks.first || chunk_ >= chunks.last) return;
    const index_t head = task % c_.heads;
    const GatherRows<Rows, C> rows(cache_, w_.rows, shared_ + w_.gather, aligned_, c_.fault);
    for (index_t first = 0; first < c_.group; first += Rows) {
      const index_t left = c_.group - first;
      first_row_ = task * c_.group + first;
      heads_ = static_cast<int>(left < Rows ? left : Rows);
      draw();
      const int count = list(rows, head);
      const unsigned drawn = at<unsigned>(w_.drawn)[0];
      if (static_cast<int>(threadIdx.x) < heads_)
        c_.w.drawn[(first_row_ + threadIdx.x) * c_.chunks + chunk_] =
            static_cast<std::int32_t>(drawn >> threadIdx.x & 1);
      if (count > 0) {
        const std::uint16_t* const keys = at<std::uint16_t>(w_.keys);
        const Pack<float, Rows>* const weights = at<Pack<float, Rows>>(w_.counts);
        rows.template sum<false>(
            count, seen_.sequence, head, [&](int j) { return chunk_ * santa_chunk_keys + keys[j]; },
            [&](int j) -> const Pack<float, Rows>& { return weights[keys[j]]; },
            [&](int r, int d, float x) {
              if (r < heads_ && (drawn >> r & 1) != 0)
                c_.w.sums_of_values[((first_row_ + r) * c_.chunks + chunk_) * c_.o_stride + d] = x;
            });
      }
      __syncthreads();
    }
  }

 private:
  template <class P>
  __device__ P* at(int offset) const {
    return reinterpret_cast<P*>(shared_ + offset);
  }
  __device__ std::int64_t* before(int r) const { return at<std::int64_t>(w_.before) + r * (santa_chunk_sums + 1); }
  __device__ const SantaRow& row(int r) const { return at<SantaRow>(w_.heads)[r]; }
  __device__ index_t first_key() const { return chunk_ * santa_chunk_keys; }

  /// The weight of every key and query head; ends with a barrier.
  __device__ void draw() {
    constexpr int warps = santa_threads / 32;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    int* const counts = at<int>(w_.counts);
    for (int i = static_cast<int>(threadIdx.x); i < santa_chunk_keys * Rows; i += santa_threads) counts[i] = 0;
    const auto* const heads = reinterpret_cast<const std::uint32_t*>(c_.w.rows + first_row_);
    const int words = heads_ * static_cast<int>(sizeof(SantaRow) / 4);
    for (int i = static_cast<int>(threadIdx.x); i < words; i += santa_threads)
      at<std::uint32_t>(w_.heads)[i] = heads[i];
    __syncthreads();
    for (int r = warp; r < heads_; r += warps) {
      if (!draws(row(r))) continue;
      const std::int64_t* const sums = c_.w.sums + ((first_row_ + r) * c_.room + first_key()) / santa_sum_keys;
      const std::int64_t one = sums[2 * lane];
      const std::int64_t two = sums[2 * lane + 1];
      const std::int64_t place = ::decant::detail::warp_scan_before(one + two);
      before(r)[2 * lane] = place;
      before(r)[2 * lane + 1] = place + one;
      if (lane == 31) before(r)[santa_chunk_sums] = place + one + two;
    }
    __syncthreads();
    const index_t first_tile = first_key() / seen_.tile;
    const index_t tiles = (first_key() + santa_chunk_keys + seen_.tile - 1) / seen_.tile - first_tile;
    for (int r = 0; r < heads_; ++r) {
      const SantaRow& h = row(r);
      if (!draws(h)) continue;
      if (h.tiled != 0) {
        for (index_t t = warp; t < tiles; t += warps) draw_tile(r, first_tile + t);
      } else if (warp == r % warps) {
        draw_row(r, h);
      }
    }
    __syncthreads();
    for (int r = 0; r < heads_; ++r) {
      for (int key = static_cast<int>(threadIdx.x); key < santa_chunk_keys; key += santa_threads) {
        int& count = counts[key * Rows + r];
        if (count > 0) count = __float_as_int(static_cast<float>(count * unit_of(r, key)));
      }
    }
    __syncthreads();
    if (c_.a.scheme != SantaScheme::threshold_systematic) return;
    for (int r = 0; r < heads_; ++r)
      if (draws(row(r))) take_heavy(r, row(r));
    __syncthreads();
  }

  __device__ bool draws(const SantaRow& h) const { return h.nan == 0 && h.mass > 0 && c_.a.samples > 0; }

  __device__ double unit_of(int r, int key) const {
    const SantaRow& h = row(r);
    if (h.tiled == 0 || c_.a.scheme == SantaScheme::prop) return h.unit;
    const SantaTile& tile = c_.w.tiles[(first_row_ + r) * c_.tiles + (first_key() + key) / seen_.tile];
    return static_cast<double>(tile.mass) / (static_cast<double>(h.mass) * static_cast<double>(tile.budget));
  }

  /// The part of the axis on which the chunk lies.
  struct Axis {
    std::int64_t low;
    std::int64_t high;
  };
  __device__ Axis axis(int r) const {
    const std::int64_t* const from = c_.w.chunk_before + (first_row_ + r) * (c_.chunks + 1) + chunk_;
    return {from[0], from[1]};
  }

  /// A warp's work: the thresholds of a row that is not sampled tile by tile.
  __device__ void draw_row(int r, const SantaRow& h) const {
    const Axis x = axis(r);
    if (x.low == x.high || h.samples == 0) return;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const auto inside = [&](std::int64_t threshold) {
      return threshold >= x.low && threshold < x.high ? threshold - x.low : -1;
    };
    if (c_.a.scheme == SantaScheme::plain) {
      for (index_t first = 0; first < h.samples; first += 4 * 32) {
        const index_t s = first + 4 * lane;
        const Philox4 words = c_.words(first_row_ + r, seen_, s / 4);
#pragma unroll
        for (int i = 0; i < 4; ++i)
          count(r, h, s + i < h.samples ? inside(SantaGrid::first(words.word[i], h.mass, 1).at) : -1);
      }
    } else if (c_.a.scheme == SantaScheme::stratified) {
      const SantaGrid grid = SantaGrid::first(0, h.mass, h.samples);
      const index_t last = SantaShare::of(h.samples, x.high, h.mass).whole;
      for (index_t first = SantaShare::of(h.samples, x.low, h.mass).whole; first <= last; first += 32) {
        const index_t s = first + lane;
        const Philox4 words = c_.words(first_row_ + r, seen_, s / 4);
        const std::uint32_t pair[2] = {s % 4 < 2 ? words.word[0] : words.word[2],
                                       s % 4 < 2 ? words.word[1] : words.word[3]};
        const SantaGrid own = SantaGrid::first(s % 2 == 0 ? pair[0] : pair[1], h.mass, h.samples);
        const bool over = grid.nth_rest(s) + own.rest >= grid.unit;
        count(r, h, s <= last && s < h.samples ? inside(grid.nth(s) + own.at + (over ? 1 : 0)) : -1);
      }
    } else {
      const index_t first = santa_thresholds_below(x.low, h.offset, h.light, h.samples);
      const index_t last = santa_thresholds_below(x.high, h.offset, h.light, h.samples);
      count_grid(r, h, SantaGrid::first(h.offset, h.light, h.samples), first, last, x.low);
    }
  }

  /// Counts the thresholds first ... last - 1 of a grid, of which the chunk begins at `low`.
  __device__ void count_grid(int r, const SantaRow& h, const SantaGrid& grid, index_t first, index_t last,
                             std::int64_t low) const {
    for (; first < last; first += 32) {
      const index_t s = first + threadIdx.x % 32;
      count(r, h, s < last ? grid.nth(s) - low : -1);
    }
  }

  /// A warp's work: the thresholds of a tile that fall on the chunk.
  __device__ void draw_tile(int r, index_t t) const {
    const SantaTile tile = c_.w.tiles[(first_row_ + r) * c_.tiles + t];
    if (tile.budget == 0) return;
    const SantaRow& h = row(r);
    const Axis x = axis(r);
    const std::int64_t low = x.low - tile.before;  // counted from the tile's beginning
    const std::int64_t high = x.high - tile.before;
    const std::uint32_t offset = c_.word(first_row_ + r, seen_, t);
    const SantaGrid grid = SantaGrid::first(offset, tile.mass, tile.budget);
    const index_t begin = low <= 0 ? 0 : santa_thresholds_below(low, offset, tile.mass, tile.budget);
    const index_t end = high >= tile.mass ? tile.budget : santa_thresholds_below(high, offset, tile.mass, tile.budget);
    count_grid(r, h, grid, begin, end, low);
  }

  /// Adds one to the key that each lane's threshold falls on, which is counted from the chunk's beginning; -1: none.
  /// Lanes look for the 16 keys by themselves and for the key in fours, 64 bytes at a time.
  __device__ void count(int r, const SantaRow& h, std::int64_t threshold) const {
    using ::decant::detail::whole_warp;
    const std::int64_t* const place = before(r);
    int low = 0;
    int high = santa_chunk_sums;
    while (high - low > 1) {  // the last 16 keys that begin at the threshold or before
      const int middle = (low + high) / 2;
      (place[middle] <= threshold ? low : high) = middle;
    }
    const unsigned wanted = __ballot_sync(whole_warp, threshold >= 0);
    if (threshold >= 0) threshold -= place[low];
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
    for (int round = 0; round < 4; ++round) {
      if ((wanted >> (8 * round) & 255) == 0) continue;
      const int from = 8 * round + lane / 4;
      const int key = __shfl_sync(whole_warp, low, from) * santa_sum_keys + lane % 4 * 4;
      std::int64_t left = __shfl_sync(whole_warp, threshold, from);
      const float factor = left < 0 ? 0.0f : factor_of(c_, first_row_ + r, first_key() + key, h.reference);
      const SantaWeights w(c_, first_row_ + r, first_key() + key, left >= 0, factor);
      const std::int64_t own = w.sum(h.limit);
      std::int64_t end = own;  // of the weights up to this lane's
#pragma unroll
      for (int offset = 1; offset < 4; offset *= 2) {
        const std::int64_t below = __shfl_up_sync(whole_warp, end, offset);
        end += lane % 4 >= offset ? below : 0;
      }
      left -= end - own;
      if (left < 0 || left >= own) continue;
      int i = 0;
#pragma unroll
      for (const float x : w.w) {
        left -= x >= h.limit ? 0 : static_cast<std::int64_t>(x);
        i += left < 0 ? 0 : 1;
      }
      atomicAdd(at<int>(w_.counts) + (key + i) * Rows + r, 1);
    }
  }

  /// Keys that are taken as they are.
  __device__ void take_heavy(int r, const SantaRow& h) const {
    for (int key = 4 * static_cast<int>(threadIdx.x); key < santa_chunk_keys; key += 4 * santa_threads) {
      const index_t k = first_key() + key;
      if (k < index_t{seen_.first_piece} * santa_piece || k >= index_t{seen_.last_piece} * santa_piece) continue;
      const SantaWeights w(c_, first_row_ + r, k, true, factor_of(c_, first_row_ + r, k, h.reference));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (w.w[i] < h.limit) continue;
        const auto whole = static_cast<double>(static_cast<std::int64_t>(w.w[i]));
        at<int>(w_.counts)[(key + i) * Rows + r] =
            __float_as_int(static_cast<float>(whole / static_cast<double>(h.mass)));
      }
    }
  }

  /// Lists the keys with a weight, ascending, and says how many; ends with a barrier.
  __device__ int list(const GatherRows<Rows, C>& rows, index_t head) const {
    constexpr int words = santa_chunk_keys / 32;
    static_assert(words == 32);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const Pack<int, Rows>* const counts = at<Pack<int, Rows>>(w_.counts);
    unsigned* const bits = at<unsigned>(w_.words);
    int* const places = at<int>(w_.places);
    unsigned* const drawn = at<unsigned>(w_.drawn);
    if (threadIdx.x == 0) drawn[0] = 0;
    __syncthreads();
    unsigned own = 0;
    for (int key = static_cast<int>(threadIdx.x); key < santa_chunk_keys; key += santa_threads) {
      const Pack<int, Rows> of_key = counts[key];
      bool any = false;
#pragma unroll
      for (int r = 0; r < Rows; ++r) {
        own |= of_key.at[r] != 0 ? 1u << r : 0u;
        any = any || of_key.at[r] != 0;
      }
      const unsigned word = __ballot_sync(::decant::detail::whole_warp, any);
      if (lane == 0) bits[key / 32] = word;
    }
    if (own != 0) atomicOr(drawn, own);
    __syncthreads();
    if (threadIdx.x < 32) {
      const int count = __popc(bits[lane]);
      const int place = ::decant::detail::warp_scan_before(count);
      places[lane] = place;
      if (lane == 31) drawn[1] = static_cast<unsigned>(place + count);
    }
    __syncthreads();
    for (int key = static_cast<int>(threadIdx.x); key < santa_chunk_keys; key += santa_threads) {
      const unsigned word = bits[key / 32];
      if ((word >> lane & 1) == 0) continue;
      const int j = places[key / 32] + __popc(word & ((1u << lane) - 1));
      at<std::uint16_t>(w_.keys)[j] = static_cast<std::uint16_t>(key);
      rows.name(j, seen_.sequence, head, first_key() + key);
    }
    __syncthreads();
    return static_cast<int>(drawn[1]);
  }

  const SantaCall& c_;
  const C& cache_;
  bool aligned_;
  const SantaGatherLayout& w_;
  unsigned char* shared_;
  SantaSeen seen_;
  index_t chunk_;
  index_t first_row_;
  int heads_;
};

/// A block per chunk and query and KV head.
template <int Rows, class C>
__global__ void __launch_bounds__(santa_threads, 4)
    santa_gather_kernel(const SantaCall call, const C cache, bool aligned, const SantaGatherLayout layout) {
  extern __shared__ __align__(128) unsigned char santa_gather_shared[];
  SantaGatherKernel<Rows, C>(call, cache, aligned, layout, santa_gather_shared).run();
}

}  // namespace decant::attention::detail

#endif
