// decant: attention::sparse_gather, weighted sums of listed value rows: the second half of any attention that first
// decides which rows to read (SANTA's samples, the keys that a retrieval method has found). One list per KV head, read
// once for all query heads of the group, or one list per query head. Rows are prefetched from the list. [ours]
#ifndef DECANT_ATTENTION_SPARSE_GATHER_HPP
#define DECANT_ATTENTION_SPARSE_GATHER_HPP

#include <cstdint>

#include "../core/cpu.hpp"
#include "../core/detail/task_counter.hpp"
#include "detail/sparse_gather_rows.hpp"

namespace decant::attention {

/// Lists of rows with weights, in CSR form. Shared lists: list sequence * kv_heads + head, with a weight for each of
/// the group's query heads. Lists of their own: list sequence * query_heads + query_head, with one weight per row.
struct RowLists {
  View<const std::int32_t, 1> indptr;  // [lists + 1], ascending from 0
  View<const std::int32_t, 1> rows;    // [indptr's last value]: token numbers, any order, repeats allowed
  View<const float, 2> weights;        // [rows, group] for shared lists, [rows, 1] for lists of their own
};

namespace detail {

/// What can be told without reading lists, lengths or tables, which may be a device's. count: of lists.
template <class C, class O>
void validate_gather_shapes(const C& cache, const RowLists& lists, const View<O, 3>& out, index_t group,
                            index_t count) {
  constexpr const char* where = "attention::sparse_gather";
  require_equal(out.extent(0), cache.sequences(), where, "out");
  require_equal(out.extent(2), cache.value_dim(), where, "out");
  require(out.data() != nullptr || out.size() == 0, where, "out", "data", "a null pointer");
  require_equal(lists.weights.extent(0), lists.rows.extent(0), where, "lists.weights");
  require(
      lists.weights.extent(1) == group || lists.weights.extent(1) == 1, where, "lists.weights",
      [&] { return "a weight per row, or one for each of the group's " + std::to_string(group) + " query heads"; },
      lists.weights.extent(1));
  require_equal(lists.indptr.extent(0), count + 1, where, "lists.indptr");
}

template <class C, class O>
void validate_sparse_gather(const C& cache, const RowLists& lists, const View<O, 3>& out, index_t group, bool shared) {
  constexpr const char* where = "attention::sparse_gather";
  const index_t heads = cache.kv_heads();
  const index_t width = shared ? heads : heads * group;
  validate_gather_shapes(cache, lists, out, group, cache.sequences() * width);
  require(lists.indptr[0] == 0, where, "lists.indptr", "0 at its beginning", lists.indptr[0]);
  for (index_t i = 0; i < cache.sequences() * width; ++i) {
    const index_t end = lists.indptr[i + 1];
    require(end >= lists.indptr[i] && end <= lists.rows.extent(0), where, "lists.indptr",
            "values that never decrease, up to the number of rows", end);
    const index_t length = cache.length(i / width, shared ? i % width : i % width / group);
    for (index_t k = lists.indptr[i]; k < end; ++k)
      require(
          lists.rows[k] >= 0 && lists.rows[k] < length, where, "lists.rows",
          [&] { return "tokens below the head's " + std::to_string(length); }, lists.rows[k]);
  }
}

}  // namespace detail

/// out[s, h] = sum over list (s, h) of weight * value row. out: [sequences, query_heads, value_dim], any strides; an
/// empty list gives 0. Sums are formed in float in the order of the list. In a shared list a weight of 0 still
/// multiplies its row, so that a NaN in there reaches all heads of the group.
/// The same bits for any cache layout, batch and number of threads. ArgumentError before anything is written when
/// shapes disagree or a row does not exist. O(listed rows * value_dim * (group or 1)).
template <kv::CacheView C, Storage O>
void sparse_gather(Cpu& cpu, const C& cache, const RowLists& lists, View<O, 3> out) {
  using namespace detail;
  validate(cache);
  const index_t heads = cache.kv_heads();
  const index_t query_heads = out.extent(1);
  require(
      heads >= 1 && query_heads >= heads && query_heads % heads == 0, "attention::sparse_gather", "out",
      [&] { return "a number of query heads that is a multiple of kv_heads = " + std::to_string(heads); }, query_heads);
  const index_t group = query_heads / heads;
  const bool shared = lists.weights.extent(1) == group;
  validate_sparse_gather(cache, lists, out, group, shared);

  const index_t at_once = shared ? group : 1;
  const index_t width = query_heads / at_once;
  const index_t tasks = cache.sequences() * width;
  const index_t dim = cache.value_dim();
  const index_t o_stride = DenseScratch::round(dim);
  const index_t per_worker = RowSum<C>::floats(at_once, o_stride) + at_once * o_stride;
  const index_t workers = cpu.parts(tasks, 1);
  Workspace::Scope scope(cpu.workspace());
  float* const memory = cpu.workspace().take<float>(workers * per_worker);
  decant::detail::TaskCounter next;
  cpu.parallel_for(workers, [&](index_t worker) {
    float* const o = memory + worker * per_worker;
    RowSum<C> sum(cache, cpu.isa(), at_once, o_stride, o + at_once * o_stride);
    for (index_t task = next.take(); task < tasks; task = next.take()) {
      const index_t sequence = task / width;
      sum.begin(sequence, shared ? task % width : task % width / group, o);
      for (index_t k = lists.indptr[task]; k < lists.indptr[task + 1]; ++k) {
        float* const weights = sum.add(lists.rows[k]);
        for (index_t r = 0; r < at_once; ++r) weights[r * dense_block] = lists.weights(k, r);
      }
      sum.finish();
      const bool empty = lists.indptr[task] == lists.indptr[task + 1];
      for (index_t r = 0; r < at_once; ++r)
        for (index_t d = 0; d < dim; ++d)
          out(sequence, task % width * at_once + r, d) = static_cast<O>(empty ? 0.0f : o[r * o_stride + d]);
    }
  });
}

}  // namespace decant::attention

#endif
