// decant: CapKV (arXiv 2604.25975): keep the tokens on which the information capacity of a linear-Gaussian surrogate of
// attention rests, by one shot of ridge leverage: s_i = w_i u_i^T A^-1 u_i, u_i = v_i, A = ridge I + sum of w_i u_i
// u_i^T, with weights from how well keys match the mean query. Mode::code follows kvpress's CapPress, by the paper's
// first author as it seems: cosines, turned to the coming positions, sinks protected. Mode::paper is the printed
// algorithm, raw dot products, in the log domain [ours: printed as is it underflows; mean over a group of the scores].
// Deviations [ours]: A accumulates in fp32 tiles, never in bf16; the 1e-6 stands in both places unless compat_eps.
#ifndef DECANT_KV_CAPKV_HPP
#define DECANT_KV_CAPKV_HPP

#include "detail/future_query.hpp"
#include "detail/row_dots.hpp"
#include "detail/rows.hpp"
#include "eviction.hpp"
#include "ridge_leverage.hpp"

namespace decant::kv {

/// Mode::code reads x.queries_pre_rope (one mean query per head will do) and x.rope; Mode::paper reads x.queries, takes
/// `sinks` and `future` as 0, and wants a tau that suits raw dot products: 1/sqrt(key_dim); at 5 it sorts by them
/// alone.
struct CapKV {
  enum class Mode : std::uint8_t { code, paper };

  float tau = 5.0f;      // sharpness of the weights
  float ridge = 1.0f;    // what stands before I in A
  index_t sinks = 4;     // first tokens: protected, and outside A
  index_t future = 512;  // coming positions that the mean query is turned to
  Mode mode = Mode::code;
  bool compat_eps = false;  // kvpress's 1e-6, which it adds to the weights inside A only

  DECANT_HD constexpr index_t protected_sinks() const { return mode == Mode::code ? sinks : 0; }
  bool operator==(const CapKV&) const = default;
};

inline void validate(const CapKV& p) {
  require(p.tau >= 0, "kv::CapKV", "tau", "at least 0", p.tau);
  require(p.ridge > 0, "kv::CapKV", "ridge", "a positive number", p.ridge);
  require(p.sinks >= 0, "kv::CapKV", "sinks", "at least 0", p.sinks);
  require(p.future >= 0, "kv::CapKV", "future", "at least 0", p.future);
}

namespace detail {

/// Buffers for one KV head of up to n tokens and a group of g query heads; dim, ld: the value dim, and padded.
struct CapScratch {
  double* mean;             // [key_dim]
  MeanRotation* rotations;  // [key_dim / 2]
  float* directions;        // [key_dim][padded(g)]
  float* log_weights;       // [g][n]: tau r_i, then tau (r_i - max)
  float* shifts;            // [g]: tau max
  double* grams;            // [spans][g][dim][dim]
  double* columns;          // [g][dim]
  float* inverses;          // [g][dim][ld]
  float* ones;              // [ld]
  bool* positive;           // [g]
  float* tiles;             // [parts][tile]
  float* products;          // [parts][tile]
  float* sums;              // [parts][dim][ld]
  index_t tile;             // gram_tile rows of the widest kind
};

template <class X>
CapScratch take_cap_scratch(Cpu& cpu, const X& x, index_t group, index_t parts) {
  Workspace& w = cpu.workspace();
  const index_t n = x.max_length();
  const index_t key_dim = x.cache.key_dim();
  const index_t dim = x.cache.value_dim();
  const index_t ld = padded(dim);
  index_t wide = ld > key_dim ? ld : key_dim;
  wide = wide > padded(group) ? wide : padded(group);
  CapScratch s;
  s.tile = gram_tile * wide;
  s.mean = w.take<double>(key_dim);
  s.rotations = w.take<MeanRotation>(key_dim / 2 + 1);
  s.directions = w.take<float>(key_dim * padded(group));
  s.log_weights = w.take<float>(group * n);
  s.shifts = w.take<float>(group);
  s.grams = w.take<double>((n + gram_span - 1) / gram_span * group * dim * dim);
  s.columns = w.take<double>(group * dim);
  s.inverses = w.take<float>(group * dim * ld);
  s.ones = w.take<float>(ld);
  s.positive = w.take<bool>(group);
  s.tiles = w.take<float>(parts * s.tile);
  s.products = w.take<float>(parts * s.tile);
  s.sums = w.take<float>(parts * dim * ld);
  for (index_t i = 0; i < ld; ++i) s.ones[i] = 1;
  return s;
}

/// One KV head, step by step; each step's tasks are independent.
template <class X>
struct CapHead {
  const CapKV& p;
  const X& x;
  const CapScratch& w;
  Isa isa;
  index_t head;
  index_t group;
  index_t n;
  index_t sinks;

