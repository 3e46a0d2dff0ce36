// decant: GreedyLogDet on Cuda, in double: a block of threads per matrix or head walks over the steps. Every element
// has one owner and the CPU's order of sums, without fused products: the same rows and weights give the same choice,
// bit for bit, ties included (host compilers must not fuse either: ISO mode, or no FMA target). GreedyCapKV's weights
// agree with the CPU's to rounding only, so that through select() tokens may differ whose gains do not differ by more.
// Reads, per step, n dim elements (4 bytes, of double rows 8) and 8 n bytes of gains, which it writes back, from L2
// for the most part; 2 n dim + 5 dim^2 FLOPs in double. The inverse is in shared memory (8 dim^2 bytes) where it fits:
// up to a dim of 168 on devices with 227 KiB.
#ifndef DECANT_KV_GREEDY_LOG_DET_CUH
#define DECANT_KV_GREEDY_LOG_DET_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "capkv.cuh"
#include "detail/subset.cuh"
#include "greedy_log_det.hpp"

namespace decant::kv {

namespace detail {

/// One matrix of weighted rows in doubles, a part of which is chosen: a problem for greedy_kernel.
struct ChosenRows {
  using element = double;
  View<const double, 2> matrix;
  View<const double, 1> weights;
  index_t wanted;
  View<std::uint8_t, 1> chosen;

  __device__ index_t length(index_t) const { return matrix.extent(0); }
  __device__ double operator()(index_t, index_t i, index_t d) const { return matrix(i, d); }
  __device__ index_t count(index_t) const { return wanted; }
  __device__ double weight(index_t, index_t i) const { return weights[i]; }
  __device__ bool marked(index_t, index_t i) const { return chosen[i] != 0; }
  __device__ void write(index_t, const std::uint8_t* marks) const {
    for (index_t i = threadIdx.x; i < matrix.extent(0); i += blockDim.x) chosen[i] = marks[i];
  }
};

/// The tokens of a scored layer.
struct ChosenTokens {
  using element = float;
  ScoredLayer layer;
  View<const std::int32_t, 1> counts;
  KeptView kept;

  __device__ index_t length(index_t h) const { return bounded_length(layer, h); }
  __device__ index_t count(index_t h) const { return counts[h]; }
  __device__ double weight(index_t h, index_t i) const { return static_cast<double>(layer.scores(h, i)); }
  __device__ bool marked(index_t h, index_t i) const { return layer.keep(h, i) != 0; }
  __device__ void write(index_t h, const std::uint8_t* marks) const { keep_marked(marks, 1, length(h), kept, h); }
};

/// Scratch of all heads.
template <class E>
struct GreedyScratch {
  View<const E, 3> columns;     // [heads][dim][room], room a multiple of column_padding: the rows, transposed
  View<double, 2> gains;        // [heads][room]
  View<std::uint8_t, 2> marks;  // [heads][room]
  double* inverses;             // [heads][dim][dim], where they do not fit into shared memory, else null
};

/// One head, for all threads of a block. Element (a, b) of the inverse lies at b * dim + a.
template <class Problem>
struct GreedyHead {
  using E = typename Problem::element;
  static constexpr int each = ::decant::detail::per_access<E>;  // rows that a thread takes at once
  using Rows = ::decant::detail::Pack<E, each>;

  const Problem& p;
  index_t h;
  index_t n;
  int dim;
  index_t room;
  const E* columns;
  double* gains;
  std::uint8_t* marks;
  double* z;        // [dim], shared
  double* u;        // [dim], shared
  double* inverse;  // [dim][dim]

  __device__ double weight(index_t i) const {
    const double w = p.weight(h, i);
    return w > 0 ? w : 0.0;
  }
  __device__ Rows rows(int d, index_t i) const { return *reinterpret_cast<const Rows*>(columns + d * room + i); }

  __device__ void begin(double ridge) const {
    for (int b = static_cast<int>(threadIdx.x) / 32; b < dim; b += subset_threads / 32) {
      for (int a = static_cast<int>(threadIdx.x) % 32; a < dim; a += 32) {
        inverse[static_cast<index_t>(b) * dim + a] = a == b ? 1.0 / ridge : 0.0;
      }
    }
    for (index_t i = threadIdx.x * index_t{each}; i < n; i += subset_threads * each) {
      double gain[each] = {};
      for (int d = 0; d < dim; ++d) {
        const Rows row = rows(d, i);
#pragma unroll
        for (int k = 0; k < each; ++k) {
          const auto value = static_cast<double>(row.at[k]);
          gain[k] += value * value / ridge;
        }
      }
#pragma unroll
      for (int k = 0; k < each; ++k) {
        gains[i + k] = gain[k];
        marks[i + k] = i + k < n && p.marked(h, i + k) ? 1 : 0;
      }
    }
    __syncthreads();
  }

