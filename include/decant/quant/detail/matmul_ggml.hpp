// decant: products with ggml's blocks, whose order of codes is ggml's own. A unit is 128 columns. Its codes fall out of
// blocks as two registers a and b of 64 bytes each: a run of columns in a, the next run in b, and so on; activations
// are arranged in that order once. Each 32 bits (a lane) of a and b have one scale. int8: codes are unsigned bytes, too
// large by `bias`; what that adds to a lane's sum is known beforehand.
#ifndef DECANT_QUANT_DETAIL_MATMUL_GGML_HPP
#define DECANT_QUANT_DETAIL_MATMUL_GGML_HPP

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "../../core/dtype.hpp"
#include "../../core/simd.hpp"
#include "../ggml_blocks.hpp"
#include "../ggml_fp4_blocks.hpp"
#include "../ggml_k_blocks.hpp"
#include "matmul_kernels.hpp"

namespace decant::quant::detail {

inline constexpr index_t ggml_unit = 128;
/// Columns whose activations share a scale as int8, as in ggml.
inline constexpr index_t ggml_activations = 32;

enum class GgmlMinima : std::uint8_t { none, lanes, parts };

/// `run`: of 2 run columns the first half is in a, the second in b. `two_scales`: a's lanes have others than b's.
/// `minima`: a lane has one that all of its columns share, or (Q4_K) the scales' register has them behind the scales.
template <index_t Run, int Bias, bool TwoScales, GgmlMinima Minima>
struct GgmlOrderOf {
  static constexpr index_t run = Run;
  static constexpr int bias = Bias;
  static constexpr bool two_scales = TwoScales;
  static constexpr GgmlMinima minima = Minima;
};
template <class F>
struct GgmlOrder;
template <>
struct GgmlOrder<ggml::Q8_0> : GgmlOrderOf<64, 128, true, GgmlMinima::none> {};
template <>
struct GgmlOrder<ggml::Q4_0> : GgmlOrderOf<16, 8, false, GgmlMinima::none> {};
template <>
struct GgmlOrder<ggml::Q4_1> : GgmlOrderOf<16, 0, false, GgmlMinima::lanes> {};
template <>
struct GgmlOrder<ggml::IQ4_NL> : GgmlOrderOf<16, 128, false, GgmlMinima::none> {};
template <>
struct GgmlOrder<ggml::MXFP4> : GgmlOrderOf<16, 12, false, GgmlMinima::none> {};
template <>
struct GgmlOrder<ggml::NVFP4> : GgmlOrderOf<8, 12, false, GgmlMinima::none> {};
template <>
struct GgmlOrder<ggml::Q4_K> : GgmlOrderOf<32, 0, true, GgmlMinima::parts> {};
template <>
struct GgmlOrder<ggml::Q6_K> : GgmlOrderOf<64, 32, true, GgmlMinima::none> {};

/// The column within a unit of byte p of a (0 ... 63) or b (64 ... 127).
template <class F>
constexpr index_t ggml_column(index_t p) {
  constexpr index_t run = GgmlOrder<F>::run;
  return p % 64 / run * (2 * run) + p % run + p / 64 * run;
}

/// A unit of int8 activations: 64 bytes each of codes for a, codes for b, the scale of each lane of a (and of b), what
/// the bias adds to each lane of a and b (of a, of b), and per minimum its activations' sum.
template <class F>
struct GgmlInt8 {
  using Order = GgmlOrder<F>;
  static constexpr index_t scales = 128;
  static constexpr index_t excess = scales + (Order::two_scales ? 128 : 64);
  static constexpr index_t sums = excess + (Order::bias == 0 ? 0 : Order::two_scales ? 128 : 64);
  static constexpr index_t bytes = sums + (Order::minima == GgmlMinima::none ? 0 : 64);
};

/// What kernels take at a time: columns, a unit or a block of two, and the bytes of their weights.
template <class F>
inline constexpr index_t ggml_chunk_cols = F::block_size > ggml_unit ? F::block_size : ggml_unit;
template <class F>
inline constexpr index_t ggml_chunk_units = ggml_chunk_cols<F> / ggml_unit;
template <class F>
inline constexpr index_t ggml_chunk_bytes = F{}.row_bytes(ggml_chunk_cols<F>);

constexpr index_t ggml_units(index_t cols) {
  return (cols + ggml_unit - 1) / ggml_unit;
}

template <class F>
index_t ggml_int8_bytes(const Packed<F>& w) {
  return ggml_units(w.cols()) * GgmlInt8<F>::bytes;
}

template <class F>
index_t ggml_float_bytes(const Packed<F>& w) {
  return ggml_units(w.cols()) * ggml_unit * static_cast<index_t>(sizeof(float));
}
template <class F, Activations A>
void ggml_float_arrange(const Packed<F>& w, const float* x, std::byte* to) {
  float* const out = reinterpret_cast<float*>(to);
  const index_t cols = w.cols();
  for (index_t p = 0; p < ggml_units(cols) * ggml_unit; p += GgmlOrder<F>::run) {
    const index_t column = p / ggml_unit * ggml_unit + ggml_column<F>(p % ggml_unit);
    for (index_t i = 0; i < GgmlOrder<F>::run; ++i) {
      const float value = column + i < cols ? x[column + i] : 0.0f;
      out[p + i] = A == Activations::bf16 ? static_cast<float>(bf16(value)) : value;
    }
  }
}

/// Rows that kernels take at a time, so that activations come from near.
inline constexpr int ggml_rows = 4;

/// Up to four rows: of fewer, the last counts several times. A row's last chunk may be short, and is then copied and
/// filled up with zeros. `next`: what will be read after this, in order, or null.
template <class F>
struct GgmlPanel {
  const std::byte* row[ggml_rows];
  const std::byte* next;
  index_t whole;  ///< chunks that lie in the rows
  index_t chunks;
  alignas(64) std::byte last[ggml_rows][ggml_chunk_bytes<F>];

