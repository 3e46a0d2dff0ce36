// decant: the concept attention::AttentionPolicy, a value that says how attention is computed: exactly (Dense), or by
// looking at less of the cache. Policies read any cache view, join through State, and plug in by overloading attend()
// in their own namespace.
#ifndef DECANT_ATTENTION_POLICY_HPP
#define DECANT_ATTENTION_POLICY_HPP

#include <concepts>

#include "../core/view.hpp"
#include "../kv/cache_view.hpp"

namespace decant::attention {

namespace detail {

/// The least that a cache view may be: rows behind a handle of its own, no runs. Declarations only.
struct CacheArchetype {
  struct Row {};
  index_t sequences() const;
  index_t kv_heads() const;
  index_t key_dim() const;
  index_t value_dim() const;
  index_t length(index_t sequence, index_t head) const;
  Row key(index_t sequence, index_t head, index_t token) const;
  Row value(index_t sequence, index_t head, index_t token) const;
  index_t run(index_t sequence, index_t head, index_t token) const;
  index_t key_stride() const;
  index_t value_stride() const;
};
void load_row(const CacheArchetype::Row& row, index_t count, float* out);
void validate(const CacheArchetype& cache);

static_assert(kv::CacheView<CacheArchetype> && !kv::PlainCacheView<CacheArchetype>);

}  // namespace detail

/// A way to compute attention on the context Ctx.
template <class A, class Ctx>
concept AttentionPolicy =
    // A plain value of parameters.
    std::copyable<A> && std::equality_comparable<A> &&
    requires(Ctx& ctx, const A& a, View<const float, 3> q, const detail::CacheArchetype& cache, View<float, 3> out,
             View<float, 2> lse) {
      // One query per sequence: q [sequences, query_heads, key_dim], out [sequences, query_heads, value_dim], and the
      // natural log-sum-exp of what was attended to, [sequences, query_heads], which may be an empty view. (0, -inf)
      // where there is nothing to attend to. Throws before it writes. The same for one sequence as in any batch.
      attend(ctx, a, q, cache, out, lse);
      // Raises ArgumentError when the parameters make no sense.
      validate(a);
      // How far the result may lie from dense attention in double, as relative L2 distance over a call.
      { A::error_bound } -> std::convertible_to<double>;
    };

}  // namespace decant::attention

#endif
