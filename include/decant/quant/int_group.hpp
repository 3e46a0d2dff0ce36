// decant: Int<Bits>, integer codes of 2 to 8 bits in groups along a row, each with a scale in fp16 and, where the grid
// is not symmetric, a zero point or a minimum. The grids are those of GPTQ (zero point), of ggml's _1 types (minimum)
// and the three symmetric ones in use; the search over ranges is GPTQ's (Frantar et al., arXiv 2210.17323, official
// code). A group's codes are always those of the rounded scale.
#ifndef DECANT_QUANT_INT_GROUP_HPP
#define DECANT_QUANT_INT_GROUP_HPP

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "../core/bytes.hpp"
#include "../core/dtype.hpp"
#include "detail/magnitude.hpp"
#include "detail/planes.hpp"
#include "detail/rounding.hpp"
#include "packed.hpp"

namespace decant::quant {

/// The levels of a group of b bits.
enum class IntGrid : std::uint8_t {
  zero_point,  ///< s (q - z), 0 <= q < 2^b, z such an integer: the range always holds 0
  minimum,     ///< m + s q: from the smallest weight to the largest
  symmetric,   ///< s q, |q| < 2^(b-1): an odd number of levels
  signed_max,  ///< s q, -2^(b-1) <= q < 2^(b-1), the weight of largest magnitude at -2^(b-1); s may be negative
  centred,     ///< s q, -2^(b-1) <= q < 2^(b-1), the largest magnitude at s (2^b - 1) / 2: GPTQ's symmetric one
};

constexpr const char* name(IntGrid g) {
  constexpr const char* names[] = {"zero_point", "minimum", "symmetric", "signed_max", "centred"};
  return names[static_cast<int>(g)];
}

/// A row: its codes in planes, its scales as fp16, its zero points as bytes or its minima as fp16.
template <int Bits>
struct Int {
  static_assert(Bits >= 2 && Bits <= 8, "decant::quant::Int: 2 to 8 bits");
  using Format = Int;
  static constexpr int bits = Bits;

  index_t group = 128;  ///< weights per scale; 0: the whole row
  IntGrid grid = IntGrid::zero_point;
  /// How fit() chooses the range, no part of what is stored: the plain one, or of 80 shrunk ones the one with the least
  /// sum of |error|^2.4 (not for signed_max).
  bool search = false;

  bool operator==(const Int&) const = default;

  struct Layer {};
  struct Group {
    float scale;
    float origin;  ///< the code of 0 or, of minimum, the value of code 0
  };

  const Int& format() const { return *this; }
  DECANT_HD index_t group_size(index_t cols) const { return group > 0 && group < cols ? group : cols; }
  DECANT_HD index_t groups(index_t cols) const { return (cols + group_size(cols) - 1) / group_size(cols); }
  DECANT_HD index_t layer_bytes() const { return 0; }
  DECANT_HD index_t scales_at(index_t cols) const { return (detail::code_bytes(Bits, cols) + 1) / 2 * 2; }
  DECANT_HD index_t row_bytes(index_t cols) const {
    const index_t each = grid == IntGrid::zero_point ? 3 : grid == IntGrid::minimum ? 4 : 2;
    return (scales_at(cols) + each * groups(cols) + 3) / 4 * 4;
  }

  Layer layer(const View<const float, 2>&) const { return {}; }
  Layer load_layer(const std::byte*) const { return {}; }
  void store_layer(const Layer&, std::byte*) const {}

  Group fit(const Layer&, const float* w, const float*, index_t n) const {
    if (grid == IntGrid::signed_max) {
      // Of two extremes of one magnitude the first decides.
      const float top = detail::signed_max(w, n);
      return {stored(top / -static_cast<float>(half)), static_cast<float>(half)};
    }
    const auto [low, high] = detail::range_of(w, n);
    Group best = of_range(low, high);
    if (!search) return best;
    double least = error(best, w, n, std::numeric_limits<double>::infinity());
    for (int step = 1; step < 80; ++step) {
      const float share = 1.0f - static_cast<float>(step) / 100.0f;
      const Group candidate = of_range(low * share, high * share);
      const double e = error(candidate, w, n, least);
      if (e < least) {
        least = e;
        best = candidate;
      }
    }
    return best;
  }

  DECANT_HD std::uint8_t nearest(const Layer&, const Group& g, index_t, float w) const {
    if (g.scale == 0) return grid == IntGrid::minimum ? std::uint8_t{0} : static_cast<std::uint8_t>(g.origin);
    const float q = grid == IntGrid::minimum ? detail::round_even((w - g.origin) / g.scale)
                                             : detail::round_even(w / g.scale) + g.origin;
    const float least = grid == IntGrid::symmetric ? 1.0f : 0.0f;
    constexpr float most = static_cast<float>(levels - 1);
    return static_cast<std::uint8_t>(!(q > least) ? least : q < most ? q : most);
  }
  DECANT_HD float value(const Layer&, const Group& g, index_t, std::uint8_t code) const {
    const float q = static_cast<float>(code);
    return grid == IntGrid::minimum ? g.origin + g.scale * q : g.scale * (q - g.origin);
  }

