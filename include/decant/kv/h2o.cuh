// decant: H2O on Cuda: its selector, and its scorers: AccumulatedAttention, the column sums of all causal queries, 2048
// of a group at a time (detail/attention_columns.cuh: bytes and FLOPs), and GivenScores. Against the f64 definition
// within 2e-6 of a head's largest score, as on the CPU. The online form, accumulate() and compact_sums(), gives the
// CPU's bits; a step moves 4 * query_heads * n bytes of weights and 8 * kv_heads * n of sums.
#ifndef DECANT_KV_H2O_CUH
#define DECANT_KV_H2O_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "compact.cuh"
#include "detail/scored_layer.cuh"
#include "detail/token_scores.cuh"
#include "eviction.cuh"
#include "h2o.hpp"
#include "window_attention.cuh"

namespace decant::kv {

namespace detail {

struct GivenScore {
  View<const float, 2> scores;
  __device__ float operator()(index_t h, index_t t, index_t) const { return scores(h, t); }
};

/// A sum with one query's weights added.
struct AddedWeights {
  View<const float, 2> weights;
  View<const float, 2> sums;
  index_t group;
  __device__ float operator()(index_t h, index_t t, index_t) const {
    return sums(h, t) + group_mean(weights, group, h, t);
  }
};

/// 0 behind the kept tokens.
template <int Threads>
__global__ void __launch_bounds__(Threads) clear_behind(View<float, 2> sums, KeptView kept, const FaultWord* fault) {
  if (faulted(fault)) return;
  const index_t h = blockIdx.y;
  const index_t t = grid_token();
  if (t >= kept.count(h) && t < sums.extent(1)) sums(h, t) = 0;
}

/// keep(h, t): protected, or one of the latest tokens that have a right to a place: of a count's share of recent tokens
/// as many as there are places that no protected token takes. A block per head walks back from the end; `later`
/// counts the tokens behind t that are not protected.
template <int Threads>
__global__ void __launch_bounds__(Threads)
    keep_recent(ScoredLayer layer, RecentAndTop s, View<const std::int32_t, 1> counts, const std::int32_t* kept,
                View<std::uint8_t, 2> keep) {
  __shared__ index_t sums[32];
  const index_t h = blockIdx.x;
  const index_t n = bounded_length(layer, h);
  const index_t open = counts[h] - kept[h];
  const auto wanted = static_cast<index_t>(s.recent * static_cast<float>(counts[h]));
  index_t taken = 0;
  for (index_t first = 0; first < n; first += Threads) {  // the first-latest token and the ones before it
    const index_t back = first + threadIdx.x;
    const index_t t = n - 1 - back;
    const bool is_kept = t >= 0 && layer.keep(h, t) != 0;
    index_t total = 0;
    const index_t later = taken + ::decant::detail::block_scan_before<index_t>(t >= 0 && !is_kept ? 1 : 0, total, sums);
    if (t >= 0) keep(h, t) = is_kept || (back < wanted && later < open) ? 1 : 0;
    taken += total;
  }
}

}  // namespace detail

/// O(query_heads * n^2 * key_dim).
template <class X>
void score(Cuda& cuda, const AccumulatedAttention& s, const X& x, View<float, 2> scores) {
  constexpr const char* where = "kv::AccumulatedAttention";
  const index_t most = detail::longest_head(x) < scores.extent(1) ? detail::longest_head(x) : scores.extent(1);
  const index_t longest = detail::begin_scores(cuda, where, x, scores, detail::need_queries(x, most, where));
  Workspace::Scope scope(cuda.workspace());
  const index_t have = x.queries.extent(1);  // no head is longer than this
  const detail::ColumnFinish finish{1.0f, 0, s.per_query, 0};
  detail::with_plain_rows(cuda, x, longest, true, false, [&](const auto& plain) {
    detail::grouped_columns(cuda, where, plain, longest, have < longest ? have : longest, s.group, finish, scores);
  });
}

/// scores: in device memory, at least as many per head as there are tokens.
template <class X>
void score(Cuda& cuda, const GivenScores& s, const X& x, View<float, 2> scores) {
  constexpr const char* where = "kv::GivenScores";
  require_equal(s.scores.extent(0), x.kv_heads(), where, "scores");
  const index_t most = scores.extent(1) < s.scores.extent(1) ? scores.extent(1) : s.scores.extent(1);
  detail::token_scores(cuda, where, x, detail::GivenScore{s.scores}, scores.slice(1, 0, most));
}

/// O(tokens of the layer).
template <class X>
void choose(Cuda& cuda, const RecentAndTop& s, const X&, const ScoredLayer& layer, View<const std::int32_t, 1> counts,
            KeptView kept) {
  constexpr const char* where = "kv::RecentAndTop";
  constexpr int threads = 1024;
  validate(s);
  detail::require_scored(layer, where);
  require_equal(kept.counts.extent(0), counts.extent(0), where, "kept.counts");
  Workspace::Scope scope(cuda.workspace());
  const index_t heads = layer.kv_heads();
  const auto keep = cuda.workspace().template take_view<std::uint8_t>(heads, layer.keep.extent(1));
  const std::int32_t* const is_kept = detail::protected_counts(cuda, layer, where);
  launch(cuda, where, detail::keep_recent<threads>, CudaGrid{dim3(static_cast<unsigned>(heads)), dim3(threads)}, layer,
         s, counts, is_kept, keep);
  detail::choose_top(cuda, layer, keep, counts, kept, where);
}

/// Adds one query's weights to the sums; see h2o.hpp. weights and sums are in device memory and hold at least x's
/// longest head: a fault when it is longer.
template <class X>
void accumulate(Cuda& cuda, const X& x, View<const float, 2> weights, View<float, 2> sums) {
  constexpr const char* where = "kv::accumulate";
  const index_t group = detail::weights_group(weights, x.kv_heads(), where);
  require_equal(sums.extent(0), x.kv_heads(), where, "sums");
  const index_t most = sums.extent(1) < weights.extent(1) ? sums.extent(1) : weights.extent(1);
  detail::token_scores(cuda, where, x, detail::AddedWeights{weights, sums, group}, sums.slice(1, 0, most));
}

/// Moves the sums as compact() moves the rows; what is behind them becomes 0. Call it with the `kept` of compact().
inline void compact_sums(Cuda& cuda, View<float, 2> sums, KeptView kept) {
  constexpr const char* where = "kv::compact_sums";
  detail::compact_entries(cuda, sums, kept, where);
  launch(cuda, where, detail::clear_behind<detail::stage_threads>, detail::token_grid(sums.extent(1), sums.extent(0)),
         sums, kept, cuda.fault());
}

static_assert(KVEvictionPolicy<H2O, Cuda> && KVEvictionPolicy<AccumulatedAttention, Cuda> &&
              KVEvictionPolicy<GivenScores, Cuda>);

}  // namespace decant::kv

#endif
