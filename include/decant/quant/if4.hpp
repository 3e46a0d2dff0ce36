// decant: If4, NVFP4 whose groups are either E2M1 or 4-bit integers, whichever is nearer, at the same bytes: the sign
// bit of a group's E4M3 scale says integer. From the official code (fouroversix): both use the scale that NVFP4 would,
// the integers -7 ... 7 are spread over the same range, and a tie is E2M1. [ours] The factors 6/7 and 7/6 are exact (to
// a rounding) where that code has ten digits, and errors are weighed by importance where that is known.
#ifndef DECANT_QUANT_IF4_HPP
#define DECANT_QUANT_IF4_HPP

#include <cstddef>
#include <cstdint>

#include "detail/rounding.hpp"
#include "fp4.hpp"

namespace decant::quant {

/// Bytes as NvFp4; an integer code is two's complement.
struct If4 {
  using Format = If4;
  static constexpr int bits = 4;
  static constexpr index_t group = NvFp4::group;

  BlockError error = BlockError::mse;  ///< by which fit() chooses, no part of what is stored

  bool operator==(const If4&) const = default;

  using Layer = NvFp4::Layer;
  struct Group {
    float scale;  ///< of E4M3; negative: integers, times its magnitude
  };

  const If4& format() const { return *this; }
  DECANT_HD index_t group_size(index_t cols) const { return NvFp4{}.group_size(cols); }
  DECANT_HD index_t groups(index_t cols) const { return NvFp4{}.groups(cols); }
  DECANT_HD index_t layer_bytes() const { return NvFp4{}.layer_bytes(); }
  DECANT_HD index_t scales_at(index_t cols) const { return NvFp4{}.scales_at(cols); }
  DECANT_HD index_t row_bytes(index_t cols) const { return NvFp4{}.row_bytes(cols); }

  Layer layer(const View<const float, 2>& w) const { return NvFp4{}.layer(w); }
  DECANT_HD Layer load_layer(const std::byte* from) const { return NvFp4{}.load_layer(from); }
  DECANT_HD void store_layer(const Layer& layer, std::byte* to) const { NvFp4{}.store_layer(layer, to); }

  DECANT_HD Group fit(const Layer& layer, const float* w, const float* importance, index_t n) const {
    const Group real{NvFp4{}.fit(layer, w, nullptr, n).scale};
    const Group integer{-real.scale};
    return detail::group_error(*this, error, layer, integer, w, importance, n) <
                   detail::group_error(*this, error, layer, real, w, importance, n)
               ? integer
               : real;
  }
  DECANT_HD std::uint8_t nearest(const Layer& layer, const Group& g, index_t, float w) const {
    const float step = layer.scale * (g.scale < 0 ? -g.scale : g.scale);
    if (!(step > 0)) return 0;
    if (!(g.scale < 0)) return detail::e2m1_nearest(w / step);
    const float q = detail::round_even(w / step * 7 / 6);
    return static_cast<std::uint8_t>(static_cast<int>(!(q > -7) ? -7.0f : q < 7 ? q : 7.0f) & 15);
  }
  DECANT_HD float value(const Layer& layer, const Group& g, index_t, std::uint8_t code) const {
    return (g.scale < 0 ? integer_value(code) * -g.scale : detail::e2m1_value(code) * g.scale) * layer.scale;
  }
  /// q * 6 / 7 of a two's complement nibble.
  DECANT_HD static constexpr float integer_value(std::uint8_t code) {
    return static_cast<float>((code ^ 8) - 8) * 6 / 7;
  }

  DECANT_HD Group load_group(const Layer& layer, const std::byte* row, index_t cols, index_t j) const {
    return {NvFp4{}.load_group(layer, row, cols, j).scale};
  }
  DECANT_HD void store_group(const Layer& layer, const Group& g, std::byte* row, index_t cols, index_t j) const {
    NvFp4{}.store_group(layer, {g.scale}, row, cols, j);
  }
  DECANT_HD std::uint8_t load_code(const std::byte* row, index_t cols, index_t k) const {
    return detail::load_code(4, row, cols, k);
  }
  DECANT_HD void store_code(std::uint8_t code, std::byte* row, index_t cols, index_t k) const {
    detail::store_code(4, code, row, cols, k);
  }
};

inline void validate(const If4& f, index_t cols) {
  require(cols >= 1, "quant::If4", "cols", "at least 1", cols);
  require(f.error <= BlockError::max_abs, "quant::If4", "error", "a measure", static_cast<int>(f.error));
}

static_assert(Codes<If4>);

}  // namespace decant::quant

#endif
