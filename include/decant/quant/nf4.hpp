// decant: Nf4, 4-bit NormalFloat: 16 levels at quantiles of a Gaussian, times the largest magnitude of a block (QLoRA:
// Dettmers, Pagnoni, Holtzman, Zettlemoyer, arXiv 2305.14314). Levels, decision thresholds and the order of nibbles are
// those of bitsandbytes; blocks run along rows and do not cross them, which is the same where rows are whole blocks.
// Block maxima are fp32. They are not quantized again: bitsandbytes does that over 256 blocks of whatever rows.
#ifndef DECANT_QUANT_NF4_HPP
#define DECANT_QUANT_NF4_HPP

#include <cstddef>
#include <cstdint>

#include "../core/bits.hpp"
#include "../core/bytes.hpp"
#include "detail/magnitude.hpp"
#include "detail/planes.hpp"
#include "packed.hpp"
#include "policy.hpp"

namespace decant::quant {

/// A row: its codes, element 2i in the high nibble of byte i; its block maxima, fp32.
struct Nf4 {
  using Format = Nf4;
  static constexpr int bits = 4;

  index_t block = 64;  ///< weights per maximum

  bool operator==(const Nf4&) const = default;

  struct Layer {};
  struct Group {
    float maximum;
  };

  /// Of codes 0 to 15: ascending, from -1 to 1; code 7 is 0.
  DECANT_HD static constexpr float level(int code) {
    constexpr float levels[16] = {-1.0f,
                                  -0.6961928009986877f,
                                  -0.5250730514526367f,
                                  -0.39491748809814453f,
                                  -0.28444138169288635f,
                                  -0.18477343022823334f,
                                  -0.09105003625154495f,
                                  0.0f,
                                  0.07958029955625534f,
                                  0.16093020141124725f,
                                  0.24611230194568634f,
                                  0.33791524171829224f,
                                  0.44070982933044434f,
                                  0.5626170039176941f,
                                  0.7229568362236023f,
                                  1.0f};
    return levels[code];
  }

  const Nf4& format() const { return *this; }
  DECANT_HD index_t group_size(index_t cols) const { return block < cols ? block : cols; }
  DECANT_HD index_t groups(index_t cols) const { return (cols + group_size(cols) - 1) / group_size(cols); }
  DECANT_HD index_t layer_bytes() const { return 0; }
  DECANT_HD index_t scales_at(index_t cols) const { return ((cols + 1) / 2 + 3) / 4 * 4; }
  DECANT_HD index_t row_bytes(index_t cols) const { return scales_at(cols) + 4 * groups(cols); }

  Layer layer(const View<const float, 2>&) const { return {}; }
  Layer load_layer(const std::byte*) const { return {}; }
  void store_layer(const Layer&, std::byte*) const {}

  DECANT_HD Group fit(const Layer&, const float* w, const float*, index_t n) const {
    return {detail::largest_magnitude(w, n)};
  }
  DECANT_HD std::uint8_t nearest(const Layer&, const Group& g, index_t, float w) const {
    // Halfway between neighbours; the lower one wins there.
    constexpr float thresholds[15] = {-0.8480964004993439f,   -0.6106329262256622f,  -0.4599952697753906f,
                                      -0.33967943489551544f,  -0.23460740596055984f, -0.13791173323988914f,
                                      -0.045525018125772476f, 0.03979014977812767f,  0.1202552504837513f,
                                      0.2035212516784668f,    0.2920137718319893f,   0.3893125355243683f,
                                      0.5016634166240692f,    0.6427869200706482f,   0.8614784181118011f};
    const float u = g.maximum > 0 ? w / g.maximum : 0.0f;
    int code = 0;
    for (const float t : thresholds) code += u > t;
    return static_cast<std::uint8_t>(code);
  }
  DECANT_HD float value(const Layer&, const Group& g, index_t, std::uint8_t code) const {
    return level(code) * g.maximum;
  }

  DECANT_HD Group load_group(const Layer&, const std::byte* row, index_t cols, index_t j) const {
    return {bit_cast<float>(load_le<std::uint32_t>(row + scales_at(cols) + 4 * j))};
  }
  DECANT_HD void store_group(const Layer&, const Group& g, std::byte* row, index_t cols, index_t j) const {
    store_le(row + scales_at(cols) + 4 * j, bit_cast<std::uint32_t>(g.maximum));
  }
  // k ^ 1: the other nibble of a byte is the first. The last of an odd row has a byte to itself.
  DECANT_HD std::uint8_t load_code(const std::byte* row, index_t cols, index_t k) const {
    return detail::load_code(4, row, cols, k ^ 1);
  }
  DECANT_HD void store_code(std::uint8_t code, std::byte* row, index_t cols, index_t k) const {
    detail::store_code(4, code, row, cols, k ^ 1);
  }
};

inline void validate(const Nf4& f, index_t cols) {
  require(cols >= 1, "quant::Nf4", "cols", "at least 1", cols);
  require(f.block >= 1, "quant::Nf4", "block", "at least 1", f.block);
}

static_assert(Codes<Nf4>);

}  // namespace decant::quant

#endif
