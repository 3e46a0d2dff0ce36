#pragma once
// Lists of rows with weights for sparse_gather, over the tokens of a Problem.

#include <random>

#include "decant/attention/sparse_gather.hpp"
#include "problem.hpp"

namespace attention_test {

/// Lists with repeats, in no order, some empty, some longer than two batches of the kernels.
struct RowListsData {
  std::vector<std::int32_t> indptr{0}, rows;
  std::vector<float> weights;
  index_t per_row;

  template <class T>
  RowListsData(const Problem<T>& p, bool shared) : per_row(shared ? p.group : 1) {
    std::mt19937 random(3);
    const index_t width = shared ? p.heads : p.query_heads();
    for (index_t i = 0; i < p.sequences() * width; ++i) {
      const index_t n = p.lengths[at(i / width)];
      const index_t count = n == 0 || i % 5 == 4 ? 0 : i % 5 == 3 ? 600 : 1 + i * 13 % 64;
      for (index_t k = 0; k < count; ++k)
        rows.push_back(static_cast<std::int32_t>(random() % static_cast<unsigned>(n)));
      indptr.push_back(static_cast<std::int32_t>(rows.size()));
    }
    weights = normal(static_cast<index_t>(rows.size()) * per_row, 9);
  }
  decant::attention::RowLists views() const {
    return {decant::View<const std::int32_t, 1>(indptr), decant::View<const std::int32_t, 1>(rows),
            decant::View<const float, 2>(weights.data(), static_cast<index_t>(rows.size()), per_row)};
  }
};

}  // namespace attention_test
