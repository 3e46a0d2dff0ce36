// decant: dense attention of one tile (a few queries of one sequence and one KV head, with all query heads that share
// it) over one chunk of its keys, and how chunks are joined. Within a chunk: online softmax over blocks of keys, each
// block read once for all rows of the tile. Where a block begins depends on token numbers alone, never on pages, and
// what a row becomes does not depend on the tile that it is in.
#ifndef DECANT_ATTENTION_DETAIL_DENSE_TILE_HPP
#define DECANT_ATTENTION_DETAIL_DENSE_TILE_HPP

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "../../kv/cache_view.hpp"
#include "../mask.hpp"
#include "../state.hpp"
#include "dense_kernels.hpp"

namespace decant::attention::detail {

/// From this many rows (queries times group) on, a block's keys are transposed for a kernel tiled over rows and keys.
inline constexpr index_t dense_wide_rows = 24;
/// Rows that a tile aims for.
inline constexpr index_t dense_tile_rows = 64;

/// What kernels read: the cache's own rows where they are plain, else floats that load_row has written.
template <class C>
struct DenseRow {
  using type = float;
};
template <kv::PlainCacheView C>
struct DenseRow<C> {
  using type = std::remove_cv_t<std::remove_pointer_t<kv::row_t<C>>>;
};

/// The numbers of a call that all tiles share.
struct DenseShape {
  index_t group;
  index_t key_dim;
  index_t value_dim;
  index_t q_stride;  // key_dim and value_dim, rounded up to 16
  index_t o_stride;
  index_t chunk;
  float scale;
  float soft_cap;
  bool rounded = false;  // see Dense
};

/// One tile: queries [first_query, first_query + queries) of a sequence, one KV head.
struct DenseTile {
  index_t sequence;
  index_t head;
  index_t first_query;
  index_t queries;
  index_t first_row;    // of the query tensor
  index_t all_queries;  // of the sequence
  index_t keys;
  index_t first_chunk;  // the chunks that any query may see; at least one
  index_t last_chunk;
  index_t first_task;   // tasks before this tile's, when chunks are tasks
  bool wide;
};

/// A tile's rows as an unnormalised state (m, l, o), with logits counted from m.
struct DenseRows {
  float* m;
  float* l;
  float* o;  // [rows][o_stride]

  static index_t floats(index_t rows, index_t o_stride) { return rows * (o_stride + 2); }
  static DenseRows at(float* memory, index_t rows) { return {memory, memory + rows, memory + 2 * rows}; }
};

/// One worker's memory.
struct DenseScratch {
  float* q;          // [rows][q_stride]
  float* s;          // [rows][dense_block]
  float* compact;    // [group][dense_block]
  float* alpha;      // [rows]
  float* part;       // a DenseRows: the chunk at work
  float* whole;      // a DenseRows: the chunks before it
  float* packed;     // [key_dim][dense_block], wide tiles
  float* keys;       // [dense_block][q_stride], caches that are not read directly
  float* values;     // [dense_block][o_stride], those and wide tiles
  std::uint64_t* bits;  // [queries]

  static index_t round(index_t n) { return (n + 15) / 16 * 16; }

