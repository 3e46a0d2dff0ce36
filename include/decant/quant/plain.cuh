// decant: quant::Plain on CUDA: products with a weight matrix stored as it is. One warp per weight row and eight
// tokens: every weight is loaded once per eight tokens, 16 bytes at a time, and multiplied in fp32. Moves rows * cols *
// sizeof(T) bytes of weights per eight tokens (from the second-level cache after the first) and 2 * tokens * rows *
// cols FLOP. The path for decoding and small batches; large prefills are better served by a tensor-core library.
#ifndef DECANT_QUANT_PLAIN_CUH
#define DECANT_QUANT_PLAIN_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "../core/cuda.cuh"
#include "../core/detail/device.cuh"
#include "plain.hpp"

namespace decant::quant {

namespace detail {

inline constexpr int plain_tokens = 8;   // tokens that share one load of a weight
inline constexpr int plain_warps = 8;    // weight rows of a block

/// Lane l takes columns l * Wide + 32 * Wide * k: a fixed order, so a row of y does not depend on the others.
template <class T, int Wide>
__global__ void __launch_bounds__(32 * plain_warps)
    plain_matmul(View<const T, 2> weights, View<const float, 2> x, View<float, 2> y) {
  using ::decant::detail::Pack;
  using ::decant::detail::widen;
  const index_t row = index_t{blockIdx.x} * plain_warps + threadIdx.x / 32;
  const index_t lane = threadIdx.x % 32;
  if (row >= weights.extent(0)) return;  // the whole warp
  const index_t cols = weights.extent(1);
  const index_t tokens = x.extent(0);
  const T* const w = &weights(row, index_t{0});
  for (index_t first = index_t{blockIdx.y} * plain_tokens; first < tokens; first += index_t{gridDim.y} * plain_tokens) {
    float sum[plain_tokens] = {};
    for (index_t c = lane * Wide; c < cols; c += 32 * Wide) {
      const auto pack = *reinterpret_cast<const Pack<T, Wide>*>(w + c);
#pragma unroll
      for (int t = 0; t < plain_tokens; ++t) {
        if (first + t >= tokens) break;
        constexpr int part = Wide < 4 ? Wide : 4;
        const float* const in = x.data() + (first + t) * x.stride(0) + c;
#pragma unroll
        for (int i = 0; i < Wide; i += part) {
          const auto values = *reinterpret_cast<const Pack<float, part>*>(in + i);
#pragma unroll
          for (int j = 0; j < part; ++j) sum[t] += widen(pack.at[i + j]) * values.at[j];
        }
      }
    }
#pragma unroll
    for (int t = 0; t < plain_tokens; ++t) {
      const float total = ::decant::detail::warp_reduce(sum[t], ::decant::detail::Plus{});
      if (lane == 0 && first + t < tokens) y.data()[(first + t) * y.stride(0) + row] = total;
    }
  }
}

template <class T>
__global__ void plain_row(View<const T, 1> row, View<float, 1> out) {
  const index_t c = index_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (c < row.extent(0)) out[c] = ::decant::detail::widen(row[c]);
}

}  // namespace detail

/// y = x * weights^T. x [tokens, cols], y [tokens, rows], fp32, all on the device. A row of y does not depend on the
/// other rows of x, bit for bit. O(tokens * rows * cols).
template <Storage T>
void matmul(Cuda& cuda, const Plain<T>& w, View<const float, 2> x, View<float, 2> y) {
  constexpr const char* where = "quant::matmul";
  detail::require_matmul(w, x, y);
  const index_t tokens = x.extent(0);
  if (tokens == 0 || w.rows() == 0) return;
  constexpr int wide = ::decant::detail::per_access<T>;
  const CudaGrid grid{
      dim3(cuda_blocks(w.rows(), detail::plain_warps), cuda_blocks(tokens, detail::plain_tokens, 65535)),
      dim3(32 * detail::plain_warps)};
  if (::decant::detail::aligned_rows(w.weights.data(), w.weights.stride(0), w.cols()) &&
      ::decant::detail::aligned_rows(x.data(), x.stride(0), x.extent(1))) {
    launch(cuda, where, detail::plain_matmul<T, wide>, grid, w.weights, x, y);
  } else {
    launch(cuda, where, detail::plain_matmul<T, 1>, grid, w.weights, x, y);
  }
}

/// y = weights * x for one token. x [cols], y [rows], both contiguous.
template <Storage T>
void matvec(Cuda& cuda, const Plain<T>& w, View<const float, 1> x, View<float, 1> y) {
  require(x.stride(0) == 1, "quant::matvec", "x", "contiguous elements", x.stride(0));
  require(y.stride(0) == 1, "quant::matvec", "y", "contiguous elements", y.stride(0));
  matmul(cuda, w, View<const float, 2>(x.data(), 1, x.extent(0)), View<float, 2>(y.data(), 1, y.extent(0)));
}

/// Row r of the weights as floats, an embedding look-up. out [cols]
template <Storage T>
void dequantize_row(Cuda& cuda, const Plain<T>& w, index_t r, View<float, 1> out) {
  constexpr const char* where = "quant::dequantize_row";
  require(r >= 0 && r < w.rows(), where, "r", [&] { return "a row below " + std::to_string(w.rows()); }, r);
  require_equal(out.extent(0), w.cols(), where, "out");
  launch(cuda, where, detail::plain_row<T>, CudaGrid{cuda_blocks(w.cols(), 128), 128}, w.weights[r], out);
}

static_assert(WeightMatrix<Plain<float>, Cuda> && WeightMatrix<Plain<bf16>, Cuda>);

}  // namespace decant::quant

#endif
