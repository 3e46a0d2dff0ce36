// How far scores are from their definition in double.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "oracle/kv_scores.hpp"

namespace cuda_test {

/// The largest error, relative to the largest score of the head; NaN counts as infinite.
inline double score_error(const std::vector<float>& got, const oracle::Table& expected) {
  double worst = 0;
  std::size_t i = 0;
  for (const oracle::Row& row : expected) {
    double high = 0;
    for (const double v : row) high = std::max(high, std::abs(v));
    for (const double v : row) {
      const double error = std::abs(static_cast<double>(got[i++]) - v) / high;
      worst = error <= worst ? worst : error == error ? error : 1e300;
    }
  }
  return worst;
}

}  // namespace cuda_test
