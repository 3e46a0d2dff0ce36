// decant: draw.hpp on the device, token for token. Views point to device memory, keys too, so that a captured graph
// draws anew in each replay. A block per row, which reads 4 bytes per token once, and one tile of 1024 tokens again.
#ifndef DECANT_SAMPLING_DRAW_CUH
#define DECANT_SAMPLING_DRAW_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "../core/cuda.cuh"
#include "../core/row_sum.cuh"
#include "draw.hpp"

namespace decant::sampling {

namespace detail {

inline constexpr int draw_threads = 512;

struct WeightRows {
  View<const float, 2> rows;
  __device__ WeightTerm term(index_t r) const { return {rows.data() + r * rows.stride(0)}; }
  __device__ LogitRow row(index_t) const { return {}; }
};
struct FilteredRows {
  LogitRows rows;
  __device__ LogitTerm term(index_t r) const { return {rows.logits.data() + r * rows.logits.stride(0), rows.rows[r]}; }
  __device__ LogitRow row(index_t r) const { return rows.rows[r]; }
};

/// Whether there is nothing to draw: the row was given up, or names its token.
template <class Rows>
__device__ bool settled(const Rows& rows, index_t r, index_t n, const Drawn& out) {
  if (out.status[r] != RowStatus::ok) return true;
  RowStatus status = RowStatus::ok;
  std::int32_t token = 0;
  if (!draw_top(rows.row(r), n, status, token)) return false;
  __syncthreads();  // all have read the status
  if (threadIdx.x == 0) {
    out.status[r] = status;
    if (status == RowStatus::ok) out.tokens[r] = token;
  }
  return true;
}

/// Dynamic shared memory: a float for each tile.
template <class Rows>
__global__ void __launch_bounds__(draw_threads)
    draw_rows(Rows rows, index_t n, DrawKeys keys, Drawn out, Stream stream) {
  extern __shared__ float totals[];
  const index_t r = blockIdx.x;
  if (settled(rows, r, n, out)) return;
  const auto term = rows.term(r);
  const double sum = block_tile_totals(term, n, totals);
  if (threadIdx.x >= 32) return;
  RowStatus status = sum <= 1e300 ? RowStatus::ok : RowStatus::bad_row;
  index_t token = -1;
  if (sum > 0 && status == RowStatus::ok) {
    token = warp_draw_index(term, n, totals, sum, keys.at(r).uniform(0, stream));
  }
  if (threadIdx.x != 0) return;
  if (token >= 0) out.tokens[r] = static_cast<std::int32_t>(token);
  else if (status == RowStatus::ok) status = RowStatus::empty_support;
  out.status[r] = status;
}

/// race_row of draw.hpp by a block of whole warps; the result in all its threads. doubles, ints: room for 32.
template <class Term>
__device__ RowStatus block_race(const Term& term, index_t n, const DrawKey& key, double* doubles, std::int32_t* ints,
                                std::int32_t& winner) {
  using ::decant::detail::block_reduce;
  using ::decant::detail::Larger;
  constexpr std::int32_t none = 0x7fffffff;
  double best = -1;
  std::int32_t token = none;
  std::int32_t bad = 0;
  for (index_t i = threadIdx.x; i < n; i += blockDim.x) {
    const float p = term(i);
    bad |= p != p ? 1 : 0;
    if (!(p > 0)) continue;
    const double score = static_cast<double>(p) / exponential_noise(key, static_cast<std::int32_t>(i));
    if (score > best) {
      best = score;
      token = static_cast<std::int32_t>(i);
    }
  }
  bad = block_reduce(bad, Larger{}, std::int32_t{0}, ints);
  const double most = block_reduce(best, Larger{}, -1.0, doubles);
  // The lowest token is the largest of what it lacks to `none`.
  const std::int32_t lacks = block_reduce(best == most ? none - token : 0, Larger{}, std::int32_t{0}, ints);
  if (bad != 0) return RowStatus::bad_row;
  if (!(most >= 0)) return RowStatus::empty_support;
  winner = none - lacks;
  return RowStatus::ok;
}

template <class Rows>
__global__ void __launch_bounds__(draw_threads) race_rows(Rows rows, index_t n, DrawKeys keys, Drawn out) {
  __shared__ double doubles[32];
  __shared__ std::int32_t ints[32];
  const index_t r = blockIdx.x;
  if (settled(rows, r, n, out)) return;
  std::int32_t token = -1;
  const RowStatus status = block_race(rows.term(r), n, keys.at(r), doubles, ints, token);
  if (threadIdx.x != 0) return;
  if (status == RowStatus::ok) out.tokens[r] = token;
  out.status[r] = status;
}

template <class Rows>
void launch_draw(Cuda& cuda, const Rows& rows, index_t count, index_t n, const DrawKeys& keys, const Drawn& out,
                 Stream stream, const char* where) {
  const CudaGrid grid{dim3(static_cast<unsigned>(count)), dim3(draw_threads),
                      sizeof(float) * static_cast<std::size_t>(row_tiles(n))};
  launch(cuda, where, draw_rows<Rows>, grid, rows, n, keys, out, stream);
}

template <class Rows>
void launch_race(Cuda& cuda, const Rows& rows, index_t count, index_t n, const DrawKeys& keys, const Drawn& out,
                 const char* where) {
  launch(cuda, where, race_rows<Rows>, CudaGrid{dim3(static_cast<unsigned>(count)), dim3(draw_threads)}, rows, n, keys,
         out);
}

}  // namespace detail

/// draw() of draw.hpp.
inline void draw(Cuda& cuda, View<const float, 2> weights, const DrawKeys& keys, const Drawn& out,
                 Stream stream = Stream::emit) {
  constexpr const char* where = "sampling::draw";
  detail::require_draw(weights, keys, out, where, "weights");
  detail::launch_draw(cuda, detail::WeightRows{weights}, weights.extent(0), weights.extent(1), keys, out, stream,
                      where);
}
inline void draw(Cuda& cuda, const LogitRows& rows, const DrawKeys& keys, const Drawn& out,
                 Stream stream = Stream::emit) {
  constexpr const char* where = "sampling::draw";
  detail::require_draw(rows.logits, keys, out, where, "rows.logits");
  require_equal(rows.rows.extent(0), rows.logits.extent(0), where, "rows.rows");
  detail::launch_draw(cuda, detail::FilteredRows{rows}, rows.logits.extent(0), rows.logits.extent(1), keys, out, stream,
                      where);
}

/// race() of draw.hpp.
inline void race(Cuda& cuda, View<const float, 2> weights, const DrawKeys& keys, const Drawn& out) {
  constexpr const char* where = "sampling::race";
  detail::require_draw(weights, keys, out, where, "weights");
  detail::launch_race(cuda, detail::WeightRows{weights}, weights.extent(0), weights.extent(1), keys, out, where);
}
inline void race(Cuda& cuda, const LogitRows& rows, const DrawKeys& keys, const Drawn& out) {
  constexpr const char* where = "sampling::race";
  detail::require_draw(rows.logits, keys, out, where, "rows.logits");
  require_equal(rows.rows.extent(0), rows.logits.extent(0), where, "rows.rows");
  detail::launch_race(cuda, detail::FilteredRows{rows}, rows.logits.extent(0), rows.logits.extent(1), keys, out, where);
}

}  // namespace decant::sampling

#endif
