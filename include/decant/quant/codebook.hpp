// decant: Codebook2x16<Scale>, 4-bit codes into one of two tables of 16 values that a whole matrix shares: the format
// of AAAC (arXiv 2605.08692), which aaac.hpp fits. A group of weights along a row has a positive scale; a selection
// group, the same or a part of it, has one bit that says which table its codes are of. With one selection group per
// scale the bit is the scale's sign and costs nothing. Scale = fp16 has groups of 128; Scale = fp8_e4m3 has groups of
// 16 and one more scale for the whole matrix, as NVFP4 has. On its own, without a fit, the format has the tables of IF4
// (NVFP4's and a uniform grid).
// Ours: a group's largest weight lies at 21/32 of the scale, so that the tables of IF4 are exact in bf16.
#ifndef DECANT_QUANT_CODEBOOK_HPP
#define DECANT_QUANT_CODEBOOK_HPP

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "../core/bits.hpp"
#include "../core/bytes.hpp"
#include "../core/dtype.hpp"
#include "detail/codebook_search.hpp"
#include "detail/magnitude.hpp"
#include "packed.hpp"

namespace decant::quant {

/// What the matrix shares: the tables as bf16, ascending, 64 bytes; then, with fp8_e4m3 scales, a float.
/// A row: its codes, sequential nibbles; its scales; then, where select < group, its selectors, bit i % 8 of byte i / 8
/// for columns [select i, select (i + 1)).
template <class Scale = fp16>
struct Codebook2x16 {
  static_assert(std::is_same_v<Scale, fp16> || std::is_same_v<Scale, fp8_e4m3>,
                "decant::quant::Codebook2x16: scales are fp16 or fp8_e4m3");
  using Format = Codebook2x16;
  static constexpr int bits = 4;
  static constexpr bool two_scales = std::is_same_v<Scale, fp8_e4m3>;
  /// The table value at which a group's largest weight lies.
  static constexpr float top = 0.65625f;

  index_t group = two_scales ? 16 : 128;  ///< weights per scale
  index_t select = group;                 ///< weights per selector, a divisor of group

  bool operator==(const Codebook2x16&) const = default;

  struct Layer {
    float scale;         ///< of the whole matrix; 1 with fp16 scales
    std::int32_t refits; ///< no part of what is stored: how often fit() may fit a group's scale to its codes
    float table[2][16];  ///< ascending, each a bf16
    float limit[2][16];  ///< between which values a code is nearest: detail/codebook_search.hpp
  };
  struct Group {
    float scale;           ///< as stored, without its sign
    std::uint32_t second;  ///< bit i: the i-th selection group has the second table
  };

  const Codebook2x16& format() const { return *this; }
  DECANT_HD index_t group_size(index_t cols) const { return group < cols ? group : cols; }
  DECANT_HD index_t groups(index_t cols) const { return (cols + group_size(cols) - 1) / group_size(cols); }
  DECANT_HD bool selects_by_sign() const { return select == group; }
  DECANT_HD index_t layer_bytes() const { return two_scales ? 68 : 64; }
  DECANT_HD index_t scales_at(index_t cols) const {
    const index_t codes = (cols + 1) / 2;
    return two_scales ? codes : (codes + 1) / 2 * 2;
  }
  DECANT_HD index_t selectors_at(index_t cols) const {
    return scales_at(cols) + groups(cols) * static_cast<index_t>(sizeof(Scale));
  }
  DECANT_HD index_t row_bytes(index_t cols) const {
    const index_t selectors = selects_by_sign() ? 0 : ((cols + select - 1) / select + 7) / 8;
    return (selectors_at(cols) + selectors + 3) / 4 * 4;
  }

  /// A layer of these tables [2][16], which ascend, rounded to bf16; -0 becomes +0.
  DECANT_HD static Layer of_tables(const float (*tables)[16], float scale, int refits = 0) {
    Layer layer{scale, refits, {}, {}};
    for (int t = 0; t < 2; ++t) {
      for (int c = 0; c < 16; ++c) layer.table[t][c] = static_cast<float>(bf16(tables[t][c])) + 0.0f;
      detail::set_limits(layer.table[t], layer.limit[t]);
    }
    return layer;
  }
  /// IF4's: +-{0, .5, 1, 1.5, 2, 3, 4, 6} / 6 of the largest weight, and {-7 ... 7} / 7 with a 16th entry at 1/14.
  DECANT_HD static Layer if4(float scale) {
    constexpr float tables[2][16] = {
        {-84, -56, -42, -28, -21, -14, -7, 0, 0, 7, 14, 21, 28, 42, 56, 84},
        {-84, -72, -60, -48, -36, -24, -12, 0, 6, 12, 24, 36, 48, 60, 72, 84}};
    float scaled[2][16];
    for (int c = 0; c < 32; ++c) scaled[c / 16][c % 16] = tables[c / 16][c % 16] * (top / 84);
    return of_tables(scaled, scale);
  }
  /// The scale of a matrix whose largest magnitude this is: its own group's is then the largest E4M3.
  DECANT_HD static float matrix_scale(float largest) { return two_scales ? largest / (448.0f * top) : 1.0f; }

