// decant: the formats whose products are those of matmul_nibbles.hpp: what each is in numbers, and which kernels it
// gets.
#ifndef DECANT_QUANT_DETAIL_MATMUL_NIBBLE_FORMATS_HPP
#define DECANT_QUANT_DETAIL_MATMUL_NIBBLE_FORMATS_HPP

#include "../codebook.hpp"
#include "../fp4.hpp"
#include "../if4.hpp"
#include "../int_group.hpp"
#include "../nf4.hpp"
#include "matmul_kernels.hpp"
#include "matmul_nibbles.hpp"
#include "matmul_nibbles_avx2.hpp"
#include "matmul_nibbles_avx512.hpp"

namespace decant::quant::detail {

/// decode_row for them, without instructions of a processor: the sixteen values of a group, then its codes.
template <class F>
void decode_nibble_row(const Packed<F>& w, const typename F::Layer& layer, index_t r, float* out) {
  const F& format = w.format();
  const std::byte* const row = w.row(r);
  const index_t cols = w.cols();
  const index_t size = format.group_size(cols);
  constexpr index_t high_first = std::is_same_v<F, Nf4> ? 1 : 0;
  index_t run = size;
  if constexpr (requires { format.select; }) run = format.select < size ? format.select : size;
  for (index_t j = 0, k = 0; k < cols; ++j) {
    const typename F::Group group = format.load_group(layer, row, cols, j);
    const index_t end = cols - k < size ? cols : k + size;
    for (index_t i = 0; k < end; i += run) {
      float value[16];
      for (int q = 0; q < 16; ++q) value[q] = format.value(layer, group, i, static_cast<std::uint8_t>(q));
      const index_t stop = end - k < run ? end : k + run;
      for (; k < stop; ++k)
        out[k] = value[static_cast<unsigned>(row[k / 2]) >> ((k & 1) != high_first ? 4 : 0) & 15u];
    }
  }
}

#if DECANT_X86

inline NibbleFormat nibble_format(const Int<4>& format, const Int<4>::Layer&, index_t cols) {
  NibbleFormat f;
  f.group = format.group_size(cols);
  f.scales_at = format.scales_at(cols);
  const index_t origins = f.scales_at + 2 * format.groups(cols);
  const bool blocks = f.group >= cols || f.group % nibble_block == 0;
  float zero = 8;
  if (format.grid == IntGrid::minimum) {
    f.minima_at = origins;
    zero = 0;
  }
  if (format.grid == IntGrid::zero_point) f.zeros_at = origins;
  if (f.zeros_at >= 0 && blocks) f.tables = 16;
  for (int t = 0; t < f.tables; ++t)
    for (int q = 0; q < 16; ++q) f.table[t][q] = static_cast<float>(q) - (f.tables > 1 ? static_cast<float>(t) : zero);
  return f;
}

inline NibbleFormat nibble_format(const Nf4& format, const Nf4::Layer&, index_t cols) {
  NibbleFormat f;
  f.group = format.group_size(cols);
  f.scale = ScaleType::f32;
  f.scales_at = format.scales_at(cols);
  f.high_first = true;
  for (int q = 0; q < 16; ++q) f.table[0][q] = Nf4::level(q);
  return f;
}

inline NibbleFormat nibble_format(const MxFp4& format, const MxFp4::Layer&, index_t cols) {
  NibbleFormat f;
  f.group = format.group_size(cols);
  f.scale = ScaleType::e8m0;
  f.scales_at = format.scales_at(cols);
  for (int q = 0; q < 16; ++q) f.table[0][q] = e2m1_value(static_cast<std::uint8_t>(q));
  return f;
}

inline NibbleFormat nibble_format(const NvFp4& format, const NvFp4::Layer& layer, index_t cols) {
  NibbleFormat f = nibble_format(MxFp4{}, {}, cols);
  f.group = format.group_size(cols);
  f.scale = ScaleType::e4m3;
  f.unit = layer.scale;
  return f;
}

inline NibbleFormat nibble_format(const If4& format, const If4::Layer& layer, index_t cols) {
  NibbleFormat f = nibble_format(NvFp4{}, layer, cols);
  f.group = format.group_size(cols);
  f.signs_select = true;
  f.tables = 2;
  f.unit = layer.scale / 7;  // so that the tables are exact: 7 times E2M1, and 6 q
  for (int q = 0; q < 16; ++q) {
    f.table[0][q] *= 7;
    f.table[1][q] = 6 * static_cast<float>((q ^ 8) - 8);
  }
  return f;
}

template <class Scale>
NibbleFormat nibble_format(const Codebook2x16<Scale>& format, const typename Codebook2x16<Scale>::Layer& layer,
                           index_t cols) {
  NibbleFormat f;
  f.group = format.group_size(cols);
  f.scale = format.two_scales ? ScaleType::e4m3 : ScaleType::f16;
  f.scales_at = format.scales_at(cols);
  f.unit = layer.scale;
  f.tables = 2;
  if (format.selects_by_sign()) f.signs_select = true;
  else f.selectors_at = format.selectors_at(cols);
  f.selects_16 = format.selects_by_sign() || format.select == 16;
  std::memcpy(f.table, layer.table, sizeof layer.table);
  return f;
}

template <class F>
inline constexpr NibbleNeeds nibble_needs = NibbleNeeds::one_table;
template <>
inline constexpr NibbleNeeds nibble_needs<Nf4> = NibbleNeeds::residue;
template <>
inline constexpr NibbleNeeds nibble_needs<If4> = NibbleNeeds::choice;
template <class Scale>
inline constexpr NibbleNeeds nibble_needs<Codebook2x16<Scale>> = NibbleNeeds::choice;

/// Formats with an overload of nibble_format.
template <class F>
concept Nibbles = requires(const F& f, const typename F::Layer& layer, index_t cols) {
  { nibble_format(f, layer, cols) } -> std::same_as<NibbleFormat>;
};

template <class F>
NibbleFormat nibble_format(const Packed<F>& w) {
  return nibble_format(w.format(), w.layer(), w.cols());
}

template <class F, index_t (*Bytes)(const NibbleFormat&, index_t),
          void (*Arrange)(const NibbleFormat&, index_t, const float*, std::byte*), NibbleProduct Product>
MatmulKernels<F> nibble_kernels() {
  return {
      [](const Packed<F>& w) { return Bytes(nibble_format(w), w.cols()); },
      [](const Packed<F>& w, const float* x, index_t x_stride, index_t tokens, std::byte* to, index_t to_stride) {
        const NibbleFormat f = nibble_format(w);
        for (index_t t = 0; t < tokens; ++t) Arrange(f, w.cols(), x + t * x_stride, to + t * to_stride);
      },
      nullptr,
      [](const Packed<F>& w, index_t first, index_t last, const std::byte* x, index_t x_stride, index_t tokens,
         float* y, index_t y_stride, std::byte*) {
        Product(nibble_format(w), {w.row(0), w.row_bytes(), w.cols(), first, last}, x, x_stride, tokens, y, y_stride);
      }};
}

#else

template <class F>
concept Nibbles = std::is_same_v<F, Int<4>> || std::is_same_v<F, Nf4> || std::is_same_v<F, MxFp4> ||
                  std::is_same_v<F, NvFp4> || std::is_same_v<F, If4> || std::is_same_v<F, Codebook2x16<fp16>> ||
                  std::is_same_v<F, Codebook2x16<fp8_e4m3>>;

#endif

}  // namespace decant::quant::detail