  bool code() const { return p.mode == CapKV::Mode::code; }
  index_t key_dim() const { return x.cache.key_dim(); }
  index_t dim() const { return x.cache.value_dim(); }
  index_t tiles() const { return (n - sinks + gram_tile - 1) / gram_tile; }
  index_t spans() const { return (n - sinks + gram_span - 1) / gram_span; }
  index_t first(index_t tile) const { return sinks + tile * gram_tile; }
  index_t count(index_t tile) const { return first(tile) + gram_tile < n ? gram_tile : n - first(tile); }

  /// directions(d, a): query head a's mean query, of length 1 in Mode::code.
  void directions() const {
    const index_t lanes = padded(group);
    const auto& queries = code() ? x.queries_pre_rope : x.queries;
    const index_t from = code() ? first_query(x, queries.extent(1), sinks) : 0;
    for (index_t i = 0; i < key_dim() * lanes; ++i) w.directions[i] = 0;
    for (index_t a = 0; a < group; ++a) {
      mean_query(queries[head * group + a], from, w.mean);
      double factor = 1;
      if (code()) {
        rotate_mean(x.rope, key_dim(), w.rotations, w.mean, 1);
        double square = 0;
        for (index_t d = 0; d < key_dim(); ++d) square += w.mean[d] * w.mean[d];
        factor = square == 0 ? 0.0 : 1.0 / std::sqrt(square);
      }
      for (index_t d = 0; d < key_dim(); ++d) w.directions[d * lanes + a] = static_cast<float>(w.mean[d] * factor);
    }
  }

  /// tau k_t . direction, with k_t / |k_t| clamped to cosines in Mode::code, for one tile of keys.
  void match(index_t tile, index_t part) const {
    const index_t lanes = padded(group);
    float* const keys = w.tiles + part * w.tile;
    float* const matches = w.products + part * w.tile;
    load_keys(isa, x.cache, x.sequence, head, first(tile), count(tile), keys, key_dim());
    product<float>(isa, Product<float>{count(tile), lanes, key_dim(), keys, key_dim(), 1, w.directions, lanes, matches,
                                       lanes, false});
    float squares[gram_tile];
    if (code()) row_dots(isa, RowDots{keys, key_dim(), keys, key_dim(), count(tile), key_dim(), squares});
    for (index_t i = 0; i < count(tile); ++i) {
      const float square = code() ? squares[i] : 1.0f;
      const float inverse = square == 0 ? 0.0f : 1.0f / std::sqrt(square);
      for (index_t a = 0; a < group; ++a) {
        float r = matches[i * lanes + a] * inverse;
        if (code()) r = r > 1.0f ? 1.0f : r < -1.0f ? -1.0f : r;
        w.log_weights[a * n + first(tile) + i] = p.tau * r;
      }
    }
  }

  /// Subtracts the maximum, so that the largest weight is 1: it only rescales the ridge.
  void shift(index_t a) const {
    float* const r = w.log_weights + a * n;
    float highest = -__builtin_huge_valf();
    for (index_t t = sinks; t < n; ++t) highest = r[t] > highest ? r[t] : highest;
    for (index_t t = sinks; t < n; ++t) r[t] -= highest;
    w.shifts[a] = highest;
  }

  /// Values of one tile, rows padded with zeros.
  void load(index_t tile, float* values) const {
    const index_t ld = padded(dim());
    load_values(isa, x.cache, x.sequence, head, first(tile), count(tile), values, ld);
    for (index_t i = 0; i < count(tile); ++i) {
      for (index_t d = dim(); d < ld; ++d) values[i * ld + d] = 0;
    }
  }

  void weights(index_t tile, index_t a, float* out) const {
    const float eps = code() ? 1e-6f : 0.0f;
    const float* const r = w.log_weights + a * n + first(tile);
    for (index_t i = 0; i < count(tile); ++i) out[i] = fast_exp(r[i]) + eps;
  }

  /// The Gram matrices of one span of tokens, one for each query head.
  void gram(index_t span, index_t part) const {
    const index_t square = dim() * dim();
    double* const grams = w.grams + span * group * square;
    for (index_t i = 0; i < group * square; ++i) grams[i] = 0;
    constexpr index_t per_span = gram_span / gram_tile;
    float* const values = w.tiles + part * w.tile;
    const GramScratch<float> scratch{w.products + part * w.tile, w.sums + part * dim() * padded(dim())};
    for (index_t tile = span * per_span; tile < (span + 1) * per_span && tile < tiles(); ++tile) {
      load(tile, values);
      for (index_t a = 0; a < group; ++a) {
        float tile_weights[gram_tile];
        weights(tile, a, tile_weights);
        add_gram<float>(isa, values, count(tile), dim(), tile_weights, scratch, grams + a * square);
      }
    }
  }

