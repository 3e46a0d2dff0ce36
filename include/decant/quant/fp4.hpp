// decant: E2M1 weights with small scales. MxFp4: 32 weights share a power of two (OCP microscaling formats,
// revision 1.0). NvFp4: 16 weights share an E4M3 scale and the matrix an fp32 one; optionally "four over six" (Cook et
// al., arXiv 2512.02010), where a group's largest weight may also be 4 instead of 6. Scale rules follow the fouroversix
// code. [ours] The choice of four over six weighs errors by importance where that is known; encoding divides by the
// product of both scales, where that code multiplies by a reciprocal. ggml's MXFP4 and NVFP4 blocks are other formats.
#ifndef DECANT_QUANT_FP4_HPP
#define DECANT_QUANT_FP4_HPP

#include <cstddef>
#include <cstdint>

#include "../core/bits.hpp"
#include "../core/bytes.hpp"
#include "../core/dtype.hpp"
#include "detail/e2m1.hpp"
#include "detail/magnitude.hpp"
#include "detail/planes.hpp"
#include "packed.hpp"
#include "policy.hpp"

namespace decant::quant {

/// Which power of two a group of largest magnitude a gets.
enum class MxScale : std::uint8_t {
  ocp,       ///< 2^(floor(log2 a) - 2): weights above 6 of it are clipped
  round_up,  ///< the least one of at least a / 6: never clips
};

/// A row: its codes, element 2i in the low nibble of byte i; its scales, one byte each: 2^(byte - 127).
struct MxFp4 {
  using Format = MxFp4;
  static constexpr int bits = 4;
  static constexpr index_t group = 32;

  MxScale rule = MxScale::ocp;  ///< how fit() chooses, no part of what is stored

  bool operator==(const MxFp4&) const = default;

  struct Layer {};
  struct Group {
    float scale;  ///< a power of two; NaN for byte 255
  };

  const MxFp4& format() const { return *this; }
  DECANT_HD index_t group_size(index_t cols) const { return group < cols ? group : cols; }
  DECANT_HD index_t groups(index_t cols) const { return (cols + group - 1) / group; }
  DECANT_HD index_t layer_bytes() const { return 0; }
  DECANT_HD index_t scales_at(index_t cols) const { return detail::code_bytes(4, cols); }
  DECANT_HD index_t row_bytes(index_t cols) const { return (scales_at(cols) + groups(cols) + 3) / 4 * 4; }

  Layer layer(const View<const float, 2>&) const { return {}; }
  Layer load_layer(const std::byte*) const { return {}; }
  void store_layer(const Layer&, std::byte*) const {}

  DECANT_HD Group fit(const Layer&, const float* w, const float*, index_t n) const {
    const std::uint32_t top = bit_cast<std::uint32_t>(detail::largest_magnitude(w, n));
    // a = 1.m * 2^(exponent - 127); a / 6 is above 2^(exponent - 129) when 1.m is above 1.5.
    const int exponent = static_cast<int>(top >> 23);
    const int more = rule == MxScale::round_up && (top & 0x7fffffu) > 0x400000u ? 1 : 0;
    return {power(exponent - 2 + more)};
  }
  DECANT_HD std::uint8_t nearest(const Layer&, const Group& g, index_t, float w) const {
    return detail::e2m1_nearest(w / g.scale);
  }
  DECANT_HD float value(const Layer&, const Group& g, index_t, std::uint8_t code) const {
    return detail::e2m1_value(code) * g.scale;
  }

  DECANT_HD Group load_group(const Layer&, const std::byte* row, index_t cols, index_t j) const {
    return {power(static_cast<int>(row[scales_at(cols) + j]))};
  }
  DECANT_HD void store_group(const Layer&, const Group& g, std::byte* row, index_t cols, index_t j) const {
    row[scales_at(cols) + j] = static_cast<std::byte>(bit_cast<std::uint32_t>(g.scale) >> 23 & 0xffu);
  }
  DECANT_HD std::uint8_t load_code(const std::byte* row, index_t cols, index_t k) const {
    return detail::load_code(4, row, cols, k);
  }
  DECANT_HD void store_code(std::uint8_t code, std::byte* row, index_t cols, index_t k) const {
    detail::store_code(4, code, row, cols, k);
  }

