// decant: a tile of a pass over a row (residual.hpp), portable, in the order of core/row_sum.hpp, which every context
// follows.
#ifndef DECANT_SPECULATIVE_DETAIL_RESIDUAL_TILE_HPP
#define DECANT_SPECULATIVE_DETAIL_RESIDUAL_TILE_HPP

#include <cstdint>

#include "../../core/row_sum.hpp"
#include "residual.hpp"

namespace decant::speculative::detail {

inline constexpr auto tile_size = static_cast<std::int32_t>(row_tile);
inline constexpr auto tile_lanes = static_cast<std::int32_t>(row_lanes);

struct TileSums {
  float left;
  float over;
  float drawn;
};

/// What a pass asks of one tile: p, q at its first token, which is `first`; tokens below `vocab`; of the listed tokens
/// (and `skip`, which is only left out of `drawn`) those from `at` on can be in it.
struct TilePass {
  PassScalars scalars;
  const float* p;
  const float* q;
  std::int32_t first;
  std::int32_t vocab;
  const Exception<double>* exceptions;
  std::int32_t count;
  std::int32_t at;
  std::int32_t skip;

  /// The next token from `token` on that is listed or skipped; vocab: none.
  std::int32_t next_special(std::int32_t token, std::int32_t from) const {
    while (from < count && exceptions[from].token < token) ++from;
    const auto listed = from < count ? static_cast<std::int32_t>(exceptions[from].token) : vocab;
    return skip >= token && skip < listed ? skip : listed;
  }
};

/// What token first + i adds, listed ones included; `at` is moved past the tokens before it.
DECANT_NOINLINE DECANT_UNFUSED inline TileSums special_terms(const TilePass& t, std::int32_t i, std::int32_t& at) {
  const std::int32_t token = t.first + i;
  while (at < t.count && t.exceptions[at].token < token) ++at;
  if (at < t.count && t.exceptions[at].token == token) {
    const Exception<double>& e = t.exceptions[at];
    return {draw_term(static_cast<float>(e.scale), static_cast<float>(e.cut), 0.0f, t.p[i], t.q[i]), 0.0f, 0.0f};
  }
  const PassTerms terms = pass_terms(t.scalars, t.p[i], t.q[i]);
  return {terms.left, terms.over, token == t.skip ? 0.0f : t.q[i]};
}

DECANT_UNFUSED inline TileSums pass_tile_portable(const TilePass& t) {
  float left[tile_lanes] = {}, over[tile_lanes] = {}, drawn[tile_lanes] = {};
  const std::int32_t n = t.vocab - t.first < tile_size ? t.vocab - t.first : tile_size;
  std::int32_t at = t.at;
  for (std::int32_t group = 0; group < n; group += tile_lanes) {
    const std::int32_t end = n - group < tile_lanes ? n - group : tile_lanes;
    if (t.next_special(t.first + group, at) >= t.first + group + end) {
      for (std::int32_t l = 0; l < end; ++l) {
        const PassTerms terms = pass_terms(t.scalars, t.p[group + l], t.q[group + l]);
        left[l] += terms.left;
        over[l] += terms.over;
        drawn[l] += t.q[group + l];
      }
    } else {
      for (std::int32_t l = 0; l < end; ++l) {
        const TileSums terms = special_terms(t, group + l, at);
        left[l] += terms.left;
        over[l] += terms.over;
        drawn[l] += terms.drawn;
      }
    }
  }
  using ::decant::detail::fold_lanes;
  return {fold_lanes(left), fold_lanes(over), fold_lanes(drawn)};
}

/// A, as a draw adds it up, of tokens from `first` on; q may be null where every cut is 0.
struct DrawTerm {
  float scale;
  float cut;
  float floor;
  const float* p;  // of token `first`
  const float* q;
  index_t first;
  const Exception<double>* exceptions;
  std::int32_t count;

  float operator()(index_t token) const {
    const float p_token = p[token - first];
    const float q_token = q ? q[token - first] : 0.0f;
    for (std::int32_t i = 0; i < count; ++i) {
      const Exception<double>& e = exceptions[i];
      if (e.token != token) continue;
      return draw_term(static_cast<float>(e.scale), static_cast<float>(e.cut), 0.0f, p_token, q_token);
    }
    return draw_term(scale, cut, floor, p_token, q_token);
  }

  /// Whether one of the 64 tokens from `token` on is listed.
  bool lists(index_t token) const {
    for (std::int32_t i = 0; i < count; ++i) {
      if (exceptions[i].token >= token && exceptions[i].token < token + row_lanes) return true;
    }
    return false;
  }

  /// A of those 64 tokens.
  DECANT_INLINE void block(index_t token, float* w) const {
    if (lists(token)) {
      listed_block(token, w);
      return;
    }
    const float* const ps = p + (token - first);
    if (q) {
      const float* const qs = q + (token - first);
      for (index_t l = 0; l < row_lanes; ++l) w[l] = draw_term(scale, cut, floor, ps[l], qs[l]);
    } else {
      for (index_t l = 0; l < row_lanes; ++l) w[l] = draw_term(scale, cut, floor, ps[l], 0.0f);
    }
  }
  DECANT_NOINLINE DECANT_UNFUSED void listed_block(index_t token, float* w) const {
    for (index_t l = 0; l < row_lanes; ++l) w[l] = (*this)(token + l);
  }
};

}  // namespace decant::speculative::detail

#endif