  void set(const Packed<F>& w, index_t first, index_t end) {
    constexpr index_t chunk = ggml_chunk_bytes<F>;
    whole = w.row_bytes() / chunk;
    const index_t left = w.row_bytes() % chunk;
    chunks = whole + (left != 0);
    next = first + ggml_rows < end ? w.row(first + ggml_rows) : nullptr;
    for (index_t i = 0; i < ggml_rows; ++i) {
      row[i] = w.row(first + i < end ? first + i : end - 1);
      if (left == 0) continue;
      std::memcpy(last[i], row[i] + whole * chunk, static_cast<std::size_t>(left));
      std::memset(last[i] + left, 0, static_cast<std::size_t>(chunk - left));
    }
  }
  DECANT_INLINE const std::byte* chunk(int i, index_t c) const {
    return c < whole ? row[i] + c * ggml_chunk_bytes<F> : last[i];
  }
  /// While chunk c is worked on, as much of what comes next goes to the second-level cache, in the order of memory.
  DECANT_INLINE void fetch(index_t c) const {
    if (!next) return;
    constexpr index_t bytes = ggml_rows * ggml_chunk_bytes<F>;
    for (index_t i = 0; i < bytes; i += 64) __builtin_prefetch(next + c * bytes + i, 0, 2);
  }
};

/// The rows of a call, a panel at a time, with `Wide` tokens together (wide) and then each of the rest (one).
template <index_t Wide, class F, class Panels, class PanelsOfOne>
void ggml_panels(const Packed<F>& w, index_t first, index_t last, const std::byte* x, index_t x_stride, index_t tokens,
                 float* y, index_t y_stride, const Panels& wide, const PanelsOfOne& one) {
  GgmlPanel<F> panel;
  for (index_t r = first; r < last; r += ggml_rows) {
    panel.set(w, r, last);
    index_t t = 0;
    for (; t + Wide <= tokens; t += Wide)
      wide(panel, last - r, x + t * x_stride, x_stride, y + t * y_stride + r, y_stride);
    for (; t < tokens; ++t) one(panel, last - r, x + t * x_stride, x_stride, y + t * y_stride + r, y_stride);
  }
}

/// In blocks of 32 columns on the portable path: as decoded_arrange.
template <class F>
void ggml_decoded_arrange(const Packed<F>& w, const float* x, std::byte* to) {
  float* const out = reinterpret_cast<float*>(to);
  for (index_t k = 0; k < w.cols(); k += ggml_activations) {
    const float scale = int8_scale(x + k, ggml_activations);
    const float inverse = int8_inverse(scale);
    for (index_t i = 0; i < ggml_activations; ++i) out[k + i] = scale * int8_code(x[k + i], inverse);
  }
}

}  // namespace decant::quant::detail

#endif
