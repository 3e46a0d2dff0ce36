// decant: BackwardLOO on Cuda, in double: a block of threads per query for the attention, then one per head that evicts
// token after token. Every number has one owner and the CPU's order of operations, without fused products: the CPU's
// scores and tokens, bit for bit, ties included (host compilers must not fuse either: ISO mode, or no FMA target).
// Reads, per head and eviction, 24 bytes per query and token and 4 per value dim and token, and writes 16 per query and
// token, from L2 for the most part; 22 FLOPs in double and a division per query and token, 2 per value dim and token.
#ifndef DECANT_KV_BACKWARD_LOO_CUH
#define DECANT_KV_BACKWARD_LOO_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "backward_loo.hpp"
#include "detail/subset.cuh"
#include "eviction.cuh"

namespace decant::kv {

namespace detail {

inline constexpr int loo_threads = 512;

/// What an eviction does to one query's weights: a scale of 0 means nothing, for a query that loses its last token.
struct LooMove {
  double f;
  double scale;
};

/// LooHead of all heads; a head's queries are the first of `rows`, its tokens the first of `room`.
struct LooScratch {
  View<const float, 3> values;  // [heads][dim][room]
  View<double, 2> squares;      // [heads][room]
  View<double, 3> weights;      // [heads][rows][room]
  View<double, 3> products;     // [heads][rows][room]
  View<double, 3> targets;      // [heads][rows][room]
  View<LooQuery, 2> queries;    // [heads][rows]
};

/// How many of the last tokens have queries that look.
__device__ inline index_t loo_window(const BackwardLOO& p, index_t n) {
  return p.window < n ? p.window : n;
}

/// One query: its softmax, its output, and what the tokens need of that. grid (rows, heads)
template <class X>
__global__ __launch_bounds__(loo_threads) void loo_prepare_kernel(const X x, BackwardLOO p, View<const float, 3> keys,
                                                                  LooScratch s, const FaultWord* fault) {
  extern __shared__ double shared_doubles[];
  __shared__ double tile[loo_threads];
  __shared__ double tops[32];
  __shared__ double sum_of_all;
  if (faulted(fault)) return;
  const index_t h = blockIdx.y;
  const index_t r = blockIdx.x;
  const index_t n = x.length(h);
  const index_t window = loo_window(p, n);
  const index_t group = x.queries.extent(0) / x.kv_heads();
  if (r >= window * group) return;
  const index_t key_dim = keys.extent(1);
  const index_t dim = s.values.extent(1);
  const index_t room = s.values.extent(2);
  double* const query = shared_doubles;
  double* const output = shared_doubles + key_dim;
  double* const a = &s.weights(h, r, index_t{0});
  const index_t visible = n - window + r / group + 1;
  for (index_t d = threadIdx.x; d < key_dim; d += loo_threads) {
    const index_t column = x.queries.extent(1) - window + r / group;
    query[d] = static_cast<double>(::decant::detail::widen(x.queries(h * group + r % group, column, d)));
  }
  __syncthreads();
  double top = -__builtin_huge_val();
  for (index_t t = threadIdx.x; t < n; t += loo_threads) {
    const float* const key = &keys(h, index_t{0}, t);
    double product = 0;
#pragma unroll 4
    for (index_t d = 0; d < key_dim; ++d) {
      product = ::decant::detail::add_product(product, query[d], static_cast<double>(key[d * room]));
    }
    a[t] = t < visible ? product / sqrt(static_cast<double>(key_dim)) : -__builtin_huge_val();
    top = a[t] > top ? a[t] : top;
  }
  top = ::decant::detail::block_reduce(top, Larger{}, -__builtin_huge_val(), tops);
  double total = 0;  // of thread 0
  for (index_t first = 0; first < n; first += loo_threads) {
    const index_t t = first + threadIdx.x;
    if (t < n) a[t] = tile[threadIdx.x] = loo_exp(a[t] - top);
    __syncthreads();
    if (threadIdx.x == 0) {
      for (index_t i = 0; i < loo_threads && first + i < n; ++i) total += tile[i];
      sum_of_all = total;
    }
    __syncthreads();
  }
  for (index_t t = threadIdx.x; t < n; t += loo_threads) a[t] /= sum_of_all;
  __syncthreads();
  for (index_t d = threadIdx.x; d < dim; d += loo_threads) {
    const float* const value = &s.values(h, d, index_t{0});
    double sum = 0;
#pragma unroll 8
    for (index_t t = 0; t < n; ++t) sum = ::decant::detail::add_product(sum, a[t], static_cast<double>(value[t]));
    output[d] = sum;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    const double square = LooHead::dot(output, output, dim);
    s.queries(h, r) = {square, square, square};
  }
  for (index_t t = threadIdx.x; t < n; t += loo_threads) {
    const float* const value = &s.values(h, index_t{0}, t);
    double product = 0;
    double square = 0;
#pragma unroll 4
    for (index_t d = 0; d < dim; ++d) {
      const auto v = static_cast<double>(value[d * room]);
      product = ::decant::detail::add_product(product, output[d], v);
      square = ::decant::detail::add_product(square, v, v);
    }
    s.products(h, r, t) = s.targets(h, r, t) = product;
    if (r == 0) s.squares(h, t) = square;
  }
}

/// One head's part of the scratch.
struct LooTokens {
  index_t rows;
  index_t room;
  double* weights;
  double* products;
  const double* targets;
  LooQuery* queries;

