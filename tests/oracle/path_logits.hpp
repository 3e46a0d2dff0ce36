// The logits of a synthetic network after a path of tokens: a hash of the path.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "decant/core/random.hpp"
#include "decant/core/view.hpp"

namespace path_logits {

/// flat: few different values, so that there are ties. holes, for a path that is not empty: token 4 is followed by NaN,
/// token 3 by nothing at all, and some tokens are never possible.
inline std::vector<float> logits_after(const std::vector<std::int32_t>& path, decant::index_t vocab, bool flat,
                                       bool holes = false) {
  std::uint32_t hash = 17;
  for (const std::int32_t t : path) hash = (hash ^ static_cast<std::uint32_t>(t)) * 16777619u;
  std::vector<float> row;
  for (decant::index_t y = 0; y < vocab; ++y) {
    const float u = decant::Philox{hash}.uniform(static_cast<std::uint32_t>(y));
    row.push_back(flat ? std::floor(3 * u) : 6 * u);
    if (holes && path.back() % 5 == 4) row.back() = std::nanf("");
    if (holes && (path.back() % 5 == 3 || y % 7 == 2)) row.back() = -INFINITY;
  }
  return row;
}

}  // namespace path_logits
