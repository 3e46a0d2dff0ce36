// decant: the mean of the prompt's queries on Cuda, and what its rotation to the coming positions needs
// (future_query.hpp). Sums are in double and of one order. Reads the queries once.
#ifndef DECANT_KV_DETAIL_FUTURE_QUERY_CUH
#define DECANT_KV_DETAIL_FUTURE_QUERY_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "device_layer.cuh"
#include "future_query.hpp"
#include "key_rows.cuh"

namespace decant::kv::detail {

inline constexpr index_t mean_span = 256;  // queries of one partial sum

/// The first query that counts: of the last tokens' queries the first that belongs to no sink; sinks < 0: all count.
template <class X>
__device__ index_t first_counted(const X& x, index_t have, index_t sinks) {
  return sinks < 0 ? 0 : first_query(x, have, sinks);
}

/// sums [query_heads][spans][dim]
template <class X, class Q>
__global__ __launch_bounds__(row_threads, 2) void query_sums_kernel(const X x, View<const Q, 3> queries, index_t sinks,
                                                                    View<double, 3> sums, const FaultWord* fault) {
  __shared__ double parts[8][32];
  if (faulted(fault)) return;
  const index_t first = first_counted(x, queries.extent(1), sinks);
  const index_t begin = blockIdx.x * mean_span;
  const index_t end = begin + mean_span < queries.extent(1) ? begin + mean_span : queries.extent(1);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  for (index_t d0 = 0; d0 < queries.extent(2); d0 += 32) {
    double sum = 0;
    if (d0 + lane < queries.extent(2)) {
#pragma unroll 4
      for (index_t i = (begin > first ? begin : first) + warp; i < end; i += 8) {
        sum += static_cast<double>(widen(queries(blockIdx.y, i, d0 + lane)));
      }
    }
    parts[warp][lane] = sum;
    __syncthreads();
    if (warp == 0 && d0 + lane < queries.extent(2)) {
      for (int w = 1; w < 8; ++w) sum += parts[w][lane];
      sums(blockIdx.y, blockIdx.x, d0 + lane) = sum;
    }
    __syncthreads();
  }
}

/// The mean query of every query head, and which query is the first that counts.
struct MeanQueries {
  View<double, 2> means;  // [query_heads][dim]
  index_t* first;
};

template <class X, class Q>
__global__ void query_means_kernel(const X x, View<const Q, 3> queries, index_t sinks, View<const double, 3> sums,
                                   MeanQueries out, const FaultWord* fault) {
  if (faulted(fault)) return;
  const index_t first = first_counted(x, queries.extent(1), sinks);
  if (blockIdx.x == 0 && threadIdx.x == 0) *out.first = first;
  for (index_t d = threadIdx.x; d < queries.extent(2); d += blockDim.x) {
    double sum = 0;
    for (index_t i = 0; i < sums.extent(1); ++i) sum += sums(blockIdx.x, i, d);
    out.means(blockIdx.x, d) = sum / static_cast<double>(queries.extent(1) - first);
  }
}

/// In the caller's scope. sinks: as first_counted.
template <class X, class Q>
MeanQueries mean_queries(Cuda& cuda, const char* where, const X& x, View<const Q, 3> queries, index_t sinks) {
  const index_t heads = queries.extent(0);
  const MeanQueries out{cuda.workspace().template take_view<double>(heads, queries.extent(2)),
                        cuda.workspace().template take<index_t>(1)};
  const unsigned spans = cuda_blocks(queries.extent(1), mean_span);
  const auto sums = cuda.workspace().template take_view<double>(heads, spans, queries.extent(2));
  launch(cuda, where, query_sums_kernel<X, Q>, CudaGrid{dim3(spans, static_cast<unsigned>(heads)), dim3(row_threads)},
         x, queries, sinks, sums, cuda.fault());
  launch(cuda, where, query_means_kernel<X, Q>, CudaGrid{dim3(static_cast<unsigned>(heads)), dim3(128)}, x, queries,
         sinks, sums, out, cuda.fault());
  return out;
}

/// rotations[f] for all pairs over the `count` coming positions; none are turned when count is 0.
template <class X>
__global__ void mean_rotations_kernel(const X x, index_t count, MeanRotation* rotations, const FaultWord* fault) {
  if (faulted(fault)) return;
  const index_t dim = x.cache.key_dim();
  const index_t f = blockIdx.x * index_t{blockDim.x} + threadIdx.x;
  if (f >= x.rope.rotary_dim(dim) / 2) return;
  rotations[f] = count > 0 ? mean_rotation(x.rope.frequency(f, dim), next_position(x), count) : MeanRotation{1.0, 0.0};
}

/// In the caller's scope.
template <class X>
const MeanRotation* mean_rotations(Cuda& cuda, const char* where, const X& x, index_t count) {
  const index_t pairs = x.rope.rotary_dim(x.cache.key_dim()) / 2;
  auto* const rotations = cuda.workspace().template take<MeanRotation>(pairs);
  launch(cuda, where, mean_rotations_kernel<X>, CudaGrid{dim3(cuda_blocks(pairs, 64)), dim3(64)}, x, count, rotations,
         cuda.fault());
  return rotations;
}

/// (a, b) turned.
__device__ inline void turn(const MeanRotation& r, double& a, double& b) {
  const double turned = a * r.cosine - b * r.sine;
  b = a * r.sine + b * r.cosine;
  a = turned;
}

/// scores(h, t) = value for the first `sinks` tokens.
template <class X>
__global__ void sink_scores_kernel(const X x, index_t sinks, float value, View<float, 2> scores,
                                   const FaultWord* fault) {
  if (faulted(fault)) return;
  const index_t h = blockIdx.y;
  const index_t t = blockIdx.x * index_t{blockDim.x} + threadIdx.x;
  if (t < sinks && t < x.length(h)) scores(h, t) = value;
}

template <class X>
void sink_scores(Cuda& cuda, const char* where, const X& x, index_t longest, index_t sinks, float value,
                 View<float, 2> scores) {
  launch(cuda, where, sink_scores_kernel<X>,
         CudaGrid{dim3(cuda_blocks(sinks < longest ? sinks : longest, 128), static_cast<unsigned>(x.kv_heads())),
                  dim3(128)},
         x, sinks, value, scores, cuda.fault());
}

}  // namespace decant::kv::detail

#endif
