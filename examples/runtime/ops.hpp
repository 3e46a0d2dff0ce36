// The little arithmetic between matrix products and attention: RMS norm, rotary embedding, SwiGLU, residual sums.
// Loops run over blocks of a constant length, which compilers turn into vector instructions at plain -O2.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include <decant/core/cpu.hpp>
#include <decant/core/view.hpp>
#include <decant/kv/rope.hpp>

namespace runtime {

using decant::index_t;
using decant::View;

namespace detail {

inline constexpr index_t block = 16;

/// exp(x), relative error below 1e-7; x is cut to [-87, 87], where float has normal numbers.
inline float exp_in_range(float x) {
  // The cut is made on the bits of |x|: a comparison of floats would keep the loop around it from being vectorised.
  constexpr auto most = std::bit_cast<std::int32_t>(87.0f);
  const auto bits = std::bit_cast<std::int32_t>(x);
  const std::int32_t magnitude = bits & 0x7fffffff;
  x = std::bit_cast<float>((magnitude < most ? magnitude : most) | (bits & INT32_MIN));
  const float shifted = x * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: rounds to a whole number in the low bits
  const float n = shifted - 12582912.0f;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two parts
  float p = 1.9875691e-4f;
  p = p * r + 1.3981999e-3f;
  p = p * r + 8.3334519e-3f;
  p = p * r + 4.1665796e-2f;
  p = p * r + 1.6666665e-1f;
  p = p * r + 5.0000001e-1f;
  p = p * r * r + r + 1.0f;
  // The low bits of `shifted` hold n: moved into the exponent of p, they multiply by 2^n.
  return std::bit_cast<float>(std::bit_cast<std::int32_t>(p) + (std::bit_cast<std::int32_t>(shifted) << 23));
}

inline float silu(float x) {
  return x / (1.0f + exp_in_range(-x));
}

}  // namespace detail

/// out = x / sqrt(mean(x^2) + eps) * weight, row by row. x, out [rows, width], out may be x.
inline void rms_norm(decant::Cpu& cpu, View<const float, 2> x, View<const float, 1> weight, float eps,
                     View<float, 2> out) {
  constexpr index_t block = detail::block;
  const index_t width = x.extent(1);
  cpu.parallel_ranges(x.extent(0), 16, [&](index_t first, index_t last, index_t) {
    for (index_t row = first; row < last; ++row) {
      const float* in = &x(row, 0);
      float sums[block] = {};
      index_t i = 0;
      for (; i + block <= width; i += block) {
        for (index_t k = 0; k < block; ++k) sums[k] += in[i + k] * in[i + k];
      }
      for (; i < width; ++i) sums[i % block] += in[i] * in[i];
      double total = 0;
      for (const float s : sums) total += static_cast<double>(s);
      const auto scale =
          static_cast<float>(1.0 / std::sqrt(total / static_cast<double>(width) + static_cast<double>(eps)));
      float* to = &out(row, 0);
      for (i = 0; i < width; ++i) to[i] = in[i] * scale * weight[i];
    }
  });
}

/// gate = silu(gate) * up, both [rows, width] and contiguous.
inline void swiglu(decant::Cpu& cpu, View<float, 2> gate, View<const float, 2> up) {
  constexpr index_t block = detail::block;
  cpu.parallel_ranges(gate.size(), 4096, [&](index_t first, index_t last, index_t) {
    float* g = gate.data();
    const float* u = up.data();
    index_t i = first;
    for (; i + block <= last; i += block) {
      float y[block];
      for (index_t k = 0; k < block; ++k) y[k] = detail::silu(g[i + k]) * u[i + k];
      std::memcpy(g + i, y, sizeof y);
    }
    for (; i < last; ++i) g[i] = detail::silu(g[i]) * u[i];
  });
}

/// x += y, of equal size and contiguous.
inline void add(decant::Cpu&, View<float, 2> x, View<const float, 2> y) {
  float* to = x.data();
  const float* from = y.data();
  for (index_t i = 0; i < x.size(); ++i) to[i] += from[i];
}

/// Cosines and sines of a rotary embedding in the rotate-half layout, for positions as far as they have been needed.
class RopeTable {
 public:
  RopeTable(const decant::kv::Rope& rope, index_t head_dim) : half_(head_dim / 2) {
    for (index_t f = 0; f < half_; ++f) frequencies_.push_back(rope.frequency(f, head_dim));
  }

  /// Makes sure of the positions below `count`.
  void reserve(index_t count) {
    for (; known_ < count; ++known_) {
      for (const double frequency : frequencies_) {
        const double angle = static_cast<double>(known_) * frequency;
        cosines_.push_back(static_cast<float>(std::cos(angle)));
        sines_.push_back(static_cast<float>(std::sin(angle)));
      }
    }
  }

  const std::vector<float>& cosines() const { return cosines_; }
  const std::vector<float>& sines() const { return sines_; }

  /// Turns every head of every row in place. rows [tokens, heads, head_dim], positions [tokens] below the reserved
  /// count.
  void rotate(decant::Cpu& cpu, View<float, 3> rows, View<const std::int32_t, 1> positions) const {
    cpu.parallel_ranges(rows.extent(0), 16, [&](index_t first, index_t last, index_t) {
      for (index_t t = first; t < last; ++t) {
        const float* c = cosines_.data() + positions[t] * half_;
        const float* s = sines_.data() + positions[t] * half_;
        for (index_t h = 0; h < rows.extent(1); ++h) {
          float* a = &rows(t, h, 0);
          float* b = a + half_;
          for (index_t f = 0; f < half_; ++f) {
            const float x = a[f];
            const float y = b[f];
            a[f] = x * c[f] - y * s[f];
            b[f] = y * c[f] + x * s[f];
          }
        }
      }
    });
  }

 private:
  index_t half_;
  index_t known_ = 0;
  std::vector<double> frequencies_;
  std::vector<float> cosines_;  // [known, half]
  std::vector<float> sines_;
};

}  // namespace runtime
