// decant: products with packed weights on CUDA, y = x W^T. The packed bytes are read from memory once, in their order.
// - Up to four tokens, or activations as they are (Activations::fp32): a warp takes two rows, each lane eight columns
//   of every 256, all in fp32. Moves the packed bytes (once per four tokens) and, from the caches, x once per two rows.
// - Five tokens and more with activations in bf16: tensor cores. A block takes 16 rows, its four warps every fourth 128
//   columns, and adds their sums up in their order. Weights are rounded to bf16 on the way. Moves the packed bytes once
//   per 64 tokens and, from the caches, x in bf16 once per 16 rows.
// Both do 2 * tokens * rows * cols FLOP. Calls never synchronise and are legal under stream capture. The scratch is x
// in bf16 (tensor cores) and x times the inverse scales (Scaled).
// They take any format that satisfies Codes and whose group_size, load_layer, load_group, load_code and value are
// DECANT_HD.
#ifndef DECANT_QUANT_MATMUL_CUH
#define DECANT_QUANT_MATMUL_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include <cstdint>
#include <string>

#include "../core/cuda.cuh"
#include "../core/detail/device.cuh"
#include "../core/detail/mma.cuh"
#include "detail/device_decode.cuh"
#include "ggml_blocks.hpp"
#include "matmul.hpp"
#include "scaled.hpp"

namespace decant::quant {

/// An element of y is at most this and matmul_error_bound(cols) from sum_k w_k x_k, both times sum_k |w_k x_k|, w as
/// dequantized and x rounded to bf16 or not: where tensor cores multiply, weights are rounded to bf16.
constexpr double cuda_weight_error_bound(index_t tokens, Activations a) {
  return tokens <= 4 || a == Activations::fp32 ? 0 : 0x1p-8 + 0x1p-18;
}

namespace detail {

inline constexpr int packed_threads = 128;  // of every kernel here
inline constexpr int packed_warps = packed_threads / 32;

// ---- a few tokens

inline constexpr int packed_rows_each = 2;  // rows of a warp
inline constexpr int packed_rows_tokens = 4;

/// Columns base + 8 * lane ... + 7 of a token; 0 behind the last one. By whole warps.
__device__ inline void load_inputs(const float* x, index_t base, index_t cols, bool wide, bool round, float (&out)[8]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (wide && base + 256 <= cols) {
    // The first four columns of each of two lanes, then the last ones, so that accesses are of whole sectors; then the
    // two exchange what is the other's.
    using Four = ::decant::detail::Pack<float, 4>;
    const bool odd = lane % 2 != 0;
    const float* const from = x + base + 16 * (lane / 2) + (odd ? 4 : 0);
    const Four a = *reinterpret_cast<const Four*>(from);
    const Four b = *reinterpret_cast<const Four*>(from + 8);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float other = __shfl_xor_sync(::decant::detail::whole_warp, odd ? a.at[i] : b.at[i], 1);
      out[i] = odd ? other : a.at[i];
      out[4 + i] = odd ? b.at[i] : other;
    }
  } else {
    const index_t k = base + 8 * lane;
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = k + i < cols ? x[k + i] : 0.0f;
  }
  if (round) {
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      const std::uint32_t pair = ::decant::detail::narrow_pair(bf16{}, out[i], out[i + 1]);
      out[i] = ::decant::detail::low_of_pair(bf16{}, pair);
      out[i + 1] = ::decant::detail::high_of_pair(bf16{}, pair);
    }
  }
}

