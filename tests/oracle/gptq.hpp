#pragma once
// GPTQ as it is defined: columns are rounded in turn, and those that remain take the best change for the error, by the
// inverse Hessian of the columns that remain (optimal brain surgeon). No Cholesky factor, no blocks: O(cols^3) per step
// of elimination, in double precision.
#include <cstdint>
#include <vector>

#include "decant/core/view.hpp"

namespace oracle {

using decant::index_t;

struct GptqResult {
  std::vector<float> values;  // [rows, cols] as packed
  double loss = 0;            // of the target with dead columns 0, under the damped Hessian
};

/// The inverse by Gauss and Jordan, with pivots from the diagonal, which a positive definite matrix allows.
inline std::vector<double> inverse(std::vector<double> a, index_t n) {
  std::vector<double> b(a.size());
  const auto at = [n](index_t i, index_t j) { return static_cast<std::size_t>(i * n + j); };
  for (index_t i = 0; i < n; ++i) b[at(i, i)] = 1;
  for (index_t p = 0; p < n; ++p) {
    const double pivot = a[at(p, p)];
    for (index_t j = 0; j < n; ++j) {
      a[at(p, j)] /= pivot;
      b[at(p, j)] /= pivot;
    }
    for (index_t i = 0; i < n; ++i) {
      const double f = a[at(i, p)];
      if (i == p || f == 0) continue;
      for (index_t j = 0; j < n; ++j) {
        a[at(i, j)] -= f * a[at(p, j)];
        b[at(i, j)] -= f * b[at(p, j)];
      }
    }
  }
  return b;
}

/// `fixed`: groups from the original weights. by_diagonal: columns in the order of falling Hessian diagonal.
template <class F>
GptqResult gptq(const F& format, const typename F::Layer& layer, std::vector<float> target, index_t rows, index_t cols,
                std::vector<double> h, double damping, bool fixed, bool by_diagonal) {
  const auto at = [cols](index_t i, index_t j) { return static_cast<std::size_t>(i * cols + j); };
  std::vector<index_t> order(static_cast<std::size_t>(cols));
  for (index_t k = 0; k < cols; ++k) order[static_cast<std::size_t>(k)] = k;
  if (by_diagonal) {
    for (index_t i = 1; i < cols; ++i) {  // insertion sort
      for (index_t j = i; j > 0; --j) {
        auto& a = order[static_cast<std::size_t>(j - 1)];
        auto& b = order[static_cast<std::size_t>(j)];
        if (h[at(a, a)] >= h[at(b, b)]) break;
        const index_t swapped = a;
        a = b;
        b = swapped;
      }
    }
  }
  double mean = 0;
  for (index_t k = 0; k < cols; ++k) {
    if (h[at(k, k)] == 0) {
      h[at(k, k)] = 1;
      for (index_t r = 0; r < rows; ++r) target[at(r, k)] = 0;
    }
    mean += h[at(k, k)] / static_cast<double>(cols);
  }
  for (index_t k = 0; k < cols; ++k) h[at(k, k)] += damping * mean;
  std::vector<double> left = inverse(h, cols);

  const index_t size = format.group_size(cols);
  const index_t groups = (cols + size - 1) / size;
  std::vector<double> w(target.begin(), target.end());
  std::vector<typename F::Group> parameters(static_cast<std::size_t>(rows * groups));
  const auto fit = [&](index_t r, index_t j) {
    std::vector<float> now;
    for (index_t k = j * size; k < cols && k < (j + 1) * size; ++k) now.push_back(static_cast<float>(w[at(r, k)]));
    parameters[static_cast<std::size_t>(r * groups + j)] =
        format.fit(layer, now.data(), nullptr, static_cast<index_t>(now.size()));
  };
  for (index_t r = 0; r < rows && (fixed || by_diagonal); ++r) {
    for (index_t j = 0; j < groups; ++j) fit(r, j);
  }
  GptqResult result;
  result.values.resize(target.size());
  for (const index_t k : order) {
    for (index_t r = 0; r < rows; ++r) {
      if (!fixed && !by_diagonal && k % size == 0) fit(r, k / size);
      const auto& group = parameters[static_cast<std::size_t>(r * groups + k / size)];
      const std::uint8_t code = format.nearest(layer, group, k % size, static_cast<float>(w[at(r, k)]));
      result.values[at(r, k)] = format.value(layer, group, k % size, code);
      const double error = (w[at(r, k)] - static_cast<double>(result.values[at(r, k)])) / left[at(k, k)];
      for (index_t j = 0; j < cols; ++j) w[at(r, j)] -= error * left[at(k, j)];
    }
    const std::vector<double> row(left.begin() + k * cols, left.begin() + (k + 1) * cols);
    for (index_t i = 0; i < cols; ++i) {
      const double f = left[at(i, k)] / row[static_cast<std::size_t>(k)];
      for (index_t j = 0; j < cols; ++j) left[at(i, j)] -= f * row[static_cast<std::size_t>(j)];
    }
  }
  for (index_t r = 0; r < rows; ++r) {
    for (index_t i = 0; i < cols; ++i) {
      for (index_t j = 0; j < cols; ++j) {
        result.loss += 0.5 * (static_cast<double>(result.values[at(r, i)]) - static_cast<double>(target[at(r, i)])) *
                       h[at(i, j)] *
                       (static_cast<double>(result.values[at(r, j)]) - static_cast<double>(target[at(r, j)]));
      }
    }
  }
  return result;
}

}  // namespace oracle
