// decant: ggml's K blocks of 256 weights, Q4_K and Q6_K, whose parts of 32 or 16 weights have scales of 6 or 8 bits
// under one (two) in fp16: rows are byte for byte those of a ggml tensor of that type, and Rtn writes what ggml's
// reference encoders (quantize_row_*_ref of ggml-quants.c, without an importance matrix) write. Calibration has no say.
#ifndef DECANT_QUANT_GGML_K_BLOCKS_HPP
#define DECANT_QUANT_GGML_K_BLOCKS_HPP

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "detail/magnitude.hpp"
#include "detail/ggml_block.hpp"
#include "packed.hpp"

namespace decant::quant::ggml {

/// 144 bytes: fp16 d; fp16 dmin; 8 scales s and 8 minima m of 6 bits in 12 bytes; nibbles q, 32 bytes per 64 weights,
/// the first 32 low and the last 32 high. w = d s q - dmin m, s and m of the weight's 32.
struct Q4_K : detail::GgmlBlocks<256, 144> {
  using Format = Q4_K;
  struct Group {
    float d;
    float dmin;
    std::uint8_t scale[8];
    std::uint8_t minimum[8];
    /// Of the ranges that the scales and minima came from: ggml keeps the codes of those where d s has become 0.
    float inverse[8];
    float low[8];
  };

  bool operator==(const Q4_K&) const = default;
  const Q4_K& format() const { return *this; }

  Group fit(const Layer&, const float* w, const float*, index_t) const {
    Group g{};
    float scales[8];
    float minima[8];
    float top_scale = 0;
    float top_minimum = 0;
    for (int part = 0; part < 8; ++part) {
      const Range range = search(w + 32 * part);
      g.inverse[part] = range.inverse;
      g.low[part] = range.low;
      scales[part] = range.scale;
      minima[part] = -range.minimum;
      top_scale = scales[part] > top_scale ? scales[part] : top_scale;
      top_minimum = minima[part] > top_minimum ? minima[part] : top_minimum;
    }
    const float per_scale = top_scale > 0 ? 63.0f / top_scale : 0.0f;
    const float per_minimum = top_minimum > 0 ? 63.0f / top_minimum : 0.0f;
    for (int part = 0; part < 8; ++part) {
      g.scale[part] = six_bits(detail::product(per_scale, scales[part]));
      g.minimum[part] = six_bits(detail::product(per_minimum, minima[part]));
    }
    g.d = fp16(top_scale / 63.0f);
    g.dmin = fp16(top_minimum / 63.0f);
    return g;
  }
  DECANT_HD std::uint8_t nearest(const Layer&, const Group& g, index_t i, float w) const {
    const index_t part = i / 32;
    const float scale = g.d * static_cast<float>(g.scale[part]);
    if (scale == 0) return code(g.inverse[part], g.low[part], w);
    const float minimum = g.dmin * static_cast<float>(g.minimum[part]);
    return static_cast<std::uint8_t>(detail::round_between((w + minimum) / scale, 0, 15));
  }
  DECANT_HD float value(const Layer&, const Group& g, index_t i, std::uint8_t code) const {
    const index_t part = i / 32;
    return g.d * static_cast<float>(g.scale[part]) * static_cast<float>(code) -
           g.dmin * static_cast<float>(g.minimum[part]);
  }
  DECANT_HD Group load_group(const Layer&, const std::byte* row, index_t, index_t j) const {
    const std::byte* const block = row + j * block_bytes;
    Group g{};
    g.d = detail::load_half(block);
    g.dmin = detail::load_half(block + 2);
    for (int part = 0; part < 4; ++part) {
      const unsigned s = static_cast<unsigned>(block[4 + part]);
      const unsigned m = static_cast<unsigned>(block[8 + part]);
      const unsigned low = static_cast<unsigned>(block[12 + part]);
      g.scale[part] = static_cast<std::uint8_t>(s & 63u);
      g.minimum[part] = static_cast<std::uint8_t>(m & 63u);
      g.scale[part + 4] = static_cast<std::uint8_t>((low & 15u) | s >> 6 << 4);
      g.minimum[part + 4] = static_cast<std::uint8_t>(low >> 4 | m >> 6 << 4);
    }
    return g;
  }
  DECANT_HD void store_group(const Layer&, const Group& g, std::byte* row, index_t, index_t j) const {
    std::byte* const block = row + j * block_bytes;
    detail::store_half(block, g.d);
    detail::store_half(block + 2, g.dmin);
    for (int part = 0; part < 4; ++part) {
      const unsigned s = g.scale[part + 4];
      const unsigned m = g.minimum[part + 4];
      block[4 + part] = static_cast<std::byte>(g.scale[part] | s >> 4 << 6);
      block[8 + part] = static_cast<std::byte>(g.minimum[part] | m >> 4 << 6);
      block[12 + part] = static_cast<std::byte>((s & 15u) | (m & 15u) << 4);
    }
  }
  DECANT_HD std::uint8_t load_code(const std::byte* row, index_t, index_t k) const {
    return detail::load_nibble(row + codes_at(k), 32, k % 64);
  }
  DECANT_HD void store_code(std::uint8_t code, std::byte* row, index_t, index_t k) const {
    detail::store_nibble(code, row + codes_at(k), 32, k % 64);
  }

