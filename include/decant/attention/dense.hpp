// decant: attention::Dense, exact softmax attention: decode and prefill, over any cache view. One pass over K and V per
// KV head with online softmax (Milakov and Gimelshein, arXiv 1805.02867), all query heads of a group and a block of
// queries sharing each row that is read; long sequences are split into chunks whose states are merged (flash decoding,
// Dao et al., 2023). Accumulation is in float. The chunk length is a constant, so that results depend neither on
// threads nor on the other sequences of a batch [ours].
#ifndef DECANT_ATTENTION_DENSE_HPP
#define DECANT_ATTENTION_DENSE_HPP

#include <cmath>
#include <cstdint>

#include "../core/detail/task_counter.hpp"
#include "detail/dense_tile.hpp"
#include "detail/latent_rows.hpp"
#include "policy.hpp"

namespace decant::attention {

/// The parameters of exact attention.
struct Dense {
  /// What q.k is multiplied with; 0: 1 / sqrt(key_dim).
  float scale = 0;
  /// logit = soft_cap * tanh(scale * q.k / soft_cap), before the mask; 0: none.
  float soft_cap = 0;
  /// Keys per chunk: [0, chunk), [chunk, 2 chunk) ... become states of their own and are merged in that order, and may
  /// run in parallel. 0: default_chunk, on Cuda DenseTuning::chunk. A sequence's result depends on this number in its
  /// last bits, and on nothing else beside its own queries, keys and values and cpu.isa().
  index_t chunk = 0;
  /// Matters on Cuda for fp16 and bf16 caches, on tensor cores, whose products take 16-bit numbers. false: q and the
  /// probabilities enter as sums of two or three such numbers, and error_bound holds. true: they are rounded to the
  /// cache's type, as in FlashAttention and FlashInfer, for about half the work: rounded_error_bound holds. On the CPU
  /// it matters for few queries (see attend) over bf16 caches, where the processor multiplies bf16 (AVX512_BF16): true
  /// rounds q to bf16, with the bits of a call with q in bf16, and leaves the probabilities as they are.
  bool rounded = false;

  static constexpr index_t default_chunk = 1024;
  /// Relative L2 distance to double precision, for keys and values as stored.
  static constexpr double error_bound = 5e-6;
  /// The same with `rounded`, for logits of a usual size (a standard deviation of up to 2).
  static constexpr double rounded_error_bound(DType cache) { return cache == DType::bf16 ? 4e-3 : 5e-4; }

