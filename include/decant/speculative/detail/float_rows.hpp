// decant: the rows of a walk (walk.hpp) on the CPU: fp32 rows of probabilities, passes over tiles on the instruction set
// of the context. A pass keeps the tiles' totals, so that the draw that follows it reads one tile more.
#ifndef DECANT_SPECULATIVE_DETAIL_FLOAT_ROWS_HPP
#define DECANT_SPECULATIVE_DETAIL_FLOAT_ROWS_HPP

#include <cstdint>

#include "../../core/simd.hpp"
#include "../../core/view.hpp"
#include "residual.hpp"
#include "residual_tile.hpp"
#include "residual_tile_avx2.hpp"
#include "residual_tile_avx512.hpp"

namespace decant::speculative::detail {

inline TileSums pass_tile(Isa isa, const TilePass& t) {
#if DECANT_X86
  if (t.vocab - t.first >= tile_size) {
    if (isa == Isa::avx512) return pass_tile_avx512(t);
    if (isa == Isa::avx2) return pass_tile_avx2(t);
  }
#else
  (void)isa;
#endif
  return pass_tile_portable(t);
}

DECANT_UNFUSED inline float draw_tile_portable(const DrawTerm& t, index_t first, index_t last) {
  return ::decant::detail::tile_total(t, first, last);
}

/// The total of [first, last), at most a tile.
inline float draw_tile(Isa isa, const DrawTerm& row, index_t first, index_t last) {
  const DrawTerm t = row.within(first, last);
#if DECANT_X86
  if (last - first == row_tile && t.floor == 0 && t.count == 0) {
    if (isa == Isa::avx512) return t.cut == 0 ? draw_tile_avx512<false>(t, first) : draw_tile_avx512<true>(t, first);
    if (isa == Isa::avx2) return t.cut == 0 ? draw_tile_avx2<false>(t, first) : draw_tile_avx2<true>(t, first);
  }
#else
  (void)isa;
#endif
  return draw_tile_portable(t, first, last);
}

/// One tree's. totals: [row_tiles(vocab)].
class FloatRows {
 public:
  FloatRows(Isa isa, View<const float, 2> p, index_t first, View<const float, 2> q, std::int32_t vocab, float* totals)
      : isa_(isa), p_(p.data() + first * p.stride(0)), p_stride_(p.stride(0)), q_(q), vocab_(vocab), totals_(totals) {}

  double target(std::int32_t node, std::int32_t token) { return checked(p_row(node)[token]); }
  double draft(std::int32_t row, std::int32_t token) { return checked(q_row(row)[token]); }
  bool bad() const { return bad_; }

  PassSums<double> pass(const Residual<double>& residual, double step, std::int32_t skip) {
    const index_t tiles = row_tiles(vocab_);
    const float* const p = p_row(residual.node);
    const float* const q = q_row(residual.q_row);
    TilePass t{PassScalars::of(residual, step), p, q, 0, vocab_, residual.exceptions, residual.count, 0, skip};
    PassSums<double> all;
    for (index_t tile = 0; tile < tiles; ++tile) {
      t.first = static_cast<std::int32_t>(tile * row_tile);
      t.p = p + t.first;
      t.q = q + t.first;
      while (t.at < t.count && t.exceptions[t.at].token < t.first) ++t.at;
      const TileSums sums = pass_tile(isa_, t);
      totals_[tile] = sums.left;
      all.left += static_cast<double>(sums.left);
      all.over += static_cast<double>(sums.over);
      all.drawn += static_cast<double>(sums.drawn);
    }
    require_finite(all.left);
    require_finite(all.over);
    require_finite(all.drawn);
    last_ = {residual.node, residual.q_row, t.scalars.scale, t.scalars.cut, true};
    return all;
  }

  /// Sum of min(q, p / rho).
  double overlap(std::int32_t node, std::int32_t row, double rho) {
    const OverlapTerm term{p_row(node), q_row(row), static_cast<float>(1 / rho)};
    last_.valid = false;
    const double all = tile_totals(isa_, term, vocab_, totals_);
    require_finite(all);
    return all;
  }

  /// The first token whose cumulated A exceeds u times the sum of A; rounding aside, the last with mass; -1: none has.
  std::int32_t draw(const Residual<double>& residual, double u) {
    const auto cut = static_cast<float>(residual.cut);
    // Without a cut listed tokens have none either.
    const DrawTerm term{static_cast<float>(residual.scale), cut, static_cast<float>(residual.floor),
                        p_row(residual.node),               cut == 0 ? nullptr : q_row(residual.q_row),
                        residual.exceptions,                residual.count};
    const bool ready = last_.valid && term.floor == 0 && last_.node == residual.node &&
                       last_.q_row == residual.q_row && last_.scale == term.scale && last_.cut == cut;
    last_.valid = false;
    double all = 0;
    for (index_t tile = 0; tile < row_tiles(vocab_); ++tile) {
      const index_t first = tile * row_tile;
      const index_t last = first + row_tile < vocab_ ? first + row_tile : vocab_;
      if (!ready || term.within(first, last).count > 0) totals_[tile] = draw_tile(isa_, term, first, last);
      all += static_cast<double>(totals_[tile]);
    }
    require_finite(all);
    if (bad_ || !(all > 0)) return -1;
    return static_cast<std::int32_t>(draw_index(term, vocab_, totals_, all, u));
  }

 private:
  struct OverlapTerm {
    const float* p;
    const float* q;
    float inverse;
    DECANT_INLINE float operator()(index_t i) const {
      const float scaled = ::decant::detail::rounded_product(p[i], inverse);
      return q[i] < scaled ? q[i] : scaled;
    }
  };

  const float* p_row(std::int32_t node) const { return p_ + node * p_stride_; }
  const float* q_row(std::int32_t row) const { return q_.data() + row * q_.stride(0); }

  double checked(float x) {
    if (!(x >= 0 && x < __builtin_huge_valf())) bad_ = true;
    return static_cast<double>(x);
  }
  void require_finite(double sum) {
    if (!(sum - sum == 0)) bad_ = true;
  }

  /// Of the last pass, whose totals of `left` are still there.
  struct Pass {
    std::int32_t node = 0;
    std::int32_t q_row = 0;
    float scale = 0;
    float cut = 0;
    bool valid = false;
  };

  Isa isa_;
  const float* p_;
  index_t p_stride_;
  View<const float, 2> q_;
  std::int32_t vocab_;
  float* totals_;
  Pass last_{};
  bool bad_ = false;
};

}  // namespace decant::speculative::detail

#endif