  DECANT_HD Group load_group(const Layer&, const std::byte* row, index_t cols, index_t j) const {
    const std::byte* const scales = row + scales_at(cols);
    const std::byte* const origins = scales + 2 * groups(cols);
    Group g{load_half(scales + 2 * j), static_cast<float>(half)};
    if (grid == IntGrid::zero_point) {
      // From a file it may be any byte: the bits that codes have.
      g.origin = static_cast<float>(static_cast<int>(origins[j]) & (levels - 1));
    }
    if (grid == IntGrid::minimum) g.origin = load_half(origins + 2 * j);
    return g;
  }
  DECANT_HD void store_group(const Layer&, const Group& g, std::byte* row, index_t cols, index_t j) const {
    std::byte* const scales = row + scales_at(cols);
    std::byte* const origins = scales + 2 * groups(cols);
    store_le(scales + 2 * j, fp16(g.scale).bits);
    if (grid == IntGrid::zero_point) origins[j] = static_cast<std::byte>(g.origin);
    if (grid == IntGrid::minimum) store_le(origins + 2 * j, fp16(g.origin).bits);
  }
  DECANT_HD std::uint8_t load_code(const std::byte* row, index_t cols, index_t k) const {
    return detail::load_code(Bits, row, cols, k);
  }
  DECANT_HD void store_code(std::uint8_t code, std::byte* row, index_t cols, index_t k) const {
    detail::store_code(Bits, code, row, cols, k);
  }

 private:
  static constexpr int levels = 1 << Bits;
  static constexpr int half = 1 << (Bits - 1);

  DECANT_HD static float load_half(const std::byte* p) { return fp16::from_bits(load_le<std::uint16_t>(p)); }

  /// As fp16 stores it. Where fp16 has no normal numbers steps are coarse, and a scale that is rounded down would clip
  /// the range; so it is rounded up there, which keeps it from 0 too.
  static float stored(float scale) {
    if (scale == 0) return 0;  // never -0
    const float magnitude = std::abs(scale);
    const float rounded = magnitude < 0x1p-14f   ? std::ceil(magnitude * 0x1p24f) * 0x1p-24f
                          : magnitude > 65504.0f ? 65504.0f
                                                 : static_cast<float>(fp16(magnitude));
    return std::copysign(rounded, scale);
  }

  /// The largest fp16 that is not above x: a minimum above the smallest weight would clip it.
  static float stored_below(float x) {
    if (x < -65504.0f) return -65504.0f;
    fp16 h(x < 65504.0f ? x : 65504.0f);
    if (h > x) h.bits = static_cast<std::uint16_t>(h.bits + (h.bits >> 15 != 0 ? 1 : -1));
    return h;
  }

  Group of_range(float low, float high) const {
    if (grid == IntGrid::symmetric || grid == IntGrid::centred) {
      const float top = -low > high ? -low : high;
      const float steps = grid == IntGrid::symmetric ? half - 1 : (levels - 1) * 0.5f;
      return {stored(top / steps), static_cast<float>(half)};
    }
    if (grid == IntGrid::minimum) {
      const float origin = stored_below(low);
      return {stored((high - origin) / static_cast<float>(levels - 1)), origin};
    }
    low = low < 0 ? low : 0;
    high = high > 0 ? high : 0;
    if (low == 0 && high == 0) {
      low = -1;
      high = 1;
    }
    const float scale = stored((high - low) / static_cast<float>(levels - 1));
    const float origin = detail::round_even(-low / scale);
    return {scale, origin < static_cast<float>(levels) ? origin : static_cast<float>(levels - 1)};
  }

  /// The sum, or some value of at least `enough`.
  double error(const Group& g, const float* w, index_t n, double enough) const {
    double sum = 0;
    for (index_t i = 0; i < n && sum < enough; ++i)
      sum += std::pow(std::abs(static_cast<double>(value({}, g, i, nearest({}, g, i, w[i]))) - w[i]), 2.4);
    return sum;
  }
};

template <int Bits>
void validate(const Int<Bits>& f, index_t cols) {
  require(cols >= 1, "quant::Int", "cols", "at least 1", cols);
  require(f.group >= 0, "quant::Int", "group", "at least 0", f.group);
  require(f.grid <= IntGrid::centred, "quant::Int", "grid", "a grid", static_cast<int>(f.grid));
}

}  // namespace decant::quant

#endif
