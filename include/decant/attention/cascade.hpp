// decant: attention of requests that share prefixes: each run of keys of a CascadePlan is attended once, by the queries
// of all requests that share it, and what comes out is joined per request as merge() of state.hpp does (Hydragen,
// arXiv 2402.05099; FlashInfer's cascade, arXiv 2501.01005). Exact, up to rounding: within Dense::error_bound of dense
// attention over each request's own keys.
#ifndef DECANT_ATTENTION_CASCADE_HPP
#define DECANT_ATTENTION_CASCADE_HPP

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "dense.hpp"
#include "detail/cascade_segments.hpp"

namespace decant::attention {

namespace detail {

template <class Q, class C, class O>
void validate_cascade(const CascadeView& plan, const Queries<Q>& q, const C& cache, const View<O, 3>& out,
                      const View<float, 2>& lse, const View<const float, 1>& sinks) {
  constexpr const char* where = "attention::attend";
  validate(cache);
  const index_t requests = plan.requests();
  validate_query_shapes(
      q, cache, requests, [&] { return "the plan's " + std::to_string(requests) + " requests"; }, out, lse, sinks);
  validate_indptr(q, requests);
  for (index_t i = 0; i < plan.pieces.extent(0); ++i) {
    const CascadePiece& p = plan.pieces[i];
    require(p.sequence < cache.sequences(), where, "plan",
            [&] { return "one of the cache's " + std::to_string(cache.sequences()) + " sequences"; }, p.sequence);
    const index_t held = kv::max_length(cache, p.sequence);
    require(p.last <= held, where, "plan",
            [&] { return "tokens below the " + std::to_string(held) + " of sequence " + std::to_string(p.sequence); },
            p.last);
  }
}

}  // namespace detail

/// out and lse as attend(cpu, a, ...) gives them for requests that each hold all the keys of their path: the keys of
/// shared segments are read once per 64 rows of queries instead of once per request.
///
/// a: a policy whose attend() takes Queries and a mask, as Dense's does. plan: a CascadePlan, made once for all layers.
/// Shapes as for Dense, with the plan's requests in the place of sequences: q [total, query_heads, key_dim], q.indptr
/// [requests + 1] or empty for one query each; masks are asked for (request, query, key) with keys counted along the
/// request's path, so the queries of a request are the last of its keys. cache: any cache view; where the heads of a
/// sequence differ in length, each is cut at its own.
/// A request's result depends neither on threads nor on the order of requests or segments. It is, bit for bit, merge()
/// of attend() over the pieces of its path; other requests change it only through how many rows a piece is given (Dense
/// takes another kernel from 24 on), within a's bound.
/// Errors: ArgumentError on unequal shapes and a plan that does not fit the cache, before anything is written.
/// O(a's over all pieces, each with the queries of its sharers + states * value_dim).
template <class A, Storage Q, kv::CacheView C, Storage O, Mask M = Causal>
void attend(Cpu& cpu, const A& a, const detail::CascadeView& plan, const Queries<Q>& q, const C& cache, View<O, 3> out,
            View<float, 2> lse = {}, const M& mask = {}, View<const float, 1> sinks = {}) {
  using namespace detail;
  validate(a);
  validate_cascade(plan, q, cache, out, lse, sinks);
  const index_t heads = cache.kv_heads();
  const index_t group = q.rows.extent(1) / heads;
  const index_t requests = plan.requests();
  const index_t pieces = plan.pieces.extent(0);
  const index_t segments = plan.segments.extent(0);
  const index_t key_dim = cache.key_dim();
  const index_t value_dim = cache.value_dim();
  const auto first_query = [&](index_t r) -> index_t { return q.indptr.empty() ? r : index_t{q.indptr[r]}; };
  const auto queries_of = [&](index_t r) -> index_t {
    return q.indptr.empty() ? 1 : index_t{q.indptr[r + 1]} - q.indptr[r];
  };

  // How many keys lie before each segment and piece, and how many each request has.
  Workspace::Scope scope(cpu.workspace());
  Workspace& memory = cpu.workspace();
  index_t* const segment_end = memory.take<index_t>(segments * heads);
  for (index_t s = 0; s < segments; ++s) {
    const Segment& x = plan.segments[s];
    // Segments without a request are not checked against the cache, and not looked at.
    for (index_t h = 0; h < heads; ++h) segment_end[s * heads + h] = 0;
    if (x.parent >= 0)
      for (index_t h = 0; h < heads; ++h) segment_end[s * heads + h] = segment_end[x.parent * heads + h];
    if (x.sequence < cache.sequences())
      for (index_t h = 0; h < heads; ++h)
        segment_end[s * heads + h] += tokens_of(cache, x.sequence, h, x.first, x.last);
  }
  index_t* const keys = memory.take<index_t>(requests * heads);
  for (index_t r = 0; r < requests; ++r) {
    const index_t leaf = plan.leaves[r];
    for (index_t h = 0; h < heads; ++h) {
      keys[r * heads + h] = leaf < 0 ? 0 : segment_end[leaf * heads + h];
      if constexpr (requires { validate(mask, index_t{}, index_t{}, index_t{}, index_t{}); })
        validate(mask, requests, r, queries_of(r), keys[r * heads + h]);
    }
  }
  index_t* const piece_begin = memory.take<index_t>(pieces * heads);
  for (index_t p = 0; p < pieces; ++p) {
    const CascadePiece& x = plan.pieces[p];
    const index_t parent = plan.segments[x.segment].parent;
    const index_t begin = plan.segments[x.segment].first;
    for (index_t h = 0; h < heads; ++h)
      piece_begin[p * heads + h] = (parent < 0 ? 0 : segment_end[parent * heads + h]) +
                                   tokens_of(cache, x.sequence, h, begin, x.first);
  }

  // Rows: for each piece and each of its requests, the request's queries; in the policy's batch a piece's rows of the
  // first KV head, then those of the next.
  struct Pair {
    index_t row;   // in the batch, of the first query and the first KV head
    index_t step;  // to the next KV head
  };
  Pair* const pairs = memory.take<Pair>(plan.requests_of.extent(0));
  index_t* const piece_row = memory.take<index_t>(pieces + 1);
  index_t rows = 0;
  for (index_t p = 0; p < pieces; ++p) {
    piece_row[p] = rows;
    for (index_t i = plan.piece_indptr[p]; i < plan.piece_indptr[p + 1]; ++i) {
      pairs[i].row = piece_row[p] * (heads - 1) + rows;
      rows += queries_of(plan.requests_of[i]);
    }
    for (index_t i = plan.piece_indptr[p]; i < plan.piece_indptr[p + 1]; ++i) pairs[i].step = rows - piece_row[p];
  }
  piece_row[pieces] = rows;
  require(rows * heads <= 0x7fffffff, "attention::attend", "q",
          "less than 2^31 queries over all pieces and KV heads", rows * heads);
  CascadeQuery* const asked = memory.take<CascadeQuery>(rows);
  index_t next = 0;
  for (index_t i = 0; i < plan.requests_of.extent(0); ++i) {
    const index_t r = plan.requests_of[i];
    for (index_t k = 0; k < queries_of(r); ++k) asked[next++] = {r, k, queries_of(r)};
  }

  // The policy's batch: piece p of head h is sequence p * heads + h.
  std::int32_t* const indptr = memory.take<std::int32_t>(pieces * heads + 1);
  for (index_t p = 0; p < pieces; ++p)
    for (index_t h = 0; h < heads; ++h)
      indptr[p * heads + h] =
          static_cast<std::int32_t>(piece_row[p] * heads + h * (piece_row[p + 1] - piece_row[p]));
  indptr[pieces * heads] = static_cast<std::int32_t>(rows * heads);
  const View<Q, 3> gathered = memory.take_view<Q>(rows * heads, group, key_dim);
  const View<float, 3> part_o = memory.take_view<float>(rows * heads, group, value_dim);
  const View<float, 2> part_lse = memory.take_view<float>(rows * heads, group);
  auto gather = [&](index_t first, index_t last, index_t) {
    for (index_t p = first; p < last; ++p) {
      const index_t count = piece_row[p + 1] - piece_row[p];
      for (index_t i = 0; i < count; ++i) {
        const CascadeQuery& x = asked[piece_row[p] + i];
        const index_t from = first_query(x.request) + x.query;
        for (index_t h = 0; h < heads; ++h)
          for (index_t g = 0; g < group; ++g)
            std::memcpy(&gathered(piece_row[p] * heads + h * count + i, g, index_t{0}),
                        &q.rows(from, h * group + g, index_t{0}), static_cast<std::size_t>(key_dim) * sizeof(Q));
      }
    }
  };
  cpu.parallel_ranges(pieces, 1, gather);
  const PieceKV<C> batch{&cache, pieces > 0 ? plan.pieces.data() : nullptr, pieces, heads};
  const PieceMask<M> batch_mask{&mask, batch.pieces, asked, piece_row, piece_begin, keys, heads};
  attend(cpu, a, Queries<Q>{gathered, View<const std::int32_t, 1>(indptr, pieces * heads + 1)}, batch, part_o,
         part_lse, batch_mask);

  // One more pass joins the states of each request, in the order of its keys, as merge() does, and the sinks.
  const index_t tasks = requests * heads;
  const index_t grain = 1 + 4096 / (1 + value_dim * group);
  double* const sums = memory.take<double>(cpu.parts(tasks, grain) * value_dim);
  auto join = [&](index_t first, index_t last, index_t part) {
    double* const sum = sums + part * value_dim;
    for (index_t task = first; task < last; ++task) {
      const index_t r = task / heads;
      const index_t h = task % heads;
      const index_t begin = plan.request_indptr[r];
      const index_t end = plan.request_indptr[r + 1];
      const auto row_of = [&](index_t part_at, index_t k) {
        const Pair& pair = pairs[plan.parts_of[part_at]];
        return pair.row + h * pair.step + k;
      };
      for (index_t k = 0; k < queries_of(r); ++k) {
        for (index_t g = 0; g < group; ++g) {
          const index_t head = h * group + g;
          float reference = empty_lse;
          for (index_t i = begin; i < end; ++i) reference = merge_reference(reference, part_lse(row_of(i, k), g));
          if (sinks.data() != nullptr) reference = merge_reference(reference, sinks[head]);
          double total = 0;
          for (index_t d = 0; d < value_dim; ++d) sum[d] = -0.0;  // the identity of addition, as in merge()
          for (index_t i = begin; i < end; ++i) {
            const index_t row = row_of(i, k);
            const double weight = merge_weight(part_lse(row, g), reference);
            total += weight;
            if (weight == 0) continue;
            const float* const o = &part_o(row, g, index_t{0});
            for (index_t d = 0; d < value_dim; ++d) sum[d] += weight * static_cast<double>(o[d]);
          }
          if (sinks.data() != nullptr) total += merge_weight(sinks[head], reference);
          for (index_t d = 0; d < value_dim; ++d)
            out(first_query(r) + k, head, d) = static_cast<O>(total == 0 ? 0.0f : static_cast<float>(sum[d] / total));
          if (lse.data() != nullptr) lse(first_query(r) + k, head) = merge_lse(total, reference);
        }
      }
    }
  };
  cpu.parallel_ranges(tasks, grain, join);
}

/// The same for one query per request: q [requests, query_heads, key_dim].
template <class A, class Q, kv::CacheView C, Storage O, Mask M = Causal>
  requires Storage<std::remove_const_t<Q>>
void attend(Cpu& cpu, const A& a, const detail::CascadeView& plan, View<Q, 3> q, const C& cache, View<O, 3> out,
            View<float, 2> lse = {}, const M& mask = {}, View<const float, 1> sinks = {}) {
  attend(cpu, a, plan, Queries<std::remove_const_t<Q>>{q}, cache, out, lse, mask, sinks);
}

}  // namespace decant::attention

#endif
