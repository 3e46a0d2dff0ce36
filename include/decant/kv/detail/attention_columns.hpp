// decant: column sums of attention, the kernel behind every scorer that reads attention weights: for each key of a head
// the sum, over the last queries of the group, of a function of the causal softmax weight. Keys are read and converted
// once per block of up to 128 queries. The exponentials of a block are kept (16 MiB at most, or 64 bytes per key), so
// that scores are formed once; with log-sum-exps at hand nothing is kept. Keys are cut into spans of a fixed length,
// joined in order: results do not depend on threads.
#ifndef DECANT_KV_DETAIL_ATTENTION_COLUMNS_HPP
#define DECANT_KV_DETAIL_ATTENTION_COLUMNS_HPP

#include <cmath>

#include "../../core/cpu.hpp"
#include "../layer.hpp"
#include "columns_kernel.hpp"
#include "product.hpp"
#include "rows.hpp"

namespace decant::kv::detail {

inline constexpr index_t column_block = 64;   // keys converted at a time
inline constexpr index_t column_span = 1024;  // keys of one task

/// Which queries count: the last `window` of query heads [first, first + heads) of every group.
struct ColumnQueries {
  index_t window;
  index_t first;
  index_t heads;
};

struct ColumnScratch {
  float* queries;  // [key_dim][rows], scaled by 1 / sqrt(key_dim)
  float* e;        // [longest head][rows], or [column_block][rows] with log-sum-exps
  float* top;      // [spans][rows]
  float* sum;      // [spans][rows]
  float* scale;    // [spans][rows]
  float* tiles;    // [parts][column_block][key_dim]
};

constexpr index_t column_spans(index_t n) { return (n + column_span - 1) / column_span; }

/// Queries of one block: as many as keep the exponentials within 16 MiB, a multiple of 16 from 16 to 128.
inline index_t column_rows(index_t n, index_t queries) {
  const index_t fit = (index_t{1} << 22) / (n > 0 ? n : 1) / 16 * 16;
  index_t rows = padded(queries);
  rows = rows < 128 ? rows : 128;
  rows = rows < fit ? rows : fit;
  return rows > 16 ? rows : 16;
}

inline ColumnScratch take_column_scratch(Cpu& cpu, index_t n, index_t key_dim, index_t rows, bool fused,
                                         index_t parts) {
  Workspace& w = cpu.workspace();
  const index_t spans = column_spans(n);
  ColumnScratch s;
  s.queries = w.take<float>(key_dim * rows);
  s.e = w.take<float>((fused ? parts * column_block : n) * rows);
  s.top = w.take<float>(spans * rows);
  s.sum = w.take<float>(spans * rows);
  s.scale = w.take<float>(spans * rows);
  s.tiles = w.take<float>(parts * column_block * key_dim);
  return s;
}

/// Query r of a head's list is the (r / heads)-th of the window, of query head r % heads: ordered by time.
template <class X>
struct ColumnBlock {
  const X& x;
  index_t head;
  index_t window;  // queries per query head that count here, at most the head's length
  ColumnQueries queries;
  index_t first;  // of the list
  index_t count;
  index_t rows;  // count, padded

  index_t length() const { return x.length(head); }
  index_t query_head(index_t r) const {
    const index_t group = x.queries.extent(0) / x.kv_heads();
    return head * group + queries.first + r % queries.heads;
  }
  index_t column(index_t r) const { return x.queries.extent(1) - window + r / queries.heads; }
  /// How many keys query r sees.
  index_t visible(index_t r) const { return length() - window + r / queries.heads + 1; }
  index_t first_visible() const { return visible(first); }
  index_t last_visible() const { return visible(first + count - 1); }