namespace decant::quant {

template <Codes F>
  requires detail::Nibbles<F>
MatmulKernels<F> matmul_kernels(Isa isa, [[maybe_unused]] const Packed<F>& w, Activations a) {
  using namespace detail;
#if DECANT_X86
  constexpr NibbleNeeds N = nibble_needs<F>;
  if (nibbles_fit(nibble_format(w), w.cols())) {
    if (isa == Isa::avx512) {
      if (a == Activations::bf16 && has_nibbles_bf16())
        return nibble_kernels<F, bf16_x_bytes, arrange_bf16_nibbles, product_bf16_avx512<N>>();
      if (a == Activations::bf16)
        return nibble_kernels<F, fp32_x_bytes, arrange_fp32_nibbles<Activations::bf16>, product_fp32_avx512<N>>();
      if (a == Activations::fp32)
        return nibble_kernels<F, fp32_x_bytes, arrange_fp32_nibbles<Activations::fp32>, product_fp32_avx512<N>>();
      if (a == Activations::int8 && has_nibbles_int8())
        return nibble_kernels<F, int8_x_bytes<false>, arrange_int8_nibbles<false>, product_int8_avx512<N>>();
    }
    if (isa >= Isa::avx2) {
      if (a == Activations::int8)
        return nibble_kernels<F, int8_x_bytes<true>, arrange_int8_nibbles<true>, product_int8_avx2<N>>();
      if (a == Activations::bf16)
        return nibble_kernels<F, pairs_x_bytes, arrange_pairs_nibbles<Activations::bf16>, product_pairs_avx2<N>>();
      if constexpr (N != NibbleNeeds::residue)
        return nibble_kernels<F, pairs_x_bytes, arrange_pairs_nibbles<Activations::fp32>, product_pairs_avx2<N>>();
    }
  }
#endif
  return decoded_kernels<F, decode_nibble_row<F>>(isa, a);
}

}  // namespace decant::quant

#endif
