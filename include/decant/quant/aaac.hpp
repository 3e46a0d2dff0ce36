// decant: Aaac, activation-aware adaptive codebooks (arXiv 2605.08692): 4-bit weights whose two tables of 16 values are
// fitted to the matrix; each selection group takes the table with the smaller importance-weighted error. No gradients
// and no Hessian. Mode `paper` is the paper's algorithm 1; where it is silent: linear quantiles, ties to the first
// table, groups of zeros take no part in the fit, and for fp16 scales the grid's scale, here the largest weight's.
// Mode `best_of` [ours], the default, minimises the error in the weights' own units, refits scales, and starts from
// several tables; it never errs more than IF4 chosen by importance does.
#ifndef DECANT_QUANT_AAAC_HPP
#define DECANT_QUANT_AAAC_HPP

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "codebook.hpp"
#include "detail/aaac_fit.hpp"
#include "rtn.hpp"

namespace decant::quant {

enum class AaacMode : std::uint8_t {
  paper,    ///< errors in units of each group's scale; scales stay
  best_of,  ///< errors in the weights' units; of several starts the best
};
constexpr const char* name(AaacMode m) { return m == AaacMode::paper ? "paper" : "best_of"; }

/// Whether mode best_of refits scales to their groups' codes.
enum class AaacRefit : std::uint8_t {
  no,
  yes,
  best_of,  ///< both, the better one counts
};
constexpr const char* name(AaacRefit r) {
  constexpr const char* names[] = {"no", "yes", "best_of"};
  return names[static_cast<int>(r)];
}

/// The tables that mode best_of starts from.
struct AaacStarts {
  bool paper = true;           ///< the paper's quantiles
  bool density_tail = true;    ///< fitted to the density of the weights, and to it times their magnitudes
  bool signed_extreme = true;  ///< fitted to the groups whose largest weight is negative, and to the others
  bool if4 = true;             ///< IF4's
  bool operator==(const AaacStarts&) const = default;
};

/// fp16: a scale per 128 weights (the paper's INT4). fp8_e4m3: one per 16 and one for the matrix (its NVFP4).
template <class Scale = fp16>
struct Aaac {
  using Format = Codebook2x16<Scale>;

  index_t group = Format{}.group;  ///< weights per scale
  index_t select = group;          ///< weights per choice of a table, a divisor of group
  AaacMode mode = AaacMode::best_of;
  /// Of a table; 0 is 16, and 15 for the paper's tables with fp8_e4m3 scales. With 15, code 15 is not used.
  int entries = 0;
  // Mode paper: outer rounds of a choice for each group and inner steps of the tables.
  int outer = 3;
  int inner = 10;
  // Mode best_of.
  int passes = 30;
  AaacRefit refit = AaacRefit::best_of;
  AaacStarts starts{};
  index_t sample = index_t{1} << 18;  ///< about how many weights the starts are compared on, in whole rows
  index_t most = index_t{1} << 22;    ///< and the best one's tables then fitted to

