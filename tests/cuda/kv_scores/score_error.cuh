// How far scores are from their definition in double.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "cuda/kv_scores/device_copy.cuh"
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

/// The same of what a scorer makes of a layer, on the device.
template <class S, class T>
double error_of(decant::Cuda& cuda, const S& scorer, oracle::Layer<T>& data, const oracle::Table& expected) {
  DeviceCopy copy;
  return score_error(scored(cuda, scorer, copy(data.view()), data.shape.n), expected);
}

}  // namespace cuda_test
