// decant: what products with a packed format are made of. A format that has nothing but its codes gets the functions of
// this page: each row decoded to floats, then dotted with all tokens on the best path. A format with kernels of its own
// gives them by an overload of matmul_kernels, as the formats of decant do in matmul_*.hpp beside this file.
#ifndef DECANT_QUANT_DETAIL_MATMUL_KERNELS_HPP
#define DECANT_QUANT_DETAIL_MATMUL_KERNELS_HPP

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "../../core/dtype.hpp"
#include "../../core/simd.hpp"
#include "../../core/view.hpp"
#include "../activations.hpp"
#include "../packed.hpp"
#include "../policy.hpp"
#include "dot_tile.hpp"
#include "rounding.hpp"

namespace decant::quant {

/// The kernels of F on one path, for one kind of activations: plain functions, no state.
template <class F>
struct MatmulKernels {
  /// Bytes that arrange() writes for one token; the driver rounds them up to 64.
  index_t (*arranged_bytes)(const Packed<F>& w);
  /// Activations [tokens, cols], x_stride apart, rounded and laid out as rows() reads them: those of each token at the
  /// next `to`, to_stride bytes on, aligned to 64 bytes.
  void (*arrange)(const Packed<F>& w, const float* x, index_t x_stride, index_t tokens, std::byte* to,
                  index_t to_stride);
  /// Bytes of scratch for one call of rows(); the driver rounds them up to 64. Null: none.
  index_t (*scratch_bytes)(const Packed<F>& w);
  /// y[t * y_stride + r] for the rows first <= r < last and all tokens; those of token t lie at x + t * x_stride
  /// (bytes). An output is summed in an order that neither the other rows and tokens nor `first` enter, so that it is
  /// the same to the bit however the rows are dealt to threads.
  void (*rows)(const Packed<F>& w, index_t first, index_t last, const std::byte* x, index_t x_stride, index_t tokens,
               float* y, index_t y_stride, std::byte* scratch);
};

namespace detail {

/// The scale of a block of n <= activation_block activations: the largest magnitude is 127. NaN where one of them is.
inline float int8_scale(const float* x, index_t n) {
  float top = 0;
  for (index_t i = 0; i < n; ++i) {
    if (x[i] != x[i]) return x[i];
    top = std::abs(x[i]) > top ? std::abs(x[i]) : top;
  }
  return top / 127.0f;
}
/// An activation as int8, |q| <= 127. `inverse` is 1 / scale, or 0 where the scale has none.
inline float int8_code(float x, float inverse) {
  const float q = round_even(x * inverse);
  return q > 127.0f ? 127.0f : q < -127.0f ? -127.0f : q;
}
inline float int8_inverse(float scale) {
  const float inverse = 1.0f / scale;
  return scale > 0 && std::isfinite(inverse) ? inverse : 0.0f;
}

template <Activations A>
void round_row(const float* x, index_t cols, float* to) {
  if constexpr (A == Activations::fp32) {
    for (index_t k = 0; k < cols; ++k) to[k] = x[k];
  } else if constexpr (A == Activations::bf16) {
    for (index_t k = 0; k < cols; ++k) to[k] = bf16(x[k]);
  } else {
    for (index_t k = 0; k < cols; k += activation_block) {
      const index_t n = cols - k < activation_block ? cols - k : activation_block;
      const float scale = int8_scale(x + k, n);
      const float inverse = int8_inverse(scale);
      for (index_t i = 0; i < n; ++i) to[k + i] = scale * int8_code(x[k + i], inverse);
    }
  }
}

/// Rows that are decoded before they are multiplied; a tile of dot_block.
inline constexpr index_t decoded_rows = dot_side;

/// MatmulKernels::arrange of a function for one token.
template <class F, void (*One)(const Packed<F>&, const float*, std::byte*)>
void arrange_each(const Packed<F>& w, const float* x, index_t x_stride, index_t tokens, std::byte* to,
                  index_t to_stride) {
  for (index_t t = 0; t < tokens; ++t) One(w, x + t * x_stride, to + t * to_stride);
}

template <class F>
index_t decoded_x_bytes(const Packed<F>& w) {
  return w.cols() * static_cast<index_t>(sizeof(float));
}
template <class F, Activations A>
void decoded_arrange(const Packed<F>& w, const float* x, std::byte* to) {
  round_row<A>(x, w.cols(), reinterpret_cast<float*>(to));
}
template <class F>
index_t decoded_scratch_bytes(const Packed<F>& w) {
  return decoded_rows * w.cols() * static_cast<index_t>(sizeof(float));
}
template <class F, Isa I, void (*Decode)(const Packed<F>&, const typename F::Layer&, index_t, float*)>
void decoded_product(const Packed<F>& w, index_t first, index_t last, const std::byte* x, index_t x_stride,
                     index_t tokens, float* y, index_t y_stride, std::byte* scratch) {
  float* const panel = reinterpret_cast<float*>(scratch);
  const typename F::Layer layer = w.layer();
  const index_t cols = w.cols();
  for (index_t r = first; r < last; r += decoded_rows) {
    const index_t count = last - r < decoded_rows ? last - r : decoded_rows;
    for (index_t i = 0; i < count; ++i) Decode(w, layer, r + i, panel + i * cols);
    dot_block(I, panel, cols, count, reinterpret_cast<const float*>(x), x_stride / static_cast<index_t>(sizeof(float)),
              tokens, cols, y + r, y_stride);
  }
}

/// With any function that decodes a row.
template <class F, void (*Decode)(const Packed<F>&, const typename F::Layer&, index_t, float*) = decode_row<F, float*>>
MatmulKernels<F> decoded_kernels(Isa isa, Activations a) {
  return {decoded_x_bytes<F>,
          a == Activations::fp32   ? arrange_each<F, decoded_arrange<F, Activations::fp32>>
          : a == Activations::int8 ? arrange_each<F, decoded_arrange<F, Activations::int8>>
                                   : arrange_each<F, decoded_arrange<F, Activations::bf16>>,
          decoded_scratch_bytes<F>,
          isa == Isa::avx512 ? decoded_product<F, Isa::avx512, Decode>
          : isa == Isa::avx2 ? decoded_product<F, Isa::avx2, Decode>
                             : decoded_product<F, Isa::portable, Decode>};
}

}  // namespace detail

/// What the product takes for a row x [cols]: `to` [cols] as floats. int8: per block of 128 columns scale = max|x| /
/// 127, q = x / scale rounded half to even, and scale * q. The definition that the paths of the formats here are held
/// to.
inline void round_activations(Activations a, View<const float, 1> x, View<float, 1> to) {
  constexpr const char* where = "quant::round_activations";
  require_contiguous(x, where, "x");
  require_contiguous(to, where, "to");
  require_equal(to.extent(0), x.extent(0), where, "to");
  if (a == Activations::bf16) detail::round_row<Activations::bf16>(x.data(), x.extent(0), to.data());
  if (a == Activations::fp32) detail::round_row<Activations::fp32>(x.data(), x.extent(0), to.data());
  if (a == Activations::int8) detail::round_row<Activations::int8>(x.data(), x.extent(0), to.data());
}

/// The kernels of any format: decode, then multiply. Formats with faster ones overload this for Packed<theirs>, and may
/// fall back on decoded_kernels for what they leave out. Found through the format's namespace.
template <Codes F>
MatmulKernels<F> matmul_kernels(Isa isa, const Packed<F>&, Activations a) {
  return detail::decoded_kernels<F>(isa, a);
}

}  // namespace decant::quant

#endif
