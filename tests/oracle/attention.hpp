#pragma once
// Attention by definition, in double: all logits, their maximum, their exponentials, one weighted sum. Everything is
// asked through functions of indices, so that it shares no code, no order and no layout with what it judges.

#include <algorithm>
#include <cmath>
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
template <class Query, class Key, class Value, class Allowed>
AttentionRow attention_row(index keys, index key_dim, index value_dim, const Query& query, const Key& key,
                           const Value& value, const Allowed& allowed, double scale, double soft_cap = 0,
                           double sink = -std::numeric_limits<double>::infinity()) {
  const double none = -std::numeric_limits<double>::infinity();
  std::vector<double> logit(static_cast<std::size_t>(keys), none);
  double high = sink;
  std::vector<double> numbers;
  for (index d = 0; d < key_dim; ++d) numbers.push_back(query(d));
  const double* const q = numbers.data();
  for (index j = 0; j < keys; ++j) {
    if (!allowed(j)) continue;
    double dot = 0;
    for (index d = 0; d < key_dim; ++d) dot += q[d] * key(j, d);
    dot *= scale;
    if (soft_cap > 0) dot = soft_cap * std::tanh(dot / soft_cap);
    logit[static_cast<std::size_t>(j)] = dot;
    high = std::max(high, dot);
  }
  AttentionRow row{std::vector<double>(static_cast<std::size_t>(value_dim), 0.0), none};
  double* const o = row.o.data();
  if (high == none) return row;
  double total = std::exp(sink - high);
  for (index j = 0; j < keys; ++j) total += std::exp(logit[static_cast<std::size_t>(j)] - high);
  for (index j = 0; j < keys; ++j) {
    const double p = std::exp(logit[static_cast<std::size_t>(j)] - high) / total;
    if (p == 0) continue;
    for (index d = 0; d < value_dim; ++d) o[d] += p * value(j, d);
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
