// decant: KeyDiff (Park, Jones, Morse, Goel, Lee, Lott, arXiv 2504.15364): keys unlike the others are worth keeping:
// the score is -cos(k, mean of k / |k|). Position-free and free of queries. BlockwiseKeyDiff is the paper's way to
// bound memory: keep the budget, take in the next block, score those together, keep the budget again.
#ifndef DECANT_KV_KEYDIFF_HPP
#define DECANT_KV_KEYDIFF_HPP

#include <cmath>

#include "../core/math.hpp"
#include "detail/key_tiles.hpp"
#include "detail/row_dots.hpp"
#include "eviction.hpp"

namespace decant::kv {

/// One scoring over all keys, as kvpress does.
struct KeyDiff {
  bool operator==(const KeyDiff&) const = default;
};

/// Block after block of `block` tokens, in the order of the sequence.
struct BlockwiseKeyDiff {
  index_t block = 128;
  bool operator==(const BlockwiseKeyDiff&) const = default;
};

inline void validate(const KeyDiff&) {}
inline void validate(const BlockwiseKeyDiff& p) {
  require(p.block >= 1, "kv::BlockwiseKeyDiff", "block", "at least 1", p.block);
}

namespace detail {

/// 1 / |k|; a key of zeros has no direction and gets 0.
inline float inverse_norm(Isa isa, const float* k, index_t dim) {
  const float square = dot(isa, k, k, dim);
  return square == 0 ? 0.0f : 1.0f / std::sqrt(square);
}

/// -cosine in [-1, 1]; NaN stays NaN.
DECANT_HD inline float key_difference(float product, float inverse_key, float inverse_anchor) {
  const float c = product * inverse_key * inverse_anchor;
  return c > 1.0f ? -1.0f : c < -1.0f ? 1.0f : -c;
}

}  // namespace detail

/// O(kv_heads * n * key_dim), two reads of the keys.
template <class X>
void score(Cpu& cpu, const KeyDiff&, const X& x, View<float, 2> scores) {
  Workspace::Scope scope(cpu.workspace());
  const index_t dim = x.cache.key_dim();
  const index_t heads = x.kv_heads();
  const index_t tiles = (x.max_length() + detail::tile_tokens - 1) / detail::tile_tokens;
  const Isa isa = cpu.isa();
  float* const sums = cpu.workspace().template take<float>(heads * tiles * dim);
  float* const anchors = cpu.workspace().template take<float>(heads * dim);
  detail::for_each_key_tile(cpu, x, [&](index_t h, index_t first, index_t count, const float* rows) {
    float* const sum = sums + (h * tiles + first / detail::tile_tokens) * dim;
    for (index_t d = 0; d < dim; ++d) sum[d] = 0;
    float* const inverse = &scores(h, first);  // kept for the second walk
    detail::row_dots(isa, detail::RowDots{rows, dim, rows, dim, count, dim, inverse});
    for (index_t i = 0; i < count; ++i) {
      inverse[i] = inverse[i] == 0 ? 0.0f : 1.0f / std::sqrt(inverse[i]);
      detail::add_scaled(rows + i * dim, inverse[i], dim, sum);
    }
  });
  for (index_t h = 0; h < heads; ++h) {
    const index_t used = (x.length(h) + detail::tile_tokens - 1) / detail::tile_tokens;
    for (index_t d = 0; d < dim; ++d) {
      double sum = 0;
      for (index_t i = 0; i < used; ++i) sum += static_cast<double>(sums[(h * tiles + i) * dim + d]);
      anchors[h * dim + d] = static_cast<float>(sum);  // the sum points where the mean does
    }
  }
  detail::for_each_key_tile(cpu, x, [&](index_t h, index_t first, index_t count, const float* rows) {
    const float* const anchor = anchors + h * dim;
    const float inverse = detail::inverse_norm(isa, anchor, dim);
    float* const out = &scores(h, first);
    float products[detail::tile_tokens];
    detail::row_dots(isa, detail::RowDots{rows, dim, anchor, 0, count, dim, products});
    for (index_t i = 0; i < count; ++i) out[i] = detail::key_difference(products[i], out[i], inverse);
  });
}

/// The same scores: what a caller sees who asks for scores alone.
template <class X>
void score(Cpu& cpu, const BlockwiseKeyDiff&, const X& x, View<float, 2> scores) {
  score(cpu, KeyDiff{}, x, scores);
}

namespace detail {

/// The blocks of one head. directions [n][dim]: keys of length 1 (or 0). Leaves the kept tokens in list, ascending.
struct KeyDiffBlocks {
  const float* directions;
  index_t dim;
  float* anchor;
  float* scores;
  std::uint8_t* keep;

