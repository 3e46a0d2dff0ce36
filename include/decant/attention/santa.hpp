// decant: attention::Santa, attention that reads all keys and a sample of the values: SANTA and S2ANTA (stochastic
// value aggregation, arXiv 2605.01910; code OPUSLab/SANTA). Scores, softmax and lse are exact; o is a weighted sum of
// value rows that were drawn by their probabilities. Which schemes are the paper's, the code's and ours:
// santa_types.hpp; all but Prop are unbiased. [ours] draws are integer arithmetic, so counts are the same on every
// instruction set given the same exponentials; random numbers change with every token. Its use is decode: in prefill
// the queries together read nearly every row, and each query reads all keys by itself here.
#ifndef DECANT_ATTENTION_SANTA_HPP
#define DECANT_ATTENTION_SANTA_HPP

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <new>

#include "../core/detail/task_counter.hpp"
#include "dense.hpp"
#include "detail/santa_sampler.hpp"
#include "detail/sparse_gather_rows.hpp"
#include "santa_types.hpp"

namespace decant::attention {

namespace detail {

/// The numbers of a call that all its tasks share.
struct SantaShape {
  index_t group;
  index_t key_dim;
  index_t value_dim;
  index_t q_stride;
  index_t o_stride;
  index_t most_blocks;
  index_t least_tile;
  float scale;
};

/// One query, one KV head.
struct SantaTask {
  DenseTile tile;
  KeyRange range;
  SantaKeys keys;
  index_t first_chunk;  // chunks before this task's
};

/// Blocks that are scored as one piece where there are more threads than tasks.
inline constexpr index_t santa_chunk = 16;

/// One worker. score() of all of a task's blocks, in any pieces, then finish(), with the same memory.
template <class C, class M>
class SantaWorker {
 public:
  using Row = typename DenseRow<C>::type;

  /// Floats of memory for one worker.
  static index_t floats(const SantaShape& x) {
    const index_t keys = kv::PlainCacheView<C> ? 0 : dense_block * x.q_stride;
    return x.group * (x.q_stride + x.o_stride + RowSum<C>::floats(1, x.o_stride)) + DenseScratch::round(2 * x.group) +
           keys;
  }

  SantaWorker(const Santa& a, const SantaShape& x, const C& cache, const M& mask, Isa isa, float* floats,
              RowSum<C>* sums)
      : a_(a),
        x_(x),
        cache_(cache),
        mask_(mask),
        kernels_(dense_kernels<Row>(isa)),
        shared_(dense_float_kernels(isa)),
        sampler_(a, isa, x.group),
        q_(floats),
        o_(q_ + x.group * x.q_stride),
        l_(o_ + x.group * x.o_stride),
        keys_(l_ + DenseScratch::round(2 * x.group)),
        rows_{sums} {
    float* memory = keys_ + (kv::PlainCacheView<C> ? 0 : dense_block * x.q_stride);
    for (index_t g = 0; g < x.group; ++g, memory += RowSum<C>::floats(1, x.o_stride))
      ::new (static_cast<void*>(sums + g)) RowSum<C>(cache, isa, 1, x.o_stride, memory);
  }

  /// The exponentials of blocks [begin, end), each block's relative to its own largest logit.
  template <class Q>
  void score(const SantaTask& task, index_t begin, index_t end, const SantaMemory& m, const View<const Q, 3>& q) {
    load_query(&q(task.tile.first_row + task.tile.first_query, task.tile.head * x_.group, index_t{0}), q.stride(1));
    const Row* rows[2][dense_block];
    int now = 0;
    if constexpr (kv::PlainCacheView<C>)
      if (begin < end) gather_keys(task, task.keys.first + begin * dense_block, rows[0]);
    for (index_t b = begin; b < end; ++b, now = 1 - now) {
      const index_t first = task.keys.first + b * dense_block;
      const index_t count = count_at(task, first);
      float* const s = m.w + b * x_.group * dense_block;
      float* const top = m.top + b * x_.group;
      const std::uint64_t bits = dense_mask_bits(mask_, task.range, task.tile, task.tile.first_query, first, count);
      for (index_t g = 0; g < x_.group; ++g) {
        top[g] = empty_lse;
        l_[g] = 0;
      }
      if (bits == 0 || count < dense_block)
        for (index_t i = 0; i < x_.group * dense_block; ++i) s[i] = 0;
      Ahead<Row> later;
      if constexpr (kv::PlainCacheView<C>) {
        if (b + 1 < end) {
          const index_t more = gather_keys(task, first + dense_block, rows[1 - now]);
          later = {rows[1 - now], more, x_.key_dim * index_t{sizeof(Row)}};
        }
      }
      if (bits == 0) continue;
      if constexpr (!kv::PlainCacheView<C>) gather_keys(task, first, rows[now]);
      kernels_.scores(q_, x_.q_stride, x_.group, rows[now], count, x_.key_dim, s, later);
      shared_.softmax({s, &bits, x_.group, x_.group, x_.scale, a_.soft_cap, top, l_, l_ + x_.group});
      for (index_t g = 0; g < x_.group; ++g)
        if (l_[g] != l_[g]) top[g] = l_[g];
    }
  }