 private:
  /// 2^(e - 127), where e below 0 counts as 0: 2^-127, a subnormal float.
  DECANT_HD static float power(int e) {
    return bit_cast<float>(e <= 0 ? 0x400000u : e == 255 ? 0x7fc00000u : static_cast<std::uint32_t>(e) << 23);
  }
};

inline void validate(const MxFp4& f, index_t cols) {
  require(cols >= 1, "quant::MxFp4", "cols", "at least 1", cols);
  require(f.rule <= MxScale::round_up, "quant::MxFp4", "rule", "a rule", static_cast<int>(f.rule));
}

/// A row: its codes, element 2i in the low nibble of byte i; its scales, E4M3. Shared: an fp32 scale.
struct NvFp4 {
  using Format = NvFp4;
  static constexpr int bits = 4;
  static constexpr index_t group = 16;

  // How fit() chooses, no part of what is stored.
  bool four_over_six = false;          ///< per group, its largest weight at 6 or at 4, the one with the lesser error
  BlockError error = BlockError::mse;  ///< for that; 6 where they are equal

  bool operator==(const NvFp4&) const = default;

  struct Layer {
    float scale;
  };
  struct Group {
    float scale;  ///< of E4M3
  };

  const NvFp4& format() const { return *this; }
  DECANT_HD index_t group_size(index_t cols) const { return group < cols ? group : cols; }
  DECANT_HD index_t groups(index_t cols) const { return (cols + group - 1) / group; }
  DECANT_HD index_t layer_bytes() const { return 4; }
  DECANT_HD index_t scales_at(index_t cols) const { return detail::code_bytes(4, cols); }
  DECANT_HD index_t row_bytes(index_t cols) const { return (scales_at(cols) + groups(cols) + 3) / 4 * 4; }

  /// The largest weight of all is 6 * 448, or 6 * 256 where a group's scale may be half as large again.
  Layer layer(const View<const float, 2>& w) const {
    return {detail::largest_magnitude(w) / (four_over_six ? 6.0f * 256.0f : 6.0f * 448.0f)};
  }
  DECANT_HD Layer load_layer(const std::byte* from) const { return {bit_cast<float>(load_le<std::uint32_t>(from))}; }
  DECANT_HD void store_layer(const Layer& layer, std::byte* to) const {
    store_le(to, bit_cast<std::uint32_t>(layer.scale));
  }

  DECANT_HD Group fit(const Layer& layer, const float* w, const float* importance, index_t n) const {
    if (!(layer.scale > 0)) return {0};
    const float scale = detail::largest_magnitude(w, n) / 6 / layer.scale;
    const Group six{fp8_e4m3(scale)};
    if (!four_over_six) return six;
    const Group four{fp8_e4m3(scale * 1.5f)};
    return detail::group_error(*this, error, layer, four, w, importance, n) <
                   detail::group_error(*this, error, layer, six, w, importance, n)
               ? four
               : six;
  }
  DECANT_HD std::uint8_t nearest(const Layer& layer, const Group& g, index_t, float w) const {
    const float step = layer.scale * g.scale;
    return step > 0 ? detail::e2m1_nearest(w / step) : std::uint8_t{0};
  }
  DECANT_HD float value(const Layer& layer, const Group& g, index_t, std::uint8_t code) const {
    return detail::e2m1_value(code) * g.scale * layer.scale;
  }

  DECANT_HD Group load_group(const Layer&, const std::byte* row, index_t cols, index_t j) const {
    return {fp8_e4m3::from_bits(static_cast<std::uint8_t>(row[scales_at(cols) + j]))};
  }
  DECANT_HD void store_group(const Layer&, const Group& g, std::byte* row, index_t cols, index_t j) const {
    row[scales_at(cols) + j] = static_cast<std::byte>(fp8_e4m3(g.scale).bits);
  }
  DECANT_HD std::uint8_t load_code(const std::byte* row, index_t cols, index_t k) const {
    return detail::load_code(4, row, cols, k);
  }
  DECANT_HD void store_code(std::uint8_t code, std::byte* row, index_t cols, index_t k) const {
    detail::store_code(4, code, row, cols, k);
  }
};

inline void validate(const NvFp4& f, index_t cols) {
  require(cols >= 1, "quant::NvFp4", "cols", "at least 1", cols);
  require(f.error <= BlockError::max_abs, "quant::NvFp4", "error", "a measure", static_cast<int>(f.error));
}

static_assert(Codes<MxFp4> && Codes<NvFp4>);

}  // namespace decant::quant

#endif
