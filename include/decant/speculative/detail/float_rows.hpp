// decant: the rows of a walk (walk.hpp) on the CPU: target probabilities in fp32, in memory or from logits a tile at a
// time; passes over tiles on the instruction set of the context. A pass keeps the tiles' totals, so that the draw that
// follows it reads one tile more.
#ifndef DECANT_SPECULATIVE_DETAIL_FLOAT_ROWS_HPP
#define DECANT_SPECULATIVE_DETAIL_FLOAT_ROWS_HPP

#include <cstdint>

#include "../../core/simd.hpp"
#include "../../core/view.hpp"
#include "../../sampling/draw.hpp"
#include "../../sampling/process.hpp"
#include "../keys.hpp"
#include "../tree.hpp"
#include "longest_path.hpp"
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

DECANT_UNFUSED inline float draw_tile_portable(const DrawTerm& t, index_t last) {
  return ::decant::detail::tile_total(t, t.first, last);
}

/// The total of tokens from t.first to `last`, at most a tile.
inline float draw_tile(Isa isa, const DrawTerm& t, index_t last) {
#if DECANT_X86
  if (last - t.first == row_tile && t.floor == 0) {
    if (isa == Isa::avx512) return t.cut == 0 ? draw_tile_avx512<false>(t) : draw_tile_avx512<true>(t);
    if (isa == Isa::avx2) return t.cut == 0 ? draw_tile_avx2<false>(t) : draw_tile_avx2<true>(t);
  }
#else
  (void)isa;
#endif
  return draw_tile_portable(t, last);
}

/// Target rows of probabilities; the tree's first one at `rows`.
struct ProbabilitySource {
  const float* rows;
  index_t stride;

  const float* of(std::int32_t node) const { return rows + node * stride; }
  float at(std::int32_t node, index_t token) const { return of(node)[token]; }
  /// The probabilities of tokens [first, last), at most a tile, until the next call.
  const float* tile(std::int32_t node, index_t first, index_t) const { return of(node) + first; }
};

/// The same law from logits: a tile at a time goes through `buffer` [1024].
struct LogitSource {
  Isa isa;
  const float* logits;
  index_t stride;
  const sampling::LogitRow* rows;
  float* buffer;

  const float* of(std::int32_t node) const { return logits + node * stride; }
  float at(std::int32_t node, index_t token) const {
    return sampling::probability(rows[node], static_cast<std::int32_t>(token), of(node)[token]);
  }
  const float* tile(std::int32_t node, index_t first, index_t last) const {
    const sampling::LogitRow& row = rows[node];
    if (row.top >= 0) {
      for (index_t i = first; i < last; ++i) buffer[i - first] = i == row.top ? 1.0f : 0.0f;
    } else {
      sampling::detail::probabilities_of_row(isa, row, of(node) + first, last - first, buffer);
    }
    return buffer;
  }
};

/// One tree's. totals: [row_tiles(vocab)].
template <class Source>
class FloatRows {
 public:
  FloatRows(Isa isa, const Source& p, View<const float, 2> q, std::int32_t vocab, float* totals)
      : isa_(isa), p_(p), q_(q), vocab_(vocab), totals_(totals) {}

  /// Reads what a walk may look up of a tree's tokens, all at once: by the walk each is waited for. (A prefetch comes to
  /// nothing where it misses the TLB, as rows do.)
  void touch(const TreeView& t) const {
    float sum = 0;
    for (std::int32_t i = 1; i < t.nodes; ++i) {
      const std::int32_t parent = t.parent[i];
      sum += p_.of(parent)[t.token[i]];
      if (sampled_child(t.law[parent], i - t.first_child[parent])) sum += q_row(t.q_row[parent])[t.token[i]];
    }
    asm volatile("" : : "m"(sum));
  }

  DECANT_UNFUSED double target(std::int32_t node, std::int32_t token) { return checked(p_.at(node, token)); }
  double draft(std::int32_t row, std::int32_t token) { return checked(q_row(row)[token]); }
  bool bad() const { return bad_; }