  /// Draws, sums and writes.
  template <class O>
  void finish(const SantaTask& task, const SantaMemory& m, const View<O, 3>& out, const View<float, 2>& lse,
              const View<const float, 1>& sinks) {
    const DenseTile& tile = task.tile;
    sampler_.begin(m, task.keys);
    for (index_t g = 0; g < x_.group; ++g) rows_.sums[g].begin(tile.sequence, tile.head, o_ + g * x_.o_stride);
    sampler_.each(rows_);
    for (index_t g = 0; g < x_.group; ++g) {
      rows_.sums[g].finish();
      write(m.heads[g], o_ + g * x_.o_stride, tile.first_row + tile.first_query, tile.head * x_.group + g, out, lse,
            sinks);
    }
  }

 private:
  template <class Q>
  void load_query(const Q* from, index_t stride) {
    for (index_t g = 0; g < x_.group; ++g, from += stride) {
      float* const to = q_ + g * x_.q_stride;
      for (index_t d = 0; d < x_.key_dim; ++d) to[d] = static_cast<float>(from[d]);
      for (index_t d = x_.key_dim; d < x_.q_stride; ++d) to[d] = 0;
    }
    kernels_.arrange(q_, x_.q_stride, x_.group, x_.key_dim);
  }

  index_t count_at(const SantaTask& task, index_t first) const {
    return task.range.last - first < dense_block ? task.range.last - first : dense_block;
  }

  index_t gather_keys(const SantaTask& task, index_t first, const Row** rows) const {
    const index_t count = count_at(task, first);
    gather_key_rows(cache_, task.tile, first, count, x_.q_stride, keys_, rows);
    return count;
  }

  /// A head's output and lse, with the sink as one more key of value 0.
  template <class O>
  void write(const SantaHead& h, const float* o, index_t query, index_t head, const View<O, 3>& out,
             const View<float, 2>& lse, const View<const float, 1>& sinks) const {
    const SantaEnd end = santa_end(h.mass, h.reference, sinks, head);
    const float nan = h.nan ? std::numeric_limits<float>::quiet_NaN() : 0.0f;
    const bool drawn = a_.samples > 0 && h.mass > 0;
    for (index_t d = 0; d < x_.value_dim; ++d) {
      float x = end.factor == 1 ? o[d] : static_cast<float>(static_cast<double>(o[d]) * end.factor);
      if (h.nan)
        x = nan;
      else if (!drawn)
        x = 0.0f;
      out(query, head, d) = static_cast<O>(x);
    }
    if (lse.data() != nullptr) lse(query, head) = h.nan ? nan : end.lse;
  }