  /// Packs the queries side by side; lanes without one are zero.
  void pack(float* out) const {
    const index_t dim = x.cache.key_dim();
    const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim)));
    for (index_t i = 0; i < dim * rows; ++i) out[i] = 0;
    for (index_t r = 0; r < count; ++r) {
      const auto* const q = &x.queries(query_head(first + r), column(first + r), index_t{0});
      for (index_t d = 0; d < dim; ++d) out[d * rows + r] = static_cast<float>(q[d]) * scale;
    }
  }

  /// Scores of keys [key, key + keys), -inf where the query is older than the key.
  void form_scores(Isa isa, const ColumnScratch& w, index_t key, index_t keys, float* tile, float* s) const {
    const index_t dim = x.cache.key_dim();
    load_keys(isa, x.cache, x.sequence, head, key, keys, tile, dim);
    product<float>(isa, Product<float>{keys, rows, dim, tile, dim, 1, w.queries, rows, s, rows, false});
    if (key + keys <= first_visible()) return;
    for (index_t j = 0; j < keys; ++j) {
      for (index_t r = 0; r < count; ++r) {
        if (key + j >= visible(first + r)) s[j * rows + r] = -__builtin_huge_valf();
      }
    }
  }
};

/// Exponentials of one span, against its own maximum.
template <class X>
void first_pass(Isa isa, const ColumnBlock<X>& b, const ColumnScratch& w, index_t span, index_t part) {
  const index_t begin = span * column_span;
  const index_t end = begin + column_span < b.last_visible() ? begin + column_span : b.last_visible();
  float* const tile = w.tiles + part * column_block * b.x.cache.key_dim();
  float* const top = w.top + span * b.rows;
  float* const sum = w.sum + span * b.rows;
  for (index_t r = 0; r < b.rows; ++r) top[r] = -__builtin_huge_valf();
  for (index_t j = begin; j < end; j += column_block) {
    const index_t keys = j + column_block < end ? column_block : end - j;
    b.form_scores(isa, w, j, keys, tile, w.e + j * b.rows);
    raise_top(isa, w.e + j * b.rows, keys, b.rows, top);
  }
  for (index_t r = 0; r < b.rows; ++r) {
    if (top[r] == -__builtin_huge_valf()) top[r] = 0;  // nothing to see here: every exponential is 0
    sum[r] = 0;
  }
  for (index_t j = begin; j < end; j += column_block) {
    const index_t keys = j + column_block < end ? column_block : end - j;
    exponentials(isa, w.e + j * b.rows, keys, b.rows, top, sum);
  }
}

/// What turns each span's exponentials into weights.
template <class X>
void join_spans(const ColumnBlock<X>& b, const ColumnScratch& w) {
  const index_t spans = column_spans(b.last_visible());
  for (index_t r = 0; r < b.rows; ++r) {
    float highest = w.top[r];
    for (index_t s = 1; s < spans; ++s) highest = w.top[s * b.rows + r] > highest ? w.top[s * b.rows + r] : highest;
    double total = 0;
    for (index_t s = 0; s < spans; ++s) {
      const double factor = std::exp(static_cast<double>(w.top[s * b.rows + r]) - static_cast<double>(highest));
      total += factor * static_cast<double>(w.sum[s * b.rows + r]);
      w.scale[s * b.rows + r] = static_cast<float>(factor);
    }
    const double inverse = r < b.count ? 1.0 / total : 0.0;
    for (index_t s = 0; s < spans; ++s) {
      w.scale[s * b.rows + r] = static_cast<float>(static_cast<double>(w.scale[s * b.rows + r]) * inverse);
    }
  }
}

template <class F, class X>
void second_pass(Isa isa, const ColumnBlock<X>& b, const ColumnScratch& w, index_t span, float* out) {
  const index_t begin = span * column_span;
  const index_t end = begin + column_span < b.last_visible() ? begin + column_span : b.last_visible();
  add_columns<F>(isa, w.e + begin * b.rows, end - begin, b.rows, w.scale + span * b.rows, out + begin);
}

/// The only pass when log-sum-exps came with the queries: top[0] holds them, scale[0] ones.
template <class F, class X>
void single_pass(Isa isa, const ColumnBlock<X>& b, const ColumnScratch& w, index_t span, index_t part, float* out) {
  const index_t begin = span * column_span;
  const index_t end = begin + column_span < b.last_visible() ? begin + column_span : b.last_visible();
  float* const tile = w.tiles + part * column_block * b.x.cache.key_dim();
  float* const e = w.e + part * column_block * b.rows;
  for (index_t j = begin; j < end; j += column_block) {
    const index_t keys = j + column_block < end ? column_block : end - j;
    b.form_scores(isa, w, j, keys, tile, e);
    exponentials(isa, e, keys, b.rows, w.top, w.sum + span * b.rows);
    add_columns<F>(isa, e, keys, b.rows, w.scale, out + j);
  }
}

