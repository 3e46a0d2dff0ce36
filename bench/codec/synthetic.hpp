#pragma once
// Elements that stand for keys or values: N(0, 1) times a scale for each of 1024 channels, the same for the same law.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "decant/core/view.hpp"

namespace bench {

enum class Law {
  normal,     // all scales 1
  lognormal,  // exp(1.15 N(0, 1)): the coverage that the SplitZip paper finds on Qwen3-32B
  outliers    // exp(0.7 N(0, 1)), and 12 channels 12 times as much
};

inline const char* name(Law law) {
  return law == Law::normal ? "normal" : law == Law::lognormal ? "lognormal" : "outliers";
}

/// x [n]. Behind 8 MiB it repeats, which is farther apart than any compressor here looks back.
template <class T>
void fill(Law law, T* x, decant::index_t n) {
  std::uint64_t state = 1;
  const auto uniform = [&state] {  // splitmix64 (Vigna)
    std::uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (static_cast<float>((z ^ z >> 31) >> 40) + 0.5f) * 0x1p-24f;
  };
  const auto normal = [&uniform] { return std::sqrt(-2 * std::log(uniform())) * std::cos(6.2831853f * uniform()); };
  constexpr decant::index_t channels = 1024, outliers = 12;
  std::vector<float> scales(channels, 1.0f);
  if (law != Law::normal) {
    const float spread = law == Law::lognormal ? 1.15f : 0.7f;
    for (float& scale : scales) scale = std::exp(spread * normal());
  }
  if (law == Law::outliers) {
    for (decant::index_t i = 0; i < outliers; ++i) scales[static_cast<std::size_t>(i * (channels / outliers))] *= 12;
  }
  constexpr auto period = static_cast<decant::index_t>((std::size_t{8} << 20) / sizeof(T));
  for (decant::index_t i = 0; i < n && i < period; ++i)
    x[i] = T(scales[static_cast<std::size_t>(i % channels)] * normal());
  for (decant::index_t i = period; i < n; i += period)
    std::memcpy(x + i, x, static_cast<std::size_t>(n - i < period ? n - i : period) * sizeof(T));
}

}  // namespace bench