/// A fixed order of columns: an element of y depends on its row of w and of x alone.
template <class F, int Tokens>
__global__ void __launch_bounds__(packed_threads, 4)
    packed_rows(DeviceMatrix<F> w, View<const float, 2> x, View<float, 2> y, bool wide, bool round) {
  constexpr int ahead = Tokens == 1 ? 4 : 2;  // times 256 columns that are on their way
  __shared__ float shared[DeviceDecode<F>::shared_floats];
  const DeviceDecode<F> decode(w, shared);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const index_t warp = index_t{blockIdx.x} * packed_warps + threadIdx.x / 32;
  const index_t step = index_t{gridDim.x} * packed_warps * packed_rows_each;
  const index_t tokens = x.extent(0);
  for (index_t first = index_t{blockIdx.y} * Tokens; first < tokens; first += index_t{gridDim.y} * Tokens) {
    for (index_t row = warp * packed_rows_each; row < w.rows; row += step) {
      const std::byte* at[packed_rows_each];
#pragma unroll
      for (int r = 0; r < packed_rows_each; ++r) at[r] = w.row(row + r < w.rows ? row + r : w.rows - 1);
      float sum[Tokens][packed_rows_each] = {};
      for (index_t base = 0; base < w.cols; base += 256 * ahead) {
        typename DeviceDecode<F>::template Chunk<1> chunk[ahead][packed_rows_each];
#pragma unroll
        for (int u = 0; u < ahead; ++u) {
#pragma unroll
          for (int r = 0; r < packed_rows_each; ++r) decode.fetch(at[r], base + 256 * u + 8 * lane, chunk[u][r]);
        }
#pragma unroll
        for (int u = 0; u < ahead; ++u) {
          const index_t here = base + 256 * u;
          if (here >= w.cols) break;
          float weights[packed_rows_each][8];
#pragma unroll
          for (int r = 0; r < packed_rows_each; ++r) decode.decode(chunk[u][r], 0, at[r], here + 8 * lane, weights[r]);
#pragma unroll
          for (int t = 0; t < Tokens; ++t) {
            if (first + t >= tokens) break;
            float in[8];
            load_inputs(x.data() + (first + t) * x.stride(0), here, w.cols, wide, round, in);
#pragma unroll
            for (int i = 0; i < 8; ++i) {
#pragma unroll
              for (int r = 0; r < packed_rows_each; ++r) sum[t][r] = fmaf(weights[r][i], in[i], sum[t][r]);
            }
          }
        }
      }
#pragma unroll
      for (int t = 0; t < Tokens; ++t) {
        if (first + t >= tokens) break;
#pragma unroll
        for (int r = 0; r < packed_rows_each; ++r) {
          const float total = ::decant::detail::warp_reduce(sum[t][r], ::decant::detail::Plus{});
          if (lane == 0 && row + r < w.rows) y.data()[(first + t) * y.stride(0) + row + r] = total;
        }
      }
    }
  }
}

// ---- tensor cores

inline constexpr int mma_rows = 16;
inline constexpr int mma_cols = 128;  // that a warp takes at once: 32 of a lane

/// x in bf16, as packed_mma reads it: [tokens rounded up][blocks of 128 columns][16 times eight], zeros elsewhere. The
/// eight at place 4 q + c are columns 32 c + 8 q ... + 7: what lane c of four multiplies next lies beside its
/// neighbours'. A thread takes four columns.
template <int Wide>
__global__ void __launch_bounds__(packed_threads)
    pack_inputs(View<const float, 2> x, std::uint32_t* to, index_t tokens, index_t cols) {
  const index_t each = cols / 4;
  for (index_t i = index_t{blockIdx.x} * packed_threads + threadIdx.x; i < tokens * each;
       i += index_t{gridDim.x} * packed_threads) {
    const index_t t = i / each;
    const index_t place = i % each;
    const index_t eight = place / 2 % 16;
    const index_t k = place / 32 * mma_cols + 32 * (eight % 4) + 8 * (eight / 4) + 4 * (place % 2);
    float in[4] = {};
    if (t < x.extent(0) && k < x.extent(1)) {
      const float* const from = x.data() + t * x.stride(0) + k;
      if constexpr (Wide == 4) {
        const auto four = *reinterpret_cast<const ::decant::detail::Pack<float, 4>*>(from);
#pragma unroll
        for (int j = 0; j < 4; ++j) in[j] = four.at[j];
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) in[j] = k + j < x.extent(1) ? from[j] : 0.0f;
      }
    }
    ::decant::detail::Pack<std::uint32_t, 2> pairs;
    pairs.at[0] = ::decant::detail::narrow_pair(bf16{}, in[0], in[1]);
    pairs.at[1] = ::decant::detail::narrow_pair(bf16{}, in[2], in[3]);
    reinterpret_cast<::decant::detail::Pack<std::uint32_t, 2>*>(to)[i] = pairs;
  }
}

