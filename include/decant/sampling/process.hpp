// decant: processed distributions on the CPU, without sorting and to the same bits on every instruction set and device:
// penalties, temperature, top-k, top-p and min-p (processing.hpp). filter() makes the form that verifiers and draws
// read, LogitRow, without probabilities in memory; process() writes the probabilities. Where nothing but top-k or min-p
// is asked for, a row is read little more than once; top-p takes a few passes over weights in the cache.
#ifndef DECANT_SAMPLING_PROCESS_HPP
#define DECANT_SAMPLING_PROCESS_HPP

#include "../core/cpu.hpp"
#include "detail/row_filter.hpp"
#include "probability.hpp"
#include "processing.hpp"
#include "status.hpp"

namespace decant::sampling {

namespace detail {

/// Scratch of an open scope, one piece for each part of the rows.
struct FilterScratches {
  float* maxima;
  float* weights;
  std::uint32_t* keys;
  std::uint64_t* masses;
  index_t groups;
  index_t length;

  FilterScratches(Cpu& cpu, const Processing& p, index_t n, index_t parts)
      : groups(row_tiles(n) * tile_groups), length(n > groups ? n : groups) {
    const bool weighs = p.top_p < 1;
    maxima = cpu.workspace().take<float>(parts * groups);
    keys = cpu.workspace().take<std::uint32_t>(parts * length);
    weights = weighs ? cpu.workspace().take<float>(parts * length) : nullptr;
    masses = weighs ? cpu.workspace().take<std::uint64_t>(parts * length) : nullptr;
  }
  FilterScratch at(index_t part) const {
    return {maxima + part * groups, weights ? weights + part * length : nullptr, keys + part * length,
            masses ? masses + part * length : nullptr};
  }
};

/// Penalises one row in place. False, and the row is as it was: the list of seen tokens is not valid.
inline bool penalise_row(const Processing& p, const TokenCounts& seen, index_t row, float* logits, index_t n) {
  const SeenRange range = seen_range(seen, row);
  bool valid = range.valid;
  for (std::int32_t i = range.first; i < range.last; ++i) valid = valid && seen.tokens[i] >= 0 && seen.tokens[i] < n;
  if (!valid) return false;
  for (std::int32_t i = range.first; i < range.last; ++i) {
    logits[seen.tokens[i]] = penalised(p, logits[seen.tokens[i]], seen.counts[i]);
  }
  return true;
}

DECANT_UNFUSED inline void probabilities_of_row(const LogitRow& row, const float* logits, index_t n, float* p) {
  if (row.top >= 0) {
    for (index_t i = 0; i < n; ++i) p[i] = 0;
    p[row.top] = 1;
    return;
  }
  index_t i = 0;
  for (; i + 64 <= n; i += 64) probabilities_64(row, logits + i, p + i);
  for (; i < n; ++i) p[i] = probability(row, logits[i]);
}
#if DECANT_X86
DECANT_TARGET_AVX2 DECANT_UNFUSED inline void probabilities_of_row_avx2(const LogitRow& row, const float* logits,
                                                                        index_t n, float* p) {
  for (index_t i = 0; i < n; i += 64) probabilities_64(row, logits + i, p + i);
}
DECANT_TARGET_AVX512 DECANT_UNFUSED inline void probabilities_of_row_avx512(const LogitRow& row, const float* logits,
                                                                            index_t n, float* p) {
  for (index_t i = 0; i < n; i += 64) probabilities_64(row, logits + i, p + i);
}
#endif
inline void probabilities_of_row(Isa isa, const LogitRow& row, const float* logits, index_t n, float* p) {
#if DECANT_X86
  if (row.top < 0 && isa != Isa::portable) {
    const index_t whole = n / 64 * 64;
    (isa == Isa::avx512 ? probabilities_of_row_avx512 : probabilities_of_row_avx2)(row, logits, whole, p);
    probabilities_of_row(row, logits + whole, n - whole, p + whole);
    return;
  }
#else
  (void)isa;
#endif
  probabilities_of_row(row, logits, n, p);
}

}  // namespace detail

/// Penalises logits [rows, vocab] in place: only the seen tokens are touched. status [rows]: bad_row where the list of
/// seen tokens does not lie inside or names a token outside the vocabulary; that row stays as it is. O(seen tokens).
inline void penalise(Cpu& cpu, const Processing& p, View<float, 2> logits, const TokenCounts& seen,
                     View<RowStatus, 1> status) {
  detail::require_penalise(p, logits, seen, status, "sampling::penalise");
  cpu.parallel_for(logits.extent(0), [&](index_t r) {
    const bool valid = detail::penalise_row(p, seen, r, logits.data() + r * logits.stride(0), logits.extent(1));
    status[r] = valid ? RowStatus::ok : RowStatus::bad_row;
  });
}

/// The processed distribution of each row of logits [rows, vocab], at most 2^22 tokens, rows contiguous: out [rows],
/// status [rows]. Penalties are not applied here: penalise() before. ArgumentError for shapes and parameters.
/// O(rows * vocab); scratch for each thread: 4 bytes per token, 16 with top-p.
inline void filter(Cpu& cpu, const Processing& p, View<const float, 2> logits, View<LogitRow, 1> out,
                   View<RowStatus, 1> status) {
  detail::require_filter(p, logits, out, status, "sampling::filter");
  Workspace::Scope scope(cpu.workspace());
  const index_t rows = logits.extent(0);
  const detail::FilterScratches scratch(cpu, p, logits.extent(1), cpu.parts(rows, 1));
  const auto numbers = detail::FilterNumbers::of(p);
  cpu.parallel_ranges(rows, 1, [&](index_t first, index_t last, index_t part) {
    for (index_t r = first; r < last; ++r) {
      status[r] = detail::filter_row(cpu.isa(), p, numbers, logits.data() + r * logits.stride(0), logits.extent(1),
                                     scratch.at(part), out[r]);
    }
  });
}

/// The probabilities of filtered rows: probabilities [rows, vocab], which may be the logits' memory. O(rows * vocab).
inline void materialise(Cpu& cpu, const LogitRows& rows, View<const RowStatus, 1> status,
                        View<float, 2> probabilities) {
  detail::require_materialise(rows, status, probabilities, "sampling::materialise");
  cpu.parallel_for(rows.logits.extent(0), [&](index_t r) {
    if (status[r] != RowStatus::ok) return;
    detail::probabilities_of_row(cpu.isa(), rows.rows[r], rows.logits.data() + r * rows.logits.stride(0),
                                 rows.logits.extent(1), probabilities.data() + r * probabilities.stride(0));
  });
}

/// The processed probabilities of each row of logits, penalties included: probabilities [rows, vocab], status [rows].
/// Each row sums up to 1 within 1e-5. Not in place. As filter() otherwise; 4 bytes more of scratch per token with
/// penalties.
inline void process(Cpu& cpu, const Processing& p, View<const float, 2> logits, const TokenCounts& seen,
                    View<float, 2> probabilities, View<RowStatus, 1> status) {
  detail::require_process(p, logits, seen, probabilities, status, "sampling::process");
  Workspace::Scope scope(cpu.workspace());
  const index_t rows = logits.extent(0);
  const index_t n = logits.extent(1);
  const index_t parts = cpu.parts(rows, 1);
  const detail::FilterScratches scratch(cpu, p, n, parts);
  float* const copies = p.penalises() ? cpu.workspace().take<float>(parts * n) : nullptr;
  const auto numbers = detail::FilterNumbers::of(p);
  cpu.parallel_ranges(rows, 1, [&](index_t first, index_t last, index_t part) {
    for (index_t r = first; r < last; ++r) {
      const float* x = logits.data() + r * logits.stride(0);
      status[r] = RowStatus::ok;
      if (copies) {
        float* const copy = copies + part * n;
        for (index_t i = 0; i < n; ++i) copy[i] = x[i];
        if (!detail::penalise_row(p, seen, r, copy, n)) status[r] = RowStatus::bad_row;
        x = copy;
      }
      LogitRow row;
      if (status[r] == RowStatus::ok) {
        status[r] = detail::filter_row(cpu.isa(), p, numbers, x, n, scratch.at(part), row);
      }
      if (status[r] != RowStatus::ok) continue;
      detail::probabilities_of_row(cpu.isa(), row, x, n, probabilities.data() + r * probabilities.stride(0));
    }
  });
}

}  // namespace decant::sampling

#endif