  /// Takes row j into the matrix; returns this thread's best of the rows that are not marked. After a barrier.
  __device__ Candidate add(index_t j) const {
    for (int d = static_cast<int>(threadIdx.x); d < dim; d += subset_threads) {
      u[d] = static_cast<double>(columns[d * room + j]);
    }
    __syncthreads();
    const double factor = greedy_factor(weight(j), gains[j]);
    for (int a = static_cast<int>(threadIdx.x); a < dim; a += subset_threads) {
      double sum = 0;
#pragma unroll 4
      for (int b = 0; b < dim; ++b) {
        sum = ::decant::detail::add_product(sum, inverse[static_cast<index_t>(b) * dim + a], u[b]);
      }
      z[a] = sum;
    }
    __syncthreads();
    for (int b = static_cast<int>(threadIdx.x) / 32; b < dim; b += subset_threads / 32) {
      for (int a = static_cast<int>(threadIdx.x) % 32; a < dim; a += 32) {
        double& element = inverse[static_cast<index_t>(b) * dim + a];
        element = greedy_update(element, factor, z[a], z[b]);
      }
    }
    Candidate best;
    for (index_t i = threadIdx.x * index_t{each}; i < n; i += subset_threads * each) {
      double product[each] = {};
#pragma unroll 4
      for (int d = 0; d < dim; ++d) {
        const Rows row = rows(d, i);
#pragma unroll
        for (int k = 0; k < each; ++k) {
          product[k] = ::decant::detail::add_product(product[k], static_cast<double>(row.at[k]), z[d]);
        }
      }
#pragma unroll
      for (int k = 0; k < each; ++k) {
        gains[i + k] = greedy_update(gains[i + k], factor, product[k], product[k]);
        offer(i + k, best);
      }
    }
    return best;
  }