  /// Floats of one worker; `assign` null only counts.
  static index_t layout(const DenseShape& x, index_t rows, index_t queries, float* memory, DenseScratch* assign) {
    index_t used = 0;
    const auto take = [&](index_t n) {
      float* p = memory ? memory + used : nullptr;
      used += round(n);
      return p;
    };
    DenseScratch s;
    s.q = take(rows * x.q_stride);
    s.s = take(rows * dense_block);
    s.compact = take(x.group * dense_block);
    s.alpha = take(rows);
    s.part = take(DenseRows::floats(rows, x.o_stride));
    s.whole = take(DenseRows::floats(rows, x.o_stride));
    s.packed = take(x.key_dim * dense_block);
    s.keys = take(dense_block * x.q_stride);
    s.values = take(dense_block * x.o_stride);
    s.bits = reinterpret_cast<std::uint64_t*>(take(2 * queries));
    if (assign) *assign = s;
    return used;
  }
};

/// Where keys [first, first + count) of a tile's head lie: in the cache or, where its rows are not read directly, in
/// `buffer` [count][stride], which then holds them.
template <class C>
void gather_key_rows(const C& cache, const DenseTile& tile, index_t first, index_t count, index_t stride, float* buffer,
                     const typename DenseRow<C>::type** rows) {
  using kv::load_row;
  if constexpr (kv::PlainCacheView<C>) {
    for (index_t j = 0; j < count;) {
      const auto* row = cache.key(tile.sequence, tile.head, first + j);
      index_t run = cache.run(tile.sequence, tile.head, first + j);
      for (run = run < count - j ? run : count - j; run > 0; --run, row += cache.key_stride()) rows[j++] = row;
    }
  } else {
    for (index_t j = 0; j < count; ++j) {
      float* const to = buffer + j * stride;
      load_row(cache.key(tile.sequence, tile.head, first + j), cache.key_dim(), to);
      rows[j] = to;
    }
  }
}

/// Joins `part` into `whole`, chunk after chunk in ascending order. Not inlined, so that it rounds alike everywhere.
DECANT_NOINLINE inline void dense_fold(const DenseRows& whole, const DenseRows& part, index_t rows, index_t o_stride) {
  for (index_t r = 0; r < rows; ++r) {
    const float reference = merge_reference(merge_reference(empty_lse, whole.m[r]), part.m[r]);
    const float base = reference == empty_lse ? 0.0f : reference;
    const float a = exp_portable(whole.m[r] - base);
    const float b = exp_portable(part.m[r] - base);
    whole.m[r] = reference;
    whole.l[r] = whole.l[r] * a + part.l[r] * b;
    float* to = whole.o + r * o_stride;
    const float* from = part.o + r * o_stride;
    for (index_t d = 0; d < o_stride; ++d) to[d] = to[d] * a + from[d] * b;
  }
}

/// Bits of the keys [first, first + count) that a query may see.
template <class M>
std::uint64_t dense_mask_bits(const M& mask, const KeyRange& range, const DenseTile& tile, index_t query, index_t first,
                              index_t count) {
  const index_t low = range.first > first ? range.first - first : 0;
  const index_t high = range.last < first + count ? range.last - first : count;
  if (low >= high) return 0;
  return allowed_word(mask, tile.sequence, query, first + low, high - low, tile.all_queries, tile.keys) << low;
}

/// Q: what queries are of before load_queries(), which may choose better kernels.
template <class C, class M, class Q = float>
class DenseTileWorker {
 public:
  using Row = typename DenseRow<C>::type;

  DenseTileWorker(const DenseShape& shape, const C& cache, const M& mask, Isa isa)
      : x_(shape), cache_(cache), mask_(mask), kernels_(dense_kernels<Row, Q>(isa, shape.rounded)),
        floats_(dense_kernels<float>(isa)), shared_(dense_float_kernels(isa)) {}

  /// The tile's queries as floats, zero-padded.
  template <class From>
  void load_queries(const DenseTile& tile, const View<const From, 3>& rows, const DenseScratch& w) const {
    for (index_t i = 0; i < tile.queries; ++i) {
      for (index_t g = 0; g < x_.group; ++g) {
        const From* from = &rows(tile.first_row + tile.first_query + i, tile.head * x_.group + g, index_t{0});
        float* to = w.q + (i * x_.group + g) * x_.q_stride;
        for (index_t d = 0; d < x_.key_dim; ++d) to[d] = static_cast<float>(from[d]);
        for (index_t d = x_.key_dim; d < x_.q_stride; ++d) to[d] = 0;
      }
    }
    if (!tile.wide) kernels_.arrange(w.q, x_.q_stride, tile.queries * x_.group, x_.key_dim);
  }

  /// The state of all rows of the tile over chunk c.
  void run_chunk(const DenseTile& tile, index_t c, const DenseScratch& w, const DenseRows& state) const {
    const index_t rows = tile.queries * x_.group;
    for (index_t r = 0; r < rows; ++r) {
      state.m[r] = empty_lse;
      state.l[r] = 0;
    }
    for (index_t i = 0; i < rows * x_.o_stride; ++i) state.o[i] = -0.0f;  // -0 + x has the bits of x, 0 + x not always
    for (index_t i = 0; i < rows * dense_block; ++i) w.s[i] = 0;          // not all of it is written for a short block

    const Row* list[3 * dense_block];  // keys, values, and the keys of the next block
    index_t known = 0;                 // where in the list this block's keys stand
    const index_t begin = c * x_.chunk;
    const index_t end = begin + x_.chunk < tile.keys ? begin + x_.chunk : tile.keys;
    for (index_t first = begin; first < end; first += dense_block) {
      const index_t count = end - first < dense_block ? end - first : dense_block;
      const std::uint64_t all = count == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1;
      std::uint64_t any = 0;
      bool full = true;
      for (index_t i = 0; i < tile.queries; ++i) {
        const index_t query = tile.first_query + i;
        const KeyRange range = mask_.range(tile.sequence, query, tile.all_queries, tile.keys);
        w.bits[i] = dense_mask_bits(mask_, range, tile, query, first, count);
        any |= w.bits[i];
        full = full && w.bits[i] == all;
      }
      if (any == 0) {
        known = 0;
        continue;
      }
      if (known > 0) {
        for (index_t j = 0; j < count; ++j) list[j] = list[known + j];
      } else {
        gather_key_rows(cache_, tile, first, count, x_.q_stride, w.keys, list);
      }
      known = run_block(tile, first, count, full, list, w, state);
    }
  }