/// All blocks of one head into out [length]. run(spans, body) calls body(first, last, part) over all spans.
template <class F, class X, class Run>
void head_columns(Isa isa, const X& x, index_t head, const ColumnQueries& q, index_t rows, const ColumnScratch& w,
                  float* out, Run run) {
  const index_t n = x.length(head);
  const index_t window = q.window < n ? q.window : n;
  const index_t total = window * q.heads;
  const bool fused = x.lse.data() != nullptr;
  for (index_t t = 0; t < n; ++t) out[t] = 0;
  for (index_t first = 0; first < total; first += rows) {
    const ColumnBlock<X> b{x, head, window, q, first, first + rows < total ? rows : total - first, rows};
    b.pack(w.queries);
    const index_t spans = column_spans(b.last_visible());
    if (fused) {
      for (index_t r = 0; r < rows; ++r) {
        w.top[r] = r < b.count ? x.lse(b.query_head(first + r), b.column(first + r)) : 0.0f;
        w.scale[r] = r < b.count ? 1.0f : 0.0f;
      }
      run(spans, [&](index_t begin, index_t end, index_t part) {
        for (index_t s = begin; s < end; ++s) single_pass<F>(isa, b, w, s, part, out);
      });
      continue;
    }
    run(spans, [&](index_t begin, index_t end, index_t part) {
      for (index_t s = begin; s < end; ++s) first_pass(isa, b, w, s, part);
    });
    join_spans(b, w);
    run(spans, [&](index_t begin, index_t end, index_t) {
      for (index_t s = begin; s < end; ++s) second_pass<F>(isa, b, w, s, out);
    });
  }
}

/// out(h, t) = sum over the queries of F(weight of key t), for every token of every head. The caller has checked that
/// there are min(window, longest head) queries. Rows of out are contiguous. Takes scratch in a scope of its own.
/// O(window * query heads * n * key_dim).
template <class F, class X>
void attention_columns(Cpu& cpu, const X& x, const ColumnQueries& q, View<float, 2> out) {
  const index_t n = x.max_length();
  const index_t heads = x.kv_heads();
  if (n == 0 || q.window == 0) {
    for (index_t h = 0; h < heads; ++h) {
      for (index_t t = 0; t < x.length(h); ++t) out(h, t) = 0;
    }
    return;
  }
  Workspace::Scope scope(cpu.workspace());
  const index_t rows = column_rows(n, (q.window < n ? q.window : n) * q.heads);
  const index_t dim = x.cache.key_dim();
  const bool fused = x.lse.data() != nullptr;
  const Isa isa = cpu.isa();
  if (n * rows <= index_t{1} << 19) {  // small: a head is a task
    const index_t parts = cpu.parts(heads, 1);
    ColumnScratch* const scratch = cpu.workspace().take<ColumnScratch>(parts);
    for (index_t i = 0; i < parts; ++i) scratch[i] = take_column_scratch(cpu, n, dim, rows, fused, 1);
    cpu.parallel_ranges(heads, 1, [&](index_t begin, index_t end, index_t part) {
      for (index_t h = begin; h < end; ++h) {
        head_columns<F>(isa, x, h, q, rows, scratch[part], &out(h, index_t{0}),
                        [](index_t spans, auto&& body) { body(index_t{0}, spans, index_t{0}); });
      }
    });
    return;
  }
  const ColumnScratch scratch = take_column_scratch(cpu, n, dim, rows, fused, cpu.parts(column_spans(n), 1));
  for (index_t h = 0; h < heads; ++h) {
    head_columns<F>(isa, x, h, q, rows, scratch, &out(h, index_t{0}), [&](index_t spans, auto&& body) {
      cpu.parallel_ranges(spans, 1, static_cast<decltype(body)&&>(body));
    });
  }
}

}  // namespace decant::kv::detail

#endif