  bool operator==(const Dense&) const = default;
};

inline void validate(const Dense& a) {
  constexpr const char* where = "attention::Dense";
  require(a.scale >= 0 && std::isfinite(a.scale), where, "scale", "a finite number of at least 0", a.scale);
  require(a.soft_cap >= 0 && std::isfinite(a.soft_cap), where, "soft_cap", "a finite number of at least 0", a.soft_cap);
  require(a.chunk >= 0, where, "chunk", "a number of keys, or 0", a.chunk);
}

/// Queries of a batch: those of sequence s are rows indptr[s] ... indptr[s + 1] - 1, in token order.
template <Storage Q>
struct Queries {
  View<const Q, 3> rows;                     // [total, query_heads, key_dim]
  View<const std::int32_t, 1> indptr{};      // [sequences + 1]; empty: one query per sequence
};

template <class Q>
Queries(View<Q, 3>) -> Queries<std::remove_const_t<Q>>;
template <class Q, class Indptr>
Queries(View<Q, 3>, const Indptr&) -> Queries<std::remove_const_t<Q>>;

namespace detail {

/// The shapes of any attend() over Queries, of `holders` sequences or requests; whose() names them in errors.
template <class Q, class C, class Whose, class O>
void validate_query_shapes(const Queries<Q>& q, const C& cache, index_t holders, const Whose& whose,
                           const View<O, 3>& out, const View<float, 2>& lse, const View<const float, 1>& sinks) {
  constexpr const char* where = "attention::attend";
  const index_t heads = cache.kv_heads();
  const index_t total = q.rows.extent(0);
  const index_t query_heads = q.rows.extent(1);
  require(heads >= 1, where, "cache", "at least 1 KV head", heads);
  require(query_heads >= heads && query_heads % heads == 0, where, "q",
          [&] { return "a number of query heads that is a multiple of kv_heads = " + std::to_string(heads); },
          query_heads);
  require_equal(q.rows.extent(2), cache.key_dim(), where, "q");
  require(q.rows.stride(2) == 1, where, "q", "stride 1 along the head dim", q.rows.stride(2));
  require(q.rows.data() != nullptr || total == 0, where, "q", "data", "a null pointer");
  if (q.indptr.empty()) {
    require(total == holders, where, "q", [&] { return "one query for each of " + whose(); }, total);
  } else {
    require_equal(q.indptr.extent(0), holders + 1, where, "q.indptr");
  }
  require_equal(out.extent(0), total, where, "out");
  require_equal(out.extent(1), query_heads, where, "out");
  require_equal(out.extent(2), cache.value_dim(), where, "out");
  require(out.data() != nullptr || total == 0, where, "out", "data", "a null pointer");
  if (lse.data() != nullptr || lse.extent(0) != 0 || lse.extent(1) != 0) {
    require_equal(lse.extent(0), total, where, "lse");
    require_equal(lse.extent(1), query_heads, where, "lse");
    require(lse.data() != nullptr || total == 0, where, "lse", "data", "a null pointer");
  }
  if (sinks.data() != nullptr || sinks.extent(0) != 0) {
    require_equal(sinks.extent(0), query_heads, where, "sinks");
    require(sinks.data() != nullptr, where, "sinks", "data", "a null pointer");
  }
}

/// Offsets of `holders` sequences or requests ascend from 0 to the number of queries.
template <class Q>
void validate_indptr(const Queries<Q>& q, index_t holders) {
  constexpr const char* where = "attention::attend";
  if (q.indptr.empty()) return;
  const index_t total = q.rows.extent(0);
  require(q.indptr[0] == 0, where, "q.indptr", "0 at its beginning", q.indptr[0]);
  for (index_t i = 0; i < holders; ++i) {
    require(q.indptr[i + 1] >= q.indptr[i], where, "q.indptr", "values that never decrease", q.indptr[i + 1]);
  }
  require(q.indptr[holders] == total, where, "q.indptr",
          [&] { return "the number of queries, " + std::to_string(total); }, q.indptr[holders]);
}

/// What can be told without reading lengths, offsets or tables, which may be a device's.
template <class Q, class C, class O>
void validate_dense_shapes(const Dense& a, const Queries<Q>& q, const C& cache, const View<O, 3>& out,
                           const View<float, 2>& lse, const View<const float, 1>& sinks) {
  validate(a);
  const index_t sequences = cache.sequences();
  validate_query_shapes(q, cache, sequences, [&] { return std::to_string(sequences) + " sequences"; }, out, lse, sinks);
}

template <class Q, class C, class O, class M>
void validate_dense(const Dense& a, const Queries<Q>& q, const C& cache, const View<O, 3>& out,
                    const View<float, 2>& lse, const M& mask, const View<const float, 1>& sinks) {
  validate(cache);
  validate_dense_shapes(a, q, cache, out, lse, sinks);
  const index_t sequences = cache.sequences();
  validate_indptr(q, sequences);
  if constexpr (requires { validate(mask, index_t{}, index_t{}, index_t{}, index_t{}); }) {
    for (index_t s = 0; s < sequences; ++s) {
      const index_t queries = q.indptr.empty() ? 1 : q.indptr[s + 1] - q.indptr[s];
      for (index_t h = 0; h < cache.kv_heads(); ++h) validate(mask, sequences, s, queries, cache.length(s, h));
    }
  }
}

/// Normalises a tile's rows, with the sink as one more key of value 0, and writes them out.
template <class O>
void write_tile(const DenseShape& x, const DenseTile& tile, const DenseRows& state, const View<O, 3>& out,
                const View<float, 2>& lse, const View<const float, 1>& sinks) {
  for (index_t r = 0; r < tile.queries * x.group; ++r) {
    const index_t query = tile.first_row + tile.first_query + r / x.group;
    const index_t head = tile.head * x.group + r % x.group;
    float reference = state.m[r];
    double total = static_cast<double>(state.l[r]);
    double weight = 1;
    if (sinks.data() != nullptr) {
      const float sink = sinks[head];
      reference = merge_reference(merge_reference(empty_lse, state.m[r]), sink);
      weight = merge_weight(state.m[r], reference);
      total = total * weight + merge_weight(sink, reference);
    }
    const float* from = state.o + r * x.o_stride;
    if (total == 0) {
      for (index_t d = 0; d < x.value_dim; ++d) out(query, head, d) = static_cast<O>(0.0f);
    } else {
      const double factor = weight / total;
      for (index_t d = 0; d < x.value_dim; ++d)
        out(query, head, d) = static_cast<O>(static_cast<float>(static_cast<double>(from[d]) * factor));
    }
    if (lse.data() != nullptr) lse(query, head) = merge_lse(total, reference);
  }
}

}  // namespace detail

/// out = softmax(mask(cap(scale * q.k))) v for every query and head, and lse = the natural log-sum-exp of its logits.
///
/// q: [total, query_heads, key_dim], query head h reads KV head h / (query_heads / kv_heads); the queries of a sequence
/// are its last tokens, whose keys are in the cache already. out: [total, query_heads, value_dim], any strides. lse:
/// [total, query_heads] or nothing. sinks: [query_heads], per head the logit of one key more, whose value is 0 (-inf:
/// none), or nothing; they count in lse. mask: see mask.hpp.
/// A query that sees no key gets o = 0 and lse = -inf. NaN and +inf logits give NaN, in that query and head only; what
/// unused slots and unseen keys hold never matters. Results depend on cpu.isa(), within Dense::error_bound, and not on
/// threads, pages, strides or the rest of the batch; a sequence's queries differ in last bits between a call of few
/// (queries * group < 24) and of many, and few bf16 queries over a bf16 cache from the same numbers as float, where the
/// processor multiplies bf16 (AVX512_BF16: about a quarter less time; subnormal products there count as 0).
/// Errors: ArgumentError on unequal shapes and whatever validate(cache) raises, before anything is written.
/// O(total * query_heads * length * (key_dim + value_dim)); each row of K and V is read once per 64 rows of queries.
template <Storage Q, kv::CacheView C, Storage O, Mask M = Causal>
void attend(Cpu& cpu, const Dense& a, const Queries<Q>& q, const C& cache, View<O, 3> out, View<float, 2> lse = {},
            const M& mask = {}, View<const float, 1> sinks = {}) {
  using namespace detail;
  validate_dense(a, q, cache, out, lse, mask, sinks);
  const index_t total = q.rows.extent(0);
  const index_t heads = cache.kv_heads();
  const index_t sequences = cache.sequences();
  if (total == 0) return;

  DenseShape x;
  x.group = q.rows.extent(1) / heads;
  x.key_dim = cache.key_dim();
  x.value_dim = cache.value_dim();
  x.q_stride = DenseScratch::round(x.key_dim);
  x.o_stride = DenseScratch::round(x.value_dim);
  x.chunk = a.chunk > 0 ? a.chunk : Dense::default_chunk;
  x.scale = a.scale > 0 ? a.scale : 1.0f / std::sqrt(static_cast<float>(x.key_dim));
  x.soft_cap = a.soft_cap;
  x.rounded = a.rounded;

  const index_t many = dense_tile_rows / x.group > 1 ? dense_tile_rows / x.group : 1;
  const auto queries_of = [&](index_t s) -> index_t {
    return q.indptr.empty() ? 1 : index_t{q.indptr[s + 1]} - q.indptr[s];
  };
  const auto tile_queries = [&](index_t m) { return m < many ? m : many; };
  index_t tiles = 0;
  index_t most_queries = 0;
  for (index_t s = 0; s < sequences; ++s) {
    const index_t m = queries_of(s);
    if (m == 0) continue;
    tiles += heads * ((m + tile_queries(m) - 1) / tile_queries(m));
    most_queries = most_queries > tile_queries(m) ? most_queries : tile_queries(m);
  }
  const index_t most_rows = most_queries * x.group;

  Workspace::Scope scope(cpu.workspace());
  DenseTile* plan = cpu.workspace().take<DenseTile>(tiles);
  index_t made = 0;
  index_t chunks = 0;
  index_t longest = 0;
  for (index_t s = 0; s < sequences; ++s) {
    const index_t m = queries_of(s);
    const index_t step = m > 0 ? tile_queries(m) : 1;
    // The last queries see the most keys: they come first, so that workers end together.
    for (index_t i = (m + step - 1) / step * step - step; i >= 0; i -= step) {
      for (index_t h = 0; h < heads; ++h) {
        DenseTile& tile = plan[made++];
        tile.sequence = s;
        tile.head = h;
        tile.first_query = i;
        tile.queries = m - i < step ? m - i : step;
        tile.first_row = q.indptr.empty() ? s : q.indptr[s];
        tile.all_queries = m;
        tile.keys = cache.length(s, h);
        tile.wide = m * x.group >= dense_wide_rows;
        index_t first = tile.keys;
        index_t last = 0;
        for (index_t k = i; k < i + tile.queries; ++k) {
          const KeyRange range = mask.range(s, k, m, tile.keys);
          if (range.last <= range.first) continue;
          first = range.first < first ? range.first : first;
          last = range.last > last ? range.last : last;
        }
        first = first < 0 ? 0 : first;
        last = last > tile.keys ? tile.keys : last;
        tile.first_chunk = first < last ? first / x.chunk : 0;
        tile.last_chunk = first < last ? (last + x.chunk - 1) / x.chunk : 1;  // one at least, which may be empty
        tile.first_task = chunks;
        const index_t own = tile.last_chunk - tile.first_chunk;
        chunks += own;
        longest = longest > own ? longest : own;
      }
    }
  }

  // Tiles are the tasks, or, when there are too few of them or one is a good part of a thread's share, chunks are. The
  // arithmetic is the same.
  const index_t threads = cpu.threads();
  const bool split = threads > 1 && chunks > tiles && (tiles < 4 * threads || 8 * longest * threads > chunks);
  const index_t tasks = split ? chunks : tiles;
  const index_t workers = cpu.parts(tasks, 1);
  const index_t per_worker = DenseScratch::layout(x, most_rows, most_queries, nullptr, nullptr);
  float* memory = cpu.workspace().take<float>(workers * per_worker);
  const index_t per_part = DenseScratch::round(DenseRows::floats(most_rows, x.o_stride));
  float* parts = split ? cpu.workspace().take<float>(chunks * per_part) : nullptr;

  const DenseTileWorker<C, M, Q> worker(x, cache, mask, cpu.isa());
  decant::detail::TaskCounter next;
  auto run_tiles = [&](index_t part) {
    DenseScratch w;
    DenseScratch::layout(x, most_rows, most_queries, memory + part * per_worker, &w);
    for (index_t task = next.take(); task < tasks; task = next.take()) {
      const DenseTile& tile = plan[task];
      const index_t rows = tile.queries * x.group;
      const DenseRows state = DenseRows::at(w.part, rows);
      const DenseRows whole = DenseRows::at(w.whole, rows);
      worker.load_queries(tile, q.rows, w);
      worker.run_chunk(tile, tile.first_chunk, w, whole);
      for (index_t c = tile.first_chunk + 1; c < tile.last_chunk; ++c) {
        worker.run_chunk(tile, c, w, state);
        dense_fold(whole, state, rows, x.o_stride);
      }
      write_tile(x, tile, whole, out, lse, sinks);
    }
  };
  auto run_chunks = [&](index_t part) {
    DenseScratch w;
    DenseScratch::layout(x, most_rows, most_queries, memory + part * per_worker, &w);
    for (index_t task = next.take(); task < tasks; task = next.take()) {
      index_t low = 0;
      index_t high = tiles;
      while (high - low > 1) {  // the last tile whose first_task <= task is the one that owns it
        const index_t middle = (low + high) / 2;
        (plan[middle].first_task <= task ? low : high) = middle;
      }
      const DenseTile& tile = plan[low];
      worker.load_queries(tile, q.rows, w);
      const index_t c = tile.first_chunk + task - tile.first_task;
      worker.run_chunk(tile, c, w, DenseRows::at(parts + task * per_part, tile.queries * x.group));
    }
  };
  auto join_chunks = [&](index_t t) {
    const DenseTile& tile = plan[t];
    const index_t rows = tile.queries * x.group;
    const index_t count = tile.last_chunk - tile.first_chunk;
    const DenseRows whole = DenseRows::at(parts + tile.first_task * per_part, rows);
    for (index_t c = 1; c < count; ++c)
      dense_fold(whole, DenseRows::at(parts + (tile.first_task + c) * per_part, rows), rows, x.o_stride);
    write_tile(x, tile, whole, out, lse, sinks);
  };
  if (split) {
    cpu.parallel_for(workers, run_chunks);
    cpu.parallel_for(tiles, join_chunks);
  } else {
    cpu.parallel_for(workers, run_tiles);
  }
}

/// The same for one query per sequence: q [sequences, query_heads, key_dim].
template <class Q, kv::CacheView C, Storage O, Mask M = Causal>
  requires Storage<Q>
void attend(Cpu& cpu, const Dense& a, View<Q, 3> q, const C& cache, View<O, 3> out, View<float, 2> lse = {},
            const M& mask = {}, View<const float, 1> sinks = {}) {
  attend(cpu, a, Queries<std::remove_const_t<Q>>{q}, cache, out, lse, mask, sinks);
}

static_assert(AttentionPolicy<Dense, Cpu>);

}  // namespace decant::attention

#endif
