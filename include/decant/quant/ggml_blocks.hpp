// decant: ggml's blocks of 32 weights with scales in fp16, Q8_0, Q4_0, Q4_1 and IQ4_NL: rows are byte for byte those
// of a ggml tensor of that type. Rtn writes what ggml's reference encoders write (quantize_row_*_ref of ggml-quants.c;
// the source read is commit d99724f, 2026): the codes come from the scale before it is rounded to fp16, halves round as
// there. Weights whose scale fp16 cannot hold (above 65504) become infinite, as there. Calibration has no say.
#ifndef DECANT_QUANT_GGML_BLOCKS_HPP
#define DECANT_QUANT_GGML_BLOCKS_HPP

#include <cstddef>
#include <cstdint>

#include "detail/ggml_block.hpp"
#include "detail/magnitude.hpp"
#include "detail/rounding.hpp"
#include "packed.hpp"

namespace decant::quant::ggml {

/// 34 bytes: fp16 d; 32 signed bytes q. w = d q.
struct Q8_0 : detail::GgmlScaled<34> {
  using Format = Q8_0;
  bool operator==(const Q8_0&) const = default;
  const Q8_0& format() const { return *this; }

  Group fit(const Layer&, const float* w, const float*, index_t n) const {
    const float d = detail::largest_magnitude(w, n) / 127.0f;
    return {fp16(d), detail::reciprocal(d)};
  }
  DECANT_HD std::uint8_t nearest(const Layer&, const Group& g, index_t, float w) const {
    return static_cast<std::uint8_t>(detail::truncate_between(detail::round_away(w * g.inverse), -127, 127));
  }
  DECANT_HD float value(const Layer&, const Group& g, index_t, std::uint8_t code) const {
    return g.d * static_cast<float>(static_cast<std::int8_t>(code));
  }
  DECANT_HD std::uint8_t load_code(const std::byte* row, index_t, index_t k) const {
    return static_cast<std::uint8_t>(row[k / block_size * block_bytes + 2 + k % block_size]);
  }
  DECANT_HD void store_code(std::uint8_t code, std::byte* row, index_t, index_t k) const {
    row[k / block_size * block_bytes + 2 + k % block_size] = static_cast<std::byte>(code);
  }
};

/// 18 bytes: fp16 d; nibbles q, elements 0 ... 15 low and 16 ... 31 high. w = d (q - 8), d of either sign: the (first)
/// weight of largest magnitude has q = 0.
struct Q4_0 : detail::GgmlScaledNibbles {
  using Format = Q4_0;
  bool operator==(const Q4_0&) const = default;
  const Q4_0& format() const { return *this; }

  Group fit(const Layer&, const float* w, const float*, index_t n) const {
    const float d = detail::signed_max(w, n) / -8.0f;
    return {fp16(d), detail::reciprocal(d)};
  }
  DECANT_HD std::uint8_t nearest(const Layer&, const Group& g, index_t, float w) const {
    return static_cast<std::uint8_t>(detail::truncate_between(detail::product(w, g.inverse) + 8.5f, 0, 15));
  }
  DECANT_HD float value(const Layer&, const Group& g, index_t, std::uint8_t code) const {
    return g.d * static_cast<float>(code - 8);
  }
};

/// 20 bytes: fp16 d; fp16 m; nibbles q as Q4_0's. w = d q + m, m the smallest weight.
struct Q4_1 : detail::GgmlBlocks<32, 20> {
  using Format = Q4_1;
  struct Group {
    float d;
    float m;
    float inverse;  ///< 1 / d and m as fitted rather than as stored
    float low;
  };

  bool operator==(const Q4_1&) const = default;
  const Q4_1& format() const { return *this; }