/// Lane 4 g + c holds rows g and g + 8 and multiplies its columns 32 c + 4 s ... + 3 in step s of eight: the order of
/// columns within a product is free as long as weights and inputs agree. x: pack_inputs', a multiple of 8 * Tiles
/// tokens.
template <class F, int Tiles>
__global__ void __launch_bounds__(packed_threads, Tiles <= 2 ? 4 : Tiles <= 4 ? 3 : 2)
    packed_mma(DeviceMatrix<F> w, const std::uint32_t* x, index_t tokens, View<float, 2> y) {
  constexpr int stride = mma_rows + 4;  // of tokens in `part`: lanes that write at once use different banks
  __shared__ float shared[DeviceDecode<F>::shared_floats];
  __shared__ float part[packed_warps][8 * Tiles][stride];
  const DeviceDecode<F> decode(w, shared);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int g = static_cast<int>(threadIdx.x) % 32 / 4;
  const int c = static_cast<int>(threadIdx.x) % 4;
  const index_t blocks = (w.cols + mma_cols - 1) / mma_cols;
  const index_t row = index_t{blockIdx.x} * mma_rows;
  const std::byte* at[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) at[r] = w.row(row + g + 8 * r < w.rows ? row + g + 8 * r : w.rows - 1);
  using Chunk = typename DeviceDecode<F>::template Chunk<4>;
  for (index_t first = index_t{blockIdx.y} * (8 * Tiles); first < tokens; first += index_t{gridDim.y} * (8 * Tiles)) {
    float sum[Tiles][4] = {};
    Chunk next[2] = {};
    // One round more than there are blocks: the first only fetches.
    for (index_t b = warp - packed_warps; b < blocks; b += packed_warps) {
      const Chunk chunk[2] = {next[0], next[1]};
      const index_t k = b * mma_cols + 32 * c;
#pragma unroll
      for (int r = 0; r < 2; ++r) decode.fetch(at[r], k + packed_warps * mma_cols, next[r]);
      if (b < 0) continue;
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        std::uint32_t pairs[2][4];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          float weights[8];
          decode.decode(chunk[r], q, at[r], k + 8 * q, weights);
#pragma unroll
          for (int i = 0; i < 4; ++i)
            pairs[r][i] = ::decant::detail::narrow_pair(bf16{}, weights[2 * i], weights[2 * i + 1]);
        }
        const std::uint32_t even[4] = {pairs[0][0], pairs[1][0], pairs[0][1], pairs[1][1]};
        const std::uint32_t odd[4] = {pairs[0][2], pairs[1][2], pairs[0][3], pairs[1][3]};
#pragma unroll
        for (int tile = 0; tile < Tiles; ++tile) {
          using Four = ::decant::detail::Pack<std::uint32_t, 4>;
          const index_t token = first + 8 * tile + g;
          const Four in = reinterpret_cast<const Four*>(x)[(token * blocks + b) * (mma_cols / 8) + 4 * q + c];
          ::decant::detail::mma_16x8x16(bf16{}, sum[tile], even, in.at[0], in.at[1]);
          ::decant::detail::mma_16x8x16(bf16{}, sum[tile], odd, in.at[2], in.at[3]);
        }
      }
    }
#pragma unroll
    for (int tile = 0; tile < Tiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) part[warp][8 * tile + 2 * c + i % 2][g + i / 2 * 8] = sum[tile][i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < Tiles; ++i) {
      const int item = i * packed_threads + static_cast<int>(threadIdx.x);
      const int t = item / mma_rows;
      const int r = item % mma_rows;
      float total = part[0][t][r];
#pragma unroll
      for (int other = 1; other < packed_warps; ++other) total += part[other][t][r];
      if (first + t < tokens && row + r < w.rows) y.data()[(first + t) * y.stride(0) + row + r] = total;
    }
    __syncthreads();
  }
}

// ---- rows as floats

template <class F>
__global__ void __launch_bounds__(packed_threads)
    packed_decode(DeviceMatrix<F> w, index_t first, View<float, 2> out, bool wide) {
  __shared__ float shared[DeviceDecode<F>::shared_floats];
  const DeviceDecode<F> decode(w, shared);
  const index_t each = (w.cols + 7) / 8;
  const index_t items = out.extent(0) * each;
  for (index_t i = index_t{blockIdx.x} * packed_threads + threadIdx.x; i < items;
       i += index_t{gridDim.x} * packed_threads) {
    const index_t r = i / each;
    const index_t k = i % each * 8;
    const std::byte* const row = w.row(first + r);
    typename DeviceDecode<F>::template Chunk<1> chunk;
    decode.fetch(row, k, chunk);
    float weights[8];
    decode.decode(chunk, 0, row, k, weights);
    float* const to = out.data() + r * out.stride(0) + k;
    if (wide) {
      using Four = ::decant::detail::Pack<float, 4>;
      reinterpret_cast<Four*>(to)[0] = {weights[0], weights[1], weights[2], weights[3]};
      if (k + 4 < w.cols) reinterpret_cast<Four*>(to)[1] = {weights[4], weights[5], weights[6], weights[7]};
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j)
        if (k + j < w.cols) to[j] = weights[j];
    }
  }
}

