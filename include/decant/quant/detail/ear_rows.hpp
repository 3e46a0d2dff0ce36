// decant: EAR of one position. `full`: two passes over tiles that stay in cache. The other supports list the tokens
// that count, likeliest first, and take their few probabilities in double.
#ifndef DECANT_QUANT_DETAIL_EAR_ROWS_HPP
#define DECANT_QUANT_DETAIL_EAR_ROWS_HPP

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "../../core/convert.hpp"
#include "../ear_types.hpp"
#include "ear_avx2.hpp"
#include "ear_avx512.hpp"
#include "ear_tile.hpp"

namespace decant::quant::detail {

/// One thread's. a, b [vocab]: exponentials; lists of at most as many tokens.
struct EarScratch {
  EarTile* tiles = nullptr;
  float* a = nullptr;
  float* b = nullptr;
  std::int32_t* list_p = nullptr;
  std::int32_t* list_q = nullptr;
};

/// A tile's elements as floats: themselves, or converted to `room`.
template <class T>
const float* as_floats(Isa isa, const T* from, index_t n, float* room) {
  if constexpr (std::is_same_v<T, float>) {
    return from;
  } else {
    convert(isa, from, n, room);
    return room;
  }
}

/// Types that the tiles of AVX2 and AVX-512 load themselves.
template <class T>
inline constexpr bool loads_itself = std::is_same_v<T, float> || std::is_same_v<T, bf16> || std::is_same_v<T, fp16>;

/// room_p, room_q: for a tile of floats.
template <bool Keep, class P, class Q>
EarTile ear_tile_of(Isa isa, const P* p, const Q* q, index_t n, float inverse, float* a, float* b, float* room_p,
                    float* room_q) {
#if DECANT_X86
  if (isa >= Isa::avx2) {
    if constexpr (!loads_itself<P>) {
      return ear_tile_of<Keep>(isa, as_floats(isa, p, n, room_p), q, n, inverse, a, b, room_p, room_q);
    } else if constexpr (!loads_itself<Q>) {
      return ear_tile_of<Keep>(isa, p, as_floats(isa, q, n, room_q), n, inverse, a, b, room_p, room_q);
    } else {
      return isa == Isa::avx512 ? ear_tile_avx512<Keep>(p, q, n, inverse, a, b)
                                : ear_tile_avx2<Keep>(p, q, n, inverse, a, b);
    }
  }
#endif
  return ear_tile_portable<Keep>(as_floats(isa, p, n, room_p), as_floats(isa, q, n, room_q), n, inverse, a, b);
}

inline double ear_distance(Isa isa, const float* a, const float* b, index_t n, float scale_p, float scale_q) {
#if DECANT_X86
  if (isa == Isa::avx512) return ear_distance_avx512(a, b, n, scale_p, scale_q);
  if (isa == Isa::avx2) return ear_distance_avx2(a, b, n, scale_p, scale_q);
#else
  (void)isa;
#endif
  return ear_distance_portable(a, b, n, scale_p, scale_q);
}

/// A row's largest logit, the sum of e^((logit - max) / temperature), and the first tile with the largest.
struct EarRow {
  float max;
  double sum;
  index_t tile;
};

inline EarRow ear_row(const EarTile* tiles, index_t count, float EarTile::*max, double EarTile::*sum, float inverse) {
  EarRow row{tiles[0].*max, 0, 0};
  for (index_t t = 1; t < count; ++t) {
    if (tiles[t].*max > row.max) {
      row.max = tiles[t].*max;
      row.tile = t;
    }
  }
  for (index_t t = 0; t < count; ++t) {
    const double part = tiles[t].*sum;
    row.sum += part == 0 ? part : part * std::exp(ear_exponent(tiles[t].*max, row.max, inverse));
  }
  return row;
}

/// Whether the row is a distribution: no NaN, no +inf, something above -inf.
inline bool usable(const EarRow& row) { return row.sum > 0 && row.sum < __builtin_huge_val(); }

/// The first element of the row's largest logit, and its margin over the next largest.
struct EarTop {
  index_t token;
  float second;
};

template <class T>
EarTop top_of(Isa isa, const T* logits, index_t vocab, const EarTile* tiles, index_t count, float EarTile::*max,
              const EarRow& row) {
  float room[ear_tile];
  const index_t begin = row.tile * ear_tile;
  const index_t n = vocab - begin < ear_tile ? vocab - begin : ear_tile;
  const float* const x = as_floats(isa, logits + begin, n, room);
  index_t at = 0;
  while (at + 1 < n && x[at] != row.max) ++at;
  float second = -__builtin_huge_valf();
  for (index_t i = 0; i < n; ++i) second = i != at && x[i] > second ? x[i] : second;
  for (index_t t = 0; t < count; ++t) second = t != row.tile && tiles[t].*max > second ? tiles[t].*max : second;
  return {begin + at, second};
}

/// Agreement and margin; ear and kl are the caller's.
template <class P, class Q>
EarPosition compare_tops(Isa isa, const P* p, const Q* q, index_t vocab, const EarTile* tiles, index_t count,
                         const EarRow& row_p, const EarRow& row_q, float inverse) {
  EarPosition result;
  result.state = EarState::counted;
  const EarTop top_p = top_of(isa, p, vocab, tiles, count, &EarTile::max_p, row_p);
  const EarTop top_q = top_of(isa, q, vocab, tiles, count, &EarTile::max_q, row_q);
  result.agrees = top_p.token == top_q.token;
  if (!result.agrees) {
    const double second = std::exp(ear_exponent(top_p.second, row_p.max, inverse));
    result.margin = static_cast<float>((1 - second) / row_p.sum);
  }
  return result;
}

inline EarPosition excluded_position() {
  EarPosition result;
  result.state = EarState::excluded;
  return result;
}

/// One pass over both rows: scratch.tiles, and with Keep the exponentials in scratch.a and scratch.b. Returns how many
/// tiles there are.
template <bool Keep, class P, class Q>
index_t ear_tiles(Isa isa, const P* p, const Q* q, index_t vocab, float inverse, const EarScratch& scratch) {
  const index_t count = (vocab + ear_tile - 1) / ear_tile;
  float room_p[ear_tile];
  float room_q[ear_tile];
  for (index_t t = 0; t < count; ++t) {
    const index_t begin = t * ear_tile;
    const index_t n = vocab - begin < ear_tile ? vocab - begin : ear_tile;
    scratch.tiles[t] = ear_tile_of<Keep>(isa, p + begin, q + begin, n, inverse, Keep ? scratch.a + begin : nullptr,
                                         Keep ? scratch.b + begin : nullptr, room_p, room_q);
  }
  return count;
}

template <class P, class Q>
EarPosition full_position(Isa isa, const P* p, const Q* q, index_t vocab, const EarOptions& options,
                          const EarScratch& scratch) {
  const float inverse = 1 / options.temperature;
  const index_t count = ear_tiles<true>(isa, p, q, vocab, inverse, scratch);
  const EarRow row_p = ear_row(scratch.tiles, count, &EarTile::max_p, &EarTile::sum_p, inverse);
  const EarRow row_q = ear_row(scratch.tiles, count, &EarTile::max_q, &EarTile::sum_q, inverse);
  if (!usable(row_p) || !usable(row_q)) return excluded_position();
  EarPosition result = compare_tops(isa, p, q, vocab, scratch.tiles, count, row_p, row_q, inverse);
  double distance = 0;
  double cross = 0;
  for (index_t t = 0; t < count; ++t) {
    const EarTile& tile = scratch.tiles[t];
    const index_t begin = t * ear_tile;
    const index_t n = vocab - begin < ear_tile ? vocab - begin : ear_tile;
    const double from_p = ear_exponent(tile.max_p, row_p.max, inverse);
    const double from_q = ear_exponent(tile.max_q, row_q.max, inverse);
    const double scale_p = std::exp(from_p) / row_p.sum;
    const double scale_q = std::exp(from_q) / row_q.sum;
    distance += ear_distance(isa, scratch.a + begin, scratch.b + begin, n, static_cast<float>(scale_p),
                             static_cast<float>(scale_q));
    if (tile.sum_p > 0 && scale_p > 0)
      cross += scale_p * (tile.cross * static_cast<double>(inverse) + tile.sum_p * (from_p - from_q));
  }
  result.ear = distance < 2 ? 1 - distance / 2 : 0;
  result.kl = cross - std::log(row_p.sum) + std::log(row_q.sum);
  return result;
}

/// The k likeliest tokens of a row, likeliest first, of equal ones the lower, to list[0 ...]; how many.
template <class T>
index_t likeliest(Isa isa, const T* logits, index_t vocab, const EarTile* tiles, float EarTile::*max, index_t k,
                  std::int32_t* list) {
  float room[ear_tile];
  index_t count = 0;
  for (index_t begin = 0; begin < vocab; begin += ear_tile) {
    float least = count == k ? static_cast<float>(logits[list[k - 1]]) : 0;
    if (count == k && !(tiles[begin / ear_tile].*max > least)) continue;
    const index_t n = vocab - begin < ear_tile ? vocab - begin : ear_tile;
    const float* const x = as_floats(isa, logits + begin, n, room);
    for (index_t i = 0; i < n; ++i) {
      if (count == k && !(x[i] > least)) continue;
      index_t at = count < k ? count++ : k - 1;
      for (; at > 0 && x[i] > static_cast<float>(logits[list[at - 1]]); --at) list[at] = list[at - 1];
      list[at] = static_cast<std::int32_t>(begin + i);
      if (count == k) least = static_cast<float>(logits[list[k - 1]]);
    }
  }
  return count;
}

/// The fewest likeliest tokens whose probability is at least top_p.
template <class T>
struct Nucleus {
  const T* logits;
  const std::int32_t* end;  ///< the i-th likeliest is end[-1 - i]
  index_t count;
  double sum;  ///< of their e^d

