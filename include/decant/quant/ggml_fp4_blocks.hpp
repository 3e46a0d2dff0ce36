// decant: ggml's blocks of 4-bit floats (E2M1: 0, .5, 1, 1.5, 2, 3, 4, 6 and their negatives), MXFP4 and NVFP4: rows
// are byte for byte those of a ggml tensor of that type, and Rtn writes what ggml's reference encoders write. They
// differ from the formats of those names elsewhere: halves go to the smaller magnitude, NVFP4 has no scale of the whole
// matrix (and none from 256 to below 448), and both have their own order of nibbles.
#ifndef DECANT_QUANT_GGML_FP4_BLOCKS_HPP
#define DECANT_QUANT_GGML_FP4_BLOCKS_HPP

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "detail/ggml_block.hpp"
#include "packed.hpp"

namespace decant::quant::ggml {

/// E2M1 doubled, which makes it integers; scales are halved in turn.
DECANT_HD inline int doubled_e2m1(int code) {
  constexpr signed char values[8] = {0, 1, 2, 3, 4, 6, 8, 12};
  const int value = values[code & 7];
  return (code & 8) != 0 ? -value : value;
}

/// The code of the level next to w, `half_scale` that of doubled_e2m1; of two as near the smaller; 0 is never negative.
DECANT_HD inline std::uint8_t nearest_e2m1(float w, float half_scale) {
  const float size = detail::magnitude(w);
  int best = 0;
  float least = size;
  for (int code = 1; code < 8; ++code) {
    const float error = detail::magnitude(static_cast<float>(doubled_e2m1(code)) * half_scale - size);
    if (error < least) {
      least = error;
      best = code;
    }
  }
  return static_cast<std::uint8_t>(best != 0 && w < 0 ? best + 8 : best);
}

/// 17 bytes: e, the scale 2^(e - 127) (also e = 255, which elsewhere is NaN); nibbles, elements 0 ... 15 low and
/// 16 ... 31 high. The largest magnitude's power of two decides e, so that magnitudes above 6 scales are cut off.
struct MXFP4 : detail::GgmlBlocks<32, 17> {
  using Format = MXFP4;
  struct Group {
    float half_scale;  ///< 2^(e - 128)
    std::uint8_t e;
  };

  bool operator==(const MXFP4&) const = default;
  const MXFP4& format() const { return *this; }

  /// Of a block below 2^-125 but not 0, e is 0, where the conversion in ggml's encoder has no meaning in C.
  Group fit(const Layer&, const float* w, const float*, index_t n) const {
    const float top = detail::magnitude(detail::signed_max(w, n));
    if (top == 0) return of_scale(0);
    // ggml's floorf(log2f(top)), which goes up where log2 does by rounding; so computed that no library's log2f
    // matters.
    const int power = static_cast<int>(std::floor(static_cast<float>(std::log2(static_cast<double>(top)))));
    return of_scale(power < -125 ? 0 : power + 125);
  }
  DECANT_HD std::uint8_t nearest(const Layer&, const Group& g, index_t, float w) const {
    return nearest_e2m1(w, g.half_scale);
  }
  DECANT_HD float value(const Layer&, const Group& g, index_t, std::uint8_t code) const {
    return g.half_scale * static_cast<float>(doubled_e2m1(code));
  }
  DECANT_HD Group load_group(const Layer&, const std::byte* row, index_t, index_t j) const {
    return of_scale(static_cast<int>(row[j * block_bytes]));
  }
  DECANT_HD void store_group(const Layer&, const Group& g, std::byte* row, index_t, index_t j) const {
    row[j * block_bytes] = static_cast<std::byte>(g.e);
  }
  DECANT_HD std::uint8_t load_code(const std::byte* row, index_t, index_t k) const {
    return detail::load_nibble(row + k / block_size * block_bytes + 1, 16, k % block_size);
  }
  DECANT_HD void store_code(std::uint8_t code, std::byte* row, index_t, index_t k) const {
    detail::store_nibble(code, row + k / block_size * block_bytes + 1, 16, k % block_size);
  }

  /// 2^(e - 128).
  DECANT_HD static float half_scale(int e) {
    const std::uint32_t bits = e < 2 ? 0x00200000u << e : static_cast<std::uint32_t>(e - 1) << 23;
    return bit_cast<float>(bits);
  }

