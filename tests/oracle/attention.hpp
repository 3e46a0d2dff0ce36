#pragma once
// Attention by definition, in double: all logits, their maximum, their exponentials, one weighted sum. Everything is
// asked through functions of indices, so that it shares no code, no order and no layout with what it judges.

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

namespace oracle {

using index = long;

struct AttentionRow {
  std::vector<double> o;
  double lse;
};

/// One query, one head. key(j, d) and value(j, d) are the stored numbers; allowed(j) is the mask.
/// sink: the logit of one key more with the value 0; -infinity for none.
inline AttentionRow attention_row(index keys, index key_dim, index value_dim, const std::function<double(index)>& query,
                                  const std::function<double(index, index)>& key,
                                  const std::function<double(index, index)>& value,
                                  const std::function<bool(index)>& allowed, double scale, double soft_cap = 0,
                                  double sink = -std::numeric_limits<double>::infinity()) {
  const double none = -std::numeric_limits<double>::infinity();
  std::vector<double> logit(static_cast<std::size_t>(keys), none);
  double high = sink;
  for (index j = 0; j < keys; ++j) {
    if (!allowed(j)) continue;
    double dot = 0;
    for (index d = 0; d < key_dim; ++d) dot += query(d) * key(j, d);
    dot *= scale;
    if (soft_cap > 0) dot = soft_cap * std::tanh(dot / soft_cap);
    logit[static_cast<std::size_t>(j)] = dot;
    high = std::max(high, dot);
  }
  AttentionRow row{std::vector<double>(static_cast<std::size_t>(value_dim), 0.0), none};
  if (high == none) return row;
  double total = std::exp(sink - high);
  for (index j = 0; j < keys; ++j) total += std::exp(logit[static_cast<std::size_t>(j)] - high);
  for (index j = 0; j < keys; ++j) {
    const double p = std::exp(logit[static_cast<std::size_t>(j)] - high) / total;
    if (p == 0) continue;
    for (index d = 0; d < value_dim; ++d) row.o[static_cast<std::size_t>(d)] += p * value(j, d);
  }
  row.lse = high + std::log(total);
  return row;
}

/// |a - b| / |b| in the Euclidean norm.
inline double relative_error(const std::vector<double>& got, const std::vector<double>& expected) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    difference += (got[i] - expected[i]) * (got[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  if (difference == 0) return 0;
  return norm == 0 ? std::numeric_limits<double>::infinity() : std::sqrt(difference / norm);
}

}  // namespace oracle