  PassSums<double> pass(const Residual<double>& residual, double step, std::int32_t skip) {
    const float* const q = q_row(residual.q_row);
    TilePass t{PassScalars::of(residual, step), nullptr, nullptr, 0, vocab_, residual.exceptions, residual.count, 0,
               skip};
    PassSums<double> all;
    for (index_t tile = 0; tile < row_tiles(vocab_); ++tile) {
      t.first = static_cast<std::int32_t>(tile * row_tile);
      t.p = p_.tile(residual.node, t.first, end(tile));
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
    last_ = LastPass::of(residual, t.scalars);
    return all;
  }

  /// Sum of min(q, p / rho).
  double overlap(std::int32_t node, std::int32_t row, double rho) {
    const auto inverse = static_cast<float>(1 / rho);
    return sum_of(node, [&](index_t y, float p) {
      const float scaled = ::decant::detail::rounded_product(p, inverse);
      const float q = q_row(row)[y];
      return q < scaled ? q : scaled;
    });
  }

  /// In nats.
  double entropy(std::int32_t node) {
    return sum_of(node, [](index_t, float p) { return entropy_term(p); });
  }

  /// How many tokens are likelier, and with `ties` those as likely that come before.
  std::int32_t rank(std::int32_t node, std::int32_t token, bool ties) {
    const float own = p_.at(node, token);
    const double rank = sum_of(node, [&](index_t y, float p) { return rank_term(p, own, ties && y < token); });
    return bad_ ? 0 : static_cast<std::int32_t>(rank);
  }

  /// The first token whose cumulated A exceeds u times the sum of A; rounding aside, the last with mass; -1: none has.
  std::int32_t draw(const Residual<double>& residual, double u) {
    const bool ready = last_.serves(residual);
    last_.valid = false;
    double all = 0;
    for (index_t tile = 0; tile < row_tiles(vocab_); ++tile) {
      if (!ready || listed(residual, tile).count > 0) {
        totals_[tile] = draw_tile(isa_, term_of(residual, tile), end(tile));
      }
      all += static_cast<double>(totals_[tile]);
    }
    require_finite(all);
    if (bad_ || !(all > 0)) return -1;
    const RowPlace place = find_tile(totals_, row_tiles(vocab_), u * all);
    const DrawTerm term = term_of(residual, place.tile);
    return static_cast<std::int32_t>(find_in_tile(term, term.first, end(place.tile), place.rest));
  }

  /// The token that wins the race p / E; -1: none has mass.
  std::int32_t race(std::int32_t node, const DrawKey& key) {
    const auto term = [&](index_t y) { return weight_of(p_.at(node, y)); };
    std::int32_t token = -1;
    if (sampling::detail::race_row(term, vocab_, key, token) == sampling::RowStatus::bad_row) bad_ = true;
    return token;
  }

 private:
  index_t end(index_t tile) const { return (tile + 1) * row_tile < vocab_ ? (tile + 1) * row_tile : vocab_; }

  /// The exceptions in a tile.
  struct Listed {
    const Exception<double>* exceptions;
    std::int32_t count;
  };
  Listed listed(const Residual<double>& residual, index_t tile) const {
    Listed l{residual.exceptions, 0};
    const Exception<double>* const last = residual.exceptions + residual.count;
    while (l.exceptions < last && l.exceptions->token < tile * row_tile) ++l.exceptions;
    while (l.exceptions + l.count < last && l.exceptions[l.count].token < end(tile)) ++l.count;
    return l;
  }
  DrawTerm term_of(const Residual<double>& residual, index_t tile) const {
    const index_t first = tile * row_tile;
    const auto cut = static_cast<float>(residual.cut);
    const Listed l = listed(residual, tile);
    // Without a cut listed tokens have none either.
    return {static_cast<float>(residual.scale), cut, static_cast<float>(residual.floor),
            p_.tile(residual.node, first, end(tile)), cut == 0 ? nullptr : q_row(residual.q_row) + first, first,
            l.exceptions, l.count};
  }

  /// The sum of term(token, p) over a row.
  template <class Term>
  DECANT_UNFUSED double sum_of(std::int32_t node, const Term& term) {
    last_.valid = false;
    double all = 0;
    for (index_t tile = 0; tile < row_tiles(vocab_); ++tile) {
      const index_t first = tile * row_tile;
      const float* const p = p_.tile(node, first, end(tile));
      all += static_cast<double>(
          ::decant::detail::tile_total([&](index_t y) { return term(y, p[y - first]); }, first, end(tile)));
    }
    require_finite(all);
    return all;
  }

  const float* q_row(std::int32_t row) const { return q_.data() + row * q_.stride(0); }

  double checked(float x) {
    if (!(x >= 0 && x < __builtin_huge_valf())) bad_ = true;
    return static_cast<double>(x);
  }
  void require_finite(double sum) {
    if (!(sum - sum == 0)) bad_ = true;
  }

  Isa isa_;
  Source p_;
  View<const float, 2> q_;
  std::int32_t vocab_;
  float* totals_;
  LastPass last_{};
  bool bad_ = false;
};

}  // namespace decant::speculative::detail

#endif