  /// Adds the spans in order and factorises.
  void factor(index_t a) const {
    const index_t square = dim() * dim();
    double* const total = w.grams + a * square;
    for (index_t span = 1; span < spans(); ++span) {
      const double* const more = w.grams + (span * group + a) * square;
      for (index_t i = 0; i < square; ++i) total[i] += more[i];
    }
    w.positive[a] = invert_factor<float>(total, dim(), static_cast<double>(p.ridge), w.columns + a * dim(),
                                         w.inverses + a * dim() * padded(dim()));
  }

  /// The scores of one tile.
  void leverage(index_t tile, index_t part, float* out) const {
    float* const values = w.tiles + part * w.tile;
    load(tile, values);
    const float inverse_group = 1.0f / static_cast<float>(group);
    for (index_t a = 0; a < group; ++a) {
      float quadratic[gram_tile];
      float tile_weights[gram_tile];
      leverage_tile<float>(isa, values, count(tile), dim(), w.inverses + a * dim() * padded(dim()), w.ones,
                           w.products + part * w.tile, quadratic);
      weights(tile, a, tile_weights);
      const float eps = p.compat_eps && code() ? 1e-6f : 0.0f;
      for (index_t i = 0; i < count(tile); ++i) {
        float& s = out[first(tile) + i];
        const float q = w.positive[a] ? quadratic[i] : __builtin_nanf("");  // NaN or infinity among the values
        if (code()) {
          s += (tile_weights[i] - eps) * q * inverse_group;
        } else {
          s = log_sum(s, w.shifts[a] + w.log_weights[a * n + first(tile) + i] + std::log(q * inverse_group));
        }
      }
    }
  }

  /// log(e^a + e^b).
  DECANT_HD static float log_sum(float a, float b) {
    const float high = a > b ? a : b;
    if (high == -__builtin_huge_valf()) return b;  // -inf, or NaN
    return high + std::log(std::exp(a - high) + std::exp(b - high));
  }
};

/// Checks what CapKV reads, takes scratch in the caller's scope, and calls body(head) for every KV head longer than the
/// sinks, its weights formed. Other tokens score `other`.
template <class X, class Body>
void each_cap_head(Cpu& cpu, const CapKV& p, const X& x, View<float, 2> scores, float other, Body body) {
  constexpr const char* where = "kv::CapKV";
  validate(p);
  const index_t longest = x.max_length();
  if (longest == 0) return;
  const bool code = p.mode == CapKV::Mode::code;
  const auto& queries = code ? x.queries_pre_rope : x.queries;
  const char* const argument = code ? "x.queries_pre_rope" : "x.queries";
  const index_t sinks = p.protected_sinks();
  require(!queries.empty(), where, argument, "queries of the prompt, or their mean", "none");
  require(longest <= sinks || !code || first_query(x, queries.extent(1), sinks) < queries.extent(1), where, argument,
          "a query of a token that is no sink", "none");
  const index_t group = queries.extent(0) / x.kv_heads();
  const CapScratch w = take_cap_scratch(cpu, x, group, cpu.parts((longest + gram_tile - 1) / gram_tile, 1));
  if (code) mean_rotations(x, p.future, w.rotations);
  for (index_t h = 0; h < x.kv_heads(); ++h) {
    const index_t n = x.length(h);
    for (index_t t = 0; t < n; ++t) scores(h, t) = other;
    if (n <= sinks) continue;
    const CapHead<X> head{p, x, w, cpu.isa(), h, group, n, sinks};
    head.directions();
    cpu.parallel_ranges(head.tiles(), 1, [&](index_t begin, index_t end, index_t part) {
      for (index_t i = begin; i < end; ++i) head.match(i, part);
    });
    cpu.parallel_for(group, [&](index_t a) { head.shift(a); });
    body(head);
  }
}

}  // namespace detail

/// O(query_heads * n * value_dim^2). Scratch for one KV head: 4 bytes per token and query head of a group, and
/// 8 value_dim^2 bytes per query head of a group and 4096 tokens.
template <class X>
void score(Cpu& cpu, const CapKV& p, const X& x, View<float, 2> scores) {
  Workspace::Scope scope(cpu.workspace());
  const float other = p.mode == CapKV::Mode::code ? 0.0f : -__builtin_huge_valf();
  detail::each_cap_head(cpu, p, x, scores, other, [&](const detail::CapHead<X>& head) {
    cpu.parallel_ranges(head.spans(), 1, [&](index_t begin, index_t end, index_t part) {
      for (index_t i = begin; i < end; ++i) head.gram(i, part);
    });
    cpu.parallel_for(head.group, [&](index_t a) { head.factor(a); });
    cpu.parallel_ranges(head.tiles(), 1, [&](index_t begin, index_t end, index_t part) {
      for (index_t i = begin; i < end; ++i) head.leverage(i, part, &scores(head.head, index_t{0}));
    });
  });
}

constexpr auto stages(const CapKV& p) {
  return Eviction{p, NoSmoothing{}, SinkRecent{.sinks = p.protected_sinks(), .recent = 0}};
}

static_assert(KVEvictionPolicy<CapKV, Cpu>);

}  // namespace decant::kv

#endif
