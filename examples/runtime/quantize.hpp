// Quantising a model: every matrix inside the layers becomes a packed one; embedding, output matrix and norms stay.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "calibrate.hpp"
#include "recipes.hpp"
#include "weights.hpp"

namespace runtime {

/// A matrix's weights as floats. [rows, cols], row-major
inline std::vector<float> widened(decant::Cpu& cpu, const Matrix& w) {
  const index_t cols = columns_of(w);
  std::vector<float> values(static_cast<std::size_t>(rows_of(w) * cols));
  for (index_t r = 0; r < rows_of(w); ++r) {
    const View<float, 1> row(values.data() + r * cols, cols);
    std::visit([&](const auto& m) { dequantize_row(cpu, m, r, row); }, w);
  }
  return values;
}

/// The packed form of every matrix, by name. sums: from calibrate(), or empty for a recipe that needs none.
/// progress(done, total) is called after each matrix.
template <class Progress>
std::map<std::string, PackedMatrix> pack(decant::Cpu& cpu, const Weights& weights, const Recipe& recipe,
                                         const CalibrationList& sums, Progress&& progress) {
  std::map<std::string, PackedMatrix> packed;
  Weights copy = weights;
  std::size_t done = 0;
  for_each_matrix(copy, [&](const std::string& name, index_t input, Matrix& w) {
    const std::vector<float> values = widened(cpu, w);
    const quant::Calibration calibration =
        sums.empty() ? quant::Calibration{} : sums[static_cast<std::size_t>(input)]->view();
    packed.emplace(name, recipe.pack(cpu, {values.data(), rows_of(w), columns_of(w)}, calibration));
    progress(++done, 7 * weights.layers.size());
  });
  return packed;
}

/// The weights with these matrices in place of the stored ones.
inline Weights with_packed(const Weights& weights, const std::map<std::string, PackedMatrix>& packed) {
  Weights copy = weights;
  for_each_matrix(copy, [&](const std::string& name, index_t, Matrix& w) {
    const auto found = packed.find(name);
    if (found == packed.end()) return;
    copy.bytes += found->second.bytes() - bytes_of(w);
    w = found->second;
  });
  return copy;
}

/// Bits per weight over the matrices inside the layers.
inline double bits_per_weight(const Weights& weights) {
  Weights copy = weights;
  double bits = 0;
  double count = 0;
  for_each_matrix(copy, [&](const std::string&, index_t, Matrix& w) {
    bits += 8.0 * static_cast<double>(bytes_of(w));
    count += static_cast<double>(rows_of(w) * columns_of(w));
  });
  return bits / count;
}

}  // namespace runtime
