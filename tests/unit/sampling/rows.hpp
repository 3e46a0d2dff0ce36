#pragma once
// Rows of logits that are hard on filters, and the instruction sets to try.

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "decant/core/random.hpp"
#include "decant/core/simd.hpp"

namespace sampling_test {

inline std::vector<decant::Isa> paths() {
  std::vector<decant::Isa> all;
  for (int i = 0; i <= static_cast<int>(decant::best_isa()); ++i) all.push_back(static_cast<decant::Isa>(i));
  return all;
}

inline std::vector<float> gaussian(std::size_t n, float sigma, std::uint64_t seed) {
  const decant::Philox random{seed};
  std::vector<float> x;
  for (std::size_t i = 0; i < n; ++i) {
    const auto at = static_cast<std::uint32_t>(i);
    x.push_back(sigma * std::sqrt(-2 * std::log(random.uniform(at))) * std::cos(6.2831853f * random.uniform(at, 1)));
  }
  return x;
}

inline std::vector<std::vector<float>> hard_rows() {
  constexpr float none = -std::numeric_limits<float>::infinity();
  std::vector<std::vector<float>> rows;
  rows.push_back({0.5f});                              // a vocabulary of one
  rows.push_back(std::vector<float>(100, -3.0f));      // all equal
  rows.push_back(std::vector<float>(1500, 7.0f));
  rows.push_back(std::vector<float>(70, none));        // one-hot
  rows.back()[67] = -1e4f;
  rows.push_back({});                                  // descending powers of two
  for (int i = 0; i < 90; ++i) rows.back().push_back(-0.693147181f * static_cast<float>(i));
  rows.push_back({});                                  // ties, ascending
  for (int i = 0; i < 2100; ++i) rows.back().push_back(static_cast<float>(i / 100) / 4);
  rows.push_back(std::vector<float>(65, -96.6f));      // probabilities of 1e-42 beside a few large ones
  rows.back()[3] = rows.back()[64] = 0.0f;
  rows.back()[9] = -0.0f;
  rows.push_back({1e30f, -1e30f, 1e30f, 3e38f, -3e38f, none, 0.0f});
  rows.push_back(gaussian(1025, 3.0f, 1));
  rows.push_back(gaussian(5000, 1.0f, 2));
  rows.push_back(gaussian(3000, 6.0f, 3));
  for (std::size_t i = 0; i < rows.back().size(); i += 3) rows.back()[i] = none;
  rows.push_back(gaussian(1024, 0.001f, 4));           // nearly flat
  return rows;
}

}  // namespace sampling_test
