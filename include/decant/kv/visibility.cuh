// decant: visibility on Cuda: which rows a layer computes or shows, as lists on the device, and the gather of the rows
// that go on: what SPEED does before its upper layers, and to their caches. The policies are visibility.hpp's.
//   computed_rows(cuda, speed, layer, layers, tokens, prompt, rows, counts);
//   kv::gather_rows(cuda, hidden, rows, counts, hidden_above);
//   visible_rows(cuda, speed, layer, layers, tokens_above, prompt, shown, counts);   // SPEED's transient pivot goes
//   compact(cuda, cache, {View<std::int32_t, 2>(shown.data(), {kv_heads, n}, {0, 1}), counts});
#ifndef DECANT_KV_VISIBILITY_CUH
#define DECANT_KV_VISIBILITY_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "detail/row_copy.cuh"
#include "detail/scored_layer.cuh"
#include "visibility.hpp"

namespace decant::kv {

namespace detail {

/// Where in the forward pass a question is asked.
struct VisibilityPlace {
  index_t layer;
  index_t layers;
  index_t prompt;
};

/// Lists the i for which the layer shows (Computed: computes) tokens[i], ascending; how many to every count. One block.
template <bool Computed, int Threads, class V>
__global__ void __launch_bounds__(Threads)
    list_rows(V v, VisibilityPlace at, View<const std::int32_t, 1> tokens, View<std::int32_t, 1> rows,
              View<std::int32_t, 1> counts, const FaultWord* fault) {
  if (faulted(fault)) return;
  __shared__ index_t shared[32];
  index_t listed = 0;
  for (index_t tile = 0; tile < tokens.extent(0); tile += Threads) {
    const index_t i = tile + threadIdx.x;
    bool is_in = false;
    if (i < tokens.extent(0)) {
      is_in = Computed ? computed(v, at.layer, at.layers, index_t{tokens[i]}, at.prompt)
                       : visible(v, at.layer, at.layers, index_t{tokens[i]}, at.prompt);
    }
    index_t all = 0;
    const index_t place = listed + ::decant::detail::block_scan_before(is_in ? index_t{1} : index_t{0}, all, shared);
    if (is_in) rows[place] = static_cast<std::int32_t>(i);
    listed += all;
  }
  for (index_t h = threadIdx.x; h < counts.extent(0); h += Threads) counts[h] = static_cast<std::int32_t>(listed);
}

template <bool Computed, class V>
void list_rows_of(Cuda& cuda, const V& v, const VisibilityPlace& at, const View<const std::int32_t, 1>& tokens,
                  const View<std::int32_t, 1>& rows, const View<std::int32_t, 1>& counts, const char* where) {
  constexpr int threads = 1024;
  validate(v);
  require(at.layers >= 1 && at.layer >= 0 && at.layer < at.layers, where, "layer",
          [&] { return "an index below layers = " + std::to_string(at.layers); }, at.layer);
  require(rows.extent(0) >= tokens.extent(0), where, "rows",
          [&] { return "room for " + std::to_string(tokens.extent(0)) + " rows"; }, rows.extent(0));
  launch(cuda, where, list_rows<Computed, threads, V>, CudaGrid{dim3(1), dim3(threads)}, v, at, tokens, rows, counts,
         cuda.fault());
}

template <int Threads>
__global__ void __launch_bounds__(Threads)
    check_row_list(index_t available, View<const std::int32_t, 1> rows, View<const std::int32_t, 1> count, index_t room,
                   FaultWord* fault) {
  const index_t n = count[0];
  if (threadIdx.x == 0 && (n < 0 || n > rows.extent(0) || n > room)) report(fault, Fault::room, 0, 0, n);
  for (index_t i = threadIdx.x; i < n && i < rows.extent(0); i += Threads) {
    if (rows[i] < 0 || rows[i] >= available) report(fault, Fault::kept, 0, 0, i);
  }
}

template <int Unit, class T>
__global__ void __launch_bounds__(copy_threads)
    gather_rows_kernel(View<const T, 2> x, View<const std::int32_t, 1> rows, View<const std::int32_t, 1> count,
                       View<T, 2> out, index_t per_block, const FaultWord* fault) {
  if (faulted(fault)) return;
  const index_t first = blockIdx.x * per_block;
  const index_t left = count[0] - first;
  copy_block<Unit>(left < per_block ? left : per_block, static_cast<int>(x.extent(1) / Unit), [&](int r) {
    return RowPair<T, T>{&x(rows[first + r], index_t{0}), &out(first + r, index_t{0})};
  });
}

}  // namespace detail

/// Writes to `rows`, ascending, the positions in `tokens` of the tokens that `layer` of `layers` shows to later ones,
/// of a sequence whose first `prompt` tokens are its prompt; and how many they are to each element of `counts`. Lists
/// are on the device; rows: room for all of tokens. O(tokens).
template <VisibilityPolicy V>
void visible_rows(Cuda& cuda, const V& v, index_t layer, index_t layers, View<const std::int32_t, 1> tokens,
                  index_t prompt, View<std::int32_t, 1> rows, View<std::int32_t, 1> counts) {
  detail::list_rows_of<false>(cuda, v, {layer, layers, prompt}, tokens, rows, counts, "kv::visible_rows");
}

/// The same for the tokens that the layer must compute.
template <VisibilityPolicy V>
void computed_rows(Cuda& cuda, const V& v, index_t layer, index_t layers, View<const std::int32_t, 1> tokens,
                   index_t prompt, View<std::int32_t, 1> rows, View<std::int32_t, 1> counts) {
  detail::list_rows_of<true>(cuda, v, {layer, layers, prompt}, tokens, rows, counts, "kv::computed_rows");
}

/// Row i of `out` becomes row rows[i] of x, for i below count[0]. x [n, width] and out [at least count[0], width], rows
/// contiguous, elsewhere in memory. A fault when a row is not there or there is no room. Moves 2 * width * sizeof(T)
/// bytes per row.
template <class T>
void gather_rows(Cuda& cuda, View<const T, 2> x, View<const std::int32_t, 1> rows, View<const std::int32_t, 1> count,
                 View<std::type_identity_t<T>, 2> out) {
  constexpr const char* where = "kv::gather_rows";
  require_equal(out.extent(1), x.extent(1), where, "out");
  require(count.extent(0) >= 1, where, "count", "at least 1 element", count.extent(0));
  require(x.stride(1) == 1 || x.extent(1) <= 1, where, "x", "stride 1 along rows", x.stride(1));
  require(out.stride(1) == 1 || out.extent(1) <= 1, where, "out", "stride 1 along rows", out.stride(1));
  if (x.extent(1) == 0) return;
  launch(cuda, where, detail::check_row_list<detail::stage_threads>, CudaGrid{dim3(1), dim3(detail::stage_threads)},
         x.extent(0), rows, count, out.extent(0), cuda.fault());
  constexpr int unit = detail::row_unit<T, T>;
  const bool aligned = detail::rows_aligned(x, unit) && detail::rows_aligned(out, unit);
  const index_t per_block = detail::copy_rows_per_block(aligned ? x.extent(1) / unit : x.extent(1));
  const CudaGrid grid{dim3(cuda_blocks(rows.extent(0), per_block)), dim3(detail::copy_threads)};
  launch(cuda, where, aligned ? detail::gather_rows_kernel<unit, T> : detail::gather_rows_kernel<1, T>, grid, x, rows,
         count, out, per_block, cuda.fault());
}

}  // namespace decant::kv

#endif