  __device__ LooTokens(const LooScratch& s, index_t h, index_t rows_of)
      : rows(rows_of),
        room(s.values.extent(2)),
        weights(&s.weights(h, index_t{0}, index_t{0})),
        products(&s.products(h, index_t{0}, index_t{0})),
        targets(&s.targets(h, index_t{0}, index_t{0})),
        queries(&s.queries(h, index_t{0})) {}

  /// The query after the loss of token `gone`, and what that does to its weights.
  __device__ LooMove lose(index_t r, index_t gone, double square) const {
    const index_t at = r * room + gone;
    const double a = weights[at];
    if (a >= 1) return {0, 0};
    const double f = a / (1 - a);
    queries[r] = loo_without(queries[r], f, products[at], targets[at], square);
    return {f, 1 / (1 - a)};
  }

  /// LooHead::cost; Moved: after every query's move. with_gone: the token's product with the value that went.
  template <bool Moved>
  __device__ double cost(index_t t, double square, const LooMove* moves = nullptr, double with_gone = 0) const {
    double sum = 0;
    bool alone = false;
#pragma unroll(Moved ? 4 : 2)
    for (index_t r = 0; r < rows; ++r) {
      const index_t at = r * room + t;
      double a = weights[at];
      double product = products[at];
      if (Moved && moves[r].scale != 0) {
        product = ::decant::detail::add_product(product, moves[r].f, product - with_gone);
        a *= moves[r].scale;
        products[at] = product;
        weights[at] = a;
      }
      alone = alone || a >= 1;
      sum += loo_change(queries[r], a, product, targets[at], square);
    }
    return alone ? __builtin_huge_val() : sum;
  }
};

/// scores(h, t): the cost of the token alone.
template <class X>
__global__ __launch_bounds__(stage_threads) void loo_scores_kernel(const X x, BackwardLOO p, LooScratch s,
                                                                   View<float, 2> scores, const FaultWord* fault) {
  if (faulted(fault)) return;
  const index_t h = blockIdx.y;
  const index_t t = grid_token();
  const index_t n = x.length(h);
  if (t >= n) return;
  const LooTokens tokens(s, h, loo_window(p, n) * (x.queries.extent(0) / x.kv_heads()));
  scores(h, t) = static_cast<float>(tokens.cost<false>(t, s.squares(h, t)));
}

/// A block per head. moves [heads][rows], gone [heads][room]: scratch.
template <int Threads>
__global__ void __launch_bounds__(Threads, 1)
    loo_evict_kernel(BackwardLOO p, index_t group, LooScratch s, View<LooMove, 2> moves, View<std::uint8_t, 2> gone,
                     ScoredLayer layer, View<const std::int32_t, 1> counts, KeptView kept, const FaultWord* fault) {
  extern __shared__ double shared_doubles[];  // [dim]: the value that went
  if (faulted(fault)) return;
  const index_t h = blockIdx.x;
  const index_t n = bounded_length(layer, h);
  const index_t count = counts[h];
  const index_t dim = s.values.extent(1);
  std::uint8_t* const is_gone = &gone(h, index_t{0});
  if (n > count) {
    const LooTokens tokens(s, h, loo_window(p, n) * group);
    LooMove* const move = &moves(h, index_t{0});
    const float* const values = &s.values(h, index_t{0}, index_t{0});
    Candidate best;
    const auto offer = [&](index_t t, double cost) {
      if (layer.keep(h, t) == 0) best.join(-loo_rank(cost), static_cast<int>(t));
    };
    for (index_t t = threadIdx.x; t < n; t += Threads) {
      is_gone[t] = 0;
      offer(t, tokens.cost<false>(t, s.squares(h, t)));
    }
    for (index_t left = n; left > count; --left) {
      const index_t out = best_rank(best);  // of equal ones the last: ties are kept from the front
      if (threadIdx.x == 0) is_gone[out] = 1;
      if (left - 1 == count) break;
      for (index_t r = threadIdx.x; r < tokens.rows; r += Threads) move[r] = tokens.lose(r, out, s.squares(h, out));
      for (index_t d = threadIdx.x; d < dim; d += Threads) {
        shared_doubles[d] = static_cast<double>(values[d * tokens.room + out]);
      }
      __syncthreads();
      best = Candidate{};
      for (index_t t = threadIdx.x; t < n; t += Threads) {
        if (is_gone[t]) continue;
        double with_gone = 0;
#pragma unroll 4
        for (index_t d = 0; d < dim; ++d) {
          with_gone = ::decant::detail::add_product(with_gone, shared_doubles[d],
                                                    static_cast<double>(values[d * tokens.room + t]));
        }
        offer(t, tokens.cost<true>(t, s.squares(h, t), move, with_gone));
      }
    }
  } else {
    for (index_t t = threadIdx.x; t < n; t += Threads) is_gone[t] = 0;
  }
  __syncthreads();
  keep_marked(is_gone, 0, n, kept, h);
}

/// Reports heads that are too long. One block.
template <class X>
__global__ void loo_length_kernel(const X x, FaultWord* fault) {
  if (__syncthreads_or(faulted(fault))) return;
  for (index_t h = threadIdx.x; h < x.kv_heads(); h += blockDim.x) {
    if (x.length(h) > BackwardLOO::max_tokens) report(fault, Fault::too_long, x.layer, h, x.length(h));
  }
}

/// What is wrong with a layer, first. Returns a bound of the lengths.
template <class X>
index_t begin_loo(Cuda& cuda, const char* where, const BackwardLOO& p, const X& x, View<float, 2> scores) {
  validate(p);
  const index_t longest = begin_scores(cuda, where, x, scores, need_queries(x, p.window, where));
  launch(cuda, where, loo_length_kernel<X>, CudaGrid{dim3(1), dim3(stage_threads)}, x, cuda.fault());
  return longest < BackwardLOO::max_tokens ? longest : BackwardLOO::max_tokens;
}

/// Every query's attention, in the caller's scope. x: a plain layer of heads of at most `longest` tokens.
template <class X>
LooScratch prepare_loo(Cuda& cuda, const char* where, const BackwardLOO& p, const X& x, index_t longest) {
  Workspace& w = cuda.workspace();
  const index_t heads = x.kv_heads();
  const index_t room = padded_tokens(longest);
  const index_t rows = (p.window < longest ? p.window : longest) * (x.queries.extent(0) / heads);
  const LooScratch s{transpose(cuda, where, LayerRows<X>{x, false}, heads, x.cache.value_dim(), longest),
                     w.template take_view<double>(heads, room),
                     w.template take_view<double>(heads, rows, room),
                     w.template take_view<double>(heads, rows, room),
                     w.template take_view<double>(heads, rows, room),
                     w.template take_view<LooQuery>(heads, rows)};
  Workspace::Scope scope(w);
  const auto keys = transpose(cuda, where, LayerRows<X>{x, true}, heads, x.cache.key_dim(), longest);
  const auto shared = static_cast<std::size_t>(x.cache.key_dim() + x.cache.value_dim()) * sizeof(double);
  launch(cuda, where, loo_prepare_kernel<X>,
         CudaGrid{dim3(static_cast<unsigned>(rows), static_cast<unsigned>(heads)), dim3(loo_threads), shared}, x, p,
         keys, s, cuda.fault());
  return s;
}

}  // namespace detail

/// O(query_heads * window * n * key_dim). Scratch: 24 bytes per token, query head and query of the window, 4 per token,
/// KV head and dim of keys and values.
template <class X>
void score(Cuda& cuda, const BackwardLOO& p, const X& x, View<float, 2> scores) {
  constexpr const char* where = "kv::BackwardLOO";
  const index_t longest = detail::begin_loo(cuda, where, p, x, scores);
  Workspace::Scope scope(cuda.workspace());
  detail::with_plain_rows(cuda, x, longest, true, true, [&](const auto& plain) {
    using P = std::remove_cvref_t<decltype(plain)>;
    const detail::LooScratch s = detail::prepare_loo(cuda, where, p, plain, longest);
    launch(cuda, where, detail::loo_scores_kernel<P>, detail::token_grid(longest, x.kv_heads()), plain, p, s, scores,
           cuda.fault());
  });
}

/// The selector: ignores the scores that came. Scratch as score(), and a byte per token.
/// O(kv_heads * n * evicted * (window * group + value_dim)), a block per head.
template <class X>
void choose(Cuda& cuda, const BackwardLOO& p, const X& x, const ScoredLayer& layer, View<const std::int32_t, 1> counts,
            KeptView kept) {
  constexpr const char* where = "kv::BackwardLOO";
  constexpr int threads = detail::loo_threads;
  const index_t longest = detail::begin_loo(cuda, where, p, x, layer.scores);
  detail::check_subset(cuda, where, layer, counts, kept);
  Workspace::Scope scope(cuda.workspace());
  detail::with_plain_rows(cuda, x, longest, true, true, [&](const auto& plain) {
    const detail::LooScratch s = detail::prepare_loo(cuda, where, p, plain, longest);
    const index_t heads = x.kv_heads();
    const auto moves = cuda.workspace().template take_view<detail::LooMove>(heads, s.queries.extent(1));
    const auto gone = cuda.workspace().template take_view<std::uint8_t>(heads, s.values.extent(2));
    launch(cuda, where, detail::loo_evict_kernel<threads>,
           CudaGrid{dim3(static_cast<unsigned>(heads)), dim3(threads),
                    static_cast<std::size_t>(x.cache.value_dim()) * sizeof(double)},
           p, x.queries.extent(0) / heads, s, moves, gone, layer, counts, kept, cuda.fault());
  });
}

static_assert(KVEvictionPolicy<BackwardLOO, Cuda>);

}  // namespace decant::kv

#endif
