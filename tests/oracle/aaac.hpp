#pragma once
// Algorithm 1 of AAAC (arXiv 2605.08692) by its definition, in double precision: tables by sorting and by plain means.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace oracle {

struct AaacTables {
  std::vector<double> table[2];
};

/// Weights in units of their group's scale, in whole selection groups.
struct AaacProblem {
  std::vector<double> u, importance;
  std::size_t select;

  std::size_t groups() const { return u.size() / select; }
};

inline std::size_t nearest(const std::vector<double>& table, double u) {
  std::size_t best = 0;
  for (std::size_t c = 1; c < table.size(); ++c)
    if (std::abs(u - table[c]) < std::abs(u - table[best])) best = c;
  return best;
}

inline double quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  const double at = share * static_cast<double>(values.size() - 1);
  const std::size_t low = static_cast<std::size_t>(at);
  const std::size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (at - static_cast<double>(low)) * (values[high] - values[low]);
}

/// sum importance (u - nearest)^2 of selection group g under one table.
inline double group_error(const AaacProblem& p, std::size_t g, const std::vector<double>& table) {
  double error = 0;
  for (std::size_t k = g * p.select; k < (g + 1) * p.select; ++k)
    error += p.importance[k] * std::pow(p.u[k] - table[nearest(table, p.u[k])], 2);
  return error;
}

inline std::vector<int> choose(const AaacProblem& p, const AaacTables& t) {
  std::vector<int> chosen;
  for (std::size_t g = 0; g < p.groups(); ++g)
    chosen.push_back(group_error(p, g, t.table[1]) < group_error(p, g, t.table[0]) ? 1 : 0);
  return chosen;
}

inline double error(const AaacProblem& p, const AaacTables& t, const std::vector<int>& chosen) {
  double sum = 0;
  for (std::size_t g = 0; g < p.groups(); ++g) sum += group_error(p, g, t.table[chosen[g]]);
  return sum;
}

/// Each entry to the mean of its cell, over the groups that chose its table.
inline void move(const AaacProblem& p, AaacTables& t, const std::vector<int>& chosen) {
  for (int r = 0; r < 2; ++r) {
    std::vector<double> sum(t.table[r].size()), weight(sum.size());
    for (std::size_t k = 0; k < p.u.size(); ++k) {
      if (chosen[k / p.select] != r) continue;
      const std::size_t c = nearest(t.table[r], p.u[k]);
      sum[c] += p.importance[k] * p.u[k];
      weight[c] += p.importance[k];
    }
    for (std::size_t c = 0; c < sum.size(); ++c)
      if (weight[c] > 0) t.table[r][c] = sum[c] / weight[c];
    std::sort(t.table[r].begin(), t.table[r].end());
  }
}

inline AaacTables aaac_start(const AaacProblem& p, int entries) {
  AaacTables t;
  const double delta = 0.5 / (entries - 1);
  for (int i = 0; i < entries; ++i) {
    const double at = static_cast<double>(i) / (entries - 1);
    t.table[0].push_back(quantile(p.u, at));
    t.table[1].push_back(quantile(p.u, delta + (1 - delta) * at));
  }
  return t;
}

inline AaacTables aaac(const AaacProblem& p, int entries, int outer, int inner) {
  AaacTables t = aaac_start(p, entries);
  for (int o = 0; o < outer; ++o) {
    const std::vector<int> chosen = choose(p, t);
    for (int i = 0; i < inner; ++i) move(p, t, chosen);
  }
  return t;
}

}  // namespace oracle