 private:
  /// Of the list the block's keys are there. Returns where it has put the next block's keys, 0: nowhere.
  index_t run_block(const DenseTile& tile, index_t first, index_t count, bool full, const Row** list,
                    const DenseScratch& w, const DenseRows& state) const {
    const index_t rows = tile.queries * x_.group;
    const Row* const* const keys = list;
    const Row** const values = list + count;
    gather_values(tile, first, count, w.values, values);
    // Memory is asked for the values during the scores and for the next block's keys during the sum, also beyond the
    // chunk's end: the next chunk of the head mostly comes next.
    Ahead<Row> later_values, later_keys;
    index_t more = 0;
    if (kv::PlainCacheView<C> && !tile.wide && rows > kernels_.in_order_rows) {
      const index_t from = first + count;
      more = tile.keys - from < dense_block ? tile.keys - from : dense_block;
      gather_key_rows(cache_, tile, from, more, x_.q_stride, w.keys, values + count);
      later_values = {values, count, x_.value_dim * index_t{sizeof(Row)}};
      later_keys = {values + count, more, x_.key_dim * index_t{sizeof(Row)}};
    }
    if (tile.wide) {
      kernels_.pack(keys, count, x_.key_dim, w.packed);
      shared_.scores_packed(w.q, x_.q_stride, rows, w.packed, x_.key_dim, w.s);
    } else {
      kernels_.scores(w.q, x_.q_stride, rows, keys, count, x_.key_dim, w.s, later_values);
    }
    shared_.softmax({w.s, w.bits, rows, x_.group, x_.scale, x_.soft_cap, state.m, state.l, w.alpha});

    if constexpr (!std::is_same_v<Row, float>) {
      if (tile.wide) {
        const float* wide[dense_block];
        kernels_.widen(values, count, x_.value_dim, w.values, x_.o_stride);
        for (index_t j = 0; j < count; ++j) wide[j] = w.values + j * x_.o_stride;
        add_values(floats_, tile, wide, count, full, w, state, {});
        return 0;
      }
    }
    add_values(kernels_, tile, values, count, full, w, state, later_keys);
    return more > 0 ? 2 * count : 0;
  }

  /// o += P V. A value that a query may not see is never touched for it: 0 times NaN would be NaN.
  template <class T>
  void add_values(const DenseKernels<T>& kernels, const DenseTile& tile, const T* const* values, index_t count,
                  bool full, const DenseScratch& w, const DenseRows& state, Ahead<T> ahead) const {
    if (full) {
      kernels.values(w.s, w.alpha, tile.queries * x_.group, values, count, x_.value_dim, state.o, x_.o_stride, ahead);
      return;
    }
    for (index_t i = 0; i < tile.queries; ++i) {
      const std::uint64_t bits = w.bits[i];
      if (bits == 0) continue;  // then alpha is 1, or nothing has been added yet
      const index_t row = i * x_.group;
      const int low = std::countr_zero(bits);
      const int seen = std::popcount(bits);
      const float* p = w.s + row * dense_block + low;
      const T* const* from = values + low;
      const T* picked[dense_block];
      if (seen < 64 && (bits >> low) != (std::uint64_t{1} << seen) - 1) {
        int k = 0;
        for (std::uint64_t left = bits; left != 0; left &= left - 1, ++k) {
          const int j = std::countr_zero(left);
          picked[k] = values[j];
          for (index_t g = 0; g < x_.group; ++g)
            w.compact[g * dense_block + k] = w.s[(row + g) * dense_block + j];
        }
        p = w.compact;
        from = picked;
      }
      float* o = state.o + row * x_.o_stride;
      kernels.values(p, w.alpha + row, x_.group, from, seen, x_.value_dim, o, x_.o_stride, {});
    }
  }

  void gather_values(const DenseTile& tile, index_t first, index_t count, float* buffer, const Row** rows) const {
    using kv::load_row;
    if constexpr (kv::PlainCacheView<C>) {
      for (index_t j = 0; j < count;) {
        const Row* row = cache_.value(tile.sequence, tile.head, first + j);
        index_t run = cache_.run(tile.sequence, tile.head, first + j);
        for (run = run < count - j ? run : count - j; run > 0; --run, row += cache_.value_stride()) rows[j++] = row;
      }
    } else {
      for (index_t j = 0; j < count; ++j) {
        float* to = buffer + j * x_.o_stride;
        load_row(cache_.value(tile.sequence, tile.head, first + j), x_.value_dim, to);
        rows[j] = to;
      }
    }
  }

  const DenseShape& x_;
  const C& cache_;
  const M& mask_;
  const DenseKernels<Row>& kernels_;
  const DenseKernels<float>& floats_;
  const DenseFloatKernels& shared_;
};

}  // namespace decant::attention::detail

#endif