  /// Keeps `budget` of the `size` tokens in list; protected ones first. scratch as top_k_each_row's.
  index_t reduce(Isa isa, std::int32_t* list, index_t size, const ScoredLayer& layer, index_t head, index_t budget,
                 std::uint32_t* keys, std::uint32_t* candidates, std::uint32_t* histogram) const {
    for (index_t d = 0; d < dim; ++d) anchor[d] = 0;
    for (index_t i = 0; i < size; ++i) {
      add_scaled(directions + list[i] * dim, 1.0f, dim, anchor);
    }
    const float inverse = inverse_norm(isa, anchor, dim);
    index_t kept = 0;
    for (index_t i = 0; i < size; ++i) {
      scores[i] = key_difference(dot(isa, directions + list[i] * dim, anchor, dim), 1.0f, inverse);
      keep[i] = layer.keep(head, list[i]);
      kept += keep[i];
    }
    const index_t k = budget > kept ? budget : kept;
    if (k >= size) return size;
    ::decant::detail::make_keys(isa, scores, 1, keep, 1, size, keys);
    const Threshold t = ::decant::detail::threshold_of_keys(isa, keys, size, k, candidates, histogram);
    ::decant::detail::emit_indices(isa, keys, t.key, t.ties, k, reinterpret_cast<std::int32_t*>(candidates));
    const auto* const chosen = reinterpret_cast<const std::int32_t*>(candidates);
    for (index_t i = 0; i < k; ++i) list[i] = list[chosen[i]];  // ascending: chosen[i] >= i
    return k;
  }
};

}  // namespace detail

/// The selector: ignores the scores that came. O(kv_heads * n / block * (count + block) * key_dim).
template <class X>
void choose(Cpu& cpu, const BlockwiseKeyDiff& p, const X& x, const ScoredLayer& layer,
            View<const std::int32_t, 1> counts, KeptView kept) {
  validate(p);
  Workspace::Scope scope(cpu.workspace());
  const index_t n = x.max_length();
  const index_t dim = x.cache.key_dim();
  const index_t heads = x.kv_heads();
  const index_t parts = cpu.parts(heads, 1);
  const Isa isa = cpu.isa();
  Workspace& w = cpu.workspace();
  float* const directions = w.template take<float>(parts * n * dim);
  float* const anchors = w.template take<float>(parts * dim);
  float* const scores = w.template take<float>(parts * n);
  std::uint8_t* const keep = w.template take<std::uint8_t>(parts * n);
  std::int32_t* const lists = w.template take<std::int32_t>(parts * n);
  std::uint32_t* const keys = w.template take<std::uint32_t>(parts * n);
  std::uint32_t* const candidates = w.template take<std::uint32_t>(parts * n);
  std::uint32_t* const histograms = w.template take<std::uint32_t>(parts * ::decant::detail::radix_words);
  cpu.parallel_ranges(heads, 1, [&](index_t begin, index_t end, index_t part) {
    const detail::KeyDiffBlocks blocks{directions + part * n * dim, dim, anchors + part * dim, scores + part * n,
                                       keep + part * n};
    float* const rows = directions + part * n * dim;
    std::int32_t* const list = lists + part * n;
    for (index_t h = begin; h < end; ++h) {
      const index_t length = x.length(h);
      detail::load_keys(isa, x.cache, x.sequence, h, 0, length, rows, dim);
      for (index_t t = 0; t < length; ++t) {
        const float scale = detail::inverse_norm(isa, rows + t * dim, dim);
        for (index_t d = 0; d < dim; ++d) rows[t * dim + d] *= scale;
      }
      index_t size = 0;
      for (index_t t = 0; t < length;) {
        // The first block fills the budget up; later ones hold `block` tokens.
        const index_t take = size == 0 ? counts[h] + p.block : p.block;
        for (index_t i = 0; i < take && t < length; ++i, ++t) list[size++] = static_cast<std::int32_t>(t);
        size = blocks.reduce(isa, list, size, layer, h, counts[h], keys + part * n, candidates + part * n,
                             histograms + part * ::decant::detail::radix_words);
      }
      for (index_t i = 0; i < size; ++i) kept.indices(h, i) = list[i];
      kept.counts[h] = static_cast<std::int32_t>(size);
    }
  });
}

constexpr auto stages(const KeyDiff& p) { return Eviction{p}; }
constexpr auto stages(const BlockwiseKeyDiff& p) {
  return Eviction{p, NoSmoothing{}, NoProtection{}, NoNormalisation{}, Uniform{}, p};
}

static_assert(KVEvictionPolicy<KeyDiff, Cpu> && KVEvictionPolicy<BlockwiseKeyDiff, Cpu>);

}  // namespace decant::kv

#endif