 private:
  /// A range for 32 weights: what it quantizes with, and the scale and minimum (at most 0) that suit those codes best.
  struct Range {
    float inverse;
    float low;
    float scale;
    float minimum;
  };

  DECANT_HD static index_t codes_at(index_t k) { return k / block_size * block_bytes + 16 + k % block_size / 64 * 32; }

  DECANT_HD static std::uint8_t code(float inverse, float low, float w) {
    const int q = detail::low_bits(detail::product(inverse, w - low));
    return static_cast<std::uint8_t>(q < 0 ? 0 : q > 15 ? 15 : q);
  }

  static std::uint8_t six_bits(float x) {
    const std::uint8_t q = static_cast<std::uint8_t>(detail::low_bits(x));
    return q < 63 ? q : std::uint8_t{63};
  }

  /// Squared error of the codes of (inverse, low) under (scale, minimum), weighted.
  static float error(const Range& r, const float* w, const float* weight) {
    float sum = 0;
    for (int i = 0; i < 32; ++i) {
      const float q = static_cast<float>(code(r.inverse, r.low, w[i]));
      const float off = detail::product(r.scale, q) + r.minimum - w[i];
      sum += detail::product(weight[i], detail::product(off, off));
    }
    return sum;
  }

  /// The plain range and 21 others, each with scale and minimum by weighted least squares, the weight of w being
  /// |w| + the root mean square of the 32: the range with the least error.
  static Range search(const float* w) {
    float weight[32];
    float squares = 0;
    for (int i = 0; i < 32; ++i) squares += detail::product(w[i], w[i]);
    const float mean = std::sqrt(squares / 32.0f);
    for (int i = 0; i < 32; ++i) weight[i] = mean + detail::magnitude(w[i]);

    auto [low, high] = detail::range_of(w, 32);
    float sum_w = weight[0];
    float sum_x = detail::product(weight[0], w[0]);
    for (int i = 1; i < 32; ++i) {
      sum_w += weight[i];
      sum_x += detail::product(weight[i], w[i]);
    }
    low = low > 0 ? 0 : low;
    if (high == low) return {0, low, 0, low};

    const float plain = 15.0f / (high - low);
    Range best{plain, low, 1.0f / plain, low};
    float least = error(best, w, weight);
    for (int step = 0; step <= 20; ++step) {
      // From the best minimum so far.
      low = best.minimum;
      Range r{(detail::product(0.1f, static_cast<float>(step)) - 1.0f + 15.0f) / (high - low), low, 0, 0};
      float sum_l = 0;
      float sum_l2 = 0;
      float sum_xl = 0;
      for (int i = 0; i < 32; ++i) {
        const float l = static_cast<float>(code(r.inverse, low, w[i]));
        const float wl = detail::product(weight[i], l);
        sum_l += wl;
        sum_l2 += detail::product(wl, l);
        sum_xl += detail::product(wl, w[i]);
      }
      const float determinant = detail::product(sum_w, sum_l2) - detail::product(sum_l, sum_l);
      if (!(determinant > 0)) continue;
      r.scale = (detail::product(sum_w, sum_xl) - detail::product(sum_x, sum_l)) / determinant;
      r.minimum = (detail::product(sum_l2, sum_x) - detail::product(sum_l, sum_xl)) / determinant;
      if (r.minimum > 0) {
        r.minimum = 0;
        r.scale = sum_xl / sum_l2;
      }
      const float e = error(r, w, weight);
      if (e < least) {
        least = e;
        best = r;
      }
    }
    return best;
  }
};

/// 210 bytes: the codes' low 4 bits (128 bytes), their high 2 bits (64 bytes), 16 signed scales s, fp16 d.
/// w = d s (q - 32), s of the weight's 16. Of 128 weights, those l, l + 32, l + 64, l + 96 share byte l of the high
/// bits, lowest first; l and l + 64 share byte l of the low bits, l + 32 and l + 96 byte l + 32.
struct Q6_K : detail::GgmlBlocks<256, 210> {
  using Format = Q6_K;
  struct Group {
    float d;
    std::int8_t scale[16];
    /// Of the ranges that the scales came from: ggml keeps the codes of those where d s has become 0. 0: codes 0.
    float inverse[16];
  };

  bool operator==(const Q6_K&) const = default;
  const Q6_K& format() const { return *this; }