  const Santa& a_;
  const SantaShape& x_;
  const C& cache_;
  const M& mask_;
  const DenseKernels<Row>& kernels_;
  const DenseFloatKernels& shared_;
  SantaSampler sampler_;
  float* q_;     // [group][q_stride]
  float* o_;     // [group][o_stride]
  float* l_;     // [2][group]: what the softmax of a block sums to, and a factor that is not needed
  float* keys_;  // [64][q_stride], caches that are not read directly
  /// Each query head has a list of its own, since heads mostly draw different rows: in a shared list most weights would
  /// be 0, each with its multiplications.
  struct Rows {
    RowSum<C>* sums;
    void add(index_t g, index_t key, float weight) { *sums[g].add(key) = weight; }
  };
  Rows rows_;
};

template <class Q, class C, class O, class M>
void validate_santa(const Santa& a, const Queries<Q>& q, const C& cache, const View<O, 3>& out,
                    const View<float, 2>& lse, const M& mask, const View<const float, 1>& sinks,
                    const View<const std::uint32_t, 1>& requests) {
  constexpr const char* where = "attention::attend";
  validate(a);
  validate_dense(Dense{}, q, cache, out, lse, mask, sinks);
  require(q.rows.extent(1) <= 65536, where, "q", "at most 65536 query heads", q.rows.extent(1));
  for (index_t s = 0; s < cache.sequences(); ++s) {
    const index_t keys = kv::max_length(cache, s);
    require(keys < santa_most_keys, where, "cache", "fewer than 2^26 keys in a sequence", keys);
  }
  if (requests.data() != nullptr || requests.extent(0) != 0)
    require_equal(requests.extent(0), cache.sequences(), where, "requests");
}

}  // namespace detail

/// o is an estimate of softmax(mask(cap(scale * q.k))) v from a.samples value rows for every query and head, lse the
/// exact natural log-sum-exp of the logits. Arguments as for Dense. requests: [sequences], a number for each sequence
/// by which its random numbers differ from others', or nothing: all 0. A sequence's result is the same in any batch,
/// under any number of threads and for any cache layout, and a query's the same with any queries beside it. A query
/// that sees no key gets o = 0 and lse = -inf; one key gives its value, bit by bit. NaN and +inf logits give NaN in
/// that query and head only, and so does a NaN in a value row, in the heads that have drawn it. Results depend on
/// cpu.isa(): exponentials differ in last bits, and with them, rarely, a draw. Errors: ArgumentError as for Dense,
/// before anything is written.
/// Reads all keys, and of the values at most samples * group rows per KV head. Scratch per thread: about 5 bytes *
/// group * length, best held by the L2 cache. O(total * query_heads * (length * key_dim + samples * value_dim)).
template <Storage Q, kv::CacheView C, Storage O, Mask M = Causal>
void attend(Cpu& cpu, const Santa& a, const Queries<Q>& q, const C& cache, View<O, 3> out, View<float, 2> lse = {},
            const M& mask = {}, View<const float, 1> sinks = {}, View<const std::uint32_t, 1> requests = {}) {
  using namespace detail;
  validate_santa(a, q, cache, out, lse, mask, sinks, requests);
  const index_t heads = cache.kv_heads();
  const index_t tasks = q.rows.extent(0) * heads;
  if (tasks == 0) return;

  SantaShape x;
  x.group = q.rows.extent(1) / heads;
  x.key_dim = cache.key_dim();
  x.value_dim = cache.value_dim();
  x.q_stride = DenseScratch::round(x.key_dim);
  x.o_stride = DenseScratch::round(x.value_dim);
  x.scale = a.scale > 0 ? a.scale : 1.0f / std::sqrt(static_cast<float>(x.key_dim));
  x.least_tile = santa_tile(a, 0);
  x.most_blocks = 0;

  Workspace::Scope scope(cpu.workspace());
  SantaTask* const plan = cpu.workspace().take<SantaTask>(tasks);
  index_t made = 0;
  index_t chunks = 0;
  for (index_t s = 0; s < cache.sequences(); ++s) {
    const index_t m = q.indptr.empty() ? 1 : index_t{q.indptr[s + 1]} - q.indptr[s];
    for (index_t i = 0; i < m; ++i) {
      for (index_t h = 0; h < heads; ++h) {
        SantaTask& task = plan[made++];
        task.tile = {};
        task.tile.sequence = s;
        task.tile.head = h;
        task.tile.first_query = i;
        task.tile.queries = 1;
        task.tile.first_row = q.indptr.empty() ? s : q.indptr[s];
        task.tile.all_queries = m;
        task.tile.keys = cache.length(s, h);
        task.range = mask.range(s, i, m, task.tile.keys);
        task.range.first = task.range.first < 0 ? 0 : task.range.first;
        task.range.last = task.range.last > task.tile.keys ? task.tile.keys : task.range.last;
        const index_t position = task.tile.keys - m + i + 1;  // keys up to the query itself
        task.keys.tile = santa_tile(a, position);
        const index_t round = task.keys.tile * (dense_block / 16);  // whole blocks and whole tiles
        task.keys.first = task.range.first / round * round;
        task.keys.blocks = task.range.first < task.range.last
                               ? (task.range.last - task.keys.first + dense_block - 1) / dense_block
                               : 0;
        task.keys.step = static_cast<std::uint32_t>(position) + a.step;
        task.keys.request = requests.empty() ? 0 : requests[s];
        task.keys.query_head = static_cast<std::uint32_t>(h * x.group);
        task.first_chunk = chunks;
        chunks += (task.keys.blocks + santa_chunk - 1) / santa_chunk;
        const index_t blocks = (task.tile.keys + dense_block - 1) / dense_block;
        x.most_blocks = blocks > x.most_blocks ? blocks : x.most_blocks;
      }
    }
  }

  // Few tasks for the threads: scores first, in pieces, for all tasks. The arithmetic is the same.
  const bool split = cpu.threads() > 1 && tasks < 2 * index_t{cpu.threads()} && chunks > tasks;
  const index_t workers = cpu.parts(split ? chunks : tasks, 1);
  const index_t floats = DenseScratch::round(SantaWorker<C, M>::floats(x));
  const index_t bytes = SantaMemory::layout(a, x.group, x.most_blocks, x.least_tile, nullptr, nullptr);
  float* const all_floats = cpu.workspace().take<float>(workers * floats);
  std::byte* const all_bytes = cpu.workspace().take<std::byte>((split ? tasks : workers) * bytes);
  RowSum<C>* const all_sums = cpu.workspace().take<RowSum<C>>(workers * x.group);
  const auto memory_of = [&](index_t i) {
    SantaMemory m;
    SantaMemory::layout(a, x.group, x.most_blocks, x.least_tile, all_bytes + i * bytes, &m);
    return m;
  };
  const auto worker_of = [&](index_t part) {
    return SantaWorker<C, M>(a, x, cache, mask, cpu.isa(), all_floats + part * floats, all_sums + part * x.group);
  };
  decant::detail::TaskCounter pieces, next;
  if (split) {
    cpu.parallel_for(workers, [&](index_t part) {
      auto worker = worker_of(part);
      for (index_t chunk = pieces.take(); chunk < chunks; chunk = pieces.take()) {
        index_t low = 0;
        index_t high = tasks;
        while (high - low > 1) {  // the last task whose first_chunk <= chunk, one with chunks of its own
          const index_t middle = (low + high) / 2;
          (plan[middle].first_chunk <= chunk ? low : high) = middle;
        }
        const index_t begin = (chunk - plan[low].first_chunk) * santa_chunk;
        const index_t end = plan[low].keys.blocks < begin + santa_chunk ? plan[low].keys.blocks : begin + santa_chunk;
        worker.score(plan[low], begin, end, memory_of(low), q.rows);
      }
    });
  }
  cpu.parallel_for(workers, [&](index_t part) {
    auto worker = worker_of(part);
    for (index_t i = next.take(); i < tasks; i = next.take()) {
      const SantaMemory m = memory_of(split ? i : part);
      if (!split) worker.score(plan[i], 0, plan[i].keys.blocks, m, q.rows);
      worker.finish(plan[i], m, out, lse, sinks);
    }
  });
}

/// The same for one query per sequence: q [sequences, query_heads, key_dim].
template <class Q, kv::CacheView C, Storage O, Mask M = Causal>
  requires Storage<Q>
void attend(Cpu& cpu, const Santa& a, View<Q, 3> q, const C& cache, View<O, 3> out, View<float, 2> lse = {},
            const M& mask = {}, View<const float, 1> sinks = {}, View<const std::uint32_t, 1> requests = {}) {
  attend(cpu, a, Queries<std::remove_const_t<Q>>{q}, cache, out, lse, mask, sinks, requests);
}

static_assert(AttentionPolicy<Santa, Cpu>);

}  // namespace decant::attention

#endif
