// decant: AAAC's fit: tables from quantiles and other starts, and their descent. See aaac.hpp.
#ifndef DECANT_QUANT_DETAIL_AAAC_FIT_HPP
#define DECANT_QUANT_DETAIL_AAAC_FIT_HPP

#include <limits>

#include "aaac_data.hpp"

namespace decant::quant::detail {

DECANT_HD inline void set_table(AaacTables& tables, int t, const float* values, int entries) {
  float value = 0;
  for (int c = 0; c < 16; ++c) {
    if (c < entries) value = values[c];
    tables.table[t][c] = value;  // after the last entry: that one
  }
  set_limits(tables.table[t], tables.limit[t]);
}

/// Each entry to its cell's mean; one with nothing in its cell stays. Table `t` of the two.
DECANT_HD inline void move_table(AaacTables& tables, int t, const double* sums, int entries) {
  float values[16];
  for (int c = 0; c < entries; ++c) {
    const double* const sum = sums + (t * 16 + c) * 2;
    float value = sum[1] > 0 ? static_cast<float>(sum[0] / sum[1]) : tables.table[t][c];
    int at = c;  // cells are ordered, and so are their means but for rounding
    for (; at > 0 && values[at - 1] > value; --at) values[at] = values[at - 1];
    values[at] = value;
  }
  set_table(tables, t, values, entries);
}

/// The c-th of `entries` equal steps from first to last.
DECANT_HD inline double share_of(double first, double last, int c, int entries) {
  return first + rounded_product(last - first, c) / (entries - 1);
}

/// The quantiles first ... last in `entries` equal steps as table t; false when there are no weights to take them of.
template <class F>
bool quantile_table(Cpu& cpu, const AaacData<F>& data, double least, double first, double last, int entries,
                    AaacTables& tables, int t) {
  double share[16];
  float values[16];
  for (int c = 0; c < entries; ++c) share[c] = share_of(first, last, c, entries);
  if (!quantiles(cpu, data, least, share, entries, values)) return false;
  set_table(tables, t, values, entries);
  return true;
}

/// The paper's start: quantiles from 0 to 1, and from half a step to 1.
template <class F>
bool paper_start(Cpu& cpu, const AaacData<F>& data, int entries, AaacTables& tables) {
  return quantile_table(cpu, data, 0, 0, 1, entries, tables, 0) &&
         quantile_table(cpu, data, 0, 0.5 / (entries - 1), 1, entries, tables, 1);
}

/// IF4's tables; the entry that 15 entries leave out is a second zero and the half step of the integers.
DECANT_HD inline void if4_start(int entries, AaacTables& tables) {
  const auto layer = Codebook2x16<fp16>::if4(1);
  for (int t = 0; t < 2; ++t) {
    float values[16];
    for (int c = 0; c < entries; ++c) values[c] = layer.table[t][entries == 16 || c < 8 ? c : c + 1];
    set_table(tables, t, values, entries);
  }
}

/// Passes in which each selection group keeps its table.
template <class F>
void settle(Cpu& cpu, const AaacData<F>& data, int passes, AaacTail tail, int entries, AaacTables& tables) {
  double sums[64];
  for (int pass = 0; pass < passes; ++pass) {
    sweep(cpu, data, tables, {.accumulate = true, .tail = tail}, sums);
    for (int t = 0; t < 2; ++t) move_table(tables, t, sums, entries);
  }
}

template <class F, class Table>
void choose_by(Cpu& cpu, const AaacData<F>& data, const Table& table) {
  const AaacShape& s = data.shape;
  cpu.parallel_ranges(data.rows, 1, [&](index_t first, index_t last, index_t) {
    for (index_t r = first; r < last; ++r) {
      const AaacState row = data.state.row(s, r);
      for (index_t i = 0; i < s.selects; ++i) row.chosen[i] = table(row.u + i * s.pad);
    }
  });
}

/// One table for the density of the weights, one for their tail.
template <class F>
bool density_tail_start(Cpu& cpu, const AaacData<F>& data, int passes, int entries, AaacTables& tables) {
  AaacTables tail;
  if (!quantile_table(cpu, data, 0, 0.001, 0.999, entries, tables, 0)) return false;
  set_table(tables, 1, tables.table[0], 16);
  tail = tables;
  choose_by(cpu, data, [](const float*) { return std::uint8_t{0}; });
  settle(cpu, data, passes, AaacTail::plain, entries, tables);
  choose_by(cpu, data, [](const float*) { return std::uint8_t{1}; });
  settle(cpu, data, passes, AaacTail::magnitude, entries, tail);
  set_table(tables, 1, tail.table[1], 16);
  return true;
}

/// One table for the selection groups whose largest weight is negative, one for the others.
template <class F>
bool signed_extreme_start(Cpu& cpu, const AaacData<F>& data, int passes, int entries, AaacTables& tables) {
  if (!quantile_table(cpu, data, 0, 0.001, 0.999, entries, tables, 0)) return false;
  set_table(tables, 1, tables.table[0], 16);
  choose_by(cpu, data, [pad = data.shape.pad](const float* u) {
    float least = 0;
    float most = 0;
    for (index_t k = 0; k < pad; ++k) {
      least = u[k] < least ? u[k] : least;
      most = u[k] > most ? u[k] : most;
    }
    return static_cast<std::uint8_t>(-least > most ? 0 : 1);
  });
  settle(cpu, data, passes, AaacTail::plain, entries, tables);
  return true;
}

/// Takes the quantiles of the tenth of the selection groups with the largest errors as table t.
template <class F>
void seed_of_worst(Cpu& cpu, const AaacData<F>& data, int entries, AaacTables& tables, int t) {
  const AaacShape& s = data.shape;
  const index_t count = data.rows * s.selects;
  const index_t rank = count - 1 - count / 10;
  float least = 0;
  order_statistics(
      cpu, data.rows,
      [&](index_t first, index_t last, auto&& f) {
        for (index_t r = first; r < last; ++r) {
          const AaacState row = data.state.row(s, r);
          for (index_t i = 0; i < s.selects; ++i) f(row.error[i] * row.square[i]);
        }
      },
      &rank, 1, &least);
  if (least > 0) quantile_table(cpu, data, static_cast<double>(least), 0, 1, entries, tables, t);
}

/// How often packing may fit a group's scale.
inline constexpr int aaac_refits = 4;

/// The error of no tables.
inline constexpr double no_error_yet = std::numeric_limits<double>::infinity();

/// Where a descent is.
struct AaacDescent {
  AaacTables best;
  double least = no_error_yet;
  double before = no_error_yet;
  bool seeded[2] = {};
  bool done = false;