template <class F>
void launch_decode(Cuda& cuda, const char* where, const Packed<F>& w, index_t first, View<float, 2> out) {
  const index_t items = out.extent(0) * ((w.cols() + 7) / 8);
  const CudaGrid grid{cuda_blocks(items, packed_threads, 16 * cuda.device().multiprocessors), packed_threads};
  const bool wide = ::decant::detail::aligned_rows(out.data(), out.stride(0), w.cols());
  launch(cuda, where, packed_decode<F>, grid, DeviceMatrix<F>(w), first, out, wide);
}

// ---- Scaled

/// to = x times the scales of its columns, which lie at `scales` as fp32. x and to may be one.
template <class T>
__global__ void __launch_bounds__(packed_threads)
    scale_columns(View<const T, 2> x, const std::byte* scales, View<T, 2> to) {
  const index_t items = x.extent(0) * x.extent(1);
  for (index_t i = index_t{blockIdx.x} * packed_threads + threadIdx.x; i < items;
       i += index_t{gridDim.x} * packed_threads) {
    const index_t t = i / x.extent(1);
    const index_t k = i % x.extent(1);
    to.data()[t * to.stride(0) + k] = x.data()[t * x.stride(0) + k] * __uint_as_float(load_u32(scales + 4 * k));
  }
}

inline void launch_scale(Cuda& cuda, const char* where, View<const float, 2> x, const std::byte* scales,
                         View<float, 2> to) {
  launch(cuda, where, scale_columns<float>,
         CudaGrid{cuda_blocks(x.size(), packed_threads, 16 * cuda.device().multiprocessors), packed_threads}, x, scales,
         to);
}

template <class W>
void require_packed_matmul(const W& w, View<const float, 2> x, View<float, 2> y, Activations activations) {
  constexpr const char* where = "quant::matmul";
  require_product(w, x, y);
  require(activations == Activations::bf16 || activations == Activations::fp32, where, "activations",
          "bf16 or fp32 (int8 is the CPU's)", static_cast<int>(activations));
}

template <class F, int Tiles>
void launch_mma(Cuda& cuda, const DeviceMatrix<F>& w, View<const float, 2> x, View<float, 2> y) {
  constexpr const char* where = "quant::matmul";
  const index_t tokens = x.extent(0);
  const index_t padded = (tokens + 8 * Tiles - 1) / (8 * Tiles) * (8 * Tiles);
  const index_t cols = (w.cols + mma_cols - 1) / mma_cols * mma_cols;
  Workspace::Scope scope(cuda.workspace());
  std::uint32_t* const inputs = cuda.workspace().take<std::uint32_t>(padded * cols / 2);
  const CudaGrid inputs_grid{cuda_blocks(padded * cols / 4, packed_threads, 16 * cuda.device().multiprocessors),
                             packed_threads};
  if (::decant::detail::aligned_rows(x.data(), x.stride(0), x.extent(1))) {
    launch(cuda, where, pack_inputs<4>, inputs_grid, x, inputs, padded, cols);
  } else {
    launch(cuda, where, pack_inputs<1>, inputs_grid, x, inputs, padded, cols);
  }
  const CudaGrid grid{dim3(cuda_blocks(w.rows, mma_rows), cuda_blocks(tokens, 8 * Tiles, 65535)), packed_threads};
  launch(cuda, where, packed_mma<F, Tiles>, grid, w, inputs, tokens, y);
}

}  // namespace detail

/// y = x * w^T. x [tokens, cols], y [tokens, rows], fp32, rows contiguous, all on the device. Every token and every row
/// of w gives the same numbers, to the bit, whatever the others; but five and more tokens in bf16 are summed in another
/// order, and with weights in bf16, than four. ArgumentError where shapes differ and for Activations::int8, before
/// anything is enqueued. O(tokens * rows * cols).
template <class F>
  requires Codes<F>
void matmul(Cuda& cuda, const Packed<F>& w, View<const float, 2> x, View<float, 2> y,
            Activations activations = Activations::bf16) {
  detail::require_packed_matmul(w, x, y, activations);
  const index_t tokens = x.extent(0);
  if (tokens == 0 || w.rows() == 0) return;
  const detail::DeviceMatrix<F> matrix(w);
  if (tokens > detail::packed_rows_tokens && activations == Activations::bf16) {
    if (tokens <= 8) return detail::launch_mma<F, 1>(cuda, matrix, x, y);
    if (tokens <= 16) return detail::launch_mma<F, 2>(cuda, matrix, x, y);
    if (tokens <= 32) return detail::launch_mma<F, 4>(cuda, matrix, x, y);
    return detail::launch_mma<F, 8>(cuda, matrix, x, y);
  }
  constexpr const char* where = "quant::matmul";
  constexpr int most = detail::packed_rows_tokens;
  const bool wide = reinterpret_cast<std::uintptr_t>(x.data()) % 16 == 0 && x.stride(0) % 4 == 0;
  const bool round = activations == Activations::bf16;
  const CudaGrid grid{dim3(cuda_blocks(w.rows(), detail::packed_warps * detail::packed_rows_each,
                                       8 * cuda.device().multiprocessors),
                           cuda_blocks(tokens, most, 65535)),
                      detail::packed_threads};
  if (tokens == 1) {
    launch(cuda, where, detail::packed_rows<F, 1>, grid, matrix, x, y, wide, round);
  } else {
    launch(cuda, where, detail::packed_rows<F, most>, grid, matrix, x, y, wide, round);
  }
}