  __device__ void offer(index_t i, Candidate& best) const {
    if (i < n && marks[i] == 0) best.join(greedy_value(weight(i), gains[i]), -1 - static_cast<int>(i));
  }
};

/// A block per head.
template <class Problem>
__global__ __launch_bounds__(subset_threads, 1) void greedy_kernel(const Problem problem,
                                                                   GreedyScratch<typename Problem::element> s,
                                                                   double ridge, const FaultWord* fault) {
  extern __shared__ double shared_doubles[];
  if (faulted(fault)) return;
  const index_t h = blockIdx.x;
  const index_t dim = s.columns.extent(1);
  const index_t n = problem.length(h);
  const index_t count = problem.count(h);
  if (n > 0) {
    const GreedyHead<Problem> head{problem,
                                   h,
                                   n,
                                   static_cast<int>(dim),
                                   s.columns.extent(2),
                                   s.columns.data() + h * dim * s.columns.extent(2),
                                   &s.gains(h, index_t{0}),
                                   &s.marks(h, index_t{0}),
                                   shared_doubles,
                                   shared_doubles + dim,
                                   s.inverses ? s.inverses + h * dim * dim : shared_doubles + 2 * dim};
    head.begin(ridge);
    index_t taken = 0;
    Candidate best;
    for (index_t first = 0; first < n; first += 32) {  // all warps see the same marks
      const index_t i = first + threadIdx.x % 32;
      unsigned marked = __ballot_sync(whole_warp, i < n && head.marks[i] != 0);
      for (; marked != 0; marked &= marked - 1, ++taken) {
        best = head.add(first + __ffs(static_cast<int>(marked)) - 1);
        __syncthreads();
      }
    }
    if (taken == 0) {
      for (index_t i = threadIdx.x; i < n; i += subset_threads) head.offer(i, best);
    }
    for (; taken < count; ++taken) {
      const index_t j = -1 - best_rank(best);
      if (threadIdx.x == 0) head.marks[j] = 1;
      __syncthreads();
      if (taken + 1 < count) best = head.add(j);
    }
    __syncthreads();
  }
  problem.write(h, &s.marks(h, index_t{0}));
}

/// Whoever's rows; heads of at most n.
template <class Problem, class Rows>
void greedy(Cuda& cuda, const char* where, const Problem& problem, const Rows& rows, index_t heads, index_t dim,
            index_t n, double ridge) {
  Workspace& w = cuda.workspace();
  const index_t room = padded_tokens(n);
  GreedyScratch<typename Problem::element> s{transpose(cuda, where, rows, heads, dim, n),
                                             w.template take_view<double>(heads, room),
                                             w.template take_view<std::uint8_t>(heads, room), nullptr};
  index_t shared = 2 * dim * 8;
  if (shared + dim * dim * 8 <= cuda.device().shared_bytes - 2048) {
    shared += dim * dim * 8;
  } else {
    s.inverses = w.template take<double>(heads * dim * dim);
  }
  launch(cuda, where, greedy_kernel<Problem>,
         CudaGrid{dim3(static_cast<unsigned>(heads)), dim3(subset_threads), static_cast<std::size_t>(shared)}, problem,
         s, ridge, cuda.fault());
}

/// Reports a count that the marked rows rule out. One block.
template <int Threads>
__global__ void __launch_bounds__(Threads) check_marked_kernel(const ChosenRows rows, FaultWord* fault) {
  __shared__ index_t sums[32];
  if (__syncthreads_or(faulted(fault))) return;
  index_t marked = 0;
  for (index_t i = threadIdx.x; i < rows.length(0); i += Threads) marked += rows.marked(0, i) ? 1 : 0;
  marked = ::decant::detail::block_reduce(marked, Plus{}, index_t{0}, sums);
  if (threadIdx.x == 0 && rows.wanted < marked) report(fault, Fault::subset, 0, 0, rows.wanted);
}

/// scores(h, t): the mean weight over the group.
template <class T, class X>
__global__ void mean_weights_kernel(const CapRows<T, X> rows, View<float, 2> scores, const FaultWord* fault) {
  if (faulted(fault)) return;
  const index_t h = blockIdx.y;
  const index_t i = blockIdx.x * index_t{blockDim.x} + threadIdx.x;
  if (i >= rows.rows(h * rows.group)) return;
  float sum = 0;
  for (index_t m = h * rows.group; m < (h + 1) * rows.group; ++m) {
    sum += rows.weight(m, i) / static_cast<float>(rows.group);
  }
  scores(h, rows.sinks() + i) = sum;
}

}  // namespace detail

/// Marks `count` of the rows as chosen, those that come in marked included (at most count of them, else that is told at
/// check(), and nothing is written). rows [n, dim], weights [n] of at least 0 (negative or NaN: as 0), ridge > 0. Ties
/// go to the lower row; a row that adds NaN comes last. O(count * n * dim) in one block. Scratch: 8 bytes per row and
/// column, 9 per row.
inline void greedy_log_det(Cuda& cuda, View<const double, 2> rows, View<const double, 1> weights, double ridge,
                           index_t count, View<std::uint8_t, 1> chosen) {
  constexpr const char* where = "kv::greedy_log_det";
  constexpr int threads = 256;
  const index_t n = rows.extent(0);
  require_equal(weights.extent(0), n, where, "weights");
  require_equal(chosen.extent(0), n, where, "chosen");
  require(ridge > 0, where, "ridge", "a positive number", ridge);
  require(n <= 0x7fffffff, where, "rows", "at most 2^31 - 1 rows", n);
  require(
      count >= 0 && count <= n, where, "count", [&] { return "0 to " + std::to_string(n); }, count);
  if (n == 0) return;
  Workspace::Scope scope(cuda.workspace());
  const detail::ChosenRows problem{rows, weights, count, chosen};
  launch(cuda, where, detail::check_marked_kernel<threads>, CudaGrid{dim3(1), dim3(threads)}, problem, cuda.fault());
  detail::greedy(cuda, where, problem, problem, 1, rows.extent(1), n, ridge);
}

/// O(kv_heads * count * n * value_dim), a block per head. Scratch: 4 bytes per token and value dim, 9 per token.
template <class X>
void choose(Cuda& cuda, const GreedyLogDet& s, const X& x, const ScoredLayer& layer, View<const std::int32_t, 1> counts,
            KeptView kept) {
  constexpr const char* where = "kv::GreedyLogDet";
  validate(s);
  const index_t longest = detail::begin_scores(cuda, where, x, layer.scores);
  detail::check_subset(cuda, where, layer, counts, kept);
  Workspace::Scope scope(cuda.workspace());
  detail::with_plain_rows(cuda, x, longest, false, true, [&](const auto& plain) {
    using P = std::remove_cvref_t<decltype(plain)>;
    detail::greedy(cuda, where, detail::ChosenTokens{layer, counts, kept}, detail::LayerRows<P>{plain, false},
                   x.kv_heads(), x.cache.value_dim(), longest, static_cast<double>(s.ridge));
  });
}

/// The mean weight over the group.
template <class X>
void score(Cuda& cuda, const GreedyCapKV& p, const X& x, View<float, 2> scores) {
  constexpr const char* where = "kv::CapKV";
  validate(p);
  const index_t longest = detail::begin_cap(cuda, where, p.weights, x, scores);
  Workspace::Scope scope(cuda.workspace());
  detail::sink_scores(cuda, where, x, longest, p.weights.protected_sinks(), 0.0f, scores);
  detail::with_plain_rows(cuda, x, longest, true, false, [&](const auto& plain) {
    using P = std::remove_cvref_t<decltype(plain)>;
    using T = detail::key_of<P>;
    const auto rows = detail::cap_rows(cuda, where, p.weights, plain, longest);
    launch(cuda, where, detail::mean_weights_kernel<T, P>,
           CudaGrid{dim3(cuda_blocks(longest, 128), static_cast<unsigned>(x.kv_heads())), dim3(128)}, rows, scores,
           cuda.fault());
  });
}

static_assert(KVEvictionPolicy<GreedyCapKV, Cuda>);

}  // namespace decant::kv

#endif