  /// After pass `pass` with this error and these sums: moves the tables. The table that nothing chose, to be seeded, or
  /// -1; each once.
  DECANT_HD int after(int pass, bool last, double error, const double* sums, int entries, AaacTables& tables) {
    if (error < least) {
      least = error;
      best = tables;
    }
    done = last || error == 0;
    if (done) return -1;
    int seed = -1;
    for (int t = 0; t < 2; ++t) {
      double weight = 0;
      for (int c = 0; c < 16; ++c) weight += sums[(t * 16 + c) * 2 + 1];
      if (weight > 0) {
        move_table(tables, t, sums, entries);
      } else if (!seeded[t]) {
        seeded[t] = true;
        seed = t;
      }
    }
    done = seed < 0 && pass > 0 && !(before - error > 1e-4 * before);
    before = error;
    return seed;
  }
};

/// Passes of choosing tables, refitting scales and moving entries until the error no longer falls by 1e-4 of itself.
/// Leaves the best pass's tables; returns its error. trace, if there, gets each pass's error, at most passes + 1.
template <class F>
double descend(Cpu& cpu, const AaacData<F>& data, int passes, bool refit, int entries, AaacTables& tables,
               double* trace = nullptr) {
  double sums[64] = {};
  AaacDescent descent;
  for (int pass = 0; !descent.done; ++pass) {
    const bool last = pass == passes;
    const double error =
        sweep(cpu, data, tables, {.choose = true, .refit = refit && !last, .accumulate = !last}, sums);
    if (trace) trace[pass] = error;
    const int seed = descent.after(pass, last, error, sums, entries, tables);
    if (seed >= 0) seed_of_worst(cpu, data, entries, tables, seed);
  }
  if (descent.least < no_error_yet) tables = descent.best;
  return descent.least;
}

/// Algorithm 1 of the paper.
template <class F>
bool fit_paper(Cpu& cpu, const AaacData<F>& data, int outer, int inner, int entries, AaacTables& tables) {
  if (!paper_start(cpu, data, entries, tables)) return false;
  double sums[64];
  for (int o = 0; o < outer; ++o) {
    sweep(cpu, data, tables, {.choose = true}, sums);
    settle(cpu, data, inner, AaacTail::plain, entries, tables);
  }
  return true;
}

/// Rows [first, last) of w as the format's fit() and nearest() have them, the same bits: their error in units of the
/// matrix's scale and, with `out`, their bytes. One part's scratch each of state, trial and codes [slots].
template <class F>
void pack_rows(Isa isa, const F& format, const typename F::Layer& layer, const AaacShape& s,
               const View<const float, 2>& w, const float* importance, index_t first, index_t last,
               const AaacState& state, const AaacState& trial, std::uint8_t* codes, double* error,
               const Packed<F, std::byte>* out) {
  AaacTables tables;
  for (int t = 0; t < 2; ++t) set_table(tables, t, layer.table[t], 16);
  for (index_t r = first; r < last; ++r) {
    const float* const from = &w(r, index_t{0});
    begin_row(format, layer, s, from, true, state);
    choose_tables(isa, tables, row_of(s, state, importance), state.chosen, state.error);
    for (int round = 0; round < layer.refits; ++round)
      if (!refit_row<F>(isa, layer, tables, s, from, importance, state, trial)) break;
    double sum = 0;
    for (index_t j = 0; j < s.scales; ++j) sum += error_of(s, state, j);
    error[r] = sum;
    if (!out) continue;
    std::byte* const row = out->row(r);
    for (index_t j = 0; j < s.scales; ++j) {
      typename F::Group group{state.scale[j], 0};
      for (index_t i = s.first_of(j); i < s.last_of(j); ++i) {
        // A group of zeros has the first table.
        if (!(state.scale[j] > 0)) state.chosen[i] = 0;
        group.second |= std::uint32_t{state.chosen[i]} << (i - s.first_of(j));
      }
      format.store_group(layer, group, row, s.cols, j);
    }
    encode(isa, tables, row_of(s, state, importance), state.chosen, codes);
    if (s.pad != s.select) {
      for (index_t i = 0; i < s.selects; ++i)
        for (index_t k = 0; k < s.count(i); ++k) codes[i * s.select + k] = codes[i * s.pad + k];
    }
    for (index_t k = 0; k + 1 < s.cols; k += 2)
      row[k / 2] = static_cast<std::byte>(static_cast<unsigned>(codes[k]) | static_cast<unsigned>(codes[k + 1]) << 4);
    if (s.cols % 2 != 0) row[s.cols / 2] = static_cast<std::byte>(codes[s.cols - 1]);
  }
}

/// pack_rows of all rows, in parallel. The whole matrix's error.
template <class F>
double pack_all(Cpu& cpu, const F& format, const typename F::Layer& layer, const View<const float, 2>& w,
                const float* importance, const Packed<F, std::byte>* out) {
  const AaacShape shape = AaacShape::of(format, w.extent(1));
  const index_t rows = w.extent(0);
  const index_t parts = cpu.parts(rows, 1);
  Workspace::Scope scope(cpu.workspace());
  const AaacState state = AaacState::take(cpu.workspace(), shape, parts);
  const AaacState trial = AaacState::take(cpu.workspace(), shape, parts);
  std::uint8_t* const codes = cpu.workspace().take<std::uint8_t>(parts * shape.slots());
  double* const error = cpu.workspace().take<double>(rows);
  const Isa isa = cpu.isa();
  cpu.parallel_ranges(rows, 1, [&](index_t first, index_t last, index_t part) {
    pack_rows(isa, format, layer, shape, w, importance, first, last, state.row(shape, part), trial.row(shape, part),
              codes + part * shape.slots(), error, out);
  });
  double sum = 0;
  for (index_t r = 0; r < rows; ++r) sum += error[r];
  return sum;
}

}  // namespace decant::quant::detail

#endif