 private:
  DECANT_HD static Group of_scale(int e) { return {half_scale(e), static_cast<std::uint8_t>(e)}; }
};

/// 36 bytes of 64 weights: 4 scales, each of 16 weights in E4M3 (without sign: 0x7f is 0, bit 7 of no meaning but in
/// 0xff, 480); nibbles, 8 bytes per 16 weights, the first 8 low and the last 8 high.
struct NVFP4 : detail::GgmlBlocks<64, 36> {
  using Format = NVFP4;
  struct Group {
    float half_scale[4];
    std::uint8_t scale[4];
  };

  bool operator==(const NVFP4&) const = default;
  const NVFP4& format() const { return *this; }

  Group fit(const Layer&, const float* w, const float*, index_t n) const {
    Group g{};
    for (index_t part = 0; part < n / 16; ++part)
      g.scale[part] = encode(detail::magnitude(detail::signed_max(w + part * 16, 16)) / 6.0f);
    return widened(g);
  }
  DECANT_HD std::uint8_t nearest(const Layer&, const Group& g, index_t i, float w) const {
    return nearest_e2m1(w, g.half_scale[i / 16]);
  }
  DECANT_HD float value(const Layer&, const Group& g, index_t i, std::uint8_t code) const {
    return g.half_scale[i / 16] * static_cast<float>(doubled_e2m1(code));
  }
  DECANT_HD Group load_group(const Layer&, const std::byte* row, index_t, index_t j) const {
    Group g{};
    for (int part = 0; part < 4; ++part) g.scale[part] = static_cast<std::uint8_t>(row[j * block_bytes + part]);
    return widened(g);
  }
  DECANT_HD void store_group(const Layer&, const Group& g, std::byte* row, index_t, index_t j) const {
    for (int part = 0; part < 4; ++part) row[j * block_bytes + part] = static_cast<std::byte>(g.scale[part]);
  }
  DECANT_HD std::uint8_t load_code(const std::byte* row, index_t, index_t k) const {
    return detail::load_nibble(row + codes_at(k), 8, k % 16);
  }
  DECANT_HD void store_code(std::uint8_t code, std::byte* row, index_t, index_t k) const {
    detail::store_nibble(code, row + codes_at(k), 8, k % 16);
  }

  /// Half of what a scale's byte means.
  DECANT_HD static float half_scale(std::uint8_t scale) {
    const std::uint32_t power = scale >> 3 & 15u;
    const std::uint32_t fraction = scale & 7u;
    if (scale == 0x7f) return 0;
    if (power == 0) return static_cast<float>(fraction) * 0x1p-10f;
    return bit_cast<float>((power + 119u) << 23 | fraction << 20);
  }

  /// The byte of a scale: halves up, at most 448, 0 where it is below half of the least.
  DECANT_HD static std::uint8_t encode(float scale) {
    if (!(scale > 0)) return 0;
    if (scale >= 448.0f) return 0x7e;
    const std::uint32_t bits = bit_cast<std::uint32_t>(scale);
    if (bits >> 23 < 121) {
      // Below 2^-6: multiples of 2^-9, of which the largest is 7.
      const int q = static_cast<int>(scale * 512.0f + 0.5f);
      return static_cast<std::uint8_t>(q < 7 ? q : 7);
    }
    const std::uint32_t rounded = ((bits + 0x80000u) >> 20) - (120u << 3);
    return static_cast<std::uint8_t>(rounded < 0x78 ? rounded : 0x7e);
  }

 private:
  DECANT_HD static index_t codes_at(index_t k) { return k / block_size * block_bytes + 4 + k % block_size / 16 * 8; }
  DECANT_HD static Group widened(Group g) {
    for (int part = 0; part < 4; ++part) g.half_scale[part] = half_scale(g.scale[part]);
    return g;
  }
};

inline void validate(const MXFP4& f, index_t cols) {
  detail::require_blocks(cols, f.block_size, "quant::ggml::MXFP4");
}
inline void validate(const NVFP4& f, index_t cols) {
  detail::require_blocks(cols, f.block_size, "quant::ggml::NVFP4");
}

}  // namespace decant::quant::ggml

#endif
