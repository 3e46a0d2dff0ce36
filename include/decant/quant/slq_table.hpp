// decant: what SLQ knows of a model: groups of matrices that share a bit-width, what a bit-width costs them, and how
// much each group's width moves the metrics (Helcig, Kurtic, Alistarh, arXiv 2605.02404, section 3.3 and appendix A.2).
// The model itself is the caller's, behind a function of the groups' bit-widths. Host code.
#ifndef DECANT_QUANT_SLQ_TABLE_HPP
#define DECANT_QUANT_SLQ_TABLE_HPP

#include <cstdint>
#include <string>
#include <vector>

#include "../core/error.hpp"
#include "../core/view.hpp"
#include "int_group.hpp"

namespace decant::quant {

/// What a quantized model measures on the calibration text, against the original.
struct Fidelity {
  double ear = 1;
  double kl = 0;
  double standard_error = 0;  ///< of ear
};

/// The caller's model with a bit-width for each group: quantize (or look up) and measure. The same bits must measure
/// the same.
template <class F>
concept SlqEvaluate = requires(F& f, View<const int, 1> bits) {
  { f(bits) } -> std::convertible_to<Fidelity>;
};

/// Matrices that share a bit-width because one kernel reads them (q, k, v; gate, up): their rows together.
struct SlqGroup {
  index_t rows = 0;
  index_t cols = 0;
  bool operator==(const SlqGroup&) const = default;
  double parameters() const { return static_cast<double>(rows) * static_cast<double>(cols); }
};

/// What counts as the size of b-bit weights.
enum class SlqAccounting : std::uint8_t {
  stored,  ///< the bytes of Int<b>
  paper,   ///< b bits and, per group of scales, 16 for the scale and 4 for a zero point (table 5: b + 0.15625)
};

struct SlqStorage {
  index_t group = 128;  ///< as Int<b>'s
  IntGrid grid = IntGrid::zero_point;
  SlqAccounting accounting = SlqAccounting::stored;
  bool operator==(const SlqStorage&) const = default;
};

namespace detail {

template <int Bits>
index_t int_row_bytes(int bits, const SlqStorage& storage, index_t cols) {
  if constexpr (Bits > 8) {
    (void)storage;
    return 0;
  } else {
    if (bits != Bits) return int_row_bytes<Bits + 1>(bits, storage, cols);
    return Int<Bits>{.group = storage.group, .grid = storage.grid}.row_bytes(cols);
  }
}

inline void require_widths(const std::vector<int>& options, const char* where) {
  require(!options.empty(), where, "options", "bit-widths", "none");
  for (std::size_t i = 0; i < options.size(); ++i) {
    require(options[i] >= 2 && options[i] <= 8 && (i == 0 || options[i] > options[i - 1]), where, "options",
            "ascending bit-widths from 2 to 8", options[i]);
  }
}

}  // namespace detail

/// Bits that a group takes at a width of 2 to 8.
inline double stored_bits(const SlqGroup& g, int bits, const SlqStorage& storage) {
  require(bits >= 2 && bits <= 8, "quant::stored_bits", "bits", "2 to 8", bits);
  if (storage.accounting == SlqAccounting::stored)
    return 8.0 * static_cast<double>(g.rows * detail::int_row_bytes<2>(bits, storage, g.cols));
  const double extra = storage.grid == IntGrid::zero_point ? 20 : storage.grid == IntGrid::minimum ? 32 : 16;
  const index_t size = storage.group > 0 && storage.group < g.cols ? storage.group : g.cols;
  return g.parameters() * (bits + extra / static_cast<double>(size));
}

/// How much group m at options[o] adds to KL and to 1 - EAR: the phi of the paper, and the model at the widest width,
/// where they are counted from.
struct SlqTable {
  std::vector<int> options;  ///< ascending
  index_t groups = 0;
  std::vector<double> kl;    ///< [groups, options]
  std::vector<double> miss;  ///< [groups, options], of 1 - EAR
  Fidelity widest;           ///< measured, all groups at the last of the options
  index_t evaluations = 0;   ///< of the caller's model, to make this

  std::size_t at(index_t m, std::size_t o) const { return static_cast<std::size_t>(m) * options.size() + o; }
  /// The option of a bit-width, which must be one.
  std::size_t option(int bits) const {
    std::size_t o = 0;
    while (o < options.size() && options[o] != bits) ++o;
    require(o < options.size(), "quant::SlqTable", "bits", "one of the options", bits);
    return o;
  }
};

/// [ours] Makes what a group adds non-increasing in its width, from the widest down, by a running maximum: sampling
/// noise would otherwise make fewer bits look better. (A running minimum would wipe the table, whose last column is 0.)
inline void make_monotone(SlqTable& table) {
  for (std::vector<double>* values : {&table.kl, &table.miss}) {
    for (index_t m = 0; m < table.groups; ++m) {
      for (std::size_t o = table.options.size() - 1; o-- > 0;) {
        double& value = (*values)[table.at(m, o)];
        const double wider = (*values)[table.at(m, o + 1)];
        value = value > wider ? value : wider;
      }
    }
  }
}

/// The metrics that a table foretells for bits [groups]: the sums of what groups add, counted from what the widest
/// width measured (anchored [ours]: EAR of it is below 1), or from KL 0 and EAR 1 (equations 7 and 8). O(groups).
inline Fidelity predict(const SlqTable& table, View<const int, 1> bits, bool anchored = true) {
  require_equal(bits.extent(0), table.groups, "quant::predict", "bits");
  Fidelity f = anchored ? table.widest : Fidelity{};
  const std::size_t last = table.options.size() - 1;
  for (index_t m = 0; m < table.groups; ++m) {
    const std::size_t o = table.option(bits[m]);
    f.kl += table.kl[table.at(m, o)] - (anchored ? table.kl[table.at(m, last)] : 0);
    f.ear -= table.miss[table.at(m, o)] - (anchored ? table.miss[table.at(m, last)] : 0);
  }
  return f;
}

}  // namespace decant::quant

#endif
