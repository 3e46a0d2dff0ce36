// decant: attention::Mla, decode with multi-head latent attention (MLA; DeepSeek-V2, arXiv 2405.04434) in the absorbed
// form: q_nope goes through W_UK once, attention runs over the latent cache itself (kv/latent_kv.hpp), whose one row
// per token serves all query heads as key and as value, and its result goes through W_UV once. Mathematically the same
// as projecting every cached token up to keys and values of each head; exact, in float. [ours] attention in between is
// attention::Dense, and absorb_query() and up_project() are free functions, so that any other policy can stand there.
#ifndef DECANT_ATTENTION_MLA_HPP
#define DECANT_ATTENTION_MLA_HPP

#include <cmath>

#include "dense.hpp"

namespace decant::attention {

/// The parameters of MLA. Heads and dims follow from the tensors.
struct Mla {
  /// The softmax scale is scale_factor / sqrt(nope_dim + rope_dim), whatever the latent cache's row length is: YaRN's
  /// mscale^2 (see yarn_mscale), else 1.
  float scale_factor = 1;
  /// As in Dense.
  index_t chunk = 0;
  bool rounded = false;

  /// Relative L2 distance to the definition with up-projected keys and values, in double, for weights and cache as
  /// stored.
  static constexpr double error_bound = 1e-5;
  static constexpr double rounded_error_bound(DType cache) { return Dense::rounded_error_bound(cache); }