  std::int32_t operator[](index_t i) const { return end[-1 - i]; }
  bool has(std::int32_t token) const {
    const std::int32_t last = (*this)[count - 1];
    return logits[token] > logits[last] || (logits[token] == logits[last] && token <= last);
  }
};

/// A heap of the tokens that may belong, popped until the probability is reached. list [vocab]
template <class T>
Nucleus<T> nucleus(const T* x, index_t vocab, const EarRow& row, float inverse, double top_p, std::int32_t* list) {
  const auto before = [x](std::int32_t a, std::int32_t b) { return x[a] > x[b] || (x[a] == x[b] && a < b); };
  const auto sink = [&](index_t i, index_t n) {
    const std::int32_t token = list[i];
    for (index_t child = 2 * i + 1; child < n; child = 2 * i + 1) {
      if (child + 1 < n && before(list[child + 1], list[child])) ++child;
      if (!before(list[child], token)) break;
      list[i] = list[child];
      i = child;
    }
    list[i] = token;
  };
  // All tokens below (1 - top_p) / vocab together are too few to be needed; a little less, for rounding.
  const double below = std::log((1 - top_p) / static_cast<double>(vocab) * row.sum) - 1e-3;
  const double least = static_cast<double>(row.max) + below / static_cast<double>(inverse);
  index_t n = 0;
  for (index_t i = 0; i < vocab; ++i) {
    list[n] = static_cast<std::int32_t>(i);
    n += static_cast<double>(static_cast<float>(x[i])) >= least;
  }
  const std::int32_t* const end = list + n;
  for (index_t i = n / 2 - 1; i >= 0; --i) sink(i, n);
  Nucleus<T> result{x, end, 0, 0};
  while (n > 0 && (result.count == 0 || result.sum < top_p * row.sum)) {
    const std::int32_t token = list[0];
    list[0] = list[--n];
    if (n > 0) sink(0, n);
    list[n] = token;
    ++result.count;
    result.sum += std::exp(ear_exponent(x[token], row.max, inverse));
  }
  return result;
}

template <class P, class Q>
EarPosition listed_position(Isa isa, const P* p, const Q* q, index_t vocab, const EarOptions& options,
                            const EarScratch& scratch) {
  const float inverse = 1 / options.temperature;
  const index_t count = ear_tiles<false>(isa, p, q, vocab, inverse, scratch);
  EarRow row_p = ear_row(scratch.tiles, count, &EarTile::max_p, &EarTile::sum_p, inverse);
  EarRow row_q = ear_row(scratch.tiles, count, &EarTile::max_q, &EarTile::sum_q, inverse);
  if (!usable(row_p) || !usable(row_q)) return excluded_position();
  EarPosition result = compare_tops(isa, p, q, vocab, scratch.tiles, count, row_p, row_q, inverse);

  // T, likeliest first: token(0), token(1) ... of which q knows those that has() says.
  const bool cut = options.top_p < 1;
  Nucleus<P> kept_p{};
  Nucleus<Q> kept_q{};
  index_t listed = 0;
  if (cut) {
    kept_p = nucleus(p, vocab, row_p, inverse, static_cast<double>(options.top_p), scratch.list_p);
    kept_q = nucleus(q, vocab, row_q, inverse, static_cast<double>(options.top_p), scratch.list_q);
    row_p.sum = kept_p.sum;
    row_q.sum = kept_q.sum;
    const bool all = options.support == EarSupport::full || kept_p.count < options.top_k;
    listed = all ? kept_p.count : options.top_k;
  } else {
    const index_t k = options.top_k < vocab ? options.top_k : vocab;
    listed = likeliest(isa, p, vocab, scratch.tiles, &EarTile::max_p, k, scratch.list_p);
  }
  const auto token = [&](index_t i) { return cut ? kept_p[i] : scratch.list_p[i]; };
  constexpr float lowest = -__builtin_huge_valf();
  const auto known = [&](std::int32_t v) { return static_cast<float>(q[v]) > lowest && (!cut || kept_q.has(v)); };

  if (options.support == EarSupport::topk_conditioned) {
    // Both anew, against their largest logits there, so that a q that is far away has a distribution on T too.
    row_q.max = lowest;
    for (index_t i = 0; i < listed; ++i)
      if (known(token(i)) && q[token(i)] > row_q.max) row_q.max = q[token(i)];
    row_p.sum = row_q.sum = 0;
    for (index_t i = 0; i < listed; ++i) {
      row_p.sum += std::exp(ear_exponent(p[token(i)], row_p.max, inverse));
      if (known(token(i))) row_q.sum += std::exp(ear_exponent(q[token(i)], row_q.max, inverse));
    }
  }
  const double logs = std::log(row_q.sum) - std::log(row_p.sum);
  double shared = 0;
  for (index_t i = 0; i < listed; ++i) {
    const double d_p = ear_exponent(p[token(i)], row_p.max, inverse);
    const double in_p = std::exp(d_p) / row_p.sum;
    if (!(in_p > 0)) continue;
    if (!known(token(i))) {
      result.kl = __builtin_huge_val();
      continue;
    }
    const double d_q = ear_exponent(q[token(i)], row_q.max, inverse);
    const double in_q = std::exp(d_q) / row_q.sum;
    shared += in_p < in_q ? in_p : in_q;
    result.kl += in_p * (d_p - d_q + logs);
  }
  result.ear = shared < 1 ? shared : 1;
  return result;
}

/// The element of rank k, from 0, of n values, whose order it changes.
inline double nth_smallest(double* x, index_t n, index_t k) {
  index_t first = 0;
  index_t last = n - 1;
  while (first < last) {
    const double pivot = x[first + (last - first) / 2];
    index_t i = first;
    index_t j = last;
    while (i <= j) {
      while (x[i] < pivot) ++i;
      while (pivot < x[j]) --j;
      if (i > j) break;
      const double swap = x[i];
      x[i++] = x[j];
      x[j--] = swap;
    }
    if (k <= j) {
      last = j;
    } else if (k >= i) {
      first = i;
    } else {
      return x[k];
    }
  }
  return x[k];
}

}  // namespace decant::quant::detail

#endif