  Layer layer(const View<const float, 2>& w) const {
    return if4(two_scales ? matrix_scale(detail::largest_magnitude(w)) : 1.0f);
  }
  DECANT_HD Layer load_layer(const std::byte* from) const {
    float tables[2][16];
    for (int c = 0; c < 32; ++c)
      tables[c / 16][c % 16] = bf16::from_bits(load_le<std::uint16_t>(from + 2 * c));
    return of_tables(tables, two_scales ? bit_cast<float>(load_le<std::uint32_t>(from + 64)) : 1.0f);
  }
  DECANT_HD void store_layer(const Layer& layer, std::byte* to) const {
    for (int c = 0; c < 32; ++c) store_le(to + 2 * c, bf16(layer.table[c / 16][c % 16]).bits);
    if (two_scales) store_le(to + 64, bit_cast<std::uint32_t>(layer.scale));
  }

  /// A stored scale in units of the weights. `matrix` is Layer::scale.
  DECANT_HD static float step(float matrix, float scale) { return two_scales ? matrix * scale : scale; }

  /// The stored scale for a group whose largest magnitude this is.
  DECANT_HD static float scale_of(float matrix, float largest) {
    if (largest == 0) return 0;
    return stored(two_scales ? largest / (top * matrix) : largest / top);
  }

  /// The scale from the largest weight, each selection group's table by the lesser weighted error (the first of equal
  /// ones). The scale is then fitted to the codes, as often as the layer says and as long as the error falls.
  DECANT_HD Group fit(const Layer& layer, const float* w, const float* importance, index_t n) const {
    Group best{scale_of(layer.scale, detail::largest_magnitude(w, n)), 0};
    if (!(step(layer.scale, best.scale) > 0)) return {0, 0};
    double least = choose(layer, w, importance, n, best);
    for (int round = 0; round < layer.refits; ++round) {
      Group g{refitted(layer, w, importance, n, best), 0};
      if (g.scale == best.scale || !(step(layer.scale, g.scale) > 0)) break;
      const double e = choose(layer, w, importance, n, g);
      if (!(e < least)) break;
      least = e;
      best = g;
    }
    return best;
  }

  DECANT_HD std::uint8_t nearest(const Layer& layer, const Group& g, index_t i, float w) const {
    const float s = step(layer.scale, g.scale);
    return static_cast<std::uint8_t>(detail::nearest_entry(layer.limit[table_of(g, i)], s > 0 ? w / s : 0.0f));
  }
  DECANT_HD float value(const Layer& layer, const Group& g, index_t i, std::uint8_t code) const {
    return g.scale == 0 ? 0.0f : step(layer.scale, g.scale) * layer.table[table_of(g, i)][code];
  }