  bool operator==(const Mla&) const = default;
};

inline void validate(const Mla& a) {
  constexpr const char* where = "attention::Mla";
  require(a.scale_factor > 0 && std::isfinite(a.scale_factor), where, "scale_factor", "a finite number above 0",
          a.scale_factor);
  require(a.chunk >= 0, where, "chunk", "a number of keys, or 0", a.chunk);
}

/// YaRN's mscale for a context stretched by `scaling`: 0.1 * mscale_all_dim * ln(scaling) + 1. DeepSeek's checkpoints
/// name the arguments rope_scaling.factor and rope_scaling.mscale_all_dim, and Mla::scale_factor is its square.
inline float yarn_mscale(float scaling, float mscale_all_dim = 1) {
  return scaling <= 1 ? 1.0f : 0.1f * mscale_all_dim * std::log(scaling) + 1.0f;
}

/// The policy for the attention over the latent cache. A different policy there needs this scale too, since its own
/// default would be 1 / sqrt(latent_dim + rope_dim).
inline float mla_scale(index_t nope_dim, index_t rope_dim, float scale_factor = 1) {
  return scale_factor / std::sqrt(static_cast<float>(nope_dim + rope_dim));
}

/// The up-projections of a layer, as rows of the latent dim.
template <Storage W>
struct MlaWeights {
  View<const W, 3> uk;  // [heads, nope_dim, latent_dim]: k_nope = uk[h] c
  View<const W, 3> uv;  // [heads, v_head_dim, latent_dim]: v = uv[h] c
};

/// The same out of a checkpoint's kv_b_proj.weight [heads * (nope_dim + v_head_dim), latent_dim], in place.
template <class W>
MlaWeights<std::remove_const_t<W>> mla_weights(View<W, 2> kv_b_proj, index_t heads, index_t nope_dim) {
  constexpr const char* where = "attention::mla_weights";
  const index_t rows = kv_b_proj.extent(0);
  require(heads >= 1 && rows % heads == 0, where, "heads",
          [&] { return "a divisor of kv_b_proj's " + std::to_string(rows) + " rows"; }, heads);
  require(nope_dim >= 1 && nope_dim < rows / heads, where, "nope_dim",
          [&] { return "1 to fewer than a head's " + std::to_string(rows / heads) + " rows"; }, nope_dim);
  const index_t row = kv_b_proj.stride(0);
  const auto part = [&](index_t first, index_t count) {
    return View<const std::remove_const_t<W>, 3>(kv_b_proj.data() + first * row, {heads, count, kv_b_proj.extent(1)},
                                                 {rows / heads * row, row, kv_b_proj.stride(1)});
  };
  return {part(0, nope_dim), part(nope_dim, rows / heads - nope_dim)};
}

/// Queries of a batch, as in Queries.
template <Storage Q>
struct MlaQueries {
  View<const Q, 3> nope;                  // [total, heads, nope_dim]
  View<const Q, 3> pe;                    // [total, heads, rope_dim], rotated
  View<const std::int32_t, 1> indptr{};   // [sequences + 1]; empty: one query per sequence
};

template <class Q, class P>
MlaQueries(View<Q, 3>, View<P, 3>) -> MlaQueries<std::remove_const_t<Q>>;
template <class Q, class P, class Indptr>
MlaQueries(View<Q, 3>, View<P, 3>, const Indptr&) -> MlaQueries<std::remove_const_t<Q>>;

namespace detail {

/// x is [a, b, c] and has data; `rows`: and contiguous rows.
template <class T>
void require_tensor(const View<T, 3>& x, index_t a, index_t b, index_t c, const char* where, const char* name,
                    bool rows = true) {
  require_equal(x.extent(0), a, where, name);
  require_equal(x.extent(1), b, where, name);
  require_equal(x.extent(2), c, where, name);
  require(!rows || x.stride(2) == 1 || c <= 1, where, name, "contiguous rows", x.stride(2));
  require(x.data() != nullptr || x.size() == 0, where, name, "data", "a null pointer");
}

template <class W, class Q>
void validate_absorb(const View<const W, 3>& w, const View<const Q, 3>& q_nope, const View<float, 3>& q_latent) {
  constexpr const char* where = "attention::absorb_query";
  require_tensor(w, w.extent(0), w.extent(1), w.extent(2), where, "w_uk");
  require_tensor(q_nope, q_nope.extent(0), w.extent(0), w.extent(1), where, "q_nope");
  require_tensor(q_latent, q_nope.extent(0), w.extent(0), w.extent(2), where, "q_latent");
}

template <class W, class O>
void validate_up_project(const View<const W, 3>& w, const View<const float, 3>& o_latent, const View<O, 3>& out) {
  constexpr const char* where = "attention::up_project";
  require_tensor(w, w.extent(0), w.extent(1), w.extent(2), where, "w_uv");
  require_tensor(o_latent, o_latent.extent(0), w.extent(0), w.extent(2), where, "o_latent");
  require_tensor(out, o_latent.extent(0), w.extent(0), w.extent(1), where, "out", false);
}

/// What can be told of a call without reading device memory; attend(Dense) looks at the cache and lse.
template <class Q, class W, class C, class O>
void validate_mla_shapes(const Mla& a, const MlaQueries<Q>& q, const MlaWeights<W>& w, const C& cache,
                         const View<O, 3>& out) {
  constexpr const char* where = "attention::attend";
  validate(a);
  const index_t total = q.nope.extent(0);
  const index_t heads = q.nope.extent(1);
  const index_t latent = cache.value_dim();
  require(cache.key_dim() >= latent, where, "cache", "a latent cache (kv::latent), whose rows are [c | k_pe]",
          [&] { return "keys of " + std::to_string(cache.key_dim()) + " and values of " + std::to_string(latent); });
  require(heads >= 1 && cache.kv_heads() >= 1 && heads % cache.kv_heads() == 0, where, "q.nope",
          [&] { return "a number of heads that is a multiple of kv_heads = " + std::to_string(cache.kv_heads()); },
          heads);
  require_tensor(q.nope, total, heads, q.nope.extent(2), where, "q.nope");
  require_tensor(q.pe, total, heads, cache.key_dim() - latent, where, "q.pe", false);
  require_tensor(w.uk, heads, q.nope.extent(2), latent, where, "w.uk");
  require_tensor(w.uv, heads, w.uv.extent(1), latent, where, "w.uv");
  require_tensor(out, total, heads, w.uv.extent(1), where, "out", false);
}

/// Queries that share one read of a head's weights; more of them read it from the second-level cache again.
inline constexpr index_t mla_tokens = 64;

/// One head's weight rows, block after block, for a block of queries; the rows of the block behind (of the next head's
/// first, behind the last) are asked of the memory meanwhile. For few queries, which are bound to memory, short blocks:
/// the processor's own prefetching follows them better.
template <class W>
struct MlaRows {
  View<const W, 3> w;
  index_t head, next;  // next: what this thread works on afterwards, -1: nothing
  index_t first, queries;
  const W* rows[2][dense_block];
  int now = 0;
  index_t count = 0;
  index_t more = 0;

