// decant: Fp8<T>, 8-bit floats with an fp32 scale per row: the largest magnitude of a row is T's largest number (OCP
// 8-bit floating point, revision 1.0; T is fp8_e4m3 or fp8_e5m2). What FP8 checkpoints with a scale per channel hold.
#ifndef DECANT_QUANT_FP8_HPP
#define DECANT_QUANT_FP8_HPP

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "../core/bits.hpp"
#include "../core/bytes.hpp"
#include "../core/dtype.hpp"
#include "detail/magnitude.hpp"
#include "packed.hpp"
#include "policy.hpp"

namespace decant::quant {

/// A row: its codes, one byte each; its scale, fp32.
template <class T>
struct Fp8 {
  static_assert(std::is_same_v<T, fp8_e4m3> || std::is_same_v<T, fp8_e5m2>, "decant::quant::Fp8: an 8-bit float");
  using Format = Fp8;
  static constexpr int bits = 8;
  static constexpr float largest = std::is_same_v<T, fp8_e4m3> ? 448.0f : 57344.0f;

  bool operator==(const Fp8&) const = default;

  struct Layer {};
  struct Group {
    float scale;
  };

  const Fp8& format() const { return *this; }
  DECANT_HD index_t group_size(index_t cols) const { return cols; }
  DECANT_HD index_t groups(index_t) const { return 1; }
  DECANT_HD index_t layer_bytes() const { return 0; }
  DECANT_HD index_t scales_at(index_t cols) const { return (cols + 3) / 4 * 4; }
  DECANT_HD index_t row_bytes(index_t cols) const { return scales_at(cols) + 4; }

  Layer layer(const View<const float, 2>&) const { return {}; }
  Layer load_layer(const std::byte*) const { return {}; }
  void store_layer(const Layer&, std::byte*) const {}

  DECANT_HD Group fit(const Layer&, const float* w, const float*, index_t n) const {
    return {detail::largest_magnitude(w, n) / largest};
  }
  /// Saturates.
  DECANT_HD std::uint8_t nearest(const Layer&, const Group& g, index_t, float w) const {
    return g.scale > 0 ? T(w / g.scale).bits : std::uint8_t{0};
  }
  DECANT_HD float value(const Layer&, const Group& g, index_t, std::uint8_t code) const {
    return static_cast<float>(T::from_bits(code)) * g.scale;
  }

  DECANT_HD Group load_group(const Layer&, const std::byte* row, index_t cols, index_t) const {
    return {bit_cast<float>(load_le<std::uint32_t>(row + scales_at(cols)))};
  }
  DECANT_HD void store_group(const Layer&, const Group& g, std::byte* row, index_t cols, index_t) const {
    store_le(row + scales_at(cols), bit_cast<std::uint32_t>(g.scale));
  }
  DECANT_HD std::uint8_t load_code(const std::byte* row, index_t, index_t k) const {
    return static_cast<std::uint8_t>(row[k]);
  }
  DECANT_HD void store_code(std::uint8_t code, std::byte* row, index_t, index_t k) const {
    row[k] = static_cast<std::byte>(code);
  }
};

template <class T>
void validate(const Fp8<T>&, index_t cols) {
  require(cols >= 1, "quant::Fp8", "cols", "at least 1", cols);
}

static_assert(Codes<Fp8<fp8_e4m3>> && Codes<Fp8<fp8_e5m2>>);

}  // namespace decant::quant

#endif
