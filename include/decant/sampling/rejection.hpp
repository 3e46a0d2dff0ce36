// decant: sampling from probabilities under top-k, top-p and min-p by rejection with two pivots, without a threshold
// being found first (after the sorting-free kernel of FlashInfer, arXiv 2501.01005). A token is drawn from the
// probabilities above a lower bound and accepted if the filters keep it; else the bound rises to its probability, or to
// the middle between that and an upper bound where the filters do not keep even that. Every bound leaves all kept
// tokens in, so the law is that of processing.hpp, exactly. A few rounds as a rule, about 30 at worst.
#ifndef DECANT_SAMPLING_REJECTION_HPP
#define DECANT_SAMPLING_REJECTION_HPP

#include "detail/row_reject.hpp"
#include "draw.hpp"

namespace decant::sampling {

namespace detail {

inline void require_rejection(const Processing& p, const View<const float, 2>& probabilities, const DrawKeys& keys,
                              const Drawn& out) {
  constexpr const char* where = "sampling::draw_by_rejection";
  validate(p);
  require(!p.penalises() && p.temperature == 1, where, "p", "filters alone", "penalties or a temperature");
  require(p.order == Order::joint || p.top_p >= 1 || p.top_k <= 0, where, "p.order", "joint", name(p.order));
  require_draw(probabilities, keys, out, where, "probabilities");
}

inline RowStatus reject_row(Isa isa, const Processing& p, const float* w, index_t n, const DrawKey& key, Stream stream,
                            float* totals, std::int32_t& token) {
  const float largest = check_lanes(w, n);
  if (largest < 0) return RowStatus::bad_row;
  if (!(largest > 0)) return RowStatus::empty_support;
  const RejectLimits limits = reject_limits(p, n, p.top_p < 1 ? above(isa, w, n, 0.0f).mass : 0);
  RejectState state{min_p_floor(p.min_p, largest), largest};
  for (std::uint32_t round = 0;; ++round) {
    const AboveTerm term{w, state.low};
    const double sum = tile_totals(isa, term, n, totals);
    const index_t found = draw_index(term, n, totals, sum, key.uniform(round, stream));
    const float drawn = w[found];
    if (limits.hold(above(isa, w, n, drawn))) {
      token = static_cast<std::int32_t>(found);
      return RowStatus::ok;
    }
    const float middle = state.middle(drawn);
    state.narrow(drawn, middle, limits.hold(above(isa, w, n, middle)));
  }
}

}  // namespace detail

/// A token from each row of probabilities [rows, vocab], below 2, that sum up to about 1, under the filters of p, whose
/// temperature is 1, which does not penalise, and whose order is joint. bad_row and empty_support as draw(). Round i
/// takes number i of the stream. O(rows * vocab * rounds); scratch as draw().
inline void draw_by_rejection(Cpu& cpu, const Processing& p, View<const float, 2> probabilities, const DrawKeys& keys,
                              const Drawn& out, Stream stream = Stream::emit) {
  detail::require_rejection(p, probabilities, keys, out);
  Workspace::Scope scope(cpu.workspace());
  const index_t n = probabilities.extent(1);
  float* const totals = cpu.workspace().take<float>(cpu.parts(probabilities.extent(0), 1) * row_tiles(n));
  cpu.parallel_ranges(probabilities.extent(0), 1, [&](index_t first, index_t last, index_t part) {
    for (index_t r = first; r < last; ++r) {
      if (out.status[r] != RowStatus::ok) continue;
      const float* const row = probabilities.data() + r * probabilities.stride(0);
      out.status[r] = detail::reject_row(cpu.isa(), p, row, n, keys.at(r), stream,
                                         totals + part * row_tiles(n), out.tokens[r]);
    }
  });
}

}  // namespace decant::sampling

#endif