  DECANT_HD Group load_group(const Layer&, const std::byte* row, index_t cols, index_t j) const {
    using Bits = decltype(Scale::bits);
    const Bits stored_bits = load_le<Bits>(row + scales_at(cols) + j * static_cast<index_t>(sizeof(Scale)));
    const float scale = Scale::from_bits(static_cast<Bits>(stored_bits & (sign - 1)));
    if (selects_by_sign()) return {scale, (stored_bits & sign) != 0 ? 1u : 0u};
    Group g{scale, 0};
    const std::byte* const selectors = row + selectors_at(cols);
    const index_t first = j * (group / select);
    for (index_t i = 0; i < selectors_of(cols, j); ++i) {
      const unsigned byte = static_cast<unsigned>(selectors[(first + i) / 8]);
      g.second |= (byte >> ((first + i) % 8) & 1u) << i;
    }
    return g;
  }
  DECANT_HD void store_group(const Layer&, const Group& g, std::byte* row, index_t cols, index_t j) const {
    using Bits = decltype(Scale::bits);
    unsigned to_store = Scale(g.scale).bits;
    if (selects_by_sign() && g.second != 0 && to_store != 0) to_store |= sign;
    store_le(row + scales_at(cols) + j * static_cast<index_t>(sizeof(Scale)), static_cast<Bits>(to_store));
    if (selects_by_sign()) return;
    std::byte* const selectors = row + selectors_at(cols);
    const index_t first = j * (group / select);
    for (index_t i = 0; i < selectors_of(cols, j); ++i) {
      std::byte& byte = selectors[(first + i) / 8];
      const unsigned at = 1u << ((first + i) % 8);
      byte = static_cast<std::byte>((static_cast<unsigned>(byte) & ~at) | ((g.second >> i & 1u) != 0 ? at : 0u));
    }
  }
  DECANT_HD std::uint8_t load_code(const std::byte* row, index_t, index_t k) const {
    return static_cast<std::uint8_t>(static_cast<unsigned>(row[k / 2]) >> (k % 2 * 4) & 15u);
  }
  DECANT_HD void store_code(std::uint8_t code, std::byte* row, index_t, index_t k) const {
    const int shift = static_cast<int>(k % 2 * 4);
    const unsigned kept = static_cast<unsigned>(row[k / 2]) & ~(15u << shift);
    row[k / 2] = static_cast<std::byte>(kept | unsigned{code} << shift);
  }

  /// As the scale's type stores it: never 0 in fp16 where the scale is not, never infinite.
  DECANT_HD static float stored(float scale) {
    const float rounded = Scale(scale);
    if (two_scales) return rounded;
    return rounded == 0 && scale > 0 ? 0x1p-24f : rounded > 65504.0f ? 65504.0f : rounded;
  }

  /// The scale of a group whose codes were those of this one, from its detail::scale_sums().
  DECANT_HD static float refitted(float scale, double product, double square) {
    return product > 0 && square > 0 ? stored(static_cast<float>(static_cast<double>(scale) * (product / square)))
                                     : scale;
  }

 private:
  static constexpr unsigned sign = 1u << (8 * sizeof(Scale) - 1);

  DECANT_HD unsigned table_of(const Group& g, index_t i) const {
    return selects_by_sign() ? g.second : g.second >> (i / select) & 1u;
  }
  DECANT_HD index_t selectors_of(index_t cols, index_t j) const {
    const index_t first = j * group;
    const index_t count = cols - first < group ? cols - first : group;
    return (count + select - 1) / select;
  }

  /// Sets g.second for its scale; the error in units of the matrix's scale.
  DECANT_HD double choose(const Layer& layer, const float* w, const float* importance, index_t n, Group& g) const {
    const float s = step(layer.scale, g.scale);
    double sum = 0;
    for (index_t i = 0, k = 0; k < n; ++i, k += select) {
      const index_t count = n - k < select ? n - k : select;
      const float* const weight = importance ? importance + k : nullptr;
      const float first = detail::weighted_error(layer.table[0], layer.limit[0], w + k, weight, count, s);
      const float second = detail::weighted_error(layer.table[1], layer.limit[1], w + k, weight, count, s);
      if (second < first) g.second |= 1u << i;
      sum += static_cast<double>(second < first ? second : first);
    }
    return sum * (static_cast<double>(g.scale) * static_cast<double>(g.scale));
  }
  DECANT_HD float refitted(const Layer& layer, const float* w, const float* importance, index_t n,
                           const Group& g) const {
    const float s = step(layer.scale, g.scale);
    double product = 0;
    double square = 0;
    for (index_t k = 0; k < n; k += select) {
      const index_t count = n - k < select ? n - k : select;
      const unsigned t = table_of(g, k);
      const float* const weight = importance ? importance + k : nullptr;
      detail::scale_sums(layer.table[t], layer.limit[t], w + k, weight, count, s, product, square);
    }
    return refitted(g.scale, product, square);
  }
};

template <class Scale>
void validate(const Codebook2x16<Scale>& f, index_t cols) {
  constexpr const char* where = "quant::Codebook2x16";
  require(cols >= 1, where, "cols", "at least 1", cols);
  require(f.group >= 1, where, "group", "at least 1", f.group);
  require(f.select >= 1 && f.group % f.select == 0 && f.group / f.select <= 32, where, "select",
          [&] { return "a divisor of " + std::to_string(f.group) + ", at most 32 of them in it"; }, f.select);
}

}  // namespace decant::quant

#endif
