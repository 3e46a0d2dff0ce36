// decant: one token for each row of a batch, on the CPU. draw(): the first token whose cumulated weight exceeds u times
// the sum, in the order of core/row_sum.hpp. race(): the token with the largest p / E, E = -log(1 - u) exponential and
// keyed by (request, step, token): one pass, tails to 2^-53, and the same noise for every distribution that is drawn
// from with a key (Gumbel coupling). Both draw the same tokens on every instruction set and on CUDA.
#ifndef DECANT_SAMPLING_DRAW_HPP
#define DECANT_SAMPLING_DRAW_HPP

#include "../core/cpu.hpp"
#include "../speculative/keys.hpp"
#include "detail/row_terms.hpp"
#include "processing.hpp"
#include "status.hpp"

namespace decant::sampling {

using speculative::DrawKey;
using speculative::DrawKeys;
using speculative::Stream;

/// What a draw writes: tokens [rows], and only where status [rows] is ok. A row whose status already is another is left
/// alone: first filter(), then draw(), with one status.
struct Drawn {
  View<std::int32_t, 1> tokens{};
  View<RowStatus, 1> status{};
};

/// The noise of one token; exponential with mean 1, its bits the same on every context.
DECANT_HD DECANT_INLINE double exponential_noise(const DrawKey& key, std::int32_t token,
                                                 Stream stream = Stream::gumbel) {
  const double log = detail::rounded_log(1 - key.uniform(static_cast<std::uint32_t>(token), stream));
  return log < 0 ? -log : 0.0;
}

namespace detail {

inline void require_draw(const View<const float, 2>& rows, const DrawKeys& keys, const Drawn& out, const char* where,
                         const char* argument) {
  require_rows(rows, where, argument);
  const index_t n = rows.extent(0);
  require_equal(out.tokens.extent(0), n, where, "out.tokens");
  require_equal(out.status.extent(0), n, where, "out.status");
  if (!keys.requests.empty()) require_equal(keys.requests.extent(0), n, where, "keys.requests");
  if (!keys.steps.empty() && keys.steps.extent(0) != 1) require_equal(keys.steps.extent(0), n, where, "keys.steps");
}

template <class Term>
RowStatus draw_row(Isa isa, const Term& term, index_t n, double u, float* totals, std::int32_t& token) {
  const double sum = tile_totals(isa, term, n, totals);
  if (!(sum <= 1e300)) return RowStatus::bad_row;
  const index_t found = sum > 0 ? draw_index(term, n, totals, sum, u) : -1;
  if (found < 0) return RowStatus::empty_support;
  token = static_cast<std::int32_t>(found);
  return RowStatus::ok;
}

template <class Term>
DECANT_UNFUSED RowStatus race_row(const Term& term, index_t n, const DrawKey& key, std::int32_t& token) {
  double best = -1;
  std::int32_t found = -1;
  for (index_t i = 0; i < n; ++i) {
    const float p = term(i);
    if (p != p) return RowStatus::bad_row;
    if (!(p > 0)) continue;
    const double score = static_cast<double>(p) / exponential_noise(key, static_cast<std::int32_t>(i));
    if (score > best) {
      best = score;
      found = static_cast<std::int32_t>(i);
    }
  }
  if (found < 0) return RowStatus::empty_support;
  token = found;
  return RowStatus::ok;
}

/// Whether a LogitRow names one token; `status` then says whether the vocabulary has it.
DECANT_HD inline bool draw_top(const LogitRow& row, index_t n, RowStatus& status, std::int32_t& token) {
  if (row.top < 0) return false;
  status = row.top < n ? RowStatus::ok : RowStatus::bad_row;
  if (row.top < n) token = row.top;
  return true;
}

}  // namespace detail

/// A token from each row of nonnegative weights [rows, vocab], which need not sum up to 1. bad_row where a weight that
/// is negative, infinite or NaN is met, empty_support where all are 0. keys: one for each row; u is number 0 of the
/// stream. O(rows * vocab); scratch: 4 bytes for each 1024 tokens and thread.
inline void draw(Cpu& cpu, View<const float, 2> weights, const DrawKeys& keys, const Drawn& out,
                 Stream stream = Stream::emit) {
  detail::require_draw(weights, keys, out, "sampling::draw", "weights");
  Workspace::Scope scope(cpu.workspace());
  const index_t n = weights.extent(1);
  float* const totals = cpu.workspace().take<float>(cpu.parts(weights.extent(0), 1) * row_tiles(n));
  cpu.parallel_ranges(weights.extent(0), 1, [&](index_t first, index_t last, index_t part) {
    for (index_t r = first; r < last; ++r) {
      if (out.status[r] != RowStatus::ok) continue;
      const detail::WeightTerm term{weights.data() + r * weights.stride(0)};
      out.status[r] = detail::draw_row(cpu.isa(), term, n, keys.at(r).uniform(0, stream),
                                       totals + part * row_tiles(n), out.tokens[r]);
    }
  });
}

/// The same from filtered rows, without probabilities in memory.
inline void draw(Cpu& cpu, const LogitRows& rows, const DrawKeys& keys, const Drawn& out,
                 Stream stream = Stream::emit) {
  detail::require_draw(rows.logits, keys, out, "sampling::draw", "rows.logits");
  require_equal(rows.rows.extent(0), rows.logits.extent(0), "sampling::draw", "rows.rows");
  Workspace::Scope scope(cpu.workspace());
  const index_t n = rows.logits.extent(1);
  float* const totals = cpu.workspace().take<float>(cpu.parts(rows.logits.extent(0), 1) * row_tiles(n));
  cpu.parallel_ranges(rows.logits.extent(0), 1, [&](index_t first, index_t last, index_t part) {
    for (index_t r = first; r < last; ++r) {
      if (out.status[r] != RowStatus::ok) continue;
      if (detail::draw_top(rows.rows[r], n, out.status[r], out.tokens[r])) continue;
      const detail::LogitTerm term{rows.logits.data() + r * rows.logits.stride(0), rows.rows[r]};
      out.status[r] = detail::draw_row(cpu.isa(), term, n, keys.at(r).uniform(0, stream),
                                       totals + part * row_tiles(n), out.tokens[r]);
    }
  });
}

/// The race over weights [rows, vocab] of any scale: argmax w / E, of equal ones the lowest token. Noise is computed
/// for positive weights only. Stream::gumbel. O(rows * vocab).
inline void race(Cpu& cpu, View<const float, 2> weights, const DrawKeys& keys, const Drawn& out) {
  detail::require_draw(weights, keys, out, "sampling::race", "weights");
  cpu.parallel_for(weights.extent(0), [&](index_t r) {
    if (out.status[r] != RowStatus::ok) return;
    const detail::WeightTerm term{weights.data() + r * weights.stride(0)};
    out.status[r] = detail::race_row(term, weights.extent(1), keys.at(r), out.tokens[r]);
  });
}

/// The same over filtered rows.
inline void race(Cpu& cpu, const LogitRows& rows, const DrawKeys& keys, const Drawn& out) {
  detail::require_draw(rows.logits, keys, out, "sampling::race", "rows.logits");
  require_equal(rows.rows.extent(0), rows.logits.extent(0), "sampling::race", "rows.rows");
  cpu.parallel_for(rows.logits.extent(0), [&](index_t r) {
    if (out.status[r] != RowStatus::ok) return;
    if (detail::draw_top(rows.rows[r], rows.logits.extent(1), out.status[r], out.tokens[r])) return;
    const detail::LogitTerm term{rows.logits.data() + r * rows.logits.stride(0), rows.rows[r]};
    out.status[r] = detail::race_row(term, rows.logits.extent(1), keys.at(r), out.tokens[r]);
  });
}

}  // namespace decant::sampling

#endif