  Group fit(const Layer&, const float* w, const float*, index_t) const {
    Group g{};
    float scales[16];
    float top = 0;
    for (int part = 0; part < 16; ++part) {
      scales[part] = search(w + 16 * part, g.inverse[part]);
      top = detail::magnitude(scales[part]) > detail::magnitude(top) ? scales[part] : top;
    }
    if (detail::magnitude(top) < 1e-15f) return {};
    const float inverse = -128.0f / top;
    for (int part = 0; part < 16; ++part) {
      const int s = detail::low_bits(detail::product(inverse, scales[part]));
      g.scale[part] = static_cast<std::int8_t>(s < 127 ? s : 127);
    }
    g.d = fp16(1.0f / inverse);
    return g;
  }
  DECANT_HD std::uint8_t nearest(const Layer&, const Group& g, index_t i, float w) const {
    const index_t part = i / 16;
    const float scale = g.d * static_cast<float>(g.scale[part]);
    if (scale != 0) return static_cast<std::uint8_t>(detail::round_between(w / scale, -32, 31) + 32);
    return g.inverse[part] != 0 ? static_cast<std::uint8_t>(code(g.inverse[part], w) + 32) : std::uint8_t{0};
  }
  DECANT_HD float value(const Layer&, const Group& g, index_t i, std::uint8_t code) const {
    return g.d * static_cast<float>(g.scale[i / 16]) * static_cast<float>(code - 32);
  }
  DECANT_HD Group load_group(const Layer&, const std::byte* row, index_t, index_t j) const {
    const std::byte* const block = row + j * block_bytes;
    Group g{};
    g.d = detail::load_half(block + 208);
    for (int part = 0; part < 16; ++part)
      g.scale[part] = static_cast<std::int8_t>(static_cast<std::uint8_t>(block[192 + part]));
    return g;
  }
  DECANT_HD void store_group(const Layer&, const Group& g, std::byte* row, index_t, index_t j) const {
    std::byte* const block = row + j * block_bytes;
    for (int part = 0; part < 16; ++part)
      block[192 + part] = static_cast<std::byte>(static_cast<std::uint8_t>(g.scale[part]));
    detail::store_half(block + 208, g.d);
  }
  DECANT_HD std::uint8_t load_code(const std::byte* row, index_t, index_t k) const {
    const std::byte* const block = row + k / block_size * block_bytes;
    const Place at(k % block_size);
    const unsigned high = static_cast<unsigned>(block[at.high_byte]) >> at.high_shift & 3u;
    return static_cast<std::uint8_t>(detail::load_nibble(block + at.low_bytes, 64, at.low) | high << 4);
  }
  DECANT_HD void store_code(std::uint8_t code, std::byte* row, index_t, index_t k) const {
    std::byte* const block = row + k / block_size * block_bytes;
    const Place at(k % block_size);
    detail::store_nibble(code & 15u, block + at.low_bytes, 64, at.low);
    const unsigned others = static_cast<unsigned>(block[at.high_byte]) & ~(3u << at.high_shift);
    block[at.high_byte] = static_cast<std::byte>(others | (code >> 4 & 3u) << at.high_shift);
  }

 private:
  struct Place {
    index_t low_bytes;
    index_t low;
    index_t high_byte;
    int high_shift;
    DECANT_HD explicit Place(index_t i)
        : low_bytes(i / 128 * 64),
          low(i % 128),
          high_byte(128 + i / 128 * 32 + i % 32),
          high_shift(static_cast<int>(i % 128 / 32 * 2)) {}
  };

  DECANT_HD static int code(float inverse, float w) {
    const int q = detail::low_bits(detail::product(inverse, w));
    return q < -32 ? -32 : q > 31 ? 31 : q;
  }

  /// The scale of least squared error, weighted by w^2, among those of 19 ranges; the codes' range in `inverse`.
  static float search(const float* w, float& inverse) {
    inverse = 0;
    const float top = detail::signed_max(w, 16);
    if (detail::magnitude(top) < 1e-15f) return 0;
    float scale = 0;
    float gain = 0;
    for (int step = -10; step <= 9; ++step) {
      // The plain range comes first and counts even if it gains nothing.
      const bool plain = step == -10;
      if (step == 0) continue;
      const float range = plain ? -32.0f / top : -(32.0f + detail::product(0.1f, static_cast<float>(step))) / top;
      float cross = 0;
      float square = 0;
      for (int i = 0; i < 16; ++i) {
        const float q = static_cast<float>(code(range, w[i]));
        const float weight = detail::product(w[i], w[i]);
        cross += detail::product(detail::product(weight, w[i]), q);
        square += detail::product(detail::product(weight, q), q);
      }
      if (plain || (square > 0 && cross * cross > gain * square)) {
        inverse = range;
        scale = square != 0 ? cross / square : 0.0f;
        gain = scale * cross;
      }
    }
    return scale;
  }
};

inline void validate(const Q4_K& f, index_t cols) {
  detail::require_blocks(cols, f.block_size, "quant::ggml::Q4_K");
}
inline void validate(const Q6_K& f, index_t cols) {
  detail::require_blocks(cols, f.block_size, "quant::ggml::Q6_K");
}

}  // namespace decant::quant::ggml

#endif