  void locate(index_t of, index_t row) {
    const index_t most = queries <= 2 ? 16 : index_t{dense_block};
    more = w.extent(1) - row < most ? w.extent(1) - row : most;
    for (index_t j = 0; j < more; ++j) rows[now][j] = w.data() + of * w.stride(0) + (row + j) * w.stride(1);
  }
  /// Row `row` and those behind it, `count` in all. Blocks follow each other.
  const W* const* block(index_t row) {
    if (row == 0) locate(head, 0);
    const W* const* const these = rows[now];
    count = more;
    more = 0;
    now = 1 - now;
    if (row + count < w.extent(1)) locate(head, row + count);
    else if (next >= 0) locate(next, 0);
    return these;
  }
  Ahead<W> ahead() const { return {rows[now], more, w.extent(2) * index_t{sizeof(W)}}; }
};

/// Calls body(rows, scratch) for all heads and blocks of queries, on the context's threads.
template <class W, class Body>
void for_mla_heads(Cpu& cpu, const View<const W, 3>& w, index_t total, index_t floats, Body body) {
  const index_t blocks = (total + mla_tokens - 1) / mla_tokens;
  const index_t tasks = w.extent(0) * blocks;
  if (tasks == 0) return;
  Workspace::Scope scope(cpu.workspace());
  float* const memory = cpu.workspace().take<float>(cpu.parts(tasks, 1) * floats);
  cpu.parallel_ranges(tasks, 1, [&](index_t begin, index_t end, index_t part) {
    for (index_t i = begin; i < end; ++i) {
      const index_t first = i % blocks * mla_tokens;
      MlaRows<W> rows{w, i / blocks, i + 1 < end ? (i + 1) / blocks : -1, first,
                      total - first < mla_tokens ? total - first : mla_tokens, {}};
      body(rows, memory + part * floats);
    }
  });
}

}  // namespace detail

/// q_latent[t, h] = w_uk[h]^T q_nope[t, h]. w_uk [heads, nope_dim, latent_dim], q_nope [total, heads, nope_dim],
/// q_latent [total, heads, latent_dim], whose rows may be the beginnings of longer ones. A query's result depends on no
/// other. Reads w_uk once per 64 queries. O(total * heads * nope_dim * latent_dim).
template <Storage W, Storage Q>
void absorb_query(Cpu& cpu, View<const W, 3> w_uk, View<const Q, 3> q_nope, View<float, 3> q_latent) {
  using namespace detail;
  validate_absorb(w_uk, q_nope, q_latent);
  const DenseKernels<W>& kernels = dense_kernels<W>(cpu.isa());
  const index_t nope = w_uk.extent(1);
  const index_t latent = w_uk.extent(2);
  const index_t stride = DenseScratch::round(latent);
  const index_t floats = mla_tokens * (stride + dense_block + 1);
  for_mla_heads(cpu, w_uk, q_nope.extent(0), floats, [&](MlaRows<W>& rows, float* sum) {
    float* const weights = sum + mla_tokens * stride;
    float* const one = weights + mla_tokens * dense_block;
    for (index_t i = 0; i < rows.queries * stride; ++i) sum[i] = 0;
    for (index_t t = 0; t < rows.queries; ++t) one[t] = 1;
    for (index_t d = 0; d < nope; d += rows.count) {
      const W* const* const block = rows.block(d);
      for (index_t t = 0; t < rows.queries; ++t)
        for (index_t j = 0; j < rows.count; ++j)
          weights[t * dense_block + j] = static_cast<float>(q_nope(rows.first + t, rows.head, d + j));
      kernels.values(weights, one, rows.queries, block, rows.count, latent, sum, stride, rows.ahead());
    }
    for (index_t t = 0; t < rows.queries; ++t)
      for (index_t l = 0; l < latent; ++l) q_latent(rows.first + t, rows.head, l) = sum[t * stride + l];
  });
}

/// out[t, h] = w_uv[h] o_latent[t, h]. w_uv [heads, v_head_dim, latent_dim], o_latent [total, heads, latent_dim], out
/// [total, heads, v_head_dim]. A query's result depends on no other. Reads w_uv once per 64 queries.
/// O(total * heads * v_head_dim * latent_dim).
template <Storage W, Storage O>
void up_project(Cpu& cpu, View<const W, 3> w_uv, View<const float, 3> o_latent, View<O, 3> out) {
  using namespace detail;
  validate_up_project(w_uv, o_latent, out);
  const DenseKernels<W>& kernels = dense_kernels<W>(cpu.isa());
  const index_t dims = w_uv.extent(1);
  const index_t latent = w_uv.extent(2);
  const index_t stride = DenseScratch::round(latent);
  const index_t floats = mla_tokens * (stride + dense_block);
  for_mla_heads(cpu, w_uv, o_latent.extent(0), floats, [&](MlaRows<W>& rows, float* x) {
    float* const y = x + mla_tokens * stride;
    for (index_t t = 0; t < rows.queries; ++t)
      for (index_t l = 0; l < stride; ++l)
        x[t * stride + l] = l < latent ? o_latent(rows.first + t, rows.head, l) : 0.0f;
    kernels.arrange(x, stride, rows.queries, latent);
    for (index_t d = 0; d < dims; d += rows.count) {
      const W* const* const block = rows.block(d);
      kernels.scores(x, stride, rows.queries, block, rows.count, latent, y, rows.ahead());
      for (index_t t = 0; t < rows.queries; ++t)
        for (index_t j = 0; j < rows.count; ++j)
          out(rows.first + t, rows.head, d + j) = static_cast<O>(y[t * dense_block + j]);
    }
  });
}

/// The whole step: absorb_query, attend(Dense) over the latent cache, up_project.
///
/// out[t, h] = sum_j softmax_j(scale * (q_nope . k_nope[j, h] + q_pe . k_pe[j])) v[j, h] with k_nope[j, h] = uk[h] c[j],
/// v[j, h] = uv[h] c[j] and scale = scale_factor / sqrt(nope_dim + rope_dim); lse [total, heads] (or nothing) is the
/// natural log-sum-exp of these logits. q, mask, empty sequences and NaN: as in attend(Dense). cache: what kv::latent
/// gives, latent_dim = value_dim, rope_dim = key_dim - value_dim. out [total, heads, v_head_dim].
/// For decode: scratch is 4 * (2 * latent_dim + rope_dim) bytes per query and head, and prefill takes fewer operations
/// with keys and values projected up. Errors: ArgumentError, before anything is written.
/// O(total * heads * (length * (2 * latent_dim + rope_dim) + latent_dim * (nope_dim + v_head_dim))).
template <Storage Q, Storage W, kv::CacheView C, Storage O, Mask M = Causal>
void attend(Cpu& cpu, const Mla& a, const MlaQueries<Q>& q, const MlaWeights<W>& w, const C& cache, View<O, 3> out,
            View<float, 2> lse = {}, const M& mask = {}) {
  using namespace detail;
  validate_mla_shapes(a, q, w, cache, out);
  const index_t total = q.nope.extent(0);
  const index_t heads = q.nope.extent(1);
  const index_t latent = cache.value_dim();
  const index_t rope = cache.key_dim() - latent;

  Workspace::Scope scope(cpu.workspace());
  const View<float, 3> rows = cpu.workspace().template take_view<float>(total, heads, latent + rope);
  const View<float, 3> o_latent = cpu.workspace().template take_view<float>(total, heads, latent);
  absorb_query(cpu, w.uk, q.nope, rows.slice(2, 0, latent));
  for (index_t t = 0; t < total; ++t)
    for (index_t h = 0; h < heads; ++h)
      for (index_t d = 0; d < rope; ++d) rows(t, h, latent + d) = static_cast<float>(q.pe(t, h, d));
  const Dense dense{.scale = mla_scale(q.nope.extent(2), rope, a.scale_factor), .chunk = a.chunk, .rounded = a.rounded};
  attend(cpu, dense, Queries<float>{rows, q.indptr}, cache, o_latent, lse, mask);
  up_project(cpu, w.uv, View<const float, 3>(o_latent), out);
}

}  // namespace decant::attention

#endif