/// Inputs times the inverse scales, in the workspace; then the inner format's product.
template <class F>
void matmul(Cuda& cuda, const Packed<Scaled<F>>& w, View<const float, 2> x, View<float, 2> y,
            Activations activations = Activations::bf16) {
  detail::require_packed_matmul(w, x, y, activations);
  if (x.extent(0) == 0 || w.rows() == 0) return;
  Workspace::Scope scope(cuda.workspace());
  const View<float, 2> scaled = cuda.workspace().take_view<float>(x.extent(0), x.extent(1));
  detail::launch_scale(cuda, "quant::matmul", x, w.data(), scaled);
  matmul(cuda, w.inner(), scaled, y, activations);
}

/// y = w * x for one token. x [cols], y [rows], both contiguous.
template <class F>
void matvec(Cuda& cuda, const Packed<F>& w, View<const float, 1> x, View<float, 1> y,
            Activations activations = Activations::bf16) {
  require_contiguous(x, "quant::matvec", "x");
  require_contiguous(y, "quant::matvec", "y");
  matmul(cuda, w, View<const float, 2>(x.data(), 1, x.extent(0)), View<float, 2>(y.data(), 1, y.extent(0)),
         activations);
}

/// All rows as floats, as the CPU decodes them, to the bit. out [rows, cols], rows contiguous.
template <class F>
  requires Codes<F>
void dequantize(Cuda& cuda, const Packed<F>& w, View<float, 2> out) {
  constexpr const char* where = "quant::dequantize";
  require_equal(out.extent(0), w.rows(), where, "out");
  require_equal(out.extent(1), w.cols(), where, "out");
  require(out.stride(1) == 1, where, "out", "contiguous rows", out.stride(1));
  if (w.rows() > 0) detail::launch_decode(cuda, where, w, 0, out);
}
template <class F>
void dequantize(Cuda& cuda, const Packed<Scaled<F>>& w, View<float, 2> out) {
  dequantize(cuda, w.inner(), out);
  detail::launch_scale(cuda, "quant::dequantize", out, w.data(), out);
}

/// Row r as floats, an embedding look-up. out [cols], contiguous.
template <class F>
  requires Codes<F>
void dequantize_row(Cuda& cuda, const Packed<F>& w, index_t r, View<float, 1> out) {
  constexpr const char* where = "quant::dequantize_row";
  require(r >= 0 && r < w.rows(), where, "r", [&] { return "a row below " + std::to_string(w.rows()); }, r);
  require_equal(out.extent(0), w.cols(), where, "out");
  require_contiguous(out, where, "out");
  detail::launch_decode(cuda, where, w, r, View<float, 2>(out.data(), 1, out.extent(0)));
}
template <class F>
void dequantize_row(Cuda& cuda, const Packed<Scaled<F>>& w, index_t r, View<float, 1> out) {
  dequantize_row(cuda, w.inner(), r, out);
  const View<float, 2> row(out.data(), 1, out.extent(0));
  detail::launch_scale(cuda, "quant::dequantize_row", row, w.data(), row);
}

static_assert(WeightFormat<Int<2>, Cuda> && WeightFormat<Int<4>, Cuda> && WeightFormat<Int<8>, Cuda>);
static_assert(WeightFormat<Nf4, Cuda> && WeightFormat<MxFp4, Cuda> && WeightFormat<NvFp4, Cuda>);
static_assert(WeightFormat<If4, Cuda> && WeightFormat<Codebook2x16<fp16>, Cuda>);
static_assert(WeightFormat<Codebook2x16<fp8_e4m3>, Cuda> && WeightFormat<Fp8<fp8_e4m3>, Cuda>);
static_assert(WeightFormat<ggml::Q4_0, Cuda> && WeightFormat<ggml::Q8_0, Cuda> && WeightFormat<Scaled<Int<4>>, Cuda>);

}  // namespace decant::quant

#endif