  bool operator==(const Aaac&) const = default;
  Format format() const { return {group, select}; }
  int table_entries() const {
    return entries != 0 ? entries : mode == AaacMode::paper && Format::two_scales ? 15 : 16;
  }
};

template <class Scale>
void validate(const Aaac<Scale>& q, index_t cols) {
  constexpr const char* where = "quant::Aaac";
  validate(q.format(), cols);
  require(q.mode <= AaacMode::best_of, where, "mode", "a mode", static_cast<int>(q.mode));
  require(q.refit <= AaacRefit::best_of, where, "refit", "a way", static_cast<int>(q.refit));
  require(q.outer >= 0 && q.inner >= 0, where, "outer, inner", "at least 0",
          [&] { return std::to_string(q.outer) + ", " + std::to_string(q.inner); });
  require(q.passes >= 0, where, "passes", "at least 0", q.passes);
  require(q.sample >= 1 && q.most >= q.sample, where, "sample, most", "1 <= sample <= most",
          [&] { return std::to_string(q.sample) + ", " + std::to_string(q.most); });
  if (q.mode == AaacMode::paper) {
    require(q.entries == 0 || (q.entries >= 2 && q.entries <= 16), where, "entries", "0 or 2 to 16", q.entries);
  } else {
    require(q.entries == 0 || q.entries == 15 || q.entries == 16, where, "entries", "0, 15 or 16", q.entries);
    require(q.starts != AaacStarts{false, false, false, false}, where, "starts", "at least one", "none");
  }
}

/// Importance, where it is known, is used.
template <class Scale>
Needs needs(const Aaac<Scale>&) {
  return {};
}

namespace detail {

/// The calibration's importance in padded order, as it is, or 1.
inline const float* aaac_importance(Cpu& cpu, const AaacShape& s, const Calibration& c) {
  float* const row = cpu.workspace().take<float>(s.cols);
  float* const padded = cpu.workspace().take<float>(s.slots());
  for (index_t k = 0; k < s.cols; ++k) {
    row[k] = c.importance.empty() ? 1.0f : c.importance[k];
    require(std::isfinite(row[k]) && row[k] >= 0, "quant::Aaac", "calibration.importance", "finite numbers, at least 0",
            row[k]);
  }
  pad_row(s, row, padded);
  return padded;
}

/// One column's importance over the mean, from the sum over all; at least `least`.
DECANT_HD inline float relative_importance(float importance, double sum, index_t cols, float least) {
  const double mean = sum / static_cast<double>(cols);
  const float each = static_cast<float>(mean > 0 ? static_cast<double>(importance) / mean : 1.0);
  return each > least ? each : least;
}

/// The same over its mean, at least `least` of it: what tables are fitted with.
inline const float* aaac_relative_importance(Cpu& cpu, const AaacShape& s, const Calibration& c, float least) {
  float* const row = cpu.workspace().take<float>(s.cols);
  float* const padded = cpu.workspace().take<float>(s.slots());
  double sums[32] = {};
  for (index_t k = 0; k < s.cols; ++k)
    sums[k % 32] += c.importance.empty() ? 1.0 : static_cast<double>(c.importance[k]);
  for (int l = 1; l < 32; ++l) sums[0] += sums[l];
  for (index_t k = 0; k < s.cols; ++k)
    row[k] = relative_importance(c.importance.empty() ? 1.0f : c.importance[k], sums[0], s.cols, least);
  pad_row(s, row, padded);
  return padded;
}

template <class Scale>
bool aaac_start(Cpu& cpu, const Aaac<Scale>& q, const AaacData<Codebook2x16<Scale>>& data, int which,
                AaacTables& tables) {
  const int entries = q.table_entries();
  switch (which) {
    case 0:
      return q.starts.paper && paper_start(cpu, data, entries, tables);
    case 1:
      return q.starts.density_tail && density_tail_start(cpu, data, q.passes, entries, tables);
    case 2:
      return q.starts.signed_extreme && signed_extreme_start(cpu, data, q.passes, entries, tables);
    default:
      if4_start(entries, tables);
      return q.starts.if4;
  }
}

/// The best of the starts, with and without refitted scales, as found on some of the rows; then fitted to more of them.
/// importance: relative, for the tables; raw, for the error that counts. if4 when there is nothing to fit to.
template <class Scale>
typename Codebook2x16<Scale>::Layer aaac_best_of(Cpu& cpu, const Aaac<Scale>& q,
                                                 const typename Codebook2x16<Scale>::Layer& if4,
                                                 const View<const float, 2>& w, const float* importance,
                                                 const float* raw) {
  using F = Codebook2x16<Scale>;
  const F format = q.format();
  const int entries = q.table_entries();
  const AaacShape shape = AaacShape::of(format, w.extent(1));
  const View<const float, 2> sample = some_rows(shape, w, q.sample);
  const View<const float, 2> more = some_rows(shape, w, q.most);
  const Packed<F, std::byte>* const nowhere = nullptr;
  typename F::Layer best = if4;
  AaacTables tables;
  bool any = false;
  {
    Workspace::Scope scope(cpu.workspace());
    const auto data = AaacData<F>::of(cpu, format, if4, sample, importance, true);
    double least = no_error_yet;
    for (int which = 0; which < 4; ++which) {
      AaacTables start;
      if (!aaac_start(cpu, q, data, which, start)) continue;
      for (const bool refit : {false, true}) {
        if (q.refit != AaacRefit::best_of && (q.refit == AaacRefit::yes) != refit) continue;
        AaacTables fitted = start;
        descend(cpu, data, q.passes, refit, entries, fitted);
        if (refit) data.begin(cpu);
        const typename F::Layer layer = F::of_tables(fitted.table, if4.scale, refit ? aaac_refits : 0);
        const double error = pack_all(cpu, format, layer, sample, raw, nowhere);
        if (!(error < least)) continue;
        least = error;
        tables = fitted;
        best = layer;
        any = true;
      }
    }
  }
  if (any && more.extent(0) > sample.extent(0)) {
    Workspace::Scope scope(cpu.workspace());
    const auto data = AaacData<F>::of(cpu, format, if4, more, importance, true);
    descend(cpu, data, q.passes, best.refits > 0, entries, tables);
    best = F::of_tables(tables.table, if4.scale, best.refits);
  }
  return pack_all(cpu, format, best, w, raw, nowhere) <= pack_all(cpu, format, if4, w, raw, nowhere) ? best : if4;
}

}  // namespace detail

/// The tables for w [rows, cols], rows contiguous and finite; calibration.importance is used if there. Mode paper looks
/// at all weights outer * (1 + inner) times and needs as much workspace as w; mode best_of looks at `sample` of them
/// some 16 * passes times, at `most` passes times, and at all twice.
template <class Scale>
typename Codebook2x16<Scale>::Layer fit_layer(Cpu& cpu, const Aaac<Scale>& q, View<const float, 2> w,
                                              const Calibration& c) {
  using F = Codebook2x16<Scale>;
  const F format = q.format();
  validate(q, w.extent(1));
  require_calibration(c, {}, w.extent(1), "quant::Aaac");
  require(w.stride(1) == 1 || w.extent(1) <= 1, "quant::Aaac", "w", "contiguous rows", w.stride(1));
  typename F::Layer layer = format.layer(w);
  if (w.empty()) return layer;
  Workspace::Scope scope(cpu.workspace());
  const detail::AaacShape shape = detail::AaacShape::of(format, w.extent(1));
  const float* const raw = detail::aaac_importance(cpu, shape, c);
  detail::AaacTables tables;
  if (q.mode == AaacMode::paper) {
    const float* const importance = detail::aaac_relative_importance(cpu, shape, c, 0);
    const auto data = detail::AaacData<F>::of(cpu, format, layer, w, importance, false);
    return detail::fit_paper(cpu, data, q.outer, q.inner, q.table_entries(), tables)
               ? F::of_tables(tables.table, layer.scale)
               : layer;
  }
  detail::if4_start(q.table_entries(), tables);
  layer = F::of_tables(tables.table, layer.scale);
  return detail::aaac_best_of(cpu, q, layer, w, detail::aaac_relative_importance(cpu, shape, c, 1e-6f), raw);
}

/// Rtn of the fitted tables, the same bytes, only faster.
template <class Scale>
void quantize(Cpu& cpu, const Aaac<Scale>& q, View<const float, 2> w, const Calibration& c,
              const Packed<Codebook2x16<Scale>, std::byte>& out) {
  detail::require_weights(w, out);
  validate(q, out.cols());
  require_calibration(c, {}, out.cols(), "quant::quantize");
  detail::require_format(q, out);
  const auto layer = fit_layer(cpu, q, w, c);
  detail::begin_packed(out, layer);
  if (w.empty()) return;
  Workspace::Scope scope(cpu.workspace());
  const float* const importance =
      detail::aaac_importance(cpu, detail::AaacShape::of(out.format(), out.cols()), c);
  detail::pack_all(cpu, out.format(), layer, w, importance, &out);
}

static_assert(Grid<Aaac<>, Cpu> && Quantizer<Aaac<>, Cpu> && Grid<Aaac<fp8_e4m3>, Cpu>);

}  // namespace decant::quant

#endif