  Group fit(const Layer&, const float* w, const float*, index_t n) const {
    const auto [low, high] = detail::range_of(w, n);
    const float d = (high - low) / 15.0f;
    return {fp16(d), fp16(low), detail::reciprocal(d), low};
  }
  DECANT_HD std::uint8_t nearest(const Layer&, const Group& g, index_t, float w) const {
    return static_cast<std::uint8_t>(detail::truncate_between(detail::product(w - g.low, g.inverse) + 0.5f, 0, 15));
  }
  DECANT_HD float value(const Layer&, const Group& g, index_t, std::uint8_t code) const {
    return g.d * static_cast<float>(code) + g.m;
  }
  DECANT_HD Group load_group(const Layer&, const std::byte* row, index_t, index_t j) const {
    const float d = detail::load_half(row + j * block_bytes);
    const float m = detail::load_half(row + j * block_bytes + 2);
    return {d, m, detail::reciprocal(d), m};
  }
  DECANT_HD void store_group(const Layer&, const Group& g, std::byte* row, index_t, index_t j) const {
    detail::store_half(row + j * block_bytes, g.d);
    detail::store_half(row + j * block_bytes + 2, g.m);
  }
  DECANT_HD std::uint8_t load_code(const std::byte* row, index_t, index_t k) const {
    return detail::load_nibble(row + k / block_size * block_bytes + 4, 16, k % block_size);
  }
  DECANT_HD void store_code(std::uint8_t code, std::byte* row, index_t, index_t k) const {
    detail::store_nibble(code, row + k / block_size * block_bytes + 4, 16, k % block_size);
  }
};

/// 18 bytes: fp16 d; nibbles q as Q4_0's. w = d T[q], T 16 levels, denser near 0, without 0 itself.
struct IQ4_NL : detail::GgmlScaledNibbles {
  using Format = IQ4_NL;
  /// d of least squared error, weighted by w^2, among 16 ranges, and codes of that d: what ggml_quantize_chunk writes
  /// into files. Otherwise the codes of the plain range with the d that suits them best: quantize_row_iq4_nl_ref (which
  /// leaves the codes of a block without weights above 1e-15 unset). No part of what is stored.
  bool search = true;

  bool operator==(const IQ4_NL&) const = default;
  const IQ4_NL& format() const { return *this; }

  DECANT_HD static float level(int code) {
    constexpr signed char levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    return static_cast<float>(levels[code & 15]);
  }

  Group fit(const Layer&, const float* w, const float*, index_t n) const {
    const float top = detail::signed_max(w, n);
    if (detail::magnitude(top) < 1e-15f) return {0, 0};
    const float plain = 1.0f / ((search ? -top : top) / level(0));
    Sums best = sums(plain, w, n);
    float d = best.square > 0 ? best.cross / best.square : 0;
    if (!search) return {fp16(d), plain};
    float gain = d * best.cross;
    for (int step = -7; step <= 7; ++step) {
      const Sums s = sums((static_cast<float>(step) + level(0)) / top, w, n);
      if (s.square > 0 && s.cross * s.cross > gain * s.square) {
        d = s.cross / s.square;
        gain = d * s.cross;
      }
    }
    return {fp16(d), detail::reciprocal(d)};
  }
  DECANT_HD std::uint8_t nearest(const Layer&, const Group& g, index_t, float w) const {
    return static_cast<std::uint8_t>(code(detail::product(w, g.inverse)));
  }
  DECANT_HD float value(const Layer&, const Group& g, index_t, std::uint8_t code) const { return g.d * level(code); }

 private:
  struct Sums {
    float cross;   ///< sum w^2 T w
    float square;  ///< sum w^2 T^2
  };

  /// The level next to x; of two as near the upper one.
  DECANT_HD static int code(float x) {
    if (x <= level(0)) return 0;
    if (x >= level(15)) return 15;
    int below = 0;
    int above = 15;
    while (above - below > 1) {
      const int middle = (below + above) / 2;
      if (x < level(middle)) {
        above = middle;
      } else {
        below = middle;
      }
    }
    return x - level(below) < level(above) - x ? below : above;
  }

  static Sums sums(float inverse, const float* w, index_t n) {
    Sums s{0, 0};
    for (index_t i = 0; i < n; ++i) {
      const float q = level(code(detail::product(inverse, w[i])));
      const float weighted = detail::product(detail::product(w[i], w[i]), q);
      s.cross += detail::product(weighted, w[i]);
      s.square += detail::product(weighted, q);
    }
    return s;
  }
};

inline void validate(const Q8_0& f, index_t cols) {
  detail::require_blocks(cols, f.block_size, "quant::ggml::Q8_0");
}
inline void validate(const Q4_0& f, index_t cols) {
  detail::require_blocks(cols, f.block_size, "quant::ggml::Q4_0");
}
inline void validate(const Q4_1& f, index_t cols) {
  detail::require_blocks(cols, f.block_size, "quant::ggml::Q4_1");
}
inline void validate(const IQ4_NL& f, index_t cols) {
  detail::require_blocks(cols, f.block_size, "quant::ggml::IQ4_NL");
}

}  // namespace decant::quant::ggml

#endif
